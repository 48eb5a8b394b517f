/* The vector functions against libm in fp64: the errors their header promises, and the values at the ends. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/philox.h"
#include "backend/cpu/vector.h"
#include "regression/tap.h"

#include <math.h>

enum { COUNT = 1 << 14 };

/* Spacing of floats at a value, which is no subnormal. */
static double spacing(double value) {
  int exponent;
  frexp(value, &exponent);
  return ldexp(1, exponent - 24);
}

typedef float function_f(float x);
typedef double reference_f(double x);

/* Largest error in ulp on [first, last], sampled at odd multiples of an odd step. */
static double worst_ulp(function_f *f, reference_f *reference, double first, double last) {
  double worst = 0;
  for (int i = 0; i < 64 * COUNT; ++i) {
    float x = (float) (first + (last - first) * (i + 0.37) / (64 * COUNT));
    worst = fmax(worst, fabs(f(x) - reference(x)) / spacing(reference(x)));
  }
  return worst;
}

static double sigmoid(double x) {
  return 1 / (1 + exp(-x));
}

static float exp_of(float x) {
  return ts_expf(x);
}

static float sigmoid_of(float x) {
  return ts_sigmoidf(x);
}

static float slope_of(float x) {
  float slope;
  ts_sigmoid_slope(x, &slope);
  return slope;
}

static double slope(double x) {
  return sigmoid(x) * sigmoid(-x);
}

static double density(double x) {
  return exp(-0.5 * x * x) * 0.39894228040143267794;
}

/* The error grows with that of x^2 / 2, which is rounded before it goes into exp. */
static void test_normal(void) {
  double worst = 0, worst_density = 0;
  for (int i = 0; i < 64 * COUNT; ++i) {
    float d, x = (float) (-12.5 + 25 * (i + 0.37) / (64 * COUNT)), y = ts_normal(x, &d);
    double exact = 0.5 * erfc(-x * 0.70710678118654752440), grown = 0.5 * (double) x * (double) x * 0x1p-24;
    worst = fmax(worst, (fabs(y / exact - 1) - (x < 0 ? grown : 0)) / 0x1p-24);
    worst_density = fmax(worst_density, (fabs(d / density(x) - 1) - grown) / 0x1p-24);
  }
  tap_ok(worst < 6, "normal distribution: %.2f units beyond the square's", worst);
  tap_ok(worst_density < 6, "its density: %.2f units beyond the square's", worst_density);
  float d, at_zero = ts_normal(0.0f, &d);
  tap_ok(fabsf(at_zero - 0.5f) <= 0x1p-24f && ts_normal(INFINITY, &d) == 1 && ts_normal(1e30f, &d) == 1 &&
             ts_normal(-INFINITY, &d) < 4e-36f && d < 4e-34f,
         "normal distribution at 0 and at the ends");
  tap_ok(isnan(NAN * ts_normal(NAN, &d)), "x Phi (x) keeps NaN");
}

static float tanh_of(float x) {
  return ts_tanhf(x);
}

static void test_tanh(void) {
  double worst = fmax(worst_ulp(tanh_of, tanh, -1, 1), worst_ulp(tanh_of, tanh, -20, 20));
  tap_ok(worst < 2, "tanh: %.2f ulp", worst);
  tap_ok(ts_tanhf(INFINITY) == 1 && ts_tanhf(-3e38f) == -1 && ts_tanhf(-0.0f) == 0 && signbit(ts_tanhf(-0.0f)) &&
             ts_tanhf(1e-30f) == 1e-30f && isnan(ts_tanhf(NAN)),
         "tanh at its ends, around 0 and of NaN");
  tap_ok(ts_softcap(INFINITY, 30) == 30 && ts_softcap(-0.0f, 30) == 0 && isnan(ts_softcap(NAN, 30)), "softcap, too");
}

static void test_ends(void) {
  tap_ok(ts_expf(-INFINITY) == 0 && ts_expf(-87.5f) == 0 && ts_expf(-3e38f) == 0, "exp is 0 below -87");
  tap_ok(isinf(ts_expf(INFINITY)) && isinf(ts_expf(88.5f)) && isinf(ts_expf(3e38f)), "exp is infinite above 88");
  tap_ok(isnan(ts_expf(NAN)) && isnan(ts_expf(-NAN)) && isnan(ts_expf(ts_float_of(-1))), "exp keeps NaN");
  tap_ok(ts_expf(0.0f) == 1 && ts_sigmoidf(0.0f) == 0.5f && ts_sigmoidf(-0.0f) == 0.5f,
         "exp and sigmoid at 0 are exact");
  tap_ok(ts_sigmoidf(1e30f) == 1 && ts_sigmoidf(INFINITY) == 1 && ts_sigmoidf(-1e30f) < 2e-35f &&
             ts_sigmoidf(-INFINITY) < 2e-35f,
         "sigmoid is held at the ends");
  float at_end;
  ts_sigmoid_slope(-INFINITY, &at_end);
  tap_ok(at_end >= 0 && at_end < 2e-35f && isfinite(slope_of(INFINITY)), "its slope vanishes there");
  tap_ok(isnan(NAN * ts_sigmoidf(NAN)), "x sigmoid (x) keeps NaN");
}

