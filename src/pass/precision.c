/* Working dtypes: with bf16, parameters and activations are bf16; statistics, losses and logits stay as they are. */
#include "base/memory.h"
#include "pass/pass.h"

#include <string.h>

static ts_tid copy_leaf(ts_graph *to, const ts_graph *from, ts_tid t, ts_tid *map) {
  if (t != TS_NONE && map[t] == TS_NONE) {
    const ts_tensor *leaf = &from->tensor[t];
    to->current_unit = leaf->unit;
    ts_dtype dtype = leaf->role == TS_ROLE_PARAM ? TS_BF16 : leaf->dtype;
    map[t] = ts_graph_leaf(to, leaf->name, leaf->role, dtype, leaf->shape);
  }
  return t == TS_NONE ? TS_NONE : map[t];
}

static void copy_node(ts_graph *to, const ts_graph *from, const ts_node *node, ts_tid *map) {
  ts_tid *in = ts_malloc((size_t) node->n_in * sizeof *in);
  for (int i = 0; i < node->n_in; ++i) {
    in[i] = copy_leaf(to, from, node->in[i], map);
  }
  ts_attr attr = node->attr;
  if (node->op == TS_OP_MATMUL && node->out[0] != ts_graph_marked(from, "logits")) {
    attr.matmul.dtype = TS_BF16;
  }
  to->segment = node->segment;
  to->current_unit = node->unit;
  ts_tid first = ts_graph_add(to, &(ts_node_args){.op = node->op, .name = node->name, .n_in = node->n_in, .in = in,
                                                  .n_out = node->n_out, .attr = attr});
  for (int i = 0; i < node->n_out; ++i) {
    map[node->out[i]] = first + i;
  }
  ts_free(in);
}

void ts_pass_precision(ts_graph **graph, ts_pass_context *context) {
  if (ts_deck_dtype(context->deck) == TS_F32) {
    return;
  }
  ts_tid *map;
  ts_graph *to = ts_graph_rewrite(*graph, &map);
  for (ts_nid n = 0; n < (*graph)->n_nodes; ++n) {
    copy_node(to, *graph, &(*graph)->node[n], map);
  }
  to->current_unit = -1;
  ts_graph_copy_marks(to, *graph, map);
  ts_free(map);
  ts_graph_destroy(graph);
  *graph = to;
}
