/* Pipeline schedules: over stages, chunks and micro-batches every rank does each piece of work once and in order, the
 * clock finds the bubble of the published formulas and the pieces kept that pass/pipeline.h says, and what a row cannot
 * do is refused with the nearest that it can. */
#include "pass/pipeline.h"
#include "regression/tap.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int stages[] = {1, 2, 3, 4, 8};
enum { MOST_CHUNKS = 4, MOST_MICRO_BATCHES = 32 };

/* Each piece of work once, a chunk's micro-batches in order, none before what it is made of. */
static bool is_complete(const ts_pipeline *p, int rank) {
  ts_pipeline_list list = ts_pipeline_list_of(p, rank);
  int64_t next[MOST_CHUNKS][3] = {{0}};
  bool good = true;
  for (int64_t i = 0; i < list.n; ++i) {
    ts_pipeline_instance at = list.instance[i];
    bool both = at.work == TS_WORK_BACKWARD;
    int64_t *done = next[at.chunk];
    good = good && at.chunk >= 0 && at.chunk < p->chunks && done[both ? TS_WORK_INPUT : at.work]++ == at.micro_batch;
    done[TS_WORK_WEIGHT] += both;
    good = good && done[TS_WORK_FORWARD] >= done[TS_WORK_INPUT] && done[TS_WORK_INPUT] >= done[TS_WORK_WEIGHT] &&
           (!both || done[TS_WORK_INPUT] == done[TS_WORK_WEIGHT]);
  }
  for (int c = 0; c < p->chunks; ++c) {
    for (int k = 0; k < 3; ++k) {
      good = good && next[c][k] == p->micro_batches;
    }
  }
  ts_free(list.instance);
  return good;
}

/* Seconds that each rank is idle where F = I = W = 1; NaN: no formula is known. */
static double known_idle(const ts_pipeline *p) {
  double behind = p->stages - 1;
  bool is_full = p->micro_batches >= p->stages;
  switch (p->schedule) {
    case TS_PIPELINE_GPIPE:
    case TS_PIPELINE_1F1B: return 3 * behind;
    case TS_PIPELINE_INTERLEAVED: return is_full ? 3 * behind : NAN;
    case TS_PIPELINE_ZB_H1: return is_full ? behind : NAN;
    default: return behind;
  }
}

/* The same as a share, by the formulas of pass/pipeline.h. */
static double known_bubble(const ts_pipeline *p) {
  double b = p->stages - 1, m = (double) p->micro_batches, v = p->chunks;
  const double work[TS_N_PIPELINES] = {m, m, v * m, 3 * m, 6 * m, 6 * m};
  return b / (work[p->schedule] + b);
}

static bool is_as_known(const ts_pipeline *p) {
  int pieces = p->stages * p->chunks;
  ts_pipeline_seconds *one = ts_malloc((size_t) pieces * sizeof *one);
  ts_pipeline_times t;
  for (int i = 0; i < pieces; ++i) {
    int chunk, rank = ts_pipeline_rank_of(p, i, &chunk);
    one[i] = (ts_pipeline_seconds){1, 1, 1};
    TS_CHECK(ts_pipeline_piece(p, rank, chunk) == i, "piece %d is another one", i);
  }
  ts_error err = {0};
  bool good = ts_pipeline_clock(p, one, 0, NULL, NULL, &t, &err) == TS_OK;
  double idle = known_idle(p);
  good = good && (isnan(idle) || fabs(t.bubble - known_bubble(p)) < 1e-12);
  for (int r = 0; r < p->stages; ++r) {
    good = good && is_complete(p, r) && (isnan(idle) || t.idle[r] == idle) && t.kept[r] == ts_pipeline_kept(p, r);
  }
  if (!good) {
    tap_note("p %d, v %d, m %lld: idle %g, kept %lld, bubble %g; %s", p->stages, p->chunks,
             (long long) p->micro_batches, t.idle[0], (long long) t.kept[0], t.bubble,
             err.text != NULL ? err.text : "");
  }
  ts_error_clear(&err);
  ts_pipeline_times_clear(&t);
  ts_free(one);
  return good;
}

