/* Tensor parallelism: each rank along tp gets its part of the model (Shoeybi et al., "Megatron-LM: Training
 * Multi-Billion Parameter Language Models Using Model Parallelism", 2019).
 *
 * shard_cut.c has decided along which index each node is cut; here the nodes are written with what this rank has of
 * their tensors, and what is not as a node needs it is made so:
 *
 *   whole, of use to each rank's own part of the work      share            its gradient is the sum over the ranks
 *   whole, and a part is needed                            share, take
 *   dealt, and the whole is needed                         place, all_reduce
 *   a sum over the ranks                                   all_reduce
 *   rows, of use to each rank's own part of the work       all_gather       its gradient: reduce_scatter
 *   a sum over the ranks, and rows are needed              reduce_scatter   its gradient: all_gather
 *   a bias of such a sum, of experts that are cut          scale            by 1 on the first rank, by 0 on others
 *   columns of the rows of a norm                          all_reduce of the rows' sums of squares
 *
 * A sum of what each rank has placed in rows of its own is gathered in the end (placed.c).
 *
 * The gradient of what is whole is so complete, and the same, on every rank. */
#include "pass/shard.h"

#include "base/memory.h"
#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/shard_cut.h"
#include "pass/shard_tokens.h"

typedef struct writer {
  ts_rewrite rewrite;
  const ts_sharding *sharding;
  int ranks, rank;   /* along tp */
  ts_tid *shared;    /* owned; per tensor of the old graph: what `share` has made of it */
  ts_tid *complete;  /* owned; likewise: the whole of what is dealt */
  ts_shards *shards; /* the table, to be the caller's */
} writer;

/* ---- tensors ---- */

static int intervals_of(const writer *w, const ts_spread *spread, ts_interval *out) {
  return ts_dealt_of_rank(w->sharding->dealing, &spread->of, false, w->rank, out);
}

static ts_shape part_shape(const writer *w, const ts_spread *spread, ts_shape shape) {
  ts_interval part[TS_MOST_RUNS];
  int n = intervals_of(w, spread, part);
  shape.d[spread->dim] = 0;
  for (int i = 0; i < n; ++i) {
    shape.d[spread->dim] += part[i].length;
  }
  return shape;
}

/* ---- rows ---- */

static ts_interval own_rows(const writer *w) {
  return ts_dealing_of_rank(w->sharding->dealing, w->sharding->rows, w->rank);
}

/* Which rows of all tokens each rank has, for the table. */
static void note_token_rows(writer *w) {
  const ts_sharding *s = w->sharding;
  if (s->rows.size > 0) {
    int64_t *cuts = ts_malloc((size_t) (w->ranks + 1) * sizeof *cuts);
    for (int r = 0; r < w->ranks; ++r) {
      cuts[r] = ts_dealing_of_rank(s->dealing, s->rows, r).begin;
    }
    cuts[w->ranks] = s->batch * s->length;
    w->shards->rows = cuts;
  }
}

/* Elements of a row of t. */
static int64_t token_elements(const writer *w, ts_tid t) {
  return ts_tensor_count(w->rewrite.from, t) / (w->sharding->batch * w->sharding->length);
}

/* The shape of t with so many rows. */
static ts_shape rows_shape(const writer *w, ts_tid t, int64_t rows) {
  ts_shape shape = w->rewrite.from->tensor[t].shape;
  shape.d[0] = 1;
  shape.d[1] = rows;
  return shape;
}

/* Where the rows of each rank begin in t. */
static const int64_t *token_cuts(const writer *w, ts_tid t) {
  return ts_shards_scaled_cuts(w->shards, w->shards->rows, w->ranks, token_elements(w, t));
}

ts_tid ts_shard_gather(ts_site at, const char *of, int ranks, const int64_t *cuts, ts_tid x, ts_shape whole) {
  const int64_t none = 0;
  char *name = ts_format("%s.gather", of), *padded = ts_format("%s.padded", of), *shaped = ts_format("%s.whole", of);
  if (ts_tensor_count(at.graph, x) < cuts[1]) {
    x = ts_build_pack(at, padded, 1, &x, &none, cuts[1]);
  }
  ts_piece piece = {.input = 0, .cuts = cuts, .begin = 0, .end = cuts[1]};
  ts_tid y = ts_build_all_gather(at, name, TS_AXES(TS_AXIS_TP), ranks, 1, &x, NULL, 1, &piece);
  y = ts_build_view(at, shaped, y, 0, whole);
  ts_free(name);
  ts_free(padded);
  ts_free(shaped);
  return y;
}

