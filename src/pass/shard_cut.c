/* Which index each node is cut along: one walk over the model in its order.
 *
 * A product with a parameter begins a cut (its columns are dealt: "column"), or ends one (the inner index is what its
 * first factor was dealt by: "row", and the result is a sum over the ranks).  What lies between follows from the op
 * rows' cut rules: a node with dealt inputs is cut along the index that they have in common; where there is none, it
 * gets them whole.  Units that stay together are found on the way, as attention asks for whole heads; so nothing is
 * dealt before the walk is over.  Where a rank would then get nothing, the product that began the cut is left whole,
 * and the walk is done again; so it is where several ranks would have the same columns of a norm. */
#include "pass/shard_cut.h"

#include "base/memory.h"
#include "graph/op.h"

#include <string.h>

static const char indices[] = "abcdefghijklmnopqrstuvwxyz0123456789";

/* ---- what is asked of the graph ---- */

static const ts_tensor *tensor_at(const ts_sharding *s, ts_tid t) {
  return &s->graph->tensor[t];
}

static int last_dim(const ts_sharding *s, ts_tid t) {
  return tensor_at(s, t)->shape.n - 1;
}

static bool is_parameter(const ts_sharding *s, ts_tid t) {
  return t != TS_NONE && tensor_at(s, t)->role == TS_ROLE_PARAM;
}

/* What ranks keep the part of that they use. */
static bool follows(const ts_sharding *s, ts_tid t) {
  return is_parameter(s, t) || tensor_at(s, t)->role == TS_ROLE_STATE;
}

static bool is_weighted_product(const ts_sharding *s, const ts_node *node) {
  return node->op == TS_OP_MATMUL && is_parameter(s, node->in[1]) && !node->attr.matmul.transpose_a;
}

/* Dimension of a product's weight that is its inner index, and the other one. */
static int inner_dim(const ts_node *product) {
  return product->attr.matmul.transpose_b ? 1 : 0;
}

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

static bool splits_whole(const ts_node *node) {
  return node != NULL && node->op == TS_OP_SPLIT && node->attr.split.groups == 1;
}

int ts_sharding_blocks(const ts_sharding *s, const ts_node *product, const int64_t **size) {
  const ts_node *reader = only_reader(s, product->out[0]);
  if (!splits_whole(reader) || reader->n_out > TS_MOST_RUNS) {
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

/* Lookups, and the head: their weight, TS_NONE for other nodes. */
static ts_tid vocabulary_weight(const ts_sharding *s, const ts_node *node) {
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
      ts_status status = ts_tp_mark_find(s->context->deck, tensor_at(s, w)->name, out, in, &s->mark[w], &err);
      TS_CHECK(status == TS_OK, "%s", err.text);
      if (!shapes) {
        s->mark[w].n_sizes = 0;
        s->mark[w].unit = 1;
      }
    }
    if (w != TS_NONE && s->mark[w].style == TS_TP_ROW && vocabulary_weight(s, &s->graph->node[n]) == w) {
      s->mark[w].style = TS_TP_WHOLE; /* tables are cut by vocabulary or not at all */
    }
  }
}

/* ---- marks of the graph: does a product's output come to another product's inner index? ---- */

enum { UNSEEN, FAILS, COMES };

static int comes_to_row(const ts_sharding *s, ts_tid t, int dim, int depth);

static int both(int a, int b) {
  return a == FAILS || b == FAILS ? FAILS : a == COMES ? a : b;
}

/* A norm of rows of which each rank can have some columns: sums of squares are all that is sent. */
static bool is_norm_of_columns(const ts_sharding *s, const ts_node *node, ts_tid t, int dim) {
  return node->op == TS_OP_RMSNORM && node->in[0] == t && dim == last_dim(s, t) && is_parameter(s, node->in[1]) &&
         !s->banned[node - s->graph->node];
}

