/* Routing of tokens to experts, token by token; and what experts got, in fp64 sums over blocks of tokens. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/tile.h"
#include "backend/cpu/vector.h"

#include <math.h>

typedef struct routing {
  int64_t tokens;
  int experts, k, groups, top_groups, sure;
  bool sigmoid, normalize;
  float scale;
} routing;

static routing routing_of(const ts_kernel_call *call, int logits) {
  const ts_shape *x = &ts_call_in(call, logits)->shape;
  int64_t experts = x->d[x->n - 1];
  return (routing){.tokens = experts > 0 ? ts_shape_count(x) / experts : 0,
                   .experts = (int) experts,
                   .k = call->node->attr.route.k,
                   .groups = call->node->attr.route.groups > 1 ? call->node->attr.route.groups : 1,
                   .top_groups = call->node->attr.route.top_groups,
                   .sigmoid = call->node->attr.route.sigmoid,
                   .sure = call->node->attr.route.sure,
                   .normalize = call->node->attr.route.normalize,
                   .scale = call->node->attr.route.scale};
}

static void score_experts(const routing *r, const float *x, float *score) {
  if (r->sigmoid) {
#pragma omp simd
    for (int e = 0; e < r->experts; ++e) {
      score[e] = ts_sigmoidf(x[e]);
    }
    return;
  }
  float most = -INFINITY, sum = 0;
  for (int e = 0; e < r->experts; ++e) {
    most = x[e] > most ? x[e] : most;
  }
#pragma omp simd
  for (int e = 0; e < r->experts; ++e) {
    score[e] = ts_expf(x[e] - most);
  }
  for (int e = 0; e < r->experts; ++e) {
    sum += score[e];
  }
  for (int e = 0; e < r->experts; ++e) {
    score[e] /= sum;
  }
}

/* The best of [begin, end) that may be taken, -1 where none may. */
static int find_open(const float *choice, const bool *open, int begin, int end) {
  int best = -1;
  for (int e = begin; e < end; ++e) {
    bool better = open[e] && (best < 0 || choice[e] > choice[best]);
    best = better ? e : best;
  }
  return best;
}

/* Closed are the experts of all but the best groups. */
static void close_groups(const routing *r, const float *choice, bool *open) {
  float sum[TS_MOST_CHOSEN];
  bool left[TS_MOST_CHOSEN];
  int size = r->experts / r->groups;
  for (int g = 0; g < r->groups; ++g) {
    int first = find_open(choice, open, g * size, (g + 1) * size);
    open[first] = false;
    int second = find_open(choice, open, g * size, (g + 1) * size);
    open[first] = true;
    sum[g] = choice[first] + (second >= 0 ? choice[second] : 0.0f);
    left[g] = true;
  }
  for (int i = 0; i < r->top_groups; ++i) {
    left[find_open(sum, left, 0, r->groups)] = false;
  }
  for (int e = 0; e < r->experts; ++e) {
    open[e] = !left[e / size];
  }
}

/* What is no number is chosen last. */
static float number(float x) {
  return x == x ? x : -INFINITY;
}

/* noised: NULL for none. */
static void route_token(const routing *r, const float *x, const float *bias, const float *noised, float *weight,
                        int32_t *chosen) {
  float score[TS_MOST_EXPERTS], choice[TS_MOST_EXPERTS], sum = 0;
  bool open[TS_MOST_EXPERTS];
  score_experts(r, x, score);
  for (int e = 0; e < r->experts; ++e) {
    choice[e] = number(bias != NULL ? score[e] + bias[e] : r->groups > 1 ? score[e] : x[e]);
    open[e] = true;
  }
  if (r->groups > 1) {
    close_groups(r, choice, open);
  }
  for (int j = 0; j < r->k; ++j) {
    for (int e = 0; e < r->experts && noised != NULL && j == r->sure; ++e) {
      choice[e] = number(noised[e]);
    }
    int best = find_open(choice, open, 0, r->experts);
    open[best] = false;
    chosen[j] = best;
    weight[j] = score[best];
    sum += score[best];
  }
  float by = r->normalize ? r->scale / (sum + 1e-20f) : r->scale;
  for (int j = 0; j < r->k; ++j) {
    weight[j] *= by;
  }
}

