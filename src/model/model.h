/** \file
 * Models: the forward step for one device as a graph, with parameter names as in Hugging Face checkpoints.  One builder
 * reads the family's row (family/family.h) and the deck.  Models know nothing of ranks, precision or storage: every
 * tensor is fp32 and every parameter a leaf.  None of these functions is collective.
 */
#ifndef TS_MODEL_MODEL_H
#define TS_MODEL_MODEL_H

#include "deck/deck.h"
#include "family/family.h"
#include "graph/graph.h"
#include "model/builder.h"

/** The extents of a graph. */
typedef struct ts_model_size {
  int64_t batch, length; /**< Sequences, and the tokens of each that go through the model. */
  int64_t context;       /**< LOGITS: tokens of which keys and values are kept, at least 1; not read elsewhere.  Rotary
                          * positions are those of data.sequence_length, whatever is kept. */
} ts_model_size;

/** The first values of a parameter, as Hugging Face's _init_weights: biases 0, norms 1 (or 0 where 1 is added), all
 * else normal with initializer_range, and where the family says so narrower with depth. Not collective. */
ts_init ts_model_init(const ts_deck *deck, const char *parameter);

/** What the mark of an output begins with; its name follows (ts_builder_output). */
#define TS_OUTPUT_MARK "output:"

/** And the input with the gradient of an output, of its type and shape. */
#define TS_SEED_LEAF "seed:"

/** Build the forward graph of a program's own model; of the deck its leaf modules are read.
 * \return a new graph, owned by the caller; NULL with what its writer did wrong in \a err: TS_BAD_INPUT. Not
 *         collective. */
ts_graph *ts_model_build_own(const ts_own_model *model, const ts_deck *deck, ts_model_use use, int64_t batch,
                             ts_error *err);

/** Build the forward graph of the deck's model.  The deck was checked.
 * Inputs (leaves, role INPUT): input_ids [B][T] int32, labels [B][T] int32 (TRAIN, LOSS), positions [B][T] int32,
 * sample [B] int64 and scalar seed [1] int64 (TRAIN with dropout), index [B] and past [B] int32 (LOGITS).
 * LOGITS has two STATE leaves a layer, UNIT.ATTENTION.key_cache and .value_cache [B][context][key heads x head_dim]:
 * a text's tokens become rows past, past + 1 ... of them and see those before.
 * Results: outputs of the node named "loss" (loss sum, valid tokens) or "logits".
 * Units: the embeddings, each block, the final norm, the head (when not tied). Not collective.
 * \return a new graph, owned by the caller. */
ts_graph *ts_model_build(const ts_deck *deck, ts_model_use use, ts_model_size size);

/** Does each entry of zero_optimization.leaf_module name a module of a family's model with parameters of these names?
 * DeepSpeed's defaults need not. Not collective.
 * \return TS_BAD_INPUT with the entries that do not. */
ts_status ts_model_check_leaves(const ts_deck *deck, const char *const *parameter, int n, ts_error *err);

#endif
