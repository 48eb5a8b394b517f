/** \file
 * `tessera tune`: what is said of a search, and the best of it measured.  Nothing here is collective.
 */
#ifndef TS_MAIN_TUNE_H
#define TS_MAIN_TUNE_H

#include "base/text.h"
#include "tune/search.h"

/** Append the fastest \a most as a table, and for each value of each setting that the fastest has not why: what of
 * those with it comes nearest, and what makes it slower, too large or impossible. Not collective.
 * \param [in] path  Of the deck. */
void ts_tune_print(const ts_tune_job *job, const ts_search *search, int most, ts_text *to);

/** The same as one json object. Not collective. */
void ts_tune_print_json(const ts_tune_job *job, const ts_search *search, ts_text *to);

/** How the best are measured. */
typedef struct ts_tune_trial {
  const char *launch;    /**< What runs tessera on the ranks, in words of a shell: "mpiexec -n 4". */
  const char *program;   /**< tessera itself. */
  const char *directory; /**< For a deck, a run and a log of each. */
  int64_t warm, steps;   /**< Steps that do not count, and that do. */
  double seconds;        /**< After which one that has not ended is ended. */
} ts_tune_trial;

/** Run the fastest \a n for a few steps each and append what they took, and what it cost to have believed the plan
 * (regret); one that fails or does not end is a row.
 * \param [out] best  Of the search's rows the one that was fastest; 0 where none ran.
 * \return TS_BAD_INPUT: the directory cannot be made. Not collective. */
ts_status ts_tune_measure(const ts_tune_job *job, const ts_search *search, const ts_tune_trial *trial, int n, int *best,
                          ts_text *to, ts_error *err);

#endif
