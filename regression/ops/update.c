#include "graph/record.h"
#include "regression/ops/ops.h"

static void scalar(run_case *c, ts_dtype dtype, double value) {
  run_tensor *x = &c->in[c->n_in++];
  *x = run_new(dtype, TS_SHAPE(1));
  run_set(x, 0, value);
}

/* Ordinary; clipped, with a loss scale; no clipping asked for; the four ways to skip; a flag raised; three of the four
 * kept. */
static const struct {
  double loss, valid, flag, square, static_tokens, max_norm, scale /* 0: none */;
  bool keep;
} steps[] = {{5.5, 100, 0, 4.0, 128, 1e9, 0, false},
             {5.5, 100, 0, 4.0, 128, 0.5, 1024, false},
             {5.5, 128, 1, 9.0, 128, 0, 0, false},
             {NAN, 100, 0, 4.0, 128, 1, 0, false},
             {5.5, 100, 0, NAN, 128, 1, 1000, false},
             {5.5, 100, 0, INFINITY, 128, 1, 0, false},
             {0, 0, 0, 0, 128, 1, 0, false},
             {5.5, 100, 3, 0.0, 128, 1.0, 1e30, false},
             {NAN, 100, 0, 4.0, 128, 1, 0, true},
             {5.5, 100, 0, INFINITY, 128, 1, 0, true},
             {0, 0, 0, 0, 128, 1, 0, true}};

static void build_step_control(run_case *c, int variant, ts_dtype dtype) {
  (void) dtype;
  enum { ROWS = 3, COLUMNS = TS_RECORD_SQUARES + 2 };
  c->in[c->n_in++] = run_new(TS_F64, TS_SHAPE(ROWS, COLUMNS));
  for (int r = 0; r < ROWS; ++r) {
    const double row[COLUMNS] = {steps[variant].loss * (1 + r),
                                 steps[variant].valid * (1 + r),
                                 0.25 * r,
                                 r == 1 ? steps[variant].flag : 0,
                                 r == 2 ? 2 * steps[variant].flag : 0,
                                 r == 0 ? 3 * steps[variant].flag : 0,
                                 0.1 * (r + 1),
                                 steps[variant].square};
    for (int j = 0; j < COLUMNS; ++j) {
      run_set(&c->in[0], r * COLUMNS + j, row[j]);
    }
  }
  scalar(c, TS_F64, steps[variant].static_tokens);
  scalar(c, TS_F32, steps[variant].max_norm);
  c->n_in = 4;
  if (steps[variant].scale > 0) {
    c->in[3] = run_new(TS_F64, TS_SHAPE(TS_LOSS_SCALE_SIZE));
    run_set(&c->in[3], TS_LOSS_SCALE, steps[variant].scale);
  }
  c->attr.control.keep_nonfinite = steps[variant].keep;
  ops_output(c, TS_F64, TS_SHAPE(TS_SUMMARY_SIZE));
  ops_output(c, TS_F32, TS_SHAPE(1));
  ops_output(c, TS_F32, TS_SHAPE(1));
}

static void step_control(run_case *c) {
  int64_t columns = ops_columns(c, 0);
  double loss = 0, valid = 0, balance = 0, flag[TS_N_FLAGS] = {0}, squares = 0;
  for (int64_t r = 0; r < ops_rows(c, 0); ++r) {
    const double *row = ops_in(c, 0) + r * columns;
    loss += row[0];
    valid += row[1];
    balance += row[2];
    for (int i = 0; i < TS_N_FLAGS; ++i) {
      flag[i] = fmax(flag[i], row[TS_RECORD_FLAGS + i]);
    }
    for (int64_t j = TS_RECORD_SQUARES; j < columns; ++j) {
      squares += row[j];
    }
  }
  loss += balance;
  double scale = c->in[3].data != NULL ? ops_in(c, 3)[0] : 1, limit = ops_in(c, 2)[0];
  double factor = ops_in(c, 1)[0] / valid / scale, norm = factor * sqrt(squares);
  bool bad = valid > 0 && (!isfinite(loss) || !isfinite(norm)),
       skip = valid == 0 || (bad && !c->attr.control.keep_nonfinite);
  const double summary[TS_SUMMARY_SIZE] = {loss,    valid, balance, (float) norm, flag[0], flag[1],
                                           flag[2], skip,  bad,     scale,        scale,   0};
  memcpy(ops_out(c, 0), summary, sizeof summary);
  ops_out(c, 1)[0] = limit > 0 && limit / (norm + 1e-6) < 1 ? factor * limit / (norm + 1e-6) : factor;
  ops_out(c, 2)[0] = skip;
}

static void build_scale_loss(run_case *c, int variant, ts_dtype dtype) {
  (void) dtype;
  scalar(c, TS_F32, 1.0 / 34);
  c->in[c->n_in++] = run_new(TS_F64, TS_SHAPE(TS_LOSS_SCALE_SIZE));
  run_set(&c->in[1], TS_LOSS_SCALE, variant == 0 ? 65536 : 1000.3);
  run_set(&c->in[1], TS_LOSS_SCALE_HYSTERESIS, 2);
  ops_output(c, TS_F32, TS_SHAPE(1));
}

