/* Logits are a function of the tokens, whatever is kept of them: read at once, token by token, in pieces of any size;
 * a text that another one follows, one that is longer than the context, one after which the parameters change; beside
 * other texts as alone, and as the loss of the whole says.  What they are is known to test_golden. */
#include "regression/tap_mpi.h"
#include "regression/train_run.h"
#include "train/train.h"

#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* More than the longest run of generation takes, twice. */
enum { CONTEXT = 300, LONGEST = 2 * CONTEXT };

typedef struct trial {
  ts_world *world;
  const char *name;
  ts_deck *deck;
  ts_engine *engine;
  int64_t vocabulary;
  float *logits, *other;
  int32_t tokens[LONGEST];
  double tolerance;
} trial;

static trial open_trial(ts_world *world, const char *name, const char *text, const char *sets, unsigned abilities) {
  char *all = ts_format("model.max_position_embeddings=%d data.sequence_length=%d %s", CONTEXT, CONTEXT, sets);
  trial t = {.world = world, .name = name, .deck = train_run_deck(world, text, all)};
  ts_free(all);
  const ts_engine_options options = {.world = world, .deck = t.deck, .abilities = abilities};
  ts_error err = {0};
  TS_CHECK(ts_engine_create(&options, &t.engine, &err) == TS_OK, "%s", err.text);
  t.vocabulary = t.deck->model.vocab_size;
  t.logits = ts_malloc((size_t) t.vocabulary * sizeof *t.logits);
  t.other = ts_malloc((size_t) t.vocabulary * sizeof *t.other);
  for (int i = 0; i < LONGEST; ++i) {
    uint32_t words[4];
    ts_philox(7, 0, (uint64_t) i, words);
    t.tokens[i] = (int32_t) (words[0] % t.vocabulary);
  }
  /* Sums of at most CONTEXT terms in another order; bf16: activations rounded anew at every layer. */
  t.tolerance = t.deck->bf16.enabled == TS_SWITCH_ON ? 2e-2 : 2e-6;
  return t;
}

static void close_trial(trial *t) {
  ts_engine_destroy(&t->engine);
  ts_deck_destroy(&t->deck);
  ts_free(t->logits);
  ts_free(t->other);
}

static void read_text(trial *t, const int32_t *tokens, int64_t n, float *logits) {
  ts_engine_logits(t->engine, &(ts_tokens_of){tokens, n}, logits);
}

/* How many tokens are added to the first ten. */
static int64_t continue_text(trial *t, int32_t *tokens, const ts_generate_options *options) {
  ts_continued text = {.token = tokens, .n = 10};
  ts_generate(t->engine, &text, 1, options, NULL);
  return text.made;
}

/* Of a text of which nothing is kept. */
static void read_whole(trial *t, const int32_t *tokens, int64_t n, float *logits) {
  const int32_t others[] = {(tokens[0] + 1) % (int32_t) t->vocabulary};
  read_text(t, others, 1, logits);
  read_text(t, tokens, n, logits);
}

static double difference(const trial *t) {
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < t->vocabulary; ++i) {
    double d = fabs((double) t->logits[i] - t->other[i]);
    worst = d <= worst ? worst : d; /* NaN is a difference */
    largest = fmax(largest, fabs(t->other[i]));
  }
  return worst / largest;
}

/* Lengths around those of the runs, and the last that fits. */
static void test_pieces(trial *t) {
  static const int lengths[] = {1, 2, 15, 16, 17, 31, 33, 127, 128, 129, 200, 257, CONTEXT - 1, CONTEXT};
  double worst = 0;
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
    read_whole(t, t->tokens, lengths[i], t->other);
    read_whole(t, t->tokens, 1, t->logits);
    for (int n = 1; n <= lengths[i]; n += 1 + n / 3) {
      read_text(t, t->tokens, n, t->logits);
    }
    read_text(t, t->tokens, lengths[i], t->logits);
    worst = fmax(worst, difference(t));
  }
  tap_ok_all(MPI_COMM_WORLD, worst <= t->tolerance, "%s: in pieces as at once (%.1e)", t->name, worst);
}

