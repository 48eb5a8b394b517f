/* Sequence parallelism, the second half: attention, which pass/shard left on this rank's tokens, sees those of all.
 *
 *   ATTENTION      all_to_all     q, k, v: from own tokens and all heads to the ring's tokens, keys of any, own heads
 *                  attention      on these
 *                  all_to_all     o goes home; lse stays
 *   ATTENTION_DX   delta          from do and o as they are at home, so that o does not travel again
 *                  all_to_all     do and delta; q, k and v too unless they are still there from the forward
 *                  attention_dx
 *                  all_to_all     dq, dk, dv go home; where a key went to several ranks its gradients are added there
 *
 * With several rings the keys of all that are seen come in the first message (all_gather), or ring by ring (p2p): then
 * r - 1 messages follow, each from the keys' owners and issued before attention on the keys before it, and the pieces
 * are merged; backward dq is summed on the way, dk and dv of each piece go to their owners in fp32. */
#include "base/memory.h"
#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/exchange_blocks.h"
#include "pass/pass.h"

/* What was exchanged for an attention. */
typedef struct exchanged {
  ts_tid home[3]; /* q, k, v of the old graph */
  ts_tid q;       /* What came; k and v follow. */
} exchanged;

typedef struct exchanger {
  ts_rewrite rewrite;
  ts_sequence sequence;
  ts_tokens *ring; /* owned; the tokens of each */
  exchanged *of;   /* owned; by an attention's lse in the old graph */
} exchanger;

enum { QUERY = 'q', KEY = 'k', ROW = 'r' };

/* One attention, or its gradient, being written. */
typedef struct work {
  exchanger *x;
  const ts_node *old;
  ts_site at;
  ts_attr attr;                               /* of this rank's share */
  ts_interval *q_columns, *k_columns, *heads; /* owned; per rank of a ring */
  int64_t q_width, k_width, n_heads;          /* of all */
} work;

/* ---- shares ---- */

static ts_interval times(ts_interval heads, int64_t d) {
  return (ts_interval){heads.begin * d, heads.length * d};
}

/* Key heads that query heads read, counted from this rank's first along tp. */
static ts_interval keys_of(ts_interval heads, int first, int group) {
  int64_t begin = (first + heads.begin) / group, end = (first + heads.begin + heads.length - 1) / group + 1;
  return (ts_interval){begin - first / group, end - begin};
}

static work begin_work(exchanger *x, const ts_node *old) {
  int u = x->sequence.ulysses, d = old->attr.attention.head_dim, first = old->attr.attention.first_head;
  int group = ts_attention_group(&old->attr), mine = x->sequence.rank % u;
  work w = {.x = x, .old = old, .at = {x->rewrite.to, old->segment, old->unit}, .attr = old->attr};
  w.q_columns = ts_calloc((size_t) u, sizeof *w.q_columns);
  w.k_columns = ts_calloc((size_t) u, sizeof *w.k_columns);
  w.heads = ts_calloc((size_t) u, sizeof *w.heads);
  w.n_heads = old->attr.attention.heads;
  w.q_width = w.n_heads * d;
  w.k_width = (int64_t) old->attr.attention.kv_heads * d;
  for (int j = 0; j < u; ++j) {
    w.heads[j] = ts_sequence_share(old->attr.attention.heads, group, first, u, j);
    TS_CHECK(w.heads[j].length > 0, "%s: rank %d of %d has no head", old->name, j, u);
    w.q_columns[j] = times(w.heads[j], d);
    w.k_columns[j] = times(keys_of(w.heads[j], first, group), d);
  }
  w.attr.attention.group = group;
  w.attr.attention.heads = (int) w.heads[mine].length;
  w.attr.attention.kv_heads = (int) (w.k_columns[mine].length / d);
  w.attr.attention.first_head = first + (int) w.heads[mine].begin;
  w.attr.attention.length = x->sequence.length;
  w.attr.attention.queries = x->ring[x->sequence.rank / u];
  return w;
}

static void end_work(work *w) {
  ts_free(w->q_columns);
  ts_free(w->k_columns);
  ts_free(w->heads);
}

/* ---- keys ---- */

static bool is_by_rings(const exchanger *x) {
  return x->sequence.ring > 1 && !x->sequence.gathers;
}

