/** \file
 * The three classes of failure, and how each is expressed.
 *
 *  (a) A programmer's mistake: TS_ASSERT.  Compiled out with -DNDEBUG.
 *  (b) The machine failed (MPI, oneDNN, out of memory, a system call that cannot fail in a sane world): TS_CHECK and
 *      ts_die.  Always on; prints rank, host, place and reason, then ends the whole job.
 *  (c) The user's input is wrong (deck, data, checkpoint, command line): functions return a ts_status and describe the
 *      error in a ts_error.  Nothing is printed where it is found; the caller agrees with the other ranks and prints
 *      once.
 */
#ifndef TS_BASE_STATUS_H
#define TS_BASE_STATUS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/** Tell failure messages who speaks, and how to end the job.  Not collective.
 * \param [in] rank   World rank, -1 while unknown.
 * \param [in] host   What to call this process's node, copied; NULL: the machine's host name.
 * \param [in] abort  Called after the message is printed, with it, by any thread; must not return (MPI_Abort); NULL
 *                    means exit (1).
 */
void ts_set_failure_context(int rank, const char *host, void (*abort)(int exit_code, const char *reason));

/** Call \a note before ts_die ends the job, from the thread that fails; NULL for none.  It must not fail itself, nor
 * take a lock: the thread may hold any.
 * \param [in] note  Given the message, and where it comes from: "rank R on HOST: file:line: ". Not collective. */
void ts_set_failure_note(void (*note)(const char *where, const char *message));

/** Print "tessera: rank R on HOST: file:line: message" on stderr and end the job with exit code 1.  Not collective. */
void ts_die(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));

/** Class (b): \a condition must hold or the machine is broken.  Usage: TS_CHECK (ptr, "mmap of %zu bytes failed",
 * n). */
#define TS_CHECK(condition, ...)               \
  do {                                         \
    if (!(condition)) {                        \
      ts_die(__FILE__, __LINE__, __VA_ARGS__); \
    }                                          \
  } while (0)

/** Class (a). */
#ifdef NDEBUG
#define TS_ASSERT(condition) ((void) sizeof((condition) ? 1 : 0))
#else
#define TS_ASSERT(condition) TS_CHECK(condition, "assertion failed: %s", #condition)
#endif

#endif
