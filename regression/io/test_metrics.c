/* The numbers of a run: written, read back to the bit, drawn; the timeline is JSON. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "io/csv.h"
#include "io/metrics.h"
#include "io/plot.h"
#include "io/rows.h"
#include "io/timeline.h"
#include "regression/tap.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static char *path_of(const char *name) {
  return ts_format("%s/%s", tap_directory(), name);
}

static char *read_text(const char *directory, const char *name) {
  char *path = ts_format("%s/%s", directory, name), *text;
  size_t n;
  ts_error err = {0};
  if (ts_read_file(path, 1 << 26, &text, &n, &err) != TS_OK) {
    tap_note("%s", err.text);
    text = ts_strdup("");
  }
  ts_error_clear(&err);
  ts_free(path);
  return text;
}

static void write_text(const char *directory, const char *name, const char *text) {
  char *path = ts_format("%s/%s", directory, name);
  TS_CHECK(ts_write_file(path, text, strlen(text), NULL) == TS_OK, "%s", path);
  ts_free(path);
}

static int count(const char *text, const char *part) {
  int n = 0;
  for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part)) {
    ++n;
  }
  return n;
}

static void test_print_double(void) {
  const double nice[] = {0.1, 0.002, 1e-300, 3, 1.0 / 3, 5e-324};
  const char *const texts[] = {"0.1", "0.002", "1e-300", "3", "0.3333333333333333", "4.94065645841247e-324"};
  char out[32];
  for (int i = 0; i < 6; ++i) {
    tap_ok(strcmp(ts_print_double(nice[i], out), texts[i]) == 0, "%s in the fewest digits: %s", texts[i], out);
  }
  int wrong = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    uint64_t bits = ts_mix(1, i);
    double value;
    memcpy(&value, &bits, sizeof value);
    ts_print_double(value, out);
    wrong += isnan(value) ? strcmp(out, "nan") != 0 : strtod(out, NULL) != value || strlen(out) > 24;
  }
  tap_ok(wrong == 0, "20000 random doubles read back to the bit");
}

static ts_metrics_row row_of(int64_t i) {
  double loss = i == 3 ? NAN : i == 5 ? INFINITY : 1.5 + 4 / (1 + (double) i);
  return (ts_metrics_row){.step = i,
                          .tokens = i * 2048,
                          .loss = loss,
                          .grad_norm = 1.0 / (double) i,
                          .lr = 2e-3,
                          .peak_bytes = (int64_t) 3 << 40,
                          .skipped = i > 3,
                          .loss_scale = 65536};
}

/* A run of n steps with a validation every 10. */
static char *make_run(const char *name, int64_t n) {
  char *directory = path_of(name);
  ts_metrics *metrics;
  TS_CHECK(ts_make_directory(directory, NULL) == TS_OK, "%s", directory);
  tap_ok(ts_metrics_open(directory, false, &metrics, NULL) == TS_OK, "metrics of %s", name);
  for (int64_t i = 1; i <= n; ++i) {
    ts_metrics_row row = row_of(i);
    ts_metrics_step(metrics, &row);
    if (i % 10 == 0) {
      ts_metrics_validation(metrics, &(ts_validation_row){i, i * 2048, row.loss + 0.1, 7, 0.25});
    }
  }
  ts_metrics_close(&metrics);
  ts_metrics_close(&metrics);
  return directory;
}

/* A row a layer; a run that goes on keeps those of the steps that are done, or begins a file where there is none. */
static void test_experts(void) {
  char *directory = path_of("experts"), *path = ts_format("%s/moe.csv", directory);
  ts_metrics *metrics;
  ts_error err = {0};
  ts_csv csv;
  TS_CHECK(ts_make_directory(directory, NULL) == TS_OK, "%s", directory);
  tap_ok(ts_metrics_open(directory, false, &metrics, NULL) == TS_OK && access(path, F_OK) != 0,
         "no experts, no moe.csv");
  ts_metrics_close(&metrics);
  for (int64_t step = 0; step <= 2; step += 2) { /* there is no file, and there is one */
    tap_ok(ts_metrics_continue(directory, true, step, &metrics, &err) == TS_OK, "experts from step %lld on",
           (long long) step);
    for (int64_t i = 0; i < 6; ++i) {
      ts_metrics_experts(metrics, &(ts_experts_row){.step = step + 1 + i / 2, .layer = i % 2, .largest = 1.5});
    }
    ts_metrics_close(&metrics);
  }
  tap_ok(ts_csv_read(path, &csv, &err) == TS_OK && csv.n_rows == 10 && csv.values[3 * csv.n_columns] == 2 &&
             csv.values[4 * csv.n_columns] == 3 && csv.values[9 * csv.n_columns + 1] == 1 &&
             csv.values[9 * csv.n_columns + 3] == 1.5,
         "rows of two layers, each step once");
  ts_csv_free(&csv);
  ts_free(path);
  ts_free(directory);
}

