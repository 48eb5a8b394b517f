/* Backward: weights are made again from the scores and lse.  A sweep holds some blocks of keys of a key head as tiles,
 * with dk and dv in fp32, and passes all query heads of it, in order, by blocks of queries.
 *
 * Where a thread can hold all keys, and there are key heads for all threads, one sweep does everything: five products
 * of D multiply-adds per pair of query and key in the blocks of which something is visible.  Otherwise sweeps of a few
 * blocks of keys make dk and dv, then one over the queries dq: seven products (1.42 times the work, measured with heads
 * of 64), but as many pieces of it as there are blocks, in the memory of a few.  Each sum has its terms in one order
 * both ways, so the bits do not depend on which it was. */
#include "backend/cpu/attention.h"
#include "backend/cpu/kernels.h"

#include <math.h>
#include <omp.h>

/* What a thread may hold of keys and their gradients, and the blocks of keys of a sweep where it cannot hold all. */
enum { MOST_HELD = 64 << 20, FEW = 8 };

typedef struct buffers {
  int64_t first, end;             /* Blocks of keys that are held: */
  ts_cell *keys, *values, *along; /* [held][TS_KEYS rows], along the keys half of them where cells are pairs */
  float *dk, *dv;                 /* likewise */
  ts_cell *query_rows, *queries, *queries_along, *do_rows, *d_out, *do_along;
  ts_cell *weights, *ds, *ds_along;
  float *score, *dp, *factor, *scratch, *dq;
  float *lse, *delta;         /* [TS_QUERIES] */
  bool for_keys, for_queries; /* What the sweep makes: dk and dv; dq. */
  bool begun;                 /* There is something in dq. */
  ts_attention_wish wish;
} buffers;

static size_t held_bytes(const ts_attention *p, int64_t blocks) {
  size_t whole = (size_t) (blocks * TS_KEYS * p->columns) * sizeof(float);
  return (p->direct ? 2 : 4) * whole + (p->pairs ? whole / 2 : 0);
}

static size_t take_backward_buffers(const ts_attention *p, int64_t blocks, char *base, buffers *b) {
  size_t at = 0, scores = TS_KEYS * TS_QUERIES * sizeof(float), columns = (size_t) p->columns * sizeof(float);
  size_t whole = (size_t) (blocks * TS_KEYS) * columns, tile = TS_QUERIES * columns;
  b->keys = ts_attention_take(base, &at, p->direct ? 0 : whole);
  b->values = ts_attention_take(base, &at, p->direct ? 0 : whole);
  b->along = ts_attention_take(base, &at, p->pairs ? whole / 2 : 0);
  b->dk = ts_attention_take(base, &at, whole);
  b->dv = ts_attention_take(base, &at, whole);
  ts_cell **tiles[] = {&b->query_rows, &b->queries, &b->queries_along, &b->do_rows, &b->d_out, &b->do_along};
  for (int i = 0; i < 6; ++i) {
    *tiles[i] = ts_attention_take(base, &at, tile);
  }
  b->dq = ts_attention_take(base, &at, tile);
  ts_cell **cells[] = {&b->weights, &b->ds, &b->ds_along};
  for (int i = 0; i < 3; ++i) {
    *cells[i] = ts_attention_take(base, &at, scores);
  }
  b->score = ts_attention_take(base, &at, scores);
  b->dp = ts_attention_take(base, &at, scores);
  b->factor = ts_attention_take(base, &at, p->drops ? scores : 0);
  b->scratch = ts_attention_take(base, &at, p->drops ? scores : 0);
  b->lse = ts_attention_take(base, &at, TS_QUERIES * sizeof(float));
  b->delta = ts_attention_take(base, &at, TS_QUERIES * sizeof(float));
  return at;
}

/* A call and what of its workspace all threads share. */
typedef struct backward {
  ts_attention p;
  const void *d_out, *q, *k, *v;
  const float *lse, *delta; /* [B][H][queries] */
  ts_sink dq, dk, dv;
} backward;

