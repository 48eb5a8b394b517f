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

/** What Hugging Face calls the class of a unit ("LlamaDecoderLayer", ts_family_class); "" in a program's own model.
 * Not collective.
 * \return owned by the caller (ts_free). */
char *ts_unit_class(const ts_deck *deck, const char *unit);

/** Does activation checkpointing take a block: is its unit or its class among activation_checkpointing.layers, or does
 * the deck name none? Not collective. */
bool ts_recompute_takes(const ts_deck *deck, const char *unit);

#endif