/* A row does what it takes, and the nearest that a refusal names. */
static bool is_refused_well(const ts_pipeline *p) {
  ts_error err = {0};
  long long below = 0, above = 0;
  bool good = ts_pipeline_check(p, &err) == TS_BAD_INPUT;
  const char *nearest = good ? strstr(err.text, "that can: ") : NULL;
  good = nearest != NULL;
  if (good && sscanf(nearest, "that can: %lld or %lld", &below, &above) == 1) {
    above = below;
  }
  ts_pipeline other = *p;
  other.micro_batches = above;
  good = good && above > 0 && ts_pipeline_check(&other, NULL) == TS_OK;
  ts_error_clear(&err);
  return good;
}

static void test_row(ts_pipeline_schedule row) {
  bool good = true;
  int n = 0, refused = 0;
  for (size_t i = 0; i < sizeof stages / sizeof *stages; ++i) {
    for (int v = 1; v <= MOST_CHUNKS; ++v) {
      for (int64_t m = 1; m <= MOST_MICRO_BATCHES; ++m) {
        ts_pipeline p = {row, stages[i], v, m};
        ts_error err = {0};
        bool taken = ts_pipeline_check(&p, &err) == TS_OK;
        bool chunks = !taken && strstr(err.text, "pieces of the model on each rank") != NULL;
        ts_error_clear(&err);
        n += taken;
        refused += !taken && !chunks;
        good = good && (taken ? is_as_known(&p) : chunks || is_refused_well(&p));
      }
    }
  }
  tap_ok(good && n > 0, "%s: %d pipelines as published; %d refused with the nearest", ts_pipeline_name(row), n,
         refused);
}

static void test_print(void) {
  static const struct {
    ts_pipeline pipeline;
    int rank;
    const char *list;
  } known[] = {
      {{TS_PIPELINE_1F1B, 2, 1, 3}, 0, "0F0 0F1 0B0 0F2 0B1 0B2"},
      {{TS_PIPELINE_1F1B, 2, 1, 3}, 1, "1F0 1B0 1F1 1B1 1F2 1B2"},
      {{TS_PIPELINE_1F1B, 1, 1, 2}, 0, "0F0 0B0 0F1 0B1"},
      {{TS_PIPELINE_GPIPE, 2, 1, 2}, 0, "0F0 0F1 0B0 0B1"},
      {{TS_PIPELINE_INTERLEAVED, 2, 2, 2}, 1, "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"},
      {{TS_PIPELINE_ZB_H1, 2, 1, 2}, 1, "1F0 1I0 1F1 1I1 1W0 1W1"},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
    ts_text text = {0};
    ts_pipeline_print(&known[i].pipeline, known[i].rank, &text);
    tap_ok(strcmp(text.text, known[i].list) == 0, "%s, rank %d: %s", ts_pipeline_name(known[i].pipeline.schedule),
           known[i].rank, text.text);
    ts_text_free(&text);
  }
}

