/* Routing of tokens to experts: token by token. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/tile.h"
#include "backend/cpu/vector.h"

#include <math.h>

typedef struct routing {
  int64_t tokens;
  int experts, k, groups, top_groups;
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

/* The best of [begin, end) that may be taken, -1 where none may.  What is no number is the last choice. */
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

static void route_token(const routing *r, const float *x, const float *bias, float *weight, int32_t *chosen) {
  float score[TS_MOST_EXPERTS], choice[TS_MOST_EXPERTS], sum = 0;
  bool open[TS_MOST_EXPERTS];
  score_experts(r, x, score);
  for (int e = 0; e < r->experts; ++e) {
    float c = bias != NULL ? score[e] + bias[e] : r->groups > 1 ? score[e] : x[e];
    choice[e] = c == c ? c : -INFINITY;
    open[e] = true;
  }
  if (r->groups > 1) {
    close_groups(r, choice, open);
  }
  for (int j = 0; j < r->k; ++j) {
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
  float *weight = call->out[0];
  int32_t *chosen = call->out[1];
#pragma omp parallel for num_threads(ts_call_threads(call, r.tokens)) schedule(static)
  for (int64_t t = 0; t < r.tokens; ++t) {
    route_token(&r, x + t * r.experts, bias, weight + t * r.k, chosen + t * r.k);
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
