/* HEAD_LOSS, HEAD_LOSS_DX and HEAD_LOSS_TRAIN against fp64: ignored labels, several chunks, priors; the reference
 * against central differences; equal bits on 1, 2 and 3 threads.  The same of ranks that share the vocabulary, by
 * HEAD_STATS. */
#include "regression/backends.h"
#include "regression/kernel_run.h"
#include "regression/tap.h"

static const ts_backend *backend;

typedef struct problem {
  int batch, length, width, vocabulary;
  ts_dtype dtype, dw_dtype;
  enum { NO_PRIOR, SAME, OTHER } prior;
  float beta;
  float scale, softcap; /* of the logits */
} problem;

static const float seed = 0.03125f;

typedef struct reference {
  double *x, *w, *dx, *dw, *prior; /* [rows][C], [V][C] */
  int32_t *label;
  double loss, valid;
} reference;

static int64_t rows_of(const problem *p) {
  return (int64_t) p->batch * p->length;
}

static double *random_values(int64_t count, uint64_t key, double std, ts_dtype dtype) {
  float *value = ts_malloc((size_t) count * sizeof *value);
  double *result = ts_malloc((size_t) count * sizeof *result);
  ts_random_normal(key, 0, count, std, value);
  for (int64_t i = 0; i < count; ++i) {
    result[i] = run_rounded(dtype, value[i]);
  }
  ts_free(value);
  return result;
}

/* What is done to a logit, and its slope. */
static double shape_logit(const problem *p, double logit, double *slope) {
  double z = p->scale * logit, t = p->softcap > 0 ? tanh(z / p->softcap) : 0;
  *slope = p->scale * (1 - t * t);
  return p->softcap > 0 ? p->softcap * t : z;
}

/* Softmax of a row in place; returns the logarithm of the sum. */
static double softmax(double *logit, int n) {
  double max = logit[0], sum = 0;
  for (int v = 1; v < n; ++v) {
    max = fmax(max, logit[v]);
  }
  for (int v = 0; v < n; ++v) {
    sum += exp(logit[v] - max);
  }
  for (int v = 0; v < n; ++v) {
    logit[v] = exp(logit[v] - max) / sum;
  }
  return max + log(sum);
}

static void compute(const problem *p, reference *r) {
  double *logit = ts_malloc((size_t) p->vocabulary * 2 * sizeof *logit), *slope = logit + p->vocabulary;
  r->loss = r->valid = 0;
  for (int64_t i = 0; i < rows_of(p) * p->width; ++i) {
    r->dx[i] = 0;
  }
  for (int64_t i = 0; i < (int64_t) p->vocabulary * p->width; ++i) {
    r->dw[i] = p->prior == NO_PRIOR || p->beta == 0 ? 0 : p->beta * r->prior[i];
  }
  for (int64_t row = 0; row < rows_of(p); ++row) {
    if (r->label[row] == -100) {
      continue;
    }
    for (int v = 0; v < p->vocabulary; ++v) {
      logit[v] = 0;
      for (int c = 0; c < p->width; ++c) {
        logit[v] += r->x[row * p->width + c] * r->w[(int64_t) v * p->width + c];
      }
      logit[v] = shape_logit(p, logit[v], &slope[v]);
    }
    double at_label = logit[r->label[row]];
    r->loss += softmax(logit, p->vocabulary) - at_label;
    r->valid += 1;
    logit[r->label[row]] -= 1;
    for (int v = 0; v < p->vocabulary; ++v) {
      logit[v] *= slope[v];
      for (int c = 0; c < p->width; ++c) {
        r->dx[row * p->width + c] += seed * logit[v] * r->w[(int64_t) v * p->width + c];
        r->dw[(int64_t) v * p->width + c] += seed * logit[v] * r->x[row * p->width + c];
      }
    }
  }
  ts_free(logit);
}