/* A run that goes on: later rows and a row without its end are cut off, files of other columns are not touched. */
static void test_continue(void) {
  char *directory = make_run("again", 20), *path = ts_format("%s/metrics.csv", directory);
  ts_error err = {0};
  FILE *file = fopen(path, "a");
  fputs("21,half a row", file);
  fclose(file);
  ts_metrics *metrics;
  tap_ok(ts_metrics_continue(directory, false, 7, &metrics, &err) == TS_OK, "metrics go on after step 7");
  ts_metrics_row row = row_of(8);
  ts_metrics_step(metrics, &row);
  ts_metrics_close(&metrics);
  ts_csv csv;
  tap_ok(ts_csv_read(path, &csv, &err) == TS_OK && csv.n_rows == 8 && csv.values[6 * csv.n_columns] == 7 &&
             csv.values[7 * csv.n_columns] == 8,
         "with the rows up to it and the next one");
  ts_csv_free(&csv);
  file = fopen(path, "w");
  fputs("step,loss\n1,2\n", file);
  fclose(file);
  tap_ok(ts_metrics_continue(directory, false, 7, &metrics, &err) == TS_BAD_INPUT && metrics == NULL &&
             strstr(err.text, "metrics.csv: has other columns") != NULL,
         "a file of another version is refused");
  ts_error_clear(&err);
  ts_free(path);
  ts_free(directory);
}

/* The first n lines, without the last `columns` columns; owned by the caller. */
static char *without_last(const char *text, int n, int columns) {
  ts_text out = {0};
  for (const char *line = text, *end; n > 0 && (end = strchr(line, '\n')) != NULL; line = end + 1, --n) {
    const char *cut = end;
    for (int i = 0; i < columns; ++i) {
      cut = memrchr(line, ',', (size_t) (cut - line));
    }
    ts_text_append(&out, line, (size_t) (cut - line));
    ts_text_add(&out, "\n");
  }
  return out.text;
}

/* A run of a version that had fewer columns goes on with all of them: its rows as they were, and nan. */
static void test_fewer_columns(int columns) {
  char *directory = make_run("earlier", 20), *path = ts_format("%s/metrics.csv", directory);
  char *whole = read_text(directory, "metrics.csv"), *old = without_last(whole, 21, columns);
  char *validation = read_text(directory, "validation.csv"), *old_validation = without_last(validation, 3, 1);
  write_text(directory, "metrics.csv", old);
  write_text(directory, "validation.csv", old_validation);
  ts_metrics *metrics;
  ts_error err = {0};
  tap_ok(ts_metrics_continue(directory, false, 18, &metrics, &err) == TS_OK, "%d columns fewer: the run goes on%s",
         columns, err.count > 0 ? err.text : "");
  for (int64_t i = 19; metrics != NULL && i <= 20; ++i) {
    ts_metrics_row row = row_of(i);
    ts_metrics_step(metrics, &row);
  }
  ts_metrics_close(&metrics);
  char *now = read_text(directory, "metrics.csv"), *cut = without_last(now, 21, columns);
  tap_ok(strcmp(cut, old) == 0, "%d columns fewer: the earlier ones are as they were, in all rows", columns);
  tap_ok(strncmp(now, whole, (size_t) (strchr(whole, '\n') - whole)) == 0 && count(now, ",nan\n") == 18,
         "%d columns fewer: the first line has the new ones last, the rows nan", columns);
  ts_csv csv;
  tap_ok(ts_csv_read(path, &csv, &err) == TS_OK && csv.n_rows == 20 && csv.n_columns == 26 &&
             isnan(csv.values[17 * 26 + 25]) && csv.values[18 * 26 + 25] == 0 &&
             ts_plot_losses(directory, &err) == TS_OK,
         "%d columns fewer: what reads and draws a run takes it", columns);
  ts_csv_free(&csv);
  ts_free(now);
  now = read_text(directory, "validation.csv");
  ts_free(cut);
  cut = without_last(now, 3, 1);
  char *one = without_last(old_validation, 2, 0); /* the second is of step 20 */
  tap_ok(strcmp(cut, one) == 0 && count(now, ",nan\n") == 1, "%d columns fewer: validation.csv too", columns);
  ts_error_clear(&err);
  char *all[] = {one, cut, now, old_validation, validation, old, whole, path, directory};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    ts_free(all[i]);
  }
}

