/* Element-wise optimizers in one sweep over the flat shard: AdamW with fp32 states moves 28 bytes an element (26 with
 * gradients in bf16), 2 more with a bf16 working copy, 10 less with each state in bf16.  The types are looked at as it
 * runs, the same way by all threads: a sweep is bound by memory. */
#include "cuda/philox.cuh"

extern "C" {
#include "backend/dynamic_map.h"
#include "backend/update_rules.h"
}

enum {
  THREADS = 256,
  MOST_RANGES = 80,               /* of a launch */
  EACH = 4,                       /* elements of a thread at a time */
  ELEMENTS = 8 * THREADS * EACH,  /* of a block */
  SHARERS = TS_STATE_BLOCK / EACH /* threads of a scale */
};

/* Ranges of a launch, by value; `before`: blocks of the ranges before. */
struct update_ranges {
  int n;
  int64_t offset[MOST_RANGES], count[MOST_RANGES], before[MOST_RANGES];
  float weight_decay[MOST_RANGES], lr_factor[MOST_RANGES];
  int ratio[MOST_RANGES];
};

/* p, w, g or a state: an operand of kernels_optimizer.c. */
struct operand {
  void *data; /* NULL: there is none */
  ts_dtype dtype;
  float *scales; /* of a state in 8 bits */
  bool has_sign;
};

struct sweep {
  operand p, w, g, a, b;
  const int64_t *step;
  const double *corrections;
  const float *lr, *betas, *scale, *skip, *ratios; /* no ratios: NULL */
  ts_optimizer_numbers numbers;
  ts_rounding rounding;
};

static __device__ const float signed_map[256] = TS_DYNAMIC_MAP_SIGNED, unsigned_map[256] = TS_DYNAMIC_MAP_UNSIGNED;

static __device__ __forceinline__ const float *map_of(const operand &x) {
  return x.has_sign ? signed_map : unsigned_map;
}

/* ---- what is read and written: n of EACH elements, together where they are all there and lie so ---- */

template <typename T>
static __device__ __forceinline__ void load_values(float x[EACH], const void *from, int64_t at, int n, bool wide) {
  const T *data = (const T *) from + at;
  if (wide && n == EACH) {
    ts_load<EACH>(x, data);
  } else {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (i < n) {
        x[i] = ts_float(data[i]);
      }
    }
  }
}

template <typename T>
static __device__ __forceinline__ void store_values(void *to, int64_t at, int n, bool wide, const float x[EACH]) {
  T *data = (T *) to + at;
  if (wide && n == EACH) {
    ts_store<EACH>(data, x);
  } else {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (i < n) {
        data[i] = ts_round<T>(x[i]);
      }
    }
  }
}

static __device__ __forceinline__ void load_operand(float x[EACH], const operand &from, int64_t at, int n, bool wide) {
  if (from.data == nullptr || n <= 0) {
    return;
  }
  if (from.scales != nullptr) {
    const uint8_t *code = (const uint8_t *) from.data + at;
    const float *map = map_of(from);
    float scale = from.scales[at / TS_STATE_BLOCK];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (i < n) {
        x[i] = map[code[i]] * scale;
      }
    }
  } else if (from.dtype == TS_F32) {
    load_values<float>(x, from.data, at, n, wide);
  } else if (from.dtype == TS_BF16) {
    load_values<ts_bf16>(x, from.data, at, n, wide);
  } else {
    load_values<ts_f16>(x, from.data, at, n, wide);
  }
}

static __device__ __forceinline__ void store_operand(const operand &to, int64_t at, int n, bool wide,
                                                     const float x[EACH]) {
  if (to.data == nullptr || n <= 0) {
    return;
  }
  if (to.dtype == TS_F32) {
    store_values<float>(to.data, at, n, wide, x);
  } else if (to.dtype == TS_BF16) {
    store_values<ts_bf16>(to.data, at, n, wide, x);
  } else {
    store_values<ts_f16>(to.data, at, n, wide, x);
  }
}

