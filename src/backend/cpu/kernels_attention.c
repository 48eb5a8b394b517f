/* Forward: each block of queries of a head sees the keys block by block (online softmax; Milakov and Gimelshein 2018,
 * Dao et al. 2022), so scores take TS_KEYS x TS_QUERIES numbers per thread.  Cost: 4 D multiply-adds per pair of query
 * and key in the blocks of which something is visible. */
#include "backend/cpu/attention.h"
#include "backend/cpu/kernels.h"

#include <math.h>
#include <omp.h>

typedef struct buffers {
  ts_cell *rows; /* a tile as read: queries, keys or values */
  ts_cell *queries, *values, *narrow, *weights;
  float *score, *factor, *scratch;
  float *out;                 /* [TS_QUERIES][columns], not yet divided by sum */
  float *max, *sum, *rescale; /* [TS_QUERIES] */
  bool begun;                 /* There is something in out. */
  ts_attention_wish wish;
} buffers;

static size_t take_forward_buffers(const ts_attention *p, char *base, buffers *b) {
  size_t at = 0, tile = (size_t) (TS_KEYS * p->columns) * sizeof(float), scores = TS_KEYS * TS_QUERIES * sizeof(float);
  b->rows = ts_attention_take(base, &at, tile);
  b->queries = ts_attention_take(base, &at, tile);
  b->values = ts_attention_take(base, &at, tile);
  b->narrow = ts_attention_take(base, &at, scores);
  b->weights = ts_attention_take(base, &at, scores);
  b->score = ts_attention_take(base, &at, scores);
  b->factor = ts_attention_take(base, &at, p->drops ? scores : 0);
  b->scratch = ts_attention_take(base, &at, p->drops ? scores : 0);
  b->out = ts_attention_take(base, &at, tile);
  b->max = ts_attention_take(base, &at, TS_QUERIES * sizeof(float));
  b->sum = ts_attention_take(base, &at, TS_QUERIES * sizeof(float));
  b->rescale = ts_attention_take(base, &at, TS_QUERIES * sizeof(float));
  return at;
}

/* Scores of TS_DIAGONAL queries to weights in place, those of the first \a seen keys; others are 0.  The running
 * maximum and sum; what earlier results must be multiplied with. */
static void softmax_of(float *score, float *max, float *sum, float *rescale, int seen, int keys) {
  float most[TS_DIAGONAL], total[TS_DIAGONAL];
  memcpy(most, max, sizeof most);
  for (int k = 0; k < seen; ++k) {
    const float *row = score + k * TS_QUERIES;
#pragma omp simd
    for (int i = 0; i < TS_DIAGONAL; ++i) {
      most[i] = row[i] > most[i] ? row[i] : most[i];
    }
  }
#pragma omp simd
  for (int i = 0; i < TS_DIAGONAL; ++i) {
    rescale[i] = ts_expf(max[i] - most[i]);
    total[i] = sum[i] * rescale[i];
  }
  for (int k = 0; k < seen; ++k) {
    float *row = score + k * TS_QUERIES;
#pragma omp simd
    for (int i = 0; i < TS_DIAGONAL; ++i) {
      row[i] = ts_expf(row[i] - most[i]);
      total[i] += row[i];
    }
  }
  for (int k = seen; k < keys; ++k) {
    memset(score + k * TS_QUERIES, 0, sizeof most);
  }
  memcpy(max, most, sizeof most);
  memcpy(sum, total, sizeof total);
}

/* The same of a block of queries from token \a t on. */
static void softmax_block(const ts_attention *p, buffers *x, int64_t t, const ts_attention_block *keys) {
  for (int i = 0; i < TS_QUERIES; i += TS_DIAGONAL) {
    int seen = keys->rows;
    while (seen > 0 && ts_attention_too_early(p, t, keys, seen - 1) > i) {
      seen -= 1;
    }
    softmax_of(x->score + i, x->max + i, x->sum + i, x->rescale + i, seen, keys->rows);
  }
}

static void drop(const ts_attention *p, buffers *x, int64_t b, int head, const ts_attention_block *queries,
                 const ts_attention_block *keys) {
  ts_attention_dropout(p, x->factor, x->scratch, b, head, queries, keys);
#pragma omp simd
  for (int i = 0; i < keys->rows * TS_QUERIES; ++i) {
    x->score[i] *= x->factor[i];
  }
}

static void rescale_out(const ts_attention *p, buffers *x) {
  for (int i = 0; i < TS_QUERIES; ++i) {
    float *row = x->out + i * p->columns, factor = x->rescale[i];
    for (int d = 0; d < p->columns; ++d) {
      row[d] *= factor;
    }
  }
}

