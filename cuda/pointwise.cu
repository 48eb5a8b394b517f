/* Element by element: bound by memory.  A thread does VECTORS vectors of 16 bytes of the narrower type, or single elements where
 * something is not aligned; what is left of the last vector is done one by one. */
#include "cuda/kernel.cuh"
#include "cuda/philox.cuh"

enum { THREADS = 256, MOST_IN = 3, MOST_OUT = 2 };

/* ---- bodies: y from x, one element ---- */

struct add_body {
  enum { IN = 2, OUT = 1 };
  static __device__ __forceinline__ void apply(float *y, const float *x) { y[0] = x[0] + x[1]; }
};

/* sigmoid (u) and its slope, without cancellation: both from exp (-|u|). */
static __device__ __forceinline__ float sigmoid(float u, float *slope) {
  float e = expf(-fabsf(u)), r = 1.0f / (1.0f + e);
  *slope = e * r * r;
  return u >= 0.0f ? r : e * r;
}

/* gelu (x) = x sigmoid (2 u), u = sqrt (2 / pi) (x + 0.044715 x^3): the tanh form. */
static __device__ __forceinline__ float gelu_argument(float x) { return 1.5957691216f * (x + 0.044715f * x * x * x); }

struct gelu_body {
  enum { IN = 1, OUT = 1 };
  static __device__ __forceinline__ void apply(float *y, const float *x) {
    float slope;
    y[0] = x[0] * sigmoid(gelu_argument(x[0]), &slope);
  }
};

struct gelu_dx_body {
  enum { IN = 2, OUT = 1 };
  static __device__ __forceinline__ void apply(float *y, const float *x) {
    float slope, s = sigmoid(gelu_argument(x[1]), &slope);
    y[0] = x[0] * (s + x[1] * slope * 1.5957691216f * (1.0f + 3.0f * 0.044715f * x[1] * x[1]));
  }
};

struct swiglu_body {
  enum { IN = 2, OUT = 1 };
  static __device__ __forceinline__ void apply(float *y, const float *x) {
    float slope;
    y[0] = x[0] * sigmoid(x[0], &slope) * x[1];
  }
};

struct swiglu_dx_body { /* dy, gate, up -> dgate, dup */
  enum { IN = 3, OUT = 2 };
  static __device__ __forceinline__ void apply(float *y, const float *x) {
    float slope, s = sigmoid(x[1], &slope);
    y[0] = x[0] * x[2] * (s + x[1] * slope);
    y[1] = x[0] * (x[1] * s);
  }
};

/* ---- the kernel of all of them ---- */

struct pointers {
  const void *in[MOST_IN];
  void *out[MOST_OUT];
};

template <typename Body, typename T, int W>
static __device__ __forceinline__ void do_vector(const pointers &p, ts_prior<T> prior, float beta, int64_t at) {
  float x[Body::IN][W], y[Body::OUT][W];
#pragma unroll
  for (int k = 0; k < Body::IN; ++k) {
    ts_load<W>(x[k], (const T *) p.in[k] + at);
  }
#pragma unroll
  for (int i = 0; i < W; ++i) {
    float from[Body::IN], to[Body::OUT];
#pragma unroll
    for (int k = 0; k < Body::IN; ++k) {
      from[k] = x[k][i];
    }
    Body::apply(to, from);
#pragma unroll
    for (int k = 0; k < Body::OUT; ++k) {
      y[k][i] = to[k];
    }
  }
  ts_add_prior<W>(y[0], prior, beta, at);
#pragma unroll
  for (int k = 0; k < Body::OUT; ++k) {
    ts_store<W>((T *) p.out[k] + at, y[k]);
  }
}

template <typename Body, typename T, int W>
__global__ void __launch_bounds__(THREADS) pointwise(pointers p, ts_prior<T> prior, int64_t count) {
  int64_t at = ((int64_t) blockIdx.x * THREADS + threadIdx.x) * W;
  float beta = ts_prior_beta(prior);
  if (at + W <= count) {
    do_vector<Body, T, W>(p, prior, beta, at);
  } else {
    for (; at < count; ++at) {
      do_vector<Body, T, 1>(p, prior, beta, at);
    }
  }
}

template <typename Body, typename T>
static void launch(const ts_kernel_call *call) {
  pointers p = {};
  const void *all[MOST_IN + MOST_OUT + 1] = {};
  for (int i = 0; i < Body::IN; ++i) {
    all[i] = p.in[i] = call->in[i];
  }
  for (int i = 0; i < Body::OUT; ++i) {
    all[Body::IN + i] = p.out[i] = call->out[i];
  }
  ts_prior<T> prior = ts_call_prior<T>(call, 0);
  all[MOST_IN + MOST_OUT] = prior.data;
  int64_t count = ts_shape_count(&ts_call_in(call, 0)->shape);
  if (ts_is_wide<T>(ts_lanes<T>, all, MOST_IN + MOST_OUT + 1)) {
    ts_launch(pointwise<Body, T, ts_lanes<T>>, ts_blocks(count, THREADS * ts_lanes<T>), THREADS, 0, ts_call_stream(call), p, prior, count);
  } else {
    ts_launch(pointwise<Body, T, 1>, ts_blocks(count, THREADS), THREADS, 0, ts_call_stream(call), p, prior, count);
  }
}

