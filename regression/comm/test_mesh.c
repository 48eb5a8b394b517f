/* The mesh, exhaustively: every grid of up to 64 ranks. */
#include "comm/mesh.h"
#include "regression/tap.h"

#include <string.h>

static const unsigned all_axes = TS_AXES(TS_N_AXES) - 1;

static bool same_point(const ts_mesh *a, const ts_mesh *b, unsigned except) {
  for (int axis = 0; axis < TS_N_AXES; ++axis) {
    if ((except & TS_AXES(axis)) == 0 && a->coord[axis] != b->coord[axis]) {
      return false;
    }
  }
  return true;
}

/* The group of one rank by its definition: the ranks that differ in no other axis, in order; they share its number.
 * all: of each rank. */
static bool group_is_right(const ts_mesh *mesh, const uint64_t *all, int ranks, int rank, unsigned axes) {
  int members = 0;
  uint64_t id = all[rank];
  for (int other = 0; other < ranks; ++other) {
    bool same = same_point(&mesh[rank], &mesh[other], axes);
    if ((all[other] == id) != same) {
      return false;
    }
    if (same) {
      if (ts_mesh_group_member(&mesh[rank], axes, members) != other ||
          ts_mesh_group_rank(&mesh[other], axes) != members) {
        return false;
      }
      ++members;
    }
  }
  return members == ts_mesh_group_size(&mesh[rank], axes) && (id == 0) == (members == ranks);
}

/* Groups of one rank over two sets of axes have the same number when they have the same members. */
static bool ids_are_right(const ts_mesh *mesh) {
  for (unsigned a = 0; a <= all_axes; ++a) {
    for (unsigned b = 0; b < a; ++b) {
      int size = ts_mesh_group_size(mesh, a & b);
      bool same = size == ts_mesh_group_size(mesh, a) && size == ts_mesh_group_size(mesh, b);
      if ((ts_mesh_group_id(mesh, a) == ts_mesh_group_id(mesh, b)) != same) {
        return false;
      }
    }
  }
  return true;
}

static bool grid_is_right(const int size[TS_N_AXES], int ranks) {
  ts_mesh mesh[64];
  for (int rank = 0; rank < ranks; ++rank) {
    if (ts_mesh_init(&mesh[rank], size, ranks, rank, NULL) != TS_OK) {
      return false;
    }
    int again = 0; /* row-major, tp fastest */
    for (int a = 0; a < TS_N_AXES; ++a) {
      again = again * size[a] + mesh[rank].coord[a];
    }
    if (again != rank || ts_mesh_group_rank(&mesh[rank], all_axes) != rank) {
      return false;
    }
  }
  for (unsigned axes = 0; axes <= all_axes; ++axes) {
    uint64_t id[64];
    for (int rank = 0; rank < ranks; ++rank) {
      id[rank] = ts_mesh_group_id(&mesh[rank], axes);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      if (!group_is_right(mesh, id, ranks, rank, axes)) {
        return false;
      }
    }
  }
  return ids_are_right(&mesh[ranks - 1]);
}

/* Every way to write `ranks` as a product of the axes from `axis` on; the count of wrong grids is returned. */
static int wrong_grids(int size[TS_N_AXES], int axis, int rest, int ranks, int *grids) {
  if (axis == TS_N_AXES - 1) {
    size[axis] = rest;
    ++*grids;
    return !grid_is_right(size, ranks);
  }
  int wrong = 0;
  for (int extent = 1; extent <= rest; ++extent) {
    if (rest % extent == 0) {
      size[axis] = extent;
      wrong += wrong_grids(size, axis + 1, rest / extent, ranks, grids);
    }
  }
  return wrong;
}

/* ---- ranks along tp that share ---- */

/* Who shares unit by unit, by the definition: neighbours, earlier units have one more. */
static int unit_of(int units, int tp, int coord) {
  int unit = 0;
  for (int first = 0; unit < units; ++unit) {
    int sharers = tp / units + (unit < tp % units);
    if (coord < first + sharers) {
      break;
    }
    first += sharers;
  }
  return unit;
}

/* One group: the same point but for these axes, and along tp the same unit. */
static bool are_together(const ts_mesh *a, const ts_mesh *b, unsigned axes) {
  int tp = a->size[TS_AXIS_TP];
  return same_point(a, b, axes | TS_AXES(TS_AXIS_TP)) &&
         unit_of(a->tp_units, tp, a->coord[TS_AXIS_TP]) == unit_of(b->tp_units, tp, b->coord[TS_AXIS_TP]);
}

