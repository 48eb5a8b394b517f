/** \file
 * fp16 for the stand-in.  Nothing here is collective.
 */
#ifndef SHIM_CUDA_FP16_H
#define SHIM_CUDA_FP16_H

#include "base/dtype.h"

/** Opaque, which nvcc's is not: converted by name only. */
struct alignas(2) __half {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};

static inline float __half2float(__half x) {
  return ts_f16_to_f32(x.bits);
}
static inline __half __float2half_rn(float x) {
  return {ts_f32_to_f16(x)};
}
static inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}

#endif
