#include "pass/lower.h"

#include "base/memory.h"
#include "graph/op.h"

#include <string.h>

static const char *const queue_names[TS_N_QUEUES] = {"compute", "comm", "in", "out"};

void ts_lowered_destroy(ts_lowered **commands) {
  if (*commands != NULL) {
    ts_free((*commands)->command);
    ts_free(*commands);
    *commands = NULL;
  }
}

/* ---- lowering ---- */

typedef struct lowering {
  ts_lowered *to;
  int capacity;
  int *event_of;          /* per node: the event after its collective or copy, -1: not queued or waited for */
  int newest;             /* event of COMPUTE since which nothing was launched, -1: none */
  int after[TS_N_QUEUES]; /* the event of COMPUTE that a queue has waited for last, */
  int last[TS_N_QUEUES];  /* and that of the last it has in this range, -1: it was waited for */
  int outside;            /* event of COMM's last collective outside of ranges, -1: it was waited for */
  int joined;             /* the last of these events that was waited for, with all before it */
  bool open;              /* a range */
  bool sends;             /* something that leaves when it is queued */
} lowering;

static void emit_command(lowering *l, ts_lowered_kind kind, ts_queue queue, ts_nid node, int event) {
  TS_GROW(l->to->command, l->to->n, l->capacity);
  l->to->command[l->to->n++] = (ts_lowered_command){kind, queue, node, event};
}

static int record_event_on(lowering *l, ts_queue queue) {
  emit_command(l, TS_LOWERED_RECORD, queue, TS_NONE, l->to->n_events);
  return l->to->n_events++;
}

static void open_range(lowering *l) {
  if (!l->open) {
    emit_command(l, TS_LOWERED_CAPTURE_BEGIN, TS_QUEUE_COMPUTE, TS_NONE, -1);
    ++l->to->n_ranges;
    l->open = true;
    l->sends = false;
    l->newest = -1;
    memset(l->after, -1, sizeof l->after);
  }
}

static void wait_for_event(lowering *l, int event) {
  emit_command(l, TS_LOWERED_WAIT, TS_QUEUE_COMPUTE, TS_NONE, event);
  l->newest = -1; /* what waited for the message is new to the other queues' next ones */
  for (int q = 0; q < TS_N_QUEUES; ++q) {
    l->last[q] = event == l->last[q] ? -1 : l->last[q];
  }
}

/* The host looks at counts before it queues it, which no recording can do. */
static bool reads_counts(const ts_node *node) {
  return node->op == TS_OP_EXCHANGE_ROWS;
}

/* Those of a queue are done in order: with the last all of them. */
static void close_range(lowering *l, const ts_graph *graph) {
  if (l->open) {
    for (int q = 0; q < TS_N_QUEUES; ++q) {
      if (l->last[q] >= 0) {
        wait_for_event(l, l->last[q]);
      }
    }
    for (ts_nid n = 0; n < graph->n_nodes; ++n) {
      l->event_of[n] = reads_counts(&graph->node[n]) ? l->event_of[n] : -1;
    }
    emit_command(l, TS_LOWERED_CAPTURE_END, TS_QUEUE_COMPUTE, TS_NONE, -1);
    l->open = false;
  }
}

/* Outside of ranges, where alone that can be waited for. */
static void wait_outside(lowering *l, const ts_graph *graph, int event) {
  close_range(l, graph);
  emit_command(l, TS_LOWERED_WAIT, TS_QUEUE_COMPUTE, TS_NONE, event);
  l->outside = event == l->outside ? -1 : l->outside;
  l->joined = event;
}

/* Computation goes on beside it, in ranges of its own; with the next collective of a range these would be two at a
 * time, which are on one queue and in the same workspace. */
static void issue_outside(lowering *l, const ts_graph *graph, ts_nid node) {
  close_range(l, graph);
  emit_command(l, TS_LOWERED_WAIT, TS_QUEUE_COMM, TS_NONE, record_event_on(l, TS_QUEUE_COMPUTE));
  emit_command(l, TS_LOWERED_COLLECTIVE, TS_QUEUE_COMM, node, -1);
  l->outside = l->event_of[node] = record_event_on(l, TS_QUEUE_COMM);
}

