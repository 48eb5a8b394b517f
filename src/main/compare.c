/* tessera compare: the first step and column in which two runs differ. */
#include "base/memory.h"
#include "io/csv.h"
#include "main/command.h"

#include <math.h>
#include <string.h>

/* Columns that say what was computed, not how fast. */
static const char *const compared[] = {"step", "tokens", "loss", "grad_norm", "lr", "skipped", "loss_scale"};
enum { N_COMPARED = sizeof compared / sizeof compared[0] };

typedef struct difference {
  int64_t row;
  const char *column;
  double a, b, relative;
} difference;

/* A value by row and column; NaN where the file lacks the column. */
static double at(const ts_csv *csv, int64_t row, const char *column) {
  int c = ts_csv_column(csv, column);
  return c >= 0 ? csv->values[row * csv->n_columns + c] : NAN;
}

static double relative(double a, double b) {
  if (a == b || (isnan(a) && isnan(b))) {
    return 0;
  }
  double scale = fmax(fabs(a), fabs(b));
  return isfinite(a) && isfinite(b) ? fabs(a - b) / scale : INFINITY;
}

static bool find_difference(const ts_csv *a, const ts_csv *b, double tolerance, difference *found, double *largest) {
  *largest = 0;
  bool differs = false;
  for (int64_t row = 0; row < a->n_rows && row < b->n_rows; ++row) {
    for (int c = 0; c < N_COMPARED; ++c) {
      double x = at(a, row, compared[c]), y = at(b, row, compared[c]), r = relative(x, y);
      *largest = fmax(*largest, r);
      if (!differs && r > tolerance) {
        differs = true;
        *found = (difference){row, compared[c], x, y, r};
      }
    }
  }
  return differs;
}

static ts_status read_run(const char *run, ts_csv *table, ts_error *err) {
  char *path = ts_format("%s/metrics.csv", run);
  ts_status status = ts_csv_read(path, table, err);
  ts_free(path);
  return status;
}

static void print_text(const ts_csv *a, const ts_csv *b, bool differs, const difference *d, double largest) {
  if (differs) {
    printf("step %.0f: %s differs: %.17g and %.17g (relative %.3g)\n", at(a, d->row, "step"), d->column, d->a,
           d->b, d->relative);
  } else if (a->n_rows != b->n_rows) {
    printf("equal for %lld steps, then one run has %lld and the other %lld\n",
           (long long) (a->n_rows < b->n_rows ? a->n_rows : b->n_rows), (long long) a->n_rows, (long long) b->n_rows);
  } else {
    printf("equal for all %lld steps (largest relative difference %.3g)\n", (long long) a->n_rows, largest);
  }
}

static void print_json(const ts_csv *a, const ts_csv *b, bool differs, const difference *d, double largest) {
  printf("{\"equal\": %s, \"steps\": [%lld, %lld], \"largest_relative_difference\": %.17g",
         differs || a->n_rows != b->n_rows ? "false" : "true", (long long) a->n_rows, (long long) b->n_rows,
         isfinite(largest) ? largest : -1.0);
  if (differs) {
    printf(", \"first\": {\"step\": %.0f, \"column\": \"%s\", \"relative\": %.17g}", at(a, d->row, "step"),
           d->column, isfinite(d->relative) ? d->relative : -1.0);
  }
  printf("}\n");
}

int ts_main_compare(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  double tolerance;
  ts_csv a = {0}, b = {0};
  const char *format = ts_argument(arguments, "--format");
  bool json = strcmp(format, "json") == 0;
  int code = json || strcmp(format, "text") == 0 ? 0 : ts_error_add(err, "--format %s: text or json is accepted", format);
  code = code == 0 ? (int) ts_argument_double(arguments, "--tolerance", 0, 1, &tolerance, err) : code;
  code = code == 0 ? (int) read_run(arguments->positional[0], &a, err) : code;
  code = code == 0 ? (int) read_run(arguments->positional[1], &b, err) : code;
  if (code == 0) {
    difference d;
    double largest;
    bool differs = find_difference(&a, &b, tolerance, &d, &largest);
    (json ? print_json : print_text)(&a, &b, differs, &d, largest);
    code = differs || a.n_rows != b.n_rows ? 1 : 0;
  }
  ts_csv_free(&a);
  ts_csv_free(&b);
  return code;
}
