/** \file
 * What differentiation knows of a model and other passes ask.  None of these functions is collective.
 */
#ifndef TS_PASS_AUTODIFF_H
#define TS_PASS_AUTODIFF_H

#include "deck/deck.h"
#include "graph/graph.h"

/** Which tensors are trained: trainable parameters, and what is computed from one, here or, of what a message brings,
 * in an earlier piece of the pipeline.
 * \param [in,out] trained  By tensor, all false. Not collective. */
void ts_find_trained(const ts_graph *graph, const ts_deck *deck, bool *trained);

#endif