static int n_pieces(const exchanger *x) {
  return is_by_rings(x) ? x->sequence.ring : 1;
}

/* The keys that each ring is sent as piece p: those of the ring p before it, or all that are seen.  Owned by the
 * caller. */
static ts_tokens *find_keys(const work *w, int p) {
  const ts_sequence *s = &w->x->sequence;
  ts_tokens *keys = ts_calloc((size_t) s->ring, sizeof *keys);
  for (int i = 0; i < s->ring; ++i) {
    ts_tokens seen = ts_sequence_seen(s, i, w->attr.attention.causal, w->attr.attention.window);
    keys[i] = is_by_rings(w->x) ? ts_sequence_both(&w->x->ring[(i + s->ring - p) % s->ring], &seen) : seen;
  }
  return keys;
}

/* ---- messages ---- */

static ts_routed routed(const work *w, char kind, const ts_tokens *keys) {
  if (kind == KEY) {
    return (ts_routed){keys, w->k_columns, w->k_width, false};
  }
  return kind == QUERY ? (ts_routed){w->x->ring, w->q_columns, w->q_width, false}
                       : (ts_routed){w->x->ring, w->heads, w->n_heads, true};
}

/* Tensors of these kinds, to heads or home; \a keys: those of a piece. */
static ts_tid exchange(const work *w, const char *what, const char *kinds, const ts_tid *x, const ts_tokens *keys,
                       bool home) {
  ts_route route = {.sequence = &w->x->sequence};
  for (; kinds[route.n] != 0; ++route.n) {
    route.tensor[route.n] = routed(w, kinds[route.n], keys);
  }
  ts_block_list list = ts_route_blocks(&route, home);
  char *name = ts_format("%s.%s", w->old->name, what);
  ts_tid y = ts_build_all_to_all(w->at, name, TS_AXES(TS_AXIS_SP), w->x->sequence.ring * w->x->sequence.ulysses,
                                 route.n, x, list.block, list.n_sent, list.n_received);
  ts_free(name);
  ts_free(list.block);
  return y;
}

static ts_tid cast(const work *w, const char *what, ts_tid x, ts_dtype dtype) {
  if (w->at.graph->tensor[x].dtype == dtype) {
    return x;
  }
  char *name = ts_format("%s.%s", w->old->name, what);
  ts_tid y = ts_build_cast(w->at, name, x, dtype);
  ts_free(name);
  return y;
}

static ts_tid add_part(const work *w, ts_op op, const char *what, int piece, int n_in, const ts_tid *in,
                       const ts_tid *prior) {
  char *name = piece > 0    ? ts_format("%s.%s:%d", w->old->name, what, piece)
               : *what != 0 ? ts_format("%s.%s", w->old->name, what)
                            : ts_strdup(w->old->name);
  ts_node node = {.op = op, .name = name, .n_in = n_in, .in = in, .prior = prior, .beta = TS_NONE, .attr = w->attr};
  node.n_out = op == TS_OP_ATTENTION_DX ? 3 : 0; /* 0: as many as the op has */
  ts_tid y = ts_graph_add(w->at, &node);
  ts_free(name);
  return y;
}

static ts_tid new_input(const work *w, int i) {
  return i < w->old->n_in ? ts_rewrite_tensor(&w->x->rewrite, w->old->in[i]) : TS_NONE;
}

/* ---- forward ---- */

/* One piece of the keys: which each ring is sent, and k and v of this rank's. */
typedef struct piece {
  ts_tokens *keys; /* owned */
  ts_tid kv;       /* v follows */
} piece;

static piece send_piece(const work *w, int p, const ts_tid *kv) {
  piece of = {.keys = find_keys(w, p)};
  char *what = ts_format("keys:%d", p);
  of.kv = exchange(w, what, "kk", kv, of.keys, false);
  ts_free(what);
  return of;
}

static const ts_tokens *own_keys(const work *w, const piece *of) {
  return &of->keys[w->x->sequence.rank / w->x->sequence.ulysses];
}

