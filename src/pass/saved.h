/** \file
 * Which state leaves a checkpoint holds, and which of their elements are this rank's: one list for the memory plan, for
 * saving and for loading.
 *
 * Of each part: "parameter" (the fp32 master where there is one, else the working values), then every other state whose
 * row has a name in checkpoints (graph/states.def).
 * Nothing here is collective.
 */
#ifndef TS_PASS_SAVED_H
#define TS_PASS_SAVED_H

#include "graph/graph.h"
#include "pass/layout.h"

#define TS_MOST_SAVED 8 /**< States of a part, "parameter" included. */

typedef struct ts_saved_leaf {
  const char *state; /**< "parameter", "exp_avg", ...; constant. */
  ts_state kind;     /**< The row that it is the name of. */
  ts_tid leaf;
  ts_dtype dtype;
  int64_t block; /**< Elements of the part that one of the leaf's stands for; 0: the leaf has a shape of its own. */
  bool whole;    /**< The leaf holds the whole part; else this rank's shard. */
  int64_t first; /**< Index in the leaf of this rank's first element. */
  int64_t count; /**< This rank's elements of the leaf. */
} ts_saved_leaf;

/** The saved leaves of part \a index.  Not collective.
 * \param [out] out  In the order of the graph, "parameter" first.
 * \return their number, 1 at least; 0 of a part that another stage has. */
int ts_saved_leaves(const ts_graph *graph, const ts_layout *layout, int index, ts_saved_leaf out[TS_MOST_SAVED]);

/** The leaf that holds \a state of part \a index, or false when there is none.  Not collective. */
bool ts_saved_leaf_find(const ts_graph *graph, const ts_layout *layout, int index, ts_state state, ts_saved_leaf *out);

/** Bytes of a copy of everything this rank owns, for the rank of its groups that owns most: the memory of an
 * asynchronous save.  Replicas are not copied.  Each state begins at a multiple of TS_PLAN_ALIGN.  Not collective. */
int64_t ts_saved_bytes(const ts_graph *graph, const ts_layout *layout);

#endif
