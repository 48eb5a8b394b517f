#include "regression/ops/ops.h"

static const float epsilon = 1e-5f;

/* Also rows of whole vectors: short ones, longer ones, and one that is too long for a GPU's registers; and heads. */
static const ts_shape more_shapes[] = {
    {3, {2, 3, 768}},     {3, {1, 3, 4096}},  {3, {1, 5, 1536}},   {3, {1, 3, 6144}},
    {3, {1, 2, 16512}},   {4, {2, 5, 3, 6}},  {4, {1, 37, 5, 64}}, {4, {2, 9, 3, 128}},
    {4, {1, 11, 3, 256}}, {4, {3, 1, 7, 32}}, {4, {1, 3, 2, 8}},
};
enum { SHAPES = OPS_SHAPES + sizeof more_shapes / sizeof *more_shapes };
static ts_shape shape_of(int variant) {
  return variant < OPS_SHAPES ? ops_shape(variant) : more_shapes[variant - OPS_SHAPES];
}

static ts_shape columns_of(ts_shape shape) {
  return TS_SHAPE(shape.d[shape.n - 1]);
}

static double mean_of(const double *x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += x[i];
  }
  return sum / (double) n;
}

static double mean_square_of(const double *x, int64_t n, double mean) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += (x[i] - mean) * (x[i] - mean);
  }
  return sum / (double) n;
}

static ts_shape rows_of(ts_shape shape) {
  --shape.n;
  return shape;
}

/* x with a mean far from 0, which a one-pass variance would not survive. */
static void input_x(run_case *c, ts_dtype dtype, ts_shape shape) {
  int i = c->n_in;
  ops_input(c, i, dtype, shape, 1.0);
  for (int64_t j = 0; j < ops_count(c, i); ++j) {
    run_set(&c->in[i], j, run_get(&c->in[i], j) + 3.0);
  }
}

static void build_forward(run_case *c, int variant, ts_dtype dtype, int statistics) {
  ts_shape shape = shape_of(variant);
  input_x(c, dtype, shape);
  for (int i = 0; i < statistics; ++i) {
    ops_input(c, 1 + i, dtype, columns_of(shape), 1.0);
  }
  c->attr.norm.eps = epsilon;
  c->attr.norm.offset = statistics == 1 ? (float) (variant % 2) : 0;
  ops_output(c, dtype, shape);
  for (int i = 0; i < statistics; ++i) {
    ops_output(c, TS_F32, rows_of(shape));
  }
}

static void build_layernorm(run_case *c, int variant, ts_dtype dtype) {
  build_forward(c, variant, dtype, 2);
}

/* Sums over whole rows, of which x has some columns: near `mean` of each of `width` elements. */
static void input_sums(run_case *c, int variant, int x, double mean) {
  int i = c->n_in;
  int64_t columns = ops_columns(c, x), width = 2 * columns + 3;
  c->attr.norm.width = variant % 2 == 0 ? width : 0;
  ops_input(c, i, TS_F32, rows_of(c->in[x].shape), 0.1);
  for (int64_t j = 0; j < ops_count(c, i); ++j) {
    run_set(&c->in[i], j, (run_get(&c->in[i], j) + mean) * (double) (variant % 2 == 0 ? width : columns));
  }
}

static double width_of(const run_case *c, int x) {
  return (double) (c->attr.norm.width > 0 ? c->attr.norm.width : ops_columns(c, x));
}

/* With the row's own sum of squares, then with one that is given; likewise below. */
static void build_rmsnorm(run_case *c, int variant, ts_dtype dtype) {
  build_forward(c, variant % SHAPES, dtype, 1);
  if (variant >= SHAPES) {
    input_sums(c, variant, 0, 4.0);
  }
}

