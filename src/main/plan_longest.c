#include "main/plan_longest.h"

#include "family/family.h"
#include "main/plan_layout.h"

#define MOST_TOKENS ((int64_t) 1 << 27)

static bool length_fits(const ts_program_options *options, int64_t steps, int64_t bytes) {
  ts_program_options longer = *options;
  longer.length = steps * TS_PLAN_LENGTH_STEP;
  ts_program *program = ts_program_create(&longer);
  ts_plan_largest(&longer, &program);
  bool does = program->plan->peak_bytes <= bytes;
  ts_program_destroy(&program);
  return does;
}

/* Needs grow with the length. */
int64_t ts_plan_longest(const ts_program_options *options, int64_t bytes) {
  const ts_deck_model *m = &options->deck->model;
  bool learned = ts_family_find(m->model_type)->positions != NULL;
  int64_t most = learned && m->max_position_embeddings < MOST_TOKENS ? m->max_position_embeddings : MOST_TOKENS;
  int64_t low = 0, high = 1;
  most /= TS_PLAN_LENGTH_STEP;
  while (high <= most && length_fits(options, high, bytes)) {
    low = high;
    high *= 2;
  }
  high = high <= most ? high : most + 1;
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (length_fits(options, middle, bytes)) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low * TS_PLAN_LENGTH_STEP;
}
