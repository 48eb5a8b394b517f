#include "engine/timeouts.h"

#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "engine/peak.h"

#include <math.h>

#define TIMES 4
#define SLOW 1e9 /* FLOP/s that every machine has: where it is enough for the limits, nothing is measured */

double ts_timeouts_needed(double flops, double rate) {
  return TIMES * flops / rate;
}

static double at_least(const ts_deck *deck, const char *key, double seconds, double needed) {
  return ts_deck_is_set(deck, key) ? seconds : fmax(seconds, needed);
}

ts_timeouts ts_timeouts_of(const ts_deck *deck, double needed) {
  const ts_deck_run *run = &deck->run;
  return (ts_timeouts){.step = at_least(deck, "run.step_timeout", run->step_timeout, needed),
                       .first_step = at_least(deck, "run.first_step_timeout", run->first_step_timeout, needed),
                       .peer = at_least(deck, "run.peer_timeout", run->peer_timeout, needed)};
}

/* ---- of an engine ---- */

/* The names of the limits that are longer than the deck says, owned by the caller; NULL: none is. */
static char *name_longer(const ts_deck *deck, const ts_timeouts *t) {
  const struct {
    const char *key;
    double deck, now;
  } rows[] = {{"run.step_timeout", deck->run.step_timeout, t->step},
              {"run.first_step_timeout", deck->run.first_step_timeout, t->first_step},
              {"run.peer_timeout", deck->run.peer_timeout, t->peer}};
  ts_text names = {0};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (rows[i].now > rows[i].deck) {
      ts_text_add(&names, "%s%s", names.length > 0 ? ", " : "", rows[i].key);
    }
  }
  return names.text;
}

/* Of a rank, of the program that has most.  Without a device only training is watched. */
static double most_flops(const ts_engine *e) {
  double most = 0;
  for (int i = 0; i < TS_N_PROGRAMS; ++i) {
    if (e->program[i] != NULL && (i == TS_PROGRAM_TRAIN || ts_backend_device(e->backend) != NULL)) {
      most = fmax(most, ts_program_step_flops(e->program[i]) / ts_world_size(e->world));
    }
  }
  return most;
}

/* Measured by all ranks at the same time: they may share processors. */
static double slowest_rate(const ts_engine *e) {
  enum { LARGE = 4096 };
  const ts_dtype dtype = ts_deck_products(e->deck);
  const int threads = ts_engine_program(e)->target.threads;
  double mine = ts_backend_device(e->backend) != NULL
                    ? ts_product_flops(e->backend, &(ts_product_shape){LARGE, LARGE, LARGE, false, false}, dtype,
                                       threads, 0.1, false)
                    : ts_peak_flops(threads, dtype);
  double *all = ts_world_gather(e->world, &mine, sizeof mine), least = mine;
  for (int rank = 0; rank < ts_world_size(e->world); ++rank) {
    least = fmin(least, all[rank]);
  }
  ts_free(all);
  return least;
}

ts_timeouts ts_engine_find_timeouts(const ts_engine *e) {
  double flops = most_flops(e);
  ts_timeouts timeouts = ts_timeouts_of(e->deck, ts_timeouts_needed(flops, SLOW));
  char *names = name_longer(e->deck, &timeouts);
  if (names != NULL) {
    ts_free(names);
    double rate = slowest_rate(e), needed = ts_timeouts_needed(flops, rate);
    timeouts = ts_timeouts_of(e->deck, needed);
    names = name_longer(e->deck, &timeouts);
    if (names != NULL) {
      ts_log(TS_LOG_INFO, "a step has %.2g FLOPs a rank, at %.2g FLOP/s of products: %s = %.0f s, %d times that", flops,
             rate, names, needed, TIMES);
    }
  }
  ts_free(names);
  return timeouts;
}