/* Beside the computation, behind what was computed so far: of that it is made, in memory that was in use so far. */
static void issue_on(lowering *l, ts_queue queue, ts_lowered_kind kind, ts_nid node) {
  open_range(l);
  l->newest = l->newest < 0 ? record_event_on(l, TS_QUEUE_COMPUTE) : l->newest;
  if (l->after[queue] != l->newest) {
    emit_command(l, TS_LOWERED_WAIT, queue, TS_NONE, l->newest);
    l->after[queue] = l->newest;
  }
  emit_command(l, kind, queue, node, -1);
  l->last[queue] = l->event_of[node] = record_event_on(l, queue);
}

static void issue(lowering *l, const ts_graph *graph, ts_nid node) {
  if (reads_counts(&graph->node[node])) {
    issue_outside(l, graph, node);
  } else if (ts_node_is_copy(&graph->node[node])) {
    issue_on(l, ts_node_brings(&graph->node[node]) ? TS_QUEUE_IN : TS_QUEUE_OUT, TS_LOWERED_COPY, node);
  } else {
    if (l->outside >= 0) {
      wait_outside(l, graph, l->outside);
    }
    issue_on(l, TS_QUEUE_COMM, TS_LOWERED_COLLECTIVE, node);
  }
}

/* A receive was posted long ago (ts_step_runs.posted), a send ends in no instruction. */
static void lower_message(lowering *l, const ts_graph *graph, ts_nid node) {
  if (graph->node[node].op == TS_OP_RECEIVE) {
    close_range(l, graph);
    emit_command(l, TS_LOWERED_RECEIVED, TS_QUEUE_COMPUTE, node, -1);
  } else {
    open_range(l);
    l->sends = true;
    emit_command(l, TS_LOWERED_SEND, TS_QUEUE_COMPUTE, node, -1);
  }
}

/* Nothing where its range has ended, which waited for all. */
static void lower_wait(lowering *l, const ts_graph *graph, ts_nid node) {
  int event = l->event_of[node];
  l->event_of[node] = -1;
  if (event > l->joined && reads_counts(&graph->node[node])) {
    wait_outside(l, graph, event);
  } else if (event >= 0 && !reads_counts(&graph->node[node])) {
    wait_for_event(l, event);
  }
}

static void lower_instruction(lowering *l, const ts_graph *graph, const ts_instruction *instruction) {
  ts_nid node = instruction->node;
  if (ts_node_is_message(&graph->node[node])) {
    lower_message(l, graph, node);
    return;
  }
  if (l->sends && instruction->kind == TS_ISSUE && ts_node_is_collective(&graph->node[node]) &&
      (graph->node[node].attr.comm.axes & TS_AXES(TS_AXIS_PP)) != 0) {
    close_range(l, graph); /* other stages come to it behind what this one has not sent yet */
  }
  switch (instruction->kind) {
    case TS_RUN:
      open_range(l);
      emit_command(l, TS_LOWERED_LAUNCH, TS_QUEUE_COMPUTE, node, -1);
      l->newest = -1;
      break;
    case TS_ISSUE: issue(l, graph, node); break;
    case TS_WAIT: lower_wait(l, graph, node); break;
  }
}

ts_lowered *ts_lower(const ts_graph *graph, const ts_schedule *schedule, unsigned segments, int chunk) {
  ts_lowered *to = ts_calloc(1, sizeof *to);
  size_t nodes = (size_t) graph->n_nodes + 1;
  lowering l = {.to = to, .event_of = ts_malloc(nodes * sizeof *l.event_of), .newest = -1, .outside = -1, .joined = -1};
  memset(l.event_of, -1, nodes * sizeof *l.event_of);
  memset(l.after, -1, sizeof l.after);
  memset(l.last, -1, sizeof l.last);
  to->segments = segments;
  emit_command(&l, TS_LOWERED_COPY_IN, TS_QUEUE_COMPUTE, TS_NONE, -1);
  for (int i = 0; i < schedule->n; ++i) {
    if (ts_node_is_of(graph, &graph->node[schedule->instruction[i].node], segments, chunk)) {
      lower_instruction(&l, graph, &schedule->instruction[i]);
    }
  }
  close_range(&l, graph);
  if (l.outside >= 0) {
    wait_outside(&l, graph, l.outside);
  }
  ts_free(l.event_of);
  return to;
}

