/* Updates that the step before has left, among the first forward of the next.
 *
 * A piece is the nodes up to its last store.  Each has to come before the first node of the forward that touches what
 * it writes; those with the same such node are a group, of one unit as a rule, and are spread evenly over what is
 * computed between the group before's and their own.  So their copies go on all the time, and nobody waits for more
 * than one of them.
 *
 * Gathers of what they make are pieces too, at the end of a group's time: a place that the graph alone decides, as
 * ranks may differ in pieces, but have one order of messages. */
#include "pass/order.h"

#include "base/memory.h"
#include "graph/op.h"
#include "pass/storage.h"

/* Of one chunk. */
typedef struct updates {
  const ts_graph *graph;
  ts_place *place;
  ts_nid *late, *forward; /* in their order */
  int n_late, n_forward;
  int *piece; /* of late[]: which one it is in */
  int n_pieces;
  bool *gathers; /* by piece */
  int *before;   /* by piece: the index in forward[] that it must come before; n_forward: any */
  double *done;  /* by index in forward[], and one more: seconds of all before it */
} updates;

static void note_first(int *first, ts_tid root, int at) {
  first[root] = first[root] < 0 ? at : first[root];
}

/* By root: the first of the forward that touches it, -1 for none. */
static int *find_first_touches(const updates *u) {
  int *first = ts_ids_none(u->graph->n_tensors);
  for (int i = 0; i < u->n_forward; ++i) {
    const ts_node *node = &u->graph->node[u->forward[i]];
    for (int k = 0; k < node->n_in; ++k) {
      if (node->in[k] != TS_NONE) {
        note_first(first, u->place[node->in[k]].root, i);
      }
    }
  }
  return first;
}

static bool is_gather(const ts_node *node) {
  return node->segment == TS_SEGMENT_LATE_GATHER;
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
    updated = (belongs && updated) || (ts_op_get(node->op)->flags & TS_OP_IS_UPDATE) != 0 || is_gather(node);
    u->piece[i] = u->n_pieces;
    u->gathers[u->n_pieces] = is_gather(node);
    for (int k = 0; k < node->n_out && !ts_node_is_window(node); ++k) {
      writer[u->place[node->out[k]].root] = u->n_pieces;
    }
  }
  u->n_pieces += u->n_late > 0;
  ts_free(writer);
}

/* None later than those behind it. */
static void find_deadlines(updates *u) {
  int *first = find_first_touches(u);
  for (int p = 0; p < u->n_pieces; ++p) {
    u->before[p] = u->n_forward;
  }
  for (int i = 0; i < u->n_late; ++i) {
    const ts_node *node = &u->graph->node[u->late[i]];
    int *before = &u->before[u->piece[i]];
    for (int k = 0; k < node->n_out; ++k) {
      int at = first[u->place[node->out[k]].root];
      *before = at >= 0 && at < *before ? at : *before;
    }
  }
  for (int p = u->n_pieces - 2; p >= 0; --p) {
    u->before[p] = u->before[p] < u->before[p + 1] ? u->before[p] : u->before[p + 1];
  }
  ts_free(first);
}

static int end_of_group(const updates *u, int begin) {
  int end = begin;
  while (end < u->n_pieces && u->before[end] == u->before[begin]) {
    ++end;
  }
  return end;
}

/* What is copied from where it lives when it is used has to be there, and what is gathered: a group earlier. */
static void leave_time_to_move(updates *u) {
  int earlier = 0;
  for (int begin = 0, end = 0; begin < u->n_pieces; begin = end) {
    int own = u->before[begin];
    end = end_of_group(u, begin);
    bool moves = own < u->n_forward && ts_node_brings(&u->graph->node[u->forward[own]]);
    for (int p = begin; p < end; ++p) {
      moves = moves || u->gathers[p];
    }
    for (int p = begin; p < end; ++p) {
      u->before[p] = moves ? earlier : own;
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
      while (i < u->before[begin] && (u->gathers[p] || u->done[i] < from + span * (p - begin) / (end - begin))) {
        ++i;
      }
      at[p] = i;
    }
    since = u->before[begin];
  }
  return at;
}

/* Both lists in one. \return behind the last. */
static ts_nid *merge_updates(const updates *u, const int *at, ts_nid *to) {
  int i = 0;
  for (int k = 0; k < u->n_late; ++k) {
    while (i < at[u->piece[k]]) {
      *to++ = u->forward[i++];
    }
    *to++ = u->late[k];
  }
  while (i < u->n_forward) {
    *to++ = u->forward[i++];
  }
  return to;
}

static void list_chunk(updates *u, int chunk) {
  const ts_graph *g = u->graph;
  u->n_late = u->n_forward = u->n_pieces = 0;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    bool late = node->segment == TS_SEGMENT_LATE_UPDATE || is_gather(node);
    if (ts_segment_phase(node->segment) == 0 && ts_node_chunk(g, node) == chunk) {
      *(late ? &u->late[u->n_late++] : &u->forward[u->n_forward++]) = n;
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
               .forward = ts_malloc(entries * sizeof *u.forward),
               .piece = ts_malloc(entries * sizeof *u.piece),
               .gathers = ts_malloc(entries * sizeof *u.gathers),
               .before = ts_malloc(entries * sizeof *u.before),
               .done = ts_malloc((entries + 1) * sizeof *u.done)};
  ts_nid *order = ts_malloc(entries * sizeof *order), *to = order;
  for (int chunk = 0; chunk < ts_graph_chunks(g); ++chunk) {
    list_chunk(&u, chunk);
    cut_late(&u);
    find_deadlines(&u);
    leave_time_to_move(&u);
    count_seconds(&u, rates);
    int *at = spread_pieces(&u);
    to = merge_updates(&u, at, to);
    ts_free(at);
  }
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    if (ts_segment_phase(g->node[n].segment) != 0) {
      *to++ = n;
    }
  }
  TS_ASSERT(to == order + g->n_nodes);
  ts_free(u.place);
  ts_free(u.late);
  ts_free(u.forward);
  ts_free(u.piece);
  ts_free(u.gathers);
  ts_free(u.before);
  ts_free(u.done);
  return order;
}
