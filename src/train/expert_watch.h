/** \file
 * What experts get, step by step: a row a layer in RUN/moe.csv, and which of them got nothing for long.  Rank 0's.
 * Nothing here is collective.
 */
#ifndef TS_TRAIN_EXPERT_WATCH_H
#define TS_TRAIN_EXPERT_WATCH_H

#include "io/metrics.h"
#include "pass/layout.h"

/** Steps without a token after which an expert is called dead. */
#define TS_DEAD_STEPS 100

/** Experts without a token for so long; the first of them by name. */
typedef struct ts_dead_experts {
  int64_t n;
  int64_t layer, expert; /**< 0 where there is none. */
  bool more;             /**< Some of them are since this step. */
} ts_dead_experts;

typedef struct ts_expert_watch {
  int64_t *idle; /**< Owned: of each expert of all layers, steps since it got a token; those without any token not. */
} ts_expert_watch;

/** Begin as if all experts had just got one, when a run begins and when it goes on; end with ts_expert_watch_end.
 * Not collective. */
void ts_expert_watch_begin(ts_expert_watch *watch, const ts_layout *layout);

/** Write the rows of \a step, and look for the dead.
 * \param [in] loads          Of the engine (ts_engine_loads).
 * \param [in] micro_batches  That they are sums over. Not collective. */
ts_dead_experts ts_expert_watch_step(ts_expert_watch *watch, const ts_layout *layout, const float *loads,
                                     int64_t micro_batches, int64_t step, ts_metrics *metrics);

/** Free what it has. Not collective. */
void ts_expert_watch_end(ts_expert_watch *watch);

#endif
