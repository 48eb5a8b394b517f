/* Rotary positions (Su et al. 2021; halves as in Hugging Face).  A block does a row, or several short ones
 * (the keys of grouped queries): their sines and cosines once, in fp64 because fp32 loses them at long positions, then
 * all heads.  Bytes: 2 N C elements. */
#include "cuda/kernel.cuh"

extern "C" {
#include "base/memory.h"
}

#include <math.h>

enum { THREADS = 128, MOST_HALF = 128, LEAST_LANES = 32, MOST_ROWS = THREADS / LEAST_LANES };

/* Turns of each pair from one position to the next. */
struct rope_turns {
  double of[MOST_HALF];
};

/* Of each head the first 2 half elements turn, the others stay. */
struct rope_heads {
  int columns, head, half;
};

/* Column of the first element of a pair; the second is `half` on. */
static __device__ __forceinline__ int first_of(int pair, rope_heads h) {
  return pair / h.half * h.head + pair % h.half;
}

/* What does not turn of a row, by the thread that begins at element `at` of it. */
template <typename T, int W>
static __device__ __forceinline__ void copy_rest(T *to, const T *from, rope_heads h, int at, int stride) {
  int turned = 2 * h.half, kept = h.head - turned, all = h.columns / h.head * kept;
  for (; at < all; at += stride) {
    int column = at / kept * h.head + turned + at % kept;
    *(ts_vector<T, W> *) (to + column) = *(const ts_vector<T, W> *) (from + column);
  }
}

/* `lanes` threads a row, a divisor of THREADS. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    rotate(T *__restrict__ y, const T *__restrict__ x, const int32_t *__restrict__ position,
           const __grid_constant__ rope_turns turns, int64_t rows, rope_heads h, int lanes, double factor,
           double sign) {
  TS_SHARED(float, sine, MOST_ROWS *MOST_HALF);
  TS_SHARED(float, cosine, MOST_ROWS *MOST_HALF);
  int half = h.half;
  int mine = (int) threadIdx.x / lanes, here = THREADS / lanes; /* row of this thread in the block, and how many */
  int64_t first = (int64_t) blockIdx.x * here;
  here = rows - first < here ? (int) (rows - first) : here;
  int pairs = mine < here ? h.columns / h.head * half : 0, pair = (int) threadIdx.x % lanes * W;
  const T *from = x + (first + mine) * h.columns;
  T *to = y + (first + mine) * h.columns;
  float a[W], b[W], u[W], v[W];
  if (pair < pairs) { /* under way while the angles are computed */
    ts_load<W>(a, from + first_of(pair, h));
    ts_load<W>(b, from + first_of(pair, h) + half);
  }
  for (int i = (int) threadIdx.x; i < here * half; i += THREADS) {
    double turn = (double) position[first + i / half] * turns.of[i % half], s, c;
    sincospi(2.0 * (turn - rint(turn)), &s, &c);
    sine[i] = (float) (sign * s);
    cosine[i] = (float) (factor * c);
  }
  __syncthreads();
  if (mine < here) {
    copy_rest<T, W>(to, from, h, pair, lanes * W);
  }
  while (pair < pairs) {
    int i = mine * half + pair % half, at = first_of(pair, h);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      u[k] = a[k] * cosine[i + k] - b[k] * sine[i + k];
      v[k] = b[k] * cosine[i + k] + a[k] * sine[i + k];
    }
    ts_store<W>(to + at, u);
    ts_store<W>(to + at + half, v);
    pair += lanes * W;
    if (pair < pairs) {
      ts_load<W>(a, from + first_of(pair, h));
      ts_load<W>(b, from + first_of(pair, h) + half);
    }
  }
}

const char *ts_cuda_rope_refuses(const ts_node *node) {
  bool many = node->op == TS_OP_ROPE && node->attr.rope.rotated > 2 * MOST_HALF;
  return many ? "rotary positions on a GPU turn at most 256 elements of a head" : NULL;
}

static size_t set_up_rope(const ts_target *, const ts_graph *, const ts_node *node, void **prepared) {
  const ts_attr *attr = &node->attr;
  if (prepared == NULL) {
    return 0;
  }
  TS_ASSERT(ts_cuda_rope_refuses(node) == NULL);
  rope_turns *turns = (rope_turns *) ts_calloc(1, sizeof *turns);
  for (int i = 0; i < attr->rope.rotated / 2; ++i) {
    turns->of[i] = attr->rope.frequency[i] / (2 * M_PI);
  }
  *prepared = turns;
  return 0;
}

template <typename T, int W> static void launch_turns(const ts_kernel_call *call) {
  const ts_tensor *x = ts_call_in(call, 0);
  const ts_attr *attr = &call->node->attr;
  const rope_turns *turns = (const rope_turns *) call->prepared;
  rope_heads h = {(int) ts_columns_of(x), attr->rope.head_dim, attr->rope.rotated / 2};
  int64_t rows = ts_shape_rows(&x->shape);
  double factor = attr->rope.factor, sign = attr->rope.inverse ? -factor : factor;
  int lanes = THREADS;
  while (lanes > LEAST_LANES && lanes / 2 * W >= h.columns / 2) {
    lanes /= 2;
  }
  ts_launch(rotate<T, W>, ts_blocks(rows, THREADS / lanes), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], (const int32_t *) call->in[1], *turns, rows, h, lanes, factor, sign);
}

template <typename T> static void choose_turns(const ts_kernel_call *call) {
  const void *all[] = {call->in[0], call->out[0]};
  const ts_attr *attr = &call->node->attr;
  if (attr->rope.head_dim % ts_lanes<T> == 0 && ts_is_wide<T>(attr->rope.rotated / 2, all, 2)) {
    launch_turns<T, ts_lanes<T>>(call);
  } else {
    launch_turns<T, 1>(call);
  }
}

static void launch_rope(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, choose_turns, call);
}

const ts_kernel *ts_cuda_rope(ts_op op) {
  static const ts_kernel row = {set_up_rope, launch_rope, ts_free}, none = {};
  return op == TS_OP_ROPE ? &row : &none;
}
