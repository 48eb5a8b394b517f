#include "regression/ops/ops.h"

static void scalar(run_case *c, ts_dtype dtype, double value) {
  run_tensor *x = &c->in[c->n_in++];
  *x = run_new(dtype, TS_SHAPE(1));
  run_set(x, 0, value);
}

/* Ordinary; clipped; no clipping asked for; the four ways to skip; a flag raised. */
static const struct {
  double loss, valid, flag, square, static_tokens, max_norm, scale;
} steps[] = {{5.5, 100, 0, 4.0, 128, 1e9, 1}, {5.5, 100, 0, 4.0, 128, 0.5, 1024}, {5.5, 128, 1, 9.0, 128, 0, 1},
             {NAN, 100, 0, 4.0, 128, 1, 1},   {5.5, 100, 0, NAN, 128, 1, 1},      {5.5, 100, 0, INFINITY, 128, 1, 1},
             {0, 0, 0, 0, 128, 1, 1},         {5.5, 100, 3, 0.0, 128, 1.0, 1}};

static void build_step_control(run_case *c, int variant, ts_dtype dtype) {
  (void) dtype;
  enum { ROWS = 3, COLUMNS = 6 };
  c->in[c->n_in++] = run_new(TS_F64, TS_SHAPE(ROWS, COLUMNS));
  for (int r = 0; r < ROWS; ++r) {
    const double row[COLUMNS] = {steps[variant].loss * (1 + r),
                                 steps[variant].valid * (1 + r),
                                 r == 1 ? steps[variant].flag : 0,
                                 r == 2 ? 2 * steps[variant].flag : 0,
                                 0.1 * (r + 1),
                                 steps[variant].square};
    for (int j = 0; j < COLUMNS; ++j) {
      run_set(&c->in[0], r * COLUMNS + j, row[j]);
    }
  }
  scalar(c, TS_F64, steps[variant].static_tokens);
  scalar(c, TS_F32, steps[variant].max_norm);
  scalar(c, TS_F32, steps[variant].scale);
  ops_output(c, TS_F64, TS_SHAPE(6));
  ops_output(c, TS_F32, TS_SHAPE(1));
  ops_output(c, TS_F32, TS_SHAPE(1));
}

static void step_control(run_case *c) {
  int64_t columns = ops_columns(c, 0);
  double loss = 0, valid = 0, flag[2] = {0, 0}, squares = 0;
  for (int64_t r = 0; r < ops_rows(c, 0); ++r) {
    const double *row = ops_in(c, 0) + r * columns;
    loss += row[0];
    valid += row[1];
    flag[0] = fmax(flag[0], row[2]);
    flag[1] = fmax(flag[1], row[3]);
    for (int64_t j = 4; j < columns; ++j) {
      squares += row[j];
    }
  }
  double factor = ops_in(c, 1)[0] / valid / ops_in(c, 3)[0], norm = factor * sqrt(squares), limit = ops_in(c, 2)[0];
  bool skip = !isfinite(loss) || !isfinite(norm) || valid == 0;
  memcpy(ops_out(c, 0), (double[]){loss, valid, norm, flag[0], flag[1], skip}, 6 * sizeof(double));
  ops_out(c, 1)[0] = limit > 0 && limit / (norm + 1e-6) < 1 ? factor * limit / (norm + 1e-6) : factor;
  ops_out(c, 2)[0] = skip;
}

static void build_advance(run_case *c, int variant, ts_dtype dtype) {
  (void) dtype;
  scalar(c, TS_I64, 3000000000.0);
  scalar(c, TS_F32, variant);
  ops_output(c, TS_I64, TS_SHAPE(1));
}

static void advance(run_case *c) {
  ((int64_t *) c->out[0].data)[0] = ((const int64_t *) c->in[0].data)[0] + (ops_in(c, 1)[0] == 0);
}

/* Variants: bits 0 decoupled, 1 bias correction, 2 a working copy; then one that skips and one of many ranges. */
enum { SKIPPED = 8, MANY, ADAMW_VARIANTS, MANY_RANGES = 207 };

/* Ranges of 12 elements and gaps of one, then one of many blocks; all their factors differ. */
static ts_range *many_ranges(void) {
  static ts_range ranges[MANY_RANGES];
  for (int r = 0; r < MANY_RANGES; ++r) {
    ranges[r] = (ts_range){13 * r, 12, 1e-3f * (float) r, 1.0f + 0.01f * (float) r};
  }
  ranges[MANY_RANGES - 1].offset = 2700;
  ranges[MANY_RANGES - 1].count = 20001;
  return ranges;
}

