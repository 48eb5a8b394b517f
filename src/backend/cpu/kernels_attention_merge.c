/* What attention on parts of the keys needs beside it: row sums of do o, and the merge of two results. */
#include "backend/cpu/attention.h"
#include "backend/cpu/kernels.h"

#include <math.h>

/* ---- delta ---- */

/* Heads that are summed side by side: products are rounded, then added in order, and chains of additions overlap. */
enum { HEADS = 16 };

/* product is [n][each]. */
TS_INLINE void add_in_order(float *sum, const float *product, const int n, int64_t each) {
  for (int64_t d = 0; d < each; ++d) {
#pragma GCC unroll 16
    for (int h = 0; h < n; ++h) {
      sum[h] += product[h * each + d];
    }
  }
}

/* delta, \a stride apart, of \a n heads that lie one after another from element \a at on; several in a tile, or one in
 * many. */
static void sum_products(float *delta, int64_t stride, const ts_source *d_out, const ts_source *o, int64_t at, int n,
                         int head_dim) {
  float sum[HEADS] = {0};
  for (int64_t d = 0; d < head_dim; d += TS_TILE) {
    ts_tile left, right, product;
    int64_t each = ts_min(TS_TILE, head_dim - d), count = n * each;
    const float *a = ts_source_read(d_out, at + d, count, left), *b = ts_source_read(o, at + d, count, right);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      product[i] = a[i] * b[i];
    }
    if (n == HEADS) {
      add_in_order(sum, product, HEADS, each);
    } else {
      add_in_order(sum, product, n, each);
    }
  }
  for (int h = 0; h < n; ++h) {
    delta[h * stride] = sum[h];
  }
}

void ts_attention_find_delta(const ts_attention *p, float *delta, const void *d_out, const void *o, int threads) {
  ts_source left = {d_out, p->dtype}, right = {o, p->dtype};
  int most = (int) ts_max(1, ts_min(HEADS, TS_TILE / p->head_dim));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < p->batch * p->queries; ++row) {
    int64_t b = row / p->queries;
    for (int head = 0; head < p->heads; head += most) {
      float *to = delta + (b * p->heads + head) * p->queries + row % p->queries;
      int64_t at = (row * p->heads + head) * p->head_dim;
      sum_products(to, p->queries, &left, &right, at, (int) ts_min(most, p->heads - head), p->head_dim);
    }
  }
}

static void attention_delta_run(const ts_kernel_call *call) {
  ts_attention p = ts_attention_of(call->graph, call->node, call, 0, 1, 2);
  int64_t rows = p.batch * p.queries;
  ts_attention_find_delta(&p, call->out[0], call->in[0], call->in[1], ts_call_threads(call, rows));
}
TS_CPU_KERNEL(attention_delta) = {.run = attention_delta_run};

/* ---- merge ---- */

/* lse becomes that of both; returns the share of the second. */
static float merge_lse(float *lse, float other) {
  float first = *lse, distance = other - first;
  if (first == -INFINITY || other == -INFINITY) {
    *lse = first == -INFINITY ? other : first;
    return other == -INFINITY ? 0.0f : 1.0f;
  }
  *lse = (distance > 0 ? other : first) + log1pf(expf(-fabsf(distance)));
  return 1.0f / (1.0f + expf(-distance));
}

static void merge_rows(float *restrict o, const float *restrict other, float share, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    o[i] += share * (other[i] - o[i]);
  }
}

/* o' and lse' lie where o and lse do.  TS_QUERIES rows of a head at a time, whose lse are neighbours. */
static void attention_merge_run(const ts_kernel_call *call) {
  ts_attention p = ts_attention_of(call->graph, call->node, call, 0, 2, 4);
  float *o = call->out[0], *lse = call->out[1];
  const float *other_o = call->in[2], *other_lse = call->in[3];
  int64_t blocks = ts_pieces(p.queries, TS_QUERIES), items = p.batch * p.heads * blocks;
#pragma omp parallel for num_threads(ts_call_threads(call, items)) schedule(static)
  for (int64_t item = 0; item < items; ++item) {
    int64_t head = item / blocks, first = item % blocks * TS_QUERIES;
    for (int64_t row = first; row < ts_min(first + TS_QUERIES, p.queries); ++row) {
      int64_t i = head * p.queries + row, at = ts_attention_o_at(&p, head / p.heads, row, (int) (head % p.heads));
      merge_rows(o + at, other_o + at, merge_lse(&lse[i], other_lse[i]), p.head_dim);
    }
  }
}
TS_CPU_KERNEL(attention_merge) = {.run = attention_merge_run};
