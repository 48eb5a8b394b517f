/* The head and its loss in chunks of rows.  A chunk's logits are fp32 and become their own gradient in place, in the
 * type of x: bf16 logits would be wrong by 2^-9 of their size, some 0.02 at 10, where the loss is wanted to 10^-6.
 *
 * Each chunk reads and writes dw once in fp32: 8 V C bytes beside 6 V C operations a row, so that at 800 TFLOP/s and
 * 4 TB/s a chunk of r rows would spend 267 / r of its products' time on that: 26 % at 1024 rows, 13 % at 2048, 6.5 % at
 * 4096, whatever V and C are.  Hence LONGEST_CHUNK, as far as CHUNK_BYTES allow: 4096 rows (0.82 GB of logits) at
 * V = 50257, 2048 (1.05 GB) at V = 128256.
 *
 * Cost a row: 2 V C operations for the loss, 6 V C with gradients; bytes of logits beside what the products read and
 * write: 4 V for the loss; with gradients 8 V in fp32 and 6 V in bf16 where a row fits into shared memory (V up to
 * 57856), else 12 V and 10 V, because it is read twice.
 *
 * Ranks that share the vocabulary measure their logits first (HEAD_STATS); the loss is then what all of them measured,
 * and the gradients make the logits again, which are read once: 8 V and 6 V, whatever V. */
#include "cuda/blas.h"
#include "cuda/kernel.cuh"

#include <float.h>

extern "C" {
#include "base/memory.h"
}

#ifndef TS_HEAD_LONGEST_CHUNK
#define TS_HEAD_LONGEST_CHUNK 4096
#endif

enum { ROW_MULTIPLE = 128, CHUNK_BYTES = 1 << 30, IGNORED = -100, MOST_THREADS = 1024, TOTAL_THREADS = 1024 };

/* Elements of a thread at a time, where a row lies in shared memory 16 bytes of it; that memory: of the 227 KB of a
 * block, what its sums leave. */
enum { LANES = 8, PIECE = 4, KEPT_BYTES = 226 << 10 };

/* ---- a row ---- */

/* What is done to logits, and its slope by what it gave.  With ON false nothing, at no cost. */
struct cap {
  float scale, softcap, inverse; /* inverse: of softcap; both 0: none */
  template <bool ON> __device__ __forceinline__ float value(float x) const {
    x = ON ? scale * x : x;
    return ON && softcap > 0.0f ? softcap * tanhf(x * inverse) : x;
  }
  template <bool ON> __device__ __forceinline__ float slope(float y) const {
    return ON ? scale * (1.0f - y * inverse * (y * inverse)) : 1.0f;
  }
};

/* e^x for x of at most 0: within 2^-22 of it where it counts beside 1, which is all that a sum of them shows. */
static __device__ __forceinline__ float exponential(float x) {
  return ts_exp2(TS_LOG2E * x);
}

static __device__ __forceinline__ float block_max(float x, float *scratch) {
  int warps = (int) blockDim.x / TS_WARP;
  x = ts_warp_max(x);
  if (threadIdx.x % TS_WARP == 0) {
    scratch[threadIdx.x / TS_WARP] = x;
  }
  __syncthreads();
  float max = scratch[0];
  for (int w = 1; w < warps; ++w) {
    max = fmaxf(max, scratch[w]);
  }
  __syncthreads();
  return max;
}

/* N logits from i on; what is behind the row's end counts as -infinity.  Rows are padded, so that reading is
 * allowed. */
template <int N, bool ON>
static __device__ __forceinline__ void load_logits(float *x, const float *row, int i, int vocabulary, const cap &c) {
  ts_load<N>(x, row + i);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    x[k] = i + k < vocabulary ? c.value<ON>(x[k]) : -INFINITY;
  }
}

/* A thread's largest logit and the sum of exponentials below it: N more of them, for which the sum is scaled when the
 * maximum grows. */
