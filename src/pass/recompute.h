/** \file
 * What activation checkpointing keeps, as asked for and as decided.
 */
#ifndef TS_PASS_RECOMPUTE_H
#define TS_PASS_RECOMPUTE_H

#include "deck/deck.h"
#include "pass/sequence.h"

/** The policy of a deck with activation checkpointing: what the deck says, "block" or "sac"; for "auto" the latter
 * where a rank has so many tokens of a sample that attention is dearer than its results. Not collective.
 * \return a literal. */
const char *ts_recompute_policy(const ts_deck *deck, const ts_sequence *sequence);

#endif
