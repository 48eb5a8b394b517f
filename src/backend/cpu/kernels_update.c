/* The end of a step: what is decided about it, and its number. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/tile.h"
#include "backend/update_rules.h"
#include "graph/record.h"

#include "base/status.h"

#include <float.h>
#include <math.h>

/* Sum or maximum of one column of the records, in order of the rows. */
static double column_sum(const double *records, int64_t rows, int64_t columns, int64_t column) {
  double sum = 0;
  for (int64_t r = 0; r < rows; ++r) {
    sum += records[r * columns + column];
  }
  return sum;
}

static double column_max(const double *records, int64_t rows, int64_t columns, int64_t column) {
  double most = records[column];
  for (int64_t r = 1; r < rows; ++r) {
    most = fmax(most, records[r * columns + column]);
  }
  return most;
}

static void step_control_run(const ts_kernel_call *call) {
  const double *records = call->in[0];
  double static_tokens = *(const double *) call->in[1], max_norm = *(const float *) call->in[2];
  double loss_scale = call->in[3] != NULL ? ((const double *) call->in[3])[TS_LOSS_SCALE] : 1;
  const ts_shape *shape = &ts_call_in(call, 0)->shape;
  int64_t rows = shape->d[0], columns = shape->d[1];
  double balance = column_sum(records, rows, columns, TS_RECORD_BALANCE),
         loss = column_sum(records, rows, columns, TS_RECORD_LOSS) + balance,
         valid = column_sum(records, rows, columns, TS_RECORD_VALID);
  double squares = 0;
  for (int64_t c = TS_RECORD_SQUARES; c < columns; ++c) {
    squares += column_sum(records, rows, columns, c);
  }
  double factor = static_tokens / valid / loss_scale, norm = factor * sqrt(squares);
  double clip = max_norm > 0 ? fmin(1, max_norm / (norm + 1e-6)) : 1;
  float scale = (float) (factor * clip);
  bool some = valid > 0, overflow = some && !(isfinite(loss) && isfinite(norm) && isfinite(scale));
  bool skip = !some || (overflow && !call->node->attr.control.keep_nonfinite);
  double *summary = call->out[0];
  summary[TS_SUMMARY_LOSS] = loss;
  summary[TS_SUMMARY_VALID] = valid;
  summary[TS_SUMMARY_BALANCE] = balance;
  summary[TS_SUMMARY_NORM] = norm <= FLT_MAX ? (float) norm : norm;
  for (int i = 0; i < TS_N_FLAGS; ++i) {
    summary[TS_SUMMARY_FLAGS + i] = column_max(records, rows, columns, TS_RECORD_FLAGS + i);
  }
  summary[TS_SUMMARY_SKIP] = skip;
  summary[TS_SUMMARY_OVERFLOW] = overflow;
  summary[TS_SUMMARY_SCALE] = summary[TS_SUMMARY_NEXT_SCALE] = loss_scale;
  summary[TS_SUMMARY_STUCK] = 0;
  *(float *) call->out[1] = scale;
  *(float *) call->out[2] = skip ? 1.0f : 0.0f;
}
TS_CPU_KERNEL(step_control) = {.run = step_control_run};

static void scale_loss_run(const ts_kernel_call *call) {
  double seed = *(const float *) call->in[0];
  *(float *) call->out[0] = (float) (((const double *) call->in[1])[TS_LOSS_SCALE] * seed);
}
TS_CPU_KERNEL(scale_loss) = {.run = scale_loss_run};

static void update_loss_scale_run(const ts_kernel_call *call) {
  double *state = call->out[0], *summary = call->out[1];
  TS_ASSERT(state == call->in[0] && summary == call->in[1]);
  if (summary[TS_SUMMARY_VALID] > 0) {
    bool overflow = summary[TS_SUMMARY_OVERFLOW] != 0;
    summary[TS_SUMMARY_STUCK] = ts_loss_scale_update(&call->node->attr.loss_scaler, state, overflow);
  }
  summary[TS_SUMMARY_NEXT_SCALE] = state[TS_LOSS_SCALE];
}
TS_CPU_KERNEL(update_loss_scale) = {.run = update_loss_scale_run};

static void advance_run(const ts_kernel_call *call) {
  const float *betas = call->in[1];
  int64_t step = *(const int64_t *) call->in[0] + (*(const float *) call->in[2] == 0.0f);
  double *corrections = call->out[1];
  *(int64_t *) call->out[0] = step;
  for (int i = 0; i < 2; ++i) {
    corrections[i] = ts_update_correction(betas[i], step);
  }
}
TS_CPU_KERNEL(advance) = {.run = advance_run};

static void trust_ratios_run(const ts_kernel_call *call) {
  const float *squares = call->in[0];
  const double *corrections = call->in[1];
  const ts_attr *attr = &call->node->attr;
  double correction = attr->ratios.bias_correction ? sqrt(corrections[1]) / corrections[0] : 1;
  int64_t n = ts_call_count(call, 0);
  float *ratio = call->out[0];
  for (int64_t i = 0; i < n; ++i) {
    ratio[i] = ts_update_trust_ratio(squares[i], squares[n + i], attr->ratios.least, attr->ratios.most, correction);
  }
}
TS_CPU_KERNEL(trust_ratios) = {.run = trust_ratios_run};
