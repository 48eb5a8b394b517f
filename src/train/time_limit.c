#include "train/time_limit.h"

#define FIRST_SAVE_SECONDS 1.0
#define FIRST_SAVE_RATE 200e6 /* bytes a second of all ranks together: a slow disk */

double ts_time_limit_first_save(int64_t bytes) {
  return FIRST_SAVE_SECONDS + (double) bytes / FIRST_SAVE_RATE;
}

void ts_time_limit_step(ts_time_limit *limit, double seconds) {
  limit->step[limit->n_steps++ % TS_TIME_LIMIT_STEPS] = seconds;
}

double ts_time_limit_last_save(const ts_time_limit *limit) {
  return 2 * limit->save + limit->margin;
}

double ts_time_limit_needed(const ts_time_limit *limit) {
  double slowest = 0;
  for (int i = 0; i < TS_TIME_LIMIT_STEPS; ++i) {
    slowest = limit->step[i] > slowest ? limit->step[i] : slowest;
  }
  return ts_time_limit_last_save(limit) + 2 * slowest + limit->validation;
}
