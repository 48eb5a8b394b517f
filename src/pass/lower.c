#include "pass/lower.h"

#include "base/memory.h"
#include "graph/op.h"
#include "pass/touch.h"

#include <string.h>

const char *ts_lowered_queue(ts_queue queue) {
  static const char *const names[TS_N_QUEUES] = {"compute", "comm", "in", "out"};
  return queue == TS_QUEUE_HOST ? "host" : names[queue];
}

void ts_lowered_destroy(ts_lowered **commands) {
  if (*commands != NULL) {
    ts_free((*commands)->command);
    ts_free(*commands);
    *commands = NULL;
  }
}

/* ---- lowering ---- */

/* Where COMPUTE may record an event: behind a command, once a copy waits for it. */
typedef struct point {
  int command, event;     /* -1: not wanted */
  int knows[TS_N_QUEUES]; /* the last event of each other queue that COMPUTE has waited for by then */
} point;

/* What was queued: what it touches, others may wait for. */
typedef struct user {
  ts_nid node;
  ts_queue queue;
  int range; /* 0: outside of all */
  int point; /* behind it, of what COMPUTE does; of what another queue does in a range behind that, once it ends */
  int event; /* behind it, of what another queue does */
} user;

typedef struct lowering {
  ts_lowered *to;
  int capacity;
  int *event_of;           /* per node: the event after its collective or copy, -1: not queued or waited for */
  int newest;              /* event of COMPUTE since which nothing was launched, -1: none */
  int after[TS_N_QUEUES];  /* the event of COMPUTE that a queue's collective has waited for last, */
  int last[TS_N_QUEUES];   /* and that of the last it has in this range, -1: it was waited for */
  int outside;             /* event of COMM's last collective outside of ranges, -1: it was waited for */
  int joined;              /* the last of these events that was waited for, with all before it */
  bool hosted;             /* the host does some of the program itself: copies are between ranges, */
  int copied[TS_N_QUEUES]; /* the event of the last that COMPUTE has waited for, with all before it in that queue, */
  int known[TS_N_QUEUES];  /* and of the last that the host has waited for */
  bool open;               /* a range */
  bool sends;              /* something that leaves when it is queued */
  int first, begin;        /* the points at the begin of the run, and of the range */
  const ts_graph *graph;
  const ts_plan *plan;
  point *point;
  int n_points, point_capacity;
  user *used;
  int n_used, used_capacity;
  ts_touch *touch;                   /* of the copy that is queued, and of another node */
  int knows[TS_N_QUEUES];            /* as of a point, now */
  int seen[TS_N_QUEUES];             /* the point that a queue's copies have waited for last, -1: none */
  int met[TS_N_QUEUES][TS_N_QUEUES]; /* and the event of another queue */
} lowering;

static void emit_command(lowering *l, ts_lowered_kind kind, ts_queue queue, ts_nid node, int event) {
  TS_GROW(l->to->command, l->to->n, l->capacity);
  l->to->command[l->to->n++] = (ts_lowered_command){kind, queue, node, event};
}

static int record_event_on(lowering *l, ts_queue queue) {
  emit_command(l, TS_LOWERED_RECORD, queue, TS_NONE, l->to->n_events);
  return l->to->n_events++;
}

/* Behind the last command. */
static int add_point(lowering *l) {
  TS_GROW(l->point, l->n_points, l->point_capacity);
  point *p = &l->point[l->n_points];
  *p = (point){l->to->n - 1, -1, {0}};
  memcpy(p->knows, l->knows, sizeof p->knows);
  return l->n_points++;
}

static void note_user(lowering *l, ts_nid node, ts_queue queue, int event) {
  TS_GROW(l->used, l->n_used, l->used_capacity);
  const int at = queue == TS_QUEUE_COMPUTE ? add_point(l) : -1;
  l->used[l->n_used++] = (user){node, queue, l->open ? l->to->n_ranges : 0, at, event};
}

