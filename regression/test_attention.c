/* ATTENTION and ATTENTION_DX against fp64 at odd sizes, with groups of query heads, documents and dropout; the
 * reference itself against central differences; equal bits on 1, 2 and 3 threads. */
#include "backend/cpu/dropout.h"
#include "regression/backends.h"
#include "regression/kernel_run.h"
#include "regression/tap.h"

static const ts_backend *backend;

typedef struct problem {
  int batch, length, heads, kv_heads, head_dim;
  bool causal, documents;
  float dropout;
  ts_dtype dtype;
} problem;

enum { Q, K, V, O, D_OUT, DQ, DK, DV, N_ARRAYS };

/* Everything in fp64, in the layouts of the op; lse [B][H][T]. */
typedef struct reference {
  double *array[N_ARRAYS], *lse;
  int32_t *document;
  int64_t *sample;
} reference;

static const int64_t seed = 12345;
static const uint64_t op_name = 0x1234567890abcdefu;

static int64_t q_count(const problem *p) { return (int64_t) p->batch * p->length * p->heads * p->head_dim; }
static int64_t kv_count(const problem *p) { return (int64_t) p->batch * p->length * p->kv_heads * p->head_dim; }

static int64_t count_of(const problem *p, int array) {
  return array == K || array == V || array == DK || array == DV ? kv_count(p) : q_count(p);
}

static double *row_of(const problem *p, double *x, int b, int t, int heads, int h) {
  return x + (((int64_t) b * p->length + t) * heads + h) * p->head_dim;
}

static bool visible(const problem *p, const reference *r, int b, int i, int j) {
  return (!p->causal || j <= i) &&
         (!p->documents || r->document[b * p->length + i] == r->document[b * p->length + j]);
}

static double factor(const problem *p, const reference *r, int b, int h, int i, int j) {
  if (p->dropout == 0) {
    return 1;
  }
  uint32_t word[4];
  uint64_t element = ((uint64_t) h * (uint64_t) p->length + (uint64_t) i) * (uint64_t) p->length + (uint64_t) j;
  ts_philox(ts_mix((uint64_t) seed, op_name), (uint64_t) r->sample[b], element / 4, word);
  return word[element % 4] * 0x1p-32 >= p->dropout ? 1 / (1 - (double) p->dropout) : 0;
}

static double dot(const problem *p, const double *x, const double *y) {
  double sum = 0;
  for (int d = 0; d < p->head_dim; ++d) {
    sum += x[d] * y[d];
  }
  return sum;
}

/* Weights of query i before dropout; returns lse. */
static double weights_of(const problem *p, const reference *r, int b, int h, int i, double *weight) {
  int g = h / (p->heads / p->kv_heads);
  double sum = 0, scale = 1 / sqrt((double) p->head_dim);
  for (int j = 0; j < p->length; ++j) {
    double score = dot(p, row_of(p, r->array[Q], b, i, p->heads, h), row_of(p, r->array[K], b, j, p->kv_heads, g));
    weight[j] = visible(p, r, b, i, j) ? exp((double) (float) scale * score) : 0;
    sum += weight[j];
  }
  for (int j = 0; j < p->length; ++j) {
    weight[j] /= sum;
  }
  return log(sum);
}

