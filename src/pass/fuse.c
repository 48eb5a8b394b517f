/* Fusion: nodes that another node can do on the way.
 *
 *   head_loss (x, w, l) and head_loss_dx (x, w, l, s)  ->  head_loss_train: the logits are computed once; not where
 *                                                          ranks share the vocabulary, as the loss then has none,
 *                                                          nor where the loss is read before the backward, by the
 *                                                          host or to be added to another
 *   add (a, f (..))                                    ->  f with prior a
 *   accumulate (a, f (..), beta)                       ->  f with prior a and beta
 *
 * Where micro-batches overlap, a gather of the forward that nobody but the backward reads when the head is one node
 * goes there: between the runs it would be kept for each micro-batch.
 *
 * f must have no other reader, be an op that adds, and come after a; a window on a leaf can be made at any time.  Sums
 * of losses, in fp64, stay where they are: they are made in the forward, and added up over micro-batches after it. */
#include "base/memory.h"
#include "graph/rewrite.h"
#include "pass/pass.h"
#include "pass/step.h"

#include <string.h>

typedef struct fusion {
  ts_rewrite rewrite; /* instead: of a tensor whose node is gone */
  const ts_graph *from;
  int *uses;
  bool *gone;    /* per node: not copied */
  ts_tid *prior; /* per tensor: what its producer adds to */
  ts_tid *beta;
  ts_nid *loss_of; /* per node: the head_loss that a head_loss_dx takes in, TS_NONE */
  bool *late;      /* per node: a gather, or a window on one, that is written when the backward wants it */
} fusion;

/* Is it a leaf, a copy that is brought of one, room for one, or a window on one of these?  Then it can be made at any
 * time. */
static bool is_of_leaf(const fusion *f, ts_tid t) {
  const ts_node *producer = ts_graph_producer(f->from, t);
  return producer == NULL || ts_node_is_room(producer) ||
         ((producer->op == TS_OP_VIEW || ts_node_brings(producer)) && is_of_leaf(f, producer->in[0]));
}

/* Is `t` there before node n runs? */
static bool is_before(const fusion *f, ts_tid t, ts_nid n) {
  return is_of_leaf(f, t) || f->from->tensor[t].producer < n;
}

/* A node has one beta for the priors of all its outputs. */
static bool beta_fits(const fusion *f, const ts_node *node, ts_tid beta) {
  bool fits = true;
  for (int i = 0; i < node->n_out; ++i) {
    fits = fits && (f->prior[node->out[i]] == TS_NONE || f->beta[node->out[i]] == beta);
  }
  return fits;
}

/* Can the producer of x add to beta times `prior`? */
static bool can_fold(const fusion *f, ts_tid x, ts_tid prior, ts_tid beta) {
  const ts_tensor *tensor = &f->from->tensor[x];
  if (tensor->producer == TS_NONE || f->uses[x] != 1 || ts_graph_is_marked(f->from, x) || tensor->dtype == TS_F64) {
    return false;
  }
  const ts_node *node = &f->from->node[tensor->producer];
  return node->prior == NULL && !f->gone[tensor->producer] && ts_op_adds(node->op, x - node->out[0]) &&
         f->from->tensor[prior].dtype == tensor->dtype && is_before(f, prior, tensor->producer) &&
         beta_fits(f, node, beta);
}

static void replace(fusion *f, ts_nid n, ts_tid x) {
  f->gone[n] = true;
  f->rewrite.instead[f->from->node[n].out[0]] = x;
  f->uses[x] = f->uses[f->from->node[n].out[0]];
}

static void fold_add(fusion *f, ts_nid n) {
  const ts_node *node = &f->from->node[n];
  ts_tid a = ts_rewrite_newest(&f->rewrite, node->in[0]), b = ts_rewrite_newest(&f->rewrite, node->in[1]);
  if (a == b) {
    return;
  }
  if (can_fold(f, b, a, TS_NONE) && f->prior[b] == TS_NONE) {
    f->prior[b] = a;
    replace(f, n, b);
  } else if (can_fold(f, a, b, TS_NONE) && f->prior[a] == TS_NONE) {
    f->prior[a] = b;
    replace(f, n, a);
  }
}

