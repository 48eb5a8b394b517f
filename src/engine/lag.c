#include "engine/lag.h"

#include "base/memory.h"

enum { MOST_LINES = 16 };

double ts_lag_silence(double period) {
  return 3 * period + 1;
}

double ts_lag_tick(double period) {
  return period / 4 < 1 ? period / 4 : 1;
}

double ts_lag_frozen(double period) {
  return 4 * ts_lag_tick(period) + 1;
}

void ts_lag_add_ranks(const int64_t *rank, int n, ts_text *to) {
  for (int first = 0, last; first < n; first = last + 1) {
    for (last = first; last + 1 < n && rank[last + 1] == rank[last] + 1; ++last) {
    }
    ts_text_add(to, first > 0 ? ", %lld" : "%lld", (long long) rank[first]);
    if (last > first) {
      ts_text_add(to, "-%lld", (long long) rank[last]);
    }
  }
}

/* ---- one rank ---- */

static bool is_inside(const ts_beat *b) {
  return b->entered > b->finished;
}

/* "step 17, forward/backward of micro-batch 1 for 12.3 s; in collective 1234 (NAME)" */
static void add_place(const ts_beat *b, double age, ts_text *to) {
  ts_text_add(to, "step %lld, %s", (long long) b->step, ts_phase_name(b->phase));
  if (b->phase == TS_PHASE_COMPUTING) {
    ts_text_add(to, " of micro-batch %lld", (long long) b->micro_batch);
  }
  ts_text_add(to, " for %.1f s; %s collective %llu (%s)", b->since_change + age,
              is_inside(b) ? "inside of" : "the last it finished is", (unsigned long long) b->entered, b->name);
}

static const char *process_text(char state) {
  return state == 'T'   ? "its process is stopped"
         : state == 'Z' ? "its process is dead"
         : state == 'X' ? "its process is gone"
         : state == 'D' ? "its process waits for a disk or a file system"
                        : "its process gives no sign of life";
}

/* ---- 1. nodes ---- */

static int find_silent(const ts_run_status *s, ts_text *to) {
  int found = 0;
  for (int i = 0; i < s->n_nodes; ++i) {
    const ts_node_status *node = &s->node[i];
    if (node->age > ts_lag_silence(s->job.period) && found++ < MOST_LINES) {
      const ts_beat *b = &node->beat[0];
      ts_text_add(to, "  no heartbeat of node %s for %.1f s: rank%s %lld", node->node, node->age,
                  node->n > 1 ? "s" : "", (long long) b->rank);
      if (node->n > 1) {
        ts_text_add(to, "-%lld", (long long) node->beat[node->n - 1].rank);
      }
      ts_text_add(to, "; last seen: ");
      add_place(b, node->age, to);
      ts_text_add(to, "\n");
    }
  }
  return found;
}

/* ---- 2. processes ---- */

static bool is_frozen(const ts_run_status *s, const ts_node_status *node, int i) {
  return node->beat[i].pid > 0 && node->beat[i].since_alive > ts_lag_frozen(s->job.period);
}

static int find_frozen(const ts_run_status *s, ts_text *to) {
  int found = 0;
  for (int i = 0; i < s->n_nodes; ++i) {
    const ts_node_status *node = &s->node[i];
    for (int k = 0; k < node->n; ++k) {
      const ts_beat *b = &node->beat[k];
      if (is_frozen(s, node, k) && found++ < MOST_LINES) {
        ts_text_add(to, "  rank %lld on %s does not run for %.1f s: %s (%lld); ", (long long) b->rank, node->node,
                    b->since_alive + node->age, process_text(node->process[k]), (long long) b->pid);
        add_place(b, node->age, to);
        ts_text_add(to, "\n");
      }
    }
  }
  return found;
}

/* ---- 3. collectives ---- */

static uint64_t find_least(const ts_run_status *s) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < s->n_nodes; ++i) {
    for (int k = 0; k < s->node[i].n; ++k) {
      least = s->node[i].beat[k].entered < least ? s->node[i].beat[k].entered : least;
    }
  }
  return least;
}