/* First lines that are no earlier version's, or none: a table and what it is then (NULL: refused and as it was). */
static void test_other_columns(void) {
  static const char names[] = "step,name,more\n";
  const struct {
    const char *label, *text, *after;
  } cases[] = {{"equal columns", "step,name,more\n1,x,2\n3,y,4\n", "step,name,more\n1,x,2\n"},
               {"words", "step,name\n1,x\n3,y\n", "step,name,more\n1,x,nan\n"},
               {"as long as it was", "step,name\n1,x\n3,abcde\n", "step,name,more\n1,x,nan\n"},
               {"no rows", "step\n", names},
               {"an empty file", "", ""},
               {"half of a first line", "step,na", ""},
               {"half of a name", "step,na\n1,x\n", NULL},
               {"another order", "name,step\nx,1\n", NULL},
               {"a column that is gone", "step,more\n1,2\n", NULL},
               {"a newer version's", "step,name,more,most\n1,x,2,3\n3,x,2,3\n", NULL},
               {"an empty first line", "\n1,x\n", NULL}};
  char *path = path_of("columns.csv");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    write_text(tap_directory(), "columns.csv", cases[i].text);
    ts_error err = {0};
    ts_status status = ts_csv_continue(path, names, 2, &err);
    char *text = read_text(tap_directory(), "columns.csv");
    bool refused =
        status == TS_BAD_INPUT && strstr(err.text, "has other columns than this version writes; move") != NULL;
    tap_ok((cases[i].after != NULL ? status == TS_OK : refused) &&
               strcmp(text, cases[i].after != NULL ? cases[i].after : cases[i].text) == 0,
           "columns: %s", cases[i].label);
    ts_error_clear(&err);
    ts_free(text);
  }
  ts_free(path);
}

static void test_metrics(void) {
  char *directory = make_run("run", 20), *path = ts_format("%s/metrics.csv", directory);
  ts_csv csv;
  ts_error err = {0};
  tap_ok(ts_csv_read(path, &csv, &err) == TS_OK && csv.n_rows == 20 && csv.n_columns == 26,
         "metrics: 20 rows, 26 columns");
  bool same = true;
  for (int64_t i = 0; i < 20; ++i) {
    ts_metrics_row row = row_of(i + 1);
    const double *values = csv.values + i * csv.n_columns;
    double loss = values[ts_csv_column(&csv, "loss")];
    same = same && values[0] == (double) row.step && values[ts_csv_column(&csv, "tokens")] == (double) row.tokens &&
           (isnan(row.loss) ? isnan(loss) : loss == row.loss) &&
           values[ts_csv_column(&csv, "grad_norm")] == row.grad_norm && values[ts_csv_column(&csv, "lr")] == row.lr &&
           values[ts_csv_column(&csv, "peak_bytes")] == (double) row.peak_bytes &&
           values[ts_csv_column(&csv, "skipped")] == (double) row.skipped &&
           values[ts_csv_column(&csv, "loss_scale")] == row.loss_scale;
  }
  tap_ok(same, "metrics: all rows read back to the bit, NaN and infinity too");
  tap_ok(ts_csv_column(&csv, "los") == -1, "metrics: no column of another name");
  ts_csv_free(&csv);
  char *text = read_text(directory, "metrics.csv");
  const char *names =
      "step,tokens,loss,grad_norm,lr,step_seconds,tokens_per_second,model_tflops,mfu,peak_bytes,"
      "comm_seconds,exposed_comm_seconds,data_seconds,skipped,loss_scale,save_seconds,stall_seconds,bubble,"
      "forward_seconds,backward_seconds,update_seconds,slowest_rank,slowest_seconds,observed,time,save_step\n";
  tap_ok(strncmp(text, names, strlen(names)) == 0, "metrics: the columns users know, in order");
  ts_free(text);
  text = read_text(directory, "validation.csv");
  tap_ok(strncmp(text, "step,tokens,loss,batches,seconds\n10,20480,", 41) == 0, "validation: columns and first row");
  ts_free(text);
  ts_metrics *metrics;
  tap_ok(ts_metrics_open("/nonexistent", false, &metrics, &err) == TS_BAD_INPUT && metrics == NULL &&
             strstr(err.text, "/nonexistent/metrics.csv: cannot be written") != NULL,
         "metrics: a directory that is not there");
  ts_error_clear(&err);
  ts_free(path);
  ts_free(directory);
}