static void forward(const problem *p, reference *r) {
  double *weight = ts_malloc((size_t) p->length * sizeof *weight);
  memset(r->array[O], 0, (size_t) q_count(p) * sizeof(double));
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

static void backward(const problem *p, reference *r) {
  double *weight = ts_malloc((size_t) p->length * sizeof *weight), scale = (float) (1 / sqrt((double) p->head_dim));
  for (int a = DQ; a <= DV; ++a) {
    memset(r->array[a], 0, (size_t) count_of(p, a) * sizeof(double));
  }
  for (int row = 0; row < p->batch * p->heads * p->length; ++row) {
    int i = row % p->length, h = row / p->length % p->heads, b = row / p->length / p->heads;
    int g = h / (p->heads / p->kv_heads);
    const double *d_out = row_of(p, r->array[D_OUT], b, i, p->heads, h), *q = row_of(p, r->array[Q], b, i, p->heads, h);
    double delta = dot(p, d_out, row_of(p, r->array[O], b, i, p->heads, h));
    weights_of(p, r, b, h, i, weight);
    for (int j = 0; j < p->length; ++j) {
      const double *k = row_of(p, r->array[K], b, j, p->kv_heads, g);
      double keep = factor(p, r, b, h, i, j);
      double ds = weight[j] * (keep * dot(p, d_out, row_of(p, r->array[V], b, j, p->kv_heads, g)) - delta) * scale;
      for (int d = 0; d < p->head_dim; ++d) {
        row_of(p, r->array[DQ], b, i, p->heads, h)[d] += ds * k[d];
        row_of(p, r->array[DK], b, j, p->kv_heads, g)[d] += ds * q[d];
        row_of(p, r->array[DV], b, j, p->kv_heads, g)[d] += weight[j] * keep * d_out[d];
      }
    }
  }
  ts_free(weight);
}

static reference reference_create(const problem *p) {
  reference r;
  for (int a = 0; a < N_ARRAYS; ++a) {
    int64_t count = count_of(p, a);
    float *value = ts_malloc((size_t) count * sizeof *value);
    r.array[a] = ts_malloc((size_t) count * sizeof(double));
    ts_random_normal((uint64_t) a + 1, 0, count, 1, value);
    for (int64_t i = 0; i < count; ++i) {
      r.array[a][i] = p->dtype == TS_BF16 ? ts_bf16_to_f32(ts_f32_to_bf16(value[i])) : value[i];
    }
    ts_free(value);
  }
  r.lse = ts_malloc((size_t) (p->batch * p->heads * p->length) * sizeof(double));
  r.document = ts_malloc((size_t) (p->batch * p->length) * sizeof *r.document);
  r.sample = ts_malloc((size_t) p->batch * sizeof *r.sample);
  for (int i = 0; i < p->batch * p->length; ++i) {
    r.document[i] = i % p->length / (p->length / 3 + 1) + i % p->length / 70;
  }
  for (int b = 0; b < p->batch; ++b) {
    r.sample[b] = 1000 + 7 * b;
  }
  return r;
}

static void reference_free(reference *r) {
  for (int a = 0; a < N_ARRAYS; ++a) {
    ts_free(r->array[a]);
  }
  ts_free(r->lse);
  ts_free(r->document);
  ts_free(r->sample);
}

static run_tensor tensor_of(const problem *p, const double *from, ts_dtype dtype, int heads) {
  run_tensor x = run_new(dtype, TS_SHAPE(p->batch, p->length, heads * p->head_dim));
  for (int64_t i = 0; from != NULL && i < run_count(&x); ++i) {
    run_set(&x, i, from[i]);
  }
  return x;
}

static void add_extras(const problem *p, const reference *r, run_case *c, int first) {
  c->attr.attention = (typeof(c->attr.attention)){.heads = p->heads, .kv_heads = p->kv_heads, .head_dim = p->head_dim,
                                                  .scale = (float) (1 / sqrt((double) p->head_dim)),
                                                  .causal = p->causal, .dropout = p->dropout, .name = op_name};
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

static run_case forward_case(const problem *p, const reference *r) {
  run_case c = {.op = TS_OP_ATTENTION, .n_out = 2};
  c.in[0] = tensor_of(p, r->array[Q], p->dtype, p->heads);
  c.in[1] = tensor_of(p, r->array[K], p->dtype, p->kv_heads);
  c.in[2] = tensor_of(p, r->array[V], p->dtype, p->kv_heads);
  c.out[0] = tensor_of(p, NULL, p->dtype, p->heads);
  c.out[1] = run_new(TS_F32, TS_SHAPE(p->batch, p->heads, p->length));
  add_extras(p, r, &c, 3);
  return c;
}

/* o and lse are what the forward kernel made, as in training. */
static run_case backward_case(const problem *p, const reference *r, const run_case *f) {
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

/* Largest difference over largest value: errors of a sum are proportional to its terms, which are alike here. */
static double distance(const run_tensor *x, const double *exact) {
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < run_count(x); ++i) {
    double difference = fabs(run_get(x, i) - exact[i]);
    worst = difference <= worst ? worst : difference; /* NaN is a difference */
    largest = fmax(largest, fabs(exact[i]));
  }
  return worst / fmax(largest, 1e-6); /* a sequence of one token has zero gradients */
}

static bool run_with(run_case *c, int threads) {
  c->threads = threads;
  for (int i = 0; i < c->n_out; ++i) {
    memset(c->out[i].data, 0xff, (size_t) run_count(&c->out[i]) * ts_dtype_size(c->out[i].dtype)); /* NaN */
  }
  return run_kernel(backend, c);
}

static bool same_on_threads(run_case *c) {
  void *one[3] = {NULL};
  bool good = true;
  for (int i = 0; i < c->n_out; ++i) {
    size_t bytes = (size_t) run_count(&c->out[i]) * ts_dtype_size(c->out[i].dtype);
    one[i] = ts_malloc(bytes);
    memcpy(one[i], c->out[i].data, bytes);
  }
  for (int threads = 2; threads <= 3; ++threads) {
    good = run_with(c, threads) && good;
    for (int i = 0; i < c->n_out; ++i) {
      good = good && run_same(&c->out[i], one[i]);
    }
  }
  for (int i = 0; i < c->n_out; ++i) {
    ts_free(one[i]);
  }
  return good;
}

/* fp32: a hundred roundings of 2^-24 in exponents up to ten and sums of a hundred terms: 10^-5 leaves a factor of ten.
 * bf16: weights, score gradients and results are each rounded to 2^-9 of themselves, and delta takes the rounding of o:
 * together below 2^-6 of the largest value. */
static void check(const problem *p) {
  double tolerance = p->dtype == TS_F32 ? 1e-5 : 0x1p-6, worst[4];
  reference r = reference_create(p);
  forward(p, &r);
  backward(p, &r);
  run_case f = forward_case(p, &r);
  bool clean = run_with(&f, 1);
  run_case g = backward_case(p, &r, &f);
  clean = run_with(&g, 1) && clean;
  worst[0] = distance(&f.out[0], r.array[O]);
  double lse = distance(&f.out[1], r.lse);
  for (int i = 0; i < 3; ++i) {
    worst[1 + i] = distance(&g.out[i], r.array[DQ + i]);
  }
  bool close = lse <= 1e-5; /* never rounded to bf16 */
  for (int i = 0; i < 4; ++i) {
    close = close && worst[i] <= tolerance;
  }
  bool equal = same_on_threads(&f) && same_on_threads(&g);
  tap_ok(close && clean && equal, "B%d T%d H%d/%d D%d %s%s%s dropout %g%s%s", p->batch, p->length, p->heads,
         p->kv_heads, p->head_dim, ts_dtype_name(p->dtype), p->causal ? " causal" : "",
         p->documents ? " documents" : "", p->dropout,
         clean ? "" : ": writes past its workspace", equal ? "" : ": depends on threads");
  if (!close) {
    tap_note("o %g lse %g dq %g dk %g dv %g, tolerance %g", worst[0], lse, worst[1], worst[2], worst[3], tolerance);
  }
  run_free(&f);
  run_free(&g);
  reference_free(&r);
}

/* The gradient of the reference against central differences of sum (d_out o): error h^2, about 1e-8 of values near 1.
 * */
static void check_differences(void) {
  problem p = {1, 5, 4, 2, 3, true, true, 0.4f, TS_F32};
  reference r = reference_create(&p);
  forward(&p, &r);
  backward(&p, &r);
  double worst = 0, h = 1e-4;
  for (int a = Q; a <= V; ++a) {
    for (int64_t i = 0; i < count_of(&p, a); ++i) {
      double difference = 0, value = r.array[a][i];
      for (int side = -1; side <= 1; side += 2) {
        r.array[a][i] = value + side * h;
        forward(&p, &r);
        for (int64_t e = 0; e < q_count(&p); ++e) {
          difference += side * r.array[D_OUT][e] * r.array[O][e] / (2 * h);
        }
      }
      r.array[a][i] = value;
      worst = fmax(worst, fabs(difference - r.array[DQ + a][i]));
    }
  }
  tap_ok(worst < 1e-6, "the reference agrees with its differences: %g", worst);
  reference_free(&r);
}

/* Dropout of values 1: each output is the kept weight over 1 - p, whose mean is 1 over all outputs. */
static void check_dropout_mean(void) {
  problem p = {4, 200, 3, 3, 16, false, false, 0.3f, TS_F32};
  reference r = reference_create(&p);
  for (int64_t i = 0; i < kv_count(&p); ++i) {
    r.array[V][i] = 1;
  }
  run_case f = forward_case(&p, &r);
  bool clean = run_with(&f, 2);
  double sum = 0;
  int64_t n = q_count(&p) / p.head_dim;
  for (int64_t i = 0; i < n; ++i) {
    sum += run_get(&f.out[0], i * p.head_dim);
  }
  /* variance of an output: sum of weight^2 p / (1 - p) < 0.43, of the mean of 2400: 0.0134^2; five of them */
  tap_ok(clean && fabs(sum / (double) n - 1) < 0.067, "mean after dropout is %g", sum / (double) n);
  run_free(&f);
  reference_free(&r);
}

int main(void) {
  backend = test_backend();
  if (backend == NULL) {
    return tap_done();
  }
  static const problem shapes[] = {
      {1, 1, 1, 1, 1, true, false, 0, 0}, {2, 3, 2, 1, 5, true, false, 0, 0},
      {1, 17, 3, 3, 16, false, false, 0, 0}, {2, 67, 4, 2, 24, true, false, 0, 0},
      {1, 64, 2, 2, 64, true, false, 0, 0}, {1, 129, 6, 2, 40, true, true, 0, 0},
      {1, 300, 2, 1, 64, true, false, 0, 0}, {1, 261, 1, 1, 80, false, true, 0, 0},
      {2, 66, 2, 1, 32, true, false, 0.25f, 0}, {1, 193, 2, 2, 9, true, true, 0.5f, 0},
      {1, 150, 1, 1, 128, true, false, 0, 0}, {1, 131, 2, 1, 17, false, false, 0.1f, 0},
  };
  check_differences();
  check_dropout_mean();
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
    for (int dtype = TS_F32; dtype <= TS_BF16; ++dtype) {
      problem p = shapes[i];
      p.dtype = (ts_dtype) dtype;
      check(&p);
    }
  }
  test_backend_close();
  tap_ok(ts_memory_live() == 0, "everything is freed");
  return tap_done();
}
