/* What optimizers do with whole parameters: LAMB's ratios, Muon's matrices. */
#include "graph/op.h"
#include "regression/ops/ops.h"
#include "regression/tap.h"

static void scalar_input(run_case *c, ts_dtype dtype, double value) {
  c->in[c->n_in] = run_new(dtype, TS_SHAPE(1));
  run_set(&c->in[c->n_in++], 0, value);
}

/* ---- ratios: ordinary, of nothing, below the least, above the most ---- */

static void build_trust_ratios(run_case *c, int variant, ts_dtype dtype) {
  (void) dtype;
  enum { N = 300 };
  static const float squares[][2] = {{4, 9}, {0, 2}, {2, 0}, {1e-6f, 1}, {1e4f, 1}, {0, 0}};
  c->in[0] = run_new(TS_F32, TS_SHAPE(2 * N));
  c->in[1] = run_new(TS_F64, TS_SHAPE(2));
  c->n_in = 2;
  for (int i = 0; i < N; ++i) {
    run_set(&c->in[0], i, (double) squares[i % 6][0] * (1 + i));
    run_set(&c->in[0], N + i, (double) squares[i % 6][1] * (1 + i));
  }
  run_set(&c->in[1], 0, 0.19);
  run_set(&c->in[1], 1, 0.002);
  c->attr.ratios = (typeof(c->attr.ratios)){0.01f, 10, variant == 0};
  ops_output(c, TS_F32, TS_SHAPE(N));
}

static void trust_ratios(run_case *c) {
  int64_t n = ops_count(c, 0) / 2;
  for (int64_t i = 0; i < n; ++i) {
    double p = sqrt(ops_in(c, 0)[i]), u = sqrt(ops_in(c, 0)[n + i]), ratio = p == 0 || u == 0 ? 1 : p / u;
    ratio = p == 0 || u == 0 ? 1 : fmin(fmax(ratio, (double) c->attr.ratios.least), (double) c->attr.ratios.most);
    ops_out(c, 0)[i] = ratio * (c->attr.ratios.bias_correction ? sqrt(ops_in(c, 1)[1]) / ops_in(c, 1)[0] : 1);
  }
}

/* ---- parts of Newton-Schulz ---- */

static void build_over_norm(run_case *c, int variant, ts_dtype dtype) {
  static const ts_dtype to[] = {TS_F32, TS_BF16, TS_F16};
  ops_input(c, 0, dtype, ops_shape(variant % 4), 1.0);
  c->n_in = 1;
  scalar_input(c, TS_F64, variant % 2 == 0 ? 12345.0 : 0.25);
  c->attr.over_norm = (typeof(c->attr.over_norm)){1e-7f, to[variant % 3]};
  ops_output(c, to[variant % 3], c->in[0].shape);
}

static void over_norm(run_case *c) {
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    ops_out(c, 0)[i] = ops_in(c, 0)[i] / (sqrt(ops_in(c, 1)[0]) + 1e-7);
  }
}

static void build_add_diagonal(run_case *c, int variant, ts_dtype dtype) {
  static const int64_t sizes[] = {1, 37, 1025};
  ops_input(c, 0, dtype, TS_SHAPE(sizes[variant], sizes[variant]), 1.0);
  c->attr.diagonal.by = 3.4445f;
  ops_output(c, dtype, c->in[0].shape);
}

static void add_diagonal(run_case *c) {
  int64_t n = ops_columns(c, 0);
  for (int64_t i = 0; i < n * n; ++i) {
    ops_out(c, 0)[i] = ops_in(c, 0)[i] + (i / n == i % n ? (double) c->attr.diagonal.by : 0);
  }
}

/* ---- the whole ---- */

enum { EXTENT = 6000 };

/* A wide, a tall and a square one; a stack; one in three pieces side by side, of which one is a column; zeros. */
static void build_orthogonalize(run_case *c, int variant, ts_dtype dtype) {
  static const ts_matrix matrices[] = {{0, 5, 24, 1, 0},    {128, 24, 5, 1, 0},   {250, 12, 12, 1, 0},
                                       {400, 8, 20, 3, 0},  {900, 10, 7, 1, 0},   {970, 10, 1, 1, 1},
                                       {980, 10, 9, 1, 1},  {1200, 40, 60, 1, 0}, {3600, 1, 30, 1, 0},
                                       {3700, 30, 1, 1, 0}, {4000, 6, 9, 1, 0}};
  ops_input(c, 0, dtype, TS_SHAPE(EXTENT), 1.0);
  for (int64_t i = 4000; i < EXTENT; ++i) {
    run_set(&c->in[0], i, 0);
  }
  c->attr.orthogonalize =
      (typeof(c->attr.orthogonalize)){matrices, sizeof matrices / sizeof *matrices, TS_F32, variant == 1};
  ops_output(c, dtype, c->in[0].shape);
}

/* a + b, and a product of an [m][k] and a [k][n]; with `turned` b is [n][k]. */
static void product(double *to, const double *a, const double *b, int64_t m, int64_t n, int64_t k, bool turned) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += a[i * k + l] * b[turned ? j * k + l : l * n + j];
      }
      to[i * n + j] = sum;
    }
  }
}

