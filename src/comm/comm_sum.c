/* Cost per element: one read of every addend, one write of y (and a read with beta), a few operations in a block that
 * stays in the first-level cache.
 *
 * beta y + sum is formed in fp64: the product of two fp32 is exact there, so a contracted multiply-add gives the same
 * bits as two operations, whatever the compiler chose.  For beta = 1 the fp32 addition gives them too (rounding a sum
 * of two fp32 to fp64 first is harmless: 53 >= 2 * 24 + 2).  A bf16 y takes the fp32 result. */
#include "comm/comm_sum.h"

#include "base/status.h"

enum { BLOCK = 2048 };

/* Twice as fast for bf16 where there is AVX2 (chosen by the loader); the bits are the same. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

static float rounded_to(ts_dtype wire, float value) {
  return wire == TS_BF16 ? ts_bf16_to_f32(ts_f32_to_bf16(value)) : value;
}

WIDE static void load(float *block, const ts_addend *a, ts_dtype wire, int64_t first, int64_t count) {
  if (a->dtype == TS_BF16) {
    const uint16_t *x = (const uint16_t *) a->data + first;
    for (int64_t i = 0; i < count; ++i) {
      block[i] = ts_bf16_to_f32(x[i]);
    }
  } else if (wire == TS_BF16) {
    const float *x = (const float *) a->data + first;
    for (int64_t i = 0; i < count; ++i) {
      block[i] = rounded_to(TS_BF16, x[i]);
    }
  } else {
    memcpy(block, (const float *) a->data + first, (size_t) count * sizeof *block);
  }
}

WIDE static void add(float *block, const ts_addend *a, ts_dtype wire, int64_t first, int64_t count) {
  if (a->dtype == TS_BF16) {
    const uint16_t *x = (const uint16_t *) a->data + first;
    for (int64_t i = 0; i < count; ++i) {
      block[i] += ts_bf16_to_f32(x[i]);
    }
  } else if (wire == TS_BF16) {
    const float *x = (const float *) a->data + first;
    for (int64_t i = 0; i < count; ++i) {
      block[i] += rounded_to(TS_BF16, x[i]);
    }
  } else {
    const float *x = (const float *) a->data + first;
    for (int64_t i = 0; i < count; ++i) {
      block[i] += x[i];
    }
  }
}

WIDE static void add_scaled_f32(float *block, const float *y, float beta, int count) {
  if (beta == 1) {
    for (int i = 0; i < count; ++i) {
      block[i] += y[i];
    }
  } else {
    for (int i = 0; i < count; ++i) {
      block[i] = (float) ((double) beta * (double) y[i] + (double) block[i]);
    }
  }
}

WIDE static void add_scaled_bf16(float *block, const uint16_t *y, float beta, int count) {
  for (int i = 0; i < count; ++i) {
    block[i] = (float) ((double) beta * (double) ts_bf16_to_f32(y[i]) + (double) block[i]);
  }
}

WIDE static void store_bf16(uint16_t *y, const float *block, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    y[i] = ts_f32_to_bf16(block[i]);
  }
}

void ts_sum_ordered(void *y, ts_dtype y_dtype, const float *beta, const ts_addend *addend, int n, ts_dtype wire,
                    int64_t count) {
  TS_ASSERT(n >= 1 && (y_dtype == TS_F32 || y_dtype == TS_BF16) && (wire == TS_F32 || wire == TS_BF16));
  float block[BLOCK], scale = beta != NULL ? *beta : 0;
  for (int64_t first = 0; first < count; first += BLOCK) {
    int some = count - first < BLOCK ? (int) (count - first) : BLOCK;
    load(block, &addend[0], wire, first, some);
    for (int i = 1; i < n; ++i) {
      add(block, &addend[i], wire, first, some);
    }
    if (y_dtype == TS_F32) {
      float *to = (float *) y + first;
      if (scale != 0) {
        add_scaled_f32(block, to, scale, some);
      }
      memcpy(to, block, (size_t) some * sizeof *block);
    } else {
      uint16_t *to = (uint16_t *) y + first;
      if (scale != 0) {
        add_scaled_bf16(block, to, scale, some);
      }
      store_bf16(to, block, some);
    }
  }
}

void ts_add_to_sum(float *sum, const ts_addend *addend, int64_t count) {
  add(sum, addend, addend->dtype, 0, count);
}

void ts_copy_to_wire(void *to, ts_dtype wire, const ts_addend *addend, int64_t count) {
  if (addend->dtype == wire) {
    memcpy(to, addend->data, (size_t) count * ts_dtype_size(wire));
  } else if (wire == TS_BF16) {
    store_bf16(to, addend->data, count);
  } else {
    load(to, addend, wire, 0, count);
  }
}
