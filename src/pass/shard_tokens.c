/* Sequence parallelism, the first half: each rank gets its tokens of every sample.
 *
 * Only the inputs are marked: ids, labels and positions become those of this rank's tokens, and every node is written
 * again with what follows.  All ops but attention work on tokens one by one: along an index of theirs the tokens are
 * cut (graph/cut.h), and nothing has to be sent.  Gradients of parameters are so sums over the ranks, which the
 * reductions over all that share a parameter complete; the loss is that of own tokens, which the record adds up.
 *
 * Attention is told which tokens it has, and stays one node on these until pass/exchange lets it see the others.  Rows
 * for experts are those of own tokens: how many follows from the shapes, and no more than one op in front and one
 * behind knows whose they are. */
#include "pass/shard_tokens.h"

#include "base/memory.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "pass/sequence.h"

typedef struct cutter {
  ts_rewrite rewrite;
  ts_tokens tokens; /* this rank's */
  int64_t batch, length, own;
  bool *cut; /* owned; per tensor of the old graph: dimension 1 is the tokens' */
} cutter;

static void cut_inputs(cutter *c) {
  for (ts_tid t = 0; t < c->rewrite.from->n_tensors; ++t) {
    ts_tensor leaf = c->rewrite.from->tensor[t];
    if (leaf.role == TS_ROLE_INPUT && leaf.sequence > 0) {
      leaf.shape.d[leaf.sequence] = c->own;
      c->cut[t] = true;
      c->rewrite.map[t] = ts_graph_add_leaf(c->rewrite.to, &leaf);
    }
  }
}

/* Is the index in dimension 1 of all inputs with tokens, and in no other? */
static bool is_along_tokens(const cutter *c, const ts_node *node, const ts_cut *cut) {
  for (int i = 0; i < node->n_in; ++i) {
    if (node->in[i] != TS_NONE && cut->in[i].dim != (c->cut[node->in[i]] ? 1 : -1)) {
      return false;
    }
  }
  return true;
}

/* The outputs of a node that works on tokens one by one; of the loss each rank has a part.
 * \return what is in the way, NULL for nothing. */
static const char *follow_tokens(cutter *c, const ts_node *node) {
  ts_cut cut = {0};
  bool found = false;
  for (const char *index = "abcdefghijklmnopqrstuvwxyz0123456789"; *index != 0 && !found; ++index) {
    found = ts_node_cut(c->rewrite.from, node, *index, &cut) && is_along_tokens(c, node, &cut);
  }
  bool loss = node->op == TS_OP_HEAD_LOSS || node->op == TS_OP_LOSS;
  for (int i = 0; found && i < node->n_out; ++i) {
    found = cut.out[i].dim == 1 || loss;
    c->cut[node->out[i]] = cut.out[i].dim == 1;
  }
  return found ? NULL : "takes the tokens of a sample together, which only attention and a loss may";
}

static bool reads_tokens(const cutter *c, const ts_node *node) {
  bool reads = false;
  for (int i = 0; i < node->n_in; ++i) {
    reads = reads || (node->in[i] != TS_NONE && c->cut[node->in[i]]);
  }
  return reads;
}

/* The same of what brings tokens together by expert, and back, and of experts' room, which is for own tokens. */
static bool follow_rows(cutter *c, const ts_node *node) {
  enum { PLACE = 1 };
  if (node->op == TS_OP_DISPATCH) {
    c->cut[node->out[PLACE]] = true;
  } else if (node->op == TS_OP_COMBINE) {
    c->cut[node->out[0]] = true;
  } else if (node->op == TS_OP_ROUTE_LIMIT) {
    c->cut[node->out[0]] = c->cut[node->out[1]] = true;
  }
  return node->op == TS_OP_DISPATCH || node->op == TS_OP_TAKE_ROWS || node->op == TS_OP_COMBINE ||
         node->op == TS_OP_ROUTE_LOADS || node->op == TS_OP_ROUTE_LIMIT;
}

/* Does a view put the tokens of all samples in one dimension, the first? */
static bool is_flat(const cutter *c, const ts_node *view) {
  const ts_shape *shape = &view->attr.view.shape;
  return shape->n == 2 && c->length > 1 && shape->d[0] == c->batch * c->length;
}

/* Which outputs of a node that reads tokens have them.  \return what is in the way, NULL for nothing. */
static const char *follow_node(cutter *c, const ts_node *old) {
  if (old->op == TS_OP_ATTENTION || old->op == TS_OP_DROPOUT) {
    c->cut[old->out[0]] = true;
    return NULL;
  }
  if (follow_rows(c, old) || (old->op == TS_OP_VIEW && is_flat(c, old))) {
    return NULL;
  }
  if (old->op != TS_OP_VIEW) {
    return follow_tokens(c, old);
  }
  const ts_shape *shape = &old->attr.view.shape;
  c->cut[old->out[0]] = true;
  return shape->n > 1 && shape->d[0] == c->batch && shape->d[1] == c->length
             ? NULL
             : "gives them another place than the second dimension";
}

