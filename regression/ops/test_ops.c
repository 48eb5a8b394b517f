/* Every op of ops.def against an fp64 reference, for each instruction set and type: an op without a test fails here.
 * The bits must not depend on the number of threads, nor on where a prior lies. */
#include "backend/cpu/cpu.h"
#include "regression/backends.h"
#include "regression/ops/ops.h"
#include "regression/tap.h"

#include <unistd.h>

/* Properties of the rows of ops.def that matter here. */
static const struct op_properties {
  const char *name;
  int in_place;
  unsigned adds;
} properties[TS_N_OPS] = {
#define BIT(i) (1u << (i))
#define ALL (~0u)
#define OUT(min, max, in_place, adds) in_place, adds
#define OP(ENUM, name, in, out, ...) [TS_OP_##ENUM] = {#name, out},
#include "graph/ops.def"
#undef OP
#undef OUT
#undef ALL
#undef BIT
};

/* Of activations. */
enum { N_TYPES = 3 };
static const ts_dtype types[N_TYPES] = {TS_F32, TS_BF16, TS_F16};

/* Ops that have a test of their own. */
static const struct {
  ts_op op;
  const char *test;
} elsewhere[] = {
    {TS_OP_VIEW, "ops/test_ops_rules.c"},       {TS_OP_PACK, "ops/test_ops_rules.c"},
    {TS_OP_MATMUL, "cpu/test_matmul.c"},        {TS_OP_HEAD_LOSS, "cpu/test_head.c"},
    {TS_OP_HEAD_LOSS_DX, "cpu/test_head.c"},    {TS_OP_HEAD_LOSS_TRAIN, "cpu/test_head.c"},
    {TS_OP_HEAD_STATS, "cpu/test_head.c"},      {TS_OP_ALL_GATHER, "comm/test_comm.c"},
    {TS_OP_REDUCE_SCATTER, "comm/test_comm.c"}, {TS_OP_ALL_REDUCE, "comm/test_comm.c"},
    {TS_OP_SHARE, "ops/test_ops_rules.c"},      {TS_OP_ALL_TO_ALL, "comm/test_comm.c"},
    {TS_OP_EXCHANGE_ROWS, "comm/test_comm.c"},  {TS_OP_SEND, "comm/test_message.c"},
    {TS_OP_RECEIVE, "comm/test_message.c"},     {TS_OP_LOAD, "engine/test_offload.c"},
    {TS_OP_STORE, "engine/test_offload.c"},     {TS_OP_COPY_IN, "cuda/device.sh"},
    {TS_OP_COPY_OUT, "cuda/device.sh"},         {TS_OP_COPY_INTO, "cuda/device.sh"},
};

static const ts_backend instruction_sets[] = {
    {.name = "generic", .kernel = ts_cpu_kernels_generic},
#ifdef TS_HAVE_X86_64
    {.name = "v3", .kernel = ts_cpu_kernels_v3},
    {.name = "v4", .kernel = ts_cpu_kernels_v4},
#endif
};

static bool can_run(const ts_backend *set) {
#ifdef TS_HAVE_X86_64
  if (strcmp(set->name, "v3") == 0) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  }
  if (strcmp(set->name, "v4") == 0) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  }
#endif
  return set != NULL;
}

enum { UNWRITTEN = 0xa5 };

static run_case build(const op_row *row, int variant, ts_dtype dtype, int threads) {
  run_case c = {.op = row->op, .threads = threads};
  row->build(&c, variant, dtype);
  for (int i = 0; i < properties[row->op].in_place && i < c.n_out; ++i) { /* takes its input's memory */
    ts_free(c.out[i].data);
    c.out[i].data = c.in[i].data;
  }
  for (int i = properties[row->op].in_place; i < c.n_out; ++i) { /* what is not written shows */
    memset(c.out[i].data, UNWRITTEN, (size_t) run_count(&c.out[i]) * ts_dtype_size(c.out[i].dtype));
  }
  return c;
}

static void destroy(run_case *c) {
  for (int i = 0; i < properties[c->op].in_place && i < c->n_out; ++i) {
    c->out[i].data = NULL;
  }
  run_free(c);
}

