/* Sums: over rows in fp32, in blocks of ROW_BLOCK rows; of squares in fp64, in blocks of TS_SQUARE_BLOCK elements. */
#include "cuda/kernel.cuh"

enum { ROW_BLOCK = 128, COLUMNS = 128, ADD_THREADS = 128, SQUARE_THREADS = 256, MOST_RANGES = 64 };

/* ---- rows ---- */

/* y [c] = sum over rows of x [row][c], in order. */
template <typename T>
__global__ void __launch_bounds__(COLUMNS)
sum_rows_partial(float *__restrict__ y, const T *__restrict__ x, int64_t rows, int columns) {
  int c = (int) blockIdx.y * COLUMNS + (int) threadIdx.x;
  if (c >= columns) {
    return;
  }
  int64_t first = (int64_t) blockIdx.x * ROW_BLOCK, last = first + ROW_BLOCK < rows ? first + ROW_BLOCK : rows;
  float sum = 0;
#pragma unroll 8
  for (int64_t row = first; row < last; ++row) {
    sum += ts_float(x[row * columns + c]);
  }
  y[(int64_t) blockIdx.x * columns + c] = sum;
}

/* The partial sums of a column in order, with the prior. */
template <typename T>
__global__ void __launch_bounds__(ADD_THREADS)
add_rows(T *y, const float *__restrict__ partial, ts_prior<T> prior, int64_t rows, int columns) {
  int c = (int) (blockIdx.x * ADD_THREADS + threadIdx.x);
  if (c >= columns) {
    return;
  }
  float sum = 0;
#pragma unroll 8
  for (int64_t row = 0; row < rows; ++row) {
    sum += partial[row * columns + c];
  }
  ts_add_prior<1>(&sum, prior, ts_prior_beta(prior), c);
  y[c] = ts_round<T>(sum);
}

template <typename T>
static void launch_add(const ts_kernel_call *call, int output, const float *partial, int64_t rows, int64_t columns) {
  ts_launch(add_rows<T>, ts_blocks(columns, ADD_THREADS), ADD_THREADS, 0, ts_call_stream(call), (T *) call->out[output], partial,
            ts_call_prior<T>(call, output), rows, (int) columns);
}

void ts_cuda_add_rows(const ts_kernel_call *call, int output, const float *partial, int64_t rows, int64_t columns) {
  TS_FOR_FLOAT(ts_call_out(call, output)->dtype, launch_add, call, output, partial, rows, columns);
}

template <typename T>
static void launch_partial(const ts_kernel_call *call, int64_t rows, int64_t columns) {
  ts_launch(sum_rows_partial<T>, dim3(ts_blocks(rows, ROW_BLOCK), ts_blocks(columns, COLUMNS)), COLUMNS, 0, ts_call_stream(call),
            (float *) call->workspace, (const T *) call->in[0], rows, (int) columns);
}

static void sum_rows_run(const ts_kernel_call *call) {
  const ts_tensor *x = ts_call_in(call, 0);
  int64_t rows = ts_shape_rows(&x->shape), columns = ts_columns_of(x);
  TS_FOR_FLOAT(x->dtype, launch_partial, call, rows, columns);
  ts_cuda_add_rows(call, 0, (const float *) call->workspace, ts_blocks(rows, ROW_BLOCK), columns);
}

static size_t sum_rows_prepare(const ts_target *, const ts_graph *graph, const ts_node *node, void **) {
  const ts_tensor *x = &graph->tensor[node->in[0]];
  return ts_blocks(ts_shape_rows(&x->shape), ROW_BLOCK) * (size_t) ts_columns_of(x) * sizeof(float);
}

/* ---- squares ---- */

/* Ranges of a launch, by value; `before` is the number of blocks of the ranges before. */
struct square_ranges {
  int n;
  int64_t offset[MOST_RANGES], count[MOST_RANGES], before[MOST_RANGES];
};

/* One block of threads per block of TS_SQUARE_BLOCK elements. */
template <typename T>
__global__ void __launch_bounds__(SQUARE_THREADS)
square_blocks(double *__restrict__ partial, const T *__restrict__ x, square_ranges ranges) {
  TS_SHARED(double, scratch, SQUARE_THREADS / TS_WARP);
  int r = 0;
  while (r + 1 < ranges.n && ranges.before[r + 1] <= (int64_t) blockIdx.x) {
    ++r;
  }
  int64_t first = ((int64_t) blockIdx.x - ranges.before[r]) * TS_SQUARE_BLOCK;
  int64_t n = ranges.count[r] - first < TS_SQUARE_BLOCK ? ranges.count[r] - first : TS_SQUARE_BLOCK;
  const T *from = x + ranges.offset[r] + first;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < n; i += SQUARE_THREADS) {
    double value = (double) ts_float(from[i]);
    sum += value * value;
  }
  sum = ts_block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
  }
}

/* One block: thread by thread every SQUARE_THREADS-th partial sum in order, then the threads' sums in order. */
static __global__ void __launch_bounds__(SQUARE_THREADS)
add_squares(double *__restrict__ y, const double *__restrict__ partial, int64_t n) {
  TS_SHARED(double, scratch, SQUARE_THREADS / TS_WARP);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += SQUARE_THREADS) {
    sum += partial[i];
  }
  sum = ts_block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    *y = sum;
  }
}

template <typename T>
static void launch_squares(const ts_kernel_call *call) {
  const ts_node *node = call->node;
  double *partial = (double *) call->workspace;
  for (int r = 0; r < node->attr.segments.n;) {
    square_ranges ranges = {};
    int64_t blocks = 0;
    for (; r < node->attr.segments.n && ranges.n < MOST_RANGES; ++r, ++ranges.n) {
      ranges.offset[ranges.n] = node->attr.segments.range[r].offset;
      ranges.count[ranges.n] = node->attr.segments.range[r].count;
      ranges.before[ranges.n] = blocks;
      blocks += ts_blocks(ranges.count[ranges.n], TS_SQUARE_BLOCK);
    }
    ts_launch(square_blocks<T>, (unsigned) blocks, SQUARE_THREADS, 0, ts_call_stream(call), partial, (const T *) call->in[0], ranges);
    partial += blocks;
  }
  ts_launch(add_squares, 1, SQUARE_THREADS, 0, ts_call_stream(call), (double *) call->out[0], (const double *) call->workspace,
            (int64_t) (partial - (double *) call->workspace));
}

static void sum_squares_run(const ts_kernel_call *call) { TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, launch_squares, call); }

static size_t sum_squares_prepare(const ts_target *, const ts_graph *, const ts_node *node, void **) {
  size_t blocks = 0;
  for (int r = 0; r < node->attr.segments.n; ++r) {
    blocks += ts_blocks(node->attr.segments.range[r].count, TS_SQUARE_BLOCK);
  }
  return blocks * sizeof(double);
}

const ts_kernel *ts_cuda_sum(ts_op op) {
  static const ts_kernel rows = {sum_rows_prepare, sum_rows_run, NULL}, squares = {sum_squares_prepare, sum_squares_run, NULL}, none = {};
  return op == TS_OP_SUM_ROWS ? &rows : op == TS_OP_SUM_SQUARES ? &squares : &none;
}
