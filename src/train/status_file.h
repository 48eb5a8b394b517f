/** \file
 * What a run says of itself while it runs, as text in RUN/status, for `tessera status` and for the watchdogs of its
 * ranks:
 *
 *     RUN/status/@run     the job: written when it begins and when it ends, by rank 0
 *     RUN/status/@failed  why a rank ended the job: the first one that did
 *     RUN/status/NODE     what the ranks of a node are doing: written every few seconds by one of them
 *
 * A node's file is overwritten in place and never shrinks, so that a full disk does not stop it; its second line and
 * the last but empty ones carry the number of the writing, and a reader that finds two different ones reads again.
 *
 * The line of a rank ends with its groups, that of the collective entered last first, and how many collectives of each
 * it has entered (base/heartbeat.h).  A line without them, as older programs wrote, counts all in the group of all.
 *
 * Readers trust nothing: a file is a plain file of bounded size, every number is checked, what is no such text is
 * damaged.
 *
 * Ages.  What a rank said is dated by its node's monotonic clock at the writing; a file is dated by the file system's
 * time of modification, compared with what the file system says now.  Clocks of two nodes are never compared.
 *
 * Nothing here is collective.
 */
#ifndef TS_TRAIN_STATUS_FILE_H
#define TS_TRAIN_STATUS_FILE_H

#include "base/heartbeat.h"
#include "base/status.h"
#include "base/text.h"

/** The job. */
typedef struct ts_job_status {
  char id[40];       /**< Of this start of the run: files of nodes with another one are left from an earlier start. */
  char state[16];    /**< "running", "finished", "stopped" (unfinished and saved) or "failed". */
  char job[64];      /**< Slurm's number; "-" for none. */
  char launcher[64]; /**< "srun --mpi=pmix", ...; "hand" without one. */
  char reason[512];  /**< One line, why it ended so; "" for none. */
  int64_t restart;   /**< How often Slurm started this job again. */
  int64_t ranks, nodes;
  int64_t step, steps; /**< Finished when it was written, and to do. */
  double began, ended; /**< Seconds since 1970 on rank 0's clock; ended is 0 while it runs. */
  double period;       /**< Seconds between two writings of a node. */
} ts_job_status;

/** A node. */
typedef struct ts_node_status {
  char node[80];
  char id[40];         /**< Of the job. */
  uint64_t number;     /**< Of the writing, from 1. */
  double step_seconds; /**< Of the last step, as rank 0 saw it; 0 on other nodes. */
  double tokens_per_second;
  int64_t skipped;      /**< Steps without an update since the run began, likewise. */
  double loss_scale;    /**< Of the next step, likewise; 0 without loss scaling. */
  int64_t dead_experts; /**< That got no token for long, likewise; the first of them by name: */
  int64_t dead_layer, dead_expert;
  int n;
  ts_beat *beat; /**< Owned; ranks ascend. */
  char *process; /**< Owned; of each rank's process: ts_status_process. */
  double age;    /**< Seconds since it was written. */
} ts_node_status;

/** All that a run says. */
typedef struct ts_run_status {
  ts_job_status job;
  char *failed; /**< Owned; the text of \@failed, NULL for none. */
  int n_nodes;
  ts_node_status *node; /**< Owned; by their lowest rank. */
  int n_damaged;        /**< Files that are no such text. */
  char damaged[80];     /**< Name of one of them. */
  int n_older;          /**< Files of an earlier start. */
} ts_run_status;

/** "RUN/status" and "RUN/status/NAME" (what could lead elsewhere is replaced); owned by the caller (ts_free).
 * Not collective. */
char *ts_status_directory(const char *run);
char *ts_status_path(const char *run, const char *name);

/** What a process of this machine does: R, S, D, T (stopped), Z as in /proc, X: gone, ?: unknown, or no number of this
 * machine's (a container has its own). Not collective. */
char ts_status_process(int64_t pid);

/** The text of a node's file, filled up with empty lines to \a bytes bytes, and its reverse; the most bytes that the
 * text of
 * \a n ranks takes.
 * \return TS_BAD_INPUT: not such a text.  End with ts_node_status_clear in any case. Not collective. */
size_t ts_status_node_bytes(int n);
void ts_status_print_node(const ts_node_status *node, size_t bytes, ts_text *to);
ts_status ts_status_parse_node(const char *text, size_t length, ts_node_status *node);
void ts_node_status_clear(ts_node_status *node);

/** The same of the job. Not collective. */
void ts_status_print_job(const ts_job_status *job, ts_text *to);
ts_status ts_status_parse_job(const char *text, size_t length, ts_job_status *job);

/** Read RUN/status: the job and all nodes of it. End with ts_run_status_clear in any case. Not collective.
 * \return TS_BAD_INPUT: there is no such run, or it says nothing, or \@run is damaged; the message begins with the
 *         path. */
ts_status ts_status_read(const char *run, ts_run_status *status, ts_error *err);
void ts_run_status_clear(ts_run_status *status);

#endif