/* Somebody who can be seen to wait: not one of those that hold the others up. */
static bool waits(const ts_run_status *s, const ts_node_status *node, int i) {
  return is_inside(&node->beat[i]) && node->age <= ts_lag_silence(s->job.period) && !is_frozen(s, node, i);
}

/* The one that waits in the collective entered last, of those before collective `below`. */
static const ts_beat *find_waiting(const ts_run_status *s, uint64_t below) {
  const ts_beat *last = NULL;
  for (int i = 0; i < s->n_nodes; ++i) {
    for (int k = 0; k < s->node[i].n; ++k) {
      const ts_beat *b = &s->node[i].beat[k];
      if (waits(s, &s->node[i], k) && b->entered < below && (last == NULL || b->entered > last->entered)) {
        last = b;
      }
    }
  }
  return last;
}

/* The ranks that wait in the same. */
static void add_together(const ts_run_status *s, const ts_beat *waiting, const char *why, ts_text *to) {
  int64_t *rank = NULL;
  int n = 0, capacity = 0;
  for (int i = 0; i < s->n_nodes; ++i) {
    for (int k = 0; k < s->node[i].n; ++k) {
      const ts_beat *b = &s->node[i].beat[k];
      if (waits(s, &s->node[i], k) && b->entered == waiting->entered) {
        TS_GROW(rank, n, capacity);
        rank[n++] = b->rank;
      }
    }
  }
  ts_text_add(to, "  waiting: rank%s ", n > 1 ? "s" : "");
  ts_lag_add_ranks(rank, n, to);
  ts_text_add(to, " in collective %llu (%s) for %.1f s%s\n", (unsigned long long) waiting->entered, waiting->name,
              waiting->since_change, why);
  ts_free(rank);
}

/* All that wait, a line a collective: a rank that got what it needs of the one before is already in the next, where the
 * others still wait for the same culprit.  `least`: the last collective of those that were named. */
static void add_waiting(const ts_run_status *s, uint64_t least, const char *why, ts_text *to) {
  const ts_beat *b = find_waiting(s, UINT64_MAX);
  for (int lines = 0; b != NULL && b->entered > least && lines < MOST_LINES; ++lines) {
    add_together(s, b, why, to);
    b = find_waiting(s, b->entered);
  }
}

static int find_behind(const ts_run_status *s, ts_text *to) {
  uint64_t least = find_least(s);
  int found = 0;
  if (least >= find_waiting(s, UINT64_MAX)->entered) {
    return 0;
  }
  for (int i = 0; i < s->n_nodes; ++i) {
    const ts_node_status *node = &s->node[i];
    for (int k = 0; k < node->n; ++k) {
      const ts_beat *b = &node->beat[k];
      if (b->entered == least && found++ < MOST_LINES) {
        ts_text_add(to, "  rank %lld on %s is behind: ", (long long) b->rank, node->node);
        add_place(b, node->age, to);
        ts_text_add(to, "\n");
      }
    }
  }
  add_waiting(s, least, found > 1 ? ", which they did not reach" : ", which it did not reach", to);
  return found;
}

ts_lag ts_lag_find(const ts_run_status *s, double waited, ts_text *to) {
  int silent = find_silent(s, to), frozen = find_frozen(s, to);
  const ts_beat *waiting = find_waiting(s, UINT64_MAX);
  bool long_enough = waiting != NULL && waiting->since_change >= waited;
  if (silent + frozen > 0) {
    if (long_enough) {
      add_waiting(s, 0, "", to);
    }
    return silent > 0 ? TS_LAG_SILENT_NODE : TS_LAG_FROZEN_RANK;
  }
  return long_enough && find_behind(s, to) > 0 ? TS_LAG_BEHIND : TS_LAG_NONE;
}

void ts_lag_add_all(const ts_run_status *s, ts_text *to) {
  int n = 0;
  for (int i = 0; i < s->n_nodes; ++i) {
    const ts_node_status *node = &s->node[i];
    for (int k = 0; k < node->n && n < MOST_LINES; ++k, ++n) {
      ts_text_add(to, "  rank %lld on %s: ", (long long) node->beat[k].rank, node->node);
      add_place(&node->beat[k], node->age, to);
      ts_text_add(to, "\n");
    }
  }
}
