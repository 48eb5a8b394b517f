/** \file
 * Model families: each writes the forward step for one device as a graph, with parameter names as in its Hugging Face
 * checkpoints.  A family is a row in model.c and one file.  Models know nothing of ranks, precision or storage: every
 * tensor is fp32 and every parameter a leaf.  None of these functions is collective.
 */
#ifndef TS_MODEL_MODEL_H
#define TS_MODEL_MODEL_H

#include "deck/deck.h"
#include "graph/graph.h"

/** What the graph is for. */
typedef enum ts_model_use {
  TS_MODEL_TRAIN, /**< Loss with dropout; to be differentiated. */
  TS_MODEL_LOSS,  /**< Loss without dropout. */
  TS_MODEL_LOGITS /**< The logits [B][1][V] fp32 at input "index" [B] int32. */
} ts_model_use;

/** How a parameter begins. */
typedef enum ts_init_kind { TS_INIT_ZERO, TS_INIT_ONE, TS_INIT_NORMAL } ts_init_kind;
typedef struct ts_init {
  ts_init_kind kind;
  double std;
} ts_init;

typedef struct ts_model_family {
  const char *name; /**< model_type in config.json. */
  void (*build)(const ts_deck *deck, ts_model_use use, int64_t batch, int64_t length, ts_graph *graph);
  ts_init (*init)(const ts_deck *deck, const char *parameter); /**< As Hugging Face's _init_weights. */
  const char *embedding;                                       /**< The parameter that a tied head is. */
  const char *const *prefixes; /**< Prefixes a checkpoint's names may have more or less than ours; NULL-terminated. */
  const char *const *buffers;  /**< Ends of names of tensors that are constants, not weights; NULL-terminated. */
} ts_model_family;

/** The family called \a name, or NULL. Not collective. */
const ts_model_family *ts_model_family_find(const char *name);

/** Build the forward graph of the deck's model.  The deck was checked.
 * Inputs (leaves, role INPUT): input_ids [B][T] int32, labels [B][T] int32 (TRAIN, LOSS), positions [B][T] int32,
 * sample [B] int64 and scalar seed [1] int64 (TRAIN with dropout), index [B] int32 (LOGITS).
 * Results: outputs of the node named "loss" (loss sum, valid tokens) or "logits".
 * Units: the embeddings, each block, the final norm, the head (when not tied). Not collective.
 * \return a new graph, owned by the caller. */
ts_graph *ts_model_build(const ts_deck *deck, ts_model_use use, int64_t batch, int64_t length);

#endif
