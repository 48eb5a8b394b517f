/* Activations leave: what is kept from the forward for the backward waits in the host's memory beside a device's.
 *
 * A copy of it goes when its first reader has it, and comes back for its first reader in the backward; what is kept of
 * the units that the backward begins with stays, as it would come back at once.  Values are the same, and so are all
 * bits. */
#include "pass/offload.h"

#include "base/memory.h"
#include "base/text.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "ops/build.h"

/* Smaller tensors are not worth a copy. */
#define LEAST_BYTES 2048

/* Units at the end of the forward that keep what they keep. */
#define STAY 2

/* Per tensor: the nodes that read it first in the forward and in the backward, TS_NONE for none; and does a gradient of
 * inputs, which is computed before those of weights where these have runs of their own? */
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

/* Is it made in the forward by computation, and kept?  What a pipeline's neighbour has sent has a place of its own. */
static bool is_kept(const ts_graph *g, const readers *r, ts_tid t) {
  const ts_node *producer = ts_graph_producer(g, t);
  return producer != NULL && producer->segment == TS_SEGMENT_FORWARD &&
         (ts_op_get(producer->op)->flags & (TS_OP_ALIAS | TS_OP_MESSAGE)) == 0 && r->backward[t] != TS_NONE &&
         !ts_graph_is_marked(g, t) && ts_tensor_bytes(g, t) >= LEAST_BYTES;
}

/* A tensor that leaves. */
typedef struct leaver {
  ts_tid tensor, away; /* in the old graph; in the new one, where it is then */
  ts_nid after, before;
  ts_segment segment; /* in which it comes back */
} leaver;

/* All that is kept, in the order in which it is made, but for the units that end the forward. */
static leaver *find_leavers(const ts_graph *g, int *n) {
  readers r = find_first_uses(g);
  leaver *list = NULL;
  int capacity = 0, units = 0, unit = -1;
  *n = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    if (is_kept(g, &r, t)) {
      ts_nid after = r.forward[t] != TS_NONE ? r.forward[t] : g->tensor[t].producer;
      TS_GROW(list, *n, capacity);
      ts_segment first = g->node[r.backward[t]].segment;
      list[(*n)++] = (leaver){t, TS_NONE, after, r.backward[t], r.of_inputs[t] ? TS_SEGMENT_BACKWARD_INPUT : first};
    }
  }
  while (*n > 0 && (units < STAY || g->tensor[list[*n - 1].tensor].unit == unit)) {
    units += units == 0 || g->tensor[list[*n - 1].tensor].unit != unit;
    unit = g->tensor[list[--*n].tensor].unit;
  }
  ts_free(r.forward);
  ts_free(r.backward);
  ts_free(r.of_inputs);
  return list;
}

/* Behind the node that was copied last. */
static void copy_out(ts_rewrite *r, leaver *l) {
  const ts_tensor *tensor = &r->from->tensor[l->tensor];
  char *name = ts_format("%s.away", tensor->name);
  const ts_tid in[] = {TS_NONE, ts_rewrite_tensor(r, l->tensor)};
  l->away = ts_build((ts_site){r->to, TS_SEGMENT_FORWARD, tensor->unit}, TS_OP_COPY_OUT, name, 2, in);
  ts_free(name);
}

/* Before its first reader in the backward; all of these read the copy. */
static void copy_in(ts_rewrite *r, const leaver *l) {
  const ts_node *reader = &r->from->node[l->before];
  char *name = ts_format("%s.back", r->from->tensor[l->tensor].name);
  r->map[l->tensor] = ts_build((ts_site){r->to, l->segment, reader->unit}, TS_OP_COPY_IN, name, 1, &l->away);
  ts_free(name);
}

void ts_pass_offload(ts_graph **graph, ts_pass_context *context) {
  if (!ts_offload_activations(context)) {
    return;
  }
  int n_leavers;
  leaver *list = find_leavers(*graph, &n_leavers);
  ts_rewrite r = ts_rewrite_begin(*graph);
  for (ts_nid n = 0; n < r.from->n_nodes; ++n) {
    for (int i = 0; i < n_leavers; ++i) {
      if (list[i].before == n) {
        copy_in(&r, &list[i]);
      }
    }
    ts_rewrite_copy(&r, n);
    for (int i = 0; i < n_leavers; ++i) {
      if (list[i].after == n) {
        copy_out(&r, &list[i]);
      }
    }
  }
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, graph);
  ts_free(list);
}
