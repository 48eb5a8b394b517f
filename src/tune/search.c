#include "tune/search.h"

#include "base/log.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

/* A candidate with what is known of it before it is walked. */
typedef struct entry {
  ts_candidate candidate;
  double estimate, bytes;
  int grid;
  bool walked, large;
} entry;

/* Those that share their ranks alike. */
typedef struct grid {
  double ratio; /* the least of a time to its estimate; 0: none has one */
  int refusals; /* of candidates, before one was taken */
  bool refused; /* so many that none will be taken */
  bool seen;    /* one was taken */
} grid;

typedef struct searching {
  const ts_tune_job *job;
  const ts_tune_model *model;
  entry *entry; /* owned */
  int n, capacity;
  grid *grid; /* owned */
  int n_grids;
  double ratio; /* the least of all grids; 1 before there is one */
  double best;  /* seconds */
  double end;   /* of the search, by ts_seconds */
  ts_search *said;
} searching;

/* ---- all there are ---- */

static bool is_idle(const ts_tune_space *s, const ts_candidate *c) {
  bool schedule = ts_candidate_number(s, c, TS_TUNED_PP) == 1 && c->at[TS_TUNED_SCHEDULE] > 0;
  bool values = c->at[TS_TUNED_OFFLOAD] > 0 && ts_candidate_number(s, c, TS_TUNED_OFFLOAD) == 2 &&
                ts_candidate_number(s, c, TS_TUNED_STAGE) < 3; /* parameters leave at stage 3 alone */
  bool alone = ts_candidate_replicas(s, c) * ts_candidate_number(s, c, TS_TUNED_SP) == 1 && c->at[TS_TUNED_STAGE] > 0 &&
               s->n[TS_TUNED_STAGE] > 1; /* nobody to share state with */
  return schedule || values || alone;
}

static void add_all_entries(searching *s, const ts_tune_model *model) {
  const ts_tune_space *space = s->job->space;
  ts_candidate c = {{0}};
  for (bool more = true; more;) {
    if (s->n == TS_TUNE_MOST) {
      s->said->too_many = true;
      break;
    }
    if (ts_candidate_goes(space, &c) && !is_idle(space, &c)) {
      TS_GROW(s->entry, s->n, s->capacity);
      int number = 0;
      for (ts_tuned what = TS_TUNED_TP; what <= TS_TUNED_SCHEDULE; ++what) {
        number = number * space->n[what] + c.at[what];
      }
      s->entry[s->n++] = (entry){.candidate = c,
                                 .estimate = ts_tune_estimate(space, model, &c, s->job->timing),
                                 .bytes = ts_tune_least_bytes(space, model, &c),
                                 .grid = number};
    }
    more = false;
    for (ts_tuned what = 0; what < TS_TUNED_OVERLAP && !more; ++what) { /* those behind are refined in the end */
      more = ++c.at[what] < space->n[what];
      c.at[what] = more ? c.at[what] : 0;
    }
  }
  s->n_grids = 1;
  for (ts_tuned what = TS_TUNED_TP; what <= TS_TUNED_SCHEDULE; ++what) {
    s->n_grids *= space->n[what];
  }
  s->grid = ts_calloc((size_t) s->n_grids, sizeof *s->grid);
  s->said->candidates = s->n;
}

/* ---- which next ---- */

/* Does it need at least as much as one that was too large?  Of another stage of ZeRO that is not known: what is
 * gathered may take more than what is shared. */
static bool needs_more(const ts_tune_space *space, const ts_candidate *a, const ts_candidate *large) {
  bool same = a->at[TS_TUNED_OFFLOAD] == large->at[TS_TUNED_OFFLOAD];
  for (ts_tuned what = TS_TUNED_TP; what <= TS_TUNED_STAGE; ++what) {
    same = same && a->at[what] == large->at[what];
  }
  return same && ts_candidate_number(space, a, TS_TUNED_MICRO) >= ts_candidate_number(space, large, TS_TUNED_MICRO) &&
         ts_candidate_number(space, a, TS_TUNED_RECOMPUTE) <= ts_candidate_number(space, large, TS_TUNED_RECOMPUTE);
}

