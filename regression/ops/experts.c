/* Rows for experts.  Choices need not be different ones of a token here. */
#include "base/random.h"
#include "regression/ops/ops.h"

#include <math.h>

/* One choice; odd sizes; an expert that nobody chose and choices of none; all of one expert; more than a block sorts,
 * in columns of whole vectors; no tokens; some hundred rows of an expert, and columns that are several strips; more
 * rows than are summed at a time; at last some tens
 * of rows of an expert by sums of several parts, in several strips. */
static const struct dispatched {
  ts_shape tokens;
  int64_t k, columns;
  int experts;
  bool weighted, one_expert;
} expert_variants[] = {
    {{1, {1}}, 1, 1, 1, false, false},      {{2, {3, 5}}, 2, 17, 8, true, false},
    {{2, {2, 7}}, 4, 40, 60, false, false}, {{1, {300}}, 8, 64, 64, true, false},
    {{2, {9, 11}}, 3, 8, 4, true, true},    {{1, {700}}, 3, 16, 300, true, false},
    {{2, {2, 3}}, 2, 2056, 5, true, false}, {{2, {0, 4}}, 2, 8, 3, true, false},
    {{1, {240}}, 1, 20, 3, true, false},    {{1, {60}}, 1, 1030, 2, false, false},
    {{1, {60}}, 1, 20, 2, false, false},    {{1, {1100}}, 1, 17, 2, false, true},
    {{1, {170}}, 1, 328, 3, true, false},   {{1, {420}}, 1, 136, 5, false, false},
    {{1, {64}}, 1, 40, 30, false, false}, /* more tiles than a GPU has multiprocessors */
    {{1, {130}}, 1, 330, 2, false, false},
};
#ifdef STAND_IN
enum { DISPATCHES = 8 };
#else
enum { DISPATCHES = sizeof expert_variants / sizeof *expert_variants };
#endif

static ts_shape of_tokens(const struct dispatched *v, int64_t last) {
  ts_shape shape = v->tokens;
  shape.d[shape.n++] = last;
  return shape;
}

static int64_t choices_of(const struct dispatched *v) {
  return ts_shape_count(&v->tokens) * v->k;
}

/* The last expert but one has no tokens; every seventh choice or so is of none, below and above the experts. */
static int32_t choice(const struct dispatched *v, int64_t i) {
  int32_t n = v->experts, of = (int32_t) (ts_mix(41, (uint64_t) i) % (uint64_t) (n + (n + 5) / 6));
  return v->one_expert ? n - 1 : of >= n ? (i % 2 == 0 ? n + of : -1 - of) : n > 2 && of == n - 2 ? 0 : of;
}

static bool has_expert(const struct dispatched *v, int64_t i) {
  return choice(v, i) >= 0 && choice(v, i) < v->experts;
}

/* The row of each choice: those of smaller experts come before, and of its own by number; those of none last. */
static void find_rows(const struct dispatched *v, int64_t *row) {
  int64_t next[TS_MOST_EXPERTS + 2] = {0};
  for (int64_t i = 0; i < choices_of(v); ++i) {
    ++next[(has_expert(v, i) ? choice(v, i) : v->experts) + 1];
  }
  for (int e = 0; e <= v->experts; ++e) {
    next[e + 1] += next[e];
  }
  for (int64_t i = 0; i < choices_of(v); ++i) {
    row[i] = next[has_expert(v, i) ? choice(v, i) : v->experts]++;
  }
}

/* As many as there are choices of the experts; 0 where there are none. */
static int64_t enough_rows(const run_case *c) {
  int64_t rows = 0;
  for (int64_t i = 0; i < run_count(&c->in[0]); ++i) {
    double of = run_get(&c->in[0], i) - c->attr.experts.first;
    rows += of >= 0 && of < c->attr.experts.n;
  }
  return rows;
}

