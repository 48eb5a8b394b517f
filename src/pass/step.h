/** \file
 * The step as a list of runs: which segments run for which micro-batch, in which order.  The row of a schedule computes
 * run i of it; the executor and the simulator walk it, `tessera graph` prints the commands of its kinds of runs, and
 * times and messages take phase and title from them.
 *
 * A micro-batch is alive from its first run to its last one, and all its runs have the same slot: a copy of the memory
 * that keeps a micro-batch's values between its runs (pass/plan.h).  As many micro-batches are alive at a time as there
 * are slots.  Nothing here is collective.
 */
#ifndef TS_PASS_STEP_H
#define TS_PASS_STEP_H

#include "graph/graph.h"
#include "model/model.h"

/** What a run is timed as. */
typedef enum ts_run_phase { TS_RUN_FORWARD, TS_RUN_BACKWARD, TS_RUN_UPDATE, TS_N_RUN_PHASES } ts_run_phase;

/** A kind of runs: the instructions of some segments. */
typedef struct ts_run_kind {
  const char *name;  /**< "forward", "backward", "backward and reduce", "update". */
  const char *title; /**< "the forward pass of a step", ... */
  ts_run_phase phase;
  unsigned segments; /**< Mask of ts_segment. */
} ts_run_kind;

/** One run of a step. */
typedef struct ts_run {
  int kind;            /**< Of the step's. */
  int64_t micro_batch; /**< From 0; of an update the last one. */
  int slot;            /**< Of the micro-batch: where its inputs and what it keeps are. */
} ts_run;

typedef struct ts_step_runs ts_step_runs;
struct ts_step_runs {
  const ts_run_kind *kind; /**< Those that occur are among them. */
  int n_kinds;
  int n_slots;              /**< Micro-batches alive at a time, at most. */
  int64_t micro_batches, n; /**< Of one step; runs. */
  bool accumulates;         /**< It was made for several micro-batches. */
  bool by_hand;             /**< TRAIN: a program may run the kinds of ts_hand in an order of its own. */
  /** The schedule's: run i.  Forwards and backwards each come in the order of micro-batches: the first one's overwrite
   * what the others add to. */
  ts_run (*at)(const ts_step_runs *step, int64_t i);
  bool (*has)(const ts_step_runs *step, int kind); /**< The schedule's: are there runs of this kind? */
};

/** The step of a program: a value that owns nothing.
 * \param [in] micro_batches  Of TRAIN: gradient_accumulation_steps; of other uses 1.
 * \param [in] n_slots  At most so many micro-batches are alive; fewer when there are not as many. Not collective. */
ts_step_runs ts_step_of(ts_model_use use, int64_t micro_batches, int n_slots);

/** Can its number of micro-batches change?  One that was made for a single one lacks what adds gradients up. Not
 * collective. */
bool ts_step_accumulates(const ts_step_runs *step);

/** So many micro-batches from now on, of a step that accumulates; at least as many as there are slots. Not
 * collective. */
void ts_step_set_micro_batches(ts_step_runs *step, int64_t micro_batches);

/** What can be run by hand, in slot 0: FORWARD, then any number of BACKWARD, of which the last may be LAST_BACKWARD,
 * with the reductions of the step; or REDUCE, these alone; then UPDATE. */
typedef enum ts_hand {
  TS_HAND_FORWARD,
  TS_HAND_BACKWARD,
  TS_HAND_LAST_BACKWARD,
  TS_HAND_REDUCE,
  TS_HAND_UPDATE
} ts_hand;

/** The run of a TRAIN step that is by_hand. Not collective. */
ts_run ts_step_run_by_hand(ts_hand hand);

/** Run \a i of a step, 0 <= i < n. Not collective. */
ts_run ts_step_run(const ts_step_runs *step, int64_t i);

/** The kind of run \a i. Not collective. */
const ts_run_kind *ts_step_kind(const ts_step_runs *step, int64_t i);

#endif
