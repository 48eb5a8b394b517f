#include "pass/touch.h"

#include "graph/op.h"

typedef struct list {
  const ts_graph *graph;
  const ts_plan *plan;
  ts_touch *to;
  int n;
} list;

static void add_touch(list *l, ts_touch t) {
  if (t.arena != TS_ARENA_NONE && t.begin < t.end) {
    l->to[l->n++] = t;
  }
}

static ts_touch of_tensor(const list *l, ts_tid t, bool writes) {
  if (t == TS_NONE) {
    return (ts_touch){.arena = TS_ARENA_NONE};
  }
  const ts_address at = l->plan->address[t];
  return (ts_touch){at.arena, at.offset, at.offset + (at.arena == TS_ARENA_NONE ? 0 : ts_tensor_bytes(l->graph, t)),
                    writes};
}

/* What a gather makes; what it is given, where that lies in it, stays as it is. */
static void add_gathered(list *l, ts_tid in, ts_tid out) {
  const ts_touch own = of_tensor(l, in, false);
  ts_touch before = of_tensor(l, out, true), after = before;
  if (own.arena == before.arena && own.begin >= before.begin && own.end <= before.end) {
    before.end = own.begin;
    after.begin = own.end;
    add_touch(l, after);
  }
  add_touch(l, before);
}

int ts_node_touches(const ts_graph *graph, const ts_plan *plan, ts_nid n, ts_touch *out) {
  const ts_node *node = &graph->node[n];
  list l = {graph, plan, out, 0};
  add_touch(&l, of_tensor(&l, node->beta, false));
  for (int i = 0; i < node->n_in; ++i) {
    add_touch(&l, of_tensor(&l, node->in[i], false));
  }
  for (int i = 0; i < node->n_out; ++i) {
    add_touch(&l, of_tensor(&l, node->prior != NULL ? node->prior[i] : TS_NONE, false));
    if (node->op == TS_OP_ALL_GATHER) {
      add_gathered(&l, node->in[i], node->out[i]);
    } else {
      add_touch(&l, of_tensor(&l, node->out[i], true));
    }
  }
  const int64_t workspace = plan->workspace[n].offset;
  add_touch(&l, (ts_touch){TS_ARENA_WORK, workspace, workspace + plan->workspace_bytes[n], true});
  return l.n;
}