/* What attributes say of tokens. */
static void cut_node(cutter *c, const ts_node *old, ts_attr *attr) {
  const char *why = follow_node(c, old);
  TS_CHECK(why == NULL, "%s: %s %s", old->name, ts_op_get(old->op)->name, why);
  if (old->op == TS_OP_ATTENTION) {
    attr->attention.length = c->length;
    attr->attention.queries = attr->attention.keys = c->tokens;
  } else if (old->op == TS_OP_DROPOUT) {
    attr->dropout.tokens = c->tokens;
  } else if (old->op == TS_OP_ROUTE_LOADS) {
    attr->loads.length = attr->loads.length / c->length * c->own; /* of a sample, or of all */
  } else if (old->op == TS_OP_VIEW && is_flat(c, old)) {
    attr->view.shape.d[0] = c->batch * c->own;
  } else if (old->op == TS_OP_VIEW) {
    attr->view.shape.d[1] = c->own;
  }
}

static ts_status check_input(const cutter *c, const ts_tensor *leaf, const ts_deck *deck, ts_error *err) {
  return leaf->sequence == 1 && leaf->shape.d[1] == c->length
             ? TS_OK
             : ts_deck_error(deck, "sequence_parallel_size", err,
                             "%lld: input %s has its tokens in dimension %d, %lld of them; accepted: all inputs with "
                             "as many tokens, in dimension 1",
                             (long long) deck->sequence_parallel_size, leaf->name, leaf->sequence,
                             (long long) leaf->shape.d[leaf->sequence]);
}

static ts_status check_cuts(cutter *c, const ts_deck *deck, ts_error *err) {
  const ts_graph *g = c->rewrite.from;
  bool any = false;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    c->cut[t] = g->tensor[t].role == TS_ROLE_INPUT && g->tensor[t].sequence > 0;
    any = any || c->cut[t];
    if (c->cut[t] && check_input(c, &g->tensor[t], deck, err) != TS_OK) {
      return TS_BAD_INPUT;
    }
  }
  if (!any) {
    return ts_deck_error(deck, "sequence_parallel_size", err, "%lld: the model has no input with tokens; accepted: 1",
                         (long long) deck->sequence_parallel_size);
  }
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    bool loss = g->node[n].op == TS_OP_HEAD_LOSS || g->node[n].op == TS_OP_LOSS;
    const char *why = reads_tokens(c, &g->node[n]) ? follow_node(c, &g->node[n])
                      : loss                       ? "is a loss of no tokens, which ranks would count twice"
                                                   : NULL;
    if (why != NULL) {
      return ts_deck_error(deck, "sequence_parallel_size", err, "%lld: %s (%s) %s; accepted: 1",
                           (long long) deck->sequence_parallel_size, g->node[n].name, ts_op_get(g->node[n].op)->name,
                           why);
    }
  }
  return TS_OK;
}

static cutter begin_cutter(const ts_graph *graph) {
  const ts_shape *ids = ts_graph_token_shape(graph);
  return (cutter){.batch = ids != NULL ? ids->d[0] : 1,
                  .length = ids != NULL && ids->n > 1 ? ids->d[1] : 1,
                  .cut = ts_calloc((size_t) graph->n_tensors + 1, sizeof(bool))};
}

ts_status ts_shard_tokens_check(const ts_graph *model, const ts_deck *deck, ts_error *err) {
  cutter c = begin_cutter(model);
  c.rewrite.from = model;
  ts_status status = check_cuts(&c, deck, err);
  ts_free(c.cut);
  return status;
}

void ts_shard_tokens(ts_graph **graph, const ts_pass_context *context) {
  cutter c = begin_cutter(*graph);
  c.rewrite = ts_rewrite_begin(*graph);
  c.tokens = ts_sequence_tokens(context->sequence, context->sequence->rank);
  c.own = ts_sequence_count(&c.tokens);
  cut_inputs(&c);
  for (ts_nid n = 0; n < (*graph)->n_nodes; ++n) {
    ts_node node = ts_rewrite_node(&c.rewrite, n);
    if (reads_tokens(&c, &(*graph)->node[n])) {
      cut_node(&c, &(*graph)->node[n], &node.attr);
    }
    ts_rewrite_add(&c.rewrite, n, &node);
  }
  ts_rewrite_marks(&c.rewrite);
  ts_free(c.cut);
  ts_rewrite_end(&c.rewrite, graph);
}
