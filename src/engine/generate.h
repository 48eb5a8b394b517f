/** \file
 * Continuing texts with a model.
 */
#ifndef TS_ENGINE_GENERATE_H
#define TS_ENGINE_GENERATE_H

#include "engine/workings.h"

/** How to continue text. */
typedef struct ts_generate_options {
  int64_t n_tokens;
  double temperature; /**< 0: always the most likely token. */
  int64_t top_k;      /**< 0: all. */
  uint64_t seed;
} ts_generate_options;

/** Context of an engine that is to continue \a n tokens by \a more: all of them, as far as data.sequence_length goes.
 * Not collective. */
int64_t ts_generate_context(const ts_deck *deck, int64_t n, int64_t more);

/** A text that is continued. */
typedef struct ts_continued {
  int32_t *token; /**< The caller's, with room for n + n_tokens ids; those that are made come behind the first n. */
  int64_t n;      /**< At least 1. */
  int64_t number; /**< Draws depend on the seed, this and the place in the text: not on the texts beside it. */
  int64_t made;   /**< How many were made so far, one that ends the text among them. */
  bool end;       /**< The last one does. */
} ts_continued;

/** Hears of every token that does not end its text, as it is made, where it is not NULL. */
typedef struct ts_listener {
  void (*hear)(int64_t text, int32_t token, void *user);
  void *user;
} ts_listener;

/** Texts that the ranks of the engine continue at a time: ranks that differ in TS_AXES_BATCH have different ones.
 * Not collective. */
int64_t ts_generate_room(const ts_engine *engine);

/** Continue \a n texts, at most as many as there is room for, each until one of model.stop_token_ids (or, without any,
 * model.eos_token_id) is made or it has options->n_tokens more.  Every rank gives the same texts and gets the same
 * tokens. Collective over the world. */
void ts_generate(ts_engine *engine, ts_continued *text, int64_t n, const ts_generate_options *options,
                 const ts_listener *listener);

#endif
