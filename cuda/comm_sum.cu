/* Sums of reductions and conversions to the wire: runs of elements, a row of the grid each.  A thread takes LANES
 * elements, which is 16 bytes of bf16 or fp16 and twice that of fp32, or one where a run is not aligned to so many. */
#include "cuda/comm_sum.h"
#include "cuda/kernel.cuh"

enum { THREADS = 256, LANES = 8 };

struct copy_runs {
  ts_cuda_copy_run run[TS_CUDA_RUNS];
};
struct sum_runs {
  ts_cuda_sum_run run[TS_CUDA_RUNS];
};

/* Of all runs: most elements; whether every pointer allows vectors. */
struct extent {
  int64_t longest = 0;
  bool wide = true;
  void add(const void *pointer, ts_dtype dtype) {
    wide = wide && (uintptr_t) pointer % (LANES * ts_dtype_size(dtype)) == 0;
  }
  void add(int64_t count) {
    longest = count > longest ? count : longest;
  }
};

/* ---- copies ---- */

template <typename T, typename F, int N>
static __device__ __forceinline__ void copy_at(const ts_cuda_copy_run &run, float by, int64_t at) {
  float x[N];
  ts_load<N>(x, (const F *) run.from + at);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    x[i] *= by;
  }
  ts_store<N>((T *) run.to + at, x);
}

template <typename T, typename F, int N>
__global__ void __launch_bounds__(THREADS) copy_kernel(copy_runs runs, float by) {
  const ts_cuda_copy_run &run = runs.run[blockIdx.y];
  int64_t at = ((int64_t) blockIdx.x * THREADS + threadIdx.x) * N;
  if (at + N <= run.count) {
    copy_at<T, F, N>(run, by, at);
  } else {
    for (; at < run.count; ++at) {
      copy_at<T, F, 1>(run, by, at);
    }
  }
}

template <typename T, typename F>
static void launch_copy_runs(const copy_runs &runs, int n, extent e, float by, cudaStream_t stream) {
  if (e.wide) {
    ts_launch(copy_kernel<T, F, LANES>, dim3(ts_blocks(e.longest, THREADS * LANES), n), THREADS, 0, stream, runs, by);
  } else {
    ts_launch(copy_kernel<T, F, 1>, dim3(ts_blocks(e.longest, THREADS), n), THREADS, 0, stream, runs, by);
  }
}

void ts_cuda_copy_runs(const ts_cuda_copy_run *run, int n, ts_dtype to, ts_dtype from, float divisor, void *stream) {
  for (int first = 0; first < n; first += TS_CUDA_RUNS) {
    int some = n - first < TS_CUDA_RUNS ? n - first : TS_CUDA_RUNS;
    copy_runs runs = {};
    extent e;
    for (int i = 0; i < some; ++i) {
      runs.run[i] = run[first + i];
      e.add(runs.run[i].count);
      e.add(runs.run[i].to, to);
      e.add(runs.run[i].from, from);
    }
    TS_FOR_FLOATS(to, from, launch_copy_runs, runs, some, e, 1 / divisor, (cudaStream_t) stream);
  }
}

/* ---- sums ---- */

/* Rounded to the wire dtype W. */
template <typename W> static __device__ __forceinline__ float to_wire(float x) {
  return ts_float(ts_round<W>(x));
}

/* sum += x for N elements of \a from. */
template <typename W, int N, typename T>
static __device__ __forceinline__ void add_at(float *sum, const T *from, float by = 1.0f) {
  float x[N];
  ts_load<N>(x, from);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sum[i] += to_wire<W>(x[i] * by);
  }
}

/* y = sum, or scale y + sum formed in fp64, where the product of two fp32 is exact. */
template <typename Y, int N> static __device__ __forceinline__ void store_at(Y *y, float *sum, float scale) {
  if (scale != 0.0f) {
    float old[N];
    ts_load<N>(old, y);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum[i] = (float) ((double) scale * (double) old[i] + (double) sum[i]);
    }
  }
  ts_store<N>(y, sum);
}

