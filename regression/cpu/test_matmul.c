/* MATMUL against fp64: odd sizes, transposes, bias, every kind of prior, both types; equal bits on 1, 2, 3 and 16
 * threads. */
#include "regression/backends.h"
#include "regression/kernel_run.h"
#include "regression/tap.h"

#ifndef RUN_CUDA
#include "backend/cpu/gemm.h"
#include "base/memory.h"
#endif

static const ts_backend *backend;

typedef struct product {
  int64_t m, n, k;
  bool ta, tb, bias;
  ts_dtype in, out;
  enum { NO_PRIOR, SAME, OTHER } prior;
  float beta;
} product;

static run_case make(const product *p) {
  run_case c = {.op = TS_OP_MATMUL, .n_in = 3, .n_out = 1, .threads = 1};
  c.attr.matmul.transpose_a = p->ta;
  c.attr.matmul.transpose_b = p->tb;
  c.attr.matmul.dtype = p->out;
  c.in[0] = run_random(p->in, p->ta ? TS_SHAPE(p->k, p->m) : TS_SHAPE(p->m, p->k), 1, 1);
  c.in[1] = run_random(p->in, p->tb ? TS_SHAPE(p->n, p->k) : TS_SHAPE(p->k, p->n), 2, 1);
  if (p->bias) {
    c.in[2] = run_random(p->in, TS_SHAPE(p->n), 3, 1);
  }
  c.out[0] = run_new(p->out, TS_SHAPE(p->m, p->n));
  return c;
}

/* The exact sum and the sum of magnitudes, to which rounding errors are proportional. */
static double reference(const product *p, const run_case *c, const run_tensor *prior, int64_t i, int64_t j,
                        double *size) {
  double sum = p->bias ? run_get(&c->in[2], j) : 0;
  *size = fabs(sum);
  for (int64_t k = 0; k < p->k; ++k) {
    double x = run_get(&c->in[0], p->ta ? k * p->m + i : i * p->k + k);
    double y = run_get(&c->in[1], p->tb ? j * p->k + k : k * p->n + j);
    sum += x * y;
    *size += fabs(x * y);
  }
  if (p->prior != NO_PRIOR && p->beta != 0) {
    double add = p->beta * run_get(prior, i * p->n + j);
    sum += add;
    *size += fabs(add);
  }
  return sum;
}

/* A sum of k fp32 terms in any order is within k 2^-24 of the magnitudes; in blocks it is far better, sqrt (k) for
 * random signs, so 2 sqrt (k) 2^-24 of them; one wrong term is 10^4 times larger.  A bf16 result adds half a unit in
 * its last place, at most 2^-8 of it (fp16: 2^-11, and of a subnormal 2^-25), and again for a prior that is scaled
 * before it is added. */
static double tolerance(const product *p, double exact, double size, double prior) {
  double rounding = 0;
  if (p->out != TS_F32) {
    bool scaled = p->prior != NO_PRIOR && p->beta != 0 && p->beta != 1;
    rounding = (1 + 0x1p-8) * run_rounding(p->out) * (fabs(exact) + (scaled ? fabs(p->beta * prior) : 0));
    rounding += p->out == TS_F16 ? 0x1p-25 : 0;
  }
  return 2 * sqrt((double) p->k + 4) * 0x1p-24 * size + rounding;
}

/* Of large products some rows. */
static bool close_to_reference(const product *p, const run_case *c, const run_tensor *prior) {
  int64_t step = p->m * p->n * p->k > 1 << 24 ? 13 : 1;
  for (int64_t i = (p->m - 1) % step; i < p->m; i += step) {
    for (int64_t j = 0; j < p->n; ++j) {
      double size, exact = reference(p, c, prior, i, j, &size), got = run_get(&c->out[0], i * p->n + j);
      if (!(fabs(got - exact) <= tolerance(p, exact, size, run_get(prior, i * p->n + j)))) {
        tap_note("[%d][%d] is %.9g, should be %.9g", (int) i, (int) j, got, exact);
        return false;
      }
    }
  }
  return true;
}

