/* Losses of what a model has computed otherwise: rows against soft labels, and sums of elements. */
#include "base/memory.h"
#include "ops/build.h"
#include "ops/gradient.h"
#include "ops/rules.h"

/* ---- rows against soft labels ---- */

static const char *check_logits(const ts_graph *g, const ts_node *node, int z) {
  const ts_tensor *x = ts_rule_in(g, node, z);
  TS_RULE(ts_dtype_is_working(x->dtype), "logits are fp32, bf16 or fp16");
  TS_RULE(ts_rule_is(g, node, z + 1, x->dtype, x->shape), "logits and those of the labels have one dtype and shape");
  TS_RULE(node->attr.soft.temperature > 0.0f, "the temperature is positive");
  return NULL;
}

const char *ts_shape_soft_loss(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  for (int i = 0; i < 3; ++i) {
    dtype[i] = TS_F32;
    shape[i] = ts_shape_drop_last(ts_rule_in(g, node, 0)->shape);
  }
  return check_logits(g, node, 0);
}

const char *ts_index_soft_loss(const ts_node *node) {
  (void) node;
  return "*C,*C->*,*,*";
}

void ts_gradient_soft_loss(ts_gradients *gradients, const ts_node *node) {
  if (!ts_gradients_wanted(gradients, node->in[0])) {
    return;
  }
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[0], node->in[1], node->out[1], node->out[2]};
  ts_gradients_add(
      gradients, node->in[0],
      ts_graph_add(at, &(ts_node){.op = TS_OP_SOFT_LOSS_DX, .name = name, .n_in = 5, .in = in, .attr = node->attr}));
  ts_free(name);
}

const char *ts_shape_soft_loss_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *z = ts_rule_in(g, node, 1);
  static const int of_rows[] = {0, 3, 4};
  for (int i = 0; i < 3; ++i) {
    TS_RULE(ts_rule_is(g, node, of_rows[i], TS_F32, ts_shape_drop_last(z->shape)),
            "dy and logsumexps are fp32, one a row");
  }
  dtype[0] = z->dtype;
  shape[0] = z->shape;
  return check_logits(g, node, 1);
}

const char *ts_index_soft_loss_dx(const ts_node *node) {
  (void) node;
  return "*,*C,*C,*,*->*C";
}

/* ---- sums of elements ---- */

static bool has_mask(const ts_node *node) {
  return node->n_in > 1 && node->in[1] != TS_NONE;
}

const char *ts_shape_loss(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  TS_RULE(ts_dtype_is_working(x->dtype), "x is fp32, bf16 or fp16");
  TS_RULE(!has_mask(node) || ts_rule_is(g, node, 1, TS_I32, x->shape), "mask is int32, of x's shape");
  dtype[0] = dtype[1] = TS_F64;
  shape[0] = shape[1] = TS_SHAPE(1);
  return NULL;
}

const char *ts_index_loss(const ts_node *node) {
  return node->n_in > 1 ? "*,*->.,." : "*->.,.";
}

void ts_gradient_loss(ts_gradients *gradients, const ts_node *node) {
  const ts_tensor *x = &gradients->graph->tensor[node->in[0]];
  ts_attr attr = {.loss = {x->shape, ts_gradients_dtype(gradients, node->in[0])}};
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  const ts_tid in[] = {ts_gradients_seed(gradients, node->out[0]), has_mask(node) ? node->in[1] : TS_NONE};
  ts_gradients_add(
      gradients, node->in[0],
      ts_graph_add(at,
                   &(ts_node){.op = TS_OP_LOSS_DX, .name = name, .n_in = 1 + has_mask(node), .in = in, .attr = attr}));
  ts_free(name);
}

const char *ts_shape_loss_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  TS_RULE(ts_rule_is(g, node, 0, TS_F32, TS_SHAPE(1)), "seed is [1] fp32");
  TS_RULE(ts_dtype_is_working(node->attr.loss.dtype), "dx is fp32, bf16 or fp16");
  TS_RULE(!has_mask(node) || ts_rule_is(g, node, 1, TS_I32, node->attr.loss.shape), "mask is int32, of dx's shape");
  dtype[0] = node->attr.loss.dtype;
  shape[0] = node->attr.loss.shape;
  return NULL;
}

const char *ts_index_loss_dx(const ts_node *node) {
  return node->n_in > 1 ? ".,*->*" : ".->*";
}

#define LOCALISE(dim)                                                \
  static void localise_##dim(ts_attr *attr, const ts_share *share) { \
    attr->loss.shape.d[dim] = share->units;                          \
  }
LOCALISE(0)
LOCALISE(1)
LOCALISE(2)
LOCALISE(3)
LOCALISE(4)

/* Along any dimension, of which without a mask the attribute alone speaks. */
bool ts_cut_loss(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  static void (*const localise[TS_MAX_DIMS])(ts_attr *, const ts_share *) = {localise_0, localise_1, localise_2,
                                                                             localise_3, localise_4};
  (void) g;
  int dim = index - '0';
  if (dim < 0 || dim >= node->attr.loss.shape.n) {
    return false;
  }
  *cut = (ts_cut){.units = node->attr.loss.shape.d[dim],
                  .parts = 1,
                  .in = {{-1, 1, 1}, {dim, 1, 1}},
                  .out = {{dim, 1, 1}},
                  .localise = localise[dim]};
  return true;
}
