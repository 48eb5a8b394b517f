/** \file
 * What runs of some candidates say of others: a plan is wrong by about the same factor where settings are the same.
 * The logarithm of what a run takes by what was planned is a Gaussian process over candidates (Rasmussen and Williams,
 * Gaussian Processes for Machine Learning, 2006, algorithm 2.1), whose covariance has a part for the machine as a whole
 * and one for each setting that two have alike.  Nothing here is collective.
 */
#ifndef TS_TUNE_BELIEF_H
#define TS_TUNE_BELIEF_H

#include "tune/candidates.h"

/** A run that was seen. */
typedef struct ts_belief_run {
  ts_candidate candidate;
  double wrong;   /**< The logarithm of what it took by what was planned. */
  double *factor; /**< Owned: its row of the Cholesky factor of all covariances. */
  double weight;  /**< What it counts for another by their covariance. */
} ts_belief_run;

/** Zero but for the space at first. */
typedef struct ts_belief {
  const ts_tune_space *space; /**< Borrowed. */
  ts_belief_run *run;         /**< Owned. */
  int n, capacity;
} ts_belief;

/** Take in that a run took so many times what was planned: above 0 and finite, else the process ends. Not collective.
 */
void ts_belief_add(ts_belief *belief, const ts_candidate *candidate, double times_plan);

/** How many times its plan a candidate will take, in the median, by the runs that were seen: 1 where there are none.
 * Not collective. */
double ts_belief_of(const ts_belief *belief, const ts_candidate *candidate);

/** As a part of that, how far what is known of a candidate may be off: the standard deviation of the logarithm, the
 * more the less it has in common with what was seen. Not collective. */
double ts_belief_doubt(const ts_belief *belief, const ts_candidate *candidate);

/** Free what it owns; it is all zero then. Not collective. */
void ts_belief_clear(ts_belief *belief);

#endif
