/* Parameters, gradients and states of the optimizer by name: the gradients of finite differences and of one rank,
 * states of one update by hand, what is set is read and used, shares that make the whole, and all of it changing no bit
 * where what was read is set again; on grids, at stages, in precisions and with optimizers.  Then every wrong call.
 *
 * TEST_ONLY takes numbers of courses (the comment of a line has them) and "gradients", "local", "set",
 * "rate", "wrong". */
#include "regression/subject.h"
#include "regression/tap.h"
#include "regression/tap_mpi.h"

#include "base/memory.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

#define SMALL_PARTS "zero_optimization.stage3_param_persistence_threshold=100 "

/* ---- engines ---- */

static subject open_with(ts_world *world, const char *text, const char *sets, unsigned abilities) {
  return open_subject(world, text, sets, abilities, NULL);
}

static int64_t elements_of(const subject *s, int i) {
  int64_t extent[TS_MAX_DIMS], n = 1;
  for (int d = ts_parameter_shape(s->engine, i, extent) - 1; d >= 0; --d) {
    n *= extent[d];
  }
  return n;
}

/* Forward and backward of micro-batch m. */
static void go_back(const subject *s, const ts_batch *batch, int64_t m) {
  ts_error err = {0};
  size_t each = (size_t) s->deck->train_micro_batch_size_per_gpu;
  for (int i = 0; i < TS_N_INPUTS; ++i) {
    if ((ts_engine_inputs(s->engine) >> i & 1) != 0) {
      const char *from = (const char *) batch->input[i] + ts_batch_bytes(batch, (ts_input_kind) i) * each * (size_t) m;
      must(ts_set_input(s->engine, ts_input_get((ts_input_kind) i)->name, from, &err), &err);
    }
  }
  must(ts_forward(s->engine, &err), &err);
  must(ts_backward(s->engine, 1, &err), &err);
}

/* All micro-batches of a step, up to its update. */
static void go_back_all(const subject *s, int64_t step, bool coalesces) {
  ts_error err = {0};
  ts_batch *batch = train_run_batch(s->engine, s->deck, step);
  if (coalesces) {
    must(ts_coalesce_grad_reduction_begin(s->engine, &err), &err);
  }
  for (int64_t m = 0; m < s->deck->gradient_accumulation_steps; ++m) {
    go_back(s, batch, m);
    if (!coalesces && m + 1 < s->deck->gradient_accumulation_steps) {
      must(ts_step(s->engine, NULL, &err), &err);
    }
  }
  if (coalesces) {
    must(ts_coalesce_grad_reduction_end(s->engine, &err), &err);
    must(ts_set_gradient_accumulation_boundary(s->engine, true, &err), &err);
  }
  ts_batch_destroy(&batch);
}

static ts_step_result update(const subject *s) {
  ts_step_result r = {0};
  ts_error err = {0};
  must(ts_step(s->engine, &r, &err), &err);
  return r;
}

/* ---- one way to ask for any kind of values ---- */

enum { VALUES = -2, GRADIENT = -1 }; /* and from 0 on the states */

static ts_status get_full(const subject *s, int i, int kind, float *value, ts_error *err) {
  const char *name = ts_parameter_name(s->engine, i);
  return kind == VALUES ? ts_get_full_fp32_parameter(s->engine, name, value, err)
         : kind == GRADIENT
             ? ts_get_full_fp32_gradient(s->engine, name, value, err)
             : ts_get_full_optimizer_state(s->engine, name, ts_optimizer_state_name(s->engine, i, kind), value, err);
}

static ts_status set_full(const subject *s, int i, int kind, const float *value, ts_error *err) {
  const char *name = ts_parameter_name(s->engine, i);
  return kind == VALUES ? ts_set_full_fp32_parameter(s->engine, name, value, err)
         : kind == GRADIENT
             ? ts_set_full_fp32_gradient(s->engine, name, value, err)
             : ts_set_full_optimizer_state(s->engine, name, ts_optimizer_state_name(s->engine, i, kind), value, err);
}

static ts_status get_local(const subject *s, int i, int kind, float *value, ts_error *err) {
  const char *name = ts_parameter_name(s->engine, i);
  return kind == VALUES ? ts_get_local_fp32_parameter(s->engine, name, value, err)
         : kind == GRADIENT
             ? ts_get_local_fp32_gradient(s->engine, name, value, err)
             : ts_get_local_optimizer_state(s->engine, name, ts_optimizer_state_name(s->engine, i, kind), value, err);
}

static ts_status set_local(const subject *s, int i, int kind, const float *value, ts_error *err) {
  const char *name = ts_parameter_name(s->engine, i);
  return kind == VALUES ? ts_set_local_fp32_parameter(s->engine, name, value, err)
         : kind == GRADIENT
             ? ts_set_local_fp32_gradient(s->engine, name, value, err)
             : ts_set_local_optimizer_state(s->engine, name, ts_optimizer_state_name(s->engine, i, kind), value, err);
}

static float *read_full(const subject *s, int i, int kind) {
  ts_error err = {0};
  float *value = ts_malloc((size_t) elements_of(s, i) * sizeof *value);
  must(get_full(s, i, kind, value, &err), &err);
  return value;
}

static ts_local_share share_of(const subject *s, int i) {
  ts_error err = {0};
  ts_local_share share;
  must(ts_get_local_share(s->engine, ts_parameter_name(s->engine, i), &share, &err), &err);
  return share;
}

