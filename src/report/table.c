#include "report/table.h"

#include "base/memory.h"
#include "io/chart.h"

#include <math.h>
#include <string.h>
#include <utf8proc.h>

/* ---- the numbers ---- */

static double last_value(const ts_report_run *run, ts_metric metric) {
  return run->metrics.n_rows > 0 ? ts_report_value(run, run->metrics.n_rows - 1, metric) : NAN;
}

static const ts_job *last_job(const ts_report_run *run) {
  return run->n_jobs > 0 ? &run->jobs[run->n_jobs - 1] : NULL;
}

static double devices(const ts_report_run *run, const ts_report_units *units) {
  (void) units;
  return last_job(run) != NULL ? (double) last_job(run)->ranks : NAN;
}

static double steps(const ts_report_run *run, const ts_report_units *units) {
  (void) units;
  return last_value(run, TS_METRIC_step);
}

static double speed_at(const ts_report_run *run, int64_t row, const void *user) {
  (void) user;
  return ts_report_tokens_per_device(run, row);
}

static double speed(const ts_report_run *run, const ts_report_units *units) {
  return ts_report_median(run, speed_at, units);
}

static double seconds_at(const ts_report_run *run, int64_t row, const void *user) {
  (void) user;
  return ts_report_value(run, row, TS_METRIC_step_seconds);
}

static double step_seconds(const ts_report_run *run, const ts_report_units *units) {
  return ts_report_median(run, seconds_at, units);
}

static double flops_at(const ts_report_run *run, int64_t row, const void *user) {
  const ts_report_units *units = user;
  return 1e-12 * ts_report_flops_per_device(run, row, units->convention);
}

static double tflops(const ts_report_run *run, const ts_report_units *units) {
  return ts_report_median(run, flops_at, units);
}

static double mfu_at(const ts_report_run *run, int64_t row, const void *user) {
  const ts_report_units *units = user;
  return ts_report_mfu(run, row, units->convention, units->peak);
}

static double mfu(const ts_report_run *run, const ts_report_units *units) {
  return ts_report_median(run, mfu_at, units);
}

static double peak_memory(const ts_report_run *run, const ts_report_units *units) {
  (void) units;
  double most = NAN;
  for (int64_t row = 0; row < run->metrics.n_rows; ++row) {
    most = fmax(most, ts_report_value(run, row, TS_METRIC_peak_bytes)); /* of one number and NAN the number */
  }
  return 1e-9 * most;
}

static double planned(const ts_report_run *run, const ts_report_units *units) {
  (void) units;
  return last_job(run) != NULL && last_job(run)->planned_bytes > 0 ? 1e-9 * (double) last_job(run)->planned_bytes : NAN;
}

static double exposed_at(const ts_report_run *run, int64_t row, const void *user) {
  (void) user;
  return 100 * ts_report_value(run, row, TS_METRIC_exposed_comm_seconds) /
         ts_report_value(run, row, TS_METRIC_step_seconds);
}

static double exposed(const ts_report_run *run, const ts_report_units *units) {
  return ts_report_median(run, exposed_at, units);
}

static double last_loss(const ts_report_run *run, const ts_report_units *units) {
  (void) units;
  return last_value(run, TS_METRIC_loss);
}

static double best_validation(const ts_report_run *run, const ts_report_units *units) {
  (void) units;
  const ts_csv *v = &run->validation;
  int c = ts_csv_column(v, "loss");
  double least = NAN;
  for (int64_t row = 0; c >= 0 && row < v->n_rows; ++row) {
    least = fmin(least, v->values[row * v->n_columns + c]);
  }
  return least;
}

const ts_report_column ts_report_columns[] = {{"devices", "devices", "%.0f", devices},
                                              {"steps", "steps", "%.0f", steps},
                                              {"tokens_per_second_per_device", "Tokens/sec/device", "%.1f", speed},
                                              {"step_seconds", "Step time (s)", "%.3g", step_seconds},
                                              {"tflops_per_device", "TFLOP/s/device", "%.4g", tflops},
                                              {"mfu", "MFU", "%.2f", mfu},
                                              {"peak_memory_gb", "Memory (GB)", "%.2f", peak_memory},
                                              {"planned_memory_gb", "Planned (GB)", "%.2f", planned},
                                              {"exposed_communication_percent", "Exposed comm (%)", "%.1f", exposed},
                                              {"loss", "Loss", "%.4f", last_loss},
                                              {"best_validation_loss", "Best validation", "%.4f", best_validation},
                                              {NULL, NULL, NULL, NULL}};

/* ---- the table ---- */

typedef struct table {
  const ts_report_run *run;
  int n;
  const ts_report_units *units;
} table;

char *ts_report_heading(const ts_report_column *column, const ts_report_units *units) {
  bool counts = strcmp(column->name, "mfu") == 0 || strcmp(column->name, "tflops_per_device") == 0;
  return counts ? ts_format("%s (%s)", column->heading, ts_flops_rows[units->convention].text)
                : ts_strdup(column->heading);
}

static char *cell_of(const ts_report_column *column, const table *t, int i) {
  char text[64];
  double value = column->value(&t->run[i], t->units);
  snprintf(text, sizeof text, column->format, value);
  return ts_strdup(isfinite(value) ? text : "-");
}

/* Columns that people see as wide as their text. */
static int shown_width(const char *text) {
  int width = 0;
  for (const utf8proc_uint8_t *c = (const utf8proc_uint8_t *) text; *c != 0;) {
    utf8proc_int32_t code;
    utf8proc_ssize_t n = utf8proc_iterate(c, -1, &code);
    width += n > 0 ? utf8proc_charwidth(code) : 1;
    c += n > 0 ? n : 1;
  }
  return width;
}

