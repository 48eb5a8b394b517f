/** \file
 * bf16 for the stand-in.  Nothing here is collective.
 */
#ifndef SHIM_CUDA_BF16_H
#define SHIM_CUDA_BF16_H

#include "base/dtype.h"

/** As opaque as nvcc's: converted by name only. */
struct alignas(2) __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 x) {
  return ts_bf16_to_f32(x.bits);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {ts_f32_to_bf16(x)};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
static inline float __low2float(__nv_bfloat162 v) {
  return __bfloat162float(v.x);
}
static inline float __high2float(__nv_bfloat162 v) {
  return __bfloat162float(v.y);
}

#endif
