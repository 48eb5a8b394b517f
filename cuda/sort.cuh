/** \file
 * A stable sort of ids, for sums over equal ones in order: radix sort, 8 bits a pass, from the lowest.  What it writes
 * depends on the ids alone: the only atomics count integers.  A pass is three launches and 24 bytes an id; its middle
 * one is a single block, at most 1024 counts at a time, which is little up to a million ids.
 * Nothing here is collective.
 */
#ifndef TS_CUDA_SORT_CUH
#define TS_CUDA_SORT_CUH

#include "cuda/kernel.cuh"

extern "C" {
#include "base/memory.h"
}

enum { TS_SORT_KEYS = 2048 /**< Of a block. */, TS_SORT_BITS = 8, TS_SORT_BINS = 1 << TS_SORT_BITS };

/** Memory of a sort: ids in order and the places they had, two of each: a pass reads one and writes the other. */
typedef struct ts_sort {
  int32_t *key[2], *place[2];
  int *count; /* [bins][blocks] */
} ts_sort;

/** The next \a bytes of \a memory, at a multiple of TS_CUDA_ALIGN from \a used on, which grows; NULL of NULL.
 * Not collective. */
static inline void *ts_sort_take(char *memory, size_t bytes, size_t *used) {
  char *part = memory == NULL ? NULL : memory + *used;
  *used += ts_align_up(bytes, TS_CUDA_ALIGN);
  return part;
}

/** Give a sort of \a n ids its memory out of \a memory, \a used bytes on. Not collective. */
static inline void ts_sort_divide(ts_sort *sort, char *memory, int64_t n, size_t *used) {
  for (int i = 0; i < 2; ++i) {
    sort->key[i] = (int32_t *) ts_sort_take(memory, (size_t) n * sizeof(int32_t), used);
    sort->place[i] = (int32_t *) ts_sort_take(memory, (size_t) n * sizeof(int32_t), used);
  }
  sort->count = (int *) ts_sort_take(memory, ts_blocks(n, TS_SORT_KEYS) * TS_SORT_BINS * sizeof(int), used);
}

/* What ids are counted from, and how many there are. */
typedef struct ts_sort_ids {
  int32_t first, n;
} ts_sort_ids;

/* The key of an id: its number among them, or n for one that is none of them. */
static __device__ __forceinline__ int ts_sort_key(int32_t id, ts_sort_ids ids) {
  return id >= ids.first && id - ids.first < ids.n ? id - ids.first : ids.n;
}

/* How often each digit occurs in each block's keys: count [bin][block]. */
static __global__ void __launch_bounds__(TS_SORT_BINS)
    ts_sort_count(int *__restrict__ count, const int32_t *__restrict__ key, int64_t n, ts_sort_ids ids, int shift) {
  TS_SHARED(int, bin, TS_SORT_BINS);
  bin[threadIdx.x] = 0;
  __syncthreads();
  int64_t first = (int64_t) blockIdx.x * TS_SORT_KEYS;
  for (int i = (int) threadIdx.x; i < TS_SORT_KEYS && first + i < n; i += TS_SORT_BINS) {
    atomicAdd(&bin[(ts_sort_key(key[first + i], ids) >> shift) & (TS_SORT_BINS - 1)], 1);
  }
  __syncthreads();
  count[(int64_t) threadIdx.x * gridDim.x + blockIdx.x] = bin[threadIdx.x];
}

/* Running sums of everything before, by one block of whole warps. */
static __global__ void __launch_bounds__(1024) ts_sort_scan(int *count, int n) {
  TS_SHARED(int, warp_sum, 32);
  TS_SHARED(int, before, 1);
  int lane = (int) threadIdx.x % TS_WARP, warp = (int) threadIdx.x / TS_WARP;
  if (threadIdx.x == 0) {
    before[0] = 0;
  }
  __syncthreads();
  for (int first = 0; first < n; first += (int) blockDim.x) {
    int i = first + (int) threadIdx.x, mine = i < n ? count[i] : 0, sum = mine;
    for (int by = 1; by < TS_WARP; by *= 2) {
      int below = __shfl_up_sync(0xffffffffu, sum, by);
      sum += lane >= by ? below : 0;
    }
    if (lane == TS_WARP - 1) {
      warp_sum[warp] = sum;
    }
    __syncthreads();
    int base = before[0];
    for (int w = 0; w < warp; ++w) {
      base += warp_sum[w];
    }
    if (i < n) {
      count[i] = base + sum - mine;
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) {
      before[0] = base + sum;
    }
    __syncthreads();
  }
}

