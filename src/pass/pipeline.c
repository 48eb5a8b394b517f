/* Schedules as rows, and a clock that walks them. */
#include "pass/pipeline.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* ---- writing a list ---- */

/* A chunk's micro-batches come in order in every kind of work, so a row says which chunk alone. */
typedef struct writer {
  const ts_pipeline *pipeline;
  ts_pipeline_list list;
  int64_t capacity;
  int64_t *done; /* [TS_WORK_BACKWARD][chunks] */
} writer;

static int64_t *done_of(const writer *w, ts_pipeline_work work, int chunk) {
  return &w->done[(int) work * w->pipeline->chunks + chunk];
}

static void add_work(writer *w, ts_pipeline_work work, int chunk) {
  bool both = work == TS_WORK_BACKWARD;
  int64_t micro_batch = (*done_of(w, both ? TS_WORK_INPUT : work, chunk))++;
  *done_of(w, TS_WORK_WEIGHT, chunk) += both;
  TS_GROW(w->list.instance, w->list.n, w->capacity);
  w->list.instance[w->list.n++] = (ts_pipeline_instance){work, chunk, micro_batch};
}

static bool is_left(const writer *w, ts_pipeline_work work, int chunk) {
  return *done_of(w, work, chunk) < w->pipeline->micro_batches;
}

/* W of what has had its I. */
static void add_weights(writer *w, int chunk) {
  while (*done_of(w, TS_WORK_WEIGHT, chunk) < *done_of(w, TS_WORK_INPUT, chunk)) {
    add_work(w, TS_WORK_WEIGHT, chunk);
  }
}

/* ---- one chunk a rank ---- */

static void write_gpipe(writer *w, int rank) {
  (void) rank;
  for (int kind = 0; kind < 2; ++kind) {
    for (int64_t i = 0; i < w->pipeline->micro_batches; ++i) {
      add_work(w, kind == 0 ? TS_WORK_FORWARD : TS_WORK_BACKWARD, 0);
    }
  }
}

static void write_1f1b(writer *w, int rank) {
  int64_t m = w->pipeline->micro_batches, lead = least(w->pipeline->stages - 1 - rank, m);
  for (int64_t i = 0; i < m + lead; ++i) {
    if (i < m) {
      add_work(w, TS_WORK_FORWARD, 0);
    }
    if (i >= lead) {
      add_work(w, TS_WORK_BACKWARD, 0);
    }
  }
}

/* 1F1B whose W follow their I as late as keeps no more than the first rank does. */
static void write_zb_h1(writer *w, int rank) {
  int64_t m = w->pipeline->micro_batches, lead = least(w->pipeline->stages - 1 - rank, m);
  for (int64_t i = 0; i < m + lead; ++i) {
    if (i < m) {
      add_work(w, TS_WORK_FORWARD, 0);
    }
    if (i >= lead) {
      add_work(w, TS_WORK_INPUT, 0);
    }
    if (i >= lead + rank) {
      add_work(w, TS_WORK_WEIGHT, 0);
    }
  }
  add_weights(w, 0);
}

/* ---- several chunks a rank ---- */

/* Micro-batches that go through all chunks before the next ones do. */
static int64_t round_of(const ts_pipeline *p) {
  int64_t rounds = p->micro_batches / p->stages;
  return p->micro_batches / (rounds > 1 ? rounds : 1);
}

static void write_interleaved(writer *w, int rank) {
  const ts_pipeline *p = w->pipeline;
  int64_t g = round_of(p), n = p->chunks * p->micro_batches;
  int64_t lead = least((p->chunks - 1) * g + 2 * (p->stages - 1 - rank), n);
  for (int64_t i = 0; i < n + lead; ++i) {
    if (i < n) {
      add_work(w, TS_WORK_FORWARD, (int) (i / g % p->chunks));
    }
    if (i >= lead) {
      add_work(w, TS_WORK_BACKWARD, p->chunks - 1 - (int) ((i - lead) / g % p->chunks));
    }
  }
}

static void add_if_left(writer *w, ts_pipeline_work work, int chunk) {
  if (is_left(w, work, chunk)) {
    add_work(w, work, chunk);
  }
}

/* Forward, I and W of chunk 1, whose turn it is as soon as its forward is done. */
static void turn_around(writer *w) {
  if (is_left(w, TS_WORK_FORWARD, 1)) {
    add_work(w, TS_WORK_FORWARD, 1);
    add_work(w, TS_WORK_INPUT, 1);
    add_work(w, TS_WORK_WEIGHT, 1);
  }
}

