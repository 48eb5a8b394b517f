/** \file
 * What squeue says of a job, one field of it.  squeue is a process of its own that nobody waits for: a controller that
 * does not answer costs nothing but the answer.  Nothing here is collective.
 */
#ifndef TS_SLURM_SQUEUE_H
#define TS_SLURM_SQUEUE_H

#include <stdbool.h>

enum { TS_SQUEUE_ANSWER = 64 /**< Bytes of an answer with its end; a longer one is cut. */ };

/** Somebody who asks. */
typedef struct ts_squeue ts_squeue;

/** Ask for the field \a format ("%L", a constant) of job \a job; NULL (no Slurm) is allowed and is never answered.  End
 * with ts_squeue_destroy. Not collective. */
ts_squeue *ts_squeue_create(const char *job, const char *format);

/** Begin to ask unless an answer is awaited.  Does nothing where there is no squeue. Not collective. */
void ts_squeue_ask(ts_squeue *asker);

/** An answer is awaited. Not collective. */
bool ts_squeue_is_asked(const ts_squeue *asker);

/** Look whether an answer has come; never waits.  A question that is not answered within 30 s is given up. Not
 * collective.
 * \return its first line, without blanks before it, valid until the next question; NULL for none that was not told
 *         before. */
const char *ts_squeue_poll(ts_squeue *asker);

/** Give up, free, set to NULL; NULL is allowed. Not collective. */
void ts_squeue_destroy(ts_squeue **asker);

#endif
