#include "regression/ops/ops.h"

#include <math.h>

/* Also rows of a vocabulary. */
static const ts_shape more_shapes[] = {{2, {7, 1000}}, {3, {1, 2, 9001}}, {2, {3, 16}}};
enum { SHAPES = OPS_SHAPES + sizeof more_shapes / sizeof *more_shapes };

static ts_shape shape_of(int variant) {
  return variant < OPS_SHAPES ? ops_shape(variant) : more_shapes[variant - OPS_SHAPES];
}

static ts_shape rows_of(ts_shape shape) {
  --shape.n;
  return shape;
}

/* Each shape at three temperatures. */
static void input_logits(run_case *c, int variant, ts_dtype dtype) {
  static const float temperature[] = {1, 2, 0.5f};
  ops_input(c, c->n_in, dtype, shape_of(variant / 3), 3.0);
  ops_input(c, c->n_in, dtype, shape_of(variant / 3), 3.0);
  c->attr.soft.temperature = temperature[variant % 3];
}

static double logsumexp(const double *x, int64_t n, double by) {
  double most = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    most = fmax(most, x[i] * by);
  }
  for (int64_t i = 0; i < n; ++i) {
    sum += exp(x[i] * by - most);
  }
  return most + log(sum);
}

static void build_soft_loss(run_case *c, int variant, ts_dtype dtype) {
  input_logits(c, variant, dtype);
  for (int i = 0; i < 3; ++i) {
    ops_output(c, TS_F32, rows_of(c->in[0].shape));
  }
}

static void soft_loss(run_case *c) {
  int64_t n = ops_columns(c, 0);
  double T = c->attr.soft.temperature;
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *z = ops_in(c, 0) + row * n, *t = ops_in(c, 1) + row * n;
    double lse_z = logsumexp(z, n, 1 / T), lse_t = logsumexp(t, n, 1 / T), loss = 0;
    for (int64_t i = 0; i < n; ++i) {
      loss -= T * T * exp(t[i] / T - lse_t) * (z[i] / T - lse_z);
    }
    ops_out(c, 0)[row] = loss;
    ops_out(c, 1)[row] = lse_z;
    ops_out(c, 2)[row] = lse_t;
  }
}

static void build_soft_loss_dx(run_case *c, int variant, ts_dtype dtype) {
  ops_input(c, 0, TS_F32, rows_of(shape_of(variant / 3)), 1.0);
  input_logits(c, variant, dtype);
  int64_t n = ops_columns(c, 1);
  double *x = ts_malloc((size_t) n * sizeof *x);
  for (int k = 0; k < 2; ++k) {
    c->in[3 + k] = run_new(TS_F32, c->in[0].shape);
    for (int64_t row = 0; row < ops_rows(c, 1); ++row) {
      for (int64_t i = 0; i < n; ++i) {
        x[i] = run_get(&c->in[1 + k], row * n + i);
      }
      run_set(&c->in[3 + k], row, logsumexp(x, n, 1 / (double) c->attr.soft.temperature));
    }
  }
  c->n_in = 5;
  ts_free(x);
  ops_output(c, dtype, c->in[1].shape);
}

static void soft_loss_dx(run_case *c) {
  int64_t n = ops_columns(c, 1);
  double T = c->attr.soft.temperature;
  for (int64_t i = 0; i < ops_count(c, 1); ++i) {
    double p = exp(ops_in(c, 1)[i] / T - ops_in(c, 3)[i / n]), q = exp(ops_in(c, 2)[i] / T - ops_in(c, 4)[i / n]);
    ops_out(c, 0)[i] = ops_in(c, 0)[i / n] * T * (p - q);
  }
}

/* Without a mask and with one, where what it hides is no number. */
static void input_mask(run_case *c, ts_shape shape) {
  run_tensor *mask = &c->in[c->n_in++];
  *mask = run_new(TS_I32, shape);
  for (int64_t i = 0; i < run_count(mask); ++i) {
    run_set(mask, i, (double) (i * 11 % 5 < 2 ? 0 : 1 + i % 2));
  }
}

static void build_loss(run_case *c, int variant, ts_dtype dtype) {
  ops_input(c, 0, dtype, shape_of(variant / 2), 1.0);
  if (variant % 2 != 0) {
    input_mask(c, c->in[0].shape);
    for (int64_t i = 0; i < ops_count(c, 0); ++i) {
      run_set(&c->in[0], i, run_get(&c->in[1], i) == 0 ? NAN : run_get(&c->in[0], i));
    }
  }
  ops_output(c, TS_F64, TS_SHAPE(1));
  ops_output(c, TS_F64, TS_SHAPE(1));
}

static void loss(run_case *c) {
  const int32_t *mask = c->n_in > 1 ? c->in[1].data : NULL;
  ops_out(c, 0)[0] = ops_out(c, 1)[0] = 0;
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    double by = mask != NULL ? mask[i] : 1;
    ops_out(c, 0)[0] += by != 0 ? by * ops_in(c, 0)[i] : 0;
    ops_out(c, 1)[0] += by;
  }
}

static void build_loss_dx(run_case *c, int variant, ts_dtype dtype) {
  ops_input(c, 0, TS_F32, TS_SHAPE(1), 1.0);
  c->attr.loss.shape = shape_of(variant / 2);
  c->attr.loss.dtype = dtype;
  if (variant % 2 != 0) {
    input_mask(c, c->attr.loss.shape);
  }
  ops_output(c, dtype, c->attr.loss.shape);
}

static void loss_dx(run_case *c) {
  const int32_t *mask = c->n_in > 1 ? c->in[1].data : NULL;
  for (int64_t i = 0; i < run_count(&c->out[0]); ++i) {
    ops_out(c, 0)[i] = ops_in(c, 0)[0] * (mask != NULL ? mask[i] : 1);
  }
}

/* A logit over the temperature, at most 25, is rounded before its exponential is taken: to 2 ulp of 25 = 16 x 2^-24 in
 * each, and the sum of up to 9001 in 64 lanes, or a GPU's 256 threads, adds 140 in a chain.  Sums of elements are in
 * fp64. */
const op_row ops_loss[] = {
    {TS_OP_SOFT_LOSS, 3 * SHAPES, build_soft_loss, soft_loss, 16},
    {TS_OP_SOFT_LOSS_DX, 3 * SHAPES, build_soft_loss_dx, soft_loss_dx, 40},
    {TS_OP_LOSS, 2 * SHAPES, build_loss, loss, 1e-6},
    {TS_OP_LOSS_DX, 2 * SHAPES, build_loss_dx, loss_dx, 2},
    {.reference = NULL},
};
