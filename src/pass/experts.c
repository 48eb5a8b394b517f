/* Expert parallelism: ranks along ep have other samples, and each some of a layer's experts.  N tokens of each of R
 * ranks with k choices are brought together in one of two ways (moe.dispatch):
 *
 * allgather  Every rank sees the tokens of all of them, with what was chosen (all_gather), brings together those that
 *            are for its experts, and what it has made for each token goes home as the sum over ranks (reduce_scatter,
 *            in their order).  A rank gets (R - 1) N rows, and as many sums.
 * alltoall   Each rank brings its own tokens together by expert, counts go to all (all_gather), then each row to the
 *            rank that has its expert (exchange_rows), and back, where it waits for its token's others: sums are those
 *            of one rank, bit by bit.  A rank gets N k (R - 1) / R rows twice where experts are chosen alike.
 *
 * A rank with E experts has room for R N min (k, E) rows, which is all that can come.  The gradients of either pair of
 * messages are each other, so gradients of experts are sums over all tokens without more ado.  All sizes are static.
 * Tensor and sequence parallelism are done: of their ranks each has tokens of its own here, or all have the same.
 *
 * With moe.token_chunks = c all this is done for N / c tokens after the other, on one rank too: c times fewer rows at a
 * time, and messages of one chunk beside products of another. */
#include "base/memory.h"
#include "family/stack.h"
#include "graph/rewrite.h"
#include "ops/build.h"
#include "ops/rules.h"
#include "pass/pass.h"
#include "pass/shard.h"

#include <string.h>

/* Owned arrays are per tensor of the old graph. */
typedef struct spreader {
  ts_rewrite rewrite;
  ts_shards *shards;
  int ranks, rank;
  bool *first; /* where rows of each expert begin, of experts that are spread */
  ts_tid *all; /* that of all ranks; in chunks of tokens: of the chunk */

  const char *dispatch; /* the deck's */
  bool device;          /* a GPU */
  bool exchanges;       /* rows go alltoall in the layer that is written: then, in the new graph, */
  ts_tid firsts;        /* where rows of each expert begin on all ranks, */
  ts_tid home;          /* among this rank's own, */
  ts_tid here;          /* and among those that come here */

  int64_t chunks;  /* 1: tokens are not cut */
  bool *inside;    /* made between a DISPATCH and its COMBINE */
  ts_tid *cut;     /* the first chunk of what all tokens have; the others follow */
  ts_nid *waiting; /* nodes from the last DISPATCH on, which are written once a chunk when its COMBINE is there */
  int n_waiting;
  int64_t chunk; /* that is written */
} spreader;

static bool is_stack(const ts_graph *g, ts_tid t) {
  return g->tensor[t].role == TS_ROLE_PARAM && ts_stack_is(g->tensor[t].name, g->tensor[t].shape.n);
}

static void find_spread(spreader *s) {
  const ts_graph *g = s->rewrite.from;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    if (node->op == TS_OP_GROUPED && is_stack(g, node->in[1])) {
      s->first[node->in[2]] = true;
    }
  }
}

/* ---- messages ---- */

/* The name of what is made of `of`, once a chunk. */
static char *chunk_name(const spreader *s, const char *of, const char *what) {
  return s->chunks > 1 ? ts_format("%s.tokens%lld%s", of, (long long) s->chunk, what) : ts_format("%s%s", of, what);
}

static ts_tid tokens_in_chunk(spreader *s, ts_site at, ts_tid t);

/* What all ranks have, one after another in the first dimension. */
static ts_tid gather(spreader *s, ts_site at, ts_tid t) {
  if (s->all[t] != TS_NONE) {
    return s->all[t];
  }
  ts_tid x = s->chunks > 1 ? tokens_in_chunk(s, at, t) : ts_rewrite_tensor(&s->rewrite, t);
  if (s->ranks == 1 || s->exchanges) {
    return s->all[t] = x;
  }
  ts_shape shape = at.graph->tensor[x].shape;
  int64_t each = ts_shape_count(&shape);
  shape.d[0] *= s->ranks;
  const char *of = s->rewrite.from->tensor[t].name;
  char *name = chunk_name(s, of, ".of_all"), *shaped = chunk_name(s, of, ".of_all.view");
  ts_piece piece = {.input = 0, .cuts = ts_shards_equal_cuts(s->shards, s->ranks, each), .begin = 0, .end = each};
  ts_tid y = ts_build_all_gather(at, name, TS_AXES(TS_AXIS_EP), s->ranks, 1, &x, NULL, 1, &piece);
  s->all[t] = ts_build_view(at, shaped, y, 0, shape);
  ts_free(name);
  ts_free(shaped);
  return s->all[t];
}

