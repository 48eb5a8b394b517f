/** \file
 * Experts on processors and GPUs alike: what is counted of them, how many tokens one takes, and which come first.
 * Nothing here is collective.
 */
#ifndef TS_BASE_EXPERTS_H
#define TS_BASE_EXPERTS_H

#include "base/host_device.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/** Numbers of a group in ROUTE_LOADS' output for \a experts: how often each was chosen, their shares, and what follows.
 * Not collective. */
static inline TS_HOST_DEVICE int64_t ts_loads_width(int64_t experts) {
  return 2 * experts + 3;
}

/** The experts of such a width. Not collective. */
static inline TS_HOST_DEVICE int64_t ts_loads_experts(int64_t width) {
  return (width - 3) / 2;
}

/** What follows: the sum of squares of logsumexp, tokens, choices that nobody has taken. */
typedef enum ts_loads_end { TS_LOADS_SQUARES, TS_LOADS_TOKENS, TS_LOADS_LOST } ts_loads_end;

/** The place of one of them. Not collective. */
static inline TS_HOST_DEVICE int64_t ts_loads_at(int64_t experts, ts_loads_end end) {
  return 2 * experts + (int64_t) end;
}

/** What a token's weights are divided by at least where they are normalized: 2^-23 (torch.finfo.eps). */
#define TS_LEAST_WEIGHT 0x1p-23f

/** Tokens that each of \a experts, one or more, takes of \a tokens: \a factor equal shares, rounded up as DeepSpeed's
 * _capacity has it in fp32, at least \a least and at most all. Not collective. */
static inline int64_t ts_capacity(int64_t tokens, int64_t experts, float factor, int64_t least) {
  double shares = (double) ceilf((float) ((double) tokens / (double) experts) * factor);
  int64_t room = shares < (double) tokens ? (int64_t) shares : tokens;
  room = room > least ? room : least;
  return room < tokens ? room : tokens;
}

/** A number that orders as \a priority does: what is no number is the least, zeros are equal. Not collective. */
static inline TS_HOST_DEVICE uint32_t ts_priority_key(float priority) {
  float value = priority + 0.0f; /* -0 is 0 */
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return value != value ? 0 : bits ^ (bits >> 31 != 0 ? UINT32_MAX : (uint32_t) 1 << 31);
}

#endif
