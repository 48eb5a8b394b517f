/* The end of the step: norms, control values, the optimizer. */
#include "graph/record.h"
#include "ops/rules.h"

static const char *no_letters(const ts_node *node) {
  (void) node;
  return "";
}

static const char *check_ranges(const ts_graph *g, ts_tid t, const ts_range *range, int n) {
  int64_t end = 0;
  for (int i = 0; i < n; ++i) {
    TS_RULE(range[i].offset >= end && range[i].count > 0, "ranges are in order and do not overlap");
    end = range[i].offset + range[i].count;
  }
  TS_RULE(end <= ts_tensor_count(g, t), "a range leaves the tensor");
  return NULL;
}

const char *ts_shape_sum_squares(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  dtype[0] = TS_F64;
  shape[0] = TS_SHAPE(1);
  return check_ranges(g, node->in[0], node->attr.segments.range, node->attr.segments.n);
}

const char *ts_index_sum_squares(const ts_node *node) {
  return no_letters(node);
}

const char *ts_shape_step_control(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *records = ts_rule_in(g, node, 0);
  TS_RULE(records->dtype == TS_F64 && records->shape.n == 2 && records->shape.d[1] >= TS_RECORD_SQUARES,
          "records are [ranks][columns of a record] fp64");
  TS_RULE(ts_rule_is(g, node, 1, TS_F64, TS_SHAPE(1)), "static_tokens is [1] fp64");
  for (int i = 2; i < 4; ++i) {
    TS_RULE(ts_rule_is(g, node, i, TS_F32, TS_SHAPE(1)), "max_norm and loss_scale are [1] fp32");
  }
  dtype[0] = TS_F64;
  shape[0] = TS_SHAPE(TS_SUMMARY_SIZE);
  dtype[1] = dtype[2] = TS_F32;
  shape[1] = shape[2] = TS_SHAPE(1);
  return NULL;
}

const char *ts_index_step_control(const ts_node *node) {
  return no_letters(node);
}

const char *ts_shape_advance(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  TS_RULE(ts_rule_is(g, node, 0, TS_I64, TS_SHAPE(1)) && ts_rule_is(g, node, 1, TS_F32, TS_SHAPE(1)),
          "step is [1] int64, skip [1] fp32");
  dtype[0] = TS_I64;
  shape[0] = TS_SHAPE(1);
  return NULL;
}

const char *ts_index_advance(const ts_node *node) {
  return no_letters(node);
}

const char *ts_shape_adamw(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *p = ts_rule_in(g, node, 0);
  TS_RULE(p->dtype == TS_F32 && p->shape.n == 1, "p is [n] fp32");
  for (int i = 1; i < 3; ++i) {
    TS_RULE(ts_rule_is(g, node, i, TS_F32, p->shape), "m and v are like p");
  }
  TS_RULE(ts_tensor_count(g, node->in[4]) == p->shape.d[0], "g has as many elements as p");
  TS_RULE((node->in[3] == TS_NONE) == (node->n_out == 3), "w' is an output when w is an input");
  TS_RULE(node->in[3] == TS_NONE || ts_tensor_count(g, node->in[3]) == p->shape.d[0], "w has as many elements as p");
  TS_RULE(!node->attr.adamw.rounding.stochastic || (node->in[3] != TS_NONE && ts_rule_in(g, node, 3)->dtype == TS_BF16),
          "what is rounded by chance is a w in bf16");
  TS_RULE(ts_rule_is(g, node, 5, TS_I64, TS_SHAPE(1)), "step is [1] int64");
  TS_RULE(ts_rule_is(g, node, 7, TS_F32, TS_SHAPE(2)), "betas are [2] fp32");
  for (int i = 6; i < 10; i += i == 6 ? 2 : 1) {
    TS_RULE(ts_rule_is(g, node, i, TS_F32, TS_SHAPE(1)), "lr, scale and skip are [1] fp32");
  }
  for (int i = 0; i < node->n_out; ++i) {
    dtype[i] = ts_rule_in(g, node, i)->dtype;
    shape[i] = ts_rule_in(g, node, i)->shape;
  }
  return check_ranges(g, node->in[0], node->attr.adamw.range, node->attr.adamw.n);
}

const char *ts_index_adamw(const ts_node *node) {
  return no_letters(node);
}

double ts_flops_adamw(const ts_graph *g, const ts_node *node) {
  return 14.0 * (double) ts_tensor_count(g, node->in[0]);
}
