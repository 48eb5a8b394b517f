/* The layout: whose a part is, where cut points of all ranks lie, which elements of a tensor a rank holds. */
#include "regression/tap.h"

#include "base/memory.h"
#include "pass/layout.h"

#include <string.h>

/* ---- pieces of a parameter ---- */

/* Element `at` of what is held, by counting indices: the definition. */
static int64_t find_by_counting(const ts_parameter *p, int64_t at) {
  int64_t index[TS_MAX_DIMS], whole = 0;
  for (int d = p->held.n - 1; d >= 0; --d) {
    index[d] = at % p->held.d[d];
    at /= p->held.d[d];
  }
  int64_t along = index[p->dim];
  int k = 0;
  for (; along >= p->piece[k].length; ++k) {
    along -= p->piece[k].length;
  }
  index[p->dim] = p->piece[k].begin + along;
  for (int d = 0; d < p->shape.n; ++d) {
    whole = whole * p->shape.d[d] + index[d];
  }
  return whole;
}

static void test_pieces(const char *what, ts_shape shape, int dim, int n, const ts_interval *piece, int64_t longest) {
  ts_parameter p = {.shape = shape, .dim = dim, .n_pieces = n, .piece = (ts_interval *) piece, .held = shape};
  p.held.d[dim] = 0;
  for (int i = 0; i < n; ++i) {
    p.held.d[dim] += piece[i].length;
  }
  p.count = ts_shape_count(&p.held);
  bool right = true;
  int64_t most = 0;
  for (int64_t at = 0, count; at < p.count && right; at += count) {
    count = p.count - at;
    int64_t whole = ts_parameter_in_whole(&p, at, &count);
    right = count >= 1 && count <= p.count - at;
    for (int64_t i = 0; i < count && right; ++i) {
      right = find_by_counting(&p, at + i) == whole + i;
    }
    most = count > most ? count : most;
  }
  tap_ok(right && most == longest, "%s: every element has its place, at most %lld together", what, (long long) most);
}

/* ---- cut points ---- */

static const int grid[TS_N_AXES] = {1, 2, 1, 1, 2}; /* dp 2 x tp 2 */

static char fp32[] = "fp32", adamw[] = "AdamW", llama[] = "llama";

static ts_layout *make_layout(ts_mesh *mesh, int rank, const ts_deck *deck) {
  ts_graph *g = ts_graph_create();
  int unit = ts_graph_unit(g, "unit");
  ts_graph_leaf(g, "w", TS_ROLE_PARAM, TS_F32, TS_SHAPE(10, 10), unit);
  TS_CHECK(ts_mesh_init(mesh, grid, 4, rank, NULL) == TS_OK, "2 x 2");
  ts_layout *layout = ts_layout_create(g, NULL, NULL, deck, mesh);
  ts_graph_destroy(&g);
  return layout;
}

/* Nothing is cut over tp: its second rank holds a replica, whoever looks. */
static void test_cuts(void) {
  static const int64_t expected[] = {0, 64, 64, 100, 100};
  ts_deck deck = {.model = {.model_type = llama}, .optimizer = {.type = adamw, .state_dtype = fp32}};
  bool same = true, owned = true, mine = true;
  for (int rank = 0; rank < 4; ++rank) {
    ts_mesh mesh;
    ts_layout *layout = make_layout(&mesh, rank, &deck);
    const ts_part *part = &layout->part[0];
    int64_t cuts[5];
    ts_layout_mesh_cuts(part, &mesh, cuts);
    same = same && memcmp(cuts, expected, sizeof cuts) == 0;
    owned = owned && part->owned == (mesh.coord[TS_AXIS_TP] == 0);
    mine = mine && part->group == 2 && part->rank == mesh.coord[TS_AXIS_DP] &&
           ts_part_begin(part) == (part->rank == 0 ? 0 : 64) && ts_part_end(part) == (part->rank == 0 ? 64 : 100);
    ts_layout_destroy(&layout);
  }
  tap_ok(same, "cut points over all ranks: replicas own nothing, and all ranks say the same");
  tap_ok(owned, "one of the groups is the home");
  tap_ok(mine, "a rank's shard is that of its place in its group");
}