static void test_one_by_one(trial *t) {
  enum { MANY = 150 };
  read_whole(t, t->tokens, MANY, t->other);
  read_whole(t, t->tokens, 1, t->logits);
  for (int n = 1; n <= MANY; ++n) {
    read_text(t, t->tokens, n, t->logits);
  }
  double d = difference(t);
  tap_ok_all(MPI_COMM_WORLD, d <= t->tolerance, "%s: one by one as at once (%.1e)", t->name, d);
}

/* The second text begins as the first one, and ends earlier, later, or otherwise. */
static void test_other_text(trial *t) {
  int32_t text[CONTEXT];
  double worst = 0;
  for (int n = 20; n <= 80; n += 30) {
    memcpy(text, t->tokens, sizeof text);
    text[37] = (text[37] + 1) % (int32_t) t->vocabulary;
    read_whole(t, text, n, t->other);
    read_whole(t, t->tokens, 50, t->logits);
    read_text(t, text, n, t->logits);
    worst = fmax(worst, difference(t));
  }
  tap_ok_all(MPI_COMM_WORLD, worst <= t->tolerance, "%s: what another text left does not matter (%.1e)", t->name,
             worst);
}

/* Of CONTEXT + 1 to CONTEXT + CONTEXT / 2 tokens half a context is left out, then another half. */
static void test_longer_than_context(trial *t) {
  static const int lengths[] = {CONTEXT + 1, CONTEXT + 2, CONTEXT + CONTEXT / 2, CONTEXT + CONTEXT / 2 + 1, LONGEST};
  double worst = 0;
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
    int left_out = lengths[i] <= CONTEXT + CONTEXT / 2 ? CONTEXT / 2 : CONTEXT;
    read_whole(t, t->tokens + left_out, lengths[i] - left_out, t->other);
    read_text(t, t->tokens, lengths[i], t->logits);
    worst = fmax(worst, difference(t));
  }
  tap_ok_all(MPI_COMM_WORLD, worst <= t->tolerance, "%s: the beginning of a long text is left out (%.1e)", t->name,
             worst);
}

static void test_training(trial *t) {
  read_text(t, t->tokens, 40, t->other);
  train_run_step(t->engine, t->deck, 0);
  read_text(t, t->tokens, 41, t->logits); /* with what was kept, only the last token were new */
  read_text(t, t->tokens, 40, t->logits);
  double moved = difference(t);
  read_whole(t, t->tokens, 40, t->other);
  double d = difference(t);
  tap_ok_all(MPI_COMM_WORLD, d <= t->tolerance && moved > 10 * t->tolerance,
             "%s: nothing is kept of other parameters (%.1e, moved %.1e)", t->name, d, moved);
}

/* Rank 0 draws for all: ranks that would draw otherwise get the same text, and end at the same token. */
static void test_agreement(trial *t) {
  enum { MORE = 12 };
  int rank = ts_world_rank(t->world);
  int32_t tokens[10 + MORE], first[10 + MORE];
  memcpy(tokens, t->tokens, sizeof tokens);
  const ts_generate_options options = {.n_tokens = MORE, .temperature = 1, .seed = 11 + (uint64_t) rank};
  int64_t made = continue_text(t, tokens, &options);
  memcpy(first, tokens, sizeof first);
  ts_comm *all = ts_world_all(t->world);
  all->ops->broadcast(all, first, sizeof first, 0);
  tap_ok_all(MPI_COMM_WORLD, made == MORE && memcmp(tokens, first, sizeof first) == 0, "%s: one text for all ranks",
             t->name);
}

/* Less is kept of a text that is short: the logits stay what they are, of rotary positions that depend on the length
 * too. */
