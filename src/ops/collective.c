/* Collectives: what may travel where. */
#include "base/memory.h"
#include "ops/build.h"
#include "ops/gradient.h"
#include "ops/rules.h"

#include <string.h>

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

const char *ts_index_all_reduce(const ts_node *node) {
  (void) node;
  return "";
}

const char *ts_index_share(const ts_node *node) {
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

/* The two undo each other: what one spreads the other adds up. */
static void add_conjugate(ts_gradients *gradients, const ts_node *node, ts_op op) {
  ts_graph *g = gradients->graph;
  TS_CHECK(node->n_in == 1 && node->attr.comm.n_pieces == 1, "%s: only whole values are differentiated", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  ts_tid dy = ts_gradients_of(gradients, node->out[0]);
  const ts_piece *piece = node->attr.comm.piece;
  char *name = ts_format("%s.dx", node->name), *shaped = ts_format("%s.dx.shaped", node->name);
  ts_tid dx = op == TS_OP_ALL_GATHER
                  ? ts_build_all_gather(at, name, node->attr.comm.axes, node->attr.comm.group, 1, &dy, NULL, 1, piece)
                  : ts_build_reduce_scatter(at, name, node->attr.comm.axes, node->attr.comm.group, g->tensor[dy].dtype,
                                            1, 1, &dy, NULL, TS_NONE, 1, piece);
  ts_gradients_add(gradients, node->in[0], ts_build_view(at, shaped, dx, 0, g->tensor[node->in[0]].shape));
  ts_free(name);
  ts_free(shaped);
}

void ts_gradient_all_gather(ts_gradients *gradients, const ts_node *node) {
  add_conjugate(gradients, node, TS_OP_REDUCE_SCATTER);
}

void ts_gradient_reduce_scatter(ts_gradients *gradients, const ts_node *node) {
  add_conjugate(gradients, node, TS_OP_ALL_GATHER);
}

const char *ts_shape_reduce_scatter(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  return check_collective(g, node, true, dtype, shape);
}

/* ---- rows to the ranks that have their experts ---- */

const char *ts_index_exchange_rows(const ts_node *node) {
  (void) node;
  return "";
}

const char *ts_shape_exchange_rows(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0), *firsts = ts_rule_in(g, node, 1);
  int64_t group = node->attr.comm.group;
  TS_RULE(x->shape.n == 2 && ts_dtype_is_working(x->dtype), "x is [rows][C], fp32, bf16 or fp16");
  TS_RULE(firsts->dtype == TS_I32 && firsts->shape.n == 2 && firsts->shape.d[0] == group && firsts->shape.d[1] >= 2,
          "firsts is [ranks][E + 1] int32");
  TS_RULE(node->attr.comm.n_pieces == 1 && node->attr.comm.piece[0].cuts != NULL &&
              node->attr.comm.piece[0].cuts[group] == firsts->shape.d[1] - 1,
          "the experts are those of all ranks");
  TS_RULE(ts_rule_in(g, node, 2)->dtype == TS_I32 && ts_rule_in(g, node, 2)->shape.n == 1 &&
              ts_rule_is(g, node, 3, TS_I32, TS_SHAPE(firsts->shape.d[1])),
          "rows begin where two int32 say");
  TS_RULE(node->attr.comm.rows >= 0 && node->attr.comm.rows <= INT32_MAX && x->shape.d[0] <= INT32_MAX,
          "rows are counted in 32 bits");
  dtype[0] = x->dtype;
  shape[0] = TS_SHAPE(node->attr.comm.rows, x->shape.d[1]);
  return NULL;
}

void ts_gradient_exchange_rows(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[1], node->in[2], node->in[3]};
  ts_attr attr = node->attr;
  attr.comm.rows = gradients->graph->tensor[node->in[0]].shape.d[0];
  attr.comm.home = !attr.comm.home;
  ts_gradients_add(
      gradients, node->in[0],
      ts_graph_add(
          at, &(ts_node){.op = TS_OP_EXCHANGE_ROWS, .name = name, .n_in = 4, .in = in, .attr = attr, .beta = TS_NONE}));
  ts_free(name);
}

/* ---- blocks from everyone to everyone ---- */

const char *ts_index_all_to_all(const ts_node *node) {
  (void) node;
  return "";
}

static bool is_part_of(ts_interval part, int64_t extent) {
  return part.begin >= 0 && part.length > 0 && part.length <= extent && part.begin <= extent - part.length;
}

/* Blocks of tensors whose last two extents those of `whole` are. */
static const char *check_blocks(const ts_node *node, const ts_block *block, int n, const ts_block *whole) {
  for (int i = 0; i < n; ++i) {
    const ts_block *b = &block[i];
    TS_RULE(b->rank >= 0 && b->rank < node->attr.comm.group, "a block goes to a rank of the group, or comes from one");
    TS_RULE(b->tensor >= 0 && b->tensor < node->n_out, "a block is of no tensor");
    TS_RULE(is_part_of(b->rows, whole[b->tensor].rows.length) &&
                is_part_of(b->columns, whole[b->tensor].columns.length),
            "a block leaves its tensor");
    TS_RULE(i == 0 || b->rank >= b[-1].rank, "blocks are in the order of ranks");
  }
  return NULL;
}