/* accumulate (a, x): the first in x's chain of priors takes a. */
static void fold_accumulate(fusion *f, ts_nid n) {
  const ts_node *node = &f->from->node[n];
  ts_tid x = ts_rewrite_newest(&f->rewrite, node->in[1]), first = x;
  while (f->prior[first] != TS_NONE && f->uses[f->prior[first]] == 1) {
    first = f->prior[first];
  }
  if (f->prior[first] == TS_NONE && f->uses[x] == 1 && can_fold(f, first, node->in[0], node->in[2])) {
    f->prior[first] = node->in[0];
    f->beta[first] = node->in[2];
    replace(f, n, x);
  }
}

/* Does a node before n read the loss that node m makes? */
static bool is_read_before(const fusion *f, ts_nid m, ts_nid n) {
  bool reads = false;
  for (ts_nid k = m + 1; k < n && !reads; ++k) {
    for (int i = 0; i < f->from->node[k].n_in; ++i) {
      ts_tid t = f->from->node[k].in[i];
      reads = reads || (t != TS_NONE && f->from->tensor[t].producer == m);
    }
  }
  return reads;
}

static void fold_loss(fusion *f, ts_nid n) {
  const ts_node *dx = &f->from->node[n];
  for (ts_nid m = 0; m < n; ++m) {
    const ts_node *loss = &f->from->node[m];
    if (loss->op == TS_OP_HEAD_LOSS && ts_head_stats(loss) < 0 && !ts_graph_is_marked(f->from, loss->out[0]) &&
        memcmp(loss->in, dx->in, 3 * sizeof *dx->in) == 0 && !is_read_before(f, m, n)) {
      f->gone[m] = true;
      f->loss_of[n] = m;
    }
  }
}

static void find_folds(fusion *f) {
  for (ts_nid n = 0; n < f->from->n_nodes; ++n) {
    switch (f->from->node[n].op) {
      case TS_OP_ADD: fold_add(f, n); break;
      case TS_OP_ACCUMULATE: fold_accumulate(f, n); break;
      case TS_OP_HEAD_LOSS_DX: fold_loss(f, n); break;
      default: break;
    }
  }
}

/* ---- gathers that only the backward reads ---- */

/* What makes parameters of shards, or of what lives elsewhere. */
static bool fetches(const ts_node *node) {
  bool gathers = node->op == TS_OP_ALL_GATHER && !node->attr.comm.into;
  return node->segment == TS_SEGMENT_FORWARD && (gathers || ts_node_brings(node));
}

/* Is a tensor, through windows and what is fetched, read in the backward alone? */
static bool is_read_late(const fusion *f, ts_tid t) {
  const ts_graph *g = f->from;
  bool late = true, any = false;
  for (ts_nid n = 0; n < g->n_nodes && late; ++n) {
    const ts_node *node = &g->node[n];
    for (int i = 0; i < node->n_in && !f->gone[n]; ++i) {
      if (node->in[i] == t) {
        any = true;
        bool on = node->op == TS_OP_VIEW || fetches(node);
        late = !on && ts_segment_phase(node->segment) == 1;
        for (int k = 0; on && k < node->n_out; ++k) {
          late = (k == 0 || late) && is_read_late(f, node->out[k]);
        }
      }
    }
  }
  return late && any;
}

static void mark_windows(fusion *f, ts_tid t) {
  for (ts_nid n = 0; n < f->from->n_nodes; ++n) {
    const ts_node *node = &f->from->node[n];
    if (node->op == TS_OP_VIEW && node->in[0] == t) {
      f->late[n] = true;
      mark_windows(f, node->out[0]);
    }
  }
}

static void find_late(fusion *f) {
  for (ts_nid n = 0; n < f->from->n_nodes; ++n) {
    const ts_node *node = &f->from->node[n];
    bool late = fetches(node);
    for (int i = 0; i < node->n_out && late; ++i) {
      late = is_read_late(f, node->out[i]);
    }
    f->late[n] = f->late[n] || late;
    for (int i = 0; i < node->n_out && late; ++i) {
      mark_windows(f, node->out[i]);
    }
  }
}

