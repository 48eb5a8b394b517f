/* Attention by plain multiply-adds, exact fp32: for fp32, and for what the tensor cores' kernels do not take.  A block
 * of 16 x 16 threads has OWN rows (queries; keys for dk and dv) and sees the other side in tiles of PASS rows. Operands
 * are fp32 in shared memory, scores go through it.  Thread (y, x) has rows y + 16 i and columns x + 16 j of scores,
 * columns 4 x + 64 j .. + 3 of results: sums over a row of scores stay inside half a warp, rows inside a warp.
 *
 * 4 flops a dimension of the head for each pair of query and key in the tiles forward, 14 backward (scores and their
 * gradients twice). */
#include "cuda/attention.cuh"

enum { OWN = 64, PASS = 32, THREADS = 256, SIDE = 16, I = OWN / SIDE, J = PASS / SIDE, SCORE_ROW = PASS + 4 };

/* Floats of a row of a tile: 16 more bytes let 8 rows lie in different banks. */
template <int D> constexpr int row_floats = D + 4;

/* A block's tiles in shared memory, in floats: two of its own, two that pass, two of scores. */
template <int D> struct tiles {
  float *own[2], *pass[2], *score[2];
  static constexpr size_t bytes = ((2 * OWN + 2 * PASS) * row_floats<D> + 2 * OWN * SCORE_ROW) * sizeof(float);
};

template <int D> static __device__ __forceinline__ tiles<D> divide(float *all) {
  tiles<D> t;
  for (int i = 0; i < 2; ++i) {
    t.own[i] = all + i * OWN * row_floats<D>;
    t.pass[i] = all + (2 * OWN + i * PASS) * row_floats<D>;
    t.score[i] = all + (2 * OWN + 2 * PASS) * row_floats<D> + i * OWN * SCORE_ROW;
  }
  return t;
}

static __device__ __forceinline__ int own_row(int i) {
  return (int) (threadIdx.x / SIDE) + SIDE * i;
}
static __device__ __forceinline__ int pass_row(int j) {
  return (int) (threadIdx.x % SIDE) + SIDE * j;
}

/* ROWS rows of a head from row \a first on as floats; zeros past the last row and the head. */
template <int ROWS, int D, typename T>
static __device__ __forceinline__ void load_head_tile(float *tile, const ts_attention_problem &p,
                                                      const ts_attention_rows &rows, const void *from, int row_heads,
                                                      unsigned batch, int first, unsigned head) {
  const T *x = (const T *) from + ts_attention_at(p, rows, row_heads, batch, first, head);
  for (int i = (int) threadIdx.x; i < ROWS * D; i += THREADS) {
    int row = i / D, d = i % D;
    bool inside = row < rows.count - first && d < p.head_dim;
    tile[row * row_floats<D> + d] = inside ? ts_float(x[(int64_t) row * row_heads * p.head_dim + d]) : 0.0f;
  }
}

/* s = own pass^T over dims of a head: behind them are zeros. */
template <int D>
static __device__ __forceinline__ void multiply_tile_rows(float (*s)[J], const float *own, const float *pass,
                                                          int dims) {
#pragma unroll
  for (int i = 0; i < I * J; ++i) {
    s[i / J][i % J] = 0;
  }
#pragma unroll 4
  for (int d = 0; d < dims; d += 4) {
    float a[I][4], b[J][4];
#pragma unroll
    for (int i = 0; i < I; ++i) {
      ts_load<4>(a[i], own + own_row(i) * row_floats<D> + d);
    }
#pragma unroll
    for (int j = 0; j < J; ++j) {
      ts_load<4>(b[j], pass + pass_row(j) * row_floats<D> + d);
    }
#pragma unroll
    for (int i = 0; i < I * J * 4; ++i) {
      s[i / 4 / J][i / 4 % J] += a[i / 4 / J][i % 4] * b[i / 4 % J][i % 4];
    }
  }
}