static float *read_local(const subject *s, int i, int kind) {
  ts_error err = {0};
  float *value = ts_malloc((size_t) share_of(s, i).elements * sizeof *value + 1);
  must(get_local(s, i, kind, value, &err), &err);
  return value;
}

/* Of all kinds that are there: parameters always, gradients and states where it is trained. */
static int end_of_kinds(const subject *s, int i) {
  return ts_parameter_is_trainable(s->engine, i) ? ts_optimizer_state_count(s->engine, i) : GRADIENT;
}

static float made_up(int i, int kind, int64_t k, bool positive) {
  uint32_t words[4];
  ts_philox((uint64_t) (kind + 7), (uint64_t) i, (uint64_t) k, words);
  int n = (int) (words[0] % 255) - 127; /* 8 bits and a sign: what bf16 and, times a scale of 2^16, fp16 hold */
  return (float) (positive ? abs(n) : n) / 256;
}

/* ---- what was read is set again ---- */

typedef enum touch { LEAVE, FULL, LOCAL, N_TOUCHES } touch;
static const char *const touch_name[] = {"", "all of each", "shares"};

static void set_again(const subject *s, int i, int kind, touch how) {
  ts_error err = {0};
  float *value = (how == FULL ? read_full : read_local)(s, i, kind);
  must((how == FULL ? set_full : set_local)(s, i, kind, value, &err), &err);
  ts_free(value);
}

/* Two steps. */
static uint64_t train(ts_world *world, const char *text, const char *sets, unsigned more, touch how) {
  enum { STEPS = 2 };
  subject s = open_with(world, text, sets, TS_CAN_STEP | more);
  uint64_t digest = 0;
  for (int step = 0; step < STEPS; ++step) {
    go_back_all(&s, step, (more & TS_CAN_DEFER) != 0);
    for (int i = 0; how != LEAVE && i < ts_parameter_count(s.engine); ++i) {
      bool begun =
          step > 0 || (strcmp(s.deck->optimizer.type, "Adagrad") != 0 && (strcmp(s.deck->optimizer.type, "SGD") != 0));
      for (int kind = VALUES; kind < (begun || !ts_parameter_is_trainable(s.engine, i) ? end_of_kinds(&s, i) : 0);
           ++kind) {
        set_again(&s, i, kind, how);
      }
    }
    ts_step_result r = update(&s);
    uint64_t bits;
    memcpy(&bits, &r.grad_norm, sizeof bits);
    digest = ts_mix(digest, bits);
    memcpy(&bits, &r.loss, sizeof bits);
    digest = ts_mix(digest, bits);
  }
  digest = ts_mix(digest, train_run_digest(s.engine));
  close_subject(&s);
  return digest;
}

/* ---- what is set is read ---- */

/* All parameters are set; \return how many values are read otherwise. */
static int64_t count_otherwise(const subject *s, float tolerance) {
  ts_error err = {0};
  int64_t wrong = 0;
  for (int pass = 0; pass < 2; ++pass) { /* nobody writes what is another's */
    for (int i = 0; i < ts_parameter_count(s->engine); ++i) {
      int64_t n = elements_of(s, i);
      float *wanted = ts_malloc((size_t) n * sizeof *wanted);
      for (int kind = VALUES; kind < end_of_kinds(s, i); ++kind) {
        for (int64_t k = 0; k < n; ++k) {
          wanted[k] = made_up(i, kind, k, kind > 0);
        }
        if (pass == 0) {
          must(set_full(s, i, kind, wanted, &err), &err);
        }
        float *value = read_full(s, i, kind), room = kind >= 0 ? tolerance : 0;
        for (int64_t k = 0; k < n; ++k) {
          wrong += !(fabsf(value[k] - wanted[k]) <= room);
        }
        ts_free(value);
      }
      ts_free(wanted);
    }
  }
  return wrong;
}

/* ---- shares ---- */

/* The shares of all owners, put together by their pieces: what this rank adds to all values of a parameter, and to the
 * number of their owners. \return whether its own are those of the whole */
static bool add_share(const subject *s, int i, int kind, const float *full, float *sum, float *owners) {
  ts_error err = {0};
  int64_t at = 0;
  ts_local_share share = share_of(s, i);
  ts_local_piece *piece = ts_malloc((size_t) share.n_pieces * sizeof *piece + 1);
  must(ts_get_local_pieces(s->engine, ts_parameter_name(s->engine, i), piece, &err), &err);
  float *mine = read_local(s, i, kind);
  bool right = true;
  for (int64_t p = 0; p < share.n_pieces; ++p) {
    right = right && piece[p].count > 0;
    for (int64_t k = piece[p].first; k < piece[p].first + piece[p].count; ++k, ++at) {
      right = right && mine[at] == full[k];
      sum[k] += share.is_owner ? mine[at] : 0;
      owners[k] += share.is_owner ? 1 : 0;
    }
  }
  ts_free(piece);
  ts_free(mine);
  return right && at == share.elements;
}

static bool shares_make_whole(const subject *s, int kind) {
  int64_t all = 0, at = 0;
  for (int i = 0; i < ts_parameter_count(s->engine); ++i) {
    all += elements_of(s, i);
  }
  float *sum = ts_calloc((size_t) (2 * all), sizeof *sum), *owners = sum + all, *full = ts_malloc((size_t) all * 4);
  bool right = true;
  for (int i = 0; i < ts_parameter_count(s->engine); at += elements_of(s, i++)) {
    float *value = read_full(s, i, kind);
    memcpy(full + at, value, (size_t) elements_of(s, i) * sizeof *value);
    ts_free(value);
    right = add_share(s, i, kind, full + at, sum + at, owners + at) && right;
  }
  tap_sum_all(MPI_COMM_WORLD, sum, (int) (2 * all), MPI_FLOAT);
  for (int64_t k = 0; k < all; ++k) {
    right = right && owners[k] == 1 && sum[k] == full[k];
  }
  ts_free(sum);
  ts_free(full);
  return right;
}