/* Five steps on x [m][n], m <= n or not: A = x x^T. */
static void newton_schulz(double *x, int64_t m, int64_t n) {
  double *a = calloc((size_t) (2 * m * m + m * n), sizeof *a), *square = a + m * m, *next = square + m * m, norm = 0;
  for (int64_t i = 0; i < m * n; ++i) {
    norm += x[i] * x[i];
  }
  for (int64_t i = 0; i < m * n; ++i) {
    x[i] /= sqrt(norm) + 1e-7;
  }
  for (int step = 0; step < 5; ++step) {
    product(a, x, x, m, m, n, true);
    product(square, a, a, m, m, m, false);
    for (int64_t i = 0; i < m * m; ++i) {
      a[i] = -4.7750 * a[i] + 2.0315 * square[i];
    }
    product(next, a, x, m, n, m, false);
    for (int64_t i = 0; i < m * n; ++i) {
      x[i] = 3.4445 * x[i] + next[i];
    }
  }
  double by = m > n ? sqrt((double) m / (double) n) : 1;
  for (int64_t i = 0; i < m * n; ++i) {
    x[i] *= by;
  }
  free(a);
}

/* Matrix i, and those that join it, from the tensor or to it. */
static void move_matrix(const ts_attr *attr, int i, double *tensor, double *x, int64_t columns, bool back) {
  int64_t before = 0;
  for (int k = i; k < attr->orthogonalize.n && (k == i || attr->orthogonalize.matrix[k].joins); ++k) {
    const ts_matrix *m = &attr->orthogonalize.matrix[k];
    for (int64_t e = 0; e < m->rows * m->columns; ++e) {
      double *whole = &x[e / m->columns * columns + before + e % m->columns], *piece = &tensor[m->offset + e];
      *(back ? piece : whole) = *(back ? whole : piece);
    }
    before += m->columns;
  }
}

static void orthogonalize(run_case *c) {
  const ts_attr *attr = &c->attr;
  double *tensor = ops_out(c, 0), *x = calloc(EXTENT, sizeof *x);
  memcpy(tensor, ops_in(c, 0), EXTENT * sizeof *tensor);
  for (int i = 0; i < attr->orthogonalize.n; ++i) {
    const ts_matrix *m = &attr->orthogonalize.matrix[i];
    int64_t columns = m->columns;
    for (int k = i + 1; k < attr->orthogonalize.n && attr->orthogonalize.matrix[k].joins; ++k) {
      columns += attr->orthogonalize.matrix[k].columns;
    }
    for (int64_t s = 0; s < m->count && !m->joins && columns == m->columns; ++s) {
      newton_schulz(tensor + m->offset + s * m->rows * columns, m->rows, columns);
    }
    if (!m->joins && columns > m->columns) {
      move_matrix(attr, i, tensor, x, columns, false);
      newton_schulz(x, m->rows, columns);
      move_matrix(attr, i, tensor, x, columns, true);
    }
  }
  free(x);
}

/* Half types round what five steps make larger: DeepSpeed's own two differ by as much.  Measured: 0.2 % of the norm in
 * fp16, 1.4 % in bf16. */
void ops_check_half_products(const ts_backend *backend) {
  for (int variant = 0; variant < 2; ++variant) {
    run_case c = {.op = TS_OP_ORTHOGONALIZE, .threads = 1}, exact = {.op = TS_OP_ORTHOGONALIZE};
    build_orthogonalize(&c, variant, TS_F32);
    build_orthogonalize(&exact, variant, TS_F64);
    c.attr.orthogonalize.dtype = variant == 1 ? TS_F16 : TS_BF16;
    ts_free(c.out[0].data);
    c.out[0] = c.in[0];
    c.n_in = c.n_out = exact.n_in = exact.n_out = 1;
    orthogonalize(&exact);
    run_kernel(backend, &c);
    double difference = 0, all = 0;
    for (int64_t i = 0; i < EXTENT; ++i) {
      double is = run_get(&c.out[0], i), should = ops_out(&exact, 0)[i];
      difference += (is - should) * (is - should);
      all += should * should;
    }
    tap_ok(sqrt(difference / all) < (variant == 1 ? 0.006 : 0.03), "%s: orthogonalize, %s in %s: %.1e from fp64",
           backend->name, variant == 1 ? "gram" : "standard", ts_dtype_name(c.attr.orthogonalize.dtype),
           sqrt(difference / all));
    c.out[0].data = NULL; /* the same */
    run_free(&exact);
    run_free(&c);
  }
}

/* Squares and roots of ratios: a handful of roundings.  What a step makes larger it makes so five times: 3.4^5 = 480
 * roundings at most, of sums of up to 60. */
const op_row ops_matrices[] = {
    {TS_OP_TRUST_RATIOS, 2, build_trust_ratios, trust_ratios, 4},
    {TS_OP_OVER_NORM, 6, build_over_norm, over_norm, 2},
    {TS_OP_ADD_DIAGONAL, 3, build_add_diagonal, add_diagonal, 1},
    {TS_OP_ORTHOGONALIZE, 2, build_orthogonalize, orthogonalize, 1000},
    {.reference = NULL},
};