template <int N> static __device__ __forceinline__ void add_exponentials(const float *x, float *max, float *sum) {
  float larger = *max;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    larger = fmaxf(larger, x[k]);
  }
  *sum *= exponential(*max - larger);
  *max = larger;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    *sum += exponential(x[k] - larger);
  }
}

/* Those of all threads, in all. */
static __device__ __forceinline__ void join_exponentials(float *max, float *sum, float *scratch) {
  float mine = *max;
  *max = block_max(mine, scratch);
  *sum = ts_block_sum(*sum * exponential(mine - *max), scratch);
}

/* Of a row, in one reading, N logits of a thread at a time. */
template <int N, bool ON>
static __device__ __forceinline__ void sum_exponentials(const float *row, int vocabulary, const cap &c, float *scratch,
                                                        float *max, float *sum) {
  float x[N];
  *max = -FLT_MAX;
  *sum = 0;
#pragma unroll 2
  for (int i = (int) threadIdx.x * N; i < vocabulary; i += (int) blockDim.x * N) {
    load_logits<N, ON>(x, row, i, vocabulary, c);
    add_exponentials<N>(x, max, sum);
  }
  join_exponentials(max, sum, scratch);
}

/* x = seed (softmax - onehot) slope of the N logits from i on. */
template <int N, bool ON>
static __device__ __forceinline__ void set_gradient(float *x, const float *logit, int i, int label, float lse,
                                                    float seed, const cap &c) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    x[k] = seed * exponential(logit[k] - lse);
  }
  if (label >= i && label < i + N) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      x[k] -= i + k == label ? seed : 0.0f;
    }
  }
  if (ON) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      x[k] *= c.slope<ON>(logit[k]);
    }
  }
}

/* The gradient of a row over its own memory.  A narrower gradient lies where logits were that other threads may
 * still have to read: all have read a stretch when anyone writes it, and what is written lies before what comes
 * next. */
template <typename T, bool ON>
static __device__ __forceinline__ void differentiate(float *row, int vocabulary, int label, float lse, float seed,
                                                     const cap &c) {
  T *to = (T *) row;
  int step = (int) blockDim.x * LANES, mine = (int) threadIdx.x * LANES;
  float x[LANES], next[LANES] = {};
  if (mine < vocabulary) {
    load_logits<LANES, ON>(next, row, mine, vocabulary, c);
  }
  for (int start = 0; start < vocabulary; start += step) {
    int i = start + mine;
    set_gradient<LANES, ON>(x, next, i, label, lse, seed, c);
    if (i + step < vocabulary) {
      load_logits<LANES, ON>(next, row, i + step, vocabulary, c);
    }
    if (sizeof(T) < sizeof(float)) {
      __syncthreads();
    }
    if (i < vocabulary) {
      ts_store<LANES>(to + i, x);
    }
  }
}

template <typename T> static __device__ __forceinline__ void clear_row(float *row, int vocabulary) {
  const float zero[LANES] = {};
  for (int i = (int) threadIdx.x * LANES; i < vocabulary; i += (int) blockDim.x * LANES) {
    ts_store<LANES>((T *) row + i, zero);
  }
}

/* A block a row: its loss, and with GRADIENT its logits replaced, which are read twice.  The sums are by N logits, as
 * head_kept_rows has them where a row fits there: a loss has the same bits with its gradient and alone. */
