/* A model of a program's own on grids, by the library alone: attention of grouped heads over documents with padding,
 * learned positions, numbers beside the tokens, dropout, a loss of labels and gradients that the program gives to two
 * outputs.  Three steps (whole, by hand, whole) and an evaluation on each grid against the same on one rank: losses,
 * norms, outputs put together, gradients, parameters.  Then what is refused.
 *
 * TEST_ONLY takes names of ways, "odd" (a model without a loss) and "wrong". */
#include "regression/subject.h"
#include "regression/tap.h"
#include "regression/tap_mpi.h"

#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "comm/comm_join.h"
#include "engine/tessera.h"
#include "engine/values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  SAMPLES = 4,
  LONGEST = 13,
  VOCABULARY = 23,
  FEATURES = 3,
  HEADS = 4,
  KEY_HEADS = 2,
  HEAD_DIM = 4,
  WIDTH = HEADS * HEAD_DIM,
  INNER = 22,
  OUT = 5,
  BLOCKS = 2,
  STEPS = 3,
  BY_HAND = 1 /* the step in which the program gives gradients */
};

/* ---- the model ---- */

static void write_block(ts_builder *b, int i, ts_tid documents, ts_tid *x) {
  const ts_heads heads = {
      .heads = HEADS, .kv_heads = KEY_HEADS, .head_dim = HEAD_DIM, .causal = true, .dropout = i == 0 ? 0.1 : 0};
  char *unit = ts_format("blocks.%d", i);
  ts_builder_unit(b, unit);
  ts_free(unit);
  ts_tid h = ts_builder_rmsnorm(b, "before", *x, 1e-6);
  ts_tid q = ts_builder_linear(b, "q", h, WIDTH, false);
  ts_tid k = ts_builder_linear(b, "k", h, KEY_HEADS * HEAD_DIM, false);
  ts_tid v = ts_builder_linear(b, "v", h, KEY_HEADS * HEAD_DIM, true);
  ts_tid o = ts_builder_attention(b, "attention", q, k, v, documents, &heads);
  o = ts_builder_dropout(b, "drop", ts_builder_linear(b, "o", o, WIDTH, true), 0.1);
  *x = ts_builder_add(b, "attended", *x, o);
  h = ts_builder_rmsnorm(b, "between", *x, 1e-6);
  ts_tid gate = ts_builder_linear(b, "gate", h, INNER, false), up = ts_builder_linear(b, "up", h, INNER, false);
  h = ts_builder_glu(b, "glu", gate, up, TS_ACTIVATION_SILU);
  if (i == 0) {
    ts_builder_output(b, "inner", h);
  }
  *x = ts_builder_add(b, "added", *x, ts_builder_linear(b, "down", h, WIDTH, false));
}

static void write_model(ts_builder *b, void *user) {
  const int64_t length = *(const int64_t *) user;
  ts_tid tokens = ts_builder_input(b, "tokens", TS_I32, 1, (int64_t[]){length}, 1);
  ts_tid positions = ts_builder_input(b, "positions", TS_I32, 1, (int64_t[]){length}, 1);
  ts_tid feature = ts_builder_input(b, "feature", TS_F32, 2, (int64_t[]){length, FEATURES}, 1);
  ts_tid documents = ts_builder_input(b, "documents", TS_I32, 1, (int64_t[]){length}, 0);
  ts_tid labels = ts_builder_input(b, "labels", TS_I32, 1, (int64_t[]){length}, 1);
  ts_builder_unit(b, "embed");
  ts_tid x = ts_builder_embedding(b, "tokens", tokens, VOCABULARY, WIDTH);
  x = ts_builder_add(b, "placed", x, ts_builder_embedding(b, "positions", positions, length, WIDTH));
  x = ts_builder_add(b, "featured", x, ts_builder_linear(b, "feature", feature, WIDTH, true));
  for (int i = 0; i < BLOCKS; ++i) {
    write_block(b, i, documents, &x);
  }
  ts_builder_unit(b, "head");
  x = ts_builder_rmsnorm(b, "norm", x, 1e-6);
  ts_builder_output(b, "y", ts_builder_linear(b, "out", x, OUT, true));
  ts_tid w = ts_builder_parameter(b, "weight", 2, (int64_t[]){VOCABULARY, WIDTH}, (ts_init){TS_INIT_NORMAL, 0.3});
  ts_builder_head_loss(b, "loss", x, w, labels, 1);
}

static const struct {
  const char *name;
  int width;
} outputs[] = {{"y", OUT}, {"inner", INNER}};
enum { N_OUTPUTS = sizeof outputs / sizeof *outputs };

/* ---- samples ---- */