static reference reference_create(const problem *p) {
  int64_t n_x = rows_of(p) * p->width, n_w = (int64_t) p->vocabulary * p->width;
  reference r = {.x = random_values(n_x, 1, 1, p->dtype),
                 .w = random_values(n_w, 2, 0.5, p->dtype),
                 .prior = random_values(n_w, 3, 0.1, p->dw_dtype)};
  r.dx = ts_calloc((size_t) n_x, sizeof *r.dx);
  r.dw = ts_calloc((size_t) n_w, sizeof *r.dw);
  r.label = ts_malloc((size_t) rows_of(p) * sizeof *r.label);
  for (int64_t i = 0; i < rows_of(p); ++i) {
    r.label[i] = i % 5 == 3 ? -100 : (int32_t) (i * 7 % p->vocabulary);
  }
  compute(p, &r);
  return r;
}

static void reference_free(reference *r) {
  ts_free(r->x);
  ts_free(r->w);
  ts_free(r->dx);
  ts_free(r->dw);
  ts_free(r->prior);
  ts_free(r->label);
}

static run_tensor tensor_from(ts_dtype dtype, ts_shape shape, const double *from) {
  run_tensor x = run_new(dtype, shape);
  for (int64_t i = 0; from != NULL && i < run_count(&x); ++i) {
    run_set(&x, i, from[i]);
  }
  return x;
}

static bool has_loss(ts_op op) {
  return op == TS_OP_HEAD_LOSS || op == TS_OP_HEAD_LOSS_TRAIN;
}

static bool has_gradients(ts_op op) {
  return op == TS_OP_HEAD_LOSS_DX || op == TS_OP_HEAD_LOSS_TRAIN;
}

static run_case make(const problem *p, const reference *r, ts_op op) {
  run_case c = {.op = op, .n_in = has_gradients(op) ? 4 : 3, .threads = 1, .beta = &p->beta};
  ts_shape x = TS_SHAPE(p->batch, p->length, p->width), w = TS_SHAPE(p->vocabulary, p->width);
  c.in[0] = tensor_from(p->dtype, x, r->x);
  c.in[1] = tensor_from(p->dtype, w, r->w);
  c.in[2] = run_new(TS_I32, TS_SHAPE(p->batch, p->length));
  memcpy(c.in[2].data, r->label, (size_t) rows_of(p) * sizeof *r->label);
  if (has_gradients(op)) {
    c.in[3] = run_new(TS_F32, TS_SHAPE(1));
    run_set(&c.in[3], 0, seed);
  }
  if (has_loss(op)) {
    c.out[c.n_out++] = run_new(TS_F64, TS_SHAPE(1));
    c.out[c.n_out++] = run_new(TS_F64, TS_SHAPE(1));
  }
  c.attr.head.scale = p->scale;
  c.attr.head.softcap = p->softcap;
  if (op == TS_OP_HEAD_STATS) {
    c.out[c.n_out++] = run_new(TS_F32, TS_SHAPE(p->batch, p->length, 2));
  }
  if (has_gradients(op)) {
    c.attr.head.dtype = p->dw_dtype;
    c.out[c.n_out++] = run_new(p->dtype, x);
    c.out[c.n_out++] = run_new(p->dw_dtype, w);
  }
  return c;
}

static bool run_with(const problem *p, run_case *c, const run_tensor *prior, int threads) {
  for (int i = 0; i < c->n_out; ++i) {
    memset(c->out[i].data, 0xff, (size_t) run_count(&c->out[i]) * ts_dtype_size(c->out[i].dtype)); /* NaN */
  }
  int dw = c->n_out - 1;
  if (has_gradients(c->op) && p->prior != NO_PRIOR) {
    c->prior[dw] = p->prior == SAME ? c->out[dw].data : prior->data;
    if (p->prior == SAME && p->beta != 0) {
      memcpy(c->out[dw].data, prior->data, (size_t) run_count(prior) * ts_dtype_size(prior->dtype));
    }
  }
  c->threads = threads;
  return run_kernel(backend, c);
}

static double distance(const run_tensor *x, const double *exact) {
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < run_count(x); ++i) {
    double difference = fabs(run_get(x, i) - exact[i]);
    worst = difference <= worst ? worst : difference; /* NaN is a difference */
    largest = fmax(largest, fabs(exact[i]));
  }
  return worst / fmax(largest, 1e-6); /* a vocabulary of one word has zero gradients */
}

