#include "train/monitors.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "deck/deck_read.h"
#include "io/csv.h"
#include "io/events.h"
#include "io/rows.h"
#include "io/run_mark.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the curves ---- */

/* When a curve is written: CLOCKED, too, at any step whose times are a measure. */
enum { ALWAYS, CLOCKED, SCALED, TIMED, VALIDATED };

#define DEEPSPEED "Train/Samples/"
#define TIME DEEPSPEED "elapsed_time_ms_"
#define OURS "Tessera/Samples/"

/* X (name, when, tag, value), of the row m of metrics.csv and the result r.  What a step waited for communication may
 * be in its forward, too, so what is left of the backward is no less than nothing. */
#define CURVES(X)                                                                                       \
  X(TRAIN_LOSS, ALWAYS, DEEPSPEED "train_loss", m->loss)                                                \
  X(LR, ALWAYS, DEEPSPEED "lr", m->lr)                                                                  \
  X(LOSS_SCALE, SCALED, DEEPSPEED "loss_scale", m->loss_scale)                                          \
  X(FORWARD, TIMED, TIME "forward", 1e3 * r->forward_seconds)                                           \
  X(BACKWARD, TIMED, TIME "backward", 1e3 * r->backward_seconds)                                        \
  X(BACKWARD_INNER, TIMED, TIME "backward_inner", 1e3 * above(r->backward_seconds, r->exposed_seconds)) \
  X(BACKWARD_ALLREDUCE, TIMED, TIME "backward_allreduce", 1e3 * r->exposed_seconds)                     \
  X(STEP, TIMED, TIME "step", 1e3 * r->update_seconds)                                                  \
  X(GRAD_NORM, ALWAYS, OURS "grad_norm", m->grad_norm)                                                  \
  X(STEP_SECONDS, CLOCKED, OURS "step_seconds", m->step_seconds)                                        \
  X(TOKENS_PER_SECOND, CLOCKED, OURS "tokens_per_second", m->tokens_per_second)                         \
  X(MFU, CLOCKED, OURS "mfu", m->mfu)                                                                   \
  X(PEAK_BYTES, ALWAYS, OURS "peak_bytes", (double) m->peak_bytes)                                      \
  X(SKIPPED, ALWAYS, OURS "skipped", (double) m->skipped)                                               \
  X(EVAL_LOSS, VALIDATED, DEEPSPEED "eval_loss", NAN)

#define X(name, when, tag, value) name,
enum { CURVES(X) N_CURVES };
#undef X
#define X(name, when, tag, value) {when, tag},
static const struct {
  int when;
  const char *tag;
} curves[] = {CURVES(X)};
#undef X

static double above(double all, double part) {
  return isnan(part) ? NAN : fmax(all - part, 0);
}

static void evaluate(const ts_metrics_row *m, const ts_step_result *r, double value[N_CURVES]) {
#define X(name, when, tag, value_) value[name] = value_;
  CURVES(X)
#undef X
}

/* Seconds that rows may wait for others: who looks at them does not look more often.  A save writes all that a run that
 * goes on from it needs. */
#define HOLD 1.0

struct ts_monitors {
  bool written[N_CURVES];
  ts_events *events;        /* NULL: none */
  ts_rows *table[N_CURVES]; /* NULL: none */
  char *upload;             /* owned: what is said of it; NULL without wandb */
};

/* ---- directories ---- */

/* As Python joins them: a name that begins with '/' is a path of its own. */
static char *join_path(const char *directory, const char *name) {
  bool alone = directory[0] == 0 || name[0] == '/';
  char *path = alone ? ts_strdup(name) : ts_format("%s/%s", directory, name);
  if (path[0] == 0) {
    ts_free(path);
    path = ts_strdup(".");
  }
  return path;
}

static char *events_directory(const ts_deck *deck) {
  return deck->tensorboard.enabled ? join_path(deck->tensorboard.output_path, deck->tensorboard.job_name)
                                   : join_path(deck->run.directory, "events");
}

static char *tables_directory(const ts_deck *deck) {
  return join_path(deck->csv_monitor.output_path, deck->csv_monitor.job_name);
}

static char *table_path(const char *directory, const char *tag) {
  char *path = ts_format("%s/%s.csv", directory, tag);
  for (char *slash = path + strlen(directory) + 1; (slash = strchr(slash, '/')) != NULL;) {
    *slash = '_';
  }
  return path;
}

static char *table_head(int curve) {
  return ts_format("step,%s\n", strrchr(curves[curve].tag, '/') + 1);
}

static void cut_to_parent(char *path) {
  char *slash = strrchr(path, '/');
  if (slash == NULL) {
    strcpy(path, ".");
  } else {
    slash[slash == path] = 0; /* "/" itself stays */
  }
}

