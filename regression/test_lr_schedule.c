/* Learning rate schedules against DeepSpeed's own (regression/golden/schedules.json, made by make_schedules.py). */
#include "engine/lr_schedule.h"
#include "regression/tap.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

/* fp64 formulas written in another order: the scale of a cycle of 4000 steps loses 4000 * 2^-53 = 4e-13. */
static const double tolerance = 1e-12;

/* DeepSpeed's defaults. */
static const ts_lr_schedule defaults = {.lr_range_test_min_lr = 1e-3, .lr_range_test_step_rate = 1,
                                        .lr_range_test_step_size = 2000, .warmup_max_lr = -1, .warmup_num_steps = 1000,
                                        .cos_min_ratio = 1e-4, .cycle_first_step_size = 2000,
                                        .cycle_second_step_size = -1, .cycle_second_stair_count = -1,
                                        .cycle_momentum = true, .cycle_min_mom = 0.8, .cycle_max_mom = 0.9,
                                        .last_batch_iteration = -1};

static const struct {
  const char *name;
  size_t offset;
  json_type type; /* JSON_TRUE for a bool */
} parameters[] = {
#define PARAMETER(name, type) {#name, offsetof(ts_lr_schedule, name), type}
    PARAMETER(lr_range_test_min_lr, JSON_REAL),        PARAMETER(lr_range_test_step_rate, JSON_REAL),
    PARAMETER(lr_range_test_step_size, JSON_INTEGER),  PARAMETER(lr_range_test_staircase, JSON_TRUE),
    PARAMETER(warmup_min_lr, JSON_REAL),               PARAMETER(warmup_max_lr, JSON_REAL),
    PARAMETER(warmup_num_steps, JSON_INTEGER),         PARAMETER(total_num_steps, JSON_INTEGER),
    PARAMETER(warmup_min_ratio, JSON_REAL),            PARAMETER(cos_min_ratio, JSON_REAL),
    PARAMETER(cycle_min_lr, JSON_REAL),                PARAMETER(cycle_max_lr, JSON_REAL),
    PARAMETER(decay_lr_rate, JSON_REAL),               PARAMETER(cycle_first_step_size, JSON_INTEGER),
    PARAMETER(cycle_second_step_size, JSON_INTEGER),   PARAMETER(cycle_first_stair_count, JSON_INTEGER),
    PARAMETER(cycle_second_stair_count, JSON_INTEGER), PARAMETER(decay_step_size, JSON_INTEGER),
    PARAMETER(cycle_momentum, JSON_TRUE),              PARAMETER(cycle_min_mom, JSON_REAL),
    PARAMETER(cycle_max_mom, JSON_REAL),               PARAMETER(decay_mom_rate, JSON_REAL),
};

static bool set_parameter(ts_lr_schedule *s, const char *name, const json_t *value) {
  if (strcmp(name, "warmup_type") == 0) {
    s->warmup_linear = strcmp(json_string_value(value), "linear") == 0;
    return true;
  }
  for (size_t p = 0; p < sizeof parameters / sizeof parameters[0]; ++p) {
    if (strcmp(parameters[p].name, name) == 0) {
      char *at = (char *) s + parameters[p].offset;
      if (parameters[p].type == JSON_REAL) {
        *(double *) at = json_number_value(value);
      } else if (parameters[p].type == JSON_INTEGER) {
        *(int64_t *) at = json_integer_value(value);
      } else {
        *(bool *) at = json_is_true(value);
      }
      return true;
    }
  }
  return false;
}

