/** \file
 * What forward and backward attention share: the problem, tiles of its operands as cells (micro.h), the mask, dropout.
 * Included by kernels_attention*.c only.
 *
 * Scores are kept transposed, [key][query]: a vector holds one key of several queries, so that maxima and sums over
 * keys never cross lanes.  A block of queries has TS_QUERIES columns, always: what lies beyond the sequence is zero on
 * input and not written.  A block of keys has at most TS_KEYS rows.
 *
 * Nothing here is collective.
 */
#ifndef TS_BACKEND_CPU_ATTENTION_H
#define TS_BACKEND_CPU_ATTENTION_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/micro.h"

#define ts_attention_of TS_ISA_NAME(ts_attention_of)
#define ts_attention_rows TS_ISA_NAME(ts_attention_rows)
#define ts_attention_along_rows TS_ISA_NAME(ts_attention_along_rows)
#define ts_attention_transpose TS_ISA_NAME(ts_attention_transpose)
#define ts_attention_narrow TS_ISA_NAME(ts_attention_narrow)
#define ts_attention_along_keys TS_ISA_NAME(ts_attention_along_keys)
#define ts_attention_bounds_bytes TS_ISA_NAME(ts_attention_bounds_bytes)
#define ts_attention_find_bounds TS_ISA_NAME(ts_attention_find_bounds)
#define ts_attention_view_of TS_ISA_NAME(ts_attention_view_of)
#define ts_attention_mask TS_ISA_NAME(ts_attention_mask)
#define ts_attention_dropout TS_ISA_NAME(ts_attention_dropout)
#define ts_attention_store TS_ISA_NAME(ts_attention_store)
#define ts_attention_run TS_ISA_NAME(ts_attention_run)
#define ts_attention_forward TS_ISA_NAME(ts_attention_forward)
#define ts_attention_forward_bytes TS_ISA_NAME(ts_attention_forward_bytes)
#define ts_attention_prepare TS_ISA_NAME(ts_attention_prepare)
#define ts_attention_dx_run TS_ISA_NAME(ts_attention_dx_run)
#define ts_attention_dx_prepare TS_ISA_NAME(ts_attention_dx_prepare)

enum { TS_QUERIES = 64, TS_KEYS = 128, TS_DIAGONAL = 16 };

/** Stands for minus infinity: far below any score, but its differences are numbers. */
#define TS_MASKED (-1e30f)

/** The smallest and the largest document of a block of tokens. */
typedef struct ts_attention_bounds {
  int32_t lowest, highest;
} ts_attention_bounds;

typedef struct ts_attention {
  int64_t batch, length; /**< B, T */
  int heads, kv_heads, head_dim;
  int columns; /**< head_dim rounded up to TS_MICRO_COLUMNS: the width of tiles. */
  ts_dtype dtype;
  bool pairs, causal;
  bool direct;              /**< Rows of heads in memory are rows of cells already: nothing to convert or pad. */
  int per_cell;             /**< Elements in a cell: 2 with pairs, else 1. */
  int64_t window;           /**< Keys that a query sees; T where all are. */
  float scale, keep_scale;  /**< keep_scale: 1 / (1 - p) */
  float softcap;            /**< 0: none. */
  bool drops;               /**< There is dropout: */
  uint32_t threshold;       /**< its threshold, */
  uint64_t key;             /**< key, */
  int64_t first_head;       /**< and number of head 0. */
  bool packed;              /**< The node has documents: */
  const int32_t *documents; /**< they, NULL without any or while planning, */
  const ts_attention_bounds *bounds; /**< and those of every block of TS_KEYS tokens, [B][blocks]; likewise. */
  const int64_t *sample;
} ts_attention;

/** The problem of a node, for any of the ops; length is that of q.  \a documents, \a seed, \a sample: the call's
 * pointers, NULL while planning. Not collective. */
ts_attention ts_attention_of(const ts_graph *graph, const ts_node *node, const int32_t *documents, const int64_t *seed,
                             const int64_t *sample);