/* sum += score pass in dims of a head; score is written by the warps that read it here. */
template <int D>
static __device__ __forceinline__ void add_product(float (*sum)[D / SIDE], const float *score, const float *pass,
                                                   int dims) {
#pragma unroll 4
  for (int k = 0; k < PASS; ++k) {
    float w[I], b[4];
#pragma unroll
    for (int i = 0; i < I; ++i) {
      w[i] = score[own_row(i) * SCORE_ROW + k];
    }
#pragma unroll
    for (int c = 0; c < D / 64; ++c) {
      int column = 64 * c + (int) (threadIdx.x % SIDE) * 4;
      if (column >= dims) {
        break;
      }
      ts_load<4>(b, pass + k * row_floats<D> + column);
#pragma unroll
      for (int i = 0; i < I * 4; ++i) {
        sum[i / 4][4 * c + i % 4] += w[i / 4] * b[i % 4];
      }
    }
  }
}

static __device__ __forceinline__ void put_scores(float *score, const float (*s)[J]) {
#pragma unroll
  for (int i = 0; i < I * J; ++i) {
    score[own_row(i / J) * SCORE_ROW + pass_row(i % J)] = s[i / J][i % J];
  }
}

/* The block's rows of a result, times factor[i], from row \a first on. */
template <int D, typename T>
static __device__ __forceinline__ void store_head_tile(const ts_attention_problem &p, const ts_attention_rows &rows,
                                                       const ts_attention_result &to, int row_heads, unsigned batch,
                                                       int first, unsigned head, const float (*x)[D / SIDE],
                                                       const float *factor) {
  int64_t at = ts_attention_at(p, rows, row_heads, batch, first, head);
#pragma unroll
  for (int i = 0; i < I; ++i) {
#pragma unroll
    for (int c = 0; c < D / SIDE; ++c) {
      int d = 64 * (c / 4) + (int) (threadIdx.x % SIDE) * 4 + c % 4;
      if (own_row(i) < rows.count - first && d < p.head_dim) {
        float value = x[i][c] * factor[i];
        ts_result_put<1, T>(p, to, at + (int64_t) own_row(i) * row_heads * p.head_dim + d, &value);
      }
    }
  }
}

/* The next tile of keys for the block's queries, and of queries for its keys. */
static __device__ __forceinline__ int next_keys(const ts_attention_problem &p, unsigned batch, int first, int at,
                                                int end) {
  return ts_next_tile<OWN, PASS, true>(p.queries, p.keys, batch, first, at, end);
}
static __device__ __forceinline__ int next_queries(const ts_attention_problem &p, unsigned batch, int first, int at,
                                                   int end) {
  return ts_next_tile<OWN, PASS, true>(p.keys, p.queries, batch, first, at, end);
}

/* A product to a score; slope: the derivative. */
static __device__ __forceinline__ float score_of(const ts_attention_problem &p, float product, float *slope) {
  *slope = p.scale;
  if (p.softcap > 0) {
    float t = tanhf(product * p.into_cap);
    *slope = p.scale * (1 - t * t);
    return p.softcap * t;
  }
  return product * p.scale;
}

/* 0 or 1 / (1 - p) */
static __device__ __forceinline__ float keep_factor(const ts_attention_problem &p, const ts_attention_drop &drop,
                                                    int query, int key) {
  bool keeps = p.threshold == 0 || ts_attention_keeps(p, drop, ts_place(p.queries, query), ts_place(p.keys, key));
  return p.threshold == 0 ? 1.0f : keeps ? p.keep_scale : 0.0f;
}

/* ---- forward ---- */

/* Over the 16 lanes that share rows. */
static __device__ __forceinline__ float half_warp_max(float x) {
#pragma unroll
  for (int lane = SIDE / 2; lane > 0; lane /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  }
  return x;
}
static __device__ __forceinline__ float half_warp_sum(float x) {
#pragma unroll
  for (int lane = SIDE / 2; lane > 0; lane /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, lane);
  }
  return x;
}

