/** \file
 * `tessera tune`: what is said of a search, and the best of it measured.  Nothing here is collective.
 */
#ifndef TS_MAIN_TUNE_H
#define TS_MAIN_TUNE_H

#include "base/text.h"
#include "tune/search.h"

/** Append the fastest \a most as a table, and for each value of each setting that the fastest has not why: what of
 * those with it comes nearest, and what makes it slower, too large or impossible. Not collective. */
void ts_tune_print(const ts_tune_job *job, const ts_search *search, int most, ts_text *to);

/** The same as one json object. Not collective. */
void ts_tune_print_json(const ts_tune_job *job, const ts_search *search, ts_text *to);

/** In which order trials are run: by the plan as runs correct it, as candidates are counted, by chance. */
typedef enum ts_tune_order { TS_TUNE_BY_PLAN, TS_TUNE_BY_SPACE, TS_TUNE_BY_CHANCE } ts_tune_order;

/** How candidates are measured. */
typedef struct ts_tune_trial {
  const char *launch;    /**< What runs tessera on the ranks, in words of a shell: "mpiexec -n 4". */
  const char *program;   /**< tessera itself. */
  const char *directory; /**< For a deck, runs and logs of each. */
  int64_t warm, steps;   /**< Steps that do not count, and that do. */
  double seconds;        /**< After which one that has not ended is ended. */
  int64_t most;          /**< Trials, */
  int64_t stop;          /**< and without a better one in a row; 0: no bound. */
  int64_t micros;        /**< So many different micro-batches run at most; 0: any number. */
  ts_tune_order order;
  uint64_t seed; /**< Of BY_CHANCE. */
} ts_tune_trial;

/** What a step of a candidate takes, by a run in \a trial's directory, which is there.
 * \param [in] number  Of the trial, by which its files are called;
 * \param [in] again   and what stands behind it: "", or of another run.
 * \param [out] why    The caller's (ts_free): why it has no time; NULL where it has.
 * \return seconds, the mean of the fastest quarter of the steps that count; NAN: it did not end well. Not
 * collective. */
double ts_tune_run_trial(const ts_tune_job *job, const ts_candidate *candidate, const ts_tune_trial *trial, int number,
                         const char *again, char **why);

/** Run candidates for a few steps each, without variants: of the plan's fastest as many as are wanted, or BY_PLAN
 * of three times as many the next always what promises most by its plan, by what runs before took and by what these
 * leave open (tune/belief.h).
 * Where a run takes a tenth longer than that, or less after that, the fastest so far runs again to say how the machine
 * is now, and times are as where nothing disturbs it; those that come within 25 % of the fastest, at most eight, and
 * those that were it, within 75 %, run up to five times more, by turns, until those that may be the fastest take what
 * they took before; of these runs the least counts, and other times are as the machine was then.
 * Append what they took, and what it costs to believe the plan (regret); one that fails or does not end is a row.
 * \param [out] best     Of the search's rows the one that was fastest; 0 where none ran.
 * \param [out] seconds  Of a step of it; NAN where none ran.
 * \return TS_BAD_INPUT: the directory cannot be made. Not collective. */
ts_status ts_tune_measure(const ts_tune_job *job, const ts_search *search, const ts_tune_trial *trial, int *best,
                          double *seconds, ts_text *to, ts_error *err);

/** The complete deck of a candidate as text for `train`. \return TS_BAD_INPUT. Not collective. */
ts_status ts_tune_deck(const ts_tune_job *job, const ts_candidate *c, ts_text *to, ts_error *err);

/** The same to a file. \return TS_BAD_INPUT, also where it cannot be written. Not collective. */
ts_status ts_tune_write_deck(const ts_tune_job *job, const ts_candidate *c, const char *path, ts_error *err);

/** Leave what DeepSpeed's autotuning leaves: in a directory summary.txt and ds_config_optimal.json, a deck too, and
 * the metrics of the best as json.
 * \param [in] summary      What was printed.
 * \param [in] seconds      Of a step of the best.
 * \param [in] flops        Of a step.
 * \param [in] metric_path  "": no such file.
 * \return TS_BAD_INPUT: one of these cannot be written. Not collective. */
ts_status ts_tune_write_results(const ts_tune_job *job, const ts_candidate *best, const char *directory,
                                const char *metric_path, double seconds, double flops, const char *summary,
                                ts_error *err);

#endif
