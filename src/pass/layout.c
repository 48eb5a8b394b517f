#include "pass/layout.h"

#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "family/family.h"
#include "graph/record.h"
#include "pass/optimizer.h"

#include <stdlib.h>
#include <string.h>

static bool matches_any(const ts_strings *patterns, const char *name) {
  for (int i = 0; i < patterns->n; ++i) {
    if (ts_matches(patterns->items[i], name) == 1) {
      return true;
    }
  }
  return false;
}

/* The first of the deck's groups that matches, NULL for none. */
static const ts_deck_group *group_of(const ts_deck *deck, const char *name) {
  for (int i = 0; i < deck->optimizer.groups.n; ++i) {
    if (ts_matches(deck->optimizer.groups.items[i].pattern, name) == 1) {
      return &deck->optimizer.groups.items[i];
    }
  }
  return NULL;
}

bool ts_parameter_is_frozen(const ts_deck *deck, const char *name) {
  const ts_deck_group *group = group_of(deck, name);
  bool stays = ts_optimizer_is_router_bias(deck, name) && deck->expert_parallel.load_balance_coeff == 0;
  return (group != NULL && group->frozen) || matches_any(&deck->frozen, name) || stays;
}

static void set_group(ts_parameter *p, const ts_deck *deck, ts_optimizer optimizer) {
  const ts_deck_group *group = group_of(deck, p->name);
  double decay = matches_any(&deck->optimizer.no_decay, p->name) ? 0 : deck->optimizer.params.weight_decay;
  p->weight_decay = (float) (group != NULL && group->weight_decay >= 0 ? group->weight_decay : decay);
  p->lr_factor = (float) ((group != NULL ? group->lr_factor : 1) * ts_optimizer_rate(deck, optimizer));
}

/* What the table is made from. */
typedef struct layout_maker {
  const ts_graph *graph;
  const ts_shards *shards;
  const ts_stages *stages;
  const ts_deck *deck;
  const ts_mesh *mesh;
} layout_maker;

/* The parts of a unit: the large trainable parameters, the small ones that stay gathered, the frozen ones. */
enum { LARGE, PERSISTENT, FROZEN, N_KINDS };
static const char *const kind_suffix[N_KINDS] = {"", ".persistent", ".frozen"};

/* What a rank holds is the same kind on all: the most that one of them has decides. */
static int64_t held_count(const layout_maker *b, ts_tid leaf) {
  const ts_shard *shard = ts_shards_find(b->shards, b->graph->tensor[leaf].name);
  int64_t most = shard == NULL ? ts_tensor_count(b->graph, leaf) : 0;
  ts_mesh at = *b->mesh;
  at.coord[TS_AXIS_EP] = 0; /* who has most experts */
  for (int rank = 0; shard != NULL && rank < b->shards->ranks; ++rank) {
    at.coord[TS_AXIS_TP] = rank;
    ts_shape held = ts_shard_held_at(b->shards, shard, &at);
    int64_t count = ts_shape_count(&held);
    most = count > most ? count : most;
  }
  return most;
}

static int kind_of(const layout_maker *b, ts_tid leaf) {
  if (ts_parameter_is_frozen(b->deck, b->graph->tensor[leaf].name)) {
    return FROZEN;
  }
  bool follows = ts_optimizer_is_router_bias(b->deck, b->graph->tensor[leaf].name); /* and is looked at every step */
  bool few = held_count(b, leaf) <= b->deck->zero_optimization.stage3_param_persistence_threshold;
  return few || follows ? PERSISTENT : LARGE;
}

/* How parameters travel: under autocast listed ones in the lower type, but values that anybody reads in fp32 are
 * gathered as they are, so that what is read is the same at every stage. */
typedef enum travel { AS_IT_IS, LOW_GRADIENTS, LOW, N_TRAVELS } travel;
static const char *const travel_suffix[N_TRAVELS] = {"", ".low_gradients", ".low"};

