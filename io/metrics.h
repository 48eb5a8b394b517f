/** \file
 * The numbers of a run: RUN/metrics.csv with a row per optimizer step, RUN/validation.csv with a row per validation,
 * and RUN/moe.csv with a row per step and layer with experts.
 * The first line names the columns; each row is on disk (in the kernel) when the call returns, so a run can be watched
 * and a run that died keeps its rows; on a full disk rows wait in memory (io/rows.h).  A double is written with the
 * fewest digits that read back as the same double, so two runs are bit-identical exactly where their files are.  Files
 * are read with io/csv.h.  Nothing here is collective: one rank writes.
 */
#ifndef IO_METRICS_H
#define IO_METRICS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/** X (type, column): metrics.csv.  Both tables make the struct, the first line and the rows.  New columns come last:
 * runs of earlier versions go on. */
#define TS_METRICS_COLUMNS(X)                                                                                  \
  X(int64_t, step)                /* optimizer steps finished, from 1 */                                       \
  X(int64_t, tokens)              /* trained on since the start, over all ranks */                             \
  X(double, loss)                 /* nats per valid token, of this step's samples */                           \
  X(double, grad_norm)            /* global, before clipping */                                                \
  X(double, lr)                   /* learning rate of this step, before group factors */                       \
  X(double, step_seconds)         /* wall time of the step, data included */                                   \
  X(double, tokens_per_second)    /* over all ranks */                                                         \
  X(double, model_tflops)         /* model FLOPs (not recomputation) per second, over all ranks */             \
  X(double, mfu)                  /* of the peak, 0..1; 0 when the peak is not known */                        \
  X(int64_t, peak_bytes)          /* most memory rank 0 has had: GPU's, else all of its process */             \
  X(double, comm_seconds)         /* communication, hidden or not */                                           \
  X(double, exposed_comm_seconds) /* communication that computation waited for */                              \
  X(double, data_seconds)         /* reading samples */                                                        \
  X(int64_t, skipped)             /* steps without an update since the start */                                \
  X(double, loss_scale)           /* 1 without loss scaling */                                                 \
  X(double, save_seconds)         /* of saves that ended since the row before: begin to published */           \
  X(double, stall_seconds)        /* that training waited for saves since the row before */                    \
  X(double, bubble)               /* of a pipeline: part of a step's time that stages compute nothing */       \
  X(double, forward_seconds)      /* wall time of the phases, what they wait for included */                   \
  X(double, backward_seconds)                                                                                  \
  X(double, update_seconds)                                                                                    \
  X(int64_t, slowest_rank)   /* that was busy longest in the step before, known only now; -1: a job's first */ \
  X(double, slowest_seconds) /* how long, what it waited for aside (of devices: for stages); NaN likewise */   \
  X(int64_t, observed)       /* 1: the step was watched op by op, so its times are no measure */               \
  X(double, time)            /* when the step ended: seconds since 1970 */                                     \
  X(int64_t, save_step)      /* of the save that ended since the row before, its step; 0: none did */

/** X (type, column): validation.csv. */
#define TS_VALIDATION_COLUMNS(X)                                           \
  X(int64_t, step)    /* optimizer steps finished */                       \
  X(int64_t, tokens)  /* trained on so far, over all ranks */              \
  X(double, loss)     /* nats per valid token of the validation samples */ \
  X(int64_t, batches) /* global micro-batches it is the mean of */         \
  X(double, seconds)  /* wall time of the validation */

/** X (type, column): moe.csv. */
#define TS_EXPERTS_COLUMNS(X)                                                                                         \
  X(int64_t, step)                                                                                                    \
  X(int64_t, layer)                                                                                                   \
  X(int64_t, tokens)      /* that were routed, over all ranks; those without a label not */                           \
  X(double, largest)      /* choices of the expert with most of them, over the mean */                                \
  X(double, smallest)     /* of that with fewest */                                                                   \
  X(int64_t, idle)        /* experts without any */                                                                   \
  X(double, dropped)      /* share of all choices that no expert had room for */                                      \
  X(double, aux)          /* experts times the sum of shares of choices times shares of scores: 1 is even, times k */ \
  X(double, z)            /* mean of logsumexp (logits)^2 */                                                          \
  X(double, largest_bias) /* that the step chose by, where biases follow the balance; else 0 */

#define X(type, column) type column;
/** A row of metrics.csv. */
typedef struct ts_metrics_row {
  TS_METRICS_COLUMNS(X)
} ts_metrics_row;

/** A row of validation.csv. */
typedef struct ts_validation_row {
  TS_VALIDATION_COLUMNS(X)
} ts_validation_row;

/** A row of moe.csv. */
typedef struct ts_experts_row {
  TS_EXPERTS_COLUMNS(X)
} ts_experts_row;
#undef X

typedef struct ts_metrics ts_metrics;

/** Create the files, with their first lines, in an existing directory; older ones are replaced.  Not collective.
 * \param [in] experts  moe.csv too.
 * \param [out] out  The caller's, end with ts_metrics_close; NULL on error.
 * \return TS_BAD_INPUT with "PATH: reason" when a file cannot be created. */
ts_status ts_metrics_open(const char *directory, bool experts, ts_metrics **out, ts_error *err);

/** As ts_metrics_open, to go on after step \a step: rows of later steps are cut off, files that are not there are
 * created, and columns that an earlier version did not have come last, "nan" in its rows (ts_csv_continue).  Not
 * collective.
 * \return TS_BAD_INPUT also when a file has columns that these do not begin with (a newer version wrote it). */
ts_status ts_metrics_continue(const char *directory, bool experts, int64_t step, ts_metrics **out, ts_error *err);

/** Append a row to metrics.csv.  Not collective. */
void ts_metrics_step(ts_metrics *metrics, const ts_metrics_row *row);

/** Append a row to validation.csv.  Not collective. */
void ts_metrics_validation(ts_metrics *metrics, const ts_validation_row *row);

/** Append a row to moe.csv.  Not collective. */
void ts_metrics_experts(ts_metrics *metrics, const ts_experts_row *row);

/** Try again to write the rows that wait.  Not collective. */
void ts_metrics_flush(ts_metrics *metrics);

/** Close and free; NULL handles are allowed; sets the handle to NULL.  Not collective. */
void ts_metrics_close(ts_metrics **metrics);

/** Write the fewest significant digits that read back as \a value (nan, inf, -inf otherwise) to \a out of at least 32
 * bytes; returns \a out.  Not collective. */
char *ts_print_double(double value, char *out);

#endif