static void route_run(const ts_kernel_call *call) {
  routing r = routing_of(call, 0);
  const float *x = call->in[0], *bias = call->node->n_in > 1 ? call->in[1] : NULL;
  const float *noised = call->node->n_in > 3 ? call->in[3] : NULL;
  float *weight = call->out[0];
  int32_t *chosen = call->out[1];
#pragma omp parallel for num_threads(ts_call_threads(call, r.tokens)) schedule(static)
  for (int64_t t = 0; t < r.tokens; ++t) {
    route_token(&r, x + t * r.experts, bias, noised != NULL ? noised + t * r.experts : NULL, weight + t * r.k,
                chosen + t * r.k);
  }
}
TS_CPU_KERNEL(route) = {.run = route_run};

/* With p of what was chosen, S their sum and w = scale p / S: dp = (scale dw - sum (scale dw p) / S) / S. */
static void route_dx_token(const routing *r, const float *x, const float *dw, const int32_t *chosen, float *dx) {
  float score[TS_MOST_EXPERTS], slope[TS_MOST_CHOSEN], sum = 0, dot = 0;
  score_experts(r, x, score);
  for (int j = 0; j < r->k; ++j) {
    sum += score[chosen[j]];
    dot += r->scale * dw[j] * score[chosen[j]];
  }
  sum = r->normalize ? sum + 1e-20f : 1.0f;
  dot = r->normalize ? dot / sum : 0.0f;
  float flow = 0;
  for (int j = 0; j < r->k; ++j) {
    slope[j] = (r->scale * dw[j] - dot) / sum;
    flow += slope[j] * score[chosen[j]];
  }
  for (int e = 0; e < r->experts; ++e) {
    dx[e] = r->sigmoid ? 0.0f : -score[e] * flow;
  }
  for (int j = 0; j < r->k; ++j) {
    int e = chosen[j];
    dx[e] = r->sigmoid ? slope[j] * score[e] * (1.0f - score[e]) : score[e] * (slope[j] - flow);
  }
}

static void route_dx_run(const ts_kernel_call *call) {
  routing r = routing_of(call, 1);
  const float *dw = call->in[0], *x = call->in[1];
  const int32_t *chosen = call->in[2];
  ts_sink dx = ts_sink_of(call, 0);
#pragma omp parallel for num_threads(ts_call_threads(call, r.tokens)) schedule(static)
  for (int64_t t = 0; t < r.tokens; ++t) {
    float row[TS_MOST_EXPERTS];
    route_dx_token(&r, x + t * r.experts, dw + t * r.k, chosen + t * r.k, row);
    for (int64_t at = 0; at < r.experts; at += TS_TILE) {
      ts_sink_write(&dx, t * r.experts + at, ts_min(TS_TILE, r.experts - at), row + at);
    }
  }
}
TS_CPU_KERNEL(route_dx) = {.run = route_dx_run};

/* ---- what experts got ---- */

enum { IGNORED = -100, LOADS_BLOCK = 64 };

static void route_excess_run(const ts_kernel_call *call) {
  const ts_shape *choices = &ts_call_in(call, 0)->shape;
  const int32_t *chosen = call->in[0], *label = call->in[1];
  float *y = call->out[0];
  int64_t times[TS_MOST_EXPERTS] = {0}, n = call->node->attr.experts.n, k = choices->d[choices->n - 1], all = 0;
  for (int64_t t = 0; t < ts_shape_rows(choices); ++t) {
    for (int64_t j = 0; j < k && label[t] != IGNORED; ++j) {
      ++times[chosen[t * k + j]];
      ++all;
    }
  }
  for (int64_t e = 0; e < n; ++e) {
    y[e] = (float) (n * times[e] - all);
  }
}
TS_CPU_KERNEL(route_excess) = {.run = route_excess_run};

/* Tokens of a group, in blocks of their own. */
typedef struct loads {
  routing r;
  int64_t groups, length, first, counted;
} loads;

static loads loads_of_node(const ts_graph *graph, const ts_node *node, int logits) {
  const ts_shape *x = &graph->tensor[node->in[logits]].shape;
  int64_t experts = x->d[x->n - 1];
  return (loads){.r = {.tokens = experts > 0 ? ts_shape_count(x) / experts : 0,
                       .experts = (int) experts,
                       .sigmoid = node->attr.loads.sigmoid},
                 .groups = node->attr.loads.groups,
                 .length = node->attr.loads.length,
                 .first = node->attr.loads.first,
                 .counted = node->attr.loads.counted};
}

