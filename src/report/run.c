#include "report/run.h"

#include "base/memory.h"
#include "base/text.h"
#include "train/run_summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>

enum { MOST_DECK = 1 << 20 };

const ts_flops_row ts_flops_rows[TS_N_FLOPS_CONVENTIONS] = {[TS_FLOPS_6N] = {"6n", "6N"},
                                                            [TS_FLOPS_CAUSAL] = {"causal", "6N + 6LCT"},
                                                            [TS_FLOPS_FULL] = {"full", "6N + 12LCT"}};

/* ---- reading ---- */

/* UTF-8 without control characters, whatever a directory is called. Owned by the caller. */
static char *clean_text(const char *text) {
  ts_text clean = {0};
  for (const char *c = text; *c != 0;) {
    utf8proc_int32_t code;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *) c, -1, &code);
    bool plain = n > 0 && code >= 0x20 && !(code >= 0x7f && code < 0xa0);
    ts_text_append(&clean, plain ? c : "?", plain ? (size_t) n : 1);
    c += n > 0 ? n : 1;
  }
  return clean.text != NULL ? clean.text : ts_strdup("");
}

static char *run_name(const char *directory) {
  char *raw = ts_directory_name(directory), *name = clean_text(raw);
  ts_free(raw);
  return name;
}

static void note_damage(ts_report_run *run, const char *text) {
  char *both = run->damage != NULL ? ts_format("%s\n%s", run->damage, text) : ts_strdup(text);
  ts_free(run->damage);
  run->damage = both;
}

static bool is_empty_file(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0;
}

/* A table that may be missing, or empty as a job leaves it that found no room; what is damaged is told. */
static void read_table(ts_report_run *run, const char *name, ts_csv *csv) {
  char *path = ts_format("%s/%s", run->directory, name);
  ts_error err = {0};
  if (access(path, F_OK) == 0 && !is_empty_file(path) && ts_csv_read(path, csv, &err) != TS_OK) {
    note_damage(run, err.text);
  }
  ts_error_clear(&err);
  ts_free(path);
}

static void read_deck_file(ts_report_run *run) {
  char *path = ts_format("%s/deck.cfg", run->directory);
  size_t length;
  ts_error err = {0};
  if (access(path, F_OK) == 0 && ts_read_plain_file(path, MOST_DECK, &run->deck, &length, &err) != TS_OK) {
    note_damage(run, err.text);
  }
  ts_error_clear(&err);
  ts_free(path);
}

static void read_jobs(ts_report_run *run) {
  ts_error err = {0};
  if (ts_jobs_read(run->directory, &run->jobs, &run->n_jobs, &err) != TS_OK) {
    note_damage(run, err.text);
  }
  ts_error_clear(&err);
}

static void read_state(ts_report_run *run) {
  ts_run_summary summary;
  if (ts_run_summary_read(run->directory, &summary, NULL) == TS_OK) {
    run->state = ts_run_summary_describe(&summary);
  }
  ts_run_summary_clear(&summary);
}

static const char *const names[TS_N_METRICS] = {
#define X(type, column) #column,
    TS_METRICS_COLUMNS(X)
#undef X
};

static ts_status read_run_metrics(ts_report_run *run, ts_error *err) {
  char *path = ts_format("%s/metrics.csv", run->directory);
  ts_status status = TS_OK;
  if (is_empty_file(path)) {
    note_damage(run, "metrics.csv is empty");
  } else {
    status = ts_csv_read(path, &run->metrics, err);
    for (int c = 0; c < TS_N_METRICS; ++c) {
      run->column[c] = status == TS_OK ? ts_csv_column(&run->metrics, names[c]) : -1;
    }
    const int *c = run->column;
    if (status == TS_OK && (c[TS_METRIC_step] < 0 || c[TS_METRIC_tokens] < 0 || c[TS_METRIC_loss] < 0)) {
      status = ts_error_add(err, "%s: lacks a column: step, tokens and loss are needed", path);
    }
  }
  ts_free(path);
  return status;
}

