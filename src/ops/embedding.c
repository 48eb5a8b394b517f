/* Lookups in a table. */
#include "base/memory.h"
#include "ops/build.h"
#include "ops/gradient.h"
#include "ops/rules.h"

const char *ts_shape_embedding(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *table = ts_rule_in(g, node, 0), *ids = ts_rule_in(g, node, 1);
  TS_RULE(table->shape.n == 2 && ids->dtype == TS_I32 && ids->shape.n == 2, "table is [V][C], ids [B][T] int32");
  TS_RULE(node->attr.embedding.first >= 0, "rows are counted from 0");
  dtype[0] = table->dtype;
  shape[0] = TS_SHAPE(ids->shape.d[0], ids->shape.d[1], table->shape.d[1]);
  return NULL;
}

const char *ts_index_embedding(const ts_node *node) {
  (void) node;
  return "vc,*->*c";
}

/* Ids count rows of the whole table. */
static void localise_table(ts_attr *attr, const ts_share *share) {
  attr->embedding.rows = share->units; /* of a gradient */
  attr->embedding.first += share->first;
}

/* The gradient has rows that no input has. */
bool ts_cut_table(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  bool can = ts_cut_letters(g, node, index, cut);
  if (index == 'v' && node->op == TS_OP_EMBEDDING_DW) {
    *cut = (ts_cut){.units = node->attr.embedding.rows, .parts = 1, .in = {{-1, 1, 1}, {-1, 1, 1}}, .out = {{0, 1, 1}}};
    can = true;
  }
  if (index == 'v') {
    cut->localise = localise_table;
  }
  return can;
}

void ts_gradient_embedding(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dw", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  ts_gradients_add(gradients, node->in[0],
                   ts_build_embedding_dw(at, name, ts_gradients_of(gradients, node->out[0]), node->in[1],
                                         gradients->graph->tensor[node->in[0]].shape.d[0],
                                         ts_gradients_dtype(gradients, node->in[0]), node->attr.embedding.first));
  ts_free(name);
}

const char *ts_shape_embedding_dw(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *dy = ts_rule_in(g, node, 0);
  TS_RULE(dy->shape.n == 3 && ts_rule_is(g, node, 1, TS_I32, TS_SHAPE(dy->shape.d[0], dy->shape.d[1])),
          "dy is [B][T][C], ids [B][T] int32");
  TS_RULE(node->attr.embedding.first >= 0, "rows are counted from 0");
  dtype[0] = node->attr.embedding.dtype;
  shape[0] = TS_SHAPE(node->attr.embedding.rows, dy->shape.d[2]);
  return NULL;
}

const char *ts_index_embedding_dw(const ts_node *node) {
  (void) node;
  return "btc,bt->vc";
}