/* Shares of made-up values are set; everybody reads all of them, and computes with them. */
static bool shares_are_set(const subject *s) {
  ts_error err = {0};
  bool right = true;
  for (int i = 0; i < ts_parameter_count(s->engine); ++i) {
    ts_local_share share = share_of(s, i);
    ts_local_piece *piece = ts_malloc((size_t) share.n_pieces * sizeof *piece + 1);
    must(ts_get_local_pieces(s->engine, ts_parameter_name(s->engine, i), piece, &err), &err);
    float *mine = ts_malloc((size_t) share.elements * sizeof *mine + 1);
    for (int kind = VALUES; kind < end_of_kinds(s, i); ++kind) {
      int64_t at = 0;
      for (int64_t p = 0; p < share.n_pieces; ++p) {
        for (int64_t k = 0; k < piece[p].count; ++k) {
          mine[at++] = made_up(i, kind, piece[p].first + k, kind > 0);
        }
      }
      must(set_local(s, i, kind, mine, &err), &err);
      float *full = read_full(s, i, kind);
      for (int64_t k = 0; k < elements_of(s, i); ++k) {
        right = right && full[k] == made_up(i, kind, k, kind > 0);
      }
      ts_free(full);
    }
    ts_free(mine);
    ts_free(piece);
  }
  return right;
}

static void set_made_up(const subject *s) {
  ts_error err = {0};
  for (int i = 0; i < ts_parameter_count(s->engine); ++i) {
    float *value = ts_malloc((size_t) elements_of(s, i) * sizeof *value);
    for (int kind = VALUES; kind < end_of_kinds(s, i); ++kind) {
      for (int64_t k = 0; k < elements_of(s, i); ++k) {
        value[k] = made_up(i, kind, k, kind > 0);
      }
      must(set_full(s, i, kind, value, &err), &err);
    }
    ts_free(value);
  }
}

/* Two engines that were given the same, one by shares, go on alike. */
static void test_local(ts_world *world, const char *what, const char *sets) {
  uint64_t digest[2];
  bool right = true;
  for (int by_shares = 0; by_shares < 2; ++by_shares) {
    subject s = open_with(world, train_run_llama, sets, TS_CAN_STEP);
    go_back_all(&s, 0, false);
    for (int kind = VALUES; kind < end_of_kinds(&s, 0) && !by_shares; ++kind) {
      right = shares_make_whole(&s, kind) && right;
    }
    if (by_shares) {
      right = shares_are_set(&s) && right;
    } else {
      set_made_up(&s);
    }
    update(&s);
    go_back_all(&s, 1, false);
    ts_step_result r = update(&s);
    uint64_t bits;
    memcpy(&bits, &r.loss, sizeof bits);
    digest[by_shares] = ts_mix(bits, train_run_digest(s.engine));
    close_subject(&s);
  }
  tap_ok_all(MPI_COMM_WORLD, right, "%s: shares of all ranks are the whole, each element once, and set it", what);
  tap_ok_all(MPI_COMM_WORLD, digest[0] == digest[1], "%s: set by shares or all of each, the same bits follow", what);
}

/* ---- gradients ---- */

typedef struct gradients {
  int n;
  char **name;
  int64_t *count;
  float **value;
} gradients;

static gradients read_gradients(const subject *s) {
  size_t n = (size_t) ts_parameter_count(s->engine);
  gradients g = {(int) n, ts_calloc(n, sizeof *g.name), ts_calloc(n, sizeof *g.count), ts_calloc(n, sizeof *g.value)};
  for (int i = 0; i < g.n; ++i) {
    g.name[i] = ts_strdup(ts_parameter_name(s->engine, i));
    g.count[i] = elements_of(s, i);
    g.value[i] = read_full(s, i, GRADIENT);
  }
  return g;
}

static void free_gradients(gradients *g) {
  for (int i = 0; i < g->n; ++i) {
    ts_free(g->name[i]);
    ts_free(g->value[i]);
  }
  ts_free(g->name);
  ts_free(g->count);
  ts_free(g->value);
}

static int find(const gradients *g, const char *name) {
  int i = 0;
  while (strcmp(g->name[i], name) != 0) {
    ++i;
  }
  return i;
}

/* The largest difference, in units of the largest element of the parameter. */
static double gradients_apart(const gradients *a, const gradients *b) {
  double worst = a->n == b->n ? 0 : INFINITY;
  for (int i = 0; i < a->n && a->n == b->n; ++i) {
    int k = find(b, a->name[i]);
    double largest = 1e-30, apart = 0;
    for (int64_t e = 0; e < a->count[i]; ++e) {
      largest = fmax(largest, fabs((double) a->value[i][e]));
      double d = fabs((double) a->value[i][e] - (double) b->value[k][e]);
      apart = isnan(d) ? INFINITY : fmax(apart, d);
    }
    worst = fmax(worst, apart / largest);
  }
  return worst;
}

static double norm_of(const gradients *g) {
  double squares = 0;
  for (int i = 0; i < g->n; ++i) {
    for (int64_t e = 0; e < g->count[i]; ++e) {
      squares += (double) g->value[i][e] * (double) g->value[i][e];
    }
  }
  return sqrt(squares);
}