static double number_at(int64_t sample, int64_t element, uint64_t what) {
  uint32_t w[4];
  ts_philox(what, (uint64_t) sample, (uint64_t) element, w);
  return w[0] / 4294967296.0 - 0.5;
}

/* Every other sample ends in padding, a document of its own without labels. */
static bool is_padding(int64_t sample, int64_t t, int64_t length) {
  return sample % 2 == 1 && t >= length - 3;
}

static int32_t token_at(int64_t sample, int64_t t) {
  return (int32_t) ((number_at(sample, t, 1) + 0.5) * VOCABULARY);
}

/* Gradients of outputs: of the size that the loss's have. */
static float seed_at(int64_t sample, int64_t element, int output) {
  return (float) (0.1 * number_at(sample, element, 3 + (uint64_t) output));
}

#define BF16 "bf16 = { enabled = true; };"
#define RULE(pattern, style) "{ pattern = \"" pattern "\"; style = \"" style "\"; }"

/* ---- an engine on a world ---- */

typedef struct trial {
  ts_world *world;
  ts_deck *deck;
  ts_engine *engine;
  int64_t length, batch, micro_batches;
  int step;
} trial;

/* Steps are as large as gradients: Adam makes one of 1e-2 of the rounding of a gradient that is nearly 0. */
static const char own_deck[] =
    "model = { model_type = \"own\"; };\n"
    "run = { directory = \"none\"; seed = 7; threads = 1; };\n"
    "train_batch_size = 4;\n"
    "gradient_clipping = 0.5;\n"
    "optimizer = { type = \"SGD\"; params = { lr = 0.05; momentum = 0.9; weight_decay = 0.01; }; };\n";

/* One way to share the work; a rank has two samples at a time at most. */
typedef struct way {
  const char *name;
  int tp, sp;
  int64_t length;
  const char *more; /* of the deck */
} way;

static ts_status try_subject(ts_world *world, const way *how, const ts_own_model *model, unsigned abilities, trial *s,
                             ts_error *err) {
  int dp = ts_world_size(world) / (how->tp * how->sp), each = SAMPLES / dp < 2 ? 1 : 2;
  *s = (trial){.world = world, .length = how->length, .batch = each, .micro_batches = SAMPLES / dp / each};
  char *sets[3] = {ts_format("train_micro_batch_size_per_gpu=%d", each),
                   ts_format("tensor_parallel.autotp_size=%d", how->tp),
                   ts_format("sequence_parallel_size=%d", how->sp)};
  char *text = ts_format("%s%s", own_deck, how->more);
  must(ts_deck_read_text("own.cfg", text, sets, 3, &s->deck, err), err);
  for (int i = 0; i < 3; ++i) {
    ts_free(sets[i]);
  }
  ts_free(text);
  return ts_initialize(model, s->deck, world, abilities, &s->engine, err);
}

static void close_trial(trial *s) {
  ts_engine_destroy(&s->engine);
  ts_deck_destroy(&s->deck);
}

/* The first of this rank's samples of a micro-batch, among those of the step. */
static int64_t first_of(const trial *s, int64_t micro_batch) {
  return (ts_data_parallel_rank(s->engine) * s->micro_batches + micro_batch) * s->batch;
}

static void set_inputs(ts_engine *engine, int64_t micro_batch, void *user) {
  const trial *s = user;
  int32_t tokens[SAMPLES * LONGEST], positions[SAMPLES * LONGEST], documents[SAMPLES * LONGEST],
      labels[SAMPLES * LONGEST];
  float feature[SAMPLES * LONGEST * FEATURES];
  int64_t number[SAMPLES], first = s->step * SAMPLES + first_of(s, micro_batch), length = s->length;
  for (int64_t i = 0; i < s->batch * length; ++i) {
    int64_t sample = first + i / length, t = i % length;
    bool pad = is_padding(sample, t, length);
    number[i / length] = sample;
    tokens[i] = token_at(sample, t);
    positions[i] = (int32_t) t;
    documents[i] = pad ? 1 : 0;
    labels[i] = pad || t % 5 == 3 ? -100 : token_at(sample, t + 1);
    for (int k = 0; k < FEATURES; ++k) {
      feature[i * FEATURES + k] = (float) number_at(sample, t * FEATURES + k, 2);
    }
  }
  ts_set_input(engine, "tokens", tokens, NULL);
  ts_set_input(engine, "positions", positions, NULL);
  ts_set_input(engine, "documents", documents, NULL);
  ts_set_input(engine, "labels", labels, NULL);
  ts_set_input(engine, "feature", feature, NULL);
  ts_set_input(engine, "sample", number, NULL);
}

