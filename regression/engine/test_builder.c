/* Models of a program's own against torch (regression/golden/make_own_models.py): two towers that are told apart, a
 * distillation, rows that are no tokens.  Losses and gradients at every stage of ZeRO, in fp32 and, loosely, in lower
 * types; and what is wrong with a model is told. */
#include "regression/subject.h"
#include "regression/tap.h"
#include "regression/tap_mpi.h"

#include "base/memory.h"
#include "io/safetensors.h"

#include <math.h>
#include <string.h>

enum { SAMPLES = 4, EACH = 2, LENGTH = 6, VOCABULARY = 11, WIDTH = 8, HEADS = 2 };

/* ---- the models ---- */

static ts_tid attend(ts_builder *b, ts_tid x, ts_tid positions, ts_tid documents, bool causal) {
  const ts_heads heads = {.heads = HEADS, .kv_heads = HEADS, .head_dim = WIDTH / HEADS, .causal = causal};
  ts_tid q = ts_builder_linear(b, "q", x, WIDTH, false), k = ts_builder_linear(b, "k", x, WIDTH, false);
  q = ts_builder_rope(b, "q_rope", q, positions, WIDTH / HEADS, 100);
  k = ts_builder_rope(b, "k_rope", k, positions, WIDTH / HEADS, 100);
  ts_tid o = ts_builder_attention(b, "attention", q, k, ts_builder_linear(b, "v", x, WIDTH, false), documents, &heads);
  return ts_builder_add(b, "add", x, o);
}

static ts_tid tokens_input(ts_builder *b, const char *name) {
  return ts_builder_input(b, name, TS_I32, 1, (int64_t[]){LENGTH}, 1);
}

/* Rows of one tower told from those of the other, by the place in the batch. */
static void tell_apart(ts_builder *b, const char *name, ts_tid x, ts_tid y, ts_tid labels) {
  int64_t batch = ts_builder_batch(b);
  char *rows = ts_format("%s.rows", name);
  ts_builder_head_loss(b, name, ts_builder_reshape(b, rows, x, 3, (int64_t[]){1, batch, WIDTH}), y, labels, 1);
  ts_free(rows);
}

static void write_towers(ts_builder *b, void *user) {
  (void) user;
  ts_tid query = tokens_input(b, "query"), document = tokens_input(b, "document");
  ts_tid positions = tokens_input(b, "positions");
  ts_tid mask = ts_builder_input(b, "mask", TS_I32, 1, (int64_t[]){LENGTH}, 0);
  ts_tid index = ts_builder_input(b, "index", TS_I32, 0, NULL, 0);
  ts_tid labels = ts_builder_input(b, "labels", TS_I32, 0, NULL, 0);
  ts_tid target = ts_builder_input(b, "target", TS_F32, 1, (int64_t[]){WIDTH}, 0);
  ts_builder_unit(b, "query");
  ts_tid x = ts_builder_embedding(b, "tokens", query, VOCABULARY, WIDTH);
  x = ts_builder_add(b, "sum", x, ts_builder_embedding(b, "positions", positions, LENGTH, WIDTH));
  ts_tid mean = ts_builder_mean_pool(b, "mean", attend(b, x, positions, mask, false), mask);
  ts_tid a = ts_builder_normalize(b, "unit", ts_builder_linear(b, "out", mean, WIDTH, false), 1e-12);
  ts_builder_unit(b, "document");
  ts_tid y = ts_builder_embedding(b, "tokens", document, VOCABULARY, WIDTH);
  ts_tid up = ts_builder_activation(b, "act", ts_builder_linear(b, "up", y, WIDTH, true), TS_ACTIVATION_GELU);
  y = ts_builder_multiply(b, "gated", up, ts_builder_linear(b, "gate", y, WIDTH, false));
  y = ts_builder_pick(b, "picked", y, index);
  ts_tid c = ts_builder_normalize(b, "unit", ts_builder_linear(b, "out", y, WIDTH, false), 1e-12);
  ts_builder_unit(b, "loss");
  a = ts_builder_scale(b, "scale", a, 5);
  labels = ts_builder_reshape(b, "labels", labels, 2, (int64_t[]){1, ts_builder_batch(b)});
  tell_apart(b, "there", a, c, labels);
  tell_apart(b, "back", c, a, labels);
  ts_builder_loss(b, "near", ts_builder_squared_error(b, "error", mean, target), TS_NONE, 0.125);
}

