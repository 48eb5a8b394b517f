/** \file
 * Learning rate schedules: the learning rate and the momentum (Adam's first beta) of a step, in fp64, as closed forms
 * of the step number, so a resumed run needs no history.  The schedules, their formulas and their defaults are those of
 * DeepSpeed 0.19.6 (deepspeed/runtime/lr_schedules.py); the fields carry the names of its configuration keys.
 *
 * Step s (from 0) uses the schedule's value at `i = last_batch_iteration + s`, that is, at s - 1 by default: DeepSpeed
 * sets a first value when the schedule is created (i = -1) and advances it after each step.
 *
 *     warm(i)         log: ln (i + 1) / ln w; linear: i / w; with w = max (2, warmup_num_steps) and i < w
 *
 *     none            lr
 *     LRRangeTest     lr_range_test_min_lr * (1 + lr_range_test_step_rate * k), k = (i + 1) / lr_range_test_step_size,
 *                     rounded down with lr_range_test_staircase
 *     WarmupLR        min + (max - min) * warm(i), then max (warmup_min_lr, warmup_max_lr)
 *     WarmupDecayLR   the same, but then min + (max - min) * max (0, (total - i) / max (1, total - w))
 *     WarmupCosineLR  lr * (warmup_min_ratio + (1 - warmup_min_ratio) * warm(i)), then
 *                     lr * (cos_min_ratio + (1 - cos_min_ratio) * (1 + cos (pi p)) / 2),
 *                     p = min (1, (i - w + 1) / max (1, total - w))
 *     OneCycle        min + (max - min) * scale while i < first + second (cycle_min_lr, cycle_max_lr); scale rises from
 *                     0 to 1 over cycle_first_step_size steps and falls to 0 over cycle_second_step_size, in
 *                     cycle_first_stair_count, cycle_second_stair_count stairs when positive;
 *                     then min / (1 + decay_lr_rate * n / decay_step_size), n = i - (first + second) + 1.
 *                     Momentum moves against it: max - (max - min) * scale (cycle_min_mom, cycle_max_mom), then
 *                     max * (1 + decay_mom_rate * n / decay_step_size).  Without decay_step_size nothing decays.
 *
 * Before the first batch (i = -1) WarmupLR and WarmupDecayLR give warmup_min_lr, WarmupCosineLR 0 and OneCycle its
 * lower momentum, as there.
 *
 * Three differences: DeepSpeed's OneCycle momentum grows after the cycle without bound, past 1; here it stays within
 * [cycle_min_mom, cycle_max_mom].  It also replaces the second beta by 0.99; that is not this module's to change.
 * And with last_batch_iteration >= 0 it uses the optimizer's own rate for one step; here the schedule holds from there.
 *
 * Values are checked by the deck: step counts are positive where a formula divides by them.
 */
#ifndef TS_ENGINE_LR_SCHEDULE_H
#define TS_ENGINE_LR_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum ts_lr_schedule_type {
  TS_LR_NONE,
  TS_LR_RANGE_TEST,
  TS_LR_WARMUP,
  TS_LR_WARMUP_DECAY,
  TS_LR_WARMUP_COSINE,
  TS_LR_ONE_CYCLE,
  TS_N_LR_SCHEDULES
} ts_lr_schedule_type;

/** A schedule and all parameters of all types; only those of \a type are read.  A plain value: copy it freely. */
typedef struct ts_lr_schedule {
  ts_lr_schedule_type type;
  double lr;       /**< The optimizer's: what `none` gives and WarmupCosineLR scales. */
  double momentum; /**< The optimizer's first beta: the momentum unless OneCycle cycles it. */
  double lr_range_test_min_lr, lr_range_test_step_rate;
  int64_t lr_range_test_step_size; /**< Positive. */
  bool lr_range_test_staircase;
  double warmup_min_lr, warmup_max_lr;
  int64_t warmup_num_steps, total_num_steps;
  bool warmup_linear; /**< warmup_type: "linear" rather than "log". */
  double warmup_min_ratio, cos_min_ratio;
  double cycle_min_lr, cycle_max_lr, decay_lr_rate;
  int64_t cycle_first_step_size;                             /**< Positive. */
  int64_t cycle_second_step_size;                            /**< Not negative; resolved, its default is the first. */
  int64_t cycle_first_stair_count, cycle_second_stair_count; /**< 0: no stairs; the second is resolved like the size. */
  int64_t decay_step_size;                                   /**< 0: no decay. */
  bool cycle_momentum;
  double cycle_min_mom, cycle_max_mom, decay_mom_rate;
  int64_t last_batch_iteration; /**< -1: the schedule starts at its begin. */
} ts_lr_schedule;

/** The type of that name ("none", "LRRangeTest", ...).
 * \return false, and \a type unchanged, for a name there is not.  Not collective. */
bool ts_lr_schedule_find(const char *name, ts_lr_schedule_type *type);

/** Learning rate of step \a step, counted from 0 in steps that changed the parameters.  Not collective. */
double ts_lr_at(const ts_lr_schedule *schedule, int64_t step);

/** Momentum (the first beta) of step \a step, counted like ts_lr_at's.  Not collective. */
double ts_momentum_at(const ts_lr_schedule *schedule, int64_t step);

#endif
