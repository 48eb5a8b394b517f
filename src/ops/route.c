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
  ts_shape of_tokens = *x;
  --of_tokens.n;
  bool labelled = node->n_in > 2 && node->in[2] != TS_NONE, noised = node->n_in > 3 && node->in[3] != TS_NONE;
  TS_RULE(!labelled || ts_rule_is(g, node, 2, TS_I32, of_tokens), "there is a label for each token");
  TS_RULE(!noised || (ts_rule_is(g, node, 3, TS_F32, *x) && !biased && node->attr.route.groups <= 1),
          "noised logits are fp32, as many as logits, and compared as they are");
  TS_RULE(node->attr.route.sure >= 0 && node->attr.route.sure <= node->attr.route.k, "some choices are sure");
  dtype[0] = TS_F32;
  dtype[1] = TS_I32;
  shape[0] = shape[1] = ts_shape_with_last(*x, node->attr.route.k);
  return check_route(g, node, 0);
}

const char *ts_index_route(const ts_node *node) {
  return node->n_in > 3   ? "*E,E,*,*E->*K,*K"
         : node->n_in > 2 ? "*E,E,*->*K,*K"
         : node->n_in > 1 ? "*E,E->*K,*K"
                          : "*E->*K,*K";
}

static void add_excess(ts_gradients *gradients, const ts_node *node) {
  enum { BIAS = 1, LABELS };
  ts_tid bias = node->n_in > LABELS && node->in[LABELS] != TS_NONE ? node->in[BIAS] : TS_NONE;
  if (bias == TS_NONE || !ts_gradients_wanted(gradients, bias)) {
    return;
  }
  ts_site at = ts_gradients_site(gradients, bias);
  char *name = ts_format("%s.excess", node->name);
  const ts_tid in[] = {node->out[1], node->in[LABELS]};
  const ts_attr attr = {.experts = {.n = (int) at.graph->tensor[bias].shape.d[0]}};
  ts_gradients_add(
      gradients, bias,
      ts_graph_add(
          at, &(ts_node){.op = TS_OP_ROUTE_EXCESS, .name = name, .n_in = 2, .in = in, .attr = attr, .beta = TS_NONE}));
  ts_free(name);
}

/* What is chosen is given. */
void ts_gradient_route(ts_gradients *gradients, const ts_node *node) {
  add_excess(gradients, node);
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

const char *ts_shape_route_excess(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *chosen = ts_rule_in(g, node, 0);
  ts_shape of_tokens = chosen->shape;
  --of_tokens.n;
  TS_RULE(chosen->dtype == TS_I32 && chosen->shape.n >= 2, "choices are [...][k] int32");
  TS_RULE(ts_rule_is(g, node, 1, TS_I32, of_tokens), "there is a label for each token");
  TS_RULE(node->attr.experts.n >= 1 && node->attr.experts.n <= TS_MOST_EXPERTS, "there are experts");
  dtype[0] = TS_F32;
  shape[0] = TS_SHAPE(node->attr.experts.n);
  return NULL;
}

const char *ts_index_route_excess(const ts_node *node) {
  (void) node;
  return "*K,*->E";
}

/* ---- what experts got ---- */

static const char *check_loads(const ts_graph *g, const ts_node *node, const ts_tensor *logits,
                               const ts_tensor *labels) {
  ts_shape of_tokens = logits->shape;
  --of_tokens.n;
  TS_RULE(logits->dtype == TS_F32 && logits->shape.n >= 2 && ts_shape_last(&logits->shape) <= TS_MOST_EXPERTS,
          "logits are fp32, of experts");
  TS_RULE(labels->dtype == TS_I32 && ts_shape_equal(&labels->shape, &of_tokens), "there is a label for each token");
  int64_t first = node->attr.loads.first, length = node->attr.loads.length;
  TS_RULE(node->attr.loads.groups >= 1 && length >= 1 && first >= 0 &&
              first + ts_shape_count(&of_tokens) <= node->attr.loads.groups * length,
          "every token is of a group");
  (void) g;
  return NULL;
}

static ts_shape loads_shape(const ts_node *node, const ts_tensor *logits) {
  return TS_SHAPE(node->attr.loads.groups, ts_loads_width(ts_shape_last(&logits->shape)));
}

const char *ts_shape_route_loads(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *logits = ts_rule_in(g, node, 0), *chosen = ts_rule_in(g, node, 1);
  const char *why = check_loads(g, node, logits, ts_rule_in(g, node, 2));
  TS_RULE(why == NULL, why);
  ts_shape of_choices = ts_shape_with_last(logits->shape, ts_shape_last(&chosen->shape));
  TS_RULE(chosen->dtype == TS_I32 && ts_shape_equal(&chosen->shape, &of_choices), "choices are [...][k] int32");
  TS_RULE(node->n_in < 4 || ts_rule_is(g, node, 3, TS_I32, of_choices), "as many may be taken");
  TS_RULE(node->attr.loads.counted >= 0 && node->attr.loads.counted <= ts_shape_last(&chosen->shape),
          "no more choices count than there are");
  dtype[0] = TS_F32;
  shape[0] = loads_shape(node, logits);
  return NULL;
}

const char *ts_index_route_loads(const ts_node *node) {
  return node->n_in > 3 ? "*E,*K,*,*K->GS" : "*E,*K,*->GS";
}

void ts_gradient_route_loads(ts_gradients *gradients, const ts_node *node) {
  if (!ts_gradients_wanted(gradients, node->in[0])) {
    return;
  }
  char *name = ts_format("%s.dx", node->name);
  const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[0], node->in[2]};
  ts_gradients_add(
      gradients, node->in[0],
      ts_graph_add(
          ts_gradients_site(gradients, node->in[0]),
          &(ts_node){
              .op = TS_OP_ROUTE_LOADS_DX, .name = name, .n_in = 3, .in = in, .attr = node->attr, .beta = TS_NONE}));
  ts_free(name);
}