/* The mean loss once all parameters are moved by so many of their gradients. */
static double loss_along(const subject *s, const gradients *g, double by) {
  ts_error err = {0};
  double sum[2];
  for (int i = 0; i < g->n; ++i) {
    float *value = read_full(s, i, VALUES);
    for (int64_t k = 0; k < g->count[i]; ++k) {
      value[k] += (float) by * g->value[i][k];
    }
    must(set_full(s, i, VALUES, value, &err), &err);
    ts_free(value);
  }
  must(ts_forward(s->engine, &err), &err);
  must(ts_get_loss(s->engine, &sum[0], &sum[1], &err), &err);
  tap_sum_all(MPI_COMM_WORLD, sum, 2, MPI_DOUBLE);
  return sum[0] / sum[1];
}

/* One micro-batch a step, so the inputs of the last forward are all there are. */
static void test_differences(ts_world *world, const char *sets, const char *what) {
  const double h = 0.01; /* of the parameters, whose length is some units */
  subject s = open_with(world, train_run_llama, sets, TS_CAN_STEP);
  go_back_all(&s, 0, false);
  gradients g = read_gradients(&s);
  double norm = norm_of(&g), by = h / norm;
  double far_back = loss_along(&s, &g, -2 * by), back = loss_along(&s, &g, by), ahead = loss_along(&s, &g, 2 * by),
         far_ahead = loss_along(&s, &g, by);
  double slope = (8 * (ahead - back) - (far_ahead - far_back)) / (12 * h);
  /* means of losses near 4, of fp32 terms, are exact to 1e-7 or so, over 0.02 */
  tap_ok_all(MPI_COMM_WORLD, fabs(slope / norm - 1) < 1e-4, "%s: the loss along gradients, %.6g, has their norm, %.6g",
             what, slope, norm);
  free_gradients(&g);
  close_subject(&s);
}

/* Exact: m = (1 - b1) g, v = (1 - b2) g g, each product rounded once, as update_rules.h has them. */
static bool is_first_update(const subject *s, const gradients *g) {
  float rest1 = (float) (1 - (double) (float) s->deck->optimizer.params.betas[0]),
        rest2 = (float) (1 - (double) (float) s->deck->optimizer.params.betas[1]);
  bool right = true;
  for (int i = 0; i < g->n; ++i) {
    float *m = read_full(s, i, 0), *v = read_full(s, i, 1);
    for (int64_t k = 0; k < g->count[i]; ++k) {
      volatile float first = rest2 * g->value[i][k], square = first * g->value[i][k];
      right = right && m[k] == rest1 * g->value[i][k] && v[k] == square;
    }
    ts_free(m);
    ts_free(v);
  }
  return right;
}

static gradients gradients_of(ts_world *world, const char *sets, bool *first_update, double *norm_apart) {
  subject s = open_with(world, train_run_llama, sets, TS_CAN_STEP);
  go_back_all(&s, 0, false);
  gradients g = read_gradients(&s);
  ts_step_result r = update(&s);
  *norm_apart = fabs(r.grad_norm / norm_of(&g) - 1);
  *first_update = is_first_update(&s, &g);
  close_subject(&s);
  return g;
}

/* Of one rank in a world of its own. */
static gradients gradients_alone(ts_world *alone, const char *sets) {
  bool right;
  double apart;
  return gradients_of(alone, sets, &right, &apart);
}

#define NO_CLIPPING "gradient_clipping=0 train_batch_size=12 " SMALL_PARTS

/* Where micro-batches are accumulated stages 2 and 3 add up in another order than 0 and 1: ranks first. */
static void test_gradients(ts_world *world, ts_world *alone, const char *grid, const char *more, int micro_batches) {
  gradients wanted = gradients_alone(alone, NO_CLIPPING), before = {0};
  for (int stage = 0; stage <= 3; ++stage) {
    bool right;
    double norm_apart;
    char *sets = ts_format(NO_CLIPPING "%s zero_optimization.stage=%d gradient_accumulation_steps=%d", more, stage,
                           micro_batches);
    gradients g = gradients_of(world, sets, &right, &norm_apart);
    double apart = gradients_apart(&wanted, &g);
    bool alike = stage > 0 && (micro_batches == 1 || stage != 2) && train_run_stages_alike(stage - 1, stage);
    double stages_apart = alike ? gradients_apart(&before, &g) : 0;
    /* fp32: sums of a hundred terms in another order; the norm is of the same numbers, rounded to fp32 (2^-24) */
    tap_ok_all(MPI_COMM_WORLD, apart < 2e-5 && norm_apart < 0x1p-24 && right && stages_apart == 0,
               "%s x %d, stage %d: gradients of one rank (%.1e)%s, their norm (%.1e), and %s of one update", grid,
               micro_batches, stage, apart,
               !alike              ? ""
               : stages_apart == 0 ? ", bits of the stage before"
                                   : ", NOT its bits",
               norm_apart, right ? "the states" : "NOT the states");
    free_gradients(&before);
    before = g;
    ts_free(sets);
  }
  free_gradients(&before);
  free_gradients(&wanted);
}

/* ---- a model without a loss ---- */

enum { IN = 24, OUT = 16 };

static void write_product(ts_builder *b, void *user) {
  (void) user;
  ts_tid x = ts_builder_input(b, "x", TS_F32, 2, (const int64_t[]){1, IN}, 0);
  ts_builder_unit(b, "one");
  ts_builder_output(b, "y", ts_builder_linear(b, "out", x, OUT, true));
}

