/* Rows by index, and the sum of rows that were looked up alike.
 *
 * EMBEDDING_DW.  The tokens are sorted by id, stably, by a radix sort of our own (8 bits a pass); the sorted list is cut into
 * chunks of CHUNK tokens.  A block goes through the tokens of a chunk in order, for a tile of columns: an id whose tokens all lie
 * in the chunk is finished there; of one that goes on beyond the chunk's begin or end a partial sum is left, and the partial sums
 * are added in the order of chunks.  So the order of every sum follows from the ids alone, and an id that is a twentieth of
 * the batch is summed by many blocks.  Rows that no token named are beta prior, or 0.
 * Bytes: N C elements of dy and V C of dw (only the rows named when the prior lies in place with beta 1), twice that with a prior. */
#include "cuda/kernel.cuh"

enum { THREADS = 256, CHUNK = 128, KEYS = 2048 /* of a block of the sort */, BITS = 8, BINS = 1 << BITS };

/* ---- looking up ---- */

/* A block a row; units of 16, 4 or 2 bytes. */
template <typename Unit>
__global__ void __launch_bounds__(THREADS)
gather_rows(Unit *__restrict__ y, const Unit *__restrict__ table, const int32_t *__restrict__ index, int width, int64_t stride) {
  int64_t row = blockIdx.x;
  const Unit *from = table + (row * stride + index[row]) * width;
  for (int i = (int) threadIdx.x; i < width; i += THREADS) {
    y[row * width + i] = from[i];
  }
}

template <typename Unit>
static void launch_gather(const ts_kernel_call *call, int64_t rows, size_t bytes, int64_t stride) {
  ts_launch(gather_rows<Unit>, (unsigned) rows, THREADS, 0, ts_call_stream(call), (Unit *) call->out[0], (const Unit *) call->in[0],
            (const int32_t *) call->in[1], (int) (bytes / sizeof(Unit)), stride);
}

/* Row r of the result is row r stride + index[r] of the input. */
static void gather(const ts_kernel_call *call, int64_t rows, int64_t stride) {
  const ts_tensor *x = ts_call_in(call, 0);
  size_t bytes = (size_t) ts_columns_of(x) * ts_dtype_size(x->dtype);
  uintptr_t all = (uintptr_t) call->in[0] | (uintptr_t) call->out[0] | bytes;
  if (all % 16 == 0) {
    launch_gather<uint4>(call, rows, bytes, stride);
  } else if (all % 4 == 0) {
    launch_gather<uint32_t>(call, rows, bytes, stride);
  } else {
    launch_gather<uint16_t>(call, rows, bytes, stride);
  }
}

static void embedding_run(const ts_kernel_call *call) { gather(call, ts_shape_count(&ts_call_in(call, 1)->shape), 0); }

static void pick_run(const ts_kernel_call *call) { gather(call, ts_call_in(call, 0)->shape.d[0], ts_call_in(call, 0)->shape.d[1]); }

/* ---- sorting tokens by id ---- */

/* How often each digit occurs in each block's keys: count [bin][block]. */
static __global__ void __launch_bounds__(BINS)
sort_count(int *__restrict__ count, const int32_t *__restrict__ key, int64_t n, int shift) {
  TS_SHARED(int, bin, BINS);
  bin[threadIdx.x] = 0;
  __syncthreads();
  int64_t first = (int64_t) blockIdx.x * KEYS;
  for (int i = (int) threadIdx.x; i < KEYS && first + i < n; i += BINS) {
    atomicAdd(&bin[(key[first + i] >> shift) & (BINS - 1)], 1);
  }
  __syncthreads();
  count[(int64_t) threadIdx.x * gridDim.x + blockIdx.x] = bin[threadIdx.x];
}