template <typename T, bool GRADIENT, int N, bool ON>
__global__ void __launch_bounds__(MOST_THREADS)
    head_rows(float *__restrict__ logits, double *__restrict__ loss, const int32_t *__restrict__ label,
              const float *__restrict__ seed, cap c, int64_t ld, int vocabulary) {
  TS_SHARED(float, scratch, MOST_THREADS / TS_WARP);
  float *row = logits + blockIdx.x * ld;
  int at = label[blockIdx.x];
  if (at == IGNORED) {
    if (GRADIENT) {
      clear_row<T>(row, vocabulary);
    }
    if (threadIdx.x == 0) {
      loss[blockIdx.x] = 0;
    }
    return;
  }
  float max, sum;
  sum_exponentials<N, ON>(row, vocabulary, c, scratch, &max, &sum);
  double lse = (double) max + log((double) sum);
  if (threadIdx.x == 0) {
    bool is_row = at >= 0 && at < vocabulary; /* else its logit is 0, as where ranks share the vocabulary */
    loss[blockIdx.x] = lse - (double) (is_row ? c.value<ON>(row[at]) : 0.0f);
  }
  if (GRADIENT) {
    __syncthreads(); /* row[at] has been read */
    differentiate<T, ON>(row, vocabulary, at, (float) lse, *seed, c);
  }
}

/* ---- rows that fit into shared memory ---- */

/* A thread has the same places of every row there, so it waits for nobody but in the sums.  Each place is refilled with
 * the block's next row as soon as its gradient is made, and a quarter of the places is summed while others are still on
 * their way: memory is read all the time. */

enum { QUARTERS = 4 };

/* The places of a thread in a row: pieces, \a step apart; a quarter of them, rounded up. */
struct places {
  int first, step, quarter, end;
};

static __device__ __forceinline__ places places_of(int vocabulary) {
  int step = (int) blockDim.x * PIECE, pieces = (vocabulary + step - 1) / step;
  return {(int) threadIdx.x * PIECE, step, (pieces + QUARTERS - 1) / QUARTERS * step, vocabulary};
}

/* Wait for quarter \a q of a row whose copies are all begun. */
static __device__ __forceinline__ void wait_for_quarter(int q) {
  switch (q) {
    case 0: ts_copy_wait<3>(); break;
    case 1: ts_copy_wait<2>(); break;
    case 2: ts_copy_wait<1>(); break;
    default: ts_copy_wait<0>(); break;
  }
}

/* The sums over a row; the logits are capped in place, and behind its end -infinity.  A thread's sum is that of its
 * pieces in order. */
template <bool ON>
static __device__ __forceinline__ void sum_kept(float *kept, const places &own, const cap &c, float *max, float *sum) {
  *max = -FLT_MAX;
  *sum = 0;
#pragma unroll
  for (int q = 0; q < QUARTERS; ++q) {
    wait_for_quarter(q);
    int end = min(own.end, (q + 1) * own.quarter);
#pragma unroll 2
    for (int i = own.first + q * own.quarter; i < end; i += own.step) {
      float x[PIECE];
      if (i + PIECE <= own.end && !ON) {
        ts_load<PIECE>(x, kept + i);
      } else {
        load_logits<PIECE, ON>(x, kept, i, own.end, c);
        ts_store<PIECE>(kept + i, x);
      }
      add_exponentials<PIECE>(x, max, sum);
    }
  }
}