/* Gradients of outputs are taken as they are: of ones it is the sum of x over the samples of all ranks, exactly. */
static void test_own(ts_world *world, int stage) {
  enum { SAMPLES = 3 };
  ts_error err = {0};
  const ts_own_model model = {"product", write_product, NULL};
  char *sets = ts_format(SMALL_PARTS "train_micro_batch_size_per_gpu=%d zero_optimization.stage=%d", SAMPLES, stage);
  subject s =
      open_subject(world,
                   "model = { model_type = \"own\"; }; run = { directory = \"none\"; seed = 5; threads = 1; };\n"
                   "optimizer = { type = \"SGD\"; params = { lr = 1.0; weight_decay = 0.0; }; };\n",
                   sets, TS_CAN_STEP | TS_CAN_SEED, &model);
  float x[SAMPLES * IN], ones[SAMPLES * OUT], sum[IN] = {0};
  for (int i = 0; i < SAMPLES * IN; ++i) {
    x[i] = made_up(ts_world_rank(world), VALUES, i, false);
    sum[i % IN] += x[i];
  }
  for (int i = 0; i < SAMPLES * OUT; ++i) {
    ones[i] = 1;
  }
  tap_sum_all(MPI_COMM_WORLD, sum, IN, MPI_FLOAT);
  must(ts_set_input(s.engine, "x", x, &err), &err);
  must(ts_forward(s.engine, &err), &err);
  must(ts_backward_from(s.engine, "y", ones, &err), &err);
  float weight[OUT * IN], bias[OUT];
  must(ts_get_full_fp32_gradient(s.engine, "one.out.weight", weight, &err), &err);
  must(ts_get_full_fp32_gradient(s.engine, "one.out.bias", bias, &err), &err);
  bool right = true;
  for (int i = 0; i < OUT * IN; ++i) {
    right = right && weight[i] == sum[i % IN] && bias[i / IN] == (float) (SAMPLES * ts_world_size(world));
  }
  tap_ok_all(MPI_COMM_WORLD, right, "a model without a loss, stage %d: gradients are sums over samples and ranks",
             stage);
  close_subject(&s);
  ts_free(sets);
}

/* ---- courses ---- */

typedef struct course {
  const char *what, *sets;
  unsigned more;
  int ranks, most; /* the first divides these, and they are no more than the second: four take a second each */
  bool few_labels; /* a factor that is no power of two */
  float tolerance; /* of states that are set: 8 bits have 2^-7 of the largest, which is 1/2 */
} course;

#define STAGE(n) "zero_optimization.stage=" #n " "
#define BF16 "bf16.enabled=true "

static const course courses[] = {
    /* 0 */ {"fp32, stage 0", STAGE(0), 0, 1, 2, false, 0},
    /* 1 */ {"fp32, stage 1, frozen MLPs", STAGE(1) "frozen=[\"mlp\"]", 0, 1, 2, false, 0},
    /* 2 */ {"fp32, stage 3, few labels", STAGE(3), 0, 1, 4, true, 0},
    /* 3 */ {"bf16, stage 0, deferred", STAGE(0) BF16, TS_CAN_DEFER, 1, 2, false, 0},
    /* 4 */ {"bf16, stage 1, deferred, few labels", STAGE(1) BF16, TS_CAN_DEFER, 1, 2, true, 0},
    /* 5 */ {"bf16, stage 2", STAGE(2) BF16, 0, 1, 2, false, 0},
    /* 6 */ {"bf16, stage 3", STAGE(3) BF16, 0, 1, 2, false, 0},
    /* 7 */ {"bf16 alone, stage 2", STAGE(2) BF16 "bf16.bf16_master_weights_and_grads=true", 0, 1, 2, false, 0},
    /* 8 */ {"fp16, stage 2, few labels", STAGE(2) "fp16.enabled=true", 0, 1, 2, true, 0},
    /* 9 */
    {"autocast, stage 3", STAGE(3) "torch_autocast.enabled=true torch_autocast.dtype=bfloat16", 0, 1, 2, false, 0},
    /* 10 */ {"8 bits, stage 0", STAGE(0) "model.vocab_size=131 optimizer.state_dtype=8bit", 0, 1, 2, false, 5e-3f},
    /* 11 */
    {"8 bits, bf16, stage 3", STAGE(3) BF16 "model.vocab_size=131 optimizer.state_dtype=8bit", 0, 1, 2, false, 5e-3f},
    /* 12 */ {"states in bf16, stage 2", STAGE(2) BF16 "optimizer.state_dtype=bf16", 0, 1, 2, false, 0},
    /* 13 */ {"Lamb, stage 1", STAGE(1) "optimizer.type=Lamb", 0, 1, 2, false, 0},
    /* 14 */ {"Muon, stage 2", STAGE(2) BF16 "optimizer.type=Muon", 0, 1, 2, false, 0},
    /* 15 */ {"Lion, stage 3", STAGE(3) "optimizer.type=Lion", 0, 1, 2, false, 0},
    /* 16 */ {"Adagrad, stage 2", STAGE(2) "optimizer.type=Adagrad", 0, 1, 2, false, 0},
    /* 17 */ {"SGD, stage 0", STAGE(0) "optimizer.type=SGD optimizer.params.momentum=0.9", 0, 1, 2, false, 0},
    /* 18 */
    {"tp 2, stage 0, 8 bits", STAGE(0) "tensor_parallel.autotp_size=2 model.vocab_size=131 optimizer.state_dtype=8bit",
     0, 2, 2, false, 5e-3f},
    /* 19 */ {"tp 2, bf16, stage 3", STAGE(3) BF16 "tensor_parallel.autotp_size=2", 0, 2, 2, false, 0},
    /* 20 */ {"sp 2, bf16, stage 2, few labels", STAGE(2) BF16 "sequence_parallel_size=2", 0, 2, 2, true, 0},
    /* 21 */ {"tp 4, stage 1", STAGE(1) "tensor_parallel.autotp_size=4", 0, 4, 4, false, 0},
    /* 22 */
    {"tp 2 x sp 2, stage 3", STAGE(3) "tensor_parallel.autotp_size=2 sequence_parallel_size=2", 0, 4, 4, false, 0},
};

