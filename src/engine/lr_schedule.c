#include "engine/lr_schedule.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

/* All take the iteration i = last_batch_iteration + step, which is -1 before the first batch. */

static double none_lr(const ts_lr_schedule *s, int64_t i) {
  (void) i;
  return s->lr;
}

static double range_test_lr(const ts_lr_schedule *s, int64_t i) {
  double intervals = (double) (i + 1) / (double) s->lr_range_test_step_size;
  if (s->lr_range_test_staircase) {
    intervals = floor(intervals);
  }
  return s->lr_range_test_min_lr * (1 + s->lr_range_test_step_rate * intervals);
}

/* ---- warm-up ---- */

static int64_t warmup_steps(const ts_lr_schedule *s) {
  return s->warmup_num_steps > 2 ? s->warmup_num_steps : 2;
}

/* The rising part, for 0 <= i < warmup_steps; its end is not 1 for "linear", as i stops one short of it. */
static double warmup_part(const ts_lr_schedule *s, int64_t i) {
  double n = (double) warmup_steps(s);
  return s->warmup_linear ? (double) i / n : log((double) (i + 1)) / log(n);
}

/* Steps between the end of the warm-up and the end of the schedule, at least 1. */
static double steps_after_warmup(const ts_lr_schedule *s) {
  int64_t steps = s->total_num_steps - warmup_steps(s);
  return steps > 1 ? (double) steps : 1;
}

static double between(double low, double high, double part) {
  return low + (high - low) * part;
}

static double warmup_lr(const ts_lr_schedule *s, int64_t i) {
  double part = i < 0 ? 0 : i < warmup_steps(s) ? warmup_part(s, i) : 1;
  return between(s->warmup_min_lr, s->warmup_max_lr, part);
}

static double warmup_decay_lr(const ts_lr_schedule *s, int64_t i) {
  if (i < warmup_steps(s)) {
    return warmup_lr(s, i);
  }
  double left = fmax(0, (double) (s->total_num_steps - i) / steps_after_warmup(s));
  return between(s->warmup_min_lr, s->warmup_max_lr, left);
}

static double warmup_cosine_lr(const ts_lr_schedule *s, int64_t i) {
  if (i < 0) {
    return 0;
  }
  if (i < warmup_steps(s)) {
    return s->lr * between(s->warmup_min_ratio, 1, warmup_part(s, i));
  }
  double progress = fmin(1, (double) (i - warmup_steps(s) + 1) / steps_after_warmup(s));
  return s->lr * fmax(0, between(s->cos_min_ratio, 1, (1 + cos(M_PI * progress)) / 2));
}

/* ---- one cycle ---- */

static int64_t cycle_steps(const ts_lr_schedule *s) {
  return s->cycle_first_step_size + s->cycle_second_step_size;
}

/* Height in the cycle, 0 to 1, counted from the nearer foot: exact at the feet, the top and every stair. */
static double cycle_height(const ts_lr_schedule *s, int64_t i) {
  int64_t position = (i + 1) % cycle_steps(s);
  bool rising = position <= s->cycle_first_step_size;
  int64_t steps = rising ? s->cycle_first_step_size : s->cycle_second_step_size;
  int64_t stairs = rising ? s->cycle_first_stair_count : s->cycle_second_stair_count;
  int64_t done = rising ? position : cycle_steps(s) - position;
  if (stairs > 0) {
    return floor((double) done * (double) stairs / (double) steps) / (double) stairs;
  }
  return (double) done / (double) steps;
}

/* 1 + rate * intervals since the end of the cycle. */
static double cycle_decay(const ts_lr_schedule *s, double rate, int64_t i) {
  if (s->decay_step_size == 0) {
    return 1;
  }
  return 1 + rate * ((double) (i - cycle_steps(s) + 1) / (double) s->decay_step_size);
}

static double one_cycle_lr(const ts_lr_schedule *s, int64_t i) {
  if (i < cycle_steps(s)) {
    return between(s->cycle_min_lr, s->cycle_max_lr, cycle_height(s, i));
  }
  return s->cycle_min_lr / cycle_decay(s, s->decay_lr_rate, i);
}

static double one_cycle_momentum(const ts_lr_schedule *s, int64_t i) {
  if (!s->cycle_momentum) {
    return s->momentum;
  }
  if (i < 0) {
    return s->cycle_min_mom;
  }
  if (i < cycle_steps(s)) {
    return between(s->cycle_max_mom, s->cycle_min_mom, cycle_height(s, i));
  }
  double momentum = s->cycle_max_mom * cycle_decay(s, s->decay_mom_rate, i);
  return fmin(fmax(momentum, s->cycle_min_mom), s->cycle_max_mom);
}

static double optimizer_momentum(const ts_lr_schedule *s, int64_t i) {
  (void) i;
  return s->momentum;
}

/* ---- the table ---- */

typedef double formula(const ts_lr_schedule *, int64_t i);

static const struct {
  const char *name;
  formula *lr, *momentum;
} rows[TS_N_LR_SCHEDULES] = {
    [TS_LR_NONE] = {"none", none_lr, optimizer_momentum},
    [TS_LR_RANGE_TEST] = {"LRRangeTest", range_test_lr, optimizer_momentum},
    [TS_LR_WARMUP] = {"WarmupLR", warmup_lr, optimizer_momentum},
    [TS_LR_WARMUP_DECAY] = {"WarmupDecayLR", warmup_decay_lr, optimizer_momentum},
    [TS_LR_WARMUP_COSINE] = {"WarmupCosineLR", warmup_cosine_lr, optimizer_momentum},
    [TS_LR_ONE_CYCLE] = {"OneCycle", one_cycle_lr, one_cycle_momentum},
};

bool ts_lr_schedule_find(const char *name, ts_lr_schedule_type *type) {
  for (int t = 0; t < TS_N_LR_SCHEDULES; ++t) {
    if (strcmp(rows[t].name, name) == 0) {
      *type = (ts_lr_schedule_type) t;
      return true;
    }
  }
  return false;
}

double ts_lr_at(const ts_lr_schedule *schedule, int64_t step) {
  TS_ASSERT(schedule->type < TS_N_LR_SCHEDULES && step >= 0);
  return rows[schedule->type].lr(schedule, schedule->last_batch_iteration + step);
}

double ts_momentum_at(const ts_lr_schedule *schedule, int64_t step) {
  TS_ASSERT(schedule->type < TS_N_LR_SCHEDULES && step >= 0);
  return rows[schedule->type].momentum(schedule, schedule->last_batch_iteration + step);
}