/* Gradients: fp32 logits of size ten are off by some 2^-21 and so are the weights made from them: 10^-5 of the largest
 * gradient.  bf16: logit gradients are rounded to 2^-9, results once more: 2^-7; fp16: to 2^-12, 2^-10. */
static double tolerance_of(const problem *p) {
  double rounding = fmax(run_rounding(p->dtype), run_rounding(p->dw_dtype));
  return rounding == 0x1p-24 ? 1e-5 : 2 * rounding;
}

/* The loss sums unrounded logits: 10^-6. */
static void check_op(const problem *p, const reference *r, ts_op op, const char *name) {
  double tolerance = tolerance_of(p);
  run_case c = make(p, r, op);
  run_tensor prior = tensor_from(p->dw_dtype, TS_SHAPE(p->vocabulary, p->width), r->prior);
  bool clean = run_with(p, &c, &prior, 1), equal = true, close = true;
  int at = 0;
  if (has_loss(op)) {
    double loss = run_get(&c.out[at++], 0), valid = run_get(&c.out[at++], 0);
    close = fabs(loss - r->loss) <= 1e-6 * (fabs(r->loss) + 1) && valid == r->valid;
  }
  if (has_gradients(op)) {
    double dx = distance(&c.out[at++], r->dx), dw = distance(&c.out[at++], r->dw);
    close = close && dx <= tolerance && dw <= tolerance;
    if (!close) {
      tap_note("dx %g dw %g, tolerance %g", dx, dw, tolerance);
    }
  }
  run_case again = make(p, r, op);
  for (int threads = 2; threads <= 3; ++threads) {
    clean = run_with(p, &again, &prior, threads) && clean;
    for (int i = 0; i < c.n_out; ++i) {
      equal = equal && run_same(&again.out[i], c.out[i].data);
    }
  }
  tap_ok(close && clean && equal, "%s %d rows, C %d, V %d, %s, dw %s prior %d beta %g scale %g softcap %g%s%s", name,
         (int) rows_of(p), p->width, p->vocabulary, ts_dtype_name(p->dtype), ts_dtype_name(p->dw_dtype), (int) p->prior,
         p->beta, p->scale, p->softcap, clean ? "" : ": writes past its workspace",
         equal ? "" : ": depends on threads");
  ts_free(prior.data);
  run_free(&c);
  run_free(&again);
}

/* A row without a label whose logits are infinite: no loss, and no gradient. */
static void check_ignored(ts_dtype dtype) {
  enum { IGNORED = 3 }; /* of reference_create */
  problem p = {1, 90, 8, 300, dtype, TS_F32, NO_PRIOR, 1, 1, 0};
  reference r = reference_create(&p);
  run_case c = make(&p, &r, TS_OP_HEAD_LOSS_TRAIN);
  for (int i = 0; i < p.width; ++i) {
    run_set(&c.in[0], IGNORED * p.width + i, 3e38);
  }
  bool clean = run_with(&p, &c, NULL, 1);
  double dx = distance(&c.out[2], r.dx), dw = distance(&c.out[3], r.dw), loss = run_get(&c.out[0], 0);
  tap_ok(clean && fabs(loss - r.loss) <= 1e-6 * (fabs(r.loss) + 1) && dx <= tolerance_of(&p) && dw <= tolerance_of(&p),
         "%s: infinite logits of a row without a label do nothing: dx %.1e dw %.1e", ts_dtype_name(dtype), dx, dw);
  run_free(&c);
  reference_free(&r);
}

/* ---- ranks that share the vocabulary ---- */

enum { MOST_SHARES = 3 };

/* Rank r of n has rows [cut (r), cut (r + 1)): 1 of 3, 1 and 2 of 6 with what is left for the last. */
static int cut(const problem *p, int r, int n) {
  return r == n ? p->vocabulary : p->vocabulary * r * (r + 1) / (n * (n + 1));
}

