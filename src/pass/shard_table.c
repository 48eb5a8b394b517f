/* The table that tensor parallelism leaves: how each parameter lies on the ranks along tp. */
#include "base/memory.h"
#include "pass/shard_cut.h"

#include <stdlib.h>
#include <string.h>

static ts_held_how held_how(const ts_sharding *s, ts_tid t) {
  return !s->spread[t].dealt                                ? (s->partial[t] ? TS_HELD_PARTIAL : TS_HELD_WHOLE)
         : ts_dealt_is_shared(s->dealing, &s->spread[t].of) ? TS_HELD_SHARED
                                                            : TS_HELD_SPLIT;
}

static int by_shard_name(const void *a, const void *b) {
  return strcmp(((const ts_shard *) a)->name, ((const ts_shard *) b)->name);
}

void ts_shards_fill(ts_shards *shards, ts_sharding *s) {
  const ts_graph *g = s->graph;
  shards->shard = ts_calloc((size_t) g->n_tensors + 1, sizeof *shards->shard);
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    if (g->tensor[t].role == TS_ROLE_PARAM) {
      shards->shard[shards->n++] = (ts_shard){.name = ts_strdup(g->tensor[t].name),
                                              .shape = g->tensor[t].shape,
                                              .how = held_how(s, t),
                                              .dim = s->spread[t].dealt ? s->spread[t].dim : 0,
                                              .dealt = s->spread[t].of,
                                              .whole_units = s->whole_units[t],
                                              .rule = ts_strdup(s->rule[t])};
    }
  }
  qsort(shards->shard, (size_t) shards->n, sizeof *shards->shard, by_shard_name);
  shards->loss_by_rows = s->loss_by_rows;
  for (ts_nid n = 0; n < s->graph->n_nodes; ++n) {
    const ts_node *node = &s->graph->node[n];
    shards->loads_by_rows |= node->op == TS_OP_ROUTE_LOADS && s->spread[node->out[0]].routed;
  }
  shards->dealing = s->dealing;
  s->dealing = NULL;
}

static int by_alike_name(const void *a, const void *b) {
  return strcmp(*(char *const *) a, *(char *const *) b);
}

void ts_shards_note_alike(ts_shards *shards, const ts_sharding *s, const ts_rewrite *r) {
  for (ts_tid t = 0; t < s->graph->n_tensors; ++t) {
    bool value = s->graph->tensor[t].role == TS_ROLE_VALUE && r->map[t] != TS_NONE;
    const ts_spread *spread = &s->spread[t];
    if (value && !spread->dealt && !spread->rows && !spread->routed && !spread->brought && !spread->sums) {
      TS_GROW(shards->alike, shards->n_alike, shards->alike_capacity);
      shards->alike[shards->n_alike++] = ts_strdup(r->to->tensor[r->map[t]].name);
    }
  }
  qsort(shards->alike, (size_t) shards->n_alike, sizeof *shards->alike, by_alike_name);
}

bool ts_shards_are_alike(const ts_shards *shards, const char *name) {
  return shards != NULL && shards->n_alike > 0 &&
         bsearch(&name, shards->alike, (size_t) shards->n_alike, sizeof *shards->alike, by_alike_name) != NULL;
}

/* Zeros, to be filled in; the table's. */
static int64_t *add_cuts(ts_shards *shards, int ranks) {
  TS_GROW(shards->cuts, shards->n_cuts, shards->cuts_capacity);
  TS_GROW(shards->cut_ranks, shards->n_cuts, shards->cut_ranks_capacity);
  shards->cut_ranks[shards->n_cuts] = ranks;
  return shards->cuts[shards->n_cuts++] = ts_calloc((size_t) (ranks + 1), sizeof(int64_t));
}

const int64_t *ts_shards_equal_cuts(ts_shards *shards, int ranks, int64_t each) {
  int64_t *cuts = add_cuts(shards, ranks);
  for (int r = 0; r <= ranks; ++r) {
    cuts[r] = r * each;
  }
  return cuts;
}

const int64_t *ts_shards_scaled_cuts(ts_shards *shards, const int64_t *cuts, int ranks, int64_t each) {
  for (int i = 0; i < shards->n_cuts; ++i) { /* many tensors have the same */
    bool same = shards->cut_ranks[i] == ranks;
    for (int r = 0; same && r <= ranks; ++r) {
      same = shards->cuts[i][r] == cuts[r] * each;
    }
    if (same) {
      return shards->cuts[i];
    }
  }
  int64_t *scaled = add_cuts(shards, ranks);
  for (int r = 0; r <= ranks; ++r) {
    scaled[r] = cuts[r] * each;
  }
  return scaled;
}

