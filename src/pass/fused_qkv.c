/* Attention on q, k and v where the product of one weight left them:
 *
 *   q, k, v = split (x); o, lse = attention (q, k, v)            ->  o, lse = attention (x, x, x), attr fused_qkv
 *   dq, dk, dv = attention_dx (do, q, k, v ...); dx = concat     ->  dx = attention_dx (do, x, x, x ...)
 *
 * Kernels read rows of heads wherever rows begin, so a copy of all three, forward and backward, is saved.  Where
 * something else is between the two, a rotation or an exchange, or reads one of the three, they stay apart. */
#include "base/memory.h"
#include "graph/rewrite.h"
#include "pass/pass.h"

enum { PARTS = 3 };

typedef struct fusion {
  ts_rewrite rewrite;
  const ts_graph *from;
  const int *uses;
  int *readers; /* per split: the nodes of attention that read its parts as q, k and v; -1: others do as well */
} fusion;

/* The number of the first of q, k and v among a node's inputs; -1: it is not attention. */
static int qkv_input(const ts_node *node) {
  return node->op == TS_OP_ATTENTION ? 0 : node->op == TS_OP_ATTENTION_DX ? 1 : -1;
}

/* The split whose three parts a node reads as q, k and v; TS_NONE. */
static ts_nid split_of(const ts_graph *g, const ts_node *node) {
  int first = qkv_input(node);
  ts_nid n = first < 0 ? TS_NONE : g->tensor[node->in[first]].producer;
  const ts_node *split = n == TS_NONE ? NULL : &g->node[n];
  if (split == NULL || split->op != TS_OP_SPLIT || split->attr.split.groups != 1 || split->n_out != PARTS) {
    return TS_NONE;
  }
  for (int i = 0; i < PARTS; ++i) {
    if (node->in[first + i] != split->out[i]) {
      return TS_NONE;
    }
  }
  return n;
}

/* The node that puts the gradients of q, k and v together, and who alone reads them: TS_NONE when there is none. */
static ts_nid concat_of(const fusion *f, const ts_nid *reader, const ts_node *dx) {
  const ts_graph *g = f->from;
  ts_nid n = dx->prior != NULL ? TS_NONE : reader[dx->out[0]];
  const ts_node *concat = n == TS_NONE ? NULL : &g->node[n];
  if (concat == NULL || concat->op != TS_OP_CONCAT || concat->attr.concat.groups != 1 || concat->n_in != PARTS ||
      concat->segment != dx->segment || dx->attr.attention.wide_queries || dx->attr.attention.wide_keys) {
    return TS_NONE;
  }
  for (int i = 0; i < PARTS; ++i) {
    if (concat->in[i] != dx->out[i] || f->uses[dx->out[i]] != 1 || ts_graph_is_marked(g, dx->out[i])) {
      return TS_NONE;
    }
  }
  return n;
}

/* Per tensor the last node that reads it. */
static ts_nid *last_readers(const ts_graph *g) {
  ts_nid *reader = ts_ids_none(g->n_tensors);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    for (int i = 0; i < g->node[n].n_in; ++i) {
      if (g->node[n].in[i] != TS_NONE) {
        reader[g->node[n].in[i]] = n;
      }
    }
  }
  return reader;
}

static void count_readers(fusion *f, const ts_nid *reader) {
  const ts_graph *g = f->from;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    ts_nid split = split_of(g, node);
    if (split != TS_NONE && node->op == TS_OP_ATTENTION_DX && concat_of(f, reader, node) == TS_NONE) {
      f->readers[split] = -1;
    } else if (split != TS_NONE && f->readers[split] >= 0) {
      ++f->readers[split];
    }
  }
}

/* Whether nobody but attention reads the parts of a split. */
static bool can_fuse(const fusion *f, ts_nid n) {
  const ts_node *split = &f->from->node[n];
  bool all = f->readers[n] > 0;
  for (int i = 0; all && i < PARTS; ++i) {
    all = f->uses[split->out[i]] == f->readers[n] && !ts_graph_is_marked(f->from, split->out[i]);
  }
  return all;
}

/* Attention itself, reading what was split. */
static void write_attention(fusion *f, ts_nid n) {
  ts_node node = ts_rewrite_node(&f->rewrite, n);
  node.attr.attention.fused_qkv = true;
  node.n_out = node.op == TS_OP_ATTENTION_DX ? 1 : node.n_out;
  ts_rewrite_add(&f->rewrite, n, &node);
}

static void rewrite_attention(fusion *f, const ts_nid *reader, bool *gone, ts_nid n) {
  const ts_graph *g = f->from;
  const ts_node *node = &g->node[n];
  ts_nid split = split_of(g, node);
  if (split != TS_NONE && can_fuse(f, split)) {
    ts_nid concat = node->op == TS_OP_ATTENTION_DX ? concat_of(f, reader, node) : TS_NONE;
    write_attention(f, n);
    if (concat != TS_NONE) {
      f->rewrite.instead[g->node[concat].out[0]] = node->out[0];
      gone[concat] = true;
    }
  } else if (node->op == TS_OP_SPLIT && can_fuse(f, n)) {
    for (int i = 0; i < PARTS; ++i) {
      f->rewrite.instead[node->out[i]] = node->in[0];
    }
  } else if (!gone[n]) {
    ts_rewrite_copy(&f->rewrite, n);
  }
}

void ts_pass_fused_qkv(ts_graph **graph, ts_pass_context *context) {
  (void) context;
  const ts_graph *g = *graph;
  int *uses = ts_graph_use_counts(g);
  ts_nid *reader = last_readers(g);
  bool *gone = ts_calloc((size_t) g->n_nodes + 1, sizeof *gone);
  fusion f = {.rewrite = ts_rewrite_begin(g),
              .from = g,
              .uses = uses,
              .readers = ts_calloc((size_t) g->n_nodes + 1, sizeof *f.readers)};
  count_readers(&f, reader);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    rewrite_attention(&f, reader, gone, n);
  }
  ts_free(gone);
  ts_free(f.readers);
  ts_free(reader);
  ts_free(uses);
  ts_rewrite_marks(&f.rewrite);
  ts_rewrite_end(&f.rewrite, graph);
}
