/** \file
 * What differs from layer to layer of a model: the window of its attention, its rotary positions, and whether it has
 * experts.  Nothing here is collective.
 */
#ifndef TS_MODEL_LAYER_H
#define TS_MODEL_LAYER_H

#include "deck/deck.h"
#include "model/rope.h"

/** A layer. */
typedef struct ts_layer {
  int64_t window;    /**< Tokens that attention sees back, the token itself included; 0: all. */
  bool rotary;       /**< It has rotary positions. */
  int64_t experts;   /**< In place of its MLP; 0: none. */
  bool local_rotary; /**< Those of layers with a window, where the family has such. */
} ts_layer;

/** Layer \a i of a model, by layer_types, or by the family's rule. Not collective. */
ts_layer ts_model_layer(const ts_deck *deck, int64_t i);

/** Its rotary positions; strings and lists are borrowed from the deck. Not collective. */
ts_rope ts_model_rope(const ts_deck_model *model, const ts_layer *layer);

#endif
