/* Kernels on tensors of more than 2^31 elements, as a long sequence has: the results at the end are those of the last
 * rows alone.  What lies before them is zero, and an index that wraps around reads or writes there.
 *
 * Skipped unless TEST_HUGE is set and there is memory: inputs take none but for their ends, outputs up to 8 GiB. */
#include "graph/op.h"
#include "regression/kernel_run.h"
#include "regression/tap.h"

/* Rows: the last, which are compared, lie behind 2^31 elements where rows have COLUMNS of them, and in blocks of their
 * own. */
enum { LAST = 64, ROWS = (1 << 20) + LAST, COLUMNS = 2048, NARROW = 16, HEADS = 16, HEAD = COLUMNS / HEADS };
static const size_t needed = (size_t) 12 << 30;

/* What a tensor is: */
typedef enum kind {
  ABSENT,
  LONG,    /* [1][rows][n]: its end is random */
  KEYS,    /* the same, and not shortened for the call of the last rows */
  ALONG,   /* [1][n][rows] fp32 */
  TABLE,   /* [rows][n] */
  NUMBERS, /* [1][rows] int32: i % 16 at the end, and `before` elsewhere */
  NAMES,   /* [1][LAST] int32: the numbers of the last rows */
  SMALL,   /* [n], or [NARROW][m] where there is an m: random */
  SEED     /* [1] int64 */
} kind;

typedef struct tensor {
  kind is;
  ts_dtype dtype;
  int64_t n, m;
} tensor;

typedef struct huge_case {
  ts_op op;
  const char *what;
  tensor in[RUN_MAX], out[4];
  ts_attr attr;
  int32_t before;
} huge_case;

#define X(width) \
  { LONG, TS_BF16, width, 0 }
#define WIDE(width) \
  { LONG, TS_F32, width, 0 }
#define KEY \
  { KEYS, TS_BF16, HEAD, 0 }
#define ROW(n) \
  { ALONG, TS_F32, n, 0 }
#define STATISTIC \
  { ALONG, TS_F32, 1, 0 }
#define IDS \
  { NUMBERS, TS_I32, 0, 0 }
#define VECTOR(n) \
  { SMALL, TS_BF16, n, 0 }
#define MATRIX(n, m) \
  { SMALL, TS_BF16, n, m }
#define ONE \
  { SEED, TS_I64, 1, 0 }
#define ATTENTION(p)    \
  {                     \
    .attention = {      \
      .heads = HEADS,   \
      .kv_heads = 1,    \
      .head_dim = HEAD, \
      .scale = 0.1f,    \
      .causal = true,   \
      .window = LAST,   \
      .dropout = p,     \
      .name = 3         \
    }                   \
  }

static const double frequency[] = {1, 0.01};
static const int64_t halves[] = {COLUMNS / 2, COLUMNS / 2};
static const ts_interval ends[] = {{COLUMNS - 8, 8}, {0, COLUMNS - 16}};

