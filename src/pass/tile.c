/* MLPs in tiles of rows: with tiled_mlp_compute the products of an MLP and what is between them become one op, whose
 * inner activations exist for some rows at a time (ops.def: MLP).  Before there are gradients: what the backward needs
 * of an MLP is then its input alone.
 *
 *   matmul, activation, matmul             ->  mlp
 *   matmul, matmul, glu, matmul            ->  mlp with a gate
 *   matmul, split in two, glu, matmul      ->  mlp, fused
 *
 * where nobody else reads what is between.  With tensor parallelism the result is a partial sum, as the last product's
 * is, and what follows that follows here.  Generation is left as it is: its few tokens have no long activations. */
#include "base/log.h"
#include "base/memory.h"
#include "graph/rewrite.h"
#include "pass/pass.h"

/* Nodes of an MLP, TS_NONE: it has none such. */
typedef struct chain {
  ts_nid up, gate, split, act, down;
} chain;

typedef struct tiling {
  ts_rewrite rewrite;
  const ts_graph *from;
  int *uses;
  bool *gone;    /* per node: part of an MLP whose down comes later */
  chain *mlp_of; /* per node: the MLP that its down ends; down TS_NONE for other nodes */
} tiling;

/* The node that makes t for one reader, of the same unit; TS_NONE for another. */
static ts_nid sole_producer(const tiling *t, ts_tid tensor, ts_op op, int unit) {
  ts_nid n = t->from->tensor[tensor].producer;
  const ts_node *node = n == TS_NONE ? NULL : &t->from->node[n];
  bool fits = node != NULL && node->op == op && node->unit == unit && t->uses[tensor] == 1 &&
              !ts_graph_is_marked(t->from, tensor);
  return fits ? n : TS_NONE;
}

static bool is_parameter(const ts_graph *g, ts_tid t) {
  return g->tensor[t].role == TS_ROLE_PARAM;
}

static ts_tid bias_of(const ts_node *product) {
  return product->n_in > 2 ? product->in[2] : TS_NONE;
}

/* A product with a parameter, of one type throughout. */
static bool is_linear(const ts_graph *g, const ts_node *node) {
  ts_tid bias = bias_of(node);
  return node->op == TS_OP_MATMUL && node->prior == NULL && !node->attr.matmul.transpose_a &&
         g->tensor[node->out[0]].dtype == g->tensor[node->in[0]].dtype && is_parameter(g, node->in[1]) &&
         (bias == TS_NONE || is_parameter(g, bias));
}

/* The same input, as many columns, biases in both or none. */
static bool are_a_pair(const ts_graph *g, const ts_node *gate, const ts_node *up) {
  return gate->in[0] == up->in[0] && gate->attr.matmul.transpose_b == up->attr.matmul.transpose_b &&
         (bias_of(gate) == TS_NONE) == (bias_of(up) == TS_NONE) &&
         ts_shape_equal(&g->tensor[gate->in[1]].shape, &g->tensor[up->in[1]].shape);
}

/* The gate's columns in front of as many of up. */
static bool is_halved(const ts_graph *g, const ts_node *split, const ts_node *glu) {
  return split->n_out == 2 && split->attr.split.groups == 1 && split->out[0] == glu->in[0] &&
         split->out[1] == glu->in[1] &&
         ts_shape_equal(&g->tensor[split->out[0]].shape, &g->tensor[split->out[1]].shape);
}

static void find_gated(const tiling *t, const ts_node *glu, chain *c) {
  const ts_graph *g = t->from;
  c->split = sole_producer(t, glu->in[0], TS_OP_SPLIT, glu->unit);
  if (c->split != TS_NONE) {
    const ts_node *split = &g->node[c->split];
    bool halved = is_halved(g, split, glu) && sole_producer(t, glu->in[1], TS_OP_SPLIT, glu->unit) == c->split;
    ts_nid up = halved ? sole_producer(t, split->in[0], TS_OP_MATMUL, glu->unit) : TS_NONE;
    c->up = up != TS_NONE && g->node[up].attr.matmul.transpose_b ? up : TS_NONE;
    return;
  }
  c->gate = sole_producer(t, glu->in[0], TS_OP_MATMUL, glu->unit);
  c->up = sole_producer(t, glu->in[1], TS_OP_MATMUL, glu->unit);
  bool fits = c->gate != TS_NONE && c->up != TS_NONE && is_linear(g, &g->node[c->gate]) &&
              are_a_pair(g, &g->node[c->gate], &g->node[c->up]);
  c->up = fits ? c->up : TS_NONE;
}