/* This rank's part of the sum of what all have made. */
static ts_tid bring_home(spreader *s, ts_site at, const char *of, ts_tid x) {
  if (s->ranks == 1 || s->exchanges) {
    return x;
  }
  ts_shape shape = at.graph->tensor[x].shape;
  shape.d[0] /= s->ranks;
  int64_t each = ts_shape_count(&shape);
  char *name = chunk_name(s, of, ".home"), *shaped = chunk_name(s, of, ".home.view");
  ts_piece piece = {.input = 0, .cuts = ts_shards_equal_cuts(s->shards, s->ranks, each), .begin = 0, .end = each};
  ts_tid y = ts_build_reduce_scatter(at, name, TS_AXES(TS_AXIS_EP), s->ranks, at.graph->tensor[x].dtype, 1, 1, &x, NULL,
                                     TS_NONE, 1, &piece);
  y = ts_build_view(at, shaped, y, 0, shape);
  ts_free(name);
  ts_free(shaped);
  return y;
}

/* ---- rows from rank to rank ---- */

/* Is it less to send k rows a token than one to each rank?  On a GPU the host has to wait for counts. */
static bool goes_alltoall(const spreader *s, int64_t k) {
  bool less = strcmp(s->dispatch, "auto") == 0 && !s->device && k < s->ranks;
  return s->ranks > 1 && (less || strcmp(s->dispatch, "alltoall") == 0);
}

/* Of DISPATCH's own counts `home` those of all ranks, and of the rows that come here. */
static void count_rows(spreader *s, ts_site at, const char *of, ts_tid home, int64_t experts) {
  ts_interval own = ts_experts_of(experts, s->ranks, s->rank);
  char *name = chunk_name(s, of, ".firsts"), *shaped = chunk_name(s, of, ".firsts.view"),
       *here = chunk_name(s, of, ".here");
  ts_piece piece = {.cuts = ts_shards_equal_cuts(s->shards, s->ranks, experts + 1), .end = experts + 1};
  ts_tid y = ts_build_all_gather(at, name, TS_AXES(TS_AXIS_EP), s->ranks, 1, &home, NULL, 1, &piece);
  s->home = home;
  s->firsts = ts_build_view(at, shaped, y, 0, TS_SHAPE(s->ranks, experts + 1));
  ts_node first = {.op = TS_OP_FIRST_OF_ALL, .name = here, .n_in = 1, .in = &s->firsts, .beta = TS_NONE};
  first.attr.experts.n = (int) own.length;
  first.attr.experts.first = (int) own.begin;
  s->here = ts_graph_add(at, &first);
  ts_free(name);
  ts_free(shaped);
  ts_free(here);
}

/* x to where its experts are, or home again. */
static ts_tid send_rows(spreader *s, ts_site at, const char *of, ts_tid x, int64_t rows, bool home) {
  int64_t experts = at.graph->tensor[s->home].shape.d[0] - 1;
  ts_piece piece = {.cuts = ts_shards_expert_cuts(s->shards, s->ranks, experts), .end = experts};
  char *name = chunk_name(s, of, home ? ".home" : ".to_experts");
  const ts_tid in[] = {x, s->firsts, s->here, s->home};
  ts_node node = {.op = TS_OP_EXCHANGE_ROWS, .name = name, .n_in = 4, .in = in, .beta = TS_NONE};
  node.attr.comm.axes = TS_AXES(TS_AXIS_EP);
  node.attr.comm.group = s->ranks;
  node.attr.comm.wire = at.graph->tensor[x].dtype;
  node.attr.comm.piece = &piece;
  node.attr.comm.n_pieces = 1;
  node.attr.comm.rows = rows;
  node.attr.comm.home = home;
  ts_tid y = ts_graph_add(at, &node);
  ts_free(name);
  return y;
}

/* Rows that experts of this rank may have of so many choices on each of some ranks, k a token: of different ones. */
static int64_t room_for(int64_t ranks, int64_t choices, int64_t k, int64_t own) {
  return ranks * (choices / k) * (k < own ? k : own);
}