/* ---- a course of three steps ---- */

typedef struct course {
  double loss[STEPS], norm[STEPS], by_hand, evaluated;
  float *output[N_OUTPUTS], *times; /* owned: [SAMPLES][length][width]; how many ranks had a token, [SAMPLES][length] */
  char **name;                      /* owned */
  int64_t *count;                   /* owned */
  float **gradient, **parameter;    /* owned; of step BY_HAND, and in the end */
  int n;
} course;

static void free_course(course *c) {
  for (int i = 0; i < c->n; ++i) {
    ts_free(c->name[i]);
    ts_free(c->gradient[i]);
    ts_free(c->parameter[i]);
  }
  for (int k = 0; k < N_OUTPUTS; ++k) {
    ts_free(c->output[k]);
  }
  ts_free(c->times);
  ts_free(c->name);
  ts_free(c->count);
  ts_free(c->gradient);
  ts_free(c->parameter);
  *c = (course){0};
}

/* In the order of \a like, where there is one: it may be another on another grid. */
static void read_parameters(const trial *s, bool gradients, const course *like, course *c) {
  ts_error err = {0};
  c->n = ts_parameter_count(s->engine);
  float ***to = gradients ? &c->gradient : &c->parameter;
  c->name = c->name != NULL ? c->name : ts_calloc((size_t) c->n, sizeof *c->name);
  c->count = c->count != NULL ? c->count : ts_calloc((size_t) c->n, sizeof *c->count);
  *to = ts_calloc((size_t) c->n, sizeof **to);
  for (int i = 0; i < c->n; ++i) {
    int64_t extent[TS_MAX_DIMS];
    int dims = ts_parameter_shape(s->engine, i, extent);
    c->name[i] = c->name[i] != NULL ? c->name[i] : ts_strdup(ts_parameter_name(s->engine, i));
    c->count[i] = dims == 2 ? extent[0] * extent[1] : extent[0];
  }
  for (int i = 0; i < c->n; ++i) {
    const char *name = like != NULL ? like->name[i] : c->name[i];
    int64_t count = like != NULL ? like->count[i] : c->count[i];
    (*to)[i] = ts_malloc((size_t) count * sizeof ***to);
    must((gradients ? ts_get_full_fp32_gradient : ts_get_full_fp32_parameter)(s->engine, name, (*to)[i], &err), &err);
  }
}

/* Copy between all tokens and this rank's, of one sample. */
static void move_tokens(const trial *s, int width, float *whole, float *own, bool give) {
  int64_t begin[2], length[2];
  int n = ts_output_tokens(s->engine, begin, length);
  for (int i = 0; i < n; ++i) {
    size_t bytes = (size_t) (length[i] * width) * sizeof *own;
    float *there = whole + begin[i] * width;
    memcpy(give ? own : there, give ? there : own, bytes);
    own += length[i] * width;
  }
}

static int64_t own_tokens(const trial *s) {
  int64_t begin[2], length[2], all = 0;
  for (int i = ts_output_tokens(s->engine, begin, length) - 1; i >= 0; --i) {
    all += length[i];
  }
  return all;
}

/* What this rank has of an output goes to its place; a gradient of it is given. */
static void use_output(const trial *s, int k, int64_t micro_batch, course *c) {
  ts_error err = {0};
  int width = outputs[k].width;
  int64_t own = own_tokens(s), size = s->length * width;
  float *value = ts_malloc((size_t) (s->batch * own * width) * sizeof *value + 1);
  float *seed = ts_malloc((size_t) size * sizeof *seed);
  must(ts_get_output(s->engine, outputs[k].name, value, &err), &err);
  for (int64_t i = 0; i < s->batch; ++i) {
    int64_t sample = first_of(s, micro_batch) + i;
    move_tokens(s, width, c->output[k] + sample * size, value + i * own * width, false);
    for (int64_t e = 0; e < size; ++e) {
      seed[e] = seed_at(sample, e, k);
    }
    move_tokens(s, width, seed, value + i * own * width, true);
  }
  must(ts_set_output_gradient(s->engine, outputs[k].name, value, &err), &err);
  ts_free(value);
  ts_free(seed);
}

static void count_tokens(const trial *s, int64_t micro_batch, course *c) {
  float one[LONGEST];
  for (int t = 0; t < LONGEST; ++t) {
    one[t] = 1;
  }
  for (int64_t i = 0; i < s->batch; ++i) {
    move_tokens(s, 1, c->times + (first_of(s, micro_batch) + i) * s->length, one, false);
  }
}

static void sum_over(MPI_Comm comm, float *value, int64_t n) {
  tap_sum_all(comm, value, (int) n, MPI_FLOAT);
}

