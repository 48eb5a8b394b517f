/* The order of instructions.
 *
 * What may run beside the computation: messages between the ranks that share products by tp_overlap_comm, all others by
 * overlap_comm.  What is issued early and what late is pass/order's.  A collective is complete before the first
 * instruction that touches what it writes or writes what it reads, and before its phase (forward, backward, update)
 * ends.  At most TS_IN_FLIGHT collectives hold temporary memory at a time, so that the backward of stages 2 and 3 keeps
 * the gradients of a few units, not of the model.
 *
 * Copies from and to other spaces run beside both, in any order: each is waited for by itself.  What is written holds
 * its memory until it is; so much of it may wait as ts_offload_behind says, in pieces of the largest update. */
#include "pass/schedule.h"

#include "base/memory.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "pass/offload.h"
#include "pass/order.h"
#include "pass/pass.h"
#include "pass/storage.h"

#define TS_IN_FLIGHT 2

void ts_schedule_destroy(ts_schedule **schedule) {
  if (*schedule != NULL) {
    ts_free((*schedule)->instruction);
    ts_free(*schedule);
    *schedule = NULL;
  }
}

/* The nodes in this order, which is freed; NULL leaves them. */
static void reorder(ts_graph **graph, ts_nid *order) {
  if (order == NULL) {
    return;
  }
  ts_rewrite r = ts_rewrite_begin(*graph);
  for (int i = 0; i < r.from->n_nodes; ++i) {
    ts_rewrite_copy(&r, order[i]);
  }
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, graph);
  ts_free(order);
}

/* ---- places of completion ---- */

typedef struct scheduler {
  const ts_graph *graph;
  const ts_place *place;
  ts_schedule *schedule;
  int capacity;
  ts_nid *pending; /* issued, not known complete; oldest first */
  int n_pending;
  ts_nid *copy; /* likewise copies */
  int n_copies;
  int64_t behind[TS_N_SPACES]; /* bytes that may wait to be written there */
} scheduler;

static void emit_instruction(scheduler *s, ts_instruction_kind kind, ts_nid node) {
  TS_GROW(s->schedule->instruction, s->schedule->n, s->capacity);
  s->schedule->instruction[s->schedule->n++] = (ts_instruction){kind, node};
}

/* Wait for the first `count` pending collectives. */
static void wait_for_first(scheduler *s, int count) {
  for (int i = 0; i < count; ++i) {
    emit_instruction(s, TS_WAIT, s->pending[i]);
  }
  for (int i = count; i < s->n_pending; ++i) {
    s->pending[i - count] = s->pending[i];
  }
  s->n_pending -= count;
}

/* Wait for pending copy i. */
static void wait_for_copy(scheduler *s, int i) {
  emit_instruction(s, TS_WAIT, s->copy[i]);
  --s->n_copies;
  for (; i < s->n_copies; ++i) {
    s->copy[i] = s->copy[i + 1];
  }
}

static void wait_for_all(scheduler *s) {
  wait_for_first(s, s->n_pending);
  while (s->n_copies > 0) {
    wait_for_copy(s, 0);
  }
}

/* Are they of one storage?  Where only copies come that is state, whose windows are copied one by one: have they bytes
 * in common? */
static bool share_storage(const scheduler *s, ts_tid a, ts_tid b) {
  const ts_graph *g = s->graph;
  ts_place x = s->place[a], y = s->place[b];
  bool apart = x.offset >= y.offset + ts_tensor_bytes(g, b) || y.offset >= x.offset + ts_tensor_bytes(g, a);
  return x.root == y.root && !(apart && ts_space_is_away(g->tensor[x.root].space));
}

static bool in_storage(const scheduler *s, const ts_tid *list, int n, ts_tid t) {
  for (int i = 0; i < n; ++i) {
    if (list[i] != TS_NONE && t != TS_NONE && share_storage(s, list[i], t)) {
      return true;
    }
  }
  return false;
}

/* Does node touch what is written by another one under way, or write what that reads? */
static bool conflicts(const scheduler *s, const ts_node *node, const ts_node *other) {
  for (int i = 0; i < other->n_out; ++i) {
    ts_tid t = other->out[i];
    if (in_storage(s, node->in, node->n_in, t) || in_storage(s, node->out, node->n_out, t) ||
        (node->prior != NULL && in_storage(s, node->prior, node->n_out, t))) {
      return true;
    }
  }
  for (int i = 0; i < other->n_in; ++i) {
    if (in_storage(s, node->out, node->n_out, other->in[i])) {
      return true;
    }
  }
  return false;
}

/* Copies are complete that it needs: all that a collective has to wait for, as these are done in order. */
static void wait_for_copies_of(scheduler *s, const ts_node *node) {
  for (int i = 0; i < s->n_copies;) {
    if (conflicts(s, node, &s->graph->node[s->copy[i]])) {
      wait_for_copy(s, i);
    } else {
      ++i;
    }
  }
}

/* Whatever the node needs is complete. */
static void wait_for_conflicts(scheduler *s, const ts_node *node) {
  for (int i = s->n_pending - 1; i >= 0; --i) {
    if (conflicts(s, node, &s->graph->node[s->pending[i]])) {
      wait_for_first(s, i + 1);
      break;
    }
  }
  wait_for_copies_of(s, node);
}

/* ---- copies ---- */

static int64_t copied_bytes(const ts_graph *g, const ts_node *copy) {
  return ts_tensor_bytes(g, copy->out[0]);
}

/* What the largest update writes to a space. */
static int64_t largest_update(const ts_graph *g, ts_space space) {
  int64_t most = 0, here = 0;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    here = ts_node_takes(node) ? here + (ts_node_copies(node) == space ? copied_bytes(g, node) : 0) : 0;
    most = here > most ? here : most;
  }
  return most;
}

