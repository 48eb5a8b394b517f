/* Learning rate schedules against DeepSpeed's own (regression/golden/schedules.json, made by make_schedules.py).  Each
 * goes through a DeepSpeed json and the deck, so the names and defaults of the keys are tested too. */
#include "engine/engine.h"
#include "regression/deck_fixture.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

/* fp64 formulas written in another order: the scale of a cycle of 4000 steps loses 4000 * 2^-53 = 4e-13. */
static const double tolerance = 1e-12;

/* The case as a DeepSpeed configuration. */
static char *write_config(json_t *c) {
  json_t *params =
      json_pack("{s:O, s:[O,f]}", "lr", json_object_get(c, "lr"), "betas", json_object_get(c, "momentum"), 0.999);
  json_t *config = json_pack("{s:i, s:{s:s, s:o}, s:{s:O, s:O}}", "train_micro_batch_size_per_gpu", 1, "optimizer",
                             "type", "AdamW", "params", params, "scheduler", "type", json_object_get(c, "type"),
                             "params", json_object_get(c, "params"));
  char *text = json_dumps(config, 0);
  char *path = fixture_file("ds_config.json", text);
  free(text);
  json_decref(config);
  return path;
}

/* False when the deck refuses it. */
static bool read_schedule(const char *name, json_t *c, ts_lr_schedule *s) {
  char *path = write_config(c);
  char *text = ts_format("%s deepspeed_config = \"%s\";\n", LLAMA_MODEL, path);
  ts_deck *deck = fixture_read(name, text, NULL);
  bool good = deck != NULL;
  if (good) {
    ts_engine_schedule_from_deck(s, deck);
  }
  ts_deck_destroy(&deck);
  ts_free(text);
  ts_free(path);
  return good;
}

static bool close_to(double value, double expected) {
  return fabs(value - expected) <= tolerance * fabs(expected);
}

/* The one place where we differ: momentum stays within the bounds of the cycle. */
static double bounded(const ts_lr_schedule *s, double momentum) {
  return s->type == TS_LR_ONE_CYCLE && s->cycle_momentum ? fmin(fmax(momentum, s->cycle_min_mom), s->cycle_max_mom)
                                                         : momentum;
}

static void test_values(const char *name, const ts_lr_schedule *s, const json_t *c) {
  const json_t *steps = json_object_get(c, "steps"), *lrs = json_object_get(c, "lrs");
  const json_t *momenta = json_object_get(c, "momenta");
  size_t n = json_array_size(steps);
  int wrong = 0;
  for (size_t k = 0; k < n; ++k) {
    int64_t step = json_integer_value(json_array_get(steps, k));
    double lr = json_number_value(json_array_get(lrs, k));
    double momentum = bounded(s, json_number_value(json_array_get(momenta, k)));
    if (!close_to(ts_lr_at(s, step), lr) || !close_to(ts_momentum_at(s, step), momentum)) {
      tap_note("step %lld: lr %.17g, expected %.17g; momentum %.17g, expected %.17g", (long long) step,
               ts_lr_at(s, step), lr, ts_momentum_at(s, step), momentum);
      ++wrong;
    }
  }
  tap_ok(n > 0 && wrong == 0, "%s: %zu steps", name, n);
}

static void test_case(json_t *c) {
  char *params = json_dumps(json_object_get(c, "params"), JSON_COMPACT | JSON_REAL_PRECISION(6));
  char *name = ts_format("%s %s", json_string_value(json_object_get(c, "type")), params);
  ts_lr_schedule s;
  if (read_schedule(name, c, &s)) {
    test_values(name, &s, c);
  }
  ts_free(name);
  free(params);
}

static void test_start(void) {
  ts_lr_schedule s = {.type = TS_LR_WARMUP, .warmup_max_lr = 1, .warmup_num_steps = 20, .last_batch_iteration = -1};
  ts_lr_schedule later = s;
  later.last_batch_iteration = 4;
  tap_ok(ts_lr_at(&later, 0) == ts_lr_at(&s, 5) && ts_lr_at(&s, 5) > ts_lr_at(&s, 4),
         "last_batch_iteration starts late");
}

static void test_none(void) {
  const char *text = GOOD_DECK "optimizer = { params = { lr = 0.5; betas = [0.75, 0.9]; }; };";
  ts_deck *deck = fixture_read("no scheduler", text, NULL);
  ts_lr_schedule s;
  ts_engine_schedule_from_deck(&s, deck);
  ts_deck_destroy(&deck);
  tap_ok(ts_lr_at(&s, 0) == 0.5 && ts_lr_at(&s, 1000000) == 0.5 && ts_momentum_at(&s, 7) == 0.75, "none is constant");
  ts_lr_schedule_type type = TS_LR_ONE_CYCLE;
  tap_ok(!ts_lr_schedule_find("warmuplr", &type) && type == TS_LR_ONE_CYCLE, "an unknown name is refused");
}

int main(void) {
  json_error_t error;
  json_t *cases = json_load_file(tap_path("regression/golden/schedules.json"), 0, &error), *c;
  tap_ok(json_array_size(cases) >= 30, "schedules.json is there: %zu cases %s", json_array_size(cases),
         cases == NULL ? error.text : "");
  size_t i;
  json_array_foreach(cases, i, c) {
    test_case(c);
  }
  json_decref(cases);
  test_none();
  test_start();
  return tap_done();
}
