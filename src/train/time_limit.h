/** \file
 * When a run must stop so that its state is saved before the job's time is over.
 *
 *     needed = 2 x the save + 2 x the slowest of the last steps + the last validation + run.time_margin
 *
 * The save's time is that of the last one; before the first, what its bytes take at a modest rate.  It is decided once
 * a step, after it was computed: the run that begins with too little time left still makes one step and saves it, so a
 * job that is started again and again goes forward by a step each time.  Used by rank 0 alone; nothing here is
 * collective.
 */
#ifndef TS_TRAIN_TIME_LIMIT_H
#define TS_TRAIN_TIME_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

enum { TS_TIME_LIMIT_STEPS = 8 /**< Steps that are remembered. */ };

/** Zero-initialise.  Times are in seconds. */
typedef struct ts_time_limit {
  double margin;     /**< run.time_margin. */
  double save;       /**< Of the last save, or the guess for the first. */
  double validation; /**< Of the last one. */
  double step[TS_TIME_LIMIT_STEPS];
  int64_t n_steps;
} ts_time_limit;

/** The guess for a first save of \a bytes bytes. Not collective. */
double ts_time_limit_first_save(int64_t bytes);

/** A step took \a seconds. Not collective. */
void ts_time_limit_step(ts_time_limit *limit, double seconds);

/** What is kept for one more try of a last save that failed: 2 x the save + run.time_margin. Not collective. */
double ts_time_limit_last_save(const ts_time_limit *limit);

/** What stopping needs: see above. Not collective. */
double ts_time_limit_needed(const ts_time_limit *limit);

#endif
