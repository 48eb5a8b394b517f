/** \file
 * What a run says, kept in its directory for those who look later or from elsewhere (`tessera watch`): RUN/log.txt, a
 * line a message with the local time ahead of it, the lines of a longer message indented.  Warnings and errors begin
 * with "warning: " and "error: ".  A run that goes on appends.  Where the disk is full lines wait (io/rows.h): it never
 * ends a run.  It is rank 0's; only the last words of a process that fails (ts_die, a hang) are written by that
 * process, whichever rank it is.  Nothing here is collective.
 */
#ifndef TS_TRAIN_RUN_LOG_H
#define TS_TRAIN_RUN_LOG_H

#include <stdbool.h>

/** In a run's directory. */
#define TS_RUN_LOG "log.txt"

typedef struct ts_run_log ts_run_log;

/** From now on what this process says is kept, in memory until there is a file.
 * \return the caller's, end with ts_run_log_end; NULL where \a keeps is false. Not collective. */
ts_run_log *ts_run_log_begin(bool keeps);

/** Write to RUN/log.txt from now on, first what was kept so far.  Where that cannot be opened, that is said, and
 * nothing is kept any more.  NULL is allowed.
 * \param [in] over  True: what the file has is dropped. Not collective. */
void ts_run_log_open(ts_run_log *log, const char *run, bool over);

/** The run of this process has a log, now or soon: ts_run_log_last writes there.  Rank 0's is named by
 * ts_run_log_open until ts_run_log_end.
 * \param [in] run  NULL: none any more. Not collective. */
void ts_run_log_name(const char *run);

/** Append an error to the log that was named, if it is there, by one write.  For a process that fails: no lock is taken
 * and no memory, and nothing is said where it cannot be written.
 * \param [in] where    Ahead of the message; may be "".
 * \param [in] message  What is too long of it is cut. Not collective. */
void ts_run_log_last(const char *where, const char *message);

/** End, free and set to NULL; NULL is allowed.
 * \param [in] error  The last line, which the program is about to print; NULL for none. Not collective. */
void ts_run_log_end(ts_run_log **log, const char *error);

#endif
