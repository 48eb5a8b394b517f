/* The end of the step: norms, control values, the optimizer. */
#include "graph/record.h"
#include "ops/rules.h"

static const char *no_letters(const ts_node *node) {
  (void) node;
  return "";
}

static const char *check_ranges(const ts_graph *g, ts_tid t, const ts_range *range, int n, int64_t least) {
  int64_t end = 0;
  for (int i = 0; i < n; ++i) {
    TS_RULE(range[i].offset >= end && range[i].count >= least, "ranges are in order and do not overlap");
    end = range[i].offset + range[i].count;
  }
  TS_RULE(end <= ts_tensor_count(g, t), "a range leaves the tensor");
  return NULL;
}

const char *ts_shape_sum_squares(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  bool each = node->attr.segments.each;
  dtype[0] = each ? TS_F32 : TS_F64;
  shape[0] = TS_SHAPE(each ? node->attr.segments.n : 1);
  return check_ranges(g, node->in[0], node->attr.segments.range, node->attr.segments.n, !each);
}

const char *ts_index_sum_squares(const ts_node *node) {
  return no_letters(node);
}

#define LOSS_SCALE "a loss scale is [TS_LOSS_SCALE_SIZE] fp64"

static bool is_loss_scale(const ts_graph *g, const ts_node *node, int i) {
  return ts_rule_is(g, node, i, TS_F64, TS_SHAPE(TS_LOSS_SCALE_SIZE));
}

const char *ts_shape_step_control(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *records = ts_rule_in(g, node, 0);
  TS_RULE(records->dtype == TS_F64 && records->shape.n == 2 && records->shape.d[1] >= TS_RECORD_SQUARES,
          "records are [ranks][columns of a record] fp64");
  TS_RULE(ts_rule_is(g, node, 1, TS_F64, TS_SHAPE(1)), "static_tokens is [1] fp64");
  TS_RULE(ts_rule_is(g, node, 2, TS_F32, TS_SHAPE(1)), "max_norm is [1] fp32");
  TS_RULE(node->in[3] == TS_NONE || is_loss_scale(g, node, 3), LOSS_SCALE);
  dtype[0] = TS_F64;
  shape[0] = TS_SHAPE(TS_SUMMARY_SIZE);
  dtype[1] = dtype[2] = TS_F32;
  shape[1] = shape[2] = TS_SHAPE(1);
  return NULL;
}

const char *ts_index_step_control(const ts_node *node) {
  return no_letters(node);
}

const char *ts_shape_scale_loss(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  TS_RULE(ts_rule_is(g, node, 0, TS_F32, TS_SHAPE(1)), "seed is [1] fp32");
  TS_RULE(is_loss_scale(g, node, 1), LOSS_SCALE);
  dtype[0] = TS_F32;
  shape[0] = TS_SHAPE(1);
  return NULL;
}

const char *ts_index_scale_loss(const ts_node *node) {
  return no_letters(node);
}

const char *ts_shape_update_loss_scale(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  TS_RULE(is_loss_scale(g, node, 0), LOSS_SCALE);
  TS_RULE(ts_rule_is(g, node, 1, TS_F64, TS_SHAPE(TS_SUMMARY_SIZE)), "a summary is [TS_SUMMARY_SIZE] fp64");
  TS_RULE(node->attr.loss_scaler.rule != TS_LOSS_SCALE_NONE && node->attr.loss_scaler.window > 0,
          "a loss scale has a rule, and a window of at least one step");
  for (int i = 0; i < 2; ++i) {
    dtype[i] = TS_F64;
    shape[i] = ts_rule_in(g, node, i)->shape;
  }
  return NULL;
}

const char *ts_index_update_loss_scale(const ts_node *node) {
  return no_letters(node);
}

const char *ts_shape_advance(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  TS_RULE(ts_rule_is(g, node, 0, TS_I64, TS_SHAPE(1)) && ts_rule_is(g, node, 1, TS_F32, TS_SHAPE(2)) &&
              ts_rule_is(g, node, 2, TS_F32, TS_SHAPE(1)),
          "step is [1] int64, betas [2] fp32, skip [1] fp32");
  dtype[0] = TS_I64;
  shape[0] = TS_SHAPE(1);
  dtype[1] = TS_F64;
  shape[1] = TS_SHAPE(2);
  return NULL;
}

const char *ts_index_advance(const ts_node *node) {
  return no_letters(node);
}

