#include "base/heartbeat.h"

#include "base/status.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = TS_HEARTBEAT_NAME / 8, INSTANCE_WORDS = TS_HEARTBEAT_INSTANCE / 8 };

struct ts_heartbeat {
  _Alignas(128) _Atomic int64_t rank;
  _Atomic int64_t pid, step, micro_batch, phase;
  _Atomic uint64_t entered, finished;
  _Atomic int64_t changed, began, alive; /* nanoseconds of the node's monotonic clock */
  _Atomic int n_groups, last;            /* last: the group of what was entered last */
  _Atomic uint64_t group[TS_HEARTBEAT_GROUPS], of_group[TS_HEARTBEAT_GROUPS]; /* collectives entered in each */
  _Atomic int64_t awaited;
  _Atomic uint64_t name[WORDS], instance[INSTANCE_WORDS]; /* bytes; the last one of each is always 0 */
};

#define SET(field, value) atomic_store_explicit(&record->field, (value), memory_order_relaxed)
#define GET(record, field) atomic_load_explicit(&(record)->field, memory_order_relaxed)

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

const char *ts_phase_name(int phase) {
  static const char *const names[] = {
#define X(name, text) text,
      TS_PHASES(X)
#undef X
  };
  return phase >= 0 && phase < TS_N_PHASES ? names[phase] : "?";
}

uint64_t ts_heartbeat_bytes(void) {
  return sizeof(ts_heartbeat);
}

void ts_heartbeat_begin(ts_heartbeat *record, int rank) {
  SET(rank, rank);
  SET(step, 0);
  SET(micro_batch, 0);
  SET(entered, 0);
  SET(finished, 0);
  SET(name[0], 0);
  SET(instance[0], 0);
  SET(awaited, 0);
  SET(n_groups, 0);
  SET(last, 0);
  ts_heartbeat_join(record, TS_HEARTBEAT_ALL);
  SET(began, now());
  SET(alive, now());
  SET(pid, getpid());
  ts_heartbeat_phase(record, TS_PHASE_STARTING);
}

void ts_heartbeat_phase(ts_heartbeat *record, ts_phase phase) {
  if (record != NULL) {
    SET(phase, phase);
    SET(changed, now());
  }
}

void ts_heartbeat_step(ts_heartbeat *record, int64_t step) {
  if (record != NULL) {
    SET(micro_batch, 0);
    SET(step, step);
    SET(began, now());
    ts_heartbeat_phase(record, TS_PHASE_COMPUTING);
  }
}

/* Of `n` words. */
static void set_text(_Atomic uint64_t *to, int n, const char *text) {
  char bytes[TS_HEARTBEAT_NAME] = {0};
  strncpy(bytes, text, (size_t) n * sizeof(uint64_t) - 1);
  for (int i = 0; i < n; ++i) {
    uint64_t word;
    memcpy(&word, bytes + (size_t) i * sizeof word, sizeof word);
    atomic_store_explicit(&to[i], word, memory_order_relaxed);
  }
}

void ts_heartbeat_instance(ts_heartbeat *record, const char *instance) {
  if (record != NULL) {
    set_text(record->instance, INSTANCE_WORDS, instance);
  }
}

void ts_heartbeat_micro_batch(ts_heartbeat *record, int64_t micro_batch) {
  if (record != NULL) {
    SET(micro_batch, micro_batch);
    SET(changed, now());
  }
}

/* Its place in the table.  Where nobody reads, anything may be counted in the last. */
static int place_of_group(ts_heartbeat *record, uint64_t group) {
  int n = GET(record, n_groups);
  for (int i = 0; i < n; ++i) {
    if (GET(record, group[i]) == group) {
      return i;
    }
  }
  if (n == TS_HEARTBEAT_GROUPS) {
    TS_CHECK(GET(record, pid) == 0, "a rank is in more than %d groups", TS_HEARTBEAT_GROUPS);
    return n - 1;
  }
  SET(group[n], group);
  SET(of_group[n], 0);
  atomic_store_explicit(&record->n_groups, n + 1, memory_order_release);
  return n;
}

