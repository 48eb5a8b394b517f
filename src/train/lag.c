#include "train/lag.h"

#include "base/memory.h"
#include "comm/mesh.h"

#include <stdlib.h>
#include <string.h>

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

/* The groups it is in, the one of the collective entered last first; their number. */
static int list_groups(const ts_beat *b, ts_beat_group its[TS_HEARTBEAT_GROUPS]) {
  if (b->n_groups == 0) {
    its[0] = (ts_beat_group){.group = TS_HEARTBEAT_ALL, .entered = b->entered};
    return 1;
  }
  memcpy(its, b->group, (size_t) b->n_groups * sizeof *its);
  return b->n_groups;
}

/* Inside of a wait for a message from or to another stage of a pipeline. */
static bool waits_for_message(const ts_beat *b) {
  return is_inside(b) && b->awaited > 0;
}

/* "collective 1234 (NAME)", or "collective 1234 of tp group 0 (NAME)"; or "the wait for rank 1 (NAME)" */
static void add_collective(const ts_beat *b, ts_text *to) {
  char text[TS_MESH_GROUP_TEXT];
  ts_beat_group its[TS_HEARTBEAT_GROUPS];
  list_groups(b, its);
  if (b->awaited > 0) {
    ts_text_add(to, "the wait for rank %lld (%s)", (long long) b->awaited - 1, b->name);
    return;
  }
  ts_text_add(to, "collective %llu", (unsigned long long) its[0].entered);
  if (its[0].group != TS_HEARTBEAT_ALL) {
    ts_text_add(to, " of %s", ts_mesh_group_text(its[0].group, text));
  }
  ts_text_add(to, " (%s)", b->name);
}

static bool has_instance(const ts_beat *b) {
  return b->instance[0] != 0 && strcmp(b->instance, "-") != 0;
}

