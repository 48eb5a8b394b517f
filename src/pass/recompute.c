/* Activation checkpointing by unit (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016): what a block
 * computed for itself is not kept for the backward but computed again, from what other units made, right before the
 * block's first backward node.  Dropout repeats its mask because its numbers are a function of name and position. */
#include "base/memory.h"
#include "pass/pass.h"

typedef struct recompute {
  const ts_graph *from;
  ts_graph *to;
  ts_tid *map;   /* old tensor to new */
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

static void emit(recompute *r, const ts_node *node, const ts_tid *in, const char *name, ts_segment segment,
                 ts_tid *map) {
  r->to->segment = segment;
  r->to->current_unit = node->unit;
  ts_tid first = ts_graph_add(r->to, &(ts_node_args){.op = node->op, .name = name, .n_in = node->n_in, .in = in,
                                                     .n_out = node->n_out, .attr = node->attr});
  for (int i = 0; i < node->n_out; ++i) {
    map[node->out[i]] = first + i;
  }
}

/* Inputs in the new graph; a recomputed copy where the reader belongs to the backward of the unit. */
static ts_tid *inputs(recompute *r, const ts_node *node, bool again) {
  ts_tid *in = ts_malloc(((size_t) node->n_in + 1) * sizeof *in);
  for (int i = 0; i < node->n_in; ++i) {
    ts_tid t = node->in[i];
    if (t != TS_NONE && r->from->tensor[t].producer == TS_NONE) {
      ts_graph_copy_leaf(r->to, r->from, t, r->map);
    }
    bool copy = again && t != TS_NONE && unit_of(r, t) == node->unit && r->again[t] != TS_NONE;
    in[i] = t == TS_NONE ? TS_NONE : copy ? r->again[t] : r->map[t];
  }
  return in;
}

static void repeat_unit(recompute *r, int unit) {
  find_needed(r, unit);
  for (ts_nid n = 0; n < r->from->n_nodes; ++n) {
    const ts_node *node = &r->from->node[n];
    if (node->unit == unit && is_forward(node) && any_needed(r, node)) {
      ts_tid *in = inputs(r, node, true);
      char *name = ts_format("%s.again", node->name);
      emit(r, node, in, name, TS_SEGMENT_BACKWARD_INPUT, r->again);
      ts_free(name);
      ts_free(in);
    }
  }
  r->begun[unit] = true;
}

static void walk(recompute *r) {
  for (ts_nid n = 0; n < r->from->n_nodes; ++n) {
    const ts_node *node = &r->from->node[n];
    bool backward_of_block = !is_forward(node) && node->unit >= 0 && r->block[node->unit];
    if (backward_of_block && !r->begun[node->unit]) {
      repeat_unit(r, node->unit);
    }
    ts_tid *in = inputs(r, node, backward_of_block);
    emit(r, node, in, node->name, node->segment, r->map);
    ts_free(in);
  }
}

void ts_pass_recompute(ts_graph **graph, ts_pass_context *context) {
  if (!context->deck->activation_checkpointing.enabled) {
    return;
  }
  size_t tensors = (size_t) (*graph)->n_tensors + 1, units = (size_t) (*graph)->n_units + 1;
  recompute r = {.from = *graph, .again = ts_malloc(tensors * sizeof *r.again), .block = ts_calloc(units, 1),
                 .begun = ts_calloc(units, 1), .shared = ts_calloc(tensors, 1), .needed = ts_calloc(tensors, 1)};
  for (size_t t = 0; t < tensors; ++t) {
    r.again[t] = TS_NONE;
  }
  r.to = ts_graph_rewrite(*graph, &r.map);
  classify(&r);
  walk(&r);
  r.to->current_unit = -1;
  ts_graph_copy_marks(r.to, *graph, r.map);
  ts_free(r.map);
  ts_free(r.again);
  ts_free(r.block);
  ts_free(r.begun);
  ts_free(r.shared);
  ts_free(r.needed);
  ts_graph_destroy(graph);
  *graph = r.to;
}
