#include "train/comms_log.h"

#include "base/log.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "deck/comms_words.h"
#include "graph/op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 512 };
#define TRIMMED 0.1

static const struct {
  const char *word;
  int op; /* TS_N_OPS: none */
} words[] = {
#define X(word, op) {#word, TS_##op},
    TS_COMMS_WORDS(X)
#undef X
};

enum { WORDS = sizeof words / sizeof *words };

/* A node that was seen. */
typedef struct seen_node {
  const ts_node *node;
  double bytes;
  int64_t count;
  double total;
  double *kept; /* owned: seconds of every stride-th, in their order */
  int n_kept;
  int64_t stride;
  double *waited; /* owned: of each that is kept what this rank waited; NULL: not known */
} seen_node;

struct ts_comms_log {
  const ts_deck *deck;
  const ts_program *program;
  bool wanted[TS_N_OPS];
  int *place;      /* owned: of a node of the program among those seen; -1: not yet */
  seen_node *seen; /* owned; in the order of their first times, which ranks of a group have in common */
  int n, capacity;
  int64_t steps;
};

static int by_value_up(const void *a, const void *b) {
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

double ts_trimmed_mean(double *value, int n, double share) {
  int cut = (int) nearbyint(n * share);
  double sum = 0;
  if (n > 0) { /* qsort wants an array even of none */
    qsort(value, (size_t) n, sizeof *value, by_value_up);
  }
  for (int i = cut; i < n - cut; ++i) {
    sum += value[i];
  }
  return n > 2 * cut ? sum / (n - 2 * cut) : 0;
}

/* ---- the log ---- */

static const char *word_of(ts_op op) {
  int w = 0;
  while (w < WORDS - 1 && words[w].op != (int) op) {
    ++w;
  }
  return words[w].word;
}

static bool has_listed_word(const ts_strings *list, const char *word) {
  for (int i = 0; i < list->n; ++i) {
    if (strcmp(list->items[i], word) == 0) {
      return true;
    }
  }
  return false;
}

ts_comms_log *ts_comms_log_create(const ts_deck *deck, const ts_program *program) {
  ts_comms_log *log = ts_calloc(1, sizeof *log);
  log->deck = deck;
  log->program = program;
  log->place = ts_ids_none(program->graph->n_nodes);
  for (int w = 0; w < WORDS; ++w) {
    if (words[w].op < TS_N_OPS &&
        (deck->comms_logger.prof_all || has_listed_word(&deck->comms_logger.prof_ops, words[w].word))) {
      log->wanted[words[w].op] = true;
    }
  }
  return log;
}

void ts_comms_log_destroy(ts_comms_log **log) {
  ts_comms_log *l = *log;
  if (l == NULL) {
    return;
  }
  for (int i = 0; i < l->n; ++i) {
    ts_free(l->seen[i].kept);
    ts_free(l->seen[i].waited);
  }
  ts_free(l->seen);
  ts_free(l->place);
  ts_free(l);
  *log = NULL;
}

static seen_node *find_seen_node(ts_comms_log *log, const ts_node *node) {
  int *place = &log->place[node - log->program->graph->node];
  if (*place == TS_NONE) {
    TS_GROW(log->seen, log->n, log->capacity);
    *place = log->n;
    log->seen[log->n++] = (seen_node){.node = node,
                                      .bytes = ts_program_whole_bytes(log->program, node),
                                      .kept = ts_calloc(KEPT, sizeof(double)),
                                      .stride = 1};
  }
  return &log->seen[*place];
}

static void keep_seconds(seen_node *s, double seconds) {
  if (s->count % s->stride == 0) {
    if (s->n_kept == KEPT) {
      for (int i = 0; i < KEPT / 2; ++i) {
        s->kept[i] = s->kept[2 * i];
      }
      s->n_kept = KEPT / 2;
      s->stride *= 2;
    }
    if (s->count % s->stride == 0) {
      s->kept[s->n_kept++] = seconds;
    }
  }
  ++s->count;
  s->total += seconds;
}

/* The time of a message is what was waited for it, which may be nothing: no time that a rate could be made of. */
static bool has_rate(const ts_node *node) {
  return !ts_node_is_message(node);
}

static double bits_per_second(double bytes, double seconds) {
  return 8e-9 * bytes / fmax(seconds, 1e-9);
}

static void tell_message(const seen_node *s, int64_t step, double seconds) {
  char size[32];
  int ranks = ts_node_ranks(s->node);
  double tput = bits_per_second(s->bytes, seconds);
  char *rates = has_rate(s->node) ? ts_format("%.3f ms, tput %.2f Gbps, busbw %.2f Gbps", 1e3 * seconds, tput,
                                              tput * ts_bus_factor(s->node->op, ranks))
                                  : ts_format("waited %.3f ms", 1e3 * seconds);
  ts_log(TS_LOG_INFO, "  step %lld: %s (%s): %s, %d ranks, %s", (long long) step, word_of(s->node->op), s->node->name,
         ts_human_bytes(s->bytes, size), ranks, rates);
  ts_free(rates);
}

void ts_comms_log_step(ts_comms_log *log, const ts_observed_event *event, int n, int64_t told) {
  for (int i = 0; i < n; ++i) {
    const ts_node *node = event[i].node;
    if (log->wanted[node->op]) {
      seen_node *s = find_seen_node(log, node);
      keep_seconds(s, event[i].seconds);
      if (told > 0) {
        tell_message(s, told, event[i].seconds);
      }
    }
  }
  ++log->steps;
}

/* ---- who waited ---- */

static void compare_node(ts_comms_log *log, seen_node *s, ts_world *world, ts_comm *comm) {
  int64_t *cuts = ts_calloc((size_t) comm->size + 1, sizeof *cuts);
  double *all = ts_calloc((size_t) comm->size * (size_t) s->n_kept + 1, sizeof *all);
  for (int r = 0; r <= comm->size; ++r) {
    cuts[r] = (int64_t) r * s->n_kept;
  }
  ts_heartbeat_enter(ts_world_heartbeat(world), "comms_logger.gather",
                     ts_mesh_group_id(&log->program->mesh, s->node->attr.comm.axes));
  comm->ops->all_gather(comm, &(ts_transfer){.x = s->kept, .y = all, .cuts = cuts, .end = s->n_kept}, 1, TS_F64);
  ts_heartbeat_leave(ts_world_heartbeat(world));
  s->waited = ts_calloc((size_t) s->n_kept + 1, sizeof *s->waited);
  for (int i = 0; i < s->n_kept; ++i) {
    double least = s->kept[i];
    for (int r = 0; r < comm->size; ++r) {
      least = fmin(least, all[(size_t) r * (size_t) s->n_kept + (size_t) i]);
    }
    s->waited[i] = s->kept[i] - least;
  }
  ts_free(all);
  ts_free(cuts);
}

/* Group by group in the same order on all ranks, and of a group node by node in its order: a rank that has none of a
 * group's nodes is not in the group. */
void ts_comms_log_compare(ts_comms_log *log, ts_world *world) {
  for (unsigned axes = 1; axes < 2 * TS_AXES_SHARERS; ++axes) {
    for (int i = 0; i < log->n; ++i) {
      seen_node *s = &log->seen[i];
      if (ts_node_is_collective(s->node) && s->node->attr.comm.axes == axes) {
        compare_node(log, s, world, ts_world_comm(world, &log->program->mesh, axes));
      }
    }
  }
}

/* ---- the table ---- */

/* How rows are told apart. */
static int compare_kinds(const seen_node *a, const seen_node *b, bool by_node) {
  int x = ts_node_ranks(a->node), y = ts_node_ranks(b->node);
  int order = strcmp(word_of(a->node->op), word_of(b->node->op));
  order = order != 0 ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
  order = order != 0 ? order : (x > y) - (x < y);
  return order != 0 || !by_node ? order : strcmp(a->node->name, b->node->name);
}

static int by_message_kind(const void *a, const void *b) {
  return compare_kinds(*(seen_node *const *) a, *(seen_node *const *) b, true);
}

static void copy_kept(double *to, seen_node *const *seen, int n, bool waited) {
  for (int i = 0; i < n; ++i) {
    memcpy(to, waited ? seen[i]->waited : seen[i]->kept, (size_t) seen[i]->n_kept * sizeof *to);
    to += seen[i]->n_kept;
  }
}

static ts_comms_row make_comms_row(seen_node *const *seen, int n, bool by_node) {
  const ts_node *node = seen[0]->node;
  ts_comms_row row = {.operation = word_of(node->op),
                      .node = by_node ? node->name : NULL,
                      .bytes = seen[0]->bytes,
                      .ranks = ts_node_ranks(node)};
  int kept = 0;
  bool known = true;
  for (int i = 0; i < n; ++i) {
    row.count += seen[i]->count;
    row.total += seen[i]->total;
    kept += seen[i]->n_kept;
    known = known && seen[i]->waited != NULL;
  }
  double *value = ts_calloc((size_t) kept + 1, sizeof *value);
  copy_kept(value, seen, n, false);
  row.mean = ts_trimmed_mean(value, kept, TRIMMED);
  for (int i = 0; i < kept; ++i) {
    value[i] = bits_per_second(row.bytes, value[i]);
  }
  row.tput = has_rate(node) ? ts_trimmed_mean(value, kept, TRIMMED) : NAN;
  row.busbw = row.tput * ts_bus_factor(node->op, row.ranks);
  if (known) {
    copy_kept(value, seen, n, true);
  }
  row.straggler = known ? ts_trimmed_mean(value, kept, TRIMMED) : NAN;
  ts_free(value);
  return row;
}

ts_comms_row *ts_comms_log_rows(const ts_comms_log *log, int *n) {
  bool by_node = log->deck->comms_logger.debug;
  seen_node **sorted = ts_calloc((size_t) log->n + 1, sizeof *sorted);
  ts_comms_row *rows = ts_calloc((size_t) log->n + 1, sizeof *rows);
  for (int i = 0; i < log->n; ++i) {
    sorted[i] = &log->seen[i];
  }
  qsort(sorted, (size_t) log->n, sizeof(seen_node *), by_message_kind);
  *n = 0;
  for (int begin = 0, end; begin < log->n; begin = end) {
    for (end = begin + 1; end < log->n && compare_kinds(sorted[begin], sorted[end], by_node) == 0;) {
      ++end;
    }
    rows[(*n)++] = make_comms_row(&sorted[begin], end - begin, by_node);
  }
  ts_free(sorted);
  return rows;
}

/* A name of a program's own may have anything in it. */
static void add_plain_name(ts_text *to, const char *name) {
  for (const char *c = name; *c != 0; ++c) {
    ts_text_append(to, strchr(",\"\n\r", *c) != NULL ? "_" : c, 1);
  }
}

static void write_comms_rows(const ts_comms_row *row, int n, const char *path) {
  ts_text text = {0};
  ts_text_add(&text, "operation,node,bytes,ranks,count,total_ms,mean_ms,tput_gbps,busbw_gbps,straggler_ms\n");
  for (int i = 0; i < n; ++i) {
    const ts_comms_row *r = &row[i];
    ts_text_add(&text, "%s,", r->operation);
    add_plain_name(&text, r->node != NULL ? r->node : "");
    ts_text_add(&text, ",%.0f,%d,%lld,%.6g,%.6g,%.6g,%.6g,%.6g\n", r->bytes, r->ranks, (long long) r->count,
                1e3 * r->total, 1e3 * r->mean, ts_shown(r->tput), ts_shown(r->busbw), 1e3 * ts_shown(r->straggler));
  }
  ts_error err = {0};
  if (ts_write_file(path, text.text, text.length, &err) != TS_OK) {
    ts_log(TS_LOG_WARNING, "%s", err.text);
  }
  ts_error_clear(&err);
  ts_text_free(&text);
}

/* "-" for what is not known. */
static const char *known_number(double value, int digits, char out[32]) {
  snprintf(out, 32, "%.*f", digits, value);
  return isnan(value) ? "-" : out;
}

void ts_comms_log_print(const ts_comms_log *log, const char *path) {
  int n;
  ts_comms_row *row = ts_comms_log_rows(log, &n);
  ts_log(TS_LOG_INFO, "communication of %lld step%s, as rank %d saw it (ms; Gbps)", (long long) log->steps,
         log->steps == 1 ? "" : "s", log->program->mesh.rank);
  ts_log(TS_LOG_INFO, "  %-24s %11s %6s %8s %11s %9s %9s %9s %9s", "operation", "size", "ranks", "count", "total",
         "mean", "tput", "busbw", "straggler");
  for (int i = 0; i < n; ++i) {
    const ts_comms_row *r = &row[i];
    char size[32], tput[32], busbw[32], waited[32];
    ts_log(TS_LOG_INFO, "  %-24s %11s %6d %8lld %11.2f %9.3f %9s %9s %9s%s%s", r->operation,
           ts_human_bytes(r->bytes, size), r->ranks, (long long) r->count, 1e3 * r->total, 1e3 * r->mean,
           known_number(r->tput, 2, tput), known_number(r->busbw, 2, busbw),
           known_number(1e3 * r->straggler, 3, waited), r->node != NULL ? "  " : "", r->node != NULL ? r->node : "");
  }
  write_comms_rows(row, n, path);
  ts_free(row);
}