static void build_dispatch(run_case *c, int variant, ts_dtype dtype) {
  const struct dispatched *v = &expert_variants[variant];
  (void) dtype;
  c->attr.experts.n = v->experts - variant % 3; /* the last ones are others' */
  c->attr.experts.first = variant % 3 == 2 ? 1 : 0;
  c->attr.experts.n += variant % 3 == 2 ? 1 : 0;
  c->in[0] = run_new(TS_I32, of_tokens(v, v->k));
  for (int64_t i = 0; i < choices_of(v); ++i) {
    run_set(&c->in[0], i, choice(v, i));
  }
  c->n_in = 1;
  c->attr.experts.rows = variant % 2 == 1 ? enough_rows(c) : 0;
  ops_output(c, TS_I32, TS_SHAPE(c->attr.experts.rows > 0 ? c->attr.experts.rows : choices_of(v)));
  ops_output(c, TS_I32, of_tokens(v, v->k));
  ops_output(c, TS_I32, TS_SHAPE(c->attr.experts.n + 1));
}

static void dispatch(run_case *c) {
  int64_t n = run_count(&c->in[0]), experts = c->attr.experts.n;
  const int32_t *chosen = c->in[0].data, lowest = c->attr.experts.first;
  int64_t row = 0;
  for (int64_t e = 0; e <= experts; ++e) {
    run_set(&c->out[2], e, (double) row);
    for (int64_t i = 0; i < n; ++i) {
      int64_t of = chosen[i] >= lowest && chosen[i] < lowest + experts ? chosen[i] - lowest : experts;
      if (of == e) {
        if (row < run_count(&c->out[0])) {
          run_set(&c->out[0], row, (double) i);
        }
        run_set(&c->out[1], i, (double) row++);
      }
    }
  }
}

/* Ranks, experts of all, the first of one's own, and their number. */
static const int counted[][4] = {{1, 1, 0, 1}, {3, 7, 2, 3}, {4, 64, 48, 16}, {2, 600, 0, 600}};
enum { COUNTED = sizeof counted / sizeof *counted };

static void build_first_of_all(run_case *c, int variant, ts_dtype dtype) {
  const int *v = counted[variant];
  (void) dtype;
  c->attr.experts.first = v[2];
  c->attr.experts.n = v[3];
  c->in[0] = run_new(TS_I32, TS_SHAPE(v[0], v[1] + 1));
  c->n_in = 1;
  for (int64_t i = 0; i < run_count(&c->in[0]); ++i) {
    run_set(&c->in[0], i, i % (v[1] + 1) == 0 ? 0 : run_get(&c->in[0], i - 1) + (double) (ts_mix(5, (uint64_t) i) % 9));
  }
  ops_output(c, TS_I32, TS_SHAPE(v[3] + 1));
}

static void first_of_all(run_case *c) {
  int64_t each = c->in[0].shape.d[1];
  double row = 0;
  for (int64_t e = 0; e <= c->attr.experts.n; ++e) {
    run_set(&c->out[0], e, row);
    for (int64_t r = 0; r < c->in[0].shape.d[0] && e < c->attr.experts.n; ++r) {
      int64_t at = r * each + c->attr.experts.first + e;
      row += run_get(&c->in[0], at + 1) - run_get(&c->in[0], at);
    }
  }
}

static void count_first(run_tensor *first, const struct dispatched *v) {
  for (int64_t i = 0; i < choices_of(v); ++i) {
    for (int64_t e = has_expert(v, i) ? choice(v, i) + 1 : v->experts + 1; e <= v->experts; ++e) {
      run_set(first, e, run_get(first, e) + 1);
    }
  }
}

/* Order (unless there is none), place, first and weights, as inputs from `at` on. */
static void input_rows(run_case *c, int variant, int at, bool ordered, bool weighted) {
  const struct dispatched *v = &expert_variants[variant];
  run_tensor *order = ordered ? &c->in[at++] : NULL, *place = &c->in[at], *first = &c->in[at + 1];
  *place = run_new(TS_I32, of_tokens(v, v->k));
  *first = run_new(TS_I32, TS_SHAPE(v->experts + 1));
  if (ordered) {
    *order = run_new(TS_I32, TS_SHAPE(choices_of(v)));
  }
  int64_t *row = ts_malloc((size_t) (choices_of(v) + 1) * sizeof *row);
  find_rows(v, row);
  for (int64_t i = 0; i < choices_of(v); ++i) {
    run_set(place, i, (double) row[i]);
    if (ordered) {
      run_set(order, row[i], (double) i);
    }
  }
  ts_free(row);
  count_first(first, v);
  c->n_in = at + 2;
  if (weighted) {
    ops_input(c, c->n_in, TS_F32, of_tokens(v, v->k), 1.0);
  }
}