static void write_zb_v(writer *w, int rank) {
  int p = w->pipeline->stages;
  for (int i = 0; i < 2 * (p - rank) - 1; ++i) {
    add_if_left(w, TS_WORK_FORWARD, 0);
  }
  for (int i = 0; i < rank; ++i) {
    add_work(w, TS_WORK_FORWARD, 1);
    add_if_left(w, TS_WORK_FORWARD, 0);
  }
  for (int i = 0; i < p - rank; ++i) {
    turn_around(w);
  }
  while (is_left(w, TS_WORK_FORWARD, 1)) {
    add_if_left(w, TS_WORK_FORWARD, 0);
    add_work(w, TS_WORK_INPUT, 0);
    add_work(w, TS_WORK_WEIGHT, 0);
    turn_around(w);
  }
  for (int i = 0; i < rank; ++i) {
    add_if_left(w, TS_WORK_INPUT, 0);
    add_if_left(w, TS_WORK_INPUT, 1);
  }
  while (is_left(w, TS_WORK_INPUT, 0)) {
    add_work(w, TS_WORK_INPUT, 0);
    add_work(w, TS_WORK_WEIGHT, 0);
  }
  add_weights(w, 1);
  add_weights(w, 0);
}

static void add_backward(writer *w, int chunk) {
  add_work(w, TS_WORK_INPUT, chunk);
  add_work(w, TS_WORK_WEIGHT, chunk);
}

static void write_dualpipe_v(writer *w, int rank) {
  int p = w->pipeline->stages, behind = p - 1 - rank;
  for (int i = 0; i < 2 * behind; ++i) {
    add_work(w, TS_WORK_FORWARD, 0);
  }
  for (int i = 0; i < rank + 1; ++i) {
    add_work(w, TS_WORK_FORWARD, 0);
    add_work(w, TS_WORK_FORWARD, 1);
  }
  for (int i = 0; i < behind; ++i) {
    add_backward(w, 1);
    add_work(w, TS_WORK_FORWARD, 1);
  }
  for (int64_t i = 0; i < w->pipeline->micro_batches - 2 * p + rank + 1; ++i) {
    add_work(w, TS_WORK_FORWARD, 0);
    add_backward(w, 1);
    add_work(w, TS_WORK_FORWARD, 1);
    add_backward(w, 0);
  }
  for (int i = 0; i < behind; ++i) {
    add_backward(w, 1);
    add_work(w, TS_WORK_FORWARD, 1);
    add_backward(w, 0);
  }
  /* From the middle of the last backwards on W wait, in the order of their I. */
  int *waiting = ts_malloc((size_t) (2 * (rank + 1)) * sizeof *waiting), n = 0;
  for (int i = 0; i < 2 * (rank + 1); ++i) {
    int chunk = i % 2 == 0 ? 1 : 0;
    add_work(w, TS_WORK_INPUT, chunk);
    if (i > rank) {
      waiting[n++] = chunk;
    } else {
      add_work(w, TS_WORK_WEIGHT, chunk);
    }
  }
  int next = 0;
  for (int i = 0; i < behind; ++i) {
    add_work(w, TS_WORK_WEIGHT, next < n ? waiting[next++] : 0);
    add_work(w, TS_WORK_INPUT, 0);
  }
  while (next < n) {
    add_work(w, TS_WORK_WEIGHT, waiting[next++]);
  }
  add_weights(w, 0);
  ts_free(waiting);
}

/* ---- rows ---- */

static int64_t kept_gpipe(const ts_pipeline *p, int rank) {
  (void) rank;
  return p->micro_batches;
}

static int64_t kept_1f1b(const ts_pipeline *p, int rank) {
  return least(p->stages - rank, p->micro_batches);
}

static int64_t kept_interleaved(const ts_pipeline *p, int rank) {
  return least(p->chunks * p->micro_batches, (p->chunks - 1) * round_of(p) + 2 * (p->stages - 1 - rank) + 1);
}

static int64_t kept_zb_h1(const ts_pipeline *p, int rank) {
  (void) rank;
  return least(p->stages, p->micro_batches);
}

static int64_t kept_zb_v(const ts_pipeline *p, int rank) {
  (void) rank;
  return 2 * p->stages;
}

static int64_t kept_dualpipe_v(const ts_pipeline *p, int rank) {
  (void) rank;
  return 2 * p->stages + 1;
}

static bool takes_any(const ts_pipeline *p) {
  (void) p;
  return true;
}

static bool takes_rounds(const ts_pipeline *p) {
  int64_t rounds = p->micro_batches / p->stages;
  return rounds <= 1 || p->micro_batches % rounds == 0;
}

