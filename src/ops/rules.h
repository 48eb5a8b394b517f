/** \file
 * Small helpers for the rules of ops: access to a node's tensors, shapes made from shapes.  Private to src/ops.
 */
#ifndef TS_OPS_RULES_H
#define TS_OPS_RULES_H

#include "graph/graph.h"
#include "graph/op.h"

/** One for each element of the largest tensor. Not collective. */
ts_flops_rule ts_flops_elements;

/** Input \a i of a node; must be there. Not collective. */
static inline const ts_tensor *ts_rule_in(const ts_graph *g, const ts_node *node, int i) {
  return &g->tensor[node->in[i]];
}

/** Extent of the last dimension. Not collective. */
static inline int64_t ts_shape_last(const ts_shape *shape) {
  return shape->d[shape->n - 1];
}

/** \a shape with another last extent. Not collective. */
static inline ts_shape ts_shape_with_last(ts_shape shape, int64_t last) {
  shape.d[shape.n - 1] = last;
  return shape;
}

/** \a shape without its last dimension; [1] when nothing is left. Not collective. */
static inline ts_shape ts_shape_drop_last(ts_shape shape) {
  if (shape.n == 1) {
    return TS_SHAPE(1);
  }
  shape.n -= 1;
  shape.d[shape.n] = 0;
  return shape;
}

/** True when input \a i is there and has this type and shape. Not collective. */
static inline bool ts_rule_is(const ts_graph *g, const ts_node *node, int i, ts_dtype dtype, ts_shape shape) {
  return i < node->n_in && node->in[i] != TS_NONE && ts_rule_in(g, node, i)->dtype == dtype &&
         ts_shape_equal(&ts_rule_in(g, node, i)->shape, &shape);
}

/** Return the reason from a shape rule unless the condition holds. */
#define TS_RULE(condition, why) \
  do {                          \
    if (!(condition)) {         \
      return (why);             \
    }                           \
  } while (0)

#endif