/* The outputs of all ranks, each token's value once. */
static void put_together(const trial *s, MPI_Comm comm, course *c) {
  sum_over(comm, c->times, SAMPLES * s->length);
  for (int k = 0; k < N_OUTPUTS; ++k) {
    sum_over(comm, c->output[k], SAMPLES * s->length * outputs[k].width);
    for (int64_t e = 0; e < SAMPLES * s->length * outputs[k].width; ++e) {
      c->output[k][e] /= c->times[e / outputs[k].width];
    }
  }
}

static ts_step_result step_by_hand(const trial *s, MPI_Comm comm, const course *like, course *c) {
  ts_error err = {0};
  ts_step_result r = {0};
  double of[2] = {0};
  for (int k = 0; k < N_OUTPUTS; ++k) {
    c->output[k] = ts_calloc((size_t) (SAMPLES * s->length * outputs[k].width), sizeof *c->output[k]);
  }
  c->times = ts_calloc((size_t) (SAMPLES * s->length), sizeof *c->times);
  for (int64_t m = 0; m < s->micro_batches; ++m) {
    double sum, labels;
    set_inputs(s->engine, m, (void *) s);
    must(ts_forward(s->engine, &err), &err);
    must(ts_get_loss(s->engine, &sum, &labels, &err), &err);
    of[0] += sum;
    of[1] += labels;
    count_tokens(s, m, c);
    for (int k = 0; k < N_OUTPUTS; ++k) {
      use_output(s, k, m, c);
    }
    must(ts_backward(s->engine, 1, &err), &err);
    if (m == s->micro_batches - 1) {
      read_parameters(s, true, like, c);
    }
    must(ts_step(s->engine, &r, &err), &err);
  }
  tap_sum_all(comm, of, 2, MPI_DOUBLE);
  c->by_hand = of[0] / of[1];
  put_together(s, comm, c);
  return r;
}

static course go(ts_world *world, MPI_Comm comm, const way *how, const course *like) {
  const ts_own_model model = {"own", write_model, (void *) &how->length};
  ts_error err = {0};
  trial s;
  course c = {0};
  must(try_subject(world, how, &model, TS_CAN_TRAIN | TS_CAN_STEP | TS_CAN_SEED | TS_CAN_EVALUATE, &s, &err), &err);
  const ts_feed feed = {.feed = set_inputs, .user = &s};
  for (s.step = 0; s.step < STEPS; ++s.step) {
    ts_step_result r;
    if (s.step == BY_HAND) {
      r = step_by_hand(&s, comm, like, &c);
    } else {
      must(ts_train_batch(s.engine, &feed, &r, &err), &err);
    }
    c.loss[s.step] = r.loss;
    c.norm[s.step] = r.grad_norm;
  }
  double sum, labels;
  must(ts_eval_batch(s.engine, &feed, 0, &sum, &labels, &err), &err);
  c.evaluated = sum / labels;
  read_parameters(&s, false, like, &c);
  close_trial(&s);
  return c;
}

/* ---- a grid against one rank ---- */

static double relative(double a, double b) {
  return fabs(a / b - 1);
}

/* In units of the largest. */
static double apart(const float *a, const float *b, int64_t n) {
  double most = 0, largest = 1e-30;
  for (int64_t i = 0; i < n; ++i) {
    most = fmax(most, fabs((double) a[i] - b[i]));
    largest = fmax(largest, fabs((double) b[i]));
  }
  return most / largest;
}

/* All of a course, the worst of each kind. */
typedef struct distance {
  double loss, norm, output, gradient, parameter;
  const char *worst; /* gradient */
} distance;

static distance measure(const course *a, const course *b, const way *how) {
  distance d = {.loss = fmax(relative(a->by_hand, b->by_hand), relative(a->evaluated, b->evaluated)), .worst = ""};
  for (int i = 0; i < STEPS; ++i) {
    d.loss = fmax(d.loss, relative(a->loss[i], b->loss[i]));
    d.norm = fmax(d.norm, relative(a->norm[i], b->norm[i]));
  }
  for (int k = 0; k < N_OUTPUTS; ++k) {
    d.output = fmax(d.output, apart(a->output[k], b->output[k], SAMPLES * how->length * outputs[k].width));
  }
  for (int i = 0; i < b->n; ++i) {
    double g = apart(a->gradient[i], b->gradient[i], b->count[i]);
    d.worst = g > d.gradient ? b->name[i] : d.worst;
    d.gradient = fmax(d.gradient, g);
    d.parameter = fmax(d.parameter, apart(a->parameter[i], b->parameter[i], b->count[i]));
  }
  return d;
}

