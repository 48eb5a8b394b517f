/** \file
 * Sums over rows.  Rows are cut into blocks of TS_ROW_BLOCK; the blocks' sums go to the workspace and are added in
 * order, so the result depends on the shape alone, never on the threads.  Included by kernels_*.c only.  Nothing here
 * is collective.
 */
#ifndef TS_BACKEND_CPU_COLUMNS_H
#define TS_BACKEND_CPU_COLUMNS_H

#include "backend/cpu/tile.h"

/** Rows added up before a partial sum is written: its cost is then 1/32 of reading bf16 rows. */
#define TS_ROW_BLOCK 64

/** Bytes of the partial sums of \a sums rows of \a columns. Not collective. */
static inline size_t ts_columns_workspace(int64_t rows, int64_t columns, int sums) {
  return ts_cpu_align((size_t) (ts_pieces(rows, TS_ROW_BLOCK) * columns) * (size_t) sums * sizeof(float));
}

/** Add the partial sums of all blocks and write them to output \a output of the call.
 * \param [in] partial  [blocks][columns] Not collective. */
static inline void ts_columns_finish(const ts_kernel_call *call, int output, const float *partial, int64_t rows,
                                     int64_t columns) {
  ts_sink y = ts_sink_of(call, output);
  int64_t blocks = ts_pieces(rows, TS_ROW_BLOCK), width = TS_TILE / 4;
#pragma omp parallel for num_threads(ts_call_threads(call, ts_pieces(columns, width))) schedule(static)
  for (int64_t at = 0; at < columns; at += width) {
    int64_t n = ts_min(width, columns - at);
    float sum[TS_TILE / 4] = {0};
    for (int64_t block = 0; block < blocks; ++block) {
      const float *from = partial + block * columns + at;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        sum[i] += from[i];
      }
    }
    ts_sink_write(&y, at, n, sum);
  }
}

#endif
