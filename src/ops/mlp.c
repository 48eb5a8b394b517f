/* An MLP in one op, and its gradient. */
#include "base/memory.h"
#include "ops/gradient.h"
#include "ops/rules.h"

/* The number of the input x: dy comes before it in the gradient. */
static int first_input(const ts_node *node) {
  return node->op == TS_OP_MLP_DX ? 1 : 0;
}

static bool has(const ts_node *node, int input) {
  return node->n_in > 0 && node->in[first_input(node) + input] != TS_NONE;
}

static const ts_tensor *get(const ts_graph *g, const ts_node *node, int input) {
  return ts_rule_in(g, node, first_input(node) + input);
}

static bool is(const ts_graph *g, const ts_node *node, int input, ts_shape shape) {
  return ts_rule_is(g, node, first_input(node) + input, get(g, node, TS_MLP_X)->dtype, shape);
}

static ts_shape weight(const ts_node *node, int64_t in, int64_t out) {
  return node->attr.mlp.transpose_b ? TS_SHAPE(out, in) : TS_SHAPE(in, out);
}

/* Columns of y. */
static int64_t width_of(const ts_graph *g, const ts_node *node) {
  const ts_shape *down = &get(g, node, TS_MLP_DOWN)->shape;
  return down->d[node->attr.mlp.transpose_b ? 0 : 1];
}

static const char *check_biases(const ts_graph *g, const ts_node *node, int64_t inner, int64_t made) {
  bool biased = has(node, TS_MLP_UP_BIAS), gated = has(node, TS_MLP_GATE);
  TS_RULE(!biased || is(g, node, TS_MLP_UP_BIAS, TS_SHAPE(made)), "b_up is [F] of x's dtype, or [2 F]");
  TS_RULE(has(node, TS_MLP_GATE_BIAS) == (biased && gated), "the gate has a bias where up has one");
  TS_RULE(!biased || !gated || is(g, node, TS_MLP_GATE_BIAS, TS_SHAPE(inner)), "b_gate is [F] of x's dtype");
  TS_RULE(biased || !has(node, TS_MLP_DOWN_BIAS), "down has no bias where up has none");
  TS_RULE(!has(node, TS_MLP_DOWN_BIAS) || is(g, node, TS_MLP_DOWN_BIAS, TS_SHAPE(width_of(g, node))),
          "b_down is [D] of x's dtype");
  return NULL;
}

static const char *check_inputs(const ts_graph *g, const ts_node *node) {
  const ts_tensor *x = get(g, node, TS_MLP_X), *down = get(g, node, TS_MLP_DOWN);
  bool turned = node->attr.mlp.transpose_b, fused = node->attr.mlp.fused;
  TS_RULE(down->shape.n == 2 && down->dtype == x->dtype, "w_down is a matrix of x's dtype");
  int64_t columns = ts_shape_last(&x->shape), inner = down->shape.d[turned ? 1 : 0], made = fused ? 2 * inner : inner;
  TS_RULE(!fused || (turned && !has(node, TS_MLP_GATE)), "a fused w_up is [2 F][C], and has the gate");
  TS_RULE(is(g, node, TS_MLP_UP, weight(node, columns, made)), "w_up is [F][C] or [C][F] of x's dtype, or [2 F][C]");
  TS_RULE(!has(node, TS_MLP_GATE) || is(g, node, TS_MLP_GATE, weight(node, columns, inner)), "w_gate is like w_up");
  TS_RULE((unsigned) node->attr.mlp.kind < TS_N_ACTIVATIONS, "the kind of activation is one of graph.h's");
  TS_RULE(node->attr.mlp.rows > 0, "a tile has a row");
  return check_biases(g, node, inner, made);
}

const char *ts_shape_mlp(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_inputs(g, node);
  if (why == NULL) {
    dtype[0] = get(g, node, TS_MLP_X)->dtype;
    shape[0] = ts_shape_with_last(get(g, node, TS_MLP_X)->shape, width_of(g, node));
  }
  return why;
}

const char *ts_shape_mlp_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_inputs(g, node);
  if (why != NULL) {
    return why;
  }
  const ts_tensor *x = get(g, node, TS_MLP_X);
  TS_RULE(ts_rule_is(g, node, 0, x->dtype, ts_shape_with_last(x->shape, width_of(g, node))),
          "dy is [...][D] of x's dtype");
  int n = 0;
  for (int i = TS_MLP_X; i < TS_MLP_INPUTS; ++i) {
    if (has(node, i) && n++ < node->n_out) {
      dtype[n - 1] = i == TS_MLP_X ? x->dtype : node->attr.mlp.dtype;
      shape[n - 1] = get(g, node, i)->shape;
    }
  }
  TS_RULE(node->n_out == 1 || node->n_out == n, "the gradients are dx, or all");
  return NULL;
}

