#include "train/monitors.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "deck/deck_read.h"
#include "io/csv.h"
#include "io/events.h"
#include "io/rows.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the curves ---- */

enum { ALWAYS, SCALED, TIMED, VALIDATED }; /* when a curve is written */

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
  X(STEP_SECONDS, ALWAYS, OURS "step_seconds", m->step_seconds)                                         \
  X(TOKENS_PER_SECOND, ALWAYS, OURS "tokens_per_second", m->tokens_per_second)                          \
  X(MFU, ALWAYS, OURS "mfu", m->mfu)                                                                    \
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

struct ts_monitors {
  bool written[N_CURVES];
  ts_events *events;        /* NULL: none */
  ts_rows *table[N_CURVES]; /* NULL: none */
  char *upload;             /* owned: the command; NULL without wandb */
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

static ts_status make_monitor_directory(const ts_deck *deck, const char *key, const char *path, ts_error *err) {
  ts_error why = {0};
  ts_status status = ts_make_directory(path, &why);
  if (status != TS_OK) {
    ts_deck_error(deck, key, err, "%s", why.text);
  }
  ts_error_clear(&why);
  return status;
}

/* ---- whose tables ---- */

/* Did the life before this one have its tables there?  Its deck says so; one that cannot be read is trusted. */
static bool had_tables(const ts_deck *deck, const char *directory) {
  char *path = ts_format("%s/deck.cfg", deck->run.directory), *text = NULL;
  size_t length;
  ts_deck *before = NULL;
  bool had = true;
  if (ts_read_file(path, 1 << 24, &text, &length, NULL) == TS_OK &&
      ts_deck_read_text(deck->run.directory, text, NULL, 0, &before, NULL) == TS_OK) {
    char *there = tables_directory(before);
    had = before->csv_monitor.enabled && strcmp(there, directory) == 0;
    ts_free(there);
  }
  ts_deck_destroy(&before);
  ts_free(text);
  ts_free(path);
  return had;
}

/* Tables of another run are neither cut nor mixed with ours. */
static ts_status refuse_foreign_tables(const ts_deck *deck, const ts_monitors_begin *begin, const char *directory,
                                       ts_error *err) {
  bool own = begin->again && had_tables(deck, directory);
  ts_status status = TS_OK;
  for (int i = 0; i < N_CURVES && status == TS_OK && !own; ++i) {
    char *path = table_path(directory, curves[i].tag);
    if (access(path, F_OK) == 0) {
      status = ts_deck_error(
          deck, "csv_monitor.job_name", err,
          "%s is of another run; choose another csv_monitor.job_name or output_path, or move it away", path);
    }
    ts_free(path);
  }
  return status;
}

ts_status ts_monitors_check(const ts_deck *deck, const ts_monitors_begin *begin, ts_error *err) {
  ts_status status = TS_OK;
  if (deck->tensorboard.enabled) {
    char *directory = events_directory(deck);
    status = try_directory(deck, "tensorboard.output_path", directory, err);
    ts_free(directory);
  }
  if (status == TS_OK && deck->csv_monitor.enabled) {
    char *directory = tables_directory(deck);
    status = try_directory(deck, "csv_monitor.output_path", directory, err);
    status = status == TS_OK ? refuse_foreign_tables(deck, begin, directory, err) : status;
    ts_free(directory);
  }
  return status;
}

/* ---- beginning ---- */

static void choose_curves(ts_monitors *m, const ts_deck *deck) {
  bool is[] = {[ALWAYS] = true,
               [SCALED] = ts_deck_loss_scaler(deck).rule != TS_LOSS_SCALE_NONE,
               [TIMED] = deck->wall_clock_breakdown || deck->flops_profiler.enabled,
               [VALIDATED] = deck->run.evaluate_every > 0};
  for (int i = 0; i < N_CURVES; ++i) {
    m->written[i] = is[curves[i].when];
  }
}

/* A table that is not written any more is cut all the same. */
static ts_status open_monitor_table(ts_monitors *m, const char *directory, int i, const ts_monitors_begin *begin,
                                    ts_error *err) {
  char *path = table_path(directory, curves[i].tag), *names = ts_format("step,%s\n", strrchr(curves[i].tag, '/') + 1);
  ts_status status = begin->again ? ts_csv_continue(path, names, begin->samples, err) : TS_OK;
  if (status == TS_OK && m->written[i]) {
    status = ts_rows_open(path, false, names, &m->table[i], err);
  }
  ts_free(names);
  ts_free(path);
  return status;
}

static ts_status open_all_tables(ts_monitors *m, const ts_deck *deck, const ts_monitors_begin *begin, ts_error *err) {
  const char *key = "csv_monitor.output_path";
  char *directory = tables_directory(deck);
  ts_error why = {0};
  ts_status status = make_monitor_directory(deck, key, directory, err);
  for (int i = 0; i < N_CURVES && status == TS_OK; ++i) {
    status = open_monitor_table(m, directory, i, begin, &why);
  }
  if (why.count > 0) {
    ts_deck_error(deck, key, err, "%s", why.text);
  }
  ts_error_clear(&why);
  ts_free(directory);
  return status;
}

static ts_status open_event_file(ts_monitors *m, const ts_deck *deck, const ts_monitors_begin *begin, ts_error *err) {
  const char *key = deck->tensorboard.enabled ? "tensorboard.output_path" : "run.directory";
  char *directory = events_directory(deck);
  ts_error why = {0};
  ts_status status = make_monitor_directory(deck, key, directory, err);
  status = status == TS_OK ? ts_events_open(directory, begin->samples + 1, &m->events, &why) : status;
  if (why.count > 0) {
    ts_deck_error(deck, key, err, "%s", why.text);
  }
  ts_error_clear(&why);
  ts_free(directory);
  return status;
}

/* wandb from 0.30 on uploads only what it has written itself, and none has an option for the group. */
static char *upload_command(const ts_deck *deck) {
  char *directory = events_directory(deck);
  ts_text command = {0};
  ts_text_add(&command, "wandb sync --sync-tensorboard");
  const char *options[][2] = {{" --project ", deck->wandb.project}, {" --entity ", deck->wandb.team}};
  for (int i = 0; i < 2; ++i) {
    if (options[i][1][0] != 0) {
      ts_text_add(&command, "%s", options[i][0]);
      ts_text_add_shell(&command, options[i][1]);
    }
  }
  ts_text_add(&command, " ");
  ts_text_add_shell(&command, directory);
  ts_text_add(&command, " (with wandb before 0.30 and tensorboard%s%s)",
              deck->wandb.group[0] != 0 ? "; it has no option for group " : "", deck->wandb.group);
  ts_free(directory);
  return command.text;
}

static void say_upload(const ts_monitors *m) {
  if (m->upload != NULL) {
    ts_log(TS_LOG_INFO, "wandb: nothing is sent; upload with: %s", m->upload);
  }
}

ts_status ts_monitors_open(const ts_deck *deck, const ts_monitors_begin *begin, ts_monitors **out, ts_error *err) {
  bool events = deck->tensorboard.enabled || deck->wandb.enabled, tables = deck->csv_monitor.enabled;
  *out = NULL;
  if (!events && !tables) {
    return TS_OK;
  }
  ts_monitors *m = ts_calloc(1, sizeof *m);
  choose_curves(m, deck);
  ts_status status = tables ? open_all_tables(m, deck, begin, err) : TS_OK;
  status = status == TS_OK && events ? open_event_file(m, deck, begin, err) : status;
  if (status == TS_OK) {
    m->upload = deck->wandb.enabled ? upload_command(deck) : NULL;
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

/* A recorded step does not say what it waited for: such times are left out. */
void ts_monitors_step(ts_monitors *m, const ts_metrics_row *row, const ts_step_result *result, int64_t samples) {
  double value[N_CURVES];
  if (m == NULL) {
    return;
  }
  evaluate(row, result, value);
  for (int i = 0; i < N_CURVES; ++i) {
    int when = curves[i].when;
    if (m->written[i] && when != VALIDATED && !(when == TIMED && isnan(value[i]))) {
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