static bool are_all_tokens_there(const course *c, const way *how) {
  bool there = true;
  for (int64_t i = 0; i < SAMPLES * how->length; ++i) {
    there = there && c->times[i] == (float) how->tp;
  }
  return there;
}

static bool is_within(const distance *d, const distance *most, double times) {
  return d->loss <= times * most->loss && d->norm <= times * most->norm && d->output <= times * most->output &&
         d->gradient <= times * most->gradient && d->parameter <= times * most->parameter;
}

static bool is_named(const char *name) {
  const char *only = getenv("TEST_ONLY");
  return only == NULL || strstr(only, name) != NULL;
}

/* Sums of some dozens of products in another order are rounded by 2^-24 = 6e-8 each, and so are the next steps'. */
static const distance rounding = {1e-6, 2e-6, 5e-6, 1e-5, 1e-5, NULL};

/* In bf16 the grid may be as far from one rank in fp32 as one rank in bf16 is, but for the chance in these few numbers
 * and the sums over ranks, which are rounded once more. */
static void test_way(ts_world *all, ts_world *alone, const way *how) {
  bool lower = strstr(how->more, "bf16") != NULL;
  const way one = {how->name, 1, 1, how->length, ""}, one_lower = {how->name, 1, 1, how->length, BF16};
  if (!is_named(how->name)) {
    return;
  }
  course a = go(alone, MPI_COMM_SELF, &one, NULL), b = go(all, MPI_COMM_WORLD, how, &a);
  distance d = measure(&b, &a, how), most = rounding;
  if (lower) {
    course c = go(alone, MPI_COMM_SELF, &one_lower, &a);
    most = measure(&c, &a, how);
    free_course(&c);
  }
  tap_ok_all(MPI_COMM_WORLD, is_within(&d, &most, lower ? 4 : 1) && are_all_tokens_there(&b, how) && a.norm[0] > 0,
             "%s %s: losses (%.1e), norms (%.1e), outputs put together (%.1e), gradients (%.1e, %s) and parameters "
             "(%.1e) of one rank",
             how->name, how->more, d.loss, d.norm, d.output, d.gradient, d.worst, d.parameter);
  free_course(&a);
  free_course(&b);
}

/* ---- a model without a loss ---- */

/* A matrix that two products have, the first of which ranks along tp need whole and the second could deal; values in
 * fp32 that meet others; an input that nothing reads.  Gradients are those that the program gives to an output. */
static void write_odd(ts_builder *b, void *user) {
  const ts_heads heads = {.heads = HEADS, .head_dim = HEAD_DIM, .causal = true};
  const int64_t length = *(const int64_t *) user;
  ts_tid tokens = ts_builder_input(b, "tokens", TS_I32, 1, (int64_t[]){length}, 0);
  ts_tid weight = ts_builder_input(b, "weight", TS_F32, 2, (int64_t[]){length, WIDTH}, 0);
  ts_builder_input(b, "unread", TS_F32, 1, (int64_t[]){3}, 0);
  ts_builder_unit(b, "odd");
  ts_tid x = ts_builder_embedding(b, "tokens", tokens, VOCABULARY, WIDTH);
  ts_tid twice = ts_builder_parameter(b, "twice", 2, (int64_t[]){WIDTH, WIDTH}, (ts_init){TS_INIT_NORMAL, 0.25});
  x = ts_builder_product(b, "first", x, twice);
  ts_builder_output(b, "first", x);
  ts_tid h = ts_builder_product(b, "second", x, twice);
  ts_tid q = ts_builder_linear(b, "q", h, WIDTH, false), k = ts_builder_linear(b, "k", h, WIDTH, false);
  ts_tid o = ts_builder_attention(b, "attention", q, k, ts_builder_linear(b, "v", h, WIDTH, false), TS_NONE, &heads);
  o = ts_builder_float(b, "wide", ts_builder_linear(b, "o", o, WIDTH, false));
  o = ts_builder_multiply(b, "weighted", ts_builder_add(b, "both", x, o), weight);
  o = ts_builder_linear(b, "last", ts_builder_layernorm(b, "norm", o, 1e-5), WIDTH, true);
  ts_builder_output(b, "y", ts_builder_multiply(b, "gated", ts_builder_linear(b, "gate", x, WIDTH, false), o));
}

enum { ODD_LENGTH = 6, ODD_SIZE = ODD_LENGTH * WIDTH, MOST_ODD = 12 };