ts_tid ts_shard_part(ts_site at, const ts_mesh *mesh, ts_tid x) {
  const int64_t count = ts_tensor_count(at.graph, x), each = count / mesh->size[TS_AXIS_TP];
  const ts_interval own = {mesh->coord[TS_AXIS_TP] * each, each};
  char *flat = ts_format("%s.flat", at.graph->tensor[x].name), *part = ts_format("%s.part", at.graph->tensor[x].name);
  ts_tid y = ts_build_take(at, part, ts_build_view(at, flat, x, 0, TS_SHAPE(count)), 0, 1, &own, NULL);
  ts_free(flat);
  ts_free(part);
  return y;
}

ts_tid ts_shard_gather_parts(ts_site at, const char *of, ts_shards *shards, ts_tid part, ts_shape whole) {
  const int64_t *cuts = ts_shards_equal_cuts(shards, shards->ranks, ts_tensor_count(at.graph, part));
  return ts_shard_gather(at, of, shards->ranks, cuts, part, whole);
}

/* All rows of t, where each rank has its own; the gradient is reduced and scattered. */
static ts_tid gather_tokens(writer *w, ts_site at, ts_tid t, ts_tid x) {
  const ts_tensor *whole = &w->rewrite.from->tensor[t];
  return ts_shard_gather(at, whole->name, w->ranks, token_cuts(w, t), x, whole->shape);
}

/* This rank's rows of the sum of all ranks' x. */
static ts_tid scatter_tokens(writer *w, ts_site at, ts_tid t, ts_tid x) {
  const char *of = w->rewrite.from->tensor[t].name;
  const int64_t *cuts = token_cuts(w, t);
  char *name = ts_format("%s.reduce_scatter", of), *shaped = ts_format("%s.rows", of);
  ts_piece piece = {.input = 0, .cuts = cuts, .begin = 0, .end = cuts[1]};
  ts_tid y = ts_build_reduce_scatter(at, name, TS_AXES(TS_AXIS_TP), w->ranks, at.graph->tensor[x].dtype, 1, 1, &x, NULL,
                                     TS_NONE, 1, &piece);
  y = ts_build_view(at, shaped, y, 0, rows_shape(w, t, own_rows(w).length));
  ts_free(name);
  ts_free(shaped);
  return y;
}

/* A leaf of which a rank holds whole units, and takes its parts. */
static ts_tid take_parts(writer *w, ts_site at, ts_tid t) {
  const ts_spread *spread = &w->sharding->spread[t];
  ts_interval held[TS_MOST_RUNS], used[TS_MOST_RUNS];
  int n = ts_dealt_of_rank(w->sharding->dealing, &spread->of, true, w->rank, held);
  TS_CHECK(intervals_of(w, spread, used) == n, "%s: parts of what is not held", w->rewrite.from->tensor[t].name);
  ts_tensor leaf = w->rewrite.from->tensor[t];
  int64_t begin = 0;
  for (int i = 0; i < n; ++i) {
    used[i].begin += begin - held[i].begin;
    begin += held[i].length;
  }
  leaf.shape.d[spread->dim] = begin;
  char *name = ts_format("%s.parts", leaf.name);
  ts_tid y = ts_build_take(at, name, ts_graph_add_leaf(w->rewrite.to, &leaf), spread->dim, n, used, NULL);
  ts_free(name);
  return y;
}

/* What this rank has of t, by the new graph. */
static ts_tid own(writer *w, ts_site at, ts_tid t) {
  const ts_spread *spread = &w->sharding->spread[t];
  ts_rewrite *r = &w->rewrite;
  if (r->map[t] == TS_NONE && spread->dealt && r->from->tensor[t].producer == TS_NONE) {
    ts_tensor leaf = r->from->tensor[t];
    leaf.shape = part_shape(w, spread, leaf.shape);
    r->map[t] = w->sharding->whole_units[t] ? take_parts(w, at, t) : ts_graph_add_leaf(r->to, &leaf);
  }
  return ts_rewrite_tensor(r, t);
}

static ts_tid make_sum(writer *w, ts_site at, const char *of, ts_tid x) {
  char *name = ts_format("%s.all_reduce", of);
  ts_tid y = ts_build_all_reduce(at, name, TS_AXES(TS_AXIS_TP), w->ranks, x);
  ts_free(name);
  return y;
}

