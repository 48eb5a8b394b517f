/** \file
 * A training run: data in, steps, validation, metrics, progress.  Used by `tessera train` and `tessera eval`.
 */
#ifndef TS_TRAIN_TRAIN_H
#define TS_TRAIN_TRAIN_H

#include "engine/generate.h"
#include "engine/workings.h"
#include "io/data.h"
#include "train/words.h"

typedef struct ts_train_options {
  const char *prompt;  /**< Generate from it after the last step; NULL for no text. */
  int64_t n_generate;  /**< Tokens to generate. */
  const char *resume;  /**< "never", "auto" or a directory (train/resume.h). */
  const char *weights; /**< A run or checkpoint to begin a new run from; NULL for the deck's weights. */
} ts_train_options;

/** Run the deck from its first step, or the one after the checkpoint it is resumed from, to its last, and write
 * metrics.csv, validation.csv, moe.csv, deck.cfg, checkpoints and loss.svg into its run directory.  The deck's batch is
 * resolved here, as that of a new run (ts_deck_resolve_batch) or of the run that goes on (ts_deck_keep_batch).
 * SIGTERM, SIGUSR1 or a file STOP in the run directory end it early, saved.  Collective over the world.
 * \return the exit code: 0 finished, TS_EXIT_UNFINISHED stopped early and saved, 2 (agreed, in \a err) the input is
 *         wrong, and nothing is written, or nothing could be saved for run.save_timeout; 1 the run had to stop. */
int ts_train(ts_world *world, ts_deck *deck, const ts_train_options *options, ts_error *err);

/** Open the deck's data set; texts are made into tokens first (train/texts.h).  Collective over the world.
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

/** Print a prompt and, as it is made, how the engine continues it.
 * \param [in] words  Read on rank 0.
 * \param [in] ids    The prompt's tokens.
 * Collective over the world. */
void ts_speak(ts_engine *engine, ts_words *words, const char *prompt, const ts_ids *ids,
              const ts_generate_options *options);

#endif
