#include "backend/nested.h"

#include "base/memory.h"
#include "base/text.h"

enum { MOST_OPERANDS = 256, MOST_OUTPUTS = 256 }; /* of a split, or its inverse */

void ts_nested_begin(ts_nested *nested) {
  *nested = (ts_nested){.graph = ts_graph_create()};
}

ts_tid ts_nested_put(ts_nested *nested, ts_tid t, ts_place place) {
  while (t >= nested->capacity) {
    int n = nested->capacity;
    TS_GROW(nested->place, n, nested->capacity);
  }
  nested->place[t] = place;
  return t;
}

ts_tid ts_nested_leaf(ts_nested *nested, ts_dtype dtype, ts_shape shape, ts_place place) {
  char *name = ts_format("leaf %d", nested->graph->n_tensors);
  ts_tid t = ts_graph_leaf(nested->graph, name, TS_ROLE_INPUT, dtype, shape, -1);
  ts_free(name);
  return ts_nested_put(nested, t, place);
}

ts_nested_output ts_nested_at(ts_place place) {
  return (ts_nested_output){.at = place, .prior = TS_NONE};
}

ts_tid ts_nested_add(ts_nested *nested, ts_op op, ts_attr attr, int n_in, const ts_tid *in, ts_nested_output to) {
  ts_tid beta = to.prior != TS_NONE && to.scaled ? ts_nested_leaf(nested, TS_F32, TS_SHAPE(1), (ts_place){0}) : TS_NONE;
  ts_node node = {
      .op = op, .name = ts_op_get(op)->name, .n_in = n_in, .in = in, .n_out = to.n, .attr = attr, .beta = beta};
  node.prior = to.prior != TS_NONE ? &to.prior : NULL;
  return ts_nested_put(nested, ts_graph_add(ts_graph_site(nested->graph), &node), to.at);
}

size_t ts_nested_prepare(ts_nested *nested, const ts_target *target, bool keep) {
  const ts_graph *g = nested->graph;
  size_t most = 0;
  nested->prepared = ts_calloc((size_t) g->n_nodes + 1, sizeof *nested->prepared);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_kernel *row = target->backend->kernel(g->node[n].op);
    size_t bytes = row->prepare == NULL ? 0 : row->prepare(target, g, &g->node[n], keep ? &nested->prepared[n] : NULL);
    most = bytes > most ? bytes : most;
  }
  return most;
}

static void *address(const ts_kernel_call *call, const ts_place *p, int64_t count) {
  const void *base = p->of == TS_PLACE_IN      ? call->in[p->i]
                     : p->of == TS_PLACE_OUT   ? call->out[p->i]
                     : p->of == TS_PLACE_PRIOR ? call->prior[p->i]
                                               : call->workspace;
  return (char *) base + p->offset + (size_t) count * p->step;
}

void ts_nested_run(const ts_nested *nested, const ts_backend *backend, const ts_kernel_call *call, int64_t count,
                   void *scratch, size_t bytes) {
  for (ts_nid n = 0; nested->graph != NULL && n < nested->graph->n_nodes; ++n) {
    const ts_node *node = &nested->graph->node[n];
    const void *in[MOST_OPERANDS] = {NULL}, *prior[MOST_OUTPUTS] = {NULL};
    void *out[MOST_OUTPUTS] = {NULL};
    TS_ASSERT(node->n_in <= MOST_OPERANDS && node->n_out <= MOST_OUTPUTS);
    for (int i = 0; i < node->n_in; ++i) {
      in[i] = address(call, &nested->place[node->in[i]], count);
    }
    for (int i = 0; i < node->n_out; ++i) {
      out[i] = address(call, &nested->place[node->out[i]], count);
      prior[i] = node->prior != NULL ? address(call, &nested->place[node->prior[i]], count) : NULL;
    }
    ts_kernel_call inner = {.graph = nested->graph,
                            .node = node,
                            .in = in,
                            .out = out,
                            .prior = node->prior != NULL ? prior : NULL,
                            .beta = node->beta != TS_NONE ? call->beta : NULL,
                            .workspace = scratch,
                            .workspace_bytes = bytes,
                            .prepared = nested->prepared[n],
                            .threads = call->threads,
                            .stream = call->stream};
    backend->kernel(node->op)->run(&inner);
  }
}

const ts_kernel *ts_backend_nested(ts_op op) {
  static const ts_kernel none = {0};
  switch (op) {
    case TS_OP_MLP:
    case TS_OP_MLP_DX: return ts_backend_mlp();
    case TS_OP_ORTHOGONALIZE: return ts_backend_orthogonalize();
    default: return &none;
  }
}

void ts_nested_release(ts_nested *nested, const ts_backend *backend) {
  for (ts_nid n = 0; nested->graph != NULL && nested->prepared != NULL && n < nested->graph->n_nodes; ++n) {
    const ts_kernel *row = backend->kernel(nested->graph->node[n].op);
    if (row->release != NULL && nested->prepared[n] != NULL) {
      row->release(nested->prepared[n]);
    }
  }
  ts_free(nested->prepared);
  ts_free(nested->place);
  ts_graph_destroy(&nested->graph);
}
