/* Sequence parallelism, the first half: each rank gets its tokens of every sample.
 *
 * Only the inputs are marked: ids, labels and positions become those of this rank's tokens, and every node is written
 * again with what follows.  All ops but attention work on tokens one by one: along an index of theirs the tokens are
 * cut (graph/cut.h), and nothing has to be sent.  Gradients of parameters are so sums over the ranks, which the
 * reductions over all that share a parameter complete; the loss is that of own tokens, which the record adds up.
 *
 * Attention is told which tokens it has, and stays one node on these until pass/exchange lets it see the others. */
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

/* The outputs of a node that works on tokens one by one; of the loss each rank has a part. */
static void follow_tokens(cutter *c, const ts_node *node) {
  ts_cut cut = {0};
  bool found = false;
  for (const char *index = "abcdefghijklmnopqrstuvwxyz0123456789"; *index != 0 && !found; ++index) {
    found = ts_node_cut(c->rewrite.from, node, *index, &cut) && is_along_tokens(c, node, &cut);
  }
  TS_CHECK(found, "%s: %s does not work on tokens one by one", node->name, ts_op_get(node->op)->name);
  for (int i = 0; i < node->n_out; ++i) {
    bool loss = node->op == TS_OP_HEAD_LOSS || node->op == TS_OP_LOSS;
    TS_CHECK(cut.out[i].dim == 1 || loss, "%s: its result is not of tokens", node->name);
    c->cut[node->out[i]] = cut.out[i].dim == 1;
  }
}

static bool reads_tokens(const cutter *c, const ts_node *node) {
  bool reads = false;
  for (int i = 0; i < node->n_in; ++i) {
    reads = reads || (node->in[i] != TS_NONE && c->cut[node->in[i]]);
  }
  return reads;
}

/* What attributes say of tokens, and what becomes of them. */
static void cut_node(cutter *c, const ts_node *old, ts_attr *attr) {
  if (old->op == TS_OP_ATTENTION) {
    attr->attention.length = c->length;
    attr->attention.queries = attr->attention.keys = c->tokens;
    c->cut[old->out[0]] = true;
  } else if (old->op == TS_OP_DROPOUT) {
    attr->dropout.tokens = c->tokens;
    c->cut[old->out[0]] = true;
  } else if (old->op == TS_OP_VIEW) {
    ts_shape *shape = &attr->view.shape;
    TS_CHECK(shape->n > 1 && shape->d[0] == c->batch && shape->d[1] == c->length, "%s: tokens change their place",
             old->name);
    shape->d[1] = c->own;
    c->cut[old->out[0]] = true;
  } else {
    follow_tokens(c, old);
  }
}

void ts_shard_tokens(ts_graph **graph, const ts_pass_context *context) {
  const ts_shape *ids = ts_graph_token_shape(*graph);
  cutter c = {.rewrite = ts_rewrite_begin(*graph),
              .tokens = ts_sequence_tokens(context->sequence, context->sequence->rank),
              .batch = ids->d[0],
              .length = ids->d[1],
              .cut = ts_calloc((size_t) (*graph)->n_tensors + 1, sizeof *c.cut)};
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
