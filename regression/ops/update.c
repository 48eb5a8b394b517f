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
  scalar(c, TS_I64, variant < 2 ? 3000000000.0 : variant);
  c->in[c->n_in++] = run_new(TS_F32, TS_SHAPE(2));
  run_set(&c->in[1], 0, 0.9);
  run_set(&c->in[1], 1, variant == 3 ? 0.0 : 0.999);
  scalar(c, TS_F32, variant == 1);
  ops_output(c, TS_I64, TS_SHAPE(1));
  ops_output(c, TS_F64, TS_SHAPE(2));
}

static void advance(run_case *c) {
  int64_t step = ((const int64_t *) c->in[0].data)[0] + (ops_in(c, 2)[0] == 0);
  ((int64_t *) c->out[0].data)[0] = step;
  for (int i = 0; i < 2; ++i) {
    ops_out(c, 1)[i] = 1 - pow(ops_in(c, 1)[i], (double) step);
  }
}

/* The scale is one rounding of an fp64 number; a correction some forty roundings in fp64. */
const op_row ops_update[] = {
    {TS_OP_STEP_CONTROL, sizeof steps / sizeof *steps, build_step_control, step_control, 1e-6},
    {TS_OP_ADVANCE, 4, build_advance, advance, 1e-6},
    {.reference = NULL},
};
