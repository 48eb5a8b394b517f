#include "base/random.h"

#include "base/dtype.h"
#include "base/status.h"

#include <math.h>

uint64_t ts_hash_name(const char *name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char *c = (const unsigned char *) name; *c != 0; ++c) {
    hash = (hash ^ *c) * 0x100000001b3u;
  }
  return hash;
}

uint64_t ts_mix(uint64_t a, uint64_t b) {
  uint64_t z = a + 0x9e3779b97f4a7c15u * (b + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void ts_random_normal(uint64_t key, int64_t first, int64_t count, double std, float *out) {
  const double two_pi = 6.283185307179586476925286766559;
  for (int64_t i = 0; i < count;) {
    int64_t block = (first + i) / 4; /* four words make four normals: two pairs of Box-Muller */
    uint32_t words[4];
    ts_philox(key, 0, (uint64_t) block, words);
    double value[4];
    for (int pair = 0; pair < 2; ++pair) {
      double u = ((double) words[2 * pair] + 0.5) * 0x1p-32, v = ((double) words[2 * pair + 1] + 0.5) * 0x1p-32;
      double radius = std * sqrt(-2.0 * log(u));
      value[2 * pair] = radius * cos(two_pi * v);
      value[2 * pair + 1] = radius * sin(two_pi * v);
    }
    for (int64_t lane = (first + i) % 4; lane < 4 && i < count; ++lane, ++i) {
      out[i] = (float) value[lane];
    }
  }
}

void ts_random_to_bf16(uint64_t key, uint64_t round, int64_t first, int64_t count, const float *from, uint16_t *to) {
  for (int64_t i = 0; i < count;) {
    uint32_t words[4];
    ts_philox(key, round, (uint64_t) (first + i) / 8, words);
    for (int64_t lane = (first + i) % 8; lane < 8 && i < count; ++lane, ++i) {
      to[i] = ts_f32_to_bf16_by(from[i], words[lane / 2] >> 16 * (lane % 2) & 0xffffu);
    }
  }
}

int64_t ts_permute(uint64_t key, int64_t n, int64_t index) {
  TS_ASSERT(n > 0 && index >= 0 && index < n);
  int half = 1; /* bits of each half */
  while (2 * half < 62 && (int64_t) 1 << (2 * half) < n) {
    ++half;
  }
  uint64_t mask = ((uint64_t) 1 << half) - 1, x = (uint64_t) index;
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      uint32_t words[4];
      ts_philox(key, round + 1, right, words);
      uint64_t mixed = left ^ ((words[0] | (uint64_t) words[1] << 32) & mask);
      left = right;
      right = mixed;
    }
    x = left << half | right;
  } while (x >= (uint64_t) n);
  return (int64_t) x;
}