/* Values that an update may keep: in types that are rounded, not in fp64. */
static bool is_value(const ts_tensor *x) {
  return ts_dtype_is_float(x->dtype) && x->dtype != TS_F64;
}

static const char *check_optimizer_states(const ts_graph *g, const ts_node *node) {
  const ts_update_slots slots = ts_update_slots_of(g, node);
  int64_t count = ts_rule_in(g, node, 0)->shape.d[0];
  int n_states = ts_optimizer_get(node->attr.update.rule)->n_states, versions = 1 + node->attr.update.copy;
  for (int i = 0; i < n_states; ++i) {
    TS_RULE(slots.state[i] >= 0, "the rule has more states");
    const ts_tensor *state = ts_rule_in(g, node, slots.state[i]);
    TS_RULE(ts_tensor_count(g, node->in[slots.state[i]]) == count, "a state has as many elements as p");
    TS_RULE(state->dtype == TS_U8 || is_value(state), "a state is fp32, bf16, fp16 or uint8");
    versions += 1 + (slots.scales[i] >= 0);
    int64_t blocks = (count + TS_STATE_BLOCK - 1) / TS_STATE_BLOCK;
    TS_RULE(slots.scales[i] < 0 ||
                (slots.scales[i] < node->n_out && ts_rule_is(g, node, slots.scales[i], TS_F32, TS_SHAPE(blocks))),
            "a state in uint8 has fp32 scales, one for each block");
  }
  TS_RULE(node->n_out == versions && node->n_in == versions + TS_UPDATE_INPUTS + node->attr.update.has_ratios,
          "inputs are those of the rule");
  return NULL;
}

/* Scales stand for blocks from a parameter's begin on. */
static const char *check_state_blocks(const ts_graph *g, const ts_node *node) {
  const ts_update_slots slots = ts_update_slots_of(g, node);
  for (int r = 0; r < node->attr.update.n; ++r) {
    TS_RULE((slots.scales[0] < 0 && slots.scales[1] < 0) || node->attr.update.range[r].offset % TS_STATE_BLOCK == 0,
            "ranges of states in uint8 begin with a block");
  }
  return NULL;
}

static const char *check_step_numbers(const ts_graph *g, const ts_node *node) {
  static const ts_update_input single[] = {TS_UPDATE_LR, TS_UPDATE_SCALE, TS_UPDATE_SKIP};
  TS_RULE(ts_rule_is(g, node, ts_update_at(node, TS_UPDATE_STEP), TS_I64, TS_SHAPE(1)), "step is [1] int64");
  TS_RULE(ts_rule_is(g, node, ts_update_at(node, TS_UPDATE_CORRECTIONS), TS_F64, TS_SHAPE(2)),
          "corrections are [2] fp64");
  TS_RULE(ts_rule_is(g, node, ts_update_at(node, TS_UPDATE_BETAS), TS_F32, TS_SHAPE(2)), "betas are [2] fp32");
  for (int i = 0; i < 3; ++i) {
    TS_RULE(ts_rule_is(g, node, ts_update_at(node, single[i]), TS_F32, TS_SHAPE(1)), "lr, scale and skip are [1] fp32");
  }
  return NULL;
}

static const char *check_ratios(const ts_graph *g, const ts_node *node) {
  if (!node->attr.update.has_ratios) {
    return NULL;
  }
  const ts_tensor *ratios = ts_rule_in(g, node, ts_update_at(node, TS_UPDATE_RATIOS));
  TS_RULE(ratios->dtype == TS_F32 && ratios->shape.n == 1, "ratios are [n] fp32");
  for (int r = 0; r < node->attr.update.n; ++r) {
    int64_t ratio = node->attr.update.range[r].ratio;
    TS_RULE(ratio >= 0 && ratio < ratios->shape.d[0], "a range has a ratio");
  }
  return NULL;
}

