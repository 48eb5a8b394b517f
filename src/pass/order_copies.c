/* Loads ahead of what is computed with them, stores behind. */
#include "pass/order.h"

#include "base/memory.h"
#include "graph/op.h"
#include "pass/storage.h"

typedef struct loads {
  const ts_graph *graph;
  ts_place *place;
  ts_nid *reader; /* per node: of a load the first that reads of it, through windows, else TS_NONE */
  bool *reads;    /* per node: it is one of those, and no copy itself */
  ts_nid *order;
  int n; /* of the order */
  bool *issued;
  ts_nid *held; /* stores of what a device still has to bring to the host's memory */
  int n_held;
  bool computes; /* something comes behind them that is computed */
} loads;

/* Does a node bring something to another one: to where that computes, or a device's to what the host computes? */
static bool serves(const ts_node *copy, const ts_node *reader) {
  return ts_node_brings(copy) || (copy->op == TS_OP_COPY_OUT && copy->in[0] == TS_NONE && reader->on_host);
}

/* Node n reads t, or adds to it. */
static void note_load_reader(loads *l, ts_nid n, ts_tid t) {
  const ts_graph *g = l->graph;
  ts_nid load = t != TS_NONE ? g->tensor[l->place[t].root].producer : TS_NONE;
  if (load != TS_NONE && serves(&g->node[load], &g->node[n]) && l->reader[load] == TS_NONE) {
    l->reader[load] = n;
    l->reads[n] = !ts_node_is_copy(&g->node[n]);
  }
}

static void find_first_readers(loads *l) {
  const ts_graph *g = l->graph;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    for (int i = 0; i < node->n_in && !ts_node_is_window(node); ++i) {
      note_load_reader(l, n, node->in[i]);
    }
    for (int i = 0; node->prior != NULL && i < node->n_out; ++i) {
      note_load_reader(l, n, node->prior[i]);
    }
  }
}

static void issue_node(loads *l, ts_nid n) {
  l->order[l->n++] = n;
  l->issued[n] = true;
}

/* What a load copies. */
static ts_tid copied_from(const ts_node *load) {
  return load->in[load->n_in - 1];
}

/* With the windows that it reads: they move nothing. */
static void issue_load(loads *l, ts_nid n) {
  ts_nid window = l->graph->tensor[copied_from(&l->graph->node[n])].producer;
  if (window != TS_NONE && !l->issued[window]) {
    issue_load(l, window);
  }
  issue_node(l, n);
}

/* Is what it copies made, or being loaded? */
static bool is_at_hand(const loads *l, ts_tid t) {
  const ts_node *from = ts_graph_producer(l->graph, t);
  return from == NULL || l->issued[from - l->graph->node] || (from->op == TS_OP_VIEW && is_at_hand(l, from->in[0]));
}

/* Of two copies to a device the first is a turn ahead of the second. */
static int turns_ahead(const loads *l, ts_nid n) {
  ts_nid reader = l->reader[n];
  return reader != TS_NONE && ts_node_is_copy(&l->graph->node[reader]) ? 1 : 0;
}

/* Have two tensors bytes in common? */
static bool overlap(const loads *l, ts_tid a, ts_tid b) {
  ts_place x = l->place[a], y = l->place[b];
  return x.root == y.root && x.offset < y.offset + ts_tensor_bytes(l->graph, b) &&
         y.offset < x.offset + ts_tensor_bytes(l->graph, a);
}

/* Does a node write to where it lives something of what a load reads: does it take it there, or does the host update it
 * in place? */
static bool writes_home(const loads *l, const ts_node *node, ts_tid from) {
  bool writes = false;
  for (int i = 0; i < node->n_out && (ts_node_takes(node) || node->on_host) && !writes; ++i) {
    writes = overlap(l, node->out[i], from);
  }
  return writes;
}

/* Is there such a node from i on, and before load n, or is one held back? */
static bool is_stored_between(const loads *l, ts_nid i, ts_nid n) {
  const ts_graph *g = l->graph;
  ts_tid from = copied_from(&g->node[n]);
  bool stored = false;
  for (ts_nid m = i; m < n && !stored; ++m) {
    stored = writes_home(l, &g->node[m], from);
  }
  for (int k = 0; k < l->n_held && !stored; ++k) {
    stored = writes_home(l, &g->node[l->held[k]], from);
  }
  return stored;
}

/* Of what is updated, or else of a unit. */
static bool is_of_piece(const ts_node *node) {
  return (node->segment & (TS_SEGMENT_UPDATE | TS_SEGMENT_LATE_UPDATE)) != 0;
}