/* Running sums of everything before, by one block. */
static __global__ void __launch_bounds__(1024) sort_scan(int *count, int n) {
  TS_SHARED(int, warp_sum, 32);
  TS_SHARED(int, before, 1);
  int lane = (int) threadIdx.x % TS_WARP, warp = (int) threadIdx.x / TS_WARP;
  if (threadIdx.x == 0) {
    before[0] = 0;
  }
  __syncthreads();
  for (int first = 0; first < n; first += 1024) {
    int i = first + (int) threadIdx.x, mine = i < n ? count[i] : 0, sum = mine;
    for (int by = 1; by < TS_WARP; by *= 2) {
      int below = __shfl_up_sync(0xffffffffu, sum, by);
      sum += lane >= by ? below : 0;
    }
    if (lane == TS_WARP - 1) {
      warp_sum[warp] = sum;
    }
    __syncthreads();
    int base = before[0];
    for (int w = 0; w < warp; ++w) {
      base += warp_sum[w];
    }
    if (i < n) {
      count[i] = base + sum - mine;
    }
    __syncthreads();
    if (threadIdx.x == 1023) {
      before[0] = base + sum;
    }
    __syncthreads();
  }
}

/* Keys to their places, those with equal digits in the order they had: the warps of a block one after another, and in a warp by
 * the number of lower lanes with the same digit. */
static __global__ void __launch_bounds__(BINS)
sort_move(int32_t *__restrict__ key_to, int32_t *__restrict__ token_to, const int32_t *__restrict__ key,
          const int32_t *__restrict__ token, const int *__restrict__ place, int64_t n, int shift) {
  TS_SHARED(int, next, BINS);
  next[threadIdx.x] = place[(int64_t) threadIdx.x * gridDim.x + blockIdx.x];
  __syncthreads();
  int lane = (int) threadIdx.x % TS_WARP, warp = (int) threadIdx.x / TS_WARP;
  int64_t first = (int64_t) blockIdx.x * KEYS;
  for (int round = 0; round < KEYS; round += BINS) {
    int64_t i = first + round + threadIdx.x;
    bool valid = i < n;
    int mine = valid ? key[i] : 0, digit = (mine >> shift) & (BINS - 1);
    unsigned same = __ballot_sync(0xffffffffu, valid);
    for (int bit = 0; bit < BITS; ++bit) {
      unsigned set = __ballot_sync(0xffffffffu, (digit >> bit) & 1);
      same &= (digit >> bit) & 1 ? set : ~set;
    }
    int rank = __popc(same & ((1u << lane) - 1));
    for (int w = 0; w < BINS / TS_WARP; ++w) {
      if (w == warp && valid) {
        int64_t at = next[digit] + rank;
        key_to[at] = mine;
        token_to[at] = token != NULL ? token[i] : (int32_t) i;
      }
      __syncthreads();
      if (w == warp && valid && rank == 0) {
        next[digit] += __popc(same);
      }
      __syncthreads();
    }
  }
}

/* ---- the sums ---- */

/* First place of each id in the sorted list, -1: no token has it. */
static __global__ void __launch_bounds__(THREADS) clear_starts(int32_t *start, int64_t rows) {
  int64_t i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (i < rows) {
    start[i] = -1;
  }
}

static __global__ void __launch_bounds__(THREADS) find_starts(int32_t *start, const int32_t *__restrict__ key, int64_t n) {
  int64_t i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (i < n && (i == 0 || key[i - 1] != key[i])) {
    start[key[i]] = (int32_t) i;
  }
}

/* Rows that no token named. */
template <typename U>
__global__ void __launch_bounds__(THREADS) fill_others(U *dw, const int32_t *__restrict__ start, ts_prior<U> prior, int columns) {
  int64_t row = blockIdx.x;
  float beta = ts_prior_beta(prior);
  if (start[row] >= 0 || (prior.data == dw && beta == 1.0f)) {
    return;
  }
  for (int c = (int) threadIdx.x; c < columns; c += THREADS) {
    float value = 0;
    ts_add_prior<1>(&value, prior, beta, row * columns + c);
    dw[row * columns + c] = ts_round<U>(value);
  }
}

template <typename U, int W>
static __device__ __forceinline__ void finish_row(U *dw, const float *sum, ts_prior<U> prior, float beta, int64_t at) {
  float v[W];
#pragma unroll
  for (int i = 0; i < W; ++i) {
    v[i] = sum[i];
  }
  ts_add_prior<W>(v, prior, beta, at);
  ts_store<W>(dw + at, v);
}