static void test_rows_at_once(void) {
  char *directory = path_of("watched");
  ts_metrics *metrics;
  TS_CHECK(ts_make_directory(directory, NULL) == TS_OK && ts_metrics_open(directory, false, &metrics, NULL) == TS_OK,
           "%s", directory);
  ts_metrics_step(metrics, &(ts_metrics_row){.step = 1});
  char *text = read_text(directory, "metrics.csv");
  tap_ok(strstr(text, "\n1,0,0,") != NULL && text[strlen(text) - 1] == '\n',
         "a row is in the file when the call returns");
  ts_free(text);
  ts_metrics_close(&metrics);
  ts_free(directory);
}

/* ---- a full disk ---- */

static void limit_files(rlim_t bytes) {
  struct rlimit limit;
  TS_CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0, "getrlimit");
  limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
  TS_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
}

static int begin_stderr(const char *path) {
  int kept = dup(2), file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  TS_CHECK(kept >= 0 && file >= 0 && dup2(file, 2) == 2 && close(file) == 0, "%s", path);
  return kept;
}

static void end_stderr(int kept) {
  fflush(stderr);
  TS_CHECK(dup2(kept, 2) == 2 && close(kept) == 0, "stderr");
}

static int64_t whole_rows(const char *directory, bool *in_order) {
  char *path = ts_format("%s/metrics.csv", directory);
  ts_csv csv;
  int64_t n = ts_csv_read(path, &csv, NULL) == TS_OK ? csv.n_rows : -1;
  for (int64_t i = 0; i < n; ++i) {
    *in_order = *in_order && csv.values[i * csv.n_columns] == (double) (i + 1);
  }
  ts_csv_free(&csv);
  ts_free(path);
  return n;
}

/* Files that may not grow, as on a full disk: the first row that meets the limit finds room for a part of it. */
static void test_full(void) {
  char *directory = path_of("full"), *said = path_of("full.stderr");
  ts_metrics *metrics;
  TS_CHECK(ts_make_directory(directory, NULL) == TS_OK && ts_metrics_open(directory, false, &metrics, NULL) == TS_OK,
           "%s", directory);
  signal(SIGXFSZ, SIG_IGN);
  int kept = begin_stderr(said);
  bool in_order = true;
  limit_files(1000);
  for (int64_t i = 1; i <= 100; ++i) {
    ts_metrics_row row = row_of(i);
    errno = ENOENT; /* of something else, before */
    ts_metrics_step(metrics, &row);
  }
  end_stderr(kept);
  int64_t before = whole_rows(directory, &in_order);
  char *text = read_text(directory, "metrics.csv"), *warning = read_text(tap_directory(), "full.stderr");
  tap_ok(before > 0 && before < 100 && in_order && text[strlen(text) - 1] == '\n', "a full disk: %lld whole rows",
         (long long) before);
  tap_ok(count(warning, "cannot be written: File too large") == 1 && count(warning, "\n") == 1,
         "a full disk: said once, with the reason: %s", warning);
  limit_files(2000);
  ts_metrics_flush(metrics);
  int64_t more = whole_rows(directory, &in_order);
  tap_ok(more > before && more < 100 && in_order, "room for a part of what waits: %lld whole rows", (long long) more);
  limit_files(RLIM_INFINITY);
  ts_metrics_step(metrics, &(ts_metrics_row){.step = 101});
  tap_ok(whole_rows(directory, &in_order) == 101 && in_order, "room again: no row is missing");
  ts_metrics_close(&metrics);
  ts_free(warning);
  ts_free(text);
  ts_free(said);
  ts_free(directory);
}