static bool takes_zb_v(const ts_pipeline *p) {
  return p->micro_batches >= 2 * (int64_t) p->stages - 1;
}

static bool takes_dualpipe_v(const ts_pipeline *p) {
  return p->micro_batches >= 2 * (int64_t) p->stages;
}

static const struct {
  const char *name;
  int chunks; /* 0: any number */
  bool is_v;
  bool (*takes)(const ts_pipeline *pipeline); /* so many micro-batches */
  void (*write)(writer *w, int rank);
  int64_t (*kept)(const ts_pipeline *pipeline, int rank);
} rows[TS_N_PIPELINES] = {
    [TS_PIPELINE_GPIPE] = {"gpipe", 1, false, takes_any, write_gpipe, kept_gpipe},
    [TS_PIPELINE_1F1B] = {"1f1b", 1, false, takes_any, write_1f1b, kept_1f1b},
    [TS_PIPELINE_INTERLEAVED] = {"interleaved", 0, false, takes_rounds, write_interleaved, kept_interleaved},
    [TS_PIPELINE_ZB_H1] = {"zb_h1", 1, false, takes_any, write_zb_h1, kept_zb_h1},
    [TS_PIPELINE_ZB_V] = {"zb_v", 2, true, takes_zb_v, write_zb_v, kept_zb_v},
    [TS_PIPELINE_DUALPIPE_V] = {"dualpipe_v", 2, true, takes_dualpipe_v, write_dualpipe_v, kept_dualpipe_v},
};

const char *ts_pipeline_name(ts_pipeline_schedule schedule) {
  return rows[schedule].name;
}

ts_pipeline_schedule ts_pipeline_find(const char *name) {
  int i = 0;
  while (i < TS_N_PIPELINES && strcmp(rows[i].name, name) != 0) {
    ++i;
  }
  return (ts_pipeline_schedule) i;
}

ts_status ts_pipeline_check(const ts_pipeline *p, ts_error *err) {
  int chunks = rows[p->schedule].chunks;
  TS_ASSERT(p->stages > 0 && p->micro_batches > 0);
  if (p->chunks < 1 || (chunks > 0 && p->chunks != chunks)) {
    return ts_error_add(err, "%s: %d pieces of the model on each rank; accepted: %s%d", rows[p->schedule].name,
                        p->chunks, chunks > 0 ? "" : "from ", chunks > 0 ? chunks : 1);
  }
  if (p->micro_batches > TS_PIPELINE_MOST) {
    return ts_error_add(err, "%lld micro-batches; accepted: up to %d", (long long) p->micro_batches, TS_PIPELINE_MOST);
  }
  if (rows[p->schedule].takes(p)) {
    return TS_OK;
  }
  ts_pipeline below = *p, above = *p;
  while (below.micro_batches > 0 && !rows[p->schedule].takes(&below)) {
    --below.micro_batches;
  }
  while (!rows[p->schedule].takes(&above)) {
    ++above.micro_batches;
  }
  char *other = below.micro_batches > 0 ? ts_format("%lld or ", (long long) below.micro_batches) : ts_strdup("");
  ts_status status = ts_error_add(
      err, "%s: %lld micro-batches cannot go through %d stages; the nearest that can: %s%lld", rows[p->schedule].name,
      (long long) p->micro_batches, p->stages, other, (long long) above.micro_batches);
  ts_free(other);
  return status;
}

int ts_pipeline_piece(const ts_pipeline *p, int rank, int chunk) {
  return rows[p->schedule].is_v && chunk > 0 ? 2 * p->stages - 1 - rank : chunk * p->stages + rank;
}

int ts_pipeline_rank_of(const ts_pipeline *p, int piece, int *chunk) {
  *chunk = piece / p->stages;
  int at = piece % p->stages;
  return rows[p->schedule].is_v && *chunk > 0 ? p->stages - 1 - at : at;
}

ts_pipeline_list ts_pipeline_list_of(const ts_pipeline *p, int rank) {
  writer w = {.pipeline = p, .done = ts_calloc((size_t) (TS_WORK_BACKWARD * p->chunks), sizeof *w.done)};
  rows[p->schedule].write(&w, rank);
  ts_free(w.done);
  return w.list;
}

/* ---- forwards alone ---- */

typedef struct forward_walk {
  const ts_pipeline *pipeline;
  int64_t *next; /* micro-batch of each piece */
  int64_t *end;  /* [piece][micro-batch]: when it has been, -1 for not yet */
} forward_walk;

