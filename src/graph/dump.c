/* The graph as text, for people (text, dot) and programs (json). */
#include "base/memory.h"
#include "graph/attribute.h"
#include "graph/op.h"

static void add_name(const ts_graph *g, ts_tid t, ts_text *to) {
  ts_text_add(to, "%s", t == TS_NONE ? "-" : t < 0 || t >= g->n_tensors ? "?" : g->tensor[t].name);
}

static void add_type(const ts_tensor *t, ts_text *to) {
  ts_text_add(to, "%s[", ts_dtype_name(t->dtype));
  for (int i = 0; i < t->shape.n; ++i) {
    ts_text_add(to, i > 0 ? "x%lld" : "%lld", (long long) t->shape.d[i]);
  }
  ts_text_add(to, "]");
}

static void add_list(const ts_graph *g, const ts_tid *list, int n, ts_text *to) {
  for (int i = 0; i < n; ++i) {
    ts_text_add(to, i > 0 ? ", " : "");
    add_name(g, list[i], to);
  }
}

void ts_node_print(const ts_graph *g, const ts_node *node, ts_text *to) {
  ts_text_add(to, "%s: ", node->name);
  add_list(g, node->out, node->n_out, to);
  ts_text_add(to, " = %s(", ts_op_get(node->op)->name);
  add_list(g, node->in, node->n_in, to);
  ts_text_add(to, ")%s", node->on_host ? " on the host" : "");
  ts_attributes_print(node, to);
  for (int i = 0; node->prior != NULL && i < node->n_out; ++i) {
    if (node->prior[i] != TS_NONE) {
      ts_text_add(to, " + ");
      if (node->beta != TS_NONE) {
        add_name(g, node->beta, to);
        ts_text_add(to, " * ");
      }
      add_name(g, node->prior[i], to);
    }
  }
}

static const char *segment_name(ts_segment segment) {
  switch (segment) {
    case TS_SEGMENT_FORWARD: return "forward";
    case TS_SEGMENT_BACKWARD_INPUT: return "backward";
    case TS_SEGMENT_BACKWARD_WEIGHT: return "weight";
    case TS_SEGMENT_REDUCE: return "reduce";
    case TS_SEGMENT_UPDATE: return "update";
    case TS_SEGMENT_PREPARE: return "prepare";
    case TS_SEGMENT_LATE_UPDATE: return "late";
    case TS_SEGMENT_LATE_GATHER: return "gather";
  }
  return "?";
}

static void dump_text(const ts_graph *g, ts_text *to) {
  static const char *const roles[] = {"value", "input", "scalar", "param", "state"};
  ts_text_add(to, "# %d nodes, %d tensors, %d units\n", g->n_nodes, g->n_tensors, g->n_units);
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    if (g->tensor[t].producer == TS_NONE) {
      ts_text_add(to, "%-6s %s ", roles[g->tensor[t].role], g->tensor[t].name);
      add_type(&g->tensor[t], to);
      ts_text_add(to, "\n");
    }
  }
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    ts_text_add(to, "%-8s ", segment_name(node->segment));
    ts_node_print(g, node, to);
    ts_text_add(to, "  ");
    if (node->n_out > 0) {
      add_type(&g->tensor[node->out[0]], to);
    }
    ts_text_add(to, "\n");
  }
  for (int i = 0; i < g->n_marks; ++i) {
    ts_text_add(to, "mark   %s = %s\n", g->mark[i].name, g->tensor[g->mark[i].tensor].name);
  }
}

static void dump_dot(const ts_graph *g, ts_text *to) {
  ts_text_add(to, "digraph step {\n  node [shape=box, fontname=\"monospace\", fontsize=10];\n");
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    ts_text_add(to, "  n%d [label=\"%s\\n%s\"];\n", n, ts_op_get(node->op)->name, node->name);
    for (int i = 0; i < node->n_in; ++i) {
      ts_tid t = node->in[i];
      if (t != TS_NONE && g->tensor[t].producer != TS_NONE) {
        ts_text_add(to, "  n%d -> n%d [label=\"", g->tensor[t].producer, n);
        add_type(&g->tensor[t], to);
        ts_text_add(to, "\"];\n");
      }
    }
  }
  ts_text_add(to, "}\n");
}

static void json_ids(const char *key, const ts_tid *list, int n, ts_text *to) {
  ts_text_add(to, ", \"%s\": [", key);
  for (int i = 0; i < n; ++i) {
    ts_text_add(to, i > 0 ? ", %d" : "%d", list[i]);
  }
  ts_text_add(to, "]");
}

static void dump_json(const ts_graph *g, ts_text *to) {
  ts_text_add(to, "{\"tensors\": [\n");
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_tensor *tensor = &g->tensor[t];
    ts_text_add(to, "%s {\"name\": ", t > 0 ? ",\n" : "");
    ts_text_add_json(to, tensor->name);
    ts_text_add(to, ", \"dtype\": \"%s\", \"producer\": %d, \"shape\": [", ts_dtype_name(tensor->dtype),
                tensor->producer);
    for (int i = 0; i < tensor->shape.n; ++i) {
      ts_text_add(to, i > 0 ? ", %lld" : "%lld", (long long) tensor->shape.d[i]);
    }
    ts_text_add(to, "]}");
  }
  ts_text_add(to, "\n], \"nodes\": [\n");
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    ts_text_add(to, "%s {\"name\": ", n > 0 ? ",\n" : "");
    ts_text_add_json(to, node->name);
    ts_text_add(to, ", \"op\": \"%s\", \"segment\": \"%s\", \"unit\": %d", ts_op_get(node->op)->name,
                segment_name(node->segment), node->unit);
    json_ids("in", node->in, node->n_in, to);
    json_ids("out", node->out, node->n_out, to);
    ts_text_add(to, ", \"flops\": %.17g, \"bytes\": %.17g}", ts_node_flops(g, node), ts_node_bytes(g, node));
  }
  ts_text_add(to, "\n]}\n");
}

void ts_graph_dump(const ts_graph *g, ts_graph_format format, ts_text *to) {
  static void (*const dump[])(const ts_graph *, ts_text *) = {
      [TS_GRAPH_TEXT] = dump_text, [TS_GRAPH_DOT] = dump_dot, [TS_GRAPH_JSON] = dump_json};
  dump[format](g, to);
}