static void add_padded(const char *cell, int width, bool left, ts_text *to) {
  int rest = width - shown_width(cell);
  rest = rest > 0 ? rest : 0;
  ts_text_add(to, "%*s%s%*s", left ? 0 : rest, "", cell, left ? rest : 0, "");
}

/* Markdown ends a cell at a bar. Owned by the caller. */
static char *escape_bars(const char *name) {
  ts_text text = {0};
  for (const char *c = name; *c != 0; ++c) {
    ts_text_add(&text, *c == '|' ? "\\|" : "%c", *c);
  }
  return text.text != NULL ? text.text : ts_strdup("");
}

/* Cells [n + 1][columns] with the headings first, column 0 the names; owned by the caller. */
static char **make_cells(const table *t, bool markdown, int columns) {
  char **cell = ts_calloc((size_t) (t->n + 1) * (size_t) columns, sizeof *cell);
  cell[0] = ts_strdup("run");
  for (int i = 0; i < t->n; ++i) {
    cell[(i + 1) * columns] = markdown ? escape_bars(t->run[i].name) : ts_strdup(t->run[i].name);
  }
  for (int c = 1; c < columns; ++c) {
    cell[c] = ts_report_heading(&ts_report_columns[c - 1], t->units);
    for (int i = 0; i < t->n; ++i) {
      cell[(i + 1) * columns + c] = cell_of(&ts_report_columns[c - 1], t, i);
    }
  }
  return cell;
}

static int column_width(char *const *cell, int rows, int columns, int c) {
  int width = 3;
  for (int r = 0; r < rows; ++r) {
    int w = shown_width(cell[r * columns + c]);
    width = w > width ? w : width;
  }
  return width;
}

static void print_aligned(const table *t, bool markdown, ts_text *to) {
  int columns = 1;
  while (ts_report_columns[columns - 1].name != NULL) {
    ++columns;
  }
  char **cell = make_cells(t, markdown, columns);
  for (int r = 0; r <= t->n; ++r) {
    for (int c = 0; c < columns; ++c) {
      ts_text_add(to, "%s", markdown ? (c == 0 ? "| " : " | ") : c == 0 ? "" : "  ");
      add_padded(cell[r * columns + c], column_width(cell, t->n + 1, columns, c), c == 0, to);
    }
    ts_text_add(to, markdown ? " |\n" : "\n");
    for (int c = 0; markdown && r == 0 && c < columns; ++c) {
      ts_text_add(to, c == 0 ? "|---" : "|--:");
    }
    ts_text_add(to, markdown && r == 0 ? "|\n" : "");
  }
  for (int i = 0; i < (t->n + 1) * columns; ++i) {
    ts_free(cell[i]);
  }
  ts_free(cell);
}

static void print_table_text(const table *t, ts_text *to) {
  print_aligned(t, false, to);
  ts_text_add(to, "medians without the first %d steps of a job, saves, validations and observed steps\n",
              TS_REPORT_WARM);
}

static void print_table_markdown(const table *t, ts_text *to) {
  print_aligned(t, true, to);
}

/* In quotes, doubled where they are part of it (RFC 4180). */
static void print_table_csv(const table *t, ts_text *to) {
  ts_text_add(to, "run,flops_convention");
  for (const ts_report_column *c = ts_report_columns; c->name != NULL; ++c) {
    ts_text_add(to, ",%s", c->name);
  }
  ts_text_add(to, "\n");
  for (int i = 0; i < t->n; ++i) {
    ts_text_add(to, "\"");
    for (const char *c = t->run[i].name; *c != 0; ++c) {
      ts_text_append(to, "\"\"", *c == '"' ? 1 : 0);
      ts_text_append(to, c, 1);
    }
    ts_text_add(to, "\",%s", ts_flops_rows[t->units->convention].name);
    for (const ts_report_column *c = ts_report_columns; c->name != NULL; ++c) {
      double value = c->value(&t->run[i], t->units);
      ts_text_add(to, isfinite(value) ? ",%.9g" : ",", value);
    }
    ts_text_add(to, "\n");
  }
}

static void print_table_json(const table *t, ts_text *to) {
  ts_text_add(to, "[");
  for (int i = 0; i < t->n; ++i) {
    ts_text_add(to, "%s{\"run\": ", i > 0 ? ",\n " : "");
    ts_text_add_json(to, t->run[i].name);
    ts_text_add(to, ", \"flops_convention\": \"%s\"", ts_flops_rows[t->units->convention].text);
    for (const ts_report_column *c = ts_report_columns; c->name != NULL; ++c) {
      double value = c->value(&t->run[i], t->units);
      ts_text_add(to, isfinite(value) ? ", \"%s\": %.9g" : ", \"%s\": null", c->name, value);
    }
    ts_text_add(to, "}");
  }
  ts_text_add(to, "]\n");
}

ts_status ts_report_table(const ts_report_run *run, int n, const ts_report_units *units, const char *format,
                          ts_text *to, ts_error *err) {
  static const struct {
    const char *name;
    void (*print)(const table *t, ts_text *to);
  } formats[] = {{"text", print_table_text},
                 {"markdown", print_table_markdown},
                 {"csv", print_table_csv},
                 {"json", print_table_json}};
  const table t = {run, n, units};
  for (size_t i = 0; i < sizeof formats / sizeof *formats; ++i) {
    if (strcmp(format, formats[i].name) == 0) {
      formats[i].print(&t, to);
      return TS_OK;
    }
  }
  return ts_error_add(err, "--table %s: text, markdown, csv or json is accepted", format);
}
