/* Exchanged blocks: copies of rows that lie apart, a block a row of the grid, in the widest units that all of a launch
 * allow; and sums of parts, a thread 16 bytes of the result, or one element where a part is not aligned to so many. */
#include "cuda/comm_blocks.h"
#include "cuda/kernel.cuh"

enum { THREADS = 256 };

struct copy_blocks {
  ts_cuda_block_copy block[TS_CUDA_BLOCKS];
};
struct some_parts {
  ts_cuda_part part[TS_CUDA_BLOCKS];
};

/* A division of 64 bits takes several times as long as one of 32. */
static __device__ __forceinline__ int64_t quotient(int64_t a, int64_t b) {
  return (a | b) >> 32 == 0 ? (int64_t) ((uint32_t) a / (uint32_t) b) : a / b;
}

/* ---- copies ---- */

template <typename U> __global__ void __launch_bounds__(THREADS) copy_blocks_kernel(copy_blocks list) {
  const ts_cuda_block_copy &b = list.block[blockIdx.y];
  int64_t units = b.width / (int64_t) sizeof(U), at = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (at >= units * b.rows * b.batches) {
    return;
  }
  int64_t above = quotient(at, units), unit = at - above * units;
  int64_t batch = quotient(above, b.rows), row = above - batch * b.rows;
  const char *from = (const char *) b.from.data + batch * b.from.batch + row * b.from.row;
  char *to = (char *) b.to.data + batch * b.to.batch + row * b.to.row;
  ((U *) to)[unit] = ((const U *) from)[unit];
}

/* Units of 2^k bytes, k as large as everything that is or'ed together allows, 4 at most. */
static uint64_t alignment_of(const ts_cuda_slab *slab) {
  return (uint64_t) (uintptr_t) slab->data | (uint64_t) slab->row | (uint64_t) slab->batch;
}

template <typename U> static void launch_copies_by(const copy_blocks &list, int n, int64_t bytes, cudaStream_t stream) {
  ts_launch(copy_blocks_kernel<U>, dim3(ts_blocks(bytes / (int64_t) sizeof(U), THREADS), n), THREADS, 0, stream, list);
}

static void copy_some(const ts_cuda_block_copy *block, int n, cudaStream_t stream) {
  copy_blocks list = {};
  uint64_t bits = 0;
  int64_t most = 0;
  for (int i = 0; i < n; ++i) {
    int64_t bytes = block[i].batches * block[i].rows * block[i].width;
    list.block[i] = block[i];
    bits |= alignment_of(&block[i].to) | alignment_of(&block[i].from) | (uint64_t) block[i].width;
    most = bytes > most ? bytes : most;
  }
  if (most == 0) {
    return;
  }
  if (bits % 16 == 0) {
    launch_copies_by<uint4>(list, n, most, stream);
  } else if (bits % 4 == 0) {
    launch_copies_by<uint32_t>(list, n, most, stream);
  } else if (bits % 2 == 0) {
    launch_copies_by<uint16_t>(list, n, most, stream);
  } else {
    launch_copies_by<uint8_t>(list, n, most, stream);
  }
}

void ts_cuda_copy_blocks(const ts_cuda_block_copy *block, int n, void *stream) {
  for (int first = 0; first < n; first += TS_CUDA_BLOCKS) {
    copy_some(block + first, n - first < TS_CUDA_BLOCKS ? n - first : TS_CUDA_BLOCKS, (cudaStream_t) stream);
  }
}

/* ---- sums ---- */

/* A recorded launch keeps its parameters; host memory it could not read again. */
__global__ void put_parts_kernel(ts_cuda_part *to, some_parts from, int n) {
  if ((int) threadIdx.x < n) {
    to[threadIdx.x] = from.part[threadIdx.x];
  }
}

static bool allows_vectors(const ts_cuda_part *p, int64_t lanes) {
  return alignment_of(&p->from) % 16 == 0 && p->columns.begin % lanes == 0 && p->columns.length % lanes == 0;
}

void ts_cuda_put_parts(ts_cuda_total *total, const ts_cuda_part *part, int n, void *stream) {
  TS_ASSERT(n <= TS_CUDA_BLOCKS);
  some_parts some = {};
  for (int i = 0; i < n; ++i) {
    some.part[i] = part[i];
    total->wide = total->wide && allows_vectors(&part[i], 16 / (int64_t) ts_dtype_size(total->dtype));
  }
  if (n > 0) {
    ts_launch(put_parts_kernel, dim3(1), TS_CUDA_BLOCKS, 0, (cudaStream_t) stream, total->part + total->n, some, n);
    total->n += n;
  }
}

static __device__ __forceinline__ bool is_within(int64_t i, const ts_interval &some) {
  return i >= some.begin && i < some.begin + some.length;
}

template <typename T, int N> __global__ void __launch_bounds__(THREADS) sum_parts_kernel(ts_cuda_total y) {
  int64_t units = y.columns / N, at = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (at >= units * y.rows * y.batches) {
    return;
  }
  int64_t above = quotient(at, units), column = (at - above * units) * N;
  int64_t batch = quotient(above, y.rows), row = above - batch * y.rows;
  float sum[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sum[i] = -0.0f; /* which changes nothing it is added to, +0 and -0 included */
  }
  for (int k = 0; k < y.n; ++k) {
    const ts_cuda_part &p = y.part[k];
    if (is_within(row, p.rows) && is_within(column, p.columns)) {
      const char *from = (const char *) p.from.data + batch * p.from.batch + (row - p.rows.begin) * p.from.row;
      float x[N];
      ts_load<N>(x, (const T *) from + (column - p.columns.begin));
#pragma unroll
      for (int i = 0; i < N; ++i) {
        sum[i] += x[i];
      }
    }
  }
  ts_store<N>((T *) y.y + at * N, sum);
}

template <typename T> static void launch_parts(const ts_cuda_total *total, cudaStream_t stream) {
  constexpr int lanes = ts_lanes<T>;
  int64_t count = total->batches * total->rows * total->columns;
  if (total->wide && total->columns % lanes == 0 && (uintptr_t) total->y % 16 == 0) {
    ts_launch(sum_parts_kernel<T, lanes>, dim3(ts_blocks(count / lanes, THREADS)), THREADS, 0, stream, *total);
  } else {
    ts_launch(sum_parts_kernel<T, 1>, dim3(ts_blocks(count, THREADS)), THREADS, 0, stream, *total);
  }
}

void ts_cuda_sum_parts(const ts_cuda_total *total, void *stream) {
  TS_FOR_FLOAT(total->dtype, launch_parts, total, (cudaStream_t) stream);
}