/* Through one node that reads t: along the index that t's dimension has there. */
static int comes_through(const ts_sharding *s, const ts_node *node, ts_tid t, int dim, int depth) {
  int found = UNSEEN;
  if (splits_whole(node) && dim == last_dim(s, t)) {
    for (int i = 0; i < node->n_out; ++i) {
      found = both(found, comes_to_row(s, node->out[i], dim, depth));
    }
    return found;
  }
  if (is_norm_of_columns(s, node, t, dim)) {
    return comes_to_row(s, node->out[0], dim, depth);
  }
  ts_cut cut;
  for (const char *c = indices; *c != 0; ++c) {
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
    bool row = is_weighted_product(s, node) && node->in[0] == t && dim == last_dim(s, t) && may_be_row(s, s->reader[i]);
    found = both(found, row ? COMES : comes_through(s, node, t, dim, depth - 1));
  }
  return found;
}

/* ---- dealt dimensions ---- */

static bool unite(ts_sharding *s, const ts_dealt *a, int64_t a_unit, const ts_dealt *b, int64_t b_unit) {
  bool united = a->n == b->n;
  for (int i = 0; i < a->n && united; ++i) {
    united = ts_dealing_unite(s->dealing, a->run[i], a_unit, b->run[i], b_unit);
  }
  return united;
}

static ts_dealt scale(const ts_sharding *s, const ts_dealt *of, int64_t unit, int64_t to) {
  ts_dealt scaled = *of;
  for (int i = 0; i < of->n; ++i) {
    scaled.run[i] = ts_dealing_scale(s->dealing, of->run[i], unit, to);
  }
  return scaled;
}

/* A dimension of its own, in blocks, of each of which \a unit elements stay together. */
static ts_dealt deal_anew(ts_sharding *s, int n, const int64_t *size, int64_t unit) {
  ts_dealt of = {.n = n};
  for (int i = 0; i < n; ++i) {
    of.run[i] = (ts_run_of){ts_dealing_add(s->dealing, size[i], s->context->deck->tensor_parallel.tp.tp_grain_size), 1};
    ts_dealing_coarsen(s->dealing, of.run[i], unit > 1 ? unit : 1);
  }
  return of;
}

/* ---- cutting a node along an index ---- */

static bool is_differentiable(const ts_sharding *s, ts_tid t) {
  return s->context->use == TS_MODEL_TRAIN && tensor_at(s, t)->role == TS_ROLE_VALUE;
}

/* Do the inputs that are dealt have the index in the dimensions they are dealt by?  \return the first, -1 for no. */
static int find_reference(const ts_sharding *s, const ts_node *node, const ts_cut *cut) {
  int first = -1;
  for (int i = 0; i < node->n_in; ++i) {
    const ts_spread *x = node->in[i] == TS_NONE ? NULL : &s->spread[node->in[i]];
    if (x == NULL || !x->dealt) {
      continue;
    }
    if (cut->in[i].dim != x->dim) {
      return -1;
    }
    first = first < 0 ? i : first;
  }
  return first;
}

/* What is dealt by the same index as x, in units of which an op knows no parts. */
static bool keep_together(ts_sharding *s, const ts_dealt *x, int64_t unit, const ts_dealt *first) {
  bool fits = true;
  for (int k = 0; k < x->n && fits; ++k) {
    if (ts_dealing_has_parts(s->dealing, x->run[k]) != ts_dealing_has_parts(s->dealing, first->run[k])) {
      ts_dealing_forbid_parts(s->dealing, x->run[k]);
    }
    fits = ts_dealing_coarsen(s->dealing, x->run[k], unit);
  }
  return fits;
}