const int64_t *ts_shards_expert_cuts(ts_shards *shards, int ranks, int64_t experts) {
  int64_t *cuts = add_cuts(shards, ranks);
  for (int r = 0; r < ranks; ++r) {
    cuts[r + 1] = cuts[r] + ts_experts_of(experts, ranks, r).length;
  }
  return cuts;
}

void ts_shards_destroy(ts_shards **shards) {
  ts_shards *s = *shards;
  if (s == NULL) {
    return;
  }
  for (int i = 0; i < s->n; ++i) {
    ts_free(s->shard[i].name);
    ts_free(s->shard[i].rule);
  }
  for (int i = 0; i < s->n_alike; ++i) {
    ts_free(s->alike[i]);
  }
  ts_free(s->alike);
  ts_dealing_destroy(&s->dealing);
  ts_free(s->shard);
  for (int i = 0; i < s->n_cuts; ++i) {
    ts_free(s->cuts[i]);
  }
  ts_free(s->cuts);
  ts_free(s->cut_ranks);
  ts_free(s->rows);
  ts_free(s);
  *shards = NULL;
}

const ts_shard *ts_shards_find(const ts_shards *shards, const char *name) {
  if (shards == NULL || shards->n == 0) {
    return NULL;
  }
  ts_shard key = {.name = (char *) name};
  return bsearch(&key, shards->shard, (size_t) shards->n, sizeof key, by_shard_name);
}

int ts_shard_of_rank(const ts_shards *shards, const ts_shard *shard, int rank, ts_interval *out) {
  if (shard->how != TS_HELD_SHARED && shard->how != TS_HELD_SPLIT && shard->how != TS_HELD_EXPERTS_SPLIT) {
    out[0] = (ts_interval){0, shard->shape.d[shard->dim]};
    return 1;
  }
  return ts_dealt_of_rank(shards->dealing, &shard->dealt, shard->whole_units, rank, out);
}

ts_shape ts_shard_held(const ts_shards *shards, const ts_shard *shard, int rank) {
  ts_interval part[TS_MOST_RUNS];
  int n = ts_shard_of_rank(shards, shard, rank, part);
  ts_shape held = shard->shape;
  held.d[shard->dim] = 0;
  for (int i = 0; i < n; ++i) {
    held.d[shard->dim] += part[i].length;
  }
  return held;
}

/* ---- along ep ---- */

ts_interval ts_experts_of(int64_t experts, int ranks, int rank) {
  int64_t begin = (experts * rank + ranks - 1) / ranks, end = (experts * (rank + 1) + ranks - 1) / ranks;
  return (ts_interval){begin, end - begin};
}

ts_interval ts_shard_experts_at(const ts_shard *shard, const ts_mesh *mesh) {
  int64_t all = shard->shape.d[0];
  return ts_shard_is_of_experts(shard) ? ts_experts_of(all, mesh->size[TS_AXIS_EP], mesh->coord[TS_AXIS_EP])
                                       : (ts_interval){0, all};
}

int ts_shard_at(const ts_shards *shards, const ts_shard *shard, const ts_mesh *mesh, ts_interval *out) {
  if (ts_shard_is_of_experts(shard) && shard->how != TS_HELD_EXPERTS_SPLIT) {
    out[0] = ts_shard_experts_at(shard, mesh);
    return 1;
  }
  return ts_shard_of_rank(shards, shard, mesh->coord[TS_AXIS_TP], out);
}

ts_shape ts_shard_held_at(const ts_shards *shards, const ts_shard *shard, const ts_mesh *mesh) {
  ts_shape held = ts_shard_held(shards, shard, mesh->coord[TS_AXIS_TP]);
  if (ts_shard_is_of_experts(shard)) {
    held.d[0] = ts_shard_experts_at(shard, mesh).length;
  }
  return held;
}

void ts_shards_note_experts(ts_shards *shards, const char *name, ts_shape shape) {
  ts_shard *known = (ts_shard *) ts_shards_find(shards, name);
  if (known != NULL) {
    TS_CHECK(known->how < TS_HELD_SHARED || (known->how == TS_HELD_SPLIT && known->dim > 0), "%s is cut over tp", name);
    known->how = known->how == TS_HELD_SPLIT     ? TS_HELD_EXPERTS_SPLIT
                 : known->how == TS_HELD_PARTIAL ? TS_HELD_EXPERTS_PARTIAL
                                                 : TS_HELD_EXPERTS;
    return;
  }
  shards->shard = ts_realloc(shards->shard, (size_t) shards->n + 1, sizeof *shards->shard);
  shards->shard[shards->n++] =
      (ts_shard){.name = ts_strdup(name), .shape = shape, .how = TS_HELD_EXPERTS, .rule = ts_strdup("experts")};
  qsort(shards->shard, (size_t) shards->n, sizeof *shards->shard, by_shard_name);
}