/* Attention on one piece's keys; lse follows. */
static ts_tid attend_piece(work *w, int p, ts_tid q, const piece *of) {
  ts_tid in[6] = {q, of->kv, of->kv + 1, new_input(w, 3), new_input(w, 4), new_input(w, 5)};
  w->attr.attention.keys = *own_keys(w, of);
  return add_part(w, TS_OP_ATTENTION, p > 0 ? "piece" : "", p, w->old->n_in, in, NULL);
}

static ts_tid merge_pieces(const work *w, int p, ts_tid sum, ts_tid more) {
  ts_tid in[] = {sum, sum + 1, more, more + 1};
  return add_part(w, TS_OP_ATTENTION_MERGE, "merge", p, 4, in, NULL);
}

static void expand_attention(exchanger *x, const ts_node *old) {
  work w = begin_work(x, old);
  ts_tid qkv[] = {new_input(&w, 0), new_input(&w, 1), new_input(&w, 2)}, o = TS_NONE;
  w.attr.attention.wide_queries = is_by_rings(x);
  piece now = {.keys = find_keys(&w, 0)}, next = {0};
  ts_tid q = exchange(&w, "to_heads", "qkk", qkv, now.keys, false);
  now.kv = q + 1;
  x->of[old->out[1]] = (exchanged){{old->in[0], old->in[1], old->in[2]}, q};
  for (int p = 0; p < n_pieces(x); ++p, now = next) {
    next = p + 1 < n_pieces(x) ? send_piece(&w, p + 1, &qkv[1]) : (piece){0};
    ts_tid here = attend_piece(&w, p, q, &now);
    o = p == 0 ? here : merge_pieces(&w, p, o, here);
    ts_free(now.keys);
  }
  x->rewrite.map[old->out[1]] = o + 1;
  o = cast(&w, "narrow", o, w.at.graph->tensor[q].dtype);
  x->rewrite.map[old->out[0]] = exchange(&w, "to_tokens", "q", &o, NULL, true);
  end_work(&w);
}

/* ---- backward ---- */

/* The sums of rows of do and o, as they are at home: of all heads and own tokens. */
static ts_tid make_delta(const work *w) {
  work home = *w;
  home.attr = w->old->attr;
  ts_tid in[] = {new_input(w, 0), new_input(w, 4)};
  return add_part(&home, TS_OP_ATTENTION_DELTA, "delta", 0, 2, in, NULL);
}

/* In heads. */
typedef struct operands {
  ts_tid q, kv, d_out, delta; /* v follows k */
} operands;

/* q, k and v of the forward where they are still there and all that is needed. */
static operands bring_operands(const work *w, const ts_tokens *keys) {
  const exchanged *e = &w->x->of[w->old->in[5]];
  bool there = w->x->sequence.ring == 1;
  for (int i = 0; i < 3; ++i) {
    there = there && e->home[i] == w->old->in[1 + i];
  }
  const ts_tid home[] = {new_input(w, 0), make_delta(w), new_input(w, 1), new_input(w, 2), new_input(w, 3)};
  ts_tid came = exchange(w, "to_heads", there ? "qr" : "qrqkk", home, keys, false), q = there ? e->q : came + 2;
  return (operands){.q = q, .kv = q + 1, .d_out = came, .delta = came + 1};
}

/* The gradients that one piece's keys make, dq added to that of the pieces before; dk and dv follow. */
static ts_tid differentiate_piece(work *w, int p, const operands *of, const piece *piece, ts_tid before) {
  ts_tid lse = w->x->rewrite.map[w->old->in[5]];
  ts_tid in[10] = {of->d_out, of->q,           piece->kv,       piece->kv + 1,   TS_NONE,
                   lse,       new_input(w, 6), new_input(w, 7), new_input(w, 8), of->delta};
  const ts_tid prior[3] = {before, TS_NONE, TS_NONE};
  w->attr.attention.keys = *own_keys(w, piece);
  return add_part(w, TS_OP_ATTENTION_DX, p > 0 ? "piece" : "", p, 10, in, before == TS_NONE ? NULL : prior);
}

/* Gradients of keys and values at their owners, added up over pieces. */
typedef struct key_sums {
  ts_tid sum[2], came; /* came: of the piece before, not yet added */
} key_sums;