/* Scaled, masked scores of a row to weights before dropout, and the results so far to the new maximum. */
template <int D> static __device__ __forceinline__ void softmax_plain(float *s, float *top, float *sum, float *o) {
  float before = *top, most = s[0], add = 0;
#pragma unroll
  for (int j = 1; j < J; ++j) {
    most = fmaxf(most, s[j]);
  }
  *top = fmaxf(before, half_warp_max(most));
  float shift = *top == TS_MINUS_INFINITY ? 0.0f : *top; /* nothing seen so far: all weights are 0 */
  float factor = expf(before - shift);
#pragma unroll
  for (int j = 0; j < J; ++j) {
    s[j] = expf(s[j] - shift);
    add += s[j];
  }
  *sum = *sum * factor + half_warp_sum(add);
#pragma unroll
  for (int c = 0; c < D / SIDE; ++c) {
    o[c] *= factor;
  }
}

template <int D, typename T>
__global__ void __launch_bounds__(THREADS, 1) attention_forward_plain(const __grid_constant__ ts_attention_problem p) {
  TS_SHARED_DYNAMIC(float, all);
  tiles<D> tile = divide<D>(all);
  ts_attention_block block = ts_attention_block_of(p, p.queries);
  if (!block.any) {
    return;
  }
  int first = ((int) gridDim.y - 1 - block.rank) * OWN;
  unsigned kv_head = ts_key_head(p, block.head);
  int end = ts_tile_keys_end<OWN>(p, first), begin = ts_tile_keys_begin<PASS, true>(p, first);
  ts_attention_drop drop = ts_attention_drop_of(p, block.batch, block.head);
  load_head_tile<OWN, D, T>(tile.own[0], p, p.queries, p.q, p.queries.row_heads, block.batch, first, block.head);
  float o[I][D / SIDE] = {}, top[I], sum[I] = {}, s[I][J], slope;
  for (int i = 0; i < I; ++i) {
    top[i] = TS_MINUS_INFINITY;
  }
  for (int key = next_keys(p, block.batch, first, begin, end); key < end;
       key = next_keys(p, block.batch, first, key + PASS, end)) {
    __syncthreads();
    load_head_tile<PASS, D, T>(tile.pass[0], p, p.keys, p.k, p.keys.row_heads, block.batch, key, kv_head);
    load_head_tile<PASS, D, T>(tile.pass[1], p, p.keys, p.v, p.keys.row_heads, block.batch, key, kv_head);
    __syncthreads();
    multiply_tile_rows<D>(s, tile.own[0], tile.pass[0], p.head_dim);
#pragma unroll
    for (int i = 0; i < I; ++i) {
      if (first + SIDE * i >= p.queries.count) {
        break; /* for all of the block; nothing of these rows is stored */
      }
#pragma unroll
      for (int j = 0; j < J; ++j) {
        bool seen = ts_sees<true>(p, block.batch, first + own_row(i), key + pass_row(j));
        s[i][j] = seen ? score_of(p, s[i][j], &slope) : TS_MINUS_INFINITY;
      }
      softmax_plain<D>(s[i], &top[i], &sum[i], o[i]);
#pragma unroll
      for (int j = 0; j < J; ++j) {
        s[i][j] *= keep_factor(p, drop, first + own_row(i), key + pass_row(j));
      }
    }
    put_scores(tile.score[0], s);
    __syncwarp();
    add_product<D>(o, tile.score[0], tile.pass[1], p.head_dim);
    __syncwarp();
  }
#pragma unroll
  for (int i = 0; i < I; ++i) {
    int row = first + own_row(i);
    if (threadIdx.x % SIDE == 0 && row < p.queries.count) {
      p.lse[ts_statistics_at(p, block.batch, block.head) + row] = top[i] + logf(sum[i]);
    }
    sum[i] = sum[i] == 0.0f ? 0.0f : 1 / sum[i]; /* no key was seen */
  }
  store_head_tile<D, T>(p, p.queries, p.o, p.queries.heads, block.batch, first, block.head, o, sum);
}

/* ---- backward ---- */