static void write_distilled(ts_builder *b, void *user) {
  (void) user;
  ts_tid ids = tokens_input(b, "ids"), labels = tokens_input(b, "labels"), mask = tokens_input(b, "mask");
  ts_tid positions = tokens_input(b, "positions");
  ts_tid teacher = ts_builder_input(b, "teacher", TS_F32, 2, (int64_t[]){LENGTH, VOCABULARY}, 1);
  ts_builder_unit(b, "embed");
  ts_tid x = ts_builder_embedding(b, "tokens", ids, VOCABULARY, WIDTH);
  ts_builder_unit(b, "block");
  x = ts_builder_rmsnorm(b, "norm", attend(b, x, positions, TS_NONE, true), 1e-6);
  ts_builder_unit(b, "head");
  ts_tid w = ts_builder_parameter(b, "weight", 2, (int64_t[]){VOCABULARY, WIDTH}, (ts_init){TS_INIT_NORMAL, 0.1});
  ts_builder_head_loss(b, "hard", x, w, labels, 0.3);
  ts_tid logits = ts_builder_product(b, "logits", x, w);
  ts_builder_loss(b, "soft", ts_builder_soft_cross_entropy(b, "entropy", logits, teacher, 2), mask, 0.7);
}

static void write_rows(ts_builder *b, void *user) {
  (void) user;
  ts_tid x = ts_builder_input(b, "x", TS_F32, 1, (int64_t[]){5}, 0);
  ts_tid target = ts_builder_input(b, "target", TS_F32, 1, (int64_t[]){3}, 0);
  ts_tid mask = ts_builder_input(b, "mask", TS_I32, 1, (int64_t[]){3}, 0);
  ts_builder_unit(b, "net");
  ts_tid y = ts_builder_linear(b, "a", x, WIDTH, true);
  ts_tid z = ts_builder_multiply(b, "product", ts_builder_normalize(b, "unit", y, 1e-12), y);
  z = ts_builder_linear(b, "b", ts_builder_activation(b, "act", z, TS_ACTIVATION_RELU), 3, false);
  ts_builder_loss(b, "error", ts_builder_squared_error(b, "squares", z, target), mask, 1);
  ts_builder_loss(b, "small", ts_builder_multiply(b, "y2", y, y), TS_NONE, 0.5);
}

static const ts_own_model models[] = {
    {"towers", write_towers, NULL}, {"distilled", write_distilled, NULL}, {"rows", write_rows, NULL}};
enum { N_MODELS = sizeof models / sizeof *models };

/* ---- against torch ---- */

/* A rate by which a step is the gradient to the bit: beside it a parameter's rounding is nothing. */
#define RATE "4096.0"
static const double rate = 4096;

static const char own_deck[] = "model = { model_type = \"own\"; };\n"
                               "run = { directory = \"none\"; seed = 5; threads = 1; };\n"
                               "gradient_clipping = 0.0;\n"
                               "optimizer = { type = \"SGD\"; params = { lr = " RATE "; weight_decay = 0.0; }; };\n";

typedef struct trial {
  ts_world *world;
  const char *name;
  ts_deck *deck;
  ts_engine *engine;
  ts_safetensors *golden;
  int64_t micro_batches;
  int sharers; /* ranks that have the same losses */
} trial;

/* A tensor of the case, or NULL; values are the caller's. */
static float *read_golden(const trial *s, const char *kind, const char *name, int64_t *count) {
  char *full = ts_format("%s/%s%s%s", s->name, kind, name[0] != 0 ? "/" : "", name);
  const ts_safetensor *t = ts_safetensors_find(s->golden, full);
  TS_CHECK(t != NULL, "there is no golden %s", full);
  float *value = ts_malloc((size_t) t->count * sizeof *value);
  ts_safetensors_read_f32(t, 0, t->count, value);
  *count = t->count;
  ts_free(full);
  return value;
}