/* lse of a query that saw nothing stands so high that its weights are 0; both are 0 behind the last query. */
static void load_statistics(const backward *w, buffers *x, int64_t b, int head, const ts_attention_block *queries) {
  int64_t at = (b * w->p.heads + head) * w->p.queries + queries->row;
  for (int i = 0; i < TS_QUERIES; ++i) {
    bool inside = i < queries->rows;
    float lse = inside ? w->lse[at + i] : 0;
    x->lse[i] = lse == -INFINITY ? -TS_MASKED : lse;
    x->delta[i] = inside ? w->delta[at + i] : 0;
  }
}

/* ---- tiles of keys ---- */

typedef struct key_tiles {
  ts_attention_tile keys, along, values;
  float *dk, *dv;
} key_tiles;

/* Of a block that is held; \a convert: when they are made, else where they were put. */
static key_tiles tiles_of(const backward *w, buffers *x, int64_t b, int kv, int64_t i, bool convert) {
  const ts_attention *p = &w->p;
  ts_attention_block block = ts_attention_block_at(p, TS_OF_KEYS, i);
  int64_t at = ts_attention_k_at(p, b, block.row, kv), width = p->k_width;
  int64_t slot = (i - x->first) * TS_KEYS, cells = ts_attention_cells(p, p->columns);
  key_tiles t = {.keys = {x->keys + slot * cells, cells},
                 .values = {x->values + slot * cells, cells},
                 .along = {x->along + slot / 2 * p->columns, p->columns},
                 .dk = x->dk + slot * p->columns,
                 .dv = x->dv + slot * p->columns};
  if (p->direct || convert) {
    t.keys = ts_attention_rows(p, x->keys + slot * cells, w->k, at, width, block.rows, block.rows);
    t.values = ts_attention_rows(p, x->values + slot * cells, w->v, at, width, block.rows, block.rows);
  }
  if (!p->pairs || convert) {
    t.along = ts_attention_along_rows(p, x->along + slot / 2 * p->columns, t.keys, block.rows);
  }
  return t;
}

/* Make the tiles of blocks [first, end). */
static void hold_keys(const backward *w, buffers *x, int64_t b, int kv, int64_t first, int64_t end) {
  x->first = first;
  x->end = end;
  for (int64_t i = first; i < end; ++i) {
    tiles_of(w, x, b, kv, i, true);
  }
}

static void store_keys(const backward *w, buffers *x, int64_t b, int kv) {
  int64_t width = w->p.k_width;
  for (int64_t i = x->first; i < x->end; ++i) {
    ts_attention_block block = ts_attention_block_at(&w->p, TS_OF_KEYS, i);
    int64_t at = ts_attention_k_at(&w->p, b, block.row, kv), slot = (i - x->first) * TS_KEYS * w->p.columns;
    ts_attention_store(&w->p, &w->dk, x->dk + slot, NULL, at, width, block.rows);
    ts_attention_store(&w->p, &w->dv, x->dv + slot, NULL, at, width, block.rows);
  }
}

/* ---- a block of queries and one of keys ---- */

/* score becomes the weights after dropout, dp the gradient of the products of queries and keys.  The slope of the
 * softcap follows from the score; what stands for a masked one has none. */
TS_INLINE void weights_and_ds_of(const ts_attention *p, buffers *x, int64_t t, const ts_attention_block *keys,
                                 const bool drops, const bool caps) {
  float scale = p->scale, per_cap = caps ? 1.0f / p->softcap : 0.0f;
  for (int k = 0; k < keys->rows; ++k) {
    float *score = x->score + k * TS_QUERIES, *dp = x->dp + k * TS_QUERIES;
    const float *factor = x->factor + k * TS_QUERIES, *lse = x->lse, *delta = x->delta;
    int first = ts_attention_too_early(p, t, keys, k);
    memset(score, 0, (size_t) first * sizeof *score);
    memset(dp, 0, (size_t) first * sizeof *dp);
#pragma omp simd
    for (int i = first; i < TS_QUERIES; ++i) {
      float weight = ts_expf(score[i] - lse[i]), capped = score[i] * per_cap;
      float slope = !caps ? scale : capped > -1.0f ? scale * (1.0f - capped * capped) : 0.0f;
      score[i] = drops ? weight * factor[i] : weight;
      dp[i] = weight * ((drops ? dp[i] * factor[i] : dp[i]) - delta[i]) * slope;
    }
  }
}