template <typename Body>
static void run_body(const ts_kernel_call *call) {
  if (ts_call_in(call, 0)->dtype == TS_F32) {
    launch<Body, float>(call);
  } else {
    TS_ASSERT(ts_call_in(call, 0)->dtype == TS_BF16);
    launch<Body, ts_bf16>(call);
  }
}

/* ---- cast and accumulate: y = beta prior + x, types of x and y apart ---- */

template <typename T, typename U, int W>
__global__ void __launch_bounds__(THREADS) convert(U *y, const T *x, ts_prior<U> prior, int64_t count) {
  int64_t at = ((int64_t) blockIdx.x * THREADS + threadIdx.x) * W;
  float beta = ts_prior_beta(prior), v[W];
  if (at + W <= count) {
    ts_load<W>(v, x + at);
    ts_add_prior<W>(v, prior, beta, at);
    ts_store<W>(y + at, v);
    return;
  }
  for (; at < count; ++at) {
    ts_load<1>(v, x + at);
    ts_add_prior<1>(v, prior, beta, at);
    ts_store<1>(y + at, v);
  }
}

template <typename T, typename U>
static void launch_convert(const ts_kernel_call *call, int x, const void *prior_data, const float *beta) {
  const void *all[] = {call->in[x], call->out[0], prior_data};
  ts_prior<U> prior = {(const U *) prior_data, beta};
  int64_t count = ts_shape_count(&ts_call_in(call, x)->shape);
  enum { W = 16 / (sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U)) };
  if (ts_is_wide<T>(ts_lanes<T>, all, 3)) {
    ts_launch(convert<T, U, W>, ts_blocks(count, THREADS * W), THREADS, 0, ts_call_stream(call), (U *) call->out[0],
              (const T *) call->in[x], prior, count);
  } else {
    ts_launch(convert<T, U, 1>, ts_blocks(count, THREADS), THREADS, 0, ts_call_stream(call), (U *) call->out[0],
              (const T *) call->in[x], prior, count);
  }
}

static void cast_run(const ts_kernel_call *call) {
  TS_FOR_FLOATS(ts_call_in(call, 0)->dtype, ts_call_out(call, 0)->dtype, launch_convert, call, 0, NULL, NULL);
}

/* Sums of losses and token counts: a few elements. */
static __global__ void __launch_bounds__(THREADS)
accumulate_doubles(double *y, const double *prior, const double *x, const float *beta, int64_t count) {
  int64_t i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (i < count) {
    y[i] = *beta == 0.0f ? x[i] : (double) *beta * prior[i] + x[i];
  }
}

static void accumulate_run(const ts_kernel_call *call) {
  const float *beta = (const float *) call->in[2];
  int64_t count = ts_shape_count(&ts_call_in(call, 0)->shape);
  if (ts_call_out(call, 0)->dtype == TS_F64) {
    ts_launch(accumulate_doubles, ts_blocks(count, THREADS), THREADS, 0, ts_call_stream(call), (double *) call->out[0],
              (const double *) call->in[0], (const double *) call->in[1], beta, count);
  } else {
    TS_FOR_FLOATS(ts_call_in(call, 1)->dtype, ts_call_out(call, 0)->dtype, launch_convert, call, 1, call->in[0], beta);
  }
}

/* ---- dropout: a thread does the elements of one or two draws ---- */

template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
dropout(T *y, const T *x, const int64_t *seed, const int64_t *sample, uint64_t name, uint32_t threshold, float scale, int64_t each) {
  int64_t element = ((int64_t) blockIdx.x * THREADS + threadIdx.x) * W, at = (int64_t) blockIdx.y * each + element;
  if (element >= each) {
    return;
  }
  uint64_t key = ts_dropout_key_of(seed, name);
  uint32_t word[W];
#pragma unroll
  for (int i = 0; i < W; i += 4) {
    ts_philox_words(key, (uint64_t) sample[blockIdx.y], (uint64_t) (element + i) / 4, word + i);
  }
  if (element + W <= each && each % W == 0) {
    float v[W];
    ts_load<W>(v, x + at);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      v[i] = word[i] >= threshold ? v[i] * scale : 0.0f;
    }
    ts_store<W>(y + at, v);
    return;
  }
#pragma unroll
  for (int i = 0; i < W; ++i) {
    if (element + i < each) {
      y[at + i] = ts_round<T>(word[i] >= threshold ? ts_float(x[at + i]) * scale : 0.0f);
    }
  }
}

