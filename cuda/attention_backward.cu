/* Backward attention by tensor cores, in two kernels, so that every sum has one owner and no order but its own: one has
 * a tile of keys and sees all queries of all heads of its group (dk, dv), one has a tile of queries and sees the keys
 * (dq).  Weights are made again from the scores and lse, in registers; the tiles that pass are copied a tile ahead.
 * Tiles of which nothing is visible are left out.  P and dS are rounded to the type of the operands; in fp16 a dS
 * beyond its range is infinite, and so are the gradients, which a loss scale answers.
 *
 * With P the weights, dS = P (dP - delta) and dP = do v^T:  dv = P^T do, dk = scale dS^T q, dq = scale dS k; where
 * scores are softcap t with t a tanh, dS = P (dP - delta) (1 - t^2).
 * 8 D flops for each pair of query and key in the tiles of the first kernel, 6 D of the second, one power of 2 in each.
 */
#include "cuda/attention.cuh"

/* ---- dk and dv ---- */

/* Sixteens of keys of a warp, warps, queries of a tile that passes, blocks on a multiprocessor.  Results and scores of
 * a thread are M (D + N) floats: 2 (64 + 32) or 128 + 64 of 255 registers; more keys read the queries less often. */
template <int D, bool GENERAL> struct keys_shape {
  static constexpr int m = D > 64 || (GENERAL && D > 32) ? 1 : 2, warps = 8 / m, keys = 16 * m * warps,
                       threads = warps * TS_WARP;
  static constexpr int n = D > 64 && !GENERAL ? 64 : 32, blocks = m;
  static constexpr size_t shared = (2 * keys + 4 * n) * ts_tile_row<D> * sizeof(uint16_t);
};

/* A product to t in place; the derivative of t by its argument. */
template <bool GENERAL> static __device__ __forceinline__ float cap_score(const ts_attention_problem &p, float *s) {
  if (!GENERAL || p.softcap <= 0) {
    return 1.0f;
  }
  *s = ts_tanh(*s * p.into_cap);
  return 1.0f - *s * *s;
}

/* Products of keys that come after a query become minus infinity: without a softcap their weights are then zero.  Apart
 * from the weights, for there are registers before them. */
template <int M, int N>
static __device__ __forceinline__ void hide_later_keys(const ts_attention_problem &p, unsigned batch, int first_key,
                                                       int first_query, float (*s)[N / 8][4]) {
  int lane = (int) (threadIdx.x % TS_WARP);
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4 * M; ++i) {
      int key = first_key + i / 2 * 8 + lane / 4, query = first_query + 8 * n + lane % 4 * 2 + i % 2;
      float *x = &s[i / 4][n][i % 4];
      *x = ts_sees<false>(p, batch, query, key) ? *x : TS_MINUS_INFINITY;
    }
  }
}

