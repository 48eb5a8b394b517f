/* Element by element. */
#include "base/memory.h"
#include "ops/build.h"
#include "ops/gradient.h"
#include "ops/rules.h"

/* One for each element of the largest tensor: sums count what they read. */
double ts_flops_elements(const ts_graph *g, const ts_node *node) {
  int64_t elements = 0;
  for (int i = 0; i < node->n_in + node->n_out; ++i) {
    ts_tid t = i < node->n_in ? node->in[i] : node->out[i - node->n_in];
    int64_t n = t != TS_NONE ? ts_tensor_count(g, t) : 0;
    elements = n > elements ? n : elements;
  }
  return (double) elements;
}

/* All inputs up to `n` have one dtype and shape, and so have the outputs. */
static const char *same(const ts_graph *g, const ts_node *node, int n, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  for (int i = 0; i < n; ++i) {
    TS_RULE(ts_rule_is(g, node, i, x->dtype, x->shape), "inputs have one dtype and shape");
  }
  for (int i = 0; i < node->n_out; ++i) {
    dtype[i] = x->dtype;
    shape[i] = x->shape;
  }
  return NULL;
}

const char *ts_shape_add(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  return same(g, node, 2, dtype, shape);
}

const char *ts_index_add(const ts_node *node) {
  (void) node;
  return "*c,*c->*c";
}

void ts_gradient_add(ts_gradients *gradients, const ts_node *node) {
  for (int i = 0; i < 2; ++i) {
    if (ts_gradients_wanted(gradients, node->in[i])) {
      ts_gradients_add(gradients, node->in[i], ts_gradients_of(gradients, node->out[0]));
    }
  }
}

const char *ts_shape_multiply(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  TS_RULE(ts_dtype_is_working(ts_rule_in(g, node, 0)->dtype), "inputs are fp32, bf16 or fp16");
  return same(g, node, 2, dtype, shape);
}

const char *ts_index_multiply(const ts_node *node) {
  (void) node;
  return "*c,*c->*c";
}

void ts_gradient_multiply(ts_gradients *gradients, const ts_node *node) {
  for (int i = 0; i < 2; ++i) {
    if (ts_gradients_wanted(gradients, node->in[i])) {
      char *name = ts_format("%s.d%c", node->name, "ab"[i]);
      ts_site at = ts_gradients_site(gradients, node->in[i]);
      const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[1 - i]};
      ts_gradients_add(gradients, node->in[i], ts_build(at, TS_OP_MULTIPLY, name, 2, in));
      ts_free(name);
    }
  }
}

const char *ts_shape_bias(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  TS_RULE(ts_rule_is(g, node, 1, x->dtype, TS_SHAPE(ts_shape_last(&x->shape))), "b is [C] of x's dtype");
  return same(g, node, 1, dtype, shape);
}

const char *ts_index_bias(const ts_node *node) {
  (void) node;
  return "*c,c->*c";
}

void ts_gradient_bias(ts_gradients *gradients, const ts_node *node) {
  ts_tid dy = ts_gradients_of(gradients, node->out[0]);
  if (ts_gradients_wanted(gradients, node->in[0])) {
    ts_gradients_add(gradients, node->in[0], dy);
  }
  if (ts_gradients_wanted(gradients, node->in[1])) {
    char *name = ts_format("%s.db", node->name);
    ts_site at = ts_gradients_site(gradients, node->in[1]);
    ts_gradients_add(gradients, node->in[1],
                     ts_build_sum_rows(at, name, dy, ts_gradients_dtype(gradients, node->in[1])));
    ts_free(name);
  }
}

const char *ts_shape_cast(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  dtype[0] = node->attr.cast.dtype;
  shape[0] = ts_rule_in(g, node, 0)->shape;
  return NULL;
}

const char *ts_index_cast(const ts_node *node) {
  (void) node;
  return "*c->*c";
}

void ts_gradient_cast(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  ts_gradients_add(
      gradients, node->in[0],
      ts_build_cast(at, name, ts_gradients_of(gradients, node->out[0]), ts_gradients_dtype(gradients, node->in[0])));
  ts_free(name);
}

