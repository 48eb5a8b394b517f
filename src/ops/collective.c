/* Collectives: what may travel where. */
#include "ops/rules.h"

static int n_values(const ts_node *node) {
  return node->attr.comm.into ? node->n_in / 2 : node->n_in;
}

const char *ts_index_all_gather(const ts_node *node) {
  (void) node;
  return "";
}

const char *ts_index_reduce_scatter(const ts_node *node) {
  (void) node;
  return "";
}

static const char *check_pieces(const ts_node *node) {
  int n = n_values(node);
  TS_RULE(!node->attr.comm.into || node->n_in % 2 == 0, "as many targets as values");
  TS_RULE(node->n_out == n, "one output a value");
  TS_RULE(node->attr.comm.n_pieces > 0, "there is nothing to send");
  for (int i = 0; i < node->attr.comm.n_pieces; ++i) {
    const ts_piece *p = &node->attr.comm.piece[i];
    TS_RULE(p->input >= 0 && p->input < n && p->cuts != NULL && p->begin >= 0 && p->begin <= p->end,
            "a piece names no value, no cuts or no columns");
  }
  return NULL;
}

/* Elements of the whole and of the largest shard of value i, by its (first) piece; -1 when no piece names it. */
static int64_t whole_of(const ts_node *node, int i, int64_t *shard) {
  for (int k = 0; k < node->attr.comm.n_pieces; ++k) {
    const ts_piece *p = &node->attr.comm.piece[k];
    if (p->input == i) {
      *shard = p->cuts[1] - p->cuts[0];
      return p->cuts[node->attr.comm.group];
    }
  }
  return -1;
}

static const char *check_value(const ts_graph *g, const ts_node *node, int i, bool x_is_whole, ts_dtype *dtype,
                               ts_shape *shape) {
  int64_t shard = 0, whole = whole_of(node, i, &shard);
  TS_RULE(whole >= 0, "a value has no piece");
  TS_RULE(ts_tensor_count(g, node->in[i]) >= (x_is_whole ? whole : shard), "a value is smaller than its cuts");
  int64_t least = x_is_whole ? shard : whole;
  if (node->attr.comm.into) {
    const ts_tensor *into = ts_rule_in(g, node, n_values(node) + i);
    TS_RULE(ts_shape_count(&into->shape) >= least, "a target is smaller than its cuts");
    *dtype = into->dtype;
    *shape = into->shape;
  } else {
    *dtype = ts_rule_in(g, node, i)->dtype;
    *shape = TS_SHAPE(least);
  }
  return NULL;
}

static const char *check_collective(const ts_graph *g, const ts_node *node, bool x_is_whole, ts_dtype *dtype,
                                    ts_shape *shape) {
  const char *why = check_pieces(node);
  for (int i = 0; why == NULL && i < node->n_out; ++i) {
    why = check_value(g, node, i, x_is_whole, &dtype[i], &shape[i]);
    if (why == NULL && !(ts_rule_in(g, node, i)->dtype == ts_rule_in(g, node, 0)->dtype && dtype[i] == dtype[0])) {
      why = "values of one collective have one dtype";
    }
  }
  return why;
}

const char *ts_shape_all_gather(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_collective(g, node, false, dtype, shape);
  return why == NULL && dtype[0] != ts_rule_in(g, node, 0)->dtype ? "a gather does not change the dtype" : why;
}

const char *ts_shape_reduce_scatter(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  return check_collective(g, node, true, dtype, shape);
}