/* A state in 8 bits, by all threads of the block: those of a scale find their largest magnitude together. */
static __device__ void store_codes(const operand &to, int64_t at, int n, const float x[EACH], float *scratch) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    if (i < n) {
      most = fmaxf(most, isnan(x[i]) ? INFINITY : fabsf(x[i])); /* what is NaN makes its block NaN */
    }
  }
  most = ts_warp_max(most);
  int warp = (int) threadIdx.x / TS_WARP, each = SHARERS / TS_WARP, first = warp / each * each;
  if (threadIdx.x % TS_WARP == 0) {
    scratch[warp] = most;
  }
  __syncthreads();
  for (int w = 0; w < each; ++w) {
    most = fmaxf(most, scratch[first + w]);
  }
  __syncthreads();
  if (n > 0 && threadIdx.x % SHARERS == 0) {
    to.scales[at / TS_STATE_BLOCK] = most;
  }
  uint8_t *code = (uint8_t *) to.data + at;
  float by = most > 0 ? most : 1.0f;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    if (i < n) {
      code[i] = ts_update_code(x[i] / by, map_of(to), to.has_sign);
    }
  }
}

static __device__ __forceinline__ void store_state(const operand &to, int64_t at, int n, bool wide, const float x[EACH],
                                                   float *scratch) {
  if (to.scales != nullptr) {
    store_codes(to, at, n, x, scratch);
  } else {
    store_operand(to, at, n, wide, x);
  }
}

/* What the model computes with: the copy, or p itself. */
static __device__ __forceinline__ void store_working(const sweep &s, const operand &to, int64_t at, int n, bool wide,
                                                     const float x[EACH]) {
  if (!s.rounding.stochastic) {
    store_operand(to, at, n, wide, x);
    return;
  }
  ts_bf16 *data = (ts_bf16 *) to.data + at;
  int64_t element = s.rounding.first + at;
  if (wide && n == EACH && element % EACH == 0) {
    ts_store_rounded<EACH>(data, x, s.rounding.key, (uint64_t) *s.step, element);
  } else {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (i < n) {
        ts_store_rounded<1>(data + i, x + i, s.rounding.key, (uint64_t) *s.step, element + i);
      }
    }
  }
}

/* ---- the sweep ---- */

/* Of x and y one is p and one is g (TS_UPDATE_G). */
template <ts_optimizer RULE> struct rule_at;
#define ELEMENT x, y
#define TENSOR y, x
#define MATRIX y, x
#define OPTIMIZER(ENUM, name, granularity, ...)                                         \
  template <> struct rule_at<TS_OPTIMIZER_##ENUM> {                                     \
    static __device__ __forceinline__ float apply(float x, float y, float *a, float *b, \
                                                  const ts_update_constants *k) {       \
      return ts_update_##name(granularity, a, b, k);                                    \
    }                                                                                   \
  };
#include "graph/optimizers.def"
#undef OPTIMIZER
#undef ELEMENT
#undef TENSOR
#undef MATRIX

/* The last range that begins at or before a block. */
static __device__ __forceinline__ int range_at(const update_ranges &ranges, int64_t block) {
  int r = 0;
  for (int by = 64; by > 0; by /= 2) {
    r += r + by < ranges.n && ranges.before[r + by] <= block ? by : 0;
  }
  return r;
}
static_assert(MOST_RANGES <= 128, "range_at");

/* A block never crosses a range's end; one thread computes its constants. */
template <ts_optimizer RULE>
__global__ void __launch_bounds__(THREADS)
    update_elements(const __grid_constant__ sweep s, const __grid_constant__ update_ranges ranges, bool aligned) {
  TS_SHARED(ts_update_constants, k, 1);
  TS_SHARED(float, scratch, THREADS / TS_WARP);
  if (*s.skip != 0.0f) {
    return;
  }
  int r = range_at(ranges, blockIdx.x);
  if (threadIdx.x == 0) {
    const ts_update_step step = {
        *s.step, {s.corrections[0], s.corrections[1]}, *s.lr, {s.betas[0], s.betas[1]}, *s.scale};
    float ratio = s.ratios != nullptr ? s.ratios[ranges.ratio[r]] : 1.0f;
    k[0] = ts_update_constants_of(RULE, &s.numbers, &step, ranges.weight_decay[r], ranges.lr_factor[r], ratio);
  }
  __syncthreads();
  int64_t first = ranges.offset[r] + ((int64_t) blockIdx.x - ranges.before[r]) * ELEMENTS;
  int64_t end = ranges.offset[r] + ranges.count[r], last = first + ELEMENTS < end ? first + ELEMENTS : end;
  bool wide = aligned && ranges.offset[r] % EACH == 0;
#pragma unroll 1
  for (int64_t from = first; from < last; from += THREADS * EACH) {
    int64_t at = from + (int) threadIdx.x * EACH;
    int n = at + EACH <= last ? (int) EACH : at < last ? (int) (last - at) : 0;
    float p[EACH] = {}, g[EACH] = {}, a[EACH] = {}, b[EACH] = {};
    load_operand(p, s.p, at, n, wide);
    load_operand(g, s.g, at, n, wide);
    load_operand(a, s.a, at, n, wide);
    load_operand(b, s.b, at, n, wide);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      p[i] = rule_at<RULE>::apply(p[i], g[i], &a[i], &b[i], k);
    }
    store_state(s.a, at, n, wide, a, scratch);
    store_state(s.b, at, n, wide, b, scratch);
    if (s.w.data != nullptr) {
      store_operand(s.p, at, n, wide, p);
      store_working(s, s.w, at, n, wide, p);
    } else {
      store_working(s, s.p, at, n, wide, p);
    }
  }
}

