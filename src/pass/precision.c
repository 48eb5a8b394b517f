/* Working dtypes: with bf16 or fp16, parameters and activations are that, and what is kept of them; statistics, losses
 * and logits stay as they are.  A CAST of the model's says where it goes on in fp32, whatever the deck's types: an op
 * that takes such a value has all others in fp32 too, and so what it makes. */
#include "base/memory.h"
#include "graph/attribute.h"
#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/pass.h"
#include "pass/state.h"

static bool is_narrowed(const ts_tensor *leaf) {
  bool kept = leaf->role == TS_ROLE_STATE && ts_state_get(leaf->held.state)->dtype == TS_WORKING;
  return kept || leaf->role == TS_ROLE_PARAM;
}

/* An input as it comes, beside what stands for it in the working type. */
static ts_tid input_as_given(ts_rewrite *r, ts_tid t) {
  ts_tid given = ts_graph_find(r->to, r->from->tensor[t].name);
  return given != TS_NONE ? given : ts_graph_add_leaf(r->to, &r->from->tensor[t]);
}

/* An input of numbers comes in fp32. */
static bool is_cast(const ts_tensor *leaf, ts_dtype working) {
  return leaf->role == TS_ROLE_INPUT && leaf->dtype == TS_F32 && working != TS_F32;
}

static void cast_input(ts_rewrite *r, const ts_node *reader, ts_tid t, ts_dtype working) {
  char *name = ts_format("%s.%s", r->from->tensor[t].name, ts_dtype_name(working));
  r->map[t] = ts_build_cast((ts_site){r->to, reader->segment, reader->unit}, name, input_as_given(r, t), working);
  ts_free(name);
}

static void narrow_leaves(ts_rewrite *r, const ts_node *node, ts_dtype working) {
  for (int i = 0; i < node->n_in; ++i) {
    ts_tid t = node->in[i];
    const ts_tensor *leaf = t != TS_NONE ? &r->from->tensor[t] : NULL;
    if (leaf != NULL && is_narrowed(leaf) && !ts_reads_fp32(node, i) && r->map[t] == TS_NONE) {
      ts_rewrite_leaf(r, t, working);
    } else if (leaf != NULL && is_cast(leaf, working) && r->map[t] == TS_NONE) {
      cast_input(r, node, t, working);
    } else {
      ts_rewrite_tensor(r, t);
    }
  }
}

/* ---- what the model wants in fp32 whatever the working type is ---- */

static bool keeps_fp32(const ts_node *node) {
  return node->op == TS_OP_CAST && node->attr.cast.dtype == TS_F32;
}

static bool any_keeps_fp32(const ts_graph *g) {
  bool any = false;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    any = any || keeps_fp32(&g->node[n]);
  }
  return any;
}

/* Does it take what some node has made in fp32? */
static bool goes_on_in_fp32(const ts_rewrite *r, const ts_node *node) {
  bool any = false;
  for (int i = 0; i < node->n_in; ++i) {
    ts_tid t = node->in[i];
    bool made = t != TS_NONE && r->from->tensor[t].producer != TS_NONE && !ts_reads_fp32(node, i);
    any = any || (made && r->map[t] != TS_NONE && r->to->tensor[r->map[t]].dtype == TS_F32);
  }
  return any;
}

/* Input t in fp32: as it was given, or what is in the working type as it is there. */
static ts_tid read_fp32(ts_rewrite *r, const ts_node *reader, ts_tid t, ts_dtype working) {
  if (t == TS_NONE || is_cast(&r->from->tensor[t], working)) {
    return t == TS_NONE ? t : input_as_given(r, t);
  }
  if (is_narrowed(&r->from->tensor[t]) && r->map[t] == TS_NONE) {
    ts_rewrite_leaf(r, t, working);
  }
  ts_tid x = ts_rewrite_tensor(r, t);
  if (r->to->tensor[x].dtype != working) {
    return x;
  }
  char *name = ts_format("%s.fp32", r->to->tensor[x].name);
  x = ts_build_cast((ts_site){r->to, reader->segment, reader->unit}, name, x, TS_F32);
  ts_free(name);
  return x;
}

