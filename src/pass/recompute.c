/* Activation checkpointing by unit (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016): what a block
 * computed for itself is not kept for the backward but computed again, from what other units made, right before the
 * block's first backward node.  Dropout repeats its mask because its numbers are a function of name and position. */
#include "base/memory.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "pass/pass.h"
#include "pass/shard.h"

typedef struct recompute {
  ts_rewrite rewrite;
  const ts_graph *from;
  ts_tid *again; /* old tensor to its recomputed copy, TS_NONE where there is none */
  bool *block;   /* per unit: is recomputed */
  bool *begun;   /* per unit: its copies exist */
  bool *shared;  /* per tensor: other units read it, so it is kept */
  bool *needed;  /* per tensor: wanted as a copy */
} recompute;

static bool is_forward(const ts_node *node) {
  return node->segment == TS_SEGMENT_FORWARD;
}

static int unit_of(const recompute *r, ts_tid t) {
  const ts_node *producer = ts_graph_producer(r->from, t);
  return producer != NULL && is_forward(producer) ? producer->unit : -1;
}

/* Blocks are the units with attention; embeddings and the head are cheap to keep or dear to repeat. */
static void classify(recompute *r) {
  for (ts_nid n = 0; n < r->from->n_nodes; ++n) {
    const ts_node *node = &r->from->node[n];
    if (is_forward(node) && node->op == TS_OP_ATTENTION && node->unit >= 0) {
      r->block[node->unit] = true;
    }
    for (int i = 0; i < node->n_in; ++i) {
      if (node->in[i] != TS_NONE && unit_of(r, node->in[i]) != node->unit) {
        r->shared[node->in[i]] = true;
      }
    }
  }
}

static bool want(recompute *r, ts_tid t, int unit) {
  if (t == TS_NONE || r->shared[t] || unit_of(r, t) != unit) {
    return false;
  }
  return r->needed[t] = true;
}

/* What the unit's backward reads of its own forward, and what that needs in turn. */
static void find_needed(recompute *r, int unit) {
  for (ts_nid n = r->from->n_nodes - 1; n >= 0; --n) {
    const ts_node *node = &r->from->node[n];
    bool needed = node->unit == unit && !is_forward(node);
    for (int i = 0; i < node->n_out && node->unit == unit; ++i) {
      needed = needed || r->needed[node->out[i]];
    }
    for (int i = 0; i < node->n_in && needed; ++i) {
      want(r, node->in[i], unit);
    }
  }
}

static bool any_needed(const recompute *r, const ts_node *node) {
  bool any = false;
  for (int i = 0; i < node->n_out; ++i) {
    any = any || r->needed[node->out[i]];
  }
  return any;
}

/* What the unit computed for itself is read from its recomputed copy. */
static ts_node copy_node(recompute *r, ts_nid n, bool again) {
  ts_node node = ts_rewrite_node(&r->rewrite, n);
  for (int i = 0; again && i < node.n_in; ++i) {
    ts_tid t = r->from->node[n].in[i];
    if (t != TS_NONE && unit_of(r, t) == node.unit && r->again[t] != TS_NONE) {
      r->rewrite.in[i] = r->again[t];
    }
  }
  return node;
}

static void repeat_node(recompute *r, ts_nid n) {
  ts_node node = copy_node(r, n, true);
  char *name = ts_format("%s.again", node.name);
  node.name = name;
  ts_tid first = ts_graph_add((ts_site){r->rewrite.to, TS_SEGMENT_BACKWARD_INPUT, node.unit}, &node);
  for (int i = 0; i < node.n_out; ++i) {
    r->again[r->from->node[n].out[i]] = first + i;
  }
  ts_free(name);
}

static void repeat_unit(recompute *r, int unit) {
  find_needed(r, unit);
  for (ts_nid n = 0; n < r->from->n_nodes; ++n) {
    const ts_node *node = &r->from->node[n];
    if (node->unit == unit && is_forward(node) && any_needed(r, node)) {
      repeat_node(r, n);
    }
  }
  r->begun[unit] = true;
}

