/** \file
 * ts_philox of many consecutive counters, and what dropouts and noise make of its words: the bits of base/random.h and
 * base/dropout.h on every instruction set.  Included by kernels_*.c only, so it is compiled for each.  Nothing here is
 * collective.
 */
#ifndef TS_BACKEND_CPU_PHILOX_H
#define TS_BACKEND_CPU_PHILOX_H

#include "base/dropout.h"

#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

/** Counters that are hashed together: four chains of the widest vectors. */
#define TS_PHILOX_COUNTERS 32

/* Counters of a vector: each word of one stands in the lower half of 64 bits, as vectors multiply; what the upper
 * halves hold takes part in nothing. */
#if defined __AVX512F__
enum { TS_PHILOX_WIDTH = 8 };
#elif defined __AVX2__
enum { TS_PHILOX_WIDTH = 4 };
#else
enum { TS_PHILOX_WIDTH = 2 };
#endif
typedef uint64_t ts_philox_vector __attribute__((vector_size(8 * TS_PHILOX_WIDTH)));

/** All of the product of lower halves. Not collective. */
static inline ts_philox_vector ts_philox_product(ts_philox_vector a, ts_philox_vector b) {
#if defined __AVX512F__
  return (ts_philox_vector) _mm512_mul_epu32((__m512i) a, (__m512i) b);
#elif defined __AVX2__
  return (ts_philox_vector) _mm256_mul_epu32((__m256i) a, (__m256i) b);
#elif defined __SSE2__
  return (ts_philox_vector) _mm_mul_epu32((__m128i) a, (__m128i) b);
#else
  return (a & UINT32_MAX) * (b & UINT32_MAX);
#endif
}

/** ts_philox of TS_PHILOX_COUNTERS consecutive counters: word 4 i + j is word j of counter low + i.  Not collective. */
static inline void ts_philox_many(uint32_t word[4 * TS_PHILOX_COUNTERS], uint64_t key, uint64_t high, uint64_t low) {
  enum { CHAINS = 4, W = TS_PHILOX_WIDTH };
  const ts_philox_vector zero = {0}, m0 = zero + 0xD2511F53u, m2 = zero + 0xCD9E8D57u;
  ts_philox_vector number = zero;
  for (int i = 0; i < W; ++i) {
    number[i] = (uint64_t) i;
  }
  for (int first = 0; first < TS_PHILOX_COUNTERS; first += CHAINS * W) {
    ts_philox_vector c0[CHAINS], c1[CHAINS], c2[CHAINS], c3[CHAINS];
    uint32_t k0 = (uint32_t) key, k1 = (uint32_t) (key >> 32);
#pragma GCC unroll 8
    for (int v = 0; v < CHAINS; ++v) {
      c0[v] = number + (low + (uint64_t) (first + v * W));
      c1[v] = c0[v] >> 32;
      c2[v] = zero + (uint32_t) high;
      c3[v] = zero + (high >> 32);
    }
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 8
      for (int v = 0; v < CHAINS; ++v) {
        ts_philox_vector p0 = ts_philox_product(c0[v], m0), p2 = ts_philox_product(c2[v], m2);
        c0[v] = (p2 >> 32) ^ c1[v] ^ (uint64_t) k0;
        c2[v] = (p0 >> 32) ^ c3[v] ^ (uint64_t) k1;
        c1[v] = p2;
        c3[v] = p0;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
#pragma GCC unroll 8
    for (int v = 0; v < CHAINS; ++v) {
      ts_philox_vector pair[] = {(c0[v] & UINT32_MAX) | c1[v] << 32, (c2[v] & UINT32_MAX) | c3[v] << 32};
      for (int i = 0; i < W; ++i) { /* the lower half of 64 bits lies first */
        uint64_t counter[] = {pair[0][i], pair[1][i]};
        memcpy(word + 4 * (first + v * W + i), counter, sizeof counter);
      }
    }
  }
}

/** factor[i] = keep (first + i) ? scale : 0 for \a n elements, any range.
 * \param [in] scale  1 / (1 - p), or 1. Not collective. */
static inline void ts_dropout_factors(float *factor, uint64_t key, int64_t sample, int64_t first, int64_t n,
                                      uint32_t threshold, float scale) {
  enum { COUNT = 4 * TS_PHILOX_COUNTERS };
  for (int64_t at = first / 4 * 4; at < first + n; at += COUNT) {
    uint32_t word[COUNT];
    float value[COUNT];
    ts_philox_many(word, key, (uint64_t) sample, (uint64_t) at / 4);
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
  enum { COUNT = 4 * TS_PHILOX_COUNTERS };
  for (int64_t at = first / 4 * 4; at < first + n; at += COUNT) {
    uint32_t word[COUNT];
    ts_philox_many(word, key, (uint64_t) sample, (uint64_t) at / 4);
    int64_t begin = at < first ? first : at, end = at + COUNT < first + n ? at + COUNT : first + n;
    for (int64_t i = begin; i < end; ++i) {
      u[i - first] = ts_noise_uniform(word[i - at]);
    }
  }
}

#endif