static void layernorm(run_case *c) {
  int64_t n = ops_columns(c, 0);
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *x = ops_in(c, 0) + row * n;
    double mean = mean_of(x, n), rstd = 1 / sqrt(mean_square_of(x, n, mean) + c->attr.norm.eps);
    for (int64_t i = 0; i < n; ++i) {
      ops_out(c, 0)[row * n + i] = (x[i] - mean) * rstd * ops_in(c, 1)[i] + ops_in(c, 2)[i];
    }
    ops_out(c, 1)[row] = mean;
    ops_out(c, 2)[row] = rstd;
  }
}

static void rmsnorm(run_case *c) {
  int64_t n = ops_columns(c, 0);
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *x = ops_in(c, 0) + row * n;
    double squares = c->n_in == 2 ? mean_square_of(x, n, 0) : ops_in(c, 2)[row] / width_of(c, 0);
    double rstd = 1 / sqrt(squares + c->attr.norm.eps);
    for (int64_t i = 0; i < n; ++i) {
      ops_out(c, 0)[row * n + i] = x[i] * rstd * (c->attr.norm.offset + ops_in(c, 1)[i]);
    }
    ops_out(c, 1)[row] = rstd;
  }
}

/* mean (unless rms) and rstd of input x as further inputs. */
static void input_statistics(run_case *c, int x, bool rms) {
  ts_shape rows = rows_of(c->in[x].shape);
  int64_t n = ops_columns(c, x);
  run_tensor mean = run_new(TS_F32, rows), rstd = run_new(TS_F32, rows);
  double *row_values = ts_malloc((size_t) n * sizeof *row_values);
  for (int64_t row = 0; row < ops_rows(c, x); ++row) {
    for (int64_t i = 0; i < n; ++i) {
      row_values[i] = run_get(&c->in[x], row * n + i);
    }
    double m = rms ? 0 : mean_of(row_values, n);
    run_set(&mean, row, m);
    run_set(&rstd, row, 1 / sqrt(mean_square_of(row_values, n, m) + epsilon));
  }
  ts_free(row_values);
  if (rms) {
    ts_free(mean.data);
  } else {
    c->in[c->n_in++] = mean;
  }
  c->in[c->n_in++] = rstd;
}

static void build_dx(run_case *c, int variant, ts_dtype dtype, bool rms) {
  ts_shape shape = shape_of(variant);
  ops_input(c, 0, dtype, shape, 1.0);
  input_x(c, dtype, shape);
  ops_input(c, 2, dtype, columns_of(shape), 1.0);
  input_statistics(c, 1, rms);
  c->attr.norm.offset = rms ? (float) (variant % 2) : 0;
  ops_output(c, dtype, shape);
}

static void build_layernorm_dx(run_case *c, int variant, ts_dtype dtype) {
  build_dx(c, variant, dtype, false);
}

static void build_rmsnorm_dx(run_case *c, int variant, ts_dtype dtype) {
  build_dx(c, variant % SHAPES, dtype, true);
  if (variant >= SHAPES) {
    input_sums(c, variant, 1, 0.0);
  }
}

/* mean is NULL for RMSNorm, which alone may have dots. */
static void dx_of(run_case *c, const double *mean, const double *rstd, const double *dots) {
  int64_t n = ops_columns(c, 0);
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *dy = ops_in(c, 0) + row * n, *x = ops_in(c, 1) + row * n, *w = ops_in(c, 2);
    double m = mean == NULL ? 0 : mean[row], r = rstd[row], o = c->attr.norm.offset, sum = 0, projection = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum += mean == NULL ? 0 : dy[i] * w[i];
      projection += dy[i] * (o + w[i]) * (x[i] - m) * r / (double) n;
    }
    projection = dots == NULL ? projection : r * dots[row] / width_of(c, 1);
    for (int64_t i = 0; i < n; ++i) {
      double g = dy[i] * (o + w[i]);
      ops_out(c, 0)[row * n + i] = r * (g - sum / (double) n - (x[i] - m) * r * projection);
    }
  }
}