static ts_lr_schedule read_schedule(const json_t *c) {
  ts_lr_schedule s = defaults;
  s.lr = json_number_value(json_object_get(c, "lr"));
  s.momentum = json_number_value(json_object_get(c, "momentum"));
  const char *type = json_string_value(json_object_get(c, "type")), *key;
  tap_ok(ts_lr_schedule_find(type, &s.type), "%s is known", type);
  json_t *value;
  json_object_foreach (json_object_get(c, "params"), key, value) {
    if (!set_parameter(&s, key, value)) {
      tap_ok(false, "parameter %s is known", key);
    }
  }
  if (s.warmup_max_lr < 0) {
    s.warmup_max_lr = s.type == TS_LR_WARMUP_DECAY ? 1e-3 : s.lr;
  }
  if (s.cycle_second_step_size < 0) {
    s.cycle_second_step_size = s.cycle_first_step_size;
  }
  if (s.cycle_second_stair_count < 0) {
    s.cycle_second_stair_count = s.cycle_first_stair_count;
  }
  return s;
}

static bool close_to(double value, double expected) {
  return fabs(value - expected) <= tolerance * fabs(expected);
}

/* The one place where we differ: momentum stays within the bounds of the cycle. */
static double bounded(const ts_lr_schedule *s, double momentum) {
  return s->type == TS_LR_ONE_CYCLE && s->cycle_momentum ? fmin(fmax(momentum, s->cycle_min_mom), s->cycle_max_mom)
                                                         : momentum;
}

static void test_case(const json_t *c) {
  ts_lr_schedule s = read_schedule(c);
  const json_t *steps = json_object_get(c, "steps"), *lrs = json_object_get(c, "lrs");
  const json_t *momenta = json_object_get(c, "momenta");
  size_t n = json_array_size(steps);
  int wrong = 0;
  for (size_t k = 0; k < n; ++k) {
    int64_t step = json_integer_value(json_array_get(steps, k));
    double lr = json_number_value(json_array_get(lrs, k));
    double momentum = bounded(&s, json_number_value(json_array_get(momenta, k)));
    if (!close_to(ts_lr_at(&s, step), lr) || !close_to(ts_momentum_at(&s, step), momentum)) {
      tap_note("step %lld: lr %.17g, expected %.17g; momentum %.17g, expected %.17g", (long long) step,
               ts_lr_at(&s, step), lr, ts_momentum_at(&s, step), momentum);
      ++wrong;
    }
  }
  char *params = json_dumps(json_object_get(c, "params"), JSON_COMPACT | JSON_REAL_PRECISION(6));
  tap_ok(n > 0 && wrong == 0, "%s %s: %zu steps", json_string_value(json_object_get(c, "type")), params, n);
  free(params);
}

static void test_start(void) {
  ts_lr_schedule s = defaults, later;
  s.type = TS_LR_WARMUP;
  s.warmup_max_lr = 1;
  s.warmup_num_steps = 20;
  later = s;
  later.last_batch_iteration = 4;
  tap_ok(ts_lr_at(&later, 0) == ts_lr_at(&s, 5) && ts_lr_at(&s, 5) > ts_lr_at(&s, 4),
         "last_batch_iteration starts late");
}

static void test_none(void) {
  ts_lr_schedule s = {.lr = 0.5, .momentum = 0.75, .last_batch_iteration = -1};
  ts_lr_schedule_type type = TS_LR_ONE_CYCLE;
  tap_ok(ts_lr_schedule_find("none", &type) && type == TS_LR_NONE, "none is known");
  tap_ok(!ts_lr_schedule_find("warmuplr", &type) && type == TS_LR_NONE, "an unknown name is refused");
  tap_ok(ts_lr_at(&s, 0) == 0.5 && ts_lr_at(&s, 1000000) == 0.5 && ts_momentum_at(&s, 7) == 0.75, "none is constant");
}

int main(void) {
  json_error_t error;
  json_t *cases = json_load_file(tap_path("regression/golden/schedules.json"), 0, &error), *c;
  tap_ok(json_array_size(cases) >= 30, "schedules.json is there: %zu cases %s", json_array_size(cases),
         cases == NULL ? error.text : "");
  size_t i;
  json_array_foreach (cases, i, c) {
    test_case(c);
  }
  json_decref(cases);
  test_none();
  test_start();
  return tap_done();
}
