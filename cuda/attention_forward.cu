/* Forward attention by tensor cores: a block has ROWS queries of a head, 32 a warp, and sees the keys tile by tile with
 * an online softmax (Milakov and Gimelshein 2018, Dao 2023); scores and weights stay in registers, the next tile of
 * keys and values is copied meanwhile.  Tiles of which nothing is visible are left out.  Weights are rounded to the
 * type of v: at most 2^8, so that fp16 holds them, and its smallest, 2^-24, is nothing beside the row's largest.
 *
 * 4 D flops and one power of 2 for each pair of query and key in the tiles; q, o once, k and v once for ROWS queries.
 */
#include "cuda/attention.cuh"

enum { M = 2 /* sixteens of queries of a warp */, WARPS = 4, ROWS = 16 * M * WARPS, THREADS = WARPS * TS_WARP };

/* Keys of a tile, and blocks on a multiprocessor: D + keys floats of a thread are results and scores, its registers are
 * 65536 / (128 blocks).  The general kernel thinks of documents, windows, softcap and dropout as well; a row of its
 * scores is the bits of a word. */
template <int D, bool GENERAL> struct shape {
  static constexpr int keys = GENERAL ? 32 : 64, blocks = D > 32 || GENERAL ? 2 : 3;
  static constexpr size_t shared = (ROWS + 4 * keys) * ts_tile_row<D> * sizeof(uint16_t);
};

/* What a warp knows of its queries. */
typedef struct queries {
  int first;                  /* its first one */
  float top[M][2], sum[M][2]; /* of each row: highest product, sum of powers so far (in this lane) */
} queries;

/* Products of keys that a query does not see become minus infinity.  Queries past the last see what they like. */
template <int N, bool GENERAL>
static __device__ __forceinline__ void mask_scores(const ts_attention_problem &p, const queries &w, unsigned batch,
                                                   int key, float (*s)[N / 8][4]) {
  bool documents = GENERAL && p.documents != nullptr;
  int32_t of_key = documents ? ts_document_of_lane<N>(p, p.keys, batch, key) : 0;
  key += (int) (threadIdx.x % 4 * 2);
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int row = ts_result_row(w.first, m, half), place = ts_place(p.queries, row);
      int begin = GENERAL ? ts_keys_begin(p, place) - key : 0, end = ts_keys_end(p, place) - key;
      int32_t of_query = documents ? ts_document_of(p, p.queries, batch, row) : 0;
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          int j = 8 * n + i;
          bool sees = j < end && (!GENERAL || j >= begin);
          if (documents) {
            int32_t theirs = __shfl_sync(0xffffffffu, of_key, j + (int) (threadIdx.x % 4 * 2));
            sees = sees && theirs == of_query;
          }
          s[m][n][2 * half + i] = sees ? s[m][n][2 * half + i] : TS_MINUS_INFINITY;
        }
      }
    }
  }
}

/* Products to what the softcap multiplies. */
template <int N> static __device__ __forceinline__ void cap_scores(float into_cap, float (*s)[N / 8][4]) {
#pragma unroll
  for (int i = 0; i < M * N / 2; ++i) {
    float *x = &s[i / (N / 2)][i / 4 % (N / 8)][i % 4];
    *x = ts_tanh(*x * into_cap);
  }
}

/* What is subtracted from the products of a row; while nothing is seen all powers are 0. */
static __device__ __forceinline__ float shift_of(float top) {
  return top == TS_MINUS_INFINITY ? 0.0f : top;
}

/* Products to powers in place.  Sums and results so far go over to a new highest product only when it makes powers of
 * more than 2^8 otherwise, for some row of the warp: seldom after the first tile. */
