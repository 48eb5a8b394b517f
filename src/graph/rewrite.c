/* Writing a new graph from an old one. */
#include "base/memory.h"
#include "graph/graph.h"
#include "graph/op.h"

ts_graph *ts_graph_rewrite(const ts_graph *from, ts_tid **map) {
  ts_graph *to = ts_graph_create();
  for (int u = 0; u < from->n_units; ++u) {
    ts_graph_unit(to, from->unit[u]);
  }
  to->current_unit = -1;
  *map = ts_malloc(((size_t) from->n_tensors + 1) * sizeof **map);
  for (ts_tid t = 0; t < from->n_tensors; ++t) {
    (*map)[t] = TS_NONE;
  }
  return to;
}

ts_tid ts_graph_copy_leaf(ts_graph *to, const ts_graph *from, ts_tid t, ts_tid *map) {
  TS_ASSERT(from->tensor[t].producer == TS_NONE);
  if (map[t] == TS_NONE) {
    const ts_tensor *leaf = &from->tensor[t];
    int unit = to->current_unit;
    to->current_unit = leaf->unit;
    map[t] = ts_graph_leaf(to, leaf->name, leaf->role, leaf->dtype, leaf->shape);
    to->current_unit = unit;
  }
  return map[t];
}

static ts_tid look_up(const ts_graph *from, const ts_node *node, ts_tid t, const ts_tid *map) {
  if (t == TS_NONE) {
    return TS_NONE;
  }
  TS_CHECK(map[t] != TS_NONE, "%s reads %s, which the rewritten graph does not have", node->name, from->tensor[t].name);
  return map[t];
}

static ts_tid *look_up_all(const ts_graph *from, const ts_node *node, const ts_tid *list, int n, const ts_tid *map) {
  ts_tid *out = ts_malloc(((size_t) n + 1) * sizeof *out);
  for (int i = 0; i < n; ++i) {
    out[i] = look_up(from, node, list[i], map);
  }
  return out;
}

ts_nid ts_graph_copy_node(ts_graph *to, const ts_graph *from, ts_nid n, ts_tid *map) {
  const ts_node *node = &from->node[n];
  ts_tid *in = look_up_all(from, node, node->in, node->n_in, map);
  ts_tid *prior = node->prior != NULL ? look_up_all(from, node, node->prior, node->n_out, map) : NULL;
  ts_segment segment = to->segment;
  int unit = to->current_unit;
  to->segment = node->segment;
  to->current_unit = node->unit;
  ts_tid first = ts_graph_add(to, &(ts_node_args){.op = node->op, .name = node->name, .n_in = node->n_in, .in = in,
                                                  .n_out = node->n_out, .attr = node->attr, .prior = prior,
                                                  .beta = look_up(from, node, node->beta, map)});
  to->segment = segment;
  to->current_unit = unit;
  for (int i = 0; i < node->n_out; ++i) {
    map[node->out[i]] = first + i;
  }
  ts_free(in);
  ts_free(prior);
  return to->n_nodes - 1;
}

static void copy_leaf_of(ts_graph *to, const ts_graph *from, ts_tid t, ts_tid *map) {
  if (t != TS_NONE && from->tensor[t].producer == TS_NONE) {
    ts_graph_copy_leaf(to, from, t, map);
  }
}

ts_nid ts_graph_copy_with_leaves(ts_graph *to, const ts_graph *from, ts_nid n, ts_tid *map) {
  const ts_node *node = &from->node[n];
  for (int i = 0; i < node->n_in; ++i) {
    copy_leaf_of(to, from, node->in[i], map);
  }
  for (int i = 0; node->prior != NULL && i < node->n_out; ++i) {
    copy_leaf_of(to, from, node->prior[i], map);
  }
  copy_leaf_of(to, from, node->beta, map);
  return ts_graph_copy_node(to, from, n, map);
}

void ts_graph_copy_marks(ts_graph *to, const ts_graph *from, const ts_tid *map) {
  for (int i = 0; i < from->n_marks; ++i) {
    if (map[from->mark[i].tensor] != TS_NONE) {
      ts_graph_mark(to, from->mark[i].name, map[from->mark[i].tensor]);
    }
  }
}