static void weights_and_ds(const ts_attention *p, buffers *x, int64_t t, const ts_attention_block *keys) {
  if (p->drops && p->softcap > 0) {
    weights_and_ds_of(p, x, t, keys, true, true);
  } else if (p->drops) {
    weights_and_ds_of(p, x, t, keys, true, false);
  } else if (p->softcap > 0) {
    weights_and_ds_of(p, x, t, keys, false, true);
  } else {
    weights_and_ds_of(p, x, t, keys, false, false);
  }
}

static void make_scores(const ts_attention *p, buffers *x, int64_t t, const key_tiles *tile,
                        const ts_attention_block *keys) {
  ts_micro_product product = {.k = ts_attention_cells(p, p->columns),
                              .a = tile->keys.cell,
                              .row = tile->keys.stride,
                              .column = 1,
                              .b = x->queries,
                              .ldb = TS_QUERIES,
                              .c = x->score,
                              .ldc = TS_QUERIES,
                              .ahead = &x->wish.next};
  ts_attention_scores(p, product, t, keys);
  product.a = tile->values.cell;
  product.row = tile->values.stride;
  product.b = x->d_out;
  product.c = x->dp;
  ts_attention_scores(p, product, t, keys);
}

/* Tiles of a block of queries. */
typedef struct query_tiles {
  ts_attention_block block;
  ts_attention_tile rows, along, d_out, do_along;
} query_tiles;

static void add_to_keys(const ts_attention *p, buffers *x, const query_tiles *queries, const key_tiles *tile,
                        const ts_attention_block *keys, const ts_cell *ds) {
  ts_micro_product product = {.n = p->columns,
                              .a = ts_attention_narrow(p, x->weights, x->score, keys->rows),
                              .row = ts_attention_cells(p, TS_QUERIES),
                              .column = 1,
                              .b = queries->do_along.cell,
                              .ldb = queries->do_along.stride,
                              .c = tile->dv,
                              .ldc = p->columns,
                              .add = true,
                              .ahead = &x->wish.next};
  ts_attention_sum_queries(p, product, queries->block.token, keys);
  product.a = ds;
  product.b = queries->along.cell;
  product.ldb = queries->along.stride;
  product.c = tile->dk;
  ts_attention_sum_queries(p, product, queries->block.token, keys);
}

static void add_to_queries(const ts_attention *p, buffers *x, int64_t t, const key_tiles *tile,
                           const ts_attention_block *keys, const ts_cell *ds) {
  ts_micro_product product = {.n = p->columns,
                              .a = ts_attention_along_keys(p, x->ds_along, ds, keys->rows),
                              .row = 1,
                              .column = TS_QUERIES,
                              .b = tile->along.cell,
                              .ldb = tile->along.stride,
                              .c = x->dq,
                              .ldc = p->columns,
                              .add = x->begun,
                              .ahead = &x->wish.next};
  ts_attention_sum_keys(p, product, t, keys);
  x->begun = true;
}

static void backward_keys(const ts_attention *p, buffers *x, const query_tiles *queries, const key_tiles *tile,
                          int64_t b, int head, const ts_attention_block *keys) {
  make_scores(p, x, queries->block.token, tile, keys);
  ts_attention_mask(p, x->score, b, &queries->block, keys);
  if (p->drops) {
    ts_attention_dropout(p, x->factor, x->scratch, b, head, &queries->block, keys);
  }
  weights_and_ds(p, x, queries->block.token, keys);
  const ts_cell *ds = ts_attention_narrow(p, x->ds, x->dp, keys->rows);
  if (x->for_keys) {
    add_to_keys(p, x, queries, tile, keys, ds);
  }
  if (x->for_queries) {
    add_to_queries(p, x, queries->block.token, tile, keys, ds);
  }
}

/* ---- sweeps ---- */