/* ---- chunks of tokens ---- */

static int64_t tokens_of(const ts_shape *shape) {
  return ts_shape_count(shape) / ts_shape_last(shape);
}

/* Tokens before chunk i: chunks are as even as can be. */
static int64_t tokens_before(const spreader *s, int64_t tokens, int64_t i) {
  return tokens / s->chunks * i + (i < tokens % s->chunks ? i : tokens % s->chunks);
}

/* All tokens in one row, so that a chunk is a stretch of it. */
static ts_tid in_a_row(ts_site at, const char *of, ts_tid t) {
  char *name = ts_format("%s.in_a_row", of);
  ts_tid row = ts_build_view(at, name, t, 0, TS_SHAPE(1, ts_shape_count(&at.graph->tensor[t].shape)));
  ts_free(name);
  return row;
}

static void cut_tokens(spreader *s, ts_site at, ts_tid t) {
  const char *of = s->rewrite.from->tensor[t].name;
  ts_tid x = ts_rewrite_tensor(&s->rewrite, t);
  const ts_shape shape = at.graph->tensor[x].shape;
  int64_t *size = ts_malloc((size_t) s->chunks * sizeof *size), tokens = tokens_of(&shape);
  for (int64_t i = 0; i < s->chunks; ++i) {
    size[i] = (tokens_before(s, tokens, i + 1) - tokens_before(s, tokens, i)) * ts_shape_last(&shape);
  }
  char *name = ts_format("%s.cut", of);
  s->cut[t] = ts_build_split(at, name, in_a_row(at, of, x), 1, (int) s->chunks, size);
  ts_free(name);
  ts_free(size);
}

/* What the chunk's tokens have of t, [tokens][...]: whole numbers, which have no gradient, as a window. */
static ts_tid tokens_in_chunk(spreader *s, ts_site at, ts_tid t) {
  const ts_shape *all = &s->rewrite.from->tensor[t].shape;
  int64_t last = ts_shape_last(all), first = tokens_before(s, tokens_of(all), s->chunk);
  const ts_shape shape = TS_SHAPE(tokens_before(s, tokens_of(all), s->chunk + 1) - first, last);
  char *name = chunk_name(s, s->rewrite.from->tensor[t].name, "");
  ts_tid chunk;
  if (s->rewrite.from->tensor[t].dtype == TS_I32) {
    chunk = ts_build_view(at, name, ts_rewrite_tensor(&s->rewrite, t), first * last, shape);
  } else {
    if (s->cut[t] == TS_NONE) {
      cut_tokens(s, at, t);
    }
    chunk = ts_build_view(at, name, s->cut[t] + (ts_tid) s->chunk, 0, shape);
  }
  ts_free(name);
  return chunk;
}

/* All chunks' results, as old tensor t is. */
static ts_tid join_chunks(ts_site at, const ts_tensor *t, int n, ts_tid *chunk) {
  for (int i = 0; i < n; ++i) {
    chunk[i] = in_a_row(at, at.graph->tensor[chunk[i]].name, chunk[i]);
  }
  char *name = ts_format("%s.joined", t->name);
  ts_tid all = ts_build_concat(at, name, 1, n, chunk);
  ts_free(name);
  name = ts_format("%s.joined.view", t->name);
  all = ts_build_view(at, name, all, 0, t->shape);
  ts_free(name);
  return all;
}

/* ---- nodes ---- */

enum { X = 0, STACK = 1, ORDER = 1, FIRST_OF_GROUPED = 2, PLACE = 2, FIRST = 3, WEIGHT = 4 };

/* The op whose inputs `first` and weight are where rows are moved. */
static bool moves_rows(const spreader *s, const ts_node *node) {
  return (node->op == TS_OP_TAKE_ROWS || node->op == TS_OP_COMBINE) && s->first[node->in[FIRST]];
}

enum { FIRST_OUT = 2 }; /* of DISPATCH */

/* This rank's matrices of a stack. */
static void cut_stack(spreader *s, ts_tid t) {
  ts_tensor leaf = s->rewrite.from->tensor[t];
  if (s->rewrite.map[t] == TS_NONE) {
    ts_shards_note_experts(s->shards, leaf.name, leaf.shape);
    leaf.shape.d[0] = ts_experts_of(leaf.shape.d[0], s->ranks, s->rank).length;
    s->rewrite.map[t] = ts_graph_add_leaf(s->rewrite.to, &leaf);
  }
}