const char *ts_shape_scale(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  TS_RULE(node->attr.scale.softcap >= 0.0f, "softcap is positive, or 0 for none");
  TS_RULE(node->attr.scale.softcap == 0.0f || ts_rule_in(g, node, 0)->dtype != TS_F64, "fp64 has no softcap");
  return same(g, node, 1, dtype, shape);
}

const char *ts_index_scale(const ts_node *node) {
  (void) node;
  return "*c->*c";
}

void ts_gradient_scale(ts_gradients *gradients, const ts_node *node) {
  TS_CHECK(node->attr.scale.softcap == 0.0f, "%s: a softcap has no gradient; head_loss has one", node->name);
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  ts_gradients_add(gradients, node->in[0],
                   ts_build_scale(at, name, ts_gradients_of(gradients, node->out[0]), node->attr.scale.by, 0));
  ts_free(name);
}

const char *ts_shape_accumulate(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  TS_RULE(ts_rule_is(g, node, 2, TS_F32, TS_SHAPE(1)), "beta is [1] fp32");
  return same(g, node, 2, dtype, shape);
}

const char *ts_index_accumulate(const ts_node *node) {
  (void) node;
  return "*c,*c,.->*c";
}

static const char *same_activation(const ts_graph *g, const ts_node *node, int n, ts_dtype *dtype, ts_shape *shape) {
  TS_RULE((unsigned) node->attr.activation.kind < TS_N_ACTIVATIONS, "the kind of activation is one of graph.h's");
  return same(g, node, n, dtype, shape);
}

/* Rows of experts: [M][C], and where each begins. */
static const char *check_extent(const ts_graph *g, const ts_node *node) {
  int at = ts_node_extent(node);
  if (at >= 0) {
    const ts_tensor *first = ts_rule_in(g, node, at);
    TS_RULE(ts_rule_in(g, node, 0)->shape.n == 2 && first->dtype == TS_I32 && first->shape.n == 1 &&
                first->shape.d[0] >= 2 && first->shape.d[0] <= TS_MOST_EXPERTS + 1,
            "rows are [M][C], and first is [E + 1] int32");
  }
  return NULL;
}

const char *ts_shape_activation(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_extent(g, node);
  return why != NULL ? why : same_activation(g, node, 1, dtype, shape);
}

const char *ts_index_activation(const ts_node *node) {
  return node->n_in > 1 ? "Mc,F->Mc" : "*c->*c";
}

void ts_gradient_activation(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  bool rows = node->n_in > 1;
  const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[0], rows ? node->in[1] : TS_NONE};
  ts_gradients_add(
      gradients, node->in[0],
      ts_graph_add(
          at, &(ts_node){.op = TS_OP_ACTIVATION_DX, .name = name, .n_in = rows ? 3 : 2, .in = in, .attr = node->attr}));
  ts_free(name);
}

const char *ts_shape_activation_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_extent(g, node);
  return why != NULL ? why : same_activation(g, node, 2, dtype, shape);
}

const char *ts_index_activation_dx(const ts_node *node) {
  return node->n_in > 2 ? "Mc,Mc,F->Mc" : "*c,*c->*c";
}

const char *ts_shape_glu(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_extent(g, node);
  TS_RULE(why == NULL, why);
  return same_activation(g, node, 2, dtype, shape);
}

const char *ts_index_glu(const ts_node *node) {
  return node->n_in > 2 ? "Mc,Mc,F->Mc" : "*c,*c->*c";
}

void ts_gradient_glu(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  bool rows = node->n_in > 2;
  const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[0], node->in[1],
                       rows ? node->in[2] : TS_NONE};
  ts_tid dx = ts_graph_add(
      at, &(ts_node){.op = TS_OP_GLU_DX, .name = name, .n_in = rows ? 4 : 3, .in = in, .n_out = 2, .attr = node->attr});
  for (int i = 0; i < 2; ++i) {
    if (ts_gradients_wanted(gradients, node->in[i])) {
      ts_gradients_add(gradients, node->in[i], dx + i);
    }
  }
  ts_free(name);
}