/* Products to weights in place, and dP to dS; \a mine: which weights of query lane are kept. */
template <int M, int N, bool GENERAL>
static __device__ __forceinline__ void weights_of_keys(const ts_attention_problem &p, unsigned batch, int first_key,
                                                       int first_query, const float *statistics, uint32_t mine,
                                                       float (*s)[N / 8][4], float (*d)[N / 8][4]) {
  int lane = (int) (threadIdx.x % TS_WARP);
  bool hides = ts_some_hidden<N, 16 * M, GENERAL>(p, first_query, first_key);
  if (!GENERAL && hides) {
    hide_later_keys<M, N>(p, batch, first_key, first_query, s);
  }
  float scale = p.unit * TS_LOG2E;
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    float lse[2], delta[2];
    uint32_t keep[2] = {0, 0};
    ts_load<2>(lse, statistics + 8 * n + lane % 4 * 2);
    ts_load<2>(delta, statistics + N + 8 * n + lane % 4 * 2);
    if (GENERAL) {
      keep[0] = __shfl_sync(0xffffffffu, mine, 8 * n + lane % 4 * 2) >> (lane / 4);
      keep[1] = __shfl_sync(0xffffffffu, mine, 8 * n + lane % 4 * 2 + 1) >> (lane / 4);
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int key = first_key + 16 * m + i / 2 * 8 + lane / 4, query = first_query + 8 * n + lane % 4 * 2 + i % 2;
        float slope = cap_score<GENERAL>(p, &s[m][n][i]);
        float weight = ts_exp2(s[m][n][i] * scale - lse[i % 2]), gradient = d[m][n][i];
        if (GENERAL && hides) {
          weight = ts_sees<true>(p, batch, query, key) ? weight : 0.0f;
        }
        bool kept = !GENERAL || (keep[i % 2] >> (16 * m + i / 2 * 8) & 1) != 0;
        s[m][n][i] = kept ? weight : 0.0f;
        d[m][n][i] = weight * ((GENERAL ? kept ? gradient * p.keep_scale : 0.0f : gradient) - delta[i % 2]);
        if (GENERAL) {
          d[m][n][i] *= slope;
        }
      }
    }
  }
}

/* lse in powers of 2; infinite, which makes all weights zero, of a query that saw no key. */
static __device__ __forceinline__ float power_of(float lse) {
  return lse == TS_MINUS_INFINITY ? INFINITY : lse * TS_LOG2E;
}

/* lse in powers of 2 (thread < N) or delta (thread < 2 N) of the query it has in the next tile.  Past the end they make
 * weights and gradients zero. */
template <int N>
static __device__ __forceinline__ float statistic(const ts_attention_problem &p, unsigned batch, unsigned head,
                                                  int first_query) {
  int thread = (int) threadIdx.x, query = first_query + thread % N;
  bool inside = query < p.queries.count;
  int64_t at = ts_statistics_at(p, batch, head) + query;
  return thread >= 2 * N ? 0.0f : thread < N ? inside ? power_of(p.lse[at]) : INFINITY : inside ? p.delta[at] : 0.0f;
}

