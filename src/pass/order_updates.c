/* Updates that the step before has left, among the first forward of the next.
 *
 * A piece is the nodes up to its last store.  Each has to come before the first node of the forward that touches what
 * it writes; those with the same such node are a group, of one unit as a rule, and are spread evenly over what is
 * computed between the group before's and their own.  So their copies go on all the time, and nobody waits for more
 * than one of them.
 *
 * What others need of a unit is gathered before the unit in front of it begins, and its pieces have to be there by
 * then: a place that what the forward computes alone decides, as ranks may differ in pieces and in copies, but have one
 * order of messages. */
#include "pass/order.h"

#include "base/memory.h"
#include "graph/op.h"
#include "pass/storage.h"

/* Of one chunk. */
typedef struct updates {
  const ts_graph *graph;
  ts_place *place;
  ts_nid *late, *gather, *forward; /* in their order */
  int n_late, n_gathers, n_forward;
  int *first; /* by root: the index in forward[] before which what is written to it must be there; -1: any */
  int *front; /* of gather[]: the index in forward[] before which it stands */
  int *piece; /* of late[]: which one it is in */
  int n_pieces;
  int *before;  /* by piece: the index in forward[] that it must come before; n_forward: any */
  double *done; /* by index in forward[], and one more: seconds of all before it */
} updates;

static void note_first(int *first, ts_tid root, int at) {
  first[root] = first[root] < 0 ? at : first[root];
}

/* By root: the first of the forward that touches it, -1 for none. */
static void find_first_touches(updates *u) {
  u->first = ts_ids_none(u->graph->n_tensors);
  for (int i = 0; i < u->n_forward; ++i) {
    const ts_node *node = &u->graph->node[u->forward[i]];
    for (int k = 0; k < node->n_in; ++k) {
      if (node->in[k] != TS_NONE) {
        note_first(u->first, u->place[node->in[k]].root, i);
      }
    }
  }
}

/* Of which unit a node is does not tell where it stands: what leaves goes with the node behind which it does, and which
 * does is each rank's own choice. */
static bool stands_anywhere(const ts_node *node) {
  return ts_node_is_copy(node) || ts_node_is_window(node);
}

/* Where the stretch of nodes of a unit begins that ends in front of i. */
static int begin_of_unit(const updates *u, int unit, int i) {
  const ts_node *node = u->graph->node;
  while (i > 0 && (stands_anywhere(&node[u->forward[i - 1]]) || node[u->forward[i - 1]].unit == unit)) {
    --i;
  }
  return i;
}

/* Where the unit begins in front of that of i. */
static int begin_in_front(const updates *u, int i) {
  const ts_node *node = u->graph->node;
  int own = begin_of_unit(u, node[u->forward[i]].unit, i);
  return own > 0 ? begin_of_unit(u, node[u->forward[own - 1]].unit, own) : 0;
}

/* Before the unit in front of the first one that reads what is gathered; the messages of a unit in their order. */
static void place_gathers(updates *u) {
  for (int k = u->n_gathers - 1; k >= 0; --k) {
    const ts_node *node = &u->graph->node[u->gather[k]];
    int at = u->n_forward;
    for (int i = 0; i < node->n_out; ++i) {
      int first = u->first[u->place[node->out[i]].root];
      at = first >= 0 && first < at ? first : at;
    }
    at = at < u->n_forward ? begin_in_front(u, at) : at;
    bool follows = k + 1 < u->n_gathers && u->graph->node[u->gather[k + 1]].unit == node->unit;
    u->front[k] = follows && u->front[k + 1] < at ? u->front[k + 1] : at;
  }
  for (int k = u->n_gathers - 1; k >= 0; --k) {
    const ts_node *node = &u->graph->node[u->gather[k]];
    for (int i = 0; i < node->n_out; ++i) {
      u->first[u->place[node->out[i]].root] = u->front[k];
    }
  }
}

/* Behind the last store of a piece, or its update, the next one begins; a window on what it has written is its.  What a
 * device takes to the host for the next one (COPY_OUT) counts as a store, and so comes a piece early. */
static void cut_late(updates *u) {
  int *writer = ts_ids_none(u->graph->n_tensors); /* by root: the last piece that wrote to it */
  bool updated = false;
  for (int i = 0; i < u->n_late; ++i) {
    const ts_node *node = &u->graph->node[u->late[i]];
    bool window = ts_node_is_window(node) && writer[u->place[node->in[0]].root] == u->n_pieces;
    bool belongs = ts_node_takes(node) || !updated || window;
    u->n_pieces += !belongs;
    updated = (belongs && updated) || (ts_op_get(node->op)->flags & TS_OP_IS_UPDATE) != 0;
    u->piece[i] = u->n_pieces;
    for (int k = 0; k < node->n_out && !ts_node_is_window(node); ++k) {
      writer[u->place[node->out[k]].root] = u->n_pieces;
    }
  }
  u->n_pieces += u->n_late > 0;
  ts_free(writer);
}