static void run_with(const product *p, run_case *c, run_tensor *prior, int threads, bool *clean) {
  int64_t count = p->m * p->n;
  size_t bytes = (size_t) count * ts_dtype_size(p->out);
  c->threads = threads;
  c->beta = &p->beta;
  memset(c->out[0].data, 0xff, bytes); /* NaN */
  if (p->prior == SAME && p->beta != 0) {
    memcpy(c->out[0].data, prior->data, bytes);
  }
  c->prior[0] = p->prior == NO_PRIOR ? NULL : p->prior == SAME ? c->out[0].data : prior->data;
  *clean = run_kernel(backend, c) && *clean;
}

/* The stand-in of a GPU is slow: half of all, by a row without a period; TEST_MATMUL_ALL, with any value: all. */
static bool is_tried_here(void) {
#ifdef STAND_IN
  static unsigned turn = 0;
  return __builtin_popcount(turn++) % 2 == 0 || getenv("TEST_MATMUL_ALL") != NULL;
#else
  return true;
#endif
}

static void check(const product *p) {
  if (!is_tried_here()) {
    return;
  }
  run_case c = make(p);
  run_tensor prior = run_random(p->out, TS_SHAPE(p->m, p->n), 4, 3);
  if (p->beta == 0) {
    memset(prior.data, 0xff, (size_t) (p->m * p->n) * ts_dtype_size(p->out)); /* must not be read */
  }
  size_t bytes = (size_t) (p->m * p->n) * ts_dtype_size(p->out);
  void *one = ts_malloc(bytes + 1); /* of an empty product too */
  bool clean = true, equal = true;
  run_with(p, &c, &prior, 1, &clean);
  bool close = close_to_reference(p, &c, &prior);
  if (bytes > 0) {
    memcpy(one, c.out[0].data, bytes);
  }
  static const int threads[] = {2, 3, 16};
  for (int i = 0; i < 3; ++i) {
    run_with(p, &c, &prior, threads[i], &clean);
    equal = equal && run_same(&c.out[0], one);
  }
  static const char *const kinds[] = {"no prior", "prior in place", "prior elsewhere"};
  tap_ok(close && clean && equal, "%dx%dx%d %s%s%s %s to %s, %s, beta %g%s%s%s", (int) p->m, (int) p->n, (int) p->k,
         p->ta ? "t" : "n", p->tb ? "t" : "n", p->bias ? " bias" : "", ts_dtype_name(p->in), ts_dtype_name(p->out),
         kinds[p->prior], p->beta, close ? "" : ": wrong", clean ? "" : ": writes past its workspace",
         equal ? "" : ": depends on threads");
  ts_free(one);
  ts_free(prior.data);
  run_free(&c);
}

static void small_sizes(ts_dtype in, ts_dtype out) {
  static const int64_t size[][3] = {{1, 1, 1},    {3, 17, 67},   {67, 1, 17}, {1, 67, 3},
                                    {17, 130, 1}, {65, 67, 129}, {1, 450, 19}};
  for (size_t i = 0; i < sizeof size / sizeof *size; ++i) {
    for (int t = 0; t < 4; ++t) {
      product p = {size[i][0], size[i][1], size[i][2], t & 1, t >> 1, (i + (size_t) t) % 2 == 0, in, out, NO_PRIOR, 1};
      check(&p);
    }
  }
}

static void priors(ts_dtype in, ts_dtype out) {
  static const float beta[] = {0, 1, 0.5f};
  for (int kind = SAME; kind <= OTHER; ++kind) {
    for (int b = 0; b < 3; ++b) {
      for (int t = 0; t < 2; ++t) {
        product p = {67, 129, 33, t == 1, false, t == 0, in, out, SAME, beta[b]};
        p.prior = kind == SAME ? SAME : OTHER;
        check(&p);
      }
    }
  }
}

/* Weight gradients: K long enough that oneDNN would sum slices of it in parallel, and 600 rows: several tiles. */
static void long_k(ts_dtype in, ts_dtype out) {
  static const int64_t size[][3] = {{64, 64, 4096}, {17, 33, 3000}, {129, 65, 2048}, {1, 5, 2500}, {260, 300, 1900}};
  for (size_t i = 0; i < sizeof size / sizeof *size; ++i) {
    product p = {size[i][0], size[i][1], size[i][2], true, false, false, in, out, i == 1 ? SAME : NO_PRIOR, 1};
    check(&p);
  }
  const product rows = {600, 300, 70, false, true, false, in, out, NO_PRIOR, 1};
  check(&rows);
}

