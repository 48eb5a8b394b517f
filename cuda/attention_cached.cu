/* Attention of a few new tokens on all that was kept.  A block does one query of a head: its warps take KEYS keys in
 * turn, each with an online softmax (Milakov and Gimelshein 2018), and what they have is put together at the end, in
 * their order.  How many keys there are stands in device memory, so the launch is the same for all of them and can be
 * recorded.  Bytes: keys and values once a query head, as many rows as are seen. */
#include "cuda/attention.cuh"

enum {
  WARPS = 4,
  THREADS = WARPS * TS_WARP,
  KEYS = 4 /* of a warp at a time: their loads are under way together */,
  EACH = TS_ATTENTION_MOST_HEAD_DIM / TS_WARP /* elements of a head in a lane */,
  COPY_THREADS = 256
};

struct cached_problem {
  const void *q, *k, *v; /* [B][T][H D], [B][T][G D] */
  void *keys, *values;   /* [B][K][G D] */
  void *o;
  const int32_t *past; /* [B] */
  int64_t batch, length, kept;
  int heads, kv_heads, head_dim;
  int64_t window; /* 0: none */
  float scale, softcap;
};

/* ---- keeping ---- */

/* A thread copies an element of k and of v. */
template <typename T>
__global__ void __launch_bounds__(COPY_THREADS) keep_rows(const __grid_constant__ cached_problem p) {
  int64_t width = (int64_t) p.kv_heads * p.head_dim, i = (int64_t) blockIdx.x * COPY_THREADS + threadIdx.x;
  int64_t row = i / width, batch = row / p.length;
  int64_t place = batch < p.batch ? p.past[batch] + row % p.length : p.kept;
  if (place < p.kept) {
    int64_t to = (batch * p.kept + place) * width + i % width;
    ((T *) p.keys)[to] = ((const T *) p.k)[i];
    ((T *) p.values)[to] = ((const T *) p.v)[i];
  }
}

/* ---- attending ---- */

/* What a warp has of a query. */
struct partial {
  float top, sum, o[EACH];
};

/* Elements lane, lane + 32 ... of a head. */
template <typename T> static __device__ __forceinline__ void load_lanes(float *to, const T *from, int head_dim) {
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    int d = (int) (threadIdx.x % TS_WARP) + i * TS_WARP;
    to[i] = d < head_dim ? ts_float(from[d]) : 0.0f;
  }
}

/* The score of a key, the same in all lanes. */
template <typename T>
static __device__ __forceinline__ float score_key(const cached_problem &p, const float *q, const T *key) {
  float k[EACH], s = 0;
  load_lanes(k, key, p.head_dim);
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    s += q[i] * k[i];
  }
  s = ts_warp_sum(s) * p.scale;
  return p.softcap > 0 ? p.softcap * ts_tanh(s / p.softcap) : s;
}

/* Another highest score: what there is goes over to it. */
static __device__ __forceinline__ void raise(partial &a, float top) {
  float factor = a.top == TS_MINUS_INFINITY ? 0.0f : ts_exp2((a.top - top) * TS_LOG2E);
  a.top = top;
  a.sum *= factor;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    a.o[i] *= factor;
  }
}

/* The keys [first, last] that are this warp's: KEYS of every WARPS KEYS. */
template <typename T>
static __device__ __forceinline__ partial attend_keys(const cached_problem &p, const float *q, const T *keys,
                                                      const T *values, int64_t stride, int64_t first, int64_t last) {
  partial a = {TS_MINUS_INFINITY, 0, {}};
  for (int64_t key = first + ts_warp_number() * KEYS; key <= last; key += WARPS * KEYS) {
    float s[KEYS], top = a.top;
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
      s[i] = key + i <= last ? score_key(p, q, keys + (key + i) * stride) : TS_MINUS_INFINITY;
      top = fmaxf(top, s[i]);
    }
    if (top > a.top) {
      raise(a, top);
    }
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
      if (key + i <= last) {
        float v[EACH], weight = ts_exp2((s[i] - a.top) * TS_LOG2E);
        load_lanes(v, values + (key + i) * stride, p.head_dim);
        a.sum += weight;
#pragma unroll
        for (int d = 0; d < EACH; ++d) {
          a.o[d] += weight * v[d];
        }
      }
    }
  }
  return a;
}

