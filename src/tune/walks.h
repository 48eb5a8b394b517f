/** \file
 * Candidates tried by what they really are: the deck with their settings is read, the programs of all stages are made,
 * their memory is what will be taken, and the clock walks them (run/clock.h).  Each in a process of its own, several at
 * a time: one that ends its process is a row like any other.  Not collective.
 */
#ifndef TS_TUNE_WALKS_H
#define TS_TUNE_WALKS_H

#include "run/timing.h"
#include "tune/candidates.h"

/** What became of a candidate. */
typedef enum ts_tried_how {
  TS_TRIED_FITS,    /**< It has a time. */
  TS_TRIED_LARGE,   /**< It needs more memory than there is: .bytes. */
  TS_TRIED_REFUSED, /**< The deck or the grid does not allow it: .why. */
  TS_TRIED_FAILED,  /**< Making its programs ended with an error: .why. */
} ts_tried_how;

typedef struct ts_tried {
  ts_candidate candidate;
  ts_tried_how how;
  int64_t bytes; /**< Of a rank's memory, of the stage that needs most; of LARGE at least so many. */
  /** Seconds of a step at the ends of the timing; of the stage that computes longest what it computes, what is exposed
   * of messages, what it waits for other stages and for copies. */
  double step[TS_N_ENDS], computing, exposed, neighbours, waited;
  double bubble;
  char why[384];
} ts_tried;

/** What all have in common.  Borrowed. */
typedef struct ts_tune_job {
  const char *path;  /**< Of the deck, */
  char *const *sets; /**< and what --set changes of it. */
  int n_sets;
  const char *target; /**< A value of --target. */
  int threads;        /**< Of a rank. */
  int64_t memory;     /**< Bytes of a rank; 0: no limit. */
  const ts_timing *timing;
  const ts_tune_space *space;
} ts_tune_job;

/** The deck of a candidate, its batch resolved.
 * \param [out] mesh  As rank 0 sees it.
 * \return TS_BAD_INPUT with what it contradicts. Not collective. */
ts_status ts_tune_read(const ts_tune_job *job, const ts_candidate *c, ts_deck **deck, ts_mesh *mesh, ts_error *err);

/** Try \a n candidates, \a most at a time; what was seen of each is in \a tried, whose candidates are set. Not
 * collective. */
void ts_tune_walk(const ts_tune_job *job, ts_tried *tried, int n, int most);

/** Sorts by: the mean of the ends of the range, geometric; INFINITY for what has no time. Not collective. */
double ts_tried_seconds(const ts_tried *tried, const ts_timing *timing);

#endif
