/* Of what blocks keep for the backward, and all ranks along tp have alike, each keeps a part: with recomputation their
 * inputs, which take 1 / tp of the memory then and are gathered before a block is computed again (DeepSpeed's
 * partition_activations, runtime/activation_checkpointing/checkpointing.py; Rajbhandari et al. 2020, "ZeRO", section
 * 6.1).  Values stay what they are, bit for bit. */
#include "pass/pass.h"

#include "base/memory.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/kept.h"
#include "pass/shard.h"

/* A tensor of which a part is kept. */
typedef struct parted {
  ts_kept kept;  /* in the old graph */
  ts_tid source; /* the part there, where it came as such: by a pipeline's message (pass/crossing.c) */
  ts_tid part;   /* in the new one */
} parted;

/* The part that it is gathered from, TS_NONE for none. */
static ts_tid gathered_from(const ts_graph *g, ts_tid t) {
  const ts_node *view = ts_graph_producer(g, t);
  const ts_node *gather = view->op == TS_OP_VIEW ? ts_graph_producer(g, view->in[0]) : NULL;
  const ts_node *from = gather != NULL && gather->op == TS_OP_ALL_GATHER && gather->n_in == 1
                            ? ts_graph_producer(g, gather->in[0])
                            : NULL;
  return from != NULL && from->op == TS_OP_RECEIVE && gather->attr.comm.axes == TS_AXES(TS_AXIS_TP) ? gather->in[0]
                                                                                                    : TS_NONE;
}

static bool reads(const ts_node *node, ts_tid t) {
  bool does = false;
  for (int i = 0; i < node->n_in && !does; ++i) {
    does = node->in[i] == t;
  }
  return does;
}

/* Does another unit read it, by the same op once more when it is computed again?  Its gradient reads it by another. */
static bool is_input(const ts_graph *g, const ts_kept *kept) {
  const ts_node *again = &g->node[kept->before];
  bool is = false;
  for (ts_nid n = g->tensor[kept->tensor].producer + 1; n < kept->before && !is; ++n) {
    const ts_node *node = &g->node[n];
    is = node->segment == TS_SEGMENT_FORWARD && node->op == again->op && node->unit == again->unit &&
         reads(node, kept->tensor);
  }
  return is && again->unit >= 0 && again->unit != ts_graph_producer(g, kept->tensor)->unit;
}

static bool is_alike(const ts_graph *g, const ts_pass_context *context, ts_tid t) {
  const unsigned other = TS_OP_ALIAS | TS_OP_MESSAGE;
  return (ts_op_get(ts_graph_producer(g, t)->op)->flags & other) == 0 &&
         ts_shards_are_alike(context->shards, g->tensor[t].name) && ts_tensor_count(g, t) % context->shards->ranks == 0;
}

static parted *find_parted(const ts_graph *g, const ts_pass_context *context, int *n) {
  int n_kept;
  ts_kept *kept = ts_kept_find(g, &n_kept);
  parted *list = ts_malloc(((size_t) n_kept + 1) * sizeof *list);
  *n = 0;
  for (int i = 0; i < n_kept; ++i) {
    const ts_tid source = gathered_from(g, kept[i].tensor);
    if (source != TS_NONE || (is_input(g, &kept[i]) && is_alike(g, context, kept[i].tensor))) {
      list[(*n)++] = (parted){kept[i], source, TS_NONE};
    }
  }
  ts_free(kept);
  return list;
}

static void keep_part(ts_rewrite *r, const ts_mesh *mesh, parted *p) {
  const ts_site at = {r->to, TS_SEGMENT_FORWARD, r->from->tensor[p->kept.tensor].unit};
  p->part = p->source != TS_NONE ? ts_rewrite_tensor(r, p->source)
                                 : ts_shard_part(at, mesh, ts_rewrite_tensor(r, p->kept.tensor));
}

static void gather_again(ts_rewrite *r, ts_shards *shards, const parted *p) {
  const ts_site at = {r->to, p->kept.segment, r->from->node[p->kept.before].unit};
  char *name = ts_format("%s.again", r->from->tensor[p->kept.tensor].name);
  r->map[p->kept.tensor] = ts_shard_gather_parts(at, name, shards, p->part, r->from->tensor[p->kept.tensor].shape);
  ts_free(name);
}

void ts_pass_partition(ts_graph **graph, ts_pass_context *context) {
  const ts_deck *deck = context->deck;
  if (context->shards == NULL || !deck->activation_checkpointing.enabled ||
      !deck->activation_checkpointing.partition_activations) {
    return;
  }
  int n_parted;
  parted *list = find_parted(*graph, context, &n_parted);
  ts_rewrite r = ts_rewrite_begin(*graph);
  for (ts_nid n = 0; n < r.from->n_nodes; ++n) {
    for (int i = 0; i < n_parted; ++i) {
      if (list[i].kept.before == n) {
        gather_again(&r, context->shards, &list[i]);
      }
    }
    ts_rewrite_copy(&r, n);
    for (int i = 0; i < n_parted; ++i) {
      if (list[i].kept.after == n) {
        keep_part(&r, context->mesh, &list[i]);
      }
    }
  }
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, graph);
  ts_free(list);
}