/* Products to weights after dropout and to gradients of scores; no weights where the query saw no key. */
static __device__ __forceinline__ void weight_and_gradient(const ts_attention_problem &p, const ts_attention_drop &drop,
                                                           unsigned batch, int query, int key, float lse, float delta,
                                                           float *s, float *d) {
  float slope, score = score_of(p, *s, &slope);
  bool sees = lse != TS_MINUS_INFINITY && ts_sees<true>(p, batch, query, key);
  float weight = sees ? expf(score - lse) : 0.0f, keep = keep_factor(p, drop, query, key);
  *s = weight * keep;
  *d = weight * (*d * keep - delta) * slope;
}

template <int D, typename T>
__global__ void __launch_bounds__(THREADS, 1) attention_dq_plain(const __grid_constant__ ts_attention_problem p) {
  TS_SHARED_DYNAMIC(float, all);
  tiles<D> tile = divide<D>(all);
  ts_attention_block block = ts_attention_block_of(p, p.queries);
  if (!block.any) {
    return;
  }
  int first = ((int) gridDim.y - 1 - block.rank) * OWN;
  unsigned kv_head = ts_key_head(p, block.head);
  int end = ts_tile_keys_end<OWN>(p, first), begin = ts_tile_keys_begin<PASS, true>(p, first);
  ts_attention_drop drop = ts_attention_drop_of(p, block.batch, block.head);
  load_head_tile<OWN, D, T>(tile.own[0], p, p.queries, p.q, p.queries.row_heads, block.batch, first, block.head);
  load_head_tile<OWN, D, T>(tile.own[1], p, p.queries, p.d_out, p.queries.heads, block.batch, first, block.head);
  float dq[I][D / SIDE] = {}, one[I], lse[I], delta[I], s[I][J], d[I][J];
  for (int i = 0; i < I; ++i) {
    int64_t row = ts_statistics_at(p, block.batch, block.head) + first + own_row(i);
    bool inside = first + own_row(i) < p.queries.count;
    lse[i] = inside ? p.lse[row] : 0.0f;
    delta[i] = inside ? p.delta[row] : 0.0f;
    one[i] = 1;
  }
  for (int key = next_keys(p, block.batch, first, begin, end); key < end;
       key = next_keys(p, block.batch, first, key + PASS, end)) {
    __syncthreads();
    load_head_tile<PASS, D, T>(tile.pass[0], p, p.keys, p.k, p.keys.row_heads, block.batch, key, kv_head);
    load_head_tile<PASS, D, T>(tile.pass[1], p, p.keys, p.v, p.keys.row_heads, block.batch, key, kv_head);
    __syncthreads();
    multiply_tile_rows<D>(s, tile.own[0], tile.pass[0], p.head_dim);
    multiply_tile_rows<D>(d, tile.own[1], tile.pass[1], p.head_dim);
#pragma unroll
    for (int i = 0; i < I * J; ++i) {
      weight_and_gradient(p, drop, block.batch, first + own_row(i / J), key + pass_row(i % J), lse[i / J], delta[i / J],
                          &s[i / J][i % J], &d[i / J][i % J]);
    }
    put_scores(tile.score[0], d);
    __syncwarp();
    add_product<D>(dq, tile.score[0], tile.pass[0], p.head_dim);
    __syncwarp();
  }
  store_head_tile<D, T>(p, p.queries, p.dq, p.queries.row_heads, block.batch, first, block.head, dq, one);
}

