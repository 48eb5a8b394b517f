/** \file
 * A trace of what ran when, as Chrome trace event JSON (open it in https://ui.perfetto.dev or chrome://tracing).  One
 * file per rank; the rank is the process of the trace, so the files of several ranks can be loaded together.  Not
 * thread-safe; nothing here is collective.
 *
 * The file is an object.  "traceEvents" has an event a line, each behind ",\n" of the one before: names (ph "M"), and
 * spans (ph "X") with name, cat, pid (the rank), tid (a ts_timeline_thread), ts and dur in microseconds, the spans of
 * messages also with "args": {"bytes": B, "ranks": G}.  "otherData", where the step was a run's, says what their times
 * are: ts counts from a moment that is the same for all ranks, on the clock of rank 0, and
 *
 *     "step": N              the step that was observed, from 1; it is slower than others
 *     "ranks": R             ranks of the run, each with a file of its own
 *     "clock_offset_us": D   so far this rank's clock was ahead of rank 0's, which has been subtracted,
 *     "clock_bound_us": E    give or take so much: where two ranks' events are closer than the sum of theirs, their
 *                            order is not known
 */
#ifndef IO_TIMELINE_H
#define IO_TIMELINE_H

#include "base/status.h"

#include <stdint.h>

/** The rows of a rank: the second argument of X is what the viewer calls them.  INSTANCES is a pipeline's: what its
 * stage does for which micro-batch. */
#define TS_TIMELINE_THREADS(X)      \
  X(COMPUTATION, "computation")     \
  X(COMMUNICATION, "communication") \
  X(INSTANCES, "instances")

typedef enum ts_timeline_thread {
#define X(name, text) TS_TIMELINE_##name,
  TS_TIMELINE_THREADS(X)
#undef X
      TS_N_TIMELINE_THREADS
} ts_timeline_thread;

typedef struct ts_timeline ts_timeline;

/** Of which step a timeline is, and by which clock; seconds. */
typedef struct ts_timeline_clock {
  int64_t step;
  int ranks;
  double offset, bound; /**< See otherData. */
} ts_timeline_clock;

/** Create the file; an older one is replaced.  Not collective.
 * \param [in]  rank   World rank; the caller chooses a path of its own for each.
 * \param [in]  stage  Of a pipeline, by which viewers sort ranks; -1: there is none.
 * \param [in]  clock  What otherData says; NULL: nothing, it is no run's.
 * \param [out] out    The caller's, end with ts_timeline_close; NULL on error.
 * \return TS_BAD_INPUT with "PATH: reason" when it cannot be created. */
ts_status ts_timeline_open(const char *path, int rank, int stage, const ts_timeline_clock *clock, ts_timeline **out,
                           ts_error *err);

/** Add a span.  Not collective.
 * \param [in] name      What ran (a node); UTF-8, copied.
 * \param [in] category  Its kind (an op), by which viewers filter; copied.
 * \param [in] thread    A ts_timeline_thread.
 * \param [in] start, seconds  Begin since any fixed moment, and duration; finite. */
void ts_timeline_event(ts_timeline *timeline, const char *name, const char *category, int thread, double start,
                       double seconds);

/** Add the span of a message or collective, in the row COMMUNICATION.  Not collective.
 * \param [in] bytes  Of the whole tensor that it is about (ts_program_whole_bytes).
 * \param [in] ranks  That take part. */
void ts_timeline_message(ts_timeline *timeline, const char *name, const char *category, double start, double seconds,
                         double bytes, int ranks);

/** Complete the file, which is valid JSON from here on, and free; NULL handles are allowed; sets the handle to NULL.  A
 * file that could not be written ends the job.  Not collective. */
void ts_timeline_close(ts_timeline **timeline);

#endif
