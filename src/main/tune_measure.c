/* tessera tune --measure: the best candidates as real runs of a few steps, and what each says of the next. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "main/tune.h"
#include "tune/belief.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* ---- names ---- */

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

/* How many may be chosen among for each that is run, where runs say which. */
enum { OTHERS = 3 };

/* Rows of the search, the fastest by the plan: those that are run in the order of the trials, or those among which runs
 * choose. \return how many; *row is the caller's. */
static int choose_trials(const ts_search *search, const ts_tune_trial *trial, int **row) {
  const int64_t trials = trial->most < search->n ? trial->most : search->n,
                most = trial->order == TS_TUNE_BY_PLAN ? OTHERS * trials : trials;
  int n = 0, *r = ts_malloc(((size_t) search->n + 1) * sizeof *r);
  for (int i = 0; i < search->n && n < most && search->tried[i].how == TS_TRIED_FITS; ++i) {
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

/* Move to the front of those that are left what promises most by its plan and by what was seen. */
static void move_best_to_front(const ts_tune_job *job, const ts_search *search, const ts_belief *seen, int *row,
                               int n) {
  int best = 0;
  double least = INFINITY;
  for (int i = 0; i < n; ++i) {
    const ts_tried *t = &search->tried[row[i]];
    double seconds = ts_tried_seconds(t, job->timing) * ts_belief_of(seen, &t->candidate);
    best = seconds < least ? i : best;
    least = fmin(seconds, least);
  }
  const int chosen = row[best];
  memmove(row + 1, row, (size_t) best * sizeof *row);
  row[0] = chosen;
}

/* What came of a trial. */
typedef struct outcome {
  int row, number; /* of the search, of the trial */
  double seconds;  /* NAN: */
  char *why;       /* owned */
} outcome;

static double least_outcome(const outcome *all, int n) {
  double least = INFINITY;
  for (int i = 0; i < n; ++i) {
    least = fmin(least, all[i].seconds); /* which leaves NAN out */
  }
  return least;
}

static int near_the_fastest(const outcome *all, int n, double least) {
  int close = 0;
  for (int i = 0; i < n; ++i) {
    close += all[i].seconds <= least;
  }
  return close;
}

/* Those that came near the fastest once more, and of these those that still do, as a run of a few steps may have had a
 * bad moment: the least counts. \return rounds. */
static int run_near_again(const ts_tune_job *job, const ts_search *search, const ts_tune_trial *trial, outcome *all,
                          int n) {
  static const char *const again[] = {"-again", "-again-2"};
  enum { ROUNDS = sizeof again / sizeof *again };
  const double near = 1.1;
  for (int round = 0; round < ROUNDS; ++round) {
    const double least = near * least_outcome(all, n);
    if (near_the_fastest(all, n, least) < 2) {
      return round;
    }
    for (int i = 0; i < n; ++i) {
      outcome *o = &all[i];
      if (o->seconds <= least) {
        fprintf(stderr, "trial %d once more\n", i + 1);
        double seconds =
            ts_tune_run_trial(job, &search->tried[o->row].candidate, trial, o->number, again[round], &o->why);
        o->seconds = o->why == NULL ? fmin(seconds, o->seconds) : NAN; /* who fails now and then fails */
      }
    }
  }
  return ROUNDS;
}

ts_status ts_tune_measure(const ts_tune_job *job, const ts_search *search, const ts_tune_trial *trial, int *best,
                          double *seconds, ts_text *to, ts_error *err) {
  *best = 0;
  *seconds = NAN;
  if (ts_make_directory(trial->directory, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  const int first = first_free(trial->directory);
  int *row, pool = choose_trials(search, trial, &row), ran = 0;
  const int n = pool < trial->most ? pool : (int) trial->most;
  outcome *all = ts_calloc((size_t) n + 1, sizeof *all);
  ts_belief seen = {.space = job->space};
  double believed = NAN;
  int64_t without = 0;
  for (; ran < n && (trial->stop == 0 || without < trial->stop); ++ran) {
    outcome *o = &all[ran];
    fprintf(stderr, "trial %d of %d\n", ran + 1, n); /* stdout is the result's */
    if (trial->order == TS_TUNE_BY_PLAN) {
      move_best_to_front(job, search, &seen, row + ran, pool - ran);
    }
    const ts_tried *t = &search->tried[row[ran]];
    *o = (outcome){.row = row[ran], .number = first + ran};
    o->seconds = ts_tune_run_trial(job, &t->candidate, trial, o->number, "", &o->why);
    if (o->why == NULL) {
      ts_belief_add(&seen, &t->candidate, o->seconds / ts_tried_seconds(t, job->timing));
    }
    without = o->seconds < least_outcome(all, ran) ? 0 : without + 1;
  }
  const int again = run_near_again(job, search, trial, all, ran);
  const double least = least_outcome(all, ran);
  ts_text_add(to, "\nmeasured: the median of %lld steps behind %lld%s\n%4s %10s %10s %8s\n", (long long) trial->steps,
              (long long) trial->warm,
              again > 0 ? ", of what came near the fastest the least of two or three runs" : "", "", "plan ms",
              "run ms", "plan is");
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
  ts_belief_clear(&seen);
  ts_free(all);
  ts_free(row);
  return TS_OK;
}
