#include "base/heartbeat.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = TS_HEARTBEAT_NAME / 8 };

struct ts_heartbeat {
  _Alignas(128) _Atomic int64_t rank;
  _Atomic int64_t pid, step, micro_batch, phase;
  _Atomic uint64_t entered, finished;
  _Atomic int64_t changed, began, alive; /* nanoseconds of the node's monotonic clock */
  _Atomic uint64_t name[WORDS];          /* its bytes; the last one is always 0 */
};

static ts_heartbeat unread;
static ts_heartbeat *mine = &unread;

#define SET(field, value) atomic_store_explicit(&mine->field, (value), memory_order_relaxed)
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

void ts_heartbeat_use(ts_heartbeat *record, int rank) {
  mine = record != NULL ? record : &unread;
  SET(rank, rank);
  SET(step, 0);
  SET(micro_batch, 0);
  SET(entered, 0);
  SET(finished, 0);
  SET(name[0], 0);
  SET(began, now());
  SET(alive, now());
  SET(pid, getpid());
  ts_heartbeat_phase(TS_PHASE_STARTING);
}

const ts_heartbeat *ts_heartbeat_mine(void) {
  return mine;
}

void ts_heartbeat_phase(ts_phase phase) {
  SET(phase, phase);
  SET(changed, now());
}

void ts_heartbeat_step(int64_t step) {
  SET(micro_batch, 0);
  SET(step, step);
  SET(began, now());
  ts_heartbeat_phase(TS_PHASE_COMPUTING);
}

void ts_heartbeat_micro_batch(int64_t micro_batch) {
  SET(micro_batch, micro_batch);
  SET(changed, now());
}

void ts_heartbeat_enter(const char *name) {
  char bytes[TS_HEARTBEAT_NAME] = {0};
  uint64_t word[WORDS];
  strncpy(bytes, name, sizeof bytes - 1);
  memcpy(word, bytes, sizeof word);
  for (int i = 0; i < WORDS; ++i) {
    SET(name[i], word[i]);
  }
  SET(changed, now());
  atomic_store_explicit(&mine->entered, GET(mine, entered) + 1, memory_order_release);
}

void ts_heartbeat_leave(void) {
  SET(changed, now());
  atomic_store_explicit(&mine->finished, GET(mine, entered), memory_order_release);
}

void ts_heartbeat_live(void) {
  SET(alive, now());
}

/* Names come from decks: what would break a line of the status file is shown as something else. */
static void read_name(const ts_heartbeat *record, char *name) {
  uint64_t word[WORDS];
  for (int i = 0; i < WORDS; ++i) {
    word[i] = GET(record, name[i]);
  }
  memcpy(name, word, sizeof word);
  name[TS_HEARTBEAT_NAME - 1] = 0;
  for (char *c = name; *c != 0; ++c) {
    *c = *c > ' ' && *c < 127 ? *c : '_';
  }
  if (name[0] == 0) {
    strcpy(name, "-");
  }
}

static double seconds_since(int64_t then, int64_t when) {
  return when > then ? 1e-9 * (double) (when - then) : 0;
}

void ts_heartbeat_read(const ts_heartbeat *record, ts_beat *out) {
  *out = (ts_beat){.finished = atomic_load_explicit(&record->finished, memory_order_acquire)};
  out->entered = atomic_load_explicit(&record->entered, memory_order_acquire);
  read_name(record, out->name);
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