static void forward_keys(const ts_attention *p, const ts_attention_operands *to, buffers *x, int64_t b, int head,
                         const ts_attention_block *queries, const ts_attention_block *keys) {
  int64_t width = p->k_width;
  int64_t at = ts_attention_k_at(p, b, keys->row, ts_attention_kv_head(p, head));
  ts_attention_tile rows = ts_attention_rows(p, x->rows, to->k, at, width, keys->rows, keys->rows);
  ts_attention_scores(p,
                      (ts_micro_product){.k = ts_attention_cells(p, p->columns),
                                         .a = rows.cell,
                                         .row = rows.stride,
                                         .column = 1,
                                         .b = x->queries,
                                         .ldb = TS_QUERIES,
                                         .c = x->score,
                                         .ldc = TS_QUERIES,
                                         .ahead = &x->wish.next},
                      queries->token, keys);
  ts_attention_mask(p, x->score, b, queries, keys);
  softmax_block(p, x, queries->token, keys);
  if (p->drops) {
    drop(p, x, b, head, queries, keys);
  }
  if (x->begun) {
    rescale_out(p, x);
  }
  rows = ts_attention_rows(p, x->rows, to->v, at, width, keys->rows, keys->rows);
  ts_attention_tile values = ts_attention_along_rows(p, x->values, rows, keys->rows);
  const ts_cell *weights = ts_attention_narrow(p, x->narrow, x->score, keys->rows);
  weights = ts_attention_along_keys(p, x->weights, weights, keys->rows);
  ts_attention_sum_keys(p,
                        (ts_micro_product){.n = p->columns,
                                           .a = weights,
                                           .row = 1,
                                           .column = TS_QUERIES,
                                           .b = values.cell,
                                           .ldb = values.stride,
                                           .c = x->out,
                                           .ldc = p->columns,
                                           .add = x->begun,
                                           .ahead = &x->wish.next},
                        queries->token, keys);
  x->begun = true;
}

/* The sums become lse, in their place, and what out must be multiplied with: 0 where nothing was seen. */
static void finish_softmax(const ts_attention *p, buffers *x) {
  if (!x->begun) {
    memset(x->out, 0, (size_t) (TS_QUERIES * p->columns) * sizeof *x->out);
  }
  for (int i = 0; i < TS_QUERIES; ++i) {
    bool saw = x->max[i] > TS_MASKED;
    float sum = x->sum[i];
    x->sum[i] = saw ? x->max[i] + logf(sum) : -INFINITY;
    x->rescale[i] = saw ? 1.0f / sum : 0.0f;
  }
}

/* A block of queries of a head; the last blocks, which see most when causal, first. */
typedef struct item {
  int64_t b, i;
  int head;
} item;

static item item_at(const ts_attention *p, int64_t number) {
  int64_t blocks = p->blocks[TS_OF_QUERIES], head = number / blocks;
  return (item){head / p->heads, blocks - 1 - number % blocks, (int) (head % p->heads)};
}

/* Wish for the next block of keys that an item sees, after number \a i; returns its number. */
static int64_t wish_for_next_keys(const ts_attention *p, const ts_attention_operands *to, ts_attention_wish *wish,
                                  const item *of, int64_t i) {
  ts_attention_block keys;
  ts_attention_view view = ts_attention_view_of(p, of->b, of->i);
  int64_t end = p->blocks[TS_OF_KEYS], j = ts_attention_next(p, &view, i + 1, end, &keys);
  if (j < end) {
    ts_attention_wish_for_keys(p, wish, to->k, to->v, of->b, ts_attention_kv_head(p, of->head), &keys);
  }
  return j;
}

/* Wish, during block \a j of the keys, for what comes after it; after an item's last, for its result's place and what
 * the next begins with. */
static void wish_forward(const ts_attention *p, const ts_attention_operands *to, buffers *x, const item *now,
                         const item *next, int64_t j) {
  ts_attention_wish_anew(&x->wish);
  if (wish_for_next_keys(p, to, &x->wish, now, j) < p->blocks[TS_OF_KEYS]) {
    return;
  }
  ts_attention_block queries = ts_attention_block_at(p, TS_OF_QUERIES, now->i);
  ts_attention_wish_for(p, &x->wish, &(ts_source){to->o.data, to->o.dtype},
                        ts_attention_o_at(p, now->b, queries.row, now->head), (int64_t) p->heads * p->head_dim,
                        queries.rows);
  if (next != NULL) {
    queries = ts_attention_block_at(p, TS_OF_QUERIES, next->i);
    ts_attention_wish_for(p, &x->wish, &(ts_source){to->q, p->dtype},
                          ts_attention_q_at(p, next->b, queries.row, next->head), p->q_width, queries.rows);
    wish_for_next_keys(p, to, &x->wish, next, -1);
  }
}

