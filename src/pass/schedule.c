/* The order of instructions.
 *
 * What may run beside the computation: messages between the ranks that share products by tp_overlap_comm, all others by
 * overlap_comm.  What is issued early and what late is pass/order's.  A collective is complete before the first
 * instruction that touches what it writes or writes what it reads, and before its phase (forward, backward, update)
 * ends.  At most TS_IN_FLIGHT collectives hold temporary memory at a time, so that the backward of stages 2 and 3 keeps
 * the gradients of a few units, not of the model. */
#include "pass/schedule.h"

#include "base/memory.h"
#include "graph/rewrite.h"
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

static bool in_storage(const scheduler *s, const ts_tid *list, int n, ts_tid root) {
  for (int i = 0; i < n; ++i) {
    if (list[i] != TS_NONE && s->place[list[i]].root == root) {
      return true;
    }
  }
  return false;
}

/* Does node touch what the collective writes, or write what it reads? */
static bool conflicts(const scheduler *s, const ts_node *node, const ts_node *collective) {
  for (int i = 0; i < collective->n_out; ++i) {
    ts_tid root = s->place[collective->out[i]].root;
    if (in_storage(s, node->in, node->n_in, root) || in_storage(s, node->out, node->n_out, root) ||
        (node->prior != NULL && in_storage(s, node->prior, node->n_out, root))) {
      return true;
    }
  }
  for (int i = 0; i < collective->n_in; ++i) {
    if (in_storage(s, node->out, node->n_out, s->place[collective->in[i]].root)) {
      return true;
    }
  }
  return false;
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
  if (ts_node_is_collective(node)) {
    bool overlap = may_overlap(context, node);
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
  for (int i = s->n_pending - 1; i >= 0; --i) {
    if (conflicts(s, node, &s->graph->node[s->pending[i]])) {
      wait_for_first(s, i + 1);
      break;
    }
  }
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
                                   zero->stage3_max_live_parameters, uneven_axes(context)));
  const ts_graph *g = *graph;
  ts_place *place = ts_storage_find(g);
  scheduler s = {.graph = g,
                 .place = place,
                 .schedule = ts_calloc(1, sizeof *s.schedule),
                 .pending = ts_malloc(((size_t) g->n_nodes + 1) * sizeof *s.pending)};
  int phase = 0, chunk = 0;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    if (ts_node_is_window(&g->node[n])) {
      continue;
    }
    if (ts_segment_phase(g->node[n].segment) != phase || ts_node_chunk(g, &g->node[n]) != chunk) {
      wait_for_first(&s, s.n_pending);
      phase = ts_segment_phase(g->node[n].segment);
      chunk = ts_node_chunk(g, &g->node[n]);
    }
    place_node(&s, n, context);
  }
  wait_for_first(&s, s.n_pending);
  ts_free(s.pending);
  ts_free(place);
  context->schedule = s.schedule;
}