/* What the rank has of the problem: its rows of w, dw and the prior. */
static problem share_of(const problem *p, int r, int n) {
  problem mine = *p;
  mine.vocabulary = cut(p, r + 1, n) - cut(p, r, n);
  return mine;
}

static reference rows_from(const problem *p, const reference *r, int first) {
  reference mine = *r;
  mine.w += (int64_t) first * p->width;
  mine.dw += (int64_t) first * p->width;
  mine.prior += (int64_t) first * p->width;
  return mine;
}

/* A call of a rank; \a stats NULL: to measure. */
static run_case make_share(const problem *p, const reference *r, ts_op op, int rank, int n, const run_tensor *stats) {
  problem mine = share_of(p, rank, n);
  reference part = rows_from(p, r, cut(p, rank, n));
  run_case c = make(&mine, &part, op);
  c.beta = &p->beta; /* not that of `mine` */
  c.attr.head.first = cut(p, rank, n);
  if (stats != NULL) {
    c.in[c.n_in] = run_new(TS_F32, stats->shape);
    memcpy(c.in[c.n_in++].data, stats->data, run_bytes(stats));
  }
  return c;
}

/* What all ranks measure, put together; labels of other ranks' rows and ignored ones have no logit. */
static bool measure(const problem *p, const reference *r, int n, run_tensor *stats) {
  bool good = true;
  *stats = run_new(TS_F32, TS_SHAPE(n, p->batch, p->length, 2));
  for (int rank = 0; rank < n; ++rank) {
    run_case c = make_share(p, r, TS_OP_HEAD_STATS, rank, n, NULL), again = make_share(p, r, c.op, rank, n, NULL);
    good = run_with(p, &c, NULL, 1) && run_with(p, &again, NULL, 2 + rank % 2) && good;
    good = run_same(&again.out[0], c.out[0].data) && good;
    memcpy((char *) stats->data + (size_t) rank * run_bytes(&c.out[0]), c.out[0].data, run_bytes(&c.out[0]));
    for (int64_t i = 0; i < rows_of(p); ++i) {
      bool mine = r->label[i] >= cut(p, rank, n) && r->label[i] < cut(p, rank + 1, n);
      good = good && (mine || run_get(&c.out[0], 2 * i + 1) == 0);
    }
    run_free(&c);
    run_free(&again);
  }
  return good;
}

/* The loss reads neither x nor w. */
static bool check_shared_loss(const problem *p, const reference *r, int n, const run_tensor *stats) {
  run_case c = make_share(p, r, TS_OP_HEAD_LOSS, n - 1, n, stats);
  memset(c.in[0].data, 0xff, run_bytes(&c.in[0]));
  memset(c.in[1].data, 0xff, run_bytes(&c.in[1]));
  bool good = run_with(p, &c, NULL, 1);
  double loss = run_get(&c.out[0], 0);
  good = good && fabs(loss - r->loss) <= 1e-6 * (fabs(r->loss) + 1) && run_get(&c.out[1], 0) == r->valid;
  good = run_with(p, &c, NULL, 3) && run_get(&c.out[0], 0) == loss && good;
  run_free(&c);
  return good;
}

/* A rank's gradients: dx is added to what the ranks before gave. */
static bool check_shared_gradients(const problem *p, const reference *r, int rank, int n, const run_tensor *stats,
                                   double *sum, double tolerance) {
  problem mine = share_of(p, rank, n);
  reference part = rows_from(p, r, cut(p, rank, n));
  run_tensor prior = tensor_from(p->dw_dtype, TS_SHAPE(mine.vocabulary, p->width), part.prior);
  run_case c = make_share(p, r, TS_OP_HEAD_LOSS_DX, rank, n, stats), again = make_share(p, r, c.op, rank, n, stats);
  bool good = run_with(p, &c, &prior, 1) && run_with(p, &again, &prior, 2);
  good = good && run_same(&again.out[0], c.out[0].data) && run_same(&again.out[1], c.out[1].data);
  for (int64_t i = 0; i < run_count(&c.out[0]); ++i) {
    sum[i] += run_get(&c.out[0], i);
  }
  double dw = 0, largest = 1e-6; /* of the whole: a share may have no label and small gradients */
  for (int64_t i = 0; i < (int64_t) p->vocabulary * p->width; ++i) {
    largest = fmax(largest, fabs(r->dw[i]));
  }
  for (int64_t i = 0; i < run_count(&c.out[1]); ++i) {
    double difference = fabs(run_get(&c.out[1], i) - part.dw[i]);
    dw = difference <= dw ? dw : difference;
  }
  run_free(&c);
  run_free(&again);
  ts_free(prior.data);
  return good && dw <= tolerance * largest;
}