static void test_short_context(trial *t) {
  const ts_engine_options options = {.world = t->world, .deck = t->deck, .abilities = TS_CAN_GENERATE, .context = 40};
  ts_engine *engine, *long_one = t->engine;
  ts_error err = {0};
  TS_CHECK(ts_engine_create(&options, &engine, &err) == TS_OK, "%s", err.text);
  read_whole(t, t->tokens, 40, t->other);
  t->engine = engine;
  read_whole(t, t->tokens, 40, t->logits);
  t->engine = long_one;
  double d = difference(t);
  tap_ok_all(MPI_COMM_WORLD, d <= t->tolerance, "%s: a shorter context, the same logits (%.1e)", t->name, d);
  ts_engine_destroy(&engine);
}

/* The token that comes third ends the text where the deck says so, by either key. */
static void test_end(trial *t) {
  enum { MORE = 6 };
  int32_t tokens[10 + MORE], third;
  const ts_generate_options options = {.n_tokens = MORE, .temperature = 1, .seed = 3};
  int64_t items[] = {t->vocabulary - 1, 0}, eos = t->deck->model.eos_token_id;
  memcpy(tokens, t->tokens, sizeof tokens);
  t->deck->model.eos_token_id = -1;
  int64_t all = continue_text(t, tokens, &options);
  items[1] = third = tokens[12];
  bool fit = tokens[10] != third && tokens[11] != third && tokens[10] != items[0] && tokens[11] != items[0];
  t->deck->model.eos_token_id = third;
  int64_t by_eos = continue_text(t, tokens, &options);
  t->deck->model.eos_token_id = tokens[10]; /* does not count beside a list */
  t->deck->model.stop_token_ids = (ts_ints){2, items};
  int64_t by_list = continue_text(t, tokens, &options);
  t->deck->model.stop_token_ids = (ts_ints){0, NULL};
  t->deck->model.eos_token_id = eos;
  tap_ok_all(MPI_COMM_WORLD, fit && all == MORE && by_eos == 3 && by_list == 3 && tokens[12] == third,
             "%s: %lld, %lld and %lld tokens until the end", t->name, (long long) all, (long long) by_eos,
             (long long) by_list);
}

/* ---- several texts at a time ---- */

enum { ROWS = 5, STEPS = 12 };

static ts_engine *open_many(const trial *t, unsigned abilities) {
  const ts_engine_options options = {.world = t->world, .deck = t->deck, .abilities = abilities, .texts = ROWS};
  ts_engine *engine;
  ts_error err = {0};
  TS_CHECK(ts_engine_create(&options, &engine, &err) == TS_OK, "%s", err.text);
  return engine;
}

/* Texts of all kinds of lengths, which grow; one pauses and goes on with what is kept of it, one begins later, one is
 * longer than the context.  Ranks with other samples have other texts, of other lengths. */
static ts_tokens_of text_at(const trial *t, int row, int step) {
  static const int lengths[ROWS] = {3, 150, CONTEXT - 5, 40, 1};
  int group = ts_mesh_group_rank(ts_engine_mesh(t->engine), TS_AXES_BATCH);
  bool idle = (row == 3 && step > 4 && step < 9) || (row == 4 && step < 2);
  return idle ? (ts_tokens_of){0} : (ts_tokens_of){t->tokens + 20 * row + 9 * group, lengths[row] + 5 * group + step};
}

static void test_together(trial *t) {
  ts_engine *many = open_many(t, TS_CAN_GENERATE);
  float *all = ts_malloc((size_t) (ROWS * t->vocabulary) * sizeof *all), *logits = t->logits;
  double worst = 0;
  for (int step = 0; step < STEPS; ++step) {
    ts_tokens_of text[ROWS];
    for (int b = 0; b < ROWS; ++b) {
      text[b] = text_at(t, b, step);
    }
    ts_engine_logits(many, text, all);
    for (int b = 0; b < ROWS; ++b) {
      ts_tokens_of alone = text[b].n > 0 ? text[b] : (ts_tokens_of){t->tokens, 1};
      read_whole(t, alone.token, alone.n, t->other);
      t->logits = all + b * t->vocabulary;
      worst = text[b].n > 0 ? fmax(worst, difference(t)) : worst;
    }
  }
  t->logits = logits;
  tap_ok_all(MPI_COMM_WORLD, worst <= t->tolerance, "%s: beside other texts as alone (%.1e)", t->name, worst);
  ts_free(all);
  ts_engine_destroy(&many);
}

