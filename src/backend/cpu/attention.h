/** \file
 * What forward and backward attention share: the problem, tiles of its operands as cells (micro.h), the mask, dropout.
 * Included by kernels_attention*.c only.
 *
 * Tokens are those of a whole sample, of which q, and k and v, have some (ts_tokens) as their rows.  Blocks end where a
 * stretch of them does, so the tokens of a block follow one another as its rows do.
 *
 * Scores are kept transposed, [key][query]: a vector holds one key of several queries, so that maxima and sums over
 * keys never cross lanes.  A block of queries has TS_QUERIES columns, always: what lies behind its rows is zero on
 * input and not written.  A block of keys has at most TS_KEYS rows.
 *
 * Nothing here is collective.
 */
#ifndef TS_BACKEND_CPU_ATTENTION_H
#define TS_BACKEND_CPU_ATTENTION_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/micro.h"
#include "backend/cpu/tile.h"

#define ts_attention_of TS_ISA_NAME(ts_attention_of)
#define ts_attention_place TS_ISA_NAME(ts_attention_place)
#define ts_attention_rows TS_ISA_NAME(ts_attention_rows)
#define ts_attention_along_rows TS_ISA_NAME(ts_attention_along_rows)
#define ts_attention_narrow TS_ISA_NAME(ts_attention_narrow)
#define ts_attention_along_keys TS_ISA_NAME(ts_attention_along_keys)
#define ts_attention_bounds_bytes TS_ISA_NAME(ts_attention_bounds_bytes)
#define ts_attention_find_bounds TS_ISA_NAME(ts_attention_find_bounds)
#define ts_attention_view_of TS_ISA_NAME(ts_attention_view_of)
#define ts_attention_next TS_ISA_NAME(ts_attention_next)
#define ts_attention_mask TS_ISA_NAME(ts_attention_mask)
#define ts_attention_dropout TS_ISA_NAME(ts_attention_dropout)
#define ts_attention_store TS_ISA_NAME(ts_attention_store)
#define ts_attention_forward TS_ISA_NAME(ts_attention_forward)
#define ts_attention_forward_bytes TS_ISA_NAME(ts_attention_forward_bytes)
#define ts_attention_find_delta TS_ISA_NAME(ts_attention_find_delta)
#define ts_attention_see_nothing TS_ISA_NAME(ts_attention_see_nothing)

enum { TS_QUERIES = 64, TS_KEYS = 128, TS_DIAGONAL = 16, TS_WISHES = 24 };

/** Stands for minus infinity: far below any score, but its differences are numbers. */
#define TS_MASKED (-1e30f)

/** The smallest and the largest document of a block of tokens. */
typedef struct ts_attention_bounds {
  int32_t lowest, highest;
} ts_attention_bounds;

/** Rows that are tokens one after another. */
typedef struct ts_attention_block {
  int64_t row, token; /**< The first. */
  int rows;
} ts_attention_block;

typedef struct ts_attention {
  int64_t batch, length; /**< B, and T, tokens of a sample. */
  int64_t queries, keys; /**< Rows of q, of k and v. */
  ts_tokens tokens[2]; /**< Which tokens those of q are, those of k and v: at least one stretch, which may be empty. */
  int64_t blocks[2];   /**< Of them. */
  int heads, kv_heads, head_dim;
  int64_t q_width, k_width; /**< Elements from a row of q to the next, of k and v; the gradients' are the same. */
  int64_t k_first, v_first; /**< Where k and v begin in the rows of one tensor for all; 0 in tensors of their own. */
  int group;                /**< Query heads of a key head in the whole. */
  int columns;              /**< head_dim rounded up to TS_MICRO_COLUMNS: the width of tiles. */
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
  const int32_t *documents; /**< they, [B][T], NULL without any or while planning, */
  const ts_attention_bounds *bounds[2]; /**< and those of all blocks of queries, of keys, [B][blocks]; likewise. */
  const int64_t *sample;
} ts_attention;

/** Of the pairs in a ts_attention. */
enum { TS_OF_QUERIES, TS_OF_KEYS };

/** The problem of ATTENTION, ATTENTION_DX, ATTENTION_DELTA and ATTENTION_MERGE.  \a q, \a k: numbers of these inputs,
 * or of what is like them; documents, seed and sample begin at input \a optional; \a call NULL: while planning.
 * Not collective. */