/* A copy with all floats in fp64 and outputs of its own. */
static run_case in_doubles(const run_case *c) {
  run_case wide = *c;
  for (int i = 0; i < c->n_in + c->n_out; ++i) {
    const run_tensor *from = i < c->n_in ? &c->in[i] : &c->out[i - c->n_in];
    run_tensor *to = i < c->n_in ? &wide.in[i] : &wide.out[i - c->n_in];
    if (from->data != NULL) {
      *to = run_new(ts_dtype_is_float(from->dtype) ? TS_F64 : from->dtype, from->shape);
      if (to->dtype == TS_F64) {
        run_get_all(from, to->data);
      } else {
        memcpy(to->data, from->data, (size_t) run_count(from) * ts_dtype_size(from->dtype));
      }
    }
  }
  return wide;
}

static double largest_of(const run_tensor *x) {
  const int64_t count = run_count(x);
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    double value = fabs(run_get(x, i));
    largest = value > largest && isfinite(value) ? value : largest;
  }
  return largest;
}

/* The largest error over the allowed one: at most 1 is right; of infinity only itself is.  Subnormal numbers of fp16
 * are 2^-24 apart. */
static double worst_error(const run_tensor *y, const run_tensor *reference, double slack) {
  const int64_t count = run_count(y);
  const double rounding = run_rounding(y->dtype) * (1 + 1e-9), least = y->dtype == TS_F16 ? 0x1p-25 : 0;
  double worst = 0;
  for (int64_t i = 0; i < count; ++i) {
    double r = run_get(reference, i), got = run_get(y, i);
    if (got != r && !(isnan(got) && isnan(r))) {
      double error = fabs(got - r), allowed = rounding * fabs(r) + slack + least;
      worst = fmax(worst, allowed > 0 && error >= 0 && isfinite(r) ? error / allowed : INFINITY);
    }
  }
  return worst;
}

/* The size of what is rounded on the way: of the first input, and in the gradient of a norm rstd times as much, of
 * which two nearly cancel in a row of one element; of row_dots products of three, whose sum may be far smaller. */
static double size_of(const run_case *wide) {
  if (wide->op == TS_OP_ROW_DOTS) {
    return largest_of(&wide->in[0]) * largest_of(&wide->in[1]) * (1 + largest_of(&wide->in[2]));
  }
  int rstd = wide->op == TS_OP_RMSNORM_DX ? 3 : wide->op == TS_OP_LAYERNORM_DX ? 4 : -1;
  return largest_of(&wide->in[0]) * (rstd < 0 ? 1 : fmax(1, largest_of(&wide->in[rstd])));
}

/* Elements of output i that a kernel writes: of rows that there are at run time (ts_node_extent), or all. */
static int64_t written_count(const run_case *c, int i) {
  int at = ts_node_extent(&(ts_node){.op = c->op, .n_in = c->n_in});
  const ts_shape *shape = &c->out[i].shape;
  return at < 0 ? run_count(&c->out[i])
                : (int64_t) run_get(&c->in[at], c->in[at].shape.d[0] - 1) * shape->d[shape->n - 1];
}

/* Is what lies behind them as it was? */
static bool leaves_rest(const run_case *c) {
  bool left = true;
  for (int i = 0; i < c->n_out; ++i) {
    const unsigned char *bytes = c->out[i].data;
    size_t size = ts_dtype_size(c->out[i].dtype), end = (size_t) run_count(&c->out[i]) * size;
    for (size_t at = (size_t) written_count(c, i) * size; at < end; ++at) {
      left = left && bytes[at] == UNWRITTEN;
    }
  }
  return left;
}

static void forget_rest(const run_case *c, const run_case *wide) {
  for (int i = 0; i < c->n_out; ++i) {
    for (int64_t at = written_count(c, i); at < run_count(&c->out[i]); ++at) {
      run_set((run_tensor *) &c->out[i], at, 0);
      run_set((run_tensor *) &wide->out[i], at, 0);
    }
  }
}