/* "step 17, forward/backward of micro-batch 1 (stage1:2F1) for 12.3 s; inside of collective 1234 (NAME)" */
static void add_place(const ts_beat *b, double age, ts_text *to) {
  ts_text_add(to, "step %lld, %s", (long long) b->step, ts_phase_name(b->phase));
  if (b->phase == TS_PHASE_COMPUTING) {
    ts_text_add(to, " of micro-batch %lld", (long long) b->micro_batch);
  }
  if (b->phase == TS_PHASE_COMPUTING && has_instance(b)) {
    ts_text_add(to, " (%s)", b->instance);
  }
  ts_text_add(to, " for %.1f s; %s ", b->since_change + age, is_inside(b) ? "inside of" : "the last it finished is");
  add_collective(b, to);
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

/* A rank in a group. */
typedef struct member {
  uint64_t group, entered;
  int index; /* of the rank, in the order of the files */
  const ts_beat *beat;
  bool waits; /* in a collective of this group, and can be seen to: is not one of those that hold the others up */
} member;

/* All ranks in all their groups: a group's members follow one another, those that are further first. */
typedef struct members {
  member *member; /* owned */
  int n, capacity, ranks;
} members;

static int by_group(const void *a, const void *b) {
  const member *x = a, *y = b;
  return x->group != y->group       ? (x->group > y->group ? 1 : -1)
         : x->entered != y->entered ? (x->entered < y->entered ? 1 : -1)
                                    : x->index - y->index;
}

static void add_rank(members *all, const ts_run_status *s, const ts_node_status *node, int k) {
  ts_beat_group its[TS_HEARTBEAT_GROUPS];
  const ts_beat *b = &node->beat[k];
  int n = list_groups(b, its);
  bool waits = is_inside(b) && b->awaited == 0 && node->age <= ts_lag_silence(s->job.period) && !is_frozen(s, node, k);
  for (int i = 0; i < n; ++i) {
    TS_GROW(all->member, all->n, all->capacity);
    all->member[all->n++] = (member){
        .group = its[i].group, .entered = its[i].entered, .index = all->ranks, .beat = b, .waits = waits && i == 0};
  }
  ++all->ranks;
}

static members list_members(const ts_run_status *s) {
  members all = {0};
  for (int i = 0; i < s->n_nodes; ++i) {
    for (int k = 0; k < s->node[i].n; ++k) {
      add_rank(&all, s, &s->node[i], k);
    }
  }
  if (all.n > 0) {
    qsort(all.member, (size_t) all.n, sizeof *all.member, by_group);
  }
  return all;
}

/* The members of a group: [begin, end) of all. */
typedef struct group {
  const member *begin, *end;
} group;

static bool next_group(const members *all, group *g) {
  const member *end = all->n > 0 ? all->member + all->n : NULL;
  g->begin = g->end != NULL ? g->end : all->member;
  for (g->end = g->begin; g->end < end && g->end->group == g->begin->group; ++g->end) {
  }
  return g->begin < g->end;
}

static uint64_t least_of(const group *g) {
  return g->end[-1].entered;
}

/* The first that waits, of the members from `from` on, in a collective after `least`; NULL for none. */
static const member *find_waiting(const group *g, const member *from, uint64_t least) {
  for (const member *m = from; m < g->end && m->entered > least; ++m) {
    if (m->waits) {
      return m;
    }
  }
  return NULL;
}

/* Somebody has waited for long in the collective entered last. */
static bool is_stuck(const group *g, double waited) {
  const member *m = find_waiting(g, g->begin, 0);
  return m != NULL && m->beat->since_change >= waited;
}

/* The ranks that wait in the same as `first`; the member after the last of them. */
static const member *add_together(const group *g, const member *first, const char *why, ts_text *to) {
  int64_t *rank = NULL;
  int n = 0, capacity = 0;
  const member *m = first;
  for (; m < g->end && m->entered == first->entered; ++m) {
    if (m->waits) {
      TS_GROW(rank, n, capacity);
      rank[n++] = m->beat->rank;
    }
  }
  ts_text_add(to, "  waiting: rank%s ", n > 1 ? "s" : "");
  ts_lag_add_ranks(rank, n, to);
  ts_text_add(to, " in ");
  add_collective(first->beat, to);
  ts_text_add(to, " for %.1f s%s\n", first->beat->since_change, why);
  ts_free(rank);
  return m;
}

/* All that wait, a line a collective: a rank that got what it needs of the one before is already in the next, where the
 * others still wait for the same culprit.  `least`: the last collective of those that were named. */
static void add_waiting(const group *g, uint64_t least, const char *why, int *lines, ts_text *to) {
  const member *m = find_waiting(g, g->begin, least);
  for (; m != NULL && *lines < MOST_LINES; ++*lines) {
    m = find_waiting(g, add_together(g, m, why, to), least);
  }
}

static void add_all_waiting(const members *all, double waited, ts_text *to) {
  group g = {0};
  for (int lines = 0; next_group(all, &g);) {
    if (is_stuck(&g, waited)) {
      add_waiting(&g, 0, "", &lines, to);
    }
  }
}

/* ---- who is behind ---- */

enum { IS_BEHIND = 1, WAITS_TOO = 2 };

/* A rank's beat and its place in the order of the files. */
typedef struct seat {
  const ts_beat *beat;
  int index;
} seat;

static int by_seat(const void *a, const void *b) {
  const seat *x = a, *y = b;
  return (x->beat->rank > y->beat->rank) - (x->beat->rank < y->beat->rank);
}

/* By rank; ts_free. */
static seat *list_seats(const ts_run_status *s, int ranks) {
  seat *seats = ts_calloc((size_t) ranks + 1, sizeof *seats);
  int n = 0;
  for (int i = 0; i < s->n_nodes; ++i) {
    for (int k = 0; k < s->node[i].n; ++k, ++n) {
      seats[n] = (seat){&s->node[i].beat[k], n};
    }
  }
  qsort(seats, (size_t) n, sizeof *seats, by_seat);
  return seats;
}

/* At the end of a chain of waits for messages is a rank that waits for none; NULL where the chain is a circle. */
static const seat *follow_waits(const seat *seats, int ranks, const seat *from) {
  const seat *at = from;
  for (int steps = 0; at != NULL && waits_for_message(at->beat); ++steps) {
    const ts_beat wanted = {.rank = at->beat->awaited - 1};
    const seat key = {&wanted, 0};
    at = steps < ranks ? bsearch(&key, seats, (size_t) ranks, sizeof *seats, by_seat) : NULL;
  }
  return at;
}

/* Stages of a pipeline: who waits for a message, and whom it has waited for long. */
static void judge_stages(const ts_run_status *s, int ranks, double waited, unsigned char *verdict) {
  seat *seats = list_seats(s, ranks);
  for (int i = 0; i < ranks; ++i) {
    if (waits_for_message(seats[i].beat)) {
      const seat *last = seats[i].beat->since_change >= waited ? follow_waits(seats, ranks, &seats[i]) : NULL;
      verdict[seats[i].index] |= WAITS_TOO;
      if (last != NULL) {
        verdict[last->index] |= IS_BEHIND;
      }
    }
  }
  ts_free(seats);
}

/* Per rank: whether it is one of the last of a group in which others have waited for long, or whose message they have,
 * and whether it waits itself for somebody who is behind it in another group, or for a message. */
static unsigned char *judge_ranks(const ts_run_status *s, const members *all, double waited) {
  unsigned char *verdict = ts_calloc((size_t) all->ranks + 1, 1);
  judge_stages(s, all->ranks, waited, verdict);
  for (group g = {0}; next_group(all, &g);) {
    uint64_t least = least_of(&g);
    bool holds_up = is_stuck(&g, waited) && find_waiting(&g, g.begin, least) != NULL;
    for (const member *m = g.begin; m < g.end; ++m) {
      verdict[m->index] |= holds_up && m->entered == least ? IS_BEHIND : 0;
      verdict[m->index] |= m->waits && m->entered > least ? WAITS_TOO : 0;
    }
  }
  return verdict;
}

/* Named are those that are behind and wait for nobody, else (each waits for another) all that are behind: afterwards
 * theirs is the verdict IS_BEHIND alone.  How many they are. */
static int choose_named(unsigned char *verdict, int ranks) {
  int found[4] = {0};
  for (int i = 0; i < ranks; ++i) {
    ++found[verdict[i]];
  }
  unsigned char wanted = found[IS_BEHIND] > 0 ? IS_BEHIND : IS_BEHIND | WAITS_TOO;
  for (int i = 0; i < ranks; ++i) {
    verdict[i] = verdict[i] == wanted ? IS_BEHIND : 0;
  }
  return found[wanted];
}

static void add_named(const ts_run_status *s, const unsigned char *verdict, ts_text *to) {
  int index = 0, lines = 0;
  for (int i = 0; i < s->n_nodes; ++i) {
    const ts_node_status *node = &s->node[i];
    for (int k = 0; k < node->n; ++k) {
      const ts_beat *b = &node->beat[k];
      if (verdict[index++] == IS_BEHIND && lines++ < MOST_LINES) {
        ts_text_add(to, "  rank %lld on %s is behind: ", (long long) b->rank, node->node);
        add_place(b, node->age, to);
        ts_text_add(to, "\n");
      }
    }
  }
}

/* Of those that were named, how many the others of this group wait for. */
static int count_named(const group *g, const unsigned char *verdict) {
  int n = 0;
  for (const member *m = g->end; m > g->begin && m[-1].entered == least_of(g); --m) {
    n += verdict[m[-1].index] == IS_BEHIND;
  }
  return n;
}

/* A line each: what for, and for whom. */
static void add_message_waits(const ts_run_status *s, double waited, ts_text *to) {
  int lines = 0;
  for (int i = 0; i < s->n_nodes; ++i) {
    for (int k = 0; k < s->node[i].n; ++k) {
      const ts_beat *b = &s->node[i].beat[k];
      if (waits_for_message(b) && b->since_change >= waited && lines++ < MOST_LINES) {
        ts_text_add(to, "  waiting: rank %lld%s%s for %s of rank %lld for %.1f s\n", (long long) b->rank,
                    has_instance(b) ? " in " : "", has_instance(b) ? b->instance : "", b->name,
                    (long long) b->awaited - 1, b->since_change);
      }
    }
  }
}

static int find_behind(const ts_run_status *s, const members *all, double waited, ts_text *to) {
  unsigned char *verdict = judge_ranks(s, all, waited);
  int found = choose_named(verdict, all->ranks), lines = 0;
  add_named(s, verdict, to);
  for (group g = {0}; found > 0 && next_group(all, &g);) {
    int named = count_named(&g, verdict);
    if (is_stuck(&g, waited)) {
      add_waiting(&g, least_of(&g),
                  named > 1   ? ", which they did not reach"
                  : named > 0 ? ", which it did not reach"
                              : "",
                  &lines, to);
    }
  }
  ts_free(verdict);
  return found;
}

ts_lag ts_lag_find(const ts_run_status *s, double waited, ts_text *to) {
  int silent = find_silent(s, to), frozen = find_frozen(s, to);
  members all = list_members(s);
  ts_lag lag = silent > 0 ? TS_LAG_SILENT_NODE : frozen > 0 ? TS_LAG_FROZEN_RANK : TS_LAG_NONE;
  if (lag != TS_LAG_NONE) {
    add_all_waiting(&all, waited, to);
  } else if (find_behind(s, &all, waited, to) > 0) {
    lag = TS_LAG_BEHIND;
  }
  add_message_waits(s, waited, to);
  ts_free(all.member);
  return lag;
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