/* ---- dumping ---- */

void ts_lowered_dump(const ts_lowered *commands, const ts_graph *graph, ts_text *to) {
  static const char *const kinds[] = {
#define X(name, text) text,
      TS_LOWERED_COMMANDS(X)
#undef X
  };
  for (int i = 0; i < commands->n; ++i) {
    const ts_lowered_command *c = &commands->command[i];
    ts_text_add(to, "%-8s %-10s", queue_names[c->queue], kinds[c->kind]);
    if (c->node != TS_NONE) {
      ts_text_add(to, " %s (%s)", graph->node[c->node].name, ts_op_get(graph->node[c->node].op)->name);
    } else if (c->event >= 0) {
      ts_text_add(to, " e%d", c->event);
    }
    ts_text_add(to, "\n");
  }
}

/* ---- verifying ---- */

/* Bytes of an arena that a command touches. */
typedef struct access {
  ts_arena arena;
  int64_t begin, end;
  bool writes;
  int queue;
  int at; /* place in its queue, from 1 */
  int command;
} access;

/* Messages count as two queues more: what is sent from a command on, and what was being received until one. */
enum { SENT = TS_N_QUEUES, RECEIVED, N_ORDERS };

/* How much of every queue is known to be done: a vector clock. */
typedef struct clocks {
  int of[N_ORDERS];
} clocks;

typedef struct verifier {
  const ts_lowered *commands;
  const ts_graph *graph;
  const ts_plan *plan;
  clocks queue[N_ORDERS]; /* what is done when the queue's next command begins */
  clocks *event;
  int *recorded; /* per event: where, as of `range`; 0: it was not */
  struct {
    access *access; /* in order */
    int n, capacity;
  } done[N_ORDERS];
  bool capturing, took_part[TS_N_QUEUES];
  int range;   /* 1: outside of captures; 2, 3, ...: in one of them */
  int n_begun; /* captures */
  bool beside; /* something goes on in another queue while the capture does, whose queue it must not use */
} verifier;

static void merge(clocks *into, const clocks *from) {
  for (int q = 0; q < N_ORDERS; ++q) {
    into->of[q] = into->of[q] > from->of[q] ? into->of[q] : from->of[q];
  }
}

static const char *name_of(const verifier *v, int command) {
  ts_nid node = v->commands->command[command].node;
  return node == TS_NONE ? "the copy of the inputs" : v->graph->node[node].name;
}

static char *complain(const verifier *v, int first, int second) {
  return ts_format("commands %d (%s, queue %s) and %d (%s, queue %s) touch the same memory and no event orders them",
                   first, name_of(v, first), queue_names[v->commands->command[first].queue], second, name_of(v, second),
                   queue_names[v->commands->command[second].queue]);
}

/* The first access of a queue that overlaps with `a` and is not known to be done when `a` begins, or NULL. */
static const access *find_conflict(const verifier *v, const access *a, int other) {
  for (int i = v->done[other].n - 1; i >= 0; --i) {
    const access *b = &v->done[other].access[i];
    if (b->at <= v->queue[a->queue].of[other]) {
      return NULL;
    }
    if (a->arena == b->arena && a->begin < b->end && b->begin < a->end && (a->writes || b->writes)) {
      return b;
    }
  }
  return NULL;
}

static char *touch_bytes(verifier *v, access a) {
  if (a.arena == TS_ARENA_NONE || a.begin >= a.end) {
    return NULL;
  }
  int64_t slot = v->plan->slot_bytes[a.arena];
  if (ts_lifetime_is_kept(ts_arenas[a.arena].lifetime) && (a.begin < 0 || a.end > slot)) {
    return ts_format("command %d (%s) touches byte %lld of the %s arena, of which a place has %lld", a.command,
                     name_of(v, a.command), (long long) a.end, ts_arenas[a.arena].name, (long long) slot);
  }
  for (int q = 0; q < N_ORDERS; ++q) {
    const access *b = q == a.queue ? NULL : find_conflict(v, &a, q);
    if (b != NULL) {
      return complain(v, b->command, a.command);
    }
  }
  TS_GROW(v->done[a.queue].access, v->done[a.queue].n, v->done[a.queue].capacity);
  v->done[a.queue].access[v->done[a.queue].n++] = a;
  return NULL;
}

