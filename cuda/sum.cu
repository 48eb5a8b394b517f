/* Sums: over rows in fp32, in blocks (columns.cuh); of squares in fp64, in blocks of TS_SQUARE_BLOCK elements. */
#include "cuda/columns.cuh"

enum { ADD_COLUMNS = 32, ADD_GROUPS = 16, SQUARE_THREADS = 256, MOST_RANGES = 64 };

/* Partial sums of squares that a block adds: 2 levels up to 69e9 elements. */
enum { ADDED = 4096 };

/* ---- rows ---- */

template <typename T, int W>
__global__ void __launch_bounds__(TS_COLUMN_THREADS)
    sum_rows_partial(float *__restrict__ y, const T *__restrict__ x, int64_t rows, int columns) {
  float *const to[1] = {y};
  ts_sum_columns<1, W>(to, rows, columns, [&](float(&sum)[1][W], int64_t row, int c) {
    float v[W];
    ts_load<W>(v, x + row * columns + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      sum[0][i] += v[i];
    }
  });
}

/* The partial sums of 32 columns: group g takes rows g, g + 16, ... in order, then the groups are added in order, with
 * the prior. */
template <typename T>
__global__ void __launch_bounds__(ADD_COLUMNS *ADD_GROUPS)
    add_rows(T *y, const float *__restrict__ partial, ts_prior<T> prior, int64_t rows, int columns) {
  TS_SHARED(float, part, ADD_COLUMNS *ADD_GROUPS);
  int column = (int) threadIdx.x % ADD_COLUMNS, group = (int) threadIdx.x / ADD_COLUMNS,
      c = (int) blockIdx.x * ADD_COLUMNS + column;
  float sum = 0;
  if (c < columns) {
#pragma unroll 4
    for (int64_t row = group; row < rows; row += ADD_GROUPS) {
      sum += partial[row * columns + c];
    }
  }
  part[group * ADD_COLUMNS + column] = sum;
  __syncthreads();
  if (group != 0 || c >= columns) {
    return;
  }
  for (int g = 1; g < ADD_GROUPS; ++g) {
    sum += part[g * ADD_COLUMNS + column];
  }
  ts_add_prior<1>(&sum, prior, ts_prior_beta(prior), c);
  y[c] = ts_round<T>(sum);
}

template <typename T>
static void launch_add(const ts_kernel_call *call, int output, const float *partial, int64_t rows, int64_t columns) {
  ts_launch(add_rows<T>, ts_blocks(columns, ADD_COLUMNS), ADD_COLUMNS * ADD_GROUPS, 0, ts_call_stream(call),
            (T *) call->out[output], partial, ts_call_prior<T>(call, output), rows, (int) columns);
}

void ts_cuda_add_rows(const ts_kernel_call *call, int output, const float *partial, int64_t rows, int64_t columns) {
  TS_FOR_FLOAT(ts_call_out(call, output)->dtype, launch_add, call, output, partial, rows, columns);
}

template <typename T, int W> static void launch_partial(const ts_kernel_call *call, int64_t rows, int columns) {
  ts_launch(sum_rows_partial<T, W>, ts_column_grid<W>(rows, columns), TS_COLUMN_THREADS, 0, ts_call_stream(call),
            (float *) call->workspace, (const T *) call->in[0], rows, columns);
}

template <typename T> static void choose_partial(const ts_kernel_call *call, int64_t rows, int columns) {
  if (ts_is_wide<T>(columns, call->in, 1)) {
    launch_partial<T, ts_lanes<T>>(call, rows, columns);
  } else {
    launch_partial<T, 1>(call, rows, columns);
  }
}

static void sum_rows_launch(const ts_kernel_call *call) {
  const ts_tensor *x = ts_call_in(call, 0);
  int64_t rows = ts_shape_rows(&x->shape), columns = ts_columns_of(x);
  TS_FOR_FLOAT(x->dtype, choose_partial, call, rows, (int) columns);
  ts_cuda_add_rows(call, 0, (const float *) call->workspace, ts_column_blocks(rows, columns), columns);
}

static size_t sum_rows_set_up(const ts_target *, const ts_graph *graph, const ts_node *node, void **) {
  const ts_tensor *x = &graph->tensor[node->in[0]];
  return ts_column_blocks(ts_shape_rows(&x->shape), ts_columns_of(x)) * (size_t) ts_columns_of(x) * sizeof(float);
}

/* ---- squares ---- */

/* Ranges of a launch, by value; `before` is the number of blocks of the ranges before. */
struct square_ranges {
  int n;
  int64_t offset[MOST_RANGES], count[MOST_RANGES], before[MOST_RANGES];
};

/* One block of threads per block of TS_SQUARE_BLOCK elements.  A thread adds vectors of 16 bytes in order, which it
 * reads at once where they are aligned: the order is the same where they are not. */
