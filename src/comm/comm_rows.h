/** \file
 * Which rows go where in an exchange of rows.  Pure arithmetic; private to this room.  Nothing here is collective.
 */
#ifndef TS_COMM_ROWS_H
#define TS_COMM_ROWS_H

#include "comm/comm.h"

/** An exchange as one rank sees it, with the counts in memory of the host. */
typedef struct ts_row_plan {
  const ts_row_exchange *rows; /**< Borrowed. */
  const int32_t *firsts;       /**< Borrowed; as of the exchange, in memory of the host. */
  int rank, size;
  int64_t n_experts; /**< Of all ranks. */
  int64_t *place;    /**< Owned; [own experts][size]: where, by expert and then by rank, a rank's rows of one begin. */
} ts_row_plan;

/** Look at the counts, which end the job when they do not ascend or do not fit the room there is, and lay out.
 * Borrows both until it is freed with ts_row_plan_free. Not collective. */
ts_row_plan ts_row_plan_make(const ts_row_exchange *rows, const int32_t *firsts, int rank, int size);
void ts_row_plan_free(ts_row_plan *plan);

/** A stretch of rows: those of \a expert, one of ts_row_plan_experts, between this rank and \a peer.
 * \param [out] at  Byte where it begins in x (\a sends) or y.
 * \return its bytes; 0 where there are none. Not collective. */
int64_t ts_row_plan_stretch(const ts_row_plan *plan, bool sends, int peer, int64_t expert, int64_t *at);

/** The experts of which rows travel from this rank to \a peer (\a sends) or from there: those of whoever has them.
 * Not collective. */
static inline ts_interval ts_row_plan_experts(const ts_row_plan *plan, bool sends, int peer) {
  int holder = sends != plan->rows->home ? peer : plan->rank;
  const int64_t *cuts = plan->rows->experts;
  return (ts_interval){cuts[holder], cuts[holder + 1] - cuts[holder]};
}

/** What all ranks must say alike beside the size of a row, as a hash. Not collective. */
uint64_t ts_hash_rows(const ts_row_plan *plan);

#endif
