/* Training that is as long as its data, so many times. */
#include "deck/deck.h"

#include <float.h>
#include <math.h>

int64_t ts_deck_steps_left(const ts_deck *deck, int64_t samples, int64_t done) {
  double wanted = deck->run.epochs * (double) samples, nearest = round(wanted);
  /* 1.1 epochs of 10 samples are 11 samples, of which the product of two doubles misses one unit of its last place */
  bool whole = fabs(wanted - nearest) <= DBL_EPSILON * wanted;
  double end = whole ? nearest : ceil(wanted);
  int64_t left = (end < 9.2e18 ? (int64_t) end : INT64_MAX) - done, batch = deck->train_batch_size;
  return left > 0 ? left / batch + (left % batch != 0) : 0;
}