/* What all ranks have of a step: the output, the norm, gradients and parameters by name. */
typedef struct odd_step {
  float y[2 * ODD_SIZE], *value[2][MOST_ODD]; /* the latter owned */
  double norm;
  int n;
  char *name[MOST_ODD]; /* owned */
  int64_t count[MOST_ODD];
} odd_step;

static void read_odd(ts_engine *e, int kind, const odd_step *like, odd_step *s) {
  ts_error err = {0};
  for (int i = 0; i < s->n; ++i) {
    const char *name = like != NULL ? like->name[i] : s->name[i];
    s->count[i] = like != NULL ? like->count[i] : s->count[i];
    s->value[kind][i] = ts_malloc((size_t) s->count[i] * sizeof(float));
    must((kind == 0 ? ts_get_full_fp32_gradient : ts_get_full_fp32_parameter)(e, name, s->value[kind][i], &err), &err);
  }
}

static odd_step take_odd_step(ts_world *world, int tp, const char *more, const odd_step *like) {
  const way how = {"odd", tp, 1, ODD_LENGTH, more};
  const int64_t length = ODD_LENGTH;
  const ts_own_model model = {"odd", write_odd, (void *) &length};
  odd_step s = {0};
  trial t;
  ts_error err = {0};
  must(try_subject(world, &how, &model, TS_CAN_STEP | TS_CAN_SEED, &t, &err), &err);
  TS_CHECK(t.batch == 2 && t.micro_batches == 2, "all ranks have all samples, two at a time");
  s.n = ts_parameter_count(t.engine);
  for (int i = 0; i < s.n; ++i) {
    int64_t extent[TS_MAX_DIMS] = {1, 1};
    int dims = ts_parameter_shape(t.engine, i, extent);
    s.name[i] = ts_strdup(ts_parameter_name(t.engine, i));
    s.count[i] = extent[0] * (dims > 1 ? extent[1] : 1);
  }
  for (int64_t m = 0; m < 2; ++m) {
    int32_t tokens[2 * ODD_LENGTH];
    float weight[2 * ODD_SIZE], seed[2 * ODD_SIZE], unread[6] = {0};
    for (int64_t i = 0; i < 2 * ODD_SIZE; ++i) {
      tokens[i / WIDTH] = token_at(2 * m, i / WIDTH);
      weight[i] = 1 + (float) number_at(m, i, 8);
      seed[i] = (float) ts_scale(t.engine, number_at(m, i, 9)); /* the loss scale is 1 */
    }
    must(ts_set_input(t.engine, "tokens", tokens, &err), &err);
    must(ts_set_input(t.engine, "weight", weight, &err), &err);
    must(ts_set_input(t.engine, "unread", unread, &err), &err);
    must(ts_forward(t.engine, &err), &err);
    must(ts_get_output(t.engine, "y", s.y, &err), &err);
    must(ts_backward_from(t.engine, "y", seed, &err), &err);
    if (m == 1) {
      read_odd(t.engine, 0, like, &s);
    }
    must(ts_step(t.engine, NULL, &err), &err);
  }
  s.norm = ts_global_grad_norm(t.engine);
  read_odd(t.engine, 1, like, &s);
  close_trial(&t);
  return s;
}

static void free_odd(odd_step *s) {
  for (int i = 0; i < s->n; ++i) {
    ts_free(s->name[i]);
    ts_free(s->value[0][i]);
    ts_free(s->value[1][i]);
  }
}

/* In fp32 sums of some dozens of products are rounded in another order; lower types are as far from fp32 as one rank
 * is, but for chance and the sums over ranks. */
static void test_odd(ts_world *all, ts_world *alone, int tp) {
  static const char *const types[] = {"", BF16, "fp16 = { enabled = true; loss_scale = 1; };",
                                      "torch_autocast = { enabled = true; };"};
  odd_step one = take_odd_step(alone, 1, "", NULL);
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
    double far[2] = {0}; /* all ranks, and one in the lower type */
    for (int k = 0; k < 2; ++k) {
      odd_step b = take_odd_step(k == 0 ? all : alone, k == 0 ? tp : 1, types[i], &one);
      far[k] = fmax(apart(b.y, one.y, 2 * ODD_SIZE), relative(b.norm, one.norm));
      for (int p = 0; p < one.n; ++p) {
        far[k] = fmax(far[k], fmax(apart(b.value[0][p], one.value[0][p], one.count[p]),
                                   apart(b.value[1][p], one.value[1][p], one.count[p])));
      }
      free_odd(&b);
    }
    tap_ok_all(MPI_COMM_WORLD, far[0] <= (i == 0 ? 1e-5 : 4 * far[1]) && far[1] < 0.1 && one.norm > 0,
               "without a loss, tp %d %s: the step of one rank in fp32 but for %.1e (one rank: %.1e)", tp, types[i],
               far[0], far[1]);
  }
  free_odd(&one);
}

