#include "view/feed.h"

#include "base/log.h"
#include "base/memory.h"
#include "train/run_log.h"

#include <math.h>
#include <string.h>

#define LAST_BYTES ((int64_t) 1 << 18) /* of files of which the end is enough */
#define LINE 4096                      /* bytes of a row */
#define MOST_EXPERTS 1000000000        /* of a layer: what says more is no count, and sums stay within 64 bits */
#define RARELY 15.0                    /* seconds between two looks at a run that says nothing */

/* ---- rows ---- */

static void begin_metrics(void *user) {
  ts_run_feed *f = user;
  f->restarts += f->rows > 0;
  f->metrics_table.n_columns = 0;
  f->rows = f->recent.n = 0;
  ts_table_blank(ts_metrics_fields, &f->last);
  f->loss.n = f->speed.n = 0;
  f->loss.each = f->speed.each = 0;
}

/* The times of an observed step are no measure. */
static void note_step(ts_run_feed *f, const ts_metrics_row *row) {
  bool observed = row->observed > 0;
  f->recent.step[f->recent.n++ % TS_FEED_RECENT] = (ts_recent_step){
      row->loss, observed ? (double) NAN : row->step_seconds, observed ? (double) NAN : row->tokens_per_second};
  ts_series_add(&f->loss, (double) row->step, row->loss);
  if (!observed) {
    ts_series_add(&f->speed, (double) row->step, row->tokens_per_second);
  }
}

static void take_metrics(void *user, const char *line) {
  ts_run_feed *f = user;
  ts_metrics_row row;
  ts_table_blank(ts_curve_fields, &row);
  if (f->metrics_table.n_columns == 0) {
    ts_table_names(&f->metrics_table, ts_metrics_fields, line);
    ts_table_names(&f->curve_table, ts_curve_fields, line);
  } else if (ts_table_row(&f->curve_table, line, &row)) {
    f->first = f->rows++ == 0 ? row.step : f->first;
    note_step(f, &row);
    snprintf(f->last_line, LINE, "%s", line);
  } else {
    ++f->damaged;
  }
}

/* A row of which half is no number leaves what that half said before. */
static void read_metrics(ts_run_feed *f) {
  const ts_tail_reader reader = {begin_metrics, take_metrics, f};
  f->last_line[0] = 0;
  f->bytes = ts_tail_read(&f->metrics_file, &reader);
  if (f->last_line[0] != 0) {
    ts_table_row(&f->metrics_table, f->last_line, &f->last);
  }
}

static void begin_validation(void *user) {
  ts_run_feed *f = user;
  f->validation_table.n_columns = 0;
  f->validation.n = 0;
  f->validation.each = 0;
  f->validations = 0;
  f->lowest = INFINITY;
}

static void take_validation(void *user, const char *line) {
  ts_run_feed *f = user;
  ts_validation_row row;
  ts_table_blank(ts_validation_fields, &row);
  if (f->validation_table.n_columns == 0) {
    ts_table_names(&f->validation_table, ts_validation_fields, line);
  } else if (ts_table_row(&f->validation_table, line, &row)) {
    f->validated = row;
    ++f->validations;
    f->lowest = fmin(f->lowest, row.loss);
    ts_series_add(&f->validation, (double) row.step, row.loss);
  } else {
    ++f->damaged;
  }
}

/* The names of moe.csv stand at its beginning, and its end is read: its columns are those of this version, or none. */
static void begin_experts(void *user) {
  ts_run_feed *f = user;
  f->experts = (ts_expert_loads){0};
  f->experts_table.n_columns = 0;
  for (const ts_field *field = ts_experts_fields; field->name != NULL; ++field) {
    f->experts_table.field[f->experts_table.n_columns++] = field;
  }
}

static void take_experts(void *user, const char *line) {
  ts_run_feed *f = user;
  ts_experts_row row = {0};
  if (!ts_table_row(&f->experts_table, line, &row)) {
    return;
  }
  ts_expert_loads *loads = &f->experts;
  if (row.step != loads->step) {
    *loads = (ts_expert_loads){.step = row.step};
  }
  loads->largest = fmax(loads->largest, row.largest);
  loads->idle += row.idle >= 0 && row.idle < MOST_EXPERTS ? row.idle : 0;
  loads->dropped = (loads->dropped * loads->layers + row.dropped) / (loads->layers + 1);
  ++loads->layers;
}

/* ---- messages ---- */

static void begin_messages(void *user) {
  ts_run_feed *f = user;
  for (int i = 0; i < TS_FEED_MESSAGES; ++i) {
    ts_free(f->message[i]);
    f->message[i] = NULL;
  }
  f->messages = 0;
}

