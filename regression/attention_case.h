/** \file
 * Attention in fp64, and the calls of kernels that are held against it: for the programs that test attention, in
 * which these short names stand for nothing else.  Nothing here is collective.
 */
#ifndef REGRESSION_ATTENTION_CASE_H
#define REGRESSION_ATTENTION_CASE_H

#include "base/dropout.h"
#include "regression/kernel_run.h"

typedef struct problem {
  int batch, length, heads, kv_heads, head_dim;
  bool causal, documents;
  float dropout;
  ts_dtype dtype;
  int window; /**< 0: none. */
  float softcap;
} problem;

enum { Q, K, V, O, D_OUT, DQ, DK, DV, N_ARRAYS };

/** Everything in fp64, in the layouts of the op; lse [B][H][T]. */
typedef struct reference {
  double *array[N_ARRAYS], *lse;
  int32_t *document;
  int64_t *sample;
} reference;

static const int64_t seed = 12345;
static const uint64_t op_name = 0x1234567890abcdefu;

/** Elements of queries, of keys, of an array. Not collective. */
static inline int64_t q_count(const problem *p) {
  return (int64_t) p->batch * p->length * p->heads * p->head_dim;
}
static inline int64_t kv_count(const problem *p) {
  return (int64_t) p->batch * p->length * p->kv_heads * p->head_dim;
}
static inline int64_t count_of(const problem *p, int array) {
  return array == K || array == V || array == DK || array == DV ? kv_count(p) : q_count(p);
}

/** A head of a token. Not collective. */
static inline double *row_of(const problem *p, double *x, int b, int t, int heads, int h) {
  return x + (((int64_t) b * p->length + t) * heads + h) * p->head_dim;
}

/** Whether query i sees key j. Not collective. */
static inline bool visible(const problem *p, const reference *r, int b, int i, int j) {
  return (!p->causal || j <= i) && (p->window == 0 || j > i - p->window) &&
         (!p->documents || r->document[b * p->length + i] == r->document[b * p->length + j]);
}

/** Number of head 0 in the whole, by which dropout goes: where the length is odd, heads are a share of more.
 * Not collective. */
static inline int first_head_of(const problem *p) {
  return p->length % 2 == 0 ? 0 : 1200;
}

/** What dropout multiplies a weight by. Not collective. */
static inline double factor(const problem *p, const reference *r, int b, int h, int i, int j) {
  if (p->dropout == 0) {
    return 1;
  }
  uint32_t word[4];
  uint64_t row = (uint64_t) (first_head_of(p) + h) * (uint64_t) p->length + (uint64_t) i;
  uint64_t element = row * (uint64_t) p->length + (uint64_t) j;
  ts_philox(ts_mix((uint64_t) seed, op_name), (uint64_t) r->sample[b], element / 4, word);
  return word[element % 4] * 0x1p-32 >= p->dropout ? 1 / (1 - (double) p->dropout) : 0;
}

/** Of two heads. Not collective. */
static inline double dot(const problem *p, const double *x, const double *y) {
  double sum = 0;
  for (int d = 0; d < p->head_dim; ++d) {
    sum += x[d] * y[d];
  }
  return sum;
}

/** What the product of query i and key j is scaled by. Not collective. */
static inline double scale_of(const problem *p) {
  return (float) (1 / sqrt((double) p->head_dim));
}

/** Their score, and its derivative by their product. Not collective. */
static inline double score_of(const problem *p, const reference *r, int b, int h, int i, int j, double *slope) {
  int g = h / (p->heads / p->kv_heads);
  double score =
      scale_of(p) * dot(p, row_of(p, r->array[Q], b, i, p->heads, h), row_of(p, r->array[K], b, j, p->kv_heads, g));
  double cap = p->softcap, t = cap > 0 ? tanh(score / cap) : 0;
  *slope = scale_of(p) * (1 - t * t);
  return cap > 0 ? cap * t : score;
}

