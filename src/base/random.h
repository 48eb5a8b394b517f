/** \file
 * Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11).
 * A number is a pure function of its key and counter, so it does not depend on the grid, the order of evaluation, or
 * whether it is computed a second time.  Nothing here is collective.
 */
#ifndef TS_BASE_RANDOM_H
#define TS_BASE_RANDOM_H

#include <stdint.h>

/** Four 32-bit words from a 64-bit key and a 128-bit counter. Not collective. */
static inline void ts_philox(uint64_t key, uint64_t high, uint64_t low, uint32_t out[4]) {
  uint32_t c0 = (uint32_t) low, c1 = (uint32_t) (low >> 32), c2 = (uint32_t) high, c3 = (uint32_t) (high >> 32);
  uint32_t k0 = (uint32_t) key, k1 = (uint32_t) (key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = (uint64_t) 0xD2511F53u * c0, p1 = (uint64_t) 0xCD9E8D57u * c2;
    uint32_t n0 = (uint32_t) (p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t) (p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t) p1;
    c3 = (uint32_t) p0;
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/** 64-bit FNV-1a of a string: the stable number of a stable name. Not collective. */
uint64_t ts_hash_name(const char *name);

/** Mix two 64-bit numbers into a key (splitmix64 finaliser). Not collective. */
uint64_t ts_mix(uint64_t a, uint64_t b);

/** Fill \a count values with normal (0, std) numbers: element \a first + i of the infinite sequence of \a key.
 * Box-Muller in fp64, so any sub-range of a tensor has the same values on any grid. Not collective; sequential. */
void ts_random_normal(uint64_t key, int64_t first, int64_t count, double std, float *out);

/** Round \a count fp32 values to bf16 by chance (ts_f32_to_bf16_by): elements \a first + i in round \a round of \a key,
 * so that any sub-range of a tensor is rounded alike on any grid.  Element e takes 16 bits of the counter
 * (round, e / 8): the lower (e even) or upper half of word e % 8 / 2. Not collective; sequential. */
void ts_random_to_bf16(uint64_t key, uint64_t round, int64_t first, int64_t count, const float *from, uint16_t *to);

/** Position \a index of a pseudo-random permutation of [0, n): a bijection computed in O (1) expected time without a
 * table (a four-round Feistel network over the enclosing power of four, walked until it lands inside [0, n)).
 * \param [in] key  Another key gives another permutation (seed and epoch). Not collective. */
int64_t ts_permute(uint64_t key, int64_t n, int64_t index);

#endif
