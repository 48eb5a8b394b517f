#include "base/dtype.h"

#include "base/status.h"

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
  return ts_dtype_is_working(dtype) || dtype == TS_F64;
}

int ts_dtype_is_half(ts_dtype dtype) {
  return dtype == TS_BF16 || dtype == TS_F16;
}

int ts_dtype_is_working(ts_dtype dtype) {
  return dtype == TS_F32 || ts_dtype_is_half(dtype);
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
    case TS_F16: ((uint16_t *) to)[i] = ts_f32_to_f16((float) value); return;
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