static ts_tid read_input(spreader *s, ts_site at, const ts_node *old, int i) {
  bool dispatches = old->op == TS_OP_DISPATCH;
  if (s->exchanges && i == FIRST) {
    return s->home;
  }
  bool of_all = dispatches || i == WEIGHT || (i == X && old->op == TS_OP_TAKE_ROWS);
  return old->in[i] != TS_NONE && of_all ? gather(s, at, old->in[i]) : ts_rewrite_tensor(&s->rewrite, old->in[i]);
}

static void write_spread(spreader *s, ts_nid n) {
  const ts_node *old = &s->rewrite.from->node[n];
  ts_site at = {s->rewrite.to, old->segment, old->unit};
  ts_tid in[WEIGHT + 1];
  ts_node node = *old;
  if (old->op == TS_OP_DISPATCH) {
    s->exchanges = goes_alltoall(s, ts_shape_last(&s->rewrite.from->tensor[old->in[0]].shape));
  }
  for (int i = 0; i < old->n_in; ++i) {
    in[i] = read_input(s, at, old, i);
  }
  if (s->exchanges && old->op == TS_OP_COMBINE) {
    in[X] = send_rows(s, at, old->name, in[X], at.graph->tensor[in[ORDER]].shape.d[0], true);
  }
  char *name = chunk_name(s, old->name, "");
  node.name = name;
  node.in = in;
  if (old->op == TS_OP_DISPATCH && !s->exchanges) {
    ts_interval own = ts_experts_of(old->attr.experts.n, s->ranks, s->rank);
    const ts_shape *chosen = &at.graph->tensor[in[0]].shape;
    node.attr.experts.n = (int) own.length;
    node.attr.experts.first = (int) own.begin;
    node.attr.experts.rows = room_for(1, ts_shape_count(chosen), ts_shape_last(chosen), own.length);
  }
  ts_rewrite_add(&s->rewrite, n, &node);
  ts_free(name);
  ts_tid *y = &s->rewrite.map[old->out[0]];
  if (old->op == TS_OP_COMBINE) {
    *y = bring_home(s, at, old->name, *y);
  } else if (s->exchanges && old->op == TS_OP_TAKE_ROWS) {
    const ts_shape *place = &at.graph->tensor[in[PLACE]].shape;
    int64_t own = at.graph->tensor[s->here].shape.d[0] - 1;
    *y = send_rows(s, at, old->name, *y, room_for(s->ranks, ts_shape_count(place), ts_shape_last(place), own), false);
  } else if (s->exchanges) {
    ts_tid *first = &s->rewrite.map[old->out[FIRST_OUT]];
    count_rows(s, at, old->name, *first, old->attr.experts.n);
    *first = s->here; /* for what is between */
  }
}

static bool dispatches(const spreader *s, const ts_node *node) {
  return node->op == TS_OP_DISPATCH && s->first[node->out[FIRST_OUT]];
}

/* A bias may be scaled before it is read. */
static void use_stack(spreader *s, const ts_node *old) {
  bool grouped = old->op == TS_OP_GROUPED || old->op == TS_OP_GROUPED_BIAS, scaled = old->op == TS_OP_SCALE;
  ts_tid stack = grouped && s->first[old->in[FIRST_OF_GROUPED]] ? old->in[STACK] : scaled ? old->in[X] : TS_NONE;
  if (s->ranks > 1 && stack != TS_NONE && is_stack(s->rewrite.from, stack)) {
    cut_stack(s, stack);
  }
}

static void write_any(spreader *s, ts_nid n) {
  const ts_node *old = &s->rewrite.from->node[n];
  if (dispatches(s, old) || moves_rows(s, old)) {
    write_spread(s, n);
    return;
  }
  use_stack(s, old);
  ts_rewrite_copy(&s->rewrite, n);
}

/* ---- nodes of a chunk ---- */

static void write_for_chunk(spreader *s, ts_nid n) {
  const ts_node *old = &s->rewrite.from->node[n];
  if (dispatches(s, old) || moves_rows(s, old)) {
    write_spread(s, n);
    return;
  }
  ts_node node = ts_rewrite_node(&s->rewrite, n);
  char *name = chunk_name(s, old->name, "");
  node.name = name;
  ts_rewrite_add(&s->rewrite, n, &node);
  ts_free(name);
}