template <typename T>
__global__ void __launch_bounds__(SQUARE_THREADS)
    square_blocks(double *__restrict__ partial, const T *__restrict__ x, square_ranges ranges) {
  constexpr int W = ts_lanes<T>;
  TS_SHARED(double, scratch, SQUARE_THREADS / TS_WARP);
  int r = 0;
  while (r + 1 < ranges.n && ranges.before[r + 1] <= (int64_t) blockIdx.x) {
    ++r;
  }
  int64_t first = ((int64_t) blockIdx.x - ranges.before[r]) * TS_SQUARE_BLOCK;
  int n = (int) (ranges.count[r] - first < TS_SQUARE_BLOCK ? ranges.count[r] - first : TS_SQUARE_BLOCK);
  const T *from = x + ranges.offset[r] + first;
  bool wide = (uintptr_t) from % 16 == 0;
  double sum = 0;
#pragma unroll
  for (int start = 0; start < TS_SQUARE_BLOCK; start += SQUARE_THREADS * W) {
    int i = start + (int) threadIdx.x * W;
    float v[W];
    if (wide && i + W <= n) {
      ts_load<W>(v, from + i);
    } else {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        v[k] = i + k < n ? ts_float(from[i + k]) : 0.0f;
      }
    }
#pragma unroll
    for (int k = 0; k < W; ++k) {
      sum += (double) v[k] * (double) v[k];
    }
  }
  sum = ts_block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
  }
}

/* A block adds ADDED partial sums: thread by thread every SQUARE_THREADS-th in order, then the threads' sums in
 * order. */
static __global__ void __launch_bounds__(SQUARE_THREADS)
    add_squares(double *__restrict__ y, const double *__restrict__ partial, int64_t n) {
  TS_SHARED(double, scratch, SQUARE_THREADS / TS_WARP);
  int64_t first = (int64_t) blockIdx.x * ADDED, end = first + ADDED < n ? first + ADDED : n;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = first + threadIdx.x; i < end; i += SQUARE_THREADS) {
    sum += partial[i];
  }
  sum = ts_block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    y[blockIdx.x] = sum;
  }
}

/* The sum of each range: a thread adds every SQUARE_THREADS-th block in order, then the threads' sums in order. */
static __global__ void __launch_bounds__(SQUARE_THREADS)
    add_each(float *__restrict__ y, const double *__restrict__ partial, square_ranges ranges) {
  TS_SHARED(double, scratch, SQUARE_THREADS / TS_WARP);
  int r = (int) blockIdx.x;
  int64_t blocks = (ranges.count[r] + TS_SQUARE_BLOCK - 1) / TS_SQUARE_BLOCK;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += SQUARE_THREADS) {
    sum += partial[ranges.before[r] + i];
  }
  sum = ts_block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    y[r] = (float) sum;
  }
}

/* Level by level until one sum is left; a level's sums lie behind those that it adds. */
static void add_levels(double *y, double *partial, int64_t n, cudaStream_t stream) {
  while (n > ADDED) {
    int64_t sums = ts_blocks(n, ADDED);
    ts_launch(add_squares, (unsigned) sums, SQUARE_THREADS, 0, stream, partial + n, (const double *) partial, n);
    partial += n;
    n = sums;
  }
  ts_launch(add_squares, 1, SQUARE_THREADS, 0, stream, y, (const double *) partial, n);
}

template <typename T> static void launch_squares(const ts_kernel_call *call) {
  const ts_node *node = call->node;
  double *partial = (double *) call->workspace;
  float *each = node->attr.segments.each ? (float *) call->out[0] : nullptr;
  for (int r = 0; r < node->attr.segments.n;) {
    square_ranges ranges = {};
    int64_t blocks = 0;
    for (; r < node->attr.segments.n && ranges.n < MOST_RANGES; ++r, ++ranges.n) {
      ranges.offset[ranges.n] = node->attr.segments.range[r].offset;
      ranges.count[ranges.n] = node->attr.segments.range[r].count;
      ranges.before[ranges.n] = blocks;
      blocks += ts_blocks(ranges.count[ranges.n], TS_SQUARE_BLOCK);
    }
    if (blocks > 0) {
      ts_launch(square_blocks<T>, (unsigned) blocks, SQUARE_THREADS, 0, ts_call_stream(call), partial,
                (const T *) call->in[0], ranges);
    }
    if (each != nullptr) {
      ts_launch(add_each, (unsigned) ranges.n, SQUARE_THREADS, 0, ts_call_stream(call), each, (const double *) partial,
                ranges);
      each += ranges.n;
    }
    partial += blocks;
  }
  if (each != nullptr) {
    return;
  }
  double *all = (double *) call->workspace;
  add_levels((double *) call->out[0], all, partial - all, ts_call_stream(call));
}

static void sum_squares_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, launch_squares, call);
}

static size_t sum_squares_set_up(const ts_target *, const ts_graph *, const ts_node *node, void **) {
  size_t blocks = 0;
  for (int r = 0; r < node->attr.segments.n; ++r) {
    blocks += ts_blocks(node->attr.segments.range[r].count, TS_SQUARE_BLOCK);
  }
  size_t all = blocks;
  for (; blocks > ADDED; all += blocks) {
    blocks = ts_blocks((int64_t) blocks, ADDED);
  }
  return all * sizeof(double);
}

const ts_kernel *ts_cuda_sum(ts_op op) {
  static const ts_kernel rows = {sum_rows_set_up, sum_rows_launch, NULL},
                         squares = {sum_squares_set_up, sum_squares_launch, NULL}, none = {};
  return op == TS_OP_SUM_ROWS ? &rows : op == TS_OP_SUM_SQUARES ? &squares : &none;
}