/* The group of a rank by its definition, as group_is_right; groups have numbers from 0 on without a gap. */
static bool sharers_are_right(const ts_mesh *mesh, int ranks, int rank, unsigned axes) {
  unsigned over = axes | TS_AXES_SHARERS;
  int members = 0, groups = 0, number = ts_mesh_group_number(&mesh[rank], over);
  uint64_t id = ts_mesh_group_id(&mesh[rank], over);
  for (int other = 0; other < ranks; ++other) {
    bool together = are_together(&mesh[rank], &mesh[other], axes);
    groups += ts_mesh_group_rank(&mesh[other], over) == 0;
    if ((ts_mesh_group_number(&mesh[other], over) == number) != together ||
        (ts_mesh_group_id(&mesh[other], over) == id) != together) {
      return false;
    }
    if (together && (ts_mesh_group_member(&mesh[rank], over, members) != other ||
                     ts_mesh_group_rank(&mesh[other], over) != members)) {
      return false;
    }
    members += together;
  }
  return members == ts_mesh_group_size(&mesh[rank], over) && number >= 0 && number < groups &&
         (id == 0) == (members == ranks);
}

/* No other group over any axes has the id of one, but with the same members. */
static bool sharers_ids_are_right(const ts_mesh *mesh, int ranks) {
  for (unsigned a = 0; a <= all_axes; ++a) {
    for (unsigned b = 0; b <= all_axes; ++b) {
      for (int x = 0; x < ranks; ++x) {
        for (int y = 0; y < ranks && (a & TS_AXES(TS_AXIS_TP)) == 0; ++y) {
          unsigned over = a | TS_AXES_SHARERS;
          bool same = ts_mesh_group_size(&mesh[x], over) == ts_mesh_group_size(&mesh[y], b);
          for (int i = 0; same && i < ts_mesh_group_size(&mesh[y], b); ++i) {
            same = ts_mesh_group_member(&mesh[x], over, i) == ts_mesh_group_member(&mesh[y], b, i);
          }
          bool alone = ts_mesh_group_size(&mesh[x], over) == 1 || ts_mesh_group_size(&mesh[y], b) == 1;
          if (!alone && (ts_mesh_group_id(&mesh[x], over) == ts_mesh_group_id(&mesh[y], b)) != same) {
            return false;
          }
        }
      }
    }
  }
  return true;
}

static bool sharers_fit(const int size[TS_N_AXES], int ranks, int units) {
  ts_mesh mesh[64];
  for (int rank = 0; rank < ranks; ++rank) {
    TS_CHECK(ts_mesh_init(&mesh[rank], size, ranks, rank, NULL) == TS_OK, "it multiplies");
    mesh[rank].tp_units = units;
  }
  bool right = true;
  for (unsigned axes = 0; axes <= all_axes; ++axes) {
    for (int rank = 0; rank < ranks && right && (axes & TS_AXES(TS_AXIS_TP)) == 0; ++rank) {
      right = sharers_are_right(mesh, ranks, rank, axes);
    }
  }
  return right && (ranks > 16 || sharers_ids_are_right(mesh, ranks));
}

/* Even and uneven: of tp ranks fewer units. */
static void test_sharers(void) {
  static const int around[][4] = {{1, 1, 1, 1}, {1, 2, 1, 1}, {2, 2, 1, 1}, {1, 3, 1, 2}, {1, 2, 2, 1}};
  for (int tp = 2; tp <= 9; ++tp) {
    int wrong = 0, grids = 0;
    for (int units = 1; units < tp; ++units) {
      for (size_t i = 0; i < sizeof around / sizeof *around; ++i, ++grids) {
        const int *a = around[i], size[TS_N_AXES] = {a[0], a[1], a[2], a[3], tp};
        wrong += !sharers_fit(size, a[0] * a[1] * a[2] * a[3] * tp, units);
      }
    }
    tap_ok(wrong == 0, "tp %d: groups of those who share, on %d grids", tp, grids);
  }
  ts_mesh mesh;
  ts_mesh_init(&mesh, (int[]){1, 2, 1, 1, 3}, 6, 4, NULL);
  tap_ok(ts_mesh_group_size(&mesh, TS_AXES_SHARERS) == 1 &&
             ts_mesh_group_size(&mesh, TS_AXES_DENSE | TS_AXES_SHARERS) == 2 &&
             ts_mesh_group_number(&mesh, TS_AXES_DENSE | TS_AXES_SHARERS) == ts_mesh_group_number(&mesh, TS_AXES_DENSE),
         "where nobody shares they are not there");
}