template <typename T>
static void launch_dropout(const ts_kernel_call *call) {
  const ts_tensor *x = ts_call_in(call, 0);
  float p = call->node->attr.dropout.p, scale = p < 1.0f ? 1.0f / (1.0f - p) : 0.0f;
  int64_t samples = x->shape.d[0], each = samples > 0 ? ts_shape_count(&x->shape) / samples : 0;
  TS_CHECK(samples <= 65535, "dropout: %lld samples in a micro-batch, at most 65535", (long long) samples);
  enum { W = 16 / sizeof(T) };
  TS_ASSERT((uintptr_t) call->in[0] % 16 == 0 && (uintptr_t) call->out[0] % 16 == 0);
  ts_launch(dropout<T, W>, dim3(ts_blocks(each, THREADS * W), (unsigned) samples), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], (const int64_t *) call->in[1], (const int64_t *) call->in[2], call->node->attr.dropout.name,
            ts_dropout_threshold(p), scale, each);
}

static void dropout_run(const ts_kernel_call *call) { TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, launch_dropout, call); }

/* ---- split and concat: rows of bytes moved ---- */

template <typename Unit>
__global__ void __launch_bounds__(THREADS)
copy_rows(Unit *to, const Unit *from, int64_t rows, int width, int64_t to_stride, int64_t from_stride) {
  int64_t i = (int64_t) blockIdx.x * THREADS + threadIdx.x, row = i / width, column = i % width;
  if (row < rows) {
    to[row * to_stride + column] = from[row * from_stride + column];
  }
}

template <typename Unit>
static void launch_copy(void *to, const void *from, int64_t rows, size_t width, size_t to_stride, size_t from_stride, cudaStream_t stream) {
  int64_t units = (int64_t) (width / sizeof(Unit));
  ts_launch(copy_rows<Unit>, ts_blocks(rows * units, THREADS), THREADS, 0, stream, (Unit *) to, (const Unit *) from, rows, (int) units,
            (int64_t) (to_stride / sizeof(Unit)), (int64_t) (from_stride / sizeof(Unit)));
}

/* Bytes of a row and between rows; all of them multiples of 2. */
static void copy(void *to, const void *from, int64_t rows, size_t width, size_t to_stride, size_t from_stride, cudaStream_t stream) {
  uintptr_t all = (uintptr_t) to | (uintptr_t) from | width | to_stride | from_stride;
  if (width == 0) {
    return;
  }
  if (all % 16 == 0) {
    launch_copy<uint4>(to, from, rows, width, to_stride, from_stride, stream);
  } else if (all % 4 == 0) {
    launch_copy<uint32_t>(to, from, rows, width, to_stride, from_stride, stream);
  } else {
    launch_copy<uint16_t>(to, from, rows, width, to_stride, from_stride, stream);
  }
}

static size_t row_bytes(const ts_tensor *t) { return (size_t) ts_columns_of(t) * ts_dtype_size(t->dtype); }

static void split_run(const ts_kernel_call *call) {
  const char *from = (const char *) call->in[0];
  size_t whole = row_bytes(ts_call_in(call, 0));
  for (int i = 0; i < call->node->n_out; ++i) {
    size_t width = row_bytes(ts_call_out(call, i));
    copy(call->out[i], from, ts_shape_rows(&ts_call_in(call, 0)->shape), width, width, whole, ts_call_stream(call));
    from += width;
  }
}

static void concat_run(const ts_kernel_call *call) {
  char *to = (char *) call->out[0];
  size_t whole = row_bytes(ts_call_out(call, 0));
  for (int i = 0; i < call->node->n_in; ++i) {
    size_t width = row_bytes(ts_call_in(call, i));
    copy(to, call->in[i], ts_shape_rows(&ts_call_out(call, 0)->shape), width, whole, width, ts_call_stream(call));
    to += width;
  }
}

const ts_kernel *ts_cuda_pointwise(ts_op op) {
  static const ts_kernel add = {NULL, run_body<add_body>, NULL}, gelu = {NULL, run_body<gelu_body>, NULL},
                         gelu_dx = {NULL, run_body<gelu_dx_body>, NULL}, swiglu = {NULL, run_body<swiglu_body>, NULL},
                         swiglu_dx = {NULL, run_body<swiglu_dx_body>, NULL}, cast = {NULL, cast_run, NULL},
                         accumulate = {NULL, accumulate_run, NULL}, dropout = {NULL, dropout_run, NULL}, split = {NULL, split_run, NULL},
                         concat = {NULL, concat_run, NULL}, none = {};
  switch (op) {
    case TS_OP_ADD: return &add;
    case TS_OP_GELU: return &gelu;
    case TS_OP_GELU_DX: return &gelu_dx;
    case TS_OP_SWIGLU: return &swiglu;
    case TS_OP_SWIGLU_DX: return &swiglu_dx;
    case TS_OP_CAST: return &cast;
    case TS_OP_ACCUMULATE: return &accumulate;
    case TS_OP_DROPOUT: return &dropout;
    case TS_OP_SPLIT: return &split;
    case TS_OP_CONCAT: return &concat;
    default: return &none;
  }
}
