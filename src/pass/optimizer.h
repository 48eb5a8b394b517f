/** \file
 * Which optimizer a parameter has, and in which type it keeps its states: what the deck's `optimizer` means for it.
 * Nothing here is collective.
 */
#ifndef TS_PASS_OPTIMIZER_H
#define TS_PASS_OPTIMIZER_H

#include "deck/deck.h"
#include "graph/op.h"

/** Elements of a parameter below which its states stay in fp32 where others' are in 8 bits (bitsandbytes'
 * min_8bit_size). */
#define TS_FEW_ELEMENTS 4096

/** The optimizer of the deck. Not collective. */
ts_optimizer ts_optimizer_of(const ts_deck *deck);

/** Its numbers. Not collective. */
ts_optimizer_numbers ts_optimizer_numbers_of(const ts_deck *deck);

/** The type of the states of a parameter of \a elements, those of the whole tensor: F32, BF16 or U8. Not collective. */
ts_dtype ts_optimizer_moments(const ts_deck *deck, int64_t elements);

#endif