static bool refused(const int size[TS_N_AXES], int ranks, const char *message) {
  ts_mesh mesh;
  ts_error err = {0};
  bool as_expected =
      ts_mesh_init(&mesh, size, ranks, 0, &err) == TS_BAD_INPUT && err.count == 1 && strcmp(err.text, message) == 0;
  if (!as_expected) {
    tap_note("got: %s", err.text != NULL ? err.text : "success");
  }
  ts_error_clear(&err);
  return as_expected;
}

static void test_errors(void) {
  tap_ok(refused((int[]){1, 3, 1, 1, 1}, 4, "pp 1 x dp 3 x ep 1 x sp 1 x tp 1 = 3, but there are 4 ranks"),
         "the equation of a grid that does not fit");
  tap_ok(refused((int[]){1, 0, 1, 1, 3}, 4, "pp 1 x dp 1 x ep 1 x sp 1 x tp 3 = 3, but there are 4 ranks"),
         "dp cannot make up for a tp that does not divide");
  tap_ok(refused((int[]){1, 0, 1, 8, 1}, 4, "pp 1 x dp 1 x ep 1 x sp 8 x tp 1 = 8, but there are 4 ranks"),
         "more ranks asked for than there are");
  tap_ok(refused((int[]){1, 1, 1, 0, 1}, 1, "the extent of sp is 0, expected at least 1"), "an extent of 0");
  tap_ok(refused((int[]){-2, -1, 1, 1, 1}, 2, "the extent of pp is -2, expected at least 1"), "a negative extent");
  int huge = 1 << 30;
  tap_ok(refused((int[]){huge, huge, huge, 1, 1}, 1,
                 "pp 1073741824 x dp 1073741824 x ep 1073741824 x sp 1 x tp 1 is too large, and there are 1 ranks"),
         "a product that overflows");
}

static bool says(uint64_t id, const char *expected) {
  char text[TS_MESH_GROUP_TEXT];
  return strcmp(ts_mesh_group_text(id, text), expected) == 0;
}

static void test_group_text(void) {
  ts_mesh mesh;
  ts_mesh_init(&mesh, (int[]){2, 2, 1, 1, 2}, 8, 7, NULL);
  tap_ok(says(ts_mesh_group_id(&mesh, TS_AXES(TS_AXIS_TP)), "tp group 3"), "a group has a name");
  tap_ok(says(ts_mesh_group_id(&mesh, TS_AXES_DENSE | TS_AXES(TS_AXIS_TP)), "dp+tp group 1"), "of the long axes");
  tap_ok(says(ts_mesh_group_id(&mesh, TS_AXES(TS_AXIS_EP)), "group 7"), "one alone has none");
  ts_mesh_init(&mesh, (int[]){1, 2, 1, 1, 3}, 6, 5, NULL);
  mesh.tp_units = 2;
  tap_ok(says(ts_mesh_group_id(&mesh, TS_AXES_DENSE | TS_AXES_SHARERS), "dp group 2"), "one that shares with nobody");
  mesh = ts_mesh_at(&mesh, 4);
  tap_ok(says(ts_mesh_group_id(&mesh, TS_AXES_SHARERS), "sharers group 2"), "those who share");
  tap_ok(says(UINT64_MAX, "pp+dp+ep+sp+tp+sharers group 288230376151711742"), "a number that no group has");
}

int main(void) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    int size[TS_N_AXES], grids = 0;
    int wrong = wrong_grids(size, 0, ranks, ranks, &grids);
    tap_ok(wrong == 0 && grids > 0, "%d ranks: groups of all sets of axes on %d grids", ranks, grids);
  }
  test_sharers();
  ts_mesh mesh;
  tap_ok(ts_mesh_init(&mesh, (int[]){2, 0, 1, 1, 3}, 24, 23, NULL) == TS_OK && mesh.size[TS_AXIS_DP] == 4 &&
             mesh.coord[TS_AXIS_DP] == 3,
         "dp 0 becomes what the others leave");
  test_errors();
  test_group_text();
  return tap_done();
}
