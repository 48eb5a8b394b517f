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

/** Is it the bias that a router has for its choice alone?  It follows what experts got (BALANCE), in fp32, whatever the
 * deck's optimizer is. Not collective. */
bool ts_optimizer_is_router_bias(const ts_deck *deck, const char *name);

/** The optimizer of a parameter.  Muon's are those of two dimensions and more that have neither "embed" nor "lm_head"
 * in their name, and all others are AdamW's (DeepSpeed's set_optimizer_flags). Not collective. */
ts_optimizer ts_optimizer_of(const ts_deck *deck, const char *name, const ts_shape *shape);

/** The numbers of one of the deck's optimizers. Not collective. */
ts_optimizer_numbers ts_optimizer_numbers_of(const ts_deck *deck, ts_optimizer optimizer);

/** Rows of a head where each head of a parameter of \a shape is a matrix for Muon (per_head_muon: projections of query,
 * key and value that are apart); else 0. Not collective. */
int64_t ts_optimizer_head(const ts_deck *deck, const char *name, const ts_shape *shape);

/** The rate of an optimizer's parameters, as a part of the deck's lr. Not collective. */
double ts_optimizer_rate(const ts_deck *deck, ts_optimizer optimizer);

/** The type that gradients of an optimizer's parameters are added up in. Not collective. */
ts_dtype ts_optimizer_sums(const ts_deck *deck, ts_optimizer optimizer);

/** The type of the states of a parameter of \a elements, those of the whole tensor: F32, BF16 or U8. Not collective. */
ts_dtype ts_optimizer_moments(const ts_deck *deck, int64_t elements);

#endif