static access bytes_touched(const verifier *v, access a, ts_tid t, bool writes) {
  ts_address at = v->plan->address[t];
  a.arena = at.arena;
  a.begin = at.offset;
  a.end = at.offset + (at.arena == TS_ARENA_NONE ? 0 : ts_tensor_bytes(v->graph, t));
  a.writes = writes;
  return a;
}

static char *touch_tensor(verifier *v, access a, ts_tid t, bool writes) {
  return t == TS_NONE ? NULL : touch_bytes(v, bytes_touched(v, a, t, writes));
}

/* What a gather makes; what it is given, where that lies in it, stays as it is. */
static char *touch_gathered(verifier *v, access a, ts_tid in, ts_tid out) {
  access own = bytes_touched(v, a, in, false), before = bytes_touched(v, a, out, true), after = before;
  if (own.arena != before.arena || own.begin < before.begin || own.end > before.end) {
    return touch_bytes(v, before);
  }
  before.end = own.begin;
  after.begin = own.end;
  char *wrong = touch_bytes(v, before);
  return wrong == NULL ? touch_bytes(v, after) : wrong;
}

static char *touch_operands(verifier *v, access a, ts_nid n) {
  const ts_node *node = &v->graph->node[n];
  char *wrong = touch_tensor(v, a, node->beta, false);
  for (int i = 0; i < node->n_in && wrong == NULL; ++i) {
    wrong = touch_tensor(v, a, node->in[i], false);
  }
  for (int i = 0; i < node->n_out && wrong == NULL; ++i) {
    wrong = node->prior != NULL ? touch_tensor(v, a, node->prior[i], false) : NULL;
    bool gathered = node->op == TS_OP_ALL_GATHER;
    wrong = wrong != NULL ? wrong
            : gathered    ? touch_gathered(v, a, node->in[i], node->out[i])
                          : touch_tensor(v, a, node->out[i], true);
  }
  a.arena = TS_ARENA_WORK;
  a.begin = v->plan->workspace[n].offset;
  a.end = a.begin + v->plan->workspace_bytes[n];
  a.writes = true;
  return wrong == NULL ? touch_bytes(v, a) : wrong;
}

/* The graph of a capture holds what COMPUTE forked, and only if it came back. */
static char *check_join(const verifier *v, const char *where) {
  for (int q = 0; q < TS_N_QUEUES; ++q) {
    if (v->took_part[q] && v->queue[TS_QUEUE_COMPUTE].of[q] < v->queue[q].of[q]) {
      return ts_format("queue %s is not joined at the end of the %s", queue_names[q], where);
    }
  }
  return NULL;
}

static char *check_events(verifier *v, int i) {
  const ts_lowered_command *c = &v->commands->command[i];
  if (v->capturing && v->beside && c->queue != TS_QUEUE_COMPUTE) {
    return ts_format("command %d is captured in a queue that is not joined", i);
  }
  if (c->kind == TS_LOWERED_RECORD) {
    v->event[c->event] = v->queue[c->queue];
    v->recorded[c->event] = v->range;
  } else if (v->recorded[c->event] != v->range) { /* events of one side mean nothing on the other */
    return ts_format("command %d waits for event %d, which was not recorded", i, c->event);
  } else {
    merge(&v->queue[c->queue], &v->event[c->event]);
  }
  return NULL;
}

static char *check_capture(verifier *v, int i) {
  const ts_lowered_command *c = &v->commands->command[i];
  bool begin = c->kind == TS_LOWERED_CAPTURE_BEGIN;
  if (c->queue != TS_QUEUE_COMPUTE || begin == v->capturing) {
    return ts_format("command %d begins or ends a capture where it cannot", i);
  }
  char *wrong = check_join(v, "capture");
  if (begin || v->beside) {
    v->beside = wrong != NULL;
    ts_free(wrong);
    wrong = NULL;
  }
  v->capturing = begin;
  v->n_begun += begin;
  v->range = begin ? 1 + v->n_begun : 1;
  return wrong;
}