static ts_interval own_rows_if(const writer *w, const ts_spread *spread) {
  return spread->rows ? own_rows(w) : (ts_interval){0};
}

/* The whole of t, of which each rank has x.  Had what is dealt been shared before, its gradient would be a sum over the
 * ranks already. */
static ts_tid make_whole(writer *w, ts_site at, ts_tid t, ts_tid x, const ts_spread *spread) {
  ts_interval part[TS_MOST_RUNS] = {own_rows_if(w, spread)};
  const ts_tensor *tensor = &w->rewrite.from->tensor[t];
  TS_CHECK(spread->rows || w->shared[t] == TS_NONE, "%s is shared, and then completed", tensor->name);
  char *name = ts_format("%s.place", tensor->name), *shaped = ts_format("%s.whole", tensor->name);
  int n = spread->rows ? 1 : intervals_of(w, spread, part), dim = spread->rows ? 1 : spread->dim;
  int64_t extent = spread->rows ? w->sharding->batch * w->sharding->length : tensor->shape.d[dim];
  ts_tid placed = ts_build_place(at, name, x, dim, extent, n, part, spread->rows ? w->shards->rows : NULL);
  ts_tid y = ts_build_view(at, shaped, make_sum(w, at, tensor->name, placed), 0, tensor->shape);
  ts_free(name);
  ts_free(shaped);
  return y;
}

static ts_tid complete(writer *w, ts_site at, ts_tid t) {
  if (w->complete[t] == TS_NONE) {
    w->complete[t] = make_whole(w, at, t, own(w, at, t), &w->sharding->spread[t]);
  }
  return w->complete[t];
}

/* For the ranks' own parts of the work: what is whole, or in rows. */
static ts_tid share_gradient(writer *w, ts_site at, ts_tid t, ts_tid x) {
  if (w->shared[t] == TS_NONE && w->sharding->spread[t].rows) {
    w->shared[t] = gather_tokens(w, at, t, x);
  } else if (w->shared[t] == TS_NONE) {
    char *name = ts_format("%s.share", w->rewrite.from->tensor[t].name);
    w->shared[t] = ts_build_share(at, name, TS_AXES(TS_AXIS_TP), w->ranks, x);
    ts_free(name);
  }
  return w->shared[t];
}

static ts_tid take_part(writer *w, ts_site at, ts_tid t, ts_tid x, const ts_spread *spread) {
  ts_interval part[TS_MOST_RUNS];
  int n = intervals_of(w, spread, part);
  char *name = ts_format("%s.take", w->rewrite.from->tensor[t].name);
  ts_tid y = ts_build_take(at, name, x, spread->dim, n, part, NULL);
  ts_free(name);
  return y;
}

static ts_tid take_rows(writer *w, ts_site at, ts_tid t, ts_tid x) {
  ts_interval rows = own_rows(w);
  const ts_tensor *tensor = &w->rewrite.from->tensor[t];
  char *name = ts_format("%s.take", tensor->name), *flat = ts_format("%s.flat", tensor->name);
  ts_tid y;
  if (tensor->producer == TS_NONE) { /* no gradient: a window */
    y = ts_build_view(at, name, x, rows.begin * token_elements(w, t), rows_shape(w, t, rows.length));
  } else {
    y = ts_build_view(at, flat, x, 0, rows_shape(w, t, w->sharding->batch * w->sharding->length));
    y = ts_build_take(at, name, y, 1, 1, &rows, w->shards->rows);
  }
  ts_free(name);
  ts_free(flat);
  return y;
}

/* Input i as the node needs it. */
static ts_tid own_input(writer *w, ts_site at, const ts_node *node, const ts_node_share *how, int i) {
  ts_tid t = node->in[i];
  if (t == TS_NONE) {
    return TS_NONE;
  }
  unsigned bit = 1u << i;
  ts_tid x = (how->complete & bit) != 0 ? complete(w, at, t) : own(w, at, t);
  bool gathered = w->sharding->spread[t].rows && how->index != '*' && (how->complete & bit) == 0;
  x = (how->share & bit) != 0 || gathered ? share_gradient(w, at, t, x) : x;
  return (how->take & bit) == 0 ? x : how->index == '*' ? take_rows(w, at, t, x) : take_part(w, at, t, x, &how->in[i]);
}

/* ---- nodes ---- */