static travel travel_of(const layout_maker *b, ts_tid leaf) {
  const ts_tensor *tensor = &b->graph->tensor[leaf];
  bool listed = ts_deck_travels_low(b->deck, tensor->name), lowered = tensor->dtype != ts_deck_dtype(b->deck);
  return !listed ? AS_IT_IS : lowered ? LOW : LOW_GRADIENTS;
}

/* What reads a leaf of fp32 reads fp32 in every precision. */
static ts_dtype work_of(const ts_deck *deck, bool full) {
  return full ? TS_F32 : ts_deck_dtype(deck);
}

static void set_travel(ts_part *part, const ts_deck *deck, travel how) {
  ts_dtype low = deck->torch_autocast.dtype, full = ts_deck_dtype(deck);
  part->gathered = how == LOW ? low : part->work;
  part->wire = part->optimizer == TS_OPTIMIZER_BALANCE ? TS_F32
               : how != AS_IT_IS                       ? low
               : ts_deck_autocasts(deck)               ? full
                                                       : ts_deck_wire(deck);
}

static travel travel_of_part(const ts_part *part, const ts_deck *deck) {
  ts_part as_it_is = {.work = part->work, .optimizer = part->optimizer};
  set_travel(&as_it_is, deck, AS_IT_IS);
  return part->wire == as_it_is.wire ? AS_IT_IS : part->gathered == as_it_is.gathered ? LOW_GRADIENTS : LOW;
}

/* How parameters lie on the ranks along tp and ep: over which axes their parts are spread, and what ends the parts'
 * names (with a number where groups along some axes have parts of their own). */
#define EXPERT_AXES (TS_AXES_DENSE & ~TS_AXES(TS_AXIS_EP))
static const struct {
  unsigned axes;
  const char *suffix;
  unsigned own; /* axes along which each group has a part of its own */
} hows[TS_N_HELD] = {
    [TS_HELD_WHOLE] = {TS_AXES_DENSE, "", 0},
    [TS_HELD_PARTIAL] = {TS_AXES_DENSE | TS_AXES(TS_AXIS_TP), ".all", 0},
    [TS_HELD_SHARED] = {TS_AXES_DENSE | TS_AXES_SHARERS, ".unit", TS_AXES(TS_AXIS_TP)},
    [TS_HELD_SPLIT] = {TS_AXES_DENSE, ".tp", TS_AXES(TS_AXIS_TP)},
    [TS_HELD_EXPERTS] = {EXPERT_AXES, ".ep", TS_AXES(TS_AXIS_EP)},
    [TS_HELD_EXPERTS_PARTIAL] = {EXPERT_AXES | TS_AXES(TS_AXIS_TP), ".all.ep", TS_AXES(TS_AXIS_EP)},
    [TS_HELD_EXPERTS_SPLIT] = {EXPERT_AXES, ".tp.ep", TS_AXES(TS_AXIS_EP) | TS_AXES(TS_AXIS_TP)},
};

static ts_held_how how_of(const layout_maker *b, const char *name) {
  const ts_shard *shard = ts_shards_find(b->shards, name);
  return shard == NULL ? TS_HELD_WHOLE : shard->how;
}

static void add_parameter(ts_layout *layout, const layout_maker *b, const char *name, ts_shape shape, ts_init init,
                          ts_part *part) {
  const ts_shard *shard = ts_shards_find(b->shards, name);
  ts_interval piece[TS_MOST_RUNS] = {{0, shape.d[0]}};
  int n = shard != NULL ? ts_shard_at(b->shards, shard, b->mesh, piece) : 1;
  ts_parameter *p = &layout->parameter[layout->n_parameters++];
  *p = (ts_parameter){.name = ts_strdup(name),
                      .shape = shard != NULL ? shard->shape : shape,
                      .dim = shard != NULL ? shard->dim : 0,
                      .n_pieces = n,
                      .piece = ts_malloc((size_t) n * sizeof *p->piece),
                      .held = shard != NULL ? ts_shard_held_at(b->shards, shard, b->mesh) : shape,
                      .part = layout->n_parts,
                      .init = init,
                      .offset = (int64_t) ts_align_up((size_t) part->count, (size_t) ts_part_align(part))};
  p->count = ts_shape_count(&p->held);
  p->first_row = p->dim > 0 && shard != NULL ? ts_shard_experts_at(shard, b->mesh).begin : 0;
  for (int d = 1; d < p->dim; ++d) {
    p->first_row *= p->shape.d[d];
  }
  memcpy(p->piece, piece, (size_t) n * sizeof *piece);
  set_group(p, b->deck, part->optimizer);
  part->count = p->offset + p->count;
  ++part->n_parameters;
}

