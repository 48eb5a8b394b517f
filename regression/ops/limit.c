/* Experts that take no more tokens than they have room for. */
#include "regression/ops/ops.h"

#include <math.h>

/* In order, by choice, by priorities of which many are equal; groups; room for all; one expert with all; more choices
 * than a block has threads; no tokens. */
static const struct limited {
  ts_shape tokens;
  int k, experts, least;
  float factor;
  int64_t length;
  bool ranked, by_choice, normalize, one_expert;
} limit_variants[] = {
    {{1, {1}}, 1, 1, 0, 1.0f, 0, false, false, false, false},
    {{2, {3, 20}}, 1, 4, 2, 1.0f, 0, false, false, false, false},
    {{2, {3, 20}}, 1, 4, 4, 0.5f, 0, true, false, false, false},
    {{2, {2, 31}}, 2, 6, 1, 1.3f, 0, false, true, true, false},
    {{2, {4, 33}}, 3, 5, 4, 2.25f, 33, true, false, true, false},
    {{2, {4, 33}}, 4, 60, 3, 1.0f, 33, false, false, true, false},
    {{1, {700}}, 3, 7, 4, 2.4f, 0, true, false, true, false},
    {{1, {300}}, 2, 8, 4, 9.0f, 0, true, true, true, false},
    {{2, {2, 290}}, 1, 3, 0, 0.9f, 290, true, false, false, true},
    {{2, {0, 4}}, 2, 3, 4, 1.0f, 0, true, false, true, false},
};
enum { LIMITS = sizeof limit_variants / sizeof *limit_variants };

static ts_shape shape_of(const struct limited *v) {
  ts_shape shape = v->tokens;
  shape.d[shape.n++] = v->k;
  return shape;
}

static void set_limit(run_case *c, const struct limited *v) {
  c->attr.limit.experts = v->experts;
  c->attr.limit.least = v->least;
  c->attr.limit.factor = v->factor;
  c->attr.limit.length = v->length;
  c->attr.limit.by_choice = v->by_choice;
  c->attr.limit.normalize = v->normalize;
}

/* Different experts of a token, the first ones more often than others; some choices are of nobody already. */
static void input_choices(run_case *c, int i, const struct limited *v) {
  c->in[i] = run_new(TS_I32, shape_of(v));
  for (int64_t at = 0; at < run_count(&c->in[i]); ++at) {
    int64_t token = at / v->k, first = token % 3 == 0 ? token * 5 % v->experts : 0;
    int64_t expert = v->one_expert ? v->experts - 1 : (first + at % v->k) % v->experts;
    run_set(&c->in[i], at, (double) (token % 17 == 11 ? v->experts : expert));
  }
  c->n_in = i + 1;
}

/* Positive, with many equal ones. */
static void input_weights(run_case *c, int i, const struct limited *v) {
  ops_input(c, i, TS_F32, shape_of(v), 1.0);
  for (int64_t at = 0; at < run_count(&c->in[i]); ++at) {
    run_set(&c->in[i], at, (1 + nearbyint(4 * fabs(run_get(&c->in[i], at)))) / 16);
  }
}

static void build_limit(run_case *c, int variant, ts_dtype dtype) {
  const struct limited *v = &limit_variants[variant];
  (void) dtype;
  set_limit(c, v);
  input_weights(c, 0, v);
  input_choices(c, 1, v);
  if (v->ranked) {
    ops_input(c, 2, TS_F32, shape_of(v), 1.0);
    for (int64_t at = 0; at < run_count(&c->in[2]); ++at) {
      double value = nearbyint(2 * run_get(&c->in[2], at)) / 2;
      run_set(&c->in[2], at, at % 29 == 13 ? (double) -INFINITY : value == 0 && at % 2 == 0 ? -0.0 : value);
    }
  }
  ops_output(c, TS_F32, shape_of(v));
  ops_output(c, TS_I32, shape_of(v));
}