template <typename T, int D, bool GENERAL>
__global__ void __launch_bounds__(keys_shape<D, GENERAL>::threads, keys_shape<D, GENERAL>::blocks)
    attention_dkdv(const __grid_constant__ ts_attention_problem p) {
  typedef keys_shape<D, GENERAL> shape;
  constexpr int M = shape::m, N = shape::n, THREADS = shape::threads;
  TS_SHARED_DYNAMIC(T, k_tile);
  TS_SHARED(float, statistics, 4 * N);
  T *v_tile = k_tile + shape::keys * ts_tile_row<D>, *q_tile = v_tile + shape::keys * ts_tile_row<D>;
  T *do_tile = q_tile + 2 * N * ts_tile_row<D>;
  ts_attention_block block = ts_attention_block_of(p, p.keys);
  if (!block.any) {
    return;
  }
  int first_key = block.rank * shape::keys, warp = ts_warp_number(), warp_key = first_key + 16 * M * warp;
  int begin = ts_next_tile<shape::keys, N, GENERAL>(p.keys, p.queries, block.batch, first_key,
                                                    ts_tile_queries_begin<N>(p, first_key),
                                                    ts_tile_queries_end<shape::keys, GENERAL>(p, first_key));
  int query = begin;
  unsigned head = ts_first_query_head(p, block.head), end_head = ts_first_query_head(p, block.head + 1);
  if (begin >= ts_tile_queries_end<shape::keys, GENERAL>(p, first_key)) {
    end_head = head;
  }
  float mine = 0;
  if (head < end_head) {
    ts_tile_load<shape::keys, D, THREADS>(k_tile, p, p.keys, p.k, p.keys.row_heads, block.batch, first_key, block.head);
    ts_tile_load<shape::keys, D, THREADS>(v_tile, p, p.keys, p.v, p.keys.row_heads, block.batch, first_key, block.head);
    ts_tile_load<N, D, THREADS>(q_tile, p, p.queries, p.q, p.queries.row_heads, block.batch, query, head);
    ts_tile_load<N, D, THREADS>(do_tile, p, p.queries, p.d_out, p.queries.heads, block.batch, query, head);
    ts_copy_commit();
    mine = statistic<N>(p, block.batch, head, query);
  }
  float dk[M][D / 8][4] = {}, dv[M][D / 8][4] = {};
  for (int turn = 0; head < end_head; turn ^= 1) {
    int end = ts_tile_queries_end<shape::keys, GENERAL>(p, first_key);
    int next_query = ts_next_tile<shape::keys, N, GENERAL>(p.keys, p.queries, block.batch, first_key, query + N, end);
    bool same = next_query < end;
    next_query = same ? next_query : begin;
    unsigned next_head = same ? head : head + 1;
    float *statistic_tile = statistics + turn * 2 * N;
    if ((int) threadIdx.x < 2 * N) {
      statistic_tile[threadIdx.x] = mine;
    }
    ts_copy_wait<0>();
    __syncthreads(); /* this tile is there for all, and nobody reads the other any more */
    if (next_head < end_head) {
      int other = (turn ^ 1) * N * ts_tile_row<D>;
      ts_tile_load<N, D, THREADS>(q_tile + other, p, p.queries, p.q, p.queries.row_heads, block.batch, next_query,
                                  next_head);
      ts_tile_load<N, D, THREADS>(do_tile + other, p, p.queries, p.d_out, p.queries.heads, block.batch, next_query,
                                  next_head);
      ts_copy_commit();
      mine = statistic<N>(p, block.batch, next_head, next_query);
    }
    if (ts_may_see<N, 16 * M, GENERAL>(p, block.batch, query, warp_key)) {
      const T *q = q_tile + turn * N * ts_tile_row<D>, *d_out = do_tile + turn * N * ts_tile_row<D>;
      float s[M][N / 8][4], d[M][N / 8][4];
      static_assert(!GENERAL || N == TS_WARP, "a lane draws for a query");
      uint32_t kept = 0;
      if constexpr (GENERAL) {
        kept = ts_attention_keep_run<16 * M>(p, block.batch, head, query + (int) (threadIdx.x % TS_WARP), warp_key);
      }
      ts_tile_product<M, N, D>(s, k_tile + 16 * M * warp * ts_tile_row<D> + ts_lane_left<D>(), q + ts_lane_right<D>());
      ts_tile_product<M, N, D>(d, v_tile + 16 * M * warp * ts_tile_row<D> + ts_lane_left<D>(),
                               d_out + ts_lane_right<D>());
      weights_of_keys<M, N, GENERAL>(p, block.batch, warp_key, query, statistic_tile, kept, s, d);
      if constexpr (GENERAL) {
        __syncwarp(); /* documents part the lanes; matrix instructions want the warp whole */
      }
      ts_tile_add_product<M, N, D>(dv, s, d_out + ts_lane_left<D>());
      ts_tile_add_product<M, N, D>(dk, d, q + ts_lane_left<D>());
    }
    head = next_head;
    query = next_query;
  }
  k_tile += 16 * M * warp * ts_tile_row<D>;
  v_tile += 16 * M * warp * ts_tile_row<D>;
  ts_tile_store<M, D>(p, p.keys, p.dk, p.keys.row_heads, block.batch, warp_key, block.head, k_tile, dk, p.scale);
  ts_tile_store<M, D>(p, p.keys, p.dv, p.keys.row_heads, block.batch, warp_key, block.head, v_tile, dv, p.keep_scale);
}

/* ---- dq ---- */

/* Thirty-two queries of a warp; keys of a tile that passes, blocks on a multiprocessor. */
enum { M = 2, WARPS = 4, ROWS = 16 * M * WARPS, THREADS = WARPS * TS_WARP };

