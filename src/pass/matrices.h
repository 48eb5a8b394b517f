/** \file
 * Who makes which matrix orthogonal: of a run with an optimizer of matrices (Muon), the rank that puts each together,
 * and where.  Ranks get matrices by what they cost, so all work equally long, and each product is made once.  All of it
 * follows from the layout and the grid, so every rank finds the same.
 */
#ifndef TS_PASS_MATRICES_H
#define TS_PASS_MATRICES_H

#include "comm/mesh.h"
#include "graph/graph.h"
#include "pass/layout.h"

/** Matrices are shared out among all that work for one model and have its layers: those along tp too. */
#define TS_MATRIX_AXES (TS_AXES_DENSE | TS_AXES(TS_AXIS_TP))

typedef struct ts_matrices {
  const ts_deck *deck;     /**< Borrowed. */
  const ts_layout *layout; /**< Borrowed: of the rank it is seen from. */
  int ranks, me;           /**< Of the group over TS_MATRIX_AXES. */
  int places;              /**< Along ep and tp. */
  bool gram;               /**< The deck's ns_method. */
  ts_mesh *seen;           /**< By rank; owned. */
  ts_layout **at;          /**< By place; owned, and those of others. */
  int *owner;              /**< By parameter: the rank; -1: it is no matrix; owned. */
  int64_t *offset; /**< By parameter: elements, from the first of those of its part that its owner has; owned. */
} ts_matrices;

/** The place of a rank among those that have other pieces of the same parameters, along ep and tp. Not collective. */
static inline int ts_matrices_place(const ts_mesh *mesh) {
  return ts_mesh_group_rank(mesh, TS_AXES_HOLDERS);
}

/** What a rank owns of a part. */
typedef struct ts_matrix_share {
  int64_t elements; /**< Of all its matrices, as they lie. */
  uint64_t kinds;   /**< One bit for each shape of them, pieces along tp included; of a run with more than 64 the last
                     * stands for several. */
} ts_matrix_share;

/** \return the table, end with ts_matrices_end.
 * \param [in] layout, deck, shards, stages, mesh, graph  Those of a rank, as for ts_layout_at. Not collective. */
ts_matrices ts_matrices_find(const ts_layout *layout, const ts_graph *graph, const ts_shards *shards,
                             const ts_stages *stages, const ts_deck *deck, const ts_mesh *mesh);

/** Free what it has. Not collective. */
void ts_matrices_end(ts_matrices *m);

/** True when the piece of place \a t of a parameter of part \a part is one that no place before it has. Not
 * collective. */
bool ts_matrices_is_first_holder(const ts_matrices *m, int part, int t);

/** Elements of the pieces of a parameter before that of place \a t; of all for the number of places. Not
 * collective. */
int64_t ts_matrices_piece_begin(const ts_matrices *m, int parameter, int t);

/** A parameter as the stack of matrices it is, whole and from element 0. Not collective. */
ts_matrix ts_matrices_shape(const ts_matrices *m, int parameter);

/** Elements that a rank has of part \a part. Not collective. */
int64_t ts_matrices_owned(const ts_matrices *m, int part, int rank);

/** What each rank owns of each part, rank after rank; the caller's. Not collective. */
ts_matrix_share *ts_matrices_shares(const ts_matrices *m);

/** Workspace in bytes of the largest exchange of matrices of a rank (pass/zero_matrices.c). Not collective. */
int64_t ts_matrices_workspace(const ts_matrices *m, int rank);

#endif
