/* Cost per element: one read of every addend, one write of y (and a read with beta), a few operations in a block that
 * stays in the first-level cache.
 *
 * beta y + sum is formed in fp64: the product of two fp32 is exact there, so a contracted multiply-add gives the same
 * bits as two operations, whatever the compiler chose.  For beta = 1 the fp32 addition gives them too (rounding a sum
 * of two fp32 to fp64 first is harmless: 53 >= 2 * 24 + 2).  A y of 16 bits takes the fp32 result. */
#include "comm/comm_sum.h"

#include "base/status.h"

enum { BLOCK = 2048 };

/* Twice as fast for 16 bits where there is AVX2 (chosen by the loader); the bits are the same. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

#define INLINE static inline __attribute__((always_inline))

/* X (dtype of an addend, what it is rounded to): all that differ. */
#define CONVERSIONS(X) X(F32, F32) X(F32, BF16) X(F32, F16) X(BF16, F32) X(BF16, F16) X(F16, F32) X(F16, BF16)
#define CONVERSION(dtype, wire) ((int) (dtype) *TS_N_DTYPES + (int) (wire))

INLINE float element(const void *x, ts_dtype dtype, int64_t i) {
  const uint16_t *half = x;
  return dtype == TS_BF16 ? ts_bf16_to_f32(half[i]) : dtype == TS_F16 ? ts_f16_to_f32(half[i]) : ((const float *) x)[i];
}

INLINE float rounded_to(ts_dtype wire, float value) {
  return wire == TS_BF16  ? ts_bf16_to_f32(ts_f32_to_bf16(value))
         : wire == TS_F16 ? ts_f16_to_f32(ts_f32_to_f16(value))
                          : value;
}

static int conversion_of(const ts_addend *a, ts_dtype wire) {
  return CONVERSION(a->dtype, wire == a->dtype ? TS_F32 : wire);
}

static const void *element_of(const ts_addend *a, int64_t first) {
  return (const char *) a->data + (size_t) first * ts_dtype_size(a->dtype);
}

WIDE static void load(float *block, const ts_addend *a, ts_dtype wire, int64_t first, int64_t count) {
  const void *x = element_of(a, first);
  switch (conversion_of(a, wire)) {
#define X(dtype, to)                                             \
  case CONVERSION(TS_##dtype, TS_##to):                          \
    for (int64_t i = 0; i < count; ++i) {                        \
      block[i] = rounded_to(TS_##to, element(x, TS_##dtype, i)); \
    }                                                            \
    return;
    CONVERSIONS(X)
#undef X
    default: TS_ASSERT(0);
  }
}

WIDE static void add(float *block, const ts_addend *a, ts_dtype wire, int64_t first, int64_t count) {
  const void *x = element_of(a, first);
  switch (conversion_of(a, wire)) {
#define X(dtype, to)                                              \
  case CONVERSION(TS_##dtype, TS_##to):                           \
    for (int64_t i = 0; i < count; ++i) {                         \
      block[i] += rounded_to(TS_##to, element(x, TS_##dtype, i)); \
    }                                                             \
    return;
    CONVERSIONS(X)
#undef X
    default: TS_ASSERT(0);
  }
}

INLINE void add_elements(float *block, const void *y, ts_dtype dtype, float beta, int count) {
  for (int i = 0; i < count; ++i) {
    block[i] = (float) ((double) beta * (double) element(y, dtype, i) + (double) block[i]);
  }
}

WIDE static void add_scaled(float *block, const void *y, ts_dtype dtype, float beta, int count) {
  if (dtype == TS_BF16) {
    add_elements(block, y, TS_BF16, beta, count);
  } else if (dtype == TS_F16) {
    add_elements(block, y, TS_F16, beta, count);
  } else if (beta == 1) {
    for (int i = 0; i < count; ++i) {
      block[i] += ((const float *) y)[i];
    }
  } else {
    add_elements(block, y, TS_F32, beta, count);
  }
}

WIDE static void store(void *y, ts_dtype dtype, const float *block, int64_t count) {
  uint16_t *half = y;
  if (dtype == TS_BF16) {
    for (int64_t i = 0; i < count; ++i) {
      half[i] = ts_f32_to_bf16(block[i]);
    }
  } else if (dtype == TS_F16) {
    for (int64_t i = 0; i < count; ++i) {
      half[i] = ts_f32_to_f16(block[i]);
    }
  } else {
    memcpy(y, block, (size_t) count * sizeof *block);
  }
}

/* Elements of an addend from `first` on: where they are, or divided, in `block`. */
static ts_addend divided(const ts_addend *a, float *block, int64_t first, int64_t count) {
  ts_addend whole = {element_of(a, first), a->dtype, 0};
  if (a->divisor == 0 || a->divisor == 1) {
    return whole;
  }
  float by = 1 / a->divisor;
  load(block, &whole, a->dtype, 0, count);
  for (int64_t i = 0; i < count; ++i) {
    block[i] *= by;
  }
  return (ts_addend){block, TS_F32, 0};
}

void ts_sum_ordered(void *y, ts_dtype y_dtype, const float *beta, const ts_addend *addend, int n, ts_dtype wire,
                    float factor, int64_t count) {
  TS_ASSERT(n >= 1 && ts_dtype_is_working(y_dtype) && ts_dtype_is_working(wire));
  float block[BLOCK], quotient[BLOCK], scale = beta != NULL ? *beta : 0;
  for (int64_t first = 0; first < count; first += BLOCK) {
    int some = count - first < BLOCK ? (int) (count - first) : BLOCK;
    char *to = (char *) y + (size_t) first * ts_dtype_size(y_dtype);
    for (int i = 0; i < n; ++i) {
      ts_addend a = divided(&addend[i], quotient, first, some);
      (i == 0 ? load : add)(block, &a, wire, 0, some);
    }
    for (int i = 0; i < some && factor != 1; ++i) {
      block[i] *= factor;
    }
    if (scale != 0) {
      add_scaled(block, to, y_dtype, scale, some);
    }
    store(to, y_dtype, block, some);
  }
}

void ts_add_to_sum(float *sum, const ts_addend *addend, int64_t count) {
  add(sum, addend, addend->dtype, 0, count);
}

void ts_copy_to_wire(void *to, ts_dtype wire, const ts_addend *addend, int64_t count) {
  if (addend->divisor != 0 && addend->divisor != 1) {
    float block[BLOCK];
    for (int64_t first = 0; first < count; first += BLOCK) {
      int64_t some = count - first < BLOCK ? count - first : BLOCK;
      divided(addend, block, first, some);
      store((char *) to + (size_t) first * ts_dtype_size(wire), wire, block, some);
    }
  } else if (addend->dtype == wire) {
    memcpy(to, addend->data, (size_t) count * ts_dtype_size(wire));
  } else if (addend->dtype == TS_F32) {
    store(to, wire, addend->data, count);
  } else if (wire == TS_F32) {
    load(to, addend, wire, 0, count);
  } else {
    float block[BLOCK];
    for (int64_t first = 0; first < count; first += BLOCK) {
      int64_t some = count - first < BLOCK ? count - first : BLOCK;
      load(block, addend, wire, first, some);
      store((char *) to + (size_t) first * ts_dtype_size(wire), wire, block, some);
    }
  }
}
