/* Attention on what was kept.  Many new tokens go block by block, as in attention without a cache.  Of a few, each
 * query of a head takes the scores of all its keys, then the weighted sum of their values: keys and values are read
 * once a query, at the speed of memory, where blocks would want sixty-four queries. */
#include "backend/cpu/attention.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/tile.h"

#include "base/status.h"

#include <math.h>
#include <omp.h>

/* A block's work is that of sixty-four queries, half of it more than as many single ones cost. */
enum { MANY = TS_QUERIES / 2 };

typedef struct cached {
  ts_attention p;
  ts_attention_operands to;
  const int32_t *past; /* [B] the place of a text's first new token */
} cached;

static ts_attention shape_of(const ts_graph *graph, const ts_node *node) {
  ts_attention p = ts_attention_of(graph, node, NULL, 2, 0, 6);
  int64_t window = node->attr.attention.window;
  p.length = p.keys;
  p.window = window == 0 || window > p.keys ? p.keys : window;
  return p;
}

static cached cached_of(const ts_kernel_call *call) {
  cached c = {.p = shape_of(call->graph, call->node), .past = call->in[5]};
  c.to = (ts_attention_operands){
      .q = call->in[2], .k = call->out[0], .v = call->out[1], .o = {call->out[2], c.p.dtype, NULL, 0}};
  return c;
}

/* How many new tokens of a text have a place. */
static int64_t count_placed(const cached *c, int64_t b) {
  TS_ASSERT(c->past[b] >= 0);
  return ts_max(0, ts_min(c->p.keys - c->past[b], c->p.queries));
}

/* Rows past, past + 1 ... of a cache. */
static void keep_new_rows(const ts_kernel_call *call, const cached *c, int cache, int from) {
  const ts_attention *p = &c->p;
  size_t row = (size_t) (p->kv_heads * p->head_dim) * ts_dtype_size(p->dtype);
  for (int64_t b = 0; b < p->batch; ++b) {
    memcpy((char *) call->out[cache] + (size_t) (b * p->keys + c->past[b]) * row,
           (const char *) call->in[from] + (size_t) (b * p->queries) * row, (size_t) count_placed(c, b) * row);
  }
}

static void clear_others(const cached *c) {
  const ts_attention *p = &c->p;
  size_t row = (size_t) (p->heads * p->head_dim) * ts_dtype_size(p->dtype);
  for (int64_t b = 0; b < p->batch; ++b) {
    int64_t placed = count_placed(c, b);
    memset((char *) c->to.o.data + (size_t) (b * p->queries + placed) * row, 0, (size_t) (p->queries - placed) * row);
  }
}

/* ---- a query ---- */

/* A head of key or value j. */
static const void *cached_row(const ts_attention *p, const void *cache, int64_t b, int64_t j, int head) {
  int64_t at = ts_attention_k_at(p, b, j, ts_attention_kv_head(p, head));
  return (const char *) cache + (size_t) at * ts_dtype_size(p->dtype);
}

static float score_cached(const ts_attention *p, const float *q, const void *k) {
  ts_lanes lane = {0};
  if (p->dtype == TS_BF16) {
    ts_lanes_add_narrow_product(lane, q, k, p->head_dim);
  } else {
    ts_tile buffer;
    ts_lanes_add_product(lane, q, ts_source_read(&(ts_source){k, p->dtype}, 0, p->head_dim, buffer), p->head_dim);
  }
  float score = p->scale * ts_lanes_sum(lane);
  return p->softcap > 0 ? ts_softcap(score, p->softcap) : score;
}

/* Scores to weights that are not yet divided by their sum. */
static float weigh(float *score, float top, int64_t n) {
  ts_lanes lane = {0};
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    score[i] = ts_expf(score[i] - top);
  }
  ts_lanes_add(lane, score, n);
  return ts_lanes_sum(lane);
}

