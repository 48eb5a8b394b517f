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
  ts_attention queries, keys; /* of T, of K tokens */
  ts_attention_operands to;
} cached;

static cached shape_of(const ts_graph *graph, const ts_node *node) {
  cached c = {.queries = ts_attention_of(graph, node, NULL, NULL, NULL)};
  int64_t window = node->attr.attention.window;
  c.keys = c.queries;
  c.keys.length = graph->tensor[node->in[0]].shape.d[1];
  c.keys.window = window == 0 || window > c.keys.length ? c.keys.length : window;
  return c;
}

static cached cached_of(const ts_kernel_call *call) {
  cached c = shape_of(call->graph, call->node);
  c.to = (ts_attention_operands){.q = call->in[2],
                                 .k = call->out[0],
                                 .v = call->out[1],
                                 .o = call->out[2],
                                 .past = *(const int32_t *) call->in[5]};
  c.to.seen = ts_min(c.to.past + c.queries.length, c.keys.length);
  return c;
}

/* New tokens that have a place. */
static int64_t count_placed(const cached *c) {
  return c->to.seen < c->to.past ? 0 : c->to.seen - c->to.past;
}

/* Rows past, past + 1 ... of a cache. */
static void keep_new_rows(const ts_kernel_call *call, const cached *c, int cache, int from) {
  const ts_attention *p = &c->queries;
  size_t row = (size_t) (p->kv_heads * p->head_dim) * ts_dtype_size(p->dtype);
  for (int64_t b = 0; b < p->batch; ++b) {
    memcpy((char *) call->out[cache] + (size_t) (b * c->keys.length + c->to.past) * row,
           (const char *) call->in[from] + (size_t) (b * p->length) * row, (size_t) count_placed(c) * row);
  }
}

static void clear_others(const cached *c) {
  const ts_attention *p = &c->queries;
  size_t row = (size_t) (p->heads * p->head_dim) * ts_dtype_size(p->dtype);
  int64_t placed = count_placed(c);
  for (int64_t b = 0; b < p->batch; ++b) {
    memset((char *) c->to.o + (size_t) (b * p->length + placed) * row, 0, (size_t) (p->length - placed) * row);
  }
}

/* ---- a query ---- */

/* A head of key or value j. */
static const void *cached_row(const ts_attention *keys, const void *cache, int64_t b, int64_t j, int head) {
  size_t at = ts_attention_at(keys, b, j, keys->kv_heads, head / (keys->heads / keys->kv_heads));
  return (const char *) cache + at * ts_dtype_size(keys->dtype);
}

static float score_cached(const ts_attention *keys, const float *q, const void *k) {
  ts_lanes lane = {0};
  if (keys->dtype == TS_F32) {
    ts_lanes_add_product(lane, q, k, keys->head_dim);
  } else {
    ts_lanes_add_narrow_product(lane, q, k, keys->head_dim);
  }
  float score = keys->scale * ts_lanes_sum(lane);
  return keys->softcap > 0 ? ts_softcap(score, keys->softcap) : score;
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

static void add_value(const ts_attention *keys, float *sum, float weight, const void *v) {
  const uint16_t *narrow = v;
  const float *wide = v;
  if (keys->dtype == TS_F32) {
#pragma omp simd
    for (int d = 0; d < keys->head_dim; ++d) {
      sum[d] += weight * wide[d];
    }
  } else {
#pragma omp simd
    for (int d = 0; d < keys->head_dim; ++d) {
      sum[d] += weight * ts_float_of((int32_t) ((uint32_t) narrow[d] << 16));
    }
  }
}

static void attend_query(const cached *c, float *score, int64_t b, int64_t t, int head) {
  const ts_attention *keys = &c->keys;
  ts_tile buffer, sum = {0};
  size_t at = ts_attention_at(&c->queries, b, t, keys->heads, head);
  int64_t last = c->to.past + t, oldest = last - keys->window + 1, first = oldest > 0 ? oldest : 0;
  const float *q = ts_source_read(&(ts_source){c->to.q, keys->dtype}, (int64_t) at, keys->head_dim, buffer);
  float top = -INFINITY;
  for (int64_t j = first; j <= last; ++j) {
    float s = score[j - first] = score_cached(keys, q, cached_row(keys, c->to.k, b, j, head));
    top = s > top ? s : top;
  }
  float all = weigh(score, top, last - first + 1);
  for (int64_t j = first; j <= last; ++j) {
    add_value(keys, sum, score[j - first] / all, cached_row(keys, c->to.v, b, j, head));
  }
  ts_sink_write(&(ts_sink){.data = c->to.o, .dtype = keys->dtype}, (int64_t) at, keys->head_dim, sum);
}

/* ---- the row ---- */

static size_t thread_bytes(const cached *c) {
  size_t scores = ts_cpu_align((size_t) c->keys.length * sizeof(float));
  return c->queries.length < MANY ? scores : ts_attention_forward_bytes(&c->queries);
}

static size_t attention_cached_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node,
                                       void **prepared) {
  (void) prepared;
  cached c = shape_of(graph, node);
  return (size_t) target->threads * thread_bytes(&c);
}

static void attend_one_by_one(const ts_kernel_call *call, const cached *c) {
  const ts_attention *p = &c->queries;
  int64_t placed = count_placed(c), queries = p->batch * placed * p->heads;
  size_t bytes = thread_bytes(c);
  TS_ASSERT(p->head_dim <= TS_TILE);
#pragma omp parallel for num_threads(ts_call_threads(call, queries)) schedule(dynamic, 1)
  for (int64_t i = 0; i < queries; ++i) {
    float *score = (float *) ((char *) call->workspace + (size_t) omp_get_thread_num() * bytes);
    attend_query(c, score, i / p->heads / placed, i / p->heads % placed, (int) (i % p->heads));
  }
}

static void attention_cached_run(const ts_kernel_call *call) {
  cached c = cached_of(call);
  TS_ASSERT(c.to.past >= 0);
  keep_new_rows(call, &c, 0, 3);
  keep_new_rows(call, &c, 1, 4);
  clear_others(&c);
  if (c.queries.length < MANY) {
    attend_one_by_one(call, &c);
  } else {
    ts_attention_forward(&c.queries, &c.keys, &c.to, call->threads, call->workspace);
  }
}
TS_CPU_KERNEL(attention_cached) = {.prepare = attention_cached_prepare, .run = attention_cached_run};