/* Does choice a of the group come before b? */
static bool comes_before(const run_case *c, int64_t length, int64_t a, int64_t b, const double *priority) {
  int64_t k = ops_columns(c, 0);
  if (priority != NULL && priority[a] != priority[b]) {
    return priority[a] > priority[b];
  }
  int64_t first = c->attr.limit.by_choice ? a % k * length + a / k : a;
  return first < (c->attr.limit.by_choice ? b % k * length + b / k : b);
}

static void weigh(run_case *c, int64_t token) {
  int64_t k = ops_columns(c, 0);
  const int32_t *taken = c->out[1].data;
  double sum = 0;
  for (int64_t at = token * k; at < (token + 1) * k; ++at) {
    sum += taken[at] < c->attr.limit.experts ? ops_in(c, 0)[at] : 0;
  }
  for (int64_t at = token * k; at < (token + 1) * k; ++at) {
    double value = taken[at] < c->attr.limit.experts ? ops_in(c, 0)[at] : 0;
    ops_out(c, 0)[at] = c->attr.limit.normalize && sum > 0 ? value / sum : value;
  }
}

static void limit(run_case *c) {
  int64_t k = ops_columns(c, 0), tokens = ops_rows(c, 0);
  int64_t length = c->attr.limit.length > 0 ? c->attr.limit.length : tokens;
  const int32_t *chosen = c->in[1].data;
  double room = fmax(c->attr.limit.least, ceil((double) length / c->attr.limit.experts * c->attr.limit.factor));
  for (int64_t i = 0; i < tokens * k; ++i) {
    int64_t group = i / (length * k) * length * k, before = 0;
    const double *priority = c->n_in > 2 && c->in[2].data != NULL ? ops_in(c, 2) + group : NULL;
    for (int64_t other = group; other < group + length * k; ++other) {
      before += chosen[other] == chosen[i] && comes_before(c, length, other - group, i - group, priority);
    }
    run_set(&c->out[1], i, (double) before < room ? chosen[i] : c->attr.limit.experts);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    weigh(c, t);
  }
}

/* Every fifth choice is not taken, and of every seventh token none. */
static void build_limit_dx(run_case *c, int variant, ts_dtype dtype) {
  const struct limited *v = &limit_variants[variant];
  (void) dtype;
  set_limit(c, v);
  ops_input(c, 0, TS_F32, shape_of(v), 1.0);
  input_weights(c, 1, v);
  input_choices(c, 2, v);
  for (int64_t at = 0; at < run_count(&c->in[2]); ++at) {
    bool none = at % 5 == 2 || at / v->k % 7 == 3;
    run_set(&c->in[2], at, none ? v->experts : run_get(&c->in[2], at));
  }
  ops_output(c, TS_F32, shape_of(v));
}

/* By the quotient rule, from each weight to each other. */
static void limit_dx(run_case *c) {
  int64_t k = ops_columns(c, 0);
  const int32_t *taken = c->in[2].data;
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    int64_t first = i / k * k;
    double sum = 0, slope = 0;
    for (int64_t at = first; at < first + k; ++at) {
      sum += taken[at] < c->attr.limit.experts ? ops_in(c, 1)[at] : 0;
    }
    for (int64_t at = first; at < first + k && sum > 0; ++at) {
      double own = at == i, w = taken[at] < c->attr.limit.experts ? ops_in(c, 1)[at] : 0;
      slope += ops_in(c, 0)[at] * (c->attr.limit.normalize ? own / sum - w / (sum * sum) : own) *
               (taken[at] < c->attr.limit.experts);
    }
    ops_out(c, 0)[i] = taken[i] < c->attr.limit.experts ? slope : 0;
  }
}

/* Quotients of sums of a few. */
const op_row ops_limit[] = {
    {TS_OP_ROUTE_LIMIT, LIMITS, build_limit, limit, 8},
    {TS_OP_ROUTE_LIMIT_DX, LIMITS, build_limit_dx, limit_dx, 64},
    {.reference = NULL},
};
