/* Backward: weights are made again from the scores and lse.  One thread does all query heads of a key head, in order,
 * and adds up dk and dv of the whole sequence in fp32 tiles: 3 T D cells and 2 T D numbers per thread, no atomics, and
 * sums that do not depend on the number of threads.  Cost: 10 D multiply-adds per pair of query and key in the blocks
 * of which something is visible. */
#include "backend/cpu/attention.h"

#include <omp.h>

typedef struct buffers {
  ts_cell *keys, *values, *keys_along; /* of the whole sequence */
  float *dk, *dv;                      /* likewise */
  ts_cell *query_rows, *queries, *queries_along, *do_rows, *d_out, *do_along;
  ts_cell *weights, *ds, *ds_along;
  float *score, *dp, *factor, *scratch, *dq;
  float *lse, *delta; /* [TS_QUERIES] */
  bool begun;         /* There is something in dq. */
} buffers;

static size_t take_backward_buffers(const ts_attention *p, char *base, buffers *b) {
  size_t at = 0, scores = TS_KEYS * TS_QUERIES * sizeof(float), columns = (size_t) p->columns * sizeof(float);
  size_t whole = (size_t) p->length * columns, tile = TS_QUERIES * columns;
  b->keys = ts_attention_take(base, &at, p->direct ? 0 : whole);
  b->values = ts_attention_take(base, &at, p->direct ? 0 : whole);
  b->keys_along = ts_attention_take(base, &at, p->pairs ? (whole + columns) / 2 : 0);
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

/* delta[i] = the row of do times that of o; both 0 past the end. */
static void load_statistics(const ts_attention *p, const ts_kernel_call *call, buffers *x, int64_t b, int head,
                            int64_t t) {
  const float *lse = (const float *) call->in[5] + (b * p->heads + head) * p->length;
  for (int i = 0; i < TS_QUERIES; ++i) {
    bool inside = t + i < p->length;
    x->lse[i] = inside ? lse[t + i] : 0;
    float sum = 0;
    size_t at = inside ? ts_attention_at(p, b, t + i, p->heads, head) : 0;
    if (inside && p->dtype == TS_F32) {
      const float *d_out = (const float *) call->in[0] + at, *out = (const float *) call->in[4] + at;
      for (int d = 0; d < p->head_dim; ++d) {
        sum += d_out[d] * out[d];
      }
    } else if (inside) {
      const uint16_t *d_out = (const uint16_t *) call->in[0] + at, *out = (const uint16_t *) call->in[4] + at;
      for (int d = 0; d < p->head_dim; ++d) {
        sum += ts_bf16_to_f32(d_out[d]) * ts_bf16_to_f32(out[d]);
      }
    }
    x->delta[i] = sum;
  }
}

/* score becomes the weights after dropout, dp the gradient of the products of queries and keys.  The slope of the
 * softcap follows from the score; what stands for a masked one has none. */
TS_INLINE void weights_and_ds_of(const ts_attention *p, buffers *x, int keys, const bool drops, const bool caps) {
  float scale = p->scale, per_cap = caps ? 1.0f / p->softcap : 0.0f;
  for (int k = 0; k < keys; ++k) {
    float *score = x->score + k * TS_QUERIES, *dp = x->dp + k * TS_QUERIES;
    const float *factor = x->factor + k * TS_QUERIES, *lse = x->lse, *delta = x->delta;
#pragma omp simd
    for (int i = 0; i < TS_QUERIES; ++i) {
      float weight = ts_expf(score[i] - lse[i]), capped = score[i] * per_cap;
      float slope = !caps ? scale : capped > -1.0f ? scale * (1.0f - capped * capped) : 0.0f;
      score[i] = drops ? weight * factor[i] : weight;
      dp[i] = weight * ((drops ? dp[i] * factor[i] : dp[i]) - delta[i]) * slope;
    }
  }
}

static void weights_and_ds(const ts_attention *p, buffers *x, int keys) {
  if (p->drops && p->softcap > 0) {
    weights_and_ds_of(p, x, keys, true, true);
  } else if (p->drops) {
    weights_and_ds_of(p, x, keys, true, false);
  } else if (p->softcap > 0) {
    weights_and_ds_of(p, x, keys, false, true);
  } else {
    weights_and_ds_of(p, x, keys, false, false);
  }
}

/* Tiles of a key head over the whole sequence, and of a block of queries. */
typedef struct tiles {
  ts_attention_tile keys, keys_along, values, queries_along, do_along;
} tiles;

static void backward_keys(const ts_attention *p, buffers *x, const tiles *tile, int64_t b, int head, int64_t t,
                          int64_t j, int keys) {
  int query_cells = ts_attention_cells(p, TS_QUERIES);
  ts_micro_product product = {.m = keys,
                              .n = TS_QUERIES,
                              .k = ts_attention_cells(p, p->columns),
                              .a = tile->keys.cell + j * tile->keys.stride,
                              .row = tile->keys.stride,
                              .column = 1,
                              .b = x->queries,
                              .ldb = TS_QUERIES,
                              .c = x->score,
                              .ldc = TS_QUERIES};
  ts_micro_run(&product, p->pairs);
  product.a = tile->values.cell + j * tile->values.stride;
  product.row = tile->values.stride;
  product.b = x->d_out;
  product.c = x->dp;
  ts_micro_run(&product, p->pairs);
  ts_attention_mask(p, x->score, b, t, j, keys);
  if (p->drops) {
    ts_attention_dropout(p, x->factor, x->scratch, b, head, t, j, keys);
  }
  weights_and_ds(p, x, keys);
  const ts_cell *weights = ts_attention_narrow(p, x->weights, x->score, keys);
  const ts_cell *ds = ts_attention_narrow(p, x->ds, x->dp, keys);
  product = (ts_micro_product){.n = p->columns,
                               .a = weights,
                               .row = query_cells,
                               .column = 1,
                               .b = tile->do_along.cell,
                               .ldb = tile->do_along.stride,
                               .c = x->dv + j * p->columns,
                               .ldc = p->columns,
                               .add = true};
  ts_attention_sum_queries(p, product, t, j, keys);
  product.a = ds;
  product.b = tile->queries_along.cell;
  product.ldb = tile->queries_along.stride;
  product.c = x->dk + j * p->columns;
  ts_attention_sum_queries(p, product, t, j, keys);
  product = (ts_micro_product){.n = p->columns,
                               .a = ts_attention_along_keys(p, x->ds_along, ds, keys),
                               .row = 1,
                               .column = TS_QUERIES,
                               .b = tile->keys_along.cell + j / p->per_cell * tile->keys_along.stride,
                               .ldb = tile->keys_along.stride,
                               .c = x->dq,
                               .ldc = p->columns,
                               .add = x->begun};
  ts_attention_sum_keys(p, product, t, j, keys);
  x->begun = true;
}

static void backward_queries(const ts_attention *p, const ts_kernel_call *call, buffers *x, tiles *tile, int64_t b,
                             int head, int64_t t) {
  int cells = ts_attention_cells(p, p->columns);
  ts_attention_tile queries = ts_attention_rows(p, x->query_rows, call->in[1], b, t, TS_QUERIES, p->heads, head);
  ts_attention_tile d_out = ts_attention_rows(p, x->do_rows, call->in[0], b, t, TS_QUERIES, p->heads, head);
  ts_attention_transpose(x->queries, queries, cells);
  ts_attention_transpose(x->d_out, d_out, cells);
  tile->queries_along = ts_attention_along_rows(p, x->queries_along, queries, TS_QUERIES);
  tile->do_along = ts_attention_along_rows(p, x->do_along, d_out, TS_QUERIES);
  load_statistics(p, call, x, b, head, t);
  x->begun = false;
  ts_attention_view view = ts_attention_view_of(p, b, t);
  for (int64_t j = ts_attention_next(&view, view.begin); j < view.end; j = ts_attention_next(&view, j + TS_KEYS)) {
    backward_keys(p, x, tile, b, head, t, j, ts_attention_keys(&view, j));
  }
  ts_attention_store(p, call->out[0], x->dq, NULL, b, t, TS_QUERIES, p->heads, head);
}

static void kv_head(const ts_attention *p, const ts_kernel_call *call, buffers *x, int64_t b, int kv) {
  int rows = (int) p->length, group = p->heads / p->kv_heads;
  tiles tile = {.keys = ts_attention_rows(p, x->keys, call->in[2], b, 0, rows, p->kv_heads, kv),
                .values = ts_attention_rows(p, x->values, call->in[3], b, 0, rows, p->kv_heads, kv)};
  tile.keys_along = ts_attention_along_rows(p, x->keys_along, tile.keys, rows);
  memset(x->dk, 0, (size_t) (rows * p->columns) * sizeof *x->dk);
  memset(x->dv, 0, (size_t) (rows * p->columns) * sizeof *x->dv);
  for (int head = kv * group; head < (kv + 1) * group; ++head) {
    for (int64_t t = 0; t < p->length; t += TS_QUERIES) {
      backward_queries(p, call, x, &tile, b, head, t);
    }
  }
  ts_attention_store(p, call->out[1], x->dk, NULL, b, 0, rows, p->kv_heads, kv);
  ts_attention_store(p, call->out[2], x->dv, NULL, b, 0, rows, p->kv_heads, kv);
}

size_t ts_attention_dx_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  ts_attention p = ts_attention_of(graph, node, NULL, NULL, NULL);
  p.drops = node->attr.attention.dropout > 0;
  if (prepared != NULL) {
    *prepared = NULL;
  }
  return ts_attention_bounds_bytes(&p) + (size_t) target->threads * take_backward_buffers(&p, NULL, &(buffers){0});
}

void ts_attention_dx_run(const ts_kernel_call *call) {
  ts_attention p = ts_attention_of(call->graph, call->node, ts_call_optional(call, 6), ts_call_optional(call, 7),
                                   ts_call_optional(call, 8));
  char *workspace = (char *) call->workspace + ts_attention_bounds_bytes(&p);
  ts_attention_find_bounds(&p, call->workspace);
#pragma omp parallel num_threads(call->threads)
  {
    buffers x;
    size_t bytes = take_backward_buffers(&p, NULL, &x);
    take_backward_buffers(&p, workspace + (size_t) omp_get_thread_num() * bytes, &x);
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < p.batch * p.kv_heads; ++item) {
      kv_head(&p, call, &x, item / p.kv_heads, (int) (item % p.kv_heads));
    }
  }
}
