/** \file
 * Random numbers by counter inside kernels: the same words and decisions as base/random.h and base/dropout.h, so that a
 * GPU drops the elements that a CPU drops.  About 80 integer instructions for four words.  Nothing here is collective.
 */
#ifndef TS_CUDA_PHILOX_CUH
#define TS_CUDA_PHILOX_CUH

#include "cuda/kernel.cuh"

extern "C" {
#include "base/dropout.h"
}

/** ts_philox: the words of counter (high, low). */
static __device__ __forceinline__ void ts_philox_words(uint64_t key, uint64_t high, uint64_t low, uint32_t word[4]) {
  uint32_t c0 = (uint32_t) low, c1 = (uint32_t) (low >> 32), c2 = (uint32_t) high, c3 = (uint32_t) (high >> 32);
  uint32_t k0 = (uint32_t) key, k1 = (uint32_t) (key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    uint32_t n0 = __umulhi(0xCD9E8D57u, c2) ^ c1 ^ k0, n2 = __umulhi(0xD2511F53u, c0) ^ c3 ^ k1;
    c1 = 0xCD9E8D57u * c2;
    c3 = 0xD2511F53u * c0;
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  word[0] = c0;
  word[1] = c1;
  word[2] = c2;
  word[3] = c3;
}

/** ts_f32_to_bf16_by: the bits of one of the two neighbours in bf16. */
static __device__ __forceinline__ uint16_t ts_bf16_bits_by(float value, uint32_t random) {
  uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu;
  uint32_t up = magnitude > 0x7f7f0000u ? 0u : random, quiet = magnitude > 0x7f800000u ? 0x40u : 0u;
  return (uint16_t) (((bits + up) >> 16) | quiet);
}

/** ts_random_to_bf16 for W elements from \a element on: one, or 2 or 4 from a multiple of W on. */
template <int W>
static __device__ __forceinline__ void ts_store_rounded(ts_bf16 *to, const float *from, uint64_t key, uint64_t round,
                                                        int64_t element) {
  static_assert(W == 1 || W == 2 || W == 4, "the words of a vector");
  uint32_t word[4];
  ts_philox_words(key, round, (uint64_t) element / 8, word);
  int lane = (int) (element % 8);
  uint32_t low = lane < 4 ? word[0] : word[2], high = lane < 4 ? word[1] : word[3];
  low = W < 4 && lane % 4 >= 2 ? high : low;
  low = W == 1 && lane % 2 == 1 ? low >> 16 : low;
  ts_vector<uint16_t, W> v;
#pragma unroll
  for (int i = 0; i < W; ++i) {
    v.x[i] = ts_bf16_bits_by(from[i], (i < 2 ? low : high) >> 16 * (i % 2) & 0xffffu);
  }
  *(ts_vector<uint16_t, W> *) to = v;
}

/** ts_dropout_key of a step's seed, which only the device knows, and an op's name. */
static __device__ __forceinline__ uint64_t ts_dropout_key_of(const int64_t *seed, uint64_t name) {
  uint64_t z = (uint64_t) *seed + 0x9e3779b97f4a7c15u * (name + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/** The word of \a element of \a sample.  Four neighbours from a multiple of 4 on share a counter: who needs them calls
 * ts_philox_words (key, sample, element / 4) once. */
static __device__ __forceinline__ uint32_t ts_dropout_word(uint64_t key, int64_t sample, int64_t element) {
  uint32_t word[4];
  ts_philox_words(key, (uint64_t) sample, (uint64_t) element / 4, word);
  int at = (int) (element % 4);
  return at == 0 ? word[0] : at == 1 ? word[1] : at == 2 ? word[2] : word[3];
}

/** Whether an element is kept. */
static __device__ __forceinline__ bool ts_dropout_keeps(uint64_t key, int64_t sample, int64_t element,
                                                        uint32_t threshold) {
  return ts_dropout_word(key, sample, element) >= threshold;
}

#endif