/* Bytes that it takes at least, more than there are; 0: it may fit. */
static double large_bytes(const searching *s, const entry *e) {
  const double memory = (double) s->job->memory;
  double bytes = memory > 0 && e->bytes > memory ? e->bytes : 0;
  for (int i = 0; i < s->said->n && bytes == 0; ++i) {
    const ts_tried *t = &s->said->tried[i];
    bool more = t->how == TS_TRIED_LARGE && needs_more(s->job->space, &e->candidate, &t->candidate);
    bytes = more ? (double) t->bytes : 0;
  }
  return bytes;
}

/* Nothing has to leave where the same fits without. */
static bool leaves_in_vain(const searching *s, const entry *e) {
  const ts_tune_space *space = s->job->space;
  entry stays = *e;
  for (int i = 0; i < space->n[TS_TUNED_OFFLOAD]; ++i) {
    stays.candidate.at[TS_TUNED_OFFLOAD] =
        space->value[TS_TUNED_OFFLOAD][i].number == 0 ? i : stays.candidate.at[TS_TUNED_OFFLOAD];
  }
  if (stays.candidate.at[TS_TUNED_OFFLOAD] == e->candidate.at[TS_TUNED_OFFLOAD]) {
    return false;
  }
  stays.bytes = ts_tune_least_bytes(space, s->model, &stays.candidate);
  return large_bytes(s, &stays) == 0;
}

static double promise(const searching *s, const entry *e) {
  const grid *g = &s->grid[e->grid];
  return e->estimate * (g->ratio > 0 ? g->ratio : s->ratio);
}

/* Estimates of one grid are wrong by about the same factor, which is learned, but not by the same. */
static const double SLACK = 1.3;

/* The one that promises most, of a grid that the wave has not begun; -1: none promises to be faster than the best. */
static int find_next(searching *s, const bool *begun) {
  int best = -1;
  double least = s->best * SLACK;
  for (int i = 0; i < s->n; ++i) {
    entry *e = &s->entry[i];
    if (e->walked || e->large || s->grid[e->grid].refused || begun[e->grid]) {
      continue;
    }
    double seconds = promise(s, e);
    if (seconds < least && !leaves_in_vain(s, e)) {
      e->large = large_bytes(s, e) > 0;
      if (e->large) {
        continue;
      }
      least = seconds;
      best = i;
    }
  }
  return best;
}

/* ---- walking ---- */

static void learn(searching *s, const entry *e, const ts_tried *t) {
  grid *g = &s->grid[e->grid];
  double seconds = ts_tried_seconds(t, s->job->timing), ratio = seconds / e->estimate;
  enum { REFUSALS = 3 };
  g->refusals += t->how == TS_TRIED_REFUSED && !g->seen;
  g->refused = g->refused || g->refusals >= REFUSALS;
  s->said->walked += 1;
  g->seen = g->seen || t->how == TS_TRIED_FITS || t->how == TS_TRIED_LARGE;
  if (t->how == TS_TRIED_FITS) {
    g->ratio = g->ratio > 0 ? fmin(g->ratio, ratio) : ratio;
    s->ratio = s->best < INFINITY ? fmin(s->ratio, ratio) : ratio;
    s->best = fmin(s->best, seconds);
  }
}

static void keep(ts_search *said, const ts_tried *t) {
  TS_GROW(said->tried, said->n, said->capacity);
  said->tried[said->n++] = *t;
}

/* So many for each process that none waits long for the slowest; what one teaches the others of a wave do not know. */
static bool walk_wave(searching *s, int processes) {
  enum { EACH = 3 };
  const int most = EACH * processes;
  ts_tried *wave = ts_calloc((size_t) most, sizeof *wave);
  int *of = ts_calloc((size_t) most, sizeof *of), n = 0;
  bool *begun = ts_calloc((size_t) s->n_grids, sizeof *begun);
  for (int next = 0; n < most && (next = find_next(s, begun)) >= 0; ++n) {
    entry *e = &s->entry[next];
    e->walked = begun[e->grid] = true;
    of[n] = next;
    wave[n].candidate = e->candidate;
  }
  ts_tune_walk(s->job, wave, n, processes);
  for (int i = 0; i < n; ++i) {
    learn(s, &s->entry[of[i]], &wave[i]);
    keep(s->said, &wave[i]);
  }
  ts_free(begun);
  ts_free(of);
  ts_free(wave);
  return n > 0;
}

