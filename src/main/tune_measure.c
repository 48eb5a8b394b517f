/* tessera tune --measure: the best candidates as real runs of a few steps. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
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

/* ---- one run ---- */

static ts_status write_trial(const ts_tune_job *job, const ts_candidate *c, const char *path, ts_error *err) {
  ts_text text = {0};
  ts_status status = ts_tune_deck(job, c, &text, err);
  status = status == TS_OK ? ts_write_file(path, text.text, text.length, err) : status;
  ts_text_free(&text);
  return status;
}

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

/* The median of the steps that count; NAN: there are none. */
static double read_seconds(const char *metrics, int64_t warm) {
  ts_csv csv;
  double seconds = ts_csv_read(metrics, &csv, NULL) == TS_OK ? ts_csv_median(&csv, "step_seconds", warm) : NAN;
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

/* What a run of candidate `number` takes; NAN with `why`, the caller's, where it did not end well.
 * \param [in] again  Behind the number in names of files: "", or of a second run. */
static double run_trial(const ts_tune_job *job, const ts_tried *t, const ts_tune_trial *trial, int number,
                        const char *again, char **why) {
  char *run = ts_format("%s/trial-%d%s", trial->directory, number, again), *deck = ts_format("%s.cfg", run),
       *log = ts_format("%s.log", run), *metrics = ts_format("%s/metrics.csv", run);
  ts_error err = {0};
  double seconds = NAN;
  *why = NULL;
  if (write_trial(job, &t->candidate, deck, &err) == TS_OK) {
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

/* ---- all ---- */

/* The first number that no trial in the directory has. */
static int first_free(const char *directory) {
  int number = 1;
  for (bool taken = true; taken; number += taken) {
    char *deck = ts_format("%s/trial-%d.cfg", directory, number), *run = ts_format("%s/trial-%d", directory, number),
         *again = ts_format("%s-again", run);
    taken = access(deck, F_OK) == 0 || access(run, F_OK) == 0 || access(again, F_OK) == 0;
    ts_free(again);
    ts_free(deck);
    ts_free(run);
  }
  return number;
}

/* As the table of the search counts. */
static int number_in_table(const ts_search *search, int row) {
  int number = 0;
  for (int i = 0; i <= row; ++i) {
    number += !ts_search_is_variant(search, i);
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

/* ---- which, and in which order ---- */

static int by_space(const ts_candidate *a, const ts_candidate *b) {
  for (int what = 0; what < TS_N_TUNED; ++what) {
    if (a->at[what] != b->at[what]) {
      return a->at[what] - b->at[what];
    }
  }
  return 0;
}

/* Has another size of micro-batches room among those that were chosen? */
static bool takes_micro(const ts_search *search, const int *row, int n, int candidate, int64_t most) {
  int64_t sizes = 0;
  for (int i = 0; i < n; ++i) {
    int mine = search->tried[row[i]].candidate.at[TS_TUNED_MICRO];
    bool again = mine == search->tried[candidate].candidate.at[TS_TUNED_MICRO];
    for (int k = 0; k < i && !again; ++k) {
      again = search->tried[row[k]].candidate.at[TS_TUNED_MICRO] == mine;
    }
    if (mine == search->tried[candidate].candidate.at[TS_TUNED_MICRO]) {
      return true;
    }
    sizes += !again;
  }
  return most == 0 || sizes < most;
}

/* Rows of the search: the fastest by the plan, in the order of the trials. \return how many; *row is the caller's. */
static int choose_trials(const ts_search *search, const ts_tune_trial *trial, int **row) {
  int n = 0, *r = ts_malloc(((size_t) search->n + 1) * sizeof *r);
  for (int i = 0; i < search->n && n < trial->most && search->tried[i].how == TS_TRIED_FITS; ++i) {
    if (!ts_search_is_variant(search, i) && takes_micro(search, r, n, i, trial->micros)) {
      r[n++] = i;
    }
  }
  for (int i = 1; i < n && trial->order != TS_TUNE_BY_PLAN; ++i) { /* insertion: few */
    int k = i, mine = r[i], other = (int) (ts_mix(trial->seed, (uint64_t) i) % (uint64_t) (i + 1));
    if (trial->order == TS_TUNE_BY_CHANCE) {
      r[i] = r[other];
      r[other] = mine;
      continue;
    }
    for (; k > 0 && by_space(&search->tried[r[k - 1]].candidate, &search->tried[mine].candidate) > 0; --k) {
      r[k] = r[k - 1];
    }
    r[k] = mine;
  }
  *row = r;
  return n;
}

/* What came of a trial. */
typedef struct outcome {
  int row, number; /* of the search, of the trial */
  double seconds;  /* NAN: */
  char *why;       /* owned */
} outcome;

/* Those that came near the fastest once more, as a run of a few steps may have had a bad moment: the less counts.
 * \return how many. */
static int run_near_again(const ts_tune_job *job, const ts_search *search, const ts_tune_trial *trial, outcome *all,
                          int n, double least) {
  const double near = 1.1;
  int close = 0;
  for (int i = 0; i < n; ++i) {
    close += all[i].seconds < near * least;
  }
  if (close < 2) {
    return 0;
  }
  for (int i = 0; i < n; ++i) {
    outcome *o = &all[i];
    if (o->seconds < near * least) {
      fprintf(stderr, "trial %d once more\n", i + 1);
      double again = run_trial(job, &search->tried[o->row], trial, o->number, "-again", &o->why);
      o->seconds = o->why == NULL ? fmin(again, o->seconds) : NAN; /* who fails now and then fails */
    }
  }
  return close;
}

static double least_outcome(const outcome *all, int n) {
  double least = INFINITY;
  for (int i = 0; i < n; ++i) {
    least = fmin(least, all[i].seconds); /* which leaves NAN out */
  }
  return least;
}

ts_status ts_tune_measure(const ts_tune_job *job, const ts_search *search, const ts_tune_trial *trial, int *best,
                          double *seconds, ts_text *to, ts_error *err) {
  *best = 0;
  *seconds = NAN;
  if (ts_make_directory(trial->directory, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  const int first = first_free(trial->directory);
  int *row, n = choose_trials(search, trial, &row), ran = 0;
  outcome *all = ts_calloc((size_t) n + 1, sizeof *all);
  double believed = NAN;
  int64_t without = 0;
  for (; ran < n && (trial->stop == 0 || without < trial->stop); ++ran) {
    outcome *o = &all[ran];
    fprintf(stderr, "trial %d of %d\n", ran + 1, n); /* stdout is the result's */
    *o = (outcome){.row = row[ran], .number = first + ran};
    o->seconds = run_trial(job, &search->tried[o->row], trial, o->number, "", &o->why);
    without = o->seconds < least_outcome(all, ran) ? 0 : without + 1;
  }
  const int again = run_near_again(job, search, trial, all, ran, least_outcome(all, ran));
  const double least = least_outcome(all, ran);
  ts_text_add(to, "\nmeasured: the median of %lld steps behind %lld%s\n%4s %10s %10s %8s\n", (long long) trial->steps,
              (long long) trial->warm, again > 0 ? ", of what came near the fastest the less of two runs" : "", "",
              "plan ms", "run ms", "plan is");
  for (int i = 0; i < ran; ++i) {
    const outcome *o = &all[i];
    print_trial(job, &search->tried[o->row], number_in_table(search, o->row), o->number, o->seconds, o->why, to);
    if (isnan(*seconds) && o->seconds == least) {
      *seconds = least;
      *best = o->row;
    }
    believed = o->row == 0 ? o->seconds : believed;
    ts_free(o->why);
  }
  if (ran < n) {
    ts_text_add(to, "%lld in a row were no better: %d others were not run (autotuning.tuner_early_stopping)\n",
                (long long) without, n - ran);
  }
  if (least < INFINITY && !isnan(believed)) {
    ts_text_add(to, "regret of the plan's first: %.1f %%\n", 100 * (believed / least - 1));
  }
  ts_free(all);
  ts_free(row);
  return TS_OK;
}
