#include "comm/mesh.h"

#include <stdio.h>

static const char *const axis_names[TS_N_AXES] = {"pp", "dp", "ep", "sp", "tp"};

const char *ts_axis_name(ts_axis axis) {
  return axis_names[axis];
}

/* Saturates: extents come from the user's deck. */
static int64_t multiply_sizes(const int size[TS_N_AXES], ts_axis without) {
  int64_t product = 1;
  for (int a = 0; a < TS_N_AXES; ++a) {
    if (a != (int) without) {
      product = product > INT64_MAX / size[a] ? INT64_MAX : product * size[a];
    }
  }
  return product;
}

static ts_status equation_error(const int size[TS_N_AXES], int ranks, ts_error *err) {
  char text[256];
  int length = 0;
  for (int a = 0; a < TS_N_AXES; ++a) {
    length +=
        snprintf(text + length, sizeof text - (size_t) length, "%s%s %d", a > 0 ? " x " : "", axis_names[a], size[a]);
  }
  int64_t product = multiply_sizes(size, TS_N_AXES);
  if (product == INT64_MAX) {
    return ts_error_add(err, "%s is too large, and there are %d ranks", text, ranks);
  }
  return ts_error_add(err, "%s = %lld, but there are %d ranks", text, (long long) product, ranks);
}

ts_status ts_mesh_init(ts_mesh *mesh, const int size[TS_N_AXES], int ranks, int rank, ts_error *err) {
  *mesh = (ts_mesh){.rank = rank, .ranks = ranks};
  for (int a = 0; a < TS_N_AXES; ++a) {
    mesh->size[a] = size[a];
    if (size[a] < 1 && !(a == TS_AXIS_DP && size[a] == 0)) {
      return ts_error_add(err, "the extent of %s is %d, expected at least 1", axis_names[a], size[a]);
    }
  }
  if (size[TS_AXIS_DP] == 0) {
    int64_t others = multiply_sizes(mesh->size, TS_AXIS_DP);
    mesh->size[TS_AXIS_DP] = others <= ranks ? (int) (ranks / others) : 1;
  }
  if (multiply_sizes(mesh->size, TS_N_AXES) != ranks) {
    return equation_error(mesh->size, ranks, err);
  }
  *mesh = ts_mesh_at(mesh, rank);
  return TS_OK;
}

ts_mesh ts_mesh_at(const ts_mesh *mesh, int rank) {
  ts_mesh at = *mesh;
  at.rank = rank;
  for (int a = TS_N_AXES - 1, rest = rank; a >= 0; rest /= mesh->size[a--]) {
    at.coord[a] = rest % mesh->size[a];
  }
  return at;
}

int ts_mesh_group_size(const ts_mesh *mesh, unsigned axes) {
  int size = 1;
  for (int a = 0; a < TS_N_AXES; ++a) {
    size *= (axes & TS_AXES(a)) != 0 ? mesh->size[a] : 1;
  }
  return size;
}

int ts_mesh_group_rank(const ts_mesh *mesh, unsigned axes) {
  int rank = 0;
  for (int a = 0; a < TS_N_AXES; ++a) {
    rank = (axes & TS_AXES(a)) != 0 ? rank * mesh->size[a] + mesh->coord[a] : rank;
  }
  return rank;
}

int ts_mesh_group_number(const ts_mesh *mesh, unsigned axes) {
  return ts_mesh_group_rank(mesh, TS_AXES_ALL & ~axes);
}

uint64_t ts_mesh_group_id(const ts_mesh *mesh, unsigned axes) {
  unsigned long_axes = 0;
  for (int a = 0; a < TS_N_AXES; ++a) {
    long_axes |= mesh->size[a] > 1 ? axes & TS_AXES(a) : 0;
  }
  uint64_t number = (uint64_t) ts_mesh_group_number(mesh, axes);
  return ts_mesh_group_size(mesh, axes) == mesh->ranks ? 0 : (number + 1) << TS_N_AXES | long_axes;
}

const char *ts_mesh_group_text(uint64_t id, char text[TS_MESH_GROUP_TEXT]) {
  int length = 0;
  text[0] = 0;
  for (int a = 0; a < TS_N_AXES; ++a) {
    if ((id & TS_AXES(a)) != 0) {
      length += snprintf(text + length, TS_MESH_GROUP_TEXT - (size_t) length, length > 0 ? "+%s" : "%s", axis_names[a]);
    }
  }
  snprintf(text + length, TS_MESH_GROUP_TEXT - (size_t) length, length > 0 ? " group %llu" : "group %llu",
           (unsigned long long) (id >> TS_N_AXES) - 1);
  return text;
}

int ts_mesh_group_member(const ts_mesh *mesh, unsigned axes, int i) {
  int rank = 0, stride = 1;
  for (int a = TS_N_AXES - 1; a >= 0; --a) {
    int coord = mesh->coord[a];
    if ((axes & TS_AXES(a)) != 0) {
      coord = i % mesh->size[a];
      i /= mesh->size[a];
    }
    rank += coord * stride;
    stride *= mesh->size[a];
  }
  return rank;
}