/* A bias that the first rank alone adds: the others' part of the sum has none. */
static ts_tid add_once(writer *w, ts_site at, ts_tid t, ts_tid x) {
  char *name = ts_format("%s.once", w->rewrite.from->tensor[t].name);
  ts_tid y = ts_build_scale(at, name, x, w->rank == 0 ? 1 : 0, 0);
  ts_free(name);
  return y;
}

/* What attributes say of the whole, said of this rank's part. */
static void localise(const writer *w, const ts_node *old, const ts_node_share *how, ts_attr *attr, int64_t *size) {
  const ts_sharding *s = w->sharding;
  if (how->cut.localise != NULL) {
    ts_share part = ts_dealing_share(s->dealing, how->run, how->size, how->cut.parts, w->rank);
    how->cut.localise(attr, &part);
  }
  if (old->op == TS_OP_ROUTE_LOADS && how->index == '*') {
    attr->loads.first += own_rows(w).begin;
  }
  if (old->op == TS_OP_DROPOUT && how->index == '*') {
    attr->dropout.length = s->length;
  }
  if (old->op == TS_OP_VIEW && s->spread[old->out[0]].routed) {
    attr->view.shape.d[0] = own_rows(w).length;
  } else if (old->op == TS_OP_VIEW) {
    attr->view.shape = part_shape(w, &s->spread[old->out[0]], attr->view.shape);
  }
  if (how->index == TS_INDEX_RUNS) {
    for (int i = 0; i < old->n_out; ++i) {
      ts_shape part = part_shape(w, &s->spread[old->out[i]], s->graph->tensor[old->out[i]].shape);
      size[i] = part.d[part.n - 1];
    }
    attr->split.size = size;
  }
}

/* The sums of a node over the ranks, of outputs that have not its index; a product's bias comes after. */
static void finish_sums(writer *w, ts_site at, const ts_node *old, bool scatter) {
  for (int i = 0; i < old->n_out; ++i) {
    ts_tid *y = &w->rewrite.map[old->out[i]];
    if (w->sharding->spread[old->out[i]].dealt) {
      continue;
    }
    *y = scatter ? scatter_tokens(w, at, old->out[i], *y) : make_sum(w, at, old->name, *y);
    if (old->op == TS_OP_MATMUL && old->n_in > 2 && old->in[2] != TS_NONE) {
      char *name = ts_format("%s.bias", old->name);
      ts_tid in[] = {*y, own(w, at, old->in[2])};
      *y = ts_build(at, TS_OP_BIAS, name, 2, in);
      ts_free(name);
    }
  }
}

/* ---- the head, where each rank has logits of its part of the vocabulary ---- */

/* The statistics of all ranks' logits, [ranks][B][T][2]. */
static ts_tid gather_statistics(writer *w, ts_site at, const char *of, ts_tid stats) {
  int64_t each = ts_tensor_count(at.graph, stats);
  const int64_t *cuts = ts_shards_equal_cuts(w->shards, w->ranks, each);
  char *name = ts_format("%s.statistics.gather", of), *shaped = ts_format("%s.statistics.all", of);
  ts_piece piece = {.input = 0, .cuts = cuts, .begin = 0, .end = each};
  ts_tid all = ts_build_all_gather(at, name, TS_AXES(TS_AXIS_TP), w->ranks, 1, &stats, NULL, 1, &piece);
  all = ts_build_view(at, shaped, all, 0, TS_SHAPE(w->ranks, w->sharding->batch, w->sharding->length, 2));
  ts_free(name);
  ts_free(shaped);
  return all;
}

static void write_shared_head(writer *w, ts_nid n) {
  const ts_node *old = &w->rewrite.from->node[n];
  const ts_node_share *how = &w->sharding->node[n];
  ts_site at = {w->rewrite.to, old->segment, old->unit};
  ts_tid in[4];
  for (int i = 0; i < 3; ++i) {
    in[i] = own_input(w, at, old, how, i);
  }
  char *name = ts_format("%s.statistics", old->name);
  ts_node node = *old,
          stats = {.op = TS_OP_HEAD_STATS, .name = name, .n_in = 3, .in = in, .attr = old->attr, .beta = TS_NONE};
  stats.attr.head.first = node.attr.head.first =
      ts_dealing_share(w->sharding->dealing, how->run, how->size, 1, w->rank).first;
  in[3] = gather_statistics(w, at, old->name, ts_graph_add(at, &stats));
  node.in = in;
  node.n_in = 4;
  ts_rewrite_add(&w->rewrite, n, &node);
  ts_free(name);
}

