/* Losses of rows against soft labels, and of elements.
 *
 * Bytes: a row's logits and its labels' are read twice, the second time from the cache where a row is short enough;
 * their gradient reads both once more and writes one.  Sums of elements read these once. */
#include "cuda/kernel.cuh"

enum { THREADS = 256, SUMMED = 4096 /* elements of a block */ };

/* ---- softmax (t / T) against softmax (z / T): a block a row ---- */

static __device__ __forceinline__ float soft_block_max(float x, float *scratch) {
  int warp = (int) threadIdx.x / TS_WARP, warps = (int) blockDim.x / TS_WARP;
  x = ts_warp_max(x);
  if (threadIdx.x % TS_WARP == 0) {
    scratch[warp] = x;
  }
  __syncthreads();
  for (int w = 0; w < warps; ++w) {
    x = fmaxf(x, scratch[w]);
  }
  __syncthreads();
  return x;
}

/* With q = softmax (t / T): - sum q log softmax (z / T) = lse_z - sum q z / T. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    soft_rows(float *__restrict__ loss, float *__restrict__ lse_z, float *__restrict__ lse_t, const T *__restrict__ z,
              const T *__restrict__ t, int columns, float temperature) {
  TS_SHARED(float, scratch, THREADS / TS_WARP);
  int64_t start = (int64_t) blockIdx.x * columns;
  int first = (int) threadIdx.x * W, step = (int) blockDim.x * W;
  float inverse = 1.0f / temperature, most_z = -INFINITY, most_t = -INFINITY, a[W], b[W];
  for (int c = first; c < columns; c += step) {
    ts_load<W>(a, z + start + c);
    ts_load<W>(b, t + start + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      most_z = fmaxf(most_z, a[i]);
      most_t = fmaxf(most_t, b[i]);
    }
  }
  most_z = soft_block_max(most_z, scratch) * inverse;
  most_t = soft_block_max(most_t, scratch) * inverse;
  float sum_z = 0, sum_t = 0, product = 0;
  for (int c = first; c < columns; c += step) {
    ts_load<W>(a, z + start + c);
    ts_load<W>(b, t + start + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      float shifted = a[i] * inverse - most_z, power = expf(b[i] * inverse - most_t);
      sum_z += expf(shifted);
      sum_t += power;
      product += power * shifted;
    }
  }
  sum_z = ts_block_sum(sum_z, scratch);
  sum_t = ts_block_sum(sum_t, scratch);
  product = ts_block_sum(product, scratch);
  if (threadIdx.x == 0) {
    loss[blockIdx.x] = temperature * temperature * (logf(sum_z) - product / sum_t);
    lse_z[blockIdx.x] = most_z + logf(sum_z);
    lse_t[blockIdx.x] = most_t + logf(sum_t);
  }
}

template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    soft_dx_rows(T *dz, const float *__restrict__ dy, const T *__restrict__ z, const T *__restrict__ t,
                 const float *__restrict__ lse_z, const float *__restrict__ lse_t, ts_prior<T> prior, int columns,
                 float temperature) {
  int64_t row = blockIdx.x, start = row * columns;
  float inverse = 1.0f / temperature, by = dy[row] * temperature, all_z = lse_z[row], all_t = lse_t[row];
  float beta = ts_prior_beta(prior);
  for (int c = (int) threadIdx.x * W; c < columns; c += (int) blockDim.x * W) {
    float a[W], b[W];
    ts_load<W>(a, z + start + c);
    ts_load<W>(b, t + start + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      a[i] = by * (expf(a[i] * inverse - all_z) - expf(b[i] * inverse - all_t));
    }
    ts_add_prior<W>(a, prior, beta, start + c);
    ts_store<W>(dz + start + c, a);
  }
}

/* Whole warps, as many as a row has vectors for. */
static unsigned soft_threads(int64_t columns, int w) {
  unsigned threads = ts_blocks(columns, (int64_t) TS_WARP * w) * TS_WARP;
  return threads == 0 ? (unsigned) TS_WARP : threads < THREADS ? threads : (unsigned) THREADS;
}

template <typename T, int W> static void launch_soft(const ts_kernel_call *call) {
  const ts_tensor *z = ts_call_in(call, 0);
  ts_launch(soft_rows<T, W>, ts_blocks(ts_shape_rows(&z->shape), 1), soft_threads(ts_columns_of(z), W), 0,
            ts_call_stream(call), (float *) call->out[0], (float *) call->out[1], (float *) call->out[2],
            (const T *) call->in[0], (const T *) call->in[1], (int) ts_columns_of(z),
            call->node->attr.soft.temperature);
}

template <typename T, int W> static void launch_soft_dx(const ts_kernel_call *call) {
  const ts_tensor *z = ts_call_in(call, 1);
  ts_launch(soft_dx_rows<T, W>, ts_blocks(ts_shape_rows(&z->shape), 1), soft_threads(ts_columns_of(z), W), 0,
            ts_call_stream(call), (T *) call->out[0], (const float *) call->in[0], (const T *) call->in[1],
            (const T *) call->in[2], (const float *) call->in[3], (const float *) call->in[4],
            ts_call_prior<T>(call, 0), (int) ts_columns_of(z), call->node->attr.soft.temperature);
}

