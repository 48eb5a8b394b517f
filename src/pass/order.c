#include "pass/order.h"

#include "base/memory.h"
#include "comm/mesh.h"
#include "graph/op.h"

#include <stdlib.h>

/* ---- gathers of parameters ahead of their units ---- */

/* State, as it is, from where it lives or in another type; or as the update has made it that comes before all. */
static bool is_of_state(const ts_graph *g, ts_tid t) {
  const ts_node *from = ts_graph_producer(g, t);
  bool carries = from != NULL && (from->op == TS_OP_CAST || ts_node_brings(from));
  bool updated = from != NULL && from->segment == TS_SEGMENT_LATE_UPDATE;
  return carries && !updated ? is_of_state(g, from->in[0]) : updated || g->tensor[t].role == TS_ROLE_STATE;
}

/* A gather of state alone may be issued at any time; but one among ranks that share products, or that lack some of the
 * axes `all`: they have more or less to gather ahead than others, and have to keep one order. */
static bool is_free_gather(const ts_graph *g, const ts_node *node, unsigned all) {
  if (ts_node_is_collective(node) && (node->attr.comm.axes & all) != all) {
    return false;
  }
  if (ts_node_is_collective(node) && (node->attr.comm.axes & (TS_AXES(TS_AXIS_TP) | TS_AXES_SHARERS)) != 0) {
    return false;
  }
  if (node->op != TS_OP_ALL_GATHER || node->attr.comm.into || ts_segment_phase(node->segment) == 2) {
    return false;
  }
  for (int i = 0; i < node->n_in; ++i) {
    if (!is_of_state(g, node->in[i])) {
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

/* Per node the next exchange behind it; n_nodes for none. */
static ts_nid *find_next_exchange(const ts_graph *g) {
  ts_nid *next = ts_malloc(((size_t) g->n_nodes + 1) * sizeof *next);
  next[g->n_nodes] = g->n_nodes;
  for (ts_nid n = g->n_nodes - 1; n >= 0; --n) {
    next[n] = n + 1 < g->n_nodes && g->node[n + 1].op == TS_OP_ALL_TO_ALL ? n + 1 : next[n + 1];
  }
  return next;
}

typedef struct prefetch {
  const ts_graph *graph;
  ts_nid *order;
  int n;        /* of the order */
  bool *issued; /* per node */
  ts_nid next;  /* candidates are found from here on */
  int64_t ahead;
  unsigned all; /* axes */
} prefetch;

/* A gather, behind the casts and copies it needs. */
static void issue_gather(prefetch *p, ts_nid n) {
  const ts_node *node = &p->graph->node[n];
  for (int i = 0; i < node->n_in; ++i) {
    ts_nid needed = p->graph->tensor[node->in[i]].producer;
    if (needed != TS_NONE && !p->issued[needed]) {
      issue_gather(p, needed);
    }
  }
  p->issued[n] = true;
  p->order[p->n++] = n;
}

/* Behind node i, while `last` was the gather before: what may be issued before any exchange is. */
static void issue_ahead(prefetch *p, ts_nid i, ts_nid last, ts_nid exchange, int64_t budget, int64_t most) {
  const ts_graph *g = p->graph;
  int phase = ts_segment_phase(g->node[last].segment), chunk = ts_node_chunk(g, &g->node[last]);
  for (p->next = p->next > i ? p->next : i + 1;
       p->next < exchange && ts_segment_phase(g->node[p->next].segment) == phase &&
       ts_node_chunk(g, &g->node[p->next]) == chunk;
       ++p->next) {
    if (is_free_gather(g, &g->node[p->next], p->all)) {
      int64_t elements = gathered_elements(g, &g->node[p->next]);
      if (p->ahead + elements > budget || p->ahead + elements + gathered_elements(g, &g->node[last]) > most) {
        break;
      }
      p->ahead += elements;
      issue_gather(p, p->next);
    }
  }
}

ts_nid *ts_order_prefetch(const ts_graph *g, int64_t budget, int64_t most, unsigned all) {
  prefetch p = {.graph = g,
                .all = all,
                .order = ts_malloc(((size_t) g->n_nodes + 1) * sizeof *p.order),
                .issued = ts_calloc((size_t) g->n_nodes + 1, sizeof *p.issued)};
  ts_nid *exchange = find_next_exchange(g), last = TS_NONE;
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    const ts_node *node = &g->node[i];
    bool gathers = is_free_gather(g, node, all);
    if (!p.issued[i]) {
      p.order[p.n++] = i;
      p.issued[i] = true;
    } else if (gathers) {
      p.ahead -= gathered_elements(g, node);
    }
    last = gathers ? i : last;
    if (gathers || (last != TS_NONE && node->op == TS_OP_ALL_TO_ALL)) {
      issue_ahead(&p, i, last, exchange[i], budget, most);
    }
  }
  TS_ASSERT(p.n == g->n_nodes);
  ts_free(p.issued);
  ts_free(exchange);
  return p.order;
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
static ts_nid *find_late_order(const ts_graph *g, unsigned axes) {
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

ts_nid *ts_order_late_weights(const ts_graph *g, unsigned axes) {
  return has_messages(g, axes) ? find_late_order(g, axes) : NULL;
}

/* ---- exchanges travel under attention, tokens under products of experts ---- */

static bool is_attention(const ts_node *node) {
  return node->op == TS_OP_ATTENTION || node->op == TS_OP_ATTENTION_DX;
}

typedef struct early {
  const ts_graph *graph;
  ts_nid *order;
  int n; /* of the order */
  bool *issued;
  ts_nid *reader; /* per node: of an exchange to heads the first attention that reads it, else TS_NONE */
  ts_nid *wanted; /* an exchange and what it needs that is not issued */
  int n_wanted;
  ts_nid *asked; /* per node: the message that it was wanted for last */
} early;

static ts_nid *find_attention_of(const ts_graph *g) {
  ts_nid *reader = ts_ids_none(g->n_nodes);
  for (ts_nid n = g->n_nodes - 1; n >= 0; --n) {
    for (int i = 0; i < g->node[n].n_in && is_attention(&g->node[n]); ++i) {
      const ts_node *from = g->node[n].in[i] == TS_NONE ? NULL : ts_graph_producer(g, g->node[n].in[i]);
      if (from != NULL && from->op == TS_OP_ALL_TO_ALL) {
        reader[from - g->node] = n;
      }
    }
  }
  return reader;
}

/* The attention behind n, of the same unit and phase. */
static ts_nid next_attention(const ts_graph *g, ts_nid n) {
  const ts_node *node = &g->node[n];
  int phase = ts_segment_phase(node->segment);
  for (ts_nid m = n + 1; m < g->n_nodes && g->node[m].unit == node->unit; ++m) {
    if (is_attention(&g->node[m])) {
      return ts_segment_phase(g->node[m].segment) == phase ? m : TS_NONE;
    }
  }
  return TS_NONE;
}

/* What it waits for, unless that has been issued. */
static ts_nid next_message(const early *e, ts_nid n) {
  ts_nid attention = next_attention(e->graph, n);
  for (ts_nid m = n + 1; m < attention; ++m) {
    if (e->reader[m] == attention && !e->issued[m]) {
      return m;
    }
  }
  return TS_NONE;
}

/* Put m and what it needs for `message` on the list.  \return false: node n is among it, or another message, or what is
 * done in place. */
static bool want(early *e, ts_nid m, ts_nid message, ts_nid n) {
  const ts_node *node = &e->graph->node[m];
  bool may = m != n && (m == message || !ts_node_is_collective(node)) && ts_op_get(node->op)->n_inplace == 0 &&
             node->prior == NULL && node->beta == TS_NONE;
  e->wanted[e->n_wanted++] = m;
  e->asked[m] = message;
  for (int i = 0; i < node->n_in && may; ++i) {
    ts_nid producer = node->in[i] == TS_NONE ? TS_NONE : e->graph->tensor[node->in[i]].producer;
    may = producer == TS_NONE || e->issued[producer] || e->asked[producer] == message || want(e, producer, message, n);
  }
  return may;
}

static int by_number(const void *a, const void *b) {
  return (*(const ts_nid *) a > *(const ts_nid *) b) - (*(const ts_nid *) a < *(const ts_nid *) b);
}

/* A message with all that it needs, in the order that these have, unless node n is among it. */
static void issue_message(early *e, ts_nid message, ts_nid n) {
  e->n_wanted = 0;
  if (!want(e, message, message, n)) {
    return;
  }
  qsort(e->wanted, (size_t) e->n_wanted, sizeof *e->wanted, by_number);
  for (int i = 0; i < e->n_wanted; ++i) {
    e->order[e->n++] = e->wanted[i];
    e->issued[e->wanted[i]] = true;
  }
}

/* Rows that come to experts of this rank: gathered, or from the ranks that have them. */
static bool brings_rows(const ts_node *node) {
  return node->op == TS_OP_EXCHANGE_ROWS && !node->attr.comm.home;
}

/* What waits for rows of experts, which n has brought: behind it the messages of the same unit and phase up to the
 * products of the next rows that are brought. */
static void issue_tokens(early *e, ts_nid n) {
  const ts_graph *g = e->graph;
  const ts_node *node = &g->node[n];
  int phase = ts_segment_phase(node->segment);
  bool last = false, more = false;
  for (ts_nid m = n + 1;
       m < g->n_nodes && !last && g->node[m].unit == node->unit && ts_segment_phase(g->node[m].segment) == phase; ++m) {
    bool gathers = g->node[m].op == TS_OP_ALL_GATHER && g->node[m].attr.comm.axes == TS_AXES(TS_AXIS_EP);
    if ((gathers || brings_rows(&g->node[m])) && !e->issued[m]) {
      issue_message(e, m, TS_NONE);
    }
    more = more || brings_rows(&g->node[m]);
    last = brings_rows(node) ? more && g->node[m].op == TS_OP_GROUPED : more || g->node[m].op == TS_OP_TAKE_ROWS;
  }
}

ts_nid *ts_order_exchanges(const ts_graph *g) {
  size_t entries = (size_t) g->n_nodes + 1;
  early e = {.graph = g,
             .order = ts_malloc(entries * sizeof *e.order),
             .issued = ts_calloc(entries, sizeof *e.issued),
             .reader = find_attention_of(g),
             .wanted = ts_malloc(entries * sizeof *e.wanted),
             .asked = ts_ids_none(g->n_nodes)};
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    ts_nid message = is_attention(&g->node[n]) ? next_message(&e, n) : TS_NONE;
    if (message != TS_NONE) {
      issue_message(&e, message, n);
    }
    if (!e.issued[n]) {
      e.order[e.n++] = n;
      e.issued[n] = true;
    }
    if (g->node[n].op == TS_OP_TAKE_ROWS || brings_rows(&g->node[n])) {
      issue_tokens(&e, n);
    }
  }
  ts_free(e.issued);
  ts_free(e.reader);
  ts_free(e.wanted);
  ts_free(e.asked);
  return e.order;
}
