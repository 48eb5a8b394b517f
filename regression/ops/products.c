/* References of the ops whose kernels have tests of their own: products, attention, the head, windows. */
#include "regression/ops/ops.h"

static void view(run_case *c) {
  memcpy(ops_out(c, 0), ops_in(c, 0) + c->attr.view.offset, (size_t) run_count(&c->out[0]) * sizeof(double));
}

static void matmul(run_case *c) {
  bool across = c->attr.matmul.transpose_a, turned = c->attr.matmul.transpose_b;
  int64_t m = across ? ops_columns(c, 0) : ops_rows(c, 0), k = across ? ops_rows(c, 0) : ops_columns(c, 0);
  int64_t n = turned ? ops_rows(c, 1) : ops_columns(c, 1);
  const double *a = ops_in(c, 0), *b = ops_in(c, 1);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = c->n_in > 2 && c->in[2].data != NULL ? ops_in(c, 2)[j] : 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += a[across ? l * m + i : i * k + l] * b[turned ? j * k + l : l * n + j];
      }
      ops_out(c, 0)[i * n + j] = sum;
    }
  }
}

/* The fused products are bf16 whatever the activations are; rows, inner and outer extents. */
static const int64_t fused[][3] = {{1, 1, 8}, {6, 17, 24}, {70, 33, 72}};

static void build_fused(run_case *c, int variant, bool turned) {
  const int64_t *e = fused[variant];
  ops_input(c, 0, TS_BF16, TS_SHAPE(2, e[0], e[1]), 1.0);
  ops_input(c, 1, TS_BF16, turned ? TS_SHAPE(e[2], e[1]) : TS_SHAPE(e[1], e[2]), 1.0);
  c->attr.matmul.transpose_b = turned;
  c->attr.matmul.dtype = TS_BF16;
}

static void build_matmul_gelu(run_case *c, int variant, ts_dtype dtype) {
  (void) dtype;
  build_fused(c, variant, variant % 2 == 1);
  ops_input(c, 2, TS_BF16, TS_SHAPE(fused[variant][2]), 1.0);
  for (int i = 0; i < 2; ++i) {
    ops_output(c, TS_BF16, TS_SHAPE(2, fused[variant][0], fused[variant][2]));
  }
}

static void build_matmul_dgelu(run_case *c, int variant, ts_dtype dtype) {
  (void) dtype;
  build_fused(c, variant, variant % 2 == 0);
  ops_input(c, 2, TS_BF16, TS_SHAPE(2, fused[variant][0], fused[variant][2]), 1.0);
  ops_output(c, TS_BF16, TS_SHAPE(2, fused[variant][0], fused[variant][2]));
}

static double gelu_tanh(double x) {
  return tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
}

static void matmul_gelu(run_case *c) {
  matmul(c);
  for (int64_t i = 0; i < run_count(&c->out[0]); ++i) {
    double x = ops_out(c, 0)[i];
    ops_out(c, 1)[i] = x;
    ops_out(c, 0)[i] = 0.5 * x * (1 + gelu_tanh(x));
  }
}

static void matmul_dgelu(run_case *c) {
  run_case product = *c;
  product.n_in = 2;
  matmul(&product);
  for (int64_t i = 0; i < run_count(&c->out[0]); ++i) {
    double x = ops_in(c, 2)[i], t = gelu_tanh(x);
    ops_out(c, 0)[i] *= 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
  }
}

/* One query of one head: what both directions of attention need.  Optional inputs begin at `optional`. */
typedef struct query {
  int64_t b, h, t, length, kv; /* kv: the head of k and v */
  int optional;
} query;

static int64_t row_at(const run_case *c, const query *q, int64_t t, bool of_keys) {
  int64_t heads = of_keys ? c->attr.attention.kv_heads : c->attr.attention.heads, head = of_keys ? q->kv : q->h;
  return ((q->b * q->length + t) * heads + head) * c->attr.attention.head_dim;
}

