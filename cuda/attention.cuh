/** \file
 * Pieces of the attention kernels: which tiles see which; the tensor cores' tiles in shared memory, products of them;
 * softcap, dropout.
 *
 * A tile has rows of D elements of 16 bits (D: head_dim rounded up) and 16 bytes more, so that 8 rows of ldmatrix lie
 * in different banks.  A warp owns 16 M rows of the tile that its results belong to.  Of a result [16 M][N] a lane
 * holds x[m][n][4]: elements (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1) with r = 16 m + lane / 4 and
 * c = 8 n + 2 (lane % 4).
 *
 * Nothing here is collective over ranks; functions of a warp are called by all of its lanes.
 */
#ifndef TS_CUDA_ATTENTION_CUH
#define TS_CUDA_ATTENTION_CUH

#include "cuda/attention.h"
#include "cuda/philox.cuh"

#define TS_MINUS_INFINITY (-INFINITY)

/** Elements from one row of a tile to the next. */
template <int D> constexpr int ts_tile_row = D + 8;

/* ---- which part of the work a block and a warp do ---- */

/** A head's tile; see ts_attention_grid. */
typedef struct ts_attention_block {
  unsigned batch, head; /**< head: of those of the sample. */
  int rank;             /**< Of the tile among those of its head. */
  bool any;             /**< False: nothing to do. */
} ts_attention_block;

static __device__ __forceinline__ ts_attention_block ts_attention_block_of(const ts_attention_problem &p,
                                                                           const ts_attention_rows &rows) {
  unsigned head = blockIdx.z * gridDim.x + blockIdx.x, batch = head / (unsigned) rows.heads;
  return {batch, head - batch * (unsigned) rows.heads, (int) blockIdx.y, batch < (unsigned) p.batch};
}

/** The key head of a query head. */
static __device__ __forceinline__ unsigned ts_key_head(const ts_attention_problem &p, unsigned head) {
  return (head + (unsigned) p.skip) / (unsigned) p.group;
}

/** The first query head of a key head, or where it would be: those of one end where those of the next begin. */
static __device__ __forceinline__ unsigned ts_first_query_head(const ts_attention_problem &p, unsigned head) {
  return (unsigned) min(max((int) head * p.group - p.skip, 0), p.queries.heads);
}

/** Number of the warp in its block, known to the compiler to be the same in all lanes. */
static __device__ __forceinline__ int ts_warp_number(void) {
  return __shfl_sync(0xffffffffu, (int) (threadIdx.x / TS_WARP), 0);
}

/** Row m, half of a warp's result that this lane holds, where the first one is row \a first. */
static __device__ __forceinline__ int ts_result_row(int first, int m, int half) {
  return first + 16 * m + 8 * half + (int) (threadIdx.x % TS_WARP / 4);
}

/** First element of a head at a row, of rows of \a row_heads heads. */
static __device__ __forceinline__ int64_t ts_attention_at(const ts_attention_problem &p, const ts_attention_rows &rows,
                                                          int row_heads, unsigned batch, int row, unsigned head) {
  return ((batch * (int64_t) rows.count + row) * row_heads + head) * p.head_dim;
}

/** Row 0 of a query head in [B][H][S]. */
static __device__ __forceinline__ int64_t ts_statistics_at(const ts_attention_problem &p, unsigned batch,
                                                           unsigned head) {
  return (batch * (int64_t) p.queries.heads + head) * p.queries.count;
}

/* ---- rows and places ---- */

/** The place of a row; past the last row they go on. */
static __device__ __forceinline__ int ts_place(const ts_attention_rows &rows, int row) {
  return row + (row < rows.first ? rows.shift[0] : rows.shift[1]);
}

/** Rows before a place. */
static __device__ __forceinline__ int ts_rows_before(const ts_attention_rows &rows, int place) {
  return max(0, min(place - rows.shift[0], rows.first)) + max(0, min(place - rows.shift[1], rows.count) - rows.first);
}

/** The keys that a query in a place sees by order and window: rows [begin, end). */
static __device__ __forceinline__ int ts_keys_begin(const ts_attention_problem &p, int place) {
  return ts_rows_before(p.keys, place - p.window + 1);
}
static __device__ __forceinline__ int ts_keys_end(const ts_attention_problem &p, int place) {
  return p.causal ? ts_rows_before(p.keys, place + 1) : p.keys.count;
}

