/* tessera tune --measure: the best candidates as real runs of a few steps. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/peak.h"
#include "io/csv.h"
#include "main/tune.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* ---- one run ---- */

/* Its deck, complete. */
static ts_status write_deck(const ts_tune_job *job, const ts_candidate *c, const char *path, ts_error *err) {
  ts_deck *deck = NULL;
  ts_mesh mesh;
  ts_text text = {0};
  ts_status status = ts_tune_read(job, c, &deck, &mesh, err);
  if (status == TS_OK) {
    ts_deck_print(deck, &text);
    status = ts_write_file(path, text.text, text.length, err);
  }
  ts_text_free(&text);
  ts_deck_destroy(&deck);
  return status;
}

/* A name as one word of a shell. */
static char *quoted(const char *word) {
  ts_text text = {0};
  ts_text_add(&text, "'");
  for (const char *at = word; *at != 0; ++at) {
    ts_text_add(&text, *at == '\'' ? "'\\''" : "%c", *at);
  }
  ts_text_add(&text, "'");
  return text.text;
}

/* Start a command in a group of its own, its words to a log. \return 0, or the system's error. */
static int start(const char *command, const char *log, pid_t *child) {
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

/* Until it has ended or its time is over, when it is ended, with all it has started. \return whether it ended itself. */
static bool wait_for_end(pid_t child, double seconds, int *how) {
  const struct timespec moment = {.tv_nsec = 20000000};
  const double patience = 5, begin = ts_seconds();
  bool asked = false, in_time = true;
  while (waitpid(child, how, WNOHANG) == 0) {
    double now = ts_seconds() - begin;
    if (now > seconds && !asked) {
      kill(-child, SIGTERM); /* a launcher ends its ranks */
      asked = true;
      in_time = false;
    } else if (now > seconds + patience) {
      kill(-child, SIGKILL);
    }
    nanosleep(&moment, NULL);
  }
  return in_time;
}

/* The median of the steps that count; NAN: there are none. */
static double read_seconds(const char *metrics, int64_t warm) {
  ts_csv csv;
  ts_error err = {0};
  double seconds = NAN;
  if (ts_csv_read(metrics, &csv, &err) == TS_OK) {
    int column = ts_csv_column(&csv, "step_seconds");
    int64_t n = csv.n_rows - warm;
    if (column >= 0 && n > 0) {
      double *counted = ts_malloc((size_t) n * sizeof *counted);
      for (int64_t i = 0; i < n; ++i) {
        counted[i] = csv.values[(warm + i) * csv.n_columns + column];
      }
      seconds = ts_median(counted, (int) n);
      ts_free(counted);
    }
  }
  ts_csv_free(&csv);
  ts_error_clear(&err);
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

/* What a run of candidate `number` takes; NAN with `why`, the caller's, where it did not end well. */
static double run_candidate(const ts_tune_job *job, const ts_tried *t, const ts_tune_trial *trial, int number,
                            char **why) {
  char *deck = ts_format("%s/trial-%d.cfg", trial->directory, number),
       *run = ts_format("%s/trial-%d", trial->directory, number),
       *log = ts_format("%s/trial-%d.log", trial->directory, number), *metrics = ts_format("%s/metrics.csv", run);
  ts_error err = {0};
  double seconds = NAN;
  *why = NULL;
  if (write_deck(job, &t->candidate, deck, &err) == TS_OK) {
    char *words[] = {quoted(trial->program), quoted(deck), quoted(run)};
    char *command = ts_format("exec %s %s train %s --set run.directory=%s --set run.steps=%lld --set run.save_every=0 "
                              "--set run.evaluate_every=0 --set run.resume=never",
                              trial->launch, words[0], words[1], words[2], (long long) (trial->warm + trial->steps));
    pid_t child;
    int how = 0, error = start(command, log, &child);
    if (error != 0) {
      *why = ts_format("cannot be started: %s", strerror(error));
    } else if (!wait_for_end(child, trial->seconds, &how)) {
      *why = ts_format("did not end in %.0f s and was ended", trial->seconds);
    } else if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) {
      char *last = last_line(log);
      *why = ts_format("failed (%s): %s", log, last);
      ts_free(last);
    } else {
      seconds = read_seconds(metrics, trial->warm);
      *why = isnan(seconds) ? ts_format("%s has no steps that count", metrics) : NULL;
    }
    ts_free(command);
    for (int i = 0; i < 3; ++i) {
      ts_free(words[i]);
    }
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

/* ---- all ---- */

/* The first number that no trial in the directory has. */
static int first_free(const char *directory) {
  int number = 1;
  for (bool taken = true; taken; number += taken) {
    char *deck = ts_format("%s/trial-%d.cfg", directory, number), *run = ts_format("%s/trial-%d", directory, number);
    taken = access(deck, F_OK) == 0 || access(run, F_OK) == 0;
    ts_free(deck);
    ts_free(run);
  }
  return number;
}

static void print_trial(const ts_tune_job *job, const ts_tried *t, int rank, int number, double seconds,
                        const char *why, ts_text *to) {
  ts_text_add(to, "%4d %10.1f ", rank, 1e3 * ts_tried_seconds(t, job->timing));
  if (why == NULL) {
    ts_text_add(to, "%10.1f %+7.1f%%  ", 1e3 * seconds, 100 * (ts_tried_seconds(t, job->timing) / seconds - 1));
  } else {
    ts_text_add(to, "%10s %8s  ", "-", "");
  }
  ts_text_add(to, "trial-%d: ", number);
  ts_candidate_text(job->space, &t->candidate, to);
  ts_text_add(to, why != NULL ? ": %s\n" : "\n", why);
}

ts_status ts_tune_measure(const ts_tune_job *job, const ts_search *search, const ts_tune_trial *trial, int n, int *best,
                          ts_text *to, ts_error *err) {
  *best = 0;
  if (mkdir(trial->directory, 0777) != 0 && errno != EEXIST) {
    return ts_error_add(err, "%s: cannot be made: %s", trial->directory, strerror(errno));
  }
  const int first = first_free(trial->directory);
  double least = INFINITY, believed = NAN;
  ts_text_add(to, "\nmeasured: the median of %lld steps behind %lld\n%4s %10s %10s %8s\n", (long long) trial->steps,
              (long long) trial->warm, "", "plan ms", "run ms", "plan is");
  for (int i = 0; i < n && i < search->n && search->tried[i].how == TS_TRIED_FITS; ++i) {
    char *why;
    ts_log(TS_LOG_INFO, "trial %d", i + 1);
    double seconds = run_candidate(job, &search->tried[i], trial, first + i, &why);
    print_trial(job, &search->tried[i], i + 1, first + i, seconds, why, to);
    if (why == NULL && seconds < least) {
      least = seconds;
      *best = i;
    }
    believed = i == 0 ? seconds : believed;
    ts_free(why);
  }
  if (least < INFINITY && !isnan(believed)) {
    ts_text_add(to, "regret of the plan's first: %.1f %%\n", 100 * (believed / least - 1));
  }
  return TS_OK;
}