static int64_t width_of_loads(const loads *l) {
  return ts_loads_width(l->r.experts);
}

static int64_t first_of_group(const loads *l, int64_t group) {
  int64_t at = group * l->length - l->first;
  return at < 0 ? 0 : ts_min(at, l->r.tokens);
}

/* The first block of a group. */
static int64_t first_block_of_loads(const loads *l, int64_t group) {
  return first_of_group(l, group) / LOADS_BLOCK + group;
}

static size_t route_loads_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node,
                                  void **prepared) {
  (void) target;
  (void) prepared;
  loads l = loads_of_node(graph, node, 0);
  return (size_t) (first_block_of_loads(&l, l.groups) * width_of_loads(&l)) * sizeof(double);
}

static double log_sum(const float *x, int n) {
  float most = x[0];
  for (int e = 1; e < n; ++e) {
    most = x[e] > most ? x[e] : most;
  }
  float sum = ts_expf(x[0] - most);
  for (int e = 1; e < n; ++e) {
    sum += ts_expf(x[e] - most);
  }
  return most + log((double) sum);
}

/* taken: NULL where all choices are. */
static void add_shares(const loads *l, const float *x, const int32_t *chosen, const int32_t *taken, int64_t k,
                       double *to) {
  int n = l->r.experts;
  float score[TS_MOST_EXPERTS], all = 0;
  score_experts(&l->r, x, score);
  for (int e = 0; e < n; ++e) {
    all += score[e];
  }
  for (int e = 0; e < n; ++e) {
    to[n + e] += score[e] / all;
  }
  for (int64_t j = 0; j < (l->counted > 0 ? l->counted : k); ++j) {
    to[chosen[j]] += 1;
  }
  for (int64_t j = 0; j < k && taken != NULL; ++j) {
    to[ts_loads_at(n, TS_LOADS_LOST)] += taken[j] >= n;
  }
  double z = log_sum(x, n);
  to[ts_loads_at(n, TS_LOADS_SQUARES)] += z * z;
  to[ts_loads_at(n, TS_LOADS_TOKENS)] += 1;
}

static void sum_block(const ts_kernel_call *call, const loads *l, int64_t group, int64_t block, double *to) {
  const float *x = call->in[0];
  const int32_t *chosen = call->in[1], *label = call->in[2], *taken = call->node->n_in > 3 ? call->in[3] : NULL;
  const ts_shape *choices = &ts_call_in(call, 1)->shape;
  int64_t k = choices->d[choices->n - 1], begin = first_of_group(l, group) + block * LOADS_BLOCK;
  int64_t end = ts_min(begin + LOADS_BLOCK, first_of_group(l, group + 1));
  memset(to, 0, (size_t) width_of_loads(l) * sizeof *to);
  for (int64_t t = begin; t < end; ++t) {
    if (label[t] != IGNORED) {
      add_shares(l, x + t * l->r.experts, chosen + t * k, taken != NULL ? taken + t * k : NULL, k, to);
    }
  }
}

static void route_loads_run(const ts_kernel_call *call) {
  loads l = loads_of_node(call->graph, call->node, 0);
  int64_t width = width_of_loads(&l);
  double *partial = call->workspace;
  float *y = call->out[0];
  for (int64_t g = 0; g < l.groups; ++g) {
    int64_t blocks = ts_pieces(first_of_group(&l, g + 1) - first_of_group(&l, g), LOADS_BLOCK),
            at = first_block_of_loads(&l, g);
#pragma omp parallel for num_threads(ts_call_threads(call, blocks)) schedule(static)
    for (int64_t b = 0; b < blocks; ++b) {
      sum_block(call, &l, g, b, partial + (at + b) * width);
    }
    for (int64_t i = 0; i < width; ++i) {
      double sum = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        sum += partial[(at + b) * width + i];
      }
      y[g * width + i] = (float) sum;
    }
  }
}
TS_CPU_KERNEL(route_loads) = {.prepare = route_loads_prepare, .run = route_loads_run};