static trial open_trial(ts_world *world, const ts_own_model *model, const char *more) {
  trial s = {.world = world, .name = model->name};
  char *sets = ts_format(DEVICE "train_batch_size=%d train_micro_batch_size_per_gpu=%d "
                                "zero_optimization.stage3_param_persistence_threshold=20 %s",
                         SAMPLES, EACH, more);
  s.deck = train_run_deck(world, own_deck, sets);
  ts_free(sets);
  const ts_engine_options options = {
      .world = world, .deck = s.deck, .abilities = TS_CAN_STEP | TS_CAN_EVALUATE, .model = model};
  ts_error err = {0};
  must(ts_engine_create(&options, &s.engine, &err), &err);
  s.micro_batches = ts_gradient_accumulation_steps(s.engine);
  s.sharers = (int) s.deck->tensor_parallel.autotp_size;
  const char *path = tap_path("regression/golden/own_models.safetensors");
  must(ts_safetensors_open(path, &s.golden, &err), &err);
  const ts_layout *layout = ts_engine_layout(s.engine);
  for (int i = 0; i < layout->n_parameters; ++i) {
    int64_t count;
    float *value = read_golden(&s, "parameter", layout->parameter[i].name, &count);
    must(ts_set_full_fp32_parameter(s.engine, layout->parameter[i].name, value, &err), &err);
    ts_free(value);
  }
  return s;
}

static void close_trial(trial *s) {
  ts_engine_destroy(&s->engine);
  ts_deck_destroy(&s->deck);
  ts_safetensors_close(&s->golden);
}

/* Two samples from `first` on, of every input. */
static void set_inputs(const trial *s, int64_t first) {
  const ts_graph *g = ts_engine_program(s->engine)->graph;
  ts_error err = {0};
  for (int i = 0; i < ts_safetensors_count(s->golden); ++i) {
    const char *full = ts_safetensors_at(s->golden, i)->name, *name = strrchr(full, '/') + 1;
    char *prefix = ts_format("%s/input/", s->name);
    bool input = strncmp(full, prefix, strlen(prefix)) == 0;
    ts_free(prefix);
    if (!input) {
      continue;
    }
    int64_t count;
    float *value = read_golden(s, "input", name, &count);
    float *mine = value + first * (count / SAMPLES);
    for (int64_t k = 0; k < EACH * count / SAMPLES && g->tensor[ts_graph_find(g, name)].dtype == TS_I32; ++k) {
      int32_t number = (int32_t) mine[k];
      memcpy(&mine[k], &number, sizeof number);
    }
    must(ts_set_input(s->engine, name, mine, &err), &err);
    ts_free(value);
  }
}

/* Of all ranks, each once; \a got is this rank's sum, and the number of what it is of. */
static void add_losses(const trial *s, double got[2]) {
  double *all = ts_world_gather(s->world, got, 2 * sizeof *got);
  got[0] = got[1] = 0;
  for (int r = 0; r < ts_world_size(s->world); ++r) {
    got[0] += all[2 * r] / s->sharers;
    got[1] += all[2 * r + 1] / s->sharers;
  }
  ts_free(all);
}

static ts_step_result step(const trial *s, bool training, double loss[2]) {
  ts_error err = {0};
  ts_step_result result = {0};
  loss[0] = loss[1] = 0;
  must(ts_set_training(s->engine, training, &err), &err);
  for (int64_t m = 0; m < s->micro_batches; ++m) {
    double sum, count;
    set_inputs(s, (ts_data_parallel_rank(s->engine) * s->micro_batches + m) * EACH);
    must(ts_forward(s->engine, &err), &err);
    must(ts_get_loss(s->engine, &sum, &count, &err), &err);
    loss[0] += sum;
    loss[1] += count;
    if (training) {
      must(ts_backward(s->engine, 1, &err), &err);
      must(ts_step(s->engine, &result, &err), &err);
    }
  }
  add_losses(s, loss);
  return result;
}