/* Records of so many bytes as the first of them says; those of the middle say something else. */
enum { RECORD = 10 };

static size_t test_record_length(const char *data, size_t length) {
  size_t own = length > 0 ? (unsigned char) data[0] : 1;
  return own <= length ? own : 0;
}

static const ts_row_kind test_records = {"record", test_record_length};

static void note_said(void *user, ts_log_level level, const char *text) {
  (void) level;
  ts_text_add(user, "%s; ", text);
}

/* Seven records to a file that cannot be cut and has room for two and a half.  \return what was said. */
static ts_text fill_uncut(int file, char data[7 * RECORD], bool room_again) {
  char *path = ts_format("/proc/self/fd/%d", file);
  ts_text said = {0};
  ts_rows *rows;
  TS_CHECK(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "no seal");
  TS_CHECK(ts_rows_open_kind(path, false, &test_records, data, RECORD, &rows, NULL) == TS_OK, "%s", path);
  ts_log_keep(note_said, &said);
  limit_files(5 * RECORD / 2);
  ts_rows_add(rows, data + RECORD, 5 * RECORD);
  ts_rows_add(rows, data + 6 * RECORD, RECORD);
  limit_files(room_again ? RLIM_INFINITY : 3 * RECORD - 2);
  ts_rows_close(&rows);
  ts_log_keep(NULL, NULL);
  limit_files(RLIM_INFINITY);
  ts_free(path);
  return said;
}

/* Half a record stays in the file: its rest is no record of its own. */
static void test_uncut(void) {
  char *stderr_path = path_of("uncut.stderr"), data[7 * RECORD], got[8 * RECORD];
  for (int i = 0; i < 7 * RECORD; ++i) {
    data[i] = (char) (i % RECORD == 0 ? RECORD : i % RECORD == 5 ? 1 : 200 + i / RECORD);
  }
  for (int room_again = 0; room_again < 2; ++room_again) {
    int file = memfd_create("uncut", MFD_ALLOW_SEALING), kept = begin_stderr(stderr_path);
    ts_text said = fill_uncut(file, data, room_again != 0);
    end_stderr(kept);
    ssize_t n = pread(file, got, sizeof got, 0), whole = room_again != 0 ? sizeof data : 3 * RECORD - 2;
    tap_ok(n == whole && memcmp(got, data, (size_t) n) == 0, "a file that cannot be cut: %zd bytes in order", n);
    tap_ok(room_again != 0 || strstr(said.text, "5 records could not be written and are lost") != NULL,
           "and what is said counts records: %s", said.text);
    ts_text_free(&said);
    close(file);
  }
  ts_free(stderr_path);
}

static int lines_of(const char *name) {
  char *text = read_text(tap_directory(), name);
  int n = count(text, "\n");
  ts_free(text);
  return n;
}

