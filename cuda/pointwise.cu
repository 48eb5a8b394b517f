/* Element by element: bound by memory.  A thread does VECTORS vectors of 16 bytes of the widest type, all read before
 * the first is written; the last block, and all where something is not aligned, goes by single elements. */
#include "cuda/kernel.cuh"
#include "cuda/philox.cuh"

extern "C" {
#include "backend/update_rules.h"
}

enum { THREADS = 256, VECTORS = 2, MOST_IN = 3, MOST_OUT = 2 };

/* Elements of a block that takes W at a time. */
static constexpr __host__ __device__ int64_t block_elements(int w) {
  return (int64_t) THREADS * VECTORS * w;
}

/* ---- bodies: y from x, one element ---- */

struct add_body {
  enum { IN = 2, OUT = 1 };
  template <typename T> static __device__ __forceinline__ void apply(float *y, const float *x) {
    y[0] = x[0] + x[1];
  }
};

struct multiply_body {
  enum { IN = 2, OUT = 1 };
  template <typename T> static __device__ __forceinline__ void apply(float *y, const float *x) {
    y[0] = x[0] * x[1];
  }
};

/* The two bodies that have a state. */
struct scale_body {
  enum { IN = 1, OUT = 1 };
  float by;
  template <typename T> __device__ __forceinline__ void apply(float *y, const float *x) const {
    y[0] = by * x[0];
  }
};

struct softcap_body {
  enum { IN = 1, OUT = 1 };
  float by, softcap;
  template <typename T> __device__ __forceinline__ void apply(float *y, const float *x) const {
    y[0] = softcap * tanhf(by * x[0] / softcap);
  }
};

/* sigmoid (u) and its slope, without cancellation: both from exp (-|u|).  Results that are rounded to 16 bits need no
 * better than the machine's own power and division, 2 units in the last place of fp32 each; the exact ones would make
 * them wait for arithmetic: about 40 instructions an element of GELU, where 25 fit into the time of its 4 bytes. */
template <typename T> static __device__ __forceinline__ float sigmoid(float u, float *slope) {
  bool exact = sizeof(T) == sizeof(float);
  float e = exact ? expf(-fabsf(u)) : ts_exp2(-1.4426950409f * fabsf(u));
  float r = exact ? 1.0f / (1.0f + e) : __fdividef(1.0f, 1.0f + e);
  *slope = e * r * r;
  return u >= 0.0f ? r : e * r;
}

/* ---- activations: act (x) and its slope, a struct for each kind ---- */

/* The tanh form is x sigmoid (2 u), u = sqrt (2 / pi) (x + 0.044715 x^3). */
struct gelu_tanh {
  template <typename T> static __device__ __forceinline__ float apply(float x, float *slope) {
    float rise, s = sigmoid<T>(1.5957691216f * (x + 0.044715f * x * x * x), &rise);
    *slope = s + x * rise * 1.5957691216f * (1.0f + 3.0f * 0.044715f * x * x);
    return x * s;
  }
};

/* x Phi (x); erfc, because 1 + erf cancels. */
struct gelu {
  template <typename T> static __device__ __forceinline__ float apply(float x, float *slope) {
    float below = 0.5f * erfcf(-0.7071067812f * x);
    float e = sizeof(T) == sizeof(float) ? expf(-0.5f * x * x) : ts_exp2(-0.7213475204f * x * x);
    *slope = below + 0.3989422804f * x * e;
    return x * below;
  }
};

struct silu {
  template <typename T> static __device__ __forceinline__ float apply(float x, float *slope) {
    float rise, s = sigmoid<T>(x, &rise);
    *slope = s + x * rise;
    return x * s;
  }
};

struct relu {
  template <typename T> static __device__ __forceinline__ float apply(float x, float *slope) {
    *slope = x <= 0.0f ? 0.0f : 1.0f;
    return x < 0.0f ? 0.0f : x;
  }
};

template <typename Act> struct activation_body {
  enum { IN = 1, OUT = 1 };
  template <typename T> static __device__ __forceinline__ void apply(float *y, const float *x) {
    float slope;
    y[0] = Act::template apply<T>(x[0], &slope);
  }
};

