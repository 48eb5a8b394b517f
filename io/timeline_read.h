/** \file
 * Timelines (io/timeline.h) read again: the spans of all ranks of an observed step.  Files are trusted in nothing: a
 * line that is no span, or longer than 64 KiB, is passed over.  Nothing here is collective.
 */
#ifndef IO_TIMELINE_READ_H
#define IO_TIMELINE_READ_H

#include "io/timeline.h"

typedef struct ts_span {
  int op;                /**< Of ts_trace.op: its category. */
  int rank;              /**< Of the trace's, 0 to n_ranks - 1. */
  int thread;            /**< A ts_timeline_thread. */
  double start, seconds; /**< From the trace's first span. */
  double bytes;          /**< Of a message, else 0; */
  int ranks;             /**< that take part. */
} ts_span;

/** All that was seen; zero is empty. */
typedef struct ts_trace {
  int n_ranks; /**< One more than the last rank whose file was read. */
  int n_read;  /**< Files that were read: fewer where one is not there, or of another step. */
  int n_ops;
  char **op; /**< Owned; names of kinds. */
  int64_t n;
  ts_span *span;  /**< Owned; in no order. */
  double seconds; /**< From the first begin to the last end. */
  int64_t step;   /**< That was observed; 0: the file does not say. */
  double bound;   /**< Largest bound of clocks' offsets, seconds. */
  int64_t n_left; /**< Files of ranks that were not read: more than the limit. */
} ts_trace;

/** Ranks and spans that are read at most. */
enum { TS_TRACE_RANKS = 256, TS_TRACE_SPANS = 4000000 };

/** Read PATH, and PATH.rank1, PATH.rank2, ... of the ranks that PATH says the run had, as far as they are of the same
 * step: an earlier run may have left some of the name.  Where PATH says no number they are read as far as they are
 * there.
 * \param [out] trace  The caller's, end with ts_trace_clear in any case; empty where PATH is no timeline.
 * \return TS_BAD_INPUT with "PATH: reason": it cannot be read, is no regular file or larger than 2 GiB.  Not
 * collective. */
ts_status ts_trace_read(const char *path, ts_trace *trace, ts_error *err);
void ts_trace_clear(ts_trace *trace);

#endif
