/** \file
 * All that is known of a run from its directory, kept up to date by reading what is new: status files, metrics.csv,
 * validation.csv, moe.csv and log.txt.  Nothing here is collective.
 */
#ifndef TS_VIEW_FEED_H
#define TS_VIEW_FEED_H

#include "io/metrics.h"
#include "train/run_summary.h"
#include "view/series.h"
#include "view/table.h"
#include "view/tail.h"

enum {
  TS_FEED_RECENT = 100,  /**< Steps that means are of. */
  TS_FEED_MESSAGES = 200 /**< Kept at most. */
};

typedef struct ts_recent_step {
  double loss, seconds, tokens_per_second;
} ts_recent_step;

/** The last steps. */
typedef struct ts_recent {
  int64_t n; /**< In all; step i is at i modulo TS_FEED_RECENT. */
  ts_recent_step step[TS_FEED_RECENT];
} ts_recent;

/** What experts got in the newest step, over all layers. */
typedef struct ts_expert_loads {
  int64_t step;
  int layers;
  double largest; /**< Of the busiest expert, over the mean. */
  int64_t idle;   /**< Without a token, of all layers. */
  double dropped; /**< Mean over layers of the share that no expert had room for. */
} ts_expert_loads;

typedef struct ts_run_feed {
  const char *run;
  ts_run_summary summary; /**< As it was read last. */
  double looked, aged;    /**< When, and up to when its ages count. */
  ts_tail metrics_file, validation_file, experts_file, log_file;
  ts_table curve_table, metrics_table, validation_table, experts_table;
  char *last_line;     /**< Owned; the newest row of metrics.csv, of which all columns count. */
  int64_t rows;        /**< Of metrics.csv. */
  int64_t first;       /**< Step of the first of them. */
  int64_t damaged;     /**< Lines of the tables that are no rows. */
  int64_t restarts;    /**< How often metrics.csv was found changed and read anew. */
  int64_t bytes;       /**< Read of metrics.csv by the last ts_run_feed_read. */
  ts_metrics_row last; /**< Blank (ts_table_blank) where there is no column. */
  ts_recent recent;
  ts_series loss, speed, validation;
  int64_t validations;
  ts_validation_row validated; /**< The newest. */
  double lowest;               /**< Validation loss. */
  ts_expert_loads experts;
  char *message[TS_FEED_MESSAGES]; /**< Owned; message i is at i modulo their number; hostile as all that is read. */
  int64_t messages;                /**< In all. */
} ts_run_feed;

/** Begin; nothing but the status is read yet.  End with ts_run_feed_close in any case.
 * \param [in] run  Borrowed.
 * \return TS_BAD_INPUT as ts_run_summary_read: there is no such run. Not collective. */
ts_status ts_run_feed_open(const char *run, ts_run_feed *feed, ts_error *err);

/** Read what is new; of long files some megabytes.  A status that cannot be read for once stays as it was, and of a run
 * that says nothing it is asked rarely, as Slurm may be asked too.
 * \return true: there is more to read at once. Not collective. */
bool ts_run_feed_read(ts_run_feed *feed);

/** The step that is known to be finished, by rows or by status. Not collective. */
int64_t ts_run_feed_step(const ts_run_feed *feed);

/** Means of the last steps, times and speed of those that were not observed; NAN without any. Not collective. */
double ts_run_feed_mean_loss(const ts_run_feed *feed);
double ts_run_feed_mean_seconds(const ts_run_feed *feed);
double ts_run_feed_mean_speed(const ts_run_feed *feed);

/** Seconds that the steps to come will take; NAN: unknown. Not collective. */
double ts_run_feed_time_left(const ts_run_feed *feed);

/** Has the run ended, or said that it failed? Not collective. */
bool ts_run_feed_is_over(const ts_run_feed *feed);

/** Free what it has; nothing where that is done. Not collective. */
void ts_run_feed_close(ts_run_feed *feed);

#endif