template <typename Act> struct activation_dx_body {
  enum { IN = 2, OUT = 1 };
  template <typename T> static __device__ __forceinline__ void apply(float *y, const float *x) {
    float slope;
    Act::template apply<T>(x[1], &slope);
    y[0] = x[0] * slope;
  }
};

template <typename Act> struct glu_body {
  enum { IN = 2, OUT = 1 };
  template <typename T> static __device__ __forceinline__ void apply(float *y, const float *x) {
    float slope;
    y[0] = Act::template apply<T>(x[0], &slope) * x[1];
  }
};

template <typename Act> struct glu_dx_body { /* dy, gate, up -> dgate, dup */
  enum { IN = 3, OUT = 2 };
  template <typename T> static __device__ __forceinline__ void apply(float *y, const float *x) {
    float slope, value = Act::template apply<T>(x[1], &slope);
    y[0] = x[0] * x[2] * slope;
    y[1] = x[0] * value;
  }
};

/* ---- the kernel of all of them ---- */

struct pointers {
  const void *in[MOST_IN];
  void *out[MOST_OUT];
  const int32_t *rows; /* how many there are at run time, NULL: all */
  int64_t columns;
};

template <typename Body, typename T, int W>
static __device__ __forceinline__ void read(float (*x)[W], const pointers &p, int64_t at) {
#pragma unroll
  for (int k = 0; k < Body::IN; ++k) {
    ts_load<W>(x[k], (const T *) p.in[k] + at);
  }
}

template <typename Body, typename T, int W>
static __device__ __forceinline__ void write(const Body &body, const float (*x)[W], const pointers &p,
                                             ts_prior<T> prior, float beta, int64_t at) {
  float y[Body::OUT][W];
#pragma unroll
  for (int i = 0; i < W; ++i) {
    float from[Body::IN], to[Body::OUT];
#pragma unroll
    for (int k = 0; k < Body::IN; ++k) {
      from[k] = x[k][i];
    }
    body.template apply<T>(to, from);
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
__global__ void __launch_bounds__(THREADS) pointwise(Body body, pointers p, ts_prior<T> prior, int64_t count) {
  int64_t first = (int64_t) blockIdx.x * block_elements(W);
  float beta = ts_prior_beta(prior);
  count = p.rows != nullptr ? *p.rows * p.columns : count;
  if (W > 1 && first + block_elements(W) <= count) {
    float x[VECTORS][Body::IN][W];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      read<Body, T, W>(x[v], p, first + (v * THREADS + (int) threadIdx.x) * W);
    }
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      write<Body, T, W>(body, x[v], p, prior, beta, first + (v * THREADS + (int) threadIdx.x) * W);
    }
    return;
  }
  int64_t last = first + block_elements(W) < count ? first + block_elements(W) : count;
#pragma unroll 1
  for (int64_t at = first + threadIdx.x; at < last; at += THREADS) {
    float x[Body::IN][1];
    read<Body, T, 1>(x, p, at);
    write<Body, T, 1>(body, x, p, prior, beta, at);
  }
}

template <typename Body, typename T, int W>
static void launch_pointwise(const ts_kernel_call *call, const Body &body, const pointers &p, ts_prior<T> prior) {
  int64_t count = ts_shape_count(&ts_call_in(call, 0)->shape);
  ts_launch(pointwise<Body, T, W>, ts_blocks(count, block_elements(W)), THREADS, 0, ts_call_stream(call), body, p,
            prior, count);
}

template <typename T, typename Body> static void choose_lanes(const ts_kernel_call *call, const Body &body) {
  pointers p = {};
  const void *all[MOST_IN + MOST_OUT + 1] = {};
  for (int i = 0; i < Body::IN; ++i) {
    all[i] = p.in[i] = call->in[i];
  }
  for (int i = 0; i < Body::OUT; ++i) {
    all[Body::IN + i] = p.out[i] = call->out[i];
  }
  int extent = ts_node_extent(call->node);
  if (extent >= 0) {
    p.rows = (const int32_t *) call->in[extent] + ts_call_in(call, extent)->shape.d[0] - 1;
    p.columns = ts_columns_of(ts_call_in(call, 0));
  }
  ts_prior<T> prior = ts_call_prior<T>(call, 0);
  all[MOST_IN + MOST_OUT] = prior.data;
  if (ts_is_wide<T>(0, all, MOST_IN + MOST_OUT + 1)) {
    launch_pointwise<Body, T, ts_lanes<T>>(call, body, p, prior);
  } else {
    launch_pointwise<Body, T, 1>(call, body, p, prior);
  }
}