/* Inputs that are dealt are dealt alike. */
static bool unite_inputs(ts_sharding *s, const ts_node *node, const ts_cut *cut, int first) {
  const ts_dealt *of = &s->spread[node->in[first]].of;
  int64_t unit = cut->in[first].unit;
  bool united = unit == 1 || of->n == 1;
  for (int i = 0; i < node->n_in && united; ++i) {
    if (node->in[i] != TS_NONE && s->spread[node->in[i]].dealt) {
      const ts_dealt *x = &s->spread[node->in[i]].of;
      united = unite(s, of, unit, x, cut->in[i].unit) && (cut->parts > 1 || keep_together(s, x, cut->in[i].unit, of));
    }
  }
  return united;
}

/* Whole inputs that have the index: parameters follow; of others this rank's part is taken. */
static void cut_input(ts_sharding *s, const ts_node *node, ts_node_share *how, int i, const ts_dealt *of) {
  ts_tid t = node->in[i];
  if (s->spread[t].dealt) {
    return;
  }
  if (how->cut.in[i].dim >= 0) {
    ts_spread part = {.dealt = true, .dim = how->cut.in[i].dim, .of = *of};
    if (follows(s, t)) {
      s->spread[t] = part;
      return;
    }
    how->in = how->in == NULL ? ts_calloc((size_t) node->n_in, sizeof *how->in) : how->in;
    how->in[i] = part;
    how->take |= 1u << i;
    how->share |= is_differentiable(s, t) ? 1u << i : 0;
  } else if (is_parameter(s, t)) {
    s->partial[t] = true;
  } else {
    how->share |= is_differentiable(s, t) ? 1u << i : 0;
  }
}

/* Parts can be told by attention alone: what has none is needed whole by all that have parts of the rest. */
static void find_parts(ts_sharding *s, const ts_node *node, const ts_cut *cut) {
  for (int i = 0; i < node->n_in; ++i) {
    const ts_spread *x = node->in[i] == TS_NONE ? NULL : &s->spread[node->in[i]];
    if (x != NULL && x->dealt && cut->parts > 1 && cut->in[i].parts == cut->parts) {
      ts_dealing_part(s->dealing, x->of.run[0], cut->in[i].unit, cut->parts);
    }
  }
}

static bool cut_node(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  int first = find_reference(s, node, &how->cut);
  if (first < 0) {
    return false;
  }
  find_parts(s, node, &how->cut);
  if (!unite_inputs(s, node, &how->cut, first)) {
    return false;
  }
  if (how->index == 'h') { /* heads are dealt one by one, whatever the grain of widths */
    ts_dealing_drop_grain(s->dealing, s->spread[node->in[first]].of.run[0]);
  }
  const ts_dealt of = s->spread[node->in[first]].of;
  int64_t unit = how->cut.in[first].unit;
  for (int i = 0; i < node->n_in; ++i) {
    if (node->in[i] != TS_NONE) {
      ts_dealt scaled = how->cut.in[i].dim >= 0 ? scale(s, &of, unit, how->cut.in[i].unit) : of;
      cut_input(s, node, how, i, &scaled);
    }
  }
  for (int i = 0; i < node->n_out; ++i) {
    int dim = how->cut.out[i].dim;
    how->sums = how->sums || dim < 0;
    if (dim >= 0) {
      s->spread[node->out[i]] = (ts_spread){.dealt = true, .dim = dim, .of = scale(s, &of, unit, how->cut.out[i].unit)};
    }
  }
  how->run = of.run[0];
  how->size = unit;
  return true;
}

/* All of every input. */
static void leave_whole(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  for (int i = 0; i < node->n_in; ++i) {
    const ts_spread *x = node->in[i] == TS_NONE ? NULL : &s->spread[node->in[i]];
    how->complete |= x != NULL && (x->dealt || x->rows) ? 1u << i : 0;
  }
}

/* ---- rows: tokens of samples, one after the other ---- */

static bool begins_with_tokens(const ts_sharding *s, ts_tid t) {
  const ts_shape *shape = &tensor_at(s, t)->shape;
  return shape->n >= 2 && shape->d[0] == s->batch && shape->d[1] == s->length;
}