/* A collective whose counts the host reads is outside of captures, all else is in one; in its queue nothing else. */
static char *check_side(const verifier *v, int i) {
  const ts_lowered_command *c = &v->commands->command[i];
  bool inside = c->kind != TS_LOWERED_COLLECTIVE || !reads_counts(&v->graph->node[c->node]);
  if (v->capturing != inside) {
    return ts_format("command %d (%s) is %s the capture", i, name_of(v, i), inside ? "outside" : "inside");
  }
  return v->capturing && v->beside && c->queue != TS_QUEUE_COMPUTE
             ? ts_format("command %d (%s) is captured in a queue that is not joined", i, name_of(v, i))
             : NULL;
}

/* What the host has written comes into the arenas of its space. */
static char *touch_inputs(verifier *v, access a) {
  char *wrong = NULL;
  a.writes = true;
  for (a.arena = TS_ARENA_STATE; a.arena < TS_N_ARENAS && wrong == NULL; ++a.arena) {
    a.end = v->plan->slot_bytes[a.arena];
    wrong = ts_arenas[a.arena].space == TS_SPACE_HOST ? touch_bytes(v, a) : NULL;
  }
  return wrong;
}

static char *check_message(verifier *v, access a, const ts_lowered_command *c) {
  bool sends = c->kind == TS_LOWERED_SEND;
  if (v->capturing != sends) {
    return ts_format("command %d, a %s, is %s a capture", a.command, sends ? "send" : "receive",
                     sends ? "outside" : "inside");
  }
  a.queue = sends ? SENT : RECEIVED;
  if (sends) {
    merge(&v->queue[SENT], &v->queue[TS_QUEUE_COMPUTE]);
  }
  a.at = ++v->queue[a.queue].of[a.queue];
  char *wrong = touch_operands(v, a, c->node);
  if (!sends) {
    merge(&v->queue[TS_QUEUE_COMPUTE], &v->queue[RECEIVED]);
  }
  return wrong;
}

static char *check_command(verifier *v, int i) {
  const ts_lowered_command *c = &v->commands->command[i];
  access a = {.queue = (int) c->queue, .command = i};
  v->took_part[c->queue] = true;
  switch (c->kind) {
    case TS_LOWERED_RECORD:
    case TS_LOWERED_WAIT: return check_events(v, i);
    case TS_LOWERED_CAPTURE_BEGIN:
    case TS_LOWERED_CAPTURE_END: return check_capture(v, i);
    case TS_LOWERED_RECEIVED:
    case TS_LOWERED_SEND: return check_message(v, a, c);
    default: break;
  }
  a.at = ++v->queue[c->queue].of[c->queue];
  if (c->kind == TS_LOWERED_COPY_IN) {
    return v->capturing ? ts_format("command %d copies from the host inside a capture", i) : touch_inputs(v, a);
  }
  char *wrong = check_side(v, i);
  return wrong == NULL ? touch_operands(v, a, c->node) : wrong;
}

char *ts_lowered_verify(const ts_lowered *commands, const ts_graph *graph, const ts_plan *plan) {
  verifier v = {.commands = commands,
                .graph = graph,
                .plan = plan,
                .event = ts_calloc((size_t) commands->n_events + 1, sizeof *v.event),
                .recorded = ts_calloc((size_t) commands->n_events + 1, sizeof *v.recorded),
                .range = 1};
  char *wrong = NULL;
  for (int i = 0; i < commands->n && wrong == NULL; ++i) {
    wrong = check_command(&v, i);
  }
  if (wrong == NULL) {
    wrong = v.capturing ? ts_format("a capture does not end") : check_join(&v, "run");
  }
  ts_free(v.event);
  ts_free(v.recorded);
  for (int q = 0; q < N_ORDERS; ++q) {
    ts_free(v.done[q].access);
  }
  return wrong;
}