template <typename Body> static void run_body(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, choose_lanes, call, Body());
}

/* Sums of losses, a few numbers: y = beta prior + by x + z, z where there is a second input. */
static __global__ void __launch_bounds__(THREADS)
    doubles(double *y, double by, const double *x, const double *z, ts_prior<double> prior, int64_t count) {
  int64_t i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  double beta = (double) ts_prior_beta(prior);
  if (i < count) {
    double value = by * x[i] + (z != NULL ? z[i] : 0.0);
    y[i] = beta != 0.0 ? beta * prior.data[i] + value : value;
  }
}

static void launch_doubles(const ts_kernel_call *call, double by) {
  int64_t count = ts_shape_count(&ts_call_in(call, 0)->shape);
  ts_launch(doubles, ts_blocks(count, THREADS), THREADS, 0, ts_call_stream(call), (double *) call->out[0], by,
            (const double *) call->in[0], call->node->n_in > 1 ? (const double *) call->in[1] : (const double *) NULL,
            ts_call_prior<double>(call, 0), count);
}

static void add_launch(const ts_kernel_call *call) {
  if (ts_call_out(call, 0)->dtype == TS_F64) {
    launch_doubles(call, 1);
  } else {
    run_body<add_body>(call);
  }
}

static void scale_launch(const ts_kernel_call *call) {
  float by = call->node->attr.scale.by, softcap = call->node->attr.scale.softcap;
  if (ts_call_out(call, 0)->dtype == TS_F64) {
    launch_doubles(call, by);
  } else if (softcap > 0.0f) {
    TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, choose_lanes, call, (softcap_body{by, softcap}));
  } else {
    TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, choose_lanes, call, scale_body{by});
  }
}

/* The body of the node's kind. */
template <template <typename> class Body> static void run_kind(const ts_kernel_call *call) {
  static void (*const run[TS_N_ACTIVATIONS])(const ts_kernel_call *) = {run_body<Body<gelu_tanh>>, run_body<Body<gelu>>,
                                                                        run_body<Body<silu>>, run_body<Body<relu>>};
  run[call->node->attr.activation.kind](call);
}

/* ---- cast and accumulate: y = beta prior + x, types of x and y apart ---- */

template <typename T, typename U, int W>
__global__ void __launch_bounds__(THREADS) convert(U *y, const T *x, ts_prior<U> prior, int64_t count) {
  int64_t first = (int64_t) blockIdx.x * block_elements(W);
  float beta = ts_prior_beta(prior);
  if (W > 1 && first + block_elements(W) <= count) {
    float value[VECTORS][W];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      ts_load<W>(value[v], x + first + (v * THREADS + (int) threadIdx.x) * W);
    }
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      int64_t at = first + (v * THREADS + (int) threadIdx.x) * W;
      ts_add_prior<W>(value[v], prior, beta, at);
      ts_store<W>(y + at, value[v]);
    }
    return;
  }
  int64_t last = first + block_elements(W) < count ? first + block_elements(W) : count;
#pragma unroll 1
  for (int64_t at = first + threadIdx.x; at < last; at += THREADS) {
    float value[1];
    ts_load<1>(value, x + at);
    ts_add_prior<1>(value, prior, beta, at);
    ts_store<1>(y + at, value);
  }
}

template <typename T, typename U, int W>
static void launch_convert(const ts_kernel_call *call, int x, ts_prior<U> prior) {
  int64_t count = ts_shape_count(&ts_call_in(call, x)->shape);
  ts_launch(convert<T, U, W>, ts_blocks(count, block_elements(W)), THREADS, 0, ts_call_stream(call), (U *) call->out[0],
            (const T *) call->in[x], prior, count);
}

/* The first output = beta prior + input x. */
template <typename T, typename U>
static void choose_convert(const ts_kernel_call *call, int x, const void *prior_data, const float *beta) {
  const void *all[] = {call->in[x], call->out[0], prior_data};
  ts_prior<U> prior = {(const U *) prior_data, beta};
  if (ts_is_wide<T>(0, all, 3)) {
    launch_convert<T, U, 16 / (sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U))>(call, x, prior);
  } else {
    launch_convert<T, U, 1>(call, x, prior);
  }
}