/** The queries that see a key in a place: rows [begin, end). */
static __device__ __forceinline__ int ts_queries_begin(const ts_attention_problem &p, int place) {
  return p.causal ? ts_rows_before(p.queries, place) : 0;
}
static __device__ __forceinline__ int ts_queries_end(const ts_attention_problem &p, int place) {
  return ts_rows_before(p.queries, place + p.window);
}

/** The document of a row; 0 past the last. */
static __device__ __forceinline__ int32_t ts_document_of(const ts_attention_problem &p, const ts_attention_rows &rows,
                                                         unsigned batch, int row) {
  return row < rows.count ? p.documents[batch * p.length + ts_place(rows, row)] : 0;
}

/** That of the one of N <= 32 rows from \a first on that this lane has for the others. */
template <int N>
static __device__ __forceinline__ int32_t ts_document_of_lane(const ts_attention_problem &p,
                                                              const ts_attention_rows &rows, unsigned batch,
                                                              int first) {
  return ts_document_of(p, rows, batch, first + (int) (threadIdx.x % N));
}

/** Whether a query sees a key, both rows; without GENERAL as if both were there. */
template <bool GENERAL>
static __device__ __forceinline__ bool ts_sees(const ts_attention_problem &p, unsigned batch, int query, int key) {
  int i = ts_place(p.queries, query), j = ts_place(p.keys, key);
  bool sees = !p.causal || j <= i;
  if (GENERAL) {
    const int32_t *document = p.documents + batch * p.length;
    sees = sees && j > i - p.window && query < p.queries.count && key < p.keys.count &&
           (p.documents == nullptr || document[i] == document[j]);
  }
  return sees;
}

/* ---- which tiles see which ---- */

/** The place of the last of ROWS rows from \a first on that is there. */
template <int ROWS> static __device__ __forceinline__ int ts_last_place(const ts_attention_rows &rows, int first) {
  return ts_place(rows, min(first + ROWS, rows.count) - 1);
}

/** The documents of COUNT rows from \a first on, in whole tiles of bounds; past the last row those of its end. */
template <int COUNT>
static __device__ __forceinline__ ts_attention_bounds ts_documents_of(const ts_attention_rows &rows, unsigned batch,
                                                                      int first) {
  int tiles = ts_attention_bounds_count(&rows);
  const ts_attention_bounds *bounds = rows.bounds + (int64_t) batch * tiles;
  ts_attention_bounds all = bounds[min(first / TS_BOUNDS, tiles - 1)];
#pragma unroll
  for (int i = TS_BOUNDS; i < COUNT; i += TS_BOUNDS) {
    ts_attention_bounds more = bounds[min((first + i) / TS_BOUNDS, tiles - 1)];
    all = {min(all.lowest, more.lowest), max(all.highest, more.highest)};
  }
  return all;
}

/** Whether a document may be among both. */
static __device__ __forceinline__ bool ts_documents_meet(ts_attention_bounds a, ts_attention_bounds b) {
  return a.lowest <= b.highest && b.lowest <= a.highest;
}

/** The keys that ROWS queries from \a first on may see: [begin, end), begin a multiple of N. */
template <int N, bool GENERAL>
static __device__ __forceinline__ int ts_tile_keys_begin(const ts_attention_problem &p, int first) {
  return GENERAL ? ts_keys_begin(p, ts_place(p.queries, first)) / N * N : 0;
}
template <int ROWS> static __device__ __forceinline__ int ts_tile_keys_end(const ts_attention_problem &p, int first) {
  return ts_keys_end(p, ts_last_place<ROWS>(p.queries, first));
}

/** The queries that may see some of ROWS keys from \a first on: [begin, end), begin a multiple of N. */
template <int N> static __device__ __forceinline__ int ts_tile_queries_begin(const ts_attention_problem &p, int first) {
  return ts_queries_begin(p, ts_place(p.keys, first)) / N * N;
}
template <int ROWS, bool GENERAL>
static __device__ __forceinline__ int ts_tile_queries_end(const ts_attention_problem &p, int first) {
  return GENERAL ? ts_queries_end(p, ts_last_place<ROWS>(p.keys, first)) : p.queries.count;
}

