/* The op table, expanded from ops.def. */
#include "graph/op.h"


#define OP(ENUM, name, min_in, max_in, min_out, max_out, inplace, flags, gradient, flops) \
  extern ts_shape_rule ts_shape_##name;                                                  \
  extern ts_index_rule ts_index_##name;                                                  \
  extern ts_gradient_rule ts_gradient_##gradient;                                        \
  extern ts_flops_rule ts_flops_##flops;
#include "graph/ops.def"
#undef OP

/* The flags as ops.def spells them. */
enum { ALIAS = TS_OP_ALIAS, ADDS = TS_OP_ADDS, COMM = TS_OP_COMM, UPDATE = TS_OP_IS_UPDATE, ROWS = TS_OP_ROWS };

static const ts_op_info table[TS_N_OPS] = {
#define OP(ENUM, name, min_in, max_in, min_out, max_out, inplace, flags, gradient, flops)                         \
  {#name, min_in, max_in, min_out, max_out, inplace, flags, ts_shape_##name, ts_index_##name, ts_gradient_##gradient, \
   ts_flops_##flops},
#include "graph/ops.def"
#undef OP
};

const ts_op_info *ts_op_get(ts_op op) {
  TS_ASSERT((unsigned) op < TS_N_OPS);
  return &table[op];
}

double ts_node_flops(const ts_graph *graph, const ts_node *node) {
  return ts_op_get(node->op)->flops(graph, node);
}

double ts_node_bytes(const ts_graph *graph, const ts_node *node) {
  double bytes = 0;
  if ((ts_op_get(node->op)->flags & TS_OP_ALIAS) != 0) {
    return 0;
  }
  for (int i = 0; i < node->n_in; ++i) {
    bytes += node->in[i] != TS_NONE ? (double) ts_tensor_bytes(graph, node->in[i]) : 0;
  }
  for (int i = 0; i < node->n_out; ++i) {
    bytes += (double) ts_tensor_bytes(graph, node->out[i]);
  }
  return bytes;
}

void ts_gradient_none(ts_gradients *gradients, const ts_node *node) {
  (void) gradients;
  ts_die(__FILE__, __LINE__, "%s: %s has no gradient", node->name, ts_op_get(node->op)->name);
}

double ts_flops_none(const ts_graph *graph, const ts_node *node) {
  (void) graph;
  (void) node;
  return 0;
}
