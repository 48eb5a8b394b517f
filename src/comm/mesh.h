/** \file
 * The mesh: ranks as points of a grid with the axes pp, dp, ep, sp, tp, tp fastest.  Pure arithmetic, no MPI.
 *
 * The mesh rank is row-major over the axes.  A group over a set of axes holds the ranks that differ from this one only
 * in those axes, in order of mesh rank.  None of these functions is collective.
 */
#ifndef TS_COMM_MESH_H
#define TS_COMM_MESH_H

#include "base/status.h"

#include <stdint.h>

typedef enum ts_axis { TS_AXIS_PP, TS_AXIS_DP, TS_AXIS_EP, TS_AXIS_SP, TS_AXIS_TP, TS_N_AXES } ts_axis;

#define TS_AXES(axis) (1u << (axis))
#define TS_AXES_ALL ((1u << TS_N_AXES) - 1)
/** Not an axis, but a part of tp: the ranks along it that share a unit (ts_mesh.tp_units); not together with tp. */
#define TS_AXES_SHARERS (1u << TS_N_AXES)
/** Axes over which the batch is split, and over which dense parameters are sharded. */
#define TS_AXES_BATCH (TS_AXES(TS_AXIS_DP) | TS_AXES(TS_AXIS_EP))
#define TS_AXES_DENSE (TS_AXES(TS_AXIS_DP) | TS_AXES(TS_AXIS_EP) | TS_AXES(TS_AXIS_SP))

/** Along these ranks have other pieces of the same parameters. */
#define TS_AXES_HOLDERS (TS_AXES(TS_AXIS_EP) | TS_AXES(TS_AXIS_TP))

typedef struct ts_mesh {
  int size[TS_N_AXES];  /**< Extent of each axis, >= 1. */
  int coord[TS_N_AXES]; /**< This rank's point. */
  int rank;             /**< Mesh rank of this point. */
  int ranks;            /**< Product of the extents. */
  int tp_units;         /**< What is dealt along tp where there are fewer than ranks (key heads): neighbours share one.
                         * Otherwise 0: nobody shares. */
} ts_mesh;

/** Make the mesh of \a ranks ranks seen from mesh rank \a rank.
 * \param [in] size  Extents; dp may be 0: what the others leave.
 * \return TS_BAD_INPUT when they do not multiply to \a ranks, with the equation:
 *   "pp 1 x dp 3 x ep 1 x sp 1 x tp 1 = 3, but there are 4 ranks". Not collective. */
ts_status ts_mesh_init(ts_mesh *mesh, const int size[TS_N_AXES], int ranks, int rank, ts_error *err);

/** The same mesh seen from another rank. Not collective. */
ts_mesh ts_mesh_at(const ts_mesh *mesh, int rank);

/** Ranks in the group over \a axes, and this rank's place in it. Not collective. */
int ts_mesh_group_size(const ts_mesh *mesh, unsigned axes);
int ts_mesh_group_rank(const ts_mesh *mesh, unsigned axes);

/** Which of the groups over \a axes this rank's is: its place along the other axes, from 0. Not collective. */
int ts_mesh_group_number(const ts_mesh *mesh, unsigned axes);

/** A number for this rank's group over \a axes: all its members have the same one and no other group of the mesh has
 * it; 0 for the group of all ranks (base/heartbeat.h).  Axes with the same members have the same. Not collective. */
uint64_t ts_mesh_group_id(const ts_mesh *mesh, unsigned axes);

enum { TS_MESH_GROUP_TEXT = 64 };

/** Such a number for people: "dp+tp group 3"; any number is allowed.
 * \return \a text. Not collective. */
const char *ts_mesh_group_text(uint64_t id, char text[TS_MESH_GROUP_TEXT]);

/** Mesh rank of the member \a i of this rank's group over \a axes. Not collective. */
int ts_mesh_group_member(const ts_mesh *mesh, unsigned axes, int i);

/** "pp", "dp", ... Not collective. */
const char *ts_axis_name(ts_axis axis);

#endif