static void open_range(lowering *l) {
  if (!l->open) {
    emit_command(l, TS_LOWERED_CAPTURE_BEGIN, TS_QUEUE_COMPUTE, TS_NONE, -1);
    ++l->to->n_ranges;
    l->open = true;
    l->sends = false;
    l->newest = -1;
    memset(l->after, -1, sizeof l->after);
    l->begin = add_point(l);
    if (!l->hosted) {
      memset(l->seen, -1, sizeof l->seen);
      memset(l->met, -1, sizeof l->met);
      l->n_used = 0; /* all of it has happened */
    }
  }
}

/* What happened in a range has happened behind it. */
static void note_end(lowering *l) {
  const int end = add_point(l);
  for (int i = l->n_used - 1; i >= 0 && l->used[i].range != 0 && l->hosted; --i) {
    if (l->used[i].range == l->to->n_ranges) {
      l->used[i].point = end;
      l->used[i].range = 0;
      l->used[i].queue = TS_QUEUE_COMPUTE;
    }
  }
}

static void wait_for_event(lowering *l, ts_queue of, int event) {
  emit_command(l, TS_LOWERED_WAIT, TS_QUEUE_COMPUTE, TS_NONE, event);
  l->knows[of] = event > l->knows[of] ? event : l->knows[of];
  l->newest = -1; /* what waited for the message is new to the other queues' next ones */
  for (int q = 0; q < TS_N_QUEUES; ++q) {
    l->last[q] = event == l->last[q] ? -1 : l->last[q];
  }
}

/* The host looks at counts before it queues it, which no recording can do. */
static bool reads_counts(const ts_node *node) {
  return node->op == TS_OP_EXCHANGE_ROWS;
}

bool ts_lowered_is_hosted(const ts_graph *graph) {
  bool any = false;
  for (ts_nid n = 0; n < graph->n_nodes && !any; ++n) {
    any = ts_node_copies(&graph->node[n]) == TS_SPACE_FILE || graph->node[n].on_host;
  }
  return any;
}

bool ts_lowered_is_outside(const ts_node *node, bool hosted) {
  return reads_counts(node) || (hosted && ts_node_is_copy(node));
}

static ts_queue queue_of_copy(const ts_node *copy) {
  return ts_copy_reads(copy) ? TS_QUEUE_IN : TS_QUEUE_OUT;
}

/* Those of a queue are done in order: with the last all of them. */
static void close_range(lowering *l) {
  if (l->open) {
    for (ts_queue q = 0; q < TS_N_QUEUES; ++q) {
      if (l->last[q] >= 0) {
        wait_for_event(l, q, l->last[q]);
      }
    }
    for (ts_nid n = 0; n < l->graph->n_nodes; ++n) {
      l->event_of[n] = ts_lowered_is_outside(&l->graph->node[n], l->hosted) ? l->event_of[n] : -1;
    }
    emit_command(l, TS_LOWERED_CAPTURE_END, TS_QUEUE_COMPUTE, TS_NONE, -1);
    l->open = false;
    note_end(l);
  }
}

/* ---- who waits for what ---- */

static bool share_bytes(const lowering *l, int n, ts_nid other) {
  ts_touch *touch = l->touch + n;
  const int count = ts_node_touches(l->graph, l->plan, other, touch);
  bool share = false;
  for (int i = 0; i < n && !share; ++i) {
    for (int k = 0; k < count && !share; ++k) {
      share = ts_touches_collide(&l->touch[i], &touch[k]);
    }
  }
  return share;
}

static void wait_on(lowering *l, ts_queue queue, int event) {
  emit_command(l, TS_LOWERED_WAIT, queue, TS_NONE, event);
}

/* Of the bytes of a copy the last users: a point of COMPUTE, in a range its begin at least, and an event of each other
 * queue but the copy's own, which goes on in order; -1: none. */
