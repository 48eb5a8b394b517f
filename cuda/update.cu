/* The update: control of a step, and AdamW in one sweep over the flat shard: 28 bytes an element (26 with gradients in
 * bf16), 2 more with a bf16 working copy. */
#include "cuda/philox.cuh"
#include "graph/record.h"

enum { THREADS = 256, MOST_RANGES = 80 /* of a launch */, EACH = 4, ELEMENTS = 8 * THREADS * EACH /* of a block */ };

/* ---- control ---- */

/* Columns in parallel, the rows of each in order; then one thread adds the columns in order. */
static __global__ void __launch_bounds__(THREADS)
    step_control(double *summary, float *scale, float *skip, double *__restrict__ sum,
                 const double *__restrict__ records, const double *__restrict__ static_tokens,
                 const float *__restrict__ max_norm, const float *__restrict__ loss_scale, int64_t rows, int columns) {
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
  double factor = *static_tokens / sum[TS_RECORD_VALID] / (double) *loss_scale, norm = factor * sqrt(squares);
  bool bad = !isfinite(sum[TS_RECORD_LOSS]) || !isfinite(norm) || !(sum[TS_RECORD_VALID] > 0);
  double most = (double) *max_norm, clip = most > 0 ? fmin(1.0, most / (norm + 1e-6)) : 1.0;
  summary[TS_SUMMARY_LOSS] = sum[TS_RECORD_LOSS];
  summary[TS_SUMMARY_VALID] = sum[TS_RECORD_VALID];
  summary[TS_SUMMARY_NORM] = norm;
  for (int i = 0; i < TS_N_FLAGS; ++i) {
    summary[TS_SUMMARY_FLAGS + i] = sum[TS_RECORD_FLAGS + i];
  }
  summary[TS_SUMMARY_SKIP] = bad ? 1.0 : 0.0;
  *scale = (float) (factor * clip);
  *skip = bad ? 1.0f : 0.0f;
}

static size_t step_control_set_up(const ts_target *, const ts_graph *graph, const ts_node *node, void **) {
  return (size_t) graph->tensor[node->in[0]].shape.d[1] * sizeof(double);
}

static void step_control_launch(const ts_kernel_call *call) {
  const ts_shape *shape = &ts_call_in(call, 0)->shape;
  ts_launch(step_control, 1, THREADS, 0, ts_call_stream(call), (double *) call->out[0], (float *) call->out[1],
            (float *) call->out[2], (double *) call->workspace, (const double *) call->in[0],
            (const double *) call->in[1], (const float *) call->in[2], (const float *) call->in[3], shape->d[0],
            (int) shape->d[1]);
}

static __global__ void advance_number(int64_t *to, const int64_t *from, const float *skip) {
  *to = *from + (*skip == 0.0f ? 1 : 0);
}

static void advance_launch(const ts_kernel_call *call) {
  ts_launch(advance_number, 1, 1, 0, ts_call_stream(call), (int64_t *) call->out[0], (const int64_t *) call->in[0],
            (const float *) call->in[1]);
}

/* ---- AdamW ---- */

/* Ranges of a launch, by value; `before`: blocks of the ranges before. */
struct adamw_ranges {
  int n;
  int64_t offset[MOST_RANGES], count[MOST_RANGES], before[MOST_RANGES];
  float weight_decay[MOST_RANGES], lr_factor[MOST_RANGES];
};

struct adamw_state {
  float *p, *m, *v;
  ts_bf16 *w; /* working copy, NULL: none */
  const int64_t *step;
  const float *lr, *beta, *scale, *skip;
  float eps;
  bool decoupled, bias_correction;
  ts_rounding rounding; /* of w */
};

/* The scalars of a range in this step. */
struct adamw_scalars {
  float scale, keep, l2, beta1, rest1, beta2, rest2, rate, root, eps;
};

static __device__ adamw_scalars scalars_of(const adamw_state &s, float weight_decay, float lr_factor) {
  double step = (double) *s.step, lr = (double) *s.lr * (double) lr_factor;
  double beta1 = (double) s.beta[0], beta2 = (double) s.beta[1];
  double correction1 = s.bias_correction ? -expm1(step * log(beta1)) : 1.0; /* 1 - beta^step */
  double correction2 = s.bias_correction ? -expm1(step * log(beta2)) : 1.0;
  adamw_scalars k;
  k.scale = *s.scale;
  k.keep = s.decoupled ? (float) (1.0 - lr * (double) weight_decay) : 1.0f;
  k.l2 = s.decoupled ? 0.0f : weight_decay;
  k.beta1 = s.beta[0];
  k.rest1 = (float) (1.0 - beta1);
  k.beta2 = s.beta[1];
  k.rest2 = (float) (1.0 - beta2);
  k.rate = (float) (lr / correction1);
  k.root = (float) (1.0 / sqrt(correction2));
  k.eps = s.eps;
  return k;
}

template <typename T, bool CHANCE, int W>
static __device__ __forceinline__ void update_elements(const adamw_state &s, const T *g, const adamw_scalars &k,
                                                       int64_t at) {
  float p[W], m[W], v[W], gradient[W];
  ts_load<W>(p, s.p + at);
  ts_load<W>(m, s.m + at);
  ts_load<W>(v, s.v + at);
  ts_load<W>(gradient, g + at);
#pragma unroll
  for (int i = 0; i < W; ++i) {
    float d = gradient[i] * k.scale + k.l2 * p[i];
    m[i] = k.beta1 * m[i] + k.rest1 * d;
    v[i] = k.beta2 * v[i] + k.rest2 * d * d;
    p[i] = k.keep * p[i] - k.rate * (m[i] / (sqrtf(v[i]) * k.root + k.eps));
  }
  ts_store<W>(s.p + at, p);
  ts_store<W>(s.m + at, m);
  ts_store<W>(s.v + at, v);
  if constexpr (CHANCE) {
    ts_store_rounded<W>(s.w + at, p, s.rounding.key, (uint64_t) *s.step, s.rounding.first + at);
  } else if (s.w != NULL) {
    ts_store<W>(s.w + at, p);
  }
}