/** Cells in \a elements elements that are neighbours along the summed dimension. Not collective. */
TS_INLINE int ts_attention_cells(const ts_attention *p, int elements) {
  return (elements + p->per_cell - 1) / p->per_cell;
}

/** First element of a head at token t, in [B][T][heads D]. Not collective. */
TS_INLINE size_t ts_attention_at(const ts_attention *p, int64_t b, int64_t t, int heads, int head) {
  return (size_t) (((b * p->length + t) * heads + head) * p->head_dim);
}

/** Rows of cells, \a stride cells apart. */
typedef struct ts_attention_tile {
  const ts_cell *cell;
  int64_t stride;
} ts_attention_tile;

/** Tokens [t, t + rows) of a head as cells along the head, columns in a row.  Tokens past the end and columns past
 * head_dim are zero.
 * \return rows in \a to, or where they are when that will do. Not collective. */
ts_attention_tile ts_attention_rows(const ts_attention *p, ts_cell *to, const void *from, int64_t b, int64_t t,
                                    int rows, int heads, int head);

/** The same tile as cells along the tokens: columns cells in a row, for as many tokens as a cell holds; zero past \a
 * rows.
 * \return rows in \a to, or \a from where the two are the same. Not collective. */
ts_attention_tile ts_attention_along_rows(const ts_attention *p, ts_cell *to, ts_attention_tile from, int rows);

/** to [columns][TS_QUERIES] = the transpose of TS_QUERIES rows of \a columns cells, a multiple of 8. Not collective. */
void ts_attention_transpose(ts_cell *to, ts_attention_tile from, int columns);

/** Round [keys][TS_QUERIES] numbers to cells along the queries: [keys][cells of TS_QUERIES].
 * \return \a to, or \a from where the two are the same. Not collective. */
const ts_cell *ts_attention_narrow(const ts_attention *p, ts_cell *to, const float *from, int keys);

/** Cells along the queries, as made by ts_attention_narrow, to cells along the keys: [cells of keys][TS_QUERIES].
 * \return \a to, or \a from where the two are the same. Not collective. */
const ts_cell *ts_attention_along_keys(const ts_attention *p, ts_cell *to, const ts_cell *from, int keys);

/** Bytes of the bounds of all documents; 0 where there is one document only. Not collective. */
size_t ts_attention_bounds_bytes(const ts_attention *p);

/** Set p->bounds, in memory \a at of as many bytes. Not collective. */
void ts_attention_find_bounds(ts_attention *p, void *at);

/** Which keys the block of queries t.. may see: those of [begin, end) whose document may be one of theirs. */
typedef struct ts_attention_view {
  int64_t begin, end;                /**< begin: the first of a block of TS_KEYS. */
  ts_attention_bounds queries;       /**< Of the queries' documents. */
  const ts_attention_bounds *bounds; /**< Of the sample's blocks; NULL: one document. */
} ts_attention_view;

/** The view of the queries t.. of sample \a b; every query sees itself, so it is not empty. Not collective. */
ts_attention_view ts_attention_view_of(const ts_attention *p, int64_t b, int64_t t);

/** The first key of the first block, from the one at \a j on, of which something may be visible; view->end or more when
 * there is none. Not collective. */
TS_INLINE int64_t ts_attention_next(const ts_attention_view *view, int64_t j) {
  for (; j < view->end && view->bounds != NULL; j += TS_KEYS) {
    const ts_attention_bounds *keys = &view->bounds[j / TS_KEYS];
    if (keys->lowest <= view->queries.highest && keys->highest >= view->queries.lowest) {
      break;
    }
  }
  return j;
}

/** Keys of the block at \a j. Not collective. */
TS_INLINE int ts_attention_keys(const ts_attention_view *view, int64_t j) {
  return (int) (view->end - j < TS_KEYS ? view->end - j : TS_KEYS);
}

/** The products of queries t.. with keys j.. become scores, in place: scaled, or through the softcap, and TS_MASKED
 * where the mask is. Not collective. */
void ts_attention_mask(const ts_attention *p, float *score, int64_t b, int64_t t, int64_t j, int keys);

