/** \file
 * What functions that read a user's input return: a status, and messages.
 */
#ifndef TS_BASE_ERROR_H
#define TS_BASE_ERROR_H

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

#endif