/** Weights of query i before dropout; returns lse. Not collective. */
static inline double weights_of(const problem *p, const reference *r, int b, int h, int i, double *weight) {
  double sum = 0, slope;
  for (int j = 0; j < p->length; ++j) {
    weight[j] = visible(p, r, b, i, j) ? exp(score_of(p, r, b, h, i, j, &slope)) : 0;
    sum += weight[j];
  }
  for (int j = 0; j < p->length; ++j) {
    weight[j] /= sum;
  }
  return log(sum);
}

/** Not collective. */
static inline void fill_zero(double *to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = 0;
  }
}

/** o and lse from q, k, v. Not collective. */
static inline void forward(const problem *p, reference *r) {
  double *weight = ts_malloc((size_t) p->length * sizeof *weight);
  fill_zero(r->array[O], q_count(p));
  for (int row = 0; row < p->batch * p->heads * p->length; ++row) {
    int i = row % p->length, h = row / p->length % p->heads, b = row / p->length / p->heads;
    r->lse[row] = weights_of(p, r, b, h, i, weight);
    for (int j = 0; j < p->length; ++j) {
      double w = weight[j] * factor(p, r, b, h, i, j);
      const double *v = row_of(p, r->array[V], b, j, p->kv_heads, h / (p->heads / p->kv_heads));
      for (int d = 0; d < p->head_dim; ++d) {
        row_of(p, r->array[O], b, i, p->heads, h)[d] += w * v[d];
      }
    }
  }
  ts_free(weight);
}

/** dq, dk, dv from the rest. Not collective. */
static inline void backward(const problem *p, reference *r) {
  double *weight = ts_malloc((size_t) p->length * sizeof *weight);
  for (int a = DQ; a <= DV; ++a) {
    fill_zero(r->array[a], count_of(p, a));
  }
  for (int row = 0; row < p->batch * p->heads * p->length; ++row) {
    int i = row % p->length, h = row / p->length % p->heads, b = row / p->length / p->heads;
    int g = h / (p->heads / p->kv_heads);
    const double *d_out = row_of(p, r->array[D_OUT], b, i, p->heads, h), *q = row_of(p, r->array[Q], b, i, p->heads, h);
    double delta = dot(p, d_out, row_of(p, r->array[O], b, i, p->heads, h));
    weights_of(p, r, b, h, i, weight);
    for (int j = 0; j < p->length; ++j) {
      const double *k = row_of(p, r->array[K], b, j, p->kv_heads, g);
      double keep = factor(p, r, b, h, i, j), slope;
      score_of(p, r, b, h, i, j, &slope);
      double ds = weight[j] * (keep * dot(p, d_out, row_of(p, r->array[V], b, j, p->kv_heads, g)) - delta) * slope;
      for (int d = 0; d < p->head_dim; ++d) {
        row_of(p, r->array[DQ], b, i, p->heads, h)[d] += ds * k[d];
        row_of(p, r->array[DK], b, j, p->kv_heads, g)[d] += ds * q[d];
        row_of(p, r->array[DV], b, j, p->kv_heads, g)[d] += weight[j] * keep * d_out[d];
      }
    }
  }
  ts_free(weight);
}

/** Documents of a sample: ascending in every third one; descending from the largest number; two that take turns, the
 * smallest number and 0. Not collective. */
static inline int32_t document_of(const problem *p, int b, int t) {
  int k = t / (p->length / 3 + 1) + t / 70;
  return b % 3 == 0 ? k : b % 3 == 1 ? INT32_MAX - k : k % 2 == 0 ? INT32_MIN : 0;
}

/** Random numbers in the dtype of the problem; end with reference_free.
 * \param [in] growth  Keys become longer along the sequence, the last by 1 + growth: maxima move late. Not
 *                     collective. */