template <typename T> static void soft_loss(const ts_kernel_call *call) {
  const void *pointer[] = {call->in[0], call->in[1]};
  bool wide = ts_is_wide<T>(ts_columns_of(ts_call_in(call, 0)), pointer, 2);
  (wide ? launch_soft<T, ts_lanes<T>> : launch_soft<T, 1>) (call);
}

template <typename T> static void soft_loss_dx(const ts_kernel_call *call) {
  const void *pointer[] = {call->in[1], call->in[2], call->out[0], ts_call_prior<T>(call, 0).data};
  bool wide = ts_is_wide<T>(ts_columns_of(ts_call_in(call, 1)), pointer, 4);
  (wide ? launch_soft_dx<T, ts_lanes<T>> : launch_soft_dx<T, 1>) (call);
}

static void soft_loss_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, soft_loss, call);
}

static void soft_loss_dx_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 1)->dtype, soft_loss_dx, call);
}

/* ---- sums of elements, in fp64: thread by thread every THREADS-th of a block, blocks in order ---- */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    sum_elements(double *__restrict__ sum, double *__restrict__ valid, const T *__restrict__ x,
                 const int32_t *__restrict__ mask, int64_t count) {
  TS_SHARED(double, scratch, THREADS / TS_WARP);
  int64_t first = (int64_t) blockIdx.x * SUMMED, last = first + SUMMED < count ? first + SUMMED : count;
  double s = 0, n = 0;
  for (int64_t at = first + threadIdx.x; at < last; at += THREADS) {
    int32_t by = mask == NULL ? 1 : mask[at];
    s += by != 0 ? (double) by * (double) ts_float(x[at]) : 0.0;
    n += (double) by;
  }
  s = ts_block_sum(s, scratch);
  n = ts_block_sum(n, scratch);
  if (threadIdx.x == 0) {
    sum[blockIdx.x] = s;
    valid[blockIdx.x] = n;
  }
}

/* Block 0 adds the sums, block 1 the numbers. */
static __global__ void __launch_bounds__(THREADS)
    add_sums(double *loss, double *valid, const double *__restrict__ partial, int64_t blocks) {
  TS_SHARED(double, scratch, THREADS / TS_WARP);
  double s = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += THREADS) {
    s += partial[(int64_t) blockIdx.x * blocks + i];
  }
  s = ts_block_sum(s, scratch);
  if (threadIdx.x == 0) {
    *(blockIdx.x == 0 ? loss : valid) = s;
  }
}

static const int32_t *mask_of(const ts_kernel_call *call) {
  return call->node->n_in > 1 ? (const int32_t *) call->in[1] : NULL;
}

template <typename T> static void loss(const ts_kernel_call *call) {
  int64_t count = ts_shape_count(&ts_call_in(call, 0)->shape), blocks = ts_blocks(count, SUMMED);
  double *partial = (double *) call->workspace;
  ts_launch(sum_elements<T>, (unsigned) blocks, THREADS, 0, ts_call_stream(call), partial, partial + blocks,
            (const T *) call->in[0], mask_of(call), count);
  ts_launch(add_sums, 2, THREADS, 0, ts_call_stream(call), (double *) call->out[0], (double *) call->out[1],
            (const double *) partial, blocks);
}

static void loss_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, loss, call);
}

static size_t loss_set_up(const ts_target *, const ts_graph *graph, const ts_node *node, void **) {
  return 2 * ts_blocks(ts_tensor_count(graph, node->in[0]), SUMMED) * sizeof(double);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    spread_seed(T *dx, const float *seed, const int32_t *__restrict__ mask, ts_prior<T> prior, int64_t count) {
  int64_t at = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (at < count) {
    float value = mask == NULL ? *seed : *seed * (float) mask[at];
    ts_add_prior<1>(&value, prior, ts_prior_beta(prior), at);
    dx[at] = ts_round<T>(value);
  }
}

template <typename T> static void loss_dx(const ts_kernel_call *call) {
  int64_t count = ts_shape_count(&ts_call_out(call, 0)->shape);
  ts_launch(spread_seed<T>, ts_blocks(count, THREADS), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
            (const float *) call->in[0], mask_of(call), ts_call_prior<T>(call, 0), count);
}

static void loss_dx_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_out(call, 0)->dtype, loss_dx, call);
}

const ts_kernel *ts_cuda_loss(ts_op op) {
  static const ts_kernel soft = {NULL, soft_loss_launch, NULL}, soft_dx = {NULL, soft_loss_dx_launch, NULL},
                         sum = {loss_set_up, loss_launch, NULL}, sum_dx = {NULL, loss_dx_launch, NULL}, none = {};
  switch (op) {
    case TS_OP_SOFT_LOSS: return &soft;
    case TS_OP_SOFT_LOSS_DX: return &soft_dx;
    case TS_OP_LOSS: return &sum;
    case TS_OP_LOSS_DX: return &sum_dx;
    default: return &none;
  }
}