/* Keys to where they go, those with equal digits in the order they had: the warps of a block one after another, and in
 * a warp by the number of lower lanes with the same digit. */
static __global__ void __launch_bounds__(TS_SORT_BINS)
    ts_sort_move(int32_t *__restrict__ key_to, int32_t *__restrict__ place_to, const int32_t *__restrict__ key,
                 const int32_t *__restrict__ place, const int *__restrict__ first_of, int64_t n, ts_sort_ids ids,
                 int shift) {
  TS_SHARED(int, next, TS_SORT_BINS);
  next[threadIdx.x] = first_of[(int64_t) threadIdx.x * gridDim.x + blockIdx.x];
  __syncthreads();
  int lane = (int) threadIdx.x % TS_WARP, warp = (int) threadIdx.x / TS_WARP;
  int64_t first = (int64_t) blockIdx.x * TS_SORT_KEYS;
  for (int round = 0; round < TS_SORT_KEYS && first + round < n; round += TS_SORT_BINS) {
    int64_t i = first + round + threadIdx.x;
    bool valid = i < n;
    int mine = valid ? ts_sort_key(key[i], ids) : 0, digit = (mine >> shift) & (TS_SORT_BINS - 1);
    unsigned same = __ballot_sync(0xffffffffu, valid);
    for (int bit = 0; bit < TS_SORT_BITS; ++bit) {
      unsigned set = __ballot_sync(0xffffffffu, (digit >> bit) & 1);
      same &= (digit >> bit) & 1 ? set : ~set;
    }
    int rank = __popc(same & ((1u << lane) - 1));
    for (int w = 0; w < TS_SORT_BINS / TS_WARP; ++w) {
      if (w == warp && valid) {
        int64_t at = next[digit] + rank;
        key_to[at] = mine;
        place_to[at] = place != NULL ? place[i] : (int32_t) i;
      }
      __syncthreads();
      if (w == warp && valid && rank == 0) {
        next[digit] += __popc(same);
      }
      __syncthreads();
    }
  }
}

/** Sort \a n ids of [first, first + ids) as the keys 0, 1 ..., others as the key ids.n.  Asynchronous on \a stream.
 * \return which of key[] and place[] hold the keys in order and the places they had in \a key. Not collective. */
static inline int ts_sort_run(const ts_sort *sort, const int32_t *key, int64_t n, ts_sort_ids ids,
                              cudaStream_t stream) {
  unsigned blocks = ts_blocks(n, TS_SORT_KEYS);
  const int32_t *place = NULL;
  int to = 0;
  for (int shift = 0; n > 0 && (shift == 0 || ids.n >> shift > 0); shift += TS_SORT_BITS) {
    ts_sort_ids now = shift == 0 ? ids : ts_sort_ids{0, ids.n}; /* later passes move keys */
    ts_launch(ts_sort_count, blocks, TS_SORT_BINS, 0, stream, sort->count, key, n, now, shift);
    ts_launch(ts_sort_scan, 1, blocks * TS_SORT_BINS < 1024 ? blocks * TS_SORT_BINS : 1024, 0, stream, sort->count,
              (int) blocks * TS_SORT_BINS);
    ts_launch(ts_sort_move, blocks, TS_SORT_BINS, 0, stream, sort->key[to], sort->place[to], key, place,
              (const int *) sort->count, n, now, shift);
    key = sort->key[to];
    place = sort->place[to];
    to = 1 - to;
  }
  return 1 - to;
}

#endif
