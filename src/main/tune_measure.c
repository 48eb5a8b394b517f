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

/* Behind the number: of a trial's first run, and of those that repeat it. */
static const char *const nth_run[] = {"", "-again", "-again-2"};
enum { MOST_RUNS = sizeof nth_run / sizeof *nth_run };

static bool is_taken(const char *directory, int number) {
  char *deck = ts_format("%s/trial-%d.cfg", directory, number);
  bool taken = access(deck, F_OK) == 0;
  for (int i = 0; i < MOST_RUNS && !taken; ++i) {
    char *run = ts_format("%s/trial-%d%s", directory, number, nth_run[i]);
    taken = access(run, F_OK) == 0;
    ts_free(run);
  }
  ts_free(deck);
  return taken;
}

/* The first of n numbers in a row that no trial in the directory has. */
static int first_free(const char *directory, int n) {
  int first = 1;
  for (int free = 0; free < n;) {
    bool taken = is_taken(directory, first + free);
    first += taken ? free + 1 : 0;
    free = taken ? 0 : free + 1;
  }
  return first;
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

/* Has its size of micro-batches room among those of the n that were chosen? */
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
    if (!ts_search_is_variant(search, i) &&
        (trial->order == TS_TUNE_BY_PLAN || takes_micro(search, r, n, i, trial->micros))) {
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

/* To the end of those that have run move of the others what promises most, by its plan and by what was seen.
 * \param [in] n  Of all. \return false: the sizes of micro-batches that may run have no other. */
static bool choose_next(const ts_tune_job *job, const ts_search *search, const ts_tune_trial *trial,
                        const ts_belief *seen, int *row, int ran, int n) {
  int best = -1;
  double least = INFINITY;
  for (int i = ran; i < n; ++i) {
    const ts_tried *t = &search->tried[row[i]];
    double seconds = ts_tried_seconds(t, job->timing) * ts_belief_of(seen, &t->candidate);
    if (seconds < least && takes_micro(search, row, ran, row[i], trial->micros)) {
      least = seconds;
      best = i;
    }
  }
  if (best >= 0) {
    const int chosen = row[best];
    memmove(row + ran + 1, row + ran, (size_t) (best - ran) * sizeof *row);
    row[ran] = chosen;
  }
  return best >= 0;
}

/* What came of a trial. */
typedef struct outcome {
  int row, number; /* of the search, of the trial */
  int runs;
  double seconds; /* NAN: */
  char *why;      /* owned */
} outcome;

static double least_outcome(const outcome *all, int n) {
  double least = INFINITY;
  for (int i = 0; i < n; ++i) {
    least = fmin(least, all[i].seconds); /* which leaves NAN out */
  }
  return least;
}

/* Of those that came near the fastest, if it is more than one, who has run least, and not too often; -1: nobody. */
static int next_near(const outcome *all, int n) {
  const double near = 1.1 * least_outcome(all, n);
  int next = -1, close = 0;
  for (int i = 0; i < n; ++i) {
    bool is_near = all[i].seconds <= near;
    close += is_near;
    next = is_near && all[i].runs < (next < 0 ? MOST_RUNS : all[next].runs) ? i : next;
  }
  return close > 1 ? next : -1;
}

/* A run of a few steps may have had a bad moment: of several the least counts. \return whether any ran again. */
static bool run_near_again(const ts_tune_job *job, const ts_search *search, const ts_tune_trial *trial, outcome *all,
                           int n) {
  bool any = false;
  for (int i; (i = next_near(all, n)) >= 0; any = true) {
    outcome *o = &all[i];
    fprintf(stderr, "trial-%d once more\n", o->number);
    const ts_candidate *c = &search->tried[o->row].candidate;
    double seconds = ts_tune_run_trial(job, c, trial, o->number, nth_run[o->runs++], &o->why);
    o->seconds = o->why == NULL ? fmin(seconds, o->seconds) : NAN; /* who fails now and then fails */
  }
  return any;
}

/* What fails is taken for so many times its plan, so that others of its kind come later. */
static const double FAILED = 2;

ts_status ts_tune_measure(const ts_tune_job *job, const ts_search *search, const ts_tune_trial *trial, int *best,
                          double *seconds, ts_text *to, ts_error *err) {
  *best = 0;
  *seconds = NAN;
  if (ts_make_directory(trial->directory, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  int *row, pool = choose_trials(search, trial, &row), ran = 0;
  const int n = pool < trial->most ? pool : (int) trial->most;
  const int first = first_free(trial->directory, n);
  outcome *all = ts_calloc((size_t) n + 1, sizeof *all);
  ts_belief seen = {.space = job->space};
  double believed = NAN;
  int64_t without = 0;
  for (; ran < n && (trial->stop == 0 || without < trial->stop); ++ran) {
    if (trial->order == TS_TUNE_BY_PLAN && !choose_next(job, search, trial, &seen, row, ran, pool)) {
      break;
    }
    outcome *o = &all[ran];
    const ts_tried *t = &search->tried[row[ran]];
    fprintf(stderr, "trial %d of %d\n", ran + 1, n); /* stdout is the result's */
    *o = (outcome){.row = row[ran], .number = first + ran, .runs = 1};
    o->seconds = ts_tune_run_trial(job, &t->candidate, trial, o->number, nth_run[0], &o->why);
    ts_belief_add(&seen, &t->candidate, o->why == NULL ? o->seconds / ts_tried_seconds(t, job->timing) : FAILED);
    without = o->seconds < least_outcome(all, ran) ? 0 : without + 1;
  }
  const bool again = run_near_again(job, search, trial, all, ran);
  const double least = least_outcome(all, ran);
  ts_text_add(to, "\nmeasured: the median of %lld steps behind %lld%s\n%4s %10s %10s %8s\n", (long long) trial->steps,
              (long long) trial->warm, again ? ", of what came near the fastest the least of up to three runs" : "", "",
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
  if (ran < n && trial->stop > 0 && without >= trial->stop) {
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