static double dot(const double *a, const double *b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

static bool sees(const run_case *c, const query *q, int64_t key) {
  const int32_t *document = c->n_in > q->optional ? c->in[q->optional].data : NULL;
  bool same = document == NULL || document[q->b * q->length + q->t] == document[q->b * q->length + key];
  int64_t window = c->attr.attention.window;
  return same && !(c->attr.attention.causal && key > q->t) && (window == 0 || key > q->t - window);
}

/* What dropout multiplies the weight of a key with. */
static double kept(const run_case *c, const query *q, int64_t key) {
  double p = c->attr.attention.dropout;
  if (p == 0) {
    return 1;
  }
  int64_t seed = *(const int64_t *) c->in[q->optional + 1].data;
  int64_t sample = ((const int64_t *) c->in[q->optional + 2].data)[q->b];
  return ops_keep(seed, c->attr.attention.name, sample, (q->h * q->length + q->t) * q->length + key, p) / (1 - p);
}

static double score(const run_case *c, const query *q, const double *queries, const double *keys, int64_t key) {
  int64_t d = c->attr.attention.head_dim;
  double cap = c->attr.attention.softcap, s = c->attr.attention.scale;
  s *= dot(queries + row_at(c, q, q->t, false), keys + row_at(c, q, key, true), d);
  return cap > 0 ? cap * tanh(s / cap) : s;
}

/* Of a score by the product of query and key. */
static double slope(const run_case *c, double score) {
  double capped = c->attr.attention.softcap > 0 ? score / c->attr.attention.softcap : 0;
  return c->attr.attention.scale * (1 - capped * capped);
}

/* Call `each` for every query of every head. */
static void for_queries(run_case *c, int q_input, int optional, void (*each)(run_case *c, const query *q)) {
  const ts_shape *shape = &c->in[q_input].shape;
  int64_t group = c->attr.attention.heads / c->attr.attention.kv_heads;
  for (int64_t b = 0; b < shape->d[0]; ++b) {
    for (int64_t h = 0; h < c->attr.attention.heads; ++h) {
      for (int64_t t = 0; t < shape->d[1]; ++t) {
        each(c, &(query){b, h, t, shape->d[1], h / group, optional});
      }
    }
  }
}

static void attention_query(run_case *c, const query *q) {
  int64_t d = c->attr.attention.head_dim;
  double sum = 0, *o = ops_out(c, 0) + row_at(c, q, q->t, false);
  memset(o, 0, (size_t) d * sizeof *o);
  for (int64_t key = 0; key < q->length; ++key) {
    double e = sees(c, q, key) ? exp(score(c, q, ops_in(c, 0), ops_in(c, 1), key)) : 0;
    sum += e;
    for (int64_t i = 0; i < d; ++i) {
      o[i] += e * kept(c, q, key) * ops_in(c, 2)[row_at(c, q, key, true) + i];
    }
  }
  for (int64_t i = 0; i < d; ++i) {
    o[i] /= sum;
  }
  ops_out(c, 1)[(q->b * c->attr.attention.heads + q->h) * q->length + q->t] = log(sum);
}

static void attention(run_case *c) {
  for_queries(c, 0, 3, attention_query);
}

/* {batch, new tokens, rows of the caches, query heads, key heads, elements of a head, window, softcap, tokens before}:
 * all new; one more; the last that fits, of odd size; more than fit; beyond everything; a window that is shorter than
 * what is kept, and one that is not reached; the largest head.  Then so many tokens that they go block by block: on
 * an empty cache, behind others with a window, with a softcap and no room for the last. */
static const struct {
  int64_t batch, length, kept;
  int heads, kv_heads, head_dim, window;
  float softcap;
  int32_t past;
} cached_variants[] = {
    {1, 1, 1, 1, 1, 1, 0, 0, 0},     {2, 5, 9, 4, 2, 6, 0, 0, 0},        {1, 1, 300, 4, 4, 64, 0, 0, 270},
    {2, 3, 40, 3, 1, 5, 0, 0, 37},   {2, 4, 10, 2, 2, 8, 0, 2.5f, 8},    {1, 2, 6, 2, 1, 3, 0, 0, 9},
    {2, 7, 90, 4, 1, 16, 20, 0, 60}, {1, 3, 30, 2, 2, 12, 25, 1.5f, 4},  {1, 2, 70, 2, 1, 256, 0, 0, 64},
    {2, 40, 40, 2, 2, 20, 0, 0, 0},  {1, 70, 400, 4, 2, 64, 90, 0, 200}, {2, 66, 150, 2, 1, 8, 0, 2, 100},
    {1, 33, 50, 1, 1, 4, 0, 0, 50}};
enum { N_CACHED = sizeof cached_variants / sizeof *cached_variants };

static void build_attention_cached(run_case *c, int variant, ts_dtype dtype) {
  const typeof(*cached_variants) *v = &cached_variants[variant];
  int64_t width = v->kv_heads * v->head_dim;
  ts_shape kept = TS_SHAPE(v->batch, v->kept, width), fresh = TS_SHAPE(v->batch, v->length, width);
  ts_shape q = TS_SHAPE(v->batch, v->length, v->heads * v->head_dim);
  const ts_shape shapes[] = {kept, kept, q, fresh, fresh};
  for (int i = 0; i < 5; ++i) {
    ops_input(c, i, dtype, shapes[i], 1.0);
  }
  c->in[c->n_in++] = run_new(TS_I32, TS_SHAPE(1));
  run_set(&c->in[5], 0, v->past);
  for (int64_t i = 0; i < 2 * run_count(&c->in[0]); ++i) { /* what nobody sees is never read */
    int64_t at = i / 2, row = at / width % v->kept;
    if (row >= v->past + v->length) {
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
static void keep_rows(run_case *c, int cache, int from, int64_t past) {
  int64_t kept = c->in[cache].shape.d[1], length = c->in[from].shape.d[1], width = ops_columns(c, cache);
  for (int64_t i = 0; i < ops_count(c, cache); ++i) {
    int64_t b = i / width / kept, t = i / width % kept - past;
    bool fresh = t >= 0 && t < length;
    ops_out(c, cache)[i] = fresh ? ops_in(c, from)[(b * length + t) * width + i % width] : ops_in(c, cache)[i];
  }
}

/* As one query of attention on the caches: what lies behind it is masked. */
static void attention_cached_query(run_case *c, const query *q) {
  int64_t kept = c->in[0].shape.d[1], d = c->attr.attention.head_dim, past = *(const int32_t *) c->in[5].data;
  query place = *q;
  place.length = kept;
  place.t = past + q->t;
  const double *mine = ops_in(c, 2) + row_at(c, q, q->t, false);
  double sum = 0, *o = ops_out(c, 2) + row_at(c, q, q->t, false);
  memset(o, 0, (size_t) d * sizeof *o);
  for (int64_t key = 0; key < kept && key <= place.t && place.t < kept; ++key) {
    const double *k = ops_out(c, 0) + row_at(c, &place, key, true), *v = ops_out(c, 1) + row_at(c, &place, key, true);
    double cap = c->attr.attention.softcap, s = c->attr.attention.scale * dot(mine, k, d);
    double e = sees(c, &place, key) ? exp(cap > 0 ? cap * tanh(s / cap) : s) : 0;
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
  int64_t past = *(const int32_t *) c->in[5].data;
  keep_rows(c, 0, 3, past);
  keep_rows(c, 1, 4, past);
  for_queries(c, 2, 6, attention_cached_query);
}

static void attention_dx_query(run_case *c, const query *q) {
  enum { DO, Q, K, V, O, LSE };
  int64_t d = c->attr.attention.head_dim, at = row_at(c, q, q->t, false);
  double delta = dot(ops_in(c, DO) + at, ops_in(c, O) + at, d);
  double lse = ops_in(c, LSE)[(q->b * c->attr.attention.heads + q->h) * q->length + q->t];
  for (int64_t key = 0; key < q->length; ++key) {
    int64_t to = row_at(c, q, key, true);
    double s = score(c, q, ops_in(c, Q), ops_in(c, K), key);
    double p = sees(c, q, key) ? exp(s - lse) : 0, factor = kept(c, q, key);
    double ds = slope(c, s) * p * (factor * dot(ops_in(c, DO) + at, ops_in(c, V) + to, d) - delta);
    for (int64_t i = 0; i < d; ++i) {
      ops_out(c, 0)[at + i] += ds * ops_in(c, K)[to + i];
      ops_out(c, 1)[to + i] += ds * ops_in(c, Q)[at + i];
      ops_out(c, 2)[to + i] += p * factor * ops_in(c, DO)[at + i];
    }
  }
}

static void attention_dx(run_case *c) {
  for (int i = 0; i < 3; ++i) {
    memset(ops_out(c, i), 0, (size_t) run_count(&c->out[i]) * sizeof(double));
  }
  for_queries(c, 1, 6, attention_dx_query);
}

static const int32_t ignored = -100;

/* Logit v of a row of x, and its slope by the product. */
static double logit_of(const run_case *c, const double *x, int64_t v, double *slope) {
  double scale = c->attr.head.scale, softcap = c->attr.head.softcap;
  double z = scale * dot(x, ops_in(c, 1) + v * ops_columns(c, 1), ops_columns(c, 1));
  double t = softcap > 0 ? tanh(z / softcap) : 0;
  *slope = scale * (1 - t * t);
  return softcap > 0 ? softcap * t : z;
}

/* log (sum (exp (logits))) of a row of x. */
static double row_lse(const run_case *c, const double *x) {
  double sum = 0, slope;
  for (int64_t v = 0; v < ops_rows(c, 1); ++v) {
    sum += exp(logit_of(c, x, v, &slope));
  }
  return log(sum);
}

/* The label of a row among w's rows, -1: none of them. */
static int64_t own_label(const run_case *c, int64_t row) {
  int64_t label = ((const int32_t *) c->in[2].data)[row], at = label - c->attr.head.first;
  return label == ignored || at < 0 || at >= ops_rows(c, 1) ? -1 : at;
}

/* What the ranks that share the vocabulary measured, input `at`: of all of them, and the logit of the label. */
static double shared_lse(const run_case *c, int at, int64_t row, double *logit) {
  double sum = 0;
  *logit = 0;
  for (int64_t r = 0; r < c->in[at].shape.d[0]; ++r) {
    const double *stats = ops_in(c, at) + 2 * (r * ops_rows(c, 0) + row);
    sum += exp(stats[0]);
    *logit += stats[1];
  }
  return log(sum);
}

static void head_stats(run_case *c) {
  double slope;
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *x = ops_in(c, 0) + row * ops_columns(c, 0);
    int64_t label = own_label(c, row);
    ops_out(c, 0)[2 * row] = row_lse(c, x);
    ops_out(c, 0)[2 * row + 1] = label < 0 ? 0 : logit_of(c, x, label, &slope);
  }
}

static void head_loss(run_case *c) {
  double loss = 0, valid = 0, slope, logit;
  int64_t n = ops_columns(c, 0);
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *x = ops_in(c, 0) + row * n;
    int32_t label = ((const int32_t *) c->in[2].data)[row];
    if (label != ignored && c->n_in > 3) {
      double lse = shared_lse(c, 3, row, &logit);
      loss += lse - logit;
    } else if (label != ignored) {
      loss += row_lse(c, x) - logit_of(c, x, label, &slope);
    }
    valid += label != ignored;
  }
  ops_out(c, 0)[0] = loss;
  ops_out(c, 1)[0] = valid;
}

static void head_loss_dx(run_case *c) {
  int64_t n = ops_columns(c, 0);
  const double *w = ops_in(c, 1);
  memset(ops_out(c, 0), 0, (size_t) ops_count(c, 0) * sizeof(double));
  memset(ops_out(c, 1), 0, (size_t) ops_count(c, 1) * sizeof(double));
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *x = ops_in(c, 0) + row * n;
    int32_t label = ((const int32_t *) c->in[2].data)[row];
    double logit_at_label, seed = label == ignored ? 0 : ops_in(c, 3)[0];
    double lse = c->n_in > 4 ? shared_lse(c, 4, row, &logit_at_label) : row_lse(c, x);
    for (int64_t v = 0; v < ops_rows(c, 1); ++v) {
      double slope, logit = logit_of(c, x, v, &slope);
      slope *= seed * (exp(logit - lse) - (v == own_label(c, row)));
      for (int64_t i = 0; i < n; ++i) {
        ops_out(c, 0)[row * n + i] += slope * w[v * n + i];
        ops_out(c, 1)[v * n + i] += slope * x[i];
      }
    }
  }
}

const op_row ops_products[] = {
    {.op = TS_OP_VIEW, .reference = view},
    {.op = TS_OP_MATMUL, .reference = matmul},
    {TS_OP_MATMUL_GELU, 3, build_matmul_gelu, matmul_gelu, 64},
    {TS_OP_MATMUL_DGELU, 3, build_matmul_dgelu, matmul_dgelu, 64},
    {.op = TS_OP_ATTENTION, .reference = attention},
    {.op = TS_OP_ATTENTION_DX, .reference = attention_dx},
    {TS_OP_ATTENTION_CACHED, N_CACHED, build_attention_cached, attention_cached, 16},
    {.op = TS_OP_HEAD_STATS, .reference = head_stats},
    {.op = TS_OP_HEAD_LOSS, .reference = head_loss},
    {.op = TS_OP_HEAD_LOSS_DX, .reference = head_loss_dx},
    {.reference = NULL},
};