/* The group that owns a part of a stage: that of this rank's pieces along tp where each has its own, else the first. */
static int find_home(const ts_mesh *mesh, int stage, ts_held_how how) {
  ts_mesh at = *mesh;
  at.coord[TS_AXIS_PP] = stage;
  at.coord[TS_AXIS_TP] = (hows[how].own & TS_AXES(TS_AXIS_TP)) != 0 ? mesh->coord[TS_AXIS_TP] : 0;
  return ts_mesh_group_number(&at, hows[how].axes);
}

/* Equal shards, aligned; the last ones may be short or empty. */
static void cut_part(ts_part *part, const ts_mesh *mesh, int stage, ts_held_how how) {
  unsigned axes = hows[how].axes;
  part->axes = axes;
  part->group = ts_mesh_group_size(mesh, axes);
  part->rank = ts_mesh_group_rank(mesh, axes);
  part->home = find_home(mesh, stage, how);
  part->owned = ts_mesh_group_number(mesh, axes) == part->home;
  part->stage = stage;
  part->of_stage = mesh->coord[TS_AXIS_PP] == stage;
  part->here = part->of_stage || mesh->coord[TS_AXIS_PP] == part->copy;
  part->shard =
      (int64_t) ts_align_up((size_t) ((part->count + part->group - 1) / part->group), (size_t) ts_part_align(part));
  part->cuts = ts_malloc((size_t) (part->group + 1) * sizeof *part->cuts);
  for (int r = 0; r <= part->group; ++r) {
    int64_t begin = r * part->shard;
    part->cuts[r] = begin < part->count ? begin : part->count;
  }
  part->shard = part->cuts[1]; /* the first shard is never smaller than another */
}

bool ts_part_has_norm(const ts_part *part) {
  return part->trainable && part->optimizer != TS_OPTIMIZER_BALANCE;
}

static int64_t *row_cuts(int n_rows, int64_t length) {
  int64_t *cuts = ts_malloc((size_t) (n_rows + 1) * sizeof *cuts);
  for (int r = 0; r <= n_rows; ++r) {
    cuts[r] = r * length;
  }
  return cuts;
}

/* ---- parts, in order ---- */

/* A parameter and the part it belongs to. */
typedef struct member {
  ts_tid leaf;
  int unit, kind;
  int copy; /* -1: no other stage has one */
  ts_optimizer optimizer;
  ts_dtype moments;
  travel travel;
  ts_held_how how;
  bool full; /* fp32 where the deck's type is another */
} member;

static bool is_of_one_part(const member *a, const member *b) {
  return a->unit == b->unit && a->kind == b->kind && a->optimizer == b->optimizer && a->travel == b->travel &&
         a->moments == b->moments && a->how == b->how && a->copy == b->copy && a->full == b->full;
}

static int by_part(const void *a, const void *b) {
  const member *x = a, *y = b;
  int order[] = {x->unit - y->unit,
                 x->kind - y->kind,
                 (int) x->optimizer - (int) y->optimizer,
                 (int) x->travel - (int) y->travel,
                 (int) y->moments - (int) x->moments,
                 (int) x->how - (int) y->how,
                 x->copy - y->copy,
                 x->full - y->full,
                 x->leaf - y->leaf};
  int i = 0;
  while (i < 8 && order[i] == 0) {
    ++i;
  }
  return order[i];
}

/* The whole tensor decides, so that another grid has the same; what is frozen has no optimizer, and is not told
 * apart. */
