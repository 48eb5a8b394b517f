/** \file
 * What is known of each kind of state: the rows of graph/states.def.  Nothing here is collective.
 */
#ifndef TS_PASS_STATE_H
#define TS_PASS_STATE_H

#include "graph/graph.h"
#include "pass/plan.h"

/** Instead of a ts_dtype: what the deck says of working values, and of sums of gradients; the part, of moments. */
enum { TS_WORKING = TS_N_DTYPES, TS_SUMS, TS_MOMENTS };

typedef struct ts_state_info {
  const char *name, *shard; /**< Of the leaf, behind its part's; NULL for one with a name of its own. */
  ts_purpose purpose;
  const char *saved; /**< Its name in checkpoints; NULL: not saved. */
  int dtype;         /**< A ts_dtype, TS_WORKING, TS_SUMS or TS_MOMENTS. */
  int64_t block;     /**< Elements of the part that one of the state's stands for; 0: it has a shape of its own. */
} ts_state_info;

/** The row of a state; of TS_STATE_NONE one that is a buffer and not saved. Not collective. */
const ts_state_info *ts_state_get(ts_state state);

/** The leaf of the loss scale, made where the graph has none. Not collective. */
ts_tid ts_state_loss_scale(ts_graph *graph);

/** The state that has the scales of \a state, one of an optimizer's, where that is in 8 bits. Not collective. */
static inline ts_state ts_state_scales(ts_state state) {
  return (ts_state) (state + 1);
}

/** The state of which \a state has the scales, TS_STATE_NONE where it is none of an optimizer's. Not collective. */
static inline ts_state ts_state_codes(ts_state state) {
  bool is_one = state > TS_STATE_NONE && ts_state_get(state)->block == TS_STATE_BLOCK;
  return is_one ? (ts_state) (state - 1) : TS_STATE_NONE;
}

/** Elements of a state with \a block > 0 that stand for the first \a elements of its part. Not collective. */
static inline int64_t ts_state_elements(int64_t block, int64_t elements) {
  return (elements + block - 1) / block;
}

#endif
