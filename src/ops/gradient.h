/** \file
 * What a gradient rule works with.  Reverse-mode differentiation walks the nodes from the loss back and asks each op's
 * rule to add the nodes that compute the gradients of its inputs.  Nothing here is collective.
 */
#ifndef TS_OPS_GRADIENT_H
#define TS_OPS_GRADIENT_H

#include "graph/graph.h"
#include "graph/op.h"

struct ts_gradients {
  ts_graph *graph;     /**< The graph being extended. */
  ts_tid *of;          /**< Owned: per tensor its gradient so far. */
  bool *wanted;        /**< Owned: per tensor, whether something trainable is behind it. */
  int n;               /**< Entries in both: tensors of the forward graph. */
  int unit;            /**< Of the node that is differentiated: its backward nodes belong to it too. */
  ts_dtype accumulate; /**< Dtype of parameter gradients, */
  bool *exact;         /**< Owned: per tensor, of parameters: but fp32 of these; NULL: of none. */
};

/** The gradient of a forward tensor, TS_NONE when nothing flows into it. Not collective. */
ts_tid ts_gradients_of(const ts_gradients *gradients, ts_tid tensor);

/** True when a gradient of \a tensor is needed: it is a trainable parameter or depends on one. Not collective. */
bool ts_gradients_wanted(const ts_gradients *gradients, ts_tid tensor);

/** What flows into a loss, [1] fp32: its gradient, or, of the model's loss, the scalar "gradient_seed", which is made
 * when it is first asked for. Not collective. */
ts_tid ts_gradients_seed(ts_gradients *gradients, ts_tid loss);

/** Enter a gradient, cast where it is a parameter's and of another type than these; a second contribution is added to
 * the first. Not collective. */
void ts_gradients_add(ts_gradients *gradients, ts_tid tensor, ts_tid gradient);

/** The dtype a gradient of \a tensor is computed in: the accumulation dtype for a parameter, or fp32, else
 * the tensor's.
 * Not collective. */
ts_dtype ts_gradients_dtype(const ts_gradients *gradients, ts_tid tensor);

/** Where a node goes that makes a gradient of \a tensor: a parameter's or an activation's segment. Not collective. */
ts_site ts_gradients_site(const ts_gradients *gradients, ts_tid tensor);

#endif
