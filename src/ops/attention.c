/* Rotary positions and attention. */
#include "base/memory.h"
#include "ops/gradient.h"
#include "ops/rules.h"

#include <math.h>

const char *ts_shape_rope(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  int head = node->attr.rope.head_dim, rotated = node->attr.rope.rotated;
  TS_RULE(x->shape.n == 3 && head > 0 && x->shape.d[2] % head == 0, "x is [B][T][heads x head_dim]");
  TS_RULE(rotated > 0 && rotated % 2 == 0 && rotated <= head, "an even number of a head's elements turn");
  TS_RULE(node->attr.rope.factor > 0, "the factor is positive");
  TS_RULE(ts_rule_is(g, node, 1, TS_I32, TS_SHAPE(x->shape.d[0], x->shape.d[1])), "positions are [B][T] int32");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  return NULL;
}

const char *ts_index_rope(const ts_node *node) {
  (void) node;
  return "bth,bt->bth";
}

bool ts_cut_rope(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  bool can = ts_cut_letters(g, node, index, cut);
  if (can && index == 'h') { /* whole heads */
    cut->units /= node->attr.rope.head_dim;
    cut->in[0].unit = cut->out[0].unit = node->attr.rope.head_dim;
  }
  return can;
}

void ts_gradient_rope(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  const ts_tid in[] = {ts_gradients_of(gradients, node->out[0]), node->in[1]};
  ts_attr attr = node->attr;
  attr.rope.inverse = !attr.rope.inverse;
  ts_gradients_add(gradients, node->in[0],
                   ts_graph_add(at, &(ts_node){.op = TS_OP_ROPE, .name = name, .n_in = 2, .in = in, .attr = attr}));
  ts_free(name);
}

/* documents, seed and sample begin at input `first`; each may be absent. */
static const char *check_optional(const ts_graph *g, const ts_node *node, int first, const ts_tensor *q) {
  int64_t batch = q->shape.d[0], length = node->attr.attention.length;
  const struct {
    ts_dtype dtype;
    ts_shape shape;
    const char *why;
  } rows[] = {{TS_I32, TS_SHAPE(batch, length > 0 ? length : q->shape.d[1]), "documents are [B][T] int32"},
              {TS_I64, TS_SHAPE(1), "seed is [1] int64"},
              {TS_I64, TS_SHAPE(batch), "sample is [B] int64"}};
  for (int i = 0; i < 3 && first + i < node->n_in; ++i) {
    if (node->in[first + i] != TS_NONE) {
      TS_RULE(ts_rule_is(g, node, first + i, rows[i].dtype, rows[i].shape), rows[i].why);
    }
  }
  bool keyed = first + 2 < node->n_in && node->in[first + 1] != TS_NONE && node->in[first + 2] != TS_NONE;
  TS_RULE(node->attr.attention.dropout == 0 || keyed, "dropout needs seed and sample");
  return NULL;
}

/* Heads of the whole, and the tokens that q, and k and v, have. */
static const char *check_shares(const ts_node *node, int64_t queries, int64_t keys) {
  int heads = node->attr.attention.heads, first = node->attr.attention.first_head;
  int group = ts_attention_group(&node->attr);
  TS_RULE(first >= 0, "heads are counted from 0");
  TS_RULE(node->attr.attention.group > 0 || heads % node->attr.attention.kv_heads == 0, "key heads divide query heads");
  TS_RULE((first + heads - 1) / group - first / group < node->attr.attention.kv_heads, "a query head has no key head");
  int64_t length = node->attr.attention.length > 0 ? node->attr.attention.length : queries;
  TS_RULE(length >= queries && ts_tokens_fit(&node->attr.attention.queries, queries, length) &&
              ts_tokens_fit(&node->attr.attention.keys, keys, length),
          "queries and keys are tokens of one sample");
  return NULL;
}

