/* Rows for experts: tokens are brought together by expert and their results back. */
#include "base/memory.h"
#include "ops/gradient.h"
#include "ops/rules.h"

const char *ts_shape_dispatch(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *chosen = ts_rule_in(g, node, 0);
  int64_t experts = node->attr.experts.n, choices = ts_shape_count(&chosen->shape);
  TS_RULE(chosen->dtype == TS_I32 && chosen->shape.n >= 2 && ts_shape_last(&chosen->shape) >= 1,
          "choices are [...][k] int32");
  TS_RULE(experts >= 1 && experts <= TS_MOST_EXPERTS && node->attr.experts.first >= 0,
          "there are experts to choose from");
  TS_RULE(choices <= INT32_MAX, "choices are counted in 32 bits");
  TS_RULE(node->attr.experts.rows >= 0 && node->attr.experts.rows <= choices, "there is room for some of the choices");
  dtype[0] = dtype[1] = dtype[2] = TS_I32;
  shape[0] = TS_SHAPE(node->attr.experts.rows > 0 ? node->attr.experts.rows : choices);
  shape[1] = chosen->shape;
  shape[2] = TS_SHAPE(experts + 1);
  return NULL;
}

const char *ts_index_dispatch(const ts_node *node) {
  (void) node;
  return "*K->M,*K,F";
}

const char *ts_shape_first_of_all(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *firsts = ts_rule_in(g, node, 0);
  int64_t n = node->attr.experts.n, from = node->attr.experts.first;
  TS_RULE(firsts->dtype == TS_I32 && firsts->shape.n == 2 && firsts->shape.d[0] >= 1, "firsts is [ranks][E + 1] int32");
  TS_RULE(n >= 1 && from >= 0 && from + n < firsts->shape.d[1], "the experts are some of all");
  dtype[0] = TS_I32;
  shape[0] = TS_SHAPE(n + 1);
  return NULL;
}

const char *ts_index_first_of_all(const ts_node *node) {
  (void) node;
  return "";
}

/* Which rows a token has depends on all tokens, so columns alone can be divided. */
bool ts_cut_experts(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  return index == 'c' && ts_cut_letters(g, node, index, cut);
}

/* Inputs from `at` on: order (unless there is none: of dots), place, first, [weight]. */
static const char *check_choices(const ts_graph *g, const ts_node *node, int at, bool ordered) {
  int place = at + (ordered ? 1 : 0), first = place + 1, weight = first + 1;
  const ts_tensor *p = ts_rule_in(g, node, place), *f = ts_rule_in(g, node, first);
  TS_RULE(p->dtype == TS_I32 && p->shape.n >= 2 && ts_shape_last(&p->shape) >= 1, "places are [...][k] int32");
  const ts_tensor *order = ts_rule_in(g, node, at);
  TS_RULE(!ordered || (order->dtype == TS_I32 && order->shape.n == 1 && order->shape.d[0] <= ts_shape_count(&p->shape)),
          "the order has rows for choices");
  TS_RULE(f->dtype == TS_I32 && f->shape.n == 1 && f->shape.d[0] >= 2 && f->shape.d[0] <= TS_MOST_EXPERTS + 1,
          "first is [E + 1] int32");
  bool weighted = node->n_in > weight && node->in[weight] != TS_NONE;
  TS_RULE(!weighted || ts_rule_is(g, node, weight, TS_F32, p->shape), "there is a weight for each choice, in fp32");
  return NULL;
}

static bool are_of_tokens(const ts_tensor *x, const ts_tensor *place) {
  ts_shape of_tokens = ts_shape_with_last(place->shape, ts_shape_last(&x->shape));
  return ts_dtype_is_working(x->dtype) && ts_shape_equal(&x->shape, &of_tokens);
}

static bool are_of_choices(const ts_tensor *y, const ts_tensor *place) {
  return ts_dtype_is_working(y->dtype) && y->shape.n == 2 && y->shape.d[0] <= ts_shape_count(&place->shape);
}

const char *ts_shape_take_rows(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0), *place = ts_rule_in(g, node, 2);
  const char *why = check_choices(g, node, 1, true);
  TS_RULE(why == NULL, why);
  TS_RULE(are_of_tokens(x, place), "x has a row for each token, in fp32, bf16 or fp16");
  dtype[0] = x->dtype;
  shape[0] = TS_SHAPE(ts_rule_in(g, node, 1)->shape.d[0], ts_shape_last(&x->shape));
  return NULL;
}