static query_tiles load_query_tiles(const backward *w, buffers *x, int64_t b, int head, int64_t i) {
  const ts_attention *p = &w->p;
  query_tiles t = {.block = ts_attention_block_at(p, TS_OF_QUERIES, i)};
  int64_t at = ts_attention_q_at(p, b, t.block.row, head), o_at = ts_attention_o_at(p, b, t.block.row, head);
  int cells = ts_attention_cells(p, p->columns);
  t.rows = ts_attention_rows(p, x->query_rows, w->q, at, p->q_width, t.block.rows, TS_QUERIES);
  t.d_out =
      ts_attention_rows(p, x->do_rows, w->d_out, o_at, (int64_t) p->heads * p->head_dim, t.block.rows, TS_QUERIES);
  ts_micro_transpose(x->queries, TS_QUERIES, t.rows.cell, t.rows.stride, TS_QUERIES, cells);
  ts_micro_transpose(x->d_out, TS_QUERIES, t.d_out.cell, t.d_out.stride, TS_QUERIES, cells);
  if (x->for_keys) {
    t.along = ts_attention_along_rows(p, x->queries_along, t.rows, TS_QUERIES);
    t.do_along = ts_attention_along_rows(p, x->do_along, t.d_out, TS_QUERIES);
  }
  load_statistics(w, x, b, head, &t.block);
  return t;
}

static void store_queries(const backward *w, buffers *x, int64_t b, int head, int64_t i) {
  ts_attention_block block = ts_attention_block_at(&w->p, TS_OF_QUERIES, i);
  if (!x->begun) {
    memset(x->dq, 0, (size_t) (TS_QUERIES * w->p.columns) * sizeof *x->dq);
  }
  ts_attention_store(&w->p, &w->dq, x->dq, NULL, ts_attention_q_at(&w->p, b, block.row, head), w->p.q_width,
                     block.rows);
}

/* Queries of a head, by blocks, and the blocks of keys [first, end). */
typedef struct item {
  int64_t b, i, first, end;
  int head;
} item;

static void wish_for_keys(const backward *w, buffers *x, const item *of, int64_t after) {
  const ts_attention *p = &w->p;
  ts_attention_block keys;
  ts_attention_view view = ts_attention_view_of(p, of->b, of->i);
  if (ts_attention_next(p, &view, after, of->end, &keys) < of->end) {
    ts_attention_wish_for_keys(p, &x->wish, w->k, w->v, of->b, ts_attention_kv_head(p, of->head), &keys);
  }
}

static void wish_for_queries(const backward *w, buffers *x, const item *of) {
  const ts_attention *p = &w->p;
  ts_attention_block queries = ts_attention_block_at(p, TS_OF_QUERIES, of->i);
  int64_t at = ts_attention_q_at(p, of->b, queries.row, of->head);
  int64_t o_at = ts_attention_o_at(p, of->b, queries.row, of->head), o_width = (int64_t) p->heads * p->head_dim;
  ts_attention_wish_for(p, &x->wish, &(ts_source){w->q, p->dtype}, at, p->q_width, queries.rows);
  ts_attention_wish_for(p, &x->wish, &(ts_source){w->d_out, p->dtype}, o_at, o_width, queries.rows);
}

static void wish_for_sink(const backward *w, buffers *x, const ts_sink *to, int64_t at, int64_t width, int rows) {
  ts_attention_wish_for(&w->p, &x->wish, &(ts_source){to->data, to->dtype}, at, width, rows);
}

/* Wish, during block \a j of the keys, for what comes after it: this item's next, or the place of its dq and what the
 * next one begins with; after the last of a sweep for the places of dk and dv, too. */