template <int D, bool GENERAL> struct queries_shape {
  static constexpr int n = GENERAL && D > 96 ? 16 : D > 64 || GENERAL ? 32 : 64;
  static constexpr size_t shared = (2 * ROWS + 4 * n) * ts_tile_row<D> * sizeof(uint16_t);
};

/* What a warp knows of its queries. */
typedef struct queries {
  int first;
  unsigned batch, head;
  float lse[M][2] /* in powers of 2 */, delta[M][2];
} queries;

static __device__ __forceinline__ queries load_queries(const ts_attention_problem &p, unsigned batch, unsigned head,
                                                       int first) {
  queries w;
  w.first = first;
  w.batch = batch;
  w.head = head;
#pragma unroll
  for (int i = 0; i < 2 * M; ++i) {
    int row = ts_result_row(w.first, i / 2, i % 2);
    int64_t at = ts_statistics_at(p, batch, head) + row;
    w.lse[i / 2][i % 2] = row < p.queries.count ? power_of(p.lse[at]) : INFINITY;
    w.delta[i / 2][i % 2] = row < p.queries.count ? p.delta[at] : 0.0f;
  }
  return w;
}

/* Products and dP to dS, in d; \a mine: which weights of query lane are kept.  Queries past the sequence have weights
 * of zero, for their lse is infinite. */
template <int N, bool GENERAL>
static __device__ __forceinline__ void gradients_of_scores(const ts_attention_problem &p, const queries &w,
                                                           int first_key, uint32_t mine, float (*s)[N / 8][4],
                                                           float (*d)[N / 8][4]) {
  int lane = (int) (threadIdx.x % TS_WARP);
  bool hides = ts_some_hidden<16 * M, N, GENERAL>(p, w.first, first_key);
  int key = first_key + lane % 4 * 2;
  float scale = p.unit * TS_LOG2E;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int row = ts_result_row(w.first, m, half), place = ts_place(p.queries, row);
      int begin = GENERAL ? ts_keys_begin(p, place) - key : 0, end = ts_keys_end(p, place) - key;
      uint32_t keep = GENERAL ? __shfl_sync(0xffffffffu, mine, 16 * m + 8 * half + lane / 4) >> (lane % 4 * 2) : 0;
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float slope = cap_score<GENERAL>(p, &s[m][n][2 * half + i]);
          float weight = ts_exp2(s[m][n][2 * half + i] * scale - w.lse[m][half]), *x = &d[m][n][2 * half + i];
          int j = 8 * n + i;
          if (hides) {
            bool sees = j < end && (!GENERAL || j >= begin);
            if (GENERAL && sees && p.documents != nullptr && row < p.queries.count) {
              const int32_t *document = p.documents + w.batch * p.length;
              sees = document[place] == document[ts_place(p.keys, key + j)];
            }
            weight = sees ? weight : 0.0f;
          }
          bool kept = !GENERAL || (keep >> j & 1) != 0;
          *x = weight * ((GENERAL ? kept ? *x * p.keep_scale : 0.0f : *x) - w.delta[m][half]);
          if (GENERAL) {
            *x *= slope;
          }
        }
      }
    }
  }
}

