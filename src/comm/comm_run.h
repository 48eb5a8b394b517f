/** \file
 * The columns of a call's transfers as one sequence per shard, and its parts.  Pure arithmetic; private to this room.
 * None of these functions is collective.
 */
#ifndef TS_COMM_RUN_H
#define TS_COMM_RUN_H

#include "comm/comm.h"

/** The part of some columns of a shard that lies in one transfer. */
typedef struct ts_run {
  int64_t column; /**< First, in the sequence of the shard. */
  int64_t first;  /**< The same as an element of the whole. */
  int64_t count;
  const ts_transfer *transfer;
} ts_run;

/** Walks columns [begin, end) of the sequence of rank \a rank's shard; the rest is zero at first. */
typedef struct ts_walk {
  const ts_transfer *transfer;
  int n;
  int rank; /**< Whose shard. */
  int64_t begin, end;
  int next;
  int64_t passed; /**< Columns of the transfers before `next`. */
} ts_walk;

/** The next run that is not empty.
 * \return False when there is none. Not collective. */
bool ts_walk_next(ts_walk *walk, ts_run *out);

/** What all of them are divided by on their way; 1: nothing. Not collective. */
static inline float ts_transfer_divisor(const ts_transfer *transfer, int n) {
  return n > 0 && transfer[0].divisor != 0 ? transfer[0].divisor : 1;
}

/** Columns of rank \a rank's shard in \a n transfers; most of any of \a size ranks. Not collective. */
int64_t ts_shard_columns(const ts_transfer *transfer, int n, int rank);
int64_t ts_longest_shard(const ts_transfer *transfer, int n, int size);

/** Equal shards of whole cache lines, the last ones shorter or empty: the cut of an all_reduce.
 * \param [out] cuts  size + 1 cut points. Not collective. */
void ts_cut_equally(int64_t *cuts, int size, int64_t count);

/** The place of a run's first element in an array of the whole, and in one of the shard. Not collective. */
static inline const void *ts_run_in_whole(const ts_run *run, const void *whole, ts_dtype dtype) {
  return (const char *) whole + (size_t) run->first * ts_dtype_size(dtype);
}
static inline void *ts_run_in_shard(const ts_run *run, void *shard, int rank, ts_dtype dtype) {
  return (char *) shard + (size_t) (run->first - run->transfer->cuts[rank]) * ts_dtype_size(dtype);
}

#endif
