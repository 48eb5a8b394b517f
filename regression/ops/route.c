/* Routing of tokens to experts. */
#include "regression/ops/ops.h"

#include <math.h>

/* Softmax and sigmoid, weights as they are and normalized, groups, as many as there are, more experts than a warp's
 * lanes, no tokens; noised logits, for all choices or some. */
static const struct routed {
  ts_shape shape; /* of logits */
  int k, groups, top_groups;
  bool sigmoid, normalize, biased;
  float scale;
  bool noised;
  int sure;
} route_variants[] = {
    {{2, {1, 1}}, 1, 0, 0, false, false, false, 1, false, 0},
    {{3, {3, 5, 8}}, 2, 0, 0, false, true, false, 1, false, 0},
    {{3, {2, 7, 60}}, 4, 0, 0, false, false, false, 1, false, 0},
    {{2, {300, 64}}, 8, 0, 0, false, true, true, 1, false, 0},
    {{2, {41, 16}}, 16, 0, 0, true, true, false, 2.5f, false, 0},
    {{3, {2, 9, 128}}, 6, 8, 3, true, true, true, 2.5f, false, 0},
    {{2, {33, 12}}, 2, 4, 2, false, false, false, 1, false, 0},
    {{2, {5, 1024}}, 64, 64, 8, true, false, true, 0.5f, false, 0},
    {{2, {17, 6}}, 2, 6, 3, true, true, false, 1, false, 0},
    {{3, {0, 4, 8}}, 2, 0, 0, false, true, false, 1, false, 0},
    {{2, {41, 8}}, 1, 0, 0, false, false, false, 1, true, 0},
    {{2, {39, 40}}, 2, 0, 0, false, false, false, 1, true, 1},
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
  if (v->noised) {
    ops_input(c, 3, TS_F32, v->shape, 1.5);
    run_set(&c->in[3], 0, (double) NAN); /* chosen last */
  }
  c->attr.route.sure = v->sure;
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

static int64_t best_of(const double *x, int64_t n) {
  int64_t best = 0;
  for (int64_t e = 1; e < n; ++e) {
    best = x[e] > x[best] ? e : best;
  }
  return best;
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
    bool noised = c->n_in > 3 && c->in[3].data != NULL;
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t e = 0; e < n && noised && j == c->attr.route.sure; ++e) {
        double value = ops_in(c, 3)[row * n + e];
        bool taken = choice[e] == -INFINITY && j > 0;
        choice[e] = taken || value != value ? -INFINITY : value;
      }
      int64_t e = best_of(choice, n);
      run_set(&c->out[1], row * k + j, (double) e);
      ops_out(c, 0)[row * k + j] = score[e];
      sum += score[e];
      choice[e] = -INFINITY;
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

/* ---- what experts got ---- */

/* One group; samples, which tokens here begin and end in the middle of; more than a block of tokens; a group of none;
 * no tokens; some choices count; not all are taken. */
static const struct loaded {
  ts_shape shape; /* of logits */
  int k, groups;
  int64_t length, first;
  bool sigmoid;
  int counted;
  bool limited;
} load_variants[] = {
    {{3, {1, 1, 1}}, 1, 1, 1, 0, false, 0, false},   {{3, {3, 50, 8}}, 2, 1, 150, 0, false, 0, false},
    {{3, {3, 50, 7}}, 3, 3, 50, 0, true, 0, false},  {{3, {1, 90, 60}}, 4, 4, 70, 65, false, 0, false},
    {{2, {300, 129}}, 8, 3, 150, 0, true, 0, false}, {{3, {0, 4, 8}}, 2, 1, 4, 0, false, 0, false},
    {{3, {2, 70, 9}}, 3, 2, 70, 0, false, 1, true},  {{3, {2, 70, 9}}, 2, 1, 140, 0, false, 0, true},
};
enum { LOADS = sizeof load_variants / sizeof *load_variants, IGNORED = -100 };

static ts_shape shape_of_loads(const struct loaded *v) {
  return TS_SHAPE(v->groups, ts_loads_width(v->shape.d[v->shape.n - 1]));
}

/* Every fifth label is none; in the last group of the fifth variant all are. */
static void input_labels(run_case *c, int i, const struct loaded *v, int variant) {
  ts_shape shape = v->shape;
  --shape.n;
  c->in[i] = run_new(TS_I32, shape);
  for (int64_t t = 0; t < run_count(&c->in[i]); ++t) {
    bool none = t % 5 == 3 || (variant == 4 && t >= v->length);
    run_set(&c->in[i], t, none ? IGNORED : (double) (t % 11));
  }
  c->n_in = i + 1;
}

static void set_loads(run_case *c, const struct loaded *v) {
  c->attr.loads.groups = v->groups;
  c->attr.loads.length = v->length;
  c->attr.loads.first = v->first;
  c->attr.loads.sigmoid = v->sigmoid;
  c->attr.loads.counted = v->counted;
}

static void input_choices(run_case *c, int i, const struct loaded *v) {
  int64_t n = v->shape.d[v->shape.n - 1];
  ts_shape choices = v->shape;
  choices.d[choices.n - 1] = v->k;
  c->in[i] = run_new(TS_I32, choices);
  for (int64_t at = 0; at < run_count(&c->in[i]); ++at) {
    run_set(&c->in[i], at, (double) ((at * 7 + at / v->k) % n));
  }
}

static void build_route_loads(run_case *c, int variant, ts_dtype dtype) {
  const struct loaded *v = &load_variants[variant];
  (void) dtype;
  set_loads(c, v);
  ops_input(c, 0, TS_F32, v->shape, 1.5);
  input_choices(c, 1, v);
  input_labels(c, 2, v, variant);
  if (v->limited) { /* every third choice is of nobody */
    input_choices(c, 3, v);
    for (int64_t at = 0; at < run_count(&c->in[3]); at += 3) {
      run_set(&c->in[3], at, (double) v->shape.d[v->shape.n - 1]);
    }
    c->n_in = 4;
  }
  ops_output(c, TS_F32, shape_of_loads(v));
}

/* The scores, their sum and logsumexp of a token. */
static double score_shares(bool sigmoid, const double *x, int64_t n, double *share) {
  double sum = 0, z = 0;
  for (int64_t e = 0; e < n; ++e) {
    share[e] = sigmoid ? 1 / (1 + exp(-x[e])) : exp(x[e]);
    sum += share[e];
    z += exp(x[e]);
  }
  for (int64_t e = 0; e < n; ++e) {
    share[e] /= sum;
  }
  return log(z);
}

static void route_loads(run_case *c) {
  int64_t n = ops_columns(c, 0), k = ops_columns(c, 1), width = 2 * n + 3;
  const int32_t *chosen = c->in[1].data, *label = c->in[2].data, *taken = c->n_in > 3 ? c->in[3].data : NULL;
  double share[TS_MOST_EXPERTS];
  memset(ops_out(c, 0), 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  for (int64_t t = 0; t < ops_rows(c, 0); ++t) {
    double *to = ops_out(c, 0) + (c->attr.loads.first + t) / c->attr.loads.length * width;
    double z = score_shares(c->attr.loads.sigmoid, ops_in(c, 0) + t * n, n, share);
    for (int64_t e = 0; e < n && label[t] != IGNORED; ++e) {
      to[n + e] += share[e];
    }
    for (int64_t j = 0; j < k && label[t] != IGNORED; ++j) {
      to[chosen[t * k + j]] += c->attr.loads.counted == 0 || j < c->attr.loads.counted;
      to[2 * n + 2] += taken != NULL && taken[t * k + j] >= n;
    }
    to[2 * n] += label[t] != IGNORED ? z * z : 0;
    to[2 * n + 1] += label[t] != IGNORED;
  }
}

static void build_route_excess(run_case *c, int variant, ts_dtype dtype) {
  const struct loaded *v = &load_variants[variant];
  (void) dtype;
  c->attr.experts.n = (int) v->shape.d[v->shape.n - 1];
  input_choices(c, 0, v);
  input_labels(c, 1, v, variant);
  ops_output(c, TS_F32, TS_SHAPE(c->attr.experts.n));
}

/* A count too many or too few is n off. */
static void route_excess(run_case *c) {
  int64_t n = c->attr.experts.n, k = ops_columns(c, 0), all = 0;
  const int32_t *chosen = c->in[0].data, *label = c->in[1].data;
  double *y = ops_out(c, 0);
  memset(y, 0, (size_t) n * sizeof *y);
  for (int64_t i = 0; i < ops_rows(c, 0) * k; ++i) {
    bool counts = label[i / k] != IGNORED;
    y[chosen[i]] += counts ? (double) n : 0;
    all += counts;
  }
  for (int64_t e = 0; e < n; ++e) {
    y[e] -= (double) all;
  }
}

static void build_route_loads_dx(run_case *c, int variant, ts_dtype dtype) {
  const struct loaded *v = &load_variants[variant];
  (void) dtype;
  set_loads(c, v);
  ops_input(c, 0, TS_F32, shape_of_loads(v), 1.0);
  ops_input(c, 1, TS_F32, v->shape, 1.5);
  input_labels(c, 2, v, variant);
  ops_output(c, TS_F32, v->shape);
}

/* By the quotient rule, from each share to each logit. */
static void route_loads_dx(run_case *c) {
  int64_t n = ops_columns(c, 1), width = 2 * n + 3;
  const int32_t *label = c->in[2].data;
  double share[TS_MOST_EXPERTS];
  memset(ops_out(c, 0), 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  for (int64_t t = 0; t < ops_rows(c, 1); ++t) {
    const double *d = ops_in(c, 0) + (c->attr.loads.first + t) / c->attr.loads.length * width;
    const double *x = ops_in(c, 1) + t * n;
    double z = score_shares(c->attr.loads.sigmoid, x, n, share), *to = ops_out(c, 0) + t * n;
    for (int64_t e = 0; e < n && label[t] != IGNORED; ++e) {
      double slope = c->attr.loads.sigmoid ? 1 / (1 + exp(x[e])) : 1, sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        sum += d[n + i] * share[i] * ((i == e) - share[e]);
      }
      to[e] = slope * sum + d[2 * n] * 2 * z * exp(x[e] - z);
    }
  }
}

/* Counts and means as they may be, of one rank of several; a group of no tokens. */
static void input_balance(run_case *c, int i, int64_t groups, int64_t experts, double part) {
  int64_t width = ts_loads_width(experts);
  ops_input(c, i, TS_F32, TS_SHAPE(groups, width), 1.0);
  for (int64_t at = 0; at < run_count(&c->in[i]); ++at) {
    int64_t place = at % width;
    double value = place < experts           ? floor(40 * part * fabs(run_get(&c->in[i], at)))
                   : place < 2 * experts     ? 9 * part * fabs(run_get(&c->in[i], at))
                   : place == 2 * experts    ? 77 * part
                   : place > 2 * experts + 1 ? 5
                   : at / width == 1         ? 0
                                             : floor(80 * part);
    run_set(&c->in[i], at, value);
  }
}

static const int64_t balanced[][2] = {{1, 1}, {1, 8}, {3, 60}}; /* groups, experts */
enum { BALANCES = sizeof balanced / sizeof *balanced };

static void set_balance(run_case *c, int variant) {
  c->attr.balance.layers = variant + 1;
  c->attr.balance.aux = variant == 1 ? 0.25f : 0.01f;
  c->attr.balance.z = variant == 1 ? 0.0f : 0.003f;
}

static void build_balance_loss(run_case *c, int variant, ts_dtype dtype) {
  (void) dtype;
  set_balance(c, variant);
  input_balance(c, 0, balanced[variant][0], balanced[variant][1], 1);
  input_balance(c, 1, balanced[variant][0], balanced[variant][1], 0.25);
  ops_output(c, TS_F64, TS_SHAPE(1));
}

static void balance_loss(run_case *c) {
  int64_t width = ops_columns(c, 0), n = (width - 3) / 2;
  double loss = 0;
  for (int64_t g = 0; g < ops_rows(c, 0); ++g) {
    const double *all = ops_in(c, 0) + g * width, *own = ops_in(c, 1) + g * width;
    double tokens = all[2 * n + 1], aux = 0;
    for (int64_t e = 0; e < n && tokens > 0; ++e) {
      aux += (double) n * all[e] / tokens * all[n + e] / tokens;
    }
    loss += own[2 * n + 1] / c->attr.balance.layers * c->attr.balance.aux * aux;
    loss += tokens > 0 ? own[2 * n + 1] * c->attr.balance.z * all[2 * n] / tokens : 0;
  }
  ops_out(c, 0)[0] = loss;
}

static void build_balance_loss_dx(run_case *c, int variant, ts_dtype dtype) {
  (void) dtype;
  set_balance(c, variant);
  ops_input(c, 0, TS_F32, TS_SHAPE(1), 1.0);
  input_balance(c, 1, balanced[variant][0], balanced[variant][1], 1);
  ops_output(c, TS_F32, c->in[1].shape);
}

static void balance_loss_dx(run_case *c) {
  int64_t width = ops_columns(c, 1), n = (width - 3) / 2;
  double seed = ops_in(c, 0)[0];
  memset(ops_out(c, 0), 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  for (int64_t g = 0; g < ops_rows(c, 1); ++g) {
    const double *all = ops_in(c, 1) + g * width;
    double *to = ops_out(c, 0) + g * width, tokens = all[2 * n + 1];
    for (int64_t e = 0; e < n && tokens > 0; ++e) { /* tokens / layers of them have this loss */
      to[n + e] =
          seed * tokens / c->attr.balance.layers * c->attr.balance.aux * (double) n * all[e] / (tokens * tokens);
    }
    to[2 * n] = seed * c->attr.balance.z;
  }
}

/* Scores of fp32, and quotients of sums of some of them. */
const op_row ops_route[] = {
    {TS_OP_ROUTE, ROUTES, build_route, route, 16},
    {TS_OP_ROUTE_DX, ROUTES, build_route_dx, route_dx, 64},
    {TS_OP_ROUTE_EXCESS, LOADS, build_route_excess, route_excess, 0},
    {TS_OP_ROUTE_LOADS, LOADS, build_route_loads, route_loads, 16},
    {TS_OP_ROUTE_LOADS_DX, LOADS, build_route_loads_dx, route_loads_dx, 64},
    {TS_OP_BALANCE_LOSS, BALANCES, build_balance_loss, balance_loss, 4},
    {TS_OP_BALANCE_LOSS_DX, BALANCES, build_balance_loss_dx, balance_loss_dx, 4},
    {.reference = NULL},
};