const char *ts_index_take_rows(const ts_node *node) {
  return node->n_in > 4 ? "*c,M,*K,F,*K->Mc" : "*c,M,*K,F->Mc";
}

const char *ts_shape_combine(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *y = ts_rule_in(g, node, 0), *place = ts_rule_in(g, node, 2);
  const char *why = check_choices(g, node, 1, true);
  TS_RULE(why == NULL, why);
  TS_RULE(are_of_choices(y, place) && y->shape.d[0] == ts_rule_in(g, node, 1)->shape.d[0],
          "y has the rows of the order, in fp32, bf16 or fp16");
  dtype[0] = y->dtype;
  shape[0] = ts_shape_with_last(place->shape, y->shape.d[1]);
  return NULL;
}

const char *ts_index_combine(const ts_node *node) {
  return node->n_in > 4 ? "Mc,M,*K,F,*K->*c" : "Mc,M,*K,F->*c";
}

const char *ts_shape_combine_dots(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0), *y = ts_rule_in(g, node, 1), *place = ts_rule_in(g, node, 2);
  const char *why = check_choices(g, node, 2, false);
  TS_RULE(why == NULL, why);
  TS_RULE(are_of_tokens(x, place) && are_of_choices(y, place) && y->dtype == x->dtype &&
              y->shape.d[1] == ts_shape_last(&x->shape),
          "x has a row for each token, y of the same kind rows for choices");
  dtype[0] = TS_F32;
  shape[0] = place->shape;
  return NULL;
}

const char *ts_index_combine_dots(const ts_node *node) {
  (void) node;
  return "*c,Mc,*K,F->*K";
}

/* ---- gradients: each is the other's, and of the weights dots ---- */

static ts_tid weight_of(const ts_node *node) {
  return node->n_in > 4 ? node->in[4] : TS_NONE;
}

static void differentiate_values(ts_gradients *gradients, const ts_node *node, ts_op op, const char *suffix) {
  if (!ts_gradients_wanted(gradients, node->in[0])) {
    return;
  }
  char *name = ts_format("%s.%s", node->name, suffix);
  const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[1], node->in[2], node->in[3],
                       weight_of(node)};
  ts_gradients_add(
      gradients, node->in[0],
      ts_graph_add(
          ts_gradients_site(gradients, node->in[0]),
          &(ts_node){.op = op, .name = name, .n_in = weight_of(node) == TS_NONE ? 4 : 5, .in = in, .beta = TS_NONE}));
  ts_free(name);
}

static void differentiate_weight(ts_gradients *gradients, const ts_node *node, ts_tid of_tokens, ts_tid of_choices) {
  ts_tid weight = weight_of(node);
  if (weight == TS_NONE || !ts_gradients_wanted(gradients, weight)) {
    return;
  }
  char *name = ts_format("%s.dweight", node->name);
  const ts_tid in[] = {of_tokens, of_choices, node->in[2], node->in[3]};
  ts_gradients_add(
      gradients, weight,
      ts_graph_add(ts_gradients_site(gradients, weight),
                   &(ts_node){.op = TS_OP_COMBINE_DOTS, .name = name, .n_in = 4, .in = in, .beta = TS_NONE}));
  ts_free(name);
}

void ts_gradient_take_rows(ts_gradients *gradients, const ts_node *node) {
  differentiate_weight(gradients, node, node->in[0], ts_gradients_of(gradients, node->out[0]));
  differentiate_values(gradients, node, TS_OP_COMBINE, "dx");
}

void ts_gradient_combine(ts_gradients *gradients, const ts_node *node) {
  differentiate_weight(gradients, node, ts_gradients_of(gradients, node->out[0]), node->in[0]);
  differentiate_values(gradients, node, TS_OP_TAKE_ROWS, "dy");
}

/* ---- products ---- */

static const char *check_first(const ts_graph *g, const ts_node *node, int at) {
  const ts_tensor *first = ts_rule_in(g, node, at);
  TS_RULE(first->dtype == TS_I32 && first->shape.n == 1 && first->shape.d[0] >= 2 &&
              first->shape.d[0] <= TS_MOST_EXPERTS + 1,
          "first is [E + 1] int32");
  return NULL;
}

