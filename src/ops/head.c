/* The head and its loss. */
#include "base/memory.h"
#include "ops/gradient.h"
#include "ops/rules.h"

/* Those of all ranks that share the vocabulary; who has none has all of it. */
static const char *check_stats(const ts_graph *g, const ts_node *node) {
  const ts_shape *x = &ts_rule_in(g, node, 0)->shape;
  int at = ts_head_stats(node);
  TS_RULE(node->attr.head.first >= 0, "rows are counted from 0");
  if (at < 0) {
    TS_RULE(node->op == TS_OP_HEAD_STATS || node->attr.head.first == 0, "a share of the vocabulary needs stats");
    return NULL;
  }
  const ts_tensor *stats = ts_rule_in(g, node, at);
  TS_RULE(stats->shape.n == 4 && stats->shape.d[0] > 0 &&
              ts_rule_is(g, node, at, TS_F32, TS_SHAPE(stats->shape.d[0], x->d[0], x->d[1], 2)),
          "stats are [R][B][T][2] fp32");
  return NULL;
}

static const char *check_head_inputs(const ts_graph *g, const ts_node *node) {
  const ts_tensor *x = ts_rule_in(g, node, 0), *w = ts_rule_in(g, node, 1);
  TS_RULE(x->shape.n == 3 && w->shape.n == 2 && ts_node_reads(g, node, 1) == x->dtype && w->shape.d[1] == x->shape.d[2],
          "x is [B][T][C], w [V][C] of x's dtype");
  TS_RULE(ts_rule_is(g, node, 2, TS_I32, TS_SHAPE(x->shape.d[0], x->shape.d[1])), "labels are [B][T] int32");
  TS_RULE(node->attr.head.scale > 0.0f && node->attr.head.softcap >= 0.0f,
          "scale is positive, 1 for none; softcap is positive, or 0 for none");
  bool seeded = node->op == TS_OP_HEAD_LOSS_DX || node->op == TS_OP_HEAD_LOSS_TRAIN;
  TS_RULE(!seeded || ts_rule_is(g, node, 3, TS_F32, TS_SHAPE(1)), "seed is [1] fp32");
  return check_stats(g, node);
}

static void loss_outputs(ts_dtype *dtype, ts_shape *shape) {
  dtype[0] = dtype[1] = TS_F64;
  shape[0] = shape[1] = TS_SHAPE(1);
}

static void gradient_outputs(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  dtype[0] = ts_rule_in(g, node, 0)->dtype;
  shape[0] = ts_rule_in(g, node, 0)->shape;
  dtype[1] = node->attr.head.dtype;
  shape[1] = ts_rule_in(g, node, 1)->shape;
}

const char *ts_shape_head_loss(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  loss_outputs(dtype, shape);
  return check_head_inputs(g, node);
}

const char *ts_index_head_loss(const ts_node *node) {
  return node->n_in > 3 ? "*c,vc,*,r*p->.,." : "*c,vc,*->.,.";
}

static void localise_head(ts_attr *attr, const ts_share *share) {
  attr->head.first += share->first;
}

/* Sums over rows, but a logarithm of sums over the vocabulary: once that is known, the gradient is a sum over it. */
bool ts_cut_head(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  bool rows = index == '0' || index == '1' || (index == '*' && ts_head_stats(node) < 0);
  bool shares = index == 'v' && node->op == TS_OP_HEAD_LOSS_DX && ts_head_stats(node) >= 0;
  bool can = (rows || shares) && ts_cut_letters(g, node, index, cut);
  if (can && shares) {
    cut->localise = localise_head;
  }
  return can;
}

/* The product of x with w's rows. */
static double logits_flops(const ts_graph *g, const ts_node *node) {
  const ts_shape *x = &ts_rule_in(g, node, 0)->shape, *w = &ts_rule_in(g, node, 1)->shape;
  return 2.0 * (double) ts_shape_count(x) * (double) w->d[0];
}

double ts_flops_head_loss(const ts_graph *g, const ts_node *node) {
  return ts_head_stats(node) >= 0 ? 0 : logits_flops(g, node);
}

double ts_flops_head_loss_dx(const ts_graph *g, const ts_node *node) {
  return 2 * logits_flops(g, node);
}

double ts_flops_head_loss_train(const ts_graph *g, const ts_node *node) {
  return 3 * logits_flops(g, node);
}

double ts_flops_head_stats(const ts_graph *g, const ts_node *node) {
  return logits_flops(g, node);
}

void ts_gradient_head_loss(ts_gradients *gradients, const ts_node *node) {
  ts_tid seed = ts_gradients_seed(gradients, node->out[0]);
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  int stats = ts_head_stats(node), n_in = stats < 0 ? 4 : 5;
  const ts_tid in[] = {node->in[0], node->in[1], node->in[2], seed, stats < 0 ? TS_NONE : node->in[stats]};
  ts_attr attr = node->attr;
  attr.head.dtype = ts_gradients_dtype(gradients, node->in[1]);
  ts_tid dx =
      ts_graph_add(at, &(ts_node){.op = TS_OP_HEAD_LOSS_DX, .name = name, .n_in = n_in, .in = in, .attr = attr});
  for (int i = 0; i < 2; ++i) {
    if (ts_gradients_wanted(gradients, node->in[i])) {
      ts_gradients_add(gradients, node->in[i], dx + i);
    }
  }
  ts_free(name);
}

const char *ts_shape_head_loss_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  gradient_outputs(g, node, dtype, shape);
  return check_head_inputs(g, node);
}

const char *ts_index_head_loss_dx(const ts_node *node) {
  return node->n_in > 4 ? "*c,vc,*,.,r*p->*c,vc" : "*c,vc,*,.->*c,vc";
}

const char *ts_shape_head_stats(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_head_inputs(g, node);
  const ts_shape *x = &ts_rule_in(g, node, 0)->shape;
  dtype[0] = TS_F32;
  shape[0] = TS_SHAPE(x->d[0], x->d[1], 2);
  return why;
}

const char *ts_index_head_stats(const ts_node *node) {
  (void) node;
  return "*c,vc,*->*p";
}

const char *ts_shape_head_loss_train(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  loss_outputs(dtype, shape);
  gradient_outputs(g, node, dtype + 2, shape + 2);
  return check_head_inputs(g, node);
}

const char *ts_index_head_loss_train(const ts_node *node) {
  (void) node;
  return "*c,vc,*,.->.,.,*c,vc";
}
