/* Activations leave: what is kept from the forward for the backward waits in the host's memory beside a device's, or in
 * a file.
 *
 *   a device      copy_out ... copy_in,      copy_out store ... load copy_in
 *   processors                                        store ... load
 *
 * A copy of it goes when its first reader has it, and comes back for its first reader in the backward; what is kept of
 * the units that the backward begins with stays, as it would come back at once.  In a file each has a leaf of its own,
 * which every micro-batch writes anew.  Values are the same, and so are all bits. */
#include "pass/offload.h"

#include "base/memory.h"
#include "base/text.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "ops/build.h"

#include <limits.h>

/* Smaller tensors are not worth a copy. */
#define LEAST_BYTES 2048

/* Units at the end of the forward that keep what they keep, at least. */
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
  bool stored;        /* in a file */
} leaver;

/* What stays, and what goes to files, in units. */
typedef struct places {
  int stay, stored; /* those that end the forward; those that begin it */
} places;

/* A leaf has one place in its file, and of micro-batches of a pipeline several are under way, as of a program's own
 * steps there may be. */
static bool may_be_stored(const ts_pass_context *context) {
  return context->mesh->size[TS_AXIS_PP] == 1 && !context->by_hand && ts_deck_files(context->deck)[0] != 0;
}

/* As decided (run/budget.h), or else, as the deck says, all beside a device and none of processors. */
static places find_places(const ts_pass_context *context) {
  const bool device = context->target.backend->device != NULL, stored = may_be_stored(context);
  places p = {.stay = context->stay.units > STAY ? context->stay.units : STAY,
              .stored = stored ? context->stay.units_stored : 0};
  if (!device) {
    p.stay = stored && context->stay.units > 0 ? p.stay : INT_MAX;
    p.stored = INT_MAX;
  }
  return p;
}

/* Of how many units. */
static int count_units(const ts_graph *g, const leaver *list, int n) {
  int units = 0;
  for (int i = 0; i < n; ++i) {
    units += i == 0 || g->tensor[list[i].tensor].unit != g->tensor[list[i - 1].tensor].unit;
  }
  return units;
}

/* All that is kept, in the order in which it is made, but for what stays: that of units the backward wants first. */
static leaver *find_leavers(const ts_graph *g, places of, int *n) {
  readers r = find_first_uses(g);
  leaver *list = NULL;
  int capacity = 0;
  *n = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    if (is_kept(g, &r, t)) {
      ts_nid after = r.forward[t] != TS_NONE ? r.forward[t] : g->tensor[t].producer;
      TS_GROW(list, *n, capacity);
      ts_segment first = g->node[r.backward[t]].segment;
      ts_segment back = r.of_inputs[t] ? TS_SEGMENT_BACKWARD_INPUT : first;
      list[(*n)++] = (leaver){t, TS_NONE, after, r.backward[t], back, false};
    }
  }
  const int units = count_units(g, list, *n);
  while (*n > 0 && count_units(g, list, *n) > units - of.stay) {
    --*n;
  }
  for (int i = 0; i < *n; ++i) {
    list[i].stored = count_units(g, list, i + 1) <= of.stored;
  }
  ts_free(r.forward);
  ts_free(r.backward);
  ts_free(r.of_inputs);
  return list;
}

static ts_tid add_leaf(ts_graph *g, const ts_tensor *tensor) {
  char *name = ts_format("%s.kept", tensor->name);
  const ts_held held = {TS_STATE_KEPT, -1, true};
  ts_tid leaf = ts_graph_state(g, name, held, tensor->dtype, tensor->shape, tensor->unit);
  g->tensor[leaf].space = TS_SPACE_FILE;
  ts_free(name);
  return leaf;
}

static ts_tid copy(ts_site at, ts_op op, const ts_tensor *tensor, const char *what, int n, const ts_tid *in) {
  char *name = ts_format("%s.%s", tensor->name, what);
  ts_tid out = ts_build(at, op, name, n, in);
  ts_free(name);
  return out;
}

/* Behind the node that was copied last. */
static void take_away(ts_rewrite *r, leaver *l, bool device) {
  const ts_tensor *tensor = &r->from->tensor[l->tensor];
  const ts_site at = {r->to, TS_SEGMENT_FORWARD, tensor->unit};
  l->away = ts_rewrite_tensor(r, l->tensor);
  if (device) {
    l->away = copy(at, TS_OP_COPY_OUT, tensor, "away", 2, (ts_tid[]){TS_NONE, l->away});
  }
  if (l->stored) {
    l->away = copy(at, TS_OP_STORE, tensor, "stored", 2, (ts_tid[]){add_leaf(r->to, tensor), l->away});
  }
}

/* Before its first reader in the backward; all of these read the copy. */
static void bring_back(ts_rewrite *r, const leaver *l, bool device) {
  const ts_tensor *tensor = &r->from->tensor[l->tensor];
  const ts_site at = {r->to, l->segment, r->from->node[l->before].unit};
  ts_tid x = l->away;
  if (l->stored) {
    char *name = ts_format("%s.loaded", tensor->name);
    x = ts_build_load(at, name, x, device ? TS_SPACE_PINNED : TS_SPACE_BACKEND);
    ts_free(name);
  }
  r->map[l->tensor] = device ? copy(at, TS_OP_COPY_IN, tensor, "back", 1, &x) : x;
}

void ts_pass_offload(ts_graph **graph, ts_pass_context *context) {
  if (!ts_offload_activations(context->deck, context->target.backend)) {
    return;
  }
  const bool device = context->target.backend->device != NULL;
  int n_leavers;
  leaver *list = find_leavers(*graph, find_places(context), &n_leavers);
  ts_rewrite r = ts_rewrite_begin(*graph);
  for (ts_nid n = 0; n < r.from->n_nodes; ++n) {
    for (int i = 0; i < n_leavers; ++i) {
      if (list[i].before == n) {
        bring_back(&r, &list[i], device);
      }
    }
    ts_rewrite_copy(&r, n);
    for (int i = 0; i < n_leavers; ++i) {
      if (list[i].after == n) {
        take_away(&r, &list[i], device);
      }
    }
  }
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, graph);
  ts_free(list);
}
