/* What is asked of graph and deck before anything is cut: who reads what, which weights have marks, and whether what a
 * product makes comes to another product's inner index. */
#include "base/memory.h"
#include "graph/op.h"
#include "pass/shard_cut.h"

/* ---- readers ---- */

static void find_readers(ts_sharding *s) {
  const ts_graph *g = s->graph;
  int *count = ts_graph_use_counts(g);
  s->first_reader = ts_calloc((size_t) g->n_tensors + 2, sizeof *s->first_reader);
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    s->first_reader[t + 1] = s->first_reader[t] + count[t];
    count[t] = s->first_reader[t];
  }
  s->reader = ts_malloc(((size_t) s->first_reader[g->n_tensors] + 1) * sizeof *s->reader);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    for (int i = 0; i < g->node[n].n_in; ++i) {
      ts_tid t = g->node[n].in[i];
      if (t != TS_NONE) {
        s->reader[count[t]++] = n;
      }
    }
  }
  ts_free(count);
}

/* The one node that reads t, NULL when there are none or several. */
static const ts_node *only_reader(const ts_sharding *s, ts_tid t) {
  bool one = s->first_reader[t + 1] - s->first_reader[t] == 1;
  return one ? &s->graph->node[s->reader[s->first_reader[t]]] : NULL;
}

int ts_sharding_blocks(const ts_sharding *s, const ts_node *product, const int64_t **size) {
  const ts_node *reader = only_reader(s, product->out[0]);
  if (!ts_sharding_splits_whole(reader) || reader->n_out > TS_MOST_RUNS) {
    return 0;
  }
  *size = reader->attr.split.size;
  return reader->n_out;
}

/* ---- marks of the deck and the family ---- */

ts_tid ts_sharding_weight(const ts_graph *g, const ts_node *node, int64_t *out, int64_t *in) {
  bool product = node->op == TS_OP_MATMUL || node->op == TS_OP_HEAD_LOSS;
  ts_tid w = product ? node->in[1] : node->op == TS_OP_EMBEDDING ? node->in[0] : TS_NONE;
  if (w == TS_NONE || g->tensor[w].role != TS_ROLE_PARAM || g->tensor[w].shape.n != 2) {
    return TS_NONE;
  }
  bool in_first = node->op == TS_OP_MATMUL && !node->attr.matmul.transpose_b;
  *out = g->tensor[w].shape.d[in_first ? 1 : 0];
  *in = g->tensor[w].shape.d[in_first ? 0 : 1];
  return w;
}

/* Is it marked, or is what is made of it element by element? */
static bool is_logits(const ts_sharding *s, ts_tid t) {
  const ts_node *reader = only_reader(s, t);
  bool scaled = reader != NULL && (reader->op == TS_OP_SCALE || reader->op == TS_OP_CAST);
  return ts_graph_marked(s->graph, "logits") == t || (scaled && is_logits(s, reader->out[0]));
}

ts_tid ts_sharding_vocabulary_weight(const ts_sharding *s, const ts_node *node) {
  int64_t out, in;
  ts_tid w = ts_sharding_weight(s->graph, node, &out, &in);
  return node->op != TS_OP_MATMUL || (w != TS_NONE && is_logits(s, node->out[0])) ? w : TS_NONE;
}

static void find_marks(ts_sharding *s, bool shapes) {
  for (ts_nid n = 0; n < s->graph->n_nodes; ++n) {
    int64_t out, in;
    ts_tid w = ts_sharding_weight(s->graph, &s->graph->node[n], &out, &in);
    if (w != TS_NONE && s->mark[w].rule[0] == 0) {
      ts_error err = {0};
      ts_status status = ts_tp_mark_find(s->context->deck, ts_sharding_tensor(s, w)->name, out, in, &s->mark[w], &err);
      TS_CHECK(status == TS_OK, "%s", err.text);
      if (!shapes) {
        s->mark[w].n_sizes = 0;
        s->mark[w].unit = 1;
      }
    }
    if (w != TS_NONE && s->mark[w].style == TS_TP_ROW && ts_sharding_vocabulary_weight(s, &s->graph->node[n]) == w) {
      s->mark[w].style = TS_TP_WHOLE; /* tables are cut by vocabulary or not at all */
    }
  }
}