static void test_angles(void) {
  double worst = 0;
  for (int i = 0; i < 16 * COUNT; ++i) {
    double sine, cosine, x = (i - 8 * COUNT) * (i % 3 == 0 ? 1e-4 : 127.9);
    ts_sincos(x, &sine, &cosine);
    worst = fmax(worst, fmax(fabs(sine - sin(x)), fabs(cosine - cos(x))));
  }
  tap_ok(worst < 4e-9, "sine and cosine to 4e-9 up to 2^24: %.1e", worst);
}

/* Every upper half of a float, with lower halves on both sides of a tie. */
static void test_narrow(void) {
  static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  int64_t wrong = 0, changed = 0;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    float x[6], back[6];
    uint16_t y[6];
    for (int i = 0; i < 6; ++i) {
      x[i] = ts_float_of((int32_t) (high << 16 | low[i]));
    }
    ts_narrow(y, x, 6);
    ts_widen(back, y, 6);
    for (int i = 0; i < 6; ++i) {
      wrong += y[i] != ts_f32_to_bf16(x[i]) || isnan(x[i]) != isnan(back[i]);
    }
    changed += ts_bits_of(back[0]) != ts_bits_of(x[0]) && !isnan(x[0]);
  }
  tap_ok(wrong == 0, "narrowing rounds as the base does, NaN included");
  tap_ok(changed == 0, "a bf16 comes back unchanged");
}

/* Vectors and what is left of them, each of one processor's own instructions where it has them. */
static void test_f16(void) {
  static const uint32_t low[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0xefff, 0xf000};
  enum { N = sizeof low / sizeof *low };
  int64_t wrong = 0, changed = 0;
  for (uint32_t high = 0; high < 0x10000; high += 3) {
    float x[3 * N], back[3 * N];
    uint16_t y[3 * N], half[3 * N];
    for (uint32_t i = 0; i < 3 * N; ++i) {
      x[i] = ts_float_of((int32_t) (((high + i / N) & 0xffffu) << 16 | low[i % N]));
      half[i] = (uint16_t) (high + i);
    }
    ts_narrow_f16(y, x, 3 * N - 1);
    ts_widen_f16(back, half, 3 * N - 1);
    for (int i = 0; i < 3 * N - 1; ++i) {
      wrong += y[i] != ts_f32_to_f16(x[i]);
      changed += ts_bits_of(back[i]) != ts_bits_of(ts_f16_to_f32(half[i]));
    }
  }
  tap_ok(wrong == 0, "narrowing to fp16 has the bits of the base, NaN included");
  tap_ok(changed == 0, "widening fp16, too");
}

/* Of counters whose lower half overflows among them, and numbers that need all of their bits. */
static void test_philox(void) {
  static const uint64_t low[] = {0, 5, 0xfffffff0, 0xfffffffffffffff0, 0x123456789abcdef0};
  bool same = true;
  for (size_t k = 0; k < sizeof low / sizeof *low; ++k) {
    uint64_t key = ts_mix(1, k), high = ts_mix(2, k);
    uint32_t many[4 * TS_PHILOX_COUNTERS], one[4];
    ts_philox_many(many, key, high, low[k]);
    for (uint64_t i = 0; i < TS_PHILOX_COUNTERS; ++i) {
      ts_philox(key, high, low[k] + i, one);
      same = same && memcmp(many + 4 * i, one, sizeof one) == 0;
    }
  }
  tap_ok(same, "many counters have the words of one after another");
}

static void test_lanes(void) {
  float x[3 * TS_LANES + 5];
  int64_t wrong = 0;
  for (int64_t n = 0; n <= 3 * TS_LANES + 5; ++n) {
    float lane[TS_LANES] = {0}, product[TS_LANES] = {0};
    int64_t sum = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) { /* integers: sums are exact */
      x[i] = (float) (i % 17 - 5);
      sum += i % 17 - 5;
      squares += (i % 17 - 5) * (i % 17 - 5);
    }
    ts_lanes_add(lane, x, n);
    ts_lanes_add_product(product, x, x, n);
    wrong += ts_lanes_sum(lane) != (float) sum || ts_lanes_sum(product) != (float) squares;
  }
  tap_ok(wrong == 0, "sums in lanes, of any length");
}