static void test_course(ts_world *world, const course *c) {
  char *sets = ts_format("train_batch_size=12 train_micro_batch_size_per_gpu=1 " SMALL_PARTS "%s", c->sets);
  train_run_set_few_labels(c->few_labels);
  uint64_t left = train(world, train_run_llama, sets, c->more, LEAVE);
  for (touch how = FULL; how < N_TOUCHES; ++how) {
    uint64_t touched = train(world, train_run_llama, sets, c->more, how);
    tap_ok_all(MPI_COMM_WORLD, touched == left, "%s: what is read, %s, and set again changes no bit", c->what,
               touch_name[how]);
  }
  train_run_set_few_labels(false);
  subject s = open_with(world, train_run_llama, sets, TS_CAN_STEP | c->more);
  go_back_all(&s, 0, c->more != 0);
  update(&s); /* of which some states begin */
  go_back_all(&s, 1, c->more != 0);
  int64_t wrong = count_otherwise(&s, c->tolerance);
  tap_ok_all(MPI_COMM_WORLD, wrong == 0, "%s: what is set is read (%lld otherwise)", c->what, (long long) wrong);
  close_subject(&s);
  ts_free(sets);
}

/* ---- a gradient that is set is the step's ---- */

static void test_set_gradient(ts_world *world, const char *sets, const char *what) {
  ts_error err = {0};
  subject s = open_with(world, train_run_llama, sets, TS_CAN_STEP | TS_CAN_DEFER);
  go_back_all(&s, 0, true);
  double squares = 0;
  for (int i = 0; i < ts_parameter_count(s.engine); ++i) {
    int64_t n = elements_of(&s, i);
    float *value = ts_malloc((size_t) n * sizeof *value);
    for (int64_t k = 0; k < n; ++k) {
      value[k] = made_up(i, GRADIENT, k, false);
      squares += (double) value[k] * value[k];
    }
    must(set_full(&s, i, GRADIENT, value, &err), &err);
    ts_free(value);
  }
  gradients g = read_gradients(&s);
  ts_step_result r = update(&s);
  tap_ok_all(MPI_COMM_WORLD, fabs(r.grad_norm / sqrt(squares) - 1) < 1e-6 && is_first_update(&s, &g),
             "%s: the update has the norm of what was set, %.6g, and its moments", what, r.grad_norm);
  free_gradients(&g);
  close_subject(&s);
}

/* ---- an evaluation between backward and step ---- */

/* Both ways, on other samples and fewer labels: neither the gradient nor the step's loss knows of it. */
static void test_evaluation(ts_world *world) {
  ts_error err = {0};
  double loss[2], norm[2], valid[2], sum, labels;
  float *gradient[2];
  for (int evaluates = 0; evaluates < 2; ++evaluates) {
    subject s = open_with(world, train_run_llama, STAGE(2), TS_CAN_STEP | TS_CAN_EVALUATE);
    go_back_all(&s, 0, false);
    if (evaluates) {
      train_run_set_few_labels(true);
      ts_batch *batch = train_run_batch(s.engine, s.deck, 1);
      train_run_set_few_labels(false);
      ts_engine_evaluate(s.engine, batch, &sum, &labels);
      must(ts_set_training(s.engine, false, &err), &err);
      must(ts_forward(s.engine, &err), &err);
      must(ts_set_training(s.engine, true, &err), &err);
      ts_batch_destroy(&batch);
    }
    gradient[evaluates] = read_full(&s, 0, GRADIENT);
    ts_step_result r = update(&s);
    loss[evaluates] = r.loss;
    norm[evaluates] = r.grad_norm;
    valid[evaluates] = r.valid_tokens;
    close_subject(&s);
  }
  tap_ok_all(MPI_COMM_WORLD,
             loss[0] == loss[1] && norm[0] == norm[1] && valid[0] == valid[1] && gradient[0][40] == gradient[1][40],
             "an evaluation before ts_step: gradients, loss %g and %g labels of the step stay", loss[1], valid[1]);
  ts_free(gradient[0]);
  ts_free(gradient[1]);
}

/* ---- one rank's values ---- */

static void test_scatter(ts_world *world, const char *sets, const char *what) {
  enum { N = 2 };
  subject s = open_with(world, train_run_llama, sets, TS_CAN_TRAIN);
  ts_error err = {0};
  int rank = ts_world_rank(world), root = ts_world_size(world) - 1;
  const char *name[N];
  float *value[N], *read[N], *none[N] = {NULL, NULL};
  for (int i = 0; i < N; ++i) {
    name[i] = ts_parameter_name(s.engine, 3 * i);
    size_t bytes = (size_t) elements_of(&s, 3 * i) * sizeof(float);
    value[i] = ts_malloc(bytes);
    read[i] = ts_malloc(bytes);
  }
  must(ts_gather_parameters(s.engine, name, N, value, &err), &err);
  for (int i = 0; i < N; ++i) {
    value[i][5] = 100.0f + (float) rank;
  }
  must(ts_scatter_parameters(s.engine, name, N, rank == root || rank == 0 ? value : none, root, &err), &err);
  must(ts_gather_parameters(s.engine, name, N, read, &err), &err);
  bool right = true;
  for (int i = 0; i < N; ++i) {
    right = right && read[i][5] == 100.0f + (float) root && read[i][4] == value[i][4];
    right = right && (rank != 0 || value[i][5] == 100.0f + (float) root);
    ts_free(value[i]);
    ts_free(read[i]);
  }
  tap_ok_all(MPI_COMM_WORLD, right, "%s: everybody has what the last rank has changed", what);
  close_subject(&s);
}

