/* Twenty steps with every optimizer and every precision against torch and DeepSpeed's arithmetic (regression/golden:
 * optimizers.json, precisions.json): losses, norms, weights, loss scales, skipped steps; at every stage, and with the
 * same bits at all of them.  The world's three samples are shared by 1 or 3 ranks; two share each sample or its
 * products, four both.  TEST_ONLY takes names of cases; TEST_OPTIMIZERS_ALL, with any value, is for every stage and way
 * to share of every case: without it a case is tried at stage 0 and one of the others and in one way, the next case at
 * the next ones. */
#include "regression/tap.h"
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/memory.h"
#include "base/text.h"
#include "engine/engine.h"
#include "train/train.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MICRO_BATCH = 3, MOST_SETS = 24 };

/* regression/golden/README.md has the evidence: fp32 from fp64 and from other orders of sums 3e-7 in loss, 9e-7 in
 * norm, 1e-5 in weights; other right ways of computing in half types differ by 1.3e-4 (fp16) and 1.2e-3 (bf16) in
 * loss. */
typedef struct suite {
  const char *file;
  double loss, norm, weight; /* allowed; norm, weight 0: not compared */
  const char *const *cases;
  const char *more; /* of the deck, NULL: nothing */
} suite;

#ifdef STAND_IN
/* A rule by elements and one by matrices; regression/ops has all of them there. */
static const char *const fp32_cases[] = {"adamw", "muon_heads", NULL};
static const char *const fp16_cases[] = {"fp16", NULL};
static const char *const overflow_cases[] = {"fp16_overflow", NULL};
static const char *const bf16_cases[] = {"bf16", "low", NULL};
#else
static const char *const fp32_cases[] = {"adamw",
                                         "adam_l2",
                                         "adamw_uncorrected",
                                         "adam_l2_uncorrected",
                                         "lion",
                                         "adagrad",
                                         "adagrad_decay",
                                         "adagrad_gpt2",
                                         "adagrad_start",
                                         "sgd",
                                         "sgd_momentum",
                                         "sgd_nesterov",
                                         "sgd_dampening",
                                         "sgd_gpt2",
                                         "lamb",
                                         "lamb_inside",
                                         "lamb_uncorrected",
                                         "lamb_clamped",
                                         "muon",
                                         "muon_gram",
                                         "muon_heads",
                                         "muon_shared",
                                         "muon_gpt2",
                                         NULL};
static const char *const fp16_cases[] = {"fp16", "fp16_static", "fp16_gpt2", NULL};
static const char *const overflow_cases[] = {"fp16_overflow", NULL};
static const char *const bf16_cases[] = {"bf16", "bf16_gpt2", "low", "low_gpt2", NULL};
#endif

static const suite suites[] = {{"optimizers.json", 1e-5, 1e-5, 1e-4, fp32_cases, NULL},
                               {"precisions.json", 5e-4, 0, 0, fp16_cases, NULL},
                               /* gradients in fp32 would overflow later than torch's */
                               {"precisions.json", 5e-4, 0, 0, overflow_cases, "data_types.grad_accum_dtype=fp16"},
                               {"precisions.json", 3e-3, 0, 0, bf16_cases, NULL},
                               /* without masters: an eighth of bf16's, and fp16's */
                               {"precisions.json", 9e-4, 0, 0, fp16_cases, "fp16.fp16_master_weights_and_grads=true"}};

typedef struct grid {
  ts_world *world;
  int dp, tp, sp;
} grid;

typedef struct trial {
  const char *name;
  const json_t *expected;
  ts_deck *deck;
  ts_engine *engine;
  ts_data *data;
} trial;

/* ---- opening ---- */

