/* Products of each expert's rows with its matrix, and the gradients of these matrices.  How many rows an expert has
 * only the device knows: of as many blocks as there can be tiles each finds its own, or nothing to do.  A sum goes over
 * all of k in order in one block, so a row's bits do not depend on other rows.
 *
 * Tensor cores where rows of 16-bit elements are whole vectors of 16 bytes: by warp groups (grouped_wgmma.cu) where the
 * machine has them and a result is wide enough, else by mma.m16n8k16 with four stages of copies ahead.  Else, and for
 * fp32, a plain kernel.  2 M C F flops; x once for each 128 or 256 columns of the result, w once for each 128 rows of
 * an expert. */
#include "cuda/grouped.cuh"

/* A block's tile, what of k is brought at a time and how often ahead; the same of the plain kernel. */
enum { ROWS = 128, COLUMNS = 128, DEPTH = 32, STAGES = 4, THREADS = 256 };
enum { PLAIN = 64, PLAIN_DEPTH = 16, PLAIN_EACH = PLAIN / 16 };

/* Elements from one row of a tile to the next: 16 bytes more, so that 8 rows of ldmatrix lie in different banks. */
enum { ALONG_ROW = DEPTH + 8, DOWN_ROW = ROWS + 8, RESULT_ROW = COLUMNS + 4 };
static_assert(ROWS == COLUMNS, "both operands have tiles of one size");

/* Elements of a tile: [rows][k] or [k][rows]. */
template <bool ALONG> constexpr int tile_size = ALONG ? ROWS *ALONG_ROW : DEPTH *DOWN_ROW;

/* N neighbours of a result. */
template <int N, typename O> static __device__ void put_as(const ts_grouped &p, int64_t at, float *x) {
  ts_prior<O> prior = {(const O *) p.prior, p.beta};
  ts_add_prior<N>(x, prior, ts_prior_beta(prior), at);
  ts_store<N>((O *) p.out + at, x);
}

template <int N> static __device__ void put(const ts_grouped &p, int64_t at, float *x) {
  if (p.dtype == TS_F32) {
    put_as<N, float>(p, at, x);
  } else if (p.dtype == TS_BF16) {
    put_as<N, ts_bf16>(p, at, x);
  } else {
    put_as<N, ts_f16>(p, at, x);
  }
}

/* ---- tensor cores ---- */

/* Begin to copy the k from `at` on of `extent` rows; zeros where there is nothing. */
template <bool ALONG, typename T>
static __device__ __forceinline__ void copy_operand(T *tile, const T *from, int stride, int extent, int at, int k) {
  constexpr int vectors = (ALONG ? DEPTH : ROWS) / 8, row_size = ALONG ? ALONG_ROW : DOWN_ROW;
#pragma unroll
  for (int i = 0; i < ROWS * DEPTH / 8 / THREADS; ++i) {
    int v = (int) threadIdx.x + i * THREADS, r = v / vectors, c = v % vectors * 8;
    bool valid = ALONG ? r < extent && at + c < k : at + r < k && c < extent;
    const T *x = ALONG ? from + (int64_t) r * stride + at + c : from + (int64_t) (at + r) * stride + c;
    ts_copy_ahead(tile + r * row_size + c, x, valid);
  }
}

/* A warp has 64 x 32 of the result. */
enum { WARP_M = 4, WARP_N = 4, WARPS_ACROSS = COLUMNS / (8 * WARP_N) };

/* [16][16] of a, from row m, k on. */
template <bool ALONG, typename T>
static __device__ __forceinline__ void load_left(uint32_t r[4], const T *tile, int m, int k) {
  int lane = (int) (threadIdx.x % TS_WARP);
  if (ALONG) {
    ts_ldmatrix(r, tile + (m + lane % 16) * ALONG_ROW + k + lane / 16 * 8);
  } else {
    ts_ldmatrix_trans(r, tile + (k + lane / 16 * 8 + lane % 8) * DOWN_ROW + m + lane / 8 % 2 * 8);
  }
}

/* [16][8] of b twice, from column n, k on. */
template <bool ALONG, typename T>
static __device__ __forceinline__ void load_right(uint32_t r[4], const T *tile, int n, int k) {
  int lane = (int) (threadIdx.x % TS_WARP);
  if (ALONG) {
    ts_ldmatrix(r, tile + (n + lane / 16 * 8 + lane % 8) * ALONG_ROW + k + lane / 8 % 2 * 8);
  } else {
    ts_ldmatrix_trans(r, tile + (k + lane % 16) * DOWN_ROW + n + lane / 16 * 8);
  }
}

template <bool A_ALONG, bool B_ALONG, typename T>
static __device__ __forceinline__ void add_tile_product(float (*sum)[WARP_N][4], const T *a, const T *b, int m, int n) {
#pragma unroll
  for (int k = 0; k < DEPTH; k += 16) {
    uint32_t left[WARP_M][4], right[WARP_N / 2][4];
#pragma unroll
    for (int i = 0; i < WARP_M; ++i) {
      load_left<A_ALONG>(left[i], a, m + 16 * i, k);
    }
#pragma unroll
    for (int j = 0; j < WARP_N / 2; ++j) {
      load_right<B_ALONG>(right[j], b, n + 16 * j, k);
    }
#pragma unroll
    for (int i = 0; i < WARP_M; ++i) {
#pragma unroll
      for (int j = 0; j < WARP_N; ++j) {
        ts_mma<T>(sum[i][j], left[i], right[j / 2] + j % 2 * 2);
      }
    }
  }
}