/* Chunk blockIdx.x, W columns a thread.  partial [chunk][2][columns]: of the id that goes on from the chunk before, and of the one
 * that goes on into the next; an id that does both is in the first. */
template <typename T, typename U, int W>
__global__ void __launch_bounds__(THREADS)
sum_chunk(U *dw, float *__restrict__ partial, const T *__restrict__ dy, const int32_t *__restrict__ key,
          const int32_t *__restrict__ token, ts_prior<U> prior, int64_t n, int columns) {
  int c = (int) (blockIdx.y * THREADS + threadIdx.x) * W;
  if (c >= columns) {
    return;
  }
  int64_t first = (int64_t) blockIdx.x * CHUNK, last = first + CHUNK < n ? first + CHUNK : n;
  float beta = ts_prior_beta(prior), sum[W];
  int64_t begin = first; /* of the present id */
#pragma unroll
  for (int i = 0; i < W; ++i) {
    sum[i] = 0;
  }
  for (int64_t k = first; k < last; ++k) {
    float v[W];
    ts_load<W>(v, dy + (int64_t) token[k] * columns + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      sum[i] += v[i];
    }
    int32_t id = key[k];
    if (k + 1 < last && key[k + 1] == id) {
      continue;
    }
    bool from_before = begin == first && first > 0 && key[first - 1] == id, goes_on = k + 1 == last && last < n && key[last] == id;
    if (from_before || goes_on) {
      ts_store<W>(partial + ((int64_t) blockIdx.x * 2 + (from_before ? 0 : 1)) * columns + c, sum);
    } else {
      finish_row<U, W>(dw, sum, prior, beta, (int64_t) id * columns + c);
    }
    begin = k + 1;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      sum[i] = 0;
    }
  }
}

/* The id that goes on from chunk blockIdx.x - 1 into this one, if it began there: its partial sums to its last chunk. */
template <typename U, int W>
__global__ void __launch_bounds__(THREADS)
add_chunks(U *dw, const float *__restrict__ partial, const int32_t *__restrict__ key, const int32_t *__restrict__ start,
           ts_prior<U> prior, int64_t n, int columns) {
  int c = (int) (blockIdx.y * THREADS + threadIdx.x) * W;
  int64_t chunk = (int64_t) blockIdx.x + 1, first = chunk * CHUNK;
  int32_t id = key[first];
  if (c >= columns || key[first - 1] != id || start[id] < first - CHUNK) {
    return;
  }
  float sum[W], v[W];
  ts_load<W>(sum, partial + ((chunk - 1) * 2 + 1) * columns + c);
  for (; chunk * CHUNK < n && key[chunk * CHUNK] == id; ++chunk) {
    ts_load<W>(v, partial + chunk * 2 * columns + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      sum[i] += v[i];
    }
  }
  finish_row<U, W>(dw, sum, prior, ts_prior_beta(prior), (int64_t) id * columns + c);
}

/* ---- the entry ---- */

/* Parts of the workspace. */
struct dw_workspace {
  int32_t *key[2], *token[2], *start;
  int *count;
  float *partial;
  size_t bytes;
};

static int64_t sort_blocks(int64_t tokens) { return (tokens + KEYS - 1) / KEYS; }

static dw_workspace divide(char *memory, int64_t tokens, int64_t rows, int64_t columns) {
  dw_workspace w = {};
  size_t at = 0;
  auto take = [&](size_t bytes) {
    char *part = memory + at;
    at += (bytes + 255) / 256 * 256;
    return part;
  };
  for (int i = 0; i < 2; ++i) {
    w.key[i] = (int32_t *) take((size_t) tokens * sizeof(int32_t));
    w.token[i] = (int32_t *) take((size_t) tokens * sizeof(int32_t));
  }
  w.start = (int32_t *) take((size_t) rows * sizeof(int32_t));
  w.count = (int *) take((size_t) sort_blocks(tokens) * BINS * sizeof(int));
  w.partial = (float *) take((size_t) ts_blocks(tokens, CHUNK) * 2 * (size_t) columns * sizeof(float));
  w.bytes = at;
  return w;
}

static size_t embedding_dw_prepare(const ts_target *, const ts_graph *graph, const ts_node *node, void **) {
  return divide(NULL, ts_tensor_count(graph, node->in[1]), node->attr.embedding.rows,
                ts_columns_of(&graph->tensor[node->in[0]])).bytes;
}

