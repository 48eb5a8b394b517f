#include "comm/mesh.h"

#include "base/deal.h"

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
  return ts_error_add(err, ranks == 1 ? "%s = %lld, but there is %d rank" : "%s = %lld, but there are %d ranks", text,
                      (long long) product, ranks);
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

/* ---- groups ---- */

/* An axis of groups: tp in two where some of its ranks share, which of the shared things, and who of those that share
 * it. */
typedef struct extent {
  int size, coord;
} extent;

/* Ranks along tp that share with this one. */
static ts_interval sharers_of(const ts_mesh *mesh, int unit) {
  return ts_deal(mesh->size[TS_AXIS_TP], mesh->tp_units, unit);
}

static int shared_unit(const ts_mesh *mesh) {
  return (int) ts_dealt_to(mesh->size[TS_AXIS_TP], mesh->tp_units, mesh->coord[TS_AXIS_TP]);
}

static bool splits_tp(const ts_mesh *mesh, unsigned axes) {
  return (axes & TS_AXES_SHARERS) != 0 && mesh->tp_units > 0;
}

/* Of axis a inside a group over \a axes; what is outside has size 1. */
static extent in_group(const ts_mesh *mesh, unsigned axes, int a) {
  if (a == TS_AXIS_TP && splits_tp(mesh, axes)) {
    ts_interval sharers = sharers_of(mesh, shared_unit(mesh));
    return (extent){(int) sharers.length, mesh->coord[a] - (int) sharers.begin};
  }
  return (axes & TS_AXES(a)) != 0 ? (extent){mesh->size[a], mesh->coord[a]} : (extent){1, 0};
}

/* The rest of it: which of the groups along this axis. */
static extent beside_group(const ts_mesh *mesh, unsigned axes, int a) {
  if (a == TS_AXIS_TP && splits_tp(mesh, axes)) {
    return (extent){mesh->tp_units, shared_unit(mesh)};
  }
  return (axes & TS_AXES(a)) == 0 ? (extent){mesh->size[a], mesh->coord[a]} : (extent){1, 0};
}

int ts_mesh_group_size(const ts_mesh *mesh, unsigned axes) {
  int size = 1;
  for (int a = 0; a < TS_N_AXES; ++a) {
    size *= in_group(mesh, axes, a).size;
  }
  return size;
}

int ts_mesh_group_rank(const ts_mesh *mesh, unsigned axes) {
  int rank = 0;
  for (int a = 0; a < TS_N_AXES; ++a) {
    extent e = in_group(mesh, axes, a);
    rank = rank * e.size + e.coord;
  }
  return rank;
}

int ts_mesh_group_number(const ts_mesh *mesh, unsigned axes) {
  int number = 0;
  for (int a = 0; a < TS_N_AXES; ++a) {
    extent e = beside_group(mesh, axes, a);
    number = number * e.size + e.coord;
  }
  return number;
}

/* Of this rank's group: one that shares with nobody is as without sharers, and sharers that are all of tp are tp. */
static unsigned plain_axes(const ts_mesh *mesh, unsigned axes) {
  unsigned rest = axes & ~TS_AXES_SHARERS;
  int size = in_group(mesh, axes, TS_AXIS_TP).size;
  bool part = splits_tp(mesh, axes) && size > 1 && size < mesh->size[TS_AXIS_TP];
  return part ? axes : splits_tp(mesh, axes) && size > 1 ? rest | TS_AXES(TS_AXIS_TP) : rest;
}

/* Axes without members drop out. */
static unsigned long_axes(const ts_mesh *mesh, unsigned axes) {
  unsigned all = axes & TS_AXES_SHARERS;
  for (int a = 0; a < TS_N_AXES; ++a) {
    all |= (axes & TS_AXES(a)) != 0 && mesh->size[a] > 1 ? TS_AXES(a) : 0;
  }
  return all;
}

enum { AXIS_BITS = TS_N_AXES + 1 };

uint64_t ts_mesh_group_id(const ts_mesh *mesh, unsigned axes) {
  unsigned plain = plain_axes(mesh, axes);
  uint64_t number = (uint64_t) ts_mesh_group_number(mesh, plain);
  return ts_mesh_group_size(mesh, plain) == mesh->ranks ? 0 : (number + 1) << AXIS_BITS | long_axes(mesh, plain);
}

const char *ts_mesh_group_text(uint64_t id, char text[TS_MESH_GROUP_TEXT]) {
  int length = 0;
  text[0] = 0;
  for (int a = 0; a <= TS_N_AXES; ++a) {
    if ((id & TS_AXES(a)) != 0) {
      const char *name = a < TS_N_AXES ? axis_names[a] : "sharers";
      length += snprintf(text + length, TS_MESH_GROUP_TEXT - (size_t) length, length > 0 ? "+%s" : "%s", name);
    }
  }
  snprintf(text + length, TS_MESH_GROUP_TEXT - (size_t) length, length > 0 ? " group %llu" : "group %llu",
           (unsigned long long) (id >> AXIS_BITS) - 1);
  return text;
}

int ts_mesh_group_member(const ts_mesh *mesh, unsigned axes, int i) {
  int rank = 0, stride = 1;
  for (int a = TS_N_AXES - 1; a >= 0; --a) {
    extent e = in_group(mesh, axes, a);
    rank += (mesh->coord[a] - e.coord + i % e.size) * stride;
    i /= e.size;
    stride *= mesh->size[a];
  }
  return rank;
}