static void cast_launch(const ts_kernel_call *call) {
  TS_FOR_FLOATS(ts_call_in(call, 0)->dtype, ts_call_out(call, 0)->dtype, choose_convert, call, 0, NULL, NULL);
}

/* Sums of losses and token counts: a few elements. */
static __global__ void __launch_bounds__(THREADS)
    accumulate_doubles(double *y, const double *prior, const double *x, const float *beta, int64_t count) {
  int64_t i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (i < count) {
    y[i] = *beta == 0.0f ? x[i] : (double) *beta * prior[i] + x[i];
  }
}

static void accumulate_launch(const ts_kernel_call *call) {
  const float *beta = (const float *) call->in[2];
  int64_t count = ts_shape_count(&ts_call_in(call, 0)->shape);
  if (ts_call_out(call, 0)->dtype == TS_F64) {
    ts_launch(accumulate_doubles, ts_blocks(count, THREADS), THREADS, 0, ts_call_stream(call), (double *) call->out[0],
              (const double *) call->in[0], (const double *) call->in[1], beta, count);
  } else {
    TS_FOR_FLOATS(ts_call_in(call, 1)->dtype, ts_call_out(call, 0)->dtype, choose_convert, call, 1, call->in[0], beta);
  }
}

/* ---- bias: a warp a row, W columns a lane ---- */

template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    add_bias(T *y, const T *x, const T *__restrict__ b, ts_prior<T> prior, int64_t rows, int columns) {
  int64_t row = (int64_t) blockIdx.x * (THREADS / TS_WARP) + threadIdx.x / TS_WARP;
  float beta = ts_prior_beta(prior);
  if (row >= rows) {
    return;
  }
#pragma unroll 2
  for (int c = (int) (threadIdx.x % TS_WARP) * W; c < columns; c += TS_WARP * W) {
    float value[W], more[W];
    ts_load<W>(value, x + row * columns + c);
    ts_load<W>(more, b + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      value[i] += more[i];
    }
    ts_add_prior<W>(value, prior, beta, row * columns + c);
    ts_store<W>(y + row * columns + c, value);
  }
}

template <typename T, int W> static void launch_bias_of(const ts_kernel_call *call, ts_prior<T> prior) {
  int64_t rows = ts_shape_rows(&ts_call_in(call, 0)->shape);
  ts_launch(add_bias<T, W>, ts_blocks(rows, THREADS / TS_WARP), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], (const T *) call->in[1], prior, rows, (int) ts_columns_of(ts_call_in(call, 0)));
}

template <typename T> static void launch_bias(const ts_kernel_call *call) {
  ts_prior<T> prior = ts_call_prior<T>(call, 0);
  const void *all[] = {call->in[0], call->in[1], call->out[0], prior.data};
  if (ts_is_wide<T>(ts_columns_of(ts_call_in(call, 0)), all, 4)) {
    launch_bias_of<T, ts_lanes<T>>(call, prior);
  } else {
    launch_bias_of<T, 1>(call, prior);
  }
}

static void bias_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, launch_bias, call);
}

/* ---- dropout: the key once a thread, the words of four elements at a time ---- */

struct dropout_attr {
  ts_noise kind;
  uint64_t name;
  uint32_t threshold;
  float p, scale;
  int64_t each, first, end, sample; /* Elements of all samples one after another: x has [first, end), the first of them
                                     * in `sample`; each: of a sample */
  int64_t split, shift[2];          /* Added to elements of a sample: before `split`, and from there on */
};

/* The element of the whole sample that one of those that are here is. */
static __device__ __forceinline__ int64_t whole_element(const dropout_attr &attr, int64_t element) {
  return element + (element < attr.split ? attr.shift[0] : attr.shift[1]);
}

/* An element by its word. */
static __device__ __forceinline__ float noisy_element(const dropout_attr &attr, float x, uint32_t word) {
  if (attr.kind == TS_NOISE_DROP) {
    return word >= attr.threshold ? x * attr.scale : 0.0f;
  }
  float u = ts_noise_uniform(word);
  return attr.kind == TS_NOISE_JITTER   ? x * (1.0f - attr.p + 2.0f * attr.p * u)
         : attr.kind == TS_NOISE_GUMBEL ? x - logf(-logf(u))
                                        : u;
}

