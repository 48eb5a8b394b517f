/** \file
 * Which elements a dropout keeps, and other noise: a pure function of the step's seed, the op's stable name, the global
 * number of the sample and the element, so that any grid, any order and recomputation drop the same elements.
 */
#ifndef TS_BASE_DROPOUT_H
#define TS_BASE_DROPOUT_H

#include "base/host_device.h"
#include "base/random.h"

#include <string.h>

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

/** Counters that are hashed together below: enough for any vector. */
#define TS_DROPOUT_LANES 32

/** ts_philox of TS_DROPOUT_LANES consecutive counters: word 4 i + j is word j of counter low + i.  A loop over
 * counters for each round, on arrays, is what the compiler vectorises: 0.7 ns a word instead of 2.3 with AVX-512. Not
 * collective. */
static inline void ts_dropout_words(uint32_t word[4 * TS_DROPOUT_LANES], uint64_t key, uint64_t high, uint64_t low) {
  uint32_t c0[TS_DROPOUT_LANES], c1[TS_DROPOUT_LANES], c2[TS_DROPOUT_LANES], c3[TS_DROPOUT_LANES];
  uint32_t k0 = (uint32_t) key, k1 = (uint32_t) (key >> 32);
  for (int i = 0; i < TS_DROPOUT_LANES; ++i) {
    c0[i] = (uint32_t) (low + (uint64_t) i);
    c1[i] = (uint32_t) ((low + (uint64_t) i) >> 32);
    c2[i] = (uint32_t) high;
    c3[i] = (uint32_t) (high >> 32);
  }
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int i = 0; i < TS_DROPOUT_LANES; ++i) {
      uint32_t n0 = (uint32_t) ((uint64_t) 0xCD9E8D57u * c2[i] >> 32) ^ c1[i] ^ k0;
      uint32_t n2 = (uint32_t) ((uint64_t) 0xD2511F53u * c0[i] >> 32) ^ c3[i] ^ k1;
      c1[i] = 0xCD9E8D57u * c2[i];
      c3[i] = 0xD2511F53u * c0[i];
      c0[i] = n0;
      c2[i] = n2;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
#pragma omp simd
  for (int i = 0; i < TS_DROPOUT_LANES; ++i) {
    word[4 * i] = c0[i];
    word[4 * i + 1] = c1[i];
    word[4 * i + 2] = c2[i];
    word[4 * i + 3] = c3[i];
  }
}

/** factor[i] = keep (first + i) ? scale : 0 for \a n elements, any range.
 * \param [in] scale  1 / (1 - p), or 1. Not collective. */
static inline void ts_dropout_factors(float *factor, uint64_t key, int64_t sample, int64_t first, int64_t n,
                                      uint32_t threshold, float scale) {
  enum { COUNT = 4 * TS_DROPOUT_LANES };
  for (int64_t at = first / 4 * 4; at < first + n; at += COUNT) {
    uint32_t word[COUNT];
    float value[COUNT];
    ts_dropout_words(word, key, (uint64_t) sample, (uint64_t) at / 4);
#pragma omp simd
    for (int i = 0; i < COUNT; ++i) {
      value[i] = word[i] >= threshold ? scale : 0.0f;
    }
    int64_t begin = at < first ? first : at, end = at + COUNT < first + n ? at + COUNT : first + n;
    memcpy(factor + (begin - first), value + (begin - at), (size_t) (end - begin) * sizeof *factor);
  }
}

/** u[i] = ts_noise_uniform of element first + i for \a n elements, any range. Not collective. */
static inline void ts_noise_numbers(float *u, uint64_t key, int64_t sample, int64_t first, int64_t n) {
  enum { COUNT = 4 * TS_DROPOUT_LANES };
  for (int64_t at = first / 4 * 4; at < first + n; at += COUNT) {
    uint32_t word[COUNT];
    ts_dropout_words(word, key, (uint64_t) sample, (uint64_t) at / 4);
    int64_t begin = at < first ? first : at, end = at + COUNT < first + n ? at + COUNT : first + n;
    for (int64_t i = begin; i < end; ++i) {
      u[i - first] = ts_noise_uniform(word[i - at]);
    }
  }
}

#endif
