/** \file
 * The search of `tessera tune`: best first by estimates that learn from what was walked, until nothing that is left
 * promises more.  Not collective.
 */
#ifndef TS_TUNE_SEARCH_H
#define TS_TUNE_SEARCH_H

#include "tune/estimate.h"
#include "tune/walks.h"

enum { TS_TUNE_MOST = 2000000 };

typedef struct ts_search {
  ts_tried *tried; /**< Owned; fastest first, then what does not fit, and what is refused; other values of a setting too
                    * that are no candidate. */
  int n, capacity;
  bool too_many;      /**< More than TS_TUNE_MOST: nothing was searched. */
  int64_t candidates; /**< In all, */
  int64_t walked;     /**< of which so many were walked, */
  int64_t large;      /**< so many were not as their state alone is too large, or a smaller one is, */
  int64_t refused;    /**< as those of their grid are refused, */
  int64_t slower;     /**< as what they promise is no better than the best, */
  int64_t open;       /**< or as the time was over. */
  bool in_time;       /**< It ended as nothing else promises more; else as its time was over. */
  double seconds;     /**< It took. */
} ts_search;

/** Search.
 * \param [in] seconds    After which no other candidate is begun; the last fifth is for those that say why not.
 * \param [in] processes  At a time.
 * \return the caller's (ts_search_clear). Not collective. */
ts_search ts_tune_search(const ts_tune_job *job, const ts_tune_model *model, double seconds, int processes);

/** Does a faster row differ from this one in nothing but overlap and buckets?  Then tables leave it out. Not
 * collective. */
bool ts_search_is_variant(const ts_search *search, int row);

/** Free what it owns. Not collective. */
void ts_search_clear(ts_search *search);

#endif