/* Tolerances are those of the whole: what is measured is rounded once to 2^-24 of itself, as sums are; but in 16 bits
 * each rank rounds its part of dx, by 2^-9 of the largest (fp16: 2^-12), so n of them are allowed n times as much. */
static void check_shares(const problem *p, const reference *r, int n) {
  double tolerance = tolerance_of(p);
  run_tensor stats, dx = run_new(TS_F64, TS_SHAPE(p->batch, p->length, p->width));
  bool good = measure(p, r, n, &stats), loss = check_shared_loss(p, r, n, &stats);
  for (int rank = 0; rank < n; ++rank) {
    good = check_shared_gradients(p, r, rank, n, &stats, dx.data, tolerance) && good;
  }
  double worst = distance(&dx, r->dx);
  tap_ok(good && loss && worst <= (p->dtype == TS_F32 ? 1 : n) * tolerance,
         "%d shares of %d rows, C %d, V %d, %s, dw %s, scale %g softcap %g: loss %s, dx off by %.1e", n,
         (int) rows_of(p), p->width, p->vocabulary, ts_dtype_name(p->dtype), ts_dtype_name(p->dw_dtype), p->scale,
         p->softcap, loss ? "right" : "wrong", worst);
  ts_free(dx.data);
  ts_free(stats.data);
}

/* The loss alone and with its gradients, and these with it and alone: a step by hand has one, a whole step the
 * other. */
static void check_same(const problem *p, const reference *r) {
  run_case loss = make(p, r, TS_OP_HEAD_LOSS), gradients = make(p, r, TS_OP_HEAD_LOSS_DX);
  run_case both = make(p, r, TS_OP_HEAD_LOSS_TRAIN);
  run_tensor prior = tensor_from(p->dw_dtype, TS_SHAPE(p->vocabulary, p->width), r->prior);
  bool same = run_with(p, &loss, &prior, 1) && run_with(p, &gradients, &prior, 1) && run_with(p, &both, &prior, 1);
  for (int i = 0; i < 2; ++i) {
    same = same && run_same(&both.out[i], loss.out[i].data) && run_same(&both.out[2 + i], gradients.out[i].data);
  }
  tap_ok(same, "the same bits together and alone");
  ts_free(prior.data);
  run_free(&loss);
  run_free(&gradients);
  run_free(&both);
}

static void check(const problem *p) {
  reference r = reference_create(p);
  check_op(p, &r, TS_OP_HEAD_LOSS, "loss");
  check_op(p, &r, TS_OP_HEAD_LOSS_DX, "gradients");
  check_op(p, &r, TS_OP_HEAD_LOSS_TRAIN, "both");
  check_same(p, &r);
  for (int n = 1; n <= MOST_SHARES && p->vocabulary >= 2 * MOST_SHARES && p->vocabulary < 10000; ++n) {
    check_shares(p, &r, n);
  }
  reference_free(&r);
}