static void wish_backward(const backward *w, buffers *x, const item *now, const item *next, int64_t j, bool more) {
  const ts_attention *p = &w->p;
  ts_attention_block queries = ts_attention_block_at(p, TS_OF_QUERIES, now->i);
  bool last = x->for_keys && (next == NULL || next->first != now->first || next->b != now->b ||
                              ts_attention_kv_head(p, next->head) != ts_attention_kv_head(p, now->head));
  bool copied = x->for_keys && !p->direct; /* a sweep's keys: those of another are read */
  ts_attention_wish_anew(&x->wish);
  if (more && !copied) {
    wish_for_keys(w, x, now, j + 1);
  }
  if (!more && x->for_queries) {
    wish_for_sink(w, x, &w->dq, ts_attention_q_at(p, now->b, queries.row, now->head), p->q_width, queries.rows);
  }
  if (!more && next != NULL) {
    wish_for_queries(w, x, next);
  }
  if (!more && next != NULL && (last || !copied)) {
    wish_for_keys(w, x, next, next->first);
  }
  if (last) {
    ts_attention_block keys = ts_attention_block_at(p, TS_OF_KEYS, j);
    int64_t at = ts_attention_k_at(p, now->b, keys.row, ts_attention_kv_head(p, now->head));
    wish_for_sink(w, x, &w->dk, at, p->k_width, keys.rows);
    wish_for_sink(w, x, &w->dv, at, p->k_width, keys.rows);
  }
}

/* Those that are held stay, of others one is held after the other.  \a next: what this thread probably does after it;
 * NULL: nothing. */
static void backward_queries(const backward *w, buffers *x, const item *now, const item *next) {
  int kv = ts_attention_kv_head(&w->p, now->head);
  ts_attention_block keys, following;
  ts_attention_view view = ts_attention_view_of(&w->p, now->b, now->i);
  int64_t j = ts_attention_next(&w->p, &view, now->first, now->end, &keys), after;
  query_tiles queries = {0};
  x->begun = false;
  if (j < now->end) {
    queries = load_query_tiles(w, x, now->b, now->head, now->i);
  }
  for (; j < now->end; j = after, keys = following) {
    if (!x->for_keys) {
      hold_keys(w, x, now->b, kv, j, j + 1);
    }
    key_tiles tile = tiles_of(w, x, now->b, kv, j, false);
    after = ts_attention_next(&w->p, &view, j + 1, now->end, &following);
    wish_backward(w, x, now, next, j, after < now->end);
    backward_keys(&w->p, x, &queries, &tile, now->b, now->head, &keys);
  }
  if (x->for_queries) {
    store_queries(w, x, now->b, now->head, now->i);
  }
}

/* Blocks of keys of a key head and all queries that read it, from the item's head and block on. */
static void sweep_keys(const backward *w, buffers *x, item now, const item *next_sweep) {
  int kv = ts_attention_kv_head(&w->p, now.head);
  size_t whole = (size_t) ((now.end - now.first) * TS_KEYS * w->p.columns) * sizeof *x->dk;
  hold_keys(w, x, now.b, kv, now.first, now.end);
  memset(x->dk, 0, whole);
  memset(x->dv, 0, whole);
  for (bool more = w->p.blocks[TS_OF_QUERIES] > 0 && now.head < w->p.heads; more;) {
    item next = now;
    if (++next.i == w->p.blocks[TS_OF_QUERIES]) {
      next.i = 0;
      next.head += 1;
    }
    more = next.head < w->p.heads && ts_attention_kv_head(&w->p, next.head) == kv;
    backward_queries(w, x, &now, more ? &next : next_sweep);
    now = next;
  }
  store_keys(w, x, now.b, kv);
}

/* ---- the row ---- */

/* How the work is divided: blocks of keys of a sweep, sweeps of a key head, and whether these make dq too. */
typedef struct division {
  int64_t blocks, sweeps;
  bool together;
} division;

/* Together threads are idle while the last take their key heads; apart there are seven products for five. */
static division divide_work(const ts_attention *p, int threads) {
  int64_t blocks = p->blocks[TS_OF_KEYS], heads = p->batch * p->kv_heads;
  bool busy = 5 * ts_pieces(heads, threads) * threads <= 7 * heads;
  if (busy && held_bytes(p, blocks) <= MOST_HELD) {
    return (division){blocks, 1, true};
  }
  int64_t each = ts_max(1, ts_min(FEW, blocks / (4 * threads)));
  return (division){each, ts_pieces(blocks, each), false};
}

static size_t bytes_of_delta(const ts_attention *p, const ts_node *node) {
  bool given = node->in[4] == TS_NONE;
  return given ? 0 : ts_cpu_align((size_t) (p->batch * p->heads * p->queries) * sizeof(float));
}