static void build_take_rows(run_case *c, int variant, ts_dtype dtype) {
  const struct dispatched *v = &expert_variants[variant];
  ops_input(c, 0, dtype, of_tokens(v, v->columns), 1.0);
  input_rows(c, variant, 1, true, v->weighted);
  ops_output(c, dtype, TS_SHAPE(choices_of(v), v->columns));
}

static void build_combine(run_case *c, int variant, ts_dtype dtype) {
  const struct dispatched *v = &expert_variants[variant];
  ops_input(c, 0, dtype, TS_SHAPE(choices_of(v), v->columns), 1.0);
  input_rows(c, variant, 1, true, v->weighted);
  ops_output(c, dtype, of_tokens(v, v->columns));
}

static void build_combine_dots(run_case *c, int variant, ts_dtype dtype) {
  const struct dispatched *v = &expert_variants[variant];
  ops_input(c, 0, dtype, of_tokens(v, v->columns), 1.0);
  ops_input(c, 1, dtype, TS_SHAPE(choices_of(v), v->columns), 1.0);
  input_rows(c, variant, 2, false, false);
  ops_output(c, TS_F32, of_tokens(v, v->k));
}

/* What the references of the three know of a call, by its inputs alone. */
static int64_t row_of_choice(const run_case *c, int64_t i, double *by) {
  const int32_t *place = c->in[2].data, *first = c->in[3].data;
  int64_t taken = first[c->in[3].shape.d[0] - 1];
  *by = c->n_in > 4 && c->in[4].data != NULL ? ops_in(c, 4)[i] : 1;
  return place[i] < taken ? place[i] : -1;
}

static int64_t chosen_of(const run_case *c) {
  return c->in[2].shape.d[c->in[2].shape.n - 1];
}

