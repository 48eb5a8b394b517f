/** \file
 * Whose a directory is that several runs could write to.  RUN/run_id says who a run is, and DIRECTORY/run_id, a copy
 * of it, which run writes there:
 *
 *     run_id = ID "\n" PATH "\n"    32 hex digits of chance; RUN when that was written, from the root
 *
 * A run that is moved is the same run; one that is copied is another one as long as the first is where it was.  Nothing
 * here is collective.
 */
#ifndef IO_RUN_MARK_H
#define IO_RUN_MARK_H

#include "base/status.h"

#define TS_RUN_MARK "run_id"

typedef enum ts_run_mark {
  TS_MARK_NONE,  /**< No run has marked it. */
  TS_MARK_OURS,  /**< The run has. */
  TS_MARK_OTHERS /**< Another run has; also where that cannot be read. */
} ts_run_mark;

/** Whose is \a directory, from the view of the run in \a run?  Either may be absent.  Not collective.
 * \param [out] whose  NULL, or the directory of the run that marked it: the caller's (ts_free), "?" where it is not
 *                     known, NULL without a mark. */
ts_run_mark ts_run_mark_find(const char *directory, const char *run, char **whose);

/** Mark an existing \a directory as the run's, and the run itself where it has no mark yet.  Of two runs that do so at
 * the same time one succeeds.  Not collective.
 * \return TS_BAD_INPUT with "PATH: reason": it cannot be written, or it is another run's. */
ts_status ts_run_mark_make(const char *directory, const char *run, ts_error *err);

#endif
