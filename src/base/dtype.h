/** \file
 * Element types and the conversions between them.  Sizes are in bytes, counts in elements, always.
 */
#ifndef TS_BASE_DTYPE_H
#define TS_BASE_DTYPE_H

#include "base/element.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/** X (name, C storage type, spelling in decks and safetensors headers) */
#define TS_DTYPES(X)        \
  X(F32, float, "fp32")     \
  X(BF16, uint16_t, "bf16") \
  X(F16, uint16_t, "fp16")  \
  X(F64, double, "fp64")    \
  X(I32, int32_t, "int32")  \
  X(I64, int64_t, "int64")  \
  X(U8, uint8_t, "uint8")

/** Bytes of one element. Not collective. */
size_t ts_dtype_size(ts_dtype dtype);

/** "fp32", "bf16", ...: a constant string. Not collective. */
const char *ts_dtype_name(ts_dtype dtype);

/** True for F32, BF16, F16 and F64. Not collective. */
int ts_dtype_is_float(ts_dtype dtype);

/** True for BF16 and F16. Not collective. */
int ts_dtype_is_half(ts_dtype dtype);

/** True for F32, BF16 and F16: what parameters and activations can be, and what is added up. Not collective. */
int ts_dtype_is_working(ts_dtype dtype);

/** Bits of an fp32 number, and back. Not collective. */
static inline int32_t ts_bits_of(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
static inline float ts_float_of(int32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/** bf16 to fp32: exact. Not collective. */
static inline float ts_bf16_to_f32(uint16_t value) {
  uint32_t bits = (uint32_t) value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

/** fp32 to bf16, round to nearest even; NaN stays NaN (quiet). Not collective. */
static inline uint16_t ts_f32_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t quiet = (bits >> 16) | 0x40u;
  return (uint16_t) ((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/** fp32 to bf16 by chance: one of the two neighbours, the one further from zero with a probability of (what is cut
 * off) / (their distance), for \a random uniform in [0, 65535]; so the mean is the value itself.  What bf16 holds is
 * kept, so are infinities; NaN becomes quiet.  Above the largest finite bf16 the neighbour is infinity, which no finite
 * value becomes: it is the largest finite bf16 instead. Not collective. */
static inline uint16_t ts_f32_to_bf16_by(float value, uint32_t random) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t up = magnitude > 0x7f7f0000u ? 0 : random;
  uint32_t quiet = magnitude > 0x7f800000u ? 0x40u : 0;
  return (uint16_t) (((bits + up) >> 16) | quiet);
}

/** fp16 to fp32: exact; NaN becomes quiet and keeps its bits, as by the instructions for it.  Branch-free: exponent and
 * fraction are moved to their places, and the exponent's offset is added; a subnormal then has the exponent of 2^-14
 * and loses the leading one that it does not have. Not collective. */
static inline float ts_f16_to_f32(uint16_t value) {
  uint32_t magnitude = (value & 0x7fffu) << 13, sign = (uint32_t) (value & 0x8000u) << 16;
  uint32_t small = -(uint32_t) (magnitude < 0x400u << 13), large = -(uint32_t) (magnitude >= 0x7c00u << 13);
  uint32_t nan = -(uint32_t) (magnitude > 0x7c00u << 13);
  uint32_t bits = magnitude + (112u << 23) + (large & 112u << 23) + (small & 1u << 23), zero = small & 113u << 23;
  float wide, leading;
  memcpy(&wide, &bits, sizeof wide);
  memcpy(&leading, &zero, sizeof leading);
  wide -= leading;
  memcpy(&bits, &wide, sizeof bits);
  bits |= sign | (nan & 0x400000u);
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

/** fp32 to fp16, round to nearest even; infinity from 65520 on; NaN becomes quiet and keeps its upper bits.
 * Branch-free: adding 1/2 rounds a subnormal, whose spacing is 2^-24, to the low bits. Not collective. */
static inline uint16_t ts_f32_to_f16(float value) {
  uint32_t bits, low;
  memcpy(&bits, &value, sizeof bits);
  uint32_t magnitude = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
  uint32_t small = -(uint32_t) (magnitude < 113u << 23), large = -(uint32_t) (magnitude >= 143u << 23);
  uint32_t nan = -(uint32_t) (magnitude > 255u << 23), held = magnitude & small;
  float shifted;
  memcpy(&shifted, &held, sizeof shifted);
  shifted += 0.5f;
  memcpy(&low, &shifted, sizeof low);
  uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  uint32_t end = 0x7c00u | (nan & (0x200u | (magnitude >> 13 & 0x3ffu)));
  return (uint16_t) (sign | (small & (low - (126u << 23))) | (large & end) | (~(small | large) & normal));
}

/** Convert \a count elements between two float types (F32, BF16, F16, F64).  Buffers must not overlap unless the types
 * are equal.  Rounds to nearest even.  Not collective; sequential. */
void ts_convert(void *to, ts_dtype to_dtype, const void *from, ts_dtype from_dtype, size_t count);

#endif