/* Elements [begin, end) of a sample; `at` is added to their places in x and y. */
template <typename T>
static __device__ __forceinline__ void drop_elements(T *y, const T *x, uint64_t key, int64_t sample,
                                                     const dropout_attr &attr, int64_t at, int64_t begin, int64_t end) {
#pragma unroll 1
  for (int64_t i = begin; i < end; ++i) {
    uint32_t word = ts_dropout_word(key, sample, whole_element(attr, i));
    y[at + i] = ts_round<T>(noisy_element(attr, ts_float(x[at + i]), word));
  }
}

/* W elements from a multiple of W on, as are those of the whole sample. */
template <typename T, int W>
static __device__ __forceinline__ void drop_vector(T *y, const T *x, uint64_t key, int64_t sample,
                                                   const dropout_attr &attr, int64_t at, int64_t element) {
  uint32_t word[W];
  float value[W];
  ts_load<W>(value, x + at + element);
  uint64_t first = (uint64_t) whole_element(attr, element);
#pragma unroll
  for (int i = 0; i < W; i += 4) {
    ts_philox_words(key, (uint64_t) sample, (first + (uint64_t) i) / 4, word + i);
  }
#pragma unroll
  for (int i = 0; i < W; ++i) {
    value[i] = noisy_element(attr, value[i], word[i]);
  }
  ts_store<W>(y + at + element, value);
}

/* `blocks` are those of a sample; `wide`: samples begin at multiples of 16 bytes, and x and its stretches at one in
 * their sample. */
template <typename T>
__global__ void __launch_bounds__(THREADS) dropout(T *y, const T *x, const int64_t *seed, const int64_t *sample,
                                                   dropout_attr attr, unsigned blocks, bool wide) {
  enum { W = ts_lanes<T> };
  int64_t b = attr.sample + blockIdx.x / blocks, at = b * attr.each - attr.first;
  int64_t low = at < 0 ? -at : 0, high = attr.end - b * attr.each < attr.each ? attr.end - b * attr.each : attr.each;
  uint64_t key = ts_dropout_key_of(seed, attr.name);
  int64_t first = (int64_t) (blockIdx.x % blocks) * block_elements(W) + (int) threadIdx.x * W;
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) {
    int64_t begin = first + v * THREADS * W, end = begin + W < high ? begin + W : high;
    if (wide && begin >= low && begin + W <= high) {
      drop_vector<T, W>(y, x, key, sample[b], attr, at, begin);
    } else {
      drop_elements(y, x, key, sample[b], attr, at, begin < low ? low : begin, end);
    }
  }
}

/* Whether the stretches begin at multiples of W elements. */
static bool are_whole_vectors(const dropout_attr &attr, int w) {
  return attr.split % w == 0 && attr.shift[0] % w == 0 && attr.shift[1] % w == 0;
}

static void move_stretches(dropout_attr *attr, const ts_tokens *tokens, int64_t columns) {
  if (tokens->n > 0) {
    attr->split = tokens->stretch[0].length * columns;
    attr->shift[0] = tokens->stretch[0].begin * columns;
    attr->shift[1] = tokens->n > 1 ? tokens->stretch[1].begin * columns - attr->split : 0;
  }
}

template <typename T> static void launch_dropout(const ts_kernel_call *call) {
  const ts_tensor *x = ts_call_in(call, 0);
  const void *all[] = {call->in[0], call->out[0]};
  float p = call->node->attr.dropout.p, scale = p < 1.0f ? 1.0f / (1.0f - p) : 0.0f;
  int64_t rows = call->node->attr.dropout.length > 0 ? call->node->attr.dropout.length : x->shape.d[1];
  int64_t each = rows * ts_columns_of(x), first = call->node->attr.dropout.first * ts_columns_of(x);
  int64_t end = first + ts_shape_count(&x->shape), sample = each > 0 ? first / each : 0;
  dropout_attr attr = {call->node->attr.dropout.kind,
                       call->node->attr.dropout.name,
                       ts_dropout_threshold(p),
                       p,
                       scale,
                       each,
                       first,
                       end,
                       sample,
                       0,
                       {}};
  move_stretches(&attr, &call->node->attr.dropout.tokens, ts_columns_of(x));
  unsigned blocks = ts_blocks(each, block_elements(ts_lanes<T>));
  unsigned samples = each > 0 ? ts_blocks(end, each) - (unsigned) sample : 0;
  ts_launch(dropout<T>, blocks * samples, THREADS, 0, ts_call_stream(call), (T *) call->out[0], (const T *) call->in[0],
            (const int64_t *) call->in[1], (const int64_t *) call->in[2], attr, blocks,
            ts_is_wide<T>(each, all, 2) && first % ts_lanes<T> == 0 && are_whole_vectors(attr, ts_lanes<T>));
}

