/** \file
 * New orders of nodes, so that messages travel under what does not need them.  Functions of the graph alone, which has
 * the same structure on all ranks of a message, but for copies: so have the orders.  None changes a bit: what is added
 * up keeps its order.  Nothing here is collective.
 */
#ifndef TS_PASS_ORDER_H
#define TS_PASS_ORDER_H

#include "pass/rates.h"

/** Of a unit's backward, gradients of parameters wait for the next sum of a gradient of inputs over \a axes, which
 * travels meanwhile. Not collective.
 * \return node numbers in their new order, owned by the caller; NULL: there is no such message. */
ts_nid *ts_order_late_weights(const ts_graph *graph, unsigned axes);

/** Where attention is done by groups of heads, what one group's exchange needs and the exchange itself come before the
 * attention of the group before it; where tokens go to experts in chunks, those of one chunk come behind the rows of
 * the chunk before it, ahead of its products. Not collective.
 * \return node numbers in their new order, owned by the caller. */
ts_nid *ts_order_exchanges(const ts_graph *graph);

/** Gathers of parameters come ahead of their units, but none ahead of an exchange that stood before it: no activations
 * wait behind parameters. Not collective.
 * \param [in] budget  Most elements gathered ahead.
 * \param [in] most    Most elements gathered in all.
 * \param [in] all     Axes whose ranks have gathers of other sizes: those of a group without them stay where they are.
 * \return node numbers in their new order, owned by the caller. */
ts_nid *ts_order_prefetch(const ts_graph *graph, int64_t budget, int64_t most, unsigned all);

/** Updates that stand before the forward (TS_SEGMENT_LATE_UPDATE) are spread over it, in their order and piece by
 * piece: those of a unit over the time in which the one before it is computed, or, where values are copied from where
 * they live or gathered from other ranks, the one before that, so that they have gone there by then.  Gathers of what
 * they make (TS_SEGMENT_LATE_GATHER) stand where that begins, as the forward alone says.  Of several chunks each has
 * its own.
 * Not collective.
 * \param [in] rates  By which that time is counted.
 * \return node numbers in their new order, owned by the caller; NULL: there is no such update. */
ts_nid *ts_order_updates(const ts_graph *graph, const ts_rates *rates);

/** What is loaded for a node comes ahead of so many nodes before it that something is loaded for, of the same phase and
 * chunk; but behind whatever is stored there before.  By way of the host's memory to a device the first of both copies
 * comes a turn earlier. Not collective.
 * \param [in] units   How many, of parameters;
 * \param [in] pieces  and of what is updated.
 * \param [in] behind  What a device has to bring to the host's memory is stored behind the next such node.
 * \return node numbers in their new order, owned by the caller; NULL: nothing is loaded. */
ts_nid *ts_order_loads(const ts_graph *graph, int units, int pieces, bool behind);

#endif