static void find_vocabulary(ts_sharding *s) {
  for (ts_nid n = 0; n < s->graph->n_nodes; ++n) {
    ts_tid table = ts_sharding_vocabulary_weight(s, &s->graph->node[n]);
    if (table != TS_NONE && s->mark[table].style == TS_TP_COLUMN) {
      s->vocabulary[table] = ts_sharding_tensor(s, table)->shape.d[0] >= s->context->mesh->size[TS_AXIS_TP];
    }
  }
}

void ts_sharding_look(ts_sharding *s, bool shapes) {
  find_readers(s);
  find_marks(s, shapes);
  find_vocabulary(s);
}

/* ---- marks of the graph: does a product's output come to another product's inner index? ---- */

enum { UNSEEN, FAILS, COMES };

static int comes_to_row(const ts_sharding *s, ts_tid t, int dim, int depth);

static int both(int a, int b) {
  return a == FAILS || b == FAILS ? FAILS : a == COMES ? a : b;
}

bool ts_sharding_is_norm_of_columns(const ts_sharding *s, const ts_node *node, ts_tid t, int dim) {
  return node->op == TS_OP_RMSNORM && node->in[0] == t && dim == ts_sharding_last_dim(s, t) &&
         ts_sharding_is_parameter(s, node->in[1]) && !s->banned[node - s->graph->node];
}

/* Through one node that reads t: along the index that t's dimension has there. */
static int comes_through(const ts_sharding *s, const ts_node *node, ts_tid t, int dim, int depth) {
  int found = UNSEEN;
  if (ts_sharding_splits_whole(node) && dim == ts_sharding_last_dim(s, t)) {
    for (int i = 0; i < node->n_out; ++i) {
      found = both(found, comes_to_row(s, node->out[i], dim, depth));
    }
    return found;
  }
  if (ts_sharding_is_norm_of_columns(s, node, t, dim)) {
    return comes_to_row(s, node->out[0], dim, depth);
  }
  ts_cut cut;
  for (const char *c = TS_INDICES; *c != 0; ++c) {
    bool along = ts_node_cut(s->graph, node, *c, &cut);
    for (int i = 0; along && i < node->n_in; ++i) {
      along = node->in[i] != t || cut.in[i].dim == dim;
    }
    if (along) {
      for (int i = 0; i < node->n_out; ++i) {
        found = both(found, cut.out[i].dim < 0 ? FAILS : comes_to_row(s, node->out[i], cut.out[i].dim, depth));
      }
      return found;
    }
  }
  return FAILS;
}

static bool may_be_row(const ts_sharding *s, ts_nid n) {
  ts_tp_style style = s->mark[s->graph->node[n].in[1]].style;
  return !s->banned[n] && (style == TS_TP_UNSPOKEN || style == TS_TP_ROW);
}

/* UNSEEN: nobody reads it on the way. */
static int comes_to_row(const ts_sharding *s, ts_tid t, int dim, int depth) {
  int found = ts_graph_is_marked(s->graph, t) || depth == 0 ? FAILS : UNSEEN;
  for (int i = s->first_reader[t]; i < s->first_reader[t + 1] && found != FAILS; ++i) {
    const ts_node *node = &s->graph->node[s->reader[i]];
    bool row = ts_sharding_is_product(s, node) && node->in[0] == t && dim == ts_sharding_last_dim(s, t) &&
               may_be_row(s, s->reader[i]);
    found = both(found, row ? COMES : comes_through(s, node, t, dim, depth - 1));
  }
  return found;
}

bool ts_sharding_ends_in_rows(const ts_sharding *s, ts_tid t) {
  return comes_to_row(s, t, ts_sharding_last_dim(s, t), 64) == COMES;
}
