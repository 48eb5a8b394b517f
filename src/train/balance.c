#include "train/balance.h"

#include <math.h>

/* A query sees its document up to itself. */
static double pairs_of_ring(const ts_sequence *s, int ring, const int32_t *positions) {
  ts_tokens tokens = ts_sequence_ring(s, ring);
  double pairs = 0;
  for (int i = 0; i < tokens.n; ++i) {
    for (int64_t t = 0; t < tokens.stretch[i].length; ++t) {
      pairs += positions[tokens.stretch[i].begin + t] + 1.0;
    }
  }
  return pairs;
}

void ts_balance_add(ts_balance *balance, const ts_sequence *s, const ts_batch *batch, int64_t each) {
  const int32_t *positions = batch->input[TS_INPUT_POSITIONS];
  for (int64_t first = 0; first + each <= batch->samples; first += each) {
    double most = 0, sum = 0;
    for (int ring = 0; ring < s->ring; ++ring) {
      double pairs = 0;
      for (int64_t i = first; i < first + each; ++i) {
        pairs += pairs_of_ring(s, ring, positions + i * batch->length);
      }
      most = fmax(most, pairs);
      sum += pairs;
    }
    balance->most += most;
    balance->mean += sum / s->ring;
  }
}

double ts_balance_take(ts_balance *balance) {
  double ratio = balance->mean > 0 ? balance->most / balance->mean : 1;
  *balance = (ts_balance){0};
  return ratio;
}
