#include "pass/layout.h"

#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "graph/record.h"

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
  return (group != NULL && group->frozen) || matches_any(&deck->frozen, name);
}

static void set_group(ts_parameter *p, const ts_deck *deck) {
  const ts_deck_group *group = group_of(deck, p->name);
  double decay = matches_any(&deck->optimizer.no_decay, p->name) ? 0 : deck->optimizer.params.weight_decay;
  p->weight_decay = (float) (group != NULL && group->weight_decay >= 0 ? group->weight_decay : decay);
  p->lr_factor = group != NULL ? (float) group->lr_factor : 1.0f;
}

/* The parts of a unit: the large trainable parameters, the small ones that stay gathered, the frozen ones. */
enum { LARGE, PERSISTENT, FROZEN, N_KINDS };
static const char *const kind_suffix[N_KINDS] = {"", ".persistent", ".frozen"};

static int kind_of(const ts_graph *graph, const ts_deck *deck, ts_tid leaf) {
  if (ts_parameter_is_frozen(deck, graph->tensor[leaf].name)) {
    return FROZEN;
  }
  return ts_tensor_count(graph, leaf) <= deck->zero_optimization.stage3_param_persistence_threshold ? PERSISTENT
                                                                                                    : LARGE;
}

static void add_parameter(ts_layout *layout, const ts_graph *graph, const ts_deck *deck, ts_tid leaf, ts_part *part) {
  const ts_tensor *tensor = &graph->tensor[leaf];
  ts_parameter *p = &layout->parameter[layout->n_parameters++];
  *p = (ts_parameter){.name = ts_strdup(tensor->name),
                      .shape = tensor->shape,
                      .n_pieces = 1,
                      .piece = ts_malloc(sizeof *p->piece),
                      .held = tensor->shape,
                      .part = layout->n_parts,
                      .offset = (int64_t) ts_align_up((size_t) part->count, TS_LAYOUT_ALIGN),
                      .count = ts_tensor_count(graph, leaf)};
  *p->piece = (ts_interval){0, tensor->shape.d[0]};
  set_group(p, deck);
  part->count = p->offset + p->count;
  ++part->n_parameters;
}

/* Equal shards, aligned; the last ones may be short or empty. */
static void cut_part(ts_part *part, const ts_mesh *mesh, unsigned axes) {
  part->axes = axes;
  part->group = ts_mesh_group_size(mesh, axes);
  part->rank = ts_mesh_group_rank(mesh, axes);
  part->owned = ts_mesh_group_number(mesh, axes) == part->home;
  part->shard = (int64_t) ts_align_up((size_t) ((part->count + part->group - 1) / part->group), TS_LAYOUT_ALIGN);
  part->cuts = ts_malloc((size_t) (part->group + 1) * sizeof *part->cuts);
  for (int r = 0; r <= part->group; ++r) {
    int64_t begin = r * part->shard;
    part->cuts[r] = begin < part->count ? begin : part->count;
  }
  part->shard = part->cuts[1]; /* the first shard is never smaller than another */
}

static int64_t *row_cuts(int n_rows, int64_t length) {
  int64_t *cuts = ts_malloc((size_t) (n_rows + 1) * sizeof *cuts);
  for (int r = 0; r <= n_rows; ++r) {
    cuts[r] = r * length;
  }
  return cuts;
}

ts_layout *ts_layout_create(const ts_graph *graph, const ts_deck *deck, const ts_mesh *mesh) {
  ts_layout *layout = ts_calloc(1, sizeof *layout);
  layout->parameter = ts_calloc((size_t) graph->n_tensors + 1, sizeof *layout->parameter);
  int capacity = 0, n_trainable = 0;
  for (int unit = 0; unit < graph->n_units; ++unit) {
    for (int kind = 0; kind < N_KINDS; ++kind) {
      ts_part part = {
          .unit = unit, .trainable = kind != FROZEN, .persistent = kind == PERSISTENT, .first = layout->n_parameters};
      for (ts_tid t = 0; t < graph->n_tensors; ++t) {
        const ts_tensor *tensor = &graph->tensor[t];
        if (tensor->role == TS_ROLE_PARAM && tensor->unit == unit && kind_of(graph, deck, t) == kind) {
          add_parameter(layout, graph, deck, t, &part);
        }
      }
      if (part.n_parameters > 0) {
        part.name = ts_format("%s%s", graph->unit[unit], kind_suffix[kind]);
        cut_part(&part, mesh, TS_AXES_DENSE);
        TS_GROW(layout->part, layout->n_parts, capacity);
        layout->part[layout->n_parts++] = part;
        n_trainable += part.trainable;
      }
    }
  }
  layout->record_cuts = row_cuts(mesh->ranks, TS_RECORD_SQUARES + n_trainable);
  layout->loss_cuts = row_cuts(mesh->ranks, TS_RECORD_SQUARES);
  return layout;
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
  return p->n_pieces == 1 && p->piece[0].begin == 0 && p->piece[0].length == p->shape.d[p->dim];
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
  return (row * p->shape.d[p->dim] + piece->begin) * slice + at;
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
      (*ranges)[n++] = (ts_range){
          .offset = from - begin, .count = to - from, .weight_decay = p->weight_decay, .lr_factor = p->lr_factor};
    }
  }
  return n;
}
