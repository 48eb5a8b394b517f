/** \file
 * An engine and a checkpoint: what it would save, and taking its state from one.
 */
#ifndef TS_ENGINE_CHECKPOINT_H
#define TS_ENGINE_CHECKPOINT_H

#include "engine/workings.h"
#include "io/checkpoint.h"

/** The tables of a checkpoint of this engine: layout, deck, where the weights came from, and facts of this job (ranks,
 * stage, device, libraries).  The numbers are zero.  Collective over the world.
 * \return the caller's, end with ts_checkpoint_destroy. */
ts_checkpoint *ts_engine_describe(ts_engine *engine);

/** What is taken from a checkpoint beside the parameters; a mask. */
typedef enum ts_load {
  TS_LOAD_WEIGHTS = 0,   /**< Nothing: what is not loaded stays as it is. */
  TS_LOAD_OPTIMIZER = 1, /**< States of the optimizer, the number of its updates, the loss scale. */
  TS_LOAD_SCHEDULE = 2,  /**< The place in the lr schedule. */
  TS_LOAD_COUNTS = 4,    /**< Steps done. */
  TS_LOAD_ALL = 7        /**< Everything: the run goes on. */
} ts_load;

/** Read manifest and index of a checkpoint and check size and hash of every file, the ranks sharing the work.
 * Collective over the world.
 * \param [in]  directory   A checkpoint, not a run.
 * \param [out] checkpoint  The index as rank 0 read it, the caller's (ts_checkpoint_destroy); NULL on error.
 * \return TS_BAD_INPUT, agreed: damage, with file and reason. */
ts_status ts_checkpoint_check(ts_world *world, const char *directory, ts_checkpoint **checkpoint, ts_error *err);

/** Take the state from a checkpoint that was checked: each rank reads what it owns from whatever shards it lies in;
 * what is kept whole is gathered.  Collective over the world.
 * \return TS_BAD_INPUT, agreed: another model (the first tensor that differs), a state that is not there; the engine's
 *         state is undefined then. */
ts_status ts_engine_load(ts_engine *engine, const char *directory, const ts_checkpoint *checkpoint, ts_load what,
                         ts_error *err);

/** Locate (\a path is a run, a checkpoint or a Hugging Face directory), check and load the weights.  Collective over
 * the world.
 * \param [out] deck  NULL, or the text of the checkpoint's deck, the caller's (ts_free); NULL of a Hugging Face
 *                    directory, and on error. */
ts_status ts_engine_load_weights(ts_engine *engine, const char *path, char **deck, ts_error *err);

/** Append a line per fact that differs between the checkpoint and this engine ("ranks: 4, now 2").  Not collective.
 * \return true when none does: with the same deck the run goes on bit for bit. */
bool ts_checkpoint_differences(const ts_checkpoint *checkpoint, const ts_engine *engine, ts_text *to);

#endif