static ts_deck *read_deck(const grid *on, const suite *s, const json_t *expected, int stage) {
  const char *golden = tap_path("regression/golden"), *model = json_string_value(json_object_get(expected, "model"));
  char *root = ts_strdup(golden), *path = ts_format("%s/optimizers_%s.cfg", root, model), *set[MOST_SETS];
  int n = 0;
  set[n++] = ts_format("model.from=%s/%s", root, model);
  set[n++] = ts_format("data.path=%s/%s/tokens.bin", root, model);
  set[n++] = ts_format("train_micro_batch_size_per_gpu=%d", MICRO_BATCH / on->dp);
  set[n++] = ts_format("tensor_parallel.autotp_size=%d", on->tp);
  set[n++] = ts_format("sequence_parallel_size=%d", on->sp);
  set[n++] = ts_format("zero_optimization.stage=%d", stage);
  set[n++] = ts_strdup("run.threads=1");
  set[n++] = ts_strdup("run.share_device=true");
  set[n++] = ts_strdup("run.measure_algorithms=false");
  if (s->more != NULL) {
    set[n++] = ts_strdup(s->more);
  }
  size_t i;
  json_t *item;
  json_array_foreach(json_object_get(expected, "set"), i, item) {
    set[n++] = ts_strdup(json_string_value(item));
  }
  ts_error err = {0};
  ts_deck *deck;
  ts_status status = ts_deck_read(path, set, n, &deck, &err);
  status = status == TS_OK ? ts_deck_resolve_batch(deck, on->dp, &err) : status;
  TS_CHECK(status == TS_OK, "%s", err.text);
  while (n > 0) {
    ts_free(set[--n]);
  }
  ts_free(path);
  ts_free(root);
  return deck;
}

static trial open_trial(const grid *on, const suite *s, const char *name, const json_t *expected, int stage) {
  trial t = {.name = name, .expected = expected, .deck = read_deck(on, s, expected, stage)};
  train_run_open(on->world, t.deck, 0, &t.engine, &t.data);
  return t;
}

static void close_trial(trial *t) {
  ts_engine_destroy(&t->engine);
  ts_data_close(&t->data);
  ts_deck_destroy(&t->deck);
}

/* ---- steps ---- */

/* Relative difference from element \a step of an expected list, 0 where there is none. */
static double apart(const trial *t, const char *list, int64_t step, double value) {
  const json_t *item = json_array_get(json_object_get(t->expected, list), (size_t) step);
  if (item == NULL || (json_is_string(item) && isinf(value))) { /* "inf" */
    return 0;
  }
  double d = fabs(value - json_number_value(item)) / fabs(json_number_value(item));
  return isfinite(d) ? d : INFINITY;
}

typedef struct deviation {
  double loss, norm, scale, weight;
  int64_t skipped, steps;
} deviation;

/* Sum and sum of squares of a parameter, in units of what they are sums of.  GPT-2's K bias, the middle third, has a
 * true gradient of zero, and is not counted. */
static double weight_apart(const trial *t, const ts_parameter *p) {
  int64_t n = ts_shape_count(&p->shape), third = strstr(p->name, "c_attn.bias") != NULL ? n / 3 : 0;
  const json_t *expected = json_object_get(json_object_get(t->expected, "sums"), p->name);
  float *value = ts_calloc((size_t) n, sizeof *value);
  ts_error err = {0};
  TS_CHECK(ts_get_full_fp32_parameter(t->engine, p->name, value, &err) == TS_OK, "%s", err.text);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    bool counts = third == 0 || i < third || i >= 2 * third;
    sum += counts ? (double) value[i] : 0;
    squares += counts ? (double) value[i] * (double) value[i] : 0;
  }
  ts_free(value);
  double of_sum = json_number_value(json_array_get(expected, 0)),
         of_squares = json_number_value(json_array_get(expected, 1));
  double worst = fmax(fabs(sum - of_sum) / sqrt((double) n * of_squares), fabs(squares - of_squares) / of_squares / 2);
  return expected != NULL && isfinite(worst) ? worst : INFINITY;
}

static deviation run_steps(const trial *t) {
  deviation d = {.steps = (int64_t) json_array_size(json_object_get(t->expected, "losses"))};
  for (int64_t step = 0; step < d.steps; ++step) {
    ts_step_result result = train_run_step_of(t->engine, t->deck, t->data, step);
    d.loss = fmax(d.loss, apart(t, "losses", step, result.loss));
    d.norm = fmax(d.norm, apart(t, "grad_norms", step, result.grad_norm));
    d.scale = fmax(d.scale, apart(t, "scales", step, result.loss_scale));
    d.skipped += result.skipped;
  }
  const ts_layout *layout = ts_engine_layout(t->engine);
  for (int i = 0; i < layout->n_parameters; ++i) {
    d.weight = fmax(d.weight, weight_apart(t, &layout->parameter[i]));
  }
  return d;
}

