/* Attention by groups of heads: q, k and v of one group after another, so that no more of them is alive at a time, nor
 * of their gradients; with sequence parallelism the messages of one group travel while another is worked on.
 *
 * What attention reads is made again for each group from where its heads begin: products get some columns of their
 * weights, and what lies between (rotation, norms of heads, splits) is cut along the heads by the op rows' cut rules.
 * Where that ends at something else, the group takes its part of the whole.  The outputs are put together, and stay one
 * tensor, as their product with the next weights is one sum. */
#include "base/memory.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/pass.h"
#include "pass/sequence.h"

#include <string.h>

typedef struct grouper {
  ts_rewrite rewrite;
  const ts_graph *from;
  bool *later;     /* owned; per node: made only when somebody wants all of it */
  ts_tid *made;    /* owned; per node: the first output of its part for this group, TS_NONE until made */
  ts_share *share; /* owned; per node: which part that is */
} grouper;

/* ---- what can be made in parts ---- */

/* A product with a parameter, of which some columns can be had. */
static bool has_columns(const ts_graph *g, const ts_node *node) {
  return node->op == TS_OP_MATMUL && !node->attr.matmul.transpose_a && g->tensor[node->in[1]].role == TS_ROLE_PARAM;
}

/* How a node is cut so that its output \a out is, along \a dim: along which index.  \return false: it cannot be. */
static bool find_cut(const ts_graph *g, const ts_node *node, int out, int dim, ts_cut *cut) {
  bool moves = (ts_op_get(node->op)->flags & (TS_OP_COMM | TS_OP_IS_UPDATE)) != 0;
  for (const char *index = "abcdefghijklmnopqrstuvwxyz0123456789"; *index != 0 && !moves; ++index) {
    bool found = ts_node_cut(g, node, *index, cut) && cut->parts == 1;
    for (int i = 0; i < node->n_out && found; ++i) {
      found = cut->out[i].dim >= 0;
    }
    if (found && cut->out[out].dim == dim) {
      return true;
    }
  }
  return false;
}

/* An interval of output `out` along dim, said of a unit of the cut.  \return false: it cuts one. */
static bool in_units(const ts_cut *cut, int out, ts_interval part, ts_share *share) {
  int64_t unit = cut->out[out].unit;
  *share = (ts_share){.units = part.length / unit, .first = part.begin / unit};
  share->parts = share->units;
  share->first_part = share->first;
  return part.begin % unit == 0 && part.length % unit == 0;
}

/* A split of one group passes its input's columns on. */
static bool is_split(const ts_node *node) {
  return node->op == TS_OP_SPLIT && node->attr.split.groups == 1;
}

static ts_interval split_columns(const ts_node *split, int out, ts_interval part) {
  for (int i = 0; i < out; ++i) {
    part.begin += split->attr.split.size[i];
  }
  return part;
}

/* ---- parts ---- */

static ts_tid make_whole_of(grouper *w, ts_tid t);
static ts_tid cut_tensor(grouper *w, ts_tid t, int dim, ts_interval part, const char *suffix);

static ts_node copy_whole(grouper *w, ts_nid n) {
  const ts_node *old = &w->from->node[n];
  for (int i = 0; i < old->n_in; ++i) {
    make_whole_of(w, old->in[i]);
  }
  return ts_rewrite_node(&w->rewrite, n);
}

/* All of t, in the new graph. */
static ts_tid make_whole_of(grouper *w, ts_tid t) {
  ts_nid producer = t == TS_NONE ? TS_NONE : w->from->tensor[t].producer;
  if (producer != TS_NONE && w->later[producer] && w->rewrite.map[t] == TS_NONE) {
    ts_node node = copy_whole(w, producer);
    ts_rewrite_add(&w->rewrite, producer, &node);
  }
  return ts_rewrite_tensor(&w->rewrite, t);
}

static ts_site site_of(const grouper *w, const ts_node *node) {
  return (ts_site){w->rewrite.to, node->segment, node->unit};
}

