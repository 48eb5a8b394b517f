#include "main/plan_longest.h"

#include "base/memory.h"
#include "family/family.h"
#include "run/budget.h"
#include "run/executor.h"
#include "run/plan_largest.h"

#include <limits.h>

#define MOST_TOKENS ((int64_t) 1 << 27)

typedef struct search {
  int64_t steps, bytes; /* the longest so far, and what there is */
  int64_t beside;       /* what a rank wants of the host's memory then, at most */
} search;

static ts_program *program_of_length(const ts_program_options *options, int64_t steps) {
  ts_program_options longer = *options;
  longer.length = steps * TS_PLAN_LENGTH_STEP;
  return ts_program_create(&longer);
}

static int64_t bytes_beside(const ts_program *program) {
  return program->target.backend->device != NULL ? ts_executor_host_bytes(&program, 1) : 0;
}

/* Where it computes, and beside a device; what has no room there goes to a file, if there is one. */
static bool length_fits(const ts_program_options *options, int64_t steps, int64_t bytes) {
  const int64_t beside = ts_budget_host_memory(options);
  const bool may_store = options->stay.kept > 0 && ts_deck_files(options->deck)[0] != 0;
  bool fits = false;
  for (int stored = 0; stored <= (may_store ? 1 : 0) && !fits; ++stored) {
    ts_program_options longer = *options;
    longer.stay.kept_stored = stored > 0 ? INT_MAX : longer.stay.kept_stored;
    ts_program *program = program_of_length(&longer, steps);
    fits = program->plan->peak_bytes <= bytes && (beside == 0 || bytes_beside(program) <= beside);
    ts_program_destroy(&program);
  }
  return fits;
}

/* Of a rank: `low` fits, `high` does not; needs grow with the length. */
static int64_t bisect(const ts_program_options *options, int64_t low, int64_t high, int64_t bytes) {
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (length_fits(options, middle, bytes)) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* Of a rank, at most `most`. */
static int64_t find_longest(const ts_program_options *options, int64_t most, int64_t bytes) {
  int64_t low = 0, high = 1;
  while (high <= most && length_fits(options, high, bytes)) {
    low = high;
    high *= 2;
  }
  return bisect(options, low, high <= most ? high : most + 1, bytes);
}

/* To what fits another rank, which is not much less. */
static void shorten(const ts_program_options *options, void *user) {
  search *s = user;
  int64_t low = s->steps, high = low;
  for (int64_t step = 1; low > 0 && !length_fits(options, low, s->bytes); step *= 2) {
    high = low;
    low = low > step ? low - step : 0;
  }
  s->steps = low < high ? bisect(options, low, high, s->bytes) : low;
}

/* As a run of such samples would have it, in which what has room stays. */
static void note_beside(const ts_program_options *options, void *user) {
  search *s = user;
  ts_program_options longest = *options;
  longest.length = s->steps * TS_PLAN_LENGTH_STEP;
  longest.memory = s->bytes;
  longest.stay = ts_budget_decide(&longest);
  ts_program *program = program_of_length(&longest, s->steps);
  const int64_t here = bytes_beside(program);
  s->beside = here > s->beside ? here : s->beside;
  ts_program_destroy(&program);
  ts_free(longest.stay.of_part);
}

/* With all activations away that may leave, as they are where a longer sample would not fit, and updated by whom the
 * deck's own length would have. */
static ts_program_options options_of_longer(const ts_program_options *options) {
  ts_program_options longer = *options;
  if (!ts_deck_fits_offload(options->deck)) {
    ts_offload_stay chosen = ts_budget_decide(options);
    longer.stay = (ts_offload_stay){.kept = 1, .updater = chosen.updater};
    ts_free(chosen.of_part);
  }
  return longer;
}

/* One rank's, shortened until it fits all that may need most: which these are is a matter of the length. */
int64_t ts_plan_longest(const ts_program_options *options, int64_t bytes, int64_t *host) {
  const ts_deck_model *m = &options->deck->model;
  bool learned = ts_family_find(m->model_type)->positions != NULL;
  int64_t most = learned && m->max_position_embeddings < MOST_TOKENS ? m->max_position_embeddings : MOST_TOKENS;
  ts_program_options longer = options_of_longer(options);
  search s = {find_longest(&longer, most / TS_PLAN_LENGTH_STEP, bytes), bytes, 0};
  for (int64_t before = 0; s.steps > 0 && s.steps != before;) {
    before = s.steps;
    longer.length = before * TS_PLAN_LENGTH_STEP;
    ts_plan_visit(&longer, shorten, &s);
  }
  if (s.steps > 0) {
    ts_plan_visit(&longer, note_beside, &s);
  }
  *host = s.beside;
  return s.steps * TS_PLAN_LENGTH_STEP;
}
