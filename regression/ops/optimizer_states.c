/* States in 8 bits against bitsandbytes' arithmetic (regression/golden: states_8bit, made by make_states.py): the map,
 * the codes of given values, and twenty steps with moments in codes. */
#include "backend/code_book.h"
#include "backend/dynamic_map.h"
#include "backend/update_rules.h"
#include "io/safetensors.h"
#include "regression/ops/ops.h"
#include "regression/tap.h"

enum { BLOCK = TS_STATE_BLOCK, COUNT = 64 * 128, KEPT = 8 * 128, STEPS = 20 };

static const float signed_map[] = TS_DYNAMIC_MAP_SIGNED, unsigned_map[] = TS_DYNAMIC_MAP_UNSIGNED;

static const void *golden(const ts_safetensors *st, const char *of, const char *what) {
  char *name = ts_format("%s/%s", of, what);
  const ts_safetensor *tensor = ts_safetensors_find(st, name);
  TS_CHECK(tensor != NULL, "states_8bit.safetensors: no %s", name);
  ts_free(name);
  return tensor->data;
}

/* ---- the map ---- */

static void check_map(void) {
  char *path = ts_format("%s.txt", tap_path("regression/golden/states_8bit")), line[256];
  FILE *file = fopen(path, "r");
  TS_CHECK(file != NULL, "%s cannot be read", path);
  int code, n = 0;
  double of[2], above[2];
  bool same = true;
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "%d %lf %lf %lf %lf", &code, &of[0], &above[0], &of[1], &above[1]) == 5 && code == n) {
      for (int s = 0; s < 2; ++s) {
        const float *map = s == 0 ? signed_map : unsigned_map;
        float middle = n < 255 ? (map[n] + map[n + 1]) * 0.5f : INFINITY;
        same = same && (double) map[n] == of[s] && (double) middle == above[s];
      }
      ++n;
    }
  }
  fclose(file);
  ts_free(path);
  tap_ok(same && n == 256, "the maps of 8 bits are bitsandbytes'");
}

/* Does the book know a number, and that with the other sign, otherwise than the search does? */
static bool is_other(const ts_code_book *book, float x) {
  const float *map = book->has_sign ? signed_map : unsigned_map;
  return ts_code_book_find(book, x) != ts_update_code(x, map, book->has_sign) ||
         (book->has_sign && ts_code_book_find(book, -x) != ts_update_code(-x, map, true));
}

/* Every 997th number from 0 to 1, the two beside each bucket's beginning, middles of two values and what is next to
 * them. */
static void check_book(bool has_sign) {
  const ts_code_book *book = ts_code_book_get(has_sign);
  const int32_t one = ts_bits_of(1.0f), bucket = 1 << TS_CODE_SHIFT;
  int64_t others = 0;
  for (int32_t bits = 0; bits <= one; bits += 997) {
    others += is_other(book, ts_float_of(bits));
  }
  for (int32_t bits = bucket; bits <= one; bits += bucket) {
    others += is_other(book, ts_float_of(bits - 1)) + is_other(book, ts_float_of(bits));
  }
  for (int code = 0; code < 255; ++code) {
    float middle = fabsf(book->map[code] + book->map[code + 1]) * 0.5f;
    others += is_other(book, nextafterf(middle, 0)) + is_other(book, middle) + is_other(book, nextafterf(middle, 1));
  }
  tap_ok(others == 0 && ts_code_book_find(book, NAN) == 0, "the book of %s has the search's codes",
         has_sign ? "numbers of either sign" : "numbers that are not negative");
}

/* ---- a step ---- */

/* What is updated, as the op has it. */
typedef struct matrix {
  run_tensor p, state[2], scales[2], g;
} matrix;

static matrix new_matrix(int64_t count) {
  matrix m = {.p = run_new(TS_F32, TS_SHAPE(count)), .g = run_new(TS_F32, TS_SHAPE(count))};
  for (int i = 0; i < 2; ++i) {
    m.state[i] = run_new(TS_U8, TS_SHAPE(count));
    m.scales[i] = run_new(TS_F32, TS_SHAPE((count + BLOCK - 1) / BLOCK));
  }
  return m;
}

static void free_matrix(matrix *m) {
  ts_free(m->p.data);
  ts_free(m->g.data);
  for (int i = 0; i < 2; ++i) {
    ts_free(m->state[i].data);
    ts_free(m->scales[i].data);
  }
}