static int find_users(lowering *l, ts_queue queue, ts_nid node, int event[TS_N_QUEUES]) {
  const int n = ts_node_touches(l->graph, l->plan, node, l->touch);
  int wanted = l->open ? l->begin : l->first;
  bool found[TS_N_QUEUES] = {false};
  found[queue] = true;
  for (int i = l->n_used - 1, left = TS_N_QUEUES - 1; i >= 0 && left > 0; --i) {
    const user *u = &l->used[i];
    if (!found[u->queue] && share_bytes(l, n, u->node)) {
      found[u->queue] = true;
      --left;
      event[u->queue] = u->event;
      wanted = u->queue == TS_QUEUE_COMPUTE ? u->point : wanted;
    }
  }
  return wanted;
}

static void wait_for_users(lowering *l, ts_queue queue, ts_nid node) {
  int event[TS_N_QUEUES];
  memset(event, -1, sizeof event);
  const int wanted = find_users(l, queue, node, event);
  if (wanted > l->seen[queue]) {
    point *p = &l->point[wanted];
    p->event = p->event < 0 ? l->to->n_events++ : p->event;
    wait_on(l, queue, p->event);
    l->seen[queue] = wanted;
  }
  for (ts_queue q = 0; q < TS_N_QUEUES; ++q) {
    const bool known =
        q == TS_QUEUE_COMPUTE || event[q] <= l->met[queue][q] || event[q] <= l->point[l->seen[queue]].knows[q];
    if (!known) {
      wait_on(l, queue, event[q]);
      l->met[queue][q] = event[q];
    }
  }
}

/* The events that were wanted, each behind its command. */
static void record_points(lowering *l) {
  ts_lowered_command *old = l->to->command;
  const int n = l->to->n;
  l->to->command = NULL;
  l->to->n = l->capacity = 0;
  for (int i = 0, p = 0; i < n; ++i) {
    emit_command(l, old[i].kind, old[i].queue, old[i].node, old[i].event);
    for (; p < l->n_points && l->point[p].command == i; ++p) {
      if (l->point[p].event >= 0) {
        emit_command(l, TS_LOWERED_RECORD, TS_QUEUE_COMPUTE, TS_NONE, l->point[p].event);
      }
    }
  }
  ts_free(old);
}

/* Outside of ranges, where alone that can be waited for. */
static void wait_outside(lowering *l, int event) {
  close_range(l);
  emit_command(l, TS_LOWERED_WAIT, TS_QUEUE_COMPUTE, TS_NONE, event);
  l->outside = event == l->outside ? -1 : l->outside;
  l->knows[TS_QUEUE_COMM] = l->joined = event;
}

/* Computation goes on beside it, in ranges of its own; with the next collective of a range these would be two at a
 * time, which are on one queue and in the same workspace. */
static void issue_outside(lowering *l, ts_nid node) {
  close_range(l);
  emit_command(l, TS_LOWERED_WAIT, TS_QUEUE_COMM, TS_NONE, record_event_on(l, TS_QUEUE_COMPUTE));
  emit_command(l, TS_LOWERED_COLLECTIVE, TS_QUEUE_COMM, node, -1);
  l->outside = l->event_of[node] = record_event_on(l, TS_QUEUE_COMM);
  note_user(l, node, TS_QUEUE_COMM, l->outside);
}

/* Beside the computation, behind what was computed so far: of that it is made, in memory that was in use so far. */
static void issue_collective(lowering *l, ts_nid node) {
  open_range(l);
  l->newest = l->newest < 0 ? record_event_on(l, TS_QUEUE_COMPUTE) : l->newest;
  if (l->after[TS_QUEUE_COMM] != l->newest) {
    emit_command(l, TS_LOWERED_WAIT, TS_QUEUE_COMM, TS_NONE, l->newest);
    l->after[TS_QUEUE_COMM] = l->newest;
  }
  emit_command(l, TS_LOWERED_COLLECTIVE, TS_QUEUE_COMM, node, -1);
  l->last[TS_QUEUE_COMM] = l->event_of[node] = record_event_on(l, TS_QUEUE_COMM);
  note_user(l, node, TS_QUEUE_COMM, l->event_of[node]);
}

