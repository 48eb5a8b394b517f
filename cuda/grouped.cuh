/** \file
 * Products of each expert's rows with its matrix: what their kernels share.  How many rows an expert has only the
 * device knows: of as many tiles as there can be each finds its own, or nothing to do.
 */
#ifndef TS_CUDA_GROUPED_CUH
#define TS_CUDA_GROUPED_CUH

#include "cuda/kernel.cuh"

/** One call; all borrowed, on the device. */
struct ts_grouped {
  const void *a, *b;
  void *out;
  const void *prior;           /**< What out adds to, of its type; NULL: nothing. */
  const float *beta;           /**< Times this; NULL: 1. */
  ts_dtype dtype;              /**< Of out. */
  const int32_t *first;        /**< [experts + 1]: the row where each expert begins, and the first of none. */
  int experts, inner, columns; /**< Of w: its rows are the result's where w gets a gradient. */
  int64_t rows;
  bool dw;
};

/** What a tile is: out [m][n] from element `at` on, of rows of `stride`; operands begin where it does.  Offsets and
 * strides in elements. */
struct ts_grouped_tile {
  int64_t a, b, at;
  int m, n, k;
  int a_stride, b_stride, stride;
  bool any; /**< False: there is nothing to write. */
};

/** Rows of experts in tiles of `size`: those of expert e begin at first[e] / size + e, so there is room for all.
 * \param first  p.first, or a copy of it. */
static __device__ __forceinline__ int ts_first_tile(const int32_t *first, int expert, int size) {
  return first[expert] / size + expert;
}

static __device__ __forceinline__ int ts_expert_of_tile(const int32_t *first, int experts, int tile, int size) {
  int low = 0, high = experts;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (ts_first_tile(first, middle, size) <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/** Rows times w [E][columns][inner] (b along k), or w [E][inner][columns], in tiles of M x N. */
template <int M, int N>
static __device__ ts_grouped_tile ts_tile_of_rows(const ts_grouped &p, const int32_t *first, unsigned index,
                                                  bool along) {
  int across = (p.columns + N - 1) / N, tile = (int) (index / across), column = (int) (index % across) * N;
  int expert = ts_expert_of_tile(first, p.experts, tile, M);
  int64_t row = first[expert] + (int64_t) (tile - ts_first_tile(first, expert, M)) * M;
  int64_t end = expert < p.experts ? first[expert + 1] : row;
  int64_t w = (int64_t) expert * p.columns * p.inner;
  return {row * p.inner,
          w + (along ? (int64_t) column * p.inner : column),
          row * p.columns + column,
          (int) min(end - row, (int64_t) M),
          min(p.columns - column, N),
          p.inner,
          p.inner,
          along ? p.inner : p.columns,
          p.columns,
          expert < p.experts && row < end};
}

/** dw [E][inner][columns] of dy [rows][inner] and x [rows][columns], in tiles of M x N. */
template <int M, int N>
static __device__ ts_grouped_tile ts_tile_of_matrix(const ts_grouped &p, const int32_t *first, unsigned index) {
  int across = (p.columns + N - 1) / N, down = (p.inner + M - 1) / M;
  int expert = (int) (index / (unsigned) (across * down)), tile = (int) (index % (unsigned) (across * down));
  int row = tile / across * M, column = tile % across * N;
  int64_t from = first[expert];
  return {from * p.inner + row,
          from * p.columns + column,
          ((int64_t) expert * p.inner + row) * p.columns + column,
          min(p.inner - row, M),
          min(p.columns - column, N),
          (int) (first[expert + 1] - from),
          p.inner,
          p.columns,
          p.columns,
          true};
}

/** Tile \a index: of rows where a lies along k, of a matrix's gradient where it does not. */
template <int M, int N, bool A_ALONG, bool B_ALONG>
static __device__ __forceinline__ ts_grouped_tile ts_tile_at(const ts_grouped &p, const int32_t *first,
                                                             unsigned index) {
  return A_ALONG ? ts_tile_of_rows<M, N>(p, first, index, B_ALONG) : ts_tile_of_matrix<M, N>(p, first, index);
}

/** How many tiles of m x n there can be. */
static inline unsigned ts_grouped_tiles(const ts_grouped &p, int m, int n) {
  int64_t down = p.dw ? p.experts * (int64_t) ts_blocks(p.inner, m) : p.rows / m + p.experts + 1;
  return ts_blocks(down * ts_blocks(p.columns, n), 1);
}

/** By warp groups (grouped_wgmma.cu), for 16-bit operands of whole vectors of 16 bytes, where the machine has them: see
 * TS_CUDA_WARPGROUPS.  \a along: b lies along k.  Asynchronous on \a stream. Not collective. */
void ts_grouped_wgmma(const ts_grouped *p, ts_dtype dtype, bool along, cudaStream_t stream);

#endif