static void layernorm_dx(run_case *c) {
  dx_of(c, ops_in(c, 3), ops_in(c, 4), NULL);
}

static void rmsnorm_dx(run_case *c) {
  dx_of(c, NULL, ops_in(c, 3), c->n_in == 4 ? NULL : ops_in(c, 4));
}

static void build_dw(run_case *c, int variant, ts_dtype dtype, bool rms) {
  ts_shape shape = shape_of(variant);
  ops_input(c, 0, dtype, shape, 1.0);
  input_x(c, dtype, shape);
  input_statistics(c, 1, rms);
  c->attr.norm.dtype = variant % 2 == 0 ? TS_F32 : dtype;
  for (int i = 0; i < (rms ? 1 : 2); ++i) {
    ops_output(c, c->attr.norm.dtype, columns_of(shape));
  }
}

static void build_layernorm_dw(run_case *c, int variant, ts_dtype dtype) {
  build_dw(c, variant, dtype, false);
}

static void build_rmsnorm_dw(run_case *c, int variant, ts_dtype dtype) {
  build_dw(c, variant, dtype, true);
}

static void dw_of(run_case *c, const double *mean, const double *rstd) {
  int64_t n = ops_columns(c, 0);
  for (int i = 0; i < c->n_out; ++i) {
    memset(ops_out(c, i), 0, (size_t) n * sizeof(double));
  }
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    double dy = ops_in(c, 0)[i];
    ops_out(c, 0)[i % n] += dy * (ops_in(c, 1)[i] - (mean == NULL ? 0 : mean[i / n])) * rstd[i / n];
    if (c->n_out == 2) {
      ops_out(c, 1)[i % n] += dy;
    }
  }
}

static void layernorm_dw(run_case *c) {
  dw_of(c, ops_in(c, 2), ops_in(c, 3));
}

static void rmsnorm_dw(run_case *c) {
  dw_of(c, NULL, ops_in(c, 2));
}

/* A first row of nothing, and a second one shorter than eps, are not made longer than they would be over eps. */
static const float shortest = 1e-3f;
enum { NORMALIZED = SHAPES + 2 };

static void input_rows(run_case *c, int variant, ts_dtype dtype) {
  int i = c->n_in;
  input_x(c, dtype, shape_of(variant % SHAPES));
  int64_t n = ops_columns(c, i), count = ops_count(c, i);
  for (int64_t j = 0; j < 2 * n && j < count && variant >= SHAPES; ++j) {
    run_set(&c->in[i], j, j < n ? 0 : 1e-5 * run_get(&c->in[i], j));
  }
  c->attr.norm.eps = shortest;
}

static double scale_of(const double *x, int64_t n, double eps) {
  return 1 / fmax(sqrt(mean_square_of(x, n, 0) * (double) n), eps);
}

static void build_normalize(run_case *c, int variant, ts_dtype dtype) {
  input_rows(c, variant, dtype);
  ops_output(c, dtype, c->in[0].shape);
  ops_output(c, TS_F32, rows_of(c->in[0].shape));
}

static void normalize(run_case *c) {
  int64_t n = ops_columns(c, 0);
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *x = ops_in(c, 0) + row * n;
    double r = ops_out(c, 1)[row] = scale_of(x, n, c->attr.norm.eps);
    for (int64_t i = 0; i < n; ++i) {
      ops_out(c, 0)[row * n + i] = x[i] * r;
    }
  }
}

static void build_normalize_dx(run_case *c, int variant, ts_dtype dtype) {
  ops_input(c, 0, dtype, shape_of(variant % SHAPES), 1.0);
  input_rows(c, variant, dtype);
  int64_t n = ops_columns(c, 1);
  double *x = ts_malloc((size_t) n * sizeof *x);
  c->in[2] = run_new(TS_F32, rows_of(c->in[1].shape));
  c->n_in = 3;
  for (int64_t row = 0; row < ops_rows(c, 1); ++row) {
    for (int64_t i = 0; i < n; ++i) {
      x[i] = run_get(&c->in[1], row * n + i);
    }
    double r = scale_of(x, n, shortest); /* the clamped one as kernels have it */
    run_set(&c->in[2], row, r < 1 / (double) shortest ? r : 1.0f / shortest);
  }
  ts_free(x);
  ops_output(c, dtype, c->in[1].shape);
}

