/* A walk of each stage's instructions; who waits for another stage stands until that has come further. */
#include "run/clock.h"

#include "base/memory.h"
#include "graph/op.h"
#include "pass/offload.h"
#include "pass/rates.h"

#include <math.h>
#include <string.h>

/* A collective or copy that was issued in this run. */
typedef struct flight {
  ts_nid node;
  double end;
  double late; /* seconds that it has begun later than this stage was ready, for others */
} flight;

/* What a stage has sent to a neighbour, or has come to of a group with other stages. */
typedef struct arrival {
  const ts_node *node;
  double time;    /* it is there, or has begun */
  double seconds; /* that it was on its way */
  bool taken;
} arrival;

/* Of a node. */
typedef struct cost {
  double seconds;
  ts_known how;
  bool is_known;
} cost;

typedef struct walker {
  const ts_program *program;
  cost *cost; /* owned; by node */
  ts_clock_stage *said;
  int64_t run;
  ts_run now;
  const ts_run_kind *kind;
  bool begun;
  int at;                /* next instruction */
  double time, start;    /* its own clock; when the run began */
  double stream;         /* when the collectives so far are done, */
  double in, out, files; /* and copies each way, and those of files, */
  double host;           /* and what the host computes */
  flight *flying;        /* owned */
  int n_flying;
  arrival *sent, *met; /* owned: messages in their order; collectives with other stages */
  int n_sent, sent_capacity, n_met, met_capacity;
  int first_open; /* of sent: those before are taken */
} walker;

typedef struct walk {
  walker *stage;
  int n;
  const ts_measured *measured;
  int node;
  ts_rates rates;
  ts_clock_observer *observer;
  void *user;
} walk;

static void note_row(walk *w, walker *s, const ts_node *node, bool collective, double start, double seconds) {
  ts_clock_row *row = &s->said->row[node->op];
  row->op = node->op;
  row->calls += 1;
  row->busy += seconds;
  if (w->observer != NULL) {
    w->observer(w->user, (int) (s - w->stage), node, collective, start, seconds);
  }
}

/* Looked up once, as a node comes again with each micro-batch. */
static double seconds_of_node(walk *w, walker *s, const ts_node *node) {
  cost *c = &s->cost[node - s->program->graph->node];
  if (!c->is_known) {
    const ts_work work = ts_node_work(s->program, node, w->node);
    *c = (cost){.is_known = true};
    c->seconds = ts_measured_seconds(w->measured, &work, &c->how);
    if (node->on_host && c->how == TS_KNOWN_NOTHING && w->measured->host == 0) {
      const ts_program *p = s->program;
      c->seconds = work.bytes / (w->rates.core * ts_offload_threads(p->deck, &p->target));
    }
  }
  s->said->known[c->how] += c->seconds;
  return c->seconds;
}

/* ---- what is computed ---- */

/* While messages are under way it goes slower. */
static void compute(walk *w, walker *s, const ts_node *node) {
  double seconds = seconds_of_node(w, s, node), slow = w->measured->slowdown, beside = fmax(s->stream - s->time, 0);
  double done = fmin(seconds, beside / slow);
  seconds = done * slow + (seconds - done);
  note_row(w, s, node, false, s->time, seconds);
  s->said->computing += seconds;
  s->time += seconds + w->measured->instruction;
}

/* By processors beside a device: when what it takes was brought. */
static void compute_beside(walk *w, walker *s, const ts_node *node) {
  double seconds = seconds_of_node(w, s, node), begin = fmax(s->host, fmax(s->in, s->out));
  note_row(w, s, node, false, begin, seconds);
  s->said->host += seconds;
  s->host = begin + seconds;
}

/* ---- collectives ---- */

static void fly(walker *s, ts_nid node, double end, double late) {
  s->flying[s->n_flying++] = (flight){node, end, late};
}

/* The computation has waited for a collective or a message, of which others were late. */
static void note_held(walker *s, ts_op op, double held, double late) {
  double for_others = fmin(held, late);
  s->said->neighbours += for_others;
  s->said->exposed += held - for_others;
  s->said->row[op].exposed += held - for_others;
  s->time += held;
}

static bool is_among_stages(const ts_node *node) {
  return (node->attr.comm.axes & TS_AXES(TS_AXIS_PP)) != 0;
}

/* The place of a node among those of its name that a stage has met. */
static const arrival *find_met(const walker *s, const char *name, int nth) {
  for (int i = 0; i < s->n_met; ++i) {
    if (strcmp(s->met[i].node->name, name) == 0 && nth-- == 0) {
      return &s->met[i];
    }
  }
  return NULL;
}

static bool has_node(const ts_program *program, const char *name) {
  for (ts_nid n = 0; n < program->graph->n_nodes; ++n) {
    if (strcmp(program->graph->node[n].name, name) == 0) {
      return true;
    }
  }
  return false;
}