/* Rows blockIdx.x, + gridDim.x, ...: their losses, and their logits replaced. */
template <typename T, bool ON>
__global__ void __launch_bounds__(MOST_THREADS)
    head_kept_rows(float *__restrict__ logits, double *__restrict__ loss, const int32_t *__restrict__ label,
                   const float *__restrict__ seed, cap c, int64_t ld, int vocabulary, int rows) {
  TS_SHARED(float, scratch, MOST_THREADS / TS_WARP);
  TS_SHARED_DYNAMIC(float, kept);
  places own = places_of(vocabulary);
  for (int q = 0; q < QUARTERS; ++q) {
    for (int i = own.first + q * own.quarter; i < min(own.end, (q + 1) * own.quarter); i += own.step) {
      ts_copy_ahead(kept + i, logits + blockIdx.x * ld + i, true);
    }
    ts_copy_commit();
  }
  for (int r = (int) blockIdx.x, next; r < rows; r = next) {
    next = r + (int) gridDim.x;
    float *row = logits + r * ld, *ahead = logits + next * ld, max = 0, sum = 1;
    int at = label[r];
    bool counts = at != IGNORED, is_row = at >= 0 && at < vocabulary;
    if (counts) { /* the same in all threads */
      sum_kept<ON>(kept, own, c, &max, &sum);
      join_exponentials(&max, &sum, scratch);
    } else {
      ts_copy_wait<0>();
    }
    double lse = (double) max + log((double) sum);
    if (threadIdx.x ==
        (is_row ? (unsigned) (at % own.step / PIECE) : 0)) { /* whose logit it is, before it is refilled */
      loss[r] = counts ? lse - (double) (is_row ? kept[at] : 0.0f) : 0;
    }
    for (int q = 0; q < QUARTERS; ++q) {
      int end = min(own.end, (q + 1) * own.quarter);
#pragma unroll 2
      for (int i = own.first + q * own.quarter; i < end; i += own.step) {
        float logit[PIECE], x[PIECE] = {};
        if (counts) {
          ts_load<PIECE>(logit, kept + i);
          set_gradient<PIECE, ON>(x, logit, i, at, (float) lse, *seed, c);
        }
        ts_store<PIECE>((T *) row + i, x);
        if (next < rows) {
          ts_copy_ahead(kept + i, ahead + i, true);
        }
      }
      ts_copy_commit();
    }
  }
  ts_copy_wait<0>(); /* groups of nothing */
}

/* ---- a row of a share of the vocabulary ---- */

/* The place of a label among the rows of w, -1: it is none of them. */
static __device__ __forceinline__ int place_of_label(int32_t label, int64_t first, int vocabulary) {
  int64_t at = label - first;
  return label != IGNORED && at >= 0 && at < vocabulary ? (int) at : -1;
}

/* What all shares measured of a row, [shares][rows][2]: the logarithm of the sum of all exponentials, in order. */
static __device__ __forceinline__ double lse_of_shares(const float *shares, int n, int64_t rows, int64_t row) {
  double max = (double) shares[2 * row], sum = 0;
  for (int r = 1; r < n; ++r) {
    double lse = (double) shares[2 * (r * rows + row)];
    max = lse > max ? lse : max;
  }
  for (int r = 0; r < n; ++r) {
    sum += exp((double) shares[2 * (r * rows + row)] - max);
  }
  return max + log(sum);
}

/* A block a row: its logsumexp, and the logit of its label. */
template <bool ON>
__global__ void __launch_bounds__(MOST_THREADS)
    head_measure(const float *__restrict__ logits, float *__restrict__ stats, const int32_t *__restrict__ label, cap c,
                 int64_t ld, int vocabulary, int64_t first) {
  TS_SHARED(float, scratch, MOST_THREADS / TS_WARP);
  const float *row = logits + blockIdx.x * ld;
  float max, sum;
  sum_exponentials<LANES, ON>(row, vocabulary, c, scratch, &max, &sum);
  if (threadIdx.x == 0) {
    int at = place_of_label(label[blockIdx.x], first, vocabulary);
    stats[2 * blockIdx.x] = (float) ((double) max + log((double) sum));
    stats[2 * blockIdx.x + 1] = at < 0 ? 0.0f : c.value<ON>(row[at]);
  }
}

/* What ranks share, for a chunk that begins at a row of the batch. */
struct shared_rows {
  const float *shares;
  int n;
  int64_t rows, row, first;
};

/* A block a row: its logits replaced by their gradient. */
template <typename T, bool ON>
__global__ void __launch_bounds__(MOST_THREADS)
    head_shared_gradient(float *__restrict__ logits, shared_rows s, const int32_t *__restrict__ label,
                         const float *__restrict__ seed, cap c, int64_t ld, int vocabulary) {
  TS_SHARED(float, lse, 1);
  float *row = logits + blockIdx.x * ld;
  int32_t mine = label[blockIdx.x];
  if (mine == IGNORED) {
    clear_row<T>(row, vocabulary);
    return;
  }
  if (threadIdx.x == 0) {
    lse[0] = (float) lse_of_shares(s.shares, s.n, s.rows, s.row + blockIdx.x);
  }
  __syncthreads();
  differentiate<T, ON>(row, vocabulary, place_of_label(mine, s.first, vocabulary), lse[0], *seed, c);
}