static inline reference reference_create_growing(const problem *p, float growth) {
  reference r;
  for (int a = 0; a < N_ARRAYS; ++a) {
    int64_t count = count_of(p, a);
    float *value = ts_malloc((size_t) count * sizeof *value);
    r.array[a] = ts_malloc((size_t) count * sizeof(double));
    ts_random_normal((uint64_t) a + 1, 0, count, 1, value);
    for (int64_t i = 0; i < count; ++i) {
      if (a == K) {
        value[i] *= 1 + growth * (float) (i / (p->kv_heads * p->head_dim) % p->length) / (float) p->length;
      }
      r.array[a][i] = run_rounded(p->dtype, value[i]);
    }
    ts_free(value);
  }
  r.lse = ts_malloc((size_t) (p->batch * p->heads * p->length) * sizeof(double));
  r.document = ts_malloc((size_t) (p->batch * p->length) * sizeof *r.document);
  r.sample = ts_malloc((size_t) p->batch * sizeof *r.sample);
  for (int i = 0; i < p->batch * p->length; ++i) {
    r.document[i] = document_of(p, i / p->length, i % p->length);
  }
  for (int b = 0; b < p->batch; ++b) {
    r.sample[b] = 1000 + 7 * b;
  }
  return r;
}

/** The same with keys of one length. Not collective. */
static inline reference reference_create(const problem *p) {
  return reference_create_growing(p, 0);
}

/** Free the arrays. Not collective. */
static inline void reference_free(reference *r) {
  for (int a = 0; a < N_ARRAYS; ++a) {
    ts_free(r->array[a]);
  }
  ts_free(r->lse);
  ts_free(r->document);
  ts_free(r->sample);
}

/** A tensor of the op with these numbers; NULL: zeros. Not collective. */
static inline run_tensor tensor_of(const problem *p, const double *from, ts_dtype dtype, int heads) {
  run_tensor x = run_new(dtype, TS_SHAPE(p->batch, p->length, heads * p->head_dim));
  for (int64_t i = 0; from != NULL && i < run_count(&x); ++i) {
    run_set(&x, i, from[i]);
  }
  return x;
}

/** Attributes and the optional inputs, from input \a first on. Not collective. */
static inline void add_extras(const problem *p, const reference *r, run_case *c, int first) {
  c->attr.attention = (typeof(c->attr.attention)){.heads = p->heads,
                                                  .kv_heads = p->kv_heads,
                                                  .head_dim = p->head_dim,
                                                  .scale = (float) (1 / sqrt((double) p->head_dim)),
                                                  .softcap = p->softcap,
                                                  .causal = p->causal,
                                                  .window = p->window,
                                                  .dropout = p->dropout,
                                                  .name = op_name,
                                                  .first_head = first_head_of(p)};
  c->n_in = first + 3;
  c->threads = 1;
  if (p->documents) {
    c->in[first] = run_new(TS_I32, TS_SHAPE(p->batch, p->length));
    memcpy(c->in[first].data, r->document, (size_t) (p->batch * p->length) * sizeof *r->document);
  }
  if (p->dropout > 0) {
    c->in[first + 1] = run_new(TS_I64, TS_SHAPE(1));
    run_set(&c->in[first + 1], 0, (double) seed);
    c->in[first + 2] = run_new(TS_I64, TS_SHAPE(p->batch));
    memcpy(c->in[first + 2].data, r->sample, (size_t) p->batch * sizeof *r->sample);
  }
}

/** A call of ATTENTION; end with run_free. Not collective. */
static inline run_case forward_case(const problem *p, const reference *r) {
  run_case c = {.op = TS_OP_ATTENTION, .n_out = 2};
  c.in[0] = tensor_of(p, r->array[Q], p->dtype, p->heads);
  c.in[1] = tensor_of(p, r->array[K], p->dtype, p->kv_heads);
  c.in[2] = tensor_of(p, r->array[V], p->dtype, p->kv_heads);
  c.out[0] = tensor_of(p, NULL, p->dtype, p->heads);
  c.out[1] = run_new(TS_F32, TS_SHAPE(p->batch, p->heads, p->length));
  add_extras(p, r, &c, 3);
  return c;
}

/** A call of ATTENTION_DX; o and lse are what the forward kernel made, as in training.
 * Not collective. */
