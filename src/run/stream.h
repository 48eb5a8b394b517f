/** \file
 * A stream: a host thread and a queue of calls, for collectives that run beside the computation.
 *
 * Calls run one after another in the order of issue.  On a stream without a thread each runs inside its issue, so the
 * same program works without overlap.  One thread issues and waits; nothing is allocated after creation.  An idle
 * thread sleeps.  Signals are left to the other threads of the process.
 */
#ifndef TS_RUN_STREAM_H
#define TS_RUN_STREAM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ts_stream ts_stream;

/** \param [in] threaded  False: calls run when they are issued. Not collective. */
ts_stream *ts_stream_create(bool threaded);

/** Finish all calls, free, set to NULL; NULL is allowed. Not collective, but waits for calls that may be. */
void ts_stream_destroy(ts_stream **stream);

/** Queue a call; blocks while the queue is full (256 calls).
 * \param [in] fn   Called once with \a arg, which must live until then.
 * \return a ticket for ts_stream_wait: 1, 2, 3, ... Not collective, but the order of calls is that of the stream. */
uint64_t ts_stream_issue(ts_stream *stream, void (*fn)(void *), void *arg);

/** Wait until the call of \a ticket, and so all before it, is done; what it wrote is then visible.
 * \return Seconds the caller was held up since the last wait: by this wait, by issues into a full queue, and, without a
 * thread, by the calls themselves. Not collective, but waits for calls that may be. */
double ts_stream_wait(ts_stream *stream, uint64_t ticket);

/** Seconds spent inside calls since creation, of the calls that are done. Not collective. */
double ts_stream_busy_seconds(ts_stream *stream);

#endif
