/** \file
 * The clock: what a step of the programs of a job takes on a machine that was measured (run/machine.h), found by
 * walking them with a clock for each queue.  Nothing is hidden by a factor: a collective begins when the last of its
 * group has come to it and what was handed over before is done, and the computation waits where its schedule says so.
 * None of these functions is collective.
 *
 * Ranks that differ in anything but their stage of a pipeline do the same at the same time, so a rank of each stage is
 * walked, for any number of them.
 */
#ifndef TS_RUN_CLOCK_H
#define TS_RUN_CLOCK_H

#include "run/machine.h"

/** Of what nodes of one op, or of one kind of collectives, came to in a step of a stage. */
typedef struct ts_clock_row {
  ts_op op;
  int calls;
  double busy;    /**< Seconds. */
  double exposed; /**< What the computation waited for them. */
} ts_clock_row;

typedef struct ts_clock_stage {
  double begin_of_update, end;   /**< When its last forward or backward, and its update, have ended. */
  double phase[TS_N_RUN_PHASES]; /**< Seconds of runs of each phase. */
  double computing;              /**< Of what is computed, stretched by messages beside it. */
  double busy;                   /**< Of forwards and backwards, without what they waited for. */
  double messages, exposed;      /**< Of collectives and what is sent, and what the computation waited for these. */
  double neighbours;             /**< What it waited for stages that had nothing to send yet. */
  double copies, waited;         /**< Of copies between memories and files, and what was waited for them. */
  double host;                   /**< Of what processors beside a device compute. */
  double known[TS_N_KNOWN];      /**< Of computing and messages, by how well they are known. */
  ts_clock_row row[TS_N_OPS];    /**< By op. */
} ts_clock_stage;

typedef struct ts_clock {
  double step;           /**< Seconds. */
  double bubble;         /**< Of a pipeline: the mean share of the time in which a stage does nothing. */
  ts_clock_stage *stage; /**< Owned. */
  int n;
} ts_clock;

/** Told of each node with its times, from the begin of the step, in the order of each stage. */
typedef void ts_clock_observer(void *user, int stage, const ts_node *node, bool collective, double start,
                               double seconds);

/** Walk a step.
 * \param [in] program   A rank's of each stage, in their order: those that are alike but for the stage.
 * \param [in] measured  By whose times.
 * \param [in] node      Ranks of a node, which are numbered node by node: whose messages leave it.
 * \param [in] observer  NULL for none.
 * \return false: the walk cannot go on, which ts_simulate_step explains; else \a clock is the caller's
 *         (ts_clock_clear). Not collective. */
bool ts_clock_step(const ts_program *const *program, int n, const ts_measured *measured, int node,
                   ts_clock_observer *observer, void *user, ts_clock *clock);

/** The stage that computes longest; borrowed. Not collective. */
const ts_clock_stage *ts_clock_busiest(const ts_clock *clock);

/** Free what it owns. Not collective. */
void ts_clock_clear(ts_clock *clock);

#endif
