#include "graph/rewrite.h"

#include "base/memory.h"
#include "graph/op.h"

static int widest(const ts_graph *g) {
  int most = 1;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    most = g->node[n].n_in > most ? g->node[n].n_in : most;
    most = g->node[n].n_out > most ? g->node[n].n_out : most;
  }
  return most;
}

ts_rewrite ts_rewrite_begin(const ts_graph *from) {
  int most = widest(from);
  ts_rewrite r = {.from = from,
                  .to = ts_graph_create(),
                  .map = ts_ids_none(from->n_tensors),
                  .instead = ts_ids_none(from->n_tensors),
                  .in = ts_ids_none(most),
                  .prior = ts_ids_none(most)};
  r.to->apart = from->apart;
  r.to->changes = from->changes + 1;
  for (int u = 0; u < from->n_units; ++u) {
    ts_graph_unit(r.to, from->unit[u]);
  }
  if (from->chunk != NULL) {
    ts_graph_set_chunks(r.to, from->chunk, from->n_chunks);
  }
  return r;
}

ts_tid ts_rewrite_newest(const ts_rewrite *r, ts_tid t) {
  while (r->instead[t] != TS_NONE) {
    t = r->instead[t];
  }
  return t;
}

void ts_rewrite_marks(ts_rewrite *r) {
  for (int i = 0; i < r->from->n_marks; ++i) {
    ts_tid t = r->map[ts_rewrite_newest(r, r->from->mark[i].tensor)];
    if (t != TS_NONE) {
      ts_graph_mark(r->to, r->from->mark[i].name, t);
    }
  }
}

void ts_rewrite_end(ts_rewrite *r, ts_graph **graph) {
  ts_free(r->map);
  ts_free(r->instead);
  ts_free(r->in);
  ts_free(r->prior);
  ts_graph_destroy(graph);
  *graph = r->to;
}

/* ---- tensors ---- */

ts_tid ts_rewrite_leaf(ts_rewrite *r, ts_tid t, ts_dtype dtype) {
  ts_tensor leaf = r->from->tensor[t];
  TS_ASSERT(leaf.producer == TS_NONE && r->map[t] == TS_NONE);
  leaf.dtype = dtype;
  return r->map[t] = ts_graph_add_leaf(r->to, &leaf);
}

static bool is_room(const ts_graph *g, ts_tid t) {
  const ts_node *producer = ts_graph_producer(g, t);
  return producer != NULL && ts_node_is_room(producer);
}

static bool is_window_on_leaf(const ts_graph *g, ts_tid t) {
  const ts_node *producer = ts_graph_producer(g, t);
  return producer != NULL && producer->op == TS_OP_VIEW &&
         (g->tensor[producer->in[0]].producer == TS_NONE || is_room(g, producer->in[0]));
}

ts_tid ts_rewrite_tensor(ts_rewrite *r, ts_tid t) {
  if (t == TS_NONE) {
    return TS_NONE;
  }
  t = ts_rewrite_newest(r, t);
  const ts_tensor *tensor = &r->from->tensor[t];
  if (r->map[t] == TS_NONE && tensor->producer == TS_NONE) {
    ts_rewrite_leaf(r, t, tensor->dtype);
  } else if (r->map[t] == TS_NONE && is_window_on_leaf(r->from, t)) {
    ts_node view = r->from->node[tensor->producer];
    ts_tid leaf = ts_rewrite_tensor(r, view.in[0]);
    view.in = &leaf;
    ts_rewrite_add(r, tensor->producer, &view);
  } else if (r->map[t] == TS_NONE && is_room(r->from, t)) {
    ts_node room = r->from->node[tensor->producer];
    ts_rewrite_add(r, tensor->producer, &room);
  }
  TS_CHECK(r->map[t] != TS_NONE, "%s is read, but is not in the rewritten graph", tensor->name);
  return r->map[t];
}

/* ---- nodes ---- */

static void look_up_tensors(ts_rewrite *r, const ts_tid *list, int n, ts_tid *out) {
  for (int i = 0; i < n; ++i) {
    out[i] = ts_rewrite_tensor(r, list[i]);
  }
}

ts_node ts_rewrite_node(ts_rewrite *r, ts_nid n) {
  ts_node node = r->from->node[n];
  look_up_tensors(r, node.in, node.n_in, r->in);
  node.in = r->in;
  if (node.prior != NULL) {
    look_up_tensors(r, node.prior, node.n_out, r->prior);
    node.prior = r->prior;
  }
  node.beta = ts_rewrite_tensor(r, node.beta);
  return node;
}

void ts_rewrite_add(ts_rewrite *r, ts_nid n, const ts_node *node) {
  const ts_node *old = &r->from->node[n];
  ts_tid first = ts_graph_add((ts_site){r->to, node->segment, node->unit}, node);
  for (int i = 0; i < old->n_out && (node->n_out == 0 || i < node->n_out); ++i) {
    r->map[old->out[i]] = first + i;
  }
}

void ts_rewrite_copy(ts_rewrite *r, ts_nid n) {
  const ts_node *old = &r->from->node[n];
  if (old->n_out == 0 || r->map[old->out[0]] == TS_NONE) {
    ts_node node = ts_rewrite_node(r, n);
    ts_rewrite_add(r, n, &node);
  }
}