/* d share_i / d logit_e = share_e (1 or 1 - s_e) ((i == e) - share_i); d logsumexp^2 = 2 logsumexp softmax. */
static void loads_dx_token(const loads *l, const float *x, const float *dloads, float *dx) {
  int n = l->r.experts;
  float score[TS_MOST_EXPERTS], all = 0, flow = 0, dz = dloads[ts_loads_at(n, TS_LOADS_SQUARES)];
  score_experts(&l->r, x, score);
  for (int e = 0; e < n; ++e) {
    all += score[e];
  }
  for (int e = 0; e < n; ++e) {
    flow += score[e] / all * dloads[n + e];
  }
  float z = dz != 0 ? (float) log_sum(x, n) : 0;
  for (int e = 0; e < n; ++e) {
    float inner = l->r.sigmoid ? 1.0f - score[e] : 1.0f;
    dx[e] = score[e] / all * inner * (dloads[n + e] - flow);
    dx[e] += dz != 0 ? dz * 2 * z * ts_expf(x[e] - z) : 0.0f;
  }
}

static void route_loads_dx_run(const ts_kernel_call *call) {
  loads l = loads_of_node(call->graph, call->node, 1);
  const float *dloads = call->in[0], *x = call->in[1];
  const int32_t *label = call->in[2];
  ts_sink dx = ts_sink_of(call, 0);
#pragma omp parallel for num_threads(ts_call_threads(call, l.r.tokens)) schedule(static)
  for (int64_t t = 0; t < l.r.tokens; ++t) {
    float row[TS_MOST_EXPERTS] = {0};
    if (label[t] != IGNORED) {
      loads_dx_token(&l, x + t * l.r.experts, dloads + (l.first + t) / l.length * width_of_loads(&l), row);
    }
    for (int64_t at = 0; at < l.r.experts; at += TS_TILE) {
      ts_sink_write(&dx, t * l.r.experts + at, ts_min(TS_TILE, l.r.experts - at), row + at);
    }
  }
}
TS_CPU_KERNEL(route_loads_dx) = {.run = route_loads_dx_run};

/* ---- balance ---- */

/* The factor of f and of the sum of squared logsumexps in a group's loss, for each of \a own tokens of n. */
static double aux_of_token(const ts_node *node, int64_t experts, double n) {
  return (double) node->attr.balance.aux * (double) experts / (node->attr.balance.layers * n * n);
}

static void balance_loss_run(const ts_kernel_call *call) {
  const ts_shape *shape = &ts_call_in(call, 0)->shape;
  const float *all = call->in[0], *own = call->in[1];
  int64_t width = shape->d[1], experts = ts_loads_experts(width), squares = ts_loads_at(experts, TS_LOADS_SQUARES),
          tokens = ts_loads_at(experts, TS_LOADS_TOKENS);
  double loss = 0;
  for (int64_t g = 0; g < shape->d[0]; ++g, all += width, own += width) {
    double n = all[tokens], dot = 0;
    for (int64_t e = 0; e < experts; ++e) {
      dot += (double) all[e] * all[experts + e];
    }
    double each =
        n > 0 ? aux_of_token(call->node, experts, n) * dot + (double) call->node->attr.balance.z * all[squares] / n : 0;
    loss += own[tokens] * each;
  }
  *(double *) call->out[0] = loss;
}
TS_CPU_KERNEL(balance_loss) = {.run = balance_loss_run};

static void balance_loss_dx_run(const ts_kernel_call *call) {
  const ts_shape *shape = &ts_call_in(call, 1)->shape;
  const float seed = *(const float *) call->in[0], *all = call->in[1];
  float *y = call->out[0];
  int64_t width = shape->d[1], experts = ts_loads_experts(width);
  for (int64_t g = 0; g < shape->d[0]; ++g, all += width, y += width) {
    double n = all[ts_loads_at(experts, TS_LOADS_TOKENS)];
    for (int64_t e = 0; e < experts; ++e) {
      y[e] = 0;
      y[experts + e] = n > 0 ? (float) (seed * aux_of_token(call->node, experts, n) * n * all[e]) : 0;
    }
    y[ts_loads_at(experts, TS_LOADS_SQUARES)] = seed * call->node->attr.balance.z;
    y[ts_loads_at(experts, TS_LOADS_TOKENS)] = y[ts_loads_at(experts, TS_LOADS_LOST)] = 0;
  }
}
TS_CPU_KERNEL(balance_loss_dx) = {.run = balance_loss_dx_run};