/* Rows that may be held are written together: at a flush, when they are many, late or the last. */
static void test_held(void) {
  enum { MANY = 70000 };
  char *path = path_of("held.csv"), *many = ts_malloc(MANY);
  int lines[6], n = 0;
  ts_rows *rows;
  memset(many, '1', MANY - 1);
  many[MANY - 1] = '\n';
  TS_CHECK(ts_rows_open(path, true, "x\n", &rows, NULL) == TS_OK, "%s", path);
  ts_rows_hold(rows, 3600);
  ts_rows_add(rows, "1\n", 2); /* the first one: nothing was written before */
  lines[n++] = lines_of("held.csv");
  ts_rows_add(rows, "2\n", 2);
  ts_rows_add(rows, "3\n", 2);
  lines[n++] = lines_of("held.csv");
  ts_rows_flush(rows);
  lines[n++] = lines_of("held.csv");
  ts_rows_add(rows, many, MANY);
  lines[n++] = lines_of("held.csv");
  ts_rows_add(rows, "5\n", 2);
  ts_rows_hold(rows, 1e-9);
  ts_rows_add(rows, "6\n", 2);
  lines[n++] = lines_of("held.csv");
  ts_rows_hold(rows, 3600);
  ts_rows_add(rows, "7\n", 2);
  ts_rows_close(&rows);
  lines[n++] = lines_of("held.csv");
  tap_ok(lines[0] == 2 && lines[1] == 2, "rows within the time are held: %d and %d lines", lines[0], lines[1]);
  tap_ok(lines[2] == 4, "a flush writes them: %d", lines[2]);
  tap_ok(lines[3] == 5, "and more than are held: %d", lines[3]);
  tap_ok(lines[4] == 7, "and the first that comes later, with those before: %d", lines[4]);
  tap_ok(lines[5] == 8, "and the end: %d", lines[5]);
  ts_free(many);
  ts_free(path);
}

/* More lines than may wait. */
static void test_lost(void) {
  enum { LINE = 1 << 20, LINES = 20 };
  char *path = path_of("lost.csv"), *said = path_of("lost.stderr"), *line = ts_malloc(LINE);
  ts_rows *rows;
  memset(line, '1', LINE - 1);
  line[LINE - 1] = '\n';
  TS_CHECK(ts_rows_open(path, true, "x\n", &rows, NULL) == TS_OK, "%s", path);
  int kept = begin_stderr(said);
  limit_files(4000);
  for (int i = 0; i < LINES; ++i) {
    ts_rows_add(rows, line, LINE);
  }
  limit_files(RLIM_INFINITY);
  ts_rows_close(&rows);
  end_stderr(kept);
  char *text = read_text(tap_directory(), "lost.csv"), *warning = read_text(tap_directory(), "lost.stderr");
  tap_ok(count(text, "\n") == 1 + TS_ROWS_MOST / LINE, "16 MiB of lines wait");
  tap_ok(count(warning, "those that come now are lost") == 1 && count(warning, "4 lines could not be written") == 1,
         "those beyond are counted: %s", warning);
  ts_free(warning);
  ts_free(text);
  ts_free(line);
  ts_free(said);
  ts_free(path);
}

static void test_csv(void) {
  const struct {
    const char *label, *text, *message; /* no message: accepted */
    int64_t n_rows;
  } cases[] = {{"a last line without its newline is ignored", "a,b\n1,2\n3,4\n5,", NULL, 2},
               {"no rows", "a,b\n", NULL, 0},
               {"one column", "a\n1\n-2.5e3\n", NULL, 2},
               {"an empty file", "", "has no first line", 0},
               {"too few numbers", "a,b\n1,2\n3\n", ":3: is not 2 numbers", 0},
               {"too many numbers", "a,b\n1,2,3\n", ":2: is not 2 numbers", 0},
               {"a word", "a,b\n1,x\n", ":2: is not 2 numbers", 0},
               {"an empty line", "a,b\n1,2\n\n", ":3: is not 2 numbers", 0},
               {"an empty field", "a,b\n1,\n", ":2: is not 2 numbers", 0}};
  char *path = path_of("x.csv");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    write_text(tap_directory(), "x.csv", cases[i].text);
    ts_csv csv;
    ts_error err = {0};
    ts_status status = ts_csv_read(path, &csv, &err);
    bool good = cases[i].message == NULL ? status == TS_OK && csv.n_rows == cases[i].n_rows
                                         : status == TS_BAD_INPUT && csv.values == NULL && err.count == 1 &&
                                               strstr(err.text, cases[i].message) != NULL;
    tap_ok(good, "csv: %s%s%s", cases[i].label, err.count > 0 ? ": " : "", err.count > 0 ? err.text : "");
    ts_csv_free(&csv);
    ts_error_clear(&err);
  }
  ts_free(path);
}

