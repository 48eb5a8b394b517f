#include "io/csv.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LARGEST_FILE ((size_t) 1 << 30)

static void read_names(char *line, ts_csv *csv) {
  int capacity = 0;
  for (char *name = line; name != NULL;) {
    char *comma = strchr(name, ',');
    if (comma != NULL) {
      *comma = 0;
    }
    TS_GROW(csv->names, csv->n_columns, capacity);
    csv->names[csv->n_columns++] = ts_strdup(name);
    name = comma == NULL ? NULL : comma + 1;
  }
}

static bool read_row(const char *line, int n_columns, double *row) {
  for (int i = 0; i < n_columns; ++i) {
    char *end;
    row[i] = ts_shown(strtod(line, &end));
    if (end == line || *end != (i + 1 < n_columns ? ',' : 0)) {
      return false;
    }
    line = end + 1;
  }
  return true;
}

static ts_status read_lines(const char *path, char *text, ts_csv *csv, ts_error *err) {
  int64_t capacity = 0;
  size_t width = 0;
  for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
    *end = 0;
    if (csv->n_columns == 0) {
      read_names(line, csv);
      width = (size_t) csv->n_columns;
      continue;
    }
    if (csv->n_rows >= capacity) {
      capacity = capacity > 0 ? 2 * capacity : 64;
      csv->values = ts_realloc(csv->values, (size_t) capacity, width * sizeof *csv->values);
    }
    if (!read_row(line, csv->n_columns, csv->values + (size_t) csv->n_rows * width)) {
      return ts_error_add(err, "%s:%lld: is not %d numbers separated by commas", path, (long long) csv->n_rows + 2,
                          csv->n_columns);
    }
    ++csv->n_rows;
  }
  return csv->n_columns > 0 ? TS_OK : ts_error_add(err, "%s: has no first line with the names of its columns", path);
}

/* How many of the columns \a names come after those of the first line; -1 when it does not begin as they do. */
static int count_new(const char *line, size_t length, const char *names) {
  bool begins = strncmp(line, names, length) == 0 && (names[length] == ',' || names[length] == '\n');
  int n = 0;
  for (const char *c = names + length; begins && *c != 0; ++c) {
    n += *c == ',';
  }
  return begins ? n : -1;
}

/* The table with all of \a names and the rows up to \a last, each with as many fields. */
static void keep_rows(const char *text, const char *names, int64_t last, int n_new, ts_text *to) {
  const char *line = strchr(text, '\n') + 1;
  ts_text_append(to, names, strlen(names));
  for (const char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
    if (strtoll(line, NULL, 10) <= last) {
      ts_text_append(to, line, (size_t) (end - line));
      for (int i = 0; i < n_new; ++i) {
        ts_text_add(to, ",nan");
      }
      ts_text_add(to, "\n");
    }
  }
}

static ts_status refuse_columns(const char *path, ts_error *err) {
  return ts_error_add(err, "%s: has other columns than this version writes; move it away to go on without it", path);
}

/* What a process that died left of a first line is no longer than all of it. */
ts_status ts_csv_try_to_continue(const char *path, const char *names, ts_error *err) {
  if (access(path, F_OK) != 0) {
    return TS_OK;
  }
  FILE *file = ts_open_plain(path, LARGEST_FILE, err);
  if (file == NULL) {
    return TS_BAD_INPUT;
  }
  size_t most = strlen(names);
  char *line = ts_malloc(most);
  size_t length = fread(line, 1, most, file);
  bool ok = ferror(file) == 0;
  ts_status status = ok ? TS_OK : ts_error_add(err, "%s: cannot be read: %s", path, strerror(errno));
  const char *end = memchr(line, '\n', length);
  bool whole = end != NULL || length == most;
  if (ok && whole && (end == NULL || count_new(line, (size_t) (end - line), names) < 0)) {
    status = refuse_columns(path, err);
  }
  fclose(file);
  ts_free(line);
  return status;
}

static ts_status continue_table(const char *path, const char *text, size_t length, const char *names, int64_t last,
                                ts_error *err) {
  const char *end = strchr(text, '\n');
  int n_new = end != NULL ? count_new(text, (size_t) (end - text), names) : 0;
  if (n_new < 0) {
    return refuse_columns(path, err);
  }
  ts_text kept = {0};
  ts_text_add(&kept, "%s", ""); /* a file of nothing is written from something */
  if (end != NULL) {
    keep_rows(text, names, last, n_new, &kept);
  }
  bool same = n_new == 0 && kept.length == length;
  ts_status status = same ? TS_OK : ts_write_file(path, kept.text, kept.length, err);
  if (status == TS_OK && n_new > 0) {
    ts_log(TS_LOG_INFO, "%s: is of an earlier version; the new columns come last, nan in the rows it has", path);
  }
  ts_text_free(&kept);
  return status;
}

ts_status ts_csv_continue(const char *path, const char *names, int64_t last, ts_error *err) {
  char *text;
  size_t length;
  if (access(path, F_OK) != 0) {
    return TS_OK;
  }
  if (ts_read_plain_file(path, LARGEST_FILE, &text, &length, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_status status = continue_table(path, text, length, names, last, err);
  ts_free(text);
  return status;
}

ts_status ts_csv_read(const char *path, ts_csv *csv, ts_error *err) {
  *csv = (ts_csv){0};
  char *text;
  size_t length;
  if (ts_read_plain_file(path, LARGEST_FILE, &text, &length, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_status status = read_lines(path, text, csv, err);
  ts_free(text);
  if (status != TS_OK) {
    ts_csv_free(csv);
  }
  return status;
}

int ts_csv_column(const ts_csv *csv, const char *name) {
  for (int i = 0; i < csv->n_columns; ++i) {
    if (strcmp(csv->names[i], name) == 0) {
      return i;
    }
  }
  return -1;
}

static int by_column_value(const void *a, const void *b) {
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

double ts_csv_low(const ts_csv *csv, const char *name, int64_t first) {
  int column = ts_csv_column(csv, name);
  first = first < csv->n_rows ? first : csv->n_rows - 1;
  int64_t n = 0;
  if (column < 0 || csv->n_rows < 1) {
    return NAN;
  }
  double *x = ts_malloc((size_t) (csv->n_rows - first) * sizeof *x), sum = 0;
  for (int64_t i = first; i < csv->n_rows; ++i) {
    double here = csv->values[i * csv->n_columns + column];
    if (!isnan(here)) {
      x[n++] = here;
    }
  }
  qsort(x, (size_t) n, sizeof *x, by_column_value);
  const int64_t quarter = n / 4 > 0 ? n / 4 : 1;
  for (int64_t i = 0; i < quarter && i < n; ++i) {
    sum += x[i];
  }
  ts_free(x);
  return n == 0 ? NAN : sum / (double) quarter;
}

void ts_csv_free(ts_csv *csv) {
  for (int i = 0; i < csv->n_columns; ++i) {
    ts_free(csv->names[i]);
  }
  ts_free(csv->names);
  ts_free(csv->values);
  *csv = (ts_csv){0};
}