/* The rank's piece nearest to the end that can go on at a time; -1: none. */
static int find_ready(const forward_walk *w, int rank, int64_t time, int *chunk) {
  int found = -1;
  for (int c = 0; c < w->pipeline->chunks; ++c) {
    int piece = ts_pipeline_piece(w->pipeline, rank, c);
    int64_t next = w->next[piece], m = w->pipeline->micro_batches;
    int64_t came = piece == 0 || next == m ? 0 : w->end[(piece - 1) * m + next];
    if (next < m && came >= 0 && came <= time && piece > found) {
      found = piece;
      *chunk = c;
    }
  }
  return found;
}

ts_pipeline_list ts_pipeline_forwards_of(const ts_pipeline *p, int rank) {
  const int64_t m = p->micro_batches, of_rank = m * p->chunks;
  size_t pieces = (size_t) p->stages * (size_t) p->chunks;
  forward_walk w = {p, ts_calloc(pieces, sizeof *w.next), ts_malloc(pieces * (size_t) m * sizeof *w.end)};
  for (size_t i = 0; i < pieces * (size_t) m; ++i) {
    w.end[i] = -1;
  }
  ts_pipeline_list list = {ts_malloc((size_t) of_rank * sizeof *list.instance), 0};
  for (int64_t time = 0; list.n < of_rank; ++time) {
    for (int r = 0; r < p->stages; ++r) {
      int chunk, piece = find_ready(&w, r, time, &chunk);
      if (piece >= 0) {
        int64_t micro_batch = w.next[piece]++;
        w.end[piece * m + micro_batch] = time + 1;
        if (r == rank) {
          list.instance[list.n++] = (ts_pipeline_instance){TS_WORK_FORWARD, chunk, micro_batch};
        }
      }
    }
  }
  ts_free(w.next);
  ts_free(w.end);
  return list;
}

/* ---- what is kept, and how it is written ---- */

int64_t ts_pipeline_kept(const ts_pipeline *p, int rank) {
  return rows[p->schedule].kept(p, rank);
}

static void print_instance(const ts_pipeline *p, int rank, ts_pipeline_instance i, ts_text *to) {
  ts_text_add(to, "%d%c%lld", ts_pipeline_piece(p, rank, i.chunk), "FIWB"[i.work], (long long) i.micro_batch);
}

void ts_pipeline_print(const ts_pipeline *p, int rank, ts_text *to) {
  ts_pipeline_list list = ts_pipeline_list_of(p, rank);
  for (int64_t i = 0; i < list.n; ++i) {
    ts_text_add(to, "%s", i > 0 ? " " : "");
    print_instance(p, rank, list.instance[i], to);
  }
  ts_free(list.instance);
}

/* ---- the clock ---- */

typedef struct clock_walk {
  const ts_pipeline *pipeline;
  const ts_pipeline_seconds *seconds;
  double send;
  ts_pipeline_observer *observer; /* may be NULL */
  void *user;
  int pieces;
  double *end;            /* [forward, backward of inputs][piece][micro-batch]; NaN: not yet */
  ts_pipeline_list *list; /* of each rank */
  int64_t *next;
  double *free_at, *busy;
  int64_t *kept, *most;
} clock_walk;

static double *end_of(const clock_walk *c, bool backward, int piece, int64_t micro_batch) {
  return &c->end[((backward ? c->pieces : 0) + piece) * c->pipeline->micro_batches + micro_batch];
}

/* When what a piece needs from another has arrived; NaN: not yet.  There is none at the ends. */
static double arrival(const clock_walk *c, bool backward, int piece, int from, int64_t micro_batch) {
  int chunk;
  if (from < 0 || from >= c->pieces) {
    return 0;
  }
  bool same = ts_pipeline_rank_of(c->pipeline, from, &chunk) == ts_pipeline_rank_of(c->pipeline, piece, &chunk);
  return *end_of(c, backward, from, micro_batch) + (same ? 0 : c->send);
}

static double ready_at(const clock_walk *c, int piece, ts_pipeline_instance i) {
  if (i.work == TS_WORK_FORWARD) {
    return arrival(c, false, piece, piece - 1, i.micro_batch);
  }
  if (i.work == TS_WORK_WEIGHT) {
    return *end_of(c, true, piece, i.micro_batch);
  }
  double own = *end_of(c, false, piece, i.micro_batch), other = arrival(c, true, piece, piece + 1, i.micro_batch);
  return isnan(own) || isnan(other) ? NAN : fmax(own, other);
}

static double duration(const ts_pipeline_seconds *s, ts_pipeline_work work) {
  const double of[TS_N_WORKS] = {s->forward, s->input, s->weight, s->input + s->weight};
  return of[work];
}

