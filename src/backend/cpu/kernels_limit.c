/* Experts that take no more tokens than they have room for.  Choices are counted once, in order; where an expert has
 * more than it may take, those with the highest keys stay: the key of the last of them is found bit by bit, and of
 * those that are equal the first stay. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/tile.h"

#include "base/experts.h"

#include <math.h>

typedef struct limit {
  int64_t length, k, capacity; /* of a group */
  int32_t experts;
  bool by_choice;
} limit;

static limit limit_of(const ts_graph *graph, const ts_node *node) {
  const ts_shape *shape = &graph->tensor[node->in[0]].shape;
  int64_t length = node->attr.limit.length > 0 ? node->attr.limit.length : ts_shape_rows(shape);
  return (limit){.length = length,
                 .k = shape->d[shape->n - 1],
                 .capacity = length == 0 ? 0
                                         : ts_capacity(length, node->attr.limit.experts, node->attr.limit.factor,
                                                       node->attr.limit.least),
                 .experts = node->attr.limit.experts,
                 .by_choice = node->attr.limit.by_choice};
}

/* Of a group: where each expert's choices begin, and the choices, each expert's in order. */
static size_t route_limit_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node,
                                  void **prepared) {
  (void) target, (void) prepared;
  limit l = limit_of(graph, node);
  return (size_t) (l.experts + 2 + l.length * l.k) * sizeof(int32_t);
}

/* The q-th choice of a group in order. */
static int64_t choice_at(const limit *l, int64_t q) {
  return l->by_choice ? q % l->length * l->k + q / l->length : q;
}

static void sort_choices(const limit *l, const int32_t *chosen, int32_t *first, int32_t *order) {
  memset(first, 0, (size_t) (l->experts + 2) * sizeof *first);
  for (int64_t q = 0; q < l->length * l->k; ++q) {
    int32_t e = chosen[q];
    first[(e >= 0 && e < l->experts ? e : l->experts) + 1] += 1;
  }
  for (int32_t e = 0; e <= l->experts; ++e) {
    first[e + 1] += first[e];
  }
  for (int64_t q = 0; q < l->length * l->k; ++q) {
    int64_t at = choice_at(l, q);
    int32_t e = chosen[at];
    order[first[e >= 0 && e < l->experts ? e : l->experts]++] = (int32_t) at;
  }
  memmove(first + 1, first, (size_t) (l->experts + 1) * sizeof *first);
  first[0] = 0;
}

static uint32_t key_at(const float *priority, int32_t at) {
  return priority != NULL ? ts_priority_key(priority[at]) : 0;
}

/* The key that `capacity` of n choices have at least, and no greater one does. */
static uint32_t last_key(const int32_t *order, int64_t n, int64_t capacity, const float *priority) {
  uint32_t key = 0;
  for (int bit = 31; bit >= 0 && priority != NULL; --bit) {
    uint32_t least = key | (uint32_t) 1 << bit;
    int64_t have = 0;
    for (int64_t i = 0; i < n; ++i) {
      have += key_at(priority, order[i]) >= least;
    }
    key = have >= capacity ? least : key;
  }
  return key;
}

static void take_choices(const limit *l, int32_t expert, const int32_t *order, int64_t n, const float *priority,
                         int32_t *taken) {
  uint32_t last = n > l->capacity ? last_key(order, n, l->capacity, priority) : 0;
  int64_t room = l->capacity;
  for (int64_t i = 0; i < n; ++i) {
    room -= key_at(priority, order[i]) > last;
  }
  for (int64_t i = 0; i < n; ++i) {
    uint32_t key = key_at(priority, order[i]);
    bool takes = key > last || (key == last && room > 0);
    room -= takes && key == last;
    taken[order[i]] = takes ? expert : l->experts;
  }
}

static void weigh_token(const limit *l, const ts_attr *attr, const float *weight, const int32_t *taken, float *y) {
  float sum = 0;
  for (int64_t j = 0; j < l->k; ++j) {
    y[j] = taken[j] < l->experts ? weight[j] : 0.0f;
    sum += y[j];
  }
  float by = attr->limit.normalize ? 1.0f / (sum > TS_LEAST_WEIGHT ? sum : TS_LEAST_WEIGHT) : 1.0f;
  for (int64_t j = 0; j < l->k; ++j) {
    y[j] *= by;
  }
}

static void route_limit_run(const ts_kernel_call *call) {
  limit l = limit_of(call->graph, call->node);
  const float *weight = call->in[0], *priority = call->node->n_in > 2 ? call->in[2] : NULL;
  const int32_t *chosen = call->in[1];
  float *y = call->out[0];
  int32_t *taken = call->out[1], *first = call->workspace, *order = first + l.experts + 2;
  int64_t tokens = ts_shape_rows(&ts_call_in(call, 0)->shape);
  for (int64_t g = 0; g < tokens; g += l.length) {
    const float *by = priority != NULL ? priority + g * l.k : NULL;
    sort_choices(&l, chosen + g * l.k, first, order);
#pragma omp parallel for num_threads(ts_call_threads(call, l.experts)) schedule(static)
    for (int32_t e = 0; e < l.experts + 1; ++e) {
      if (e < l.experts) {
        take_choices(&l, e, order + first[e], first[e + 1] - first[e], by, taken + g * l.k);
        continue;
      }
      for (int32_t i = first[e]; i < first[e + 1]; ++i) {
        taken[g * l.k + order[i]] = l.experts;
      }
    }
  }
#pragma omp parallel for num_threads(ts_call_threads(call, tokens)) schedule(static)
  for (int64_t t = 0; t < tokens; ++t) {
    weigh_token(&l, &call->node->attr, weight + t * l.k, taken + t * l.k, y + t * l.k);
  }
}
TS_CPU_KERNEL(route_limit) = {.prepare = route_limit_prepare, .run = route_limit_run};

/* With S the sum of what is left and w' = w / S: dw = (dw' - sum (dw' w')) / S. */
static void route_limit_dx_run(const ts_kernel_call *call) {
  limit l = limit_of(call->graph, call->node);
  const float *dy = call->in[0], *weight = call->in[1];
  const int32_t *taken = call->in[2];
  float *dx = call->out[0];
  int64_t tokens = ts_shape_rows(&ts_call_in(call, 0)->shape);
#pragma omp parallel for num_threads(ts_call_threads(call, tokens)) schedule(static)
  for (int64_t t = 0; t < tokens; ++t) {
    float sum = 0, dot = 0;
    for (int64_t at = t * l.k; at < (t + 1) * l.k; ++at) {
      sum += taken[at] < l.experts ? weight[at] : 0.0f;
      dot += taken[at] < l.experts ? dy[at] * weight[at] : 0.0f;
    }
    bool normalize = call->node->attr.limit.normalize, flows = normalize && sum > TS_LEAST_WEIGHT;
    float by = normalize ? 1.0f / (sum > TS_LEAST_WEIGHT ? sum : TS_LEAST_WEIGHT) : 1.0f;
    for (int64_t at = t * l.k; at < (t + 1) * l.k; ++at) {
      dx[at] = taken[at] < l.experts ? by * (dy[at] - (flows ? dot * by : 0.0f)) : 0.0f;
    }
  }
}
TS_CPU_KERNEL(route_limit_dx) = {.run = route_limit_dx_run};