static void walk_backward(recompute *r) {
  for (ts_nid n = 0; n < r->from->n_nodes; ++n) {
    const ts_node *node = &r->from->node[n];
    bool backward_of_block = !is_forward(node) && node->unit >= 0 && r->block[node->unit];
    if (backward_of_block && !r->begun[node->unit]) {
      repeat_unit(r, node->unit);
    }
    ts_node copy = copy_node(r, n, backward_of_block);
    ts_rewrite_add(&r->rewrite, n, &copy);
  }
}

/* ---- gathers: rows of tokens that each rank has are not kept whole for the backward, but gathered again (Korthikanti
 * et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, section 4.2.2) ---- */

/* All rows of a tensor of which ranks along tp have some; the head's statistics are small and stay. */
static bool gathers_rows(const ts_graph *g, const ts_node *node) {
  const ts_node *from = node != NULL ? ts_graph_producer(g, node->in[0]) : NULL;
  return node != NULL && is_forward(node) && node->op == TS_OP_ALL_GATHER &&
         node->attr.comm.axes == TS_AXES(TS_AXIS_TP) && (from == NULL || from->op != TS_OP_HEAD_STATS);
}

/* The node that gathers t, or of which t is a change of shape; NULL for none. */
static const ts_node *find_gather(const ts_graph *g, ts_tid t) {
  const ts_node *node = t == TS_NONE ? NULL : ts_graph_producer(g, t);
  node = node != NULL && node->op == TS_OP_VIEW ? ts_graph_producer(g, node->in[0]) : node;
  return gathers_rows(g, node) ? node : NULL;
}

/* The copy of t for the backward, made when it is first asked for. */
static ts_tid gather_again(ts_rewrite *r, ts_tid *again, ts_tid t) {
  if (again[t] == TS_NONE) {
    ts_nid producer = r->from->tensor[t].producer;
    bool view = r->from->node[producer].op == TS_OP_VIEW;
    ts_node node = ts_rewrite_node(r, producer);
    ts_tid from = view ? gather_again(r, again, r->from->node[producer].in[0]) : TS_NONE;
    node.in = view ? &from : node.in;
    char *name = ts_format("%s.again", node.name);
    node.name = name;
    again[t] = ts_graph_add((ts_site){r->to, TS_SEGMENT_BACKWARD_INPUT, node.unit}, &node);
    ts_free(name);
  }
  return again[t];
}

static void repeat_gathers(ts_graph **graph) {
  ts_rewrite r = ts_rewrite_begin(*graph);
  ts_tid *again = ts_ids_none((*graph)->n_tensors), most = 0;
  for (ts_nid n = 0; n < r.from->n_nodes; ++n) {
    most = r.from->node[n].n_in > most ? r.from->node[n].n_in : most;
  }
  ts_tid *in = ts_ids_none(most);
  for (ts_nid n = 0; n < r.from->n_nodes; ++n) {
    const ts_node *old = &r.from->node[n];
    for (int i = 0; i < old->n_in && !is_forward(old); ++i) {
      in[i] = find_gather(r.from, old->in[i]) != NULL ? gather_again(&r, again, old->in[i]) : TS_NONE;
    }
    ts_node node = ts_rewrite_node(&r, n);
    for (int i = 0; i < old->n_in && !is_forward(old); ++i) {
      r.in[i] = in[i] != TS_NONE ? in[i] : r.in[i];
    }
    ts_rewrite_add(&r, n, &node);
  }
  ts_free(in);
  ts_free(again);
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, graph);
}

void ts_pass_recompute(ts_graph **graph, ts_pass_context *context) {
  if (!context->deck->activation_checkpointing.enabled) {
    if (context->shards != NULL) {
      repeat_gathers(graph);
    }
    return;
  }
  size_t tensors = (size_t) (*graph)->n_tensors + 1, units = (size_t) (*graph)->n_units + 1;
  recompute r = {.from = *graph,
                 .again = ts_ids_none((*graph)->n_tensors),
                 .block = ts_calloc(units, 1),
                 .begun = ts_calloc(units, 1),
                 .shared = ts_calloc(tensors, 1),
                 .needed = ts_calloc(tensors, 1)};
  r.rewrite = ts_rewrite_begin(*graph);
  classify(&r);
  walk_backward(&r);
  ts_free(r.again);
  ts_free(r.block);
  ts_free(r.begun);
  ts_free(r.shared);
  ts_free(r.needed);
  ts_rewrite_marks(&r.rewrite);
  ts_rewrite_end(&r.rewrite, graph);
}
