/** \file
 * A training run: data in, steps, validation, metrics, progress.  Used by `tessera train` and `tessera eval`.
 */
#ifndef TS_ENGINE_TRAIN_H
#define TS_ENGINE_TRAIN_H

#include "engine/words.h"
#include "engine/workings.h"
#include "io/data.h"

typedef struct ts_train_options {
  const char *prompt;  /**< Generate from it after the last step; NULL for no text. */
  int64_t n_generate;  /**< Tokens to generate. */
  const char *resume;  /**< "never", "auto" or a directory (engine/resume.h). */
  const char *weights; /**< A run or checkpoint to begin a new run from; NULL for the deck's weights. */
} ts_train_options;

/** How to continue text. */
typedef struct ts_generate_options {
  int64_t n_tokens;
  double temperature; /**< 0: always the most likely token. */
  int64_t top_k;      /**< 0: all. */
  uint64_t seed;
} ts_generate_options;

/** Run the deck from its first step, or the one after the checkpoint it is resumed from, to its last, and write
 * metrics.csv, validation.csv, deck.cfg, checkpoints and loss.svg into its run directory.  The deck's batch is resolved
 * here, as that of a new run (ts_deck_resolve_batch) or of the run that goes on (ts_deck_keep_batch).
 * SIGTERM, SIGUSR1 or a file STOP in the run directory end it early, saved.  Collective over the world.
 * \return the exit code: 0 finished, TS_EXIT_UNFINISHED stopped early and saved, 2 (agreed, in \a err) the input is
 *         wrong, and nothing is written, or nothing could be saved for run.save_timeout; 1 the run had to stop. */
int ts_train(ts_world *world, ts_deck *deck, const ts_train_options *options, ts_error *err);

/** Open the deck's data set; texts are made into tokens first (engine/texts.h).  Collective over the world.
 * \return TS_BAD_INPUT, agreed; *data is NULL on the ranks that found something wrong. */
ts_status ts_data_open_deck(ts_world *world, const ts_deck *deck, ts_data **data, ts_error *err);

/** Say that a problem is about a file of the deck's data: its key and where it was set go before.
 * \param [in] file  As ts_data_options counts them: of the sources (0: data.path), and after these validation_path.
 * \return TS_BAD_INPUT. Not collective. */
ts_status ts_data_blame(const ts_deck *deck, int file, const char *problem, ts_error *err);

/** ts_data_read, whose errors name the deck's key and where it was set. Not collective. */
ts_status ts_data_read_deck(const ts_deck *deck, ts_data *data, ts_split split, int64_t position, ts_batch *batch,
                            int64_t i, ts_error *err);

/** Mean loss over the validation split (at most run.evaluate_batches global micro-batches when that is positive).
 * \param [out] n_batches  Global micro-batches used; may be NULL.
 * Collective over the world.
 * \return TS_BAD_INPUT, agreed, when a token is outside the vocabulary, there is no validation data, or nothing in it
 *         has a label. */
ts_status ts_validate(ts_engine *engine, ts_world *world, const ts_deck *deck, ts_data *data, double *loss,
                      int64_t *n_batches, ts_error *err);

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

/** Print a prompt and, as it is made, how the engine continues it.
 * \param [in] words  Read on rank 0.
 * \param [in] ids    The prompt's tokens.
 * Collective over the world. */
void ts_speak(ts_engine *engine, ts_words *words, const char *prompt, const ts_ids *ids,
              const ts_generate_options *options);

#endif