static void test_csv_low(void) {
  char *path = path_of("y.csv");
  write_text(tap_directory(), "y.csv",
             "a,b,c\n1,0,nan\n2,8,nan\n3,nan,nan\n4,3,nan\n5,2,nan\n6,5,nan\n7,9,nan\n8,1,nan\n9,4,nan\n10,7,nan\n");
  ts_csv csv;
  tap_ok(ts_csv_read(path, &csv, NULL) == TS_OK, "csv: numbers and none");
  tap_ok(ts_csv_low(&csv, "b", 1) == 1.5 && ts_csv_low(&csv, "b", 0) == 0.5 && ts_csv_low(&csv, "b", 8) == 4 &&
             ts_csv_low(&csv, "b", 99) == 7,
         "csv: the mean of the smallest quarter, at least of one, from a row on");
  tap_ok(isnan(ts_csv_low(&csv, "c", 0)) && isnan(ts_csv_low(&csv, "d", 0)), "csv: no number, no column");
  ts_csv_free(&csv);
  ts_free(path);
}

/* The coordinates of a line stay inside the picture, whatever the losses are. */
static bool lines_inside(const char *svg) {
  for (const char *at = svg; (at = strstr(at, "points=\"")) != NULL;) {
    at += strlen("points=\"");
    for (double x, y; sscanf(at, "%lf,%lf", &x, &y) == 2; at = strchr(at, ' ') + 1) {
      if (!(x >= 0 && x <= 860 && y >= 0 && y <= 480)) {
        return false;
      }
    }
  }
  return true;
}

static void test_plot(void) {
  char *directory = make_run("a<b&c", 60);
  ts_error err = {0};
  tap_ok(ts_plot_losses(directory, &err) == TS_OK, "plot");
  char *svg = read_text(directory, "loss.svg");
  tap_ok(count(svg, "<polyline") == 3 && count(svg, "<circle") == 6,
         "plot: two training lines, validation with 6 dots");
  tap_ok(strstr(svg, ">a&lt;b&amp;c</text>") != NULL && strstr(svg, "a<b") == NULL,
         "plot: the title is the name, escaped");
  tap_ok(count(svg, "nan") == 0 && count(svg, "inf") == 0 && lines_inside(svg), "plot: all points are inside");
  tap_ok(count(svg, "<text") == count(svg, "</text>") && strstr(svg, "</svg>\n") != NULL, "plot: complete");
  ts_free(svg);
  ts_free(directory);

  const struct {
    const char *label, *rows;
    int lines, circles;
  } odd[] = {{"no rows", "", 0, 0},
             {"one row", "1,10,5.5\n", 0, 1},
             {"losses that are all NaN", "1,10,nan\n2,20,nan\n", 0, 0},
             {"equal losses", "1,10,2\n2,20,2\n3,30,2\n", 2, 0},
             {"losses near the largest double", "1,10,1e308\n2,20,-1e308\n3,30,1\n4,40,2\n", 2, 0},
             {"tiny differences", "1,10,1.0000000000000002\n2,20,1\n", 2, 0},
             {"huge numbers of steps", "1,10,2\n9007199254740992,20,1\n", 2, 0}};
  directory = path_of("odd");
  TS_CHECK(ts_make_directory(directory, NULL) == TS_OK, "%s", directory);
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; ++i) {
    char *text = ts_format("step,tokens,loss\n%s", odd[i].rows);
    write_text(directory, "metrics.csv", text);
    ts_status status = ts_plot_losses(directory, &err);
    svg = read_text(directory, "loss.svg");
    tap_ok(status == TS_OK && count(svg, "<polyline") == odd[i].lines && count(svg, "<circle") == odd[i].circles &&
               lines_inside(svg) && count(svg, "nan") == 0,
           "plot: %s", odd[i].label);
    ts_free(svg);
    ts_free(text);
  }
  write_text(directory, "metrics.csv", "step,loss\n1,2\n");
  tap_ok(ts_plot_losses(directory, &err) == TS_BAD_INPUT &&
             strstr(err.text, "step, tokens and loss are needed") != NULL,
         "plot: a missing column");
  ts_error_clear(&err);
  ts_free(directory);
  directory = path_of("not-there");
  tap_ok(ts_plot_losses(directory, &err) == TS_BAD_INPUT &&
             strstr(err.text, "not-there/metrics.csv: No such file") != NULL,
         "plot: no run");
  ts_error_clear(&err);
  ts_free(directory);
}

