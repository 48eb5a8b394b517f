/* Accumulation by unit (run.accumulation_order): all micro-batches of a run go through a unit before the next one.
 *
 *   one of     A F G | G' F' A'      so it is        A A1 F F1 G G1 | G' G1' F' F1' A' A1'
 *
 * The nodes of a micro-batch stand there as often as there are micro-batches in a run, those of neighbours of one unit
 * together.  What they read of parameters is theirs in common, so whatever comes behind (gathers and copies of a unit,
 * sums of its gradients) happens once for all of them, and each sum has the order of micro-batches.
 *
 * A parameter that several units read, as a tied table, has a gradient of each.  Where a rank sums whole gradients
 * those of the unit that has them first are added up before the others, as of two chunks of a pipeline (else each would
 * be kept until the other comes): the one sum that has another order.
 *
 * Inputs of the model have a leaf for each, NAME, NAME/1, ... (no name of a model has a "/"); nodes and marks of a
 * micro-batch are called likewise. */
#include "base/memory.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "pass/pass.h"
#include "pass/step.h"

#include <string.h>

typedef struct unroll {
  ts_rewrite rewrite;
  ts_tid **map; /* by micro-batch; the first is the rewrite's own */
  bool *gone;   /* by node: the sum of two units' gradients, which are summed apart */
  int64_t n;
} unroll;

/* An input's, for each micro-batch, and that of what the backward reads; another is that of all. */
static void copy_leaf(unroll *u, ts_tid t) {
  const ts_tensor *old = &u->rewrite.from->tensor[t];
  u->map[0][t] = ts_graph_add_leaf(u->rewrite.to, old);
  for (int64_t m = 1; m < u->n; ++m) {
    ts_tensor leaf = *old;
    leaf.name = ts_together_name(old->name, m);
    bool own = old->role == TS_ROLE_INPUT || old->held.state == TS_STATE_KEPT;
    u->map[m][t] = own ? ts_graph_add_leaf(u->rewrite.to, &leaf) : u->map[0][t];
    ts_free(leaf.name);
  }
}

static void copy_leaves(unroll *u) {
  int *uses = ts_graph_use_counts(u->rewrite.from);
  for (ts_tid t = 0; t < u->rewrite.from->n_tensors; ++t) {
    if (u->rewrite.from->tensor[t].producer == TS_NONE && uses[t] > 0) {
      copy_leaf(u, t);
    }
  }
  ts_free(uses);
}

/* A window on a leaf may be there already. */
static void copy_node(unroll *u, ts_nid n, int64_t m) {
  const ts_node *old = &u->rewrite.from->node[n];
  if (u->gone[n] || (old->n_out > 0 && u->map[m][old->out[0]] != TS_NONE)) {
    return;
  }
  u->rewrite.map = u->map[m];
  ts_node node = ts_rewrite_node(&u->rewrite, n);
  char *name = ts_together_name(node.name, m);
  node.name = name;
  ts_rewrite_add(&u->rewrite, n, &node);
  ts_free(name);
  u->rewrite.map = u->map[0];
}

/* Behind the nodes of the same unit and phase that follow one another. */
static ts_nid end_of_visit(const ts_graph *g, ts_nid n) {
  const ts_node *first = &g->node[n];
  while (n < g->n_nodes && g->node[n].unit == first->unit &&
         ts_segment_phase(g->node[n].segment) == ts_segment_phase(first->segment)) {
    ++n;
  }
  return n;
}

/* Of what the host may read behind a forward the last is. */
static void copy_marks(unroll *u) {
  const ts_graph *from = u->rewrite.from;
  for (int i = 0; i < from->n_marks; ++i) {
    const char *mark = from->mark[i].name;
    bool output = strncmp(mark, TS_OUTPUT_MARK, strlen(TS_OUTPUT_MARK)) == 0;
    for (int64_t m = output ? u->n - 1 : 0; m < u->n; ++m) {
      ts_tid t = u->map[m][from->mark[i].tensor];
      char *name = ts_together_name(mark, output ? 0 : m);
      if (t != TS_NONE) {
        ts_graph_mark(u->rewrite.to, name, t);
      }
      ts_free(name);
    }
  }
}