static void scale_loss(run_case *c) {
  ops_out(c, 0)[0] = ops_in(c, 0)[0] * ops_in(c, 1)[0];
}

/* What is known before a step, and after it; test_loss_scale has the sequences. */
static const struct {
  ts_loss_scaler scaler;
  double before[TS_LOSS_SCALE_SIZE], valid, overflow, after[TS_LOSS_SCALE_SIZE], stuck;
} scales[] = {{{TS_LOSS_SCALE_STATIC, 5, 1, 3, 2, false}, {5, 3, 2}, 9, 1, {5, 0, 2}, 0},
              {{TS_LOSS_SCALE_DYNAMIC, 8, 1, 3, 2, false}, {8, 3, 1}, 9, 0, {16, 4, 2}, 0},
              {{TS_LOSS_SCALE_DYNAMIC, 8, 1, 3, 2, false}, {8, 2, 1}, 9, 0, {8, 3, 1}, 0},
              {{TS_LOSS_SCALE_DYNAMIC, 8, 1, 3, 2, true}, {8, 2, 1}, 9, 0, {8, 3, 2}, 0},
              {{TS_LOSS_SCALE_DYNAMIC, 8, 1, 3, 2, false}, {8, 3, 2}, 9, 1, {8, 0, 1}, 0},
              {{TS_LOSS_SCALE_DYNAMIC, 8, 3, 3, 2, false}, {4, 3, 1}, 9, 1, {3, 0, 1}, 0},
              {{TS_LOSS_SCALE_DYNAMIC, 8, 3, 3, 2, false}, {3, 3, 1}, 9, 1, {3, 3, 1}, 1},
              {{TS_LOSS_SCALE_DYNAMIC, 8, 1, 3, 2, false}, {8, 3, 1}, 0, 0, {8, 3, 1}, 0},
              {{TS_LOSS_SCALE_TORCH, 8, 1, 3, 1, false}, {8, 2, 1}, 9, 0, {16, 3, 1}, 0},
              {{TS_LOSS_SCALE_TORCH, 8, 1, 3, 1, false}, {8, 2, 1}, 9, 1, {4, 0, 1}, 0},
              {{TS_LOSS_SCALE_TORCH, 8, 1, 3, 1, false}, {0x1p-149, 2, 1}, 9, 1, {0x1p-149, 0, 1}, 0}};

static void build_update_loss_scale(run_case *c, int variant, ts_dtype dtype) {
  (void) dtype;
  c->n_in = 2;
  c->in[0] = run_new(TS_F64, TS_SHAPE(TS_LOSS_SCALE_SIZE));
  c->in[1] = run_new(TS_F64, TS_SHAPE(TS_SUMMARY_SIZE));
  for (int i = 0; i < TS_LOSS_SCALE_SIZE; ++i) {
    run_set(&c->in[0], i, scales[variant].before[i]);
  }
  run_set(&c->in[1], TS_SUMMARY_LOSS, 7.5);
  run_set(&c->in[1], TS_SUMMARY_VALID, scales[variant].valid);
  run_set(&c->in[1], TS_SUMMARY_OVERFLOW, scales[variant].overflow);
  run_set(&c->in[1], TS_SUMMARY_SCALE, scales[variant].before[0]);
  c->attr.loss_scaler = scales[variant].scaler;
  ops_output(c, TS_F64, TS_SHAPE(TS_LOSS_SCALE_SIZE));
  ops_output(c, TS_F64, TS_SHAPE(TS_SUMMARY_SIZE));
}

static void update_loss_scale(run_case *c) {
  int row = 0;
  while (memcmp(&c->attr.loss_scaler, &scales[row].scaler, sizeof scales[row].scaler) != 0 ||
         memcmp(ops_in(c, 0), scales[row].before, sizeof scales[row].before) != 0 ||
         ops_in(c, 1)[TS_SUMMARY_VALID] != scales[row].valid ||
         ops_in(c, 1)[TS_SUMMARY_OVERFLOW] != scales[row].overflow) {
    ++row;
  }
  memcpy(ops_out(c, 0), scales[row].after, sizeof scales[row].after);
  memcpy(ops_out(c, 1), ops_in(c, 1), TS_SUMMARY_SIZE * sizeof(double));
  ops_out(c, 1)[TS_SUMMARY_NEXT_SCALE] = scales[row].after[TS_LOSS_SCALE];
  ops_out(c, 1)[TS_SUMMARY_STUCK] = scales[row].stuck;
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
    {TS_OP_SCALE_LOSS, 2, build_scale_loss, scale_loss, 0},
    {TS_OP_UPDATE_LOSS_SCALE, sizeof scales / sizeof *scales, build_update_loss_scale, update_loss_scale, 0},
    {TS_OP_ADVANCE, 4, build_advance, advance, 1e-6},
    {.reference = NULL},
};
