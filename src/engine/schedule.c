/* The rate of an engine: the deck's scheduler keys as the plain values lr_schedule works with, or the caller's word. */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

void ts_engine_schedule_from_deck(ts_lr_schedule *s, const ts_deck *deck) {
  const ts_deck_scheduler *d = &deck->scheduler;
  *s = (ts_lr_schedule){
      .lr = deck->optimizer.params.lr,
      .momentum = deck->optimizer.params.betas[0],
      .lr_range_test_min_lr = d->params.lr_range_test_min_lr,
      .lr_range_test_step_rate = d->params.lr_range_test_step_rate,
      .lr_range_test_step_size = d->params.lr_range_test_step_size,
      .lr_range_test_staircase = d->params.lr_range_test_staircase,
      .warmup_min_lr = d->params.warmup_min_lr,
      .warmup_max_lr = d->params.warmup_max_lr,
      .warmup_num_steps = d->params.warmup_num_steps,
      .total_num_steps = d->params.total_num_steps,
      .warmup_linear = strcmp(d->params.warmup_type, "linear") == 0,
      .warmup_min_ratio = d->params.warmup_min_ratio,
      .cos_min_ratio = d->params.cos_min_ratio,
      .cycle_min_lr = d->params.cycle_min_lr,
      .cycle_max_lr = d->params.cycle_max_lr,
      .decay_lr_rate = d->params.decay_lr_rate,
      .cycle_first_step_size = d->params.cycle_first_step_size,
      .cycle_second_step_size = d->params.cycle_second_step_size,
      .cycle_first_stair_count = d->params.cycle_first_stair_count,
      .cycle_second_stair_count = d->params.cycle_second_stair_count,
      .decay_step_size = d->params.decay_step_size,
      .cycle_momentum = d->params.cycle_momentum,
      .cycle_min_mom = d->params.cycle_min_mom,
      .cycle_max_mom = d->params.cycle_max_mom,
      .decay_mom_rate = d->params.decay_mom_rate,
      .last_batch_iteration = d->params.last_batch_iteration,
  };
  bool known = ts_lr_schedule_find(d->type, &s->type);
  TS_CHECK(known, "scheduler %s is in the deck's table but not in the schedules'", d->type);
}

double ts_engine_learning_rate(const ts_engine *e) {
  return e->has_own_rate ? e->own_rate : ts_lr_at(&e->schedule, e->updates);
}

ts_status ts_set_learning_rate(ts_engine *e, double lr, ts_error *err) {
  if (!isfinite(lr)) {
    return ts_error_add(err, "ts_set_learning_rate: %g is no rate; one below 0 gives the schedule its turn again", lr);
  }
  e->has_own_rate = lr >= 0;
  e->own_rate = lr;
  return TS_OK;
}
