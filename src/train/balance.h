/** \file
 * How evenly attention is divided among rings that share samples of documents (pass/sequence.h): pairs of a query and a
 * key that it sees.  Chunks are dealt so that rings have equal work when each sample is one document; others may not
 * be, and the busiest ring decides how long attention takes.  Nothing here is collective.
 */
#ifndef TS_TRAIN_BALANCE_H
#define TS_TRAIN_BALANCE_H

#include "io/batch.h"
#include "pass/sequence.h"

typedef struct ts_balance {
  double most, mean; /**< Pairs of the busiest ring, and of all divided by the rings, summed over micro-batches. */
} ts_balance;

/** Count the samples of a batch, \a each a micro-batch.  Its positions are those inside documents. Not collective. */
void ts_balance_add(ts_balance *balance, const ts_sequence *sequence, const ts_batch *batch, int64_t each);

/** Pairs of the busiest ring over the mean since the last time, 1 for none, and begin anew. Not collective. */
double ts_balance_take(ts_balance *balance);

#endif
