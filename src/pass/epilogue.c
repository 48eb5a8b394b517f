/* Products that do what follows them, where the backend has such kernels (the ops of parts elsewhere):
 *
 *   x = matmul (a, b, bias); y = gelu (x)      ->  matmul_gelu (a, b, bias): y, and x for the backward step
 *   dy = matmul (a, b); dx = gelu_dx (dy, x)   ->  matmul_dgelu (a, b, x)
 *
 * gelu is an activation of the kind GELU_TANH; the others have no such kernels.  A GELU alone reads and writes every
 * activation of the inner width once, forward and backward; in the product it costs neither, and it sees the sum before
 * it is rounded. */
#include "base/memory.h"
#include "graph/rewrite.h"
#include "pass/pass.h"

typedef struct epilogue {
  ts_rewrite rewrite;
  const ts_graph *from;
  ts_nid *gelu_of; /* per matmul: the gelu it takes in, TS_NONE */
  ts_nid *taken;   /* per node that is gone: by whom; TS_NONE: it stays */
} epilogue;

/* A product whose result the fused ops can have: of 16 bits, whole vectors of 8 on either side (where rows are not, the
 * library rounds the sum first), nothing added. */
static bool fits(const ts_graph *g, const ts_node *node) {
  if (node->op != TS_OP_MATMUL) { /* others may have no input */
    return false;
  }
  const ts_tensor *y = &g->tensor[node->out[0]], *a = &g->tensor[node->in[0]];
  return node->prior == NULL && !node->attr.matmul.transpose_a && ts_dtype_is_half(y->dtype) && a->dtype == y->dtype &&
         y->shape.d[y->shape.n - 1] % 8 == 0 && a->shape.d[a->shape.n - 1] % 8 == 0 && ts_shape_count(&y->shape) > 0;
}

static bool is_gelu(const ts_node *node, ts_op op) {
  return node->op == op && node->attr.activation.kind == TS_ACTIVATION_GELU_TANH;
}

static void find_epilogues(epilogue *e, const int *uses) {
  const ts_graph *g = e->from;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    ts_nid m = node->n_in > 0 && node->in[0] != TS_NONE ? g->tensor[node->in[0]].producer : TS_NONE;
    if (m == TS_NONE || !fits(g, &g->node[m]) || node->prior != NULL || g->node[m].segment != node->segment) {
      continue;
    }
    if (is_gelu(node, TS_OP_ACTIVATION) && g->node[m].n_in == 3 && e->gelu_of[m] == TS_NONE) {
      e->gelu_of[m] = n;
      e->taken[n] = m;
    } else if (is_gelu(node, TS_OP_ACTIVATION_DX) && g->node[m].n_in == 2 && uses[node->in[0]] == 1 &&
               !ts_graph_is_marked(g, node->in[0])) {
      e->taken[m] = n;
    }
  }
}

/* The product with another op's name and place, one more input and the outputs of both. */
static ts_tid fuse(epilogue *e, ts_op op, ts_nid product, const ts_node *like, ts_tid third, int n_out) {
  ts_rewrite *r = &e->rewrite;
  ts_node node = ts_rewrite_node(r, product);
  ts_tid in[] = {node.in[0], node.in[1], ts_rewrite_tensor(r, third)};
  node.op = op;
  node.name = like->name;
  node.n_in = 3;
  node.in = in;
  node.n_out = n_out;
  return ts_graph_add((ts_site){r->to, like->segment, like->unit}, &node);
}

static void write_product(epilogue *e, ts_nid n) {
  const ts_graph *g = e->from;
  ts_tid *map = e->rewrite.map;
  const ts_node *node = &g->node[n];
  ts_nid before = node->op == TS_OP_ACTIVATION_DX ? g->tensor[node->in[0]].producer : TS_NONE;
  if (e->gelu_of[n] != TS_NONE) {
    const ts_node *gelu = &g->node[e->gelu_of[n]];
    ts_tid first = fuse(e, TS_OP_MATMUL_GELU, n, gelu, node->in[2], 2);
    map[gelu->out[0]] = first;
    map[node->out[0]] = first + 1;
  } else if (before != TS_NONE && e->taken[before] == n) {
    map[node->out[0]] = fuse(e, TS_OP_MATMUL_DGELU, before, node, node->in[1], 1);
  } else if (e->taken[n] == TS_NONE) {
    ts_rewrite_copy(&e->rewrite, n);
  }
}

void ts_pass_epilogue(ts_graph **graph, ts_pass_context *context) {
  const ts_backend *backend = context->target.backend;
  if (backend->kernel(TS_OP_MATMUL_GELU)->run == NULL || backend->kernel(TS_OP_MATMUL_DGELU)->run == NULL) {
    return;
  }
  const ts_graph *g = *graph;
  epilogue e = {
      .rewrite = ts_rewrite_begin(g), .from = g, .gelu_of = ts_ids_none(g->n_nodes), .taken = ts_ids_none(g->n_nodes)};
  int *uses = ts_graph_use_counts(g);
  find_epilogues(&e, uses);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    write_product(&e, n);
  }
  ts_free(e.gelu_of);
  ts_free(e.taken);
  ts_free(uses);
  ts_rewrite_marks(&e.rewrite);
  ts_rewrite_end(&e.rewrite, graph);
}