static void test_long_plot(void) {
  char *directory = make_run("long", 30000);
  tap_ok(ts_plot_losses(directory, NULL) == TS_OK, "plot of 30000 steps");
  char *svg = read_text(directory, "loss.svg");
  tap_ok(lines_inside(svg) && strlen(svg) < 400000, "plot: 30000 steps and 3000 validations are %zu bytes",
         strlen(svg));
  ts_free(svg);
  ts_free(directory);
}

static const json_t *field(const json_t *events, size_t i, const char *name) {
  return json_object_get(json_array_get(events, i), name);
}

static void test_timeline(void) {
  char *path = path_of("trace.json");
  ts_error err = {0};
  ts_timeline *timeline;
  const ts_timeline_clock clock = {.step = 3, .ranks = 8, .offset = -2, .bound = 1.5e-6};
  tap_ok(ts_timeline_open(path, 3, 1, &clock, &timeline, &err) == TS_OK, "timeline");
  ts_timeline_event(timeline, "h.0 \"x\"\\\n", "matmul", TS_TIMELINE_COMPUTATION, 0.5, 0.25);
  ts_timeline_message(timeline, "gather", "all_gather", 100000.123456, 1e-6, 5e9, 4);
  ts_timeline_close(&timeline);
  ts_timeline_close(&timeline);
  char *text = read_text(tap_directory(), "trace.json");
  json_t *root = json_loads(text, 0, NULL);
  const json_t *events = json_object_get(root, "traceEvents");
  tap_ok(root != NULL && json_array_size(events) == 7, "timeline: JSON with names, an order and two events");
  tap_ok(json_integer_value(field(events, 5, "pid")) == 3 && json_integer_value(field(events, 5, "tid")) == 0 &&
             json_number_value(field(events, 5, "ts")) == 5e5 && json_number_value(field(events, 5, "dur")) == 2.5e5 &&
             strcmp(json_string_value(field(events, 5, "name")), "h.0 \"x\"\\\n") == 0,
         "timeline: rank, thread, microseconds, name");
  tap_ok(json_number_value(field(events, 6, "ts")) == 100000123456.0 &&
             json_number_value(field(events, 6, "dur")) == 1 &&
             strcmp(json_string_value(field(events, 6, "cat")), "all_gather") == 0,
         "timeline: a microsecond after a day");
  const json_t *args = field(events, 6, "args"), *other = json_object_get(root, "otherData");
  tap_ok(json_integer_value(field(events, 6, "tid")) == TS_TIMELINE_COMMUNICATION &&
             json_integer_value(json_object_get(args, "bytes")) == 5000000000 &&
             json_integer_value(json_object_get(args, "ranks")) == 4 && field(events, 5, "args") == NULL,
         "timeline: a message has its bytes and ranks");
  tap_ok(json_integer_value(json_object_get(other, "step")) == 3 &&
             json_integer_value(json_object_get(other, "ranks")) == 8 &&
             json_number_value(json_object_get(other, "clock_offset_us")) == -2e6 &&
             json_number_value(json_object_get(other, "clock_bound_us")) == 1.5,
         "timeline: the step, and how far its clock was off");
  json_decref(root);
  tap_ok(ts_timeline_open("/nonexistent/trace", 0, -1, NULL, &timeline, &err) == TS_BAD_INPUT && timeline == NULL &&
             strstr(err.text, "/nonexistent/trace: cannot be written") != NULL,
         "timeline: a directory that is not there");
  ts_error_clear(&err);
  ts_free(text);
  ts_free(path);
}

int main(void) {
  ts_log_configure(TS_LOG_WARNING, true);
  test_print_double();
  test_metrics();
  test_continue();
  test_experts();
  test_fewer_columns(1);
  test_fewer_columns(3);
  test_other_columns();
  test_rows_at_once();
  test_full();
  test_uncut();
  test_held();
  test_lost();
  test_csv();
  test_csv_low();
  test_plot();
  test_long_plot();
  test_timeline();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
