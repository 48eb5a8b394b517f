/* load, store, copy_in, copy_out, copy_into: the same values in another space. */
#include "ops/rules.h"

const char *ts_shape_load(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  dtype[0] = ts_rule_in(g, node, 0)->dtype;
  shape[0] = ts_rule_in(g, node, 0)->shape;
  return NULL;
}

const char *ts_index_load(const ts_node *node) {
  (void) node;
  return "";
}

const char *ts_shape_store(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *into = ts_rule_in(g, node, 0), *x = ts_rule_in(g, node, 1);
  TS_RULE(into->dtype == x->dtype && ts_shape_equal(&into->shape, &x->shape),
          "what is stored is like what it replaces");
  dtype[0] = into->dtype;
  shape[0] = into->shape;
  return NULL;
}

const char *ts_index_store(const ts_node *node) {
  (void) node;
  return "";
}

const char *ts_shape_copy_in(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  return ts_shape_load(g, node, dtype, shape);
}

const char *ts_index_copy_in(const ts_node *node) {
  return ts_index_load(node);
}

const char *ts_shape_copy_out(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 1);
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  return node->in[0] != TS_NONE ? ts_shape_store(g, node, dtype, shape) : NULL;
}

const char *ts_index_copy_out(const ts_node *node) {
  return ts_index_store(node);
}

const char *ts_shape_copy_into(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  return ts_shape_store(g, node, dtype, shape);
}

const char *ts_index_copy_into(const ts_node *node) {
  return ts_index_store(node);
}