/* The step that was done over the rate, beside the gradient, in units of its largest element; the worst parameter. */
static double worst_gradient(const trial *s, const char **which) {
  const ts_layout *layout = ts_engine_layout(s->engine);
  ts_error err = {0};
  double worst = 0;
  for (int i = 0; i < layout->n_parameters; ++i) {
    const char *name = layout->parameter[i].name;
    int64_t count;
    float *before = read_golden(s, "parameter", name, &count), *gradient = read_golden(s, "gradient", name, &count);
    float *after = ts_malloc((size_t) count * sizeof *after);
    double apart = 0, largest = 0;
    must(ts_get_full_fp32_parameter(s->engine, name, after, &err), &err);
    for (int64_t k = 0; k < count; ++k) {
      apart = fmax(apart, fabs(((double) before[k] - after[k]) / rate - gradient[k]));
      largest = fmax(largest, fabs((double) gradient[k]));
    }
    *which = apart / largest > worst ? name : *which;
    worst = fmax(worst, apart / largest);
    ts_free(before);
    ts_free(gradient);
    ts_free(after);
  }
  return worst;
}

static double relative(double a, double b) {
  return fabs(a / b - 1);
}

/* In what; and how far, as a part of it, the loss may be from torch's in fp64, and a gradient, as a part of its largest
 * element.  Sums of some dozens of products are rounded to 2^-24 = 6e-8 each; the gradient of towers' query.k, a
 * twentieth of the others, is what is left of terms that cancel: torch's own in fp32 is 1e-6 off, and this one 2e-6.
 * Numbers of bf16 are rounded by 2^-9 = 2e-3, at some ten places one behind another; fp16 has three bits more, and
 * no room for a mean of two labels times 2^16. */
typedef struct precision {
  const char *sets;
  double loss, gradient;
} precision;

static const precision fp32 = {"", 1e-6, 4e-6};
static const precision lower[] = {
    {"bf16.enabled=true zero_optimization.stage=3", 5e-3, 6e-2},
    {"torch_autocast.enabled=true zero_optimization.stage=1", 5e-3, 8e-2},
    {"fp16.enabled=true fp16.initial_scale_power=10 zero_optimization.stage=2", 6e-4, 8e-3}};

static void test_model(ts_world *world, const ts_own_model *model, const char *more, const precision *p) {
  trial s = open_trial(world, model, more);
  int64_t n;
  float *golden = read_golden(&s, "loss", "", &n);
  double evaluated[2], trained[2];
  const char *which = "none";
  step(&s, false, evaluated);
  ts_step_result r = step(&s, true, trained);
  double worst = worst_gradient(&s, &which), off = relative(trained[0], golden[0]);
  tap_ok_all(MPI_COMM_WORLD,
             off <= p->loss && trained[1] == golden[1] && relative(r.loss, golden[0] / golden[1]) <= p->loss &&
                 r.valid_tokens == golden[1],
             "%s %s: the loss %.6g of %g is torch's (%.1e)", model->name, more, trained[0], trained[1], off);
  tap_ok_all(MPI_COMM_WORLD, relative(evaluated[0], trained[0]) <= p->loss / 10 && evaluated[1] == trained[1],
             "%s %s: and the same where nothing is trained", model->name, more);
  tap_ok_all(MPI_COMM_WORLD, worst <= p->gradient && ts_was_step_applied(s.engine),
             "%s %s: gradients are torch's, the farthest %s (%.1e)", model->name, more, which, worst);
  ts_free(golden);
  close_trial(&s);
}

/* Ranks that share products, by names or without any, and those that share samples, where tokens are not taken together
 * (towers) and there are any. */
