/** \file
 * What the status files of a run come to (train/status_file.h): where it is, how fast, who holds it up.  For `tessera
 * status` and `tessera watch`.  Nothing here is collective.
 */
#ifndef TS_TRAIN_RUN_SUMMARY_H
#define TS_TRAIN_RUN_SUMMARY_H

#include "train/lag.h"
#include "train/status_file.h"

/** What a run is in, all together. */
typedef enum ts_run_state {
  TS_RUN_STARTING, /**< No node has said anything yet. */
  TS_RUN_RUNNING,
  TS_RUN_SUSPENDED,
  TS_RUN_SILENT, /**< Killed, or its machines are gone: nobody knows. */
  TS_RUN_FINISHED,
  TS_RUN_STOPPED, /**< Unfinished and saved. */
  TS_RUN_FAILED
} ts_run_state;

/** What all ranks together say. */
typedef struct ts_run_summary {
  ts_run_status status; /**< Owned; what was read. */
  ts_run_state state;
  int64_t step; /**< Finished by all. */
  double step_seconds, tokens_per_second, loss_scale;
  int64_t skipped;
  const ts_node_status *dead; /**< The node that tells of dead experts, NULL for none. */
  double oldest;              /**< Seconds since the heartbeat of the node that is silent for longest. */
  char *newest;               /**< Owned; name of the newest checkpoint, NULL for none. */
  char *suspended;            /**< Owned; how, NULL when it is not. */
  ts_lag lag;
  ts_text behind; /**< Who is behind, a line each and indented. */
} ts_run_summary;

/** Read RUN/status and the names of its checkpoints.  Of a run that is silent Slurm may be asked: up to 5 s.
 * \param [out] summary  The caller's, end with ts_run_summary_clear in any case.
 * \return TS_BAD_INPUT as ts_status_read. Not collective. */
ts_status ts_run_summary_read(const char *run, ts_run_summary *summary, ts_error *err);

/** One word or a few for the whole run, owned by the caller (ts_free). Not collective. */
char *ts_run_summary_describe(const ts_run_summary *summary);

/** Append "expert 3 of layer 1 and 4 more: no token for 100 steps"; nothing where none is dead. Not collective. */
void ts_run_summary_add_dead(const ts_run_summary *summary, ts_text *to);

/** Free and empty. Not collective. */
void ts_run_summary_clear(ts_run_summary *summary);

#endif
