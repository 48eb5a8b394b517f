#include "base/dtype.h"

#include "base/status.h"

#include <math.h>

static const struct {
  size_t size;
  const char *name;
} table[TS_N_DTYPES] = {
#define X(name, type, text) [TS_##name] = {sizeof(type), text},
    TS_DTYPES(X)
#undef X
};

size_t ts_dtype_size(ts_dtype dtype) {
  TS_ASSERT((unsigned) dtype < TS_N_DTYPES);
  return table[dtype].size;
}

const char *ts_dtype_name(ts_dtype dtype) {
  TS_ASSERT((unsigned) dtype < TS_N_DTYPES);
  return table[dtype].name;
}

int ts_dtype_is_float(ts_dtype dtype) {
  return dtype == TS_F32 || dtype == TS_BF16 || dtype == TS_F16 || dtype == TS_F64;
}

float ts_f16_to_f32(uint16_t value) {
  int exponent = (value >> 10) & 31;
  int fraction = value & 1023;
  float magnitude;
  if (exponent == 31) {
    magnitude = fraction == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    magnitude = ldexpf((float) fraction, -24);
  } else {
    magnitude = ldexpf((float) (fraction + 1024), exponent - 25);
  }
  return (value & 0x8000) != 0 ? -magnitude : magnitude;
}

/* fp32 to fp16, nearest even, through the exact fp64 product: the magic constant aligns the rounding position. */
static uint16_t f32_to_f16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint16_t sign = (uint16_t) ((bits >> 16) & 0x8000u);
  float magnitude = fabsf(value);
  if (isnan(value)) {
    return (uint16_t) (sign | 0x7e00u);
  }
  if (magnitude >= 65520.0f) {
    return (uint16_t) (sign | 0x7c00u);
  }
  int exponent;
  frexpf(magnitude, &exponent); /* magnitude = f * 2^exponent, f in [0.5, 1) */
  if (exponent < -13) {
    exponent = -13; /* subnormal half: fixed spacing 2^-24 */
  }
  uint32_t steps = (uint32_t) nearbyintf(ldexpf(magnitude, 11 - exponent)); /* in units of the spacing */
  if (magnitude < 0x1p-14f) {
    return (uint16_t) (sign | steps); /* steps may reach 1024: the smallest normal, and its encoding */
  }
  return (uint16_t) (sign | (((uint32_t) (exponent + 14) << 10) + (steps - 1024u)));
}

static double load_element(const void *from, ts_dtype dtype, size_t i) {
  switch (dtype) {
    case TS_F32: return ((const float *) from)[i];
    case TS_BF16: return ts_bf16_to_f32(((const uint16_t *) from)[i]);
    case TS_F16: return ts_f16_to_f32(((const uint16_t *) from)[i]);
    case TS_F64: return ((const double *) from)[i];
    default: TS_CHECK(0, "%s is not a float type", ts_dtype_name(dtype));
  }
  return 0;
}

static void store_element(void *to, ts_dtype dtype, size_t i, double value) {
  switch (dtype) {
    case TS_F32: ((float *) to)[i] = (float) value; return;
    case TS_BF16: ((uint16_t *) to)[i] = ts_f32_to_bf16((float) value); return;
    case TS_F16: ((uint16_t *) to)[i] = f32_to_f16((float) value); return;
    case TS_F64: ((double *) to)[i] = value; return;
    default: TS_CHECK(0, "%s is not a float type", ts_dtype_name(dtype));
  }
}

void ts_convert(void *to, ts_dtype to_dtype, const void *from, ts_dtype from_dtype, size_t count) {
  if (to_dtype == from_dtype) {
    memmove(to, from, count * ts_dtype_size(to_dtype));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    store_element(to, to_dtype, i, load_element(from, from_dtype, i));
  }
}