/* ---- what is refused ---- */

enum { ONE_KEY_HEAD, MEAN_POOL, LOSS_OF_ROWS, NO_TOKENS, OTHER_DIMENSION, OTHER_LENGTH, MOVED_TOKENS, NO_WEIGHTS };

static void write_wrong(ts_builder *b, void *user) {
  const int what = *(const int *) user;
  ts_tid x = ts_builder_input(b, "x", TS_F32, 2, (int64_t[]){8, 6},
                              what == NO_TOKENS         ? 0
                              : what == OTHER_DIMENSION ? 2
                                                        : 1);
  ts_tid row = ts_builder_input(b, "row", TS_F32, 1, (int64_t[]){6}, what == OTHER_LENGTH);
  ts_tid mask = ts_builder_input(b, "mask", TS_I32, 1, (int64_t[]){8}, 0);
  ts_builder_unit(b, "net");
  if (what == NO_WEIGHTS) {
    x = ts_builder_product(b, "w", x, ts_builder_parameter(b, "w", 2, (int64_t[]){6, 6}, (ts_init){TS_INIT_NORMAL, 1}));
  } else {
    x = ts_builder_linear(b, "in", x, 6, false);
  }
  if (what == ONE_KEY_HEAD) { /* beside one of fewer query heads, and more key heads */
    const ts_heads heads = {.heads = 6, .kv_heads = 1, .head_dim = 1}, few = {.heads = 3, .kv_heads = 3, .head_dim = 2};
    ts_tid k = ts_builder_linear(b, "k", x, 1, false);
    x = ts_builder_attention(b, "few", x, x, x, TS_NONE, &few);
    x = ts_builder_attention(b, "attention", x, k, k, TS_NONE, &heads);
  } else if (what == MOVED_TOKENS) {
    x = ts_builder_reshape(b, "moved", x, 3, (int64_t[]){ts_builder_batch(b), 4, 12});
  } else if (what == MEAN_POOL) {
    x = ts_builder_mean_pool(b, "mean", x, mask);
  } else if (what == LOSS_OF_ROWS || what == OTHER_LENGTH) {
    ts_builder_loss(b, "rows", ts_builder_linear(b, "of_row", row, 2, false), TS_NONE, 1);
  }
  ts_builder_loss(b, "loss", x, TS_NONE, 1);
}

static const struct {
  int what, tp, sp;
  const char *more;
  unsigned abilities;
  const char *why;
} wrong[] = {
    {ONE_KEY_HEAD, 2, 1, "", 0, "has 1 key heads, and each rank one at least"},
    {NO_TOKENS, 2, 1, "tensor_parallel = { preset_model = \"llama\"; };", 0, "knows the weights of a family"},
    {NO_TOKENS, 2, 1, "tensor_parallel = { tp_plan = ( " RULE("net.inn", "colwise") " ); };", 0,
     "matches no weight; there is net.in.weight"},
    {NO_WEIGHTS, 2, 1, "tensor_parallel = { tp_plan = ( " RULE("net.w", "colwise") " ); };", 0,
     "matches no weight; there is none whose name ends in .weight"},
    {NO_TOKENS, 1, 1, "", TS_CAN_GENERATE, "only those of families generate"},
    {MEAN_POOL, 1, 2, "", 0, "net.mean.pick (pick) takes the tokens of a sample together"},
    {LOSS_OF_ROWS, 1, 2, "", 0, "is a loss of no tokens, which ranks would count twice"},
    {NO_TOKENS, 1, 2, "", 0, "the model has no input with tokens"},
    {OTHER_DIMENSION, 1, 2, "", 0, "input x has its tokens in dimension 2"},
    {OTHER_LENGTH, 1, 2, "", 0, "input row has its tokens in dimension 1, 6 of them"},
    {MOVED_TOKENS, 1, 2, "", 0, "gives them another place than the second dimension"},
};

static void test_wrong(ts_world *all) {
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    int what = wrong[i].what;
    const ts_own_model model = {"wrong", write_wrong, &what};
    const way how = {"wrong", wrong[i].tp, wrong[i].sp, 8, wrong[i].more};
    trial s;
    ts_error err = {0};
    ts_status status = try_subject(all, &how, &model, TS_CAN_STEP | wrong[i].abilities, &s, &err);
    tap_ok_all(MPI_COMM_WORLD, status == TS_BAD_INPUT && s.engine == NULL && strstr(err.text, wrong[i].why) != NULL,
               "%s", err.count > 0 ? err.text : wrong[i].why);
    ts_error_clear(&err);
    close_trial(&s);
  }
}