/* q, k, v at inputs first, first + 1, first + 2: one tensor, or three. */
static const char *check_qkv(const ts_graph *g, const ts_node *node, int first) {
  const ts_tensor *q = ts_rule_in(g, node, first);
  int64_t d = node->attr.attention.head_dim, heads = node->attr.attention.heads, kv = node->attr.attention.kv_heads;
  TS_RULE(heads > 0 && kv > 0 && d > 0, "there is a head");
  bool fused = node->attr.attention.fused_qkv;
  TS_RULE(q->shape.n == 3 && q->shape.d[2] == (fused ? heads + 2 * kv : heads) * d, "q is [B][T][heads x head_dim]");
  TS_RULE(node->attr.attention.window >= 0 && (node->attr.attention.window == 0 || node->attr.attention.causal),
          "a window is of at least one key, and causal");
  TS_RULE(node->attr.attention.softcap >= 0 && isfinite(node->attr.attention.softcap), "softcap is at least 0");
  const ts_tensor *k = ts_rule_in(g, node, first + 1);
  ts_shape key = fused ? q->shape : TS_SHAPE(q->shape.d[0], k->shape.d[1], kv * d);
  TS_RULE(!fused || (!node->attr.attention.wide_queries && !node->attr.attention.wide_keys),
          "what is fused is of one type");
  TS_RULE(!fused || (node->in[first] == node->in[first + 1] && node->in[first] == node->in[first + 2]),
          "fused q, k and v are one tensor");
  TS_RULE(ts_rule_is(g, node, first + 1, q->dtype, key) && ts_rule_is(g, node, first + 2, q->dtype, key),
          "k and v are [B][T][kv_heads x head_dim]");
  return check_shares(node, q->shape.d[1], k->shape.d[1]);
}

/* Of o and its gradient. */
static ts_shape result_shape(const ts_node *node, const ts_tensor *q) {
  return ts_shape_with_last(q->shape, (int64_t) node->attr.attention.heads * node->attr.attention.head_dim);
}

const char *ts_shape_attention(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_qkv(g, node, 0);
  const ts_tensor *q = ts_rule_in(g, node, 0);
  why = why == NULL ? check_optional(g, node, 3, q) : why;
  dtype[0] = node->attr.attention.wide_queries ? TS_F32 : q->dtype;
  shape[0] = result_shape(node, q);
  dtype[1] = TS_F32;
  shape[1] = TS_SHAPE(q->shape.d[0], node->attr.attention.heads, q->shape.d[1]);
  return why;
}

const char *ts_shape_attention_cached(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_qkv(g, node, 2);
  const ts_tensor *keys = ts_rule_in(g, node, 0), *q = ts_rule_in(g, node, 2), *k = ts_rule_in(g, node, 3);
  bool fits = keys->shape.n == 3 && keys->shape.d[0] == k->shape.d[0] && keys->shape.d[2] == k->shape.d[2];
  TS_RULE(why == NULL, why);
  TS_RULE(keys->dtype == k->dtype && fits && ts_rule_is(g, node, 1, keys->dtype, keys->shape),
          "keys and values are [B][K][kv_heads x head_dim], like k and v");
  TS_RULE(keys->shape.d[1] > 0, "there is room for a key");
  TS_RULE(ts_rule_is(g, node, 5, TS_I32, TS_SHAPE(q->shape.d[0])), "past is [B] int32");
  TS_RULE(node->attr.attention.causal && node->attr.attention.dropout == 0, "it is causal, and nothing is dropped");
  for (int i = 0; i < 3; ++i) {
    dtype[i] = q->dtype;
    shape[i] = i < 2 ? keys->shape : q->shape;
  }
  return NULL;
}

const char *ts_index_attention_cached(const ts_node *node) {
  (void) node;
  return "";
}

const char *ts_index_attention(const ts_node *node) {
  (void) node;
  return "";
}

/* ---- cuts: by samples (b), and by key heads with their query heads (h) ---- */

/* A unit is one key head, its parts are query heads.  The attributes of a whole have had every unit, those of a share
 * its own. */
static void localise_heads(ts_attr *attr, const ts_share *share) {
  attr->attention.group = ts_attention_group(attr);
  attr->attention.heads = (int) share->parts;
  attr->attention.kv_heads = (int) share->units;
  attr->attention.first_head += (int) share->first_part;
}

/* Per tensor its role: q (and what is like it), k, lse, documents, sample; seed has no index. */
static ts_slice slice_role(const ts_node *node, char role, char index) {
  int64_t d = node->attr.attention.head_dim, heads = ts_attention_group(&node->attr);
  if (role == '-') {
    return (ts_slice){-1, 1, 1};
  }
  if (index == 'b') {
    return (ts_slice){0, 1, 1};
  }
  return role == 'q'   ? (ts_slice){2, heads * d, heads}
         : role == 'k' ? (ts_slice){2, d, 1}
         : role == 'l' ? (ts_slice){1, heads, heads}
                       : (ts_slice){-1, 1, 1};
}