/* None later than those behind it. */
static void find_deadlines(updates *u) {
  for (int p = 0; p < u->n_pieces; ++p) {
    u->before[p] = u->n_forward;
  }
  for (int i = 0; i < u->n_late; ++i) {
    const ts_node *node = &u->graph->node[u->late[i]];
    int *before = &u->before[u->piece[i]];
    for (int k = 0; k < node->n_out; ++k) {
      int at = u->first[u->place[node->out[k]].root];
      *before = at >= 0 && at < *before ? at : *before;
    }
  }
  for (int p = u->n_pieces - 2; p >= 0; --p) {
    u->before[p] = u->before[p] < u->before[p + 1] ? u->before[p] : u->before[p + 1];
  }
}

static int end_of_group(const updates *u, int begin) {
  int end = begin;
  while (end < u->n_pieces && u->before[end] == u->before[begin]) {
    ++end;
  }
  return end;
}

/* What is copied from where it lives when it is used has to be there: a group earlier. */
static void leave_time_to_store(updates *u) {
  int earlier = 0;
  for (int begin = 0, end = 0; begin < u->n_pieces; begin = end) {
    int own = u->before[begin];
    end = end_of_group(u, begin);
    bool copied = own < u->n_forward && ts_node_brings(&u->graph->node[u->forward[own]]);
    for (int p = begin; p < end; ++p) {
      u->before[p] = copied ? earlier : own;
    }
    earlier = own;
  }
}

static void count_seconds(updates *u, const ts_rates *rates) {
  u->done[0] = 0;
  for (int i = 0; i < u->n_forward; ++i) {
    u->done[i + 1] = u->done[i] + ts_node_seconds(u->graph, &u->graph->node[u->forward[i]], rates);
  }
}

/* By piece: the index in forward[] before which it stands. */
static int *spread_pieces(const updates *u) {
  int *at = ts_malloc(((size_t) u->n_pieces + 1) * sizeof *at), since = 0;
  for (int begin = 0, end = 0; begin < u->n_pieces; begin = end) {
    end = end_of_group(u, begin);
    double from = u->done[since], span = u->done[u->before[begin]] - from;
    for (int p = begin, i = since; p < end; ++p) {
      while (i < u->before[begin] && u->done[i] < from + span * (p - begin) / (end - begin)) {
        ++i;
      }
      at[p] = i;
    }
    since = u->before[begin];
  }
  return at;
}

/* All lists in one. \return behind the last. */
static ts_nid *merge_updates(const updates *u, const int *at, ts_nid *to) {
  for (int i = 0, k = 0; i <= u->n_forward; ++i) {
    for (; k < u->n_late && at[u->piece[k]] <= i; ++k) {
      *to++ = u->late[k];
    }
    for (int m = 0; m < u->n_gathers; ++m) {
      if (u->front[m] == i) {
        *to++ = u->gather[m];
      }
    }
    if (i < u->n_forward) {
      *to++ = u->forward[i];
    }
  }
  return to;
}

static void list_chunk(updates *u, int chunk) {
  const ts_graph *g = u->graph;
  u->n_late = u->n_gathers = u->n_forward = u->n_pieces = 0;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    ts_segment segment = g->node[n].segment;
    if (ts_segment_phase(segment) != 0 || ts_node_chunk(g, &g->node[n]) != chunk) {
      continue;
    }
    if (segment == TS_SEGMENT_LATE_UPDATE) {
      u->late[u->n_late++] = n;
    } else if (segment == TS_SEGMENT_LATE_GATHER) {
      u->gather[u->n_gathers++] = n;
    } else {
      u->forward[u->n_forward++] = n;
    }
  }
}

static bool has_updates(const ts_graph *g) {
  bool any = false;
  for (ts_nid n = 0; n < g->n_nodes && !any; ++n) {
    any = g->node[n].segment == TS_SEGMENT_LATE_UPDATE;
  }
  return any;
}

ts_nid *ts_order_updates(const ts_graph *g, const ts_rates *rates) {
  if (!has_updates(g)) {
    return NULL;
  }
  size_t entries = (size_t) g->n_nodes + 1;
  updates u = {.graph = g,
               .place = ts_storage_find(g),
               .late = ts_malloc(entries * sizeof *u.late),
               .gather = ts_malloc(entries * sizeof *u.gather),
               .forward = ts_malloc(entries * sizeof *u.forward),
               .front = ts_malloc(entries * sizeof *u.front),
               .piece = ts_malloc(entries * sizeof *u.piece),
               .before = ts_malloc(entries * sizeof *u.before),
               .done = ts_malloc((entries + 1) * sizeof *u.done)};
  ts_nid *order = ts_malloc(entries * sizeof *order), *to = order;
  for (int chunk = 0; chunk < ts_graph_chunks(g); ++chunk) {
    list_chunk(&u, chunk);
    find_first_touches(&u);
    place_gathers(&u);
    cut_late(&u);
    find_deadlines(&u);
    leave_time_to_store(&u);
    count_seconds(&u, rates);
    int *at = spread_pieces(&u);
    to = merge_updates(&u, at, to);
    ts_free(at);
    ts_free(u.first);
  }
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    if (ts_segment_phase(g->node[n].segment) != 0) {
      *to++ = n;
    }
  }
  TS_ASSERT(to == order + g->n_nodes);
  ts_free(u.place);
  ts_free(u.late);
  ts_free(u.gather);
  ts_free(u.forward);
  ts_free(u.front);
  ts_free(u.piece);
  ts_free(u.before);
  ts_free(u.done);
  return order;
}
