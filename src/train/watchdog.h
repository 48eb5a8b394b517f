/** \file
 * A thread of every rank that keeps the run's status files (train/status_file.h) and ends a run that hangs.
 *
 * It never calls MPI and never waits for the threads that train.  Every second or so it says that its process gets to
 * run; on one rank of each node it writes RUN/status/NODE every few seconds: the lowest one that gets to run, so that a
 * node whose first rank is stopped still speaks.  On rank 0 it also asks Slurm for the time that is left
 * (slurm/time_left.h).
 *
 * What is taken for a hang, on this rank's own clock, with the deck's limits until ts_watch_limit gives others:
 *
 *     phase                         for longer than          since
 *     forward/backward, update      run.step_timeout         the step began
 *     the same, first step of a     run.first_step_timeout   the program began: loading is part of it
 *       job; starting, loading
 *     saving, validating, ending,   run.first_step_timeout   the last change of this rank's record
 *       preparing
 *
 * so a save that is waited for and a validation are no part of a step, and neither is the time in which this process
 * was stopped (`scontrol suspend`, SIGSTOP): limits begin again where it goes on.
 *
 * All ranks wait for the one that hangs, so all find it; the first rank speaks, others only where it does not (one
 * creates RUN/status/\@failed, the rest keep silent).  It waits two periods for the other nodes to write, prints who is
 * behind and which collective it did not reach (train/lag.h), and ends the job; where MPI cannot be made to end it,
 * the process dies by SIGALRM.
 */
#ifndef TS_TRAIN_WATCHDOG_H
#define TS_TRAIN_WATCHDOG_H

#include "comm/comm.h"
#include "deck/deck.h"
#include "engine/timeouts.h"
#include "train/expert_watch.h"

typedef struct ts_watch ts_watch;

/** Begin to watch this rank, whose heartbeat (base/heartbeat.h) is from now on in memory of its node; nothing is
 * written.
 * \param [in] deck  Borrowed. Collective over the world. */
ts_watch *ts_watch_create(ts_world *world, const ts_deck *deck);

/** The run directory is this job's: clear RUN/status and write there from now on.
 * \param [in] first_step  Of this job; steps are counted from 1.
 * \param [in] steps       Of the whole run. Collective over the world. */
void ts_watch_publish(ts_watch *watch, int64_t first_step, int64_t steps);

/** Watch by these limits from now on. Not collective. */
void ts_watch_limit(ts_watch *watch, const ts_timeouts *timeouts);

/** Rank 0 tells how fast the run is, after each step. Not collective. */
void ts_watch_speed(ts_watch *watch, double step_seconds, double tokens_per_second);

/** Likewise how many steps were skipped so far, and the loss scale of the next one; 0: there is none. Not
 * collective. */
void ts_watch_scale(ts_watch *watch, int64_t skipped, double loss_scale);

/** Likewise which experts got no token for long. Not collective. */
void ts_watch_experts(ts_watch *watch, const ts_dead_experts *dead);

/** Seconds until the time given to this job is over: run.time_limit, or else what Slurm said last; INFINITY for no
 * limit or none that is known, and on all ranks but rank 0.  May be negative. Not collective. */
double ts_watch_time_left(const ts_watch *watch);

/** Stop watching, and write how the run ended.
 * \param [in,out] watch  Set to NULL; NULL is allowed.
 * \param [in] state   "finished", "stopped" or "failed".
 * \param [in] reason  One line, or NULL. Collective over the world. */
void ts_watch_destroy(ts_watch **watch, const char *state, int64_t step, const char *reason);

#endif
