/** \file
 * How long Slurm lets this job run.
 *
 * SLURM_JOB_END_TIME says it where Slurm is new enough; `squeue -o %L` says it everywhere, and knows of a limit that
 * was changed since (slurm/squeue.h).  Nothing here is collective: one rank of a job asks.
 */
#ifndef TS_SLURM_TIME_LEFT_H
#define TS_SLURM_TIME_LEFT_H

#include <stdbool.h>

/** What squeue's %L says: "4:32", "1:04:32", "2-01:04:32" in seconds, UNLIMITED as INFINITY.  Not collective.
 * \return false, and nothing stored, for NOT_SET, INVALID and all else. */
bool ts_time_left_parse(const char *text, double *seconds);

/** Somebody who asks. */
typedef struct ts_time_left ts_time_left;

/** Ask of job \a job; NULL (no Slurm) is allowed and is never answered.  End with ts_time_left_destroy. Not collective.
 */
ts_time_left *ts_time_left_create(const char *job);

/** Begin to ask unless an answer is awaited.  Does nothing where there is no squeue. Not collective. */
void ts_time_left_ask(ts_time_left *asker);

/** Look whether an answer has come; never waits.  A question that is not answered within 30 s is given up. Not
 * collective.
 * \param [out] seconds  From now to the job's end; INFINITY for no limit.
 * \return true when there is an answer that was not told before. */
bool ts_time_left_poll(ts_time_left *asker, double *seconds);

/** Give up, free, set to NULL; NULL is allowed. Not collective. */
void ts_time_left_destroy(ts_time_left **asker);

#endif
