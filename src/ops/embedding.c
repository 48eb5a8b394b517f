/* Lookups in a table, and among the tokens of a sample. */
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

double ts_flops_embedding_dw(const ts_graph *g, const ts_node *node) {
  return (double) ts_shape_count(&g->tensor[node->in[0]].shape);
}

const char *ts_index_embedding_dw(const ts_node *node) {
  (void) node;
  return "btc,bt->vc";
}

/* ---- tokens of a sample ---- */

/* The second input says of the tokens of whole samples which are meant, by number or one by one. */
static const char *check_pick(const ts_graph *g, const ts_node *node, int64_t samples, int64_t rows) {
  const ts_tensor *which = ts_rule_in(g, node, 1);
  const ts_shape *s = &which->shape;
  TS_RULE(ts_dtype_is_working(ts_rule_in(g, node, 0)->dtype), "x is fp32, bf16 or fp16");
  TS_RULE(which->dtype == TS_I32 && (s->n == 1 || s->n == 2) && s->d[0] == samples,
          "index is [B] int32, or mask [B][T] int32");
  int64_t length = s->n == 2 ? s->d[1] : INT64_MAX;
  TS_RULE(rows <= length && ts_tokens_fit(&node->attr.pick.tokens, rows, length), "x has tokens of a sample");
  return NULL;
}

const char *ts_shape_pick(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  TS_RULE(x->shape.n == 3, "x is [B][T][C]");
  dtype[0] = x->dtype;
  shape[0] = TS_SHAPE(x->shape.d[0], 1, x->shape.d[2]);
  return check_pick(g, node, x->shape.d[0], x->shape.d[1]);
}

static bool picks_by_mask(const ts_graph *g, const ts_node *node) {
  return ts_rule_in(g, node, 1)->shape.n == 2;
}

/* Whether the second input has tokens too, letters cannot say. */
const char *ts_index_pick(const ts_node *node) {
  (void) node;
  return "btc,.->bpc";
}

static void localise_pick(ts_attr *attr, const ts_share *share) {
  attr->pick.tokens = ts_tokens_part(&attr->pick.tokens, share->first, share->units);
  attr->pick.rows = share->units;
}

/* Samples and columns of all; tokens of x, or of dx. */
bool ts_cut_pick(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  bool back = node->op == TS_OP_PICK_DX;
  const ts_shape *x = &ts_rule_in(g, node, 0)->shape;
  const ts_slice none = {-1, 1, 1};
  if (index == 't') {
    const ts_slice tokens = {1, 1, 1};
    *cut = (ts_cut){.units = back ? node->attr.pick.rows : x->d[1],
                    .parts = 1,
                    .in = {back ? none : tokens, none},
                    .out = {back ? tokens : none},
                    .localise = localise_pick};
    return true;
  }
  if (index != 'b' && index != 'c') {
    return false;
  }
  const ts_slice each = {index == 'b' ? 0 : 2, 1, 1};
  *cut = (ts_cut){.units = x->d[each.dim], .parts = 1, .in = {each, index == 'b' ? each : none}, .out = {each}};
  return true;
}

double ts_flops_pick(const ts_graph *g, const ts_node *node) {
  return picks_by_mask(g, node) ? ts_flops_elements(g, node) : 0;
}

void ts_gradient_pick(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[1]};
  ts_attr attr = node->attr;
  attr.pick.rows = gradients->graph->tensor[node->in[0]].shape.d[1];
  ts_gradients_add(
      gradients, node->in[0],
      ts_graph_add(at,
                   &(ts_node){.op = TS_OP_PICK_DX, .name = name, .n_in = 2, .in = in, .attr = attr, .beta = TS_NONE}));
  ts_free(name);
}

const char *ts_shape_pick_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *dy = ts_rule_in(g, node, 0);
  TS_RULE(dy->shape.n == 3 && dy->shape.d[1] == 1, "dy is [B][1][C]");
  TS_RULE(node->attr.pick.rows >= 0, "dx has rows");
  dtype[0] = dy->dtype;
  shape[0] = TS_SHAPE(dy->shape.d[0], node->attr.pick.rows, dy->shape.d[2]);
  return check_pick(g, node, dy->shape.d[0], node->attr.pick.rows);
}

const char *ts_index_pick_dx(const ts_node *node) {
  (void) node;
  return "bpc,.->btc";
}