/* Of inputs that are absent there are letters too. */
#define PLAIN "*c,cf,f,cf,f,fd,d"
#define TURNED "*c,fc,f,fc,f,df,d"
#define FUSED "*c,.,.,gc,g,df,d"

const char *ts_index_mlp(const ts_node *node) {
  return node->attr.mlp.fused ? FUSED "->*d" : node->attr.mlp.transpose_b ? TURNED "->*d" : PLAIN "->*d";
}

/* Gradients of x alone; of the weights; with the biases of gate and up; with down's. */
#define GRADIENTS(in, weights, biased) \
  { "*d," in "->*c", "*d," in "->*c," weights, "*d," in "->*c," biased, "*d," in "->*c," biased ",d" }

const char *ts_index_mlp_dx(const ts_node *node) {
  static const char *const plain[2][2][4] = {
      {GRADIENTS(PLAIN, "cf,fd", "cf,f,fd"), GRADIENTS(TURNED, "fc,df", "fc,f,df")},
      {GRADIENTS(PLAIN, "cf,cf,fd", "cf,f,cf,f,fd"), GRADIENTS(TURNED, "fc,fc,df", "fc,f,fc,f,df")}};
  static const char *const fused[4] = GRADIENTS(FUSED, "gc,df", "gc,g,df");
  int which = node->n_out <= 1 ? 0 : 1 + has(node, TS_MLP_UP_BIAS) + has(node, TS_MLP_DOWN_BIAS);
  return (node->attr.mlp.fused ? fused : plain[has(node, TS_MLP_GATE)][node->attr.mlp.transpose_b])[which];
}

/* By rows; by inner columns, as two products are: what is added to y needs the whole sum. */
bool ts_cut_mlp(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  bool inner = index == 'f' && !node->attr.mlp.fused && !has(node, TS_MLP_DOWN_BIAS);
  bool rows = index == '*' || (index >= '0' && index <= '9');
  return (inner || rows) && ts_cut_letters(g, node, index, cut);
}

double ts_flops_mlp(const ts_graph *g, const ts_node *node) {
  static const int factors[] = {TS_MLP_GATE, TS_MLP_UP, TS_MLP_DOWN};
  double weights = 0;
  for (int i = 0; i < 3; ++i) {
    weights += has(node, factors[i]) ? (double) ts_shape_count(&get(g, node, factors[i])->shape) : 0;
  }
  return 2 * weights * (double) ts_shape_rows(&get(g, node, TS_MLP_X)->shape);
}

double ts_flops_mlp_dx(const ts_graph *g, const ts_node *node) {
  return (node->n_out > 1 ? 2 : 1) * ts_flops_mlp(g, node);
}

static int count_gradients(const ts_gradients *gradients, const ts_node *node) {
  bool any = false;
  int there = 1;
  for (int i = TS_MLP_X + 1; i < TS_MLP_INPUTS; ++i) {
    any = any || ts_gradients_wanted(gradients, node->in[i]);
    there += has(node, i);
  }
  return any ? there : 1;
}

void ts_gradient_mlp(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dx", node->name);
  ts_tid in[1 + TS_MLP_INPUTS] = {ts_gradients_of(gradients, node->out[0])};
  for (int i = 0; i < TS_MLP_INPUTS; ++i) {
    in[1 + i] = node->in[i];
  }
  ts_node dx = {.op = TS_OP_MLP_DX, .name = name, .n_in = 1 + TS_MLP_INPUTS, .in = in, .attr = node->attr};
  dx.n_out = count_gradients(gradients, node);
  dx.attr.mlp.dtype = ts_gradients_dtype(gradients, node->in[TS_MLP_UP]);
  dx.beta = TS_NONE;
  ts_tid made = ts_graph_add(ts_gradients_site(gradients, node->in[TS_MLP_X]), &dx), end = made + dx.n_out;
  for (int i = 0; i < TS_MLP_INPUTS && made < end; ++i) {
    if (has(node, i) && ts_gradients_wanted(gradients, node->in[i])) {
      ts_gradients_add(gradients, node->in[i], made);
    }
    made += has(node, i);
  }
  ts_free(name);
}