/* \a next: what this thread probably does after it; NULL: nothing. */
static void forward_queries(const ts_attention *p, const ts_attention_operands *to, buffers *x, const item *now,
                            const item *next) {
  int64_t b = now->b;
  int head = now->head;
  ts_attention_block queries = ts_attention_block_at(p, TS_OF_QUERIES, now->i), keys;
  int64_t at = ts_attention_q_at(p, b, queries.row, head);
  ts_attention_tile rows = ts_attention_rows(p, x->rows, to->q, at, p->q_width, queries.rows, TS_QUERIES);
  ts_micro_transpose(x->queries, TS_QUERIES, rows.cell, rows.stride, TS_QUERIES, ts_attention_cells(p, p->columns));
  for (int k = 0; k < TS_QUERIES; ++k) {
    x->max[k] = TS_MASKED;
    x->sum[k] = 0;
  }
  x->begun = false;
  ts_attention_view view = ts_attention_view_of(p, b, now->i);
  int64_t end = p->blocks[TS_OF_KEYS], j = ts_attention_next(p, &view, 0, end, &keys);
  for (; j < end; j = ts_attention_next(p, &view, j + 1, end, &keys)) {
    wish_forward(p, to, x, now, next, j);
    forward_keys(p, to, x, b, head, &queries, &keys);
  }
  finish_softmax(p, x);
  if (to->lse != NULL) {
    memcpy(to->lse + (b * p->heads + head) * p->queries + queries.row, x->sum, (size_t) queries.rows * sizeof(float));
  }
  ts_attention_store(p, &to->o, x->out, x->rescale, ts_attention_o_at(p, b, queries.row, head),
                     (int64_t) p->heads * p->head_dim, queries.rows);
}

size_t ts_attention_forward_bytes(const ts_attention *p) {
  return take_forward_buffers(p, NULL, &(buffers){0});
}

void ts_attention_forward(const ts_attention *p, const ts_attention_operands *to, int threads, void *workspace) {
  int64_t items = p->batch * p->heads * p->blocks[TS_OF_QUERIES];
#pragma omp parallel num_threads(threads)
  {
    buffers x;
    size_t bytes = take_forward_buffers(p, NULL, &x);
    take_forward_buffers(p, (char *) workspace + (size_t) omp_get_thread_num() * bytes, &x);
#pragma omp for schedule(dynamic, 1)
    for (int64_t number = 0; number < items; ++number) {
      item now = item_at(p, number), next = item_at(p, number + threads);
      forward_queries(p, to, &x, &now, number + threads < items ? &next : NULL);
    }
  }
}

static size_t attention_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  (void) prepared;
  ts_attention p = ts_attention_of(graph, node, NULL, 0, 1, 3);
  return ts_attention_bounds_bytes(&p) + (size_t) target->threads * ts_attention_forward_bytes(&p);
}

void ts_attention_see_nothing(const ts_kernel_call *call) {
  for (int i = 0; i < call->node->n_out; ++i) {
    const ts_sink y = ts_sink_of(call, i);
    const float value = call->node->op == TS_OP_ATTENTION && i == 1 ? -INFINITY : 0; /* lse */
    const int64_t count = ts_call_count(call, i);
#pragma omp parallel for num_threads(ts_call_threads(call, ts_pieces(count, TS_TILE))) schedule(static)
    for (int64_t at = 0; at < count; at += TS_TILE) {
      const int64_t n = ts_min(TS_TILE, count - at);
      ts_tile nothing;
      for (int64_t k = 0; k < n; ++k) {
        nothing[k] = value;
      }
      ts_sink_write(&y, at, n, nothing);
    }
  }
}

static void attention_run(const ts_kernel_call *call) {
  if (call->node->attr.attention.blind) {
    ts_attention_see_nothing(call);
    return;
  }
  ts_attention p = ts_attention_of(call->graph, call->node, call, 0, 1, 3);
  const ts_attention_operands to = {.q = call->in[0],
                                    .k = ts_attention_part(&p, call->in[1], p.k_first),
                                    .v = ts_attention_part(&p, call->in[2], p.v_first),
                                    .o = ts_sink_of(call, 0),
                                    .lse = call->out[1]};
  ts_attention_find_bounds(&p, call->workspace);
  ts_attention_forward(&p, &to, call->threads, (char *) call->workspace + ts_attention_bounds_bytes(&p));
}
TS_CPU_KERNEL(attention) = {.prepare = attention_prepare, .run = attention_run};