ts_attention ts_attention_of(const ts_graph *graph, const ts_node *node, const ts_kernel_call *call, int q, int k,
                             int optional);

/** Say that the queries, or the keys, are the tokens of one stretch, in as many of their rows. Not collective. */
void ts_attention_place(ts_attention *p, int of, ts_interval stretch);

/** Block \a i of the queries or of the keys. Not collective. */
TS_INLINE ts_attention_block ts_attention_block_at(const ts_attention *p, int of, int64_t i) {
  int64_t size = of == TS_OF_QUERIES ? TS_QUERIES : TS_KEYS, at = i * size, row = 0;
  const ts_interval *s = p->tokens[of].stretch;
  for (; at >= s->length; ++s) {
    at -= (s->length + size - 1) / size * size;
    row += s->length;
  }
  return (ts_attention_block){row + at, s->begin + at, (int) ts_min(size, s->length - at)};
}

/** The key head that a query head reads. Not collective. */
TS_INLINE int ts_attention_kv_head(const ts_attention *p, int head) {
  return (int) ((p->first_head + head) / p->group - p->first_head / p->group);
}

/** Cells in \a elements elements that are neighbours along the summed dimension. Not collective. */
TS_INLINE int ts_attention_cells(const ts_attention *p, int elements) {
  return (elements + p->per_cell - 1) / p->per_cell;
}

/** First element of a head at a row: of o and its gradient, [B][queries][H D]; of q, and, from their first element on,
 * of k and v, and of their gradients. Not collective. */
TS_INLINE int64_t ts_attention_o_at(const ts_attention *p, int64_t b, int64_t row, int head) {
  return ((b * p->queries + row) * p->heads + head) * p->head_dim;
}
TS_INLINE int64_t ts_attention_q_at(const ts_attention *p, int64_t b, int64_t row, int head) {
  return (b * p->queries + row) * p->q_width + head * p->head_dim;
}
TS_INLINE int64_t ts_attention_k_at(const ts_attention *p, int64_t b, int64_t row, int head) {
  return (b * p->keys + row) * p->k_width + head * p->head_dim;
}

/** Rows of cells, \a stride cells apart. */
typedef struct ts_attention_tile {
  const ts_cell *cell;
  int64_t stride;
} ts_attention_tile;

/** \a height rows of a head as cells along the head, columns in a row.  Those behind the first \a rows and columns past
 * head_dim are zero.
 * \param [in] from  The tensor, whose rows are \a width elements; \a at: the first element.
 * \return rows in \a to, or where they are when that will do. Not collective. */
ts_attention_tile ts_attention_rows(const ts_attention *p, ts_cell *to, const void *from, int64_t at, int64_t width,
                                    int rows, int height);

/** The same tile as cells along the tokens: columns cells in a row, for as many tokens as a cell holds; zero past \a
 * rows.
 * \return rows in \a to, or \a from where the two are the same. Not collective. */
ts_attention_tile ts_attention_along_rows(const ts_attention *p, ts_cell *to, ts_attention_tile from, int rows);

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

/** Which keys a block of queries may see: those of [oldest, end) whose document may be one of theirs. */
typedef struct ts_attention_view {
  int64_t oldest, end;               /**< Tokens. */
  ts_attention_bounds queries;       /**< Of the queries' documents. */
  const ts_attention_bounds *bounds; /**< Of the sample's blocks of keys; NULL: one document. */
} ts_attention_view;

/** The view of block \a i of the queries of sample \a b. Not collective. */
ts_attention_view ts_attention_view_of(const ts_attention *p, int64_t b, int64_t i);

/** The first block of keys, from number \a i on and before \a end, of which something may be visible.
 * \param [out] keys  That block, as far as it is in view.
 * \return its number; \a end when there is none. Not collective. */
int64_t ts_attention_next(const ts_attention *p, const ts_attention_view *view, int64_t i, int64_t end,
                          ts_attention_block *keys);

/** Their products become scores, in place: scaled, or through the softcap, and TS_MASKED where the mask is.
 * Not collective. */
void ts_attention_mask(const ts_attention *p, float *score, int64_t b, const ts_attention_block *queries,
                       const ts_attention_block *keys);