/* When the last of the stages that take part comes to what this one comes to at `time`; false: one has not yet. */
static bool meet_stages(walk *w, walker *s, const ts_node *node, double *time) {
  int nth = 0;
  for (int i = 0; i < s->n_met; ++i) {
    nth += strcmp(s->met[i].node->name, node->name) == 0;
  }
  /* it is noted once, though it is asked again and again */
  bool noted = s->n_met > 0 && s->met[s->n_met - 1].node == node && !s->met[s->n_met - 1].taken;
  if (noted) {
    --nth;
  } else {
    TS_GROW(s->met, s->n_met, s->met_capacity);
    s->met[s->n_met++] = (arrival){.node = node, .time = *time};
  }
  for (int i = 0; i < w->n; ++i) {
    const arrival *other = find_met(&w->stage[i], node->name, nth);
    if (other == NULL && has_node(w->stage[i].program, node->name)) {
      return false;
    }
    *time = other != NULL ? fmax(*time, other->time) : *time;
  }
  s->met[s->n_met - 1].taken = true;
  return true;
}

/* The stream takes one after another. \return false: another stage has not come to it yet. */
static bool hand_to_stream(walk *w, walker *s, ts_nid n) {
  const ts_node *node = &s->program->graph->node[n];
  const double ready = fmax(s->time, s->stream);
  double begin = ready;
  if (w->n > 1 && is_among_stages(node) && !meet_stages(w, s, node, &begin)) {
    return false;
  }
  double seconds = seconds_of_node(w, s, node);
  note_row(w, s, node, true, begin, seconds);
  s->said->messages += seconds;
  s->stream = begin + seconds;
  fly(s, n, s->stream, begin - ready);
  if (!s->program->schedule->overlaps && s->program->target.backend->device == NULL) { /* it runs where it is issued */
    note_held(s, node->op, s->stream - s->time, begin - ready);
  }
  return true;
}

/* ---- copies ---- */

/* Bytes/s of a copy, with one the other way beside it or not: as measured, else as `machine` says. */
static double rate_of_copy(const walk *w, bool file, bool reads, bool beside) {
  const ts_measured *m = w->measured;
  double own = file ? (reads ? m->read : m->write) : (reads ? m->in : m->out);
  own = own > 0 ? own : file ? w->rates.file : w->rates.copy;
  return !file && beside && m->both > 0 ? fmin(own, m->both) : own;
}

static void begin_copy(walk *w, walker *s, ts_nid n) {
  const ts_node *node = &s->program->graph->node[n];
  bool file = ts_node_copies(node) == TS_SPACE_FILE, reads = ts_copy_reads(node);
  double *queue = file ? &s->files : reads ? &s->in : &s->out;
  double begin = fmax(fmax(s->time, s->host), *queue);
  bool beside = (reads ? s->out : s->in) > begin;
  double seconds = (double) ts_tensor_bytes(s->program->graph, node->out[0]) / rate_of_copy(w, file, reads, beside);
  note_row(w, s, node, false, begin, seconds);
  s->said->copies += seconds;
  *queue = begin + seconds;
  fly(s, n, *queue, 0);
}

static void land(walker *s, ts_nid n) {
  const ts_node *node = &s->program->graph->node[n];
  for (int i = 0; i < s->n_flying; ++i) {
    if (s->flying[i].node == n) {
      double held = fmax(s->flying[i].end - s->time, 0);
      if (ts_node_is_copy(node)) {
        s->said->waited += held;
        s->said->row[node->op].exposed += held;
        s->time += held;
      } else {
        note_held(s, node->op, held, s->flying[i].late);
      }
      s->flying[i] = s->flying[--s->n_flying];
      return;
    }
  }
}

/* ---- messages of pipelines ---- */

static bool goes_back(const ts_node *node) {
  return node->attr.message.back != 0;
}

/* The first message over a boundary that the neighbour has sent and this stage has not taken; NULL: there is none. */
static arrival *next_arrival(walk *w, const ts_node *node) {
  walker *from = &w->stage[node->attr.message.peer];
  while (from->first_open < from->n_sent && from->sent[from->first_open].taken) {
    ++from->first_open;
  }
  for (int k = from->first_open; k < from->n_sent; ++k) {
    const ts_node *sent = from->sent[k].node;
    if (!from->sent[k].taken && sent->attr.message.boundary == node->attr.message.boundary &&
        goes_back(sent) == goes_back(node)) {
      return &from->sent[k];
    }
  }
  return NULL;
}

/* To a chunk of its own, as the two halves of a V have, in no time. */
static void send_on(walk *w, walker *s, const ts_node *node) {
  double seconds = &w->stage[node->attr.message.peer] != s ? seconds_of_node(w, s, node) : 0;
  note_row(w, s, node, true, s->time, seconds);
  s->said->messages += seconds;
  TS_GROW(s->sent, s->n_sent, s->sent_capacity);
  s->sent[s->n_sent++] = (arrival){node, s->time + seconds, seconds, false};
}

static bool take_arrival(walk *w, walker *s, const ts_node *node) {
  arrival *here = next_arrival(w, node);
  if (here == NULL) {
    return false;
  }
  double held = fmax(here->time - s->time, 0);
  here->taken = true;
  s->said->row[node->op].op = node->op;
  s->said->row[node->op].calls += 1;
  note_held(s, node->op, held, fmax(held - here->seconds, 0));
  return true;
}

