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

#include <stdbool.h>
#include <stddef.h>

/** Result of a function that reads the user's input. */
typedef enum ts_status {
  TS_OK = 0,
  TS_BAD_INPUT = 2 /**< Also the exit code of every program on wrong input. */
} ts_status;

/** Exit code of a run that stopped before its last step but saved its state. */
#define TS_EXIT_UNFINISHED 75

/** A list of messages for the user, one per line.  Zero-initialise (`ts_error err = {0};`), end with ts_error_clear. */
typedef struct ts_error {
  int count;  /**< Messages so far; 0 means no error. */
  char *text; /**< Owned; the messages joined by newlines, without a final one; NULL while count is 0. */
} ts_error;

/** Append one message.  Not collective.
 * \param [in,out] err  May be NULL: the message is dropped, the status is the same.
 * \return TS_BAD_INPUT always, so that callers can write `return ts_error_add (err, ...)`.
 */
ts_status ts_error_add(ts_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Free the messages and set the count to 0.  Not collective; NULL is allowed. */
void ts_error_clear(ts_error *err);

/** Tell failure messages who speaks, and how to end the job.  Not collective.
 * \param [in] rank   World rank, -1 while unknown.
 * \param [in] host   What to call this process's node, copied; NULL: the machine's host name.
 * \param [in] abort  Called after the message is printed, with it, by any thread; must not return (MPI_Abort); NULL
 *                    means exit (1).
 */
void ts_set_failure_context(int rank, const char *host, void (*abort)(int exit_code, const char *reason));

/** Call \a note with the message of ts_die before the job is ended, from the thread that fails; NULL for none.  It must
 * not fail itself. Not collective. */
void ts_set_failure_note(void (*note)(const char *message));

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