/** Factors of dropout, 0 or keep_scale: [TS_KEYS][TS_QUERIES]; \a scratch holds as many. Not collective. */
void ts_attention_dropout(const ts_attention *p, float *factor, float *scratch, int64_t b, int head,
                          const ts_attention_block *queries, const ts_attention_block *keys);

/** Store \a rows rows of a tile [rows][columns], each times factor[row], from element \a at on in rows of \a width;
 * factor NULL: 1. Not collective. */
void ts_attention_store(const ts_attention *p, const ts_sink *to, const float *from, const float *factor, int64_t at,
                        int64_t width, int rows);

/** Queries at the start of a block, a multiple of TS_DIAGONAL, that the causal mask keeps from seeing key \a k of a
 * block and those after it in its group: scores are made by groups of TS_DIAGONAL keys from where the queries begin.
 * \param [in] t  Token of the first query. Not collective. */
TS_INLINE int ts_attention_too_early(const ts_attention *p, int64_t t, const ts_attention_block *keys, int k) {
  int64_t begin = ts_max(keys->token, t), past = keys->token + k - begin;
  return p->causal && past >= 0 ? (int) ((begin - t + past / TS_DIAGONAL * TS_DIAGONAL) / TS_DIAGONAL * TS_DIAGONAL)
                                : 0;
}

/** Of keys from \a i on, those of whose scores ts_attention_too_early is the same. Not collective. */
TS_INLINE int ts_attention_together(const ts_attention *p, int64_t t, const ts_attention_block *keys, int i) {
  int64_t j = keys->token + i, until = p->causal && j < t ? t - j : p->causal ? TS_DIAGONAL : keys->rows;
  return (int) ts_min(until, keys->rows - i);
}

/** c [keys][TS_QUERIES] = a b, summed over the head, a its keys or values, b its queries, from token \a t on, or their
 * gradients; m and n are set here, ahead must be.  What ts_attention_too_early leaves out is not written.
 * Not collective. */
TS_INLINE void ts_attention_scores(const ts_attention *p, ts_micro_product product, int64_t t,
                                   const ts_attention_block *keys) {
  const ts_cell *a = product.a, *b = product.b;
  float *c = product.c;
  for (int i = 0; i < keys->rows; i += product.m) {
    int first = ts_attention_too_early(p, t, keys, i);
    product.m = ts_attention_together(p, t, keys, i);
    product.n = TS_QUERIES - first;
    product.a = a + i * product.row;
    product.b = b + first;
    product.c = c + i * product.ldc + first;
    ts_micro_run_ahead(&product, p->pairs);
  }
}

/** c [TS_QUERIES][columns] (+)= weights b, summed over the keys, a kept along them, of queries from token \a t on; m
 * and k are set here, ahead must be.  Weights that the causal mask made zero are left out by groups of TS_DIAGONAL
 * queries.  Not collective. */
TS_INLINE void ts_attention_sum_keys(const ts_attention *p, ts_micro_product product, int64_t t,
                                     const ts_attention_block *keys) {
  bool diagonal = p->causal && keys->token + keys->rows > t;
  product.m = diagonal ? TS_DIAGONAL : TS_QUERIES;
  for (int i = 0; i < TS_QUERIES; i += product.m) {
    int64_t until = t + i + TS_DIAGONAL - keys->token, seen = diagonal ? ts_min(until, keys->rows) : keys->rows;
    product.k = ts_attention_cells(p, (int) ts_max(seen, 0));
    ts_micro_run_ahead(&product, p->pairs);
    product.a += product.m * product.row;
    product.c += product.m * product.ldc;
  }
}

/** c [keys][columns] += weights b, summed over queries from token \a t on, a kept along the queries; m and k are set
 * here, ahead must be.  As above, by groups of TS_DIAGONAL keys, which somebody sees. Not collective. */
TS_INLINE void ts_attention_sum_queries(const ts_attention *p, ts_micro_product product, int64_t t,
                                        const ts_attention_block *keys) {
  for (int i = 0, rows; i < keys->rows; i += rows) {
    int64_t j = keys->token + i, first = p->causal && j > t ? j - t : 0;
    rows = ts_attention_together(p, t, keys, i);
    int skipped = (int) first / p->per_cell;
    ts_micro_product part = product;
    part.m = rows;
    part.k = ts_attention_cells(p, TS_QUERIES) - skipped;
    part.a += i * product.row + skipped * product.column;
    part.b += skipped * product.ldb;
    part.c += i * product.ldc;
    ts_micro_run_ahead(&part, p->pairs);
  }
}

