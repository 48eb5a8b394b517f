/* tessera compare: the first step, column and tensor in which two runs differ. */
#include "base/memory.h"
#include "base/text.h"
#include "io/csv.h"
#include "main/command.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Columns that say what was computed, not how fast; and which of the tolerances is theirs.  The norm is that of
 * gradients, sums that nearly cancel: on another grid it differs by far more than the loss. */
enum { EXACT, LOSS, NORM, N_TOLERANCES };
#define NORM_TO_LOSS 500
static const struct {
  const char *name;
  int tolerance;
} compared[] = {{"step", EXACT}, {"tokens", EXACT},  {"loss", LOSS},       {"grad_norm", NORM},
                {"lr", EXACT},   {"skipped", EXACT}, {"loss_scale", EXACT}};
enum { N_COMPARED = sizeof compared / sizeof compared[0] };

typedef struct comparison {
  ts_csv a, b;
  bool differs; /* some value by more than the tolerance */
  int64_t row;
  const char *column;
  double value[2], relative;
  double tolerance[N_TOLERANCES], largest[N_TOLERANCES]; /* relative differences: accepted, found */
  char *tensor; /* owned: "step,NAME" of the first digest that differs, NULL for none */
  bool has_digests;
  bool equal; /* to the tolerance */
} comparison;

/* ---- metrics ---- */

/* A value by row and column; NaN where the file lacks the column. */
static double at(const ts_csv *csv, int64_t row, const char *column) {
  int c = ts_csv_column(csv, column);
  return c >= 0 ? csv->values[row * csv->n_columns + c] : NAN;
}

static double relative(double a, double b) {
  if (a == b || (isnan(a) && isnan(b))) {
    return 0;
  }
  return isfinite(a) && isfinite(b) ? fabs(a - b) / fmax(fabs(a), fabs(b)) : INFINITY;
}

static void compare_metrics(comparison *c) {
  for (int64_t row = 0; row < c->a.n_rows && row < c->b.n_rows; ++row) {
    for (int i = 0; i < N_COMPARED; ++i) {
      int kind = compared[i].tolerance;
      double x = at(&c->a, row, compared[i].name), y = at(&c->b, row, compared[i].name), r = relative(x, y);
      c->largest[kind] = fmax(c->largest[kind], r);
      if (!c->differs && r > c->tolerance[kind]) {
        c->differs = true;
        c->row = row;
        c->column = compared[i].name;
        c->value[0] = x;
        c->value[1] = y;
        c->relative = r;
      }
    }
  }
}

/* ---- digests ---- */

/* The lines "step,tensor,digest" of one step, and the first one of the next. */
typedef struct digest_lines {
  char **line; /* owned, with their strings */
  int n, capacity;
  char next[4096];
} digest_lines;

static void free_lines(digest_lines *l) {
  for (int i = 0; i < l->n; ++i) {
    ts_free(l->line[i]);
  }
  l->n = 0;
}

/* \return false at the end of the file. */
static bool read_step(FILE *file, digest_lines *l) {
  free_lines(l);
  do {
    if (l->next[0] != 0) {
      TS_GROW(l->line, l->n, l->capacity);
      l->line[l->n++] = ts_strdup(l->next);
    }
    if (fgets(l->next, sizeof l->next, file) == NULL) {
      l->next[0] = 0;
      break;
    }
  } while (l->n == 0 || strtoll(l->next, NULL, 10) == strtoll(l->line[0], NULL, 10));
  return l->n > 0;
}

static int compare_lines(const void *a, const void *b) {
  return strcmp(*(char *const *) a, *(char *const *) b);
}

/* "step,tensor" of the first line of `these` that the others, which it sorts, have not; NULL: they have all. */
static char *first_missing(const digest_lines *these, digest_lines *others) {
  qsort(others->line, (size_t) others->n, sizeof *others->line, compare_lines);
  for (int i = 0; i < these->n; ++i) {
    const char *line = these->line[i];
    if (bsearch(&line, others->line, (size_t) others->n, sizeof *others->line, compare_lines) == NULL) {
      const char *comma = strrchr(line, ',');
      return ts_format("%.*s", comma != NULL ? (int) (comma - line) : (int) strlen(line), line);
    }
  }
  return NULL;
}

/* Grids differ in the order in which they have the tensors: a line of the one is somewhere in the other's step. */
static char *first_difference(FILE *a, FILE *b) {
  digest_lines x = {0}, y = {0};
  char *found = NULL;
  while (found == NULL && read_step(a, &x) && read_step(b, &y)) {
    found = first_missing(&x, &y);
    found = found == NULL ? first_missing(&y, &x) : found;
  }
  free_lines(&x);
  free_lines(&y);
  ts_free(x.line);
  ts_free(y.line);
  return found;
}

static FILE *open_digest_table(const char *run) {
  char *path = ts_format("%s/digests.csv", run);
  FILE *file = ts_open_plain(path, SIZE_MAX, NULL);
  ts_free(path);
  return file;
}