/* The warps' parts of a query, by the first warp. */
template <typename T>
static __device__ __forceinline__ void put_together(const cached_problem &p, partial a, float *shared, T *o) {
  enum { PART = TS_ATTENTION_MOST_HEAD_DIM + 2 };
  int lane = (int) (threadIdx.x % TS_WARP), warp = ts_warp_number();
  float *mine = shared + warp * PART;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    mine[2 + lane + i * TS_WARP] = a.o[i];
  }
  if (lane == 0) {
    mine[0] = a.top;
    mine[1] = a.sum;
  }
  __syncthreads();
  for (int w = 1; warp == 0 && w < WARPS; ++w) {
    const float *other = shared + w * PART;
    if (other[1] == 0.0f) {
      continue; /* it had no key; what is no number is one */
    }
    if (other[0] > a.top) {
      raise(a, other[0]);
    }
    float factor = ts_exp2((other[0] - a.top) * TS_LOG2E);
    a.sum += other[1] * factor;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      a.o[i] += other[2 + lane + i * TS_WARP] * factor;
    }
  }
  for (int i = 0; warp == 0 && i < EACH; ++i) {
    if (lane + i * TS_WARP < p.head_dim) {
      o[lane + i * TS_WARP] = ts_round<T>(a.o[i] / a.sum);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) attention_cached(const __grid_constant__ cached_problem p) {
  TS_SHARED(float, shared, WARPS *(TS_ATTENTION_MOST_HEAD_DIM + 2));
  int64_t item = blockIdx.x, head = item % p.heads, row = item / p.heads;
  int64_t batch = row / p.length, place = p.past[batch] + row % p.length;
  if (place >= p.kept) {
    for (int d = (int) threadIdx.x; d < p.head_dim; d += THREADS) {
      ((T *) p.o)[item * p.head_dim + d] = ts_round<T>(0.0f);
    }
    return;
  }
  int64_t last = place, oldest = last - p.window + 1;
  int64_t first = p.window > 0 && oldest > 0 ? oldest : 0, kv_head = head / (p.heads / p.kv_heads);
  int64_t stride = (int64_t) p.kv_heads * p.head_dim, at = batch * p.kept * stride + kv_head * p.head_dim;
  float q[EACH];
  load_lanes(q, (const T *) p.q + item * p.head_dim, p.head_dim);
  partial a = attend_keys(p, q, (const T *) p.keys + at, (const T *) p.values + at, stride, first, last);
  put_together(p, a, shared, (T *) p.o + item * p.head_dim);
}

/* ---- launching ---- */

template <typename T> static void launch_both(const cached_problem &p, cudaStream_t stream) {
  int64_t rows = p.batch * p.length;
  ts_launch(keep_rows<T>, ts_blocks(rows * p.kv_heads * p.head_dim, COPY_THREADS), COPY_THREADS, 0, stream, p);
  ts_launch(attention_cached<T>, (unsigned) (rows * p.heads), THREADS, 0, stream, p);
}

void ts_attention_run_cached(const ts_kernel_call *call) {
  const ts_attr *attr = &call->node->attr;
  const ts_shape *q = &ts_call_in(call, 2)->shape;
  cached_problem p = {};
  p.keys = call->out[0];
  p.values = call->out[1];
  p.q = call->in[2];
  p.k = call->in[3];
  p.v = call->in[4];
  p.past = (const int32_t *) call->in[5];
  p.o = call->out[2];
  p.batch = q->d[0];
  p.length = q->d[1];
  p.kept = ts_call_in(call, 0)->shape.d[1];
  p.heads = attr->attention.heads;
  p.kv_heads = attr->attention.kv_heads;
  p.head_dim = attr->attention.head_dim;
  p.window = attr->attention.window;
  p.scale = attr->attention.scale;
  p.softcap = attr->attention.softcap;
  TS_FOR_FLOAT(ts_call_in(call, 2)->dtype, launch_both, p, ts_call_stream(call));
}
