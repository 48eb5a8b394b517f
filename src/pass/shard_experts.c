/* Experts that are cut over tp (expert_parallel.expert_tensor_parallel_size): every rank brings all tokens together by
 * expert and has some of each expert's columns, of the last matrix rows.  What it makes of a row is then a part of a
 * sum, and so is what it makes of a token: these are added up, k times fewer and without gaps.  Of all that is brought
 * together gradients are parts of sums, too, which are added up where tokens, or weights, are shared.
 *
 * Without it experts stay whole, and each rank has tokens of its own for them: shard_rows.c. */
#include "pass/shard_cut.h"

#include "family/stack.h"

enum { X = 0, STACK = 1, ORDER = 1, WEIGHT = 4 };

static bool is_dispatch_of_several(const ts_node *node) {
  return node != NULL && node->op == TS_OP_DISPATCH && node->attr.experts.n > 1;
}

static bool is_brought(const ts_sharding *s, ts_tid t) {
  return t != TS_NONE && (s->spread[t].brought || s->spread[t].sums);
}

/* Parameters follow; nothing is shared again. */
static void cut_along(ts_sharding *s, const ts_node *node, ts_node_share *how, char index) {
  how->index = index;
  bool cut = ts_node_cut(s->graph, node, index, &how->cut) && ts_sharding_cut_node(s, node, how);
  TS_CHECK(cut, "%s: experts cannot be dealt", node->name);
  how->share = 0;
}

static void cut_stack_product(ts_sharding *s, const ts_node *product, ts_node_share *how) {
  ts_tid w = product->in[STACK], y = product->out[0];
  bool inner = s->spread[product->in[X]].dealt;
  if (!s->spread[w].dealt && !inner) {
    int dim = product->attr.matmul.transpose_b ? 1 : 2; /* of outputs */
    ts_dealt of = ts_sharding_deal_anew(s, 1, &ts_sharding_tensor(s, w)->shape.d[dim], 1);
    s->spread[w] = (ts_spread){.dealt = true, .dim = dim, .of = of};
  }
  cut_along(s, product, how, inner ? 'c' : 'f');
  s->rule[w] = inner ? "row" : "column";
  how->sums = false; /* not yet */
  s->spread[y].sums = inner;
  s->spread[y].brought = !inner;
}

/* Of rows that are sums one rank alone adds it. */
static void add_stack_bias(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  if (s->spread[node->in[X]].sums) {
    s->partial[node->in[STACK]] = true;
    s->spread[node->out[0]].sums = true;
    how->index = TS_INDEX_EXPERTS;
  } else {
    cut_along(s, node, how, 'f');
    s->rule[node->in[STACK]] = "column";
    s->spread[node->out[0]].brought = true;
  }
}

static void combine_sums(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  how->index = TS_INDEX_EXPERTS;
  how->sums = true;
  how->share = ts_sharding_is_differentiable(s, node->in[WEIGHT]) ? 1u << WEIGHT : 0;
  ts_sharding_scatter_sums(s, node, how);
}

/* What works on rows one by one.  A sum in another type is still one; of nothing else is each rank's part one. */
static void follow_brought(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  const ts_spread *x = &s->spread[node->in[X]];
  ts_spread *y = &s->spread[node->out[0]];
  TS_CHECK(!x->sums || node->op == TS_OP_CAST, "%s: a part of the sum over ranks is not enough", node->name);
  how->index = TS_INDEX_EXPERTS;
  if (x->dealt) {
    ts_sharding_cut_by_inputs(s, node, how);
    TS_CHECK(how->index != 0, "%s works on rows of experts that are cut, and cannot be", node->name);
    how->share = 0;
  }
  y->sums = x->sums;
  y->brought = !x->sums;
}

bool ts_sharding_follow_experts(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  bool brings = node->op == TS_OP_TAKE_ROWS && is_dispatch_of_several(ts_graph_producer(s->graph, node->in[ORDER]));
  bool brought = false;
  for (int i = 0; i < node->n_in; ++i) {
    brought = brought || is_brought(s, node->in[i]);
  }
  if (!s->cuts_experts || !(is_dispatch_of_several(node) || brings || brought)) {
    return false;
  }
  if (brings) {
    how->index = TS_INDEX_EXPERTS;
    how->complete = s->spread[node->in[X]].dealt ? 1u << X : 0;
    how->share = ts_sharding_is_differentiable(s, node->in[X]) ? 1u << X : 0;
    s->spread[node->out[0]].brought = true;
  } else if (node->op == TS_OP_GROUPED) {
    cut_stack_product(s, node, how);
  } else if (node->op == TS_OP_GROUPED_BIAS) {
    add_stack_bias(s, node, how);
  } else if (node->op == TS_OP_COMBINE) {
    combine_sums(s, node, how);
  } else if (brought) {
    follow_brought(s, node, how);
  }
  return true; /* and choices, which all have */
}

const ts_tensor *ts_sharding_unfit_stack(const ts_sharding *s) {
  for (ts_tid t = 0; t < s->graph->n_tensors && s->cuts_experts; ++t) {
    const ts_tensor *tensor = ts_sharding_tensor(s, t);
    bool stack = ts_sharding_is_parameter(s, t) && ts_stack_is(tensor->name, tensor->shape.n);
    const ts_dealt *of = &s->spread[t].of;
    for (int i = 0; stack && s->spread[t].dealt && i < of->n; ++i) {
      if (!ts_dealing_reaches(s->dealing, of->run[i]) || ts_dealing_is_shared(s->dealing, of->run[i])) {
        return tensor;
      }
    }
  }
  return NULL;
}