/* Minus the logarithm of a token's probability. */
static double loss_of(const float *logits, int64_t n, int32_t token) {
  double largest = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = fmax(largest, logits[i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    sum += exp(logits[i] - largest);
  }
  return log(sum) + largest - logits[token];
}

/* Sum over a sample, without anything kept. */
static double loss_of_whole(ts_engine *engine, const ts_deck *deck, const int32_t *tokens) {
  ts_batch *batch =
      ts_batch_create(deck->train_micro_batch_size_per_gpu, deck->data.sequence_length, ts_engine_inputs(engine));
  for (int64_t i = 0; i < batch->samples; ++i) {
    ts_batch_set(batch, i, i, tokens, -1);
  }
  double sum, valid;
  ts_engine_evaluate(engine, batch, &sum, &valid);
  ts_batch_destroy(&batch);
  return sum / valid * (double) deck->data.sequence_length;
}

/* A token at a time, row b some steps behind the others: the losses of all tokens are those of the whole forward. */
static void test_whole_forward(trial *t) {
  enum { BEHIND = 7 };
  ts_engine *many = open_many(t, TS_CAN_GENERATE | TS_CAN_EVALUATE);
  float *logits = ts_malloc((size_t) (ROWS * t->vocabulary) * sizeof *logits);
  double loss[ROWS] = {0}, worst = 0;
  for (int step = 1; step <= CONTEXT + (ROWS - 1) * BEHIND; ++step) {
    ts_tokens_of text[ROWS] = {0};
    for (int b = 0; b < ROWS; ++b) {
      int n = step - b * BEHIND;
      text[b] = n > 0 && n <= CONTEXT ? (ts_tokens_of){t->tokens + 30 * b, n} : text[b];
    }
    ts_engine_logits(many, text, logits);
    for (int b = 0; b < ROWS; ++b) {
      loss[b] += text[b].n > 0 ? loss_of(logits + b * t->vocabulary, t->vocabulary, text[b].token[text[b].n]) : 0;
    }
  }
  for (int b = 0; b < ROWS; ++b) {
    worst = fmax(worst, fabs(loss[b] / loss_of_whole(many, t->deck, t->tokens + 30 * b) - 1));
  }
  tap_ok_all(MPI_COMM_WORLD, worst <= t->tolerance, "%s: the losses of a whole forward (%.1e)", t->name, worst);
  ts_free(logits);
  ts_engine_destroy(&many);
}

/* The texts of a batch, or as \a alone says each by itself; what was made is left in \a text. */
static void continue_texts(ts_engine *engine, ts_continued *text, int64_t n, bool alone, double temperature) {
  const ts_generate_options options = {.n_tokens = STEPS, .temperature = temperature, .seed = 5};
  for (int64_t i = 0; i < n; i += alone ? 1 : n) {
    ts_generate(engine, text + i, alone ? 1 : n, &options, NULL);
  }
}

static bool same_texts(const ts_continued *a, const ts_continued *b, int64_t n) {
  bool same = true;
  for (int64_t i = 0; i < n; ++i) {
    same = same && a[i].made == b[i].made && a[i].end == b[i].end &&
           memcmp(a[i].token, b[i].token, (size_t) (a[i].n + a[i].made) * sizeof *a[i].token) == 0;
  }
  return same;
}

/* Some of a batch end early; each text has the tokens that it has alone, drawn ones too.  In fp32: no two logits are so
 * close here that rounding would choose. */
static void test_batch(trial *t, double temperature) {
  ts_engine *many = open_many(t, TS_CAN_GENERATE);
  int64_t n = ts_generate_room(many) - 1, eos = t->deck->model.eos_token_id, ended = 0;
  ts_continued *text[2];
  for (int alone = 0; alone < 2; ++alone) {
    text[alone] = ts_calloc((size_t) n, sizeof *text[alone]);
    for (int64_t i = 0; i < n; ++i) {
      text[alone][i] = (ts_continued){.n = 1 + 23 * i % 40, .number = 100 + i};
      text[alone][i].token = ts_calloc((size_t) (text[alone][i].n + STEPS), sizeof(int32_t));
      memcpy(text[alone][i].token, t->tokens + 11 * i, (size_t) text[alone][i].n * sizeof(int32_t));
    }
    continue_texts(alone ? t->engine : many, text[alone], n, alone, temperature);
    if (alone == 0) { /* again, where the second text's sixth token ends texts */
      t->deck->model.eos_token_id = text[0][1].token[text[0][1].n + 5];
      for (int64_t i = 0; i < n; ++i) {
        text[0][i].made = text[0][i].end = 0;
      }
      continue_texts(many, text[0], n, false, temperature);
    }
  }
  t->deck->model.eos_token_id = eos;
  for (int64_t i = 0; i < n; ++i) {
    ended += text[0][i].end;
  }
  bool mixed = ended > 0 && ended < n, same = same_texts(text[0], text[1], n);
  tap_ok_all(MPI_COMM_WORLD, mixed && same, "%s: %lld of %lld texts of a batch end, all as alone at temperature %g",
             t->name, (long long) ended, (long long) n, temperature);
  for (int64_t i = 0; i < 2 * n; ++i) {
    ts_free(text[i % 2][i / 2].token);
  }
  ts_free(text[0]);
  ts_free(text[1]);
  ts_engine_destroy(&many);
}

static void test_many(trial *t) {
  test_together(t);
  test_whole_forward(t);
  if (t->deck->bf16.enabled != TS_SWITCH_ON) {
    test_batch(t, 0);
    test_batch(t, 1);
  }
}

static void test(ts_world *world, const char *name, const char *text, const char *sets) {
  trial t = open_trial(world, name, text, sets, TS_CAN_TRAIN | TS_CAN_EVALUATE | TS_CAN_GENERATE);
  test_pieces(&t);
  test_one_by_one(&t);
  test_other_text(&t);
  test_longer_than_context(&t);
  test_short_context(&t);
  test_many(&t);
  test_training(&t);
  test_agreement(&t);
  test_end(&t);
  close_trial(&t);
}

#define WINDOW "model.model_type=mistral model.sliding_window=21 zero_optimization.stage=0"

/* Looking at all memory after every node takes thirty times as long: texts of a few runs of each program, all with
 * TEST_GENERATE_ALL. */
static void test_checked(ts_world *world, const char *name, const char *text, const char *sets) {
  if (getenv("TEST_GENERATE_ALL") != NULL) {
    test(world, name, text, sets);
    return;
  }
  trial t = open_trial(world, name, text, sets, TS_CAN_TRAIN | TS_CAN_EVALUATE | TS_CAN_GENERATE);
  test_other_text(&t);
  test_short_context(&t);
  test_batch(&t, 1);
  test_training(&t);
  close_trial(&t);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  test(world, "gpt2", train_run_gpt2, "zero_optimization.stage=1"); /* makes communicators, which the world keeps */
  if (ts_world_size(world) % 2 == 0) {
    test(world, "llama on two ranks along tp", train_run_llama, "tensor_parallel.autotp_size=2");
  }
  int64_t live = ts_memory_live();
  test(world, "llama at stage 3", train_run_llama,
       "zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=0");
  test(world, "llama with dynamic positions", train_run_llama,
       "model.max_position_embeddings=100 model.rope_scaling.rope_type=dynamic model.rope_scaling.factor=2");
  test(world, "llama, bf16", train_run_llama, "bf16.enabled=true");
  test(world, "mistral in a window", train_run_llama, WINDOW);
  test_checked(world, "mistral in a window, checked", train_run_llama, WINDOW " debug.memcheck=true");
  tap_ok_all(MPI_COMM_WORLD, ts_memory_live() == live, "no engine leaves memory behind");
  int code = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return code;
}
