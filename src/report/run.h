/** \file
 * A run as its directory tells of it: metrics.csv, validation.csv, moe.csv, memory.csv, jobs.jsonl (all but
 * the first may be missing: an older version wrote none), deck.cfg and status/.  Nothing here is collective.
 */
#ifndef TS_REPORT_RUN_H
#define TS_REPORT_RUN_H

#include "io/csv.h"
#include "io/jobs.h"
#include "io/metrics.h"

#include <stdbool.h>

/** The columns of metrics.csv. */
typedef enum ts_metric {
#define X(type, column) TS_METRIC_##column,
  TS_METRICS_COLUMNS(X)
#undef X
      TS_N_METRICS
} ts_metric;

typedef struct ts_report_run {
  char *directory; /**< Owned, like all of this. */
  char *name;      /**< The last part of its real path, as UTF-8 without control characters. */
  ts_csv metrics, validation, experts, memory;
  int column[TS_N_METRICS]; /**< Of metrics; -1: it has none. */
  ts_job *jobs;
  int n_jobs;
  char *deck;      /**< The text of deck.cfg; NULL: there is none. */
  char *state;     /**< As status/ tells: "finished", "running", ...; NULL: it does not. */
  char *damage;    /**< What could not be read and is left out, a line each; NULL: nothing. */
  bool *steady;    /**< [metrics.n_rows] Rows whose times are a measure: ts_report_steady. */
  double *elapsed; /**< [metrics.n_rows] Seconds from the begin of the first step to the end of the row's. */
} ts_report_run;

/** Steps at the begin of a job whose times do not count. */
enum { TS_REPORT_WARM = 3 };

/** Read a run's directory.
 * \param [out] run  The caller's, end with ts_report_run_clear in any case.
 * \return TS_BAD_INPUT: metrics.csv cannot be read, or lacks step, tokens or loss. Not collective. */
ts_status ts_report_run_read(const char *directory, ts_report_run *run, ts_error *err);
void ts_report_run_clear(ts_report_run *run);

/** The value of a column of metrics.csv; NAN: there is no such column. Not collective. */
double ts_report_value(const ts_report_run *run, int64_t row, ts_metric metric);

/** Conventions of how many FLOPs a token takes, for MFU and TFLOP/s. */
typedef enum ts_flops_convention {
  TS_FLOPS_6N,     /**< "6n": 6 N, of all parameters that a token meets, as Hugging Face's comparisons have it; */
  TS_FLOPS_CAUSAL, /**< "causal": 6 N + 6 L C T, with the half of attention that is computed; */
  TS_FLOPS_FULL,   /**< "full": 6 N + 12 L C T, as PaLM (2022, appendix B) and Megatron-LM have it. */
  TS_N_FLOPS_CONVENTIONS
} ts_flops_convention;

typedef struct ts_flops_row {
  const char *name, *text;
} ts_flops_row;

/** By convention: the word of an option, and the formula. */
extern const ts_flops_row ts_flops_rows[TS_N_FLOPS_CONVENTIONS];

/** The rank that was slowest in a row's step, and how long it was busy, which the next row tells; NAN: nobody knows.
 * Not collective. */
double ts_report_slowest_rank(const ts_report_run *run, int64_t row);
double ts_report_slowest_seconds(const ts_report_run *run, int64_t row);

/** The rates of a row's step; NAN: it is not known.
 * \param [in] peak  FLOP/s of a device; 0: as the job measured it, or its datasheet. Not collective. */
double ts_report_tokens_per_device(const ts_report_run *run, int64_t row);
double ts_report_flops_per_device(const ts_report_run *run, int64_t row, ts_flops_convention convention);
double ts_report_mfu(const ts_report_run *run, int64_t row, ts_flops_convention convention, double peak);

/** The median of \a value over the steady rows of a run, or over all where none is; NAN: of none it is a number. Not
 * collective. */
typedef double ts_report_measure(const ts_report_run *run, int64_t row, const void *user);
double ts_report_median(const ts_report_run *run, ts_report_measure *value, const void *user);

#endif
