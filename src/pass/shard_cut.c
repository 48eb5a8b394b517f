/* Which index each node is cut along: one walk over the model in its order.
 *
 * A product with a parameter begins a cut (its columns are dealt: "column"), or ends one (the inner index is what its
 * first factor was dealt by: "row", and the result is a sum over the ranks).  What lies between follows from the op
 * rows' cut rules: a node with dealt inputs is cut along the index that they have in common; where there is none, it
 * gets them whole.  Units that stay together are found on the way, as attention asks for whole heads; so nothing is
 * dealt before the walk is over.  Where a rank would then get nothing, the product that began the cut is left whole,
 * and the walk is done again; so it is where several ranks would have the same columns of a norm, and where two nodes
 * would have the same parameter cut in two ways. */
#include "pass/shard_cut.h"

#include "base/memory.h"

#include <string.h>

/* ---- products ---- */

ts_dealt ts_sharding_deal_anew(ts_sharding *s, int n, const int64_t *size, int64_t unit) {
  ts_dealt of = {.n = n};
  for (int i = 0; i < n; ++i) {
    of.run[i] = (ts_run_of){ts_dealing_add(s->dealing, size[i], s->context->deck->tensor_parallel.tp.tp_grain_size), 1};
    ts_dealing_coarsen(s->dealing, of.run[i], unit > 1 ? unit : 1);
  }
  return of;
}

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
    s->spread[w] = (ts_spread){
        .dealt = true, .dim = 1 - ts_sharding_inner_dim(product), .of = ts_sharding_deal_anew(s, n, size, mark->unit)};
  }
  how->index = 'n';
  ts_spread whole = s->spread[product->in[0]];
  s->spread[product->in[0]].dealt = false; /* as it is once it is complete */
  bool cut = ts_node_cut(s->graph, product, 'n', &how->cut) && ts_sharding_cut_node(s, product, how);
  s->spread[product->in[0]] = whole;
  TS_CHECK(cut, "%s: its columns cannot be dealt", product->name);
  set_rule(s, product, mark->style == TS_TP_COLUMN ? mark->rule : "column");
}

/* In blocks: as the mark says, or as the output is split, or all in one. */
static void cut_columns_as_read(ts_sharding *s, const ts_node *product, ts_node_share *how) {
  const ts_tp_mark *mark = &s->mark[product->in[1]];
  int64_t all = ts_sharding_tensor(s, product->in[1])->shape.d[1 - ts_sharding_inner_dim(product)];
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
  int64_t all = ts_sharding_tensor(s, w)->shape.d[ts_sharding_inner_dim(product)];
  if (mark->style == TS_TP_ROW && !s->spread[w].dealt) {
    ts_dealt of = ts_sharding_deal_anew(s, mark->n_sizes > 0 ? mark->n_sizes : 1, mark->n_sizes > 0 ? mark->size : &all,
                                        mark->unit);
    s->spread[w] = (ts_spread){.dealt = true, .dim = ts_sharding_inner_dim(product), .of = of};
  }
}

static bool cut_rows(ts_sharding *s, const ts_node *product, ts_node_share *how) {
  ts_node bare = without_bias(product);
  how->index = 'k';
  if (!ts_node_cut(s->graph, &bare, 'k', &how->cut) || !ts_sharding_cut_node(s, &bare, how)) {
    *how = (ts_node_share){0};
    return false;
  }
  ts_sharding_scatter_sums(s, product, how);
  set_rule(s, product, s->mark[product->in[1]].style == TS_TP_ROW ? s->mark[product->in[1]].rule : "row");
  return true;
}

/* Its weight is whole; of rows it does its own. */
static void leave_alone(ts_sharding *s, const ts_node *product, ts_node_share *how) {
  if (!s->spread[product->in[0]].rows || !ts_sharding_cut_by_rows(s, product, how)) {
    ts_sharding_leave_whole(s, product, how);
  }
}

