/** \file
 * Requests to stop: SIGTERM, SIGUSR1, or a file STOP in the run directory.  One rank that was asked is enough: the
 * request travels in the step's record (ts_engine_train_step), so that all ranks stop after the same step.  Nothing
 * here is collective.
 */
#ifndef TS_TRAIN_STOP_H
#define TS_TRAIN_STOP_H

#include <stdbool.h>

/** Note SIGTERM and SIGUSR1 from now to the end of the process instead of dying of them, however often they come: one
 * that comes after the last save must not change the exit code.  Forgets what came before.  The calling thread, and
 * those it makes from now on, block them: called before any thread that computes is made.  Not collective. */
void ts_stop_watch(void);

/** Forget what came until now, for ts_stop_terminated.  Not collective. */
void ts_stop_forget(void);

/** Has a SIGTERM come, since ts_stop_forget or ever?  Not collective. */
bool ts_stop_terminated(void);

/** Was this process asked to stop?  Not collective.
 * \param [in] directory  The run directory where a file STOP is looked for; NULL on ranks that do not look. */
bool ts_stop_requested(const char *directory);

/** Remove the file STOP, which has done its work.  Not collective. */
void ts_stop_acknowledge(const char *directory);

#endif