/* Can the node do rows by themselves?  What has rows begins with samples and tokens. */
static bool can_cut_rows(const ts_sharding *s, const ts_node *node, ts_cut *cut) {
  if (s->rows.size == 0 || !ts_node_cut(s->graph, node, '*', cut) || cut->units != s->batch * s->length) {
    return false;
  }
  bool can = true;
  for (int i = 0; i < node->n_in && can; ++i) {
    ts_tid t = node->in[i];
    can = t == TS_NONE || (!s->spread[t].dealt && (cut->in[i].dim < 0 ? !s->spread[t].rows : begins_with_tokens(s, t)));
  }
  for (int i = 0; i < node->n_out && can && node->op != TS_OP_HEAD_LOSS; ++i) {
    can = cut->out[i].dim == 0 && begins_with_tokens(s, node->out[i]);
  }
  return can;
}

static bool cut_by_rows(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  if (!can_cut_rows(s, node, &how->cut)) {
    return false;
  }
  for (int i = 0; i < node->n_in; ++i) {
    ts_tid t = node->in[i];
    if (t == TS_NONE || s->spread[t].rows) {
      continue;
    }
    if (how->cut.in[i].dim >= 0) {
      how->take |= 1u << i;
    }
    how->share |= is_differentiable(s, t) ? 1u << i : 0;
    s->partial[t] = s->partial[t] || is_parameter(s, t);
  }
  s->loss_by_rows = s->loss_by_rows || node->op == TS_OP_HEAD_LOSS; /* each rank's, which the record adds up */
  for (int i = 0; i < node->n_out && node->op != TS_OP_HEAD_LOSS; ++i) {
    s->spread[node->out[i]] = (ts_spread){.rows = true};
  }
  how->index = '*';
  how->run = s->rows;
  how->size = 1;
  return true;
}

/* Lookups by token in tables that each rank has, for which nothing has to be sent; and the head, so that both uses of a
 * tied table have partial gradients. */
static bool begins_rows(const ts_sharding *s, const ts_node *node) {
  bool lookup = node->op == TS_OP_EMBEDDING && !s->spread[node->in[0]].dealt;
  return s->rows.size > 0 && (lookup || node->op == TS_OP_HEAD_LOSS);
}

/* Partial sums: each rank gets its rows of the result, where rows are dealt. */
static void scatter_sums(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  how->scatter = how->sums && s->rows.size > 0 && node->n_out == 1 && begins_with_tokens(s, node->out[0]);
  if (how->scatter) {
    s->spread[node->out[0]].rows = true;
    for (int i = 2; node->op == TS_OP_MATMUL && i < node->n_in; ++i) {
      s->partial[node->in[i]] = true; /* a bias of own rows */
    }
  }
}

/* Along an index that all dealt inputs have. */
static void cut_by_inputs(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  for (const char *c = indices; *c != 0; ++c) {
    how->index = *c;
    if (ts_node_cut(s->graph, node, *c, &how->cut) && cut_node(s, node, how)) {
      return;
    }
  }
  how->index = 0;
  leave_whole(s, node, how);
}

/* ---- the last dimension in one group: each output is a part of the runs ---- */

static bool split_runs(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  const ts_spread *x = &s->spread[node->in[0]];
  int at = 0;
  if (x->dim != last_dim(s, node->in[0])) {
    return false;
  }
  for (int i = 0; i < node->n_out; ++i) {
    ts_spread *y = &s->spread[node->out[i]];
    int64_t left = node->attr.split.size[i];
    *y = (ts_spread){.dealt = true, .dim = x->dim, .of = {0}};
    for (; left > 0 && at < x->of.n; ++at) {
      y->of.run[y->of.n++] = x->of.run[at];
      left -= ts_run_extent(s->dealing, x->of.run[at]);
    }
    if (left != 0) {
      for (int k = 0; k <= i; ++k) {
        s->spread[node->out[k]].dealt = false;
      }
      return false;
    }
  }
  how->index = TS_INDEX_RUNS;
  how->run = x->of.run[0];
  how->size = 1;
  return true;
}

