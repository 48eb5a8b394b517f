/** \file
 * Batch sizes that follow the number of ranks: DeepSpeed's `elasticity`.
 *
 * From a list of micro-batch sizes and a limit, one global batch is chosen that as many numbers of ranks as possible
 * divide; a job may then be started again on any of them and trains as before.  The choice is that of DeepSpeed 0.19.6
 * (deepspeed/elasticity/elasticity.py), so that a deck moves between the two:
 *
 *   candidates  for each base b in {sizes, their least common multiple}, b at most the limit: b x h, where h is the
 *               largest highly composite number (more divisors than any smaller one) up to limit / b, and at most
 *               720720
 *   fits        d ranks fit a batch B when d divides B, min_gpus <= d <= max_gpus, and some size divides B / d
 *   choice      the candidate with the most fitting d; of equals the largest (prefer_larger_batch) or the smallest
 *   micro       the largest size that divides B / d
 *
 * Version 0.1 is this.  Version 0.2 does it for whole nodes, of n = num_gpus_per_node / model_parallel_size replicas
 * each: limit / n, min_gpus / num_gpus_per_node and max_gpus / num_gpus_per_node go in, and B and all d are multiplied
 * by n.  Where d does not fit, it takes another batch for d alone: the largest (or smallest) of size x d x floor (limit
 * / (size x d)).
 *
 * Two things differ from DeepSpeed's text.  Divisions are of integers: its floating point ones lose a rank in rare
 * cases (1 GPU of nodes of 49).  And d is always the number of replicas, where DeepSpeed means it in one place and all
 * GPUs in others (which is the same unless model_parallel_size is above 1).
 *
 * Cost: candidates x (square root of the limit + divisors x sizes): 0.2 s at most, for 256 sizes and a limit of 2^31.
 */
#ifndef TS_DECK_ELASTICITY_H
#define TS_DECK_ELASTICITY_H

#include "deck/deck.h"

/** Most sizes in elasticity.micro_batch_sizes. */
#define TS_ELASTIC_SIZES 256

/** A choice.  End with ts_ints_clear (&fits). */
typedef struct ts_elastic_batch {
  int64_t batch; /**< Global; 0: there is none. */
  int64_t micro; /**< Of one rank; 0: the number of ranks asked for does not fit. */
  ts_ints fits;  /**< Owned: the numbers of replicas that `batch` is for, ascending. */
} ts_elastic_batch;

/** Choose the batch for \a replicas replicas (data-parallel ranks), at least 1; or, with 0, for as many numbers of them
 * as possible, without a micro-batch.
 * \param [in]  wish    Checked (ts_reader_check_deck), but for `enabled`, which is not looked at.
 * \param [out] choice  The caller's.  Not collective; the same on every rank. */
void ts_elastic_choose(const ts_deck_elasticity *wish, int64_t replicas, ts_elastic_batch *choice);

/** The largest highly composite number that is at most \a limit (at least 1) and at most 720720.  Not collective. */
int64_t ts_elastic_composite(int64_t limit);

/** As ts_deck_resolve_batch, from the deck's `elasticity` alone; the triple is not looked at.  Not collective. */
ts_status ts_elastic_resolve(ts_deck *deck, int64_t replicas, ts_error *err);

/** Append "1, 2, 4 ... 48, 96 (12 numbers)": all of a short list, the ends of a long one.  Not collective. */
void ts_elastic_list(const ts_ints *list, ts_text *to);

#endif