/* ---- tensor parallelism: dp 2 x tp 3, of which two share a unit ---- */

enum { RANKS = 6, TP = 3, UNITS = 2 };

typedef struct sharded {
  ts_graph *graph;
  ts_shards shards;
  ts_shard shard[5]; /* by name */
  ts_deck deck;
  ts_mesh mesh[RANKS];
  ts_layout *layout[RANKS];
} sharded;

static ts_dealt deal(ts_dealing *d, int n, const int64_t *units, int64_t size) {
  ts_dealt dealt = {.n = n};
  for (int i = 0; i < n; ++i) {
    dealt.run[i] = (ts_run_of){ts_dealing_add(d, units[i], 1), size};
  }
  return dealt;
}

static void make_sharded(sharded *s) {
  static const int size[TS_N_AXES] = {1, 2, 1, 1, TP};
  ts_dealing *d = ts_dealing_create(TP);
  const ts_shard shard[] = {
      {"both", TS_SHAPE(16, 5), .how = TS_HELD_SPLIT, .dealt = deal(d, 2, (const int64_t[]){5, 3}, 2)},
      {"columns", TS_SHAPE(3, 11), .how = TS_HELD_SPLIT, .dim = 1, .dealt = deal(d, 1, (const int64_t[]){11}, 1)},
      {"heads", TS_SHAPE(8, 5), .how = TS_HELD_SHARED, .dealt = deal(d, 1, (const int64_t[]){UNITS}, 4)},
      {"norm", TS_SHAPE(70), .how = TS_HELD_PARTIAL},
      {"whole", TS_SHAPE(10, 10), .how = TS_HELD_WHOLE}};
  *s = (sharded){.graph = ts_graph_create(), .deck.optimizer = {.type = adamw, .state_dtype = fp32}};
  s->deck.model.model_type = llama;
  memcpy(s->shard, shard, sizeof shard);
  s->shards = (ts_shards){.n = 5, .shard = s->shard, .dealing = d, .ranks = TP};
  int unit = ts_graph_unit(s->graph, "unit"), other = ts_graph_unit(s->graph, "other");
  for (int i = 4; i >= 0; --i) { /* the graph has its own order; its leaves' shapes are some rank's */
    ts_graph_leaf(s->graph, shard[i].name, TS_ROLE_PARAM, TS_F32, TS_SHAPE(2), i == 1 ? other : unit);
  }
  for (int r = 0; r < RANKS; ++r) {
    TS_CHECK(ts_mesh_init(&s->mesh[r], size, RANKS, r, NULL) == TS_OK, "2 x 3");
    s->mesh[r].tp_units = UNITS;
    s->layout[r] = ts_layout_create(s->graph, &s->shards, NULL, &s->deck, &s->mesh[r]);
  }
}

static void free_sharded(sharded *s) {
  for (int r = 0; r < RANKS; ++r) {
    ts_layout_destroy(&s->layout[r]);
  }
  ts_dealing_destroy(&s->shards.dealing);
  ts_graph_destroy(&s->graph);
}

static bool same_part(const ts_part *a, const ts_part *b) {
  return strcmp(a->name, b->name) == 0 && a->unit == b->unit && a->trainable == b->trainable &&
         a->persistent == b->persistent && a->first == b->first && a->n_parameters == b->n_parameters &&
         a->count == b->count && a->shard == b->shard && a->axes == b->axes && a->home == b->home &&
         a->group == b->group && a->rank == b->rank && a->owned == b->owned &&
         memcmp(a->cuts, b->cuts, ((size_t) a->group + 1) * sizeof *a->cuts) == 0;
}

static bool same_parameter(const ts_parameter *a, const ts_parameter *b) {
  return strcmp(a->name, b->name) == 0 && a->part == b->part && a->offset == b->offset && a->count == b->count &&
         a->dim == b->dim && memcmp(&a->shape, &b->shape, sizeof a->shape) == 0 && a->n_pieces == b->n_pieces &&
         memcmp(&a->held, &b->held, sizeof a->held) == 0 &&
         memcmp(a->piece, b->piece, (size_t) a->n_pieces * sizeof *a->piece) == 0;
}

