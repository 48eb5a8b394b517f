/* Normalisation over the last dimension. */
#include "base/memory.h"
#include "ops/build.h"
#include "ops/gradient.h"
#include "ops/rules.h"

double ts_flops_norm(const ts_graph *g, const ts_node *node) {
  return 8.0 * (double) ts_tensor_count(g, node->in[0]);
}

/* The row statistics of x: fp32, one a row. */
static bool is_statistic(const ts_graph *g, const ts_node *node, int i, const ts_tensor *x) {
  return ts_rule_is(g, node, i, TS_F32, ts_shape_drop_last(x->shape));
}

const char *ts_shape_layernorm(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  for (int i = 1; i < 3; ++i) {
    TS_RULE(ts_rule_is(g, node, i, x->dtype, TS_SHAPE(ts_shape_last(&x->shape))), "w and b are [C] of x's dtype");
  }
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  dtype[1] = dtype[2] = TS_F32;
  shape[1] = shape[2] = ts_shape_drop_last(x->shape);
  return NULL;
}

const char *ts_index_layernorm(const ts_node *node) {
  (void) node;
  return "*C,C,C->*C,*,*";
}

void ts_gradient_layernorm(ts_gradients *gradients, const ts_node *node) {
  ts_tid dy = ts_gradients_of(gradients, node->out[0]), x = node->in[0], w = node->in[1], b = node->in[2];
  if (ts_gradients_wanted(gradients, x)) {
    char *name = ts_format("%s.dx", node->name);
    ts_site at = ts_gradients_site(gradients, x);
    const ts_tid in[] = {dy, x, w, node->out[1], node->out[2]};
    ts_gradients_add(gradients, x, ts_build(at, TS_OP_LAYERNORM_DX, name, 5, in));
    ts_free(name);
  }
  if (ts_gradients_wanted(gradients, w) || ts_gradients_wanted(gradients, b)) {
    char *name = ts_format("%s.dw", node->name);
    ts_site at = ts_gradients_site(gradients, w);
    const ts_tid in[] = {dy, x, node->out[1], node->out[2]};
    ts_attr attr = {.norm = {.eps = node->attr.norm.eps, .dtype = ts_gradients_dtype(gradients, w)}};
    ts_tid dw = ts_graph_add(at, &(ts_node){.op = TS_OP_LAYERNORM_DW, .name = name, .n_in = 4, .in = in, .attr = attr});
    for (int i = 0; i < 2; ++i) {
      if (ts_gradients_wanted(gradients, node->in[1 + i])) {
        ts_gradients_add(gradients, node->in[1 + i], dw + i);
      }
    }
    ts_free(name);
  }
}

const char *ts_shape_layernorm_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 1);
  TS_RULE(ts_rule_is(g, node, 0, x->dtype, x->shape), "dy is like x");
  TS_RULE(ts_rule_is(g, node, 2, x->dtype, TS_SHAPE(ts_shape_last(&x->shape))), "w is [C] of x's dtype");
  TS_RULE(is_statistic(g, node, 3, x) && is_statistic(g, node, 4, x), "mean and rstd are fp32, one a row");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  return NULL;
}

const char *ts_index_layernorm_dx(const ts_node *node) {
  (void) node;
  return "*C,*C,C,*,*->*C";
}

const char *ts_shape_layernorm_dw(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 1);
  TS_RULE(ts_rule_is(g, node, 0, x->dtype, x->shape), "dy is like x");
  TS_RULE(is_statistic(g, node, 2, x) && is_statistic(g, node, 3, x), "mean and rstd are fp32, one a row");
  dtype[0] = dtype[1] = node->attr.norm.dtype;
  shape[0] = shape[1] = TS_SHAPE(ts_shape_last(&x->shape));
  return NULL;
}

const char *ts_index_layernorm_dw(const ts_node *node) {
  (void) node;
  return "*C,*C,*,*->C,C";
}

static bool has_offset(const ts_node *node) {
  return node->attr.norm.offset == 0.0f || node->attr.norm.offset == 1.0f;
}

const char *ts_shape_rmsnorm(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  TS_RULE(has_offset(node), "the offset is 0 or 1");
  TS_RULE(ts_rule_is(g, node, 1, x->dtype, TS_SHAPE(ts_shape_last(&x->shape))), "w is [C] of x's dtype");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  dtype[1] = TS_F32;
  shape[1] = ts_shape_drop_last(x->shape);
  return NULL;
}

const char *ts_index_rmsnorm(const ts_node *node) {
  (void) node;
  return "*C,C->*C,*";
}

void ts_gradient_rmsnorm(ts_gradients *gradients, const ts_node *node) {
  ts_tid dy = ts_gradients_of(gradients, node->out[0]), x = node->in[0], w = node->in[1];
  if (ts_gradients_wanted(gradients, x)) {
    char *name = ts_format("%s.dx", node->name);
    ts_site at = ts_gradients_site(gradients, x);
    const ts_tid in[] = {dy, x, w, node->out[1]};
    ts_gradients_add(
        gradients, x,
        ts_graph_add(at, &(ts_node){.op = TS_OP_RMSNORM_DX, .name = name, .n_in = 4, .in = in, .attr = node->attr}));
    ts_free(name);
  }
  if (ts_gradients_wanted(gradients, w)) {
    char *name = ts_format("%s.dw", node->name);
    ts_site at = ts_gradients_site(gradients, w);
    const ts_tid in[] = {dy, x, node->out[1]};
    ts_attr attr = {.norm = {.eps = node->attr.norm.eps, .dtype = ts_gradients_dtype(gradients, w)}};
    ts_tid dw = ts_graph_add(at, &(ts_node){.op = TS_OP_RMSNORM_DW, .name = name, .n_in = 3, .in = in, .attr = attr});
    ts_gradients_add(gradients, w, dw);
    ts_free(name);
  }
}

const char *ts_shape_rmsnorm_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 1);
  TS_RULE(has_offset(node), "the offset is 0 or 1");
  TS_RULE(ts_rule_is(g, node, 0, x->dtype, x->shape), "dy is like x");
  TS_RULE(ts_rule_is(g, node, 2, x->dtype, TS_SHAPE(ts_shape_last(&x->shape))), "w is [C] of x's dtype");
  TS_RULE(is_statistic(g, node, 3, x), "rstd is fp32, one a row");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  return NULL;
}

const char *ts_index_rmsnorm_dx(const ts_node *node) {
  (void) node;
  return "*C,*C,C,*->*C";
}

const char *ts_shape_rmsnorm_dw(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 1);
  TS_RULE(ts_rule_is(g, node, 0, x->dtype, x->shape), "dy is like x");
  TS_RULE(is_statistic(g, node, 2, x), "rstd is fp32, one a row");
  dtype[0] = node->attr.norm.dtype;
  shape[0] = TS_SHAPE(ts_shape_last(&x->shape));
  return NULL;
}

const char *ts_index_rmsnorm_dw(const ts_node *node) {
  (void) node;
  return "*C,*C,*->C";
}