/** The first tile of N rows that pass, from \a at on, with a document of the block's own ROWS rows from \a first on;
 * \a end or more when there is none.  By whole warps, 32 tiles a turn; the same in all lanes.  The own rows' documents
 * are loaded again each time: registers are scarcer. */
template <int ROWS, int N, bool GENERAL>
static __device__ __forceinline__ int ts_next_tile(const ts_attention_rows &own, const ts_attention_rows &pass,
                                                   unsigned batch, int first, int at, int end) {
  if (!GENERAL || own.bounds == nullptr) {
    return at;
  }
  ts_attention_bounds documents = ts_documents_of<ROWS>(own, batch, first);
  for (; at < end; at += TS_WARP * N) {
    int mine = at + (int) (threadIdx.x % TS_WARP) * N;
    bool meets = mine < end && ts_documents_meet(documents, ts_documents_of<N>(pass, batch, mine));
    unsigned seen = __ballot_sync(0xffffffffu, meets);
    if (seen != 0) {
      return at + (__ffs((int) seen) - 1) * N;
    }
  }
  return at;
}

/** Whether one of QUERIES queries from \a query on may see one of KEYS keys from \a key on; the same in all lanes. */
template <int QUERIES, int KEYS, bool GENERAL>
static __device__ __forceinline__ bool ts_may_see(const ts_attention_problem &p, unsigned batch, int query, int key) {
  bool may = !p.causal || ts_place(p.keys, key) <= ts_place(p.queries, query + QUERIES - 1);
  if (GENERAL) {
    may = may && ts_place(p.keys, key + KEYS - 1) > ts_place(p.queries, query) - p.window;
  }
  if (GENERAL && p.documents != nullptr) {
    may = may && ts_documents_meet(ts_documents_of<QUERIES>(p.queries, batch, query),
                                   ts_documents_of<KEYS>(p.keys, batch, key));
  }
  return may;
}

/** Whether one of QUERIES queries from \a query on may not see one of KEYS keys from \a key on, or one of these is not
 * there; the same in all lanes. */
template <int QUERIES, int KEYS, bool GENERAL>
static __device__ __forceinline__ bool ts_some_hidden(const ts_attention_problem &p, int query, int key) {
  return key + KEYS > p.keys.count || (GENERAL && p.documents != nullptr) ||
         (p.causal && (ts_place(p.keys, key + KEYS - 1) > ts_place(p.queries, query) ||
                       (GENERAL && ts_place(p.keys, key) + p.window <= ts_place(p.queries, query + QUERIES - 1))));
}

/* ---- softcap ---- */

/** tanh (x) by a power of 2 and a division: within 2^-22 of 1. */
static __device__ __forceinline__ float ts_tanh(float x) {
  return 1.0f - __fdividef(2.0f, 1.0f + ts_exp2(2.0f * TS_LOG2E * x));
}

/* ---- tiles ---- */

/** Begin to copy ROWS rows of a head from \a first on, of \a row_heads heads each, to a tile; zeros past the last row
 * and past head_dim, a multiple of 8.  By all THREADS threads of the block. */
template <int ROWS, int D, int THREADS, typename T>
static __device__ __forceinline__ void ts_tile_load(T *tile, const ts_attention_problem &p,
                                                    const ts_attention_rows &rows, const void *from, int row_heads,
                                                    unsigned batch, int first, unsigned head) {
  constexpr int vectors = D / 8, across = (vectors & -vectors) < 16 ? (vectors & -vectors) : 16,
                down = THREADS / across;
  static_assert(ROWS % down == 0 || ROWS < down, "a block copies whole rows");
  int row = (int) (threadIdx.x / across), column = (int) (threadIdx.x % across * 8);
  int left = rows.count - first, stride = row_heads * p.head_dim;
  const T *x = (const T *) from + ts_attention_at(p, rows, row_heads, batch, first, head) + row * stride + column;
  tile += row * ts_tile_row<D> + column;
#pragma unroll
  for (int r = 0; r < ROWS; r += down) {
#pragma unroll
    for (int c = 0; c < D; c += 8 * across) {
      if (ROWS >= down || row < ROWS) {
        ts_copy_ahead(tile + r * ts_tile_row<D> + c, x + c, row + r < left && column + c < p.head_dim);
      }
    }
    x += down * stride;
  }
}

