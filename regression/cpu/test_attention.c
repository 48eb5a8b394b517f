/* ATTENTION and ATTENTION_DX against fp64 at odd sizes, with groups of query heads, documents, windows, softcap and
 * dropout; the reference itself against central differences; equal bits on 1, 2 and 3 threads; what is not visible by
 * whole blocks is not touched; some queries of a sample have the bits that they have in the whole. */
#ifdef RUN_CUDA
#include "cuda/attention_limits.h"
#endif
#include "regression/attention_case.h"
#include "regression/backends.h"
#include "regression/tap.h"

static const ts_backend *backend;

static bool run_with(run_case *c, int threads) {
  c->threads = threads;
  for (int i = 0; i < c->n_out; ++i) {
    if (c->out[i].data != NULL) {
      memset(c->out[i].data, 0xff, (size_t) run_count(&c->out[i]) * ts_dtype_size(c->out[i].dtype)); /* NaN */
    }
  }
  return run_kernel(backend, c);
}

static bool same_on_threads(run_case *c) {
  void *one[3] = {NULL};
  bool good = true;
  for (int i = 0; i < c->n_out; ++i) {
    size_t bytes = (size_t) run_count(&c->out[i]) * ts_dtype_size(c->out[i].dtype);
    one[i] = ts_malloc(bytes);
    if (bytes > 0) {
      memcpy(one[i], c->out[i].data, bytes);
    }
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
 * together below 2^-6 of the largest value.  fp16: to 2^-12, so 2^-9. */
static double tolerance_of(ts_dtype dtype) {
  return dtype == TS_F32 ? 1e-5 : 4 * run_rounding(dtype);
}

static void *copy_of(const run_tensor *x) {
  void *copy = ts_malloc(run_bytes(x) + 1);
  memcpy(copy, x->data, run_bytes(x));
  return copy;
}

/* Whether the columns of the one gradient are those of q, k and v. */
static bool same_columns(const problem *p, const run_case *apart, run_case *fused) {
  bool same = true;
  for (int i = 0; i < 3; ++i) {
    run_tensor part = run_new(p->dtype, apart->out[i].shape);
    move_columns(p, i, &part, &fused->out[0], true);
    same = run_same(&part, apart->out[i].data) && same;
    ts_free(part.data);
  }
  return same;
}

static void give_priors(run_case *c) {
  static const float half = 0.5f;
  for (int i = 0; i < c->n_out; ++i) {
    c->prior[i] = copy_of(&c->out[i]);
  }
  c->beta = &half;
}

static void take_priors(run_case *c) {
  for (int i = 0; i < c->n_out; ++i) {
    ts_free(c->prior[i]);
    c->prior[i] = NULL;
  }
  c->beta = NULL;
}

/* The bits of both calls with q, k and v in one tensor, and of the gradients added to themselves. */
static bool same_fused(const problem *p, run_case *f, run_case *g) {
  run_case ff = fused_case(p, f, 0), gg = fused_case(p, g, 1);
  bool same = run_with(&ff, 2) && run_with(&gg, 2) && same_columns(p, g, &gg);
  for (int i = 0; i < f->n_out; ++i) {
    same = run_same(&ff.out[i], f->out[i].data) && same;
  }
  give_priors(g);
  give_priors(&gg);
  same = run_with(g, 1) && run_with(&gg, 2) && same_columns(p, g, &gg) && same;
  take_priors(g);
  take_priors(&gg);
  run_free(&ff);
  run_free(&gg);
  return same;
}

static void check(const problem *p, float growth) {
  double tolerance = tolerance_of(p->dtype), worst[4];
  reference r = reference_create_growing(p, growth);
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
  bool close = lse <= 1e-5; /* never rounded to 16 bits */
  for (int i = 0; i < 4; ++i) {
    close = close && worst[i] <= tolerance;
  }
  bool equal = same_on_threads(&f) && same_on_threads(&g);
  tap_ok(close && clean && equal, "B%d T%d H%d/%d D%d %s%s%s window %d softcap %g dropout %g%s%s%s", p->batch,
         p->length, p->heads, p->kv_heads, p->head_dim, ts_dtype_name(p->dtype), p->causal ? " causal" : "",
         p->documents ? " documents" : "", p->window, p->softcap, p->dropout, growth > 0 ? ", growing keys" : "",
         clean ? "" : ": writes past its workspace", equal ? "" : ": depends on threads");
  if (growth == 0 && (p->length + (int) p->dtype) % 3 == 0) {
    tap_ok(same_fused(p, &f, &g), "and so with q, k and v in one tensor");
  }
  if (!close) {
    tap_note("o %g lse %g dq %g dk %g dv %g, tolerance %g", worst[0], lse, worst[1], worst[2], worst[3], tolerance);
  }
  run_free(&f);
  run_free(&g);
  reference_free(&r);
}

/* The gradient of the reference against central differences of sum (d_out o): error h^2, about 1e-8 of values near 1.
 */
static void check_differences(void) {
  problem p = {1, 5, 4, 2, 3, true, true, 0.4f, TS_F32, 3, 0.7f};
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
  problem p = {4, 200, 3, 3, 16, false, false, 0.3f, TS_F32, 0, 0};
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

static bool all_finite(const run_tensor *x) {
  bool finite = true;
  for (int64_t i = 0; i < run_count(x); ++i) {
    finite = finite && isfinite(run_get(x, i));
  }
  return finite;
}

/* All scores are -128 and so is lse, nearly: what stands for a masked or absent key must not become exp (128).
 * Gradients are differences of such weights and only held to be numbers. */
static void check_low_scores(ts_dtype dtype) {
  problem p = {1, 37, 2, 1, 64, false, false, 0, dtype, 0, 0};
  reference r = reference_create(&p);
  for (int a = Q; a <= K; ++a) {
    for (int64_t i = 0; i < count_of(&p, a); ++i) {
      r.array[a][i] = a == Q ? 4 : -4;
    }
  }
  forward(&p, &r);
  run_case f = forward_case(&p, &r);
  bool clean = run_with(&f, 1);
  run_case g = backward_case(&p, &r, &f);
  clean = run_with(&g, 1) && clean;
  double o = distance(&f.out[0], r.array[O]), lse = distance(&f.out[1], r.lse);
  bool finite = all_finite(&g.out[0]) && all_finite(&g.out[1]) && all_finite(&g.out[2]);
  bool close = lse <= 1e-5 && o <= tolerance_of(dtype);
  tap_ok(clean && finite && close, "scores of -128 in %s: o %g lse %g%s", ts_dtype_name(dtype), o, lse,
         finite ? "" : ", gradients that are no numbers");
  run_free(&f);
  run_free(&g);
  reference_free(&r);
}

/* What is inner has the range of fp32: products of 10^5, weighted sums of values near the largest fp16, do v of 10^9,
 * of which differences are taken that vanish.  All keys are alike, so weights are even: o is v, dv is do.  Where lse is
 * 12800 a weight is off by 2^-10 of itself at most; the tolerance is twice that. */
static void check_range(void) {
  problem p = {1, 96, 1, 1, 64, false, false, 0, TS_F16, 0, 0};
  reference r = reference_create(&p);
  for (int64_t i = 0; i < count_of(&p, Q); ++i) {
    r.array[Q][i] = 40;
    r.array[K][i] = 40;
    r.array[V][i] = 60000;
  }
  forward(&p, &r);
  run_case f = forward_case(&p, &r);
  bool clean = run_with(&f, 1);
  run_case g = backward_case(&p, &r, &f);
  for (int64_t i = 0; i < run_count(&g.in[0]); ++i) {
    run_set(&g.in[0], i, 300);
  }
  clean = run_with(&g, 1) && clean;
  bool good = clean;
  for (int64_t i = 0; i < count_of(&p, Q); ++i) {
    good = good && fabs(run_get(&f.out[0], i) - 60000) <= tolerance_of(TS_F16) * 60000;
    good = good && fabs(run_get(&g.out[2], i) - 300) <= tolerance_of(TS_F16) * 300;
    good = good && isfinite(run_get(&g.out[0], i)) && isfinite(run_get(&g.out[1], i));
  }
  tap_ok(good, "fp16: what is inner may be beyond its range: o %g, dv %g, dq %g, dk %g", run_get(&f.out[0], 0),
         run_get(&g.out[2], 0), run_get(&g.out[0], 0), run_get(&g.out[1], 0));
  run_free(&f);
  run_free(&g);
  reference_free(&r);
}

/* ---- what is not visible is not touched ---- */

enum { BLOCK = 128, BLOCKS = 5 }; /* of tokens, all kernels' blocks divide one or are one */

/* Spoil the numbers of the tokens of some blocks. */
static void spoil(run_tensor *x, const bool *spoiled) {
  for (int64_t i = 0; i < run_count(x); ++i) {
    if (spoiled[i / x->shape.d[2] / BLOCK]) {
      run_set(x, i, NAN);
    }
  }
}

/* As `distance`, over tokens of some blocks; lse has tokens last. */
static double distance_in(const run_tensor *x, const double *exact, const bool *checked) {
  bool is_lse = x->shape.d[2] == BLOCK * BLOCKS;
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < run_count(x); ++i) {
    int64_t token = is_lse ? i % x->shape.d[2] : i / x->shape.d[2];
    if (checked[token / BLOCK]) {
      double difference = fabs(run_get(x, i) - exact[i]);
      worst = difference <= worst ? worst : difference;
      largest = fmax(largest, fabs(exact[i]));
    }
  }
  return worst / largest;
}

/* Queries, keys, values and gradients of spoiled blocks are no numbers, and a weight of zero times one of them is none
 * either: results of the checked blocks, which see nothing of those, are right only if nothing was multiplied. */
static void check_untouched(const problem *p, const int32_t *document, const bool *spoiled, const bool *checked) {
  double tolerance = tolerance_of(p->dtype), worst = 0;
  reference r = reference_create(p);
  for (int t = 0; t < p->length; ++t) {
    r.document[t] = document[t / BLOCK];
  }
  forward(p, &r);
  backward(p, &r);
  run_case f = forward_case(p, &r);
  for (int i = 0; i < 3; ++i) {
    spoil(&f.in[i], spoiled);
  }
  run_with(&f, 2);
  run_case g = backward_case(p, &r, &f);
  for (int i = 0; i < 4; ++i) {
    spoil(&g.in[i], spoiled);
  }
  run_with(&g, 2);
  double lse = distance_in(&f.out[1], r.lse, checked), o = distance_in(&f.out[0], r.array[O], checked);
  for (int i = 0; i < 3; ++i) {
    double is = distance_in(&g.out[i], r.array[DQ + i], checked);
    worst = is <= worst ? worst : is;
  }
  tap_ok(lse <= 1e-5 && o <= tolerance && worst <= tolerance,
         "%s D%d%s: blocks of which nothing is visible are not touched: o %.2g lse %.2g gradients %.2g",
         ts_dtype_name(p->dtype), p->head_dim, p->window > 0 ? " window" : " documents", o, lse, worst);
  run_free(&f);
  run_free(&g);
  reference_free(&r);
}

static void check_skipping(ts_dtype dtype, int head_dim) {
  static const int32_t one[BLOCKS], apart[BLOCKS] = {7, -2, 7, INT32_MAX, 7};
  static const bool ends[BLOCKS] = {true, false, false, false, true}, middle[BLOCKS] = {false, false, true};
  static const bool others[BLOCKS] = {false, true, false, true}, theirs[BLOCKS] = {true, false, true, false, true};
  problem p = {1, BLOCK * BLOCKS, 1, 1, head_dim, true, false, 0, dtype, BLOCK / 2, 0};
  check_untouched(&p, one, ends, middle);
  p.window = 0;
  p.documents = true;
  check_untouched(&p, apart, others, theirs);
  p.causal = false;
  check_untouched(&p, apart, others, theirs);
}

/* ---- some queries on the keys until theirs ---- */

/* Rows of tokens of x, [B][T][...], or of lse and delta, [B][H][T]. */
static run_tensor take_tokens(const run_tensor *x, const ts_tokens *tokens, int64_t rows, bool last) {
  ts_shape shape = x->shape;
  int64_t inner = last ? 1 : shape.d[2], length = shape.d[last ? 2 : 1], outer = run_count(x) / inner / length;
  shape.d[last ? 2 : 1] = rows;
  run_tensor part = run_new(x->dtype, shape);
  size_t size = (size_t) inner * ts_dtype_size(x->dtype);
  for (int64_t i = 0; i < outer * rows; ++i) {
    memcpy((char *) part.data + (size_t) i * size,
           (char *) x->data + (size_t) (i / rows * length + ts_tokens_at(tokens, i % rows)) * size, size);
  }
  return part;
}

/* The call of whole samples for some of their queries, and of the keys those before `keys`. */
static run_case part_of(const run_case *whole, const ts_tokens *queries, int64_t rows, int64_t keys) {
  static const char *const forward = "qkk---", *const backward = "qqkkql---";
  const char *role = whole->op == TS_OP_ATTENTION ? forward : backward;
  const char *out = whole->op == TS_OP_ATTENTION ? "ql" : "qkk";
  const ts_tokens all = {0};
  run_case c = *whole;
  for (int i = 0; i < c.n_in + c.n_out; ++i) {
    const run_tensor *from = i < c.n_in ? &whole->in[i] : &whole->out[i - c.n_in];
    run_tensor *to = i < c.n_in ? &c.in[i] : &c.out[i - c.n_in];
    char is = i < c.n_in ? role[i] : out[i - c.n_in];
    if (from->data != NULL) {
      *to = is == '-' ? *from : take_tokens(from, is == 'k' ? &all : queries, is == 'k' ? keys : rows, is == 'l');
    }
  }
  c.attr.attention.length = whole->in[0].shape.d[1];
  c.attr.attention.queries = *queries;
  return c;
}

/* Outputs of a part that are those rows of the whole: o and lse, or dq. */
static bool same_rows(run_case *part, const run_case *whole, int optional) {
  bool same = true;
  for (int i = 0; i < (part->op == TS_OP_ATTENTION ? 2 : 1); ++i) {
    run_tensor expected =
        take_tokens(&whole->out[i], &part->attr.attention.queries, part->out[i].shape.d[i == 1 ? 2 : 1], i == 1);
    same = run_same(&expected, part->out[i].data) && same;
    ts_free(expected.data);
  }
  for (int i = optional; i < part->n_in; ++i) {
    part->in[i].data = NULL; /* the whole's */
  }
  run_free(part);
  return same;
}

/* The queries of a warp agree on when their sums go over to a new maximum: on a GPU parts end with one. */
#ifdef RUN_CUDA
enum { LATER = 96 };
#else
enum { LATER = 110 };
#endif

/* Some queries on keys from the first on, as many as those see, which are less than all: the bits of the whole. */
static void check_rows(const problem *p, const ts_tokens *queries) {
  const ts_interval last = queries->stretch[queries->n - 1];
  const int64_t until = last.begin + last.length,
                rows = last.length + (queries->n > 1 ? queries->stretch[0].length : 0);
  reference r = reference_create(p);
  run_case f = forward_case(p, &r);
  run_with(&f, 2);
  run_case g = backward_case(p, &r, &f);
  run_with(&g, 2);
  bool same = true;
  for (int threads = 1; threads <= 2; ++threads) {
    for (int64_t keys = p->causal ? until : p->length; keys <= p->length; keys += p->length - until) {
      run_case part = part_of(&f, queries, rows, keys);
      run_with(&part, threads);
      same = same_rows(&part, &f, 3) && same;
      part = part_of(&g, queries, rows, keys);
      run_with(&part, threads);
      same = same_rows(&part, &g, 6) && same;
    }
  }
  tap_ok(same, "%s D%d%s%s window %d dropout %g: queries from %d on have the bits of the whole",
         ts_dtype_name(p->dtype), p->head_dim, p->causal ? " causal" : "", p->documents ? " documents" : "", p->window,
         p->dropout, (int) queries->stretch[0].begin);
  run_free(&f);
  run_free(&g);
  reference_free(&r);
}

/* Keys outside of [begin, end), of which no block is seen, are no numbers: nothing is multiplied with them. */
static void check_unseen(const problem *p, const ts_tokens *queries, int64_t begin, int64_t end) {
  reference r = reference_create(p);
  run_case f = forward_case(p, &r);
  run_with(&f, 2);
  run_case g = backward_case(p, &r, &f);
  run_with(&g, 2);
  const run_case *whole[] = {&f, &g};
  bool same = true;
  for (int i = 0; i < 2; ++i) {
    run_case part = part_of(whole[i], queries, queries->stretch[0].length, p->length);
    for (int64_t k = 0; k < 2 * kv_count(p); ++k) {
      int64_t token = k / 2 / p->head_dim / p->kv_heads % p->length;
      if (token < begin || token >= end) {
        run_set(&part.in[1 + i + k % 2], k / 2, NAN);
      }
    }
    run_with(&part, 2);
    same = same_rows(&part, whole[i], i == 0 ? 3 : 6) && same;
  }
  tap_ok(same, "%s window %d: queries from %d on touch keys %d to %d", ts_dtype_name(p->dtype), p->window,
         (int) queries->stretch[0].begin, (int) begin, (int) end - 1);
  run_free(&f);
  run_free(&g);
  reference_free(&r);
}

/* On a device a shape has one of the two half types in turn, whose kernels are the same templates; on the stand-in
 * fp32 or it, by a row without a period.  TEST_ATTENTION_ALL, with any value, is for all. */
static bool is_tried(ts_dtype dtype, size_t shape) {
#ifdef RUN_CUDA
  if (getenv("TEST_ATTENTION_ALL") != NULL) {
    return true;
  }
#ifdef STAND_IN
  if ((dtype == TS_F32) == ((shape + (size_t) __builtin_popcountll(shape)) % 2 == 1)) {
    return false;
  }
#endif
  return dtype == TS_F32 || (dtype == TS_F16) == (shape % 2 == 1);
#else
  (void) dtype, (void) shape;
  return true;
#endif
}

static void check_parts(ts_dtype dtype) {
  const ts_tokens queries = {1, {{320, 64}}};
  problem all = {1, 640, 2, 1, 16, true, false, 0, dtype, 0, 0}, window = all;
  window.window = 60;
  check_unseen(&all, &queries, 0, 384);
  check_unseen(&window, &queries, 256, 384);
  const ts_tokens blocks = {2, {{128, 192}, {512, LATER}}}; /* cut at blocks of 64 */
#ifndef RUN_CUDA
  const ts_tokens anywhere = {2, {{119, 75}, {317, 130}}}; /* tiles and groups of keys begin between queries */
#endif
  static const problem problems[] = {{1, 700, 2, 1, 64, true, false, 0, 0, 0, 0},
                                     {2, 640, 2, 2, 40, true, true, 0, 0, 0, 0},
                                     {1, 700, 2, 1, 16, true, false, 0.2f, 0, 150, 3},
                                     {1, 650, 1, 1, 24, false, true, 0.1f, 0, 0, 0}};
  for (size_t i = 0; i < sizeof problems / sizeof *problems; ++i) {
    problem p = problems[i];
    p.dtype = dtype;
    if (is_tried(dtype, i)) {
      check_rows(&p, &blocks);
#ifndef RUN_CUDA
      check_rows(&p, &anywhere);
#endif
    }
  }
}

#ifdef RUN_CUDA
/* The stand-in counts the barriers of blocks, of which every tile that passes takes the same number. */
extern long shim_barriers(void) __attribute__((weak));

/* Tiles forward and backward in a window, or in documents of so many tokens. */
static double tiles_of(problem p, int document) {
  reference r = reference_create(&p);
  for (int t = 0; t < p.length; ++t) {
    r.document[t] = t / document;
  }
  long before = shim_barriers();
  run_case f = forward_case(&p, &r);
  run_with(&f, 1);
  run_case g = backward_case(&p, &r, &f);
  run_with(&g, 1);
  run_free(&f);
  run_free(&g);
  reference_free(&r);
  return (double) (shim_barriers() - before);
}

/* Tiles are 32 by at most 128 tokens: a sixteenth of 2048 tokens as a window, or as documents, leaves more than a
 * sixteenth of 8192 does.  The one document is there so that the same kernel counts. */
static void check_tiles(void) {
  problem all = {1, 2048, 1, 1, 16, true, true, 0, TS_BF16, 0, 0}, window = all;
  if (shim_barriers == NULL) {
    tap_skip("counted tiles: only the stand-in counts");
    return;
  }
  window.window = all.length / 16;
  double most = tiles_of(all, all.length), seen = tiles_of(window, all.length) / most;
  tap_ok(seen <= 0.25, "a window of a sixteenth: %.3f of all tiles", seen);
  seen = tiles_of(all, all.length / 16) / most;
  tap_ok(seen <= 0.25, "documents of a sixteenth: %.3f of all tiles", seen);
}

/* A deck whose attention no kernel can do is refused before training. */
static void check_limits(void) {
  for (int head_dim = 256; head_dim <= 257; ++head_dim) {
    problem p = {1, 2, 1, 1, head_dim, true, false, 0, TS_BF16, 0, 0};
    reference r = reference_create(&p);
    run_case f = forward_case(&p, &r);
    run_state s;
    run_begin(backend, &f, &s);
    const char *why = NULL;
    bool good = ts_cuda_attention_supported(&s.graph, &s.node, &why);
    tap_ok(good == (head_dim <= 256) && good == (why == NULL), "heads of %d: %s", head_dim, good ? "yes" : why);
    run_end(&s);
    run_free(&f);
    reference_free(&r);
  }
}
#endif

static void check_types(problem p, size_t shape) {
  for (int dtype = TS_F32; dtype <= TS_F16; ++dtype) {
    p.dtype = (ts_dtype) dtype;
    if (!is_tried(p.dtype, shape)) {
      continue;
    }
    check(&p, 0);
    if (p.length >= 160) {
      check(&p, 3);
    }
  }
}

int main(void) {
  backend = test_backend();
  if (backend == NULL) {
    return tap_done();
  }
  static const problem shapes[] = {
      {1, 1, 1, 1, 1, true, false, 0, 0, 0, 0},
      {2, 3, 2, 1, 5, true, false, 0, 0, 0, 0},
      {1, 17, 3, 3, 16, false, false, 0, 0, 0, 0},
      {2, 67, 4, 2, 24, true, false, 0, 0, 0, 0},
      {1, 64, 2, 2, 64, true, false, 0, 0, 0, 0},
      {1, 129, 6, 2, 40, true, true, 0, 0, 0, 0},
      {1, 300, 2, 1, 64, true, false, 0, 0, 0, 0},
      {1, 261, 1, 1, 80, false, true, 0, 0, 0, 0},
      {2, 66, 2, 1, 32, true, false, 0.25f, 0, 0, 0},
      {1, 193, 2, 2, 9, true, true, 0.5f, 0, 0, 0},
      {1, 150, 1, 1, 128, true, false, 0, 0, 0, 0},
      {1, 131, 2, 1, 17, false, false, 0.1f, 0, 0, 0},
      {1, 160, 4, 1, 96, true, false, 0, 0, 0, 0},
      {1, 260, 2, 2, 64, false, false, 0, 0, 0, 0},
      {1, 140, 2, 1, 128, false, true, 0.2f, 0, 0, 0},
      {2, 96, 2, 2, 64, true, true, 0.1f, 0, 0, 0},
      {1, 71, 2, 1, 96, true, false, 0.3f, 0, 0, 0},
      {1, 90, 2, 1, 256, true, false, 0, 0, 0, 0},
      {1, 75, 2, 1, 136, true, true, 0.1f, 0, 0, 0},
      {1, 37, 2, 2, 12, true, true, 0, 0, 0, 0},
      {0, 40, 2, 1, 64, true, false, 0, 0, 0, 0},
      /* windows: of two keys, inside a block, of many blocks, of all but a key, of all and more */
      {1, 67, 2, 1, 24, true, false, 0, 0, 2, 0},
      {1, 333, 2, 1, 16, true, false, 0, 0, 50, 0},
      {1, 420, 1, 1, 64, true, false, 0, 0, 193, 0},
      {1, 130, 1, 1, 40, true, false, 0, 0, 129, 0},
      {1, 65, 2, 1, 9, true, false, 0, 0, 65, 0},
      {1, 70, 2, 1, 32, true, false, 0, 0, 1000, 0},
      {1, 150, 2, 1, 136, true, false, 0, 0, 33, 0},
      {1, 159, 2, 1, 128, true, false, 0.2f, 0, 70, 0},
      /* softcaps, the last far below the scores */
      {2, 67, 4, 2, 24, true, false, 0, 0, 0, 5},
      {1, 129, 1, 1, 64, false, false, 0, 0, 0, 50},
      {1, 140, 1, 1, 128, true, false, 0.1f, 0, 0, 2},
      {1, 37, 2, 1, 136, true, false, 0, 0, 0, 0.25f},
      /* documents of every order, and all at once */
      {3, 290, 1, 1, 16, true, true, 0, 0, 0, 0},
      {3, 150, 2, 2, 9, false, true, 0.1f, 0, 0, 0},
      {3, 159, 2, 1, 64, true, true, 0.1f, 0, 40, 3},
      {3, 150, 1, 1, 80, true, true, 0, 0, 100, 20},
  };
  check_differences();
  check_dropout_mean();
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
    check_types(shapes[i], i);
  }
  check_skipping(TS_F32, 16);
  check_skipping(TS_BF16, 16);
  check_skipping(TS_BF16, 128);
  check_skipping(TS_F16, 16);
  check_skipping(TS_F16, 128);
  check_low_scores(TS_F32);
  check_low_scores(TS_BF16);
  check_low_scores(TS_F16);
  check_parts(TS_F32);
  check_parts(TS_BF16);
  check_parts(TS_F16);
  check_range();
#ifdef RUN_CUDA
  check_tiles();
  check_limits();
#endif
  test_backend_close();
  tap_ok(ts_memory_live() == 0, "everything is freed");
  return tap_done();
}
