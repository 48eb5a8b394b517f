/* The text of the status files: lines "key value", and for a node a table of its ranks. */
#include "base/memory.h"
#include "train/status_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define JOB_MAGIC "tessera job 1"
#define NODE_MAGIC "tessera node 4"
enum { HEADER_BYTES = 512, RANK_BYTES = 296, GROUP_BYTES = 40, MOST_RANKS = 1 << 16, RANK_WORDS = 14 };

/* ---- words and numbers of a text that is not trusted ---- */

/* What is left of a text, a line at a time. */
typedef struct lines {
  char *next; /* NULL at the end */
} lines;

static char *next_line(lines *l) {
  char *line = l->next;
  if (line != NULL) {
    char *end = strchr(line, '\n');
    l->next = end != NULL ? end + 1 : NULL;
    if (end != NULL) {
      *end = 0;
    }
  }
  return line;
}

/* The value of the next line, which must have this key; NULL otherwise. */
static char *next_value(lines *l, const char *key) {
  char *line = next_line(l);
  size_t n = strlen(key);
  return line != NULL && strncmp(line, key, n) == 0 && line[n] == ' ' ? line + n + 1 : NULL;
}

static bool to_word(const char *text, char *word, size_t size) {
  if (text == NULL || text[0] == 0 || strlen(text) >= size) {
    return false;
  }
  for (const char *c = text; *c != 0; ++c) {
    if (*c < ' ' || *c > '~') {
      return false;
    }
  }
  strcpy(word, text);
  return true;
}

static bool to_integer(const char *text, int64_t *value) {
  char *end;
  if (text == NULL || text[0] < '0' || text[0] > '9') {
    return false;
  }
  errno = 0;
  *value = strtoll(text, &end, 10);
  return errno == 0 && *end == 0;
}

static bool to_count(const char *text, uint64_t *value) {
  int64_t number;
  bool ok = to_integer(text, &number);
  *value = ok ? (uint64_t) number : 0;
  return ok;
}

/* A finite number that is not negative; times and rates. */
static bool to_scale(const char *text, double *value) {
  char *end;
  if (text == NULL || text[0] < '0' || text[0] > '9') {
    return false;
  }
  *value = strtod(text, &end);
  return *end == 0 && isfinite(*value);
}

static bool to_real(const char *text, double *value) {
  return to_scale(text, value) && *value < 1e15;
}

/* A copy to cut up, when the text has no zero bytes. */
static char *copy_text(const char *text, size_t length) {
  if (memchr(text, 0, length) != NULL) {
    return NULL;
  }
  char *copy = ts_malloc(length + 1);
  memcpy(copy, text, length);
  copy[length] = 0;
  return copy;
}

/* ---- the job ---- */

void ts_status_print_job(const ts_job_status *j, ts_text *to) {
  ts_text_add(to,
              JOB_MAGIC
              "\nid %s\nstate %s\njob %s\nlauncher %s\nrestart %lld\nranks %lld\nnodes %lld\nstep %lld\nsteps %lld\n",
              j->id, j->state, j->job, j->launcher, (long long) j->restart, (long long) j->ranks, (long long) j->nodes,
              (long long) j->step, (long long) j->steps);
  ts_text_add(to, "began %.3f\nended %.3f\nperiod %.3f\nreason %s\n", j->began, j->ended, j->period,
              j->reason[0] != 0 ? j->reason : "-");
}

static bool parse_job(lines *l, ts_job_status *j) {
  char *magic = next_line(l);
  bool ok = magic != NULL && strcmp(magic, JOB_MAGIC) == 0;
  ok = ok && to_word(next_value(l, "id"), j->id, sizeof j->id);
  ok = ok && to_word(next_value(l, "state"), j->state, sizeof j->state);
  ok = ok && to_word(next_value(l, "job"), j->job, sizeof j->job);
  ok = ok && to_word(next_value(l, "launcher"), j->launcher, sizeof j->launcher);
  ok = ok && to_integer(next_value(l, "restart"), &j->restart);
  ok = ok && to_integer(next_value(l, "ranks"), &j->ranks);
  ok = ok && to_integer(next_value(l, "nodes"), &j->nodes);
  ok = ok && to_integer(next_value(l, "step"), &j->step);
  ok = ok && to_integer(next_value(l, "steps"), &j->steps);
  ok = ok && to_real(next_value(l, "began"), &j->began);
  ok = ok && to_real(next_value(l, "ended"), &j->ended);
  ok = ok && to_real(next_value(l, "period"), &j->period);
  ok = ok && to_word(next_value(l, "reason"), j->reason, sizeof j->reason);
  return ok && next_line(l) != NULL; /* the last line is whole */
}