static int by_time(const ts_tried *a, const ts_tried *b, const ts_timing *timing) {
  double x = ts_tried_seconds(a, timing), y = ts_tried_seconds(b, timing);
  return x != y ? (x > y) - (x < y) : (int) a->how - (int) b->how;
}

/* Few, and no sort of the library takes the timing along. */
static void sort_tried(ts_search *said, const ts_timing *timing) {
  for (int i = 1; i < said->n; ++i) {
    ts_tried t = said->tried[i];
    int k = i;
    for (; k > 0 && by_time(&said->tried[k - 1], &t, timing) > 0; --k) {
      said->tried[k] = said->tried[k - 1];
    }
    said->tried[k] = t;
  }
}

/* What is left open until the end: the other values of one setting for the best ones. */
static void refine(searching *s, ts_tuned what, int processes) {
  enum { BEST = 3 };
  const int others = ts_seconds() < s->end ? s->job->space->n[what] - 1 : 0;
  ts_tried *wave = ts_calloc((size_t) (BEST * others) + 1, sizeof *wave);
  int n = 0;
  sort_tried(s->said, s->job->timing);
  for (int i = 0; i < BEST && i < s->said->n && s->said->tried[i].how == TS_TRIED_FITS; ++i) {
    for (int k = 1; k <= others; ++k) {
      wave[n].candidate = s->said->tried[i].candidate;
      wave[n++].candidate.at[what] = k;
    }
  }
  ts_tune_walk(s->job, wave, n, processes);
  for (int i = 0; i < n; ++i) {
    keep(s->said, &wave[i]);
  }
  ts_free(wave);
}

/* ---- those that nobody wanted ---- */

/* One piece has no schedule. */
static bool candidate_has(const ts_tune_space *space, const ts_candidate *c, ts_tuned what, int value) {
  return c->at[what] == value && (what != TS_TUNED_SCHEDULE || ts_candidate_number(space, c, TS_TUNED_PP) > 1);
}

/* Why no candidate has this value at all: the least that it asks of the batch. */
static void explain_absence(const ts_tune_space *space, ts_tuned what, int value, ts_tried *t) {
  ts_candidate c = {{0}};
  double micro = INFINITY;
  int replicas = 0;
  for (int i = 0; i < space->n[TS_TUNED_MICRO]; ++i) {
    bool own = what != TS_TUNED_MICRO || i == value;
    micro = own ? fmin(micro, space->value[TS_TUNED_MICRO][i].number) : micro;
  }
  for (bool more = true; more;) {
    int here = candidate_has(space, &c, what, value) || what > TS_TUNED_PP ? ts_candidate_replicas(space, &c) : 0;
    replicas = here > 0 && (replicas == 0 || here < replicas) ? here : replicas;
    more = false;
    for (ts_tuned axis = TS_TUNED_TP; axis <= TS_TUNED_PP && !more; ++axis) {
      more = ++c.at[axis] < space->n[axis];
      c.at[axis] = more ? c.at[axis] : 0;
    }
  }
  const double together = micro * replicas;
  t->how = TS_TRIED_REFUSED;
  if (isinf(micro)) {
    snprintf(t->why, sizeof t->why, "no size of micro-batches that divides a batch of %lld is left open",
             (long long) space->batch);
  } else if (replicas > 0 && fmod((double) space->batch, together) != 0) {
    snprintf(t->why, sizeof t->why,
             "micro-batches of %.0f x %d data-parallel ranks = %.0f at least do not divide a batch of %lld", micro,
             replicas, together, (long long) space->batch);
  } else {
    snprintf(t->why, sizeof t->why, "on no grid that is left it does anything, or has micro-batches enough");
  }
}

/* Of those with a value the one that promises most of those not walked; NULL: none may fit, *large is the smallest, of
 * *bytes at least. */
static entry *find_with(searching *s, ts_tuned what, int value, const entry **large, double *bytes) {
  entry *best = NULL;
  *large = NULL;
  for (int i = 0; i < s->n; ++i) {
    entry *e = &s->entry[i];
    if (!candidate_has(s->job->space, &e->candidate, what, value) || e->walked) {
      continue;
    }
    double needs = large_bytes(s, e);
    if (needs > 0 && (*large == NULL || needs < *bytes)) {
      *large = e;
      *bytes = needs;
    } else if (needs == 0 && !s->grid[e->grid].refused && (best == NULL || promise(s, e) < promise(s, best))) {
      best = e;
    }
  }
  return best;
}

