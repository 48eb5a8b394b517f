/** \file
 * How the work of a node can be divided among ranks: along an index that several of its tensors have.
 *
 * An index is a letter of the op's index rule (graph/op.h), or a digit: the first, second, ... of the dimensions under
 * '*'; or '*' itself: rows of all of these together, which then are a tensor's dimension 0.  Cut along it, a rank has
 * the same units of every tensor that has the index, and all of the others; what it computes are its units of the
 * outputs that have the index, and partial sums of those that have not: added over the ranks they are the result.
 *
 * A unit may consist of parts (the query heads of a key head), so that more ranks than there are units can share the
 * work.  Of a tensor whose units are one (keys) every rank that has parts of a unit has the whole unit; its result for
 * it is a partial sum over these ranks, or, where it is a new version of an input, the same on all of them.
 * None of these functions is collective.
 */
#ifndef TS_GRAPH_CUT_H
#define TS_GRAPH_CUT_H

#include "graph/graph.h"

/** Where a tensor is cut: along which dimension, into units of how many elements; dim -1: it does not have the index.
 */
typedef struct ts_slice {
  int dim;
  int64_t unit;
  int64_t parts; /**< That one of its units can be cut into: the cut's, or 1. */
} ts_slice;

/** What a rank has: some units in a row, or some parts in a row of one unit. */
typedef struct ts_share {
  int64_t units, first;      /**< Units, 1 for parts of one; the number of the first in the whole. */
  int64_t parts, first_part; /**< Parts; the number of the first in the whole: first times the cut's, or more. */
} ts_share;

#define TS_CUT_MOST 10 /**< Tensors on either side of an op that can be cut. */

typedef struct ts_cut {
  int64_t units; /**< How many there are: a rank has some, in a row. */
  int64_t parts; /**< Of a unit; 1 for most ops. */
  ts_slice in[TS_CUT_MOST], out[TS_CUT_MOST];
  /** What attributes say of the whole, said of a share; NULL where no attribute speaks of the index. */
  void (*localise)(ts_attr *attr, const ts_share *share);
} ts_cut;

/** How \a node is cut along \a index.  Not collective.
 * \param [out] cut  Meaningful when the answer is yes.
 * \return false: it has no such index, or the op's mathematics needs it whole. */
typedef bool ts_cut_rule(const ts_graph *graph, const ts_node *node, char index, ts_cut *cut);

/** The rule of the op's row. Not collective. */
bool ts_node_cut(const ts_graph *graph, const ts_node *node, char index, ts_cut *cut);

/** The rule of most ops: what the letters say, in units of one element. Not collective. */
ts_cut_rule ts_cut_letters;

#endif