/* exp as compiled for an instruction set: through the loop of the head. */
static void test_loops(const char *name, const ts_cpu_loops *loops) {
  static float x[COUNT], y[COUNT];
  double worst = 0;
  for (int part = 0; part < 16; ++part) {
    for (int i = 0; i < COUNT; ++i) {
      x[i] = (float) (-87 + 174.9 * (part * COUNT + i + 0.37) / (16 * COUNT));
    }
    loops->exp_scaled(y, TS_F32, x, 0.0f, 1.0f, 0.0f, COUNT);
    for (int i = 0; i < COUNT; ++i) {
      worst = fmax(worst, fabs(y[i] - exp(x[i])) / spacing(exp(x[i])));
    }
  }
  tap_ok(worst < 1.5, "exp in %s: %.2f ulp", name, worst);
}

/* fp16 has the bits of the base on every instruction set: every upper half of a float, lower halves around a tie. */
static void test_loops_f16(const char *name, const ts_cpu_loops *loops) {
  static const uint32_t low[] = {0, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0xffff};
  static float x[COUNT], back[COUNT];
  static uint16_t y[COUNT];
  int64_t wrong = 0;
  for (uint32_t part = 0; part < 0x80000; part += COUNT) {
    for (uint32_t i = 0; i < COUNT; ++i) {
      x[i] = ts_float_of((int32_t) ((part + i) / 8 << 16 | low[i % 8]));
    }
    loops->finish(y, TS_F16, x, NULL, TS_F16, NULL, 0, COUNT);
    loops->widen(back, y, TS_F16, COUNT);
    for (int i = 0; i < COUNT; ++i) {
      wrong += y[i] != ts_f32_to_f16(x[i]) || ts_bits_of(back[i]) != ts_bits_of(ts_f16_to_f32(y[i]));
    }
  }
  tap_ok(wrong == 0, "fp16 in %s: the bits of the base, both ways", name);
}

/* Pieces of 16 x 64 and what is left of them. */
static bool turns(const ts_cpu_loops *loops, ts_dtype dtype, int rows, int columns) {
  enum { MOST = 160 };
  static uint16_t x[MOST * MOST];
  static float y[MOST * MOST];
  int ldx = columns + 3, ldy = rows + 2;
  bool same = true;
  for (int i = 0; i < rows * ldx; ++i) {
    x[i] = (uint16_t) (0x3c00 + i % 0x4000); /* no infinity, no NaN */
  }
  for (int i = 0; i < columns * ldy; ++i) {
    y[i] = -1;
  }
  loops->widen_turned(y, ldy, x, dtype, ldx, rows, columns);
  for (int j = 0; j < columns; ++j) {
    for (int i = 0; i < ldy; ++i) {
      float expected = -1;
      if (i < rows) {
        ts_convert(&expected, TS_F32, &x[i * ldx + j], dtype, 1);
      }
      same = same && ts_bits_of(y[j * ldy + i]) == ts_bits_of(expected);
    }
  }
  return same;
}

static void test_turned(const char *name, const ts_cpu_loops *loops) {
  static const ts_dtype types[] = {TS_BF16, TS_F16};
  for (int t = 0; t < 2; ++t) {
    tap_ok(turns(loops, types[t], 37, 150) && turns(loops, types[t], 32, 128) && turns(loops, types[t], 5, 9),
           "%s widened and turned in %s", ts_dtype_name(types[t]), name);
  }
}

int main(void) {
  double e = worst_ulp(exp_of, exp, -87, 88), s = worst_ulp(sigmoid_of, sigmoid, -80, 80);
  double d = worst_ulp(slope_of, slope, -79, 79);
  tap_ok(e < 1.5, "exp: %.2f ulp", e);
  tap_ok(s < 2.5, "sigmoid: %.2f ulp", s);
  tap_ok(d < 6, "slope of sigmoid: %.2f ulp", d); /* two divisions' worth of roundings more */
  test_tanh();
  test_ends();
  test_normal();
  test_angles();
  test_narrow();
  test_f16();
  test_philox();
  test_lanes();
  test_loops("generic", ts_cpu_loops_generic());
  test_loops_f16("generic", ts_cpu_loops_generic());
  test_turned("generic", ts_cpu_loops_generic());
#ifdef TS_HAVE_X86_64
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    test_loops("v3", ts_cpu_loops_v3());
    test_loops_f16("v3", ts_cpu_loops_v3());
    test_turned("v3", ts_cpu_loops_v3());
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    test_loops("v4", ts_cpu_loops_v4());
    test_loops_f16("v4", ts_cpu_loops_v4());
    test_turned("v4", ts_cpu_loops_v4());
  }
#endif
  return tap_done();
}