static size_t attention_dx_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node,
                                   void **prepared) {
  (void) prepared;
  ts_attention p = ts_attention_of(graph, node, NULL, 1, 2, 6);
  size_t each = take_backward_buffers(&p, divide_work(&p, target->threads).blocks, NULL, &(buffers){0});
  return ts_attention_bounds_bytes(&p) + bytes_of_delta(&p, node) + (size_t) target->threads * each;
}

static backward backward_of_call(const ts_kernel_call *call) {
  backward w = {.p = ts_attention_of(call->graph, call->node, call, 1, 2, 6),
                .d_out = call->in[0],
                .q = call->in[1],
                .lse = call->in[5],
                .delta = ts_call_optional(call, 9),
                .dq = ts_sink_of(call, 0)};
  bool fused = call->node->attr.attention.fused_qkv;
  w.k = ts_attention_part(&w.p, call->in[2], w.p.k_first);
  w.v = ts_attention_part(&w.p, call->in[3], w.p.v_first);
  w.dk = ts_sink_from(ts_sink_of(call, fused ? 0 : 1), w.p.k_first);
  w.dv = ts_sink_from(ts_sink_of(call, fused ? 0 : 2), w.p.v_first);
  float *delta = (float *) ((char *) call->workspace + ts_attention_bounds_bytes(&w.p));
  ts_attention_find_bounds(&w.p, call->workspace);
  if (w.delta == NULL) {
    ts_attention_find_delta(&w.p, delta, w.d_out, call->in[4], call->threads);
    w.delta = delta;
  }
  return w;
}

/* The first sweeps, whose keys most queries see when causal, first. */
static item sweep_at(const ts_attention *p, const division *d, int64_t number) {
  int64_t key_heads = p->batch * p->kv_heads, at = number % key_heads, first = number / key_heads * d->blocks;
  item result = {at / p->kv_heads, 0, first, ts_min(first + d->blocks, p->blocks[TS_OF_KEYS]), 0};
  while (ts_attention_kv_head(p, result.head) < at % p->kv_heads) {
    result.head += 1;
  }
  return result;
}

/* The last blocks of queries likewise. */
static item queries_at(const ts_attention *p, int64_t number) {
  int64_t blocks = p->blocks[TS_OF_QUERIES], head = number / blocks;
  return (item){head / p->heads, blocks - 1 - number % blocks, 0, p->blocks[TS_OF_KEYS], (int) (head % p->heads)};
}

static void attention_dx_run(const ts_kernel_call *call) {
  if (call->node->attr.attention.blind) {
    ts_attention_see_nothing(call);
    return;
  }
  backward w = backward_of_call(call);
  const ts_attention *p = &w.p;
  division d = divide_work(p, call->threads);
  int64_t sweeps = p->batch * p->kv_heads * d.sweeps;
  int64_t query_items = d.together ? 0 : p->batch * p->heads * p->blocks[TS_OF_QUERIES];
  char *workspace = (char *) call->workspace + ts_attention_bounds_bytes(p) + bytes_of_delta(p, call->node);
#pragma omp parallel num_threads(call->threads)
  {
    buffers x;
    size_t bytes = take_backward_buffers(p, d.blocks, NULL, &x);
    take_backward_buffers(p, d.blocks, workspace + (size_t) omp_get_thread_num() * bytes, &x);
    x.for_keys = true;
    x.for_queries = d.together;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t number = 0; number < sweeps; ++number) {
      item next = sweep_at(p, &d, number + call->threads);
      sweep_keys(&w, &x, sweep_at(p, &d, number), number + call->threads < sweeps ? &next : NULL);
    }
    x.for_keys = false;
    x.for_queries = true;
#pragma omp for schedule(dynamic, 1)
    for (int64_t number = 0; number < query_items; ++number) {
      item now = queries_at(p, number), next = queries_at(p, number + call->threads);
      backward_queries(&w, &x, &now, number + call->threads < query_items ? &next : NULL);
    }
  }
}
TS_CPU_KERNEL(attention_dx) = {.prepare = attention_dx_prepare, .run = attention_dx_run};