const char *ts_shape_route_loads_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *logits = ts_rule_in(g, node, 1);
  const char *why = check_loads(g, node, logits, ts_rule_in(g, node, 2));
  TS_RULE(why == NULL, why);
  TS_RULE(ts_rule_is(g, node, 0, TS_F32, loads_shape(node, logits)), "there is a gradient for each load");
  dtype[0] = TS_F32;
  shape[0] = logits->shape;
  return NULL;
}

const char *ts_index_route_loads_dx(const ts_node *node) {
  (void) node;
  return "GS,*E,*->*E";
}

/* ---- balance ---- */

static const char *check_balance(const ts_graph *g, const ts_node *node, int loads) {
  const ts_tensor *x = ts_rule_in(g, node, loads);
  TS_RULE(x->dtype == TS_F32 && x->shape.n == 2 && x->shape.d[1] >= ts_loads_width(1) && x->shape.d[1] % 2 == 1,
          "loads are [G][2 E + 3] fp32");
  TS_RULE(node->attr.balance.layers >= 1 && isfinite(node->attr.balance.aux) && isfinite(node->attr.balance.z),
          "factors are numbers, and there are layers");
  return NULL;
}

const char *ts_shape_balance_loss(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_balance(g, node, 0);
  TS_RULE(why == NULL, why);
  TS_RULE(ts_rule_is(g, node, 1, TS_F32, ts_rule_in(g, node, 0)->shape), "there are as many loads of this rank");
  dtype[0] = TS_F64;
  shape[0] = TS_SHAPE(1);
  return NULL;
}

const char *ts_index_balance_loss(const ts_node *node) {
  (void) node;
  return "GS,GS->A";
}

/* The loads of this rank say how many tokens it has, which is a constant. */
void ts_gradient_balance_loss(ts_gradients *gradients, const ts_node *node) {
  if (!ts_gradients_wanted(gradients, node->in[0])) {
    return;
  }
  char *name = ts_format("%s.dloads", node->name);
  const ts_tid in[] = {ts_gradients_seed(gradients, node->out[0]), node->in[0]};
  ts_gradients_add(
      gradients, node->in[0],
      ts_graph_add(
          ts_gradients_site(gradients, node->in[0]),
          &(ts_node){
              .op = TS_OP_BALANCE_LOSS_DX, .name = name, .n_in = 2, .in = in, .attr = node->attr, .beta = TS_NONE}));
  ts_free(name);
}

const char *ts_shape_balance_loss_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_balance(g, node, 1);
  TS_RULE(why == NULL, why);
  TS_RULE(ts_rule_is(g, node, 0, TS_F32, TS_SHAPE(1)), "the seed is [1] fp32");
  dtype[0] = TS_F32;
  shape[0] = ts_rule_in(g, node, 1)->shape;
  return NULL;
}

const char *ts_index_balance_loss_dx(const ts_node *node) {
  (void) node;
  return "A,GS->GS";
}