static bool cut_roles(const ts_graph *g, const ts_node *node, const char *in, const char *out, char index,
                      ts_cut *cut) {
  int group = ts_attention_group(&node->attr);
  if (node->attr.attention.fused_qkv) { /* the columns of a head are in three places */
    return false;
  }
  bool whole_groups = node->attr.attention.first_head % group == 0 &&
                      node->attr.attention.heads == node->attr.attention.kv_heads * group;
  if (index != 'b' && !(index == 'h' && whole_groups)) {
    return false;
  }
  *cut = index == 'b' ? (ts_cut){.units = ts_rule_in(g, node, 0)->shape.d[0], .parts = 1}
                      : (ts_cut){.units = node->attr.attention.kv_heads, .parts = group, .localise = localise_heads};
  for (int i = 0; i < node->n_in; ++i) {
    cut->in[i] = slice_role(node, in[i], index);
  }
  for (int i = 0; i < node->n_out; ++i) {
    cut->out[i] = slice_role(node, out[i], index);
  }
  return true;
}

bool ts_cut_attention(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  return cut_roles(g, node, "qkkd-s", "ql", index, cut);
}

bool ts_cut_attention_cached(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  return cut_roles(g, node, "kkqkks", "kkq", index, cut);
}

bool ts_cut_attention_dx(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  return cut_roles(g, node, "qqkkqld-sl", "qkk", index, cut);
}

bool ts_cut_attention_delta(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  return cut_roles(g, node, "qq", "l", index, cut);
}

bool ts_cut_attention_merge(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  return cut_roles(g, node, "qlql", "ql", index, cut);
}

/* Pairs of x queries with as many keys, of which each query sees those until its own; \a own: all of its own, else half
 * of it, as half a square has. */
static double triangle(int64_t x, bool own) {
  return x > 0 ? (double) x * (double) (x + own) / 2 : 0;
}

/* Pairs of queries and keys where each query sees those that are \a behind or more before it. */
static double pairs_before(ts_interval queries, ts_interval keys, int64_t behind, bool own) {
  int64_t first = queries.begin - behind - keys.begin, end = first + queries.length;
  return triangle(end, own) - triangle(first, own) - triangle(end - keys.length, own) +
         triangle(first - keys.length, own);
}

/* Pairs of a query and a key that it sees: all, about half of a square when causal; of a window just as many as there
 * are.  Documents are not known here. */
static double visible_pairs(const ts_node *node, ts_interval queries, ts_interval keys) {
  int64_t window = node->attr.attention.window;
  bool slides = window > 0 && window < queries.begin + queries.length;
  if (!node->attr.attention.causal) {
    return (double) queries.length * (double) keys.length;
  }
  return pairs_before(queries, keys, 0, slides) - (slides ? pairs_before(queries, keys, window, slides) : 0);
}

/* Two products of D for each pair of each head. */
static double product_flops(const ts_graph *g, const ts_node *node, int q) {
  const ts_shape *shape = &ts_rule_in(g, node, q)->shape;
  ts_interval all_queries = {0, shape->d[1]}, all_keys = {0, ts_rule_in(g, node, q + 1)->shape.d[1]};
  const ts_tokens *queries = &node->attr.attention.queries, *keys = &node->attr.attention.keys;
  double pairs = 0;
  for (int i = 0; !node->attr.attention.blind && (i == 0 || i < queries->n); ++i) {
    for (int j = 0; j == 0 || j < keys->n; ++j) {
      pairs += visible_pairs(node, queries->n > 0 ? queries->stretch[i] : all_queries,
                             keys->n > 0 ? keys->stretch[j] : all_keys);
    }
  }
  return 4.0 * (double) shape->d[0] * pairs * (double) node->attr.attention.heads * node->attr.attention.head_dim;
}

double ts_flops_attention(const ts_graph *g, const ts_node *node) {
  return product_flops(g, node, 0);
}

double ts_flops_attention_dx(const ts_graph *g, const ts_node *node) {
  return 2 * product_flops(g, node, 1);
}

/* Of a full cache: each new token sees all that is kept. */
double ts_flops_attention_cached(const ts_graph *g, const ts_node *node) {
  const ts_shape *q = &ts_rule_in(g, node, 2)->shape, *keys = &ts_rule_in(g, node, 0)->shape;
  int64_t window = node->attr.attention.window, seen = window > 0 && window < keys->d[1] ? window : keys->d[1];
  return 4.0 * (double) ts_shape_count(q) * (double) seen;
}