const char *ts_shape_grouped(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0), *w = ts_rule_in(g, node, 1);
  const char *why = check_first(g, node, 2);
  TS_RULE(why == NULL, why);
  TS_RULE(ts_dtype_is_working(x->dtype) && x->dtype == w->dtype, "x and w have one dtype, fp32, bf16 or fp16");
  TS_RULE(x->shape.n == 2 && w->shape.n == 3 && w->shape.d[0] == ts_rule_in(g, node, 2)->shape.d[0] - 1,
          "x is [M][C], w has a matrix for each expert");
  int64_t inner = w->shape.d[node->attr.matmul.transpose_b ? 2 : 1];
  TS_RULE(inner == x->shape.d[1], "the inner extents of x and w agree");
  TS_RULE(!node->attr.matmul.transpose_a && ts_dtype_is_working(node->attr.matmul.dtype), "x is not transposed");
  dtype[0] = node->attr.matmul.dtype;
  shape[0] = TS_SHAPE(x->shape.d[0], w->shape.d[node->attr.matmul.transpose_b ? 1 : 2]);
  return NULL;
}

const char *ts_index_grouped(const ts_node *node) {
  return node->attr.matmul.transpose_b ? "Mc,Efc,G->Mf" : "Mc,Ecf,G->Mf";
}

const char *ts_shape_grouped_dw(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *dy = ts_rule_in(g, node, 0), *x = ts_rule_in(g, node, 1);
  const char *why = check_first(g, node, 2);
  TS_RULE(why == NULL, why);
  TS_RULE(ts_dtype_is_working(x->dtype) && x->dtype == dy->dtype, "dy and x have one dtype, fp32, bf16 or fp16");
  TS_RULE(x->shape.n == 2 && dy->shape.n == 2 && x->shape.d[0] == dy->shape.d[0], "dy and x have the same rows");
  TS_RULE(ts_dtype_is_working(node->attr.matmul.dtype), "the gradient is fp32, bf16 or fp16");
  dtype[0] = node->attr.matmul.dtype;
  shape[0] = TS_SHAPE(ts_rule_in(g, node, 2)->shape.d[0] - 1, dy->shape.d[1], x->shape.d[1]);
  return NULL;
}

const char *ts_index_grouped_dw(const ts_node *node) {
  (void) node;
  return "Mf,Mc,G->Efc";
}

/* As if each row had an expert. */
double ts_flops_grouped(const ts_graph *g, const ts_node *node) {
  const ts_shape *a = &ts_rule_in(g, node, 0)->shape, *b = &ts_rule_in(g, node, 1)->shape;
  int64_t columns = node->op == TS_OP_GROUPED_DW ? b->d[1] : b->d[node->attr.matmul.transpose_b ? 1 : 2];
  return 2.0 * (double) a->d[0] * (double) a->d[1] * (double) columns;
}

static ts_tid add_grouped_product(ts_gradients *gradients, const ts_node *node, ts_tid of, const char *suffix, ts_op op,
                                  const ts_tid in[3], bool transpose_b) {
  char *name = ts_format("%s.%s", node->name, suffix);
  ts_attr attr = {.matmul = {.transpose_b = transpose_b, .dtype = ts_gradients_dtype(gradients, of)}};
  ts_tid out = ts_graph_add(ts_gradients_site(gradients, of),
                            &(ts_node){.op = op, .name = name, .n_in = 3, .in = in, .attr = attr, .beta = TS_NONE});
  ts_free(name);
  return out;
}

void ts_gradient_grouped(ts_gradients *gradients, const ts_node *node) {
  ts_tid x = node->in[0], w = node->in[1], first = node->in[2], dy = ts_gradients_of(gradients, node->out[0]);
  bool turned = node->attr.matmul.transpose_b;
  if (ts_gradients_wanted(gradients, x)) {
    const ts_tid in[] = {dy, w, first};
    ts_gradients_add(gradients, x, add_grouped_product(gradients, node, x, "dx", TS_OP_GROUPED, in, !turned));
  }
  if (ts_gradients_wanted(gradients, w)) {
    const ts_tid in[] = {turned ? dy : x, turned ? x : dy, first};
    ts_gradients_add(gradients, w, add_grouped_product(gradients, node, w, "dw", TS_OP_GROUPED_DW, in, false));
  }
}

/* ---- biases of experts ---- */

