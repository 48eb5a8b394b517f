/* Matrix products and column sums. */
#include "base/memory.h"
#include "ops/build.h"
#include "ops/gradient.h"
#include "ops/rules.h"

typedef struct extents {
  int64_t m, n, k;
} extents;

/* m x k from a, k x n from b; k is -1 when they disagree. */
static extents find_extents(const ts_graph *g, const ts_node *node) {
  const ts_shape *a = &ts_rule_in(g, node, 0)->shape, *b = &ts_rule_in(g, node, 1)->shape;
  bool ta = node->attr.matmul.transpose_a, tb = node->attr.matmul.transpose_b;
  int64_t rows_a = ts_shape_rows(a), rows_b = ts_shape_rows(b);
  extents e = {
      .m = ta ? ts_shape_last(a) : rows_a, .k = ta ? rows_a : ts_shape_last(a), .n = tb ? rows_b : ts_shape_last(b)};
  if (e.k != (tb ? ts_shape_last(b) : rows_b)) {
    e.k = -1;
  }
  return e;
}

const char *ts_shape_matmul(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *a = ts_rule_in(g, node, 0);
  extents e = find_extents(g, node);
  TS_RULE(a->dtype == ts_node_reads(g, node, 1), "a and b have one dtype");
  TS_RULE(e.k >= 0, "the inner extents of a and b agree");
  if (node->n_in > 2 && node->in[2] != TS_NONE) {
    TS_RULE(ts_rule_is(g, node, 2, a->dtype, TS_SHAPE(e.n)), "bias is [n] of a's dtype");
  }
  dtype[0] = node->attr.matmul.dtype;
  shape[0] = node->attr.matmul.transpose_a ? TS_SHAPE(e.m, e.n) : ts_shape_with_last(a->shape, e.n);
  return NULL;
}

const char *ts_index_matmul(const ts_node *node) {
  static const char *const letters[2][2][2] = {{{"*k,kn->*n", "*k,kn,n->*n"}, {"*k,nk->*n", "*k,nk,n->*n"}},
                                               {{"*m,*n->mn", "*m,*n,n->mn"}, {"*m,n*->mn", "*m,n*,n->mn"}}};
  return letters[node->attr.matmul.transpose_a][node->attr.matmul.transpose_b][node->n_in > 2];
}

/* What is added or applied to a product needs the whole sum. */
bool ts_cut_matmul(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  bool needs_sum = node->op == TS_OP_MATMUL_GELU || node->n_in > 2;
  return ts_cut_letters(g, node, index, cut) && (cut->out[0].dim >= 0 || !needs_sum);
}

/* The fused ops are matmuls with a narrower choice of types. */
static const char *check_fused(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  ts_node plain = *node;
  plain.n_in = node->op == TS_OP_MATMUL_DGELU ? 2 : node->n_in;
  const char *why = ts_shape_matmul(g, &plain, dtype, shape);
  if (why != NULL) {
    return why;
  }
  TS_RULE(!node->attr.matmul.transpose_a, "a is not transposed");
  TS_RULE(ts_dtype_is_half(dtype[0]) && ts_rule_in(g, node, 0)->dtype == dtype[0],
          "a, b and the results are bf16, or fp16");
  TS_RULE(ts_shape_last(&shape[0]) % 8 == 0, "n is a multiple of 8");
  return NULL;
}

const char *ts_shape_matmul_gelu(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_fused(g, node, dtype, shape);
  dtype[1] = dtype[0];
  shape[1] = shape[0];
  return why;
}

const char *ts_shape_matmul_dgelu(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_fused(g, node, dtype, shape);
  if (why == NULL) {
    TS_RULE(ts_rule_is(g, node, 2, dtype[0], shape[0]), "x has type and shape of the product");
  }
  return why;
}

const char *ts_index_matmul_gelu(const ts_node *node) {
  return node->attr.matmul.transpose_b ? "*k,nk,n->*n,*n" : "*k,kn,n->*n,*n";
}

const char *ts_index_matmul_dgelu(const ts_node *node) {
  return node->attr.matmul.transpose_b ? "*k,nk,*n->*n" : "*k,kn,*n->*n";
}

double ts_flops_matmul(const ts_graph *g, const ts_node *node) {
  extents e = find_extents(g, node);
  return 2.0 * (double) e.m * (double) e.n * (double) e.k;
}

static void gradient_of_a(ts_gradients *gradients, const ts_node *node, ts_tid dy) {
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  ts_gradients_add(gradients, node->in[0],
                   ts_build_matmul(at, name, dy, node->in[1], TS_NONE, false, !node->attr.matmul.transpose_b,
                                   ts_gradients_dtype(gradients, node->in[0])));
  ts_free(name);
}

/* b [k][n]: a^T dy; b [n][k]: dy^T a. */
static void gradient_of_b(ts_gradients *gradients, const ts_node *node, ts_tid dy) {
  bool tb = node->attr.matmul.transpose_b;
  char *name = ts_format("%s.dw", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[1]);
  ts_gradients_add(gradients, node->in[1],
                   ts_build_matmul(at, name, tb ? dy : node->in[0], tb ? node->in[0] : dy, TS_NONE, true, false,
                                   ts_gradients_dtype(gradients, node->in[1])));
  ts_free(name);
}

/* The gradient of the product in the type of the factors: that of an fp32 result of narrower ones is rounded. */
static ts_tid gradient_of_product(ts_gradients *gradients, const ts_node *node) {
  ts_tid dy = ts_gradients_of(gradients, node->out[0]);
  ts_dtype dtype = gradients->graph->tensor[node->in[0]].dtype;
  if (gradients->graph->tensor[dy].dtype == dtype) {
    return dy;
  }
  char *name = ts_format("%s.dy", node->name);
  dy = ts_build_cast(ts_gradients_site(gradients, node->in[0]), name, dy, dtype);
  ts_free(name);
  return dy;
}

void ts_gradient_matmul(ts_gradients *gradients, const ts_node *node) {
  TS_CHECK(!node->attr.matmul.transpose_a, "%s: a transposed first factor is not differentiated", node->name);
  ts_tid dy = gradient_of_product(gradients, node);
  if (ts_gradients_wanted(gradients, node->in[0])) {
    gradient_of_a(gradients, node, dy);
  }
  if (ts_gradients_wanted(gradients, node->in[1])) {
    gradient_of_b(gradients, node, dy);
  }
  if (node->n_in > 2 && ts_gradients_wanted(gradients, node->in[2])) {
    char *name = ts_format("%s.db", node->name);
    ts_site at = ts_gradients_site(gradients, node->in[2]);
    ts_gradients_add(gradients, node->in[2],
                     ts_build_sum_rows(at, name, dy, ts_gradients_dtype(gradients, node->in[2])));
    ts_free(name);
  }
}

const char *ts_shape_sum_rows(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  dtype[0] = node->attr.sum_rows.dtype;
  shape[0] = TS_SHAPE(ts_shape_last(&ts_rule_in(g, node, 0)->shape));
  return NULL;
}

const char *ts_index_sum_rows(const ts_node *node) {
  (void) node;
  return "*c->c";
}
