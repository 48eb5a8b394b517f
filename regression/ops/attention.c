/* References of attention, and calls of it for some tokens of a sample and some heads of the whole. */
#include "regression/ops/ops.h"

/* One query of one head: a row of q, one of `rows`, which is `token` of a sample of `length`.  The head of k and v that
 * it reads, and the rows of these.  Optional inputs begin at `optional`. */
typedef struct query {
  int64_t b, h, kv, row, rows, token, keys, length;
  int optional;
} query;

static int64_t q_at(const run_case *c, const query *q) {
  return ((q->b * q->rows + q->row) * c->attr.attention.heads + q->h) * c->attr.attention.head_dim;
}

static int64_t k_at(const run_case *c, const query *q, int64_t key) {
  return ((q->b * q->keys + key) * c->attr.attention.kv_heads + q->kv) * c->attr.attention.head_dim;
}

/* Of lse and delta. */
static int64_t lse_at(const run_case *c, const query *q) {
  return (q->b * c->attr.attention.heads + q->h) * q->rows + q->row;
}

static double dot(const double *a, const double *b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

static bool sees(const run_case *c, const query *q, int64_t row) {
  const int32_t *document = c->n_in > q->optional ? c->in[q->optional].data : NULL;
  int64_t key = ts_tokens_at(&c->attr.attention.keys, row), window = c->attr.attention.window;
  bool same = document == NULL || document[q->b * q->length + q->token] == document[q->b * q->length + key];
  return !c->attr.attention.blind && same && !(c->attr.attention.causal && key > q->token) &&
         (window == 0 || key > q->token - window);
}

/* What dropout multiplies the weight of a key with. */
static double kept(const run_case *c, const query *q, int64_t row) {
  double p = c->attr.attention.dropout;
  if (p == 0) {
    return 1;
  }
  int64_t seed = *(const int64_t *) c->in[q->optional + 1].data, key = ts_tokens_at(&c->attr.attention.keys, row);
  int64_t sample = ((const int64_t *) c->in[q->optional + 2].data)[q->b], head = c->attr.attention.first_head + q->h;
  return ops_keep(seed, c->attr.attention.name, sample, (head * q->length + q->token) * q->length + key, p) / (1 - p);
}

static double score(const run_case *c, const double *query, const double *key) {
  double cap = c->attr.attention.softcap, s = c->attr.attention.scale * dot(query, key, c->attr.attention.head_dim);
  return cap > 0 ? cap * tanh(s / cap) : s;
}

/* Of a score by the product of query and key. */
static double slope(const run_case *c, double score) {
  double capped = c->attr.attention.softcap > 0 ? score / c->attr.attention.softcap : 0;
  return c->attr.attention.scale * (1 - capped * capped);
}

/* Call `each` for every query of every head; k is input \a k. */
static void for_queries(run_case *c, int q, int k, int optional, void (*each)(run_case *c, const query *q)) {
  int64_t rows = c->in[q].shape.d[1], length = c->attr.attention.length, keys = c->in[k].shape.d[1];
  int64_t first = c->attr.attention.first_head, group = c->attr.attention.group;
  group = group > 0 ? group : c->attr.attention.heads / c->attr.attention.kv_heads;
  for (int64_t b = 0; b < c->in[q].shape.d[0]; ++b) {
    for (int64_t h = 0; h < c->attr.attention.heads; ++h) {
      for (int64_t row = 0; row < rows; ++row) {
        int64_t token = ts_tokens_at(&c->attr.attention.queries, row);
        each(c, &(query){b, h, (first + h) / group - first / group, row, rows, token, keys, length > 0 ? length : rows,
                         optional});
      }
    }
  }
}

static void attention_query(run_case *c, const query *q) {
  int64_t d = c->attr.attention.head_dim;
  double sum = 0, *o = ops_out(c, 0) + q_at(c, q);
  memset(o, 0, (size_t) d * sizeof *o);
  for (int64_t key = 0; key < q->keys; ++key) {
    const double *k = ops_in(c, 1) + k_at(c, q, key), *v = ops_in(c, 2) + k_at(c, q, key);
    if (sees(c, q, key)) {
      double e = exp(score(c, ops_in(c, 0) + q_at(c, q), k)), factor = kept(c, q, key);
      sum += e;
      for (int64_t i = 0; i < d; ++i) {
        o[i] += e * factor * v[i];
      }
    }
  }
  for (int64_t i = 0; i < d && sum > 0; ++i) {
    o[i] /= sum;
  }
  ops_out(c, 1)[lse_at(c, q)] = log(sum);
}

static void attention(run_case *c) {
  for_queries(c, 0, 1, 3, attention_query);
}

static void attention_dx_query(run_case *c, const query *q) {
  enum { DO, Q, K, V, O, LSE, DELTA = 9 };
  int64_t d = c->attr.attention.head_dim, at = q_at(c, q);
  const double *d_out = ops_in(c, DO) + at;
  double lse = ops_in(c, LSE)[lse_at(c, q)];
  double delta = c->in[O].data != NULL ? dot(d_out, ops_in(c, O) + at, d) : ops_in(c, DELTA)[lse_at(c, q)];
  for (int64_t key = 0; key < q->keys; ++key) {
    int64_t to = k_at(c, q, key);
    if (sees(c, q, key) && lse > -INFINITY) {
      double s = score(c, ops_in(c, Q) + at, ops_in(c, K) + to), p = exp(s - lse), factor = kept(c, q, key);
      double ds = slope(c, s) * p * (factor * dot(d_out, ops_in(c, V) + to, d) - delta);
      for (int64_t i = 0; i < d; ++i) {
        ops_out(c, 0)[at + i] += ds * ops_in(c, K)[to + i];
        ops_out(c, 1)[to + i] += ds * ops_in(c, Q)[at + i];
        ops_out(c, 2)[to + i] += p * factor * d_out[i];
      }
    }
  }
}

static void attention_dx(run_case *c) {
  for (int i = 0; i < 3; ++i) {
    memset(ops_out(c, i), 0, (size_t) run_count(&c->out[i]) * sizeof(double));
  }
  for_queries(c, 1, 2, 6, attention_dx_query);
}

static void attention_delta_query(run_case *c, const query *q) {
  int64_t at = q_at(c, q);
  ops_out(c, 0)[lse_at(c, q)] = dot(ops_in(c, 0) + at, ops_in(c, 1) + at, c->attr.attention.head_dim);
}

static void attention_delta(run_case *c) {
  for_queries(c, 0, 0, 2, attention_delta_query);
}

/* By the exponentials of both: their sum, and the mean that they weigh. */
static void attention_merge_query(run_case *c, const query *q) {
  enum { O, LSE, O2, LSE2 };
  int64_t at = q_at(c, q), row = lse_at(c, q);
  double a = exp(ops_in(c, LSE)[row]), b = exp(ops_in(c, LSE2)[row]);
  for (int64_t i = 0; i < c->attr.attention.head_dim; ++i) {
    double o = ops_in(c, O)[at + i], o2 = ops_in(c, O2)[at + i];
    ops_out(c, 0)[at + i] = a + b > 0 ? (a * o + b * o2) / (a + b) : o;
  }
  ops_out(c, 1)[row] = log(a + b);
}

static void attention_merge(run_case *c) {
  for_queries(c, 0, 2, 4, attention_merge_query);
}

/* ---- parts ---- */

/* {samples, tokens of a sample, query heads, key heads, elements of a head, the first query head, those of a key head,
 * mask, queries, keys, wide}.  Without stretches queries and keys are as many as said, the first ones. */
static const struct {
  int64_t batch, length;
  int heads, kv_heads, head_dim, first_head, group;
  bool causal, documents;
  int window;
  float softcap, dropout;
  ts_tokens queries, keys;
  int64_t rows, n_keys;
  bool wide, blind;
} parts[] = {
#define PART(at, count) .n = 1, .stretch = {{at, count}}
#define PARTS(at, count, later, more) .n = 2, .stretch = {{at, count}, {later, more}}
#define OF(...) .queries = {__VA_ARGS__}
#define ON(...) .keys = {__VA_ARGS__}
    /* all; the ends of a sample, on themselves and on all of it; a later part of it on an earlier one */
    {2, 7, 2, 1, 5, 0, 0, true, .rows = 7, .n_keys = 7},
    {2, 40, 2, 1, 16, 0, 0, true, OF(PARTS(0, 10, 30, 10)), ON(PARTS(0, 10, 30, 10))},
    {1, 300, 4, 2, 24, 0, 0, true, OF(PARTS(50, 75, 200, 90)), .n_keys = 300, .wide = true},
    {1, 300, 2, 2, 64, 0, 0, true, OF(PART(200, 100)), ON(PARTS(0, 100, 190, 7))},
    /* queries that see nothing: the first, the last in a window, all */
    {2, 50, 2, 1, 8, 0, 0, true, OF(PARTS(0, 10, 30, 10)), ON(PART(10, 20)), .wide = true},
    {1, 400, 2, 1, 32, 0, 0, true, OF(PARTS(100, 80, 260, 140)), ON(PARTS(30, 90, 150, 100)), .window = 70},
    {1, 40, 3, 1, 9, 0, 0, true, OF(PART(0, 5)), ON(PART(20, 5)), .wide = true},
    {2, 40, 2, 1, 16, 0, 0, true, .rows = 40, .n_keys = 40, .blind = true},
    {1, 300, 4, 2, 24, 0, 0, true, true, OF(PARTS(50, 75, 200, 90)), .n_keys = 300, .wide = true, .blind = true},
    /* stretches that begin and end inside blocks; a key block across both; no mask */
    {1, 700, 1, 1, 16, 0, 0, true, OF(PARTS(100, 150, 450, 150)), ON(PARTS(64, 200, 400, 260)), .window = 130},
    {1, 400, 2, 1, 40, 0, 0, false, OF(PART(300, 70)), ON(PARTS(0, 130, 200, 133))},
    /* heads that begin and end inside a group */
    {2, 30, 4, 2, 12, 5, 3, true, .rows = 30, .n_keys = 30},
    {1, 90, 5, 3, 6, 3, 2, true, OF(PARTS(0, 20, 70, 20)), ON(PARTS(0, 30, 60, 30)), .softcap = 2, .wide = true},
    {1, 33, 1, 1, 128, 7, 4, true, OF(PART(3, 30)), ON(PART(0, 33))},
    /* documents, dropout, and both, by tokens and heads of the whole */
    {2, 300, 2, 1, 16, 0, 0, true, true, OF(PARTS(0, 75, 225, 75)), ON(PARTS(40, 75, 150, 140)), .wide = true},
    {2, 200, 1, 1, 20, 0, 0, false, true, OF(PART(140, 50)), ON(PARTS(0, 60, 100, 71)), .softcap = 5},
    {2, 60, 4, 2, 10, 5, 3, true, OF(PARTS(0, 15, 45, 15)), ON(PARTS(0, 20, 41, 19)), .dropout = 0.3f},
    {2, 150, 2, 2, 64, 4, 1, true, true, 40, OF(PARTS(17, 50, 90, 60)), ON(PARTS(3, 41, 80, 70)), .dropout = 0.2f},
    /* no queries; no keys; no samples */
    {2, 20, 2, 1, 8, 0, 0, true, .n_keys = 20},
    {2, 20, 2, 1, 8, 0, 0, true, true, OF(PART(3, 9)), .wide = true},
    {0, 20, 2, 1, 8, 0, 0, true, OF(PART(3, 9)), ON(PART(0, 4))},
};
enum { N_PARTS = sizeof parts / sizeof *parts };

static int64_t rows_of(const ts_tokens *tokens, int64_t without) {
  return tokens->n == 0 ? without : tokens->stretch[0].length + (tokens->n > 1 ? tokens->stretch[1].length : 0);
}

/* Shapes of q, of k, of lse. */
static void shapes_of(int variant, ts_shape *q, ts_shape *k, ts_shape *lse) {
  const typeof(*parts) *v = &parts[variant];
  int64_t rows = rows_of(&v->queries, v->rows);
  *q = TS_SHAPE(v->batch, rows, v->heads * v->head_dim);
  *k = TS_SHAPE(v->batch, rows_of(&v->keys, v->n_keys), v->kv_heads * v->head_dim);
  *lse = TS_SHAPE(v->batch, v->heads, rows);
}

/* Attributes; documents, seed and sample as inputs \a first and on. */
static void add_extras(run_case *c, int variant, int first) {
  const typeof(*parts) *v = &parts[variant];
  c->attr.attention = (typeof(c->attr.attention)){.heads = v->heads,
                                                  .kv_heads = v->kv_heads,
                                                  .head_dim = v->head_dim,
                                                  .scale = (float) (1 / sqrt(v->head_dim)),
                                                  .softcap = v->softcap,
                                                  .causal = v->causal,
                                                  .window = v->window,
                                                  .dropout = v->dropout,
                                                  .name = ts_hash_name("h.3.attn"),
                                                  .first_head = v->first_head,
                                                  .group = v->group,
                                                  .length = v->length,
                                                  .queries = v->queries,
                                                  .keys = v->keys,
                                                  .wide_queries = v->wide,
                                                  .wide_keys = v->wide && variant % 4 != 0,
                                                  .blind = v->blind};
  c->n_in = first + 3;
  if (v->documents) {
    c->in[first] = run_new(TS_I32, TS_SHAPE(v->batch, v->length));
    for (int64_t i = 0; i < v->batch * v->length; ++i) {
      run_set(&c->in[first], i, (double) (i % v->length / (v->length / 3 + 1) + i % v->length / 70 % 3));
    }
  }
  if (v->dropout > 0) {
    c->in[first + 1] = run_new(TS_I64, TS_SHAPE(1));
    c->in[first + 2] = run_new(TS_I64, TS_SHAPE(v->batch));
    run_set(&c->in[first + 1], 0, 4711 + variant);
    for (int64_t b = 0; b < v->batch; ++b) {
      run_set(&c->in[first + 2], b, (double) (5000000000 + 3 * b));
    }
  }
}

static void build_attention(run_case *c, int variant, ts_dtype dtype) {
  ts_shape q, k, lse;
  shapes_of(variant, &q, &k, &lse);
  ops_input(c, 0, dtype, q, 1.0);
  ops_input(c, 1, dtype, k, 1.0);
  ops_input(c, 2, dtype, k, 1.0);
  add_extras(c, variant, 3);
  ops_output(c, parts[variant].wide ? TS_F32 : dtype, q);
  ops_output(c, TS_F32, lse);
}

static run_tensor in_doubles(const run_tensor *x) {
  run_tensor y = run_new(TS_F64, x->shape);
  for (int64_t i = 0; i < run_count(x); ++i) {
    run_set(&y, i, run_get(x, i));
  }
  return y;
}

/* lse of the same queries on these keys and, two of three, on others too. */
static void fill_lse(const run_case *c, run_tensor *lse) {
  run_case f = {.op = TS_OP_ATTENTION, .attr = c->attr, .n_in = 6, .n_out = 2};
  for (int i = 0; i < 3; ++i) {
    f.in[i] = in_doubles(&c->in[1 + i]);
  }
  f.out[0] = run_new(TS_F64, f.in[0].shape);
  f.out[1] = run_new(TS_F64, lse->shape);
  f.attr.attention.dropout = 0; /* lse is that of all keys */
  f.in[3] = c->in[6];
  attention(&f);
  for (int64_t i = 0; i < run_count(lse); ++i) {
    double these = exp(run_get(&f.out[1], i)), others = i % 3 == 0 ? 0 : exp(0.7);
    run_set(lse, i, log(these + others));
  }
  f.in[3].data = NULL;
  run_free(&f);
}

/* Every other variant is given delta for o. */
static void build_attention_dx(run_case *c, int variant, ts_dtype dtype) {
  bool by_delta = variant % 2 == 1;
  ts_shape q, k, lse;
  shapes_of(variant, &q, &k, &lse);
  const ts_shape shapes[] = {q, q, k, k, q};
  for (int i = 0; i < (by_delta ? 4 : 5); ++i) {
    ops_input(c, i, dtype, shapes[i], 1.0);
  }
  add_extras(c, variant, 6);
  c->in[5] = run_new(TS_F32, lse);
  fill_lse(c, &c->in[5]);
  if (by_delta) {
    ops_input(c, 9, TS_F32, lse, 1.0);
  }
  for (int i = 0; i < 3; ++i) {
    bool wide = i == 0 ? c->attr.attention.wide_queries : c->attr.attention.wide_keys;
    ops_output(c, wide ? TS_F32 : dtype, i == 0 ? q : k);
  }
}

/* Of a head of 33 elements too. */
static void build_attention_delta(run_case *c, int variant, ts_dtype dtype) {
  static const int64_t shape[][4] = {{1, 1, 1, 1}, {2, 30, 3, 33}, {3, 70, 4, 64}, {2, 0, 2, 8}}; /* B S H D */
  const int64_t *s = shape[variant];
  ops_input(c, 0, dtype, TS_SHAPE(s[0], s[1], s[2] * s[3]), 1.0);
  ops_input(c, 1, dtype, c->in[0].shape, 1.0);
  c->attr.attention.heads = c->attr.attention.kv_heads = (int) s[2];
  c->attr.attention.head_dim = (int) s[3];
  ops_output(c, TS_F32, TS_SHAPE(s[0], s[2], s[1]));
}

/* Ends of a sample far apart; neither, one, or the other has seen a key. */
static void build_attention_merge(run_case *c, int variant, ts_dtype dtype) {
  build_attention_delta(c, variant, TS_F32);
  (void) dtype;
  ts_shape o = c->in[0].shape, lse = c->out[0].shape;
  run_free(c);
  c->n_out = 0;
  for (int i = 0; i < 4; ++i) {
    ops_input(c, i, TS_F32, i % 2 == 0 ? o : lse, i % 2 == 0 ? 1.0 : 10.0);
  }
  for (int64_t i = 0; i < run_count(&c->in[1]); ++i) {
    int64_t s = i % lse.d[2], h = i / lse.d[2] % lse.d[1], b = i / lse.d[2] / lse.d[1];
    for (int k = 0; k < 2; ++k) {
      if (i / (k + 1) % 3 == 1) {
        run_set(&c->in[2 * k + 1], i, -INFINITY);
        int64_t d = c->attr.attention.head_dim, at = ((b * o.d[1] + s) * lse.d[1] + h) * d;
        memset((float *) c->in[2 * k].data + at, 0, (size_t) d * sizeof(float));
      }
    }
  }
  ops_output(c, TS_F32, o);
  ops_output(c, TS_F32, lse);
}

/* ---- the cache ---- */

/* {batch, new tokens, rows of the caches, query heads, key heads, elements of a head, window, softcap, tokens before
 * the first text, how many more before each following one}:
 * all new; one more; the last that fits, of odd size; more than fit; beyond everything; a window that is shorter than
 * what is kept, and one that is not reached; the largest head.  Then so many tokens that they go block by block: on
 * an empty cache, behind others with a window, with a softcap and no room for the last.  Then texts of different
 * lengths, one by one and block by block: the last of them full, or idle, or the first. */
static const struct {
  int64_t batch, length, kept;
  int heads, kv_heads, head_dim, window;
  float softcap;
  int32_t past, apart;
} cached_variants[] = {
    {1, 1, 1, 1, 1, 1, 0, 0, 0, 0},      {2, 5, 9, 4, 2, 6, 0, 0, 0, 0},         {1, 1, 300, 4, 4, 64, 0, 0, 270, 0},
    {2, 3, 40, 3, 1, 5, 0, 0, 37, 0},    {2, 4, 10, 2, 2, 8, 0, 2.5f, 8, 0},     {1, 2, 6, 2, 1, 3, 0, 0, 9, 0},
    {2, 7, 90, 4, 1, 16, 20, 0, 60, 0},  {1, 3, 30, 2, 2, 12, 25, 1.5f, 4, 0},   {1, 2, 70, 2, 1, 256, 0, 0, 64, 0},
    {2, 40, 40, 2, 2, 20, 0, 0, 0, 0},   {1, 70, 400, 4, 2, 64, 90, 0, 200, 0},  {2, 66, 150, 2, 1, 8, 0, 2, 100, 0},
    {1, 33, 50, 1, 1, 4, 0, 0, 50, 0},   {3, 1, 50, 4, 2, 16, 0, 0, 7, 21},      {3, 5, 40, 3, 1, 5, 12, 0, 30, 5},
    {3, 40, 150, 2, 1, 8, 30, 0, 0, 55}, {2, 66, 150, 2, 2, 12, 0, 2, 150, -100}};
enum { N_CACHED = sizeof cached_variants / sizeof *cached_variants };

static int64_t past_of(const run_case *c, int64_t b) {
  return ((const int32_t *) c->in[5].data)[b];
}

static void build_attention_cached(run_case *c, int variant, ts_dtype dtype) {
  const typeof(*cached_variants) *v = &cached_variants[variant];
  int64_t width = v->kv_heads * v->head_dim;
  ts_shape kept = TS_SHAPE(v->batch, v->kept, width), fresh = TS_SHAPE(v->batch, v->length, width);
  ts_shape q = TS_SHAPE(v->batch, v->length, v->heads * v->head_dim);
  const ts_shape shapes[] = {kept, kept, q, fresh, fresh};
  for (int i = 0; i < 5; ++i) {
    ops_input(c, i, dtype, shapes[i], 1.0);
  }
  c->in[c->n_in++] = run_new(TS_I32, TS_SHAPE(v->batch));
  for (int64_t b = 0; b < v->batch; ++b) {
    run_set(&c->in[5], b, (double) (v->past + b * v->apart));
  }
  for (int64_t i = 0; i < 2 * run_count(&c->in[0]); ++i) { /* what nobody sees is never read */
    int64_t at = i / 2, row = at / width % v->kept;
    if (row >= past_of(c, at / width / v->kept) + v->length) {
      run_set(&c->in[i % 2], at, NAN);
    }
  }
  c->attr.attention = (typeof(c->attr.attention)){.heads = v->heads,
                                                  .kv_heads = v->kv_heads,
                                                  .head_dim = v->head_dim,
                                                  .scale = (float) (1 / sqrt(v->head_dim)),
                                                  .softcap = v->softcap,
                                                  .causal = true,
                                                  .window = v->window};
  ops_output(c, dtype, kept);
  ops_output(c, dtype, kept);
  ops_output(c, dtype, q);
}

/* Rows past.. of a cache are new, the others as they were. */
static void keep_rows(run_case *c, int cache, int from) {
  int64_t kept = c->in[cache].shape.d[1], length = c->in[from].shape.d[1], width = ops_columns(c, cache);
  for (int64_t i = 0; i < ops_count(c, cache); ++i) {
    int64_t b = i / width / kept, t = i / width % kept - past_of(c, b);
    bool fresh = t >= 0 && t < length;
    ops_out(c, cache)[i] = fresh ? ops_in(c, from)[(b * length + t) * width + i % width] : ops_in(c, cache)[i];
  }
}

/* As one query of attention on the caches: what lies behind it is masked. */
static void attention_cached_query(run_case *c, const query *q) {
  int64_t d = c->attr.attention.head_dim;
  query place = *q;
  place.token += past_of(c, q->b);
  double sum = 0, *o = ops_out(c, 2) + q_at(c, q);
  memset(o, 0, (size_t) d * sizeof *o);
  for (int64_t key = 0; key <= place.token && place.token < q->keys; ++key) {
    const double *k = ops_out(c, 0) + k_at(c, q, key), *v = ops_out(c, 1) + k_at(c, q, key);
    double e = sees(c, &place, key) ? exp(score(c, ops_in(c, 2) + q_at(c, q), k)) : 0;
    sum += e;
    for (int64_t i = 0; i < d; ++i) {
      o[i] += e * v[i];
    }
  }
  for (int64_t i = 0; i < d && sum > 0; ++i) {
    o[i] /= sum;
  }
}

static void attention_cached(run_case *c) {
  keep_rows(c, 0, 3);
  keep_rows(c, 1, 4);
  for_queries(c, 2, 0, 6, attention_cached_query);
}

/* In fp32 a hundred roundings of 2^-24, in exponents up to ten and sums of a hundred terms. */
const op_row ops_attention[] = {
    {TS_OP_ATTENTION, N_PARTS, build_attention, attention, 100},
    {TS_OP_ATTENTION_DX, N_PARTS, build_attention_dx, attention_dx, 200},
    {TS_OP_ATTENTION_DELTA, 4, build_attention_delta, attention_delta, 64},
    {TS_OP_ATTENTION_MERGE, 4, build_attention_merge, attention_merge, 8},
    {TS_OP_ATTENTION_CACHED, N_CACHED, build_attention_cached, attention_cached, 16},
    {.reference = NULL},
};