double ts_report_value(const ts_report_run *run, int64_t row, ts_metric metric) {
  int c = run->column[metric];
  return c >= 0 ? run->metrics.values[row * run->metrics.n_columns + c] : NAN;
}

/* ---- rows that count ---- */

/* A validation before a step leaves caches cold. */
static void mark_validated(ts_report_run *run) {
  const ts_csv *v = &run->validation;
  int at = ts_csv_column(v, "step");
  const int64_t n = run->metrics.n_rows;
  for (int64_t i = 0, row = 0; at >= 0 && i < v->n_rows; ++i) {
    double behind = v->values[i * v->n_columns + at];
    while (row < n && ts_report_value(run, row, TS_METRIC_step) <= behind) {
      ++row;
    }
    if (row < n) {
      run->steady[row] = false;
    }
  }
}

/* The first steps of the run, and of each job. */
static void mark_warm(ts_report_run *run) {
  for (int64_t row = 0; row < run->metrics.n_rows; ++row) {
    double at = ts_report_value(run, row, TS_METRIC_step);
    for (int j = 0; j < run->n_jobs; ++j) {
      double since = at - (double) run->jobs[j].step;
      run->steady[row] = run->steady[row] && !(since > 0 && since <= TS_REPORT_WARM);
    }
    run->steady[row] = run->steady[row] && row >= TS_REPORT_WARM;
  }
}

/* All rows while a save went on: from behind its step to where it ended. */
static void mark_saving(ts_report_run *run) {
  for (int64_t row = 0; row < run->metrics.n_rows; ++row) {
    double step = ts_report_value(run, row, TS_METRIC_save_step);
    for (int64_t r = row; step > 0 && r >= 0 && ts_report_value(run, r, TS_METRIC_step) > step; --r) {
      run->steady[r] = false;
    }
  }
}

static void mark_disturbed(ts_report_run *run) {
  for (int64_t row = 0; row < run->metrics.n_rows; ++row) {
    run->steady[row] =
        !(ts_report_value(run, row, TS_METRIC_save_seconds) > 0 ||
          ts_report_value(run, row, TS_METRIC_stall_seconds) > 0 || ts_report_value(run, row, TS_METRIC_observed) > 0);
  }
}

static void measure_elapsed(ts_report_run *run) {
  double begin = NAN, elapsed = 0;
  for (int64_t row = 0; row < run->metrics.n_rows; ++row) {
    double took = ts_report_value(run, row, TS_METRIC_step_seconds), now = ts_report_value(run, row, TS_METRIC_time);
    elapsed += isfinite(took) ? took : 0;
    if (isfinite(now) && isnan(begin)) { /* from here on the clock of the day, which counts what lies between jobs */
      begin = now - elapsed;
    }
    elapsed = isfinite(now) ? fmax(elapsed, now - begin) : elapsed;
    run->elapsed[row] = elapsed;
  }
}

ts_status ts_report_run_read(const char *directory, ts_report_run *run, ts_error *err) {
  *run = (ts_report_run){.directory = ts_strdup(directory), .name = run_name(directory)};
  ts_status status = read_run_metrics(run, err);
  if (status != TS_OK) {
    return status;
  }
  read_table(run, "validation.csv", &run->validation);
  read_table(run, "moe.csv", &run->experts);
  read_table(run, "memory.csv", &run->memory);
  read_jobs(run);
  read_deck_file(run);
  read_state(run);
  run->steady = ts_calloc((size_t) run->metrics.n_rows + 1, sizeof *run->steady);
  run->elapsed = ts_calloc((size_t) run->metrics.n_rows + 1, sizeof *run->elapsed);
  mark_disturbed(run);
  mark_saving(run);
  mark_validated(run);
  mark_warm(run);
  measure_elapsed(run);
  return TS_OK;
}

void ts_report_run_clear(ts_report_run *run) {
  ts_csv_free(&run->metrics);
  ts_csv_free(&run->validation);
  ts_csv_free(&run->experts);
  ts_csv_free(&run->memory);
  ts_jobs_free(&run->jobs, run->n_jobs);
  ts_free(run->directory);
  ts_free(run->name);
  ts_free(run->deck);
  ts_free(run->state);
  ts_free(run->damage);
  ts_free(run->steady);
  ts_free(run->elapsed);
  *run = (ts_report_run){0};
}