ts_status ts_status_parse_job(const char *text, size_t length, ts_job_status *job) {
  static const char *const states[] = {"running", "finished", "stopped", "failed"};
  *job = (ts_job_status){0};
  char *copy = copy_text(text, length);
  lines l = {copy};
  bool ok = parse_job(&l, job), known = false;
  for (size_t i = 0; i < sizeof states / sizeof states[0]; ++i) {
    known = known || strcmp(job->state, states[i]) == 0;
  }
  if (strcmp(job->reason, "-") == 0) {
    job->reason[0] = 0;
  }
  ts_free(copy);
  return ok && known ? TS_OK : TS_BAD_INPUT;
}

/* ---- a node ---- */

size_t ts_status_node_bytes(int n) {
  return HEADER_BYTES + (RANK_BYTES + GROUP_BYTES * TS_HEARTBEAT_GROUPS) * (size_t) n;
}

#define COLUMNS                                                                                                 \
  "  rank     pid       step micro            phase   entered  finished    change      step     alive process " \
  "collective instance awaited (group:entered)\n"

void ts_status_print_node(const ts_node_status *node, size_t bytes, ts_text *to) {
  size_t begin = to->length;
  ts_text_add(to, NODE_MAGIC "\nnumber %llu\nid %s\nnode %s\nstep_seconds %.6f\ntokens_per_second %.3f\n",
              (unsigned long long) node->number, node->id, node->node, node->step_seconds, node->tokens_per_second);
  ts_text_add(to, "skipped %lld\nloss_scale %.9g\n", (long long) node->skipped, node->loss_scale);
  ts_text_add(to, "dead_experts %lld\ndead_layer %lld\ndead_expert %lld\nranks %d\n" COLUMNS,
              (long long) node->dead_experts, (long long) node->dead_layer, (long long) node->dead_expert, node->n);
  for (int i = 0; i < node->n; ++i) {
    const ts_beat *b = &node->beat[i];
    ts_text_add(to, "%6lld %7lld %10lld %5lld %16s %9llu %9llu %9.3f %9.3f %9.3f %7c %s %s %lld", (long long) b->rank,
                (long long) b->pid, (long long) b->step, (long long) b->micro_batch, ts_phase_name(b->phase),
                (unsigned long long) b->entered, (unsigned long long) b->finished, b->since_change, b->since_step,
                b->since_alive, node->process[i], b->name, b->instance[0] != 0 ? b->instance : "-",
                (long long) b->awaited);
    for (int k = 0; k < b->n_groups; ++k) {
      ts_text_add(to, " %llu:%llu", (unsigned long long) b->group[k].group, (unsigned long long) b->group[k].entered);
    }
    ts_text_append(to, "\n", 1);
  }
  ts_text_add(to, "end %llu\n", (unsigned long long) node->number);
  while (to->length - begin < bytes) {
    ts_text_append(to, "\n", 1);
  }
}

static bool to_phase(const char *text, int *phase) {
  for (*phase = 0; text != NULL && *phase < TS_N_PHASES; ++*phase) {
    if (strcmp(text, ts_phase_name(*phase)) == 0) {
      return true;
    }
  }
  return false;
}

