/** \file
 * Lines for the user, and the clock.  By default only world rank 0 speaks; errors of the user's input are printed once
 * by whoever agreed on them; a clean run prints nothing on stderr.  Threads of a process may print beside each other.
 * Nothing here is collective.
 */
#ifndef TS_BASE_LOG_H
#define TS_BASE_LOG_H

#include "base/log_level.h"

#include <stdbool.h>

/** Print one line when \a level is enabled and this process is the one that speaks: INFO and DEBUG on stdout, WARNING
 * and ERROR on stderr.  A progress bar on the terminal is cleared first. Not collective. */
void ts_log(ts_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Print a text of lines likewise, which no keeper is given: it would push out what is of more interest. Not
 * collective. */
void ts_log_unkept(ts_log_level level, const char *text);

/** What keeps lines beside printing them: \a text has no newline at its end, and no prefix. */
typedef void ts_log_keeper(void *user, ts_log_level level, const char *text);

/** From now on lines of INFO and above that this process prints are given to \a keeper too, one at a time; NULL: to
 * nobody any more.  What a keeper says itself is printed and not kept. Not collective. */
void ts_log_keep(ts_log_keeper *keeper, void *user);

/** A world is joined: unless the program has said otherwise, warnings are printed from now on, by processes that are to
 * speak for some world. Not collective. */
void ts_log_join(bool speaks);

/** Replace the line at the bottom of a terminal (the progress bar); NULL removes it.  Does nothing unless
 * ts_log_is_terminal. Not collective. */
void ts_log_status_line(const char *line);

/** True when this process speaks and stdout is a terminal, or TESSERA_PROGRESS=bar says that it ends on one: a launcher
 * hands its ranks a pipe. Not collective. */
bool ts_log_is_terminal(void);

/** Seconds of the monotonic clock. Not collective. */
double ts_seconds(void);

#endif