static bool same_layout(const ts_layout *a, const ts_layout *b) {
  bool same = a->n_parts == b->n_parts && a->n_parameters == b->n_parameters;
  for (int i = 0; i < a->n_parts && same; ++i) {
    same = same_part(&a->part[i], &b->part[i]);
  }
  for (int i = 0; i < a->n_parameters && same; ++i) {
    same = same_parameter(&a->parameter[i], &b->parameter[i]);
  }
  return same;
}

/* A finished program's graph has no parameters any more, only units. */
static void test_other_ranks(const sharded *s) {
  ts_graph *finished = ts_graph_create();
  ts_graph_unit(finished, "unit");
  ts_graph_unit(finished, "other");
  bool same = true;
  for (int from = 0; from < RANKS; ++from) {
    for (int to = 0; to < RANKS; ++to) {
      ts_layout *there = ts_layout_at(s->layout[from], finished, &s->shards, NULL, &s->deck, &s->mesh[to]);
      same = same && same_layout(there, s->layout[to]);
      ts_layout_destroy(&there);
    }
  }
  ts_graph_destroy(&finished);
  tap_ok(same, "any rank knows the table of any other");
}

/* Elements of a parameter, as their owners have them. */
static int64_t count_owned(const sharded *s, int index, int *owners) {
  int64_t n = 0;
  for (int r = 0; r < RANKS; ++r) {
    const ts_parameter *p = &s->layout[r]->parameter[index];
    const ts_part *part = &s->layout[r]->part[p->part];
    for (int64_t at = 0; at < p->count && part->owned; ++at) {
      int64_t one = 1, whole = ts_parameter_in_whole(p, at, &one);
      bool mine = p->offset + at >= ts_part_begin(part) && p->offset + at < ts_part_end(part);
      owners[whole] += mine;
      n += mine;
    }
  }
  return n;
}

static void test_owners(const sharded *s) {
  bool once = true, cuts = true;
  for (int i = 0; i < 5; ++i) {
    int owners[128] = {0};
    int64_t count = ts_shape_count(&s->layout[0]->parameter[i].shape);
    once = once && count_owned(s, i, owners) == count;
    for (int64_t k = 0; k < count; ++k) {
      once = once && owners[k] == 1;
    }
  }
  for (int r = 0; r < RANKS; ++r) {
    for (int i = 0; i < s->layout[r]->n_parts; ++i) {
      const ts_part *part = &s->layout[r]->part[i];
      int64_t all[RANKS + 1];
      ts_layout_mesh_cuts(part, &s->mesh[r], all);
      int64_t mine = part->owned ? ts_part_end(part) - ts_part_begin(part) : 0;
      cuts = cuts && all[RANKS] == part->count && all[r + 1] - all[r] == mine;
      cuts = cuts && (mine == 0 || all[r] == ts_part_begin(part));
    }
  }
  tap_ok(once, "whole, partial, shared or split: every element has one owner");
  tap_ok(cuts, "cut points over all ranks are the owners'");
}

static void test_sharded(void) {
  sharded s;
  make_sharded(&s);
  test_other_ranks(&s);
  test_owners(&s);
  free_sharded(&s);
}

int main(void) {
  test_pieces("whole", TS_SHAPE(4, 6), 0, 1, (const ts_interval[]){{0, 4}}, 24);
  test_pieces("rows", TS_SHAPE(4, 6), 0, 1, (const ts_interval[]){{1, 2}}, 12);
  test_pieces("two of the rows, in another order", TS_SHAPE(9, 5), 0, 2, (const ts_interval[]){{6, 1}, {2, 3}}, 15);
  test_pieces("columns", TS_SHAPE(4, 6), 1, 1, (const ts_interval[]){{2, 3}}, 3);
  test_pieces("a middle dimension", TS_SHAPE(2, 9, 4), 1, 3, (const ts_interval[]){{0, 1}, {3, 2}, {8, 1}}, 8);
  test_cuts();
  test_sharded();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
