#include "engine/engine.h"

#include <string.h>

/* The parameters that have the same name and type in both structs. */
#define PARAMETERS(X)                                                                                             \
  X(lr_range_test_min_lr) X(lr_range_test_step_rate) X(lr_range_test_step_size) X(lr_range_test_staircase)        \
  X(warmup_min_lr) X(warmup_max_lr) X(warmup_num_steps) X(total_num_steps) X(warmup_min_ratio) X(cos_min_ratio)   \
  X(cycle_min_lr) X(cycle_max_lr) X(decay_lr_rate) X(cycle_first_step_size) X(cycle_second_step_size)             \
  X(cycle_first_stair_count) X(cycle_second_stair_count) X(decay_step_size)                                       \
  X(cycle_momentum) X(cycle_min_mom) X(cycle_max_mom) X(decay_mom_rate) X(last_batch_iteration)

void ts_engine_schedule_from_deck(ts_lr_schedule *schedule, const ts_deck *deck) {
  const ts_deck_scheduler *s = &deck->scheduler;
  *schedule = (ts_lr_schedule){.lr = deck->optimizer.params.lr,
                               .momentum = deck->optimizer.params.betas[0],
                               .warmup_linear = strcmp(s->params.warmup_type, "linear") == 0};
#define COPY(name) schedule->name = s->params.name;
  PARAMETERS(COPY)
#undef COPY
  TS_CHECK(ts_lr_schedule_find(s->type, &schedule->type), "no schedule \"%s\"", s->type);
}
