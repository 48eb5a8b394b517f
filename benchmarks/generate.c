/* What a generated token costs when keys and values are kept, against reading the whole text again for it.
 *
 *     benchmarks/generate [DECK [KEY=VALUE ...]]      default: inputs/gpt2_124m.cfg with its 256 tokens
 *
 * A text fills all of the context but a few tokens.  In turn: it is read again from its first token on (`whole`), then
 * a token is added (`token`).  `read` is the bytes of all parameters over the time of a token, as a part of what memcpy
 * reads: a token reads each parameter once.  Then a token is added to each of several texts at a time, of half the
 * context and less. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/workings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, ADDED = 8 };

static int by_value(const void *a, const void *b) {
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

static double median(double *seconds, int n) {
  qsort(seconds, (size_t) n, sizeof *seconds, by_value);
  return seconds[n / 2];
}

static double time_logits(ts_engine *engine, const int32_t *tokens, int64_t n, float *logits) {
  double start = ts_seconds();
  ts_engine_logits(engine, &(ts_tokens_of){tokens, n}, logits);
  return ts_seconds() - start;
}

/* Bytes a second that all threads together read, copying. */
static double copy_rate(int threads) {
  const size_t bytes = (size_t) 1 << 29, each = bytes / (size_t) threads;
  char *from = ts_map(bytes), *to = ts_map(bytes);
  double best = 0;
  for (int round = 0; round < 4; ++round) {
    double start = ts_seconds();
#pragma omp parallel for num_threads(threads)
    for (int i = 0; i < threads; ++i) {
      memset(from + (size_t) i * each, round, round == 0 ? each : 1);
      memcpy(to + (size_t) i * each, from + (size_t) i * each, each);
    }
    double rate = (double) bytes / (ts_seconds() - start);
    best = round > 0 && rate > best ? rate : best;
  }
  ts_unmap(from, bytes);
  ts_unmap(to, bytes);
  return best;
}

static void measure(ts_engine *engine, const ts_deck *deck) {
  int64_t context = deck->data.sequence_length, n = context - ADDED, vocabulary = deck->model.vocab_size;
  int32_t *tokens = ts_calloc((size_t) context, sizeof *tokens);
  float *logits = ts_malloc((size_t) vocabulary * sizeof *logits);
  double whole[ROUNDS], token[ROUNDS * ADDED];
  for (int64_t i = 0; i < context; ++i) {
    tokens[i] = (int32_t) (i * 7919 % vocabulary);
  }
  for (int round = 0; round < ROUNDS; ++round) {
    tokens[0] = round; /* another text */
    whole[round] = time_logits(engine, tokens, n, logits);
    for (int i = 0; i < ADDED; ++i) {
      token[round * ADDED + i] = time_logits(engine, tokens, n + i + 1, logits);
    }
  }
  const ts_program *program = ts_engine_program(engine);
  double w = median(whole, ROUNDS), t = median(token, ROUNDS * ADDED), copy = copy_rate(program->target.threads);
  double bytes = (double) (ts_layout_parameter_count(ts_engine_layout(engine), false) *
                           (int64_t) ts_dtype_size(ts_deck_dtype(deck)));
  printf("%lld tokens kept, %d threads\n", (long long) n, program->target.threads);
  printf("  whole  %9.2f ms  %8.1f tokens/s read\n", 1e3 * w, (double) n / w);
  printf("  token  %9.2f ms  %8.1f tokens/s made, %.1f times faster\n", 1e3 * t, 1 / t, w / t);
  printf("  read   %9.2f GB/s of parameters, %.2f of memcpy's %.2f\n", 1e-9 * bytes / t, bytes / t / copy, 1e-9 * copy);
  ts_free(tokens);
  ts_free(logits);
}

static double time_texts(ts_engine *engine, const ts_tokens_of *text, float *logits) {
  double start = ts_seconds();
  ts_engine_logits(engine, text, logits);
  return ts_seconds() - start;
}

/* Median seconds of a token for each of \a texts texts. */
static double measure_texts(ts_world *world, ts_deck *deck, int64_t texts) {
  const ts_engine_options options = {.world = world, .deck = deck, .abilities = TS_CAN_GENERATE, .texts = texts};
  ts_engine *engine;
  ts_error err = {0};
  TS_CHECK(ts_engine_create(&options, &engine, &err) == TS_OK, "%s", err.text);
  int64_t most = deck->data.sequence_length, vocabulary = deck->model.vocab_size;
  int32_t *tokens = ts_calloc((size_t) (most + texts), sizeof *tokens);
  float *logits = ts_malloc((size_t) (texts * vocabulary) * sizeof *logits);
  ts_tokens_of *text = ts_calloc((size_t) texts, sizeof *text);
  double seconds[2 * ADDED];
  for (int64_t i = 0; i < most + texts; ++i) {
    tokens[i] = (int32_t) (i * 7919 % vocabulary);
  }
  for (int64_t b = 0; b < texts; ++b) {
    text[b] = (ts_tokens_of){tokens + b, most / 2 - b * most / 4 / texts};
  }
  time_texts(engine, text, logits);
  for (int i = 0; i < 2 * ADDED; ++i) {
    for (int64_t b = 0; b < texts; ++b) {
      ++text[b].n;
    }
    seconds[i] = time_texts(engine, text, logits);
  }
  ts_free(text);
  ts_free(logits);
  ts_free(tokens);
  ts_engine_destroy(&engine);
  return median(seconds, 2 * ADDED);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  ts_log_configure(TS_LOG_WARNING, ts_world_rank(world) == 0);
  ts_error err = {0};
  ts_deck *deck = NULL;
  ts_engine *engine = NULL;
  ts_text said = {0};
  ts_status status =
      ts_deck_read(argc > 1 ? argv[1] : "inputs/gpt2_124m.cfg", argv + 2, argc > 2 ? argc - 2 : 0, &deck, &err);
  if (status == TS_OK) {
    deck->train_micro_batch_size_per_gpu = deck->train_batch_size = deck->gradient_accumulation_steps = 1;
    status = ts_engine_decide_precision(world, deck, &said, &err);
  }
  const ts_engine_options options = {.world = world, .deck = deck, .abilities = TS_CAN_GENERATE};
  status = status == TS_OK ? ts_engine_create(&options, &engine, &err) : status;
  TS_CHECK(status == TS_OK, "%s", err.text);
  measure(engine, deck);
  ts_engine_destroy(&engine);
  for (int64_t texts = 1; texts <= 16; texts *= 4) {
    double seconds = measure_texts(world, deck, texts);
    printf("  %2lld text%s %7.2f ms  %8.1f tokens/s made\n", (long long) texts, texts > 1 ? "s" : " ", 1e3 * seconds,
           (double) texts / seconds);
  }
  ts_deck_destroy(&deck);
  ts_text_free(&said);
  ts_world_destroy(&world);
  return 0;
}