static void test_grids(ts_world *world, const ts_own_model *model) {
#define ALL(type) "tensor_parallel.partition_config.layer_specs=({patterns=[\".*\"];partition_type=\"" type "\";})"
  static const char *const grids[] = {
      "tensor_parallel.autotp_size=2", "tensor_parallel.autotp_size=2 tensor_parallel.sequence_parallel=false",
      "tensor_parallel.autotp_size=2 zero_optimization.stage=3 activation_checkpointing.enabled=true " ALL("column"),
      "tensor_parallel.autotp_size=2 zero_optimization.stage=2 " ALL("row"),
      "sequence_parallel_size=2 zero_optimization.stage=1"};
  for (int i = 0; i < (int) (sizeof grids / sizeof *grids) && ts_world_size(world) % 2 == 0; ++i) {
    if (i < 4 || strcmp(model->name, "distilled") == 0) {
      test_model(world, model, grids[i], &fp32);
    }
  }
}

/* ---- whole steps, in which nobody reads a loss before the record does ---- */

/* Of the inputs that batches have. */
static void write_whole(ts_builder *b, void *user) {
  (void) user;
  ts_tid ids = tokens_input(b, ts_input_get(TS_INPUT_INPUT_IDS)->name);
  ts_tid labels = tokens_input(b, ts_input_get(TS_INPUT_LABELS)->name);
  ts_tid positions = tokens_input(b, ts_input_get(TS_INPUT_POSITIONS)->name);
  ts_builder_unit(b, "embed");
  ts_tid x = ts_builder_embedding(b, "tokens", ids, VOCABULARY, WIDTH);
  ts_builder_unit(b, "block");
  x = ts_builder_rmsnorm(b, "norm", attend(b, x, positions, TS_NONE, true), 1e-6);
  ts_builder_unit(b, "head");
  ts_tid w = ts_builder_parameter(b, "weight", 2, (int64_t[]){VOCABULARY, WIDTH}, (ts_init){TS_INIT_NORMAL, 0.1});
  ts_builder_head_loss(b, "hard", x, w, labels, 1);
  ts_tid logits = ts_builder_product(b, "logits", x, w);
  ts_builder_loss(b, "small", ts_builder_multiply(b, "squares", logits, logits), TS_NONE, 0.01);
}

typedef struct steps {
  double loss[2], norm[2];
  uint64_t digest;
} steps;

static void go_by_hand(ts_engine *engine, const ts_batch *batch, int64_t micro_batches, ts_step_result *result) {
  ts_error err = {0};
  for (int64_t m = 0; m < micro_batches; ++m) {
    for (int i = 0; i < TS_N_INPUTS; ++i) {
      if ((ts_engine_inputs(engine) >> i & 1) != 0) {
        size_t bytes = ts_batch_bytes(batch, (ts_input_kind) i) * EACH;
        const char *from = (const char *) batch->input[i] + bytes * (size_t) m;
        must(ts_set_input(engine, ts_input_get((ts_input_kind) i)->name, from, &err), &err);
      }
    }
    must(ts_forward(engine, &err), &err);
    must(ts_backward(engine, 1, &err), &err);
    must(ts_step(engine, result, &err), &err);
  }
}

static steps take_steps(ts_world *world, const char *sets, bool by_hand) {
  const ts_own_model model = {"whole", write_whole, NULL};
  const int64_t micro_batches = 2, samples = EACH * micro_batches;
  ts_deck *deck = train_run_deck(world, own_deck, sets);
  const ts_engine_options options = {
      .world = world, .deck = deck, .abilities = by_hand ? TS_CAN_STEP : TS_CAN_TRAIN, .model = &model};
  ts_engine *engine;
  ts_error err = {0};
  steps s = {0};
  must(ts_engine_create(&options, &engine, &err), &err);
  for (int k = 0; k < 2; ++k) {
    ts_batch *batch = ts_batch_create(samples, LENGTH, TS_INPUTS_ALL);
    for (int64_t i = 0; i < samples; ++i) {
      int64_t sample = (k * ts_world_size(world) + ts_world_rank(world)) * samples + i;
      int32_t tokens[LENGTH + 1];
      for (int t = 0; t <= LENGTH; ++t) {
        tokens[t] = (int32_t) ((sample * 5 + t * t * 3) % VOCABULARY);
      }
      ts_batch_set(batch, i, sample, tokens, -1);
    }
    ts_step_result r = {0};
    if (by_hand) {
      go_by_hand(engine, batch, micro_batches, &r);
    } else {
      r = ts_engine_train_step(engine, &(ts_step_input){.batch = batch});
    }
    s.loss[k] = r.loss;
    s.norm[k] = r.grad_norm;
    ts_batch_destroy(&batch);
  }
  s.digest = train_run_digest(engine);
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
  return s;
}