/* From a DISPATCH to the COMBINE that waits last, a chunk after the other. */
static void write_chunks(spreader *s, ts_nid combine) {
  const ts_node *old = &s->rewrite.from->node[combine];
  ts_site at = {s->rewrite.to, old->segment, old->unit};
  const ts_tensor *whole = &s->rewrite.from->tensor[old->out[0]];
  int64_t wanted = s->chunks, tokens = tokens_of(&whole->shape);
  s->chunks = wanted < tokens ? wanted : tokens > 1 ? tokens : 1;
  ts_tid *made = ts_malloc((size_t) s->chunks * sizeof *made);
  for (s->chunk = 0; s->chunk < s->chunks; ++s->chunk) {
    for (int i = 0; i < s->rewrite.from->n_tensors; ++i) {
      s->all[i] = TS_NONE;
    }
    for (int i = 0; i < s->n_waiting; ++i) {
      write_for_chunk(s, s->waiting[i]);
    }
    made[s->chunk] = s->rewrite.map[old->out[0]];
  }
  s->rewrite.map[old->out[0]] = join_chunks(at, whole, (int) s->chunks, made);
  s->n_waiting = 0;
  s->chunks = wanted;
  ts_free(made);
}

static bool waits_for_combine(const spreader *s, const ts_node *node) {
  bool inside = dispatches(s, node);
  for (int i = 0; i < node->n_in && !inside; ++i) {
    inside = node->in[i] != TS_NONE && s->inside[node->in[i]];
  }
  return inside;
}

static void write_or_wait(spreader *s, ts_nid n) {
  const ts_node *old = &s->rewrite.from->node[n];
  if (!waits_for_combine(s, old)) {
    write_any(s, n);
    return;
  }
  use_stack(s, old);
  for (int i = 0; i < old->n_in; ++i) { /* parameters stay in their order */
    if (old->in[i] != TS_NONE && s->rewrite.from->tensor[old->in[i]].role == TS_ROLE_PARAM) {
      ts_rewrite_tensor(&s->rewrite, old->in[i]);
    }
  }
  s->waiting[s->n_waiting++] = n;
  bool ends = old->op == TS_OP_COMBINE;
  for (int i = 0; i < old->n_out && !ends; ++i) {
    s->inside[old->out[i]] = true;
  }
  if (ends) {
    write_chunks(s, n);
  }
}

void ts_pass_experts(ts_graph **graph, ts_pass_context *context) {
  const ts_mesh *mesh = context->mesh;
  int64_t chunks = context->deck->moe.token_chunks;
  if (mesh->size[TS_AXIS_EP] == 1 && chunks == 1) {
    return;
  }
  if (context->shards == NULL && mesh->size[TS_AXIS_EP] > 1) {
    context->shards = ts_calloc(1, sizeof *context->shards);
    context->shards->ranks = mesh->size[TS_AXIS_TP];
  }
  spreader s = {.rewrite = ts_rewrite_begin(*graph),
                .shards = context->shards,
                .ranks = mesh->size[TS_AXIS_EP],
                .rank = mesh->coord[TS_AXIS_EP],
                .first = ts_calloc((size_t) (*graph)->n_tensors + 1, sizeof *s.first),
                .all = ts_ids_none((*graph)->n_tensors),
                .dispatch = context->deck->moe.dispatch,
                .device = context->target.backend != NULL && context->target.backend->device != NULL,
                .chunks = chunks,
                .inside = ts_calloc((size_t) (*graph)->n_tensors + 1, sizeof *s.inside),
                .cut = ts_ids_none((*graph)->n_tensors),
                .waiting = ts_malloc(((size_t) (*graph)->n_nodes + 1) * sizeof *s.waiting)};
  find_spread(&s);
  for (ts_nid n = 0; n < (*graph)->n_nodes; ++n) {
    (chunks > 1 ? write_or_wait : write_any)(&s, n);
  }
  TS_CHECK(s.n_waiting == 0, "%s dispatches tokens that nobody combines", (*graph)->node[s.waiting[0]].name);
  ts_rewrite_marks(&s.rewrite);
  ts_free(s.first);
  ts_free(s.all);
  ts_free(s.inside);
  ts_free(s.cut);
  ts_free(s.waiting);
  ts_rewrite_end(&s.rewrite, graph);
}