/* Could the directory be made, and written?  The first of its parents that is there says so. */
static ts_status try_directory(const ts_deck *deck, const char *key, const char *path, ts_error *err) {
  char *there = ts_strdup(path);
  struct stat what;
  while (stat(there, &what) != 0 && errno == ENOENT && strcmp(there, ".") != 0) {
    cut_to_parent(there);
  }
  int reason = stat(there, &what) != 0           ? errno
               : !S_ISDIR(what.st_mode)          ? ENOTDIR
               : access(there, W_OK | X_OK) != 0 ? errno
                                                 : 0;
  ts_status status = reason == 0 ? TS_OK
                                 : ts_deck_error(deck, key, err, "%s cannot be made or written: %s: %s", path, there,
                                                 strerror(reason));
  ts_free(there);
  return status;
}

/* ---- files ---- */

/* A table that is not written any more is cut all the same. */
static ts_status open_monitor_table(ts_monitors *m, const char *directory, int i, const ts_monitors_begin *begin,
                                    ts_error *err) {
  char *path = table_path(directory, curves[i].tag), *names = table_head(i);
  ts_status status = begin->again ? ts_csv_continue(path, names, begin->samples, err) : TS_OK;
  if (status == TS_OK && m->written[i]) {
    status = ts_rows_open(path, false, names, &m->table[i], err);
    if (status == TS_OK) {
      ts_rows_hold(m->table[i], HOLD);
    }
  }
  ts_free(names);
  ts_free(path);
  return status;
}

static ts_status open_all_tables(ts_monitors *m, const char *directory, const ts_monitors_begin *begin, ts_error *err) {
  ts_status status = TS_OK;
  for (int i = 0; i < N_CURVES && status == TS_OK; ++i) {
    status = open_monitor_table(m, directory, i, begin, err);
  }
  return status;
}

static ts_status open_event_file(ts_monitors *m, const char *directory, const ts_monitors_begin *begin, ts_error *err) {
  return ts_events_open(directory, begin->samples + 1, HOLD, &m->events, err);
}

static char *find_table(const char *directory) {
  for (int i = 0; i < N_CURVES; ++i) {
    char *path = table_path(directory, curves[i].tag);
    if (access(path, F_OK) == 0) {
      return path;
    }
    ts_free(path);
  }
  return NULL;
}

static char *find_event_file(const char *directory) {
  return ts_events_are_in(directory) ? ts_format("%s/events.out.tfevents.*", directory) : NULL;
}

static bool has_tables(const ts_deck *deck) {
  return deck->csv_monitor.enabled;
}

static bool has_boards(const ts_deck *deck) {
  return deck->tensorboard.enabled;
}

/* A kind of monitor. */
typedef struct kind {
  const char *output_path, *job_name; /* keys */
  bool (*enabled)(const ts_deck *deck);
  char *(*directory)(const ts_deck *deck);
  char *(*find)(const char *directory); /* a file of its kind that is there, owned; NULL: none */
  ts_status (*open)(ts_monitors *m, const char *directory, const ts_monitors_begin *begin, ts_error *err);
} kind;

static const kind boards = {"tensorboard.output_path", "tensorboard.job_name", has_boards,
                            events_directory,          find_event_file,        open_event_file};
static const kind tables = {
    "csv_monitor.output_path", "csv_monitor.job_name", has_tables, tables_directory, find_table, open_all_tables};

/* ---- whose directories ---- */

/* A run of a version without marks: did its life before this one write there?  Its deck says so, and that it was
 * started in the same directory is believed. */
static bool wrote_unmarked(const ts_deck *deck, const kind *k, const char *directory) {
  char *path = ts_format("%s/deck.cfg", deck->run.directory), *text = NULL;
  size_t length;
  ts_deck *before = NULL;
  bool wrote = false;
  if (!ts_has_file(deck->run.directory, TS_RUN_MARK) && ts_read_file(path, 1 << 24, &text, &length, NULL) == TS_OK &&
      ts_deck_read_text(deck->run.directory, text, NULL, 0, &before, NULL) == TS_OK) {
    char *there = k->directory(before);
    wrote = k->enabled(before) && strcmp(there, directory) == 0;
    ts_free(there);
  }
  ts_deck_destroy(&before);
  ts_free(text);
  ts_free(path);
  return wrote;
}

static ts_status refuse_place(const ts_deck *deck, const kind *k, const char *what, const char *whose, ts_error *err) {
  return ts_deck_error(deck, k->job_name, err, "%s is of another run%s%s; choose another %s or %s, or move it away",
                       what, whose != NULL ? ", " : "", whose != NULL ? whose : "", k->job_name,
                       strchr(k->output_path, '.') + 1);
}