static void test_whole(ts_world *world) {
  for (int stage = 0; stage <= 3; stage += is_stand_in ? 3 : 1) {
    char *sets = ts_format(DEVICE "train_micro_batch_size_per_gpu=%d gradient_accumulation_steps=2 "
                                  "zero_optimization.stage3_param_persistence_threshold=20 "
                                  "optimizer.params.lr=0.1 zero_optimization.stage=%d",
                           EACH, stage);
    steps whole = take_steps(world, sets, false), hand = take_steps(world, sets, true);
    tap_ok_all(MPI_COMM_WORLD, memcmp(&whole, &hand, sizeof whole) == 0 && whole.norm[0] > 0,
               "stage %d: whole steps on two parts of a loss have the bits of steps by hand (%.6g, %.6g)", stage,
               whole.loss[0], whole.loss[1]);
    ts_free(sets);
  }
}

/* ---- what is wrong is told ---- */

enum { BIG = 1 << 30 };

static void write_wrong(ts_builder *b, void *user) {
  const int *what = user;
  ts_tid x = ts_builder_input(b, "x", TS_F32, 2, (int64_t[]){3, 4}, 0);
  ts_tid i = ts_builder_input(b, "i", TS_I32, 1, (int64_t[]){3}, 0);
  ts_builder_unit(b, "net");
  ts_tid y = ts_builder_linear(b, "a", x, 4, false), z = ts_builder_linear(b, "c", x, 5, false);
  ts_builder_loss(b, "loss", y, TS_NONE, *what == 0 ? NAN : 1);
  switch (*what) {
    case 1: ts_builder_multiply(b, "wrong", y, z); break;
    case 2: ts_builder_normalize(b, "wrong", y, 0); break;
    case 3: ts_builder_pick(b, "wrong", y, i); break;
    case 4: ts_builder_mean_pool(b, "wrong", y, x); break;
    case 5: ts_builder_rope(b, "wrong", y, i, 3, 100); break;
    case 6: ts_builder_soft_cross_entropy(b, "wrong", y, y, 0); break;
    case 7: ts_builder_loss(b, "wrong", y, i, 1); break;
    case 8: ts_builder_reshape(b, "wrong", y, 1, (int64_t[]){7}); break;
    case 9: ts_builder_parameter(b, "wrong", 0, NULL, (ts_init){TS_INIT_ZERO, 0}); break;
    case 10:
      ts_builder_parameter(b, "wrong", 5, (int64_t[]){BIG, BIG, BIG, BIG, BIG}, (ts_init){TS_INIT_ONE, 0});
      break;
    case 11: ts_builder_parameter(b, "wrong", 1, (int64_t[]){3}, (ts_init){TS_INIT_NORMAL, NAN}); break;
    case 12: ts_builder_output(b, "wrong", ts_builder_linear(b, "wrong", y, 0, false)); break;
    case 13: ts_builder_linear(b, "wrong", 4711, 4, false); break;
    case 14: ts_builder_scale(b, "wrong", -7, 2); break;
    case 15: ts_builder_scale(b, "wrong", y, NAN); break;
    case 16: ts_builder_glu(b, "wrong", y, y, (ts_activation) 99); break;
    case 17: ts_builder_layernorm(b, "wrong", y, -1); break;
    case 18: ts_builder_dropout(b, "wrong", y, 1); break;
    case 19: ts_builder_dropout(b, "wrong", ts_builder_dropout(b, "wrong", y, 0.5), 0.5); break;
    case 20: ts_builder_rope(b, "wrong", y, i, BIG, 100); break;
    case 21: ts_builder_output(b, "out", y), ts_builder_output(b, "out", z); break;
    case 22: ts_builder_output(b, "out", i); break;
    case 23: ts_builder_output(b, "out", ts_builder_parameter(b, "wrong", 1, (int64_t[]){3}, (ts_init){0})); break;
    case 24: ts_builder_input(b, "flags", TS_F32, 0, NULL, 0); break;
    case 25: ts_builder_unit(b, "encoder/0"); break;
    case 27: ts_builder_add(b, "wrong", i, i); break;
    case 28: ts_builder_float(b, "wrong", i); break;
    case 29: ts_builder_squared_error(b, "wrong", y, i); break;
    case 26: ts_builder_linear(b, "a\tb", y, 4, false); break;
    case 30: ts_builder_input(b, "nought", TS_F32, 0, NULL, 0); break;
    case 31: ts_builder_input(b, "late.lr", TS_F32, 0, NULL, 0); break;
    case 32: ts_builder_input(b, "tokens/1", TS_F32, 0, NULL, 0); break;
    default: break;
  }
}

