#include "backend/cpu/cpu.h"
#include "backend/cpu/micro.h"
#include "backend/cpu/vector.h"

#include <math.h>

/* Elements that go through a buffer at a time, so that every combination of types is one loop each. */
enum { BLOCK = 512 };

static void widen_elements(float *y, const void *x, ts_dtype dtype, int64_t n) {
  ts_widen_any(y, x, dtype, n);
}

static const char *element_at(const void *x, ts_dtype dtype, int64_t i) {
  return (const char *) x + (size_t) i * ts_dtype_size(dtype);
}

/* In pieces that fit the first-level cache.  One at an edge turns what the piece before it left, too. */
static void widen_turned(float *y, int64_t ldy, const void *x, ts_dtype dtype, int64_t ldx, int64_t rows,
                         int64_t columns) {
  enum { HIGH = 16, WIDE = 64 };
  float wide[HIGH][WIDE] __attribute__((aligned(64))) = {{0}}, turned[WIDE][HIGH] __attribute__((aligned(64)));
  for (int64_t j = 0; j < columns; j += WIDE) {
    int64_t n = columns - j < WIDE ? columns - j : WIDE;
    for (int64_t i = 0; i < rows; i += HIGH) {
      int64_t m = rows - i < HIGH ? rows - i : HIGH;
      float *to = y + j * ldy + i;
      for (int64_t r = 0; r < m; ++r) {
        ts_widen_any(wide[r], element_at(x, dtype, (i + r) * ldx + j), dtype, n);
      }
      if (m == HIGH && n == WIDE) {
        ts_micro_transpose((ts_cell *) to, ldy, (const ts_cell *) wide, WIDE, HIGH, WIDE);
        continue;
      }
      ts_micro_transpose((ts_cell *) turned, HIGH, (const ts_cell *) wide, WIDE, HIGH, WIDE);
      for (int64_t q = 0; q < n; ++q) {
        memcpy(to + q * ldy, turned[q], (size_t) m * sizeof(float));
      }
    }
  }
}

/* At most BLOCK elements. */
static void add_scaled(float *restrict sum, const void *x, ts_dtype dtype, float factor, int64_t n) {
  float block[BLOCK];
  const float *wide = x;
  const uint16_t *narrow = x;
  if (dtype == TS_F16) {
    ts_widen_f16(block, x, n);
    wide = block;
  }
  if (dtype != TS_BF16) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      sum[i] += factor * wide[i];
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      sum[i] += factor * ts_float_of((int32_t) ((uint32_t) narrow[i] << 16));
    }
  }
}

static void finish_elements(void *y, ts_dtype dtype, const float *acc, const void *bias, ts_dtype bias_dtype,
                            const void *prior, float beta, int64_t n) {
  float sum[BLOCK];
  for (int64_t at = 0; at < n; at += BLOCK) {
    int64_t count = n - at < BLOCK ? n - at : BLOCK;
    if (acc != NULL) {
      memcpy(sum, acc + at, (size_t) count * sizeof *sum);
    } else {
      memset(sum, 0, (size_t) count * sizeof *sum);
    }
    if (bias != NULL) {
      add_scaled(sum, element_at(bias, bias_dtype, at), bias_dtype, 1.0f, count);
    }
    if (prior != NULL) {
      add_scaled(sum, element_at(prior, dtype, at), dtype, beta, count);
    }
    ts_narrow_any((char *) y + (size_t) at * ts_dtype_size(dtype), dtype, sum, count);
  }
}

/* ---- a vector times a matrix: each element of the matrix is read once, in the order it lies ---- */

TS_INLINE float element(const void *x, bool narrow, int64_t i) {
  return narrow ? ts_float_of((int32_t) ((uint32_t) ((const uint16_t *) x)[i] << 16)) : ((const float *) x)[i];
}

/* Some rows at a time, so that sums are loaded and stored seldom. */
enum { ROWS = 4 };
TS_INLINE void add_some_rows(float *restrict y, const float *x, const char *b, bool narrow, size_t row, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    float sum = y[j];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i) {
      sum += x[i] * element(b + (size_t) i * row, narrow, j);
    }
    y[j] = sum;
  }
}

static void add_rows(float *y, const float *x, const char *b, ts_dtype dtype, size_t row, int64_t n) {
  float wide[ROWS][BLOCK];
  if (dtype == TS_F32) {
    add_some_rows(y, x, b, false, row, n);
    return;
  }
  if (dtype == TS_BF16) {
    add_some_rows(y, x, b, true, row, n);
    return;
  }
  for (int64_t at = 0; at < n; at += BLOCK) {
    int64_t count = n - at < BLOCK ? n - at : BLOCK;
    for (int i = 0; i < ROWS; ++i) {
      ts_widen_any(wide[i], element_at(b + (size_t) i * row, dtype, at), dtype, count);
    }
    add_some_rows(y + at, x, (const char *) wide, false, sizeof *wide, count);
  }
}