static member member_of(const layout_maker *b, ts_tid t) {
  const ts_tensor *leaf = &b->graph->tensor[t];
  const ts_shard *shard = ts_shards_find(b->shards, leaf->name);
  const ts_shape *whole = shard != NULL ? &shard->shape : &leaf->shape;
  int kind = kind_of(b, t);
  bool frozen = kind == FROZEN;
  return (member){t,
                  leaf->unit,
                  kind,
                  ts_stages_copy(b->stages, leaf->name),
                  frozen ? TS_OPTIMIZER_ADAMW : ts_optimizer_of(b->deck, leaf->name, whole),
                  ts_optimizer_moments(b->deck, frozen ? INT64_MAX : ts_shape_count(whole)),
                  travel_of(b, t),
                  how_of(b, leaf->name),
                  leaf->dtype == TS_F32 && ts_deck_dtype(b->deck) != TS_F32 && !ts_deck_autocasts(b->deck)};
}

static member *find_members(const layout_maker *b, int *n) {
  member *m = ts_malloc(((size_t) b->graph->n_tensors + 1) * sizeof *m);
  *n = 0;
  for (ts_tid t = 0; t < b->graph->n_tensors; ++t) {
    if (b->graph->tensor[t].role == TS_ROLE_PARAM) {
      m[(*n)++] = member_of(b, t);
    }
  }
  qsort(m, (size_t) *n, sizeof *m, by_part);
  return m;
}

/* Which one it is of those that groups have along these axes, within the stage. */
static int number_among(const ts_mesh *mesh, const ts_part *part, int stage, unsigned own) {
  if ((own & TS_AXES(TS_AXIS_EP)) != 0) {
    bool both = (own & TS_AXES(TS_AXIS_TP)) != 0;
    return both ? mesh->coord[TS_AXIS_EP] * mesh->size[TS_AXIS_TP] + mesh->coord[TS_AXIS_TP] : mesh->coord[TS_AXIS_EP];
  }
  ts_mesh first = *mesh;
  first.coord[TS_AXIS_PP] = stage;
  first.coord[TS_AXIS_TP] = 0;
  return part->home - ts_mesh_group_number(&first, part->axes);
}

/* The part that the last parameters are of. */
static void end_part(ts_layout *layout, const layout_maker *b, ts_part *part, int *capacity) {
  int kind = !part->trainable ? FROZEN : part->persistent ? PERSISTENT : LARGE;
  ts_held_how how = how_of(b, layout->parameter[part->first].name);
  int stage = ts_stages_home(b->stages, part->unit);
  cut_part(part, b->mesh, stage, how);
  bool few = part->moments != ts_optimizer_moments(b->deck, INT64_MAX);
  part->name =
      ts_format("%s%s%s%s%s%s%s%s", b->graph->unit[part->unit], kind_suffix[kind],
                part->work != ts_deck_dtype(b->deck) ? ".fp32" : "", travel_suffix[travel_of_part(part, b->deck)],
                part->optimizer == TS_OPTIMIZER_MUON      ? ".muon"
                : part->optimizer == TS_OPTIMIZER_BALANCE ? ".balance"
                                                          : "",
                few ? ".few" : "", part->copy >= 0 ? ".tied" : "", hows[how].suffix);
  part->stem = (int) strlen(part->name);
  if (hows[how].own != 0) {
    char *stem = part->name;
    part->name = ts_format("%s%d", stem, number_among(b->mesh, part, stage, hows[how].own));
    ts_free(stem);
  }
  TS_GROW(layout->part, layout->n_parts, *capacity);
  layout->part[layout->n_parts++] = *part;
}

/* The part of the first of \a n members. \return how many it has. */
static int pack_part(ts_layout *layout, const layout_maker *b, const member *m, int n, int *capacity) {
  ts_part part = {.unit = m->unit,
                  .copy = m->copy,
                  .trainable = m->kind != FROZEN,
                  .persistent = m->kind == PERSISTENT,
                  .optimizer = m->optimizer,
                  .moments = m->moments,
                  .work = work_of(b->deck, m->full),
                  .first = layout->n_parameters};
  set_travel(&part, b->deck, m->travel);
  int i = 0;
  for (; i < n && is_of_one_part(&m[i], m); ++i) {
    const ts_tensor *tensor = &b->graph->tensor[m[i].leaf];
    add_parameter(layout, b, tensor->name, tensor->shape, tensor->init, &part);
  }
  end_part(layout, b, &part, capacity);
  return i;
}

