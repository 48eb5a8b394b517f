/* Rotary positions (Su et al. 2021; halves of a head as in Hugging Face).  A block does a row: its sines and cosines once, in fp64
 * because fp32 loses them at long positions, then all heads.  Bytes: 2 N C elements. */
#include "cuda/kernel.cuh"

extern "C" {
#include "base/memory.h"
}

#include <math.h>

enum { THREADS = 128, MOST_HALF = 128 };

/* Turns of each pair from one position to the next. */
struct rope_turns {
  double of[MOST_HALF];
};

template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
rotate(T *__restrict__ y, const T *__restrict__ x, const int32_t *__restrict__ position, const __grid_constant__ rope_turns turns, int half,
       int columns, float sign) {
  TS_SHARED(float, sine, MOST_HALF);
  TS_SHARED(float, cosine, MOST_HALF);
  int64_t row = blockIdx.x;
  for (int i = (int) threadIdx.x; i < half; i += THREADS) {
    double turn = (double) position[row] * turns.of[i], s, c;
    sincospi(2.0 * (turn - rint(turn)), &s, &c);
    sine[i] = sign * (float) s;
    cosine[i] = (float) c;
  }
  __syncthreads();
  const T *from = x + row * columns;
  T *to = y + row * columns;
  for (int pair = (int) threadIdx.x * W; pair < columns / 2; pair += THREADS * W) {
    int i = pair % half, at = pair / half * 2 * half + i;
    float a[W], b[W], u[W], v[W];
    ts_load<W>(a, from + at);
    ts_load<W>(b, from + at + half);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      u[k] = a[k] * cosine[i + k] - b[k] * sine[i + k];
      v[k] = b[k] * cosine[i + k] + a[k] * sine[i + k];
    }
    ts_store<W>(to + at, u);
    ts_store<W>(to + at + half, v);
  }
}

/* Llama 3's interpolation: long wavelengths are stretched by factor, short ones kept, the band between blended. */
static double llama3_turns(const ts_attr *attr, double turns) {
  double whole = attr->rope.original_max_position * turns, low = attr->rope.low_freq_factor, high = attr->rope.high_freq_factor;
  double kept = whole < low ? 0 : whole > high ? 1 : (whole - low) / (high - low);
  return turns * (kept + (1 - kept) / attr->rope.factor);
}

static size_t prepare(const ts_target *, const ts_graph *, const ts_node *node, void **prepared) {
  const ts_attr *attr = &node->attr;
  TS_CHECK(attr->rope.head_dim <= 2 * MOST_HALF, "rope: head_dim %d, at most %d on a GPU", attr->rope.head_dim, 2 * MOST_HALF);
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

template <typename T>
static void launch(const ts_kernel_call *call) {
  const ts_tensor *x = ts_call_in(call, 0);
  const void *all[] = {call->in[0], call->out[0]};
  int half = call->node->attr.rope.head_dim / 2, columns = (int) ts_columns_of(x);
  int64_t rows = ts_shape_rows(&x->shape);
  float sign = call->node->attr.rope.inverse ? -1.0f : 1.0f;
  const rope_turns *turns = (const rope_turns *) call->prepared;
  if (ts_is_wide<T>(half, all, 2)) {
    ts_launch(rotate<T, ts_lanes<T>>, (unsigned) rows, THREADS, 0, ts_call_stream(call), (T *) call->out[0], (const T *) call->in[0],
              (const int32_t *) call->in[1], *turns, half, columns, sign);
  } else {
    ts_launch(rotate<T, 1>, (unsigned) rows, THREADS, 0, ts_call_stream(call), (T *) call->out[0], (const T *) call->in[0],
              (const int32_t *) call->in[1], *turns, half, columns, sign);
  }
}

static void run(const ts_kernel_call *call) { TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, launch, call); }

const ts_kernel *ts_cuda_rope(ts_op op) {
  static const ts_kernel row = {prepare, run, ts_free}, none = {};
  return op == TS_OP_ROPE ? &row : &none;
}
