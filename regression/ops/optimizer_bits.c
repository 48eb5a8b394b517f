/* The bits of element-wise optimizers: the same on every instruction set and GPU, for any number of threads, in any
 * shards.  Expected are those of one element after the other, by the rules that kernels use, and with states in 8 bits
 * coded by looking at every value of the map. */
#include "backend/dynamic_map.h"
#include "backend/update_rules.h"
#include "graph/op.h"
#include "regression/ops/ops.h"
#include "regression/tap.h"

enum { COUNT = 2700, BLOCK = TS_STATE_BLOCK, SCALES = (COUNT + BLOCK - 1) / BLOCK, STEPS = 3 };

static const float signed_map[] = TS_DYNAMIC_MAP_SIGNED, unsigned_map[] = TS_DYNAMIC_MAP_UNSIGNED;

/* What is updated, in types of its own. */
typedef struct subject {
  ts_optimizer rule;
  ts_dtype p, w, state; /* w: TS_N_DTYPES for none */
  ts_rounding rounding;
  run_tensor value[6]; /* owned: p, [w], states with their scales */
  int n;
} subject;

static const ts_range ranges[] = {{0, 7, 0.0f, 1.0f, 0}, {256, 2000, 0.1f, 1.0f, 0}, {2304, 300, 0.1f, 0.25f, 0}};
static const ts_optimizer_numbers numbers = {0.01f, 0.9f, 0.25f, 0.05f, 0.1f, 0.02f, true, true, false, false};

static subject new_subject(ts_optimizer rule, ts_dtype p, ts_dtype w, ts_dtype state, ts_rounding rounding) {
  subject s = {.rule = rule, .p = p, .w = w, .state = state, .rounding = rounding};
  s.value[s.n++] = run_random(p, TS_SHAPE(COUNT), 31, 1.0);
  if (w != TS_N_DTYPES) {
    s.value[s.n++] = run_new(w, TS_SHAPE(COUNT));
  }
  for (int i = 0; i < ts_optimizer_get(rule)->n_states; ++i) {
    s.value[s.n++] = run_new(state, TS_SHAPE(COUNT));
    if (state == TS_U8) {
      s.value[s.n++] = run_new(TS_F32, TS_SHAPE(SCALES));
    }
  }
  return s;
}

static void free_subject(subject *s) {
  for (int i = 0; i < s->n; ++i) {
    ts_free(s->value[i].data);
  }
}

/* ---- element by element ---- */

/* The nearest value of the map; of two the even one. */
static uint8_t nearest(float x, const float *map, bool has_sign) {
  int best = 0;
  for (int i = 1; i < 256; ++i) {
    float middle = (map[i - 1] + map[i]) * 0.5f;
    best = x > middle || (x == middle && i % 2 == 0) ? i : best;
  }
  bool lost = has_sign ? x < 0 && map[best] == 0 : x > 0 && map[best] == 0;
  return (uint8_t) (lost ? best + (has_sign ? -1 : 1) : best);
}

/* The values of a state; the i-th of the rule's lies at \a at. */
static void read_state(const subject *s, int at, ts_state state, float *value) {
  const float *map = ts_state_has_sign(state) ? signed_map : unsigned_map;
  for (int i = 0; i < COUNT; ++i) {
    value[i] = s->state == TS_U8
                   ? map[((const uint8_t *) s->value[at].data)[i]] * ((const float *) s->value[at + 1].data)[i / BLOCK]
                   : (float) run_get(&s->value[at], i);
  }
}

static void write_state(subject *s, int at, ts_state state, const float *value, const ts_range *range) {
  const bool has_sign = ts_state_has_sign(state);
  const int64_t end = range->offset + range->count;
  float most = 0; /* of the block */
  for (int64_t i = range->offset; i < end; ++i) {
    if (s->state != TS_U8) {
      run_set(&s->value[at], i, (double) value[i]);
      continue;
    }
    const bool begins = i % BLOCK == 0 || i == range->offset;
    most = begins ? 0 : most;
    for (int64_t k = i / BLOCK * BLOCK; begins && k < (i / BLOCK + 1) * BLOCK && k < end; ++k) {
      most = fabsf(value[k]) > most ? fabsf(value[k]) : most;
    }
    ((float *) s->value[at + 1].data)[i / BLOCK] = most;
    ((uint8_t *) s->value[at].data)[i] =
        nearest(most > 0 ? value[i] / most : 0, has_sign ? signed_map : unsigned_map, has_sign);
  }
}

static bool makes_direction(ts_optimizer rule) {
  return ts_optimizer_get(rule)->granularity != TS_GRANULARITY_ELEMENT;
}

