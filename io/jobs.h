/** \file
 * The jobs of a run: RUN/jobs.jsonl, a JSON object a line for each start of it.  A job that goes on from a checkpoint
 * adds its line; what readers divide by (parameters, FLOPs, ranks) is that of the job a step belongs to: the last one
 * that began before it.  Nothing here is collective: one rank writes.
 */
#ifndef IO_JOBS_H
#define IO_JOBS_H

#include "base/status.h"

#include <stdint.h>

/** TEXT, INTEGER, REAL (name): the members of a line. */
#define TS_JOB_MEMBERS(TEXT, INTEGER, REAL)                                                                           \
  INTEGER(step)    /* it begins behind this one */                                                                    \
  REAL(began)      /* seconds since 1970 */                                                                           \
  TEXT(job)        /* Slurm's number; empty for none */                                                               \
  INTEGER(restart) /* how often Slurm began this job again */                                                         \
  TEXT(launcher)                                                                                                      \
  TEXT(version)                                                                                                       \
  INTEGER(ranks)                                                                                                      \
  INTEGER(nodes)                                                                                                      \
  INTEGER(threads) /* of a rank */                                                                                    \
  TEXT(device)     /* what a rank computes on */                                                                      \
  TEXT(grid)       /* "dp 4, tp 2" */                                                                                 \
  INTEGER(stage)   /* of ZeRO */                                                                                      \
  TEXT(types)      /* of products, masters, sums */                                                                   \
  TEXT(model)      /* its family */                                                                                   \
  REAL(parameters)                                                                                                    \
  REAL(active)             /* of them what a token meets, where there are experts */                                  \
  INTEGER(steps)           /* of the whole run */                                                                     \
  INTEGER(tokens_per_step) /* over all ranks */                                                                       \
  REAL(flops)              /* of a step, over all ranks, with the causal half of attention: 6 N + 6 L C T a token; */ \
  REAL(flops_full)         /* with all of it, 6 N + 12 L C T */                                                       \
  REAL(peak_flops)         /* FLOP/s of large products, over all ranks; 0: not known */                               \
  INTEGER(planned_bytes)   /* of the rank that needs most */                                                          \
  TEXT(timeline)           /* profile.timeline, an absolute path; empty: none */                                      \
  TEXT(flops_report)       /* flops_profiler.output_file, likewise */

#define TEXT(name) char *name;
#define INTEGER(name) int64_t name;
#define REAL(name) double name;
/** Zero is empty; strings are owned where a reader made it (ts_jobs_free), and may be NULL. */
typedef struct ts_job {
  TS_JOB_MEMBERS(TEXT, INTEGER, REAL)
} ts_job;
#undef TEXT
#undef INTEGER
#undef REAL

/** Append a job to RUN/jobs.jsonl, which is made where it is not there.
 * \param [in] over  What an older run has left there goes.
 * \return TS_BAD_INPUT with "PATH: reason". Not collective. */
ts_status ts_jobs_add(const char *directory, bool over, const ts_job *job, ts_error *err);

/** Read the last jobs of a run, a thousand at most, in the order of the file.  What is no such line, as a job that died
 * may leave, is passed over; numbers that are missing are 0, and texts NULL.
 * \param [out] jobs  The caller's, end with ts_jobs_free; NULL where there are none, as in an older run.
 * \param [out] n     How many.
 * \return TS_BAD_INPUT with "PATH: reason": it is there and cannot be read. Not collective. */
ts_status ts_jobs_read(const char *directory, ts_job **jobs, int *n, ts_error *err);

/** Free and set to NULL. Not collective. */
void ts_jobs_free(ts_job **jobs, int n);

/** The job of \a step (from 1): the last one that began before it; NULL: an older version has begun the run. Not
 * collective. */
const ts_job *ts_jobs_of(const ts_job *jobs, int n, int64_t step);

#endif