static const huge_case cases[] = {
    {TS_OP_ADD, "", {X(COLUMNS), X(COLUMNS)}, {X(COLUMNS)}, {{0}}, 0},
    {TS_OP_BIAS, "", {X(COLUMNS), VECTOR(COLUMNS)}, {X(COLUMNS)}, {{0}}, 0},
    {TS_OP_CAST, "", {X(COLUMNS)}, {WIDE(COLUMNS)}, {.cast = {TS_F32}}, 0},
    {TS_OP_GLU_DX, "", {X(COLUMNS), X(COLUMNS), X(COLUMNS)}, {X(COLUMNS), X(COLUMNS)}, {{0}}, 0},
    {TS_OP_DROPOUT, "", {X(COLUMNS), ONE, ONE}, {X(COLUMNS)}, {.dropout = {.p = 0.5f, .name = 7}}, 0},
    {TS_OP_SPLIT, "", {X(COLUMNS)}, {X(COLUMNS / 2), X(COLUMNS / 2)}, {.split = {1, halves}}, 0},
    {TS_OP_CONCAT, "", {X(COLUMNS / 2), X(COLUMNS / 2)}, {X(COLUMNS)}, {.concat = {1}}, 0},
    {TS_OP_TAKE, "", {X(COLUMNS)}, {X(COLUMNS - 8)}, {.take = {2, COLUMNS, 2, ends}}, 0},
    {TS_OP_PLACE, "", {X(COLUMNS - 8)}, {X(COLUMNS)}, {.take = {2, COLUMNS, 2, ends}}, 0},
    {TS_OP_ROPE,
     "",
     {X(COLUMNS), IDS},
     {X(COLUMNS)},
     {.rope = {.head_dim = HEAD, .rotated = 4, .frequency = frequency, .factor = 1}},
     0},
    {TS_OP_RMSNORM, "", {X(COLUMNS), VECTOR(COLUMNS)}, {X(COLUMNS), STATISTIC}, {.norm = {.eps = 1e-5f}}, 0},
    {TS_OP_RMSNORM_DX, "", {X(COLUMNS), X(COLUMNS), VECTOR(COLUMNS), STATISTIC}, {X(COLUMNS)}, {{0}}, 0},
    {TS_OP_RMSNORM_DW,
     "",
     {X(COLUMNS), X(COLUMNS), STATISTIC},
     {{SMALL, TS_F32, COLUMNS, 0}},
     {.norm = {.dtype = TS_F32}},
     0},
    {TS_OP_LAYERNORM,
     "",
     {X(COLUMNS), VECTOR(COLUMNS), VECTOR(COLUMNS)},
     {X(COLUMNS), STATISTIC, STATISTIC},
     {.norm = {.eps = 1e-5f}},
     0},
    {TS_OP_SUM_ROWS, "", {X(COLUMNS)}, {{SMALL, TS_F32, COLUMNS, 0}}, {.sum_rows = {TS_F32}}, 0},
    {TS_OP_EMBEDDING, "many tokens", {MATRIX(COLUMNS, NARROW), IDS}, {X(COLUMNS)}, {{0}}, 0},
    {TS_OP_EMBEDDING,
     "a large table",
     {{TABLE, TS_BF16, COLUMNS, 0}, {NAMES, TS_I32, 0, 0}},
     {{SMALL, TS_BF16, COLUMNS, LAST}},
     {{0}},
     0},
    {TS_OP_EMBEDDING_DW,
     "",
     {X(COLUMNS), IDS},
     {{SMALL, TS_F32, COLUMNS, NARROW}},
     {.embedding = {NARROW, TS_F32, 0}},
     0},
    {TS_OP_MATMUL,
     "a long a",
     {X(COLUMNS), MATRIX(NARROW, COLUMNS)},
     {X(NARROW)},
     {.matmul = {false, false, TS_BF16}},
     0},
    {TS_OP_MATMUL,
     "a long c",
     {X(NARROW), MATRIX(COLUMNS, NARROW)},
     {X(COLUMNS)},
     {.matmul = {false, false, TS_BF16}},
     0},
    {TS_OP_MATMUL,
     "a long sum",
     {X(COLUMNS), X(NARROW)},
     {{SMALL, TS_F32, NARROW, COLUMNS}},
     {.matmul = {true, false, TS_F32}},
     0},
    {TS_OP_HEAD_LOSS_DX,
     "",
     {X(COLUMNS), MATRIX(COLUMNS, NARROW), IDS, {SMALL, TS_F32, 1, 0}},
     {X(COLUMNS), {SMALL, TS_F32, COLUMNS, NARROW}},
     {.head = {TS_F32, 1, 0, 0}},
     -100},
    {TS_OP_ATTENTION,
     "",
     {X(COLUMNS), KEY, KEY, {ABSENT, 0, 0, 0}, ONE, ONE},
     {X(COLUMNS), ROW(HEADS)},
     ATTENTION(0.25f),
     0},
    {TS_OP_ATTENTION_DX,
     "",
     {X(COLUMNS), X(COLUMNS), KEY, KEY, X(COLUMNS), ROW(HEADS)},
     {X(COLUMNS), KEY, KEY},
     ATTENTION(0),
     0},
    {TS_OP_ATTENTION_DELTA, "", {X(COLUMNS), X(COLUMNS)}, {ROW(HEADS)}, ATTENTION(0), 0},
    {TS_OP_ATTENTION_MERGE,
     "",
     {WIDE(COLUMNS), ROW(HEADS), WIDE(COLUMNS), ROW(HEADS)},
     {WIDE(COLUMNS), ROW(HEADS)},
     ATTENTION(0),
     0},
};

static ts_shape shape_of(const tensor *t, int64_t rows) {
  switch (t->is) {
    case LONG: return TS_SHAPE(1, rows, t->n);
    case KEYS: return TS_SHAPE(1, ROWS, t->n);
    case ALONG: return TS_SHAPE(1, t->n, rows);
    case TABLE: return TS_SHAPE(rows, t->n);
    case NUMBERS: return TS_SHAPE(1, rows);
    case NAMES: return TS_SHAPE(1, LAST);
    default: return t->m > 0 ? TS_SHAPE(t->m, t->n) : TS_SHAPE(t->n);
  }
}

/* Where element i of the end of a tensor lies in it, and how many there are; all of one that has no rows. */
static int64_t end_of(const run_tensor *x, kind is, int64_t *count) {
  int64_t last = is == NUMBERS ? LAST : is == LONG || is == KEYS || is == TABLE ? LAST * x->shape.d[x->shape.n - 1] : 0;
  *count = last > 0 ? last : run_count(x);
  return run_count(x) - *count;
}

/* Statistics have their rows last: of each row of these its end. */
static int64_t place_of(const run_tensor *x, kind is, int64_t i) {
  int64_t count, first = end_of(x, is, &count), rows = x->shape.d[x->shape.n - 1];
  return is == ALONG ? i / LAST * rows + rows - LAST + i % LAST : first + i;
}

static int64_t count_compared(const run_tensor *x, kind is) {
  int64_t count;
  end_of(x, is, &count);
  return is == ALONG ? x->shape.d[1] * LAST : count;
}