/* Curves of another run are neither cut nor mixed with ours: TensorBoard drops what is behind a session's begin,
 * whoever wrote it. */
static ts_status check_owner(const ts_deck *deck, const kind *k, const ts_monitors_begin *begin, const char *directory,
                             ts_error *err) {
  char *whose = NULL, *file = NULL;
  ts_status status = TS_OK;
  switch (ts_run_mark_find(directory, deck->run.directory, &whose)) {
    case TS_MARK_OURS: break;
    case TS_MARK_OTHERS: status = refuse_place(deck, k, directory, whose, err); break;
    case TS_MARK_NONE:
      file = k->find(directory);
      if (file != NULL && !(begin->again && wrote_unmarked(deck, k, directory))) {
        status = refuse_place(deck, k, file, NULL, err);
      }
  }
  ts_free(whose);
  ts_free(file);
  return status;
}

/* Before long work, and before the run's deck.cfg is that of this life. */
static ts_status check_table_heads(const ts_deck *deck, const char *directory, ts_error *err) {
  ts_error why = {0};
  ts_status status = TS_OK;
  for (int i = 0; i < N_CURVES && status == TS_OK; ++i) {
    char *path = table_path(directory, curves[i].tag), *names = table_head(i);
    status = ts_csv_try_to_continue(path, names, &why);
    ts_free(names);
    ts_free(path);
  }
  if (status != TS_OK) {
    ts_deck_error(deck, tables.output_path, err, "%s", why.text);
  }
  ts_error_clear(&why);
  return status;
}

static ts_status check_monitor(const ts_deck *deck, const kind *k, const ts_monitors_begin *begin, ts_error *err) {
  if (!k->enabled(deck)) {
    return TS_OK;
  }
  char *directory = k->directory(deck);
  ts_status status = try_directory(deck, k->output_path, directory, err);
  status = status == TS_OK ? check_owner(deck, k, begin, directory, err) : status;
  status = status == TS_OK && k == &tables ? check_table_heads(deck, directory, err) : status;
  ts_free(directory);
  return status;
}

ts_status ts_monitors_check(const ts_deck *deck, const ts_monitors_begin *begin, ts_error *err) {
  ts_status status = check_monitor(deck, &boards, begin, err);
  return status == TS_OK ? check_monitor(deck, &tables, begin, err) : status;
}

/* ---- beginning ---- */

static void choose_curves(ts_monitors *m, const ts_deck *deck) {
  bool is[] = {[ALWAYS] = true,
               [CLOCKED] = true,
               [SCALED] = ts_deck_loss_scaler(deck).rule != TS_LOSS_SCALE_NONE,
               [TIMED] = deck->wall_clock_breakdown || deck->flops_profiler.enabled,
               [VALIDATED] = deck->run.evaluate_every > 0};
  for (int i = 0; i < N_CURVES; ++i) {
    m->written[i] = is[curves[i].when];
  }
}

/* Mark a directory as this run's: another one may have begun there since the check. */
static ts_status claim_directory(const ts_deck *deck, const kind *k, const char *directory, ts_error *err) {
  ts_error why = {0};
  char *whose = NULL;
  ts_status status = ts_run_mark_make(directory, deck->run.directory, &why);
  if (status != TS_OK && ts_run_mark_find(directory, deck->run.directory, &whose) == TS_MARK_OTHERS) {
    refuse_place(deck, k, directory, whose, err);
  } else if (status != TS_OK) {
    ts_deck_error(deck, k->output_path, err, "%s", why.text);
  }
  ts_error_clear(&why);
  ts_free(whose);
  return status;
}

/* Event files of wandb alone lie in RUN/events, which is the run's anyway. */
static ts_status open_kind(ts_monitors *m, const kind *k, const ts_deck *deck, const ts_monitors_begin *begin,
                           ts_error *err) {
  char *directory = k->directory(deck);
  ts_error why = {0};
  ts_status status = ts_make_directory(directory, &why);
  status = status == TS_OK && k->enabled(deck) ? claim_directory(deck, k, directory, err) : status;
  status = status == TS_OK ? k->open(m, directory, begin, &why) : status;
  if (why.count > 0) {
    ts_deck_error(deck, k->enabled(deck) ? k->output_path : "run.directory", err, "%s", why.text);
  }
  ts_error_clear(&why);
  ts_free(directory);
  return status;
}

/* As one word on one line, of any shell; printf says what cannot be printed. */
static void add_line_word(ts_text *to, const char *word) {
  bool plain = true;
  for (const char *c = word; *c != 0; ++c) {
    plain = plain && !iscntrl((unsigned char) *c);
  }
  if (plain) {
    ts_text_add_shell(to, word);
    return;
  }
  ts_text_add(to, "\"$(printf '");
  for (const char *c = word; *c != 0; ++c) {
    bool said = iscntrl((unsigned char) *c) || *c == '\'' || *c == '\\';
    ts_text_add(to, said ? "\\%03o" : *c == '%' ? "%%%c" : "%c", (unsigned char) *c);
  }
  ts_text_add(to, "')\"");
}