/* What oneDNN would sum in parts on 16 threads; b so large that the result is made in tiles, several down and across,
 * begun with a prior, and finished with a bias; tiles of what is widened, in blocks of k; K in slices; and a
 * vocabulary's gradient, whose turned operand is copied. */
static void large(void) {
#ifndef STAND_IN
  static const product sliced[] = {{300, 20, 8300, false, false, true, TS_F32, TS_F32, OTHER, 0.5f},
                                   {60, 40, 8200, false, false, false, TS_F32, TS_F32, SAME, 1},
                                   {40, 30, 8230, false, true, true, TS_BF16, TS_BF16, OTHER, 1},
                                   {20, 70, 12400, true, false, false, TS_BF16, TS_F32, NO_PRIOR, 1},
                                   {3, 400, 8192, false, false, true, TS_F32, TS_BF16, SAME, 0.5f},
                                   {130, 20, 8230, false, true, true, TS_F16, TS_F16, OTHER, 0},
                                   {9, 17, 8300, true, false, false, TS_F32, TS_F32, OTHER, 1},
                                   {3, 7, 70000, false, false, false, TS_F32, TS_F32, NO_PRIOR, 1},
                                   {3, 7, 70000, false, true, false, TS_F16, TS_F32, SAME, 1}};
  static const product tall[] = {{32770, 9, 37, true, false, false, TS_F32, TS_F32, SAME, 1},
                                 {33000, 20, 19, true, true, true, TS_F32, TS_BF16, OTHER, 0.5f}};
  const product divided = {128, 513, 1900, true, false, false, TS_F32, TS_F32, NO_PRIOR, 1};
  product tiles = {140, 1030, 1024, false, false, true, TS_F32, TS_F32, OTHER, 0.5f};
  product widened = {20, 400, 2100, false, false, true, TS_BF16, TS_BF16, OTHER, 0.5f};
  check(&tall[0]);
  check(&tall[1]);
  check(&divided);
  check(&tiles);
  tiles.prior = SAME;
  tiles.beta = 1;
  check(&tiles);
  check(&widened);
  widened.out = TS_F32;
  widened.tb = true;
  check(&widened);
  for (size_t i = 0; i < sizeof sliced / sizeof *sliced; ++i) {
    check(&sliced[i]);
  }
#endif
}

/* As many rows as make it worth to turn what is copied of b: tiles below one another, which share it, and next to one
 * another, which share a. */
static void turned(ts_dtype in) {
#ifndef STAND_IN
  static const int64_t size[][3] = {{300, 30, 1100}, {300, 30, 90}, {128, 400, 1030}, {128, 400, 90}};
  for (size_t i = 0; i < sizeof size / sizeof *size; ++i) {
    for (int ta = 0; ta < 2; ++ta) {
      product p = {size[i][0], size[i][1], size[i][2], ta == 1, true, true, in, ta == 1 ? TS_F32 : in, OTHER, 0.5f};
      check(&p);
    }
  }
#else
  (void) in;
#endif
}

/* No rows, and nothing to sum: bias and prior remain. */
static void empty(ts_dtype in, ts_dtype out) {
  static const int64_t size[][3] = {{0, 7, 5}, {6, 9, 0}};
  for (int i = 0; i < 2; ++i) {
    product p = {size[i][0], size[i][1], size[i][2], false, false, true, in, out, NO_PRIOR, 1};
    check(&p);
    p.prior = OTHER;
    p.beta = 0.5f;
    check(&p);
    p.ta = true;
    p.bias = false;
    p.prior = SAME;
    p.beta = 0;
    check(&p);
  }
}

/* Products of fp16 that are beyond its range become infinite with their sign, sums that come back into it do not, and
 * infinity and NaN stay in their row; by every way: a row alone, some, and many. */
