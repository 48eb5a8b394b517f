#include "backend/cpu/cpu.h"
#include "backend/cpu/vector.h"

#include <math.h>

/* One block of finish: what is added goes through fp32 buffers, so that every combination of types is one loop each. */
enum { BLOCK = 512 };

static void widen(float *y, const void *x, ts_dtype dtype, int64_t n) {
  if (dtype == TS_F32) {
    memcpy(y, x, (size_t) n * sizeof *y);
  } else {
    ts_widen(y, x, n);
  }
}

static void add_scaled(float *restrict sum, const void *x, ts_dtype dtype, float factor, int64_t n) {
  const float *wide = x;
  const uint16_t *narrow = x;
  if (dtype == TS_F32) {
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

static const char *element_at(const void *x, ts_dtype dtype, int64_t i) {
  return (const char *) x + (size_t) i * ts_dtype_size(dtype);
}

static void finish(void *y, ts_dtype dtype, const float *acc, const void *bias, ts_dtype bias_dtype, const void *prior,
                   float beta, int64_t n) {
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
    if (dtype == TS_F32) {
      memcpy((float *) y + at, sum, (size_t) count * sizeof *sum);
    } else {
      ts_narrow((uint16_t *) y + at, sum, count);
    }
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
  return (double) max + log(sum);
}

static void exp_scaled(void *y, ts_dtype dtype, const float *x, float lse, float scale, int64_t n) {
  float *wide = y;
  uint16_t *narrow = y;
  if (dtype == TS_F32) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      wide[i] = scale * ts_expf(x[i] - lse);
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      narrow[i] = ts_f32_to_bf16(scale * ts_expf(x[i] - lse));
    }
  }
}

const ts_cpu_loops *TS_ISA_NAME(ts_cpu_loops)(void) {
  static const ts_cpu_loops loops = {finish, widen, logsumexp, exp_scaled};
  return &loops;
}
