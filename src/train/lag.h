/** \file
 * Which ranks hold a run up, by what its nodes say (train/status_file.h).
 *
 * From the plainest sign to the weakest; the first that there is wins:
 *   1. a node says nothing any more: its ranks, or its network or file system, are gone;
 *   2. a rank's process does not get to run (its thread gives no sign of life): stopped, dead, or its node is
 *      overloaded;
 *   3. a rank has entered fewer collectives of a group it is in than others, which wait in one that it did not reach;
 *      a rank that itself waits for another one is not the cause, unless each of them waits;
 *   4. nobody is behind: all wait in the same collective, or all compute.
 * Collectives are compared within a group of ranks only (base/heartbeat.h).  Nothing here is collective.
 */
#ifndef TS_TRAIN_LAG_H
#define TS_TRAIN_LAG_H

#include "train/status_file.h"

typedef enum ts_lag { TS_LAG_NONE, TS_LAG_SILENT_NODE, TS_LAG_FROZEN_RANK, TS_LAG_BEHIND } ts_lag;

/** Seconds after which a node that writes every \a period seconds is silent, and a rank without a sign of life frozen.
 * Not collective. */
double ts_lag_silence(double period);
double ts_lag_frozen(double period);

/** Seconds between two signs of life of a rank, for that period. Not collective. */
double ts_lag_tick(double period);

/** Say who is behind, a line each and indented, at most some 20; nothing when the answer is TS_LAG_NONE.
 * \param [in] waited  Seconds that somebody must have waited before others count as behind (case 3).  A reading is no
 *                     snapshot: ranks of a healthy run are a few collectives apart in it. Not collective. */
ts_lag ts_lag_find(const ts_run_status *status, double waited, ts_text *to);

/** Say where each rank is, a line each and indented, at most some 20. Not collective. */
void ts_lag_add_all(const ts_run_status *status, ts_text *to);

/** Append ranks as "0-2, 5". Not collective. */
void ts_lag_add_ranks(const int64_t *rank, int n, ts_text *to);

#endif
