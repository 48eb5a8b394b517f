#include "tune/belief.h"

#include "base/memory.h"
#include "base/status.h"

#include <math.h>

/* By how much plans are wrong, as standard deviations of a logarithm: all of a machine together, for the sake of a
 * setting, and what a run of a few steps differs by from another of the same.  As seen: plans by the machine alone are
 * wrong by 13 to 20 % in one direction, and tables of measured decks, replayed, tell half or twice of each from these
 * by no more than their noise (doc/performance.md, "The search"). */
static const double MACHINE = 0.3, SETTING = 0.05, RUN = 0.07;

/* From 0 to 1.  Micro-batches of about the same size are alike; one piece has no schedule. */
static double alike(const ts_tune_space *s, const ts_candidate *a, const ts_candidate *b, ts_tuned what) {
  const bool pieces = ts_candidate_number(s, a, TS_TUNED_PP) > 1, others = ts_candidate_number(s, b, TS_TUNED_PP) > 1;
  if (what == TS_TUNED_SCHEDULE && pieces != others) {
    return 0;
  }
  if (what == TS_TUNED_MICRO) {
    return exp(-fabs(log2(ts_candidate_number(s, a, what) / ts_candidate_number(s, b, what))));
  }
  return a->at[what] == b->at[what];
}

static double covariance(const ts_tune_space *s, const ts_candidate *a, const ts_candidate *b) {
  double sum = MACHINE * MACHINE;
  for (ts_tuned what = 0; what < TS_N_TUNED; ++what) {
    sum += s->n[what] > 1 ? SETTING * SETTING * alike(s, a, b, what) : 0;
  }
  return sum;
}

/* The factor's row of the last run: what it has in common with those before. */
static double *factor_row(const ts_belief *b) {
  const int last = b->n - 1;
  double *row = ts_malloc((size_t) b->n * sizeof *row);
  for (int j = 0; j <= last; ++j) {
    const double *other = j == last ? row : b->run[j].factor;
    double rest = covariance(b->space, &b->run[last].candidate, &b->run[j].candidate) + (j == last ? RUN * RUN : 0);
    for (int i = 0; i < j; ++i) {
      rest -= row[i] * other[i];
    }
    row[j] = j == last ? sqrt(rest) : rest / other[j]; /* of the last at least RUN */
  }
  return row;
}

/* Both triangles, one after the other. */
static void weigh_runs(ts_belief *b) {
  ts_belief_run *r = b->run;
  for (int i = 0; i < b->n; ++i) {
    r[i].weight = r[i].wrong;
    for (int j = 0; j < i; ++j) {
      r[i].weight -= r[i].factor[j] * r[j].weight;
    }
    r[i].weight /= r[i].factor[i];
  }
  for (int i = b->n - 1; i >= 0; --i) {
    for (int j = i + 1; j < b->n; ++j) {
      r[i].weight -= r[j].factor[i] * r[j].weight;
    }
    r[i].weight /= r[i].factor[i];
  }
}

void ts_belief_add(ts_belief *b, const ts_candidate *candidate, double times_plan) {
  TS_ASSERT(times_plan > 0 && isfinite(times_plan));
  TS_GROW(b->run, b->n, b->capacity);
  b->run[b->n++] = (ts_belief_run){.candidate = *candidate, .wrong = log(times_plan)};
  b->run[b->n - 1].factor = factor_row(b);
  weigh_runs(b);
}

double ts_belief_of(const ts_belief *b, const ts_candidate *candidate) {
  double sum = 0;
  for (int i = 0; i < b->n; ++i) {
    sum += b->run[i].weight * covariance(b->space, candidate, &b->run[i].candidate);
  }
  return exp(sum);
}

/* What it has in common with the runs, by their factor, is known. */
double ts_belief_doubt(const ts_belief *b, const ts_candidate *candidate) {
  double *known = ts_malloc(((size_t) b->n + 1) * sizeof *known), rest = covariance(b->space, candidate, candidate);
  for (int i = 0; i < b->n; ++i) {
    known[i] = covariance(b->space, candidate, &b->run[i].candidate);
    for (int j = 0; j < i; ++j) {
      known[i] -= b->run[i].factor[j] * known[j];
    }
    known[i] /= b->run[i].factor[i];
    rest -= known[i] * known[i];
  }
  ts_free(known);
  return sqrt(fmax(rest, 0)); /* but for rounding it is more */
}

void ts_belief_clear(ts_belief *b) {
  for (int i = 0; i < b->n; ++i) {
    ts_free(b->run[i].factor);
  }
  ts_free(b->run);
  *b = (ts_belief){0};
}