template <typename T, int D, bool GENERAL>
__global__ void __launch_bounds__(THREADS, 2) attention_dq(const __grid_constant__ ts_attention_problem p) {
  constexpr int N = queries_shape<D, GENERAL>::n;
  TS_SHARED_DYNAMIC(T, q_tile);
  T *do_tile = q_tile + ROWS * ts_tile_row<D>, *k_tile = do_tile + ROWS * ts_tile_row<D>;
  T *v_tile = k_tile + 2 * N * ts_tile_row<D>;
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
    ts_tile_load<ROWS, D, THREADS>(do_tile, p, p.queries, p.d_out, p.queries.heads, block.batch, first, block.head);
    ts_tile_load<N, D, THREADS>(k_tile, p, p.keys, p.k, p.keys.row_heads, block.batch, key, kv_head);
    ts_tile_load<N, D, THREADS>(v_tile, p, p.keys, p.v, p.keys.row_heads, block.batch, key, kv_head);
    ts_copy_commit();
  }
  queries w = load_queries(p, block.batch, block.head, first + 16 * M * warp);
  T *q = q_tile + 16 * M * warp * ts_tile_row<D>, *d_out = do_tile + 16 * M * warp * ts_tile_row<D>;
  float dq[M][D / 8][4] = {};
  for (int next, turn = 0; key < end; key = next, turn ^= 1) {
    ts_copy_wait<0>();
    __syncthreads(); /* this tile is there for all, and nobody reads the other any more */
    next = ts_next_tile<ROWS, N, GENERAL>(p.queries, p.keys, block.batch, first, key + N, end);
    if (next < end) {
      int other = (turn ^ 1) * N * ts_tile_row<D>;
      ts_tile_load<N, D, THREADS>(k_tile + other, p, p.keys, p.k, p.keys.row_heads, block.batch, next, kv_head);
      ts_tile_load<N, D, THREADS>(v_tile + other, p, p.keys, p.v, p.keys.row_heads, block.batch, next, kv_head);
      ts_copy_commit();
    }
    if (ts_may_see<16 * M, N, GENERAL>(p, w.batch, w.first, key)) {
      int tile = turn * N * ts_tile_row<D>;
      float s[M][N / 8][4], d[M][N / 8][4];
      uint32_t kept = 0;
      if constexpr (GENERAL) {
        kept = ts_attention_keep_run<N>(p, w.batch, w.head, w.first + (int) (threadIdx.x % TS_WARP), key);
      }
      ts_tile_product<M, N, D>(s, q + ts_lane_left<D>(), k_tile + tile + ts_lane_right<D>());
      ts_tile_product<M, N, D>(d, d_out + ts_lane_left<D>(), v_tile + tile + ts_lane_right<D>());
      gradients_of_scores<N, GENERAL>(p, w, key, kept, s, d);
      if constexpr (GENERAL) {
        __syncwarp(); /* as above */
      }
      ts_tile_add_product<M, N, D>(dq, d, k_tile + tile + ts_lane_left<D>());
    }
  }
  ts_tile_store<M, D>(p, p.queries, p.dq, p.queries.row_heads, block.batch, w.first, block.head, q, dq, p.scale);
}

/* ---- launching ---- */

template <typename T, int D, bool GENERAL>
static void launch_backward_tiles(const ts_attention_problem *p, cudaStream_t stream) {
  typedef keys_shape<D, GENERAL> keys;
  ts_launch(attention_dkdv<T, D, GENERAL>, ts_attention_grid(p, &p->keys, keys::keys), keys::threads, keys::shared,
            stream, *p);
  ts_launch(attention_dq<T, D, GENERAL>, ts_attention_grid(p, &p->queries, ROWS), THREADS,
            queries_shape<D, GENERAL>::shared, stream, *p);
}

template <typename T, int D> static void choose_backward_kind(const ts_attention_problem *p, cudaStream_t stream) {
  if (ts_attention_is_general(p)) {
    launch_backward_tiles<T, D, true>(p, stream);
  } else {
    launch_backward_tiles<T, D, false>(p, stream);
  }
}

template <int D> static void choose_backward_type(const ts_attention_problem *p, ts_dtype dtype, cudaStream_t stream) {
  if (dtype == TS_BF16) {
    choose_backward_kind<ts_bf16, D>(p, stream);
  } else {
    choose_backward_kind<ts_f16, D>(p, stream);
  }
}

void ts_attention_backward(const ts_attention_problem *p, ts_dtype dtype, cudaStream_t stream) {
  TS_FOR_HEAD_DIM(p->head_dim, choose_backward_type, p, dtype, stream);
}
