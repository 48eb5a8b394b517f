/* Activations leave: what is kept from the forward for the backward waits in the host's memory beside a device's, or in
 * a file.
 *
 *   a device      copy_out ... copy_in,      copy_out store ... load copy_in
 *   processors                                        store ... load
 *
 * A copy of it goes when its first reader has it, and comes back for its first reader in the backward.  What that
 * begins with stays where it has room, tensor by tensor, as it would come back at once: all are copied as often, so
 * those leave whose next use is farthest (Belady 1966, "A Study of Replacement Algorithms").  In a file each has a leaf
 * of its own, which every micro-batch writes anew, in its slot where several are under way.  Values are the same, and
 * so are all bits. */
#include "pass/offload.h"

#include "base/memory.h"
#include "base/text.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/kept.h"

#include <limits.h>
#include <stdlib.h>

/* Smaller tensors are not worth a copy. */
#define LEAST_BYTES 2048

/* Units with which the forward ends, of which all stays where nothing is decided. */
#define STAY 2

/* Is it made by computation?  What a pipeline's neighbour has sent has a place of its own. */
static bool may_leave(const ts_graph *g, ts_tid t) {
  return (ts_op_get(ts_graph_producer(g, t)->op)->flags & (TS_OP_ALIAS | TS_OP_MESSAGE)) == 0 &&
         ts_tensor_bytes(g, t) >= LEAST_BYTES;
}

/* A tensor that leaves. */
typedef struct leaver {
  ts_kept kept; /* in the old graph */
  ts_tid away;  /* in the new one, where it is then */
  bool stored;  /* in a file */
  int64_t when; /* the backward wants it: where gradients of weights have runs of their own, behind the others */
} leaver;

/* By what the backward reads last. */
static int compare_leavers(const void *a, const void *b) {
  const leaver *x = a, *y = b;
  return x->when != y->when ? (x->when < y->when ? 1 : -1)
                            : (x->kept.tensor > y->kept.tensor) - (x->kept.tensor < y->kept.tensor);
}

/* Of the list so many at its end are of the units with which the forward ends. */
static int count_last_units(const ts_graph *g, const leaver *list, int n) {
  int seen[STAY], units = 0, count = 0;
  for (; count < n; ++count) {
    const int unit = g->tensor[list[n - 1 - count].kept.tensor].unit;
    int i = 0;
    while (i < units && seen[i] != unit) {
      ++i;
    }
    if (i == STAY) {
      break;
    }
    seen[i] = unit;
    units += i == units;
  }
  return count;
}

/* As decided (run/budget.h), or else, as the deck says, all but a few beside a device and none of processors. */
static int count_stayers(const ts_graph *g, const ts_pass_context *context, const leaver *list, int n) {
  const bool device = context->target.backend->device != NULL;
  const bool decided = context->stay.kept > 0 && (device || ts_deck_files(context->deck)[0] != 0);
  const int stay = decided ? context->stay.kept - 1 : device ? count_last_units(g, list, n) : n;
  return stay < n ? stay : n;
}

/* Of the list so many at its begin go to files. */
static int count_stored(const ts_pass_context *context) {
  const bool device = context->target.backend->device != NULL;
  return !device ? INT_MAX : ts_deck_files(context->deck)[0] != 0 ? context->stay.kept_stored : 0;
}

/* All that is kept, but for what stays. */
static leaver *find_leavers(const ts_graph *g, const ts_pass_context *context, int *n) {
  int n_kept;
  ts_kept *kept = ts_kept_find(g, &n_kept);
  leaver *list = ts_malloc(((size_t) n_kept + 1) * sizeof *list);
  *n = 0;
  for (int i = 0; i < n_kept; ++i) {
    if (may_leave(g, kept[i].tensor)) {
      bool weights = g->apart && kept[i].segment == TS_SEGMENT_BACKWARD_WEIGHT;
      list[(*n)++] = (leaver){kept[i], TS_NONE, false, kept[i].before + (weights ? g->n_nodes : 0)};
    }
  }
  ts_free(kept);
  qsort(list, (size_t) *n, sizeof *list, compare_leavers);
  *n -= count_stayers(g, context, list, *n);
  const int stored = count_stored(context);
  for (int i = 0; i < *n; ++i) {
    list[i].stored = i < stored;
  }
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
  const ts_tensor *tensor = &r->from->tensor[l->kept.tensor];
  const ts_site at = {r->to, TS_SEGMENT_FORWARD, tensor->unit};
  l->away = ts_rewrite_tensor(r, l->kept.tensor);
  if (device) {
    l->away = copy(at, TS_OP_COPY_OUT, tensor, "away", 2, (ts_tid[]){TS_NONE, l->away});
  }
  if (l->stored) {
    l->away = copy(at, TS_OP_STORE, tensor, "stored", 2, (ts_tid[]){add_leaf(r->to, tensor), l->away});
  }
}

/* Before its first reader in the backward; all of these read the copy. */
static void bring_back(ts_rewrite *r, const leaver *l, bool device) {
  const ts_tensor *tensor = &r->from->tensor[l->kept.tensor];
  const ts_site at = {r->to, l->kept.segment, r->from->node[l->kept.before].unit};
  ts_tid x = l->away;
  if (l->stored) {
    char *name = ts_format("%s.loaded", tensor->name);
    x = ts_build_load(at, name, x, device ? TS_SPACE_PINNED : TS_SPACE_BACKEND);
    ts_free(name);
  }
  r->map[l->kept.tensor] = device ? copy(at, TS_OP_COPY_IN, tensor, "back", 1, &x) : x;
}

void ts_pass_offload(ts_graph **graph, ts_pass_context *context) {
  if (!ts_offload_activations(context->deck, context->target.backend)) {
    return;
  }
  const bool device = context->target.backend->device != NULL;
  int n_leavers;
  leaver *list = find_leavers(*graph, context, &n_leavers);
  ts_rewrite r = ts_rewrite_begin(*graph);
  for (ts_nid n = 0; n < r.from->n_nodes; ++n) {
    for (int i = 0; i < n_leavers; ++i) {
      if (list[i].kept.before == n) {
        bring_back(&r, &list[i], device);
      }
    }
    ts_rewrite_copy(&r, n);
    for (int i = 0; i < n_leavers; ++i) {
      if (list[i].kept.after == n) {
        take_away(&r, &list[i], device);
      }
    }
  }
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, graph);
  ts_free(list);
}
