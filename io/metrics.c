#include "io/metrics.h"

#include "base/memory.h"
#include "base/text.h"
#include "io/csv.h"
#include "io/rows.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct column {
  const char *name;
  size_t offset;
  bool is_integer;
} column;

#define X(type, column) {#column, offsetof(ROW, column), _Generic((type) 0, int64_t : true, double : false)},
#define ROW ts_metrics_row
static const column metrics_columns[] = {TS_METRICS_COLUMNS(X)};
#undef ROW
#define ROW ts_validation_row
static const column validation_columns[] = {TS_VALIDATION_COLUMNS(X)};
#undef ROW
#define ROW ts_experts_row
static const column experts_columns[] = {TS_EXPERTS_COLUMNS(X)};
#undef ROW
#undef X

typedef struct table {
  const char *file;
  const column *columns;
  size_t n_columns;
} table;

enum { METRICS, VALIDATION, EXPERTS, N_TABLES };
static const table tables[N_TABLES] = {
    [METRICS] = {"metrics.csv", metrics_columns, sizeof metrics_columns / sizeof metrics_columns[0]},
    [VALIDATION] = {"validation.csv", validation_columns, sizeof validation_columns / sizeof validation_columns[0]},
    [EXPERTS] = {"moe.csv", experts_columns, sizeof experts_columns / sizeof experts_columns[0]}};

struct ts_metrics {
  ts_rows *rows[N_TABLES]; /* NULL: not asked for */
};

char *ts_print_double(double value, char *out) {
  if (isnan(value)) {
    return strcpy(out, "nan");
  }
  for (int digits = 15; digits <= 17; ++digits) {
    snprintf(out, 32, "%.*g", digits, value);
    if (strtod(out, NULL) == value) {
      break;
    }
  }
  return out;
}

static void add_names(const table *t, ts_text *to) {
  for (size_t i = 0; i < t->n_columns; ++i) {
    ts_text_add(to, "%s%c", t->columns[i].name, i + 1 < t->n_columns ? ',' : '\n');
  }
}

static void write_row(ts_metrics *metrics, int which, const void *row) {
  const table *t = &tables[which];
  ts_text line = {0};
  for (size_t i = 0; i < t->n_columns; ++i) {
    const char *field = (const char *) row + t->columns[i].offset;
    char number[32];
    if (t->columns[i].is_integer) {
      snprintf(number, sizeof number, "%lld", (long long) *(const int64_t *) field);
    } else {
      ts_print_double(*(const double *) field, number);
    }
    ts_text_add(&line, "%s%c", number, i + 1 < t->n_columns ? ',' : '\n');
  }
  ts_rows_add(metrics->rows[which], line.text, line.length);
  ts_text_free(&line);
}

static ts_status open_table(const char *directory, bool again, int64_t step, const table *t, ts_rows **rows,
                            ts_error *err) {
  char *path = ts_format("%s/%s", directory, t->file);
  ts_text names = {0};
  add_names(t, &names);
  ts_status status = again ? ts_csv_continue(path, names.text, step, err) : TS_OK;
  status = status == TS_OK ? ts_rows_open(path, !again, names.text, rows, err) : status;
  ts_text_free(&names);
  ts_free(path);
  return status;
}

static ts_status open_tables(const char *directory, bool again, bool experts, int64_t step, ts_metrics **out,
                             ts_error *err) {
  ts_metrics *metrics = ts_calloc(1, sizeof *metrics);
  ts_status status = TS_OK;
  for (int i = 0; status == TS_OK && i < (experts ? N_TABLES : EXPERTS); ++i) {
    status = open_table(directory, again, step, &tables[i], &metrics->rows[i], err);
  }
  if (status != TS_OK) {
    ts_metrics_close(&metrics);
  }
  *out = metrics;
  return status;
}

ts_status ts_metrics_open(const char *directory, bool experts, ts_metrics **out, ts_error *err) {
  return open_tables(directory, false, experts, 0, out, err);
}

ts_status ts_metrics_continue(const char *directory, bool experts, int64_t step, ts_metrics **out, ts_error *err) {
  return open_tables(directory, true, experts, step, out, err);
}

void ts_metrics_step(ts_metrics *metrics, const ts_metrics_row *row) {
  write_row(metrics, METRICS, row);
}

void ts_metrics_validation(ts_metrics *metrics, const ts_validation_row *row) {
  write_row(metrics, VALIDATION, row);
}

void ts_metrics_experts(ts_metrics *metrics, const ts_experts_row *row) {
  write_row(metrics, EXPERTS, row);
}

void ts_metrics_flush(ts_metrics *metrics) {
  for (int i = 0; i < N_TABLES && metrics->rows[i] != NULL; ++i) {
    ts_rows_flush(metrics->rows[i]);
  }
}

void ts_metrics_close(ts_metrics **metrics) {
  if (*metrics == NULL) {
    return;
  }
  for (int i = 0; i < N_TABLES; ++i) {
    ts_rows_close(&(*metrics)->rows[i]);
  }
  ts_free(*metrics);
  *metrics = NULL;
}