/* A thread a row: its loss by what all shares measured. */
static __global__ void __launch_bounds__(TOTAL_THREADS)
    head_combine(double *__restrict__ loss, const float *__restrict__ shares, int n, int64_t rows,
                 const int32_t *__restrict__ label) {
  int64_t row = (int64_t) blockIdx.x * TOTAL_THREADS + threadIdx.x;
  if (row >= rows) {
    return;
  }
  double logit = 0;
  for (int r = 0; r < n; ++r) {
    logit += (double) shares[2 * (r * rows + row) + 1];
  }
  loss[row] = label[row] == IGNORED ? 0 : lse_of_shares(shares, n, rows, row) - logit;
}

/* One block: thread by thread every TOTAL_THREADS-th row in order, then the threads in order. */
static __global__ void __launch_bounds__(TOTAL_THREADS)
    head_total(double *__restrict__ loss, double *__restrict__ valid, const double *__restrict__ row_loss,
               const int32_t *__restrict__ label, int64_t rows) {
  TS_SHARED(double, scratch, TOTAL_THREADS / TS_WARP);
  double sum = 0, count = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < rows; i += TOTAL_THREADS) {
    sum += row_loss[i];
    count += label[i] != IGNORED ? 1 : 0;
  }
  sum = ts_block_sum(sum, scratch);
  count = ts_block_sum(count, scratch);
  if (threadIdx.x == 0) {
    *loss = sum;
    *valid = count;
  }
}

/* ---- plans ---- */

/* Products of a chunk of so many rows; its dw adds to what the chunks before left. */
struct chunk {
  int64_t rows;
  ts_blas *logits, *dx, *dw;
};

struct head {
  int64_t rows, vocabulary, width, ld; /* ld: floats between rows of logits */
  int64_t chunk_rows, n_chunks;
  chunk full, last;  /* all chunks but the last, and the last */
  ts_blas *first_dw; /* of the first chunk: adds to the op's prior, or to nothing */
  ts_dtype dtype, dw_dtype;
  cap logits_cap;
  bool loss, gradients, stats; /* which outputs the op has */
  int64_t first;               /* row of the whole vocabulary that row 0 is */
  int shares;                  /* that are given measured; 0: none */
  bool accumulator;            /* dw is summed in fp32 in the workspace and rounded once */
  size_t logits_bytes, loss_bytes, accumulator_bytes;
};

static int64_t rows_of_chunk(int64_t rows, int64_t ld) {
  int64_t longest = CHUNK_BYTES / (ld * (int64_t) sizeof(float)) / ROW_MULTIPLE * ROW_MULTIPLE;
  longest = longest < ROW_MULTIPLE            ? (int64_t) ROW_MULTIPLE
            : longest > TS_HEAD_LONGEST_CHUNK ? TS_HEAD_LONGEST_CHUNK
                                              : longest;
  int64_t n = (rows + longest - 1) / longest;
  return n <= 1 ? rows : ((rows + n - 1) / n + ROW_MULTIPLE - 1) / ROW_MULTIPLE * ROW_MULTIPLE;
}