const char *ts_shape_update_elements(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *p = ts_rule_in(g, node, 0);
  bool copy = node->attr.update.copy;
  TS_RULE(is_value(p) && p->shape.n == 1, "p is [n], fp32, bf16 or fp16");
  TS_RULE(!copy || ts_optimizer_get(node->attr.update.rule)->granularity == TS_GRANULARITY_ELEMENT,
          "a direction has no copy");
  TS_RULE(!copy || ts_tensor_count(g, node->in[1]) == p->shape.d[0], "w has as many elements as p");
  TS_RULE(!node->attr.update.rounding.stochastic || ts_rule_in(g, node, copy)->dtype == TS_BF16,
          "what is rounded by chance is in bf16");
  const char *wrong = check_optimizer_states(g, node);
  wrong = wrong == NULL ? check_step_numbers(g, node) : wrong;
  wrong = wrong == NULL ? check_state_blocks(g, node) : wrong;
  wrong = wrong == NULL ? check_ratios(g, node) : wrong;
  TS_RULE(wrong == NULL, wrong);
  TS_RULE(ts_tensor_count(g, node->in[ts_update_at(node, TS_UPDATE_G)]) == p->shape.d[0],
          "g has as many elements as p");
  for (int i = 0; i < node->n_out; ++i) {
    dtype[i] = ts_rule_in(g, node, i)->dtype;
    shape[i] = ts_rule_in(g, node, i)->shape;
  }
  return check_ranges(g, node->in[0], node->attr.update.range, node->attr.update.n, 1);
}

const char *ts_index_update_elements(const ts_node *node) {
  return no_letters(node);
}

const char *ts_shape_trust_ratios(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *squares = ts_rule_in(g, node, 0);
  TS_RULE(squares->dtype == TS_F32 && squares->shape.n == 1 && squares->shape.d[0] % 2 == 0, "squares are [2 n] fp32");
  TS_RULE(ts_rule_is(g, node, 1, TS_F64, TS_SHAPE(2)), "corrections are [2] fp64");
  dtype[0] = TS_F32;
  shape[0] = TS_SHAPE(squares->shape.d[0] / 2);
  return NULL;
}

const char *ts_index_trust_ratios(const ts_node *node) {
  return no_letters(node);
}

const char *ts_shape_over_norm(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  TS_RULE(is_value(ts_rule_in(g, node, 0)) && ts_rule_is(g, node, 1, TS_F64, TS_SHAPE(1)),
          "x is fp32, bf16 or fp16, squares [1] fp64");
  dtype[0] = node->attr.over_norm.dtype;
  shape[0] = ts_rule_in(g, node, 0)->shape;
  return NULL;
}

const char *ts_index_over_norm(const ts_node *node) {
  return no_letters(node);
}

const char *ts_shape_add_diagonal(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  TS_RULE(is_value(x) && x->shape.n == 2 && x->shape.d[0] == x->shape.d[1], "x is [n][n], fp32, bf16 or fp16");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  return NULL;
}

const char *ts_index_add_diagonal(const ts_node *node) {
  return no_letters(node);
}

const char *ts_shape_orthogonalize(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  TS_RULE(is_value(x) && x->shape.n == 1, "x is [n], fp32, bf16 or fp16");
  int64_t end = 0;
  for (int i = 0; i < node->attr.orthogonalize.n; ++i) {
    const ts_matrix *m = &node->attr.orthogonalize.matrix[i];
    TS_RULE(m->rows > 0 && m->columns > 0 && m->count > 0 && m->offset >= end, "matrices are in order, none is empty");
    TS_RULE(!m->joins || (i > 0 && m->count == 1 && m[-1].count == 1 && m->rows == m[-1].rows && m->offset == end),
            "what joins a matrix has its rows, and lies behind it");
    end = m->offset + m->rows * m->columns * m->count;
  }
  TS_RULE(end <= x->shape.d[0], "a matrix leaves the tensor");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  return NULL;
}

const char *ts_index_orthogonalize(const ts_node *node) {
  return no_letters(node);
}

double ts_flops_orthogonalize(const ts_graph *g, const ts_node *node) {
  (void) g;
  double flops = 0;
  for (int i = 0; i < node->attr.orthogonalize.n;) {
    const ts_matrix *m = &node->attr.orthogonalize.matrix[i];
    double columns = (double) m->columns;
    for (++i; i < node->attr.orthogonalize.n && node->attr.orthogonalize.matrix[i].joins; ++i) {
      columns += (double) node->attr.orthogonalize.matrix[i].columns;
    }
    flops += (double) m->count * ts_orthogonalize_flops((double) m->rows, columns, node->attr.orthogonalize.gram);
  }
  return flops;
}

double ts_flops_update(const ts_graph *g, const ts_node *node) {
  return 14.0 * (double) ts_tensor_count(g, node->in[0]);
}