/* ---- norms whose rows are dealt by columns ---- */

/* The weight follows; every rank has the statistics. */
static bool cut_norm(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  const ts_spread *x = &s->spread[node->in[0]];
  if (!x->dealt || !is_norm_of_columns(s, node, node->in[0], x->dim)) {
    return false;
  }
  ts_tid w = node->in[1];
  if (s->spread[w].dealt && !unite(s, &x->of, 1, &s->spread[w].of, 1)) {
    return false;
  }
  s->spread[w] = (ts_spread){.dealt = true, .dim = 0, .of = x->of};
  s->rule[w] = "column";
  s->spread[node->out[0]] = *x;
  how->index = TS_INDEX_NORM;
  how->run = x->of.run[0];
  how->size = 1;
  return true;
}

/* ---- products ---- */

static void set_rule(ts_sharding *s, const ts_node *product, const char *rule) {
  for (int i = 1; i < product->n_in; ++i) {
    if (product->in[i] != TS_NONE) {
      s->rule[product->in[i]] = rule;
    }
  }
}

/* A bias waits until the sum is there. */
static ts_node without_bias(const ts_node *product) {
  ts_node bare = *product;
  bare.n_in = 2;
  return bare;
}

/* Of its columns each rank has some: runs of their own, a new index each. */
static void cut_columns(ts_sharding *s, const ts_node *product, ts_node_share *how, int n, const int64_t *size) {
  ts_tid w = product->in[1];
  const ts_tp_mark *mark = &s->mark[w];
  how->complete = s->spread[product->in[0]].dealt;
  if (!s->spread[w].dealt) {
    s->spread[w] = (ts_spread){.dealt = true, .dim = 1 - inner_dim(product), .of = deal_anew(s, n, size, mark->unit)};
  }
  how->index = 'n';
  ts_spread whole = s->spread[product->in[0]];
  s->spread[product->in[0]].dealt = false; /* as it is once it is complete */
  bool cut = ts_node_cut(s->graph, product, 'n', &how->cut) && cut_node(s, product, how);
  s->spread[product->in[0]] = whole;
  TS_CHECK(cut, "%s: its columns cannot be dealt", product->name);
  set_rule(s, product, mark->style == TS_TP_COLUMN ? mark->rule : "column");
}

/* In blocks: as the mark says, or as the output is split, or all in one. */
static void cut_columns_as_read(ts_sharding *s, const ts_node *product, ts_node_share *how) {
  const ts_tp_mark *mark = &s->mark[product->in[1]];
  int64_t all = tensor_at(s, product->in[1])->shape.d[1 - inner_dim(product)];
  const int64_t *size = mark->size;
  int n = mark->style == TS_TP_COLUMN && !s->vocabulary[product->in[1]] ? mark->n_sizes : 0;
  n = n > 0 ? n : ts_sharding_blocks(s, product, &size);
  cut_columns(s, product, how, n > 0 ? n : 1, n > 0 ? size : &all);
}

/* The output, if the mark wants it whole. */
static void gather_output(ts_sharding *s, const ts_node *product, ts_node_share *how) {
  if (s->mark[product->in[1]].gather_output) {
    how->gathered = ts_malloc(sizeof *how->gathered);
    *how->gathered = s->spread[product->out[0]];
    s->spread[product->out[0]] = (ts_spread){0};
  }
}

