/* Which uses of a unit need a gather of their own (stage 3).
 *
 * The uses of sharded units are a sequence of visits (a node and a unit, equal neighbours merged).  Between two visits
 * of one unit its values either stay gathered or are dropped and gathered again. */
#include "pass/zero.h"

#include "base/memory.h"

typedef struct visit {
  ts_nid node;
  int unit;
  int previous; /* the visit of the same unit before this one, -1 for none */
  bool reuse;   /* the unit is still gathered from there */
} visit;

/* As many as a rank along tp has in the mean: ranks that have more or less than others come to the same plan. */
static int64_t mean_elements(const ts_zero *z, const ts_part *part) {
  int64_t elements = 0;
  for (int p = part->first; p < part->first + part->n_parameters; ++p) {
    const ts_parameter *parameter = &z->layout->parameter[p];
    bool whole = ts_parameter_is_whole(parameter);
    elements += ts_shape_count(&parameter->shape) / (whole ? 1 : z->context->mesh->size[TS_AXIS_TP]);
  }
  return elements;
}

static int64_t *unit_elements(const ts_zero *z) {
  int64_t *elements = ts_calloc((size_t) z->rewrite.from->n_units + 1, sizeof *elements);
  for (int i = 0; i < z->layout->n_parts; ++i) {
    const ts_part *part = &z->layout->part[i];
    if (ts_zero_parameter_is_sharded(z, part)) {
      elements[part->unit] += z->context->shards != NULL ? mean_elements(z, part) : part->count;
    }
  }
  return elements;
}

static int sharded_unit(const ts_zero *z, ts_tid t) {
  if (t == TS_NONE || z->rewrite.from->tensor[t].role != TS_ROLE_PARAM) {
    return -1;
  }
  const ts_part *part = &z->layout->part[ts_layout_find(z->layout, z->rewrite.from->tensor[t].name)->part];
  return ts_zero_parameter_is_sharded(z, part) ? part->unit : -1;
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
      int unit = sharded_unit(z, z->rewrite.from->node[node].in[i]);
      if (unit >= 0 && (last[unit] < 0 || last[unit] != n - 1)) {
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
        live_at(v, n, j, elements) + elements[v[i].unit] > deck->stage3_max_live_parameters) {
      return false;
    }
  }
  return true;
}

/* Chunks have slots of their own: nothing stays from one to another. */
static bool is_of_one_chunk(const ts_zero *z, const visit *a, const visit *b) {
  const ts_graph *g = z->rewrite.from;
  return ts_node_chunk(g, &g->node[a->node]) == ts_node_chunk(g, &g->node[b->node]);
}

int *ts_zero_plan_gathers(const ts_zero *z, int **units) {
  int64_t *elements = unit_elements(z);
  int n;
  visit *v = find_visits(z, &n);
  int *gathers = ts_calloc((size_t) z->rewrite.from->n_nodes + 1, sizeof *gathers);
  *units = ts_malloc(((size_t) n + 1) * sizeof **units);
  int n_units = 0;
  for (int i = 0; i < n; ++i) {
    v[i].reuse = v[i].previous >= 0 && is_of_one_chunk(z, &v[i], &v[v[i].previous]) && can_stay(z, v, n, i, elements);
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
