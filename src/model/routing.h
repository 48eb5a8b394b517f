/** \file
 * Which experts a token has: the router of a layer with its noise, experts' room, and losses of how unequal they are.
 * Private to src/model.  Nothing here is collective.
 */
#ifndef TS_MODEL_ROUTING_H
#define TS_MODEL_ROUTING_H

#include "model/parts.h"

/** Where the rows of tokens are. */
typedef struct ts_routed {
  ts_tid weight;              /**< [...][k] fp32, 0 of a choice that no expert has room for. */
  ts_tid order, place, first; /**< Of DISPATCH. */
} ts_routed;

/** A node UNIT.part.base of the builder's graph.
 * \return its first output; the others follow. Not collective. */
ts_tid ts_routing_add(ts_model_builder *b, ts_op op, const char *part, const char *base, int n_in, const ts_tid *in,
                      ts_attr attr);

/** Are the experts those of DeepSpeed's layer (`moe`), not of a family? Not collective. */
bool ts_routing_is_deepspeed(const ts_model_builder *b);

/** The layer's router, of \a experts, at least as many as the deck says a token has, for \a x [B][T][hidden].  Makes
 * its parameters, and where the graph is trained the layer's loads and losses. Not collective. */
ts_routed ts_routing_choose(ts_model_builder *b, ts_tid x, int64_t experts);

/** All tokens of \a x [B][T][hidden] to the one expert of \a part, with the sigmoid of their logit as weight.  Makes
 * its parameter. Not collective. */
ts_routed ts_routing_of_all(ts_model_builder *b, const char *part, ts_tid x);

#endif
