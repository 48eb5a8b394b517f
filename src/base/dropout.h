/** \file
 * Which elements a dropout keeps, and other noise: a pure function of the step's seed, the op's stable name, the global
 * number of the sample and the element, so that any grid, any order and recomputation drop the same elements.
 */
#ifndef TS_BASE_DROPOUT_H
#define TS_BASE_DROPOUT_H

#include "base/host_device.h"
#include "base/random.h"

/** Key of a dropout op in a step. Not collective. */
static inline uint64_t ts_dropout_key(int64_t seed, uint64_t name) {
  return ts_mix((uint64_t) seed, name);
}

/** A word below this is dropped: probability p to 2^-32.  An element is kept when its word * 2^-32 >= p. Not
 * collective. */
static inline uint32_t ts_dropout_threshold(float p) {
  double words = (double) p * 0x1p32;
  uint64_t below = (uint64_t) words;
  below += (double) below < words;
  return below > UINT32_MAX ? UINT32_MAX : (uint32_t) below;
}

/** A number between 0 and 1, neither of them, from a word: a multiple of 2^-24. Not collective. */
static inline TS_HOST_DEVICE float ts_noise_uniform(uint32_t word) {
  return ((float) (word >> 9) + 0.5f) * 0x1p-23f;
}

#endif
