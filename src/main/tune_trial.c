/* A trial: a candidate as a real run of a few steps. */
#include "base/log.h"
#include "base/memory.h"
#include "io/csv.h"
#include "main/tune.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* Start a command in a group of its own, its words to a log. \return 0, or the system's error. */
static int start_trial(const char *command, const char *log, pid_t *child) {
  char *words[] = {"sh", "-c", (char *) command, NULL};
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  int error = posix_spawnp(child, words[0], &files, &attributes, words, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

/* The group of the trial that runs: whoever ends this process ends it, too. */
static volatile sig_atomic_t running;

static void end_both(int signal_number) {
  if (running > 0) {
    kill(-(pid_t) running, SIGTERM);
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

/* Until it has ended; when its time is over it is ended, with all it has started. \return whether it ended itself. */
static bool wait_for_trial(pid_t child, double seconds, int *how) {
  static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
  enum { SIGNALS = sizeof signals / sizeof *signals };
  const struct timespec moment = {.tv_nsec = 20000000};
  const double patience = 5, begin = ts_seconds();
  void (*before[SIGNALS])(int);
  bool asked = false;
  pid_t ended;
  running = (sig_atomic_t) child;
  for (int i = 0; i < SIGNALS; ++i) {
    before[i] = signal(signals[i], end_both);
    if (before[i] == SIG_IGN) { /* as under nohup */
      signal(signals[i], SIG_IGN);
    }
  }
  while ((ended = waitpid(child, how, WNOHANG)) == 0) {
    double now = ts_seconds() - begin;
    if (now > seconds && !asked) {
      kill(-child, SIGTERM); /* a launcher ends its ranks */
      asked = true;
    } else if (now > seconds + patience) {
      kill(-child, SIGKILL);
    }
    nanosleep(&moment, NULL);
  }
  if (asked) {
    kill(-child, SIGKILL); /* who did not listen */
  }
  running = 0;
  for (int i = 0; i < SIGNALS; ++i) {
    signal(signals[i], before[i]);
  }
  *how = ended < 0 ? 1 << 8 : *how;
  return !asked;
}

static bool was_skipped(const ts_csv *csv, int64_t row) {
  const int column = ts_csv_column(csv, "skipped");
  const double *at = csv->values + row * csv->n_columns;
  return column >= 0 && at[column] > (row > 0 ? at[column - csv->n_columns] : 0);
}

/* A step that overflowed has no update, and so no time; unless all have. */
static void drop_skipped(ts_csv *csv, int64_t warm) {
  const int seconds = ts_csv_column(csv, "step_seconds");
  bool others = false;
  warm = warm < csv->n_rows ? warm : csv->n_rows - 1; /* as ts_csv_low counts */
  for (int64_t i = warm; i >= 0 && i < csv->n_rows; ++i) {
    others = others || !was_skipped(csv, i);
  }
  for (int64_t i = warm; i < csv->n_rows && seconds >= 0 && others; ++i) {
    double *here = &csv->values[i * csv->n_columns + seconds];
    *here = was_skipped(csv, i) ? NAN : *here;
  }
}

/* By the steps that count: what disturbs them, as others on the machine do, makes some of them longer and none shorter.
 * NAN: there are none. */
static double read_seconds(const char *metrics, int64_t warm) {
  ts_csv csv;
  double seconds = NAN;
  if (ts_csv_read(metrics, &csv, NULL) == TS_OK) {
    drop_skipped(&csv, warm);
    seconds = ts_csv_low(&csv, "step_seconds", warm);
  }
  ts_csv_free(&csv);
  return seconds;
}

/* The last line of a log that says something. */
static char *last_line(const char *log) {
  char *text = NULL;
  size_t length = 0;
  enum { MOST = 16 << 20 };
  if (ts_read_file(log, MOST, &text, &length, NULL) != TS_OK || length == 0) {
    ts_free(text);
    return ts_strdup("");
  }
  char *error = strstr(text, "error: "), *line = error != NULL ? error : text;
  for (char *at = text; error == NULL && *at != 0; ++at) {
    line = *at == '\n' && at[1] != 0 ? at + 1 : line;
  }
  line[strcspn(line, "\n")] = 0;
  char *copy = ts_strdup(line);
  ts_free(text);
  return copy;
}

double ts_tune_run_trial(const ts_tune_job *job, const ts_candidate *candidate, const ts_tune_trial *trial, int number,
                         const char *again, char **why) {
  char *run = ts_format("%s/trial-%d%s", trial->directory, number, again), *deck = ts_format("%s.cfg", run),
       *log = ts_format("%s.log", run), *metrics = ts_format("%s/metrics.csv", run);
  ts_error err = {0};
  double seconds = NAN;
  *why = NULL;
  if (ts_tune_write_deck(job, candidate, deck, &err) == TS_OK) {
    ts_text command = {0};
    const char *words[] = {trial->program, "train", deck};
    ts_text_add(&command, "%s", trial->launch);
    for (int i = 0; i < 3; ++i) {
      ts_text_add(&command, " ");
      ts_text_add_shell(&command, words[i]);
    }
    char *directory = ts_format("run.directory=%s", run);
    ts_text_add(&command, " --set ");
    ts_text_add_shell(&command, directory);
    ts_free(directory);
    ts_text_add(&command,
                " --set run.steps=%lld --set run.epochs=0 --set run.save_every=0 --set run.evaluate_every=0 "
                "--set run.resume=never --set 'profile.timeline=\"\"' --set tensorboard.enabled=false "
                "--set csv_monitor.enabled=false --set wandb.enabled=false --set comms_logger.enabled=false "
                "--set flops_profiler.enabled=false",
                (long long) (trial->warm + trial->steps));
    pid_t child;
    int how = 0, error = start_trial(command.text, log, &child);
    if (error != 0) {
      *why = ts_format("cannot be started: %s", strerror(error));
    } else if (!wait_for_trial(child, trial->seconds, &how)) {
      *why = ts_format("did not end in %.0f s and was ended", trial->seconds);
    } else if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) {
      char *last = last_line(log);
      *why = ts_format("failed (%s): %s", log, last);
      ts_free(last);
    } else {
      seconds = read_seconds(metrics, trial->warm);
      seconds = seconds > 0 && isfinite(seconds) ? seconds : NAN;
      *why = isnan(seconds) ? ts_format("%s has no steps that count", metrics) : NULL;
    }
    ts_text_free(&command);
  } else {
    *why = ts_strdup(err.text);
  }
  ts_error_clear(&err);
  ts_free(deck);
  ts_free(run);
  ts_free(log);
  ts_free(metrics);
  return seconds;
}