const char *ts_shape_glu_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_extent(g, node);
  TS_RULE(why == NULL, why);
  return same_activation(g, node, 3, dtype, shape);
}

const char *ts_index_glu_dx(const ts_node *node) {
  return node->n_in > 3 ? "Mc,Mc,Mc,F->Mc,Mc" : "*c,*c,*c->*c,*c";
}

/* Rows [first, first + rows) are of the samples that there are. */
static const char *check_rows(const ts_graph *g, const ts_node *node) {
  const ts_tensor *sample = ts_rule_in(g, node, 2);
  int64_t first = node->attr.dropout.first, length = node->attr.dropout.length;
  TS_RULE(sample->shape.n == 1 && sample->dtype == TS_I64, "sample is [B] int64");
  TS_RULE(first >= 0 && first + ts_shape_rows(&ts_rule_in(g, node, 0)->shape) <= sample->shape.d[0] * length,
          "rows are those of B samples");
  return NULL;
}

const char *ts_shape_dropout(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  int64_t length = node->attr.dropout.length > 0 ? node->attr.dropout.length : x->shape.n == 3 ? x->shape.d[1] : 0;
  TS_RULE(ts_rule_is(g, node, 1, TS_I64, TS_SHAPE(1)), "seed is [1] int64");
  TS_RULE(node->attr.dropout.kind >= TS_NOISE_DROP && node->attr.dropout.kind <= TS_NOISE_UNIFORM, "it has a kind");
  TS_RULE(ts_tokens_fit(&node->attr.dropout.tokens, length, INT64_MAX), "its tokens are as many as a sample has here");
  if (node->attr.dropout.length > 0) {
    const char *why = check_rows(g, node);
    return why == NULL ? same(g, node, 1, dtype, shape) : why;
  }
  TS_RULE(node->attr.dropout.length == 0 && node->attr.dropout.first == 0, "whole samples begin at row 0");
  TS_RULE(x->shape.n == 3, "x is [B][T][C]");
  TS_RULE(ts_rule_is(g, node, 2, TS_I64, TS_SHAPE(x->shape.d[0])), "sample is [B] int64");
  return same(g, node, 1, dtype, shape);
}

const char *ts_index_dropout(const ts_node *node) {
  return node->attr.dropout.length > 0 ? "*c,.,.->*c" : "btc,.,b->btc";
}

static void localise_dropout(ts_attr *attr, const ts_share *share) {
  attr->dropout.first += share->first;
}

/* The numbers of an element follow from its place in the sample: whole samples, or where it is known rows.  Whoever
 * cuts samples to rows says how long they are. */
bool ts_cut_dropout(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  if (index == '*') {
    const ts_shape *x = &ts_rule_in(g, node, 0)->shape;
    *cut = (ts_cut){.units = ts_shape_rows(x),
                    .parts = 1,
                    .in = {{0, 1, 1}, {-1, 1, 1}, {-1, 1, 1}},
                    .out = {{0, 1, 1}},
                    .localise = localise_dropout};
    return true;
  }
  bool rows = node->attr.dropout.length > 0 && ts_rule_in(g, node, 0)->shape.n == 2;
  bool can = index == (rows ? '0' : 'b') && ts_cut_letters(g, node, index, cut);
  if (can && rows) {
    cut->localise = localise_dropout;
  }
  return can;
}

void ts_gradient_dropout(ts_gradients *gradients, const ts_node *node) {
  if (node->attr.dropout.kind > TS_NOISE_JITTER) { /* for choices */
    return;
  }
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[1], node->in[2]};
  ts_gradients_add(
      gradients, node->in[0],
      ts_graph_add(at, &(ts_node){.op = TS_OP_DROPOUT, .name = name, .n_in = 3, .in = in, .attr = node->attr}));
  ts_free(name);
}