/* ---- the ways ---- */

#define STAGE(n) "zero_optimization = { stage = " #n "; stage3_param_persistence_threshold = 20; };"
#define AGAIN "activation_checkpointing = { enabled = true; };"
#define ROWS "tensor_parallel = { sequence_parallel = true; };"
#define NO_ROWS "tensor_parallel = { sequence_parallel = false; };"
#define PLAN                                                                                               \
  "tp_plan = ( " RULE("blocks.*.q", "colwise") ", " RULE("blocks.*.k", "colwise") ", " RULE(               \
      "blocks.*.v",                                                                                        \
      "colwise") ", " RULE("blocks.*.o",                                                                   \
                           "rowwise") ", " RULE("blocks.*.gate",                                           \
                                                "colwise") ", " RULE("blocks.*.up",                        \
                                                                     "colwise") ", " RULE("blocks.*.down", \
                                                                                          "rowwise") " );"
#define SPEC(pattern, type) "{ patterns = [\".*" pattern "\\\\.weight$\"]; partition_type = \"" type "\"; }"
#define SPECS                                                                                                       \
  "partition_config = { layer_specs = ( " SPEC("embed\\\\.tokens", "column") ", " SPEC("head", "column") ", " SPEC( \
      "head\\\\.out", "column") ", " SPEC("\\\\.(q|k|v|gate|up)", "column") ", " SPEC("\\\\.(o|down)", "row") " ); };"

static const way ways_2[] = {
    {"dp2", 1, 1, 12, STAGE(0)},
    {"dp2", 1, 1, 12, STAGE(3) AGAIN},
    {"tp2", 2, 1, 12, ROWS},
    {"tp2", 2, 1, 12, NO_ROWS STAGE(3)},
    {"tp2", 2, 1, 13, "tensor_parallel = { " PLAN " };" STAGE(1)},
    {"tp2", 2, 1, 12, "tensor_parallel = { sequence_parallel = false; " PLAN " };" STAGE(1) AGAIN},
    {"tp2", 2, 1, 12, "tensor_parallel = { " SPECS " };" STAGE(2)},
    {"tp2", 2, 1, 12, "tensor_parallel = { sequence_parallel = false; " SPECS " };" STAGE(3) AGAIN},
    {"tp2", 2, 1, 12, "tensor_parallel = { " PLAN " };" BF16 STAGE(2)},
    {"sp2", 1, 2, 12, STAGE(0)},
    {"sp2", 1, 2, 13, STAGE(1)},
    {"sp2", 1, 2, 13, STAGE(2) "sequence_parallel = { ring_degree = 2; };"},
    {"sp2", 1, 2, 12, STAGE(3) AGAIN},
    {"sp2", 1, 2, 12, STAGE(2) BF16},
};
static const way ways_4[] = {
    {"dp4", 1, 1, 12, STAGE(2)},
    {"tp2 x dp2", 2, 1, 12, STAGE(0)},
    {"tp2 x dp2", 2, 1, 12, STAGE(3) AGAIN "tensor_parallel = { " PLAN " };"},
    {"tp2 x sp2", 2, 2, 12, STAGE(1)},
    {"tp2 x sp2", 2, 2, 13, STAGE(3) "tensor_parallel = { " SPECS " };"},
    {"tp2 x sp2", 2, 2, 13, NO_ROWS STAGE(2) AGAIN},
    {"sp4", 1, 4, 12, STAGE(0)},
    {"sp4", 1, 4, 13, STAGE(3) AGAIN},
    {"sp4", 1, 4, 13, STAGE(2) "sequence_parallel = { ring_degree = 4; };"},
    {"sp2 x dp2", 1, 2, 13, STAGE(2)},
    {"tp2 x sp2", 2, 2, 12, STAGE(2) BF16},
};

int main(int argc, char **argv) {
  int provided, size;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  ts_world *all = join(MPI_COMM_WORLD), *alone = join(MPI_COMM_SELF);
  const way *ways = size == 4 ? ways_4 : ways_2;
  size_t n = size == 4 ? sizeof ways_4 / sizeof *ways_4 : sizeof ways_2 / sizeof *ways_2;
  for (size_t i = 0; i < n; ++i) {
    test_way(all, alone, &ways[i]);
  }
  if (is_named("odd")) {
    test_odd(all, alone, size);
  }
  if (is_named("wrong")) {
    test_wrong(all);
  }
  ts_world_destroy(&alone);
  ts_world_destroy(&all);
  int status = tap_done_all(MPI_COMM_WORLD);
  MPI_Finalize();
  return status;
}