static void go_on_in_fp32(ts_rewrite *r, ts_nid n, ts_dtype working) {
  ts_node node = r->from->node[n];
  ts_tid *in = ts_malloc((size_t) node.n_in * sizeof *in);
  for (int i = 0; i < node.n_in; ++i) {
    in[i] = read_fp32(r, &node, node.in[i], working);
  }
  node.in = in;
  ts_rewrite_add(r, n, &node);
  ts_free(in);
}

/* An input as it comes; no copy of what a node has made in fp32. */
static void write_fp32(ts_rewrite *r, ts_nid n, ts_dtype working) {
  ts_node node = r->from->node[n];
  const ts_tensor *x = &r->from->tensor[node.in[0]];
  ts_tid in;
  if (is_cast(x, working)) {
    in = input_as_given(r, node.in[0]);
  } else {
    narrow_leaves(r, &node, working);
    in = ts_rewrite_tensor(r, node.in[0]);
  }
  if (r->to->tensor[in].dtype == TS_F32 && x->producer != TS_NONE) {
    r->map[node.out[0]] = in;
  } else {
    node.in = &in;
    ts_rewrite_add(r, n, &node);
  }
}

static bool makes_logits(const ts_graph *g, const ts_node *node) {
  ts_tid logits = ts_graph_marked(g, "logits");
  const ts_node *last = logits != TS_NONE ? ts_graph_producer(g, logits) : NULL;
  bool scales = last != NULL && last->op == TS_OP_SCALE && last->in[0] == node->out[0];
  return last == node || scales;
}

bool ts_reads_fp32(const ts_node *node, int input) {
  enum { LOGITS, BIAS, SHARES, NOISED, WEIGHT };
  return node->op == TS_OP_ROUTE   ? input == LOGITS || input == BIAS || input == NOISED
         : node->op == TS_OP_BLEND ? input == SHARES
         : node->op == TS_OP_TAKE_ROWS || node->op == TS_OP_COMBINE ? input == WEIGHT
                                                                    : false;
}

static bool feeds_router(const ts_graph *g, const ts_node *node) {
  bool feeds = false;
  for (ts_nid n = 0; n < g->n_nodes && node->op == TS_OP_MATMUL; ++n) {
    const ts_node *reader = &g->node[n];
    int at = reader->op == TS_OP_ROUTE ? 0 : reader->op == TS_OP_BLEND ? 2 : -1;
    feeds = feeds || (at >= 0 && reader->in[at] == node->out[0]);
  }
  return feeds;
}

bool ts_makes_fp32(const ts_graph *g, const ts_node *node) {
  return makes_logits(g, node) || feeds_router(g, node);
}

void ts_pass_precision(ts_graph **graph, ts_pass_context *context) {
  ts_dtype working = ts_deck_dtype(context->deck);
  if (working == TS_F32 && !any_keeps_fp32(*graph)) {
    return;
  }
  ts_rewrite r = ts_rewrite_begin(*graph);
  for (ts_nid n = 0; n < r.from->n_nodes; ++n) {
    if (keeps_fp32(&r.from->node[n])) {
      write_fp32(&r, n, working);
      continue;
    }
    if (working != TS_F32 && goes_on_in_fp32(&r, &r.from->node[n])) {
      go_on_in_fp32(&r, n, working);
      continue;
    }
    narrow_leaves(&r, &r.from->node[n], working);
    ts_node node = ts_rewrite_node(&r, n);
    ts_dtype *dtype = ts_attributes_dtype(&node);
    if (dtype != NULL && !ts_makes_fp32(r.from, &r.from->node[n])) {
      *dtype = working;
    }
    ts_rewrite_add(&r, n, &node);
  }
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, graph);
}