static ts_layout *begin_layout(int n_parameters) {
  ts_layout *layout = ts_calloc(1, sizeof *layout);
  layout->parameter = ts_calloc((size_t) n_parameters + 1, sizeof *layout->parameter);
  return layout;
}

static ts_layout *end_layout(ts_layout *layout, const ts_mesh *mesh) {
  int n_trainable = 0;
  for (int i = 0; i < layout->n_parts; ++i) {
    n_trainable += ts_part_has_norm(&layout->part[i]);
  }
  layout->record_cuts = row_cuts(mesh->ranks, TS_RECORD_SQUARES + n_trainable);
  layout->loss_cuts = row_cuts(mesh->ranks, TS_RECORD_SQUARES);
  return layout;
}

ts_layout *ts_layout_create(const ts_graph *graph, const ts_shards *shards, const ts_stages *stages,
                            const ts_deck *deck, const ts_mesh *mesh) {
  const layout_maker b = {graph, shards, stages, deck, mesh};
  ts_layout *layout = begin_layout(graph->n_tensors);
  int capacity = 0, n;
  member *m = find_members(&b, &n);
  for (int i = 0; i < n;) {
    i += pack_part(layout, &b, &m[i], n - i, &capacity);
  }
  ts_free(m);
  return end_layout(layout, mesh);
}

void ts_layout_add_loads(ts_layout *layout, const ts_graph *graph) {
  int capacity = layout->n_loads;
  for (ts_nid n = 0; n < graph->n_nodes; ++n) {
    const ts_node *node = &graph->node[n];
    if (node->op == TS_OP_ROUTE_LOADS && node->attr.loads.counted == 0) {
      const ts_shape *shape = &graph->tensor[node->out[0]].shape;
      int experts = (int) ts_loads_experts(shape->d[1]);
      TS_GROW(layout->loads, layout->n_loads, capacity);
      layout->loads[layout->n_loads++] = (ts_layer_loads){.name = ts_strdup(node->name),
                                                          .unit = node->unit,
                                                          .groups = (int) shape->d[0],
                                                          .experts = experts,
                                                          .offset = layout->loads_count};
      layout->loads_count += ts_shape_count(shape) + experts;
    }
  }
}

const ts_parameter *ts_layout_bias_of(const ts_layout *layout, const ts_layer_loads *loads) {
  for (int i = 0; i < layout->n_parts; ++i) {
    const ts_part *part = &layout->part[i];
    if (part->unit == loads->unit && part->trainable && part->optimizer == TS_OPTIMIZER_BALANCE) {
      return &layout->parameter[part->first];
    }
  }
  return NULL;
}

ts_layout *ts_layout_at(const ts_layout *of, const ts_graph *graph, const ts_shards *shards, const ts_stages *stages,
                        const ts_deck *deck, const ts_mesh *mesh) {
  const layout_maker b = {graph, shards, stages, deck, mesh};
  ts_layout *layout = begin_layout(of->n_parameters);
  int capacity = 0;
  for (const ts_part *like = of->part; like < of->part + of->n_parts; ++like) {
    ts_part part = {.unit = like->unit,
                    .copy = like->copy,
                    .trainable = like->trainable,
                    .persistent = like->persistent,
                    .optimizer = like->optimizer,
                    .moments = like->moments,
                    .work = like->work,
                    .wire = like->wire,
                    .gathered = like->gathered,
                    .first = like->first};
    for (const ts_parameter *p = &of->parameter[like->first]; part.n_parameters < like->n_parameters; ++p) {
      add_parameter(layout, &b, p->name, p->shape, p->init, &part);
    }
    end_part(layout, &b, &part, &capacity);
  }
  return end_layout(layout, mesh);
}

