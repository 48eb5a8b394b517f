#include "io/csv.h"

#include "base/memory.h"
#include "base/text.h"

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

ts_status ts_csv_cut(const char *path, int64_t last, ts_error *err) {
  char *text;
  size_t length;
  if (access(path, F_OK) != 0) {
    return TS_OK;
  }
  ts_status status = ts_read_file(path, LARGEST_FILE, &text, &length, err);
  if (status != TS_OK) {
    return status;
  }
  ts_text kept = {0};
  bool first = true;
  for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
    if (first || strtoll(line, NULL, 10) <= last) {
      ts_text_append(&kept, line, (size_t) (end + 1 - line));
    }
    first = false;
  }
  status = kept.length == length ? TS_OK : ts_write_file(path, kept.text, kept.length, err);
  ts_text_free(&kept);
  ts_free(text);
  return status;
}

ts_status ts_csv_read(const char *path, ts_csv *csv, ts_error *err) {
  *csv = (ts_csv){0};
  char *text;
  size_t length;
  if (ts_read_file(path, LARGEST_FILE, &text, &length, err) != TS_OK) {
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

void ts_csv_free(ts_csv *csv) {
  for (int i = 0; i < csv->n_columns; ++i) {
    ts_free(csv->names[i]);
  }
  ts_free(csv->names);
  ts_free(csv->values);
  *csv = (ts_csv){0};
}