/* At stage 0 and `only`; 0: at all of them. */
static void test_stages(const grid *on, const suite *s, const char *name, const json_t *expected, int only) {
  uint64_t bits[4] = {0};
  double loss = 0, norm = 0, weight = 0, scale = 0;
  bool skips = true, same = true;
  for (int stage = 0; stage < 4; ++stage) {
    if (stage > 0 && only > 0 && stage != only) {
      continue;
    }
    trial t = open_trial(on, s, name, expected, stage);
    deviation d = run_steps(&t);
    bits[stage] = train_run_digest(t.engine);
    for (int other = 0; other < stage; ++other) {
      same = same && (bits[other] == 0 || bits[stage] == bits[other] || !train_run_stages_alike(stage, other));
    }
    loss = fmax(loss, d.loss);
    norm = fmax(norm, d.norm);
    weight = fmax(weight, d.weight);
    scale = fmax(scale, d.scale);
    skips = skips && d.skipped == json_integer_value(json_object_get(expected, "skipped")) && d.steps == 20;
    close_trial(&t);
  }
  tap_ok_all(MPI_COMM_WORLD, loss <= s->loss, "%s: losses to %.1e", name, loss);
  tap_ok_all(MPI_COMM_WORLD, s->norm == 0 || norm <= s->norm, "%s: norms to %.1e", name, norm);
  tap_ok_all(MPI_COMM_WORLD, s->weight == 0 || weight <= s->weight, "%s: weights to %.1e", name, weight);
  tap_ok_all(MPI_COMM_WORLD, scale == 0 && skips, "%s: loss scales and skipped steps", name);
  tap_ok_all(MPI_COMM_WORLD, same,
             only > 0 ? "%s: stage %d has the bits of stage 0" : "%s: every stage has the same bits", name, only);
}

#ifdef STAND_IN
static const bool is_stand_in = true;
#else
static const bool is_stand_in = false;
#endif

/* On the stand-in of a GPU, a hundred times as slow, a third of the cases. */
static void test_case(const grid *on, const suite *s, const char *name, const json_t *expected) {
  static int cases = 0;
  bool all = getenv("TEST_OPTIMIZERS_ALL") != NULL;
  if (is_stand_in && !all && cases / 2 % 3 > 0) { /* of both kinds */
    ++cases;
    return;
  }
  int only = all ? 0 : 1 + cases % 3;
  const grid by_tokens = {on->world, on->dp, 1, on->tp}; /* two ranks that share samples, not products */
  bool either = on->tp > 1 && on->sp == 1;
  if (!either || all || cases % 2 == 0) {
    test_stages(on, s, name, expected, only);
  }
  if (either && (all || cases % 2 == 1)) {
    test_stages(&by_tokens, s, name, expected, only);
  }
  ++cases;
}

static void test_suite(const grid *on, const suite *s) {
  char *path = ts_format("%s/%s", tap_path("regression/golden"), s->file);
  json_error_t error;
  json_t *file = json_load_file(path, 0, &error);
  TS_CHECK(file != NULL, "%s: %s", path, error.text);
  for (const char *const *name = s->cases; *name != NULL; ++name) {
    const json_t *expected = json_object_get(json_object_get(file, "cases"), *name);
    TS_CHECK(expected != NULL, "%s: no %s", path, *name);
    /* a rank's gradient is of fewer tokens than the world's, and larger: in fp16 ranks overflow where one does not */
    if (tap_wanted(*name) && (on->dp == 1 || s->more == NULL)) {
      test_case(on, s, *name, expected);
    }
  }
  json_decref(file);
  ts_free(path);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  int ranks = ts_world_size(world);
  grid on = {world, MICRO_BATCH % ranks == 0 ? ranks : 1, 1, 1};
  on.tp = on.dp == ranks ? 1 : 2;
  on.sp = ranks / on.dp / on.tp;
  for (size_t i = 0; i < sizeof suites / sizeof *suites; ++i) {
    test_suite(&on, &suites[i]);
  }
  int status = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return status;
}
