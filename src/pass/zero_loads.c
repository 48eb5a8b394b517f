/* What experts got in a step: the loads of each layer and the biases of its router, summed over micro-batches and then
 * over the ranks that have other tokens or other layers, for the host to look at. */
#include "pass/zero.h"

#include "base/memory.h"
#include "pass/shard.h"

#include <string.h>

/* What a rank sums, and where. */
typedef struct sums {
  ts_tid state;
  ts_tid *made; /* owned; windows on it */
  int64_t *offset;
  int n;
} sums;

static void add_to_sums(ts_zero *z, sums *s, int unit, const char *name, ts_tid value, int64_t offset) {
  ts_site at = {z->rewrite.to, TS_SEGMENT_BACKWARD_WEIGHT, unit};
  char *of = ts_format("%s.counted", name);
  int i = 0;
  while (i < s->n && s->offset[i] != offset) {
    ++i;
  }
  bool first = i == s->n; /* of the micro-batches that are together */
  ts_tid sum = first ? ts_build_view(at, of, s->state, offset, at.graph->tensor[value].shape) : s->made[i];
  s->made[i] = ts_build_accumulate(at, of, sum, value, first ? z->beta : ts_zero_one(z));
  s->offset[i] = offset;
  s->n += first;
  ts_free(of);
}

/* Biases are the same on all ranks of a stage; the first one's count. */
static bool is_first_of_stage(const ts_mesh *mesh) {
  bool first = true;
  for (int axis = 0; axis < TS_N_AXES; ++axis) {
    first = first && (axis == TS_AXIS_PP || mesh->coord[axis] == 0);
  }
  return first;
}

static void add_bias(ts_zero *z, sums *s, const ts_layer_loads *loads, int64_t offset) {
  const ts_parameter *bias = ts_layout_bias_of(z->layout, loads);
  if (bias != NULL && is_first_of_stage(z->context->mesh)) {
    ts_site at = {z->rewrite.to, TS_SEGMENT_BACKWARD_WEIGHT, loads->unit};
    ts_tid value = ts_build_view(at, bias->name, z->part[bias->part].whole, bias->offset, bias->held);
    add_to_sums(z, s, loads->unit, bias->name, value, offset);
  }
}

/* Of any micro-batch. */
static const ts_layer_loads *find_loads(const ts_layout *layout, const ts_node *node) {
  size_t length = strcspn(node->name, "/");
  for (int i = 0; node->op == TS_OP_ROUTE_LOADS && i < layout->n_loads; ++i) {
    if (strlen(layout->loads[i].name) == length && strncmp(layout->loads[i].name, node->name, length) == 0) {
      return &layout->loads[i];
    }
  }
  return NULL;
}

static ts_tid add_up_ranks(const ts_zero *z, ts_tid mine) {
  ts_site at = {z->rewrite.to, TS_SEGMENT_UPDATE, -1};
  const ts_shards *shards = z->context->shards;
  unsigned tp = shards != NULL && shards->loads_by_rows ? TS_AXES(TS_AXIS_TP) : 0;
  unsigned axes = TS_AXES_DENSE | TS_AXES(TS_AXIS_PP) | tp;
  int group = ts_mesh_group_size(z->context->mesh, axes);
  return group > 1 ? ts_build_all_reduce(at, "loads.reduce", axes, group, mine) : mine;
}

void ts_zero_count_loads(ts_zero *z) {
  const ts_layout *layout = z->layout;
  const ts_graph *from = z->rewrite.from;
  if (!ts_zero_is_training(z) || layout->n_loads == 0) {
    return;
  }
  sums s = {.state = ts_graph_state(z->rewrite.to, "loads", (ts_held){TS_STATE_LOADS, -1, true},
                                    (ts_dtype) ts_state_get(TS_STATE_LOADS)->dtype, TS_SHAPE(layout->loads_count), -1),
            .made = ts_malloc(2 * (size_t) layout->n_loads * sizeof *s.made),
            .offset = ts_malloc(2 * (size_t) layout->n_loads * sizeof *s.offset)};
  for (ts_nid n = 0; n < from->n_nodes; ++n) {
    const ts_layer_loads *loads = find_loads(layout, &from->node[n]);
    if (loads != NULL) {
      ts_tid value = ts_rewrite_tensor(&z->rewrite, from->node[n].out[0]);
      add_to_sums(z, &s, loads->unit, loads->name, value, loads->offset);
      add_bias(z, &s, loads, loads->offset + (int64_t) loads->groups * ts_loads_width(loads->experts));
    }
  }
  ts_site at = {z->rewrite.to, TS_SEGMENT_UPDATE, -1};
  ts_tid mine = s.n > 0 ? ts_build_pack(at, "loads.pack", s.n, s.made, s.offset, layout->loads_count) : s.state;
  ts_graph_mark(at.graph, "loads", add_up_ranks(z, mine));
  ts_free(s.made);
  ts_free(s.offset);
}
