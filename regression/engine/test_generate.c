/* Logits are a function of the tokens, whatever is kept of them: read at once, token by token, in pieces of any size;
 * a text that another one follows, one that is longer than the context, one after which the parameters change.  What
 * they are is known to test_golden. */
#include "engine/train.h"
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"

#include <math.h>
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

/* Of a text of which nothing is kept. */
static void read_whole(trial *t, const int32_t *tokens, int64_t n, float *logits) {
  const int32_t others[] = {(tokens[0] + 1) % (int32_t) t->vocabulary};
  ts_engine_logits(t->engine, others, 1, logits);
  ts_engine_logits(t->engine, tokens, n, logits);
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
      ts_engine_logits(t->engine, t->tokens, n, t->logits);
    }
    ts_engine_logits(t->engine, t->tokens, lengths[i], t->logits);
    worst = fmax(worst, difference(t));
  }
  tap_ok_all(MPI_COMM_WORLD, worst <= t->tolerance, "%s: in pieces as at once (%.1e)", t->name, worst);
}

static void test_one_by_one(trial *t) {
  enum { MANY = 150 };
  read_whole(t, t->tokens, MANY, t->other);
  read_whole(t, t->tokens, 1, t->logits);
  for (int n = 1; n <= MANY; ++n) {
    ts_engine_logits(t->engine, t->tokens, n, t->logits);
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
    ts_engine_logits(t->engine, text, n, t->logits);
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
    ts_engine_logits(t->engine, t->tokens, lengths[i], t->logits);
    worst = fmax(worst, difference(t));
  }
  tap_ok_all(MPI_COMM_WORLD, worst <= t->tolerance, "%s: the beginning of a long text is left out (%.1e)", t->name,
             worst);
}

static void test_training(trial *t) {
  ts_engine_logits(t->engine, t->tokens, 40, t->other);
  train_run_step(t->engine, t->deck, 0);
  ts_engine_logits(t->engine, t->tokens, 41, t->logits); /* with what was kept, only the last token were new */
  ts_engine_logits(t->engine, t->tokens, 40, t->logits);
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
  int64_t made = ts_generate(t->engine, tokens, 10, &options, NULL, NULL);
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
  int64_t all = ts_generate(t->engine, tokens, 10, &options, NULL, NULL);
  items[1] = third = tokens[12];
  bool fit = tokens[10] != third && tokens[11] != third && tokens[10] != items[0] && tokens[11] != items[0];
  t->deck->model.eos_token_id = third;
  int64_t by_eos = ts_generate(t->engine, tokens, 10, &options, NULL, NULL);
  t->deck->model.eos_token_id = tokens[10]; /* does not count beside a list */
  t->deck->model.stop_token_ids = (ts_ints){2, items};
  int64_t by_list = ts_generate(t->engine, tokens, 10, &options, NULL, NULL);
  t->deck->model.stop_token_ids = (ts_ints){0, NULL};
  t->deck->model.eos_token_id = eos;
  tap_ok_all(MPI_COMM_WORLD, fit && all == MORE && by_eos == 3 && by_list == 3 && tokens[12] == third,
             "%s: %lld, %lld and %lld tokens until the end", t->name, (long long) all, (long long) by_eos,
             (long long) by_list);
}

static void test(ts_world *world, const char *name, const char *text, const char *sets) {
  trial t = open_trial(world, name, text, sets, TS_CAN_TRAIN | TS_CAN_EVALUATE | TS_CAN_GENERATE);
  test_pieces(&t);
  test_one_by_one(&t);
  test_other_text(&t);
  test_longer_than_context(&t);
  test_short_context(&t);
  test_training(&t);
  test_agreement(&t);
  test_end(&t);
  close_trial(&t);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  test(world, "gpt2", train_run_gpt2, "zero_optimization.stage=1"); /* makes communicators, which the world keeps */
  int64_t live = ts_memory_live();
  test(world, "llama at stage 3", train_run_llama,
       "zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=0");
  test(world, "llama with dynamic positions", train_run_llama,
       "model.max_position_embeddings=100 model.rope_scaling.rope_type=dynamic model.rope_scaling.factor=2");
  test(world, "llama, bf16", train_run_llama, "bf16.enabled=true");
  test(world, "mistral in a window, checked", train_run_llama,
       "model.model_type=mistral model.sliding_window=21 debug.memcheck=true zero_optimization.stage=0");
  tap_ok_all(MPI_COMM_WORLD, ts_memory_live() == live, "no engine leaves memory behind");
  int code = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return code;
}