static ts_tid take(grouper *w, ts_site at, ts_tid t, int dim, ts_interval part, const char *suffix) {
  char *name = ts_format("%s.%s", w->from->tensor[t].name, suffix);
  ts_tid y = ts_build_take(at, name, make_whole_of(w, t), dim, 1, &part, NULL);
  ts_free(name);
  return y;
}

/* Some columns of a product. */
static ts_tid cut_product(grouper *w, const ts_node *old, ts_interval part, const char *suffix) {
  ts_site at = site_of(w, old);
  ts_tid in[3] = {make_whole_of(w, old->in[0]),
                  take(w, at, old->in[1], old->attr.matmul.transpose_b ? 0 : 1, part, suffix), TS_NONE};
  if (old->n_in > 2 && old->in[2] != TS_NONE) {
    in[2] = take(w, at, old->in[2], 0, part, suffix);
  }
  char *name = ts_format("%s.%s", old->name, suffix);
  ts_node node = *old;
  node.name = name;
  node.in = in;
  ts_tid y = ts_graph_add(at, &node);
  ts_free(name);
  return y;
}

/* Output `out` of a node that is cut. */
static ts_tid cut_node_of(grouper *w, const ts_node *old, int out, const ts_cut *cut, const ts_share *share, int dim,
                          ts_interval part, const char *suffix) {
  ts_nid n = (ts_nid) (old - w->from->node);
  if (w->made[n] != TS_NONE && w->share[n].first == share->first && w->share[n].units == share->units) {
    return w->made[n] + out;
  }
  ts_tid *in = ts_malloc((size_t) old->n_in * sizeof *in);
  for (int i = 0; i < old->n_in; ++i) {
    ts_interval own = {share->first * cut->in[i].unit, share->units * cut->in[i].unit};
    bool cuts = old->in[i] != TS_NONE && cut->in[i].dim >= 0;
    in[i] = cuts ? cut_tensor(w, old->in[i], cut->in[i].dim, own, suffix) : make_whole_of(w, old->in[i]);
  }
  char *name = ts_format("%s.%s", old->name, suffix);
  ts_node node = *old;
  node.name = name;
  node.in = in;
  if (cut->localise != NULL) {
    cut->localise(&node.attr, share);
  }
  if (old->op == TS_OP_VIEW) {
    node.attr.view.shape.d[dim] = part.length;
  }
  w->made[n] = ts_graph_add(site_of(w, old), &node);
  w->share[n] = *share;
  ts_free(name);
  ts_free(in);
  return w->made[n] + out;
}

/* Elements `part` of t along dim. */
static ts_tid cut_tensor(grouper *w, ts_tid t, int dim, ts_interval part, const char *suffix) {
  const ts_node *old = ts_graph_producer(w->from, t);
  ts_cut cut;
  ts_share share;
  if (old == NULL || !w->later[old - w->from->node]) {
    return take(w, old != NULL ? site_of(w, old) : ts_graph_site(w->rewrite.to), t, dim, part, suffix);
  }
  int out = t - old->out[0];
  if (has_columns(w->from, old)) {
    return cut_product(w, old, part, suffix);
  }
  if (is_split(old)) {
    return cut_tensor(w, old->in[0], dim, split_columns(old, out, part), suffix);
  }
  bool cuts = find_cut(w->from, old, out, dim, &cut) && in_units(&cut, out, part, &share);
  return cuts ? cut_node_of(w, old, out, &cut, &share, dim, part, suffix)
              : take(w, site_of(w, old), t, dim, part, suffix);
}

/* ---- attention ---- */

/* From t back to where heads begin: what is made in parts, and as a whole only for others. */
static void find_later(grouper *w, ts_tid t, int dim) {
  const ts_node *node = ts_graph_producer(w->from, t);
  ts_cut cut;
  if (node == NULL || w->later[node - w->from->node]) {
    return;
  }
  bool *later = &w->later[node - w->from->node];
  if (has_columns(w->from, node)) {
    *later = true;
  } else if (is_split(node)) {
    *later = true;
    find_later(w, node->in[0], dim);
  } else if (find_cut(w->from, node, t - node->out[0], dim, &cut)) {
    *later = true;
    for (int i = 0; i < node->n_in; ++i) {
      if (node->in[i] != TS_NONE && cut.in[i].dim >= 0) {
        find_later(w, node->in[i], cut.in[i].dim);
      }
    }
  }
}