static head describe_head(const ts_graph *graph, const ts_node *node) {
  const ts_tensor *x = &graph->tensor[node->in[0]], *w = &graph->tensor[node->in[1]];
  head h = {};
  TS_ASSERT(x->dtype == w->dtype);
  h.rows = ts_shape_rows(&x->shape);
  h.vocabulary = w->shape.d[0];
  h.width = w->shape.d[1];
  h.ld = (h.vocabulary + 15) / 16 * 16;
  int stats = ts_head_stats(node);
  h.shares = stats < 0 ? 0 : (int) graph->tensor[node->in[stats]].shape.d[0];
  h.first = node->attr.head.first;
  h.loss = node->op == TS_OP_HEAD_LOSS || node->op == TS_OP_HEAD_LOSS_TRAIN;
  h.gradients = node->op == TS_OP_HEAD_LOSS_DX || node->op == TS_OP_HEAD_LOSS_TRAIN;
  h.stats = node->op == TS_OP_HEAD_STATS;
  h.chunk_rows = rows_of_chunk(h.rows, h.ld);
  bool combines = h.loss && h.shares > 0; /* it needs no logits */
  h.n_chunks = h.rows == 0 || combines ? 0 : (h.rows + h.chunk_rows - 1) / h.chunk_rows;
  h.dtype = x->dtype;
  float softcap = node->attr.head.softcap;
  h.logits_cap = {node->attr.head.scale, softcap, softcap > 0.0f ? 1.0f / softcap : 0.0f};
  h.dw_dtype = h.gradients ? graph->tensor[node->out[node->n_out - 1]].dtype : TS_F32;
  h.accumulator = h.n_chunks > 0 && h.dw_dtype != TS_F32 && (h.n_chunks > 1 || h.dtype == TS_F32);
  h.logits_bytes = ts_align_up((size_t) (h.chunk_rows * h.ld) * sizeof(float), TS_CUDA_ALIGN);
  h.loss_bytes = ts_align_up((size_t) h.rows * sizeof(double), TS_CUDA_ALIGN);
  h.accumulator_bytes =
      h.accumulator ? ts_align_up((size_t) (h.vocabulary * h.width) * sizeof(float), TS_CUDA_ALIGN) : 0;
  return h;
}

static int64_t gradient_ld(const head *h) {
  return h->dtype == TS_F32 ? h->ld : 2 * h->ld;
}

static ts_blas_spec product(const head *h, int64_t m, int64_t n, int64_t k) {
  ts_blas_spec spec = {};
  spec.m = m;
  spec.n = n;
  spec.k = k;
  spec.in = h->dtype;
  return spec;
}

static ts_blas *plan_logits(const head *h, int64_t rows) {
  ts_blas_spec spec = product(h, rows, h->vocabulary, h->width);
  spec.transpose_b = true;
  spec.ldc = h->ld;
  spec.out = TS_F32;
  return ts_blas_create(&spec);
}

static ts_blas *plan_dx(const head *h, int64_t rows) {
  ts_blas_spec spec = product(h, rows, h->width, h->vocabulary);
  spec.lda = gradient_ld(h);
  spec.out = h->dtype;
  return ts_blas_create(&spec);
}

static ts_blas *plan_dw(const head *h, int64_t rows, ts_blas_prior prior) {
  ts_blas_spec spec = product(h, h->vocabulary, h->width, rows);
  spec.transpose_a = true;
  spec.lda = gradient_ld(h);
  spec.out = h->accumulator ? TS_F32 : h->dw_dtype;
  spec.prior = prior;
  return ts_blas_create(&spec);
}

static chunk plan_chunk(const head *h, int64_t rows, bool adds) {
  return {rows, plan_logits(h, rows), h->gradients ? plan_dx(h, rows) : NULL,
          h->gradients && adds ? plan_dw(h, rows, TS_BLAS_PRIOR) : NULL};
}

static void plan(head *h, const ts_node *node) {
  if (h->n_chunks > 1) {
    h->full = plan_chunk(h, h->chunk_rows, h->n_chunks > 2);
  }
  if (h->n_chunks > 0) {
    int64_t rows = h->rows - (h->n_chunks - 1) * h->chunk_rows;
    h->last = plan_chunk(h, rows, h->n_chunks > 1);
    h->first_dw = h->gradients ? plan_dw(h, h->n_chunks > 1 ? h->chunk_rows : rows,
                                         h->accumulator ? TS_BLAS_NO_PRIOR : ts_blas_prior_of(node, node->n_out - 1))
                               : NULL;
  }
}