/* ---- the walk ---- */

static bool is_at_end(const walker *s) {
  return s->run >= s->program->step.n;
}

static void open_run_at(walk *w, walker *s) {
  const ts_step_runs *step = &s->program->step;
  s->now = ts_step_run(step, s->run);
  ts_step_takes_left(step->leaves, &s->now);
  s->kind = &step->kind[s->now.kind];
  s->at = 0;
  s->begun = true;
  s->start = s->time;
  s->time += s->run == 0 ? w->measured->step : 0;
}

static void close_run(walker *s) {
  s->said->phase[s->kind->phase] += s->time - s->start;
  if (s->kind->phase != TS_RUN_UPDATE) {
    s->said->begin_of_update = s->time;
    s->said->busy = s->said->phase[TS_RUN_FORWARD] + s->said->phase[TS_RUN_BACKWARD] - s->said->exposed -
                    s->said->neighbours - s->said->waited;
  }
  s->said->end = fmax(s->time, s->host);
  s->n_flying = 0;
  s->begun = false;
  ++s->run;
}

/* \return false: it has to stand. */
static bool execute_next(walk *w, walker *s, const ts_instruction *instruction) {
  const ts_node *node = &s->program->graph->node[instruction->node];
  if (ts_node_is_message(node)) {
    bool sends = node->op == TS_OP_SEND;
    if (sends) {
      send_on(w, s, node);
    }
    return sends || take_arrival(w, s, node);
  }
  switch (instruction->kind) {
    case TS_RUN: (node->on_host ? compute_beside : compute)(w, s, node); break;
    case TS_WAIT: land(s, instruction->node); break;
    case TS_ISSUE:
      if (!ts_node_is_copy(node)) {
        return hand_to_stream(w, s, instruction->node);
      }
      begin_copy(w, s, instruction->node);
  }
  return true;
}

/* As far as it comes. \return whether it came any further. */
static bool advance_stage(walk *w, walker *s) {
  const ts_schedule *schedule = s->program->schedule;
  bool moved = false;
  while (!is_at_end(s)) {
    if (!s->begun) {
      open_run_at(w, s);
    }
    for (; s->at < schedule->n; ++s->at) {
      const ts_instruction *instruction = &schedule->instruction[s->at];
      const ts_node *node = &s->program->graph->node[instruction->node];
      if (ts_run_has(&s->program->step, s->now, s->program->graph, node) && !execute_next(w, s, instruction)) {
        return moved;
      }
      moved = true;
    }
    close_run(s);
    moved = true;
  }
  return moved;
}

static void open_walker(walker *s, const ts_program *program, ts_clock_stage *said) {
  *s = (walker){.program = program, .said = said};
  s->flying = ts_malloc(((size_t) program->schedule->n + 1) * sizeof *s->flying);
  s->cost = ts_calloc((size_t) program->graph->n_nodes + 1, sizeof *s->cost);
}

static void close_walker(walker *s) {
  ts_free(s->flying);
  ts_free(s->cost);
  ts_free(s->sent);
  ts_free(s->met);
}

/* What a stage does not compute until the last forward or backward of all. */
static double bubble_of(const ts_clock *clock, double span) {
  double idle = 0;
  for (int i = 0; i < clock->n; ++i) {
    idle += span > 0 ? 1 - fmin(clock->stage[i].busy / span, 1) : 0;
  }
  return idle / clock->n;
}

bool ts_clock_step(const ts_program *const *program, int n, const ts_measured *measured, int node,
                   ts_clock_observer *observer, void *user, ts_clock *clock) {
  walk w = {.n = n,
            .measured = measured,
            .node = node,
            .rates = ts_rates_of(program[0]->deck, program[0]->target.backend),
            .observer = observer,
            .user = user,
            .stage = ts_calloc((size_t) n, sizeof *w.stage)};
  *clock = (ts_clock){.n = n, .stage = ts_calloc((size_t) n, sizeof *clock->stage)};
  for (int i = 0; i < n; ++i) {
    open_walker(&w.stage[i], program[i], &clock->stage[i]);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (int i = 0; i < n; ++i) {
      moved = advance_stage(&w, &w.stage[i]) || moved;
    }
  }
  bool ended = true;
  double span = 0;
  for (int i = 0; i < n; ++i) {
    ended = ended && is_at_end(&w.stage[i]);
    clock->step = fmax(clock->step, clock->stage[i].end);
    span = fmax(span, clock->stage[i].begin_of_update);
    close_walker(&w.stage[i]);
  }
  clock->bubble = n > 1 ? bubble_of(clock, span) : 0;
  ts_free(w.stage);
  return ended;
}

const ts_clock_stage *ts_clock_busiest(const ts_clock *clock) {
  const ts_clock_stage *most = &clock->stage[0];
  for (int i = 1; i < clock->n; ++i) {
    most = clock->stage[i].computing > most->computing ? &clock->stage[i] : most;
  }
  return most;
}

void ts_clock_clear(ts_clock *clock) {
  ts_free(clock->stage);
  *clock = (ts_clock){0};
}