/* What a node of this segment reads, if it is still to be written. */
static void write_late(fusion *f, ts_tid t, ts_segment segment) {
  ts_nid n = t != TS_NONE ? f->from->tensor[t].producer : TS_NONE;
  if (n == TS_NONE || !f->late[n] || f->rewrite.map[t] != TS_NONE) {
    return;
  }
  for (int i = 0; i < f->from->node[n].n_in; ++i) {
    write_late(f, f->from->node[n].in[i], segment);
  }
  ts_node node = ts_rewrite_node(&f->rewrite, n);
  node.segment = segment;
  ts_rewrite_add(&f->rewrite, n, &node);
}

/* ---- the new graph ---- */

/* What a node of this segment adds to, a window on what is brought, if it is still to be written. */
static void write_early(fusion *f, ts_tid t, ts_segment segment) {
  ts_nid n = t != TS_NONE ? f->from->tensor[t].producer : TS_NONE;
  if (n != TS_NONE && f->rewrite.map[t] == TS_NONE && is_of_leaf(f, t)) {
    for (int i = 0; i < f->from->node[n].n_in; ++i) {
      write_early(f, f->from->node[n].in[i], segment);
    }
    ts_node node = ts_rewrite_node(&f->rewrite, n);
    node.segment = segment;
    ts_rewrite_add(&f->rewrite, n, &node);
  }
}

/* A head_loss_dx that takes its head_loss in has that one's outputs in front of its own. */
static void write_folded(fusion *f, ts_nid n) {
  ts_rewrite *r = &f->rewrite;
  const ts_node *old = &f->from->node[n], *loss = f->loss_of[n] != TS_NONE ? &f->from->node[f->loss_of[n]] : NULL;
  for (int i = 0; i < old->n_in; ++i) {
    write_late(f, old->in[i], old->segment);
  }
  for (int i = 0; i < old->n_out; ++i) {
    write_early(f, f->prior[old->out[i]], old->segment);
  }
  ts_node node = ts_rewrite_node(r, n);
  int skip = loss != NULL ? loss->n_out : 0;
  node.n_out += skip;
  ts_tid *prior = ts_malloc((size_t) node.n_out * sizeof *prior);
  bool any = false;
  for (int i = 0; i < node.n_out; ++i) {
    ts_tid t = i < skip ? TS_NONE : old->out[i - skip];
    prior[i] = t == TS_NONE || node.prior == NULL ? TS_NONE : node.prior[i - skip];
    if (t != TS_NONE && f->prior[t] != TS_NONE) {
      prior[i] = ts_rewrite_tensor(r, f->prior[t]);
      node.beta = ts_rewrite_tensor(r, f->beta[t]);
    }
    any = any || prior[i] != TS_NONE;
  }
  node.op = loss != NULL ? TS_OP_HEAD_LOSS_TRAIN : node.op;
  node.prior = any ? prior : NULL;
  ts_tid first = ts_graph_add((ts_site){r->to, node.segment, node.unit}, &node);
  for (int i = 0; i < node.n_out; ++i) {
    r->map[i < skip ? loss->out[i] : old->out[i - skip]] = first + i;
  }
  ts_free(prior);
}

void ts_pass_fuse(ts_graph **graph, ts_pass_context *context) {
  const ts_graph *g = *graph;
  const ts_step_runs *step = context->step;
  fusion f = {.rewrite = ts_rewrite_begin(g),
              .from = g,
              .uses = ts_graph_use_counts(g),
              .gone = ts_calloc((size_t) g->n_nodes + 1, 1),
              .prior = ts_ids_none(g->n_tensors),
              .beta = ts_ids_none(g->n_tensors),
              .loss_of = ts_ids_none(g->n_nodes),
              .late = ts_calloc((size_t) g->n_nodes + 1, 1)};
  find_folds(&f);
  if (step != NULL && ts_step_overlaps(step, g)) {
    find_late(&f);
  }
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    if (!f.gone[n] && !f.late[n] && (g->node[n].n_out == 0 || f.rewrite.map[g->node[n].out[0]] == TS_NONE)) {
      write_folded(&f, n);
    }
  }
  ts_free(f.uses);
  ts_free(f.gone);
  ts_free(f.prior);
  ts_free(f.beta);
  ts_free(f.loss_of);
  ts_free(f.late);
  ts_rewrite_marks(&f.rewrite);
  ts_rewrite_end(&f.rewrite, graph);
}