static void take_rows(run_case *c) {
  int64_t n = ops_columns(c, 0), k = chosen_of(c);
  memset(ops_out(c, 0), 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  for (int64_t i = 0; i < ops_rows(c, 2) * k; ++i) {
    double by;
    int64_t row = row_of_choice(c, i, &by);
    for (int64_t j = 0; j < n && row >= 0; ++j) {
      ops_out(c, 0)[row * n + j] = by * ops_in(c, 0)[i / k * n + j];
    }
  }
}

static void combine(run_case *c) {
  int64_t n = ops_columns(c, 0), k = chosen_of(c);
  memset(ops_out(c, 0), 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  for (int64_t i = 0; i < ops_rows(c, 2) * k; ++i) {
    double by;
    int64_t row = row_of_choice(c, i, &by);
    for (int64_t j = 0; j < n && row >= 0; ++j) {
      ops_out(c, 0)[i / k * n + j] += by * ops_in(c, 0)[row * n + j];
    }
  }
}

static void combine_dots(run_case *c) {
  int64_t n = ops_columns(c, 0), k = chosen_of(c);
  for (int64_t i = 0; i < ops_rows(c, 2) * k; ++i) {
    double by, sum = 0;
    int64_t row = row_of_choice(c, i, &by);
    for (int64_t j = 0; j < n && row >= 0; ++j) {
      sum += ops_in(c, 0)[i / k * n + j] * ops_in(c, 1)[row * n + j];
    }
    ops_out(c, 0)[i] = sum;
  }
}

/* ---- products: each variant twice, with w as it is and turned ---- */

static const int64_t results[] = {1, 9, 72, 64, 24, 130, 66, 8, 530, 40, 1090, 70, 264, 520, 1032, 1090};

/* Which of them are products: on the stand-in, which is slow, not that of 300 experts, nor those of many rows; tiles of
 * warp groups, three, are a GPU's. */
#ifdef STAND_IN
static const int multiplied[] = {0, 1, 2, 4, 6, 7, 12};
#elif defined RUN_CUDA
static const int multiplied[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
static const int multiplied[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15};
#endif
enum { PRODUCTS = 2 * sizeof multiplied / sizeof *multiplied };

static ts_shape of_experts(const struct dispatched *v, int64_t a, int64_t b, bool turned) {
  return turned ? TS_SHAPE(v->experts, b, a) : TS_SHAPE(v->experts, a, b);
}

static void input_first(run_case *c, const struct dispatched *v, int at) {
  c->in[at] = run_new(TS_I32, TS_SHAPE(v->experts + 1));
  count_first(&c->in[at], v);
  c->n_in = at + 1;
}

static void build_grouped(run_case *c, int variant, ts_dtype dtype) {
  const struct dispatched *v = &expert_variants[multiplied[variant / 2]];
  int64_t columns = results[multiplied[variant / 2]];
  c->attr.matmul.transpose_b = variant % 2 == 1;
  c->attr.matmul.dtype = dtype;
  ops_input(c, 0, dtype, TS_SHAPE(choices_of(v), v->columns), 1.0);
  ops_input(c, 1, dtype, of_experts(v, v->columns, columns, variant % 2 == 1), 1.0);
  input_first(c, v, 2);
  ops_output(c, dtype, TS_SHAPE(choices_of(v), columns));
}

static void build_grouped_dw(run_case *c, int variant, ts_dtype dtype) {
  const struct dispatched *v = &expert_variants[multiplied[variant / 2]];
  c->attr.matmul.dtype = variant % 2 == 0 ? TS_F32 : dtype;
  ops_input(c, 0, dtype, TS_SHAPE(choices_of(v), results[multiplied[variant / 2]]), 1.0);
  ops_input(c, 1, dtype, TS_SHAPE(choices_of(v), v->columns), 1.0);
  input_first(c, v, 2);
  ops_output(c, c->attr.matmul.dtype, of_experts(v, results[multiplied[variant / 2]], v->columns, false));
}

static void build_grouped_bias(run_case *c, int variant, ts_dtype dtype) {
  const struct dispatched *v = &expert_variants[variant];
  ops_input(c, 0, dtype, TS_SHAPE(choices_of(v), v->columns), 1.0);
  ops_input(c, 1, dtype, TS_SHAPE(v->experts, v->columns), 1.0);
  input_first(c, v, 2);
  ops_output(c, dtype, TS_SHAPE(choices_of(v), v->columns));
}

static void grouped_bias(run_case *c) {
  const int32_t *first = c->in[2].data;
  int64_t n = ops_columns(c, 0);
  memset(ops_out(c, 0), 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  for (int64_t e = 0; e < c->in[1].shape.d[0]; ++e) {
    for (int64_t i = first[e] * n; i < first[e + 1] * n; ++i) {
      ops_out(c, 0)[i] = ops_in(c, 0)[i] + ops_in(c, 1)[e * n + i % n];
    }
  }
}

static void build_grouped_sum(run_case *c, int variant, ts_dtype dtype) {
  const struct dispatched *v = &expert_variants[variant];
  c->attr.sum_rows.dtype = variant % 2 == 0 ? TS_F32 : dtype;
  ops_input(c, 0, dtype, TS_SHAPE(choices_of(v), v->columns), 1.0);
  input_first(c, v, 1);
  ops_output(c, c->attr.sum_rows.dtype, TS_SHAPE(v->experts, v->columns));
}

static void grouped_sum(run_case *c) {
  const int32_t *first = c->in[1].data;
  int64_t n = ops_columns(c, 0);
  memset(ops_out(c, 0), 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  for (int64_t e = 0; e < c->out[0].shape.d[0]; ++e) {
    for (int64_t i = first[e] * n; i < first[e + 1] * n; ++i) {
      ops_out(c, 0)[e * n + i % n] += ops_in(c, 0)[i];
    }
  }
}

static void grouped(run_case *c) {
  const int32_t *first = c->in[2].data;
  int64_t inner = ops_columns(c, 0), n = c->out[0].shape.d[1];
  bool turned = c->attr.matmul.transpose_b;
  memset(ops_out(c, 0), 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  for (int64_t e = 0; e < c->in[1].shape.d[0]; ++e) {
    const double *w = ops_in(c, 1) + e * inner * n;
    for (int64_t row = first[e]; row < first[e + 1]; ++row) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t k = 0; k < inner; ++k) {
          ops_out(c, 0)[row * n + j] += ops_in(c, 0)[row * inner + k] * w[turned ? j * inner + k : k * n + j];
        }
      }
    }
  }
}

static void grouped_dw(run_case *c) {
  const int32_t *first = c->in[2].data;
  int64_t m = ops_columns(c, 0), n = ops_columns(c, 1);
  memset(ops_out(c, 0), 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  for (int64_t e = 0; e < c->out[0].shape.d[0]; ++e) {
    for (int64_t row = first[e]; row < first[e + 1]; ++row) {
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          ops_out(c, 0)[(e * m + i) * n + j] += ops_in(c, 0)[row * m + i] * ops_in(c, 1)[row * n + j];
        }
      }
    }
  }
}

/* ---- experts and an MLP beside them ---- */

static ts_shape two_of(ts_shape tokens) {
  tokens.d[tokens.n - 1] = 2;
  return tokens;
}

static void build_blend(run_case *c, int variant, ts_dtype dtype) {
  ts_shape shape = ops_shape(variant);
  ops_input(c, 0, dtype, shape, 1.0);
  ops_input(c, 1, dtype, shape, 1.0);
  ops_input(c, 2, TS_F32, two_of(shape), 1.5);
  ops_output(c, dtype, shape);
}

static double share_of(const run_case *c, int logits, int64_t token) {
  const double *x = ops_in(c, logits) + 2 * token;
  return exp(x[0]) / (exp(x[0]) + exp(x[1]));
}

static void blend(run_case *c) {
  int64_t n = ops_columns(c, 0);
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    double share = share_of(c, 2, i / n);
    ops_out(c, 0)[i] = share * ops_in(c, 0)[i] + (1 - share) * ops_in(c, 1)[i];
  }
}

static void build_blend_dx(run_case *c, int variant, ts_dtype dtype) {
  ts_shape shape = ops_shape(variant);
  for (int i = 0; i < 3; ++i) {
    ops_input(c, i, dtype, shape, 1.0);
  }
  ops_input(c, 3, TS_F32, two_of(shape), 1.5);
  ops_output(c, dtype, shape);
  ops_output(c, dtype, shape);
  ops_output(c, TS_F32, c->in[3].shape);
}

static void blend_dx(run_case *c) {
  int64_t n = ops_columns(c, 0);
  memset(ops_out(c, 2), 0, (size_t) run_count(&c->out[2]) * sizeof(double));
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    double share = share_of(c, 3, i / n), dy = ops_in(c, 0)[i];
    ops_out(c, 0)[i] = share * dy;
    ops_out(c, 1)[i] = (1 - share) * dy;
    double slope = share * (1 - share) * dy * (ops_in(c, 1)[i] - ops_in(c, 2)[i]);
    ops_out(c, 2)[i / n * 2] += slope;
    ops_out(c, 2)[i / n * 2 + 1] -= slope;
  }
}