/* wandb from 0.30 on uploads only what it has written itself, and none has an option for the group. */
static char *describe_upload(const ts_deck *deck) {
  char *directory = events_directory(deck);
  ts_text text = {0};
  ts_text_add(&text, "wandb: nothing is sent; this uploads, with wandb before 0.30 and tensorboard");
  if (deck->wandb.group[0] != 0) {
    ts_text_add(&text, " (it has no option for group ");
    add_line_word(&text, deck->wandb.group);
    ts_text_add(&text, ")");
  }
  ts_text_add(&text, ":\nwandb sync --sync-tensorboard");
  const char *options[][2] = {{" --project ", deck->wandb.project}, {" --entity ", deck->wandb.team}};
  for (int i = 0; i < 2; ++i) {
    if (options[i][1][0] != 0) {
      ts_text_add(&text, "%s", options[i][0]);
      add_line_word(&text, options[i][1]);
    }
  }
  ts_text_add(&text, " ");
  add_line_word(&text, directory);
  ts_free(directory);
  return text.text;
}

static void say_upload(const ts_monitors *m) {
  if (m->upload != NULL) {
    ts_log(TS_LOG_INFO, "%s", m->upload);
  }
}

ts_status ts_monitors_open(const ts_deck *deck, const ts_monitors_begin *begin, ts_monitors **out, ts_error *err) {
  bool events = deck->tensorboard.enabled || deck->wandb.enabled;
  *out = NULL;
  if (!events && !deck->csv_monitor.enabled) {
    return TS_OK;
  }
  ts_monitors *m = ts_calloc(1, sizeof *m);
  choose_curves(m, deck);
  ts_status status = deck->csv_monitor.enabled ? open_kind(m, &tables, deck, begin, err) : TS_OK;
  status = status == TS_OK && events ? open_kind(m, &boards, deck, begin, err) : status;
  if (status == TS_OK) {
    m->upload = deck->wandb.enabled ? describe_upload(deck) : NULL;
    say_upload(m);
    *out = m;
  } else {
    ts_monitors_close(&m);
  }
  return status;
}

/* ---- steps ---- */

static void write_curve(ts_monitors *m, int i, double value, int64_t samples) {
  if (m->events != NULL) {
    ts_events_scalar(m->events, curves[i].tag, value);
  }
  if (m->table[i] != NULL) {
    char number[32], line[64];
    int length = snprintf(line, sizeof line, "%lld,%s\n", (long long) samples, ts_print_double(value, number));
    ts_rows_add(m->table[i], line, (size_t) length);
  }
}

/* A recorded step does not say what it waited for, and times of an observed one are no measure: they are left out. */
static bool is_measured(int i, const ts_metrics_row *row, double value) {
  bool timed = curves[i].when == TIMED, clocked = timed || curves[i].when == CLOCKED;
  return !(clocked && row->observed != 0) && !(timed && isnan(value));
}

void ts_monitors_step(ts_monitors *m, const ts_metrics_row *row, const ts_step_result *result, int64_t samples) {
  double value[N_CURVES];
  if (m == NULL) {
    return;
  }
  evaluate(row, result, value);
  for (int i = 0; i < N_CURVES; ++i) {
    if (m->written[i] && curves[i].when != VALIDATED && is_measured(i, row, value[i])) {
      write_curve(m, i, value[i], samples);
    }
  }
  if (m->events != NULL) {
    ts_events_write(m->events, samples);
  }
}

void ts_monitors_validation(ts_monitors *m, double loss, int64_t samples) {
  if (m == NULL) {
    return;
  }
  write_curve(m, EVAL_LOSS, loss, samples);
  if (m->events != NULL) {
    ts_events_write(m->events, samples);
  }
}

void ts_monitors_flush(ts_monitors *m) {
  for (int i = 0; m != NULL && i < N_CURVES; ++i) {
    if (m->table[i] != NULL) {
      ts_rows_flush(m->table[i]);
    }
  }
  if (m != NULL && m->events != NULL) {
    ts_events_flush(m->events);
  }
}

void ts_monitors_close(ts_monitors **monitors) {
  ts_monitors *m = *monitors;
  if (m == NULL) {
    return;
  }
  for (int i = 0; i < N_CURVES; ++i) {
    ts_rows_close(&m->table[i]);
  }
  ts_events_close(&m->events);
  say_upload(m);
  ts_free(m->upload);
  ts_free(m);
  *monitors = NULL;
}