/** Factors of dropout, 0 or keep_scale: [TS_KEYS][TS_QUERIES]; \a scratch holds as many. Not collective. */
void ts_attention_dropout(const ts_attention *p, float *factor, float *scratch, int64_t b, int head, int64_t t,
                          int64_t j, int keys);

/** Store \a rows rows of a tile [rows][columns], each times factor[row], as tokens t.. of a head; tokens past the end
 * are not written.  factor NULL: 1. Not collective. */
void ts_attention_store(const ts_attention *p, void *to, const float *from, const float *factor, int64_t b, int64_t t,
                        int rows, int heads, int head);

/** c [TS_QUERIES][columns] (+)= weights b, summed over keys j.., a kept along the keys; m and k are set here.  Weights
 * that the causal mask made zero are left out by groups of TS_DIAGONAL queries. Not collective. */
TS_INLINE void ts_attention_sum_keys(const ts_attention *p, ts_micro_product product, int64_t t, int64_t j, int keys) {
  bool diagonal = p->causal && j + keys > t;
  product.m = diagonal ? TS_DIAGONAL : TS_QUERIES;
  for (int i = 0; i < TS_QUERIES; i += product.m) {
    int64_t seen = diagonal && t + i + TS_DIAGONAL - j < keys ? t + i + TS_DIAGONAL - j : keys;
    product.k = ts_attention_cells(p, (int) seen);
    ts_micro_run(&product, p->pairs);
    product.a += product.m * product.row;
    product.c += product.m * product.ldc;
  }
}

/** c [keys][columns] += weights b, summed over queries t.., a kept along the queries; m and k are set here.  As above,
 * by groups of TS_DIAGONAL keys. Not collective. */
TS_INLINE void ts_attention_sum_queries(const ts_attention *p, ts_micro_product product, int64_t t, int64_t j,
                                        int keys) {
  for (int i = 0, rows; i < keys; i += rows) {
    int64_t first = p->causal && j + i > t ? j + i - t : 0;
    int64_t until = p->causal && j + i < t ? t - j - i : p->causal ? TS_DIAGONAL : keys;
    rows = (int) (until < keys - i ? until : keys - i);
    int skipped = (int) first / p->per_cell;
    ts_micro_product part = product;
    part.m = rows;
    part.k = ts_attention_cells(p, TS_QUERIES) - skipped;
    part.a += i * product.row + skipped * product.column;
    part.b += skipped * product.ldb;
    part.c += i * product.ldc;
    ts_micro_run(&part, p->pairs);
  }
}

/** Take \a bytes, aligned, from memory at \a base + *at; with base NULL only advance *at. Not collective. */
TS_INLINE void *ts_attention_take(char *base, size_t *at, size_t bytes) {
  void *result = base == NULL ? NULL : base + *at;
  *at += ts_cpu_align(bytes);
  return result;
}

/** A forward pass over given operands. */
typedef struct ts_attention_operands {
  const void *q, *k, *v; /**< [B][T][H D], [B][K][G D] twice. */
  void *o;               /**< [B][T][H D]; not written for queries in places from K on. */
  float *lse;            /**< [B][H][T], or NULL. */
  int64_t past;          /**< The place of query 0 among the keys. */
  int64_t seen;          /**< Keys that somebody sees, at most K: no more are read. */
} ts_attention_operands;

/** Bytes of workspace a thread of ts_attention_forward. Not collective. */
size_t ts_attention_forward_bytes(const ts_attention *p);

/** Attend, with \a threads threads. Not collective.
 * \param [in] queries  The problem, length T.
 * \param [in] keys  The same, length K: what is seen of them is asked of it. */
void ts_attention_forward(const ts_attention *queries, const ts_attention *keys, const ts_attention_operands *x,
                          int threads, void *workspace);

/** The functions of the rows of ATTENTION and ATTENTION_DX. Not collective. */
size_t ts_attention_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared);
void ts_attention_run(const ts_kernel_call *call);
size_t ts_attention_dx_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared);
void ts_attention_dx_run(const ts_kernel_call *call);

#endif
