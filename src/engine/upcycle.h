/** \file
 * A model with experts that begins with the weights of a dense one (Komatsuzaki et al. 2023, "Sparse Upcycling"): each
 * expert, and an MLP beside experts, is a copy of its layer's MLP, biases too; routers are from the seed, experts of
 * all tokens begin without effect.  Outputs of experts are scaled so that the dense model's logits come out where the
 * scores of the chosen are equal; where their weights are made to add up they come out whatever is chosen.  Nothing
 * here is collective.
 */
#ifndef ENGINE_UPCYCLE_H
#define ENGINE_UPCYCLE_H

#include "engine/engine.h"

/** What a parameter that a dense model has not under its name begins with. */
typedef struct ts_origin {
  char *
      copied; /**< The tensor that it, or each of its experts, is a copy of; owned by the caller (ts_free).  Or NULL: */
  bool seeded; /**< first values.  Neither: it is missing. */
  float scale; /**< Of these values; of first values 1, or 0 where there are to be zeros. */
} ts_origin;

/** A tensor, as files list them. */
typedef struct ts_named {
  const char *name; /**< Borrowed; as the engine calls it. */
  int n_dims;
} ts_named;

/** Are \a n tensors those of a dense model, where the engine's is one with experts? Not collective. */
bool ts_upcycle_is_dense(const ts_engine *engine, const ts_named *tensor, int n);

/** Where the values of a parameter come from that such a model has not under its name. Not collective. */
ts_origin ts_upcycle_origin(const ts_engine *engine, const ts_parameter *parameter);

/** Is a dense model's tensor of this name copied to experts, or to an MLP beside them? Not collective. */
bool ts_upcycle_copies(const ts_engine *engine, const char *name);

/** First values of a parameter that has such. Not collective. */
void ts_upcycle_seed(ts_engine *engine, const ts_parameter *parameter, const ts_origin *origin);

/** Tell that experts begin as copies, and how many tensors from the seed. Not collective; rank 0 speaks. */
void ts_upcycle_say(const char *directory, int seeded);

#endif