/* ---- norms of columns ---- */

static void write_norm(writer *w, ts_nid n) {
  const ts_node *old = &w->rewrite.from->node[n];
  ts_site at = {w->rewrite.to, old->segment, old->unit};
  const ts_shape *whole = &w->rewrite.from->tensor[old->in[0]].shape;
  char *name = ts_format("%s.squares", old->name);
  ts_tid in[3] = {own(w, at, old->in[0]), own(w, at, old->in[1])};
  in[2] = make_sum(w, at, name, ts_build(at, TS_OP_ROW_SQUARES, name, 1, in));
  ts_node node = *old;
  node.in = in;
  node.n_in = 3;
  node.attr.norm.width = whole->d[whole->n - 1];
  ts_rewrite_add(&w->rewrite, n, &node);
  ts_free(name);
}

static void write_node(writer *w, ts_nid n) {
  char index = w->sharding->node[n].index;
  if (index == TS_INDEX_VOCABULARY || index == TS_INDEX_NORM) {
    (index == TS_INDEX_NORM ? write_norm : write_shared_head)(w, n);
    return;
  }
  const ts_node *old = &w->rewrite.from->node[n];
  const ts_node_share *how = &w->sharding->node[n];
  ts_site at = {w->rewrite.to, old->segment, old->unit};
  ts_node node = *old;
  node.n_in = how->sums && old->op == TS_OP_MATMUL ? 2 : old->n_in;
  ts_tid *in = ts_malloc((size_t) old->n_in * sizeof *in);
  int64_t *size = ts_malloc((size_t) old->n_out * sizeof *size);
  for (int i = 0; i < node.n_in; ++i) {
    in[i] = own_input(w, at, old, how, i);
  }
  if (how->index == TS_INDEX_EXPERTS && old->op == TS_OP_GROUPED_BIAS) {
    in[1] = add_once(w, at, old->in[1], in[1]);
  }
  node.in = in;
  if (how->index != 0) {
    localise(w, old, how, &node.attr, size);
  }
  ts_rewrite_add(&w->rewrite, n, &node);
  if (how->gathered != NULL) {
    ts_tid *y = &w->rewrite.map[old->out[0]];
    *y = make_whole(w, at, old->out[0], *y, how->gathered);
  }
  if (how->sums) {
    finish_sums(w, at, old, how->scatter);
  }
  ts_free(in);
  ts_free(size);
}

/* What the host reads is whole. */
static void complete_results(writer *w) {
  const ts_graph *g = w->rewrite.from;
  for (int i = 0; i < g->n_marks; ++i) {
    ts_tid t = g->mark[i].tensor;
    const ts_node *producer = ts_graph_producer(g, t);
    if ((w->sharding->spread[t].dealt || w->sharding->spread[t].rows) && producer != NULL) {
      w->rewrite.map[t] = complete(w, (ts_site){w->rewrite.to, producer->segment, producer->unit}, t);
    }
  }
}

void ts_pass_shard(ts_graph **graph, ts_pass_context *context) {
  const ts_mesh *mesh = context->mesh;
  if (mesh->size[TS_AXIS_SP] > 1 && context->use != TS_MODEL_LOGITS) {
    ts_shard_tokens(graph, context);
  }
  if (mesh->size[TS_AXIS_TP] == 1) {
    return;
  }
  ts_sharding *sharding = ts_sharding_create(*graph, context, true);
  ts_sharding_cut(sharding);
  writer w = {.rewrite = ts_rewrite_begin(*graph),
              .sharding = sharding,
              .ranks = mesh->size[TS_AXIS_TP],
              .rank = mesh->coord[TS_AXIS_TP],
              .shards = ts_calloc(1, sizeof *w.shards),
              .shared = ts_ids_none((*graph)->n_tensors),
              .complete = ts_ids_none((*graph)->n_tensors)};
  w.shards->ranks = w.ranks;
  note_token_rows(&w);
  for (ts_nid n = 0; n < (*graph)->n_nodes; ++n) {
    write_node(&w, n);
  }
  complete_results(&w);
  ts_rewrite_marks(&w.rewrite);
  ts_shards_note_alike(w.shards, sharding, &w.rewrite);
  ts_shards_fill(w.shards, sharding);
  context->shards = w.shards;
  ts_sharding_destroy(&sharding);
  ts_free(w.shared);
  ts_free(w.complete);
  ts_rewrite_end(&w.rewrite, graph);
}
