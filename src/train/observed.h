/** \file
 * The observed step: one of a run of which every node is seen, with its times, and what is made of that:
 *
 *     profile.timeline   a trace of each rank, all on the clock of rank 0 (io/timeline.h); the third step of the job
 *     flops_profiler     FLOPs and times by module (train/flops_report.h); the step behind profile_step
 *     comms_logger       a table of messages (train/comms_log.h); see below
 *
 * An observed step is slower than others: its nodes are timed one by one, and on a GPU it is queued command by command,
 * where others are replayed.  So whoever keeps numbers of steps asks ts_observed_is_on.  What is seen is only noted
 * while the step runs; files are written when it is over, outside its time.
 *
 * comms_logger wants many messages for at most a hundredth of the time.  On processors it sees those of all steps, and
 * nothing else is timed (ts_executor_observe_messages): two readings of the clock a message, 0.1 us of some 5 at least,
 * so these are steps like others.  On GPUs it sees one step of TS_OBSERVED_EVERY, the third of them first, which is
 * observed, and any that is for another reason.
 *
 * The clocks of ranks are compared right before the step (ts_world_clock_offset), by round trips.
 */
#ifndef TS_TRAIN_OBSERVED_H
#define TS_TRAIN_OBSERVED_H

#include "engine/workings.h"

/** Of so many steps comms_logger looks at one, where looking costs time: one that took three times as long would cost
 * the run a hundredth. */
#define TS_OBSERVED_EVERY 200

typedef struct ts_observed ts_observed;

/** Find out which steps of a job are observed; an engine that trains, and a deck, borrowed.  End with
 * ts_observed_destroy.
 * \param [in] done, steps  Steps done when the job begins, and when it ends. Not collective. */
ts_observed *ts_observed_create(ts_world *world, const ts_deck *deck, ts_engine *engine, int64_t done, int64_t steps);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_observed_destroy(ts_observed **observed);

/** The next step begins: where it is observed, compare clocks, open files, and look. Collective over the world.
 * \param [in] done  Steps done; the same on all ranks.
 * \return TS_BAD_INPUT, agreed: a file cannot be written. */
ts_status ts_observed_begin(ts_observed *observed, int64_t done, ts_error *err);

/** The step is over: look no more, and write what it came to.
 * \param [in] result  Of this step. Not collective. */
void ts_observed_end(ts_observed *observed, const ts_step_result *result);

/** The run is over: print what all steps came to. Collective over the world. */
void ts_observed_finish(ts_observed *observed);

/** True from ts_observed_begin to the next one: this step is observed, or the last one was, and its times are not
 * those of others. Not collective; the same on all ranks. */
bool ts_observed_is_on(const ts_observed *observed);

#endif
