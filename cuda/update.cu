/* The end of a step: what is decided about it, and its number. */
#include "cuda/kernel.cuh"
#include "graph/record.h"

#include <float.h>

extern "C" {
#include "backend/update_rules.h"
}

enum { THREADS = 256 };

/* ---- control ---- */

/* Columns in parallel, the rows of each in order; then one thread adds the columns in order. */
static __global__ void __launch_bounds__(THREADS)
    step_control(double *summary, float *scale, float *skip, double *__restrict__ sum,
                 const double *__restrict__ records, const double *__restrict__ static_tokens,
                 const float *__restrict__ max_norm, const double *__restrict__ loss_scale, bool keep_nonfinite,
                 int64_t rows, int columns) {
  for (int c = (int) threadIdx.x; c < columns; c += THREADS) {
    double value = records[c];
    for (int64_t r = 1; r < rows; ++r) {
      double next = records[r * columns + c];
      value = c >= TS_RECORD_FLAGS && c < TS_RECORD_SQUARES ? fmax(value, next) : value + next;
    }
    sum[c] = value;
  }
  __syncthreads();
  if (threadIdx.x != 0) {
    return;
  }
  double squares = 0;
  for (int c = TS_RECORD_SQUARES; c < columns; ++c) {
    squares += sum[c];
  }
  double by = loss_scale != NULL ? loss_scale[TS_LOSS_SCALE] : 1.0;
  double factor = *static_tokens / sum[TS_RECORD_VALID] / by, norm = factor * sqrt(squares);
  double most = (double) *max_norm, clip = most > 0 ? fmin(1.0, most / (norm + 1e-6)) : 1.0;
  float by_all = (float) (factor * clip);
  double loss = sum[TS_RECORD_LOSS] + sum[TS_RECORD_BALANCE];
  bool finite = isfinite(loss) && isfinite(norm) && isfinite(by_all);
  bool some = sum[TS_RECORD_VALID] > 0, overflow = some && !finite, bad = !some || (overflow && !keep_nonfinite);
  summary[TS_SUMMARY_LOSS] = loss;
  summary[TS_SUMMARY_BALANCE] = sum[TS_RECORD_BALANCE];
  summary[TS_SUMMARY_VALID] = sum[TS_RECORD_VALID];
  summary[TS_SUMMARY_NORM] = norm <= FLT_MAX ? (float) norm : norm;
  for (int i = 0; i < TS_N_FLAGS; ++i) {
    summary[TS_SUMMARY_FLAGS + i] = sum[TS_RECORD_FLAGS + i];
  }
  summary[TS_SUMMARY_SKIP] = bad ? 1.0 : 0.0;
  summary[TS_SUMMARY_OVERFLOW] = overflow ? 1.0 : 0.0;
  summary[TS_SUMMARY_SCALE] = by;
  summary[TS_SUMMARY_NEXT_SCALE] = by;
  summary[TS_SUMMARY_STUCK] = 0.0;
  *scale = by_all;
  *skip = bad ? 1.0f : 0.0f;
}

static size_t step_control_set_up(const ts_target *, const ts_graph *graph, const ts_node *node, void **) {
  return (size_t) graph->tensor[node->in[0]].shape.d[1] * sizeof(double);
}

static void step_control_launch(const ts_kernel_call *call) {
  const ts_shape *shape = &ts_call_in(call, 0)->shape;
  ts_launch(step_control, 1, THREADS, 0, ts_call_stream(call), (double *) call->out[0], (float *) call->out[1],
            (float *) call->out[2], (double *) call->workspace, (const double *) call->in[0],
            (const double *) call->in[1], (const float *) call->in[2], (const double *) call->in[3],
            call->node->attr.control.keep_nonfinite, shape->d[0], (int) shape->d[1]);
}

/* ---- the loss scale ---- */

static __global__ void scale_loss(float *to, const float *seed, const double *state) {
  *to = (float) (state[TS_LOSS_SCALE] * (double) *seed);
}

static void scale_loss_launch(const ts_kernel_call *call) {
  ts_launch(scale_loss, 1, 1, 0, ts_call_stream(call), (float *) call->out[0], (const float *) call->in[0],
            (const double *) call->in[1]);
}

static __global__ void update_loss_scale(double *state, double *summary, ts_loss_scaler scaler) {
  if (summary[TS_SUMMARY_VALID] > 0) {
    bool stuck = ts_loss_scale_update(&scaler, state, summary[TS_SUMMARY_OVERFLOW] != 0);
    summary[TS_SUMMARY_STUCK] = stuck ? 1.0 : 0.0;
  }
  summary[TS_SUMMARY_NEXT_SCALE] = state[TS_LOSS_SCALE];
}

static void update_loss_scale_launch(const ts_kernel_call *call) {
  TS_ASSERT(call->out[0] == call->in[0] && call->out[1] == call->in[1]);
  ts_launch(update_loss_scale, 1, 1, 0, ts_call_stream(call), (double *) call->out[0], (double *) call->out[1],
            call->node->attr.loss_scaler);
}

/* ---- the number of updates ---- */

static __global__ void advance_number(int64_t *to, double *corrections, const int64_t *from, const float *betas,
                                      const float *skip) {
  int64_t step = *from + (*skip == 0.0f ? 1 : 0);
  *to = step;
  for (int i = 0; i < 2; ++i) {
    corrections[i] = ts_update_correction((double) betas[i], step);
  }
}

static void advance_launch(const ts_kernel_call *call) {
  ts_launch(advance_number, 1, 1, 0, ts_call_stream(call), (int64_t *) call->out[0], (double *) call->out[1],
            (const int64_t *) call->in[0], (const float *) call->in[1], (const float *) call->in[2]);
}

/* ---- ratios of whole parameters ---- */

static __global__ void __launch_bounds__(THREADS)
    trust_ratios(float *ratio, const float *squares, const double *corrections, float least, float most,
                 bool bias_correction, int64_t n) {
  double correction = bias_correction ? sqrt(corrections[1]) / corrections[0] : 1.0;
  for (int64_t i = threadIdx.x; i < n; i += THREADS) {
    ratio[i] = ts_update_trust_ratio(squares[i], squares[n + i], least, most, correction);
  }
}

static void trust_ratios_launch(const ts_kernel_call *call) {
  const ts_attr *attr = &call->node->attr;
  ts_launch(trust_ratios, 1, THREADS, 0, ts_call_stream(call), (float *) call->out[0], (const float *) call->in[0],
            (const double *) call->in[1], attr->ratios.least, attr->ratios.most, attr->ratios.bias_correction,
            ts_shape_count(&ts_call_out(call, 0)->shape));
}

const ts_kernel *ts_cuda_update(ts_op op) {
  static const ts_kernel control = {step_control_set_up, step_control_launch, NULL},
                         scale_loss = {NULL, scale_loss_launch, NULL},
                         update_loss_scale = {NULL, update_loss_scale_launch, NULL},
                         advance = {NULL, advance_launch, NULL}, ratios = {NULL, trust_ratios_launch, NULL}, none = {};
  switch (op) {
    case TS_OP_STEP_CONTROL: return &control;
    case TS_OP_SCALE_LOSS: return &scale_loss;
    case TS_OP_UPDATE_LOSS_SCALE: return &update_loss_scale;
    case TS_OP_ADVANCE: return &advance;
    case TS_OP_TRUST_RATIOS: return &ratios;
    default: return &none;
  }
}
