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
#include "io/checkpoint.h"

/** Where a parameter's values come from. */
typedef struct ts_origin {
  int saved; /**< The checkpoint's parameter that it is, or that each of its experts is a copy of; -1: there is none. */
  float scale; /**< Of these values; of first values 1, or 0 where there are to be zeros. */
  bool seeded; /**< Where there is none: it has first values.  Else it is missing. */
} ts_origin;

/** Is the checkpoint of a dense model, and the engine's one with experts? Not collective. */
bool ts_upcycle_is(const ts_engine *engine, const ts_checkpoint *checkpoint);

/** The origin of a parameter of the engine, where the checkpoint is so, and where it is of the same model.
 * Not collective. */
ts_origin ts_upcycle_origin(const ts_engine *engine, const ts_checkpoint *checkpoint, const ts_parameter *parameter);

/** Are experts copies of the checkpoint's \a name? Not collective. */
bool ts_upcycle_copies(const ts_engine *engine, const ts_checkpoint *checkpoint, const char *name);

#endif
