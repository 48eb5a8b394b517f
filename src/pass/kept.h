/** \file
 * What is kept from the forward for the backward, which passes let leave, in parts or whole.
 */
#ifndef TS_PASS_KEPT_H
#define TS_PASS_KEPT_H

#include "graph/graph.h"

/** A tensor that the forward makes and the backward reads. */
typedef struct ts_kept {
  ts_tid tensor;
  ts_nid after;       /**< The forward's first reader of it; its producer where there is none. */
  ts_nid before;      /**< The backward's first reader. */
  ts_segment segment; /**< Of what brings it back: gradients of inputs are computed before those of weights where these
                       * have runs of their own. */
} ts_kept;

/** All of them but what somebody outside reads, in the order in which they are made; the caller's (ts_free).
 * Not collective.
 * \param [out] n  Their number. */
ts_kept *ts_kept_find(const ts_graph *graph, int *n);

#endif