/* By way of shared memory, so that 16 bytes are written together. */
static __device__ __forceinline__ void put_tile(const ts_grouped &p, const ts_grouped_tile &s, float *tile,
                                                const float (*sum)[WARP_N][4], int m, int n) {
  int lane = (int) (threadIdx.x % TS_WARP);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < WARP_M * WARP_N * 2; ++i) {
    int half = i % 2, j = i / 2 % WARP_N, r = m + i / 2 / WARP_N * 16 + 8 * half + lane / 4,
        c = n + 8 * j + lane % 4 * 2;
    ts_store<2>(tile + r * RESULT_ROW + c, &sum[i / 2 / WARP_N][j][2 * half]);
  }
  __syncthreads();
  constexpr int each = 4, vectors = COLUMNS / each;
  for (int v = (int) threadIdx.x; v < ROWS * vectors; v += THREADS) {
    int r = v / vectors, c = v % vectors * each;
    if (r < s.m && c < s.n) {
      float x[each];
      ts_load<each>(x, tile + r * RESULT_ROW + c);
      put<each>(p, s.at + (int64_t) r * s.stride + c, x);
    }
  }
}

template <bool A_ALONG, bool B_ALONG> constexpr size_t shared_bytes(void) {
  constexpr size_t tiles = STAGES * (tile_size<A_ALONG> + tile_size<B_ALONG>) *sizeof(uint16_t),
                   result = ROWS * RESULT_ROW * sizeof(float);
  return tiles > result ? tiles : result;
}

template <typename T, bool A_ALONG, bool B_ALONG>
__global__ void __launch_bounds__(THREADS, 2) grouped_tiles(const __grid_constant__ ts_grouped p) {
  TS_SHARED_DYNAMIC(T, memory);
  ts_grouped_tile s = ts_tile_at<ROWS, COLUMNS, A_ALONG, B_ALONG>(p, p.first, blockIdx.x);
  if (!s.any) {
    return;
  }
  T *a_tile = memory, *b_tile = memory + STAGES * tile_size<A_ALONG>;
  const T *a = (const T *) p.a + s.a, *b = (const T *) p.b + s.b;
  int warp = (int) (threadIdx.x / TS_WARP), m = warp / WARPS_ACROSS * 16 * WARP_M, n = warp % WARPS_ACROSS * 8 * WARP_N;
  float sum[WARP_M][WARP_N][4];
#pragma unroll
  for (int i = 0; i < WARP_M * WARP_N * 4; ++i) {
    sum[i / (4 * WARP_N)][i / 4 % WARP_N][i % 4] = 0;
  }
  int steps = (s.k + DEPTH - 1) / DEPTH;
  for (int i = 0; i < STAGES - 1; ++i) {
    if (i < steps) {
      copy_operand<A_ALONG>(a_tile + i * tile_size<A_ALONG>, a, s.a_stride, s.m, i * DEPTH, s.k);
      copy_operand<B_ALONG>(b_tile + i * tile_size<B_ALONG>, b, s.b_stride, s.n, i * DEPTH, s.k);
    }
    ts_copy_commit();
  }
  for (int i = 0; i < steps; ++i) {
    ts_copy_wait<STAGES - 2>();
    __syncthreads();
    int next = i + STAGES - 1, to = next % STAGES, from = i % STAGES;
    if (next < steps) {
      copy_operand<A_ALONG>(a_tile + to * tile_size<A_ALONG>, a, s.a_stride, s.m, next * DEPTH, s.k);
      copy_operand<B_ALONG>(b_tile + to * tile_size<B_ALONG>, b, s.b_stride, s.n, next * DEPTH, s.k);
    }
    ts_copy_commit();
    add_tile_product<A_ALONG, B_ALONG>(sum, a_tile + from * tile_size<A_ALONG>, b_tile + from * tile_size<B_ALONG>, m,
                                       n);
  }
  ts_copy_wait<0>();
  put_tile(p, s, (float *) memory, sum, m, n);
}

/* ---- any rows ---- */

/* tile [k][rows] as floats. */
template <bool ALONG, typename T>
static __device__ __forceinline__ void read_tile(float *tile, const T *from, int stride, int extent, int at, int k) {
  for (int v = (int) threadIdx.x; v < PLAIN * PLAIN_DEPTH; v += THREADS) {
    int r = ALONG ? v / PLAIN_DEPTH : v % PLAIN, i = ALONG ? v % PLAIN_DEPTH : v / PLAIN;
    int64_t element = ALONG ? (int64_t) r * stride + at + i : (int64_t) (at + i) * stride + r;
    tile[i * PLAIN + r] = r < extent && at + i < k ? ts_float(from[element]) : 0.0f;
  }
}