static void test_wrong(ts_world *world) {
  static const char *const told[] = {"a weight that is a number",
                                     "one dtype and shape",
                                     "eps is positive",
                                     "an index [batch] int32",
                                     "a mask [batch][T] int32",
                                     "an even head_dim",
                                     "temperature is positive",
                                     "mask is int32, of x's shape",
                                     "cannot lie in a shape of 7",
                                     "1 to 5 positive extents",
                                     "2^56 elements together",
                                     "of a deviation of at least 0",
                                     "1 to 5 positive extents",
                                     "4711 is no value",
                                     "-7 is no value",
                                     "a factor that is a number",
                                     "99 is no kind of activation",
                                     "an eps of at least 0",
                                     "and below 1",
                                     "would drop the same elements",
                                     "not wider than x",
                                     "another output of this name",
                                     "no floats",
                                     "is a parameter",
                                     "one of this name themselves",
                                     "no \"/\"",
                                     "no control characters",
                                     "i is int32",
                                     "i is int32",
                                     "i is int32",
                                     "one of this name themselves",
                                     "one of this name themselves",
                                     "a name without \"/\""};
  for (int i = 0; i < (int) (sizeof told / sizeof *told); ++i) {
    const ts_own_model model = {"wrong", write_wrong, &i};
    ts_deck *deck = train_run_deck(world, own_deck, DEVICE "train_micro_batch_size_per_gpu=2");
    ts_engine *engine = NULL;
    ts_error err = {0};
    ts_status status = ts_engine_create(
        &(ts_engine_options){.world = world, .deck = deck, .abilities = TS_CAN_STEP, .model = &model}, &engine, &err);
    tap_ok_all(MPI_COMM_WORLD, status == TS_BAD_INPUT && err.count > 0 && strstr(err.text, told[i]) != NULL, "%s",
               err.count > 0 ? err.text : told[i]);
    ts_error_clear(&err);
    ts_engine_destroy(&engine);
    ts_deck_destroy(&deck);
  }
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  for (int m = 0; m < N_MODELS; ++m) {
    for (int stage = 0; stage <= 3; stage += is_stand_in ? 3 : 1) {
      char *more = ts_format("zero_optimization.stage=%d", stage);
      test_model(world, &models[m], more, &fp32);
      ts_free(more);
    }
    test_model(world, &models[m], "activation_checkpointing.enabled=true", &fp32);
    for (size_t i = 0; i < sizeof lower / sizeof *lower; ++i) {
      test_model(world, &models[m], lower[i].sets, &lower[i]);
    }
    test_grids(world, &models[m]);
  }
  test_whole(world);
  test_wrong(world);
  int status = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return status;
}
