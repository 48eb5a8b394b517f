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

/* The group of one rank by its definition: the ranks that differ in no other axis, in order. */
static bool group_is_right(const ts_mesh *mesh, int ranks, int rank, unsigned axes) {
  int members = 0;
  for (int other = 0; other < ranks; ++other) {
    if (same_point(&mesh[rank], &mesh[other], axes)) {
      if (ts_mesh_group_member(&mesh[rank], axes, members) != other ||
          ts_mesh_group_rank(&mesh[other], axes) != members) {
        return false;
      }
      ++members;
    }
  }
  return members == ts_mesh_group_size(&mesh[rank], axes);
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
    for (int rank = 0; rank < ranks; ++rank) {
      if (!group_is_right(mesh, ranks, rank, axes)) {
        return false;
      }
    }
  }
  return true;
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

int main(void) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    int size[TS_N_AXES], grids = 0;
    int wrong = wrong_grids(size, 0, ranks, ranks, &grids);
    tap_ok(wrong == 0 && grids > 0, "%d ranks: groups of all sets of axes on %d grids", ranks, grids);
  }
  ts_mesh mesh;
  tap_ok(ts_mesh_init(&mesh, (int[]){2, 0, 1, 1, 3}, 24, 23, NULL) == TS_OK && mesh.size[TS_AXIS_DP] == 4 &&
             mesh.coord[TS_AXIS_DP] == 3,
         "dp 0 becomes what the others leave");
  test_errors();
  return tap_done();
}