/* \return which of the two buffers holds the sorted list. */
static int sort_tokens(const dw_workspace *w, const int32_t *id, int64_t tokens, int64_t rows, cudaStream_t stream) {
  int blocks = (int) sort_blocks(tokens), to = 0;
  const int32_t *key = id, *token = NULL;
  for (int shift = 0; shift == 0 || (rows - 1) >> shift > 0; shift += BITS) {
    ts_launch(sort_count, (unsigned) blocks, BINS, 0, stream, w->count, key, tokens, shift);
    ts_launch(sort_scan, 1, 1024, 0, stream, w->count, blocks * BINS);
    ts_launch(sort_move, (unsigned) blocks, BINS, 0, stream, w->key[to], w->token[to], key, token, (const int *) w->count, tokens, shift);
    key = w->key[to];
    token = w->token[to];
    to = 1 - to;
  }
  return 1 - to;
}

template <typename T, typename U, int W>
static void launch_sums(const ts_kernel_call *call, const dw_workspace *w, int sorted, int64_t tokens, int columns) {
  ts_prior<U> prior = ts_call_prior<U>(call, 0);
  unsigned chunks = ts_blocks(tokens, CHUNK), tiles = ts_blocks(columns, THREADS * W);
  U *dw = (U *) call->out[0];
  const int32_t *key = w->key[sorted], *token = w->token[sorted], *start = w->start;
  ts_launch(sum_chunk<T, U, W>, dim3(chunks, tiles), THREADS, 0, ts_call_stream(call), dw, w->partial, (const T *) call->in[0], key, token,
            prior, tokens, columns);
  if (chunks > 1) {
    ts_launch(add_chunks<U, W>, dim3(chunks - 1, tiles), THREADS, 0, ts_call_stream(call), dw, (const float *) w->partial, key, start, prior,
              tokens, columns);
  }
}

template <typename T, typename U>
static void launch_dw(const ts_kernel_call *call) {
  int64_t tokens = ts_shape_count(&ts_call_in(call, 1)->shape), rows = call->node->attr.embedding.rows;
  int columns = (int) ts_columns_of(ts_call_in(call, 0));
  cudaStream_t stream = ts_call_stream(call);
  dw_workspace w = divide((char *) call->workspace, tokens, rows, columns);
  ts_prior<U> prior = ts_call_prior<U>(call, 0);
  int sorted = tokens > 0 ? sort_tokens(&w, (const int32_t *) call->in[1], tokens, rows, stream) : 0;
  ts_launch(clear_starts, ts_blocks(rows, THREADS), THREADS, 0, stream, w.start, rows);
  ts_launch(find_starts, ts_blocks(tokens, THREADS), THREADS, 0, stream, w.start, (const int32_t *) w.key[sorted], tokens);
  ts_launch(fill_others<U>, (unsigned) rows, THREADS, 0, stream, (U *) call->out[0], (const int32_t *) w.start, prior, columns);
  enum { W = 4 };
  const void *all[] = {call->in[0], call->out[0], prior.data, call->workspace};
  if (tokens == 0) {
    return;
  }
  if (columns % W == 0 && ts_is_wide<T>(ts_lanes<T>, all, 4)) {
    launch_sums<T, U, W>(call, &w, sorted, tokens, columns);
  } else {
    launch_sums<T, U, 1>(call, &w, sorted, tokens, columns);
  }
}

static void embedding_dw_run(const ts_kernel_call *call) {
  TS_FOR_FLOATS(ts_call_in(call, 0)->dtype, ts_call_out(call, 0)->dtype, launch_dw, call);
}

const ts_kernel *ts_cuda_lookup(ts_op op) {
  static const ts_kernel embedding = {NULL, embedding_run, NULL}, pick = {NULL, pick_run, NULL},
                         dw = {embedding_dw_prepare, embedding_dw_run, NULL}, none = {};
  return op == TS_OP_EMBEDDING ? &embedding : op == TS_OP_PICK ? &pick : op == TS_OP_EMBEDDING_DW ? &dw : &none;
}