/* "GROUP:ENTERED", once per group. */
static bool parse_group(char *word, ts_beat *b) {
  ts_beat_group *added = &b->group[b->n_groups];
  char *colon = strchr(word, ':');
  if (colon == NULL || b->n_groups == TS_HEARTBEAT_GROUPS) {
    return false;
  }
  *colon = 0;
  if (!to_count(word, &added->group) || !to_count(colon + 1, &added->entered)) {
    return false;
  }
  for (int i = 0; i < b->n_groups; ++i) {
    if (b->group[i].group == added->group) {
      return false;
    }
  }
  ++b->n_groups;
  return true;
}

static bool parse_beat(char *line, ts_beat *b, char *process) {
  char *at, *word[RANK_WORDS] = {NULL}, *w = line != NULL ? strtok_r(line, " ", &at) : NULL;
  int n = 0;
  for (; w != NULL && n < RANK_WORDS; w = strtok_r(NULL, " ", &at)) {
    word[n++] = w;
  }
  bool ok = n == RANK_WORDS && to_integer(word[0], &b->rank) && to_integer(word[1], &b->pid) &&
            to_integer(word[2], &b->step) && to_integer(word[3], &b->micro_batch) && to_phase(word[4], &b->phase) &&
            to_count(word[5], &b->entered) && to_count(word[6], &b->finished) && to_real(word[7], &b->since_change) &&
            to_real(word[8], &b->since_step) && to_real(word[9], &b->since_alive) && strlen(word[10]) == 1 &&
            to_word(word[11], b->name, sizeof b->name) && to_word(word[12], b->instance, sizeof b->instance) &&
            to_integer(word[13], &b->awaited);
  for (; ok && w != NULL; w = strtok_r(NULL, " ", &at)) {
    ok = parse_group(w, b);
  }
  *process = ok ? word[10][0] : '?';
  return ok && strchr("RSDTZX?", *process) != NULL;
}

static bool parse_node(lines *l, ts_node_status *node, size_t length) {
  int64_t n = 0;
  uint64_t end = 0;
  char *magic = next_line(l);
  bool ok = magic != NULL && strcmp(magic, NODE_MAGIC) == 0;
  ok = ok && to_count(next_value(l, "number"), &node->number);
  ok = ok && to_word(next_value(l, "id"), node->id, sizeof node->id);
  ok = ok && to_word(next_value(l, "node"), node->node, sizeof node->node);
  ok = ok && to_real(next_value(l, "step_seconds"), &node->step_seconds);
  ok = ok && to_real(next_value(l, "tokens_per_second"), &node->tokens_per_second);
  ok = ok && to_integer(next_value(l, "skipped"), &node->skipped);
  ok = ok && to_scale(next_value(l, "loss_scale"), &node->loss_scale);
  ok = ok && to_integer(next_value(l, "dead_experts"), &node->dead_experts);
  ok = ok && to_integer(next_value(l, "dead_layer"), &node->dead_layer);
  ok = ok && to_integer(next_value(l, "dead_expert"), &node->dead_expert);
  ok = ok && to_integer(next_value(l, "ranks"), &n) && n > 0 && n <= MOST_RANKS && (size_t) n < length;
  ok = ok && next_line(l) != NULL;
  if (!ok) {
    return false;
  }
  node->beat = ts_calloc((size_t) n, sizeof *node->beat);
  node->process = ts_calloc((size_t) n, 1);
  for (node->n = 0; ok && node->n < n; ++node->n) {
    ok = parse_beat(next_line(l), &node->beat[node->n], &node->process[node->n]);
    ok = ok && (node->n == 0 || node->beat[node->n].rank > node->beat[node->n - 1].rank);
  }
  return ok && to_count(next_value(l, "end"), &end) && end == node->number && l->next != NULL;
}

ts_status ts_status_parse_node(const char *text, size_t length, ts_node_status *node) {
  *node = (ts_node_status){0};
  char *copy = copy_text(text, length);
  lines l = {copy};
  bool ok = parse_node(&l, node, length);
  ts_free(copy);
  return ok ? TS_OK : TS_BAD_INPUT;
}

void ts_node_status_clear(ts_node_status *node) {
  ts_free(node->beat);
  ts_free(node->process);
  *node = (ts_node_status){0};
}