static void build_adamw(run_case *c, int variant, ts_dtype dtype) {
  static ts_range ranges[] = {{0, 7, 0.0f, 1.0f}, {64, 2100, 0.1f, 1.0f}, {2176, 500, 0.1f, 0.25f}};
  ts_shape shape = TS_SHAPE(variant == MANY ? 22704 : 2700);
  ops_input(c, 0, TS_F32, shape, 1.0);
  ops_input(c, 1, TS_F32, shape, 0.1);
  ops_input(c, 2, TS_F32, shape, 0.1);
  for (int64_t i = 0; i < shape.d[0]; ++i) { /* second moments are positive */
    run_set(&c->in[2], i, run_get(&c->in[2], i) * run_get(&c->in[2], i));
  }
  c->n_in = 4;
  if (variant & 4) {
    c->in[3] = run_new(TS_BF16, shape);
  }
  ops_input(c, 4, dtype, shape, 1.0);
  scalar(c, TS_I64, 3);
  scalar(c, TS_F32, 1e-3);
  c->in[c->n_in++] = run_new(TS_F32, TS_SHAPE(2));
  run_set(&c->in[7], 0, 0.9);
  run_set(&c->in[7], 1, 0.95);
  scalar(c, TS_F32, 0.7);
  scalar(c, TS_F32, variant == SKIPPED);
  c->attr.adamw.range = variant == MANY ? many_ranges() : ranges;
  c->attr.adamw.n = variant == MANY ? MANY_RANGES : 3;
  c->attr.adamw.eps = 0.01f; /* large enough to be seen */
  c->attr.adamw.decoupled = variant & 1;
  c->attr.adamw.bias_correction = variant & 2;
  for (int i = 0; i < (variant & 4 ? 4 : 3); ++i) {
    ops_output(c, i == 3 ? TS_BF16 : TS_F32, shape);
  }
}

/* torch.optim.AdamW (decoupled) and Adam, the single-tensor loop. */
static void adamw_element(run_case *c, int64_t i, const ts_range *range) {
  double step = (double) ((const int64_t *) c->in[5].data)[0], lr = ops_in(c, 6)[0] * range->lr_factor;
  double beta1 = ops_in(c, 7)[0], beta2 = ops_in(c, 7)[1], g = ops_in(c, 4)[i] * ops_in(c, 8)[0];
  double *p = &ops_out(c, 0)[i], *m = &ops_out(c, 1)[i], *v = &ops_out(c, 2)[i];
  if (c->attr.adamw.decoupled) {
    *p *= 1 - lr * range->weight_decay;
  } else {
    g += range->weight_decay * *p;
  }
  *m = beta1 * *m + (1 - beta1) * g;
  *v = beta2 * *v + (1 - beta2) * g * g;
  double correction1 = c->attr.adamw.bias_correction ? 1 - pow(beta1, step) : 1;
  double correction2 = c->attr.adamw.bias_correction ? 1 - pow(beta2, step) : 1;
  *p -= lr / correction1 * *m / (sqrt(*v) / sqrt(correction2) + c->attr.adamw.eps);
  if (c->n_out == 4) {
    ops_out(c, 3)[i] = *p;
  }
}

static void adamw(run_case *c) {
  for (int i = 0; i < c->n_out; ++i) {
    memcpy(c->out[i].data, c->in[i].data, (size_t) ops_count(c, i) * sizeof(double));
  }
  for (int r = 0; r < c->attr.adamw.n && ops_in(c, 9)[0] == 0; ++r) {
    const ts_range *range = &c->attr.adamw.range[r];
    for (int64_t i = range->offset; i < range->offset + range->count; ++i) {
      adamw_element(c, i, range);
    }
  }
}

/* The scale is one rounding of an fp64 number.  AdamW: a chain of about ten roundings, of terms no larger than the
 * largest. */
const op_row ops_update[] = {
    {TS_OP_STEP_CONTROL, sizeof steps / sizeof *steps, build_step_control, step_control, 1e-6},
    {TS_OP_ADVANCE, 2, build_advance, advance, 0},
    {TS_OP_ADAMW, ADAMW_VARIANTS, build_adamw, adamw, 4},
    {.reference = NULL},
};