static inline run_case backward_case(const problem *p, const reference *r, const run_case *f) {
  run_case c = {.op = TS_OP_ATTENTION_DX, .n_out = 3};
  c.in[0] = tensor_of(p, r->array[D_OUT], p->dtype, p->heads);
  c.in[1] = tensor_of(p, r->array[Q], p->dtype, p->heads);
  c.in[2] = tensor_of(p, r->array[K], p->dtype, p->kv_heads);
  c.in[3] = tensor_of(p, r->array[V], p->dtype, p->kv_heads);
  c.in[4] = tensor_of(p, NULL, p->dtype, p->heads);
  c.in[5] = run_new(TS_F32, TS_SHAPE(p->batch, p->heads, p->length));
  memcpy(c.in[4].data, f->out[0].data, (size_t) q_count(p) * ts_dtype_size(p->dtype));
  memcpy(c.in[5].data, f->out[1].data, (size_t) run_count(&f->out[1]) * sizeof(float));
  c.out[0] = tensor_of(p, NULL, p->dtype, p->heads);
  c.out[1] = tensor_of(p, NULL, p->dtype, p->kv_heads);
  c.out[2] = tensor_of(p, NULL, p->dtype, p->kv_heads);
  add_extras(p, r, &c, 6);
  return c;
}

/** q, k and v, or their gradients, parts 0 to 2, are columns of one tensor \a to: those of \a from go there; \a back:
 * come from there. Not collective. */
static inline void move_columns(const problem *p, int part, run_tensor *from, run_tensor *to, bool back) {
  size_t size = ts_dtype_size(p->dtype), q = (size_t) (p->heads * p->head_dim),
         k = (size_t) (p->kv_heads * p->head_dim);
  size_t first = part == 0 ? 0 : part == 1 ? q : q + k, width = part == 0 ? q : k;
  for (size_t row = 0; row < (size_t) (p->batch * p->length); ++row) {
    char *fused = (char *) to->data + (row * (q + 2 * k) + first) * size;
    char *own = (char *) from->data + row * width * size;
    memcpy(back ? own : fused, back ? fused : own, width * size);
  }
}

/** The same call with q, k and v, inputs \a first and on, in one tensor; end with run_free. Not collective. */
static inline run_case fused_case(const problem *p, run_case *c, int first) {
  run_case f = *c;
  memset(f.prior, 0, sizeof f.prior);
  for (int i = 0; i < c->n_in; ++i) {
    if (c->in[i].data != NULL) {
      f.in[i] = run_new(c->in[i].dtype, c->in[i].shape);
      memcpy(f.in[i].data, c->in[i].data, run_bytes(&c->in[i]));
    }
  }
  run_tensor x = tensor_of(p, NULL, p->dtype, p->heads + 2 * p->kv_heads);
  for (int i = 0; i < 3; ++i) {
    move_columns(p, i, &c->in[first + i], &x, false);
    ts_free(f.in[first + i].data);
    f.in[first + i] = x;
  }
  f.attr.attention.fused_qkv = true;
  f.n_out = f.op == TS_OP_ATTENTION_DX ? 1 : f.n_out;
  for (int i = 0; i < RUN_MAX; ++i) {
    f.out[i].data = NULL;
  }
  for (int i = 0; i < f.n_out; ++i) {
    f.out[i] = f.op == TS_OP_ATTENTION_DX ? run_new(p->dtype, x.shape) : run_new(c->out[i].dtype, c->out[i].shape);
  }
  return f;
}

/** Largest difference over largest value: errors of a sum are proportional to its terms, which are alike here.
 * Not collective. */
static inline double distance(const run_tensor *x, const double *exact) {
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < run_count(x); ++i) {
    double difference = fabs(run_get(x, i) - exact[i]);
    worst = difference <= worst ? worst : difference; /* NaN is a difference */
    largest = fmax(largest, fabs(exact[i]));
  }
  return worst / fmax(largest, 1e-6); /* a sequence of one token has zero gradients */
}

#endif