/* ---- rates ---- */

static const ts_job *job_of(const ts_report_run *run, int64_t row) {
  double step = ts_report_value(run, row, TS_METRIC_step);
  return ts_jobs_of(run->jobs, run->n_jobs, step > 0 && step < 9e15 ? (int64_t) step : 0);
}

/* Of a step, over all ranks; NAN: the job does not tell. */
static double flops_by_convention(const ts_job *job, ts_flops_convention convention) {
  double n = job->active > 0 ? job->active : job->parameters;
  const double all[TS_N_FLOPS_CONVENTIONS] = {[TS_FLOPS_6N] = 6 * n * (double) job->tokens_per_step,
                                              [TS_FLOPS_CAUSAL] = job->flops,
                                              [TS_FLOPS_FULL] = job->flops_full};
  return all[convention] > 0 ? all[convention] : NAN;
}

/* The row behind it, where that is the next step of the same job; -1: it is not. */
static int64_t next_row(const ts_report_run *run, int64_t row) {
  double step = ts_report_value(run, row, TS_METRIC_step);
  bool next = row + 1 < run->metrics.n_rows && ts_report_value(run, row + 1, TS_METRIC_step) == step + 1;
  for (int j = 0; j < run->n_jobs && next; ++j) {
    next = (double) run->jobs[j].step != step;
  }
  return next ? row + 1 : -1;
}

double ts_report_slowest_rank(const ts_report_run *run, int64_t row) {
  int64_t next = next_row(run, row);
  double rank = next >= 0 ? ts_report_value(run, next, TS_METRIC_slowest_rank) : NAN;
  return rank >= 0 && rank < 1e9 ? rank : NAN;
}

double ts_report_slowest_seconds(const ts_report_run *run, int64_t row) {
  int64_t next = next_row(run, row);
  return next >= 0 ? ts_report_value(run, next, TS_METRIC_slowest_seconds) : NAN;
}

double ts_report_tokens_per_device(const ts_report_run *run, int64_t row) {
  const ts_job *job = job_of(run, row);
  return job != NULL && job->ranks > 0 ? ts_report_value(run, row, TS_METRIC_tokens_per_second) / (double) job->ranks
                                       : NAN;
}

double ts_report_flops_per_device(const ts_report_run *run, int64_t row, ts_flops_convention convention) {
  const ts_job *job = job_of(run, row);
  return job != NULL && job->ranks > 0 ? flops_by_convention(job, convention) /
                                             ts_report_value(run, row, TS_METRIC_step_seconds) / (double) job->ranks
                                       : NAN;
}

double ts_report_mfu(const ts_report_run *run, int64_t row, ts_flops_convention convention, double peak) {
  const ts_job *job = job_of(run, row);
  double of = peak > 0 ? peak : job != NULL && job->ranks > 0 ? job->peak_flops / (double) job->ranks : 0;
  return of > 0 ? ts_report_flops_per_device(run, row, convention) / of : NAN;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

static double median_of(const ts_report_run *run, bool steady, ts_report_measure *value, const void *user) {
  double *all = ts_malloc(((size_t) run->metrics.n_rows + 1) * sizeof *all), median = NAN;
  int64_t n = 0;
  for (int64_t row = 0; row < run->metrics.n_rows; ++row) {
    double x = run->steady[row] || !steady ? value(run, row, user) : NAN;
    if (!isnan(x)) {
      all[n++] = x;
    }
  }
  if (n > 0) {
    qsort(all, (size_t) n, sizeof *all, ascending);
    median = n % 2 == 1 ? all[n / 2] : 0.5 * (all[n / 2 - 1] + all[n / 2]);
  }
  ts_free(all);
  return median;
}

double ts_report_median(const ts_report_run *run, ts_report_measure *value, const void *user) {
  bool any = false;
  for (int64_t row = 0; row < run->metrics.n_rows && !any; ++row) {
    any = run->steady[row];
  }
  return median_of(run, any, value, user);
}