/* What is a sum, because not everything arrives once, is of a type that is added. */
static const char *check_sums(const ts_node *node, const ts_block *arriving, const ts_dtype *dtype) {
  for (int i = 0; i < node->n_out; ++i) {
    const ts_block *whole = &node->attr.comm.block[i];
    TS_RULE(ts_dtype_is_working(dtype[i]) ||
                ts_blocks_tile(arriving, node->attr.comm.n_received, i, whole->rows.length, whole->columns.length),
            "fp32, bf16 and fp16 are added");
  }
  return NULL;
}

static ts_block whole_block(const ts_shape *shape) {
  return (ts_block){.rows.length = shape->d[shape->n - 2], .columns.length = shape->d[shape->n - 1]};
}

static const char *check_sent(const ts_graph *g, const ts_node *node) {
  ts_block *whole = ts_calloc((size_t) node->n_in, sizeof *whole);
  for (int i = 0; i < node->n_in; ++i) {
    whole[i] = whole_block(&ts_rule_in(g, node, i)->shape);
  }
  const char *why = check_blocks(node, node->attr.comm.block + node->n_out, node->attr.comm.n_sent, whole);
  ts_free(whole);
  return why;
}

const char *ts_shape_all_to_all(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_block *whole = node->attr.comm.block, *arriving = whole + node->n_out + node->attr.comm.n_sent;
  TS_RULE(node->n_out == node->n_in && !node->attr.comm.into, "as many outputs as inputs");
  TS_RULE(node->n_in <= TS_MOST_EXCHANGED, "too many tensors travel together");
  for (int i = 0; i < node->n_in; ++i) {
    const ts_tensor *x = ts_rule_in(g, node, i);
    TS_RULE(x->shape.n >= 2, "tensors have rows and columns");
    TS_RULE(whole[i].rows.length >= 0 && whole[i].columns.length >= 0, "extents are not negative");
    dtype[i] = x->dtype;
    shape[i] = x->shape;
    shape[i].d[x->shape.n - 2] = whole[i].rows.length;
    shape[i].d[x->shape.n - 1] = whole[i].columns.length;
  }
  const char *why = check_sent(g, node);
  why = why == NULL ? check_blocks(node, arriving, node->attr.comm.n_received, whole) : why;
  return why == NULL ? check_sums(node, arriving, dtype) : why;
}

/* What came goes back. */
void ts_gradient_all_to_all(ts_gradients *gradients, const ts_node *node) {
  ts_graph *g = gradients->graph;
  int n = node->n_in, sent = node->attr.comm.n_sent, received = node->attr.comm.n_received;
  ts_tid *dy = ts_malloc((size_t) n * sizeof *dy);
  ts_block *block = ts_malloc((size_t) (n + sent + received) * sizeof *block);
  for (int i = 0; i < n; ++i) {
    dy[i] = ts_gradients_of(gradients, node->out[i]);
    TS_CHECK(dy[i] != TS_NONE, "%s: nothing flows back into output %d", node->name, i);
    block[i] = whole_block(&g->tensor[node->in[i]].shape);
  }
  memcpy(block + n, node->attr.comm.block + n + sent, (size_t) received * sizeof *block);
  memcpy(block + n + received, node->attr.comm.block + n, (size_t) sent * sizeof *block);
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  ts_tid dx = ts_build_all_to_all(at, name, node->attr.comm.axes, node->attr.comm.group, n, dy, block, received, sent);
  for (int i = 0; i < n; ++i) {
    if (ts_gradients_wanted(gradients, node->in[i])) {
      ts_gradients_add(gradients, node->in[i], dx + i);
    }
  }
  ts_free(name);
  ts_free(dy);
  ts_free(block);
}

/* ---- the pair of tensor parallelism ---- */

const char *ts_shape_all_reduce(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  TS_RULE(node->attr.comm.n_pieces == 0 && !node->attr.comm.into, "all of it is sent");
  TS_RULE(ts_dtype_is_working(x->dtype), "sums are of fp32, bf16 or fp16");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  return NULL;
}

void ts_gradient_all_reduce(ts_gradients *gradients, const ts_node *node) {
  ts_gradients_add(gradients, node->in[0], ts_gradients_of(gradients, node->out[0]));
}

const char *ts_shape_share(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  dtype[0] = ts_rule_in(g, node, 0)->dtype;
  shape[0] = ts_rule_in(g, node, 0)->shape;
  return NULL;
}

void ts_gradient_share(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  ts_tid dy = ts_gradients_of(gradients, node->out[0]);
  ts_gradients_add(gradients, node->in[0],
                   ts_build_all_reduce(at, name, node->attr.comm.axes, node->attr.comm.group, dy));
  ts_free(name);
}
