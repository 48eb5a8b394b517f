/* A sum over the ranks along tp of what each has put in a place of its own is what all of them have, one after another:
 *
 *   all_reduce (place (x))  ->  all_gather (x)
 *
 * which sends half of it and adds nothing.  So come tokens back that ranks have divided among them for experts alone,
 * and so do their gradients (pass/shard). */
#include "base/memory.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/pass.h"
#include "pass/shard.h"

typedef struct gatherer {
  ts_rewrite rewrite;
  ts_shards *shards;
  int ranks; /* along tp */
  const int *uses;
} gatherer;

static bool is_read_once(const gatherer *w, ts_tid t) {
  return w->uses[t] == 1 && !ts_graph_is_marked(w->rewrite.from, t);
}

/* The node whose output a sum adds up, which each rank has put in its place; TS_NONE: it adds up something else. */
static ts_nid placed_by(const gatherer *w, const ts_node *sum) {
  const ts_graph *g = w->rewrite.from;
  if (sum->op != TS_OP_ALL_REDUCE || sum->attr.comm.axes != TS_AXES(TS_AXIS_TP) || sum->prior != NULL) {
    return TS_NONE;
  }
  ts_tid t = sum->in[0];
  const ts_node *from = ts_graph_producer(g, t);
  if (from != NULL && from->op == TS_OP_VIEW && from->attr.view.offset == 0 && is_read_once(w, t) &&
      ts_tensor_count(g, t) == ts_tensor_count(g, from->in[0])) {
    t = from->in[0];
    from = ts_graph_producer(g, t);
  }
  bool placed = from != NULL && from->op == TS_OP_PLACE && from->attr.take.cuts != NULL && from->prior == NULL;
  return placed && is_read_once(w, t) ? g->tensor[t].producer : TS_NONE;
}

static void gather_placed(gatherer *w, const ts_node *sum, const ts_node *place) {
  const ts_graph *g = w->rewrite.from;
  ts_tid whole = place->out[0];
  int64_t each = ts_tensor_count(g, whole) / place->attr.take.extent;
  const int64_t *cuts = ts_shards_scaled_cuts(w->shards, place->attr.take.cuts, w->ranks, each);
  w->rewrite.map[sum->out[0]] =
      ts_shard_gather((ts_site){w->rewrite.to, sum->segment, sum->unit}, sum->name, w->ranks, cuts,
                      ts_rewrite_tensor(&w->rewrite, place->in[0]), g->tensor[sum->out[0]].shape);
}

/* What nobody reads any more. */
static bool *find_idle(const gatherer *w) {
  const ts_graph *g = w->rewrite.from;
  bool *idle = ts_calloc((size_t) g->n_nodes + 1, sizeof *idle);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    ts_nid place = placed_by(w, &g->node[n]);
    if (place != TS_NONE) {
      idle[place] = true;
      idle[g->tensor[g->node[n].in[0]].producer] = true;
    }
  }
  return idle;
}

void ts_pass_placed(ts_graph **graph, ts_pass_context *context) {
  if (context->mesh->size[TS_AXIS_TP] == 1) {
    return;
  }
  int *uses = ts_graph_use_counts(*graph);
  gatherer w = {.rewrite = ts_rewrite_begin(*graph),
                .shards = context->shards,
                .ranks = context->mesh->size[TS_AXIS_TP],
                .uses = uses};
  bool *idle = find_idle(&w);
  for (ts_nid n = 0; n < (*graph)->n_nodes; ++n) {
    const ts_node *node = &w.rewrite.from->node[n];
    ts_nid place = placed_by(&w, node);
    if (place != TS_NONE) {
      gather_placed(&w, node, &w.rewrite.from->node[place]);
    } else if (!idle[n]) {
      ts_rewrite_copy(&w.rewrite, n);
    }
  }
  ts_rewrite_marks(&w.rewrite);
  ts_free(idle);
  ts_free(uses);
  ts_rewrite_end(&w.rewrite, graph);
}