typedef void update_kernel(sweep s, update_ranges ranges, bool aligned);

/* ---- the entry ---- */

static operand call_operand(const ts_kernel_call *call, int i) {
  TS_ASSERT(i < 0 || i >= call->node->n_out || call->out[i] == call->in[i]);
  return i < 0 ? operand{} : operand{(void *) call->in[i], ts_call_in(call, i)->dtype, nullptr, false};
}

static operand call_state(const ts_kernel_call *call, const ts_update_slots *slots, int i) {
  operand x = call_operand(call, slots->state[i]);
  if (x.data != nullptr && slots->scales[i] >= 0) {
    x.has_sign = ts_state_has_sign(ts_optimizer_get(call->node->attr.update.rule)->state[i]);
    x.scales = (float *) call->out[slots->scales[i]];
  }
  return x;
}

static const void *call_number(const ts_kernel_call *call, ts_update_input input) {
  return call->in[ts_update_at(call->node, input)];
}

static bool is_in_step(const operand &x) {
  return (uintptr_t) x.data % (EACH * ts_dtype_size(x.dtype)) == 0;
}

static void update_elements_launch(const ts_kernel_call *call) {
  static update_kernel *const kernels[TS_N_OPTIMIZERS] = {
#define OPTIMIZER(ENUM, ...) update_elements<TS_OPTIMIZER_##ENUM>,
#include "graph/optimizers.def"
#undef OPTIMIZER
  };
  const ts_attr *attr = &call->node->attr;
  const ts_update_slots slots = ts_update_slots_of(call->graph, call->node);
  const sweep s = {call_operand(call, 0),
                   call_operand(call, slots.copy),
                   call_operand(call, ts_update_at(call->node, TS_UPDATE_G)),
                   call_state(call, &slots, 0),
                   call_state(call, &slots, 1),
                   (const int64_t *) call_number(call, TS_UPDATE_STEP),
                   (const double *) call_number(call, TS_UPDATE_CORRECTIONS),
                   (const float *) call_number(call, TS_UPDATE_LR),
                   (const float *) call_number(call, TS_UPDATE_BETAS),
                   (const float *) call_number(call, TS_UPDATE_SCALE),
                   (const float *) call_number(call, TS_UPDATE_SKIP),
                   attr->update.has_ratios ? (const float *) call_number(call, TS_UPDATE_RATIOS) : nullptr,
                   attr->update.numbers,
                   attr->update.rounding};
  bool aligned = is_in_step(s.p) && is_in_step(s.w) && is_in_step(s.g) && is_in_step(s.a) && is_in_step(s.b);
  for (int r = 0; r < attr->update.n;) {
    update_ranges ranges = {};
    int64_t blocks = 0;
    for (; r < attr->update.n && ranges.n < MOST_RANGES; ++r, ++ranges.n) {
      const ts_range *range = &attr->update.range[r];
      ranges.offset[ranges.n] = range->offset;
      ranges.count[ranges.n] = range->count;
      ranges.before[ranges.n] = blocks;
      ranges.weight_decay[ranges.n] = range->weight_decay;
      ranges.lr_factor[ranges.n] = range->lr_factor;
      ranges.ratio[ranges.n] = (int) range->ratio;
      blocks += (range->count + ELEMENTS - 1) / ELEMENTS;
    }
    ts_launch(kernels[attr->update.rule], (unsigned) blocks, THREADS, 0, ts_call_stream(call), s, ranges, aligned);
  }
}

const ts_kernel *ts_cuda_optimizer(ts_op op) {
  static const ts_kernel elements = {NULL, update_elements_launch, NULL}, none = {};
  return op == TS_OP_UPDATE_ELEMENTS ? &elements : &none;
}
