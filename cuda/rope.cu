/* Rotary positions (Su et al. 2021; halves of a head as in Hugging Face).  A block does a row, or several short ones
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

/* Column of the first element of a pair; the second is half a head on. */
static __device__ __forceinline__ int first_of(int pair, int half) {
  return pair / half * 2 * half + pair % half;
}

/* `lanes` threads a row, a divisor of THREADS. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    rotate(T *__restrict__ y, const T *__restrict__ x, const int32_t *__restrict__ position,
           const __grid_constant__ rope_turns turns, int64_t rows, int half, int columns, int lanes, float sign) {
  TS_SHARED(float, sine, MOST_ROWS *MOST_HALF);
  TS_SHARED(float, cosine, MOST_ROWS *MOST_HALF);
  int mine = (int) threadIdx.x / lanes, here = THREADS / lanes; /* row of this thread in the block, and how many */
  int64_t first = (int64_t) blockIdx.x * here;
  here = rows - first < here ? (int) (rows - first) : here;
  int pairs = mine < here ? columns / 2 : 0, pair = (int) threadIdx.x % lanes * W;
  const T *from = x + (first + mine) * columns;
  T *to = y + (first + mine) * columns;
  float a[W], b[W], u[W], v[W];
  if (pair < pairs) { /* under way while the angles are computed */
    ts_load<W>(a, from + first_of(pair, half));
    ts_load<W>(b, from + first_of(pair, half) + half);
  }
  for (int i = (int) threadIdx.x; i < here * half; i += THREADS) {
    double turn = (double) position[first + i / half] * turns.of[i % half], s, c;
    sincospi(2.0 * (turn - rint(turn)), &s, &c);
    sine[i] = sign * (float) s;
    cosine[i] = (float) c;
  }
  __syncthreads();
  while (pair < pairs) {
    int i = mine * half + pair % half, at = first_of(pair, half);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      u[k] = a[k] * cosine[i + k] - b[k] * sine[i + k];
      v[k] = b[k] * cosine[i + k] + a[k] * sine[i + k];
    }
    ts_store<W>(to + at, u);
    ts_store<W>(to + at + half, v);
    pair += lanes * W;
    if (pair < pairs) {
      ts_load<W>(a, from + first_of(pair, half));
      ts_load<W>(b, from + first_of(pair, half) + half);
    }
  }
}

/* Llama 3's interpolation: long wavelengths are stretched by factor, short ones kept, the band between blended. */
static double llama3_turns(const ts_attr *attr, double turns) {
  double whole = attr->rope.original_max_position * turns; /* in the original context */
  double low = attr->rope.low_freq_factor, high = attr->rope.high_freq_factor;
  double kept = whole < low ? 0 : whole > high ? 1 : (whole - low) / (high - low);
  return turns * (kept + (1 - kept) / attr->rope.factor);
}

static size_t set_up_rope(const ts_target *, const ts_graph *, const ts_node *node, void **prepared) {
  const ts_attr *attr = &node->attr;
  TS_CHECK(attr->rope.head_dim <= 2 * MOST_HALF, "rope: head_dim %d, at most %d on a GPU", attr->rope.head_dim,
           2 * MOST_HALF);
  if (prepared == NULL) {
    return 0;
  }
  rope_turns *turns = (rope_turns *) ts_calloc(1, sizeof *turns);
  for (int i = 0; i < attr->rope.head_dim / 2; ++i) {
    double plain = pow(attr->rope.theta, -2.0 * i / attr->rope.head_dim) / (2 * M_PI);
    turns->of[i] = attr->rope.scaling == TS_ROPE_LLAMA3   ? llama3_turns(attr, plain)
                   : attr->rope.scaling == TS_ROPE_LINEAR ? plain / attr->rope.factor
                                                          : plain;
  }
  *prepared = turns;
  return 0;
}

template <typename T, int W> static void launch_turns(const ts_kernel_call *call) {
  const ts_tensor *x = ts_call_in(call, 0);
  float sign = call->node->attr.rope.inverse ? -1.0f : 1.0f;
  const rope_turns *turns = (const rope_turns *) call->prepared;
  int64_t rows = ts_shape_rows(&x->shape), columns = ts_columns_of(x);
  int lanes = THREADS;
  while (lanes > LEAST_LANES && lanes / 2 * W >= columns / 2) {
    lanes /= 2;
  }
  ts_launch(rotate<T, W>, ts_blocks(rows, THREADS / lanes), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], (const int32_t *) call->in[1], *turns, rows, call->node->attr.rope.head_dim / 2,
            (int) columns, lanes, sign);
}

template <typename T> static void choose_turns(const ts_kernel_call *call) {
  const void *all[] = {call->in[0], call->out[0]};
  if (ts_is_wide<T>(call->node->attr.rope.head_dim / 2, all, 2)) {
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