/* A mark may cut the inner index in blocks of its own; what the first factor was not dealt by is then taken of it. */
static void mark_rows(ts_sharding *s, const ts_node *product) {
  ts_tid w = product->in[1];
  const ts_tp_mark *mark = &s->mark[w];
  int64_t all = tensor_at(s, w)->shape.d[inner_dim(product)];
  if (mark->style == TS_TP_ROW && !s->spread[w].dealt) {
    ts_dealt of =
        deal_anew(s, mark->n_sizes > 0 ? mark->n_sizes : 1, mark->n_sizes > 0 ? mark->size : &all, mark->unit);
    s->spread[w] = (ts_spread){.dealt = true, .dim = inner_dim(product), .of = of};
  }
}

static bool cut_rows(ts_sharding *s, const ts_node *product, ts_node_share *how) {
  ts_node bare = without_bias(product);
  how->index = 'k';
  if (!ts_node_cut(s->graph, &bare, 'k', &how->cut) || !cut_node(s, &bare, how)) {
    *how = (ts_node_share){0};
    return false;
  }
  scatter_sums(s, product, how);
  set_rule(s, product, s->mark[product->in[1]].style == TS_TP_ROW ? s->mark[product->in[1]].rule : "row");
  return true;
}

/* Its weight is whole; of rows it does its own. */
static void leave_alone(ts_sharding *s, const ts_node *product, ts_node_share *how) {
  if (!s->spread[product->in[0]].rows || !cut_by_rows(s, product, how)) {
    leave_whole(s, product, how);
  }
}

/* The inner index is what the first factor was dealt by; where that does not fit it is made whole, and dealt anew. */
static void visit_marked_row(ts_sharding *s, const ts_node *product, ts_node_share *how) {
  ts_spread *x = &s->spread[product->in[0]], as_is = *x;
  bool inner = x->dealt && x->dim == last_dim(s, product->in[0]);
  if (inner && cut_rows(s, product, how)) {
    return;
  }
  mark_rows(s, product);
  *x = (ts_spread){0};
  bool cut = s->spread[product->in[1]].dealt && cut_rows(s, product, how);
  *x = as_is;
  if (cut) {
    how->complete = as_is.dealt;
  } else {
    leave_alone(s, product, how);
  }
}

static void visit_product(ts_sharding *s, const ts_node *product, ts_nid n) {
  ts_node_share *how = &s->node[n];
  ts_tid x = product->in[0], y = product->out[0];
  const ts_tp_mark *mark = &s->mark[product->in[1]];
  bool inner = s->spread[x].dealt && s->spread[x].dim == last_dim(s, x);
  bool open = mark->style == TS_TP_UNSPOKEN;
  if (s->banned[n] || mark->style == TS_TP_WHOLE) {
    leave_alone(s, product, how);
  } else if (mark->style == TS_TP_ROW || (open && inner)) {
    visit_marked_row(s, product, how);
  } else if (!open || comes_to_row(s, y, last_dim(s, y), 64) == COMES) {
    cut_columns_as_read(s, product, how);
    gather_output(s, product, how);
  } else {
    leave_alone(s, product, how);
  }
}

/* ---- the vocabulary: rows of the embedding's table and of the head's ---- */

static void find_vocabulary(ts_sharding *s) {
  for (ts_nid n = 0; n < s->graph->n_nodes; ++n) {
    ts_tid table = vocabulary_weight(s, &s->graph->node[n]);
    if (table != TS_NONE && s->mark[table].style == TS_TP_COLUMN) {
      s->vocabulary[table] = tensor_at(s, table)->shape.d[0] >= s->context->mesh->size[TS_AXIS_TP];
    }
  }
}

/* A rank looks up what lies in its rows, and has logits for them. */
static bool visit_vocabulary(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  ts_tid table = vocabulary_weight(s, node);
  if (node->op == TS_OP_MATMUL || table == TS_NONE || !s->vocabulary[table]) {
    return false;
  }
  if (!s->spread[table].dealt) {
    s->spread[table] = (ts_spread){.dealt = true, .of = deal_anew(s, 1, &tensor_at(s, table)->shape.d[0], 1)};
    s->rule[table] = s->mark[table].rule;
  }
  if (node->op == TS_OP_EMBEDDING) {
    cut_by_inputs(s, node, how);
    scatter_sums(s, node, how);
    return how->index != 0;
  }
  how->index = TS_INDEX_VOCABULARY;
  how->run = s->spread[table].of.run[0];
  how->size = 1;
  how->complete = s->spread[node->in[0]].dealt;
  how->share = is_differentiable(s, node->in[0]);
  return true;
}