/* ---- tables that two units read ---- */

/* The node that adds a parameter's gradients of two units, TS_NONE where there is none. */
static ts_nid sum_of_units(const ts_graph *g, ts_tid gradient, const int *uses) {
  const ts_node *add = ts_graph_producer(g, gradient);
  bool adds = add != NULL && add->op == TS_OP_ADD && uses[gradient] == 0;
  const ts_node *a = adds ? ts_graph_producer(g, add->in[0]) : NULL,
                *b = adds ? ts_graph_producer(g, add->in[1]) : NULL;
  bool two = a != NULL && b != NULL && a < b && a->unit != b->unit && uses[add->in[0]] == 1 && uses[add->in[1]] == 1;
  return two ? (ts_nid) (add - g->node) : TS_NONE;
}

static void find_sums(unroll *u, const ts_pass_context *context) {
  const ts_graph *g = u->rewrite.from;
  int *uses = ts_graph_use_counts(g);
  for (int i = 0; i < context->layout->n_parameters; ++i) {
    const ts_parameter *p = &context->layout->parameter[i];
    ts_tid gradient = ts_graph_gradient_of(g, ts_graph_find(g, p->name), 0);
    ts_nid sum = gradient != TS_NONE ? sum_of_units(g, gradient, uses) : TS_NONE;
    if (sum != TS_NONE && ts_part_sums_whole(context, &context->layout->part[p->part])) {
      u->gone[sum] = true;
    }
  }
  ts_free(uses);
}

/* Of a parameter: instead of their sum, both. */
static void mark_apart(unroll *u, const ts_pass_context *context) {
  const ts_graph *g = u->rewrite.from;
  for (int i = 0; i < context->layout->n_parameters; ++i) {
    const char *name = context->layout->parameter[i].name;
    ts_tid gradient = ts_graph_gradient_of(g, ts_graph_find(g, name), 0);
    ts_nid sum = gradient != TS_NONE ? g->tensor[gradient].producer : TS_NONE;
    for (int64_t m = 0; m < u->n && sum != TS_NONE && u->gone[sum]; ++m) {
      char *of_m = ts_together_name(name, m);
      ts_graph_mark_earlier(u->rewrite.to, of_m, u->map[m][g->node[sum].in[0]]);
      ts_graph_mark_gradient(u->rewrite.to, of_m, u->map[m][g->node[sum].in[1]]);
      ts_free(of_m);
    }
  }
}

/* ---- all of it ---- */

void ts_pass_unroll(ts_graph **graph, ts_pass_context *context) {
  if (context->step->together <= 1) {
    return;
  }
  unroll u = {.rewrite = ts_rewrite_begin(*graph), .n = context->step->together};
  u.map = ts_malloc((size_t) u.n * sizeof *u.map);
  u.map[0] = u.rewrite.map;
  for (int64_t m = 1; m < u.n; ++m) {
    u.map[m] = ts_ids_none(u.rewrite.from->n_tensors);
  }
  u.gone = ts_calloc((size_t) u.rewrite.from->n_nodes + 1, sizeof *u.gone);
  find_sums(&u, context);
  copy_leaves(&u);
  for (ts_nid n = 0, end = 0; n < u.rewrite.from->n_nodes; n = end) {
    end = end_of_visit(u.rewrite.from, n);
    for (int64_t m = 0; m < u.n; ++m) {
      for (ts_nid k = n; k < end; ++k) {
        copy_node(&u, k, m);
      }
    }
  }
  copy_marks(&u);
  mark_apart(&u, context);
  ts_free(u.gone);
  for (int64_t m = 1; m < u.n; ++m) {
    ts_free(u.map[m]);
  }
  ts_free(u.map);
  ts_rewrite_end(&u.rewrite, graph);
}
