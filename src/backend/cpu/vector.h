/** \file
 * Branch-free functions for loops that the compiler vectorises: `#pragma omp simd` around a plain loop is enough.
 *
 * They need neither -ffast-math nor a vector library and treat infinities and NaN as libm does.  Each is a pure
 * function of its argument, so an element's value does not depend on its place in a vector; it may differ in the last
 * bit between instruction sets, because those with a fused multiply-add use it.  Nothing here is collective.
 */
#ifndef TS_BACKEND_CPU_VECTOR_H
#define TS_BACKEND_CPU_VECTOR_H

#include "base/dtype.h"
#include "base/status.h"

#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#define TS_INLINE static inline __attribute__((always_inline))

/** Bits of a number. Not collective. */
TS_INLINE int64_t ts_bits_of_double(double x) {
  int64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/** exp (x) = 2^n exp (r) with |r| <= ln 2 / 2, for |x| <= 87: gives exp (r) - 1 and 2^n.
 *
 * exp (r) = 1 + r + r^2 q (r), q interpolated at Chebyshev nodes (relative error 1e-8).  Adding `shift` rounds to an
 * integer and leaves n + 127 in the low bits: the exponent of 2^n. Not collective. */
TS_INLINE float ts_exp_reduced(float x, float *power) {
  const float shift = 0x1.8p23f + 127;
  float shifted = x * 0x1.715476p0f + shift;
  float n = shifted - shift;
  float r = x - n * 0x1.62ep-1f; /* n times these 12 bits is exact */
  r = r - n * 0x1.0bfbe8p-15f;
  float q = 0.001392621346613538f;
  q = q * r + 0.00836320297157575f;
  q = q * r + 0.04166655443768795f;
  q = q * r + 0.1666657684599398f;
  q = q * r + 0.5f;
  *power = ts_float_of((int32_t) ((uint32_t) ts_bits_of(shifted) << 23));
  return r + r * r * q;
}

/** exp (x) within 1.5 ulp for |x| <= 87, garbage but no trap beyond; NaN stays. Not collective. */
TS_INLINE float ts_exp_bounded(float x) {
  float power, e = ts_exp_reduced(x, &power);
  return (1.0f + e) * power;
}

/** exp (x) within 1.5 ulp; 0 below -87 (libm: -104), inf above 88 (libm: 88.7).  The ends are masked, since what
 * branches on its argument here is compiled to computing everything for each case. Not collective. */
TS_INLINE float ts_expf(float x) {
  int32_t below = -(int32_t) (x < -87.0f), above = -(int32_t) (x > 88.0f), infinity = 0x7f800000;
  return ts_float_of((ts_bits_of(ts_exp_bounded(x)) & ~(below | above)) | (infinity & above));
}

/** 1 / (1 + exp (-x)) within 2.5 ulp for x > -80, and held above 1e-35; NaN gives some number in (0, 1], so multiply by
 * x.  The slope is sigmoid (x) sigmoid (-x), without cancellation.  Floats of one sign are ordered as their bits are:
 * two integer minima hold -x inside +-80. Not collective. */
TS_INLINE float ts_sigmoid_slope(float x, float *slope) {
  int32_t high = ts_bits_of(80.0f), bits = ts_bits_of(-x);
  uint32_t low = (uint32_t) ts_bits_of(-80.0f);
  bits = bits < high ? bits : high;
  float e = ts_exp_bounded(ts_float_of((int32_t) ((uint32_t) bits < low ? (uint32_t) bits : low)));
  float s = 1.0f / (1.0f + e);
  *slope = s * (e * s);
  return s;
}
TS_INLINE float ts_sigmoidf(float x) {
  float slope;
  return ts_sigmoid_slope(x, &slope);
}

/** tanh (x) within 2 ulp; NaN stays.
 *
 * Below 0.6 x + x^3 q (x^2), q interpolated at Chebyshev nodes (relative error 1e-8); else 1 - 2 / (1 + exp (2 |x|)),
 * which is 1 from |x| = 9 on. Not collective. */
TS_INLINE float ts_tanhf(float x) {
  int32_t sign = ts_bits_of(x) & INT32_MIN;
  float a = ts_float_of(ts_bits_of(x) ^ sign), z = a * a;
  float q = -0.006269119716587121f;
  q = q * z + 0.021110959047017534f;
  q = q * z - 0.05387394884795081f;
  q = q * z + 0.13332915366980666f;
  q = q * z - 0.3333333033273148f;
  float small = a + a * z * q, large = 1.0f - 2.0f / (1.0f + ts_exp_bounded(2.0f * (a > 20.0f ? 20.0f : a)));
  return ts_float_of(ts_bits_of(a < 0.6f ? small : large) | sign);
}

/** softcap tanh (x / softcap); NaN stays. Not collective. */
TS_INLINE float ts_softcap(float x, float softcap) {
  return softcap * ts_tanhf(x / softcap);
}

/** The argument of the sigmoid in GELU, 2 sqrt (2/pi) (x + 0.044715 x^3), by which 0.5 x (1 + tanh (u)) = x sigmoid
 * (2 u) without the cancellation of 1 + tanh; and the derivative of 2 u. Not collective. */
TS_INLINE float ts_gelu_argument(float x) {
  return x * (1.5957691216057308f + 0.07135481282642602f * (x * x));
}
TS_INLINE float ts_gelu_slope(float x) {
  return 1.5957691216057308f + 0.21406443847927805f * (x * x);
}

/** The normal distribution, Phi (x) = (1 + erf (x / sqrt (2))) / 2, with a relative error of (6 + x^2 / 2) 2^-24 for
 * x > -12.5, and held above 3e-36; and its density.  NaN gives some number in [0, 1], so multiply by x.
 *
 * With z = |x|, Phi (-z) = exp (-z^2 / 2) h / (z + 3.75), h a polynomial in (z - 3.75) / (z + 3.75), interpolated at
 * Chebyshev nodes (relative error 2e-8). Not collective. */
TS_INLINE float ts_normal(float x, float *density) {
  int32_t high = ts_bits_of(12.5f), bits = ts_bits_of(x) & 0x7fffffff;
  float z = ts_float_of(bits < high ? bits : high), e = ts_exp_bounded(-0.5f * (z * z));
  float r = 1.0f / (z + 3.75f), t = (z - 3.75f) * r;
  float h = 0.000449310532008315f;
  h = h * t + 0.0005212375833870264f;
  h = h * t - 0.004166155109119126f;
  h = h * t + 0.001194207007603552f;
  h = h * t + 0.03749000614070465f;
  h = h * t - 0.1515199759459784f;
  h = h * t + 0.3529399568983674f;
  h = h * t - 0.5881883126061107f;
  h = h * t + 0.7502940675107103f;
  float tail = e * (h * r);
  *density = 0.3989422804014327f * e;
  return x < 0.0f ? tail : 1.0f - tail;
}

/** sin and cos of \a x in fp64, exact to 4e-9 for |x| < 2^24 and degrading with the spacing of doubles beyond; meant to
 * be rounded to fp32.  Taylor series on [-pi/4, pi/4]. Not collective. */
TS_INLINE void ts_sincos(double x, double *sine, double *cosine) {
  const double shift = 0x1.8p52;
  double shifted = x * 0x1.45f306dc9c883p-1 + shift; /* 2 / pi */
  double n = shifted - shift;
  int64_t quadrant = ts_bits_of_double(shifted);
  double r = x - n * 0x1.921fb544p0; /* pi / 2: 33 bits, and the rest */
  r = r - n * 0x1.0b4611a626331p-34;
  double z = r * r;
  double s = r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880))));
  double c = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 - z * (1.0 / 3628800)))));
  double s1 = quadrant & 1 ? c : s, c1 = quadrant & 1 ? s : c;
  *sine = quadrant & 2 ? -s1 : s1;
  *cosine = (quadrant + 1) & 2 ? -c1 : c1;
}