static run_tensor one(ts_dtype dtype, double value) {
  run_tensor x = run_new(dtype, TS_SHAPE(1));
  run_set(&x, 0, value);
  return x;
}

typedef struct recipe {
  const char *name;
  ts_optimizer rule;
  ts_optimizer_numbers numbers;
  float lr, beta1, beta2, decay;
} recipe;

static void update(const ts_backend *set, matrix *m, const recipe *r, int64_t step) {
  int n_states = ts_optimizer_get(r->rule)->n_states;
  ts_range range = {0, run_count(&m->p), r->decay, 1.0f, 0};
  run_case c = {.op = TS_OP_UPDATE_ELEMENTS, .threads = 2};
  c.attr.update = (typeof(c.attr.update)){.range = &range, .n = 1, .rule = r->rule, .numbers = r->numbers};
  c.in[c.n_in++] = m->p;
  for (int i = 0; i < n_states; ++i) {
    c.in[c.n_in++] = m->state[i];
    c.in[c.n_in++] = m->scales[i];
  }
  c.n_out = c.n_in;
  memcpy(c.out, c.in, (size_t) c.n_in * sizeof *c.in);
  run_tensor corrections = run_new(TS_F64, TS_SHAPE(2)), betas = run_new(TS_F32, TS_SHAPE(2)), *in = c.in + c.n_in;
  run_set(&betas, 0, (double) r->beta1);
  run_set(&betas, 1, (double) r->beta2);
  run_set(&corrections, 0, ts_update_correction((double) r->beta1, step));
  run_set(&corrections, 1, ts_update_correction((double) r->beta2, step));
  in[TS_UPDATE_G] = m->g;
  in[TS_UPDATE_STEP] = one(TS_I64, (double) step);
  in[TS_UPDATE_CORRECTIONS] = corrections;
  in[TS_UPDATE_LR] = one(TS_F32, (double) r->lr);
  in[TS_UPDATE_BETAS] = betas;
  in[TS_UPDATE_SCALE] = one(TS_F32, 1);
  in[TS_UPDATE_SKIP] = one(TS_F32, 0);
  c.n_in += TS_UPDATE_INPUTS;
  run_kernel(set, &c);
  for (int i = TS_UPDATE_STEP; i < TS_UPDATE_INPUTS; ++i) {
    ts_free(in[i].data);
  }
}

/* ---- given values ---- */

/* With a decay of 1 the first step of momentum keeps the gradient itself. */
static const recipe keeps = {"", TS_OPTIMIZER_MOMENTUM, {.momentum = 0.9f}, 0, 0.9f, 0.99f, 0};

/* Here, and not there: -0 is 0, and in the map without signs what is not 0 has a code above that of 0. */
static bool check_values(const ts_backend *set, const ts_safetensors *st, const char *name) {
  char *path = ts_format("%s/in", name);
  int64_t count = ts_safetensors_find(st, path)->count, blocks = (count + BLOCK - 1) / BLOCK;
  const float *value = golden(st, name, "in"), *most = golden(st, name, "moment_absmax");
  const uint8_t *moment = golden(st, name, "moment"), *plain = golden(st, name, "unsigned");
  matrix m = new_matrix(count);
  memcpy(m.g.data, value, (size_t) count * sizeof *value);
  update(set, &m, &keeps, 1);
  const uint8_t *got = m.state[0].data;
  bool same =
      run_same(&m.scales[0], most) && memcmp(golden(st, name, "unsigned_absmax"), most, (size_t) blocks * 4) == 0;
  for (int64_t i = 0; i < count; ++i) {
    float by = most[i / BLOCK] > 0 ? most[i / BLOCK] : 1;
    bool few = plain[i] == 0 && value[i] != 0;
    same = same && got[i] == (value[i] == 0 ? 127 : moment[i]);
    same = same && ts_update_code(fabsf(value[i]) / by, unsigned_map, false) == (few ? 1 : plain[i]);
  }
  free_matrix(&m);
  ts_free(path);
  return same;
}

/* ---- twenty steps ---- */

/* The numbers of make_states.py, exact in fp32. */
static float next_weight(uint32_t *x) {
  *x = 1664525u * *x + 1013904223u;
  return (float) ((int) (*x >> 8) - (1 << 23)) * 0x1p-26f;
}