/* Sums of eight products of numbers up to four, and of two thousand; of products of matrices as many as columns, or
 * rows of an expert. */
const op_row ops_experts[] = {
    {TS_OP_DISPATCH, DISPATCHES, build_dispatch, dispatch, 0},
    {TS_OP_FIRST_OF_ALL, COUNTED, build_first_of_all, first_of_all, 0},
    {TS_OP_TAKE_ROWS, DISPATCHES, build_take_rows, take_rows, 8},
    {TS_OP_COMBINE, DISPATCHES, build_combine, combine, 32},
    {TS_OP_COMBINE_DOTS, DISPATCHES, build_combine_dots, combine_dots, 1024},
    {TS_OP_GROUPED, PRODUCTS, build_grouped, grouped, 1024},
    {TS_OP_GROUPED_DW, PRODUCTS, build_grouped_dw, grouped_dw, 1024},
    {TS_OP_GROUPED_BIAS, DISPATCHES, build_grouped_bias, grouped_bias, 8},
    {TS_OP_BLEND, OPS_SHAPES, build_blend, blend, 16},
    {TS_OP_BLEND_DX, OPS_SHAPES, build_blend_dx, blend_dx, 1024},
    {TS_OP_GROUPED_SUM, DISPATCHES, build_grouped_sum, grouped_sum, 1024},
    {.reference = NULL},
};