/** W neighbours of a result whose narrow type is T, from element \a at on. */
template <int W, typename T>
static __device__ __forceinline__ void ts_result_put(const ts_attention_problem &p, const ts_attention_result &to,
                                                     int64_t at, float *x) {
  if (to.wide) {
    ts_prior<float> prior = {(const float *) to.prior, p.beta};
    ts_add_prior<W>(x, prior, ts_prior_beta(prior), at);
    ts_store<W>((float *) to.data + at, x);
  } else {
    ts_prior<T> prior = {(const T *) to.prior, p.beta};
    ts_add_prior<W>(x, prior, ts_prior_beta(prior), at);
    ts_store<W>((T *) to.data + at, x);
  }
}

/** Store 16 M rows of a result, times \a factor, as rows of a head from \a first on, of \a row_heads heads each; rows
 * past the last are not written.  What is T alone goes through the rows \a tile of shared memory that only this warp
 * uses, so that it is written by 16 bytes. */
template <int M, int D, typename T>
static __device__ __forceinline__ void ts_tile_store(const ts_attention_problem &p, const ts_attention_rows &rows,
                                                     const ts_attention_result &to, int row_heads, unsigned batch,
                                                     int first, unsigned head, T *tile, const float (*x)[D / 8][4],
                                                     float factor) {
  int lane = (int) (threadIdx.x % TS_WARP), row = lane / 4, column = lane % 4 * 2, left = rows.count - first;
  int stride = row_heads * p.head_dim;
  int64_t at = ts_attention_at(p, rows, row_heads, batch, first, head);
  bool direct = to.wide || to.prior != nullptr;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int r = 16 * m + 8 * half + row, c = 8 * n + column;
        float pair[2] = {x[m][n][2 * half] * factor, x[m][n][2 * half + 1] * factor};
        if (!direct) {
          ts_store<2>(tile + r * ts_tile_row<D> + c, pair);
        } else if (r < left && c < p.head_dim) {
          ts_result_put<2, T>(p, to, at + r * stride + c, pair);
        }
      }
    }
  }
  __syncwarp();
#pragma unroll 4
  for (int i = 0; !direct && i < 16 * M * (D / 8); i += TS_WARP) {
    int r = (i + lane) / (D / 8), c = (i + lane) % (D / 8) * 8;
    if (r < left && c < p.head_dim) {
      *(uint4 *) ((T *) to.data + at + r * stride + c) = *(const uint4 *) (tile + r * ts_tile_row<D> + c);
    }
  }
}

/* ---- products ---- */

/** Where a lane's row for ldmatrix is in a tile: of a left operand, or a right one that is summed along its rows
 * (_trans). */
template <int D> static __device__ __forceinline__ int ts_lane_left(void) {
  int lane = (int) (threadIdx.x % TS_WARP);
  return lane % 16 * ts_tile_row<D> + lane / 16 * 8;
}
/** The same of a right operand that is summed along its columns. */
template <int D> static __device__ __forceinline__ int ts_lane_right(void) {
  int lane = (int) (threadIdx.x % TS_WARP);
  return (lane / 16 * 8 + lane % 8) * ts_tile_row<D> + lane / 8 % 2 * 8;
}

/** x [16 M][N] = a [16 M][D] b [N][D]^T; a + ts_lane_left, b + ts_lane_right.  M N D / 2048 instructions. */
template <int M, int N, int D, typename T>
static __device__ __forceinline__ void ts_tile_product(float (*x)[N / 8][4], const T *a, const T *b) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[m][n][i] = 0;
      }
    }
  }
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t left[M][4], right[4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      ts_ldmatrix(left[m], a + 16 * m * ts_tile_row<D> + d);
    }
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      ts_ldmatrix(right, b + 16 * n * ts_tile_row<D> + d);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        ts_mma<T>(x[m][2 * n], left[m], right);
        ts_mma<T>(x[m][2 * n + 1], left[m], right + 2);
      }
    }
  }
}