/* "2026-11-21 12:32:06 step 20/600  loss ...": what the numbers say as well. */
static bool is_progress(const char *line) {
  int end = 0;
  sscanf(line, "%*d-%*d-%*d %*d:%*d:%*d step %*d/%*d  loss %n", &end);
  return end > 0;
}

static void take_message(void *user, const char *line) {
  ts_run_feed *f = user;
  if (!is_progress(line)) {
    char **at = &f->message[f->messages++ % TS_FEED_MESSAGES];
    ts_free(*at);
    *at = ts_strdup(line);
  }
}

/* ---- all ---- */

static void open_tail(const char *run, const char *name, int64_t from_end, ts_tail *tail) {
  char *path = ts_format("%s/%s", run, name);
  ts_tail_open(tail, path, from_end);
  ts_free(path);
}

ts_status ts_run_feed_open(const char *run, ts_run_feed *f, ts_error *err) {
  *f = (ts_run_feed){.run = run, .lowest = INFINITY, .looked = ts_seconds()};
  f->aged = f->looked;
  f->last_line = ts_calloc(LINE, 1);
  ts_table_blank(ts_metrics_fields, &f->last);
  open_tail(run, "metrics.csv", 0, &f->metrics_file);
  open_tail(run, "validation.csv", 0, &f->validation_file);
  open_tail(run, "moe.csv", LAST_BYTES, &f->experts_file);
  open_tail(run, TS_RUN_LOG, LAST_BYTES, &f->log_file);
  return ts_run_summary_read(run, &f->summary, err);
}

static void look_at_status(ts_run_feed *f) {
  ts_run_summary now;
  if (ts_run_summary_read(f->run, &now, NULL) == TS_OK) {
    ts_run_summary_clear(&f->summary);
    f->summary = now;
  } else {
    ts_run_summary_clear(&now);
  }
  f->looked = f->aged = ts_seconds();
}

/* It was not looked at again: what is old has become older. */
static void age_status(ts_run_feed *f) {
  double now = ts_seconds();
  f->summary.oldest += now - f->aged;
  f->aged = now;
}

bool ts_run_feed_read(ts_run_feed *f) {
  const ts_tail_reader experts = {begin_experts, take_experts, f}, validation = {begin_validation, take_validation, f},
                       log = {begin_messages, take_message, f};
  bool quiet = f->summary.state == TS_RUN_SILENT || f->summary.state == TS_RUN_SUSPENDED;
  read_metrics(f);
  int64_t others = ts_tail_read(&f->validation_file, &validation) + ts_tail_read(&f->experts_file, &experts) +
                   ts_tail_read(&f->log_file, &log);
  if (!quiet || f->bytes + others > 0 || ts_seconds() - f->looked > RARELY) {
    look_at_status(f);
  } else {
    age_status(f);
  }
  return f->bytes + others >= 1 << 20;
}

int64_t ts_run_feed_step(const ts_run_feed *f) {
  return f->last.step > f->summary.step ? f->last.step : f->summary.step;
}

/* Mean of a field of the last steps, without those that are no number. */
static double mean_of(const ts_run_feed *f, size_t offset) {
  int64_t n = f->recent.n < TS_FEED_RECENT ? f->recent.n : TS_FEED_RECENT, counted = 0;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    double value = *(const double *) ((const char *) &f->recent.step[i] + offset);
    sum += isfinite(value) ? value : 0;
    counted += isfinite(value);
  }
  return counted > 0 ? sum / (double) counted : NAN;
}

double ts_run_feed_mean_loss(const ts_run_feed *f) {
  return mean_of(f, offsetof(ts_recent_step, loss));
}

double ts_run_feed_mean_seconds(const ts_run_feed *f) {
  return mean_of(f, offsetof(ts_recent_step, seconds));
}

double ts_run_feed_mean_speed(const ts_run_feed *f) {
  return mean_of(f, offsetof(ts_recent_step, tokens_per_second));
}

double ts_run_feed_time_left(const ts_run_feed *f) {
  int64_t left = f->summary.status.job.steps - ts_run_feed_step(f);
  double each = ts_run_feed_mean_seconds(f);
  return left > 0 ? (double) left * (isnan(each) && f->summary.step_seconds > 0 ? f->summary.step_seconds : each) : 0;
}

bool ts_run_feed_is_over(const ts_run_feed *f) {
  return f->summary.state >= TS_RUN_FINISHED;
}

void ts_run_feed_close(ts_run_feed *f) {
  if (f->last_line == NULL) {
    return; /* closed already */
  }
  ts_tail_close(&f->metrics_file);
  ts_tail_close(&f->validation_file);
  ts_tail_close(&f->experts_file);
  ts_tail_close(&f->log_file);
  begin_messages(f);
  ts_free(f->last_line);
  ts_run_summary_clear(&f->summary);
  *f = (ts_run_feed){0};
}