/* The list with each B as its halves. */
static bool is_list(const ts_pipeline *p, int rank, const char *known) {
  ts_text text = {0}, halves = {0};
  ts_pipeline_print(p, rank, &text);
  char *rest = NULL;
  for (char *word = strtok_r(text.text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
    char *both = strchr(word, 'B');
    ts_text_add(&halves, "%s", halves.length > 0 ? " " : "");
    if (both != NULL) {
      ts_text_add(&halves, "%.*sI%s %.*sW%s", (int) (both - word), word, both + 1, (int) (both - word), word, both + 1);
    } else {
      ts_text_add(&halves, "%s", word);
    }
  }
  bool same = strcmp(halves.text, known) == 0;
  ts_text_free(&text);
  ts_text_free(&halves);
  return same;
}

/* Every list of regression/golden/pipelines.txt, which are torch's. */
static void test_golden(void) {
  FILE *file = fopen(tap_path("regression/golden/pipelines.txt"), "r");
  TS_CHECK(file != NULL, "regression/golden/pipelines.txt is missing");
  char *line = NULL;
  size_t room = 0;
  int n = 0, same = 0;
  for (ssize_t length; (length = getline(&line, &room, file)) > 0; ++n) {
    char row[32];
    ts_pipeline p;
    long long m;
    int rank, at = 0;
    line[length - 1] = 0;
    TS_CHECK(sscanf(line, "%31s %d %d %lld %d: %n", row, &p.stages, &p.chunks, &m, &rank, &at) == 5 && at > 0,
             "a line of pipelines.txt is no list: %s", line);
    p.schedule = ts_pipeline_find(row);
    p.micro_batches = m;
    bool is = p.schedule < TS_N_PIPELINES && ts_pipeline_check(&p, NULL) == TS_OK && is_list(&p, rank, line + at);
    same += is;
    if (!is) {
      tap_note("other than torch's: %s", line);
    }
  }
  free(line);
  fclose(file);
  tap_ok(n > 0 && same == n, "%d of %d lists as torch.distributed.pipelining has them", same, n);
}

/* A slow piece, and messages that take long. */
static void test_times(void) {
  const ts_pipeline p = {TS_PIPELINE_1F1B, 2, 1, 4};
  const ts_pipeline_seconds even[] = {{1, 1, 1}, {1, 1, 1}}, slow[] = {{1, 1, 1}, {2, 2, 2}};
  const struct {
    const ts_pipeline_seconds *seconds;
    double send, step;
  } known[] = {{even, 0, 15}, {even, 0.5, 17}, {slow, 0, 27}};
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
    ts_pipeline_times t;
    ts_status status = ts_pipeline_clock(&p, known[i].seconds, known[i].send, NULL, NULL, &t, NULL);
    tap_ok(status == TS_OK && t.seconds == known[i].step, "1f1b of two stages, %g s a message: %g s", known[i].send,
           t.seconds);
    ts_pipeline_times_clear(&t);
  }
}

/* Each of a rank's pieces has every micro-batch once, in order. */
static bool are_forwards_good(const ts_pipeline *p, int rank) {
  int64_t *next = ts_calloc((size_t) p->chunks, sizeof *next);
  ts_pipeline_list list = ts_pipeline_forwards_of(p, rank);
  bool good = list.n == p->chunks * p->micro_batches;
  for (int64_t i = 0; i < list.n && good; ++i) {
    const ts_pipeline_instance *at = &list.instance[i];
    good = at->work == TS_WORK_FORWARD && at->chunk >= 0 && at->chunk < p->chunks && at->micro_batch == next[at->chunk];
    ++next[at->chunk];
  }
  ts_free(list.instance);
  ts_free(next);
  return good;
}

static void test_forwards(void) {
  for (int row = 0; row < TS_N_PIPELINES; ++row) {
    bool v = row == TS_PIPELINE_ZB_V || row == TS_PIPELINE_DUALPIPE_V, good = true;
    int n = 0;
    for (int64_t m = 1; m <= 20; ++m) {
      for (int p = 1; p <= 5; ++p, ++n) {
        const ts_pipeline of = {(ts_pipeline_schedule) row, p, v ? 2 : row == TS_PIPELINE_INTERLEAVED ? 3 : 1, m};
        for (int rank = 0; rank < p; ++rank) {
          good = good && are_forwards_good(&of, rank);
        }
      }
    }
    tap_ok(good, "%s: forwards alone of %d pipelines", ts_pipeline_name((ts_pipeline_schedule) row), n);
  }
  ts_text text = {0};
  ts_pipeline_list list = ts_pipeline_forwards_of(&(ts_pipeline){TS_PIPELINE_ZB_V, 2, 2, 4}, 0);
  for (int64_t i = 0; i < list.n; ++i) {
    ts_text_add(&text, " %d%lld", list.instance[i].chunk, (long long) list.instance[i].micro_batch);
  }
  tap_ok(strcmp(text.text, " 00 01 02 10 03 11 12 13") == 0, "what has come is taken to its end:%s", text.text);
  ts_text_free(&text);
  ts_free(list.instance);
}

int main(void) {
  for (int row = 0; row < TS_N_PIPELINES; ++row) {
    test_row((ts_pipeline_schedule) row);
    tap_ok(ts_pipeline_find(ts_pipeline_name((ts_pipeline_schedule) row)) == (ts_pipeline_schedule) row,
           "found by its name");
  }
  tap_ok(ts_pipeline_find("2f2b") == TS_N_PIPELINES, "there is no 2f2b");
  test_print();
  test_golden();
  test_times();
  test_forwards();
  return tap_done();
}
