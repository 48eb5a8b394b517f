/* Sums: over rows in fp32, of squares in fp64. */
#include "backend/cpu/columns.h"
#include "backend/cpu/kernels.h"

static size_t sum_rows_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  (void) target, (void) prepared;
  const ts_shape *shape = &graph->tensor[node->in[0]].shape;
  return ts_columns_workspace(ts_shape_rows(shape), shape->d[shape->n - 1], 1);
}

/* sum += x for one row of the block.  Row by row, so that memory is read in order; the sums stay in the cache. */
static void add_row(float *sum, const ts_source *x, int64_t row, int64_t columns) {
  for (int64_t at = 0; at < columns; at += TS_TILE) {
    ts_tile buffer;
    int64_t n = ts_min(TS_TILE, columns - at);
    const float *from = ts_source_read(x, row * columns + at, n, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      sum[at + i] += from[i];
    }
  }
}

static void sum_rows_run(const ts_kernel_call *call) {
  ts_source x = ts_source_of(call, 0);
  int64_t rows = ts_shape_rows(&ts_call_in(call, 0)->shape), columns = ts_call_columns(call, 0);
  int64_t blocks = ts_pieces(rows, TS_ROW_BLOCK);
  float *partial = call->workspace;
#pragma omp parallel for num_threads(ts_call_threads(call, blocks)) schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
    float *sum = partial + block * columns;
    memset(sum, 0, (size_t) columns * sizeof *sum);
    for (int64_t row = block * TS_ROW_BLOCK; row < ts_min((block + 1) * TS_ROW_BLOCK, rows); ++row) {
      add_row(sum, &x, row, columns);
    }
  }
  ts_columns_finish(call, 0, partial, rows, columns);
}
TS_CPU_KERNEL(sum_rows) = {.prepare = sum_rows_prepare, .run = sum_rows_run};

/* Blocks of the ranges, each cut from its own first element. */
static int64_t square_blocks(const ts_node *node) {
  int64_t blocks = 0;
  for (int r = 0; r < node->attr.segments.n; ++r) {
    blocks += ts_pieces(node->attr.segments.range[r].count, TS_SQUARE_BLOCK);
  }
  return blocks;
}

static double block_squares(const ts_source *x, int64_t first, int64_t count) {
  /* One stream has too few lines under way: so many bytes ahead they are asked for, where they are read in place. */
  enum { LANES = 32, AHEAD = 4096 };
  double lane[LANES] = {0}, sum = 0;
  for (int64_t at = 0; at < count; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, count - at), i = 0;
    ts_tile buffer;
    const float *from = ts_source_read(x, first + at, n, buffer);
    const uintptr_t ahead = (uintptr_t) from + (from != buffer ? AHEAD : 0);
    for (; i + LANES <= n; i += LANES) {
      __builtin_prefetch((const void *) (ahead + (uintptr_t) i * sizeof *from));
      __builtin_prefetch((const void *) (ahead + (uintptr_t) (i + LANES / 2) * sizeof *from));
#pragma omp simd
      for (int l = 0; l < LANES; ++l) {
        lane[l] += (double) from[i + l] * (double) from[i + l];
      }
    }
    for (int l = 0; l < n - i; ++l) {
      lane[l] += (double) from[i + l] * (double) from[i + l];
    }
  }
  for (int l = 0; l < LANES; ++l) {
    sum += lane[l];
  }
  return sum;
}

static double add_partial_squares(const double *partial, int64_t n) {
  double sum = 0;
  for (int64_t b = 0; b < n; ++b) {
    sum += partial[b];
  }
  return sum;
}

static size_t sum_squares_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node,
                                  void **prepared) {
  (void) target, (void) graph, (void) prepared;
  return ts_cpu_align((size_t) square_blocks(node) * sizeof(double));
}

static void sum_squares_run(const ts_kernel_call *call) {
  ts_source x = ts_source_of(call, 0);
  double *partial = call->workspace;
  int64_t total = square_blocks(call->node);
#pragma omp parallel num_threads(ts_call_threads(call, total))
  for (int64_t r = 0, before = 0; r < call->node->attr.segments.n; ++r) {
    const ts_range *range = &call->node->attr.segments.range[r];
    int64_t blocks = ts_pieces(range->count, TS_SQUARE_BLOCK);
#pragma omp for schedule(static) nowait
    for (int64_t b = 0; b < blocks; ++b) {
      int64_t first = b * TS_SQUARE_BLOCK;
      partial[before + b] = block_squares(&x, range->offset + first, ts_min(TS_SQUARE_BLOCK, range->count - first));
    }
    before += blocks;
  }
  if (!call->node->attr.segments.each) {
    *(double *) call->out[0] = add_partial_squares(partial, total);
    return;
  }
  for (int64_t r = 0; r < call->node->attr.segments.n; ++r) {
    int64_t blocks = ts_pieces(call->node->attr.segments.range[r].count, TS_SQUARE_BLOCK);
    ((float *) call->out[0])[r] = (float) add_partial_squares(partial, blocks);
    partial += blocks;
  }
}
TS_CPU_KERNEL(sum_squares) = {.prepare = sum_squares_prepare, .run = sum_squares_run};
