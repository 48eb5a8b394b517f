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
static const char *const nth_run[] = {"", "-again", "-again-2", "-again-3", "-again-4", "-again-5"};
enum { RUNS = sizeof nth_run / sizeof *nth_run, REPEATS = RUNS - 1 };

static bool is_taken(const char *directory, int number) {
  char *deck = ts_format("%s/trial-%d.cfg", directory, number);
  bool taken = access(deck, F_OK) == 0;
  for (int i = 0; i < RUNS && !taken; ++i) {
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

/* What came of a trial. */
typedef struct outcome {
  int row, number;    /* of the search, of the trial */
  double seconds;     /* as if nothing else had run; once there are finals, the least of these; NAN: */
  char *why;          /* owned */
  bool led, is_final; /* it was the fastest so far; it runs in the finals */
} outcome;

/* Trials so far. */
typedef struct trials {
  const ts_tune_job *job;
  const ts_search *search;
  const ts_tune_trial *trial;
  outcome *all; /* owned */
  int n;
  ts_belief seen;
  double pace; /* how many times as long anything takes now as where nothing else runs */
} trials;

static const ts_tried *tried_of(const trials *s, int row) {
  return &s->search->tried[row];
}

/* By its plan and by what was seen. */
static double expected_seconds(const trials *s, int row) {
  return ts_tried_seconds(tried_of(s, row), s->job->timing) * ts_belief_of(&s->seen, &tried_of(s, row)->candidate);
}

/* To the end of the rows that have run move of the others the one that promises most: what little is known of may be
 * faster by so much (the lower confidence bound of Gaussian processes, Srinivas et al., arXiv:0912.3995), else nothing
 * would run but what resembles what has done well.
 * \param [in] n  Rows in all. \return false: the sizes of micro-batches that may run have no other. */
static bool choose_next(const trials *s, int *row, int n) {
  int best = -1;
  double least = INFINITY;
  for (int i = s->n; i < n; ++i) {
    double seconds = expected_seconds(s, row[i]) / exp(ts_belief_doubt(&s->seen, &tried_of(s, row[i])->candidate));
    if (seconds < least && takes_micro(s->search, row, s->n, row[i], s->trial->micros)) {
      least = seconds;
      best = i;
    }
  }
  if (best >= 0) {
    const int chosen = row[best];
    memmove(row + s->n + 1, row + s->n, (size_t) (best - s->n) * sizeof *row);
    row[s->n] = chosen;
  }
  return best >= 0;
}

/* The fastest, of finalists if there are any that have a time; -1: none has. */
static int find_fastest(const outcome *all, int n) {
  int best = -1;
  for (int i = 0; i < n; ++i) {
    bool first = best < 0 || (all[i].is_final && !all[best].is_final);
    bool counts = !isnan(all[i].seconds) && (best < 0 || all[i].is_final || !all[best].is_final);
    best = counts && (first || all[i].seconds < all[best].seconds) ? i : best;
  }
  return best;
}

static double run_outcome(const trials *s, const outcome *o, const char *again, char **why) {
  return ts_tune_run_trial(s->job, &tried_of(s, o->row)->candidate, s->trial, o->number, again, why);
}

static void believe(trials *s, int row, double seconds) {
  const ts_tried *t = tried_of(s, row);
  ts_belief_add(&s->seen, &t->candidate, seconds / ts_tried_seconds(t, s->job->timing));
}

/* May the machine have become another one?  By a run that takes longer than was expected: but it may be that of
 * another kind of deck.  Where it was slower, by one that takes less than would be expected then, or that would be the
 * fastest. */
static bool is_surprise(const trials *s, double took, double expected, double fastest) {
  static const double much = 1.1;
  return took > much * s->pace * expected ||
         (s->pace > 1 && (much * took < s->pace * expected || took < s->pace * fastest));
}

/* The fastest so far says how fast the machine is, which others may share, once more. */
static void check_pace(trials *s, double took, double expected, int number) {
  static const double slower = 1.1;
  const int best = find_fastest(s->all, s->n);
  if (best >= 0 && is_surprise(s, took, expected, s->all[best].seconds)) {
    outcome *fastest = &s->all[best];
    char *again = ts_format("-behind-%d", number), *why;
    fprintf(stderr, "trial-%d once more, as the machine may have changed\n", fastest->number);
    const double now = run_outcome(s, fastest, again, &why);
    if (why == NULL) {
      s->pace = now > slower * fastest->seconds ? now / fastest->seconds : 1;
      if (now < fastest->seconds) {
        fastest->seconds = now;
        believe(s, fastest->row, now);
      }
    }
    ts_free(why);
    ts_free(again);
  }
}

/* What fails is taken for so many times what was expected, so that others of its kind come later. */
static const double FAILED = 2;

static void run_next(trials *s, int row, int number) {
  const double expected = expected_seconds(s, row);
  outcome o = {.row = row, .number = number};
  o.seconds = run_outcome(s, &o, nth_run[0], &o.why);
  if (o.why == NULL) {
    check_pace(s, o.seconds, expected, number);
    o.seconds /= s->pace;
  }
  believe(s, row, o.why == NULL ? o.seconds : FAILED * expected);
  s->all[s->n++] = o;
  const int fastest = find_fastest(s->all, s->n);
  if (fastest >= 0) {
    s->all[fastest].led = true;
  }
}

/* ---- the last ones ---- */

/* So near the fastest it may be the fastest; if it was that, in a moment when the machine was slow, from farther away.
 * So near what it took before, nothing disturbs. */
static const double NEAR = 1.25, LED = 1.75, QUIET = 1.03;

enum { NEAREST = 8 }; /* at most, beside those that led */

static bool is_near(const trials *s, int i) {
  const int best = find_fastest(s->all, s->n);
  int before = 0;
  for (int k = 0; k < s->n; ++k) {
    before += s->all[k].seconds < s->all[i].seconds || (k < i && s->all[k].seconds == s->all[i].seconds);
  }
  return best >= 0 && before < NEAREST && s->all[i].seconds <= NEAR * s->all[best].seconds; /* no NAN is */
}

/* Of those that run in the finals, and have not failed. */
static int count_finalists(const trials *s) {
  int n = 0;
  for (int i = 0; i < s->n; ++i) {
    n += s->all[i].is_final && s->all[i].why == NULL;
  }
  return n;
}

/* All of them, so that what is compared ran by turns; of each the least counts, by its runs in these rounds alone: it
 * may have had a good moment before, and the machine's pace is known by single runs.  Who fails now and then fails.
 * \return whether any that may be the fastest took another time than before. */
static bool run_by_turns(trials *s, int round) {
  double *ratio = ts_calloc((size_t) s->n + 1, sizeof *ratio);
  bool differs = false;
  for (int i = 0; i < s->n; ++i) {
    outcome *o = &s->all[i];
    if (o->is_final && o->why == NULL) {
      fprintf(stderr, "trial-%d once more: round %d, of up to %d\n", o->number, round, REPEATS);
      const double before = o->seconds, now = run_outcome(s, o, nth_run[round], &o->why);
      ratio[i] = fmax(now, before) / fmin(now, before);
      o->seconds = round == 1 || o->why != NULL ? now : fmin(now, before);
    }
  }
  const int best = find_fastest(s->all, s->n);
  for (int i = 0; i < s->n; ++i) {
    differs = differs || (best >= 0 && ratio[i] > QUIET && s->all[i].seconds <= NEAR * s->all[best].seconds);
  }
  ts_free(ratio);
  return differs;
}

/* Did any that came near the fastest run to its end?  \param [in] first  Seconds before;
 * \param [out] factor  how many times as long such ones take now. */
static bool near_ones_ran(const trials *s, const bool *near, const double *first, double *factor) {
  double before = 0, after = 0;
  for (int i = 0; i < s->n; ++i) {
    const bool counts = near[i] && s->all[i].is_final && s->all[i].why == NULL;
    before += counts ? first[i] : 0;
    after += counts ? s->all[i].seconds : 0;
  }
  *factor = before > 0 ? after / before : 1;
  return before > 0;
}

/* As before the finals, of which nothing is left by which they can be told: those that failed while others did not have
 * failed, but if all have, what they ran in has ended, maybe with the job. */
static void forget_finals(trials *s, const double *first) {
  const bool all = count_finalists(s) == 0;
  fprintf(stderr, "none that is near the fastest ran to its end: times are those from before\n");
  for (int i = 0; i < s->n; ++i) {
    outcome *o = &s->all[i];
    if (o->is_final && (all || o->why == NULL)) {
      ts_free(o->why);
      o->why = NULL;
      o->seconds = first[i];
    }
    o->is_final = false;
  }
}

/* Those that come near the fastest, or were it, until nothing changes that matters; the others take so many times as
 * long, or short, as the near ones together: none is the faster for that.  \return whether there were any. */
static bool run_finals(trials *s) {
  double factor, *first = ts_calloc((size_t) s->n + 1, sizeof *first);
  bool *near = ts_calloc((size_t) s->n + 1, sizeof *near);
  const int best = find_fastest(s->all, s->n);
  for (int i = 0; i < s->n; ++i) {
    first[i] = s->all[i].seconds;
    near[i] = is_near(s, i);
  }
  for (int i = 0; i < s->n; ++i) {
    s->all[i].is_final = near[i] || (s->all[i].led && first[i] <= LED * first[best]);
  }
  const bool any = count_finalists(s) > 1;
  for (int round = 1; round <= REPEATS && count_finalists(s) > 1 && run_by_turns(s, round); ++round) {
  }
  const bool ran = any && near_ones_ran(s, near, first, &factor);
  if (any && !ran) {
    forget_finals(s, first);
  }
  for (int i = 0; i < s->n && ran; ++i) {
    s->all[i].seconds *= s->all[i].is_final ? 1 : factor;
  }
  ts_free(near);
  ts_free(first);
  return ran;
}

/* ---- all ---- */

static void print_trials(const trials *s, bool finals, ts_text *to) {
  ts_text_add(
      to, "\nmeasured: the fastest quarter of %lld steps behind %lld%s\n%4s %10s %10s %8s\n",
      (long long) s->trial->steps, (long long) s->trial->warm,
      finals
          ? ", of what came near the fastest the least of up to five runs more by turns, times as the machine was then"
          : "",
      "", "plan ms", "run ms", "plan is");
  for (int i = 0; i < s->n; ++i) {
    const outcome *o = &s->all[i];
    print_trial(s->job, tried_of(s, o->row), number_in_table(s->search, o->row), o->number, o->seconds, o->why, to);
  }
}

ts_status ts_tune_measure(const ts_tune_job *job, const ts_search *search, const ts_tune_trial *trial, int *best,
                          double *seconds, ts_text *to, ts_error *err) {
  *best = 0;
  *seconds = NAN;
  if (ts_make_directory(trial->directory, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  int *row;
  const int pool = choose_trials(search, trial, &row), n = pool < trial->most ? pool : (int) trial->most,
            first = first_free(trial->directory, n);
  trials s = {.job = job, .search = search, .trial = trial, .seen = {.space = job->space}, .pace = 1};
  s.all = ts_calloc((size_t) n + 1, sizeof *s.all);
  int64_t without = 0;
  while (s.n < n && (trial->stop == 0 || without < trial->stop) &&
         (trial->order != TS_TUNE_BY_PLAN || choose_next(&s, row, pool))) {
    fprintf(stderr, "trial %d of %d\n", s.n + 1, n); /* stdout is the result's */
    run_next(&s, row[s.n], first + s.n);
    without = find_fastest(s.all, s.n) == s.n - 1 ? 0 : without + 1;
  }
  const bool finals = run_finals(&s);
  const int fastest = find_fastest(s.all, s.n);
  print_trials(&s, finals, to);
  if (s.n < n && trial->stop > 0 && without >= trial->stop) {
    ts_text_add(to, "%lld in a row were no better: %d others were not run (autotuning.tuner_early_stopping)\n",
                (long long) without, n - s.n);
  }
  for (int i = 0; i < s.n; ++i) {
    if (s.all[i].row == 0 && fastest >= 0 && !isnan(s.all[i].seconds)) {
      ts_text_add(to, "regret of the plan's first: %.1f %%\n", 100 * (s.all[i].seconds / s.all[fastest].seconds - 1));
    }
    ts_free(s.all[i].why);
  }
  if (fastest >= 0) {
    *best = s.all[fastest].row;
    *seconds = s.all[fastest].seconds;
  }
  ts_belief_clear(&s.seen);
  ts_free(s.all);
  ts_free(row);
  return TS_OK;
}