void ts_heartbeat_join(ts_heartbeat *record, uint64_t group) {
  if (record != NULL) {
    place_of_group(record, group);
  }
}

/* Of which `collectives`, 1 or 0, count in the group. */
static void enter_group(ts_heartbeat *record, const char *name, uint64_t group, int collectives, int64_t awaited) {
  int at = place_of_group(record, group);
  set_text(record->name, WORDS, name);
  SET(awaited, awaited);
  SET(changed, now());
  SET(last, at);
  SET(of_group[at], GET(record, of_group[at]) + (uint64_t) collectives);
  atomic_store_explicit(&record->entered, GET(record, entered) + 1, memory_order_release);
}

void ts_heartbeat_enter(ts_heartbeat *record, const char *name, uint64_t group) {
  if (record != NULL) {
    enter_group(record, name, group, 1, 0);
  }
}

void ts_heartbeat_wait(ts_heartbeat *record, const char *name, uint64_t group) {
  if (record != NULL) {
    enter_group(record, name, group, 0, 0);
  }
}

void ts_heartbeat_wait_for(ts_heartbeat *record, const char *name, uint64_t group, int rank) {
  if (record != NULL) {
    enter_group(record, name, group, 0, 1 + rank);
  }
}

void ts_heartbeat_leave(ts_heartbeat *record) {
  if (record != NULL) {
    SET(changed, now());
    atomic_store_explicit(&record->finished, GET(record, entered), memory_order_release);
  }
}

void ts_heartbeat_live(ts_heartbeat *record) {
  SET(alive, now());
}

/* Names come from decks: what would break a line of the status file is shown as something else. */
static void read_text(const _Atomic uint64_t *from, int n, char *text) {
  for (int i = 0; i < n; ++i) {
    uint64_t word = atomic_load_explicit(&from[i], memory_order_relaxed);
    memcpy(text + (size_t) i * sizeof word, &word, sizeof word);
  }
  text[(size_t) n * sizeof(uint64_t) - 1] = 0;
  for (char *c = text; *c != 0; ++c) {
    *c = *c > ' ' && *c < 127 ? *c : '_';
  }
  if (text[0] == 0) {
    strcpy(text, "-");
  }
}

static ts_beat_group read_group(const ts_heartbeat *record, int i) {
  return (ts_beat_group){GET(record, group[i]), GET(record, of_group[i])};
}

static void read_groups(const ts_heartbeat *record, ts_beat *out) {
  int n = atomic_load_explicit(&record->n_groups, memory_order_acquire), last = GET(record, last);
  for (int i = 0; i < n; ++i) {
    out->group[i] = read_group(record, i == 0 ? last : i == last ? 0 : i);
  }
  bool all = n == 1 && out->group[0].group == TS_HEARTBEAT_ALL && out->group[0].entered == out->entered;
  out->n_groups = all ? 0 : n;
}

static double seconds_since(int64_t then, int64_t when) {
  return when > then ? 1e-9 * (double) (when - then) : 0;
}

void ts_heartbeat_read(const ts_heartbeat *record, ts_beat *out) {
  *out = (ts_beat){.finished = atomic_load_explicit(&record->finished, memory_order_acquire)};
  out->entered = atomic_load_explicit(&record->entered, memory_order_acquire);
  read_text(record->name, WORDS, out->name);
  read_text(record->instance, INSTANCE_WORDS, out->instance);
  out->awaited = GET(record, awaited);
  read_groups(record, out);
  out->rank = GET(record, rank);
  out->pid = GET(record, pid);
  out->step = GET(record, step);
  out->micro_batch = GET(record, micro_batch);
  out->phase = (int) GET(record, phase);
  int64_t when = now();
  out->since_change = seconds_since(GET(record, changed), when);
  out->since_step = seconds_since(GET(record, began), when);
  out->since_alive = seconds_since(GET(record, alive), when);
}
