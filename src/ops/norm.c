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

/* Sums over rows of which x has some columns. */
static bool has_sums(const ts_graph *g, const ts_node *node, const ts_tensor *x) {
  int at = ts_norm_sums(node);
  return at < 0 || is_statistic(g, node, at, x);
}

static bool has_width(const ts_node *node, const ts_tensor *x) {
  int64_t width = node->attr.norm.width;
  return width == 0 || (ts_norm_sums(node) >= 0 && width >= ts_shape_last(&x->shape));
}

const char *ts_shape_rmsnorm(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  TS_RULE(has_offset(node), "the offset is 0 or 1");
  TS_RULE(ts_rule_is(g, node, 1, x->dtype, TS_SHAPE(ts_shape_last(&x->shape))), "w is [C] of x's dtype");
  TS_RULE(has_sums(g, node, x), "squares are fp32, one a row");
  TS_RULE(has_width(node, x), "a width is that of whole rows, and comes with their sums");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  dtype[1] = TS_F32;
  shape[1] = ts_shape_drop_last(x->shape);
  return NULL;
}

const char *ts_index_rmsnorm(const ts_node *node) {
  return ts_norm_sums(node) < 0 ? "*C,C->*C,*" : "*C,C,*->*C,*";
}

/* Where x has some columns of the rows: the sums over all, which its ranks add up as they did the squares. */
static ts_tid build_dots(ts_gradients *gradients, const ts_node *node, ts_tid dy) {
  int squares = ts_norm_sums(node);
  if (squares < 0) {
    return TS_NONE;
  }
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  const ts_tid in[] = {dy, node->in[0], node->in[1]};
  char *name = ts_format("%s.dots", node->name), *sum = ts_format("%s.dots.all_reduce", node->name);
  const ts_node *sender = ts_graph_producer(gradients->graph, node->in[squares]);
  bool reduced = sender != NULL && sender->op == TS_OP_ALL_REDUCE;
  unsigned axes = reduced ? sender->attr.comm.axes : 0;
  int group = reduced ? sender->attr.comm.group : 1;
  ts_tid dots = ts_graph_add(
      at, &(ts_node){.op = TS_OP_ROW_DOTS, .name = name, .n_in = 3, .in = in, .attr = node->attr, .beta = TS_NONE});
  dots = reduced ? ts_build_all_reduce(at, sum, axes, group, dots) : dots;
  ts_free(name);
  ts_free(sum);
  return dots;
}

void ts_gradient_rmsnorm(ts_gradients *gradients, const ts_node *node) {
  ts_tid dy = ts_gradients_of(gradients, node->out[0]), x = node->in[0], w = node->in[1];
  if (ts_gradients_wanted(gradients, x)) {
    char *name = ts_format("%s.dx", node->name);
    ts_site at = ts_gradients_site(gradients, x);
    const ts_tid in[] = {dy, x, w, node->out[1], build_dots(gradients, node, dy)};
    int n = in[4] == TS_NONE ? 4 : 5;
    ts_gradients_add(
        gradients, x,
        ts_graph_add(at, &(ts_node){.op = TS_OP_RMSNORM_DX, .name = name, .n_in = n, .in = in, .attr = node->attr}));
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
  TS_RULE(has_sums(g, node, x), "dots are fp32, one a row");
  TS_RULE(has_width(node, x), "a width is that of whole rows, and comes with their sums");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  return NULL;
}

const char *ts_index_rmsnorm_dx(const ts_node *node) {
  if (ts_norm_sums(node) < 0) {
    return "*C,*C,C,*->*C";
  }
  return node->attr.norm.width > 0 ? "*c,*c,c,*,*->*c" : "*C,*C,C,*,*->*C";
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

const char *ts_shape_normalize(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  TS_RULE(ts_dtype_is_working(x->dtype), "x is fp32, bf16 or fp16");
  TS_RULE(node->attr.norm.eps > 0.0f, "eps is positive");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  dtype[1] = TS_F32;
  shape[1] = ts_shape_drop_last(x->shape);
  return NULL;
}

const char *ts_index_normalize(const ts_node *node) {
  (void) node;
  return "*C->*C,*";
}

void ts_gradient_normalize(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[0], node->out[1]};
  ts_gradients_add(
      gradients, node->in[0],
      ts_graph_add(at, &(ts_node){.op = TS_OP_NORMALIZE_DX, .name = name, .n_in = 3, .in = in, .attr = node->attr}));
  ts_free(name);
}

const char *ts_shape_normalize_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 1);
  TS_RULE(ts_rule_is(g, node, 0, x->dtype, x->shape), "dy is like x");
  TS_RULE(is_statistic(g, node, 2, x), "r is fp32, one a row");
  TS_RULE(node->attr.norm.eps > 0.0f, "eps is positive");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  return NULL;
}

const char *ts_index_normalize_dx(const ts_node *node) {
  (void) node;
  return "*C,*C,*->*C";
}

const char *ts_shape_row_squares(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  TS_RULE(ts_dtype_is_working(x->dtype), "x is fp32, bf16 or fp16");
  dtype[0] = TS_F32;
  shape[0] = ts_shape_drop_last(x->shape);
  return NULL;
}

const char *ts_index_row_squares(const ts_node *node) {
  (void) node;
  return "*c->*";
}

const char *ts_shape_row_dots(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 1);
  TS_RULE(has_offset(node), "the offset is 0 or 1");
  TS_RULE(ts_rule_is(g, node, 0, x->dtype, x->shape), "dy is like x");
  TS_RULE(ts_rule_is(g, node, 2, x->dtype, TS_SHAPE(ts_shape_last(&x->shape))), "w is [C] of x's dtype");
  dtype[0] = TS_F32;
  shape[0] = ts_shape_drop_last(x->shape);
  return NULL;
}

const char *ts_index_row_dots(const ts_node *node) {
  (void) node;
  return "*c,*c,c->*";
}
