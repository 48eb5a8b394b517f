/* Routing of tokens to experts. */
#include "base/memory.h"
#include "ops/gradient.h"
#include "ops/rules.h"

#include <math.h>

static const char *check_route(const ts_graph *g, const ts_node *node, int logits) {
  const ts_tensor *x = ts_rule_in(g, node, logits);
  int64_t experts = ts_shape_last(&x->shape), k = node->attr.route.k, top = node->attr.route.top_groups;
  int64_t groups = node->attr.route.groups > 1 ? node->attr.route.groups : 1;
  TS_RULE(x->dtype == TS_F32, "logits are fp32");
  TS_RULE(experts <= TS_MOST_EXPERTS && k >= 1 && k <= experts && k <= TS_MOST_CHOSEN,
          "there are experts to choose from");
  TS_RULE(groups <= TS_MOST_CHOSEN && experts % groups == 0 &&
              (groups == 1 || (top >= 1 && top <= groups && k <= experts / groups * top)),
          "groups are equal, and the best of them have enough experts");
  TS_RULE(isfinite(node->attr.route.scale), "the weights' factor is a number");
  return NULL;
}

const char *ts_shape_route(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_shape *x = &ts_rule_in(g, node, 0)->shape;
  bool biased = node->n_in > 1 && node->in[1] != TS_NONE;
  TS_RULE(!biased || ts_rule_is(g, node, 1, TS_F32, TS_SHAPE(ts_shape_last(x))), "the bias is fp32, one an expert");
  dtype[0] = TS_F32;
  dtype[1] = TS_I32;
  shape[0] = shape[1] = ts_shape_with_last(*x, node->attr.route.k);
  return check_route(g, node, 0);
}

const char *ts_index_route(const ts_node *node) {
  return node->n_in > 1 ? "*E,E->*K,*K" : "*E->*K,*K";
}

/* What is chosen is given: the bias has no gradient. */
void ts_gradient_route(ts_gradients *gradients, const ts_node *node) {
  if (!ts_gradients_wanted(gradients, node->in[0])) {
    return;
  }
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[0], node->out[1]};
  ts_gradients_add(
      gradients, node->in[0],
      ts_graph_add(
          at,
          &(ts_node){.op = TS_OP_ROUTE_DX, .name = name, .n_in = 3, .in = in, .attr = node->attr, .beta = TS_NONE}));
  ts_free(name);
}

const char *ts_shape_route_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_shape *x = &ts_rule_in(g, node, 1)->shape;
  const ts_shape chosen = ts_shape_with_last(*x, node->attr.route.k);
  TS_RULE(ts_rule_is(g, node, 0, TS_F32, chosen) && ts_rule_is(g, node, 2, TS_I32, chosen),
          "there is a gradient for each that was chosen");
  dtype[0] = TS_F32;
  shape[0] = *x;
  return check_route(g, node, 1);
}

const char *ts_index_route_dx(const ts_node *node) {
  (void) node;
  return "*K,*E,*K->*E";
}
