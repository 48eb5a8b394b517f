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

/* The group of one rank by its definition: the ranks that differ in no other axis, in order; they share its number. */
static bool group_is_right(const ts_mesh *mesh, int ranks, int rank, unsigned axes) {
  int members = 0;
  uint64_t id = ts_mesh_group_id(&mesh[rank], axes);
  for (int other = 0; other < ranks; ++other) {
    if ((ts_mesh_group_id(&mesh[other], axes) == id) != same_point(&mesh[rank], &mesh[other], axes)) {
      return false;
    }
    if (same_point(&mesh[rank], &mesh[other], axes)) {
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
    for (int rank = 0; rank < ranks; ++rank) {
      if (!group_is_right(mesh, ranks, rank, axes)) {
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
  tap_ok(says(UINT64_MAX, "pp+dp+ep+sp+tp group 576460752303423486"), "a number that no group has");
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
  test_group_text();
  return tap_done();
}