static size_t set_up_head(const ts_target *, const ts_graph *graph, const ts_node *node, void **prepared) {
  head h = describe_head(graph, node);
  if (prepared != NULL) {
    head *kept = (head *) ts_calloc(1, sizeof *kept);
    plan(&h, node);
    *kept = h;
    *prepared = kept;
  }
  return h.loss_bytes + (h.n_chunks == 0 ? 0 : TS_BLAS_WORKSPACE + h.logits_bytes + h.accumulator_bytes);
}

static void take_down_chunk(chunk *c) {
  ts_blas_destroy(&c->logits);
  ts_blas_destroy(&c->dx);
  ts_blas_destroy(&c->dw);
}

static void take_down_head(void *prepared) {
  head *h = (head *) prepared;
  take_down_chunk(&h->full);
  take_down_chunk(&h->last);
  ts_blas_destroy(&h->first_dw);
  ts_free(h);
}

/* ---- one call ---- */

struct sweep {
  const head *h;
  const char *x;
  const void *w;
  const int32_t *label;
  const float *shares; /* [shares][rows][2] */
  float *stats;        /* [rows][2] */
  const float *seed;
  char *dx;
  void *dw; /* where products write: the output or the accumulator */
  const void *prior;
  const float *beta;
  char *products; /* their workspace */
  float *logits;
  double *row_loss;
  cudaStream_t stream;
};

static sweep begin_sweep(const ts_kernel_call *call) {
  const head *h = (const head *) call->prepared;
  int last = call->node->n_out - 1;
  sweep s = {};
  s.h = h;
  s.x = (const char *) call->in[0];
  s.w = call->in[1];
  s.label = (const int32_t *) call->in[2];
  s.row_loss = (double *) call->workspace;
  s.products = (char *) call->workspace + h->loss_bytes;
  s.logits = (float *) (s.products + TS_BLAS_WORKSPACE);
  s.shares = h->shares > 0 ? (const float *) call->in[ts_head_stats(call->node)] : NULL;
  s.stats = h->stats ? (float *) call->out[0] : NULL;
  s.stream = ts_call_stream(call);
  if (h->gradients) {
    s.seed = (const float *) call->in[3];
    s.dx = (char *) call->out[last - 1];
    s.dw = h->accumulator ? (char *) s.logits + h->logits_bytes : (char *) call->out[last];
    s.prior = call->prior == NULL ? NULL : call->prior[last];
    s.beta = call->beta;
  }
  return s;
}

/* Threads of a row, and with that the order of its sums, depend on V alone: a row that needs a multiprocessor's whole
 * shared memory has as many as a block may. */
static int threads_of_logits(const head *h) {
  bool fits = h->ld * (int64_t) sizeof(float) <= KEPT_BYTES;
  return h->vocabulary <= 2048 ? 128 : h->vocabulary <= 16384 ? 256 : fits ? MOST_THREADS : 512;
}

template <typename T, bool ON> static void launch_shared_rows(const sweep *s, int64_t first, int64_t rows) {
  const head *h = s->h;
  if (h->stats) {
    ts_launch(head_measure<ON>, (unsigned) rows, threads_of_logits(h), 0, s->stream, (const float *) s->logits,
              s->stats + 2 * first, s->label + first, h->logits_cap, h->ld, (int) h->vocabulary, h->first);
  } else {
    shared_rows shared = {s->shares, h->shares, h->rows, first, h->first};
    ts_launch(head_shared_gradient<T, ON>, (unsigned) rows, threads_of_logits(h), 0, s->stream, s->logits, shared,
              s->label + first, s->seed, h->logits_cap, h->ld, (int) h->vocabulary);
  }
}