/** Two floats rounded to T, \a low in the lower half. */
template <typename T> __device__ __forceinline__ uint32_t ts_pack(float low, float high);
template <> __device__ __forceinline__ uint32_t ts_pack<ts_bf16>(float low, float high) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}
template <> __device__ __forceinline__ uint32_t ts_pack<ts_f16>(float low, float high) {
  __half2 pair = __floats2half2_rn(low, high);
  uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}

/** sum [16 M][D] += x [16 M][N] b [N][D], x rounded to T; b + ts_lane_left. */
template <int M, int N, int D, typename T>
static __device__ __forceinline__ void ts_tile_add_product(float (*sum)[D / 8][4], const float (*x)[N / 8][4],
                                                           const T *b) {
#pragma unroll
  for (int n = 0; n < N / 16; ++n) {
    uint32_t left[M][4], right[4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float *from = x[m][2 * n + i / 2] + i % 2 * 2;
        left[m][i] = ts_pack<T>(from[0], from[1]);
      }
    }
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      ts_ldmatrix_trans(right, b + 16 * n * ts_tile_row<D> + 16 * d);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        ts_mma<T>(sum[m][2 * d], left[m], right);
        ts_mma<T>(sum[m][2 * d + 1], left[m], right + 2);
      }
    }
  }
}

/* ---- dropout ---- */

/** What decides on the weights of one head. */
typedef struct ts_attention_drop {
  uint64_t key, sample, head; /**< head: element of query 0 and key 0, over T. */
} ts_attention_drop;

static __device__ __forceinline__ ts_attention_drop ts_attention_drop_of(const ts_attention_problem &p, unsigned batch,
                                                                         unsigned head) {
  if (p.threshold == 0) {
    return {0, 0, 0};
  }
  return {ts_dropout_key_of(p.seed, p.name), (uint64_t) p.sample[batch],
          ((uint64_t) p.first_head + head) * (uint64_t) p.length};
}

/** Whether the weight of the query in a place with the key in another is kept. */
static __device__ __forceinline__ bool ts_attention_keeps(const ts_attention_problem &p, const ts_attention_drop &drop,
                                                          int query, int key) {
  int64_t element = ((int64_t) drop.head + query) * p.length + key;
  return ts_dropout_keeps(drop.key, (int64_t) drop.sample, element, p.threshold);
}

/** Bit i: whether element + i is kept, for N <= 32. */
template <int N>
static __device__ __forceinline__ uint32_t ts_attention_draw(const ts_attention_problem &p,
                                                             const ts_attention_drop &drop, uint64_t element) {
  static_assert(N <= 32, "a bit for each key");
  int skip = (int) (element % 4);
  uint32_t bits = 0;
#pragma unroll 2
  for (int i = 0; i < N + skip; i += 4) {
    uint32_t word[4], four = 0;
    ts_philox_words(drop.key, drop.sample, (element + (uint64_t) i) / 4, word);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      four |= (uint32_t) (word[j] >= p.threshold) << j;
    }
    bits |= i >= skip ? four << (i - skip) : four >> (skip - i);
  }
  return bits;
}

/** Bit i: whether the weight of row \a query with row \a key + i is kept, for N <= 32 keys; all are where there is no
 * dropout.  A lane draws a row of the warp's scores this way, N / 4 + 1 counters, twice as many where the keys do not
 * lie together, and hands its bits to the lanes that have the scores. */
template <int N>
static __device__ __forceinline__ uint32_t ts_attention_keep_run(const ts_attention_problem &p, unsigned batch,
                                                                 unsigned head, int query, int key) {
  if (p.threshold == 0) {
    return 0xffffffffu;
  }
  ts_attention_drop drop = ts_attention_drop_of(p, batch, head);
  uint64_t row = (drop.head + (uint64_t) ts_place(p.queries, query)) * (uint64_t) p.length;
  uint32_t bits = 0;
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    int inside = i == 0 ? p.keys.first - key : key + N - p.keys.first;
    if (inside > 0) {
      uint32_t others = i == 0 || inside >= N ? 0u : (1u << (N - inside)) - 1u;
      uint64_t element = row + (uint64_t) (key + p.keys.shift[i]);
      bits = (bits & others) | (ts_attention_draw<N>(p, drop, element) & ~others);
    }
  }
  __syncwarp(); /* rows take different numbers of counters; matrix instructions want the warp whole */
  return bits;
}

#endif