/* ---- the rate ---- */

static uint64_t digest_at(ts_world *world, const char *sets, double rate, double *told) {
  ts_error err = {0};
  subject s = open_with(world, train_run_llama, sets, TS_CAN_STEP);
  must(rate >= 0 ? ts_set_learning_rate(s.engine, rate, &err) : TS_OK, &err);
  for (int step = 0; step < 2; ++step) {
    go_back_all(&s, step, false);
    ts_step_result r = update(&s);
    *told = r.lr == ts_learning_rate(s.engine) || rate < 0 ? r.lr : -1;
  }
  uint64_t digest = train_run_digest(s.engine);
  close_subject(&s);
  return digest;
}

static void test_rate(ts_world *world) {
  double told, other;
  uint64_t wanted = digest_at(world, "optimizer.params.lr=3e-3", -1, &told);
  uint64_t set = digest_at(world, "optimizer.params.lr=1e-2 ", 3e-3, &other);
  tap_ok_all(MPI_COMM_WORLD, wanted == set && told == other, "a rate that is set, %g, is the deck's %g to the bit",
             other, told);
}

static void test_schedule(ts_world *world) {
  ts_error err = {0};
  subject s = open_with(world, train_run_llama,
                        "scheduler.type=WarmupLR scheduler.params.warmup_num_steps=10 "
                        "scheduler.params.warmup_max_lr=1e-2 scheduler.params.warmup_type=linear",
                        TS_CAN_STEP);
  uint64_t before = train_run_digest(s.engine);
  must(ts_set_learning_rate(s.engine, 0, &err), &err);
  for (int step = 0; step < 3; ++step) {
    go_back_all(&s, step, false);
    update(&s);
  }
  bool still = train_run_digest(s.engine) == before && ts_learning_rate(s.engine) == 0;
  must(ts_set_learning_rate(s.engine, -1, &err), &err);
  /* the fourth update has the value of i = 2: 2 / 10 of the rate */
  tap_ok_all(MPI_COMM_WORLD, still && fabs(ts_learning_rate(s.engine) - 2e-3) < 1e-12,
             "at a rate of 0 nothing moves, and the schedule has gone on to %g", ts_learning_rate(s.engine));
  close_subject(&s);
}

/* ---- wrong calls ---- */

static void refused(ts_status status, ts_error *err, const char *rule) {
  tap_ok_all(MPI_COMM_WORLD, status == TS_BAD_INPUT && err->count > 0 && strstr(err->text, rule) != NULL, "%s",
             err->count > 0 ? err->text : "nothing is refused");
  ts_error_clear(err);
}

static void test_names(ts_world *world) {
  ts_error err = {0};
  float number[1], *none[1] = {number};
  const char *name[] = {"model.norm.weigth"};
  subject s = open_with(world, train_run_llama, "frozen=[\"mlp\"]", TS_CAN_STEP | TS_CAN_TRAIN);
  const char *mlp = "model.layers.0.mlp.down_proj.weight", *norm = "model.norm.weight";
  refused(ts_get_full_fp32_parameter(s.engine, name[0], number, &err), &err, "did you mean model.norm.weight?");
  refused(ts_gather_parameters(s.engine, name, 1, none, &err), &err, "no parameter");
  refused(ts_scatter_parameters(s.engine, &norm, 1, none, 99, &err), &err, "there is no rank 99");
  refused(ts_get_full_optimizer_state(s.engine, mlp, "exp_avg", number, &err), &err, "is frozen");
  refused(ts_get_full_fp32_gradient(s.engine, mlp, number, &err), &err, "is frozen");
  refused(ts_get_local_optimizer_state(s.engine, norm, "sum", number, &err), &err, "it keeps exp_avg, exp_avg_sq");
  refused(ts_set_learning_rate(s.engine, NAN, &err), &err, "no rate");
  bool right = false, trains = true;
  for (int i = 0; i < ts_parameter_count(s.engine); ++i) {
    bool is_mlp = strstr(ts_parameter_name(s.engine, i), "mlp") != NULL;
    trains = trains && ts_parameter_is_trainable(s.engine, i) == !is_mlp &&
             ts_optimizer_state_count(s.engine, i) == (is_mlp ? 0 : 2);
    int64_t extent[TS_MAX_DIMS];
    right = right || (strcmp(ts_parameter_name(s.engine, i), mlp) == 0 &&
                      ts_parameter_shape(s.engine, i, extent) == 2 && extent[0] == 36 && extent[1] == 41);
  }
  tap_ok_all(MPI_COMM_WORLD, right && trains, "parameters by number: names, shapes of the whole, what is trained");
  close_subject(&s);
}