/* Before node i: what the next readers behind it read, of the same phase and chunk, so many of units and of pieces. */
static void issue_loads_ahead(loads *l, ts_nid i, int units, int pieces) {
  const ts_graph *g = l->graph;
  const ts_node *node = &g->node[i];
  int left[] = {units, pieces};
  bool any[] = {units > 0, pieces > 0};
  for (ts_nid n = i + 1; n < g->n_nodes && (left[0] >= 0 || left[1] >= 0); ++n) {
    const ts_node *next = &g->node[n];
    bool piece = is_of_piece(next);
    if (ts_segment_phase(next->segment) != ts_segment_phase(node->segment) ||
        ts_node_chunk(g, next) != ts_node_chunk(g, node)) {
      return;
    }
    if (l->reader[n] != TS_NONE && any[piece] && left[piece] + turns_ahead(l, n) > 0 && !l->issued[n] &&
        is_at_hand(l, copied_from(next)) && !is_stored_between(l, i, n)) {
      issue_load(l, n);
    }
    left[piece] -= l->reads[n];
  }
}

/* ---- stores ---- */

/* Is it of what a device has, by way of the host's memory?  The host waits for that before it begins: then something
 * is computed meanwhile. */
static bool may_be_held(const ts_graph *g, const ts_node *node) {
  const ts_node *from = node->op == TS_OP_STORE ? ts_graph_producer(g, node->in[1]) : NULL;
  return from != NULL && from->op == TS_OP_COPY_OUT;
}

static void issue_held(loads *l) {
  for (int i = 0; i < l->n_held; ++i) {
    issue_node(l, l->held[i]);
  }
  l->n_held = 0;
}

/* Does node n want what a held store makes, or is it of another run? */
static bool ends_holding(const loads *l, ts_nid n) {
  const ts_graph *g = l->graph;
  const ts_node *node = &g->node[n];
  bool ends = false;
  for (int i = 0; i < l->n_held && !ends; ++i) {
    const ts_node *held = &g->node[l->held[i]];
    ends = ts_segment_phase(held->segment) != ts_segment_phase(node->segment) ||
           ts_node_chunk(g, held) != ts_node_chunk(g, node) ||
           (ts_node_brings(node) && overlap(l, node->in[0], held->out[0]));
    for (int k = 0; k < node->n_in && !ends; ++k) {
      ends = node->in[k] == held->out[0];
    }
  }
  return ends;
}

/* In its turn. */
static void issue_in_order(loads *l, ts_nid n, bool behind) {
  if (ends_holding(l, n)) {
    issue_held(l);
  }
  const ts_node *node = &l->graph->node[n];
  if (behind && may_be_held(l->graph, node)) {
    if (l->computes) { /* of what is kept: those of the block before */
      issue_held(l);
    }
    l->held[l->n_held++] = n;
    l->computes = false;
    return;
  }
  issue_node(l, n);
  l->computes = l->computes || !(ts_node_is_copy(node) || ts_node_is_window(node));
  if (l->reads[n]) {
    issue_held(l);
  }
}

static bool has_copies(const ts_graph *g) {
  bool any = false;
  for (ts_nid n = 0; n < g->n_nodes && !any; ++n) {
    any = ts_node_is_copy(&g->node[n]);
  }
  return any;
}

/* First of all the windows of leaves that loads read: they move nothing, so they may stand anywhere. */
static void issue_windows(loads *l) {
  for (ts_nid n = 0; n < l->graph->n_nodes; ++n) {
    const ts_node *node = &l->graph->node[n];
    if (node->op == TS_OP_VIEW && ts_space_is_away(l->graph->tensor[node->out[0]].space) &&
        l->graph->tensor[node->in[0]].producer == TS_NONE) {
      issue_node(l, n);
    }
  }
}

ts_nid *ts_order_loads(const ts_graph *g, int units, int pieces, bool behind) {
  if (!has_copies(g)) {
    return NULL;
  }
  size_t entries = (size_t) g->n_nodes + 1;
  loads l = {.graph = g,
             .place = ts_storage_find(g),
             .reader = ts_ids_none(g->n_nodes),
             .reads = ts_calloc(entries, sizeof *l.reads),
             .order = ts_malloc(entries * sizeof *l.order),
             .issued = ts_calloc(entries, sizeof *l.issued),
             .held = ts_malloc(entries * sizeof *l.held)};
  find_first_readers(&l);
  issue_windows(&l);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    if (l.reads[n]) {
      issue_loads_ahead(&l, n, units, pieces);
    }
    if (!l.issued[n]) {
      issue_in_order(&l, n, behind);
    }
  }
  issue_held(&l);
  TS_ASSERT(l.n == g->n_nodes);
  ts_free(l.held);
  ts_free(l.place);
  ts_free(l.reader);
  ts_free(l.reads);
  ts_free(l.issued);
  return l.order;
}