/* The last range that begins at or before a block. */
static __device__ __forceinline__ int range_of(const adamw_ranges &ranges, int64_t block) {
  int r = 0;
  for (int by = 64; by > 0; by /= 2) {
    r += r + by < ranges.n && ranges.before[r + by] <= block ? by : 0;
  }
  return r;
}
static_assert(MOST_RANGES <= 128, "range_of");

/* A block never crosses a range's end; one thread computes its scalars.  CHANCE: w is rounded by chance; vectors then
 * begin at multiples of EACH in the flat range too. */
template <typename T, bool CHANCE>
__global__ void __launch_bounds__(THREADS)
    adamw(adamw_state s, const T *g, const __grid_constant__ adamw_ranges ranges, bool wide) {
  TS_SHARED(adamw_scalars, k, 1);
  if (*s.skip != 0.0f) {
    return;
  }
  int r = range_of(ranges, blockIdx.x);
  if (threadIdx.x == 0) {
    k[0] = scalars_of(s, ranges.weight_decay[r], ranges.lr_factor[r]);
  }
  __syncthreads();
  adamw_scalars mine = k[0];
  int64_t first = ranges.offset[r] + ((int64_t) blockIdx.x - ranges.before[r]) * ELEMENTS;
  int64_t end = ranges.offset[r] + ranges.count[r], last = first + ELEMENTS < end ? first + ELEMENTS : end;
  bool in_step = ranges.offset[r] % EACH == 0 && (!CHANCE || s.rounding.first % EACH == 0);
  int64_t singles = wide && in_step ? last - (last - first) % EACH : first;
#pragma unroll 1
  for (int64_t at = first + (int) threadIdx.x * EACH; at < singles; at += THREADS * EACH) {
    update_elements<T, CHANCE, EACH>(s, g, mine, at);
  }
#pragma unroll 1
  for (int64_t at = singles + threadIdx.x; at < last; at += THREADS) {
    update_elements<T, CHANCE, 1>(s, g, mine, at);
  }
}

enum { P, M, V, W_COPY, G, STEP, LR, BETAS, SCALE, SKIP };

template <typename T, bool CHANCE> static void launch_ranges(const ts_kernel_call *call) {
  const ts_attr *attr = &call->node->attr;
  bool has_copy = call->in[W_COPY] != NULL;
  TS_ASSERT(call->out[P] == call->in[P] && call->out[M] == call->in[M] && call->out[V] == call->in[V]);
  TS_ASSERT(!has_copy || ts_call_out(call, W_COPY)->dtype == TS_BF16);
  adamw_state s = {(float *) call->out[P],
                   (float *) call->out[M],
                   (float *) call->out[V],
                   has_copy ? (ts_bf16 *) call->out[W_COPY] : NULL,
                   (const int64_t *) call->in[STEP],
                   (const float *) call->in[LR],
                   (const float *) call->in[BETAS],
                   (const float *) call->in[SCALE],
                   (const float *) call->in[SKIP],
                   attr->adamw.eps,
                   attr->adamw.decoupled,
                   attr->adamw.bias_correction,
                   attr->adamw.rounding};
  const void *all[] = {s.p, s.m, s.v, s.w, call->in[G]};
  bool wide = ts_is_wide<T>(ts_lanes<T>, all, 5);
  for (int r = 0; r < attr->adamw.n;) {
    adamw_ranges ranges = {};
    int64_t blocks = 0;
    for (; r < attr->adamw.n && ranges.n < MOST_RANGES; ++r, ++ranges.n) {
      const ts_range *range = &attr->adamw.range[r];
      ranges.offset[ranges.n] = range->offset;
      ranges.count[ranges.n] = range->count;
      ranges.before[ranges.n] = blocks;
      ranges.weight_decay[ranges.n] = range->weight_decay;
      ranges.lr_factor[ranges.n] = range->lr_factor;
      blocks += (range->count + ELEMENTS - 1) / ELEMENTS;
    }
    ts_launch(adamw<T, CHANCE>, (unsigned) blocks, THREADS, 0, ts_call_stream(call), s, (const T *) call->in[G], ranges,
              wide);
  }
}

template <typename T> static void launch_adamw(const ts_kernel_call *call) {
  if (call->node->attr.adamw.rounding.stochastic) {
    TS_ASSERT(call->in[W_COPY] != NULL);
    launch_ranges<T, true>(call);
  } else {
    launch_ranges<T, false>(call);
  }
}

static void adamw_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, G)->dtype, launch_adamw, call);
}

const ts_kernel *ts_cuda_update(ts_op op) {
  static const ts_kernel control = {step_control_set_up, step_control_launch, NULL},
                         advance = {NULL, advance_launch, NULL}, adamw = {NULL, adamw_launch, NULL}, none = {};
  return op == TS_OP_STEP_CONTROL ? &control : op == TS_OP_ADVANCE ? &advance : op == TS_OP_ADAMW ? &adamw : &none;
}