/* Central differences of seed * loss: error h^2. */
static void check_differences(float scale, float softcap) {
  problem p = {1, 7, 3, 5, TS_F32, TS_F32, NO_PRIOR, 1, scale, softcap};
  reference r = reference_create(&p);
  int64_t n_x = rows_of(&p) * p.width, n_w = (int64_t) p.vocabulary * p.width;
  double *exact = ts_malloc((size_t) (n_x + n_w) * sizeof *exact), worst = 0, h = 1e-4;
  memcpy(exact, r.dx, (size_t) n_x * sizeof *exact);
  memcpy(exact + n_x, r.dw, (size_t) n_w * sizeof *exact);
  for (int64_t i = 0; i < n_x + n_w; ++i) {
    double *value = i < n_x ? &r.x[i] : &r.w[i - n_x], before = *value, loss[2];
    for (int side = 0; side < 2; ++side) {
      *value = before + (side == 0 ? -h : h);
      compute(&p, &r);
      loss[side] = r.loss;
    }
    *value = before;
    worst = fmax(worst, fabs(seed * (loss[1] - loss[0]) / (2 * h) - exact[i]));
  }
  tap_ok(worst < 1e-7, "the reference agrees with its differences, scale %g, softcap %g: %g", scale, softcap, worst);
  ts_free(exact);
  reference_free(&r);
}

int main(void) {
#ifdef STAND_IN /* is slow: each shape has one of the types, each type some shapes; TEST_HEAD_ALL is for all of them */
  const bool is_sampled = getenv("TEST_HEAD_ALL") == NULL;
#else
  const bool is_sampled = false;
#endif
  backend = test_backend();
  if (backend == NULL) {
    return tap_done();
  }
  check_differences(1, 0);
  check_differences(0.4f, 0);
  check_differences(1.5f, 1);
  static const problem shapes[] = {
      {1, 1, 1, 1, 0, 0, NO_PRIOR, 1, 1, 0},        {1, 3, 17, 67, 0, 0, SAME, 0, 1, 0},
      {2, 17, 3, 130, 0, 0, OTHER, 1, 1, 0},        {3, 67, 33, 257, 0, 0, SAME, 0.5f, 1, 0},
      {2, 300, 16, 256, 0, 0, SAME, 1, 1, 0},       {7, 97, 8, 1024, 0, 0, OTHER, 0.5f, 1, 0},
      {1, 40, 24, 3000, 0, 0, SAME, 1, 1, 0},       {9, 130, 5, 97, 0, 0, NO_PRIOR, 1, 1, 0},
      {1, 6, 4, 9001, 0, 0, OTHER, 1, 1, 0},        {1, 4, 4, 20011, 0, 0, SAME, 0, 1, 0},
      {1, 2, 4, 57856, 0, 0, SAME, 0.5f, 1, 0},     {1, 2, 4, 57857, 0, 0, SAME, 0.5f, 1, 0},
      {3, 67, 33, 257, 0, 0, SAME, 0.5f, 0.25f, 0}, {2, 17, 33, 130, 0, 0, OTHER, 1, 1, 3},
      {1, 6, 4, 9001, 0, 0, OTHER, 1, 1.5f, 2},     {1, 2, 4, 57857, 0, 0, SAME, 0.5f, 0.5f, 30},
      {2, 0, 16, 130, 0, 0, NO_PRIOR, 1, 1, 0},     {2, 0, 16, 130, 0, 0, OTHER, 0.5f, 1, 0},
  };
  static const ts_dtype types[][2] = {
      {TS_F32, TS_F32}, {TS_BF16, TS_F32}, {TS_BF16, TS_BF16}, {TS_F16, TS_F32}, {TS_F16, TS_F16}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
    for (size_t t = 0; t < sizeof types / sizeof *types; ++t) {
      if (is_sampled && (i + i / 5 + t) % 5 != 0) {
        continue;
      }
      problem p = shapes[i];
      p.dtype = types[t][0];
      p.dw_dtype = types[t][1];
      check(&p);
    }
  }
#ifndef STAND_IN /* large, and logits whose rows are not dense: by the plain product bits depended on threads */
  check(&(problem){1, 260, 1024, 300, TS_F32, TS_F32, NO_PRIOR, 1, 1, 0});
#endif
  check_ignored(TS_F32);
  check_ignored(TS_BF16);
  test_backend_close();
  tap_ok(ts_memory_live() == 0, "everything is freed");
  return tap_done();
}
