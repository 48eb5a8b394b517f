/** \file
 * When a save that failed is tried again, and when that has gone on for too long.
 *
 *            a save fails                        run.save_timeout after the first failure
 *   SAVED ───────────────▶ FAILING ─────────────────────────────────────────────────────────▶ the last try
 *     ▲                    │  │  ▲                                                           │        │ fails
 *     │ a save succeeds    │  └──┘ every run.save_retry: another try                         │        ▼
 *     └────────────────────┴─────────────────────────────────────────────────────────────────┘   the run stops
 *
 * Clocks differ, so the answer of rank 0 alone counts; how it reaches the others is the caller's business.  Nothing
 * here is collective.
 */
#ifndef TS_ENGINE_RETRY_H
#define TS_ENGINE_RETRY_H

#include <stdint.h>

/** All zero but for the first two is a run whose saves succeed.  Times are seconds of ts_seconds. */
typedef struct ts_retry {
  double every;       /**< run.save_retry. */
  double timeout;     /**< run.save_timeout; 0: for ever. */
  int64_t n;          /**< Saves that failed since one succeeded. */
  double first, last; /**< When the first and the last of them failed. */
} ts_retry;

/** Ascending: where ranks are asked together the largest answer counts. */
typedef enum ts_retry_answer { TS_RETRY_NO, TS_RETRY_AGAIN, TS_RETRY_LAST } ts_retry_answer;

/** A save failed, or succeeded. Not collective. */
void ts_retry_failed(ts_retry *retry, double now);
void ts_retry_succeeded(ts_retry *retry);

/** Is it time for another try?
 * \param [in] end  When there is no time for more than a last one, whatever the timeout; INFINITY for no such time.
 * Not collective. */
ts_retry_answer ts_retry_ask(const ts_retry *retry, double now, double end);

#endif
