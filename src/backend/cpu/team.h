/** \file
 * Units of work shared by the threads of a parallel region.  Each thread has a stretch of its own, which it does in
 * order, so that what neighbours have in common stays in its caches; one that is done takes what others have not begun,
 * from the end of theirs.  So nobody waits for a thread that somebody else's work, or a slower core, holds up by more
 * than a unit.  Which thread does a unit is open: no result may depend on it.
 */
#ifndef TS_BACKEND_CPU_TEAM_H
#define TS_BACKEND_CPU_TEAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/** Stretches; more threads than that have one together. */
enum { TS_TEAM_STRETCHES = 64 };

typedef struct ts_team {
  struct {
    _Alignas(64) atomic_uint_least64_t left; /* the first in the upper half, the end in the lower */
  } stretch[TS_TEAM_STRETCHES];
  int n;
} ts_team;

/** Give out units [0, n), n below 2^32, to as many threads.  In front of the region, or by one thread before a barrier.
 * Not collective. */
static inline void ts_team_begin(ts_team *s, int64_t n, int threads) {
  s->n = threads < TS_TEAM_STRETCHES ? threads : TS_TEAM_STRETCHES;
  for (int i = 0; i < s->n; ++i) {
    uint64_t first = (uint64_t) (n * i / s->n), end = (uint64_t) (n * (i + 1) / s->n);
    atomic_init(&s->stretch[i].left, first << 32 | end);
  }
}

/** Take the first of a stretch, or the last; -1: none is left.  Not collective. */
static inline int64_t ts_team_take(ts_team *s, int i, bool last) {
  uint64_t left = atomic_load_explicit(&s->stretch[i].left, memory_order_relaxed), first, end, then;
  do {
    first = left >> 32;
    end = left & UINT32_MAX;
    then = last ? left - 1 : left + ((uint64_t) 1 << 32);
  } while (first < end && !atomic_compare_exchange_weak_explicit(&s->stretch[i].left, &left, then, memory_order_relaxed,
                                                                 memory_order_relaxed));
  return first == end ? -1 : (int64_t) (last ? end - 1 : first);
}

/** The next unit for thread number \a thread; -1: all are done or begun.  Not collective. */
static inline int64_t ts_team_next(ts_team *s, int thread) {
  int own = thread % s->n;
  int64_t unit = ts_team_take(s, own, false);
  for (int i = 1; unit < 0 && i < s->n; ++i) {
    unit = ts_team_take(s, (own + i) % s->n, true);
  }
  return unit;
}

#endif