static double worst_output(const run_case *c, const run_case *wide, double tolerance) {
  double worst = 0, from = size_of(wide);
  forget_rest(c, wide);
  for (int i = 0; i < c->n_out; ++i) {
    double slack = tolerance * 0x1p-24 * fmax(from, largest_of(&wide->out[i]));
    worst = fmax(worst, worst_error(&c->out[i], &wide->out[i], slack));
  }
  return worst;
}

/* In bf16 blocks of attention round their weights, each by 2^-9 of itself: o by 2^-9 of the largest value at most; of
 * gradients, which are sums of as many, the weights' gradients too.  An MLP rounds what is inner, in its gradient three
 * times one after the other, and dx between the gate's half and up's: 2^-7 of the largest.  In fp16 the same by 2^-12,
 * as it has three bits more.  cuBLASLt's tanh (13.1, seen on an H100) is off by a unit of the type of the result, and
 * GELU's slope is rounded before it multiplies: 0.5 (1 + t) x is off by a rounding of x, the other by two of the
 * product. */
static double tolerance_of(const ts_backend *set, const op_row *row, ts_dtype dtype) {
  if (set->device != NULL && (row->op == TS_OP_MATMUL_GELU || row->op == TS_OP_MATMUL_DGELU)) {
    return 4 * run_rounding(dtype == TS_F32 ? TS_BF16 : dtype) / 0x1p-23;
  }
  bool rounds = row->op == TS_OP_ATTENTION || row->op == TS_OP_ATTENTION_CACHED;
  bool more = row->op == TS_OP_ATTENTION_DX || row->op == TS_OP_MLP || row->op == TS_OP_MLP_DX;
  double unit = run_rounding(dtype) / 0x1p-23;
  return dtype == TS_F32 ? row->tolerance : rounds ? unit : more ? 4 * unit : row->tolerance;
}

/* Made of other ops' kernels, which no one instruction set has all of. */
static bool is_composed(ts_op op) {
  return op == TS_OP_MLP || op == TS_OP_MLP_DX || op == TS_OP_ORTHOGONALIZE;
}

/* Of ops with many shapes each shape has some of the types and each type some shapes, by a row without a period: fp32
 * and fp16, or bf16; on the stand-in one of the three, of what is made of other kernels too, and of ops with some
 * shapes two.  TEST_OPS_ALL is for all of them. */
static bool is_in_turn(const op_row *row, int variant, ts_dtype dtype) {
  bool many = row->variants > 2 * OPS_SHAPES;
  if (getenv("TEST_OPS_ALL") != NULL) {
    return true;
  }
#ifdef STAND_IN
  int type = dtype == TS_F32 ? 0 : dtype == TS_BF16 ? 1 : 2;
  int turn = (variant + variant / 3 + variant / 9 + variant / 27) % 3; /* the sum of its digits to the base 3 */
  many = many || is_composed(row->op);
  return many ? turn == type : row->variants < OPS_SHAPES || turn != type;
#else
  return !many || (__builtin_popcount((unsigned) variant) + (dtype == TS_BF16)) % 2 == 0;
#endif
}

/* On how many threads a shape is tried again: from this number to that one, 2 or 3 in turn; a device has none and does
 * the same once more, which every other shape does on the stand-in.  TEST_OPS_ALL is for both. */
static ts_interval threads_of(const ts_backend *set, int variant, ts_dtype dtype) {
  const bool all = getenv("TEST_OPS_ALL") != NULL;
  const int turn = (variant + (int) dtype) % 2;
#ifdef STAND_IN
  (void) set;
  return (ts_interval){2, all || turn == 0 ? 1 : 0};
#else
  return set->device != NULL ? (ts_interval){2, 1} : all ? (ts_interval){2, 2} : (ts_interval){2 + turn, 1};
#endif
}

/* Run one variant on one thread against the reference, then on more threads against the first run. */
static double check_values(const ts_backend *set, const op_row *row, int variant, ts_dtype dtype, bool *same,
                           bool *clean) {
  run_case one = build(row, variant, dtype, 1), wide = in_doubles(&one);
  row->reference(&wide);
  *clean = run_kernel(set, &one) && leaves_rest(&one) && *clean;
  double worst = worst_output(&one, &wide, tolerance_of(set, row, dtype));
  const ts_interval more_threads = threads_of(set, variant, dtype);
  for (int i = 0; i < more_threads.length; ++i) {
    run_case more = build(row, variant, dtype, (int) more_threads.begin + i);
    *clean = run_kernel(set, &more) && *clean;
    forget_rest(&more, &wide);
    for (int k = 0; k < one.n_out; ++k) {
      *same = run_same(&one.out[k], more.out[k].data) && *same;
    }
    destroy(&more);
  }
  run_free(&wide);
  destroy(&one);
  return worst;
}