const char *ts_shape_grouped_bias(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0), *b = ts_rule_in(g, node, 1);
  const char *why = check_first(g, node, 2);
  TS_RULE(why == NULL, why);
  TS_RULE(ts_dtype_is_working(x->dtype) && x->dtype == b->dtype, "x and b have one dtype, fp32, bf16 or fp16");
  TS_RULE(x->shape.n == 2 && b->shape.n == 2 && b->shape.d[0] == ts_rule_in(g, node, 2)->shape.d[0] - 1 &&
              b->shape.d[1] == x->shape.d[1],
          "x is [M][F], b has a row for each expert");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  return NULL;
}

const char *ts_index_grouped_bias(const ts_node *node) {
  (void) node;
  return "Mf,Ef,G->Mf";
}

void ts_gradient_grouped_bias(ts_gradients *gradients, const ts_node *node) {
  ts_tid x = node->in[0], b = node->in[1], dy = ts_gradients_of(gradients, node->out[0]);
  if (ts_gradients_wanted(gradients, x)) {
    ts_gradients_add(gradients, x, dy);
  }
  if (ts_gradients_wanted(gradients, b)) {
    char *name = ts_format("%s.db", node->name);
    const ts_tid in[] = {dy, node->in[2]};
    const ts_attr attr = {.sum_rows = {.dtype = ts_gradients_dtype(gradients, b)}};
    ts_gradients_add(
        gradients, b,
        ts_graph_add(
            ts_gradients_site(gradients, b),
            &(ts_node){.op = TS_OP_GROUPED_SUM, .name = name, .n_in = 2, .in = in, .attr = attr, .beta = TS_NONE}));
    ts_free(name);
  }
}

const char *ts_shape_grouped_sum(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *dy = ts_rule_in(g, node, 0);
  const char *why = check_first(g, node, 1);
  TS_RULE(why == NULL, why);
  TS_RULE(ts_dtype_is_working(dy->dtype) && dy->shape.n == 2, "dy is [M][F] in fp32, bf16 or fp16");
  TS_RULE(ts_dtype_is_working(node->attr.sum_rows.dtype), "the gradient is fp32, bf16 or fp16");
  dtype[0] = node->attr.sum_rows.dtype;
  shape[0] = TS_SHAPE(ts_rule_in(g, node, 1)->shape.d[0] - 1, dy->shape.d[1]);
  return NULL;
}

const char *ts_index_grouped_sum(const ts_node *node) {
  (void) node;
  return "Mf,G->Ef";
}

/* ---- experts and an MLP beside them ---- */

static const char *check_blend(const ts_graph *g, const ts_node *node, int a) {
  const ts_tensor *x = ts_rule_in(g, node, a);
  TS_RULE(x->shape.n >= 2 && ts_dtype_is_working(x->dtype), "a is [...][C] in fp32, bf16 or fp16");
  TS_RULE(ts_rule_is(g, node, a + 1, x->dtype, x->shape), "b is as a");
  TS_RULE(ts_rule_is(g, node, a + 2, TS_F32, ts_shape_with_last(x->shape, 2)), "there are two logits for each token");
  return NULL;
}

const char *ts_shape_blend(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_blend(g, node, 0);
  TS_RULE(why == NULL, why);
  dtype[0] = ts_rule_in(g, node, 0)->dtype;
  shape[0] = ts_rule_in(g, node, 0)->shape;
  return NULL;
}

const char *ts_index_blend(const ts_node *node) {
  (void) node;
  return "*c,*c,*K->*c";
}

void ts_gradient_blend(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dx", node->name);
  const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[0], node->in[1], node->in[2]};
  ts_tid dx = ts_graph_add(ts_gradients_site(gradients, node->in[0]),
                           &(ts_node){.op = TS_OP_BLEND_DX, .name = name, .n_in = 4, .in = in, .beta = TS_NONE});
  for (int i = 0; i < 3; ++i) {
    if (ts_gradients_wanted(gradients, node->in[i])) {
      ts_gradients_add(gradients, node->in[i], dx + i);
    }
  }
  ts_free(name);
}

const char *ts_shape_blend_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *a = ts_rule_in(g, node, 1);
  const char *why = check_blend(g, node, 1);
  TS_RULE(why == NULL, why);
  TS_RULE(ts_rule_is(g, node, 0, a->dtype, a->shape), "dy is as a");
  dtype[0] = dtype[1] = a->dtype;
  dtype[2] = TS_F32;
  shape[0] = shape[1] = a->shape;
  shape[2] = ts_rule_in(g, node, 3)->shape;
  return NULL;
}

const char *ts_index_blend_dx(const ts_node *node) {
  (void) node;
  return "*C,*C,*C,*K->*C,*C,*K";
}
