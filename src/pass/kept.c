#include "pass/kept.h"

#include "base/memory.h"

/* Per tensor: the nodes that read it first in the forward and in the backward, TS_NONE for none; and does a gradient of
 * inputs? */
typedef struct readers {
  ts_nid *forward, *backward;
  bool *of_inputs;
} readers;

static void note_reader(const ts_graph *g, readers *r, ts_tid t, ts_nid n) {
  ts_nid *first = ts_segment_phase(g->node[n].segment) == 0 ? r->forward : r->backward;
  if (t != TS_NONE) {
    first[t] = first[t] == TS_NONE ? n : first[t];
    r->of_inputs[t] = r->of_inputs[t] || g->node[n].segment == TS_SEGMENT_BACKWARD_INPUT;
  }
}

static readers find_first_uses(const ts_graph *g) {
  readers r = {ts_ids_none(g->n_tensors), ts_ids_none(g->n_tensors),
               ts_calloc((size_t) g->n_tensors + 1, sizeof *r.of_inputs)};
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    for (int i = 0; i < node->n_in; ++i) {
      note_reader(g, &r, node->in[i], n);
    }
    for (int i = 0; node->prior != NULL && i < node->n_out; ++i) {
      note_reader(g, &r, node->prior[i], n);
    }
  }
  return r;
}

static bool is_kept(const ts_graph *g, const readers *r, ts_tid t) {
  const ts_node *producer = ts_graph_producer(g, t);
  return producer != NULL && producer->segment == TS_SEGMENT_FORWARD && r->backward[t] != TS_NONE &&
         !ts_graph_is_marked(g, t);
}

ts_kept *ts_kept_find(const ts_graph *g, int *n) {
  readers r = find_first_uses(g);
  ts_kept *list = NULL;
  int capacity = 0;
  *n = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    if (is_kept(g, &r, t)) {
      ts_nid after = r.forward[t] != TS_NONE ? r.forward[t] : g->tensor[t].producer;
      ts_segment first = g->node[r.backward[t]].segment;
      TS_GROW(list, *n, capacity);
      list[(*n)++] = (ts_kept){t, after, r.backward[t], r.of_inputs[t] ? TS_SEGMENT_BACKWARD_INPUT : first};
    }
  }
  ts_free(r.forward);
  ts_free(r.backward);
  ts_free(r.of_inputs);
  return list;
}