static void range(ts_dtype out) {
  static const int64_t rows[] = {1, 6, 300};
  enum { N = 40, K = 70 };
  for (int i = 0; i < 3; ++i) {
    product p = {rows[i], N, K, false, i == 1, false, TS_F16, out, NO_PRIOR, 1};
    run_case c = make(&p);
    for (int64_t j = 0; j < p.m * K; ++j) { /* the last row has an infinity and a NaN */
      run_set(&c.in[0], j, j == p.m * K - 1 ? INFINITY : 60000);
    }
    for (int64_t j = 0; j < N * K; ++j) { /* column 1 is negative, column 2 sums up to 0 */
      int64_t k = p.tb ? j % K : j / N, n = p.tb ? j / K : j % N;
      run_set(&c.in[1], j, n == 1 || (n == 2 && k % 2 == 0) ? -60000 : n == 3 && k == K - 1 ? NAN : 60000);
    }
    bool clean = run_kernel(backend, &c), good = true;
    for (int64_t j = 0; j < p.m * N; ++j) {
      double got = run_get(&c.out[0], j), sum = out == TS_F32 ? 3.6e9 * K : INFINITY;
      double expected = j / N == p.m - 1 ? INFINITY : sum;
      expected = j % N == 1 ? -expected : j % N == 2 ? (j / N == p.m - 1 ? INFINITY : 0) : expected;
      good = good && (j % N == 3 ? isnan(got) : got == expected || fabs(got / expected - 1) < 1e-5);
    }
    tap_ok(good && clean, "%d rows of fp16 to %s: beyond its range, infinite, no number", (int) rows[i],
           ts_dtype_name(out));
    run_free(&c);
  }
}

#ifndef RUN_CUDA
/* More products at once than choices are kept for, each twice, made and run by several threads, not in the order they
 * were made in. */
static void many(void) {
  enum { MANY = 700, N = 5, THREADS = 4 };
  static float a[2 * MANY], b[MANY * N];
  static ts_gemm *gemm[2 * MANY];
  int wrong = 0;
  for (int i = 0; i < MANY; ++i) {
    a[i] = a[MANY + i] = 1;
    for (int j = 0; j < N; ++j) {
      b[i * N + j] = (float) j;
    }
  }
#pragma omp parallel for schedule(dynamic) num_threads(THREADS)
  for (int i = 0; i < 2 * MANY; ++i) {
    const ts_gemm_spec spec = {.m = 2, .n = N, .k = i % MANY + 1, .in = TS_F32, .out = TS_F32, .threads = 1};
    gemm[i] = ts_gemm_create(&spec);
  }
#pragma omp parallel for schedule(dynamic) num_threads(THREADS) reduction(+ : wrong)
  for (int i = 0; i < 2 * MANY; ++i) {
    ts_gemm **g = &gemm[2 * MANY - 1 - i];
    const int k = (2 * MANY - 1 - i) % MANY + 1;
    float c[2 * N];
    char *workspace = ts_malloc(ts_gemm_workspace(*g) + 64);
    ts_gemm_run(*g, a, b, c, NULL, NULL, 0, workspace + (64 - (uintptr_t) workspace % 64) % 64);
    for (int j = 0; j < 2 * N; ++j) {
      wrong += c[j] != (float) (k * (j % N));
    }
    ts_free(workspace);
    ts_gemm_destroy(g);
  }
  tap_ok(wrong == 0, "%d products at once: each is its own", 2 * MANY);
}
#endif

int main(void) {
  backend = test_backend();
  if (backend == NULL) {
    return tap_done();
  }
  static const ts_dtype types[][2] = {{TS_F32, TS_F32}, {TS_BF16, TS_BF16}, {TS_BF16, TS_F32}, {TS_F32, TS_BF16},
                                      {TS_F16, TS_F16}, {TS_F16, TS_F32},   {TS_F32, TS_F16}};
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
    small_sizes(types[i][0], types[i][1]);
    priors(types[i][0], types[i][1]);
    long_k(types[i][0], types[i][1]);
    empty(types[i][0], types[i][1]);
  }
  large();
  turned(TS_BF16);
  turned(TS_F16);
  range(TS_F16);
  range(TS_F32);
#ifndef RUN_CUDA
  many();
#endif
  test_backend_close();
  tap_ok(ts_memory_live() == 0, "everything is freed");
  return tap_done();
}