/* beta prior + value for a prior elsewhere and in place, beta absent, 0 and 0.5; with 0 the prior is NaN. */
static double check_prior(const ts_backend *set, const op_row *row, int variant, ts_dtype dtype, int beta,
                          bool in_place) {
  static const float betas[] = {1.0f, 0.0f, 0.5f};
  run_case c = build(row, variant, dtype, 2), wide = in_doubles(&c);
  run_tensor prior[RUN_MAX];
  row->reference(&wide);
  for (int i = 0; i < c.n_out; ++i) {
    prior[i] = (run_tensor){0};
    if ((properties[row->op].adds >> i & 1) == 0) {
      continue;
    }
    prior[i] = run_random(c.out[i].dtype, c.out[i].shape, (uint64_t) (900 + i), 1.0);
    for (int64_t j = 0; j < run_count(&prior[i]); ++j) {
      run_set(&prior[i], j, betas[beta] == 0 ? NAN : run_get(&prior[i], j));
      ops_out(&wide, i)[j] += betas[beta] == 0 ? 0 : betas[beta] * run_get(&prior[i], j);
    }
    if (in_place) {
      memcpy(c.out[i].data, prior[i].data, (size_t) run_count(&prior[i]) * ts_dtype_size(prior[i].dtype));
    }
    c.prior[i] = in_place ? c.out[i].data : prior[i].data;
  }
  c.beta = beta == 0 ? NULL : &betas[beta];
  run_kernel(set, &c);
  double worst = worst_output(&c, &wide, tolerance_of(set, row, dtype) + 1); /* one more addition */
  for (int i = 0; i < c.n_out; ++i) {
    ts_free(prior[i].data);
  }
  run_free(&wide);
  destroy(&c);
  return worst;
}

/* The op's own rule gives the outputs the types and shapes that the kernel was tried with. */
static void check_shapes(const op_row *row) {
  bool agree = true;
  for (int k = 0; k < N_TYPES * row->variants; ++k) {
    run_case c = build(row, k / N_TYPES, types[k % N_TYPES], 1);
    ts_graph *graph = ts_graph_create();
    ts_tid in[RUN_MAX];
    for (int i = 0; i < c.n_in; ++i) {
      char *name = ts_format("in%d", i);
      bool absent = c.in[i].data == NULL;
      in[i] = absent ? TS_NONE : ts_graph_leaf(graph, name, TS_ROLE_INPUT, c.in[i].dtype, c.in[i].shape, -1);
      ts_free(name);
    }
    ts_tid out = ts_graph_add(
        ts_graph_site(graph),
        &(ts_node){.op = row->op, .name = "node", .n_in = c.n_in, .in = in, .n_out = c.n_out, .attr = c.attr});
    for (int i = 0; i < c.n_out; ++i) {
      const ts_tensor *tensor = &graph->tensor[out + i];
      agree = agree && tensor->dtype == c.out[i].dtype && ts_shape_equal(&tensor->shape, &c.out[i].shape);
    }
    ts_graph_destroy(&graph);
    destroy(&c);
  }
  tap_ok(agree, "%s: the shape rule gives what the kernel writes", properties[row->op].name);
}

/* The stand-in is slow, and test_attention has attention's gradient. */
static bool is_left_out(ts_op op) {
#ifdef STAND_IN
  return op == TS_OP_ATTENTION_DX && getenv("TEST_OPS_ALL") == NULL;
#else
  (void) op;
  return false;
#endif
}

