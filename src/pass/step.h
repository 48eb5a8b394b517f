/** \file
 * The step as a table: which segments run for which micro-batch, in which order.  One list, made by the row of a
 * schedule; the executor and the simulator walk it, `tessera graph` prints its commands, and times and messages take
 * their names from it.  Nothing here is collective.
 */
#ifndef TS_PASS_STEP_H
#define TS_PASS_STEP_H

#include "graph/graph.h"
#include "model/model.h"

/** What a run is told and timed as. */
typedef enum ts_run_phase { TS_RUN_FORWARD, TS_RUN_BACKWARD, TS_RUN_UPDATE, TS_N_RUN_PHASES } ts_run_phase;

/** The instructions of some segments, for one micro-batch. */
typedef struct ts_run {
  const char *name; /**< Constant: "forward", "backward", "backward and reduce", "update". */
  ts_run_phase phase;
  unsigned segments; /**< Mask of ts_segment. */
  int slot;          /**< Which of the step's slots holds the micro-batch. */
  int micro_batch;   /**< From 0; of an update the last one. */
} ts_run;

typedef struct ts_step {
  ts_run *run; /**< Owned. */
  int n;
  int n_slots;       /**< Micro-batches that are alive at once. */
  int micro_batches; /**< Of one step. */
} ts_step;

/** The step of a program.
 * \param [in] micro_batches  Of TRAIN: gradient_accumulation_steps; of other uses 1.
 * \return the caller's, end with ts_step_destroy. Not collective. */
ts_step *ts_step_create(ts_model_use use, int micro_batches);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_step_destroy(ts_step **step);

/** True when run \a i is the first with its segments and slot: what a recording can be made of. Not collective. */
bool ts_step_is_new(const ts_step *step, int i);

#endif
