#include "train/expert_watch.h"

#include "base/memory.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void ts_expert_watch_begin(ts_expert_watch *watch, const ts_layout *layout) {
  int64_t n = 0;
  for (int i = 0; i < layout->n_loads; ++i) {
    n += layout->loads[i].experts;
  }
  watch->idle = ts_calloc((size_t) n + 1, sizeof *watch->idle);
}

void ts_expert_watch_end(ts_expert_watch *watch) {
  ts_free(watch->idle);
  watch->idle = NULL;
}

/* The number in a name: 3 of "model.layers.3.mlp.gate.loads". */
static int64_t layer_of(const char *name) {
  const char *at = name;
  while (*at != 0 && !(at[0] == '.' && isdigit((unsigned char) at[1]))) {
    ++at;
  }
  return *at != 0 ? strtoll(at + 1, NULL, 10) : 0;
}

/* Sums over a layer's groups, [ts_loads_width]. */
static double *sum_of_groups(const ts_layer_loads *layer, const float *loads) {
  int64_t width = ts_loads_width(layer->experts);
  double *sum = ts_calloc((size_t) width, sizeof *sum);
  for (int g = 0; g < layer->groups; ++g) {
    for (int64_t i = 0; i < width; ++i) {
      sum[i] += (double) loads[layer->offset + g * width + i];
    }
  }
  return sum;
}

static double largest_bias(const ts_layer_loads *layer, const float *loads, int64_t micro_batches) {
  const float *bias = loads + layer->offset + (int64_t) layer->groups * ts_loads_width(layer->experts);
  double most = 0;
  for (int e = 0; e < layer->experts; ++e) {
    most = fmax(most, fabs((double) bias[e]) / (double) micro_batches);
  }
  return most;
}

static ts_experts_row row_of_layer(const ts_layer_loads *layer, const double *sum) {
  int n = layer->experts;
  double tokens = sum[ts_loads_at(n, TS_LOADS_TOKENS)], choices = 0, most = 0, least = INFINITY, aux = 0;
  int64_t idle = 0;
  for (int e = 0; e < n; ++e) {
    choices += sum[e];
    most = fmax(most, sum[e]);
    least = fmin(least, sum[e]);
    aux += sum[e] * sum[n + e];
    idle += sum[e] == 0;
  }
  double mean = choices / n;
  return (ts_experts_row){.layer = layer_of(layer->name),
                          .tokens = (int64_t) tokens,
                          .largest = mean > 0 ? most / mean : 0,
                          .smallest = mean > 0 ? least / mean : 0,
                          .idle = idle,
                          .aux = tokens > 0 ? n * aux / (tokens * tokens) : 0,
                          .dropped = choices > 0 ? sum[ts_loads_at(n, TS_LOADS_LOST)] / choices : 0,
                          .z = tokens > 0 ? sum[ts_loads_at(n, TS_LOADS_SQUARES)] / tokens : 0};
}

/* An expert that gets a token lives; a step without tokens says nothing. */
static void look_for_dead(const ts_layer_loads *layer, const double *sum, int64_t *idle, ts_dead_experts *dead) {
  bool any = sum[ts_loads_at(layer->experts, TS_LOADS_TOKENS)] > 0;
  for (int e = 0; e < layer->experts; ++e) {
    idle[e] = sum[e] > 0 ? 0 : idle[e] + any;
    if (idle[e] >= TS_DEAD_STEPS && dead->n++ == 0) {
      dead->layer = layer_of(layer->name);
      dead->expert = e;
    }
    dead->more = dead->more || (any && idle[e] == TS_DEAD_STEPS);
  }
}

ts_dead_experts ts_expert_watch_step(ts_expert_watch *watch, const ts_layout *layout, const float *loads,
                                     int64_t micro_batches, int64_t step, ts_metrics *metrics) {
  ts_dead_experts dead = {0};
  int64_t *idle = watch->idle;
  for (const ts_layer_loads *layer = layout->loads; layer < layout->loads + layout->n_loads; ++layer) {
    double *sum = sum_of_groups(layer, loads);
    ts_experts_row row = row_of_layer(layer, sum);
    row.step = step;
    row.largest_bias = largest_bias(layer, loads, micro_batches);
    ts_metrics_experts(metrics, &row);
    look_for_dead(layer, sum, idle, &dead);
    idle += layer->experts;
    ts_free(sum);
  }
  return dead;
}