/* Of the factors of priors a shape has one in turn, elsewhere and in place, where there are shapes for all. */
static bool has_prior(const op_row *row, int variant, ts_dtype dtype, int k) {
  bool all = row->variants < OPS_SHAPES || getenv("TEST_OPS_ALL") != NULL;
  return properties[row->op].adds != 0 && (all || (variant + variant / 3 + (int) dtype) % 3 == k % 3);
}

static void check_type(const ts_backend *set, const op_row *row, ts_dtype dtype) {
  const char *name = properties[row->op].name;
  double worst = 0, worst_prior = 0;
  bool same = true, clean = true;
  for (int variant = 0; variant < row->variants; ++variant) {
    if (!is_in_turn(row, variant, dtype)) {
      continue;
    }
    worst = fmax(worst, check_values(set, row, variant, dtype, &same, &clean));
    for (int k = 0; k < 6; ++k) {
      if (has_prior(row, variant, dtype, k)) {
        worst_prior = fmax(worst_prior, check_prior(set, row, variant, dtype, k % 3, k / 3));
      }
    }
  }
  tap_ok(worst <= 1, "%s %s %s: values, error %.2f of the allowed", name, set->name, ts_dtype_name(dtype), worst);
  tap_ok(same, "%s %s %s: the same bits on 1 and more threads", name, set->name, ts_dtype_name(dtype));
  tap_ok(clean, "%s %s %s: stays inside its workspace", name, set->name, ts_dtype_name(dtype));
  if (properties[row->op].adds != 0) {
    tap_ok(worst_prior <= 1, "%s %s %s: adds to a prior, error %.2f of the allowed", name, set->name,
           ts_dtype_name(dtype), worst_prior);
  }
}

static void check_row(const ts_backend *set, const op_row *row) {
  for (int i = 0; i < N_TYPES; ++i) {
    check_type(set, row, types[i]);
  }
}

/* The row of an op with calls to make, or NULL. */
static const op_row *find(ts_op op) {
  const op_row *row = ops_find(op);
  return row != NULL && row->build != NULL ? row : NULL;
}

/* The file that tests an op which has no row here, or NULL. */
static const char *test_of(ts_op op) {
  for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; ++i) {
    if (elsewhere[i].op == op) {
      return elsewhere[i].test;
    }
  }
  return NULL;
}

static void check_coverage(ts_op op) {
  const char *test = test_of(op);
  bool here = find(op) != NULL;
  if (test == NULL) {
    tap_ok(here, "%s has a test here", properties[op].name);
    return;
  }
  char *path = ts_format("regression/%s", test);
  tap_ok(!here && access(tap_path(path), R_OK) == 0, "%s is tested by %s", properties[op].name, test);
  ts_free(path);
}

/* Kept elements of 600 x 1000: within five standard deviations of (1 - p) n, and another seed keeps others. */
static void check_dropout(const ts_backend *set) {
  enum { COUNT = 600 * 1000 };
  run_case c = {.op = TS_OP_DROPOUT, .n_in = 3, .n_out = 1, .threads = 2};
  c.in[0] = run_new(TS_F32, TS_SHAPE(6, 100, 1000));
  c.in[1] = run_new(TS_I64, TS_SHAPE(1));
  c.in[2] = run_new(TS_I64, TS_SHAPE(6));
  c.out[0] = run_new(TS_F32, c.in[0].shape);
  c.attr.dropout.p = 0.1f;
  c.attr.dropout.name = 1;
  int64_t kept = 0, moved = 0;
  char *first = ts_malloc(COUNT);
  for (int64_t i = 0; i < COUNT; ++i) {
    run_set(&c.in[0], i, 1.0);
  }
  for (int seed = 0; seed < 2; ++seed) {
    run_set(&c.in[1], 0, seed);
    for (int b = 0; b < 6; ++b) {
      run_set(&c.in[2], b, b);
    }
    run_kernel(set, &c);
    for (int64_t i = 0; i < COUNT; ++i) {
      char keep = run_get(&c.out[0], i) != 0;
      kept += keep;
      moved += seed == 1 && keep != first[i];
      first[i] = keep;
    }
  }
  double spread = 5 * sqrt(0.09 * 2 * COUNT);
  tap_ok(fabs((double) kept - 1.8 * COUNT) < spread, "dropout %s: keeps 90 %%", set->name);
  tap_ok(fabs((double) moved - 0.18 * COUNT) < spread, "dropout %s: another seed keeps others", set->name);
  ts_free(first);
  run_free(&c);
}

