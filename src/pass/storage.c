#include "pass/storage.h"

#include "base/memory.h"
#include "graph/op.h"

typedef struct storage {
  const ts_graph *graph;
  ts_place *link;   /* a tensor's parent and its offset there; itself for a root */
  ts_nid *last_use; /* when it is read last; behind all nodes where the host does */
  ts_nid *busy;     /* of a root: the last use of any tensor known to lie in it */
} storage;

/* Nodes in the order in which they are executed. */
static ts_nid executed_at(const ts_graph *g, ts_nid n) {
  ts_segment segment = g->node[n].segment;
  bool later = (segment & (TS_SEGMENT_REDUCE | TS_SEGMENT_UPDATE)) != 0;
  return n + (!g->apart ? 0 : later ? 2 : segment == TS_SEGMENT_BACKWARD_WEIGHT ? 1 : 0) * g->n_nodes;
}

static void note_last(storage *s, ts_tid t, ts_nid at) {
  if (t != TS_NONE && s->last_use[t] < at) {
    s->last_use[t] = at;
  }
}

static ts_place resolve(const storage *s, ts_tid t) {
  int64_t offset = 0;
  while (s->link[t].root != t) {
    offset += s->link[t].offset;
    t = s->link[t].root;
  }
  return (ts_place){t, offset};
}

static int64_t element_bytes(const storage *s, ts_tid t) {
  return (int64_t) ts_dtype_size(s->graph->tensor[t].dtype);
}

static void put_in(storage *s, ts_tid t, ts_tid in, int64_t offset) {
  s->link[t] = (ts_place){in, offset};
  ts_tid root = resolve(s, in).root;
  ts_nid last = s->last_use[t] > s->busy[t] ? s->last_use[t] : s->busy[t];
  if (s->busy[root] < last) {
    s->busy[root] = last;
  }
}

/* The pack lies over its inputs where they already lie right (versions of one state), else they move into it. */
static void place_pack(storage *s, const ts_node *node) {
  ts_tid out = node->out[0];
  if (ts_node_is_room(node)) {
    return;
  }
  ts_place first = resolve(s, node->in[0]);
  first.offset -= node->attr.pack.offset[0] * element_bytes(s, out);
  bool in_place = true;
  for (int i = 0; i < node->n_in && in_place; ++i) {
    ts_place at = resolve(s, node->in[i]);
    in_place = at.root == first.root && at.offset == first.offset + node->attr.pack.offset[i] * element_bytes(s, out);
  }
  bool room = ts_tensor_bytes(s->graph, first.root) >= first.offset + ts_tensor_bytes(s->graph, out);
  if (in_place && first.offset >= 0 && room) {
    put_in(s, out, first.root, first.offset);
    return;
  }
  for (int i = 0; i < node->n_in; ++i) {
    ts_place at = resolve(s, node->in[i]);
    TS_CHECK(s->graph->tensor[at.root].producer != TS_NONE && at.offset == 0 && at.root != out,
             "%s: input %d of the pack lies in other storage already", node->name, i);
    put_in(s, at.root, out, node->attr.pack.offset[i] * element_bytes(s, out));
  }
}

/* A copy of state that is brought to be added to, or room for it: windows on it are whole sums each, which may be there
 * longer. */
static bool is_a_copy_of_state(const storage *s, ts_tid root) {
  const ts_node *producer = ts_graph_producer(s->graph, root);
  return producer != NULL && (ts_node_brings(producer) || ts_node_is_room(producer));
}

static bool prior_is_free(const storage *s, ts_nid n, ts_tid prior, ts_tid out) {
  ts_place at = resolve(s, prior);
  const ts_tensor *root = &s->graph->tensor[at.root], *p = &s->graph->tensor[prior], *o = &s->graph->tensor[out];
  bool last = s->last_use[prior] <= executed_at(s->graph, n);
  if (root->role == TS_ROLE_STATE || (is_a_copy_of_state(s, at.root) && last && p->dtype == o->dtype)) {
    return true;
  }
  const ts_node *node = &s->graph->node[n];
  for (int i = 0; i < node->n_in; ++i) {
    if (node->in[i] != TS_NONE && resolve(s, node->in[i]).root == at.root) {
      return false; /* the node would overwrite what it reads */
    }
  }
  bool arrives = root->producer != TS_NONE && s->graph->node[root->producer].op == TS_OP_RECEIVE;
  return root->producer != TS_NONE && !arrives && s->busy[at.root] <= executed_at(s->graph, n) &&
         p->dtype == o->dtype && ts_shape_count(&p->shape) == ts_shape_count(&o->shape);
}

static void place_outputs(storage *s, ts_nid n) {
  const ts_node *node = &s->graph->node[n];
  const ts_op_info *info = ts_op_get(node->op);
  bool into = (info->flags & TS_OP_COMM) != 0 && node->attr.comm.into;
  for (int i = 0; i < node->n_out; ++i) {
    ts_tid t = node->out[i];
    bool arrives = node->op == TS_OP_RECEIVE && node->attr.message.into;
    if ((i < info->n_inplace || arrives) && node->in[i] != TS_NONE) {
      put_in(s, t, node->in[i], 0);
    } else if (into) {
      put_in(s, t, node->in[node->n_out + i], 0);
    } else if (node->prior != NULL && node->prior[i] != TS_NONE && prior_is_free(s, n, node->prior[i], t)) {
      put_in(s, t, node->prior[i], 0);
    }
  }
}

static void find_last_uses(storage *s) {
  const ts_graph *g = s->graph;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    for (int i = 0; i < node->n_in; ++i) {
      note_last(s, node->in[i], executed_at(g, n));
    }
    for (int i = 0; node->prior != NULL && i < node->n_out; ++i) {
      note_last(s, node->prior[i], executed_at(g, n));
    }
  }
  for (int i = 0; i < g->n_marks; ++i) {
    note_last(s, g->mark[i].tensor, 3 * g->n_nodes); /* the host reads it */
  }
}

bool ts_node_is_window(const ts_node *node) {
  return (ts_op_get(node->op)->flags & TS_OP_ALIAS) != 0;
}

ts_place *ts_storage_find(const ts_graph *graph) {
  size_t n = (size_t) graph->n_tensors;
  storage s = {.graph = graph,
               .link = ts_malloc((n + 1) * sizeof *s.link),
               .last_use = ts_calloc(n + 1, sizeof *s.last_use),
               .busy = ts_calloc(n + 1, sizeof *s.busy)};
  find_last_uses(&s);
  for (ts_tid t = 0; t < graph->n_tensors; ++t) {
    s.link[t] = (ts_place){t, 0};
    s.busy[t] = s.last_use[t];
  }
  for (ts_nid i = 0; i < graph->n_nodes; ++i) {
    const ts_node *node = &graph->node[i];
    if (node->op == TS_OP_PACK) {
      place_pack(&s, node);
    } else if (ts_node_is_window(node)) {
      int64_t offset = node->op == TS_OP_VIEW ? node->attr.view.offset : 0;
      put_in(&s, node->out[0], node->in[0], offset * element_bytes(&s, node->out[0]));
    } else {
      place_outputs(&s, i);
    }
  }
  ts_place *place = ts_malloc((n + 1) * sizeof *place);
  for (ts_tid t = 0; t < graph->n_tensors; ++t) {
    place[t] = resolve(&s, t);
  }
  ts_free(s.link);
  ts_free(s.last_use);
  ts_free(s.busy);
  return place;
}
