/** \file
 * Which elements a dropout keeps: a pure function of the step's seed, the op's stable name, the global number of the
 * sample and the element, so that any grid, any order and recomputation drop the same elements.
 */
#ifndef TS_BACKEND_CPU_DROPOUT_H
#define TS_BACKEND_CPU_DROPOUT_H

#include "base/random.h"

/** Key of a dropout op in a step. Not collective. */
static inline uint64_t ts_dropout_key(int64_t seed, uint64_t name) { return ts_mix((uint64_t) seed, name); }

/** A word below this is dropped: probability p to 2^-32.  An element is kept when its word * 2^-32 >= p. Not collective. */
static inline uint32_t ts_dropout_threshold(float p) {
  double words = (double) p * 0x1p32;
  uint64_t below = (uint64_t) words;
  below += (double) below < words;
  return below > UINT32_MAX ? UINT32_MAX : (uint32_t) below;
}

/** True when \a element of \a sample is kept. Not collective. */
static inline int ts_dropout_keep(uint64_t key, int64_t sample, int64_t element, uint32_t threshold) {
  uint32_t word[4];
  ts_philox(key, (uint64_t) sample, (uint64_t) element / 4, word);
  return word[element % 4] >= threshold;
}

/** factor[i] = keep (first + i) ? scale : 0 for \a n elements, any range.  Vectorises over groups of four elements.
 * \param [in] scale  1 / (1 - p), or 1. Not collective. */
static inline void ts_dropout_factors(float *factor, uint64_t key, int64_t sample, int64_t first, int64_t n,
                                      uint32_t threshold, float scale) {
  int64_t head = (4 - first % 4) % 4 < n ? (4 - first % 4) % 4 : n, body = (n - head) / 4;
  for (int64_t i = 0; i < head; ++i) {
    factor[i] = ts_dropout_keep(key, sample, first + i, threshold) ? scale : 0.0f;
  }
  float *to = factor + head;
  uint64_t block = (uint64_t) (first + head) / 4;
#pragma omp simd
  for (int64_t i = 0; i < body; ++i) {
    uint32_t word[4];
    ts_philox(key, (uint64_t) sample, block + (uint64_t) i, word);
    to[4 * i] = word[0] >= threshold ? scale : 0.0f;
    to[4 * i + 1] = word[1] >= threshold ? scale : 0.0f;
    to[4 * i + 2] = word[2] >= threshold ? scale : 0.0f;
    to[4 * i + 3] = word[3] >= threshold ? scale : 0.0f;
  }
  for (int64_t i = head + 4 * body; i < n; ++i) {
    factor[i] = ts_dropout_keep(key, sample, first + i, threshold) ? scale : 0.0f;
  }
}

#endif