/* The MLP that ends with node n; down TS_NONE where it is none. */
static chain find_chain(const tiling *t, ts_nid n) {
  const ts_graph *g = t->from;
  const ts_node *down = &g->node[n];
  chain c = {TS_NONE, TS_NONE, TS_NONE, TS_NONE, TS_NONE};
  if (!is_linear(g, down)) {
    return c;
  }
  ts_nid glu = sole_producer(t, down->in[0], TS_OP_GLU, down->unit);
  c.act = glu != TS_NONE ? glu : sole_producer(t, down->in[0], TS_OP_ACTIVATION, down->unit);
  if (glu != TS_NONE) {
    find_gated(t, &g->node[glu], &c);
  } else if (c.act != TS_NONE) {
    c.up = sole_producer(t, g->node[c.act].in[0], TS_OP_MATMUL, down->unit);
  }
  const ts_node *up = c.up == TS_NONE ? NULL : &g->node[c.up];
  bool fits = up != NULL && is_linear(g, up) && up->attr.matmul.transpose_b == down->attr.matmul.transpose_b &&
              (bias_of(down) == TS_NONE || bias_of(up) != TS_NONE);
  c.down = fits ? n : TS_NONE;
  return c;
}

static void leave_out(tiling *t, ts_nid n) {
  if (n != TS_NONE) {
    t->gone[n] = true;
  }
}

static void find_chains(tiling *t) {
  for (ts_nid n = 0; n < t->from->n_nodes; ++n) {
    chain c = t->mlp_of[n] = find_chain(t, n);
    if (c.down != TS_NONE) {
      leave_out(t, c.up);
      leave_out(t, c.gate);
      leave_out(t, c.split);
      leave_out(t, c.act);
    }
  }
}

/* One op in the place of down, with its name. */
static void write_mlp(tiling *t, const chain *c) {
  const ts_graph *g = t->from;
  const ts_node *up = &g->node[c->up], *down = &g->node[c->down], *gate = c->gate == TS_NONE ? NULL : &g->node[c->gate];
  const ts_shape *x = &g->tensor[up->in[0]].shape;
  ts_tid in[TS_MLP_INPUTS] = {[TS_MLP_X] = up->in[0],
                              [TS_MLP_GATE] = gate != NULL ? gate->in[1] : TS_NONE,
                              [TS_MLP_GATE_BIAS] = gate != NULL ? bias_of(gate) : TS_NONE,
                              [TS_MLP_UP] = up->in[1],
                              [TS_MLP_UP_BIAS] = bias_of(up),
                              [TS_MLP_DOWN] = down->in[1],
                              [TS_MLP_DOWN_BIAS] = bias_of(down)};
  for (int i = 0; i < TS_MLP_INPUTS; ++i) {
    in[i] = ts_rewrite_tensor(&t->rewrite, in[i]);
  }
  ts_node mlp = {.op = TS_OP_MLP, .name = down->name, .n_in = TS_MLP_INPUTS, .in = in, .beta = TS_NONE};
  mlp.segment = down->segment;
  mlp.unit = down->unit;
  mlp.attr.mlp = (typeof(mlp.attr.mlp)){.kind = g->node[c->act].attr.activation.kind,
                                        .transpose_b = down->attr.matmul.transpose_b,
                                        .fused = c->split != TS_NONE,
                                        .rows = x->d[x->n - 1],
                                        .dtype = g->tensor[up->in[0]].dtype};
  ts_rewrite_add(&t->rewrite, c->down, &mlp);
}

/* \return how many MLPs stay as they are. */
static int write_graph(tiling *t) {
  int left = 0;
  for (ts_nid n = 0; n < t->from->n_nodes; ++n) {
    const ts_node *node = &t->from->node[n];
    if (t->mlp_of[n].down != TS_NONE) {
      write_mlp(t, &t->mlp_of[n]);
    } else if (!t->gone[n]) {
      left +=
          (node->op == TS_OP_ACTIVATION || node->op == TS_OP_GLU) && ts_node_extent(node) < 0; /* experts have rows */
      ts_rewrite_copy(&t->rewrite, n);
    }
  }
  return left;
}

/* Only marks can have put messages into an MLP. */
static void tell_left(const ts_pass_context *context, int left) {
  if (left > 0 && context->mesh->rank == 0 && context->use == TS_MODEL_TRAIN) {
    ts_log(TS_LOG_WARNING,
           "%s: tiled_mlp_compute: no effect on %d of the MLPs: by the marks of tensor_parallel ranks "
           "exchange what is inside",
           ts_deck_origin(context->deck, "tiled_mlp_compute"), left);
  }
}

void ts_pass_tile(ts_graph **graph, ts_pass_context *context) {
  const ts_deck *deck = context->deck;
  if (!deck->tiled_mlp_compute || context->use == TS_MODEL_LOGITS) {
    return;
  }
  size_t nodes = (size_t) (*graph)->n_nodes + 1;
  tiling t = {.rewrite = ts_rewrite_begin(*graph),
              .from = *graph,
              .uses = ts_graph_use_counts(*graph),
              .gone = ts_calloc(nodes, sizeof *t.gone),
              .mlp_of = ts_calloc(nodes, sizeof *t.mlp_of)};
  find_chains(&t);
  tell_left(context, write_graph(&t));
  ts_free(t.uses);
  ts_free(t.gone);
  ts_free(t.mlp_of);
  ts_rewrite_marks(&t.rewrite);
  ts_rewrite_end(&t.rewrite, graph);
}
