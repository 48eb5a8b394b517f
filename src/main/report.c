/* tessera report: a page, or a table, of runs. */
#include "base/log.h"
#include "base/memory.h"
#include "main/command.h"
#include "report/page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static ts_status read_units(const ts_arguments *arguments, ts_report_units *units, ts_error *err) {
  const char *convention = ts_argument(arguments, "--mfu"), *peak = ts_argument(arguments, "--peak");
  int i = 0;
  while (i < TS_N_FLOPS_CONVENTIONS && strcmp(convention, ts_flops_rows[i].name) != 0) {
    ++i;
  }
  if (i == TS_N_FLOPS_CONVENTIONS) {
    return ts_error_add(err, "--mfu %s: 6n, causal or full is accepted", convention);
  }
  *units = (ts_report_units){.convention = (ts_flops_convention) i};
  if (peak != NULL) {
    char *end;
    double tflops = strtod(peak, &end);
    if (end == peak || *end != 0 || !(tflops > 0) || !(tflops < 1e9)) {
      return ts_error_add(err, "--peak %s: TFLOP/s of a device are expected, such as 312", peak);
    }
    units->peak = 1e12 * tflops;
  }
  return TS_OK;
}

/* A page replaces an earlier one, and no other file. */
static ts_status check_target(const char *path, bool given, ts_error *err) {
  char head[1024];
  struct stat info;
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
    return ts_error_add(err, "%s is no regular file: choose another name with -o", path);
  }
  FILE *file = fopen(path, "r");
  size_t n = file != NULL ? fread(head, 1, sizeof head - 1, file) : 0;
  head[n] = 0;
  if (file != NULL) {
    fclose(file);
    if (n > 0 && strstr(head, TS_REPORT_MARK) == NULL) {
      return ts_error_add(err, "%s is there and is no report: choose another name with -o", path);
    }
  }
  ts_error why = {0};
  ts_status status = ts_try_writing(path, &why);
  if (status != TS_OK) {
    ts_error_add(err, given ? "%s" : "%s: choose another place with -o FILE.html", why.text);
  }
  ts_error_clear(&why);
  return status;
}

/* Owned by the caller. */
static char *page_path(const ts_arguments *arguments) {
  const char *out = ts_argument(arguments, "-o");
  return out != NULL                    ? ts_strdup(out)
         : arguments->n_positional == 1 ? ts_format("%s/report.html", arguments->positional[0])
                                        : ts_strdup("report.html");
}

static ts_status write_page(const ts_arguments *arguments, const ts_report_run *run, const ts_report_units *units,
                            ts_error *err) {
  char *path = page_path(arguments);
  ts_text html = {0};
  ts_report_page(run, arguments->n_positional, units, ts_argument(arguments, "--plain") != NULL, &html);
  ts_status status = ts_write_file(path, html.text, html.length, err);
  if (status == TS_OK) {
    char size[32];
    printf("%s: %s\n", path, ts_human_bytes((double) html.length, size));
  }
  ts_text_free(&html);
  ts_free(path);
  return status;
}

/* What was left out stands in the page too. */
static void warn_of_damage(const ts_report_run *run) {
  if (run->damage != NULL) {
    fprintf(stderr, "tessera: warning: %s: %s\n", run->name, run->damage);
  }
}

static ts_status print_run_table(const ts_report_run *run, int n, const ts_report_units *units, const char *format,
                                 ts_error *err) {
  ts_text text = {0};
  ts_status status = ts_report_table(run, n, units, format[0] != 0 ? format : "text", &text, err);
  if (status == TS_OK) {
    fputs(text.text, stdout);
  }
  ts_text_free(&text);
  return status;
}

int ts_main_report(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  const char *table = ts_argument(arguments, "--table");
  const int n = arguments->n_positional;
  ts_report_units units;
  ts_status status = read_units(arguments, &units, err);
  const bool page = table == NULL || ts_argument(arguments, "-o") != NULL;
  bool there = true; /* else reading says it */
  for (int i = 0; i < n; ++i) {
    there = there && ts_has_file(arguments->positional[i], "metrics.csv");
  }
  if (status == TS_OK && page && there) {
    char *path = page_path(arguments);
    status = check_target(path, ts_argument(arguments, "-o") != NULL, err);
    ts_free(path);
  }
  ts_report_run *run = ts_calloc((size_t) n, sizeof *run);
  for (int i = 0; i < n && status == TS_OK; ++i) {
    status = ts_report_run_read(arguments->positional[i], &run[i], err);
    warn_of_damage(&run[i]);
  }
  if (status == TS_OK && table != NULL) {
    status = print_run_table(run, n, &units, table, err);
  }
  if (status == TS_OK && page) {
    status = write_page(arguments, run, &units, err);
  }
  for (int i = 0; i < n; ++i) {
    ts_report_run_clear(&run[i]);
  }
  ts_free(run);
  return status;
}