template <typename T, bool A_ALONG, bool B_ALONG>
__global__ void __launch_bounds__(THREADS, 2) grouped_plain(const __grid_constant__ ts_grouped p) {
  TS_SHARED(float, a_tile, PLAIN_DEPTH *PLAIN);
  TS_SHARED(float, b_tile, PLAIN_DEPTH *PLAIN);
  ts_grouped_tile s = ts_tile_at<PLAIN, PLAIN, A_ALONG, B_ALONG>(p, p.first, blockIdx.x);
  if (!s.any) {
    return;
  }
  const T *a = (const T *) p.a + s.a, *b = (const T *) p.b + s.b;
  int row = (int) threadIdx.x / 16, column = (int) threadIdx.x % 16;
  float sum[PLAIN_EACH][PLAIN_EACH] = {};
  for (int at = 0; at < s.k; at += PLAIN_DEPTH) {
    __syncthreads();
    read_tile<A_ALONG>(a_tile, a, s.a_stride, s.m, at, s.k);
    read_tile<B_ALONG>(b_tile, b, s.b_stride, s.n, at, s.k);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < PLAIN_DEPTH; ++k) {
#pragma unroll
      for (int i = 0; i < PLAIN_EACH * PLAIN_EACH; ++i) {
        sum[i / PLAIN_EACH][i % PLAIN_EACH] +=
            a_tile[k * PLAIN + row + 16 * (i / PLAIN_EACH)] * b_tile[k * PLAIN + column + 16 * (i % PLAIN_EACH)];
      }
    }
  }
  for (int i = 0; i < PLAIN_EACH * PLAIN_EACH; ++i) {
    int r = row + 16 * (i / PLAIN_EACH), c = column + 16 * (i % PLAIN_EACH);
    if (r < s.m && c < s.n) {
      put<1>(p, s.at + (int64_t) r * s.stride + c, &sum[i / PLAIN_EACH][i % PLAIN_EACH]);
    }
  }
}

/* ---- launches ---- */

template <typename T, bool A_ALONG, bool B_ALONG> static void launch_plain(const ts_kernel_call *call, ts_grouped p) {
  ts_launch(grouped_plain<T, A_ALONG, B_ALONG>, ts_grouped_tiles(p, PLAIN, PLAIN), THREADS, 0, ts_call_stream(call), p);
}

template <typename T, bool A_ALONG, bool B_ALONG> static void launch_tiles(const ts_kernel_call *call, ts_grouped p) {
  const void *pointer[] = {p.a, p.b, p.out, p.prior};
  bool wide = ts_is_wide<T>(p.inner, pointer, 4) && p.columns % ts_lanes<T> == 0;
  if (wide && TS_CUDA_WARPGROUPS && p.columns > COLUMNS) {
    ts_grouped_wgmma(&p, ts_call_in(call, 0)->dtype, B_ALONG, ts_call_stream(call));
  } else if (wide) {
    ts_launch(grouped_tiles<T, A_ALONG, B_ALONG>, ts_grouped_tiles(p, ROWS, COLUMNS), THREADS,
              shared_bytes<A_ALONG, B_ALONG>(), ts_call_stream(call), p);
  } else {
    launch_plain<T, A_ALONG, B_ALONG>(call, p);
  }
}

/* fp32 has no tensor cores of its own accuracy. */
template <bool A_ALONG, bool B_ALONG> static void launch_for(const ts_kernel_call *call, ts_grouped p) {
  switch (ts_call_in(call, 0)->dtype) {
    case TS_F32: launch_plain<float, A_ALONG, B_ALONG>(call, p); break;
    case TS_BF16: launch_tiles<ts_bf16, A_ALONG, B_ALONG>(call, p); break;
    default: launch_tiles<ts_f16, A_ALONG, B_ALONG>(call, p);
  }
}

static void grouped_launch(const ts_kernel_call *call) {
  const ts_shape *a = &ts_call_in(call, 0)->shape, *b = &ts_call_in(call, 1)->shape;
  bool dw = call->node->op == TS_OP_GROUPED_DW, along = !dw && call->node->attr.matmul.transpose_b;
  ts_grouped p = {call->in[0],
                  call->in[1],
                  call->out[0],
                  ts_call_prior<void>(call, 0).data,
                  call->beta,
                  call->node->attr.matmul.dtype,
                  (const int32_t *) call->in[2],
                  (int) ts_call_in(call, 2)->shape.d[0] - 1,
                  (int) a->d[1],
                  (int) (dw ? b->d[1] : b->d[along ? 1 : 2]),
                  a->d[0],
                  dw};
  if (dw) {
    launch_for<false, false>(call, p);
  } else if (along) {
    launch_for<true, true>(call, p);
  } else {
    launch_for<true, false>(call, p);
  }
}

const ts_kernel *ts_cuda_grouped(ts_op op) {
  static const ts_kernel kernel = {NULL, grouped_launch, NULL}, none = {};
  return op == TS_OP_GROUPED || op == TS_OP_GROUPED_DW ? &kernel : &none;
}
