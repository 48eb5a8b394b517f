/** \file
 * What a user sees while training: a bar at the bottom of a terminal, plain lines elsewhere.  Speaks through base/log,
 * so only the rank that speaks prints.  Nothing here is collective.
 */
#ifndef TS_TRAIN_PROGRESS_H
#define TS_TRAIN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ts_progress {
  int64_t first, steps, log_every; /**< Steps done when it began, and when it ends. */
  double begin;                    /**< Seconds of the clock. */
  double shown;                    /**< When the bar was last drawn. */
} ts_progress;

/** Start the clock at \a first steps of \a steps.
 * \param [in] log_every  Steps between plain lines; 0: about twenty in all. Not collective. */
void ts_progress_begin(ts_progress *progress, int64_t first, int64_t steps, int64_t log_every);

/** True when a plain line is printed after \a done steps. Not collective. */
bool ts_progress_is_shown(const ts_progress *progress, int64_t done);

/** \a done steps are done.
 * \param [in] loss_scale  0: there is none. Not collective. */
void ts_progress_step(ts_progress *progress, int64_t done, double loss, double lr, double loss_scale,
                      double tokens_per_second);

/** \a done of \a all bytes are done; the clock is that of ts_progress_begin.  On a terminal alone. Not collective. */
void ts_progress_bytes(ts_progress *progress, const char *what, int64_t done, int64_t all);

/** Remove the bar. Not collective. */
void ts_progress_end(ts_progress *progress);

#endif