template <int N, int D>
static __device__ __forceinline__ void softmax(queries &w, float scale, float (*s)[N / 8][4], float (*o)[D / 8][4]) {
  float top[M][2];
  bool grows = false;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float t = w.top[m][half];
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
        t = fmaxf(t, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      }
      t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 1));
      t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 2));
      grows = grows || (t - w.top[m][half]) * scale > 8.0f;
      top[m][half] = t;
    }
  }
  if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float factor = ts_exp2((w.top[m][half] - shift_of(top[m][half])) * scale);
        w.top[m][half] = top[m][half];
        w.sum[m][half] *= factor;
#pragma unroll
        for (int d = 0; d < D / 8; ++d) {
          o[m][d][2 * half] *= factor;
          o[m][d][2 * half + 1] *= factor;
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float shift = shift_of(w.top[m][half]) * scale, sum = 0;
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[m][n][i] = ts_exp2(s[m][n][i] * scale - shift);
          sum += s[m][n][i];
        }
      }
      w.sum[m][half] += sum;
    }
  }
}

/* Zeros where weights are dropped; \a mine: which of query lane are kept.  1 / (1 - p) comes at the end. */
template <int N> static __device__ __forceinline__ void drop_scores(uint32_t mine, float (*s)[N / 8][4]) {
  int lane = (int) (threadIdx.x % TS_WARP);
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t keep = __shfl_sync(0xffffffffu, mine, 16 * m + 8 * half + lane / 4) >> (lane % 4 * 2);
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          s[m][n][2 * half + i] = keep >> (8 * n + i) & 1 ? s[m][n][2 * half + i] : 0.0f;
        }
      }
    }
  }
}

static __device__ __forceinline__ queries begin_queries(int first) {
  queries w;
  w.first = first;
#pragma unroll
  for (int i = 0; i < 2 * M; ++i) {
    w.top[i / 2][i % 2] = TS_MINUS_INFINITY;
    w.sum[i / 2][i % 2] = 0;
  }
  return w;
}

/* o and lse of the warp, 0 and minus infinity of a query that saw no key; its rows of the tile of queries serve as the
 * way to memory. */
template <int D, typename T>
static __device__ __forceinline__ void finish(const ts_attention_problem &p, const queries &w, unsigned batch,
                                              unsigned head, T *tile, float (*o)[D / 8][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = w.sum[m][half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
      for (int i = 0; i < D / 4; ++i) {
        o[m][i / 2][2 * half + i % 2] *= factor;
      }
      int row = ts_result_row(w.first, m, half);
      if (threadIdx.x % 4 == 0 && row < p.queries.count) {
        p.lse[ts_statistics_at(p, batch, head) + row] = w.top[m][half] * p.unit + logf(sum);
      }
    }
  }
  ts_tile_store<M, D>(p, p.queries, p.o, p.queries.heads, batch, w.first, head, tile, o, p.keep_scale);
}

