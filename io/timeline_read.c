#include "io/timeline_read.h"

#include "base/memory.h"
#include "base/text.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_OPS = 1000, MOST_LINE = 1 << 16 };
#define MOST_BYTES ((size_t) 1 << 31)

typedef struct reader {
  ts_trace *trace;
  int64_t capacity;
  int ops_capacity;
} reader;

/* Number of a kind's name; -1: there are too many. */
static int number_of_op(reader *r, const char *name) {
  ts_trace *t = r->trace;
  int i = 0;
  while (i < t->n_ops && strcmp(t->op[i], name) != 0) {
    ++i;
  }
  if (i == t->n_ops) {
    if (i == MOST_OPS) {
      return -1;
    }
    TS_GROW(t->op, t->n_ops, r->ops_capacity);
    t->op[t->n_ops++] = ts_strdup(name);
  }
  return i;
}

static double number_member(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  double x = json_is_number(value) ? json_number_value(value) : NAN;
  return fabs(x) < 1e15 ? x : NAN;
}

static void append_span(reader *r, const json_t *event, int rank) {
  ts_trace *t = r->trace;
  const char *phase = json_string_value(json_object_get(event, "ph"));
  const char *category = json_string_value(json_object_get(event, "cat"));
  const json_t *args = json_object_get(event, "args");
  double start = number_member(event, "ts"), seconds = number_member(event, "dur"),
         thread = number_member(event, "tid");
  if (phase == NULL || strcmp(phase, "X") != 0 || category == NULL || isnan(start) || !(seconds >= 0) ||
      !(thread >= 0 && thread < TS_N_TIMELINE_THREADS) || t->n >= TS_TRACE_SPANS) {
    return;
  }
  int op = number_of_op(r, category);
  if (op >= 0) {
    double bytes = number_member(args, "bytes"), ranks = number_member(args, "ranks");
    TS_GROW(t->span, t->n, r->capacity);
    t->span[t->n++] = (ts_span){.op = op,
                                .rank = rank,
                                .thread = (int) thread,
                                .start = 1e-6 * start,
                                .seconds = 1e-6 * seconds,
                                .bytes = bytes > 0 ? bytes : 0,
                                .ranks = ranks > 0 && ranks < 1e9 ? (int) ranks : 0};
  }
}

/* What stands behind the events; 0 for what is not said. */
typedef struct other_data {
  int64_t step, ranks;
  double bound; /* seconds */
} other_data;

static double other_number(const char *line, const char *name) {
  const char *at = strstr(line, name);
  double value = at != NULL ? strtod(at + strlen(name), NULL) : 0;
  return value > 0 && value < 9e15 ? value : 0;
}

/* "], "otherData": {...}}" */
static other_data read_other(const char *line) {
  return (other_data){.step = (int64_t) other_number(line, "\"step\": "),
                      .ranks = (int64_t) other_number(line, "\"ranks\": "),
                      .bound = 1e-6 * other_number(line, "\"clock_bound_us\": ")};
}

static ts_status read_rank(reader *r, const char *path, int rank, other_data *other, ts_error *err) {
  *other = (other_data){0};
  FILE *file = ts_open_plain(path, MOST_BYTES, err);
  if (file == NULL) {
    return TS_BAD_INPUT;
  }
  char *line = ts_malloc(MOST_LINE);
  int64_t length;
  while ((length = ts_next_line(file, line, MOST_LINE)) >= 0) {
    length -= length > 0 && length < MOST_LINE && line[length - 1] == ',';
    json_t *event =
        length > 1 && length < MOST_LINE && line[0] == '{' ? json_loadb(line, (size_t) length, 0, NULL) : NULL;
    if (json_is_object(event)) {
      append_span(r, event, rank);
    } else if (strstr(line, "\"otherData\"") != NULL) {
      *other = read_other(line);
    }
    json_decref(event);
  }
  ts_free(line);
  fclose(file);
  return TS_OK;
}

/* From the first begin on. */
static void begin_at_zero(ts_trace *t) {
  double first = INFINITY, last = -INFINITY;
  for (int64_t i = 0; i < t->n; ++i) {
    first = fmin(first, t->span[i].start);
    last = fmax(last, t->span[i].start + t->span[i].seconds);
  }
  for (int64_t i = 0; i < t->n; ++i) {
    t->span[i].start -= first;
  }
  t->seconds = t->n > 0 ? last - first : 0;
}

/* A file of another step was left by another run: what it has goes again. */
static ts_status read_other_rank(reader *r, const char *path, int rank, ts_error *err) {
  ts_trace *t = r->trace;
  other_data other;
  const int64_t spans = t->n;
  const int ops = t->n_ops;
  ts_status status = read_rank(r, path, rank, &other, err);
  if (status == TS_OK && other.step == t->step) {
    t->bound = fmax(t->bound, other.bound);
    t->n_ranks = rank + 1;
    ++t->n_read;
  } else {
    t->n = spans;
    while (t->n_ops > ops) {
      ts_free(t->op[--t->n_ops]);
    }
  }
  return status;
}

ts_status ts_trace_read(const char *path, ts_trace *trace, ts_error *err) {
  *trace = (ts_trace){0};
  reader r = {.trace = trace};
  other_data first;
  ts_status status = read_rank(&r, path, 0, &first, err);
  trace->n_ranks = trace->n_read = status == TS_OK;
  trace->step = first.step;
  trace->bound = first.bound;
  bool more = status == TS_OK;
  for (int rank = 1; more && (first.ranks == 0 || rank < first.ranks); ++rank) {
    char *other = ts_format("%s.rank%d", path, rank);
    bool there = access(other, F_OK) == 0;
    if (there && rank < TS_TRACE_RANKS) {
      status = read_other_rank(&r, other, rank, err);
    }
    trace->n_left += there && rank >= TS_TRACE_RANKS;
    more = status == TS_OK && (there || (first.ranks > 0 && rank < TS_TRACE_RANKS));
    ts_free(other);
  }
  begin_at_zero(trace);
  return status;
}

void ts_trace_clear(ts_trace *trace) {
  for (int i = 0; i < trace->n_ops; ++i) {
    ts_free(trace->op[i]);
  }
  ts_free(trace->op);
  ts_free(trace->span);
  *trace = (ts_trace){0};
}