static void normalize_dx(run_case *c) {
  int64_t n = ops_columns(c, 0);
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *dy = ops_in(c, 0) + row * n, *x = ops_in(c, 1) + row * n;
    double r = ops_in(c, 2)[row], dots = 0;
    bool clamped = r >= (1 - 1e-7) / (double) c->attr.norm.eps;
    for (int64_t i = 0; i < n && !clamped; ++i) {
      dots += dy[i] * x[i];
    }
    for (int64_t i = 0; i < n; ++i) {
      ops_out(c, 0)[row * n + i] = r * (dy[i] - x[i] * r * r * dots);
    }
  }
}

static void build_row_squares(run_case *c, int variant, ts_dtype dtype) {
  input_x(c, dtype, shape_of(variant));
  ops_output(c, TS_F32, rows_of(shape_of(variant)));
}

static void row_squares(run_case *c) {
  int64_t n = ops_columns(c, 0);
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    ops_out(c, 0)[row] = mean_square_of(ops_in(c, 0) + row * n, n, 0) * (double) n;
  }
}

static void build_row_dots(run_case *c, int variant, ts_dtype dtype) {
  ts_shape shape = shape_of(variant);
  ops_input(c, 0, dtype, shape, 1.0);
  input_x(c, dtype, shape);
  ops_input(c, 2, dtype, columns_of(shape), 1.0);
  c->attr.norm.offset = (float) (variant % 2);
  ops_output(c, TS_F32, rows_of(shape));
}

static void row_dots(run_case *c) {
  int64_t n = ops_columns(c, 0);
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum += ops_in(c, 0)[row * n + i] * (c->attr.norm.offset + ops_in(c, 2)[i]) * ops_in(c, 1)[row * n + i];
    }
    ops_out(c, 0)[row] = sum;
  }
}

/* Means over up to 1100 elements in 64 lanes: 18 roundings in a chain, then 6; x - mean cancels numbers near 3 down
 * to numbers near 1, and a gradient cancels what it projects out.  Column sums add 64 rows in a chain, whose rounding
 * errors, of random sign, grow to about sqrt (64) = 8.  Sums over rows of 16512 have chains of 516 in a GPU's 32 lanes:
 * sqrt (516) and more; and the dots are of both signs.  Rows of length 1 are far below what they are made of. */
const op_row ops_norm[] = {
    {TS_OP_LAYERNORM, SHAPES, build_layernorm, layernorm, 6},
    {TS_OP_LAYERNORM_DX, SHAPES, build_layernorm_dx, layernorm_dx, 6},
    {TS_OP_LAYERNORM_DW, SHAPES, build_layernorm_dw, layernorm_dw, 8},
    {TS_OP_RMSNORM, 2 * SHAPES, build_rmsnorm, rmsnorm, 6},
    {TS_OP_RMSNORM_DX, 2 * SHAPES, build_rmsnorm_dx, rmsnorm_dx, 6},
    {TS_OP_RMSNORM_DW, SHAPES, build_rmsnorm_dw, rmsnorm_dw, 8},
    {TS_OP_NORMALIZE, NORMALIZED, build_normalize, normalize, 2},
    {TS_OP_NORMALIZE_DX, NORMALIZED, build_normalize_dx, normalize_dx, 6},
    {TS_OP_ROW_SQUARES, SHAPES, build_row_squares, row_squares, 32},
    {TS_OP_ROW_DOTS, SHAPES, build_row_dots, row_dots, 20},
    {.reference = NULL},
};