static void test_turns(ts_world *world) {
  ts_error err = {0};
  float value[36];
  const char *norm = "model.norm.weight";
  subject s = open_with(world, train_run_llama,
                        "train_batch_size=12 gradient_accumulation_steps=3 optimizer.type=SGD "
                        "optimizer.params.momentum=0.9",
                        TS_CAN_STEP | TS_CAN_TRAIN);
  ts_batch *batch = train_run_batch(s.engine, s.deck, 0);
  refused(ts_get_full_fp32_gradient(s.engine, norm, value, &err), &err, "there is no gradient");
  refused(ts_set_full_optimizer_state(s.engine, norm, "momentum_buffer", value, &err), &err, "begins with the first");
  go_back(&s, batch, 0);
  refused(ts_get_local_fp32_gradient(s.engine, norm, value, &err), &err, "are this rank's alone");
  update(&s);
  go_back(&s, batch, 1);
  update(&s);
  go_back(&s, batch, 2);
  must(ts_get_full_fp32_gradient(s.engine, norm, value, &err), &err);
  update(&s);
  refused(ts_set_full_fp32_gradient(s.engine, norm, value, &err), &err, "there is no gradient");
  must(ts_get_full_optimizer_state(s.engine, norm, "momentum_buffer", value, &err), &err);
  for (int64_t i = 0; i < batch->samples * batch->length; ++i) {
    ((int32_t *) batch->input[TS_INPUT_LABELS])[i] = TS_IGNORED;
  }
  must(ts_set_gradient_accumulation_boundary(s.engine, true, &err), &err);
  go_back(&s, batch, 0);
  refused(ts_get_full_fp32_gradient(s.engine, norm, value, &err), &err, "no label of this step counts");
  ts_batch_destroy(&batch);
  close_subject(&s);
  s = open_with(world, train_run_llama, "", TS_CAN_TRAIN);
  refused(ts_get_full_fp32_gradient(s.engine, norm, value, &err), &err, "without TS_CAN_STEP");
  close_subject(&s);
  s = open_with(world, train_run_llama, "", TS_CAN_EVALUATE);
  refused(ts_get_full_optimizer_state(s.engine, norm, "exp_avg", value, &err), &err, "nothing is trained");
  must(ts_get_full_fp32_parameter(s.engine, norm, value, &err), &err);
  close_subject(&s);
}

static void test_all_gradients(ts_world *world, ts_world *alone) {
  test_gradients(world, alone, "dp", "", 1);
  test_differences(world, "gradient_clipping=0 zero_optimization.stage=2", "all labels");
  train_run_set_few_labels(true);
  test_differences(world, "gradient_clipping=0 zero_optimization.stage=1", "few labels");
  train_run_set_few_labels(false);
  if (is_stand_in) {
    return;
  }
  test_gradients(world, alone, "dp", "", 3);
  if (ts_world_size(world) > 1) {
    test_gradients(world, alone, "tp 2", "tensor_parallel.autotp_size=2", 1);
    test_gradients(world, alone, "sp 2", "sequence_parallel_size=2", 3);
  }
}

static void test_all_local(ts_world *world) {
  test_local(world, "bf16, stage 1", STAGE(1) BF16 SMALL_PARTS);
  if (is_stand_in) {
    return;
  }
  test_local(world, "stage 0", STAGE(0) SMALL_PARTS);
  test_local(world, "bf16, stage 3", STAGE(3) BF16 SMALL_PARTS);
  if (ts_world_size(world) > 1) {
    test_local(world, "tp 2 with copies, stage 0",
               STAGE(0) SMALL_PARTS "tensor_parallel.autotp_size=2 tensor_parallel.sequence_parallel=false");
    test_local(world, "tp 2, bf16, stage 2", STAGE(2) BF16 SMALL_PARTS "tensor_parallel.autotp_size=2");
    test_local(world, "sp 2, stage 3", STAGE(3) SMALL_PARTS "sequence_parallel_size=2");
  }
}

static void test_set(ts_world *world) {
  for (int stage = is_stand_in ? 3 : 0; stage <= 3; ++stage) {
    char *sets = ts_format(SMALL_PARTS "gradient_clipping=0 zero_optimization.stage=%d", stage);
    char *what = ts_format("gradients at stage %d", stage);
    test_set_gradient(world, sets, what);
    ts_free(sets);
    ts_free(what);
  }
  test_set_gradient(world, SMALL_PARTS "gradient_clipping=0 fp16.enabled=true fp16.initial_scale_power=12",
                    "gradients in fp16");
  test_evaluation(world);
  test_own(world, 0);
  test_own(world, 3);
  test_scatter(world, STAGE(1) BF16, "stage 1");
  test_scatter(world, STAGE(3) SMALL_PARTS, "stage 3");
}

static void test_courses(ts_world *world) {
  int ranks = ts_world_size(world);
  for (size_t i = 0; i < sizeof courses / sizeof *courses; ++i) {
    char *number = ts_format("%zu", i);
    bool fits = ranks % courses[i].ranks == 0 && ranks <= courses[i].most;
    if (fits && tap_wanted(number) && (!is_stand_in || i == 8 || i == 11)) {
      test_course(world, &courses[i]);
    }
    ts_free(number);
  }
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv), *alone = ts_world_alone(world);
  if (tap_wanted("gradients")) {
    test_all_gradients(world, alone);
  }
  test_courses(world);
  if (tap_wanted("local")) {
    test_all_local(world);
  }
  if (tap_wanted("set")) {
    test_set(world);
  }
  if (tap_wanted("rate")) {
    test_rate(world);
    test_schedule(world);
  }
  if (tap_wanted("wrong") && !is_stand_in) {
    test_names(world);
    test_turns(world);
  }
  int status = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&alone);
  ts_world_destroy(&world);
  return status;
}
