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

static ts_layout *make_layout(ts_mesh *mesh, int rank, const ts_deck *deck) {
  ts_graph *g = ts_graph_create();
  int unit = ts_graph_unit(g, "unit");
  ts_graph_leaf(g, "w", TS_ROLE_PARAM, TS_F32, TS_SHAPE(10, 10), unit);
  TS_CHECK(ts_mesh_init(mesh, grid, 4, rank, NULL) == TS_OK, "2 x 2");
  ts_layout *layout = ts_layout_create(g, deck, mesh);
  ts_graph_destroy(&g);
  return layout;
}

/* Nothing is cut over tp: its second rank holds a replica, whoever looks. */
static void test_cuts(void) {
  static const int64_t expected[] = {0, 64, 64, 100, 100};
  ts_deck deck = {0};
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

int main(void) {
  test_pieces("whole", TS_SHAPE(4, 6), 0, 1, (const ts_interval[]){{0, 4}}, 24);
  test_pieces("rows", TS_SHAPE(4, 6), 0, 1, (const ts_interval[]){{1, 2}}, 12);
  test_pieces("two of the rows, in another order", TS_SHAPE(9, 5), 0, 2, (const ts_interval[]){{6, 1}, {2, 3}}, 15);
  test_pieces("columns", TS_SHAPE(4, 6), 1, 1, (const ts_interval[]){{2, 3}}, 3);
  test_pieces("a middle dimension", TS_SHAPE(2, 9, 4), 1, 3, (const ts_interval[]){{0, 1}, {3, 2}, {8, 1}}, 8);
  test_cuts();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