/* Products with an epilogue are only where a backend has them (pass/epilogue); of other ops no pass asks. */
static bool is_optional(ts_op op) {
  return op == TS_OP_MATMUL_GELU || op == TS_OP_MATMUL_DGELU;
}

static bool has_products(const ts_backend *set) {
  return set->kernel(TS_OP_MATMUL)->run != NULL;
}

/* Gradients of a weight over tiles of a row, each adding 1: in bf16 sums would stay at 256, in fp16 at 2048. */
static void check_sums_of(const ts_backend *set, ts_dtype dtype, int tiles) {
  run_case c = {.op = TS_OP_MLP_DX, .n_in = 8, .n_out = 3, .threads = 2};
  c.attr.mlp = (typeof(c.attr.mlp)){.kind = TS_ACTIVATION_RELU, .rows = 1, .dtype = dtype};
  static const int inputs[] = {0, 1 + TS_MLP_X, 1 + TS_MLP_UP, 1 + TS_MLP_DOWN};
  for (int i = 0; i < 4; ++i) {
    run_tensor x = run_new(dtype, i < 2 ? TS_SHAPE(1, tiles, 1) : TS_SHAPE(1, 1));
    for (int64_t k = 0; k < run_count(&x); ++k) {
      run_set(&x, k, 1);
    }
    c.in[inputs[i]] = x;
  }
  for (int i = 0; i < 3; ++i) {
    c.out[i] = run_new(dtype, c.in[inputs[1 + i]].shape);
  }
  run_kernel(set, &c);
  tap_ok(run_get(&c.out[1], 0) == tiles && run_get(&c.out[2], 0) == tiles,
         "mlp_dx %s %s: tiles are summed in fp32 (%g, %g)", set->name, ts_dtype_name(dtype), run_get(&c.out[1], 0),
         run_get(&c.out[2], 0));
  run_free(&c);
}

static void check_tile_sums(const ts_backend *set) {
  check_sums_of(set, TS_BF16, 1000);
  check_sums_of(set, TS_F16, 4000);
}

static void check_composed(void) {
  for (int op = 0; op < TS_N_OPS; ++op) {
    if (is_composed((ts_op) op) && tap_wanted(properties[op].name)) {
      check_row(ts_backend_cpu(), find((ts_op) op));
    }
  }
  if (tap_wanted("mlp_dx")) {
    check_tile_sums(ts_backend_cpu());
  }
  if (tap_wanted("orthogonalize")) {
    ops_check_half_products(ts_backend_cpu());
  }
}

/* One input of 17 rows of 35 numbers, and others where the op has them: of each what is given. */
static run_case of_numbers(ts_op op, int n_in, const double *number, ts_shape out, ts_dtype dtype) {
  run_case c = {.op = op, .n_in = n_in, .n_out = 1, .threads = 2};
  for (int i = 0; i < n_in; ++i) {
    c.in[i] = run_new(TS_F16, TS_SHAPE(1, 17, 35));
    for (int64_t j = 0; j < run_count(&c.in[i]); ++j) {
      run_set(&c.in[i], j, number[i]);
    }
  }
  c.out[0] = run_new(dtype, out);
  return c;
}

static void check_all_are(const ts_backend *set, run_case *c, double expected) {
  bool clean = run_kernel(set, c), good = true;
  for (int64_t i = 0; i < run_count(&c->out[0]); ++i) {
    double got = run_get(&c->out[0], i);
    good = good && (got == expected || (isnan(got) && isnan(expected)));
  }
  tap_ok(good && clean, "%s %s fp16: all are %g, as %g should be", properties[c->op].name, set->name,
         run_get(&c->out[0], 0), expected);
  run_free(c);
}

/* What is beyond 65504 becomes infinite with its sign when it is stored in fp16, and only then: a mean square of 10^9
 * is none; what an infinity or NaN goes into is no number. */