static void times_rows(float *y, const float *x, const void *b, ts_dtype dtype, int64_t ld, int64_t k, int64_t n) {
  size_t row = (size_t) ld * ts_dtype_size(dtype);
  const char *next = b;
  int64_t i = 0;
  memset(y, 0, (size_t) n * sizeof *y);
  for (; i + ROWS <= k; i += ROWS, next += ROWS * row) {
    add_rows(y, x + i, next, dtype, row, n);
  }
  for (; i < k; ++i, next += row) {
    for (int64_t at = 0; at < n; at += BLOCK) {
      add_scaled(y + at, element_at(next, dtype, at), dtype, x[i], n - at < BLOCK ? n - at : BLOCK);
    }
  }
}

static void add_products(float lane[TS_LANES], const float *x, const char *b, ts_dtype dtype, int64_t n) {
  float wide[BLOCK];
  if (dtype == TS_F32) {
    ts_lanes_add_product(lane, x, (const float *) b, n);
    return;
  }
  if (dtype == TS_BF16) {
    ts_lanes_add_narrow_product(lane, x, (const uint16_t *) b, n);
    return;
  }
  for (int64_t at = 0; at < n; at += BLOCK) {
    int64_t count = n - at < BLOCK ? n - at : BLOCK;
    ts_widen_any(wide, element_at(b, dtype, at), dtype, count);
    ts_lanes_add_product(lane, x + at, wide, count);
  }
}

static void times_columns(float *y, const float *x, const void *b, ts_dtype dtype, int64_t ld, int64_t k, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    ts_lanes lane = {0};
    add_products(lane, x, element_at(b, dtype, j * ld), dtype, k);
    y[j] = ts_lanes_sum(lane);
  }
}

static float max_of(const float *x, int64_t n) {
  float lane[TS_LANES];
  for (int j = 0; j < TS_LANES; ++j) {
    lane[j] = -INFINITY;
  }
  int64_t whole = n / TS_LANES * TS_LANES;
  for (int64_t i = 0; i < whole; i += TS_LANES) {
#pragma omp simd
    for (int j = 0; j < TS_LANES; ++j) {
      lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    }
  }
  float result = -INFINITY;
  for (int j = 0; j < TS_LANES; ++j) {
    result = lane[j] > result ? lane[j] : result;
  }
  for (int64_t i = whole; i < n; ++i) {
    result = x[i] > result ? x[i] : result;
  }
  return result;
}

/* fp32 in lanes inside a block, fp64 over blocks: the error does not grow with the vocabulary. */
static double logsumexp(const float *x, int64_t n) {
  enum { COUNT = 4096 };
  float max = max_of(x, n);
  double sum = 0;
  for (int64_t at = 0; at < n; at += COUNT) {
    float lane[TS_LANES] = {0};
    int64_t end = n - at < COUNT ? n : at + COUNT, i = at;
    for (; i + TS_LANES <= end; i += TS_LANES) {
#pragma omp simd
      for (int j = 0; j < TS_LANES; ++j) {
        lane[j] += ts_expf(x[i + j] - max);
      }
    }
    for (int j = 0; i < end; ++i, ++j) {
      lane[j] += ts_expf(x[i] - max);
    }
    sum += ts_lanes_sum(lane);
  }
  return (double) max + log(sum); // cppcheck-suppress invalidFunctionArg
}

static void cap(float *x, float scale, float softcap, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    x[i] *= scale;
  }
  if (softcap > 0.0f) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      x[i] = ts_softcap(x[i], softcap);
    }
  }
}

/* y may lie over x: a block is complete before it is stored, and one of 16 bits ends before the next fp32 block begins.
 */
static void exp_scaled(void *y, ts_dtype dtype, const float *x, float lse, float scale, float softcap, int64_t n) {
  float value[BLOCK];
  for (int64_t at = 0; at < n; at += BLOCK) {
    int64_t count = n - at < BLOCK ? n - at : BLOCK;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      value[i] = scale * ts_expf(x[at + i] - lse);
    }
    if (softcap > 0.0f) {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        float t = x[at + i] / softcap;
        value[i] *= 1.0f - t * t;
      }
    }
    ts_narrow_any((char *) y + (size_t) at * ts_dtype_size(dtype), dtype, value, count);
  }
}

const ts_cpu_loops *TS_ISA_NAME(ts_cpu_loops)(void) {
  static const ts_cpu_loops loops = {finish_elements, widen_elements, widen_turned, times_rows,
                                     times_columns,   logsumexp,      cap,          exp_scaled};
  return &loops;
}