static float apply(ts_optimizer rule, float p, float g, float *a, float *b, const ts_update_constants *k) {
  switch (rule) {
#define OPTIMIZER(ENUM, name, ...) \
  case TS_OPTIMIZER_##ENUM:        \
    return ts_update_##name(p, g, a, b, k);
#include "graph/optimizers.def"
#undef OPTIMIZER
    default: return 0;
  }
}

static void write_working(subject *s, int at, const float *p, const ts_range *range, int64_t step) {
  run_tensor *w = &s->value[at];
  if (s->rounding.stochastic) {
    ts_random_to_bf16(s->rounding.key, (uint64_t) step, s->rounding.first + range->offset, range->count,
                      p + range->offset, (uint16_t *) w->data + range->offset);
    return;
  }
  for (int64_t i = range->offset; i < range->offset + range->count; ++i) {
    run_set(w, i, (double) p[i]);
  }
}

static ts_update_step step_of(int64_t step) {
  return (ts_update_step){.step = step,
                          .corrections = {ts_update_correction(0.9f, step), ts_update_correction(0.95f, step)},
                          .lr = 1e-3f,
                          .betas = {0.9f, 0.95f},
                          .scale = 0.7f};
}

static void expect_step(subject *s, const run_tensor *g, int64_t step) {
  static float p[COUNT], state[2][COUNT];
  const ts_optimizer_info *info = ts_optimizer_get(s->rule);
  const ts_update_step now = step_of(step);
  int first = 1 + (s->w != TS_N_DTYPES), each = s->state == TS_U8 ? 2 : 1;
  for (int i = 0; i < COUNT; ++i) {
    p[i] = (float) run_get(&s->value[0], i);
  }
  for (int i = 0; i < info->n_states; ++i) {
    read_state(s, first + i * each, info->state[i], state[i]);
  }
  for (size_t r = 0; r < sizeof ranges / sizeof *ranges; ++r) {
    const ts_update_constants k =
        ts_update_constants_of(s->rule, &numbers, &now, ranges[r].weight_decay, ranges[r].lr_factor, 1);
    for (int64_t i = ranges[r].offset; i < ranges[r].offset + ranges[r].count; ++i) {
      float other = (float) run_get(g, i);
      bool turned = makes_direction(s->rule);
      p[i] = apply(s->rule, turned ? other : p[i], turned ? p[i] : other, &state[0][i], &state[1][i], &k);
    }
    for (int i = 0; i < info->n_states; ++i) {
      write_state(s, first + i * each, info->state[i], state[i], &ranges[r]);
    }
    for (int64_t i = ranges[r].offset; i < ranges[r].offset + ranges[r].count && s->w != TS_N_DTYPES; ++i) {
      run_set(&s->value[0], i, (double) p[i]);
    }
    write_working(s, s->w != TS_N_DTYPES, p, &ranges[r], step);
  }
}

/* ---- by the kernel ---- */

static run_tensor number(ts_dtype dtype, int n, const double *value) {
  run_tensor x = run_new(dtype, TS_SHAPE(n));
  for (int i = 0; i < n; ++i) {
    run_set(&x, i, value[i]);
  }
  return x;
}

/* Elements [from, to) of the subject, which shares blocks of states with no others. */
static void run_part(const ts_backend *set, subject *s, const run_tensor *g, int64_t step, int64_t from, int64_t to,
                     int threads) {
  ts_range own[3];
  run_case c = {.op = TS_OP_UPDATE_ELEMENTS, .threads = threads, .n_in = s->n + TS_UPDATE_INPUTS, .n_out = s->n};
  c.attr.update = (typeof(c.attr.update)){
      .range = own, .rule = s->rule, .numbers = numbers, .copy = s->w != TS_N_DTYPES, .rounding = s->rounding};
  c.attr.update.rounding.first += from;
  for (int r = 0; r < 3; ++r) {
    int64_t begin = ranges[r].offset > from ? ranges[r].offset : from;
    int64_t end = ranges[r].offset + ranges[r].count < to ? ranges[r].offset + ranges[r].count : to;
    if (begin < end) {
      own[c.attr.update.n++] = (ts_range){begin - from, end - begin, ranges[r].weight_decay, ranges[r].lr_factor, 0};
    }
  }
  for (int i = 0; i <= s->n; ++i) {
    const run_tensor *x = i < s->n ? &s->value[i] : g;
    bool scales = run_count(x) == SCALES;
    int64_t first = scales ? from / BLOCK : from, last = scales ? (to + BLOCK - 1) / BLOCK : to;
    c.in[i] =
        (run_tensor){x->dtype, TS_SHAPE(last - first), (char *) x->data + (size_t) first * ts_dtype_size(x->dtype)};
    if (i < s->n) {
      c.out[i] = c.in[i];
    }
  }
  const ts_update_step now = step_of(step);
  run_tensor *in = c.in + s->n;
  in[TS_UPDATE_STEP] = number(TS_I64, 1, (double[]){(double) step});
  in[TS_UPDATE_CORRECTIONS] = number(TS_F64, 2, now.corrections);
  in[TS_UPDATE_LR] = number(TS_F32, 1, (double[]){(double) now.lr});
  in[TS_UPDATE_BETAS] = number(TS_F32, 2, (double[]){(double) now.betas[0], (double) now.betas[1]});
  in[TS_UPDATE_SCALE] = number(TS_F32, 1, (double[]){(double) now.scale});
  in[TS_UPDATE_SKIP] = number(TS_F32, 1, (double[]){0});
  run_kernel(set, &c);
  for (int i = TS_UPDATE_STEP; i < TS_UPDATE_INPUTS; ++i) {
    ts_free(in[i].data);
  }
}