template <typename T, int D, bool GENERAL>
__global__ void __launch_bounds__(THREADS, shape<D, GENERAL>::blocks)
    attention_forward(const __grid_constant__ ts_attention_problem p) {
  constexpr int N = shape<D, GENERAL>::keys;
  TS_SHARED_DYNAMIC(T, q_tile);
  T *k_tile = q_tile + ROWS * ts_tile_row<D>, *v_tile = k_tile + 2 * N * ts_tile_row<D>;
  ts_attention_block block = ts_attention_block_of(p, p.queries);
  if (!block.any) {
    return;
  }
  int first = ((int) gridDim.y - 1 - block.rank) * ROWS, warp = ts_warp_number();
  unsigned kv_head = ts_key_head(p, block.head);
  int end = ts_tile_keys_end<ROWS>(p, first), key = ts_tile_keys_begin<N, GENERAL>(p, first);
  key = ts_next_tile<ROWS, N, GENERAL>(p.queries, p.keys, block.batch, first, key, end);
  if (key < end) {
    ts_tile_load<ROWS, D, THREADS>(q_tile, p, p.queries, p.q, p.queries.row_heads, block.batch, first, block.head);
    ts_tile_load<N, D, THREADS>(k_tile, p, p.keys, p.k, (GENERAL ? p.keys.heads : p.keys.row_heads), block.batch, key,
                                kv_head);
    ts_tile_load<N, D, THREADS>(v_tile, p, p.keys, p.v, (GENERAL ? p.keys.heads : p.keys.row_heads), block.batch, key,
                                kv_head);
    ts_copy_commit();
  }
  queries w = begin_queries(first + 16 * M * warp);
  T *q = q_tile + 16 * M * warp * ts_tile_row<D>;
  float o[M][D / 8][4] = {}, scale = p.unit * TS_LOG2E;
  for (int next, at = 0; key < end; key = next, at ^= N * ts_tile_row<D>) {
    ts_copy_wait<0>();
    __syncthreads(); /* this tile is there for all, and nobody reads the other any more */
    next = ts_next_tile<ROWS, N, GENERAL>(p.queries, p.keys, block.batch, first, key + N, end);
    if (next < end) {
      int other = at ^ (N * ts_tile_row<D>);
      ts_tile_load<N, D, THREADS>(k_tile + other, p, p.keys, p.k, (GENERAL ? p.keys.heads : p.keys.row_heads),
                                  block.batch, next, kv_head);
      ts_tile_load<N, D, THREADS>(v_tile + other, p, p.keys, p.v, (GENERAL ? p.keys.heads : p.keys.row_heads),
                                  block.batch, next, kv_head);
      ts_copy_commit();
    }
    if (ts_may_see<16 * M, N, GENERAL>(p, block.batch, w.first, key)) {
      float s[M][N / 8][4];
      uint32_t mine = 0;
      if constexpr (GENERAL) {
        mine = ts_attention_keep_run<N>(p, block.batch, block.head, w.first + (int) (threadIdx.x % TS_WARP), key);
      }
      ts_tile_product<M, N, D>(s, q + ts_lane_left<D>(), k_tile + at + ts_lane_right<D>());
      if (GENERAL && p.softcap > 0) {
        cap_scores<N>(p.into_cap, s);
      }
      if (ts_some_hidden<16 * M, N, GENERAL>(p, w.first, key)) {
        mask_scores<N, GENERAL>(p, w, block.batch, key, s);
      }
      softmax<N, D>(w, scale, s, o);
      if (GENERAL && p.threshold != 0) {
        drop_scores<N>(mine, s);
      }
      ts_tile_add_product<M, N, D>(o, s, v_tile + at + ts_lane_left<D>());
    }
  }
  finish<D>(p, w, block.batch, block.head, q, o);
}

/* The kernels need no number of key heads but that of a row, and get it in either's place: each kind reads the one from
 * which ptxas needs no register too many for heads of 128 elements. */
template <typename T, int D, bool GENERAL>
static void launch_forward_tiles(const ts_attention_problem *p, cudaStream_t stream) {
  ts_attention_problem by_rows = *p;
  by_rows.keys.heads = p->keys.row_heads;
  ts_launch(attention_forward<T, D, GENERAL>, ts_attention_grid(p, &p->queries, ROWS), THREADS,
            shape<D, GENERAL>::shared, stream, by_rows);
}

template <typename T, int D> static void choose_forward_kind(const ts_attention_problem *p, cudaStream_t stream) {
  if (ts_attention_is_general(p)) {
    launch_forward_tiles<T, D, true>(p, stream);
  } else {
    launch_forward_tiles<T, D, false>(p, stream);
  }
}

template <int D> static void choose_forward_type(const ts_attention_problem *p, ts_dtype dtype, cudaStream_t stream) {
  if (dtype == TS_BF16) {
    choose_forward_kind<ts_bf16, D>(p, stream);
  } else {
    choose_forward_kind<ts_f16, D>(p, stream);
  }
}

void ts_attention_forward(const ts_attention_problem *p, ts_dtype dtype, cudaStream_t stream) {
  TS_FOR_HEAD_DIM(p->head_dim, choose_forward_type, p, dtype, stream);
}
