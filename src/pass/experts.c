/* Expert parallelism: ranks along ep have other samples, and each some of a layer's experts.
 *
 * Every rank sees the tokens of all of them, with what was chosen (all_gather), brings together those that are for its
 * experts, and what it has made for each token goes home as the sum over ranks (reduce_scatter, in their order).  The
 * gradients of both messages are each other, so gradients of experts are sums over all tokens without more ado.  All
 * sizes are static: N tokens of each of R ranks with k choices are R N k rows, of which those of other ranks' experts
 * come last and are nowhere read.  Tensor and sequence parallelism are done: of their ranks each has tokens of its own
 * here, or all have the same. */
#include "base/memory.h"
#include "family/stack.h"
#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/pass.h"
#include "pass/shard.h"

typedef struct spreader {
  ts_rewrite rewrite;
  ts_shards *shards;
  int ranks, rank;
  bool *first; /* owned; per tensor of the old graph: where rows of each expert begin, of experts that are spread */
  ts_tid *all; /* owned; per tensor of the old graph: that of all ranks */
} spreader;

static bool is_stack(const ts_graph *g, ts_tid t) {
  return g->tensor[t].role == TS_ROLE_PARAM && ts_stack_is(g->tensor[t].name, g->tensor[t].shape.n);
}

static void find_spread(spreader *s) {
  const ts_graph *g = s->rewrite.from;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    if (node->op == TS_OP_GROUPED && is_stack(g, node->in[1])) {
      s->first[node->in[2]] = true;
    }
  }
}

/* ---- messages ---- */

/* What all ranks have, one after another in the first dimension. */
static ts_tid gather(spreader *s, ts_site at, ts_tid t) {
  if (s->all[t] != TS_NONE) {
    return s->all[t];
  }
  ts_tid x = ts_rewrite_tensor(&s->rewrite, t);
  ts_shape shape = at.graph->tensor[x].shape;
  int64_t each = ts_shape_count(&shape);
  shape.d[0] *= s->ranks;
  const char *of = s->rewrite.from->tensor[t].name;
  char *name = ts_format("%s.of_all", of), *shaped = ts_format("%s.of_all.view", of);
  ts_piece piece = {.input = 0, .cuts = ts_shards_equal_cuts(s->shards, s->ranks, each), .begin = 0, .end = each};
  ts_tid y = ts_build_all_gather(at, name, TS_AXES(TS_AXIS_EP), s->ranks, 1, &x, NULL, 1, &piece);
  s->all[t] = ts_build_view(at, shaped, y, 0, shape);
  ts_free(name);
  ts_free(shaped);
  return s->all[t];
}

/* This rank's part of the sum of what all have made. */
static ts_tid bring_home(spreader *s, ts_site at, const char *of, ts_tid x) {
  ts_shape shape = at.graph->tensor[x].shape;
  shape.d[0] /= s->ranks;
  int64_t each = ts_shape_count(&shape);
  char *name = ts_format("%s.home", of), *shaped = ts_format("%s.home.view", of);
  ts_piece piece = {.input = 0, .cuts = ts_shards_equal_cuts(s->shards, s->ranks, each), .begin = 0, .end = each};
  ts_tid y = ts_build_reduce_scatter(at, name, TS_AXES(TS_AXIS_EP), s->ranks, at.graph->tensor[x].dtype, 1, 1, &x, NULL,
                                     TS_NONE, 1, &piece);
  y = ts_build_view(at, shaped, y, 0, shape);
  ts_free(name);
  ts_free(shaped);
  return y;
}

/* ---- nodes ---- */

enum { X = 0, STACK = 1, FIRST_OF_GROUPED = 2, FIRST = 3, WEIGHT = 4 };

/* The op whose inputs `first` and weight are where rows are moved. */
static bool moves_rows(const spreader *s, const ts_node *node) {
  return (node->op == TS_OP_TAKE_ROWS || node->op == TS_OP_COMBINE) && s->first[node->in[FIRST]];
}

/* This rank's matrices of a stack. */
static void cut_stack(spreader *s, ts_tid t) {
  ts_tensor leaf = s->rewrite.from->tensor[t];
  if (s->rewrite.map[t] == TS_NONE) {
    ts_shards_note_experts(s->shards, leaf.name, leaf.shape);
    leaf.shape.d[0] = ts_experts_of(leaf.shape.d[0], s->ranks, s->rank).length;
    s->rewrite.map[t] = ts_graph_add_leaf(s->rewrite.to, &leaf);
  }
}

static ts_tid read_input(spreader *s, ts_site at, const ts_node *old, int i) {
  bool dispatches = old->op == TS_OP_DISPATCH;
  bool of_all = dispatches || i == WEIGHT || (i == X && old->op == TS_OP_TAKE_ROWS);
  return old->in[i] != TS_NONE && of_all ? gather(s, at, old->in[i]) : ts_rewrite_tensor(&s->rewrite, old->in[i]);
}

static void write_spread(spreader *s, ts_nid n) {
  const ts_node *old = &s->rewrite.from->node[n];
  ts_site at = {s->rewrite.to, old->segment, old->unit};
  ts_tid in[WEIGHT + 1];
  ts_node node = *old;
  for (int i = 0; i < old->n_in; ++i) {
    in[i] = read_input(s, at, old, i);
  }
  node.in = in;
  if (old->op == TS_OP_DISPATCH) {
    ts_interval own = ts_experts_of(old->attr.experts.n, s->ranks, s->rank);
    node.attr.experts.n = (int) own.length;
    node.attr.experts.first = (int) own.begin;
  }
  ts_rewrite_add(&s->rewrite, n, &node);
  if (old->op == TS_OP_COMBINE) {
    ts_tid *y = &s->rewrite.map[old->out[0]];
    *y = bring_home(s, at, old->name, *y);
  }
}

static void write_any(spreader *s, ts_nid n) {
  enum { FIRST_OUT = 2 };
  const ts_node *old = &s->rewrite.from->node[n];
  bool dispatches = old->op == TS_OP_DISPATCH && s->first[old->out[FIRST_OUT]];
  if (dispatches || moves_rows(s, old)) {
    write_spread(s, n);
    return;
  }
  if ((old->op == TS_OP_GROUPED || old->op == TS_OP_GROUPED_BIAS) && s->first[old->in[FIRST_OF_GROUPED]]) {
    cut_stack(s, old->in[STACK]);
  }
  ts_rewrite_copy(&s->rewrite, n);
}

void ts_pass_experts(ts_graph **graph, ts_pass_context *context) {
  const ts_mesh *mesh = context->mesh;
  if (mesh->size[TS_AXIS_EP] == 1) {
    return;
  }
  if (context->shards == NULL) {
    context->shards = ts_calloc(1, sizeof *context->shards);
    context->shards->ranks = mesh->size[TS_AXIS_TP];
  }
  spreader s = {.rewrite = ts_rewrite_begin(*graph),
                .shards = context->shards,
                .ranks = mesh->size[TS_AXIS_EP],
                .rank = mesh->coord[TS_AXIS_EP],
                .first = ts_calloc((size_t) (*graph)->n_tensors + 1, sizeof *s.first),
                .all = ts_ids_none((*graph)->n_tensors)};
  find_spread(&s);
  for (ts_nid n = 0; n < (*graph)->n_nodes; ++n) {
    write_any(&s, n);
  }
  ts_rewrite_marks(&s.rewrite);
  ts_free(s.first);
  ts_free(s.all);
  ts_rewrite_end(&s.rewrite, graph);
}