/* \return false: the rank's next instance waits. */
static bool go_on(clock_walk *c, int rank) {
  ts_pipeline_instance i = c->list[rank].instance[c->next[rank]];
  int piece = ts_pipeline_piece(c->pipeline, rank, i.chunk);
  double ready = ready_at(c, piece, i), takes = duration(&c->seconds[piece], i.work);
  if (isnan(ready)) {
    return false;
  }
  c->free_at[rank] = fmax(c->free_at[rank], ready) + takes;
  c->busy[rank] += takes;
  if (c->observer != NULL) {
    c->observer(c->user, rank, i, c->free_at[rank] - takes, c->free_at[rank]);
  }
  if (i.work != TS_WORK_WEIGHT) {
    *end_of(c, i.work != TS_WORK_FORWARD, piece, i.micro_batch) = c->free_at[rank];
  }
  c->kept[rank] += i.work == TS_WORK_FORWARD;
  c->most[rank] = c->kept[rank] > c->most[rank] ? c->kept[rank] : c->most[rank];
  c->kept[rank] -= i.work == TS_WORK_WEIGHT || i.work == TS_WORK_BACKWARD;
  ++c->next[rank];
  return true;
}

/* All that can. */
static void walk(clock_walk *c) {
  bool any = true;
  while (any) {
    any = false;
    for (int r = 0; r < c->pipeline->stages; ++r) {
      while (c->next[r] < c->list[r].n && go_on(c, r)) {
        any = true;
      }
    }
  }
}

static ts_status check_all_ended(const clock_walk *c, ts_error *err) {
  for (int r = 0; r < c->pipeline->stages; ++r) {
    if (c->next[r] < c->list[r].n) {
      ts_text text = {0};
      print_instance(c->pipeline, r, c->list[r].instance[c->next[r]], &text);
      ts_error_add(err, "%s: stage %d waits in %s for ever", rows[c->pipeline->schedule].name, r, text.text);
      ts_text_free(&text);
      return TS_BAD_INPUT;
    }
  }
  return TS_OK;
}

static void sum_up(const clock_walk *c, ts_pipeline_times *t) {
  int p = c->pipeline->stages;
  *t = (ts_pipeline_times){.idle = ts_calloc((size_t) p, sizeof *t->idle),
                           .kept = ts_calloc((size_t) p, sizeof *t->kept)};
  for (int r = 0; r < p; ++r) {
    t->seconds = fmax(t->seconds, c->free_at[r]);
    t->kept[r] = c->most[r];
  }
  for (int r = 0; r < p; ++r) {
    t->idle[r] = t->seconds - c->busy[r];
    t->bubble += t->seconds > 0 ? t->idle[r] / t->seconds / p : 0;
  }
}

ts_status ts_pipeline_clock(const ts_pipeline *p, const ts_pipeline_seconds *seconds, double send,
                            ts_pipeline_observer *observer, void *user, ts_pipeline_times *times, ts_error *err) {
  size_t ranks = (size_t) p->stages, pieces = ranks * (size_t) p->chunks, ends = 2 * pieces * (size_t) p->micro_batches;
  clock_walk c = {.pipeline = p,
                  .seconds = seconds,
                  .send = send,
                  .observer = observer,
                  .user = user,
                  .pieces = (int) pieces,
                  .end = ts_malloc(ends * sizeof *c.end),
                  .list = ts_calloc(ranks, sizeof *c.list),
                  .next = ts_calloc(ranks, sizeof *c.next),
                  .free_at = ts_calloc(ranks, sizeof *c.free_at),
                  .busy = ts_calloc(ranks, sizeof *c.busy),
                  .kept = ts_calloc(ranks, sizeof *c.kept),
                  .most = ts_calloc(ranks, sizeof *c.most)};
  for (size_t i = 0; i < ends; ++i) {
    c.end[i] = NAN;
  }
  for (int r = 0; r < p->stages; ++r) {
    c.list[r] = ts_pipeline_list_of(p, r);
  }
  walk(&c);
  ts_status status = check_all_ended(&c, err);
  sum_up(&c, times);
  for (int r = 0; r < p->stages; ++r) {
    ts_free(c.list[r].instance);
  }
  ts_free(c.end);
  ts_free(c.list);
  ts_free(c.next);
  ts_free(c.free_at);
  ts_free(c.busy);
  ts_free(c.kept);
  ts_free(c.most);
  return status;
}

void ts_pipeline_times_clear(ts_pipeline_times *times) {
  ts_free(times->idle);
  ts_free(times->kept);
  *times = (ts_pipeline_times){0};
}