/* ---- the walk ---- */

/* What is dealt and what is not: their sum is whole, in training as in generation, where nothing is in rows; all that
 * programs share follows from what is dealt. */
static bool is_mixed_sum(const ts_sharding *s, const ts_node *node) {
  return node->op == TS_OP_ADD && s->spread[node->in[0]].dealt != s->spread[node->in[1]].dealt;
}

static void visit(ts_sharding *s, ts_nid n) {
  const ts_node *node = &s->graph->node[n];
  ts_node_share *how = &s->node[n];
  if (visit_vocabulary(s, node, how)) {
    return;
  }
  bool dealt = false, rows = begins_rows(s, node);
  for (int i = 0; i < node->n_in; ++i) {
    dealt = dealt || (node->in[i] != TS_NONE && s->spread[node->in[i]].dealt);
    rows = rows || (node->in[i] != TS_NONE && s->spread[node->in[i]].rows);
  }
  if (is_weighted_product(s, node)) {
    visit_product(s, node, n);
  } else if ((splits_whole(node) && dealt && split_runs(s, node, how)) || cut_norm(s, node, how)) {
    return;
  } else if (is_mixed_sum(s, node)) {
    leave_whole(s, node, how);
  } else if (!(rows && cut_by_rows(s, node, how)) && (dealt || rows)) {
    cut_by_inputs(s, node, how);
    scatter_sums(s, node, how);
  }
}

/* Between products each rank has its rows (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
 * Models", 2022): of generation there are too few. */
static bool deals_rows(const ts_sharding *s) {
  return s->context->deck->tensor_parallel.sequence_parallel && s->context->use != TS_MODEL_LOGITS &&
         s->batch * s->length >= s->context->mesh->size[TS_AXIS_TP];
}

static void free_shares(ts_sharding *s) {
  for (ts_nid n = 0; n < s->graph->n_nodes; ++n) {
    ts_free(s->node[n].in);
    ts_free(s->node[n].gathered);
  }
}

static void begin_again(ts_sharding *s) {
  const ts_graph *g = s->graph;
  free_shares(s);
  memset(s->node, 0, (size_t) g->n_nodes * sizeof *s->node);
  memset(s->spread, 0, (size_t) g->n_tensors * sizeof *s->spread);
  memset(s->partial, 0, (size_t) g->n_tensors * sizeof *s->partial);
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    s->rule[t] = "whole";
  }
  s->loss_by_rows = false;
  ts_dealing_destroy(&s->dealing);
  s->dealing = ts_dealing_create(s->context->mesh->size[TS_AXIS_TP]);
  if (deals_rows(s)) {
    s->rows = (ts_run_of){ts_dealing_add(s->dealing, s->batch * s->length, 1), 1};
  }
}

/* Would some rank get nothing of it? */
static bool is_unfit(const ts_sharding *s, ts_tid w) {
  const ts_dealt *of = &s->spread[w].of;
  bool reaches = true;
  for (int i = 0; s->spread[w].dealt && i < of->n; ++i) {
    reaches = reaches && ts_dealing_reaches(s->dealing, of->run[i]);
  }
  return !reaches;
}

/* A gradient is partial in all its terms or in none. */
static void check_gradients(const ts_sharding *s) {
  for (ts_nid n = 0; n < s->graph->n_nodes && s->context->use == TS_MODEL_TRAIN; ++n) {
    const ts_node *node = &s->graph->node[n];
    for (int i = 0; i < node->n_in; ++i) {
      bool mixed = s->node[n].index == 0 && node->in[i] != TS_NONE && s->partial[node->in[i]];
      TS_CHECK(!mixed, "%s: the gradient of %s is partial elsewhere", node->name, tensor_at(s, node->in[i])->name);
    }
  }
}

