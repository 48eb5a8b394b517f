/* Forward: each block of queries of a head sees the keys block by block (online softmax; Milakov and Gimelshein 2018,
 * Dao et al. 2022), so scores take TS_KEYS x TS_QUERIES numbers per thread.  Cost: 4 D multiply-adds per pair of query
 * and key in the blocks of which something is visible. */
#include "backend/cpu/attention.h"

#include <math.h>
#include <omp.h>

typedef struct buffers {
  ts_cell *rows; /* a tile as read: queries, keys or values */
  ts_cell *queries, *values, *narrow, *weights;
  float *score, *factor, *scratch;
  float *out;                 /* [TS_QUERIES][columns], not yet divided by sum */
  float *max, *sum, *rescale; /* [TS_QUERIES] */
  bool begun;                 /* There is something in out. */
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

/* Scores to weights in place; the running maximum and sum; what earlier results must be multiplied with. */
static void softmax_block(buffers *x, int keys) {
  float before[TS_QUERIES];
  memcpy(before, x->max, sizeof before);
  for (int k = 0; k < keys; ++k) {
    const float *row = x->score + k * TS_QUERIES;
#pragma omp simd
    for (int i = 0; i < TS_QUERIES; ++i) {
      x->max[i] = row[i] > x->max[i] ? row[i] : x->max[i];
    }
  }
#pragma omp simd
  for (int i = 0; i < TS_QUERIES; ++i) {
    x->rescale[i] = ts_expf(before[i] - x->max[i]);
    x->sum[i] *= x->rescale[i];
  }
  for (int k = 0; k < keys; ++k) {
    float *row = x->score + k * TS_QUERIES;
#pragma omp simd
    for (int i = 0; i < TS_QUERIES; ++i) {
      row[i] = ts_expf(row[i] - x->max[i]);
      x->sum[i] += row[i];
    }
  }
}

static void drop(const ts_attention *p, buffers *x, int64_t b, int head, int64_t t, int64_t j, int keys) {
  ts_attention_dropout(p, x->factor, x->scratch, b, head, t, j, keys);
#pragma omp simd
  for (int i = 0; i < keys * TS_QUERIES; ++i) {
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

static void forward_keys(const ts_attention *p, buffers *x, const void *k, const void *v, int64_t b, int head,
                         int64_t t, int64_t j, int keys) {
  int kv_head = head / (p->heads / p->kv_heads);
  ts_attention_tile rows = ts_attention_rows(p, x->rows, k, b, j, keys, p->kv_heads, kv_head);
  ts_micro_run(&(ts_micro_product){.m = keys,
                                   .n = TS_QUERIES,
                                   .k = ts_attention_cells(p, p->columns),
                                   .a = rows.cell,
                                   .row = rows.stride,
                                   .column = 1,
                                   .b = x->queries,
                                   .ldb = TS_QUERIES,
                                   .c = x->score,
                                   .ldc = TS_QUERIES},
               p->pairs);
  ts_attention_mask(p, x->score, b, t, j, keys);
  softmax_block(x, keys);
  if (p->drops) {
    drop(p, x, b, head, t, j, keys);
  }
  if (x->begun) {
    rescale_out(p, x);
  }
  rows = ts_attention_rows(p, x->rows, v, b, j, keys, p->kv_heads, kv_head);
  ts_attention_tile values = ts_attention_along_rows(p, x->values, rows, keys);
  const ts_cell *weights = ts_attention_narrow(p, x->narrow, x->score, keys);
  weights = ts_attention_along_keys(p, x->weights, weights, keys);
  ts_attention_sum_keys(p,
                        (ts_micro_product){.n = p->columns,
                                           .a = weights,
                                           .row = 1,
                                           .column = TS_QUERIES,
                                           .b = values.cell,
                                           .ldb = values.stride,
                                           .c = x->out,
                                           .ldc = p->columns,
                                           .add = x->begun},
                        t, j, keys);
  x->begun = true;
}

/* Queries t .. of a head, as many of them as have a place among the keys. */
static void forward_queries(const ts_attention *p, const ts_attention *keys, const ts_attention_operands *to,
                            buffers *x, int64_t b, int head, int64_t t) {
  ts_attention_tile rows = ts_attention_rows(p, x->rows, to->q, b, t, TS_QUERIES, p->heads, head);
  ts_attention_transpose(x->queries, rows, ts_attention_cells(p, p->columns));
  for (int i = 0; i < TS_QUERIES; ++i) {
    x->max[i] = TS_MASKED;
    x->sum[i] = 0;
  }
  x->begun = false;
  int64_t place = to->past + t, left = keys->length - place;
  ts_attention_view view = ts_attention_view_of(keys, b, place);
  view.end = view.end < to->seen ? view.end : to->seen;
  for (int64_t j = ts_attention_next(&view, view.begin); j < view.end; j = ts_attention_next(&view, j + TS_KEYS)) {
    forward_keys(keys, x, to->k, to->v, b, head, place, j, ts_attention_keys(&view, j));
  }
  for (int i = 0; i < TS_QUERIES; ++i) {
    if (to->lse != NULL && t + i < p->length) {
      to->lse[(b * p->heads + head) * p->length + t + i] = x->max[i] + logf(x->sum[i]);
    }
    x->sum[i] = 1.0f / x->sum[i];
  }
  ts_attention_store(p, to->o, x->out, x->sum, b, t, (int) (left < TS_QUERIES ? left : TS_QUERIES), p->heads, head);
}

size_t ts_attention_forward_bytes(const ts_attention *p) {
  return take_forward_buffers(p, NULL, &(buffers){0});
}

void ts_attention_forward(const ts_attention *queries, const ts_attention *keys, const ts_attention_operands *to,
                          int threads, void *workspace) {
  int64_t left = keys->length - to->past, reached = left < queries->length ? left : queries->length;
  int64_t blocks = reached > 0 ? (reached + TS_QUERIES - 1) / TS_QUERIES : 0;
  int64_t items = queries->batch * queries->heads * blocks;
#pragma omp parallel num_threads(threads)
  {
    buffers x;
    size_t bytes = take_forward_buffers(queries, NULL, &x);
    take_forward_buffers(queries, (char *) workspace + (size_t) omp_get_thread_num() * bytes, &x);
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < items; ++item) {
      int64_t of_head = item / blocks, t = (blocks - 1 - item % blocks) * TS_QUERIES;
      forward_queries(queries, keys, to, &x, of_head / queries->heads, (int) (of_head % queries->heads), t);
    }
  }
}

size_t ts_attention_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  ts_attention p = ts_attention_of(graph, node, NULL, NULL, NULL);
  p.drops = node->attr.attention.dropout > 0;
  if (prepared != NULL) {
    *prepared = NULL;
  }
  return ts_attention_bounds_bytes(&p) + (size_t) target->threads * ts_attention_forward_bytes(&p);
}

void ts_attention_run(const ts_kernel_call *call) {
  ts_attention p = ts_attention_of(call->graph, call->node, ts_call_optional(call, 3), ts_call_optional(call, 4),
                                   ts_call_optional(call, 5));
  const ts_attention_operands to = {
      .q = call->in[0], .k = call->in[1], .v = call->in[2], .o = call->out[0], .lse = call->out[1], .seen = p.length};
  ts_attention_find_bounds(&p, call->workspace);
  ts_attention_forward(&p, &p, &to, call->threads, (char *) call->workspace + ts_attention_bounds_bytes(&p));
}

const ts_kernel *TS_ISA_NAME(ts_cpu_attention)(ts_op op) {
  static const ts_kernel forward = {ts_attention_prepare, ts_attention_run, NULL}, none = {0};
  static const ts_kernel backward = {ts_attention_dx_prepare, ts_attention_dx_run, NULL};
  return op == TS_OP_ATTENTION ? &forward : op == TS_OP_ATTENTION_DX ? &backward : &none;
}