static void dropout_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, launch_dropout, call);
}

/* ---- of matrices, beside products that take longer ---- */

template <typename T, typename U>
__global__ void __launch_bounds__(THREADS)
    over_norm(U *y, const T *x, const double *squares, float eps, int64_t count) {
  float by = ts_update_over_norm(*squares, eps);
  int64_t at = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (at < count) {
    y[at] = ts_round<U>(by * ts_float(x[at]));
  }
}

template <typename T, typename U> static void launch_over_norm(const ts_kernel_call *call, U *y) {
  int64_t count = ts_shape_count(&ts_call_in(call, 0)->shape);
  ts_launch(over_norm<T, U>, ts_blocks(count, THREADS), THREADS, 0, ts_call_stream(call), y, (const T *) call->in[0],
            (const double *) call->in[1], call->node->attr.over_norm.eps, count);
}

template <typename T> static void over_norm_to(const ts_kernel_call *call) {
  switch (ts_call_out(call, 0)->dtype) {
    case TS_F32: launch_over_norm<T>(call, (float *) call->out[0]); break;
    case TS_BF16: launch_over_norm<T>(call, (ts_bf16 *) call->out[0]); break;
    default: launch_over_norm<T>(call, (ts_f16 *) call->out[0]); break;
  }
}

static void over_norm_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, over_norm_to, call);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) add_diagonal(T *y, const T *x, float by, int64_t n, int64_t count) {
  int64_t at = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (at < count) {
    y[at] = ts_round<T>(ts_float(x[at]) + (at % (n + 1) == 0 ? by : 0.0f));
  }
}

template <typename T> static void launch_add_diagonal(const ts_kernel_call *call) {
  const ts_shape *shape = &ts_call_in(call, 0)->shape;
  int64_t count = ts_shape_count(shape);
  ts_launch(add_diagonal<T>, ts_blocks(count, THREADS), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], call->node->attr.diagonal.by, shape->d[1], count);
}

static void add_diagonal_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, launch_add_diagonal, call);
}

const ts_kernel *ts_cuda_pointwise(ts_op op) {
  static const struct {
    ts_op op;
    ts_kernel row;
  } rows[] = {
      {TS_OP_ADD, {NULL, add_launch, NULL}},
      {TS_OP_MULTIPLY, {NULL, run_body<multiply_body>, NULL}},
      {TS_OP_BIAS, {NULL, bias_launch, NULL}},
      {TS_OP_SCALE, {NULL, scale_launch, NULL}},
      {TS_OP_ACTIVATION, {NULL, run_kind<activation_body>, NULL}},
      {TS_OP_ACTIVATION_DX, {NULL, run_kind<activation_dx_body>, NULL}},
      {TS_OP_GLU, {NULL, run_kind<glu_body>, NULL}},
      {TS_OP_GLU_DX, {NULL, run_kind<glu_dx_body>, NULL}},
      {TS_OP_OVER_NORM, {NULL, over_norm_launch, NULL}},
      {TS_OP_ADD_DIAGONAL, {NULL, add_diagonal_launch, NULL}},
      {TS_OP_CAST, {NULL, cast_launch, NULL}},
      {TS_OP_ACCUMULATE, {NULL, accumulate_launch, NULL}},
      {TS_OP_DROPOUT, {NULL, dropout_launch, NULL}},
  };
  static const ts_kernel none = {};
  for (const auto &r : rows) {
    if (r.op == op) {
      return &r.row;
    }
  }
  return &none;
}