/* Gradients; in blocks of states some elements have none, some tiny ones, one block has nothing at all. */
static run_tensor gradient(ts_dtype dtype, int64_t step) {
  run_tensor g = run_random(dtype, TS_SHAPE(COUNT), (uint64_t) (700 + step), 1.0);
  for (int64_t i = 0; i < COUNT; ++i) {
    double value = run_get(&g, i) * (i % 5 == 0 ? 1e-6 : 1);
    run_set(&g, i, i % 7 == 0 || i / BLOCK == 3 ? 0 : value);
  }
  return g;
}

static bool same_subject(const subject *a, const subject *b) {
  bool same = true;
  for (int i = 0; i < a->n; ++i) {
    same = run_same(&a->value[i], b->value[i].data) && same;
  }
  return same;
}

/* \return whether the bits are the expected ones. */
static bool check_subject(const ts_backend *set, ts_optimizer rule, ts_dtype p, ts_dtype w, ts_dtype state,
                          ts_rounding rounding, bool in_parts) {
  subject expected = new_subject(rule, p, w, state, rounding), got = new_subject(rule, p, w, state, rounding);
  for (int64_t step = 1; step <= STEPS; ++step) {
    run_tensor g = gradient(step == 2 ? TS_BF16 : step == 3 ? TS_F16 : TS_F32, step);
    expect_step(&expected, &g, step);
    if (in_parts) {
      run_part(set, &got, &g, step, 0, 1024, 1);
      run_part(set, &got, &g, step, 1024, 1280, 2);
      run_part(set, &got, &g, step, 1280, COUNT, 1);
    } else {
      run_part(set, &got, &g, step, 0, COUNT, (int) step);
    }
    ts_free(g.data);
  }
  bool same = same_subject(&expected, &got);
  free_subject(&expected);
  free_subject(&got);
  return same;
}

/* Whole or in shards, in turn; TEST_OPS_ALL is for both. */
void ops_check_optimizers(const ts_backend *set) {
  const bool all = getenv("TEST_OPS_ALL") != NULL;
  static const ts_dtype states[] = {TS_F32, TS_BF16, TS_U8};
  static const struct {
    ts_dtype p, w;
    ts_rounding rounding;
  } kinds[] = {{TS_F32, TS_N_DTYPES, {0}},
               {TS_F32, TS_BF16, {0}},
               {TS_F32, TS_BF16, {true, 4711, 36}},
               {TS_F32, TS_BF16, {true, 4711, ((int64_t) 1 << 36) + 2}},
               {TS_F32, TS_F16, {0}},
               {TS_F16, TS_N_DTYPES, {0}},
               {TS_BF16, TS_N_DTYPES, {0}},
               {TS_BF16, TS_N_DTYPES, {true, 4711, 5}}};
  for (int rule = 0; rule < TS_N_OPTIMIZERS; ++rule) {
    bool whole = true, parts = true;
    for (size_t k = 0; k < 3 * sizeof kinds / sizeof *kinds; ++k) {
      ts_dtype p = kinds[k / 3].p, w = kinds[k / 3].w, state = states[k % 3];
      if (w != TS_N_DTYPES && makes_direction((ts_optimizer) rule)) {
        continue;
      }
      const bool in_parts = (k + (size_t) rule) % 2 == 1;
      whole = whole && ((in_parts && !all) ||
                        check_subject(set, (ts_optimizer) rule, p, w, state, kinds[k / 3].rounding, false));
      parts = parts && ((!in_parts && !all) ||
                        check_subject(set, (ts_optimizer) rule, p, w, state, kinds[k / 3].rounding, true));
    }
    const char *name = ts_optimizer_get((ts_optimizer) rule)->name;
    tap_ok(whole, "%s %s: the bits of one element after the other", name, set->name);
    tap_ok(parts, "%s %s: the same bits in shards", name, set->name);
  }
}