static void find_whole_units(ts_sharding *s) {
  for (ts_tid t = 0; t < s->graph->n_tensors; ++t) {
    const ts_dealt *of = &s->spread[t].of;
    bool parted = false, dealt = is_parameter(s, t) && s->spread[t].dealt;
    for (int i = 0; dealt && i < of->n; ++i) {
      parted = parted || ts_dealing_is_parted(s->dealing, of->run[i]);
    }
    s->whole_units[t] = parted && ts_dealt_is_shared(s->dealing, of);
  }
}

/* Columns that several ranks have would count several times in the sums, forward and backward. */
static bool ban_shared_norms(ts_sharding *s) {
  bool any = false;
  for (ts_nid n = 0; n < s->graph->n_nodes; ++n) {
    if (s->node[n].index == TS_INDEX_NORM && ts_dealt_is_shared(s->dealing, &s->spread[s->graph->node[n].in[0]].of)) {
      s->banned[n] = any = true;
    }
  }
  return any;
}

static bool ban_unfit(ts_sharding *s) {
  bool any = false;
  for (ts_nid n = 0; n < s->graph->n_nodes; ++n) {
    const ts_node *node = &s->graph->node[n];
    if (is_weighted_product(s, node) && !s->banned[n] && is_unfit(s, node->in[1])) {
      s->banned[n] = any = true;
      s->vocabulary[node->in[1]] = false;
    }
  }
  return any;
}

ts_sharding *ts_sharding_create(const ts_graph *graph, const ts_pass_context *context, bool shapes) {
  ts_sharding *s = ts_calloc(1, sizeof *s);
  size_t tensors = (size_t) graph->n_tensors + 1, nodes = (size_t) graph->n_nodes + 1;
  s->graph = graph;
  s->context = context;
  s->spread = ts_calloc(tensors, sizeof *s->spread);
  s->node = ts_calloc(nodes, sizeof *s->node);
  s->partial = ts_calloc(tensors, sizeof *s->partial);
  s->rule = ts_calloc(tensors, sizeof *s->rule);
  s->whole_units = ts_calloc(tensors, sizeof *s->whole_units);
  s->banned = ts_calloc(nodes, sizeof *s->banned);
  s->vocabulary = ts_calloc(tensors, sizeof *s->vocabulary);
  s->mark = ts_calloc(tensors, sizeof *s->mark);
  find_readers(s);
  const ts_shape *ids = &graph->tensor[ts_graph_find(graph, "input_ids")].shape;
  s->batch = ids->d[0];
  s->length = ids->d[1];
  find_marks(s, shapes);
  find_vocabulary(s);
  do {
    begin_again(s);
    for (ts_nid n = 0; n < graph->n_nodes; ++n) {
      visit(s, n);
    }
  } while (ban_unfit(s) || ban_shared_norms(s));
  check_gradients(s);
  find_whole_units(s);
  return s;
}

void ts_sharding_destroy(ts_sharding **sharding) {
  ts_sharding *s = *sharding;
  free_shares(s);
  ts_dealing_destroy(&s->dealing);
  ts_free(s->spread);
  ts_free(s->node);
  ts_free(s->partial);
  ts_free(s->rule);
  ts_free(s->whole_units);
  ts_free(s->banned);
  for (ts_tid t = 0; t < s->graph->n_tensors; ++t) {
    ts_tp_mark_clear(&s->mark[t]);
  }
  ts_free(s->mark);
  ts_free(s->vocabulary);
  ts_free(s->first_reader);
  ts_free(s->reader);
  ts_free(s);
  *sharding = NULL;
}
