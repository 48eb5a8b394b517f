/* Routing of tokens to experts. */
#include "regression/ops/ops.h"

#include <math.h>

/* Softmax and sigmoid, weights as they are and normalized, groups, as many as there are, more experts than a warp's
 * lanes, no tokens. */
static const struct routed {
  ts_shape shape; /* of logits */
  int k, groups, top_groups;
  bool sigmoid, normalize, biased;
  float scale;
} route_variants[] = {
    {{2, {1, 1}}, 1, 0, 0, false, false, false, 1},     {{3, {3, 5, 8}}, 2, 0, 0, false, true, false, 1},
    {{3, {2, 7, 60}}, 4, 0, 0, false, false, false, 1}, {{2, {300, 64}}, 8, 0, 0, false, true, true, 1},
    {{2, {41, 16}}, 16, 0, 0, true, true, false, 2.5f}, {{3, {2, 9, 128}}, 6, 8, 3, true, true, true, 2.5f},
    {{2, {33, 12}}, 2, 4, 2, false, false, false, 1},   {{2, {5, 1024}}, 64, 64, 8, true, false, true, 0.5f},
    {{2, {17, 6}}, 2, 6, 3, true, true, false, 1},      {{3, {0, 4, 8}}, 2, 0, 0, false, true, false, 1},
};
enum { ROUTES = sizeof route_variants / sizeof *route_variants };

static ts_shape chosen_shape(const struct routed *v) {
  ts_shape shape = v->shape;
  shape.d[shape.n - 1] = v->k;
  return shape;
}

/* Logits of which many are equal. */
static void input_route(run_case *c, int variant) {
  const struct routed *v = &route_variants[variant];
  int i = c->n_in;
  ops_input(c, i, TS_F32, v->shape, 1.5);
  for (int64_t k = 0; k < run_count(&c->in[i]); ++k) {
    run_set(&c->in[i], k, nearbyint(4 * run_get(&c->in[i], k)) / 4);
  }
  c->attr.route.k = v->k;
  c->attr.route.groups = v->groups;
  c->attr.route.top_groups = v->top_groups;
  c->attr.route.sigmoid = v->sigmoid;
  c->attr.route.normalize = v->normalize;
  c->attr.route.scale = v->scale;
}

static void build_route(run_case *c, int variant, ts_dtype dtype) {
  const struct routed *v = &route_variants[variant];
  (void) dtype;
  input_route(c, variant);
  if (v->biased) {
    ops_input(c, 1, TS_F32, TS_SHAPE(v->shape.d[v->shape.n - 1]), 0.3);
  }
  ops_output(c, TS_F32, chosen_shape(v));
  ops_output(c, TS_I32, chosen_shape(v));
}

static void score_all(const run_case *c, const double *x, int64_t n, double *score) {
  double sum = 0;
  for (int64_t e = 0; e < n; ++e) {
    score[e] = c->attr.route.sigmoid ? 1 / (1 + exp(-x[e])) : exp(x[e]);
    sum += score[e];
  }
  for (int64_t e = 0; e < n && !c->attr.route.sigmoid; ++e) {
    score[e] /= sum;
  }
}

/* The place that x[i] has among the n from the largest on, equal ones by number. */
static int64_t rank_of(const double *x, int64_t n, int64_t i) {
  int64_t before = 0;
  for (int64_t k = 0; k < n; ++k) {
    before += x[k] > x[i] || (x[k] == x[i] && k < i);
  }
  return before;
}

static void hide_groups(const run_case *c, double *choice, int64_t n) {
  int64_t groups = c->attr.route.groups, size = n / groups;
  double best[TS_MOST_CHOSEN] = {0};
  for (int64_t e = 0; e < n; ++e) {
    int64_t g = e / size;
    best[g] += rank_of(choice + g * size, size, e - g * size) < 2 ? choice[e] : 0;
  }
  for (int64_t e = 0; e < n; ++e) {
    choice[e] = rank_of(best, groups, e / size) < c->attr.route.top_groups ? choice[e] : -INFINITY;
  }
}

static void route(run_case *c) {
  int64_t n = ops_columns(c, 0), k = c->attr.route.k;
  double score[TS_MOST_EXPERTS], choice[TS_MOST_EXPERTS];
  bool biased = c->n_in > 1 && c->in[1].data != NULL;
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *x = ops_in(c, 0) + row * n;
    double sum = 0;
    score_all(c, x, n, score);
    for (int64_t e = 0; e < n; ++e) {
      choice[e] = biased ? score[e] + ops_in(c, 1)[e] : c->attr.route.groups > 1 ? score[e] : x[e];
    }
    if (c->attr.route.groups > 1) {
      hide_groups(c, choice, n);
    }
    for (int64_t e = 0; e < n; ++e) {
      int64_t j = rank_of(choice, n, e);
      if (j < k) {
        run_set(&c->out[1], row * k + j, (double) e);
        ops_out(c, 0)[row * k + j] = score[e];
        sum += score[e];
      }
    }
    for (int64_t j = 0; j < k; ++j) {
      ops_out(c, 0)[row * k + j] *= c->attr.route.scale / (c->attr.route.normalize ? sum : 1);
    }
  }
}

/* What is chosen need not be the best: every third expert from the token's number on. */
static void build_route_dx(run_case *c, int variant, ts_dtype dtype) {
  const struct routed *v = &route_variants[variant];
  int64_t n = v->shape.d[v->shape.n - 1];
  (void) dtype;
  ops_input(c, 0, TS_F32, chosen_shape(v), 1.0);
  input_route(c, variant);
  c->in[2] = run_new(TS_I32, chosen_shape(v));
  for (int64_t i = 0; i < run_count(&c->in[2]); ++i) {
    int64_t step = n % 3 == 0 ? 1 : 3;
    run_set(&c->in[2], i, (double) ((i / v->k + step * (i % v->k)) % n));
  }
  c->n_in = 3;
  ops_output(c, TS_F32, v->shape);
}

/* By the rule for products: d weight_j / d logit_e. */
static void route_dx(run_case *c) {
  int64_t n = ops_columns(c, 1), k = c->attr.route.k;
  double score[TS_MOST_EXPERTS], slope[TS_MOST_EXPERTS];
  for (int64_t row = 0; row < ops_rows(c, 1); ++row) {
    const double *dw = ops_in(c, 0) + row * k;
    const int32_t *chosen = (const int32_t *) c->in[2].data + row * k;
    double sum = 0, dot = 0, flow = 0;
    score_all(c, ops_in(c, 1) + row * n, n, score);
    for (int64_t j = 0; j < k; ++j) {
      sum += score[chosen[j]];
      dot += dw[j] * score[chosen[j]];
    }
    memset(slope, 0, sizeof slope);
    for (int64_t j = 0; j < k; ++j) {
      bool normal = c->attr.route.normalize;
      slope[chosen[j]] = c->attr.route.scale * (normal ? (dw[j] - dot / sum) / sum : dw[j]);
      flow += slope[chosen[j]] * score[chosen[j]];
    }
    for (int64_t e = 0; e < n; ++e) {
      ops_out(c, 0)[row * n + e] = score[e] * (c->attr.route.sigmoid ? slope[e] * (1 - score[e]) : slope[e] - flow);
    }
  }
}

/* Scores of fp32, and quotients of sums of some of them. */
const op_row ops_route[] = {
    {TS_OP_ROUTE, ROUTES, build_route, route, 16},
    {TS_OP_ROUTE_DX, ROUTES, build_route_dx, route_dx, 64},
    {.reference = NULL},
};