static void add_value(const ts_attention *p, float *sum, float weight, const void *v) {
  const uint16_t *narrow = v;
  if (p->dtype == TS_BF16) {
#pragma omp simd
    for (int d = 0; d < p->head_dim; ++d) {
      sum[d] += weight * ts_float_of((int32_t) ((uint32_t) narrow[d] << 16));
    }
  } else {
    ts_tile buffer;
    const float *wide = ts_source_read(&(ts_source){v, p->dtype}, 0, p->head_dim, buffer);
#pragma omp simd
    for (int d = 0; d < p->head_dim; ++d) {
      sum[d] += weight * wide[d];
    }
  }
}

static void attend_query(const cached *c, float *score, int64_t b, int64_t t, int head) {
  const ts_attention *p = &c->p;
  ts_tile buffer, sum = {0};
  int64_t at = ts_attention_q_at(p, b, t, head), last = c->past[b] + t, first = ts_max(last - p->window + 1, 0);
  const float *q = ts_source_read(&(ts_source){c->to.q, p->dtype}, at, p->head_dim, buffer);
  float top = -INFINITY;
  for (int64_t j = first; j <= last; ++j) {
    float s = score[j - first] = score_cached(p, q, cached_row(p, c->to.k, b, j, head));
    top = s > top ? s : top;
  }
  float all = weigh(score, top, last - first + 1);
  for (int64_t j = first; j <= last; ++j) {
    add_value(p, sum, score[j - first] / all, cached_row(p, c->to.v, b, j, head));
  }
  ts_sink_write(&c->to.o, at, p->head_dim, sum);
}

/* ---- the row ---- */

static size_t thread_bytes(const ts_attention *p) {
  size_t scores = ts_cpu_align((size_t) p->keys * sizeof(float));
  return p->queries < MANY ? scores : ts_attention_forward_bytes(p);
}

static size_t attention_cached_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node,
                                       void **prepared) {
  (void) prepared;
  ts_attention p = shape_of(graph, node);
  return (size_t) target->threads * thread_bytes(&p);
}

static void attend_one_by_one(const ts_kernel_call *call, const cached *c) {
  const ts_attention *p = &c->p;
  int64_t queries = p->batch * p->queries * p->heads;
  size_t bytes = thread_bytes(p);
  TS_ASSERT(p->head_dim <= TS_TILE);
#pragma omp parallel for num_threads(ts_call_threads(call, queries)) schedule(dynamic, 1)
  for (int64_t i = 0; i < queries; ++i) {
    float *score = (float *) ((char *) call->workspace + (size_t) omp_get_thread_num() * bytes);
    int64_t b = i / p->heads / p->queries, t = i / p->heads % p->queries;
    if (t < count_placed(c, b)) {
      attend_query(c, score, b, t, (int) (i % p->heads));
    }
  }
}

/* Text by text: queries are the new tokens that have a place, keys all until the last of them. */
static void attend_by_blocks(const ts_kernel_call *call, const cached *c) {
  ts_attention p = c->p;
  p.batch = 1;
  for (int64_t b = 0; b < c->p.batch; ++b) {
    int64_t placed = count_placed(c, b), q = ts_attention_q_at(&c->p, b, 0, 0), k = ts_attention_k_at(&c->p, b, 0, 0);
    size_t size = ts_dtype_size(p.dtype);
    ts_attention_operands to = c->to;
    to.q = (const char *) to.q + (size_t) q * size;
    to.k = (const char *) to.k + (size_t) k * size;
    to.v = (const char *) to.v + (size_t) k * size;
    to.o.data = (char *) to.o.data + (size_t) q * size;
    ts_attention_place(&p, TS_OF_QUERIES, (ts_interval){c->past[b], placed});
    ts_attention_place(&p, TS_OF_KEYS, (ts_interval){0, placed > 0 ? c->past[b] + placed : 0});
    ts_attention_forward(&p, &to, call->threads, call->workspace);
  }
}

static void attention_cached_run(const ts_kernel_call *call) {
  cached c = cached_of(call);
  keep_new_rows(call, &c, 0, 3);
  keep_new_rows(call, &c, 1, 4);
  clear_others(&c);
  if (c.p.queries < MANY) {
    attend_one_by_one(call, &c);
  } else {
    attend_by_blocks(call, &c);
  }
}
TS_CPU_KERNEL(attention_cached) = {.prepare = attention_cached_prepare, .run = attention_cached_run};
