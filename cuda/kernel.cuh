/** \file
 * What the kernels share: element types, vectors of 16 bytes, sums over warps and blocks, and how an entry reads its
 * call.
 *
 * Rules for every kernel here.  It compiles with nvcc and as host C++ (cuda/machine.cuh).  It adds in a fixed order
 * that depends on the shape alone: no atomics on floats.  It computes in fp32 or wider and rounds once.  It reads and
 * writes 16 bytes a thread where rows allow it.  With a prior, out = beta prior + f; beta == 0 never reads the prior.
 */
#ifndef TS_CUDA_KERNEL_CUH
#define TS_CUDA_KERNEL_CUH

#include "cuda/device.h"
#include "cuda/machine.cuh"

extern "C" {
#include "backend/backend.h"
#include "graph/op.h"
}

typedef __nv_bfloat16 ts_bf16;
typedef __half ts_f16;

/** Of powers of e as powers of 2. */
#define TS_LOG2E 1.4426950408889634f

enum { TS_WARP = 32 };

/* ---- elements ---- */

static __device__ __forceinline__ float ts_float(float x) {
  return x;
}
static __device__ __forceinline__ float ts_float(ts_bf16 x) {
  return __bfloat162float(x);
}
static __device__ __forceinline__ float ts_float(ts_f16 x) {
  return __half2float(x);
}
template <typename T> __device__ __forceinline__ T ts_round(float x);
template <> __device__ __forceinline__ float ts_round<float>(float x) {
  return x;
}
template <> __device__ __forceinline__ ts_bf16 ts_round<ts_bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ ts_f16 ts_round<ts_f16>(float x) {
  return __float2half_rn(x);
}

/** N elements that are read and written together. */
template <typename T, int N> struct __align__(sizeof(T) * N) ts_vector {
  T x[N];
};

/** Elements of 16 bytes. */
template <typename T> constexpr int ts_lanes = 16 / (int) sizeof(T);

/** N elements at \a from (aligned to their size) as floats, and back. */
template <int N, typename T> static __device__ __forceinline__ void ts_load(float *to, const T *from) {
  ts_vector<T, N> v = *(const ts_vector<T, N> *) from;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    to[i] = ts_float(v.x[i]);
  }
}
template <int N, typename T> static __device__ __forceinline__ void ts_store(T *to, const float *from) {
  ts_vector<T, N> v;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    v.x[i] = ts_round<T>(from[i]);
  }
  *(ts_vector<T, N> *) to = v;
}

/** What an output adds to. */
template <typename T> struct ts_prior {
  const T *data;     /**< NULL: none. */
  const float *beta; /**< NULL: 1. */
};

/** beta, or 0 where there is no prior. */
template <typename T> static __device__ __forceinline__ float ts_prior_beta(ts_prior<T> prior) {
  return prior.data == nullptr ? 0.0f : prior.beta == nullptr ? 1.0f : *prior.beta;
}

/** x += beta prior for N elements from \a at on. */
template <int N, typename T>
static __device__ __forceinline__ void ts_add_prior(float *x, ts_prior<T> prior, float beta, int64_t at) {
  if (beta != 0.0f) {
    float old[N];
    ts_load<N>(old, prior.data + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[i] += beta * old[i];
    }
  }
}

/* ---- sums ---- */

/** Sum over the warp, in every lane. */
template <typename T> static __device__ __forceinline__ T ts_warp_sum(T x) {
#pragma unroll
  for (int lane = TS_WARP / 2; lane > 0; lane /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, lane);
  }
  return x;
}

static __device__ __forceinline__ float ts_warp_max(float x) {
#pragma unroll
  for (int lane = TS_WARP / 2; lane > 0; lane /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  }
  return x;
}

/** Sum over a block of whole warps, in every thread.
 * \param scratch  Shared, one element a warp; free again when the function returns. */
template <typename T> static __device__ __forceinline__ T ts_block_sum(T x, T *scratch) {
  int warp = (int) threadIdx.x / TS_WARP, warps = (int) blockDim.x / TS_WARP;
  x = ts_warp_sum(x);
  if (threadIdx.x % TS_WARP == 0) {
    scratch[warp] = x;
  }
  __syncthreads();
  T sum = 0;
  for (int w = 0; w < warps; ++w) {
    sum += scratch[w];
  }
  __syncthreads();
  return sum;
}

/* ---- the entries ---- */

/** The stream of a call. */
static inline cudaStream_t ts_call_stream(const ts_kernel_call *call) {
  return (cudaStream_t) call->stream;
}

/** What output \a i of a call adds to. */
template <typename T> static inline ts_prior<T> ts_call_prior(const ts_kernel_call *call, int i) {
  const void *data = call->prior == NULL ? NULL : call->prior[i];
  return {(const T *) data, call->beta};
}

static inline int64_t ts_columns_of(const ts_tensor *t) {
  return t->shape.d[t->shape.n - 1];
}

/** Blocks of \a size threads for \a count items of work; no more than a grid has. */
static inline unsigned ts_blocks(int64_t count, int64_t size) {
  int64_t blocks = (count + size - 1) / size;
  TS_ASSERT(blocks >= 0 && blocks <= INT32_MAX);
  return (unsigned) blocks;
}

/** True when rows of \a columns elements of T and all \a n pointers allow 16-byte accesses. */
template <typename T> static inline bool ts_is_wide(int64_t columns, const void *const *pointer, int n) {
  bool wide = columns % ts_lanes<T> == 0;
  for (int i = 0; i < n; ++i) {
    wide = wide && (uintptr_t) pointer[i] % 16 == 0;
  }
  return wide;
}

/** Call F<T> (args...) for the dtype of a tensor, F32, BF16 or F16: TS_FOR_FLOAT (dtype, run, call); F is a template of
 * one type. */
#define TS_FOR_FLOAT(dtype, F, ...)        \
  do {                                     \
    TS_ASSERT(ts_dtype_is_working(dtype)); \
    if ((dtype) == TS_F32) {               \
      F<float>(__VA_ARGS__);               \
    } else if ((dtype) == TS_BF16) {       \
      F<ts_bf16>(__VA_ARGS__);             \
    } else {                               \
      F<ts_f16>(__VA_ARGS__);              \
    }                                      \
  } while (0)

/** The same for two dtypes: F<A, B>. */
#define TS_FOR_FLOATS(a, b, F, ...)              \
  do {                                           \
    TS_ASSERT(ts_dtype_is_working(a));           \
    if ((a) == TS_F32) {                         \
      TS_FOR_SECOND(float, b, F, __VA_ARGS__);   \
    } else if ((a) == TS_BF16) {                 \
      TS_FOR_SECOND(ts_bf16, b, F, __VA_ARGS__); \
    } else {                                     \
      TS_FOR_SECOND(ts_f16, b, F, __VA_ARGS__);  \
    }                                            \
  } while (0)
#define TS_FOR_SECOND(A, b, F, ...)    \
  do {                                 \
    TS_ASSERT(ts_dtype_is_working(b)); \
    if ((b) == TS_F32) {               \
      F<A, float>(__VA_ARGS__);        \
    } else if ((b) == TS_BF16) {       \
      F<A, ts_bf16>(__VA_ARGS__);      \
    } else {                           \
      F<A, ts_f16>(__VA_ARGS__);       \
    }                                  \
  } while (0)

#endif
