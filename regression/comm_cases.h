/** \file
 * What the tests of communicators share: data that every rank can compute for every other, and the sequential
 * reference. Nothing here is collective.
 */
#ifndef REGRESSION_COMM_CASES_H
#define REGRESSION_COMM_CASES_H

#include "base/random.h"
#include "comm/comm.h"

#include <math.h>
#include <string.h>

static const float betas[] = {0, 1, 0.5f};

/** How the elements of a whole are cut into shards. */
enum { EQUAL, UNEVEN, HOLES, ONE_OWNER, N_CUTS };
static const char *const cut_names[] = {"equal", "uneven", "with empty shards", "of one owner"};

typedef struct test_case {
  ts_dtype x, wire, y;
  const float *beta;
  int cuts, n;      /* transfers */
  int64_t count;    /* elements of the first; the others have fewer */
  size_t workspace; /* 0: what is recommended */
  int windows;      /* the columns are reduced in so many calls */
  bool integers;
  float scale;   /* of the values; 0: 1 */
  float divisor; /* of what travels; 0: 1 */
} test_case;

enum { BEYOND_CASES = 6 };

/** Values of which some, or whose sums, are beyond 65504, the largest of fp16: a case of types and size. Not
 * collective. */
static inline test_case beyond_fp16(int i) {
  static const ts_dtype type[][3] = {{TS_F32, TS_F16, TS_F32}, {TS_F16, TS_F16, TS_F16}, {TS_F16, TS_F16, TS_F32}};
  return (test_case){.x = type[i % 3][0],
                     .wire = type[i % 3][1],
                     .y = type[i % 3][2],
                     .windows = 1,
                     .n = 1,
                     .count = 3000,
                     .scale = i < 3 ? 65000 : 140000};
}

/** Cut points of one kind, for \a count elements or fewer. Not collective. */
static inline void cut(int64_t *cuts, int kind, int64_t count, int size) {
  cuts[0] = 0;
  for (int rank = 0; rank < size; ++rank) {
    int64_t share = (count + size - 1) / size;
    if (kind == UNEVEN) {
      share = count / size + (rank % 2 == 0 ? count / (3 * size) + 1 : -(count / (4 * size)));
    } else if (kind == HOLES) {
      share = rank % 2 == 0 ? 0 : count;
    } else if (kind == ONE_OWNER) {
      share = rank == size / 2 ? count : 0;
    }
    int64_t left = count - cuts[rank];
    cuts[rank + 1] = cuts[rank] + (share < left ? share : left);
  }
  if (kind != HOLES && kind != ONE_OWNER) {
    cuts[size] = count;
  }
}

/** What rank \a rank contributes to element \a i of transfer \a t: the same function on all ranks. Not collective. */
static inline float value(const test_case *c, int rank, int t, int64_t i) {
  uint32_t bits[4];
  ts_philox(7, (uint64_t) (rank * 100 + t), (uint64_t) i, bits);
  if (c->integers) {
    return (float) (bits[0] % 17) - 8;
  }
  float v =
      ldexpf((float) (int32_t) bits[0], -31 - (int) (bits[1] % 12)); /* orders of magnitude apart: order matters */
  return c->scale == 0 ? v : c->scale * v;
}

/** Element \a i of an array of floats of F32, BF16 or F16, read and written. Not collective. */
static inline float load(const void *data, ts_dtype dtype, int64_t i) {
  float v;
  ts_convert(&v, TS_F32, (const char *) data + (size_t) i * ts_dtype_size(dtype), dtype, 1);
  return v;
}

static inline void store(void *data, ts_dtype dtype, int64_t i, float v) {
  ts_convert((char *) data + (size_t) i * ts_dtype_size(dtype), dtype, &v, TS_F32, 1);
}

/** A value rounded to a dtype. Not collective. */
static inline float rounded(ts_dtype dtype, float v) {
  float result; /* as wide as any */
  store(&result, dtype, 0, v);
  return load(&result, dtype, 0);
}

/** What the group gives for element \a i of transfer \a t: the sum in rank order, and with beta on top of
 * \a before. Not collective. */
static inline float reference_sum(const test_case *c, int size, int t, int64_t i) {
  float divisor = c->divisor == 0 ? 1 : c->divisor, by = 1 / divisor;
  float sum = rounded(c->wire, rounded(c->x, value(c, 0, t, i)) * by);
  for (int rank = 1; rank < size; ++rank) {
    sum += rounded(c->wire, rounded(c->x, value(c, rank, t, i)) * by);
  }
  return sum * divisor;
}

static inline float reference(const test_case *c, int size, int t, int64_t i, float before) {
  float sum = reference_sum(c, size, t, i);
  if (c->beta == NULL || *c->beta == 0) {
    return rounded(c->y, sum);
  }
  return rounded(c->y, (float) ((double) *c->beta * (double) before + (double) sum));
}

/** What y holds before; NaN where it must not be read. Not collective. */
static inline float before_value(const test_case *c, int64_t i) {
  return c->beta == NULL || *c->beta == 0 ? NAN : rounded(c->y, (float) (i % 23) - 11.25f);
}

/** The same bits; one NaN is as good as another: which one inf - inf is depends on the processor. Not collective. */
static inline bool same_bits(float a, float b) {
  return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

enum { MOST_TRANSFERS = 4 };

/** Byte \a i of what rank \a owner gives to an all_gather. Not collective. */
static inline unsigned char gathered_byte(int owner, int t, int64_t i) {
  return (unsigned char) (17 * owner + 5 * t + 3 * i + i / 256 + 1);
}

#endif