template <typename T, bool ON> static void launch_rows_of(const sweep *s, int64_t first, int64_t rows) {
  const head *h = s->h;
  if (h->stats || h->shares > 0) {
    launch_shared_rows<T, ON>(s, first, rows);
    return;
  }
  int64_t bytes = h->ld * (int64_t) sizeof(float);
  int threads = threads_of_logits(h);
  if (h->gradients && bytes <= KEPT_BYTES) {
    int64_t together =
        ts_cuda_opened()->processors * min((int64_t) 2048 / threads, (KEPT_BYTES + 1024) / (bytes + 1024));
    ts_launch(head_kept_rows<T, ON>, (unsigned) (rows < together ? rows : together), threads, (size_t) bytes, s->stream,
              s->logits, s->row_loss + first, s->label + first, s->seed, h->logits_cap, h->ld, (int) h->vocabulary,
              (int) rows);
  } else {
    ts_launch(h->gradients          ? head_rows<T, true, LANES, ON>
              : bytes <= KEPT_BYTES ? head_rows<T, false, PIECE, ON>
                                    : head_rows<T, false, LANES, ON>,
              (unsigned) rows, threads, 0, s->stream, s->logits, s->row_loss + first, s->label + first, s->seed,
              h->logits_cap, h->ld, (int) h->vocabulary);
  }
}

template <typename T> static void launch_rows(const sweep *s, int64_t first, int64_t rows) {
  if (s->h->logits_cap.scale != 1.0f || s->h->logits_cap.softcap > 0.0f) {
    launch_rows_of<T, true>(s, first, rows);
  } else {
    launch_rows_of<T, false>(s, first, rows);
  }
}

static void launch_chunk(const sweep *s, const chunk *c, int64_t first) {
  const head *h = s->h;
  int64_t row_bytes = h->width * (int64_t) ts_dtype_size(h->dtype);
  const char *x = s->x + first * row_bytes;
  ts_blas_operands logits = {x, s->w, s->logits, NULL, NULL, NULL, NULL, s->products};
  ts_blas_run(c->logits, &logits, s->stream);
  TS_FOR_FLOAT(h->dtype, launch_rows, s, first, c->rows);
  if (h->gradients) {
    ts_blas_operands dx = {s->logits, s->w, s->dx + first * row_bytes, NULL, NULL, NULL, NULL, s->products};
    ts_blas_operands dw = {s->logits, x, s->dw, NULL, NULL, first > 0 ? s->dw : s->prior, s->beta, s->products};
    ts_blas_run(c->dx, &dx, s->stream);
    ts_blas_run(first > 0 ? c->dw : h->first_dw, &dw, s->stream);
  }
}

static void launch_head(const ts_kernel_call *call) {
  sweep s = begin_sweep(call);
  const head *h = s.h;
  for (int64_t i = 0; i < h->n_chunks; ++i) {
    launch_chunk(&s, i + 1 < h->n_chunks ? &h->full : &h->last, i * h->chunk_rows);
  }
  if (h->gradients && (h->accumulator || h->n_chunks == 0)) {
    ts_blas_finish(call->out[call->node->n_out - 1], h->dw_dtype, h->accumulator ? (const float *) s.dw : NULL, NULL,
                   TS_F32, s.prior, s.beta, h->vocabulary, h->width, s.stream);
  }
  if (h->loss && h->shares > 0) {
    ts_launch(head_combine, ts_blocks(h->rows, TOTAL_THREADS), TOTAL_THREADS, 0, s.stream, s.row_loss, s.shares,
              h->shares, h->rows, s.label);
  }
  if (h->loss) {
    ts_launch(head_total, 1, TOTAL_THREADS, 0, s.stream, (double *) call->out[0], (double *) call->out[1],
              (const double *) s.row_loss, s.label, h->rows);
  }
}

const ts_kernel *ts_cuda_head(ts_op op) {
  static const ts_kernel row = {set_up_head, launch_head, take_down_head}, none = {};
  bool mine =
      op == TS_OP_HEAD_LOSS || op == TS_OP_HEAD_LOSS_DX || op == TS_OP_HEAD_STATS || op == TS_OP_HEAD_LOSS_TRAIN;
  return mine ? &row : &none;
}