/* In a range; between ranges where the host does something itself. */
static void issue_copy(lowering *l, ts_nid node) {
  const ts_queue queue = queue_of_copy(&l->graph->node[node]);
  if (l->hosted) {
    close_range(l);
  } else {
    open_range(l);
  }
  wait_for_users(l, queue, node);
  emit_command(l, TS_LOWERED_COPY, queue, node, -1);
  l->event_of[node] = record_event_on(l, queue);
  l->last[queue] = l->hosted ? l->last[queue] : l->event_of[node];
  note_user(l, node, queue, l->event_of[node]);
}

/* The host waits for the last copy in a queue whose memory the schedule has given free. */
static void know_copied(lowering *l, ts_queue queue) {
  if (l->copied[queue] > l->known[queue]) {
    emit_command(l, TS_LOWERED_WAIT, TS_QUEUE_HOST, TS_NONE, l->copied[queue]);
    l->known[queue] = l->copied[queue];
  }
}

/* The memory that is read from a file was copied to the device before, what is written to one comes from there. */
static void issue_transfer(lowering *l, ts_nid node) {
  close_range(l);
  know_copied(l, queue_of_copy(&l->graph->node[node]));
  emit_command(l, TS_LOWERED_TRANSFER, TS_QUEUE_HOST, node, -1);
}

/* What the host computes was brought, and what it writes was copied on. */
static void compute_on_host(lowering *l, ts_nid node) {
  close_range(l);
  know_copied(l, TS_QUEUE_IN);
  know_copied(l, TS_QUEUE_OUT);
  emit_command(l, TS_LOWERED_LAUNCH, TS_QUEUE_HOST, node, -1);
}

static void issue(lowering *l, ts_nid node) {
  const ts_node *what = &l->graph->node[node];
  if (reads_counts(what)) {
    issue_outside(l, node);
  } else if (ts_node_is_copy(what)) {
    (ts_node_copies(what) == TS_SPACE_FILE ? issue_transfer : issue_copy)(l, node);
  } else {
    if (l->outside >= 0) {
      wait_outside(l, l->outside);
    }
    issue_collective(l, node);
  }
}

/* A receive was posted long ago (ts_step_runs.posted), a send ends in no instruction. */
static void lower_message(lowering *l, ts_nid node) {
  if (l->graph->node[node].op == TS_OP_RECEIVE) {
    close_range(l);
    emit_command(l, TS_LOWERED_RECEIVED, TS_QUEUE_COMPUTE, node, -1);
  } else {
    open_range(l);
    l->sends = true;
    emit_command(l, TS_LOWERED_SEND, TS_QUEUE_COMPUTE, node, -1);
  }
}

static void wait_copied(lowering *l, ts_nid node, int event) {
  const ts_node *copy = &l->graph->node[node];
  int *copied = &l->copied[queue_of_copy(copy)];
  if (ts_node_copies(copy) == TS_SPACE_FILE) {
    close_range(l);
    emit_command(l, TS_LOWERED_ARRIVED, TS_QUEUE_HOST, node, -1);
  } else if (event > *copied) {
    close_range(l);
    emit_command(l, TS_LOWERED_WAIT, TS_QUEUE_COMPUTE, TS_NONE, event);
    l->knows[queue_of_copy(copy)] = *copied = event;
  }
}

/* Nothing where its range has ended, which waited for all. */
static void lower_wait(lowering *l, ts_nid node) {
  const ts_node *what = &l->graph->node[node];
  int event = l->event_of[node];
  l->event_of[node] = -1;
  if (l->hosted && ts_node_is_copy(what)) {
    wait_copied(l, node, event);
  } else if (event > l->joined && reads_counts(what)) {
    wait_outside(l, event);
  } else if (event >= 0 && !reads_counts(what)) {
    wait_for_event(l, ts_node_is_copy(what) ? queue_of_copy(what) : TS_QUEUE_COMM, event);
  }
}

