/** \file
 * What the files of attention share: the problem of a call and its kernels.  Private to cuda/attention*.  Pointers are
 * device memory, everything is asynchronous on the stream.  Nothing here is collective.
 */
#ifndef TS_CUDA_ATTENTION_H
#define TS_CUDA_ATTENTION_H

#include "cuda/kernel.cuh"

/** The smallest and the largest document of a tile of TS_BOUNDS rows. */
typedef struct ts_attention_bounds {
  alignas(8) int32_t lowest; /**< Both are read at once. */
  int32_t highest;
} ts_attention_bounds;
enum { TS_BOUNDS = 32, TS_ATTENTION_MOST_HEAD_DIM = 256 };

/** The rows of one side of a call, queries or keys: tokens of a whole sample, ascending, of which rows [0, first) lie
 * one after the other, and the rest.  Their numbers in the sample are their places. */
typedef struct ts_attention_rows {
  int count, heads;            /**< Of q and what is like it: S, H; of k and v: K, G. */
  int row_heads;               /**< Heads in a row of q and dq, or of k, v, dk and dv: more where all are one tensor. */
  int first;                   /**< count: all lie together. */
  int shift[2];                /**< Place less row, before `first` and from there on. */
  ts_attention_bounds *bounds; /**< [B][tiles], workspace; NULL: one document. */
} ts_attention_rows;

/** A result of the tiles: prior and wide as ops.def says. */
typedef struct ts_attention_result {
  void *data;
  const void *prior; /**< NULL: none. */
  bool wide;         /**< fp32, whatever q is. */
} ts_attention_result;

/** A call of ATTENTION or ATTENTION_DX, by value for the kernels. */
typedef struct ts_attention_problem {
  const void *q, *k, *v;          /**< [B][S][H D], [B][K][G D], [B][K][G D], or columns of one tensor. */
  const void *d_out;              /**< [B][S][H D]; NULL forward. */
  float *lse;                     /**< [B][H][S], natural logarithm; read backward. */
  ts_attention_result o;          /**< [B][S][H D]; backward not there. */
  ts_attention_result dq, dk, dv; /**< As q, k and v; forward not there. */
  const float *beta;              /**< Of the priors; NULL: 1. */
  const float *delta;             /**< [B][H][S]: row of do times that of o; backward. */
  const int32_t *documents;       /**< [B][T], by place; NULL: one document. */
  const int64_t *seed, *sample;   /**< [1], [B]; read only where there is dropout. */
  uint64_t name;                  /**< Of the op: with the seed the key of its dropout. */
  int64_t batch, length;          /**< B, T: tokens of a whole sample. */
  ts_attention_rows queries, keys;
  int head_dim;            /**< D */
  int first_head;          /**< Of the whole's: dropout's elements go by it. */
  int group, skip;         /**< Query heads of a key head; those of key head 0 that others have. */
  int together;            /**< Key heads whose keys and values fit in the cache. */
  int window;              /**< Keys that a query sees, itself the last; T where all are. */
  float scale, keep_scale; /**< keep_scale: 1 / (1 - p). */
  float softcap, into_cap; /**< 0: none; into_cap: scale / softcap, of the product whose tanh is taken. */
  float unit;              /**< Of what the tiled kernels keep as scores: softcap of a tanh, or scale of products. */
  uint32_t threshold;      /**< Of the dropout; 0: none. */
  bool causal;
} ts_attention_problem;

/** Blocks of threads for \a tile rows of each head of a side: x the heads of a section, y their tiles, z the
 * sections.  The device begins blocks in this order: the heads of a section, whose keys and values fit in the
 * second-level cache together, run at about the same time, longest tiles first. Not collective. */
static inline dim3 ts_attention_grid(const ts_attention_problem *p, const ts_attention_rows *rows, int tile) {
  int64_t all = p->batch * rows->heads, together = (int64_t) p->together * rows->heads / p->keys.heads;
  int64_t sections = all == 0 ? 1 : together < 1 ? all : (all + together - 1) / together;
  return dim3((unsigned) ((all + sections - 1) / sections), ts_blocks(rows->count, tile), (unsigned) sections);
}

/** Call F<D> (args...) with head_dim rounded up to what the tensor cores' kernels are made for. */
#define TS_FOR_HEAD_DIM(head_dim, F, ...) \
  do {                                    \
    if ((head_dim) <= 16) {               \
      F<16>(__VA_ARGS__);                 \
    } else if ((head_dim) <= 32) {        \
      F<32>(__VA_ARGS__);                 \
    } else if ((head_dim) <= 64) {        \
      F<64>(__VA_ARGS__);                 \
    } else if ((head_dim) <= 96) {        \
      F<96>(__VA_ARGS__);                 \
    } else {                              \
      F<128>(__VA_ARGS__);                \
    }                                     \
  } while (0)

/** True when a query sees other than all keys or those before it, or there is dropout or a softcap. Not collective. */
static inline bool ts_attention_is_general(const ts_attention_problem *p) {
  return p->documents != NULL || p->threshold != 0 || p->window < p->length || p->softcap > 0;
}

/** Tiles of TS_BOUNDS rows. Not collective. */
static inline __host__ __device__ int ts_attention_bounds_count(const ts_attention_rows *rows) {
  return (rows->count + TS_BOUNDS - 1) / TS_BOUNDS;
}

/** True when the tensor cores' kernels take the call: bf16 or fp16, heads of at most 128 that are a multiple of 8
 * elements, rows on 16 bytes.  Otherwise the plain kernels do. Not collective. */
bool ts_attention_is_tiled(const ts_attention_problem *p, ts_dtype dtype);

/** A call of either op by our kernels. Not collective. */
void ts_attention_run_own(const ts_kernel_call *call);

/** A call of ATTENTION_CACHED: heads of at most TS_ATTENTION_MOST_HEAD_DIM elements of any type. Not collective. */
void ts_attention_run_cached(const ts_kernel_call *call);

/** o and lse of other operands, bf16 and without dropout, in the shape of the call's node. Not collective. */
void ts_attention_forward_of(const ts_kernel_call *call, const void *q, const void *k, const void *v, void *o,
                             float *lse);

/** o and lse by tensor cores, of bf16 or fp16. Not collective. */
void ts_attention_forward(const ts_attention_problem *p, ts_dtype dtype, cudaStream_t stream);

/** dq, dk, dv by tensor cores, likewise; delta must be there. Not collective. */
void ts_attention_backward(const ts_attention_problem *p, ts_dtype dtype, cudaStream_t stream);

/** The same by fp32 multiply-adds, for heads of at most 256 elements of any type. Not collective. */
void ts_attention_forward_plain(const ts_attention_problem *p, ts_dtype dtype, cudaStream_t stream);
void ts_attention_backward_plain(const ts_attention_problem *p, ts_dtype dtype, cudaStream_t stream);

#endif