/* The inner index is what the first factor was dealt by; where that does not fit it is made whole, and dealt anew. */
static void visit_marked_row(ts_sharding *s, const ts_node *product, ts_node_share *how) {
  ts_spread *x = &s->spread[product->in[0]], as_is = *x;
  bool inner = x->dealt && x->dim == ts_sharding_last_dim(s, product->in[0]);
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

/* A weight that another product has had cut along its inner index has no columns to deal. */
static bool may_deal_columns(const ts_sharding *s, const ts_node *product) {
  const ts_spread *w = &s->spread[product->in[1]];
  return !w->dealt || w->dim != ts_sharding_inner_dim(product);
}

static void visit_product(ts_sharding *s, const ts_node *product, ts_nid n) {
  ts_node_share *how = &s->node[n];
  ts_tid x = product->in[0];
  const ts_tp_mark *mark = &s->mark[product->in[1]];
  bool inner = s->spread[x].dealt && s->spread[x].dim == ts_sharding_last_dim(s, x);
  bool open = mark->style == TS_TP_UNSPOKEN;
  if (s->banned[n] || mark->style == TS_TP_WHOLE) {
    leave_alone(s, product, how);
  } else if (mark->style == TS_TP_ROW || (open && inner)) {
    visit_marked_row(s, product, how);
  } else if (may_deal_columns(s, product) && (!open || ts_sharding_ends_in_rows(s, product->out[0]))) {
    cut_columns_as_read(s, product, how);
    gather_output(s, product, how);
  } else {
    leave_alone(s, product, how);
  }
}

/* ---- the vocabulary: rows of the embedding's table and of the head's ---- */

/* A rank looks up what lies in its rows, and has logits for them. */
static bool visit_vocabulary(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  ts_tid table = ts_sharding_vocabulary_weight(s, node);
  if (node->op == TS_OP_MATMUL || table == TS_NONE || !s->vocabulary[table]) {
    return false;
  }
  if (!s->spread[table].dealt) {
    s->spread[table] =
        (ts_spread){.dealt = true, .of = ts_sharding_deal_anew(s, 1, &ts_sharding_tensor(s, table)->shape.d[0], 1)};
    s->rule[table] = s->mark[table].rule;
  }
  if (node->op == TS_OP_EMBEDDING) {
    ts_sharding_cut_by_inputs(s, node, how);
    ts_sharding_scatter_sums(s, node, how);
    return how->index != 0;
  }
  how->index = TS_INDEX_VOCABULARY;
  how->run = s->spread[table].of.run[0];
  how->size = 1;
  how->complete = s->spread[node->in[0]].dealt;
  how->share = ts_sharding_is_differentiable(s, node->in[0]);
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
  if (visit_vocabulary(s, node, how) || ts_sharding_follow_experts(s, node, how) ||
      ts_sharding_follow_routed(s, node, how)) {
    return;
  }
  bool dealt = false, rows = ts_sharding_begins_rows(s, node);
  for (int i = 0; i < node->n_in; ++i) {
    dealt = dealt || (node->in[i] != TS_NONE && s->spread[node->in[i]].dealt);
    rows = rows || (node->in[i] != TS_NONE && s->spread[node->in[i]].rows);
  }
  if (ts_sharding_is_product(s, node)) {
    visit_product(s, node, n);
  } else if ((ts_sharding_splits_whole(node) && dealt && ts_sharding_split_runs(s, node, how)) ||
             ts_sharding_cut_norm(s, node, how)) {
    return;
  } else if (is_mixed_sum(s, node)) {
    ts_sharding_leave_whole(s, node, how);
  } else if (!(rows && ts_sharding_cut_by_rows(s, node, how)) && (dealt || rows)) {
    ts_sharding_cut_by_inputs(s, node, how);
    ts_sharding_scatter_sums(s, node, how);
  }
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
  ts_sharding_deal_rows(s);
}

/* ---- what has to be left whole, and is then done again ---- */

/* Would some rank get nothing of it? */
static bool is_unfit(const ts_sharding *s, ts_tid w) {
  const ts_dealt *of = &s->spread[w].of;
  bool reaches = true;
  for (int i = 0; s->spread[w].dealt && i < of->n; ++i) {
    reaches = reaches && ts_dealing_reaches(s->dealing, of->run[i]);
  }
  return !reaches;
}

static bool ban_unfit(ts_sharding *s) {
  bool any = false;
  for (ts_nid n = 0; n < s->graph->n_nodes; ++n) {
    const ts_node *node = &s->graph->node[n];
    if (ts_sharding_is_product(s, node) && !s->banned[n] && is_unfit(s, node->in[1])) {
      s->banned[n] = any = true;
      s->vocabulary[node->in[1]] = false;
    }
  }
  return any;
}

/* Does it read a parameter otherwise than that is dealt in the end, as one that was whole when the walk came by? */
static bool is_torn(const ts_sharding *s, ts_nid n, int i) {
  const ts_node *node = &s->graph->node[n];
  const ts_node_share *how = &s->node[n];
  const ts_spread *w = node->in[i] == TS_NONE ? NULL : &s->spread[node->in[i]];
  if (w == NULL || !w->dealt || !ts_sharding_is_parameter(s, node->in[i])) {
    return false;
  }
  if (i == 1 && ts_sharding_is_product(s, node)) {
    char index = w->dim == ts_sharding_inner_dim(node) ? 'k' : 'n';
    return how->index != index && how->index != TS_INDEX_VOCABULARY;
  }
  return how->index == 0 && (how->complete >> i & 1) == 0;
}

/* A parameter that is torn is whole: in all its products, and as a table. \return false: it is already. */
static bool ban_readers(ts_sharding *s, ts_tid w) {
  bool any = s->vocabulary[w];
  s->vocabulary[w] = false;
  for (int r = s->first_reader[w]; r < s->first_reader[w + 1]; ++r) {
    any = any || !s->banned[s->reader[r]];
    s->banned[s->reader[r]] = true;
  }
  return any;
}

/* One of them; the next walk shows others. */
static bool ban_torn(ts_sharding *s) {
  for (ts_nid n = 0; n < s->graph->n_nodes; ++n) {
    const ts_node *node = &s->graph->node[n];
    for (int i = 0; i < node->n_in; ++i) {
      if (is_torn(s, n, i)) {
        bool any = ban_readers(s, node->in[i]);
        TS_CHECK(any, "%s: %s is whole here and dealt elsewhere", node->name, ts_sharding_tensor(s, node->in[i])->name);
        return true;
      }
    }
  }
  return false;
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

/* ---- the whole model ---- */

/* A gradient is partial in all its terms or in none. */
static void check_gradients(const ts_sharding *s) {
  for (ts_nid n = 0; n < s->graph->n_nodes && s->context->use == TS_MODEL_TRAIN; ++n) {
    const ts_node *node = &s->graph->node[n];
    for (int i = 0; i < node->n_in; ++i) {
      bool mixed = s->node[n].index == 0 && node->in[i] != TS_NONE && s->partial[node->in[i]];
      TS_CHECK(!mixed, "%s: the gradient of %s is partial elsewhere", node->name,
               ts_sharding_tensor(s, node->in[i])->name);
    }
  }
}

static void find_whole_units(ts_sharding *s) {
  for (ts_tid t = 0; t < s->graph->n_tensors; ++t) {
    const ts_dealt *of = &s->spread[t].of;
    bool parted = false, dealt = ts_sharding_is_parameter(s, t) && s->spread[t].dealt;
    for (int i = 0; dealt && i < of->n; ++i) {
      parted = parted || ts_dealing_is_parted(s->dealing, of->run[i]);
    }
    s->whole_units[t] = parted && ts_dealt_is_shared(s->dealing, of);
  }
}

ts_sharding *ts_sharding_create(const ts_graph *graph, const ts_pass_context *context, bool shapes) {
  ts_sharding *s = ts_calloc(1, sizeof *s);
  size_t tensors = (size_t) graph->n_tensors + 1, nodes = (size_t) graph->n_nodes + 1;
  s->graph = graph;
  s->context = context;
  s->cuts_experts = context->deck->expert_parallel.expert_tensor_parallel_size > 1;
  s->spread = ts_calloc(tensors, sizeof *s->spread);
  s->node = ts_calloc(nodes, sizeof *s->node);
  s->partial = ts_calloc(tensors, sizeof *s->partial);
  s->rule = ts_calloc(tensors, sizeof *s->rule);
  s->whole_units = ts_calloc(tensors, sizeof *s->whole_units);
  s->banned = ts_calloc(nodes, sizeof *s->banned);
  s->vocabulary = ts_calloc(tensors, sizeof *s->vocabulary);
  s->mark = ts_calloc(tensors, sizeof *s->mark);
  const ts_shape *ids = ts_graph_token_shape(graph);
  s->batch = ids != NULL ? ids->d[0] : 1;
  s->length = ids != NULL && ids->n > 1 ? ids->d[1] : 1;
  ts_sharding_look(s, shapes);
  return s;
}

void ts_sharding_cut(ts_sharding *s) {
  do {
    begin_again(s);
    for (ts_nid n = 0; n < s->graph->n_nodes; ++n) {
      visit(s, n);
    }
  } while (ban_unfit(s) || ban_torn(s) || ban_shared_norms(s));
  check_gradients(s);
  find_whole_units(s);
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
