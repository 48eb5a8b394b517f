/** \file
 * Sums over rows, column by column: a block sums ts_column_rows of some columns, and ts_cuda_add_rows adds the blocks.
 * Everything in an order that shapes alone decide.  Nothing here is collective.
 */
#ifndef TS_CUDA_COLUMNS_CUH
#define TS_CUDA_COLUMNS_CUH

#include "cuda/kernel.cuh"

enum { TS_COLUMN_WARPS = 8, TS_COLUMN_THREADS = TS_COLUMN_WARPS * TS_WARP };

/** Columns of a block whose threads take W each. */
template <int W> constexpr int ts_block_columns = TS_WARP *W;

/** Rows of a block, at least 128: so many that the blocks of all rows and columns are some 512, which fill a
 * device, and those of all rows at least 128.  With more of them their partial sums take as long to add as the rows.
 * Not collective. */
static __host__ __device__ __forceinline__ int64_t ts_column_rows(int64_t rows, int64_t columns) {
  int64_t wide = (columns + 255) / 256, blocks = wide >= 4 ? 128 : 512 / (wide > 0 ? wide : 1);
  int64_t each = (rows / blocks + TS_COLUMN_WARPS - 1) / TS_COLUMN_WARPS * TS_COLUMN_WARPS;
  return each < 128 ? 128 : each;
}

/** Partial sums of N quantities (1 or 2): to[k] [blockIdx.x][columns] gets the sums over this block's rows.  Warp w
 * takes rows w, w + 8, ... in order, then the warps are added in order.
 * \param add  add (sum, row, c): sum[k][i] += quantity k of element (row, c + i).  Called by threads with c <
 *             columns. */
template <int N, int W, typename F>
static __device__ __forceinline__ void ts_sum_columns(float *const (&to)[N], int64_t rows, int columns, F add) {
  TS_SHARED(float, part, TS_COLUMN_WARPS *TS_WARP *N *W);
  int lane = (int) threadIdx.x % TS_WARP, warp = (int) threadIdx.x / TS_WARP;
  int c = (int) blockIdx.y * ts_block_columns<W> + lane * W;
  int64_t each = ts_column_rows(rows, columns), first = (int64_t) blockIdx.x * each,
          last = first + each < rows ? first + each : rows;
  float sum[N][W];
#pragma unroll
  for (int k = 0; k < N; ++k) {
#pragma unroll
    for (int i = 0; i < W; ++i) {
      sum[k][i] = 0;
    }
  }
  if (c < columns) {
#pragma unroll 4
    for (int64_t row = first + warp; row < last; row += TS_COLUMN_WARPS) {
      add(sum, row, c);
    }
  }
#pragma unroll
  for (int k = 0; k < N; ++k) {
#pragma unroll
    for (int i = 0; i < W; ++i) {
      part[((warp * N + k) * W + i) * TS_WARP + lane] = sum[k][i]; /* lanes side by side: no bank conflicts */
    }
  }
  __syncthreads();
  for (int at = (int) threadIdx.x; at < N * W * TS_WARP; at += TS_COLUMN_THREADS) {
    int k = at / (W * TS_WARP), column = at % (W * TS_WARP), owner = column / W, i = column % W;
    int target = (int) blockIdx.y * ts_block_columns<W> + column;
    float total = 0;
    for (int w = 0; w < TS_COLUMN_WARPS; ++w) {
      total += part[((w * N + k) * W + i) * TS_WARP + owner];
    }
    if (target < columns) {
      (k == 0 ? to[0] : to[N - 1])[(int64_t) blockIdx.x * columns + target] = total;
    }
  }
}

/** Blocks of rows; the grid of a kernel that sums columns. */
static inline unsigned ts_column_blocks(int64_t rows, int64_t columns) {
  return ts_blocks(rows, ts_column_rows(rows, columns));
}
template <int W> static inline dim3 ts_column_grid(int64_t rows, int columns) {
  return dim3(ts_column_blocks(rows, columns), ts_blocks(columns, ts_block_columns<W>));
}

#endif
