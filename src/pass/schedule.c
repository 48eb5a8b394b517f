/* The order of instructions.
 *
 * What may run beside the computation: messages between the ranks that share products by tp_overlap_comm, all others by
 * overlap_comm.  Gathers of parameters are issued ahead of their unit (stage3_prefetch_bucket_size elements at most).
 * A collective is complete before the first instruction that touches what it writes or writes what it reads, and before
 * its phase (forward, backward, update) ends.  At most TS_IN_FLIGHT collectives hold temporary memory at a time, so
 * that the backward of stages 2 and 3 keeps the gradients of a few units, not of the model. */
#include "pass/schedule.h"

#include "base/memory.h"
#include "graph/rewrite.h"
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

/* ---- prefetch: a new order of nodes ---- */

/* A gather of state alone may be issued at any time; but one among ranks that share products: they have more or less to
 * gather ahead than others, and have to keep one order. */
static bool is_free_gather(const ts_graph *g, const ts_node *node) {
  if (ts_node_is_collective(node) && (node->attr.comm.axes & (TS_AXES(TS_AXIS_TP) | TS_AXES_SHARERS)) != 0) {
    return false;
  }
  if (node->op != TS_OP_ALL_GATHER || node->attr.comm.into || ts_segment_phase(node->segment) == 2) {
    return false;
  }
  for (int i = 0; i < node->n_in; ++i) {
    if (g->tensor[node->in[i]].role != TS_ROLE_STATE) {
      return false;
    }
  }
  return true;
}

static int64_t gathered_elements(const ts_graph *g, const ts_node *node) {
  int64_t elements = 0;
  for (int i = 0; i < node->n_out; ++i) {
    elements += ts_tensor_count(g, node->out[i]);
  }
  return elements;
}

/* `budget` bounds what is gathered ahead, `most` what is gathered in all. */
static ts_nid *prefetch_order(const ts_graph *g, int64_t budget, int64_t most) {
  ts_nid *order = ts_malloc(((size_t) g->n_nodes + 1) * sizeof *order);
  bool *issued = ts_calloc((size_t) g->n_nodes + 1, sizeof *issued);
  int n = 0;
  int64_t ahead = 0;
  ts_nid next = 0; /* candidates are found from here on */
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    const ts_node *node = &g->node[i];
    if (!issued[i]) {
      order[n++] = i;
    } else {
      ahead -= gathered_elements(g, node);
    }
    if (!is_free_gather(g, node)) {
      continue;
    }
    for (next = next > i ? next : i + 1;
         next < g->n_nodes && ts_segment_phase(g->node[next].segment) == ts_segment_phase(node->segment); ++next) {
      if (is_free_gather(g, &g->node[next])) {
        int64_t elements = gathered_elements(g, &g->node[next]);
        if (ahead + elements > budget || ahead + elements + gathered_elements(g, node) > most) {
          break;
        }
        ahead += elements;
        issued[next] = true;
        order[n++] = next;
      }
    }
  }
  TS_ASSERT(n == g->n_nodes);
  ts_free(issued);
  return order;
}

/* ---- gradients of parameters run while those of inputs travel ---- */

static bool is_input_gradient(const ts_node *node) {
  return node->segment == TS_SEGMENT_BACKWARD_INPUT;
}

/* What is held back, until a message between the ranks that share products is on its way. */
typedef struct late {
  ts_nid *order;
  int n; /* of the order */
  ts_nid *held;
  int n_held;
  bool *is_held; /* per node */
} late;

static void release_held(late *l) {
  for (int i = 0; i < l->n_held; ++i) {
    l->order[l->n++] = l->held[i];
    l->is_held[l->held[i]] = false;
  }
  l->n_held = 0;
}

static bool made_by_held(const late *l, const ts_graph *g, ts_tid t) {
  ts_nid producer = t == TS_NONE ? TS_NONE : g->tensor[t].producer;
  return producer != TS_NONE && l->is_held[producer];
}

static bool reads_held(const late *l, const ts_graph *g, const ts_node *node) {
  bool reads = made_by_held(l, g, node->beta);
  for (int i = 0; i < node->n_in && !reads; ++i) {
    reads = made_by_held(l, g, node->in[i]);
  }
  for (int i = 0; i < node->n_out && node->prior != NULL && !reads; ++i) {
    reads = made_by_held(l, g, node->prior[i]);
  }
  return reads;
}

/* Of a unit: whatever is not a gradient of inputs waits for the next sum of one, which does not need it.  The order
 * among the rest stays, and with it all bits. */
static ts_nid *late_weights_order(const ts_graph *g, unsigned axes) {
  size_t entries = (size_t) g->n_nodes + 1;
  late l = {.order = ts_malloc(entries * sizeof *l.order),
            .held = ts_malloc(entries * sizeof *l.held),
            .is_held = ts_calloc(entries, 1)};
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    bool backward = ts_segment_phase(node->segment) == 1;
    if (backward && !is_input_gradient(node)) {
      l.is_held[n] = true;
      l.held[l.n_held++] = n;
      continue;
    }
    bool leaves = l.n_held > 0 && (!backward || node->unit != g->node[l.held[0]].unit);
    if (leaves || reads_held(&l, g, node)) {
      release_held(&l);
    }
    l.order[l.n++] = n;
    if (ts_node_is_collective(node) && node->attr.comm.axes == axes) {
      release_held(&l);
    }
  }
  release_held(&l);
  ts_free(l.held);
  ts_free(l.is_held);
  return l.order;
}

static bool has_messages(const ts_graph *g, unsigned axes) {
  bool has = false;
  for (ts_nid n = 0; n < g->n_nodes && !has; ++n) {
    has = ts_node_is_collective(&g->node[n]) && g->node[n].attr.comm.axes == axes && is_input_gradient(&g->node[n]);
  }
  return has;
}

static void reorder(ts_graph **graph, const ts_nid *order) {
  ts_rewrite r = ts_rewrite_begin(*graph);
  for (int i = 0; i < r.from->n_nodes; ++i) {
    ts_rewrite_copy(&r, order[i]);
  }
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, graph);
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
  emit_instruction(s, TS_RUN, n);
}

void ts_pass_schedule(ts_graph **graph, ts_pass_context *context) {
  const ts_deck_zero *zero = &context->deck->zero_optimization;
  bool late_weights = context->deck->tensor_parallel.tp_overlap_comm || context->target.backend->device != NULL;
  if (late_weights && has_messages(*graph, TS_AXES(TS_AXIS_TP))) {
    ts_nid *late = late_weights_order(*graph, TS_AXES(TS_AXIS_TP));
    reorder(graph, late);
    ts_free(late);
  }
  ts_nid *order = prefetch_order(*graph, zero->overlap_comm ? zero->stage3_prefetch_bucket_size : 0,
                                 zero->stage3_max_live_parameters);
  reorder(graph, order);
  ts_free(order);
  const ts_graph *g = *graph;
  ts_place *place = ts_storage_find(g);
  scheduler s = {.graph = g,
                 .place = place,
                 .schedule = ts_calloc(1, sizeof *s.schedule),
                 .pending = ts_malloc(((size_t) g->n_nodes + 1) * sizeof *s.pending)};
  int phase = 0;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    if (ts_node_is_window(&g->node[n])) {
      continue;
    }
    if (ts_segment_phase(g->node[n].segment) != phase) {
      wait_for_first(&s, s.n_pending);
      phase = ts_segment_phase(g->node[n].segment);
    }
    place_node(&s, n, context);
  }
  wait_for_first(&s, s.n_pending);
  ts_free(s.pending);
  ts_free(place);
  context->schedule = s.schedule;
}
