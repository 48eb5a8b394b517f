/* Experts that take no more tokens than they have room for. */
#include "base/memory.h"
#include "ops/gradient.h"
#include "ops/rules.h"

#include <math.h>

const char *ts_shape_route_limit(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *weight = ts_rule_in(g, node, 0);
  bool ranked = node->n_in > 2 && node->in[2] != TS_NONE;
  int64_t experts = node->attr.limit.experts, length = node->attr.limit.length;
  TS_RULE(weight->dtype == TS_F32 && weight->shape.n >= 2 && ts_shape_last(&weight->shape) >= 1,
          "weights are [...][k] fp32");
  TS_RULE(ts_rule_is(g, node, 1, TS_I32, weight->shape), "there is a weight for each choice");
  TS_RULE(!ranked || ts_rule_is(g, node, 2, TS_F32, weight->shape), "there is a priority for each choice, in fp32");
  TS_RULE(experts >= 1 && experts <= TS_MOST_EXPERTS, "there are experts");
  TS_RULE(ts_shape_count(&weight->shape) <= INT32_MAX, "choices are counted in 32 bits");
  TS_RULE(isfinite(node->attr.limit.factor) && node->attr.limit.factor > 0 && node->attr.limit.least >= 0,
          "a capacity is positive");
  TS_RULE(length >= 0 && (length == 0 || ts_shape_rows(&weight->shape) % length == 0), "tokens are whole groups");
  dtype[0] = TS_F32;
  dtype[1] = TS_I32;
  shape[0] = shape[1] = weight->shape;
  return NULL;
}

const char *ts_index_route_limit(const ts_node *node) {
  return node->n_in > 2 ? "*K,*K,*K->*K,*K" : "*K,*K->*K,*K";
}

/* What is left is given. */
void ts_gradient_route_limit(ts_gradients *gradients, const ts_node *node) {
  if (!ts_gradients_wanted(gradients, node->in[0])) {
    return;
  }
  char *name = ts_format("%s.dweight", node->name);
  const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[0], node->out[1]};
  ts_gradients_add(
      gradients, node->in[0],
      ts_graph_add(
          ts_gradients_site(gradients, node->in[0]),
          &(ts_node){
              .op = TS_OP_ROUTE_LIMIT_DX, .name = name, .n_in = 3, .in = in, .attr = node->attr, .beta = TS_NONE}));
  ts_free(name);
}

const char *ts_shape_route_limit_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *weight = ts_rule_in(g, node, 1);
  TS_RULE(weight->dtype == TS_F32 && weight->shape.n >= 2, "weights are [...][k] fp32");
  TS_RULE(ts_rule_is(g, node, 0, TS_F32, weight->shape) && ts_rule_is(g, node, 2, TS_I32, weight->shape),
          "there is a gradient for each choice");
  TS_RULE(node->attr.limit.experts >= 1, "there are experts");
  dtype[0] = TS_F32;
  shape[0] = weight->shape;
  return NULL;
}

const char *ts_index_route_limit_dx(const ts_node *node) {
  (void) node;
  return "*K,*K,*K->*K";
}