static float next_gradient(uint32_t *x) {
  *x = 1664525u * *x + 1013904223u;
  int size = (int) (*x >> 26);
  *x = 1664525u * *x + 1013904223u;
  return size < 8 ? 0 : ldexpf((float) ((int) (*x >> 8) - (1 << 23)), -23 - size % 8);
}

static const recipe recipes[] = {
    {"adamw", TS_OPTIMIZER_ADAMW, {.eps = 1e-8f, .decoupled = true, .bias_correction = true}, 1e-2f, 0.9f, 0.99f, 0.1f},
    {"lion", TS_OPTIMIZER_LION, {.decoupled = true}, 1e-2f, 0.9f, 0.99f, 0.1f},
    {"momentum", TS_OPTIMIZER_MOMENTUM, {.momentum = 0.9f}, 1e-2f, 0.9f, 0.99f, 0.1f}};

/* Codes that differ, by at most one where a value lies in the middle of two but for rounding: counted; else all. */
static int64_t codes_apart(const run_tensor *got, const uint8_t *expected) {
  int64_t n = 0;
  for (int64_t i = 0; i < KEPT; ++i) {
    int apart = abs(((const uint8_t *) got->data)[i] - expected[i]);
    n += apart > 1 ? KEPT : apart;
  }
  return n;
}

static double most_apart(const run_tensor *got, const float *expected, int64_t n) {
  double worst = 0;
  for (int64_t i = 0; i < n; ++i) {
    worst = fmax(worst, fabs(run_get(got, i) - (double) expected[i]));
  }
  return worst;
}

static void check_steps(const ts_backend *set, const ts_safetensors *st, const recipe *r) {
  matrix m = new_matrix(COUNT);
  uint32_t x = 1;
  for (int i = 0; i < COUNT; ++i) {
    ((float *) m.p.data)[i] = next_weight(&x);
  }
  for (int64_t step = 1; step <= STEPS; ++step) {
    for (int i = 0; i < COUNT; ++i) {
      ((float *) m.g.data)[i] = next_gradient(&x);
    }
    update(set, &m, r, step);
  }
  static const char *const codes[] = {"m", "v"}, *const scales[] = {"m_absmax", "v_absmax"};
  int64_t apart = 0;
  double scale = 0, weight = most_apart(&m.p, golden(st, r->name, "p"), KEPT), sum = 0, squares = 0;
  for (int i = 0; i < ts_optimizer_get(r->rule)->n_states; ++i) {
    apart += codes_apart(&m.state[i], golden(st, r->name, codes[i]));
    scale = fmax(scale, most_apart(&m.scales[i], golden(st, r->name, scales[i]), KEPT / BLOCK));
  }
  for (int i = 0; i < COUNT; ++i) {
    sum += run_get(&m.p, i);
    squares += run_get(&m.p, i) * run_get(&m.p, i);
  }
  const double *sums = golden(st, r->name, "sums");
  tap_note("%s %s: %lld codes of %d, scales %.1e, weights %.1e, sum %.1e, squares %.1e apart", set->name, r->name,
           (long long) apart, KEPT, scale, weight, fabs(sum - sums[0]), fabs(squares / sums[1] - 1));
  /* A code that another rounding moves is a 64th of a moment, and that of the rate. */
  tap_ok(apart <= 4 && scale < 2e-6 && weight < 2e-4 && fabs(squares / sums[1] - 1) < 1e-6,
         "%s %s: twenty steps with states in 8 bits as bitsandbytes makes them", r->name, set->name);
  free_matrix(&m);
}

void ops_check_states(const ts_backend *set) {
  static const char *const values[] = {"normal",           "wide",  "zeros",        "single",
                                       "denormal",         "short", "map",          "middles",
                                       "unsigned_middles", "small", "negative_zero"};
  ts_safetensors *st;
  ts_error err = {0};
  check_map();
  check_book(true);
  check_book(false);
  TS_CHECK(ts_safetensors_open(tap_path("regression/golden/states_8bit.safetensors"), &st, &err) == TS_OK, "%s",
           err.text);
  for (size_t i = 0; i < sizeof values / sizeof *values; ++i) {
    tap_ok(check_values(set, st, values[i]), "%s: codes of \"%s\" are bitsandbytes'", set->name, values[i]);
  }
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; ++i) {
    check_steps(set, st, &recipes[i]);
  }
  ts_safetensors_close(&st);
}
