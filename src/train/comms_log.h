/** \file
 * comms_logger: DeepSpeed's table of what ranks send one another, by operation and size.
 *
 * Sizes are of the whole tensor (ts_program_whole_bytes), rates as nccl-tests has them (doc/PERFORMANCE.md) with the
 * ranks of the group: tput = size / time, busbw = tput x ts_bus_factor.  DeepSpeed's own table takes the ranks of the
 * world, its size of a gather is that of a shard times these, and its tput of an all_reduce is twice as large.  Mean
 * times and rates leave out a tenth at either end, as DeepSpeed's.  "straggler" is the mean of what this rank waited
 * for others: its time less the shortest of the group's for the same operation.  Of send and recv the time is what was
 * waited for, 0 where it had come or gone before; there is no rate and no straggler.  On GPUs recv alone is seen, as
 * no sender waits there.
 *
 * A node keeps at most KEPT of its times: when these are full every second goes, and only every second of those that
 * come is kept from then on.  Counts and totals are of all.
 */
#ifndef TS_TRAIN_COMMS_LOG_H
#define TS_TRAIN_COMMS_LOG_H

#include "run/program.h"
#include "train/observed_event.h"

struct ts_world;

/** The mean of those of \a n values that are left without \a share of them at either end, rounded to nearest (half to
 * even); 0 of none.  Sorts them. Not collective. */
double ts_trimmed_mean(double *value, int n, double share);

/** What happened alike; seconds, bytes, bits/s x 1e-9. */
typedef struct ts_comms_row {
  const char *operation; /**< DeepSpeed's name. */
  const char *node;      /**< With comms_logger.debug, borrowed from the program; else NULL. */
  double bytes;
  int ranks;
  int64_t count;
  double total, mean;
  double tput, busbw; /**< NAN: of a message. */
  double straggler;   /**< NAN: not known. */
} ts_comms_row;

typedef struct ts_comms_log ts_comms_log;

/** An empty log of what the deck wants to have counted; deck and program are borrowed.  End with
 * ts_comms_log_destroy. Not collective. */
ts_comms_log *ts_comms_log_create(const ts_deck *deck, const ts_program *program);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_comms_log_destroy(ts_comms_log **log);

/** Count what was seen in a step.
 * \param [in] told  0, or the number of the step: print a line for each. Not collective. */
void ts_comms_log_step(ts_comms_log *log, const ts_observed_event *event, int n, int64_t told);

/** Find out who waited for whom. Collective over the world, which has logged the same steps. */
void ts_comms_log_compare(ts_comms_log *log, struct ts_world *world);

/** The table, by operation and size.
 * \return \a n rows, the caller's (ts_free). Not collective. */
ts_comms_row *ts_comms_log_rows(const ts_comms_log *log, int *n);

/** Print it, and write it to a file: "operation,node,bytes,ranks,count,total_ms,mean_ms,tput_gbps,busbw_gbps,
 * straggler_ms", a line a row, names without commas or quotes, "nan" for what is not known.  A file that cannot be
 * written is a warning. Not collective. */
void ts_comms_log_print(const ts_comms_log *log, const char *path);

#endif