void ts_gradient_attention(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  ts_tid in[9] = {ts_gradients_of(gradients, node->out[0]),
                  node->in[0],
                  node->in[1],
                  node->in[2],
                  node->out[0],
                  node->out[1],
                  TS_NONE,
                  TS_NONE,
                  TS_NONE};
  for (int i = 3; i < node->n_in; ++i) {
    in[i + 3] = node->in[i];
  }
  int n_out = node->attr.attention.fused_qkv ? 1 : 3;
  ts_tid dx = ts_graph_add(at, &(ts_node){.op = TS_OP_ATTENTION_DX,
                                          .name = name,
                                          .n_in = node->n_in + 3,
                                          .in = in,
                                          .n_out = n_out,
                                          .attr = node->attr});
  for (int i = 0; i < n_out; ++i) {
    if (ts_gradients_wanted(gradients, node->in[i])) {
      ts_gradients_add(gradients, node->in[i], dx + i);
    }
  }
  ts_free(name);
}

const char *ts_shape_attention_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const char *why = check_qkv(g, node, 1);
  const ts_tensor *q = ts_rule_in(g, node, 1);
  ts_shape row = TS_SHAPE(q->shape.d[0], node->attr.attention.heads, q->shape.d[1]);
  bool by_delta = node->n_in > 9 && node->in[9] != TS_NONE;
  why = why == NULL ? check_optional(g, node, 6, q) : why;
  ts_shape result = result_shape(node, q);
  TS_RULE(node->n_out == (node->attr.attention.fused_qkv ? 1 : 3),
          "there is a gradient for each of q, k and v, or one");
  TS_RULE(ts_rule_is(g, node, 0, q->dtype, result), "do is like q");
  TS_RULE((node->in[4] == TS_NONE) == by_delta, "there is one of o and delta");
  TS_RULE(by_delta ? ts_rule_is(g, node, 9, TS_F32, row) : ts_rule_is(g, node, 4, q->dtype, result),
          "o is like q, delta like lse");
  TS_RULE(ts_rule_is(g, node, 5, TS_F32, row), "lse is [B][H][T] fp32");
  for (int i = 0; i < node->n_out; ++i) {
    bool wide = i == 0 ? node->attr.attention.wide_queries : node->attr.attention.wide_keys;
    dtype[i] = wide ? TS_F32 : q->dtype;
    shape[i] = ts_rule_in(g, node, 1 + i)->shape;
  }
  return why;
}

const char *ts_index_attention_delta(const ts_node *node) {
  (void) node;
  return "";
}

const char *ts_shape_attention_delta(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *d_out = ts_rule_in(g, node, 0);
  int64_t heads = node->attr.attention.heads;
  TS_RULE(heads > 0 && d_out->shape.n == 3 && d_out->shape.d[2] == heads * node->attr.attention.head_dim,
          "do is [B][T][heads x head_dim]");
  TS_RULE(ts_rule_is(g, node, 1, d_out->dtype, d_out->shape), "o is like do");
  dtype[0] = TS_F32;
  shape[0] = TS_SHAPE(d_out->shape.d[0], heads, d_out->shape.d[1]);
  return NULL;
}

const char *ts_index_attention_merge(const ts_node *node) {
  (void) node;
  return "";
}

const char *ts_shape_attention_merge(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *o = ts_rule_in(g, node, 0);
  int64_t heads = node->attr.attention.heads;
  TS_RULE(heads > 0 && o->dtype == TS_F32 && o->shape.n == 3 && o->shape.d[2] == heads * node->attr.attention.head_dim,
          "o is [B][T][heads x head_dim] fp32");
  ts_shape row = TS_SHAPE(o->shape.d[0], heads, o->shape.d[1]);
  TS_RULE(ts_rule_is(g, node, 2, TS_F32, o->shape), "both o are alike");
  TS_RULE(ts_rule_is(g, node, 1, TS_F32, row) && ts_rule_is(g, node, 3, TS_F32, row), "lse is [B][H][T] fp32");
  for (int i = 0; i < 2; ++i) {
    dtype[i] = TS_F32;
    shape[i] = i == 0 ? o->shape : row;
  }
  return NULL;
}

const char *ts_index_attention_dx(const ts_node *node) {
  (void) node;
  return "";
}