/** Rows of heads that products ask for while they run: those that the next step reads, and those that will be written.
 * A head's row is a few lines of a long row, which no processor foresees. */
typedef struct ts_attention_wish {
  ts_micro_ahead next; /**< For products: where they are. */
  int n;
  ts_micro_ahead part[TS_WISHES];
} ts_attention_wish;

/** Wish for nothing. Not collective. */
TS_INLINE void ts_attention_wish_anew(ts_attention_wish *w) {
  w->n = 0;
  w->next = (ts_micro_ahead){0};
}

/** Wish for \a rows rows of a head of \a x, from element \a at on in rows of \a width; what there is no place for is
 * not asked for.  A tile asks for two lines of as many rows as a head has cells. Not collective. */
TS_INLINE void ts_attention_wish_for(const ts_attention *p, ts_attention_wish *w, const ts_source *x, int64_t at,
                                     int64_t width, int rows) {
  int64_t size = (int64_t) ts_dtype_size(x->dtype), line = 64, cells = ts_attention_cells(p, p->columns);
  for (int64_t row = 0; row < rows && w->n < TS_WISHES; row += cells, ++w->n) {
    ts_micro_ahead *part = &w->part[w->n];
    *part = (ts_micro_ahead){.at = (const char *) x->data + (at + row * width) * size,
                             .stride = 2 * line,
                             .n = ts_pieces(p->head_dim * size, 2 * line),
                             .step = width * size};
    if (w->n == 0) {
      w->next = *part;
    } else {
      part[-1].then = part;
      w->next.then = w->n == 1 ? part : w->next.then;
    }
  }
}

/** Wish for those of a block of keys, in k and in v. Not collective. */
TS_INLINE void ts_attention_wish_for_keys(const ts_attention *p, ts_attention_wish *w, const void *k, const void *v,
                                          int64_t b, int kv_head, const ts_attention_block *keys) {
  int64_t at = ts_attention_k_at(p, b, keys->row, kv_head);
  ts_attention_wish_for(p, w, &(ts_source){k, p->dtype}, at, p->k_width, keys->rows);
  ts_attention_wish_for(p, w, &(ts_source){v, p->dtype}, at, p->k_width, keys->rows);
}

/** Take \a bytes, aligned, from memory at \a base + *at; with base NULL only advance *at. Not collective. */
TS_INLINE void *ts_attention_take(char *base, size_t *at, size_t bytes) {
  void *result = base == NULL ? NULL : base + *at;
  *at += ts_cpu_align(bytes);
  return result;
}

/** A forward pass over given operands. */
typedef struct ts_attention_operands {
  const void *q, *k, *v; /**< [B][queries][H D], [B][keys][G D] twice, in rows of q_width and k_width. */
  ts_sink o;             /**< [B][queries][H D]; rows that are no tokens are not written. */
  float *lse;            /**< [B][H][queries], or NULL. */
} ts_attention_operands;

/** k and v, or their gradients, of which \a first says where they begin: p->k_first, p->v_first. Not collective. */
TS_INLINE const void *ts_attention_part(const ts_attention *p, const void *x, int64_t first) {
  return (const char *) x + (size_t) first * ts_dtype_size(p->dtype);
}

/** What attention and its gradient are when no query sees a key (attr.attention.blind). Not collective. */
void ts_attention_see_nothing(const ts_kernel_call *call);

/** Bytes of workspace a thread of ts_attention_forward. Not collective. */
size_t ts_attention_forward_bytes(const ts_attention *p);

/** Attend, with \a threads threads. Not collective. */
void ts_attention_forward(const ts_attention *p, const ts_attention_operands *x, int threads, void *workspace);

/** delta [B][H][queries] = the sums over heads' rows of do o, both in p->dtype, with \a threads threads: the bits do
 * not depend on which rows there are. Not collective. */
void ts_attention_find_delta(const ts_attention *p, float *delta, const void *d_out, const void *o, int threads);

#endif