static void add_what_came(const work *w, int p, key_sums *s) {
  for (int i = 0; i < 2 && s->came != TS_NONE; ++i) {
    char *name = ts_format("%s.%s:%d", w->old->name, i == 0 ? "dk" : "dv", p);
    s->sum[i] = s->sum[i] == TS_NONE ? s->came + i : ts_build_add(w->at, name, s->sum[i], s->came + i);
    ts_free(name);
  }
  s->came = TS_NONE;
}

/* Piece by piece: while one is worked on the next one's keys come and the gradients of the one before go. \return dq */
static ts_tid differentiate_pieces(work *w, const operands *of, piece now, key_sums *s) {
  const ts_tid kv[] = {new_input(w, 2), new_input(w, 3)};
  ts_tid dq = TS_NONE;
  piece next;
  for (int p = 0; p < n_pieces(w->x); ++p, now = next) {
    next = p + 1 < n_pieces(w->x) ? send_piece(w, p + 1, kv) : (piece){0};
    dq = differentiate_piece(w, p, of, &now, dq);
    add_what_came(w, p - 1, s);
    const ts_tid gradient[] = {dq + 1, dq + 2};
    char *what = ts_format("gradients:%d", p);
    s->came = exchange(w, what, "kk", gradient, now.keys, true);
    ts_free(what);
    ts_free(now.keys);
  }
  return dq;
}

static void expand_attention_dx(exchanger *x, const ts_node *old) {
  work w = begin_work(x, old);
  piece all = {.keys = find_keys(&w, 0)};
  operands of = bring_operands(&w, all.keys);
  ts_dtype dtype = w.at.graph->tensor[of.q].dtype;
  key_sums s = {{TS_NONE, TS_NONE}, TS_NONE};
  ts_tid dq;
  all.kv = of.kv;
  w.attr.attention.wide_queries = is_by_rings(x);
  w.attr.attention.wide_keys = x->sequence.ring > 1;
  if (is_by_rings(x)) {
    ts_tid sum = differentiate_pieces(&w, &of, all, &s);
    sum = cast(&w, "dq.narrow", sum, dtype);
    dq = exchange(&w, "to_tokens", "q", &sum, NULL, true);
    add_what_came(&w, x->sequence.ring - 1, &s);
  } else {
    ts_tid d = differentiate_piece(&w, 0, &of, &all, TS_NONE);
    const ts_tid gradient[] = {d, d + 1, d + 2};
    dq = exchange(&w, "to_tokens", "qkk", gradient, all.keys, true);
    s = (key_sums){{dq + 1, dq + 2}, TS_NONE};
    ts_free(all.keys);
  }
  x->rewrite.map[old->out[0]] = dq;
  x->rewrite.map[old->out[1]] = cast(&w, "dk.narrow", s.sum[0], dtype);
  x->rewrite.map[old->out[2]] = cast(&w, "dv.narrow", s.sum[1], dtype);
  end_work(&w);
}

/* ---- the pass ---- */

static bool is_part(const ts_node *node) {
  return (node->op == TS_OP_ATTENTION || node->op == TS_OP_ATTENTION_DX) && node->attr.attention.length > 0;
}

void ts_pass_exchange(ts_graph **graph, ts_pass_context *context) {
  if (context->mesh->size[TS_AXIS_SP] == 1 || context->use == TS_MODEL_LOGITS) {
    return;
  }
  exchanger x = {.rewrite = ts_rewrite_begin(*graph), .sequence = *context->sequence};
  x.ring = ts_calloc((size_t) x.sequence.ring, sizeof *x.ring);
  x.of = ts_calloc((size_t) (*graph)->n_tensors + 1, sizeof *x.of);
  for (int i = 0; i < x.sequence.ring; ++i) {
    x.ring[i] = ts_sequence_ring(&x.sequence, i);
  }
  for (ts_nid n = 0; n < (*graph)->n_nodes; ++n) {
    const ts_node *node = &(*graph)->node[n];
    if (!is_part(node)) {
      ts_rewrite_copy(&x.rewrite, n);
    } else if (node->op == TS_OP_ATTENTION) {
      expand_attention(&x, node);
    } else {
      expand_attention_dx(&x, node);
    }
  }
  ts_rewrite_marks(&x.rewrite);
  ts_free(x.ring);
  ts_free(x.of);
  ts_rewrite_end(&x.rewrite, graph);
}
