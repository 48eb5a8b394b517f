#include "io/metrics.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/csv.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
#undef X

typedef struct table {
  const char *file;
  const column *columns;
  size_t n_columns;
} table;

enum { METRICS, VALIDATION, N_TABLES };
static const table tables[N_TABLES] = {
    [METRICS] = {"metrics.csv", metrics_columns, sizeof metrics_columns / sizeof metrics_columns[0]},
    [VALIDATION] = {"validation.csv", validation_columns, sizeof validation_columns / sizeof validation_columns[0]}};

struct ts_metrics {
  FILE *files[N_TABLES];
  bool failed[N_TABLES]; /* the last row could not be written */
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

static bool write_names(FILE *file, const table *t) {
  for (size_t i = 0; i < t->n_columns; ++i) {
    fprintf(file, "%s%c", t->columns[i].name, i + 1 < t->n_columns ? ',' : '\n');
  }
  return fflush(file) == 0;
}

/* A file that is there has these columns. */
static ts_status check_names(const char *path, const table *t, ts_error *err) {
  ts_text names = {0};
  for (size_t i = 0; i < t->n_columns; ++i) {
    ts_text_add(&names, "%s%c", t->columns[i].name, i + 1 < t->n_columns ? ',' : '\n');
  }
  FILE *file = fopen(path, "r");
  char *line = NULL;
  size_t capacity = 0;
  bool same = file == NULL || getline(&line, &capacity, file) < 0 || strcmp(line, names.text) == 0;
  if (file != NULL) {
    fclose(file);
  }
  free(line);
  ts_text_free(&names);
  return same ? TS_OK
              : ts_error_add(err, "%s: has other columns than this version writes; move it away to go on without it",
                             path);
}

/* One write a row: a full disk leaves the rows before it, and the run goes on. */
static void write_row(ts_metrics *metrics, int which, const void *row) {
  const table *t = &tables[which];
  int file = fileno(metrics->files[which]);
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
  off_t end = lseek(file, 0, SEEK_END);
  bool ok = write(file, line.text, line.length) == (ssize_t) line.length;
  if (!ok && !metrics->failed[which]) {
    ts_log(TS_LOG_WARNING, "%s cannot be written: %s; rows are missing from here on until it can", t->file,
           strerror(errno));
  }
  if (!ok && end >= 0 && ftruncate(file, end) != 0) {
    errno = 0; /* half a row at the end is ignored by those who read */
  }
  metrics->failed[which] = !ok;
  ts_text_free(&line);
}

static ts_status open_file(const char *path, const char *mode, const table *t, FILE **file, ts_error *err) {
  *file = fopen(path, mode);
  bool ok = *file != NULL && (ftell(*file) > 0 || write_names(*file, t));
  return ok ? TS_OK : ts_error_add(err, "%s: cannot be written: %s", path, strerror(errno));
}

static ts_status open_files(const char *directory, const char *mode, int64_t step, ts_metrics **out, ts_error *err) {
  ts_metrics *metrics = ts_calloc(1, sizeof *metrics);
  ts_status status = TS_OK;
  for (int i = 0; status == TS_OK && i < N_TABLES; ++i) {
    char *path = ts_format("%s/%s", directory, tables[i].file);
    if (mode[0] == 'a') {
      status = ts_csv_cut(path, step, err);
      status = status == TS_OK ? check_names(path, &tables[i], err) : status;
    }
    status = status == TS_OK ? open_file(path, mode, &tables[i], &metrics->files[i], err) : status;
    ts_free(path);
  }
  if (status != TS_OK) {
    ts_metrics_close(&metrics);
  }
  *out = metrics;
  return status;
}

ts_status ts_metrics_open(const char *directory, ts_metrics **out, ts_error *err) {
  return open_files(directory, "w", 0, out, err);
}

ts_status ts_metrics_continue(const char *directory, int64_t step, ts_metrics **out, ts_error *err) {
  return open_files(directory, "a", step, out, err);
}

void ts_metrics_step(ts_metrics *metrics, const ts_metrics_row *row) {
  write_row(metrics, METRICS, row);
}

void ts_metrics_validation(ts_metrics *metrics, const ts_validation_row *row) {
  write_row(metrics, VALIDATION, row);
}

void ts_metrics_close(ts_metrics **metrics) {
  if (*metrics == NULL) {
    return;
  }
  for (int i = 0; i < N_TABLES; ++i) {
    if ((*metrics)->files[i] != NULL) {
      fclose((*metrics)->files[i]);
    }
  }
  ts_free(*metrics);
  *metrics = NULL;
}