void ts_layout_destroy(ts_layout **layout) {
  ts_layout *l = *layout;
  if (l == NULL) {
    return;
  }
  for (int i = 0; i < l->n_parameters; ++i) {
    ts_free(l->parameter[i].name);
    ts_free(l->parameter[i].piece);
  }
  for (int i = 0; i < l->n_parts; ++i) {
    ts_free(l->part[i].name);
    ts_free(l->part[i].cuts);
  }
  ts_free(l->parameter);
  ts_free(l->part);
  ts_free(l->record_cuts);
  ts_free(l->loss_cuts);
  for (int i = 0; i < l->n_loads; ++i) {
    ts_free(l->loads[i].name);
  }
  ts_free(l->loads);
  ts_free(l);
  *layout = NULL;
}

void ts_layout_mesh_cuts(const ts_part *part, const ts_mesh *mesh, int64_t *cuts) {
  cuts[0] = 0;
  for (int r = 0; r < mesh->ranks; ++r) {
    ts_mesh at = ts_mesh_at(mesh, r);
    bool owns = ts_mesh_group_number(&at, part->axes) == part->home;
    int i = ts_mesh_group_rank(&at, part->axes);
    cuts[r + 1] = cuts[r] + (owns ? part->cuts[i + 1] - part->cuts[i] : 0);
  }
}

const ts_parameter *ts_layout_find(const ts_layout *layout, const char *name) {
  for (int i = 0; i < layout->n_parameters; ++i) {
    if (strcmp(layout->parameter[i].name, name) == 0) {
      return &layout->parameter[i];
    }
  }
  return NULL;
}

/* ---- pieces of parameters ---- */

bool ts_parameter_is_whole(const ts_parameter *p) {
  return p->count == ts_shape_count(&p->shape) && p->n_pieces == 1;
}

/* Elements of one index along the dimension that is cut. */
static int64_t slice_elements(const ts_parameter *p) {
  int64_t slice = 1;
  for (int d = p->dim + 1; d < p->shape.n; ++d) {
    slice *= p->shape.d[d];
  }
  return slice;
}

int64_t ts_parameter_in_whole(const ts_parameter *p, int64_t first, int64_t *count) {
  TS_ASSERT(first >= 0 && *count >= 1 && *count <= p->count - first);
  if (ts_parameter_is_whole(p)) {
    return first;
  }
  int64_t slice = slice_elements(p), width = p->held.d[p->dim] * slice, row = first / width, at = first % width;
  const ts_interval *piece = p->piece;
  for (; at >= piece->length * slice; ++piece) {
    at -= piece->length * slice;
  }
  int64_t rest = piece->length * slice - at;
  *count = *count < rest ? *count : rest;
  return ((p->first_row + row) * p->shape.d[p->dim] + piece->begin) * slice + at;
}

int64_t ts_layout_parameter_count(const ts_layout *layout, bool trainable_only) {
  int64_t count = 0;
  for (int i = 0; i < layout->n_parameters; ++i) {
    if (!trainable_only || layout->part[layout->parameter[i].part].trainable) {
      count += ts_shape_count(&layout->parameter[i].shape);
    }
  }
  return count;
}

ts_rounding ts_layout_rounding(const ts_deck *deck, const ts_part *part, int64_t first) {
  uint64_t seed = ts_mix((uint64_t) deck->run.seed, ts_hash_name("bf16.stochastic_rounding"));
  return (ts_rounding){deck->bf16.stochastic_rounding, ts_mix(seed, ts_hash_name(part->name)), first};
}

int ts_layout_ranges(const ts_layout *layout, const ts_part *part, int64_t begin, int64_t end, ts_range **ranges) {
  *ranges = ts_malloc((size_t) part->n_parameters * sizeof **ranges);
  int n = 0;
  for (int i = part->first; i < part->first + part->n_parameters; ++i) {
    const ts_parameter *p = &layout->parameter[i];
    int64_t from = p->offset > begin ? p->offset : begin;
    int64_t to = p->offset + p->count < end ? p->offset + p->count : end;
    if (from < to) {
      (*ranges)[n++] = (ts_range){.offset = from - begin,
                                  .count = to - from,
                                  .weight_decay = p->weight_decay,
                                  .lr_factor = p->lr_factor,
                                  .ratio = i - part->first};
    }
  }
  return n;
}
