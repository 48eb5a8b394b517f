/* The update: control of a step, and AdamW in one sweep.  AdamW moves 28 bytes an element (30 with a bf16 working copy)
 * and is bound by memory. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/tile.h"
#include "graph/record.h"

#include "base/dropout.h"
#include "base/status.h"

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
  double loss_scale = *(const float *) call->in[3];
  const ts_shape *shape = &ts_call_in(call, 0)->shape;
  int64_t rows = shape->d[0], columns = shape->d[1];
  double loss = column_sum(records, rows, columns, TS_RECORD_LOSS),
         valid = column_sum(records, rows, columns, TS_RECORD_VALID);
  double squares = 0;
  for (int64_t c = TS_RECORD_SQUARES; c < columns; ++c) {
    squares += column_sum(records, rows, columns, c);
  }
  double factor = static_tokens / valid / loss_scale, norm = factor * sqrt(squares);
  bool skip = !isfinite(loss) || !isfinite(norm) || !(valid > 0);
  double clip = max_norm > 0 ? fmin(1, max_norm / (norm + 1e-6)) : 1;
  double *summary = call->out[0];
  summary[TS_SUMMARY_LOSS] = loss;
  summary[TS_SUMMARY_VALID] = valid;
  summary[TS_SUMMARY_NORM] = norm;
  for (int i = 0; i < TS_N_FLAGS; ++i) {
    summary[TS_SUMMARY_FLAGS + i] = column_max(records, rows, columns, TS_RECORD_FLAGS + i);
  }
  summary[TS_SUMMARY_SKIP] = skip;
  *(float *) call->out[1] = (float) (factor * clip);
  *(float *) call->out[2] = skip ? 1.0f : 0.0f;
}
TS_CPU_KERNEL(step_control) = {.run = step_control_run};

static void advance_run(const ts_kernel_call *call) {
  *(int64_t *) call->out[0] = *(const int64_t *) call->in[0] + (*(const float *) call->in[1] == 0.0f);
}
TS_CPU_KERNEL(advance) = {.run = advance_run};

/* The scalars of a step for one range. */
typedef struct adamw_scalars {
  float scale, keep, l2, beta1, rest1, beta2, rest2, rate, root, eps;
} adamw_scalars;

static adamw_scalars adamw_scalars_of(const ts_kernel_call *call, const ts_range *range) {
  const ts_attr *attr = &call->node->attr;
  const float *beta = call->in[7];
  double step = (double) *(const int64_t *) call->in[5], lr = (double) *(const float *) call->in[6] * range->lr_factor;
  double correction1 = attr->adamw.bias_correction ? 1 - pow(beta[0], step) : 1;
  double correction2 = attr->adamw.bias_correction ? 1 - pow(beta[1], step) : 1;
  return (adamw_scalars){.scale = *(const float *) call->in[8],
                         .keep = (float) (attr->adamw.decoupled ? 1 - lr * range->weight_decay : 1),
                         .l2 = attr->adamw.decoupled ? 0 : range->weight_decay,
                         .beta1 = beta[0],
                         .rest1 = (float) (1.0 - beta[0]),
                         .beta2 = beta[1],
                         .rest2 = (float) (1.0 - beta[1]),
                         .rate = (float) (lr / correction1),
                         .root = (float) (1 / sqrt(correction2)),
                         .eps = attr->adamw.eps};
}

static void adamw_tile(float *p, float *m, float *v, const float *g, int64_t n, const adamw_scalars *s) {
  adamw_scalars k = *s;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    float gradient = g[i] * k.scale + k.l2 * p[i];
    float first = k.beta1 * m[i] + k.rest1 * gradient;
    float second = k.beta2 * v[i] + k.rest2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    p[i] = k.keep * p[i] - k.rate * (first / (sqrtf(second) * k.root + k.eps));
  }
}

/* ts_random_to_bf16 of a tile, by vectors: two elements a word.  About 0.9 ns an element with AVX-512: 40 % more for an
 * AdamW that is bound by memory. */
static void adamw_round(uint16_t *w, const float *p, int64_t n, uint64_t key, uint64_t step, int64_t first) {
  enum { WORDS = 4 * TS_DROPOUT_LANES, COUNT = 2 * WORDS };
  for (int64_t at = first / 8 * 8; at < first + n; at += COUNT) {
    uint32_t word[WORDS], random[COUNT];
    ts_dropout_words(word, key, step, (uint64_t) at / 8);
#pragma omp simd
    for (int i = 0; i < WORDS; ++i) {
      random[2 * i] = word[i] & 0xffffu;
      random[2 * i + 1] = word[i] >> 16;
    }
    int64_t begin = at < first ? first : at, end = at + COUNT < first + n ? at + COUNT : first + n;
    const float *from = p + (begin - first);
    const uint32_t *by = random + (begin - at);
    uint16_t *to = w + (begin - first);
#pragma omp simd
    for (int64_t i = 0; i < end - begin; ++i) {
      to[i] = ts_f32_to_bf16_by(from[i], by[i]);
    }
  }
}

static void adamw_copy(const ts_kernel_call *call, const ts_sink *w, const float *p, int64_t at, int64_t n) {
  const ts_rounding *rounding = &call->node->attr.adamw.rounding;
  if (rounding->stochastic) {
    uint64_t step = (uint64_t) * (const int64_t *) call->in[5];
    adamw_round((uint16_t *) w->data + at, p + at, n, rounding->key, step, rounding->first + at);
  } else {
    ts_sink_write(w, at, n, p + at);
  }
}

static void adamw_run(const ts_kernel_call *call) {
  enum { P, M, V, W, G, SKIP = 9 };
  if (*(const float *) call->in[SKIP] != 0.0f) {
    return;
  }
  float *p = call->out[P], *m = call->out[M], *v = call->out[V];
  bool has_copy = call->in[W] != NULL;
  TS_ASSERT(ts_call_in(call, P)->dtype == TS_F32 && p == call->in[P] && m == call->in[M] && v == call->in[V]);
  ts_source g = ts_source_of(call, G);
  ts_sink w = has_copy ? (ts_sink){.data = call->out[W], .dtype = ts_call_out(call, W)->dtype} : (ts_sink){0};
#pragma omp parallel num_threads(call->threads)
  for (int r = 0; r < call->node->attr.adamw.n; ++r) {
    const ts_range *range = &call->node->attr.adamw.range[r];
    const adamw_scalars scalars = adamw_scalars_of(call, range);
    int64_t end = range->offset + range->count;
#pragma omp for schedule(static) nowait
    for (int64_t at = range->offset; at < end; at += TS_TILE) {
      int64_t n = ts_min(TS_TILE, end - at);
      ts_tile buffer;
      adamw_tile(p + at, m + at, v + at, ts_source_read(&g, at, n, buffer), n, &scalars);
      if (has_copy) {
        adamw_copy(call, &w, p, at, n);
      }
    }
  }
}
TS_CPU_KERNEL(adamw) = {.run = adamw_run};
