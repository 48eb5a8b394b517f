/** \file
 * Time limits that follow the size of a step: one of a million tokens may take an hour, and is no hang.
 *
 *     needed = 4 x planned FLOPs of a rank's step / FLOP/s of products on the slowest rank
 *
 * FLOPs are those of the model's mathematics (ts_program_step_flops); what is computed again, a third more, is within
 * the 4.  What the deck sets is final; of the rest each limit is its default or what is needed, whichever is more.
 */
#ifndef TS_ENGINE_TIMEOUTS_H
#define TS_ENGINE_TIMEOUTS_H

#include "deck/deck.h"

/** Seconds; 0: never. */
typedef struct ts_timeouts {
  double step, first_step; /**< Until a step counts as a hang (train/watchdog.h). */
  double peer;             /**< That a GPU may keep its host waiting. */
} ts_timeouts;

/** Seconds that a step of \a flops FLOPs may need at \a rate FLOP/s. Not collective. */
double ts_timeouts_needed(double flops, double rate);

/** The limits of a run whose steps may need \a needed seconds; 0: what the deck says. Not collective. */
ts_timeouts ts_timeouts_of(const ts_deck *deck, double needed);

#endif