static void try_value(searching *s, ts_tuned what, int value) {
  enum { TRIALS = 6 };
  ts_tried t = {.how = TS_TRIED_REFUSED};
  const entry *large;
  double bytes = 0;
  entry *best = find_with(s, what, value, &large, &bytes);
  t.candidate.at[what] = value;
  if (best == NULL && large == NULL) {
    explain_absence(s->job->space, what, value, &t);
  } else if (best == NULL) {
    t.candidate = large->candidate;
    t.how = TS_TRIED_LARGE;
    t.bytes = (int64_t) bytes;
  } else if (what == TS_TUNED_OFFLOAD && leaves_in_vain(s, best)) {
    t.candidate = best->candidate;
    snprintf(t.why, sizeof t.why, "nothing has to leave where all fits");
  } else {
    for (int i = 0; i < TRIALS && best != NULL; ++i) {
      t = (ts_tried){.candidate = best->candidate};
      best->walked = true;
      ts_tune_walk(s->job, &t, 1, 1);
      learn(s, best, &t);
      best = t.how == TS_TRIED_REFUSED && ts_seconds() < s->end ? find_with(s, what, value, &large, &bytes) : NULL;
    }
  }
  keep(s->said, &t);
}

/* Each value is to have a row that says why it is not the best one's, as far as there is time. */
static void try_the_rest(searching *s) {
  for (ts_tuned what = 0; what < TS_TUNED_OVERLAP; ++what) {
    for (int value = 0; value < s->job->space->n[what] && ts_seconds() < s->end; ++value) {
      bool seen = false;
      for (int i = 0; i < s->said->n && !seen; ++i) {
        seen = candidate_has(s->job->space, &s->said->tried[i].candidate, what, value);
      }
      if (!seen) {
        try_value(s, what, value);
      }
    }
  }
}

static void count_rest(searching *s) {
  for (int i = 0; i < s->n && !s->said->too_many; ++i) {
    const entry *e = &s->entry[i];
    if (!e->walked) {
      ++*(s->grid[e->grid].refused                               ? &s->said->refused
          : e->large || large_bytes(s, e) > 0                    ? &s->said->large
          : s->said->in_time || promise(s, e) >= s->best * SLACK ? &s->said->slower
                                                                 : &s->said->open);
    }
  }
}

ts_search ts_tune_search(const ts_tune_job *job, const ts_tune_model *model, double seconds, int processes) {
  ts_search said = {.in_time = true};
  searching s = {.job = job, .ratio = 1, .best = INFINITY, .said = &said};
  const double start = ts_seconds(), for_reasons = 0.2;
  ts_tune_model remembers = *model;
  remembers.memo = ts_calloc(TS_TUNE_MEMO, sizeof *remembers.memo);
  s.model = &remembers;
  s.end = start + seconds;
  add_all_entries(&s, &remembers);
  bool more = !said.too_many;
  while (more && said.in_time) {
    more = walk_wave(&s, processes);
    said.in_time = !more || ts_seconds() - start < (1 - for_reasons) * seconds;
  }
  if (!said.too_many) {
    try_the_rest(&s);
    refine(&s, TS_TUNED_OVERLAP, processes);
    refine(&s, TS_TUNED_BUCKET, processes);
  }
  sort_tried(&said, job->timing);
  count_rest(&s);
  said.seconds = ts_seconds() - start;
  ts_free(remembers.memo);
  ts_free(s.entry);
  ts_free(s.grid);
  return said;
}

bool ts_search_is_variant(const ts_search *said, int row) {
  const size_t compared = TS_TUNED_OVERLAP * sizeof(int);
  bool variant = false;
  for (int i = 0; i < row && !variant; ++i) {
    variant = memcmp(said->tried[i].candidate.at, said->tried[row].candidate.at, compared) == 0;
  }
  return variant;
}

void ts_search_clear(ts_search *said) {
  ts_free(said->tried);
  *said = (ts_search){0};
}