static ts_tid attend_group(grouper *w, const ts_node *old, ts_interval heads, int number) {
  int d = old->attr.attention.head_dim, group = ts_attention_group(&old->attr), first = old->attr.attention.first_head;
  int64_t key = (first + heads.begin) / group, end = (first + heads.begin + heads.length - 1) / group + 1;
  ts_interval keys = {(key - first / group) * d, (end - key) * d}, queries = {heads.begin * d, heads.length * d};
  memset(w->made, -1, (size_t) w->from->n_nodes * sizeof *w->made); /* TS_NONE */
  char *suffix = ts_format("group:%d", number), *name = ts_format("%s.%s", old->name, suffix);
  ts_tid in[6] = {cut_tensor(w, old->in[0], 2, queries, suffix),
                  cut_tensor(w, old->in[1], 2, keys, suffix),
                  cut_tensor(w, old->in[2], 2, keys, suffix),
                  TS_NONE,
                  TS_NONE,
                  TS_NONE};
  for (int i = 3; i < old->n_in; ++i) {
    in[i] = make_whole_of(w, old->in[i]);
  }
  ts_node node = *old;
  node.name = name;
  node.in = in;
  node.attr.attention.group = group;
  node.attr.attention.heads = (int) heads.length;
  node.attr.attention.kv_heads = (int) (end - key);
  node.attr.attention.first_head = first + (int) heads.begin;
  ts_tid o = ts_graph_add(site_of(w, old), &node);
  ts_free(name);
  ts_free(suffix);
  return o;
}

static void attend_by_groups(grouper *w, const ts_node *old, int n) {
  ts_tid *o = ts_malloc((size_t) n * sizeof *o);
  for (int i = 0; i < n; ++i) {
    ts_interval heads = ts_sequence_share(old->attr.attention.heads, ts_attention_group(&old->attr),
                                          old->attr.attention.first_head, n, i);
    o[i] = attend_group(w, old, heads, i);
  }
  char *name = ts_format("%s.heads", old->name);
  w->rewrite.map[old->out[0]] = ts_build_concat(site_of(w, old), name, 1, n, o);
  ts_free(name);
  ts_free(o);
}

void ts_pass_head_groups(ts_graph **graph, ts_pass_context *context) {
  int groups = (int) context->deck->sequence_parallel.head_groups;
  if (groups <= 1 || context->use == TS_MODEL_LOGITS) {
    return;
  }
  grouper w = {.rewrite = ts_rewrite_begin(*graph), .from = *graph};
  w.later = ts_calloc((size_t) (*graph)->n_nodes + 1, sizeof *w.later);
  w.made = ts_ids_none((*graph)->n_nodes);
  w.share = ts_calloc((size_t) (*graph)->n_nodes + 1, sizeof *w.share);
  for (ts_nid n = 0; n < (*graph)->n_nodes; ++n) {
    const ts_node *node = &(*graph)->node[n];
    for (int i = 0; i < 3 && node->op == TS_OP_ATTENTION && node->attr.attention.heads >= groups; ++i) {
      find_later(&w, node->in[i], 2);
    }
  }
  for (ts_nid n = 0; n < (*graph)->n_nodes; ++n) {
    const ts_node *node = &(*graph)->node[n];
    if (node->op == TS_OP_ATTENTION && node->attr.attention.heads >= groups) {
      attend_by_groups(&w, node, groups);
    } else if (!w.later[n]) {
      ts_node copy = copy_whole(&w, n);
      ts_rewrite_add(&w.rewrite, n, &copy);
    }
  }
  ts_rewrite_marks(&w.rewrite);
  ts_free(w.later);
  ts_free(w.made);
  ts_free(w.share);
  ts_rewrite_end(&w.rewrite, graph);
}