/* The query heads of a key head one after another, in order. */
template <int D, typename T>
__global__ void __launch_bounds__(THREADS, 1) attention_dkdv_plain(const __grid_constant__ ts_attention_problem p) {
  TS_SHARED_DYNAMIC(float, all);
  tiles<D> tile = divide<D>(all);
  ts_attention_block block = ts_attention_block_of(p, p.keys);
  if (!block.any) {
    return;
  }
  int first = block.rank * OWN;
  int begin = ts_tile_queries_begin<PASS>(p, first), end = ts_tile_queries_end<OWN, true>(p, first);
  load_head_tile<OWN, D, T>(tile.own[0], p, p.keys, p.k, p.keys.row_heads, block.batch, first, block.head);
  load_head_tile<OWN, D, T>(tile.own[1], p, p.keys, p.v, p.keys.row_heads, block.batch, first, block.head);
  float dk[I][D / SIDE] = {}, dv[I][D / SIDE] = {}, one[I], s[I][J], d[I][J];
  for (int i = 0; i < I; ++i) {
    one[i] = 1;
  }
  unsigned end_head = ts_first_query_head(p, block.head + 1);
  for (unsigned head = ts_first_query_head(p, block.head); head < end_head; ++head) {
    ts_attention_drop drop = ts_attention_drop_of(p, block.batch, head);
    int64_t statistics = ts_statistics_at(p, block.batch, head);
    for (int query = next_queries(p, block.batch, first, begin, end); query < end;
         query = next_queries(p, block.batch, first, query + PASS, end)) {
      __syncthreads();
      load_head_tile<PASS, D, T>(tile.pass[0], p, p.queries, p.q, p.queries.row_heads, block.batch, query, head);
      load_head_tile<PASS, D, T>(tile.pass[1], p, p.queries, p.d_out, p.queries.heads, block.batch, query, head);
      __syncthreads();
      multiply_tile_rows<D>(s, tile.own[0], tile.pass[0], p.head_dim);
      multiply_tile_rows<D>(d, tile.own[1], tile.pass[1], p.head_dim);
#pragma unroll
      for (int j = 0; j < J; ++j) {
        int row = query + pass_row(j);
        float lse = row < p.queries.count ? p.lse[statistics + row] : 0.0f,
              delta = row < p.queries.count ? p.delta[statistics + row] : 0.0f;
#pragma unroll
        for (int i = 0; i < I; ++i) {
          weight_and_gradient(p, drop, block.batch, row, first + own_row(i), lse, delta, &s[i][j], &d[i][j]);
        }
      }
      put_scores(tile.score[0], s);
      put_scores(tile.score[1], d);
      __syncwarp();
      add_product<D>(dv, tile.score[0], tile.pass[1], p.head_dim);
      add_product<D>(dk, tile.score[1], tile.pass[0], p.head_dim);
      __syncwarp();
    }
  }
  store_head_tile<D, T>(p, p.keys, p.dk, p.keys.row_heads, block.batch, first, block.head, dk, one);
  store_head_tile<D, T>(p, p.keys, p.dv, p.keys.row_heads, block.batch, first, block.head, dv, one);
}

/* ---- launching ---- */

template <int D, typename T> static void launch_plain_forward(const ts_attention_problem *p, cudaStream_t stream) {
  ts_launch(attention_forward_plain<D, T>, ts_attention_grid(p, &p->queries, OWN), THREADS, tiles<D>::bytes, stream,
            *p);
}

template <int D, typename T> static void launch_plain_backward(const ts_attention_problem *p, cudaStream_t stream) {
  ts_launch(attention_dq_plain<D, T>, ts_attention_grid(p, &p->queries, OWN), THREADS, tiles<D>::bytes, stream, *p);
  ts_launch(attention_dkdv_plain<D, T>, ts_attention_grid(p, &p->keys, OWN), THREADS, tiles<D>::bytes, stream, *p);
}

template <typename T> static void choose_plain_forward(const ts_attention_problem *p, cudaStream_t stream) {
  if (p->head_dim <= 64) {
    launch_plain_forward<64, T>(p, stream);
  } else if (p->head_dim <= 128) {
    launch_plain_forward<128, T>(p, stream);
  } else {
    launch_plain_forward<256, T>(p, stream);
  }
}

template <typename T> static void choose_plain_backward(const ts_attention_problem *p, cudaStream_t stream) {
  if (p->head_dim <= 64) {
    launch_plain_backward<64, T>(p, stream);
  } else if (p->head_dim <= 128) {
    launch_plain_backward<128, T>(p, stream);
  } else {
    launch_plain_backward<256, T>(p, stream);
  }
}

void ts_attention_forward_plain(const ts_attention_problem *p, ts_dtype dtype, cudaStream_t stream) {
  TS_FOR_FLOAT(dtype, choose_plain_forward, p, stream);
}

void ts_attention_backward_plain(const ts_attention_problem *p, ts_dtype dtype, cudaStream_t stream) {
  TS_FOR_FLOAT(dtype, choose_plain_backward, p, stream);
}