/** \a n elements bf16 to fp32 (exact) and back (nearest even, NaN stays NaN).  No overlap. Not collective. */
TS_INLINE void ts_widen(float *restrict y, const uint16_t *restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    y[i] = ts_float_of((int32_t) ((uint32_t) x[i] << 16));
  }
}
TS_INLINE void ts_narrow(uint16_t *restrict y, const float *restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits = (uint32_t) ts_bits_of(x[i]), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    y[i] = (uint16_t) ((x[i] != x[i] ? bits | 0x400000u : rounded) >> 16);
  }
}

/** The same for fp16: the same bits whether there are instructions for it or not. Not collective. */
TS_INLINE void ts_widen_f16(float *restrict y, const uint16_t *restrict x, int64_t n) {
  int64_t done = 0;
#if defined __AVX512F__
  for (; done + 16 <= n; done += 16) {
    _mm512_storeu_ps(y + done, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (x + done))));
  }
#elif defined __F16C__
  for (; done + 8 <= n; done += 8) {
    _mm256_storeu_ps(y + done, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (x + done))));
  }
#endif
#pragma omp simd
  for (int64_t i = done; i < n; ++i) {
    y[i] = ts_f16_to_f32(x[i]);
  }
}
TS_INLINE void ts_narrow_f16(uint16_t *restrict y, const float *restrict x, int64_t n) {
  int64_t done = 0;
#if defined __AVX512F__
  for (; done + 16 <= n; done += 16) {
    _mm256_storeu_si256((__m256i *) (y + done), _mm512_cvtps_ph(_mm512_loadu_ps(x + done), _MM_FROUND_TO_NEAREST_INT));
  }
#elif defined __F16C__
  for (; done + 8 <= n; done += 8) {
    _mm_storeu_si128((__m128i *) (y + done), _mm256_cvtps_ph(_mm256_loadu_ps(x + done), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
#pragma omp simd
  for (int64_t i = done; i < n; ++i) {
    y[i] = ts_f32_to_f16(x[i]);
  }
}

/** \a n elements of F32, BF16 or F16 to fp32, and back. Not collective. */
TS_INLINE void ts_widen_any(float *restrict y, const void *restrict x, ts_dtype dtype, int64_t n) {
  switch (dtype) {
    case TS_BF16: ts_widen(y, x, n); return;
    case TS_F16: ts_widen_f16(y, x, n); return;
    default: TS_ASSERT(dtype == TS_F32); memcpy(y, x, (size_t) n * sizeof *y);
  }
}
TS_INLINE void ts_narrow_any(void *restrict y, ts_dtype dtype, const float *restrict x, int64_t n) {
  switch (dtype) {
    case TS_BF16: ts_narrow(y, x, n); return;
    case TS_F16: ts_narrow_f16(y, x, n); return;
    default: TS_ASSERT(dtype == TS_F32); memcpy(y, x, (size_t) n * sizeof *x);
  }
}

/** Accumulators of a sum: as many as keep the adders busy, and a fixed number, so that a sum is the same whatever the
 * alignment and the length of vectors.  Zero them, add pieces (all but the last of a multiple of TS_LANES elements),
 * then fold them. */
#define TS_LANES 64
typedef float ts_lanes[TS_LANES] __attribute__((aligned(64)));

/** Add \a n elements of x, or of the product of x and y. Not collective. */
TS_INLINE void ts_lanes_add(float lane[TS_LANES], const float *x, int64_t n) {
  int64_t i = 0;
  for (; i + TS_LANES <= n; i += TS_LANES) {
#pragma omp simd
    for (int l = 0; l < TS_LANES; ++l) {
      lane[l] += x[i + l];
    }
  }
  for (int l = 0; l < n - i; ++l) {
    lane[l] += x[i + l];
  }
}
TS_INLINE void ts_lanes_add_product(float lane[TS_LANES], const float *x, const float *y, int64_t n) {
  int64_t i = 0;
  for (; i + TS_LANES <= n; i += TS_LANES) {
#pragma omp simd
    for (int l = 0; l < TS_LANES; ++l) {
      lane[l] += x[i + l] * y[i + l];
    }
  }
  for (int l = 0; l < n - i; ++l) {
    lane[l] += x[i + l] * y[i + l];
  }
}

/** The same where y is bf16. Not collective. */
TS_INLINE void ts_lanes_add_narrow_product(float lane[TS_LANES], const float *x, const uint16_t *y, int64_t n) {
  int64_t i = 0;
  for (; i + TS_LANES <= n; i += TS_LANES) {
#pragma omp simd
    for (int l = 0; l < TS_LANES; ++l) {
      lane[l] += x[i + l] * ts_float_of((int32_t) ((uint32_t) y[i + l] << 16));
    }
  }
  for (int l = 0; l < n - i; ++l) {
    lane[l] += x[i + l] * ts_float_of((int32_t) ((uint32_t) y[i + l] << 16));
  }
}

/** Add the second half of 2 \a width numbers to the first. Not collective. */
TS_INLINE void ts_lanes_fold(float *x, const int width) {
#pragma omp simd
  for (int i = 0; i < width; ++i) {
    x[i] += x[i + width];
  }
}

/** The sum of the accumulators, as a tree; they are overwritten. Not collective. */
TS_INLINE float ts_lanes_sum(float lane[TS_LANES]) {
  ts_lanes_fold(lane, 32);
  ts_lanes_fold(lane, 16);
  ts_lanes_fold(lane, 8);
  ts_lanes_fold(lane, 4);
  return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

#endif