static void check_range(const ts_backend *set) {
  static const double sums[][3] = {
      {40000, 25504, 65504}, {40000, 25520, INFINITY},    {-60000, -60000, -INFINITY},
      {60000, -60000, 0},    {INFINITY, -1, INFINITY},    {INFINITY, -INFINITY, NAN},
      {NAN, 1, NAN},         {0x1p-24, 0x1p-24, 0x1p-23}, {0x1p-14, -0x1p-24, 1023 * 0x1p-24}};
  ts_shape whole = TS_SHAPE(1, 17, 35), row = TS_SHAPE(35);
  for (size_t i = 0; i < sizeof sums / sizeof *sums; ++i) {
    run_case c = of_numbers(TS_OP_ADD, 2, sums[i], whole, TS_F16);
    check_all_are(set, &c, sums[i][2]);
  }
  for (int i = 0; i < 2; ++i) {
    run_case c = of_numbers(TS_OP_SUM_ROWS, 1, (double[]){-6000}, row, i == 0 ? TS_F16 : TS_F32);
    c.attr.sum_rows.dtype = c.out[0].dtype;
    check_all_are(set, &c, i == 0 ? -INFINITY : -102000);
    c = of_numbers(TS_OP_SCALE, 1, (double[]){50000}, whole, TS_F16);
    c.attr.scale.by = i == 0 ? 2.0f : 0x1p-42f;
    check_all_are(set, &c, i == 0 ? INFINITY : 0);
  }
  run_case c = of_numbers(TS_OP_SUM_SQUARES, 1, (double[]){60000}, TS_SHAPE(1), TS_F64);
  ts_range all = {0, 17 * 35, 0, 0, 0};
  c.in[0].shape = TS_SHAPE(17 * 35);
  c.attr.segments.range = &all;
  c.attr.segments.n = 1;
  check_all_are(set, &c, 17 * 35 * 3.6e9);
  c = of_numbers(TS_OP_CAST, 1, (double[]){-INFINITY}, whole, TS_F32);
  c.attr.cast.dtype = TS_F32;
  check_all_are(set, &c, -INFINITY);
}

/* All ops of a set; a device need not have an op whose row in `elsewhere` names its test. */
static void check_set(const ts_backend *set) {
  for (int op = 0; op < TS_N_OPS; ++op) {
    const op_row *row = find((ts_op) op);
    bool lacks = set->kernel((ts_op) op)->run == NULL;
    if (lacks && is_composed((ts_op) op) && !has_products(set)) {
      continue;
    }
    if (row != NULL && lacks && is_optional((ts_op) op)) {
      tap_skip("%s: %s has no kernel for it", properties[op].name, set->name);
    } else if (row != NULL && lacks) {
      tap_ok(false, "%s: %s has no kernel for it", properties[op].name, set->name);
    } else if (row != NULL && tap_wanted(properties[op].name) && !is_left_out((ts_op) op)) {
      check_row(set, row);
    }
  }
  check_range(set);
  if (tap_wanted("update_elements")) {
    ops_check_optimizers(set);
    ops_check_states(set);
  }
  if (tap_wanted("dropout")) {
    check_dropout(set);
  }
  if (tap_wanted("mlp_dx") && has_products(set)) {
    check_tile_sums(set);
  }
  if (tap_wanted("orthogonalize") && has_products(set)) {
    ops_check_half_products(set);
  }
}

static void check_processors(void) {
  for (int op = 0; op < TS_N_OPS; ++op) {
    check_coverage((ts_op) op);
    if (find((ts_op) op) != NULL) {
      check_shapes(find((ts_op) op));
    }
  }
  for (size_t s = 0; s < sizeof instruction_sets / sizeof *instruction_sets; ++s) {
    if (can_run(&instruction_sets[s])) {
      check_set(&instruction_sets[s]);
    } else {
      tap_skip("%s: not on this processor", instruction_sets[s].name);
    }
  }
  check_composed();
}

int main(void) {
#ifdef RUN_CUDA
  const ts_backend *backend = test_backend();
  if (backend != NULL) {
    check_set(backend);
    test_backend_close();
  }
  (void) check_processors;
#else
  check_processors();
#endif
  tap_ok(ts_memory_live() == 0, "nothing leaked");
  return tap_done();
}