static void lower_instruction(lowering *l, const ts_instruction *instruction) {
  ts_nid node = instruction->node;
  const ts_node *what = &l->graph->node[node];
  if (ts_node_is_message(what)) {
    lower_message(l, node);
    return;
  }
  if (l->sends && instruction->kind == TS_ISSUE && ts_node_is_collective(what) &&
      (what->attr.comm.axes & TS_AXES(TS_AXIS_PP)) != 0) {
    close_range(l); /* other stages come to it behind what this one has not sent yet */
  }
  switch (instruction->kind) {
    case TS_RUN:
      if (what->on_host) {
        compute_on_host(l, node);
        break;
      }
      open_range(l);
      emit_command(l, TS_LOWERED_LAUNCH, TS_QUEUE_COMPUTE, node, -1);
      note_user(l, node, TS_QUEUE_COMPUTE, -1);
      l->newest = -1;
      break;
    case TS_ISSUE: issue(l, node); break;
    case TS_WAIT: lower_wait(l, node); break;
  }
}

static int most_touches(const ts_graph *graph) {
  int most = 0;
  for (ts_nid n = 0; n < graph->n_nodes; ++n) {
    const int here = ts_node_most_touches(&graph->node[n]);
    most = here > most ? here : most;
  }
  return most;
}

ts_lowered *ts_lower(const ts_graph *graph, const ts_schedule *schedule, const ts_plan *plan, unsigned segments,
                     int chunk) {
  ts_lowered *to = ts_calloc(1, sizeof *to);
  size_t nodes = (size_t) graph->n_nodes + 1;
  lowering l = {.to = to,
                .event_of = ts_malloc(nodes * sizeof *l.event_of),
                .newest = -1,
                .outside = -1,
                .joined = -1,
                .graph = graph,
                .plan = plan,
                .touch = ts_malloc(2 * (size_t) most_touches(graph) * sizeof *l.touch)};
  memset(l.seen, -1, sizeof l.seen);
  memset(l.met, -1, sizeof l.met);
  memset(l.knows, -1, sizeof l.knows);
  memset(l.event_of, -1, nodes * sizeof *l.event_of);
  memset(l.after, -1, sizeof l.after);
  memset(l.last, -1, sizeof l.last);
  memset(l.copied, -1, sizeof l.copied);
  memset(l.known, -1, sizeof l.known);
  to->segments = segments;
  l.hosted = ts_lowered_is_hosted(graph);
  for (ts_queue q = TS_QUEUE_IN; q <= TS_QUEUE_OUT && l.hosted; ++q) { /* what runs before have copied */
    l.copied[q] = record_event_on(&l, q);
  }
  emit_command(&l, TS_LOWERED_COPY_IN, TS_QUEUE_COMPUTE, TS_NONE, -1);
  l.first = add_point(&l);
  for (int i = 0; i < schedule->n; ++i) {
    if (ts_node_is_of(graph, &graph->node[schedule->instruction[i].node], segments, chunk)) {
      lower_instruction(&l, &schedule->instruction[i]);
    }
  }
  close_range(&l);
  if (l.outside >= 0) {
    wait_outside(&l, l.outside);
  }
  record_points(&l);
  ts_free(l.event_of);
  ts_free(l.point);
  ts_free(l.used);
  ts_free(l.touch);
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
    ts_text_add(to, "%-8s %-10s", ts_lowered_queue(c->queue), kinds[c->kind]);
    if (c->node != TS_NONE) {
      ts_text_add(to, " %s (%s)", graph->node[c->node].name, ts_op_get(graph->node[c->node].op)->name);
    } else if (c->event >= 0) {
      ts_text_add(to, " e%d", c->event);
    }
    ts_text_add(to, "\n");
  }
}