static void bound_behind(scheduler *s, ts_space space, int64_t bytes) {
  int64_t waiting = bytes;
  for (int i = s->n_copies - 1; i >= 0; --i) {
    const ts_node *copy = &s->graph->node[s->copy[i]];
    bool counts = ts_node_takes(copy) && ts_node_copies(copy) == space;
    waiting += counts ? copied_bytes(s->graph, copy) : 0;
    if (counts && waiting > s->behind[space]) {
      wait_for_copy(s, i); /* and with it those before it, one after another */
    }
  }
}

static void place_copy(scheduler *s, ts_nid n) {
  const ts_node *node = &s->graph->node[n];
  wait_for_conflicts(s, node);
  if (ts_node_takes(node)) {
    bound_behind(s, ts_node_copies(node), copied_bytes(s->graph, node));
  }
  emit_instruction(s, TS_ISSUE, n);
  s->copy[s->n_copies++] = n;
}

static bool holds_scratch(const scheduler *s, const ts_node *node) {
  for (int i = 0; i < node->n_in; ++i) {
    if (s->graph->tensor[s->place[node->in[i]].root].producer != TS_NONE) {
      return true;
    }
  }
  return false;
}

static void bound_in_flight(scheduler *s) {
  int holding = 0;
  for (int i = s->n_pending - 1; i >= 0; --i) {
    holding += holds_scratch(s, &s->graph->node[s->pending[i]]);
    if (holding >= TS_IN_FLIGHT) {
      wait_for_first(s, i + 1);
      return;
    }
  }
}

static bool may_overlap(const ts_pass_context *context, const ts_node *collective) {
  return collective->attr.comm.axes == TS_AXES(TS_AXIS_TP) ? context->deck->tensor_parallel.tp_overlap_comm
                                                           : context->deck->zero_optimization.overlap_comm;
}

static void place_node(scheduler *s, ts_nid n, const ts_pass_context *context) {
  const ts_node *node = &s->graph->node[n];
  if (ts_node_is_copy(node)) {
    place_copy(s, n);
    return;
  }
  if (ts_node_is_collective(node)) {
    bool overlap = may_overlap(context, node);
    wait_for_copies_of(s, node);
    if (holds_scratch(s, node)) {
      bound_in_flight(s);
    }
    emit_instruction(s, TS_ISSUE, n);
    s->pending[s->n_pending++] = n;
    s->schedule->overlaps |= overlap;
    if (!overlap) {
      wait_for_first(s, s->n_pending);
    }
    return;
  }
  wait_for_conflicts(s, node);
  emit_instruction(s, node->op == TS_OP_SEND ? TS_ISSUE : node->op == TS_OP_RECEIVE ? TS_WAIT : TS_RUN, n);
}

/* Axes whose ranks have more or less to gather than others: ep, where experts do not go evenly. */
static unsigned uneven_axes(const ts_pass_context *context) {
  unsigned axes = 0;
  int ranks = context->mesh->size[TS_AXIS_EP];
  for (int i = 0; context->shards != NULL && i < context->shards->n; ++i) {
    const ts_shard *shard = &context->shards->shard[i];
    axes |= ts_shard_is_of_experts(shard) && shard->shape.d[0] % ranks != 0 ? TS_AXES(TS_AXIS_EP) : 0;
  }
  return axes;
}

void ts_pass_schedule(ts_graph **graph, ts_pass_context *context) {
  const ts_deck_zero *zero = &context->deck->zero_optimization;
  bool device = context->target.backend->device != NULL;
  if (device || context->deck->tensor_parallel.tp_overlap_comm) {
    reorder(graph, ts_order_late_weights(*graph, TS_AXES(TS_AXIS_TP)));
  }
  if (device || zero->overlap_comm) {
    reorder(graph, ts_order_exchanges(*graph));
  }
  reorder(graph, ts_order_prefetch(*graph, zero->overlap_comm ? zero->stage3_prefetch_bucket_size : 0,
                                   ts_offload_live(context), uneven_axes(context)));
  const ts_rates rates = ts_rates_of(context->deck, context->target.backend);
  reorder(graph, ts_order_updates(*graph, &rates));
  reorder(graph, ts_order_loads(*graph, ts_offload_units_ahead(context->deck), ts_offload_ahead(context->deck),
                                ts_offload_behind(context->deck) > 0));
  const ts_graph *g = *graph;
  ts_place *place = ts_storage_find(g);
  scheduler s = {.graph = g,
                 .place = place,
                 .schedule = ts_calloc(1, sizeof *s.schedule),
                 .pending = ts_malloc(((size_t) g->n_nodes + 1) * sizeof *s.pending),
                 .copy = ts_malloc(((size_t) g->n_nodes + 1) * sizeof *s.copy)};
  for (ts_space space = 0; space < TS_N_SPACES; ++space) {
    s.behind[space] = ts_offload_behind(context->deck) * largest_update(g, space);
  }
  int phase = 0, chunk = 0;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    if (ts_node_is_window(&g->node[n])) {
      continue;
    }
    if (ts_segment_phase(g->node[n].segment) != phase || ts_node_chunk(g, &g->node[n]) != chunk) {
      wait_for_all(&s);
      phase = ts_segment_phase(g->node[n].segment);
      chunk = ts_node_chunk(g, &g->node[n]);
    }
    place_node(&s, n, context);
  }
  wait_for_all(&s);
  ts_free(s.pending);
  ts_free(s.copy);
  ts_free(place);
  context->schedule = s.schedule;
}