template <typename X, typename W, typename Y, int N>
static __device__ __forceinline__ void sum_at(const ts_cuda_sum_run &run, int rank, int size, int64_t stride,
                                              float scale, float divisor, int64_t at) {
  const char *slot = (const char *) run.slots + at * (int64_t) sizeof(W);
  float sum[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sum[i] = -0.0f; /* which changes nothing it is added to, +0 and -0 included */
  }
#pragma unroll 4
  for (int from = 0; from < rank; ++from, slot += stride) {
    add_at<W, N>(sum, (const W *) slot);
  }
  add_at<W, N>(sum, (const X *) run.own + at, 1.0f / divisor);
#pragma unroll 4
  for (int from = rank + 1; from < size; ++from, slot += stride) {
    add_at<W, N>(sum, (const W *) slot);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sum[i] *= divisor;
  }
  store_at<Y, N>((Y *) run.y + at, sum, scale);
}

template <typename X, typename W, typename Y, int N>
__global__ void __launch_bounds__(THREADS, 4)
    sum_kernel(sum_runs runs, const float *beta, float divisor, int rank, int size, int64_t stride) {
  const ts_cuda_sum_run &run = runs.run[blockIdx.y];
  float scale = beta != nullptr ? *beta : 0.0f;
  int64_t at = ((int64_t) blockIdx.x * THREADS + threadIdx.x) * N;
  if (at + N <= run.count) {
    sum_at<X, W, Y, N>(run, rank, size, stride, scale, divisor, at);
  } else {
    for (; at < run.count; ++at) {
      sum_at<X, W, Y, 1>(run, rank, size, stride, scale, divisor, at);
    }
  }
}

template <typename X, typename W, typename Y>
static void launch_sum(const ts_cuda_reduction *s, const sum_runs &runs, int n, extent e, cudaStream_t stream) {
  if (e.wide) {
    ts_launch(sum_kernel<X, W, Y, LANES>, dim3(ts_blocks(e.longest, THREADS * LANES), n), THREADS, 0, stream, runs,
              s->beta, s->divisor, s->rank, s->size, s->stride);
  } else {
    ts_launch(sum_kernel<X, W, Y, 1>, dim3(ts_blocks(e.longest, THREADS), n), THREADS, 0, stream, runs, s->beta,
              s->divisor, s->rank, s->size, s->stride);
  }
}

template <typename X, typename W>
static void launch_sum_into(const ts_cuda_reduction *s, const sum_runs &runs, int n, extent e, cudaStream_t stream) {
  if (s->y == TS_F32) {
    launch_sum<X, W, float>(s, runs, n, e, stream);
  } else if (s->y == TS_BF16) {
    launch_sum<X, W, ts_bf16>(s, runs, n, e, stream);
  } else {
    launch_sum<X, W, ts_f16>(s, runs, n, e, stream);
  }
}

void ts_cuda_sum_runs(const ts_cuda_reduction *s, const ts_cuda_sum_run *run, int n, void *stream) {
  TS_ASSERT(ts_dtype_is_working(s->y));
  for (int first = 0; first < n; first += TS_CUDA_RUNS) {
    int some = n - first < TS_CUDA_RUNS ? n - first : TS_CUDA_RUNS;
    sum_runs runs = {};
    extent e;
    e.wide = s->stride % (int64_t) (LANES * ts_dtype_size(s->wire)) == 0;
    for (int i = 0; i < some; ++i) {
      runs.run[i] = run[first + i];
      e.add(runs.run[i].count);
      e.add(runs.run[i].y, s->y);
      e.add(runs.run[i].own, s->own);
      e.add(runs.run[i].slots, s->wire);
    }
    TS_FOR_FLOATS(s->own, s->wire, launch_sum_into, s, runs, some, e, (cudaStream_t) stream);
  }
}