static void compare_digests(comparison *c, const char *run_a, const char *run_b) {
  FILE *a = open_digest_table(run_a), *b = open_digest_table(run_b);
  c->has_digests = a != NULL && b != NULL;
  if (c->has_digests) {
    c->tensor = first_difference(a, b);
  }
  if (a != NULL) {
    fclose(a);
  }
  if (b != NULL) {
    fclose(b);
  }
}

/* ---- the report ---- */

static const char *differing_tensor(const comparison *c) {
  const char *comma = strchr(c->tensor, ',');
  return comma != NULL ? comma + 1 : c->tensor;
}

static void print_tolerances(const comparison *c) {
  if (c->tolerance[LOSS] > 0 || c->tolerance[NORM] > 0) {
    printf("equal is: loss to %g, grad_norm to %g, the other columns exactly\n", c->tolerance[LOSS],
           c->tolerance[NORM]);
  }
}

static void print_comparison(const comparison *c) {
  long long a = (long long) c->a.n_rows, b = (long long) c->b.n_rows;
  if (c->differs) {
    printf("step %.0f: %s differs: %.17g and %.17g (relative %.3g)\n", at(&c->a, c->row, "step"), c->column,
           c->value[0], c->value[1], c->relative);
    print_tolerances(c);
  } else if (a != b) {
    printf("equal for %lld steps, then one run has %lld and the other %lld\n", a < b ? a : b, a, b);
  } else {
    printf("equal for all %lld steps (largest relative difference: loss %.3g, grad_norm %.3g)\n", a, c->largest[LOSS],
           c->largest[NORM]);
    print_tolerances(c);
  }
  if (c->tensor != NULL) {
    printf("first tensor that differs: %s, after step %d\n", differing_tensor(c), atoi(c->tensor));
  } else if (c->differs && !c->has_digests) {
    printf("to name the first tensor, run both with --set debug.digest_every=1\n");
  }
}

static void print_comparison_json(const comparison *c) {
  double largest = fmax(c->largest[EXACT], fmax(c->largest[LOSS], c->largest[NORM]));
  printf("{\"equal\": %s, \"steps\": [%lld, %lld], \"largest_relative_difference\": %.17g, ",
         c->equal ? "true" : "false", (long long) c->a.n_rows, (long long) c->b.n_rows,
         isfinite(largest) ? largest : -1.0);
  printf("\"tolerance\": {\"loss\": %g, \"grad_norm\": %g}", c->tolerance[LOSS], c->tolerance[NORM]);
  if (c->differs) {
    printf(", \"step\": %.0f, \"column\": \"%s\", \"relative\": %.17g", at(&c->a, c->row, "step"), c->column,
           isfinite(c->relative) ? c->relative : -1.0);
  }
  if (c->tensor != NULL) {
    ts_text name = {0};
    ts_text_add_json(&name, differing_tensor(c));
    printf(", \"tensor\": %s, \"tensor_step\": %d", name.text, atoi(c->tensor));
    ts_text_free(&name);
  }
  printf("}\n");
}

static ts_status read_run(const char *run, ts_csv *csv, ts_error *err) {
  char *path = ts_format("%s/metrics.csv", run);
  ts_status status = ts_csv_read(path, csv, err);
  for (int i = 0; i < N_COMPARED && status == TS_OK; ++i) {
    if (ts_csv_column(csv, compared[i].name) < 0) {
      status = ts_error_add(err, "%s: there is no column %s: not the metrics of a run", path, compared[i].name);
    }
  }
  ts_free(path);
  return status;
}

static ts_status read_tolerances(const ts_arguments *arguments, double tolerance[N_TOLERANCES], ts_error *err) {
  ts_status status = ts_argument_double(arguments, "--tolerance", 0, 1, &tolerance[LOSS], err);
  tolerance[NORM] = NORM_TO_LOSS * tolerance[LOSS];
  return status != TS_OK || ts_argument(arguments, "--norm-tolerance") == NULL
             ? status
             : ts_argument_double(arguments, "--norm-tolerance", 0, 1, &tolerance[NORM], err);
}

int ts_main_compare(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  comparison c = {0};
  const char *format = ts_argument(arguments, "--format");
  bool json = strcmp(format, "json") == 0;
  int code =
      json || strcmp(format, "text") == 0 ? 0 : ts_error_add(err, "--format %s: text or json is accepted", format);
  code = code == 0 ? (int) read_tolerances(arguments, c.tolerance, err) : code;
  code = code == 0 ? (int) read_run(arguments->positional[0], &c.a, err) : code;
  code = code == 0 ? (int) read_run(arguments->positional[1], &c.b, err) : code;
  if (code == 0) {
    compare_metrics(&c);
    compare_digests(&c, arguments->positional[0], arguments->positional[1]);
    /* digests know equal or not, nothing between */
    bool same_values = !c.differs && (c.tensor == NULL || c.tolerance[LOSS] > 0 || c.tolerance[NORM] > 0);
    c.equal = same_values && c.a.n_rows == c.b.n_rows;
    (json ? print_comparison_json : print_comparison)(&c);
    code = c.equal ? 0 : 1;
  }
  ts_csv_free(&c.a);
  ts_csv_free(&c.b);
  ts_free(c.tensor);
  return code;
}
