/* Which uses of a unit need a gather of their own, or a copy from where its parameters live (stage 3).
 *
 * The uses of such units are a sequence of visits (a node and a unit, equal neighbours merged).  Between two visits
 * of one unit its values either stay gathered or are dropped and gathered again. */
#include "pass/zero.h"

#include "base/memory.h"
#include "pass/shard.h"
#include "pass/step.h"

typedef struct visit {
  ts_nid node;
  int unit;
  int previous; /* the visit of the same unit before this one, -1 for none */
  bool reuse;   /* the unit is still gathered from there */
} visit;

/* As many as a rank along tp, or along ep, has in the mean: ranks that have more or less than others come to the same
 * plan. */
static int64_t mean_elements(const ts_zero *z, const ts_part *part) {
  int64_t elements = 0;
  for (int p = part->first; p < part->first + part->n_parameters; ++p) {
    const ts_parameter *parameter = &z->layout->parameter[p];
    const ts_shard *shard = ts_shards_find(z->context->shards, parameter->name);
    const int *ranks = z->context->mesh->size;
    bool experts = shard != NULL && ts_shard_is_of_experts(shard);
    bool split = !experts || shard->how == TS_HELD_EXPERTS_SPLIT;
    int64_t among =
        ts_parameter_is_whole(parameter) ? 1 : (experts ? ranks[TS_AXIS_EP] : 1) * (split ? ranks[TS_AXIS_TP] : 1);
    elements += ts_shape_count(&parameter->shape) / among;
  }
  return elements;
}

/* Whatever stays: ranks gather alike where one keeps values that another has elsewhere. */
static bool may_be_fetched(const ts_zero *z, const ts_part *part) {
  return ts_zero_parameter_is_sharded(z, part) || ts_offload_values_may_leave(z->context, part);
}

static int64_t *unit_elements(const ts_zero *z) {
  int64_t *elements = ts_calloc((size_t) z->rewrite.from->n_units + 1, sizeof *elements);
  for (int i = 0; i < z->layout->n_parts; ++i) {
    const ts_part *part = &z->layout->part[i];
    if (may_be_fetched(z, part)) {
      elements[part->unit] += z->context->shards != NULL ? mean_elements(z, part) : part->count;
    }
  }
  return elements;
}

static int fetched_unit(const ts_zero *z, ts_tid t) {
  if (t == TS_NONE || z->rewrite.from->tensor[t].role != TS_ROLE_PARAM) {
    return -1;
  }
  const ts_part *part = &z->layout->part[ts_layout_find(z->layout, z->rewrite.from->tensor[t].name)->part];
  return may_be_fetched(z, part) ? part->unit : -1;
}

/* What one run leaves for another is kept for each micro-batch where these overlap. */
static bool is_of_one_run(const ts_zero *z, ts_nid a, ts_nid b) {
  const ts_graph *g = z->rewrite.from;
  const ts_node *x = &g->node[a], *y = &g->node[b];
  if (x->op == TS_OP_HEAD_LOSS && y->op == TS_OP_HEAD_LOSS_DX) {
    return true; /* one node when they are fused, to whose run the gather goes then (pass/fuse) */
  }
  bool same_phase = ts_segment_phase(x->segment) == ts_segment_phase(y->segment);
  bool same = same_phase && (!z->context->step->apart || x->segment == y->segment);
  return ts_node_chunk(g, x) == ts_node_chunk(g, y) && (same || !ts_step_overlaps(z->context->step, g));
}

static visit *find_visits(const ts_zero *z, int *n_visits) {
  visit *v = NULL;
  int n = 0, capacity = 0;
  int *last = ts_malloc(((size_t) z->rewrite.from->n_units + 1) * sizeof *last);
  for (int u = 0; u < z->rewrite.from->n_units; ++u) {
    last[u] = -1;
  }
  for (ts_nid node = 0; node < z->rewrite.from->n_nodes; ++node) {
    for (int i = 0; i < z->rewrite.from->node[node].n_in; ++i) {
      int unit = fetched_unit(z, z->rewrite.from->node[node].in[i]);
      bool again = unit >= 0 && last[unit] >= 0 && last[unit] == n - 1 && is_of_one_run(z, v[n - 1].node, node);
      if (unit >= 0 && !again) {
        TS_GROW(v, n, capacity);
        v[n] = (visit){.node = node, .unit = unit, .previous = last[unit]};
        last[unit] = n++;
      }
    }
  }
  ts_free(last);
  *n_visits = n;
  return v;
}

/* Elements gathered while visit i computes: its own unit and those kept across it. */
static int64_t live_at(const visit *v, int n, int i, const int64_t *elements) {
  int64_t live = elements[v[i].unit];
  for (int j = i + 1; j < n; ++j) {
    live += v[j].reuse && v[j].previous < i ? elements[v[j].unit] : 0;
  }
  return live;
}

static bool can_stay(const ts_zero *z, const visit *v, int n, int i, const int64_t *elements) {
  const ts_deck_zero *deck = &z->context->deck->zero_optimization;
  int64_t distance = 0;
  for (int j = v[i].previous + 1; j < i; ++j) {
    distance += elements[v[j].unit];
    if (distance > deck->stage3_max_reuse_distance ||
        live_at(v, n, j, elements) + elements[v[i].unit] > ts_offload_live(z->context)) {
      return false;
    }
  }
  return true;
}

/* All units that are visited at once, from the first forward on: of pipelines, as of micro-batches in turns each has
 * its gradients before the next one comes, and memory is free in between. */
static bool can_stay_all(const ts_zero *z, const visit *v, int n, const int64_t *elements) {
  const ts_deck_zero *deck = &z->context->deck->zero_optimization;
  bool pipeline = z->context->stages != NULL || ts_step_overlaps(z->context->step, z->rewrite.from);
  int64_t sum = 0;
  for (int i = 0; i < n; ++i) {
    sum += v[i].previous < 0 ? elements[v[i].unit] : 0;
  }
  return pipeline && ts_zero_is_training(z) && z->context->step->accumulates && sum <= ts_offload_live(z->context) &&
         sum <= deck->stage3_max_reuse_distance;
}

int *ts_zero_plan_gathers(const ts_zero *z, int **units, bool *keeps) {
  int64_t *elements = unit_elements(z);
  int n;
  visit *v = find_visits(z, &n);
  int *gathers = ts_calloc((size_t) z->rewrite.from->n_nodes + 1, sizeof *gathers);
  *units = ts_malloc(((size_t) n + 1) * sizeof **units);
  *keeps = can_stay_all(z, v, n, elements);
  int n_units = 0;
  for (int i = 0; i < n; ++i) {
    v[i].reuse = v[i].previous >= 0 &&
                 (*keeps || (is_of_one_run(z, v[i].node, v[v[i].previous].node) && can_stay(z, v, n, i, elements)));
  }
  for (int i = 0; i < n; ++i) {
    if (!v[i].reuse) {
      ++gathers[v[i].node];
      (*units)[n_units++] = v[i].unit;
    }
  }
  ts_free(v);
  ts_free(elements);
  return gathers;
}