static double value_of(const huge_case *c, const tensor *t, int64_t i, float random) {
  switch (t->is) {
    case NUMBERS: return (double) (i % NARROW);
    case NAMES: return (double) (ROWS - LAST + i);
    case SEED: return 7;
    default: return t->is == ALONG && c->op != TS_OP_ATTENTION_MERGE ? 1 + fabs(random) : random;
  }
}

/* Zero, which costs no memory, but for the end. */
static run_tensor make(const huge_case *c, const tensor *t, int64_t rows, uint64_t key) {
  run_tensor x = {t->dtype, shape_of(t, rows), NULL};
  if (t->is == ABSENT) {
    return x;
  }
  x.data = ts_map((size_t) run_count(&x) * ts_dtype_size(t->dtype));
  int64_t count = count_compared(&x, t->is);
  float *random = ts_malloc((size_t) count * sizeof *random);
  ts_random_normal(key, 0, count, 1, random);
  for (int64_t i = 0; t->is == NUMBERS && c->before != 0 && i < rows; ++i) {
    run_set(&x, i, c->before);
  }
  for (int64_t i = 0; key > 0 && i < count; ++i) {
    run_set(&x, place_of(&x, t->is, i), value_of(c, t, i, random[i]));
  }
  ts_free(random);
  return x;
}

/* As the last rows of so many are called for. */
static void say_last(run_case *call) {
  const ts_tokens last = {1, {{ROWS - LAST, LAST}}};
  if (call->op == TS_OP_DROPOUT) {
    call->attr.dropout.tokens = last;
  } else if (call->op == TS_OP_EMBEDDING && call->in[0].shape.d[0] == LAST) {
    call->attr.embedding.first = ROWS - LAST;
  } else if (call->op == TS_OP_ATTENTION || call->op == TS_OP_ATTENTION_DX) {
    call->attr.attention.length = ROWS;
    call->attr.attention.queries = last;
  }
}

static run_case call_of(const huge_case *c, int64_t rows) {
  run_case call = {.op = c->op, .attr = c->attr, .threads = 2};
  for (int i = 0; i < RUN_MAX && (c->in[i].is != ABSENT || (i + 1 < RUN_MAX && c->in[i + 1].is != ABSENT)); ++i) {
    call.in[call.n_in++] = make(c, &c->in[i], rows, (uint64_t) i + 1);
  }
  for (int i = 0; i < 4 && c->out[i].is != ABSENT; ++i) {
    call.out[call.n_out++] = c->op == TS_OP_ATTENTION_MERGE ? call.in[i] : make(c, &c->out[i], rows, 0);
  }
  if (rows == LAST) {
    say_last(&call);
  }
  return call;
}

static void release(run_case *call) {
  for (int i = 0; i < call->n_in + call->n_out; ++i) {
    run_tensor *x = i < call->n_in ? &call->in[i] : &call->out[i - call->n_in];
    if (i < call->n_in || call->op != TS_OP_ATTENTION_MERGE) {
      ts_unmap(x->data, run_bytes(x));
    }
  }
}

/* A sum of other blocks may be rounded otherwise. */
static bool same_end(const huge_case *c, const run_case *whole, const run_case *last) {
  for (int i = 0; i < whole->n_out; ++i) {
    const run_tensor *x = &whole->out[i], *y = &last->out[i];
    int64_t count = count_compared(x, c->out[i].is);
    double largest = 0, worst = 0;
    for (int64_t k = 0; k < count; ++k) {
      double value = run_get(y, place_of(y, c->out[i].is, k));
      worst = fmax(worst, fabs(value - run_get(x, place_of(x, c->out[i].is, k))));
      largest = fmax(largest, fabs(value));
    }
    if (!(largest > 0 && worst <= 0.01 * largest)) {
      tap_note("output %d is off by %g of %g", i, worst, largest);
      return false;
    }
  }
  return true;
}

static void check(const huge_case *c) {
  const ts_backend *backend = ts_backend_cpu();
  run_case whole = call_of(c, ROWS), last = call_of(c, LAST);
  int64_t most = 0;
  for (int i = 0; i < whole.n_in + whole.n_out; ++i) {
    const run_tensor *x = i < whole.n_in ? &whole.in[i] : &whole.out[i - whole.n_in];
    most = x->data != NULL && run_count(x) > most ? run_count(x) : most;
  }
  bool clean = run_kernel(backend, &whole);
  clean = run_kernel(backend, &last) && clean;
  tap_ok(clean && most > INT32_MAX && same_end(c, &whole, &last), "%s %s: the end of %.0f elements",
         ts_op_get(c->op)->name, c->what, (double) most);
  release(&whole);
  release(&last);
}

int main(void) {
  if (getenv("TEST_HUGE") == NULL) {
    tap_skip("tensors of 2^31 elements: TEST_HUGE is not set");
    return tap_done();
  }
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const char *name = ts_op_get(cases[i].op)->name;
    if (tap_wanted(name) && ts_machine_available() >= needed) {
      check(&cases[i]);
    } else if (tap_wanted(name)) {
      tap_skip("%s: %zu of %zu GiB are available", name, ts_machine_available() >> 30, needed >> 30);
    }
  }
  tap_ok(ts_memory_live() == 0, "nothing leaked");
  return tap_done();
}
