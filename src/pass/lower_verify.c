/* What the commands of a run must keep: a vector clock a queue. */
#include "pass/lower.h"

#include "base/memory.h"
#include "graph/op.h"
#include "pass/touch.h"

/* Bytes of an arena that a command touches. */
typedef struct access {
  ts_touch bytes;
  int queue;
  int at; /* place in its queue, from 1 */
  int command;
} access;

/* Messages count as two queues more: what is sent from a command on, and what was being received until one; what the
 * host knows to be done is a third. */
enum { SENT = TS_N_QUEUES, RECEIVED, HOST, N_ORDERS };

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
  access *transferred; /* by what is read from files or written to them, from its begin to its end */
  int n_transferred, transferred_capacity;
  bool hosted, capturing, took_part[N_ORDERS];
  int range;             /* 1: outside of captures; 2, 3, ...: in one of them */
  int n_begun;           /* captures */
  bool beside[N_ORDERS]; /* something goes on in the queue while the capture does, which must not use it */
} verifier;

static int order_of(const ts_lowered_command *c) {
  return c->queue == TS_QUEUE_HOST ? HOST : (int) c->queue;
}

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
                   first, name_of(v, first), ts_lowered_queue(v->commands->command[first].queue), second,
                   name_of(v, second), ts_lowered_queue(v->commands->command[second].queue));
}

/* The first access of a queue that overlaps with `a` and is not known to be done when `a` begins, or NULL. */
static const access *find_conflict(const verifier *v, const access *a, int other) {
  for (int i = v->done[other].n - 1; i >= 0; --i) {
    const access *b = &v->done[other].access[i];
    if (b->at <= v->queue[a->queue].of[other]) {
      return NULL;
    }
    if (ts_touches_collide(&a->bytes, &b->bytes)) {
      return b;
    }
  }
  return NULL;
}

/* The same of what goes on between a file and the host's memory. */
static const access *find_transfer(const verifier *v, const access *a) {
  for (int i = 0; i < v->n_transferred; ++i) {
    if (v->transferred[i].command != a->command && ts_touches_collide(&a->bytes, &v->transferred[i].bytes)) {
      return &v->transferred[i];
    }
  }
  return NULL;
}

static char *touch_bytes(verifier *v, access a) {
  const ts_arena arena = a.bytes.arena;
  int64_t slot = v->plan->slot_bytes[arena];
  if (ts_lifetime_is_kept(ts_arenas[arena].lifetime) && (a.bytes.begin < 0 || a.bytes.end > slot)) {
    return ts_format("command %d (%s) touches byte %lld of the %s arena, of which a place has %lld", a.command,
                     name_of(v, a.command), (long long) a.bytes.end, ts_arenas[arena].name, (long long) slot);
  }
  for (int q = 0; q < N_ORDERS; ++q) {
    const access *b = q == a.queue ? NULL : find_conflict(v, &a, q);
    if (b != NULL) {
      return complain(v, b->command, a.command);
    }
  }
  const access *transfer = find_transfer(v, &a);
  if (transfer != NULL) {
    return complain(v, transfer->command, a.command);
  }
  if (a.queue == HOST) {
    TS_GROW(v->transferred, v->n_transferred, v->transferred_capacity);
    v->transferred[v->n_transferred++] = a;
    return NULL;
  }
  TS_GROW(v->done[a.queue].access, v->done[a.queue].n, v->done[a.queue].capacity);
  v->done[a.queue].access[v->done[a.queue].n++] = a;
  return NULL;
}

static char *touch_operands(verifier *v, access a, ts_nid n) {
  ts_touch *touch = ts_malloc((size_t) ts_node_most_touches(&v->graph->node[n]) * sizeof *touch);
  const int count = ts_node_touches(v->graph, v->plan, n, touch);
  char *wrong = NULL;
  for (int i = 0; i < count && wrong == NULL; ++i) {
    a.bytes = touch[i];
    wrong = touch_bytes(v, a);
  }
  ts_free(touch);
  return wrong;
}

static bool is_joined(const verifier *v, int queue) {
  return !v->took_part[queue] || v->queue[TS_QUEUE_COMPUTE].of[queue] >= v->queue[queue].of[queue];
}

/* The graph of a capture holds what COMPUTE forked, and only if it came back. */
static char *check_join(const verifier *v, const char *where) {
  for (int q = 0; q < TS_N_QUEUES; ++q) {
    if (!is_joined(v, q) && !(v->capturing && v->beside[q])) {
      return ts_format("queue %s is not joined at the end of the %s", ts_lowered_queue((ts_queue) q), where);
    }
  }
  return NULL;
}

static char *check_events(verifier *v, int i) {
  const ts_lowered_command *c = &v->commands->command[i];
  if (v->capturing && v->beside[order_of(c)]) {
    return ts_format("command %d is captured in a queue that is not joined", i);
  }
  if (c->kind == TS_LOWERED_RECORD) {
    v->event[c->event] = v->queue[order_of(c)];
    v->recorded[c->event] = v->range;
  } else if (v->recorded[c->event] != v->range) { /* events of one side mean nothing on the other */
    return ts_format("command %d waits for event %d, which was not recorded", i, c->event);
  } else {
    merge(&v->queue[order_of(c)], &v->event[c->event]);
  }
  return NULL;
}

static char *check_capture(verifier *v, int i) {
  const ts_lowered_command *c = &v->commands->command[i];
  bool begin = c->kind == TS_LOWERED_CAPTURE_BEGIN;
  if (c->queue != TS_QUEUE_COMPUTE || begin == v->capturing) {
    return ts_format("command %d begins or ends a capture where it cannot", i);
  }
  for (int q = 0; q < TS_N_QUEUES && begin; ++q) {
    v->beside[q] = !is_joined(v, q);
  }
  char *wrong = begin ? NULL : check_join(v, "capture");
  v->capturing = begin;
  v->n_begun += begin;
  v->range = begin ? 1 + v->n_begun : 1;
  return wrong;
}

/* A collective whose counts the host reads is outside of captures, and so are copies where the host does something
 * itself; all else is in one; in its queue nothing else. */
static char *check_side(const verifier *v, int i) {
  const ts_lowered_command *c = &v->commands->command[i];
  bool inside = !ts_lowered_is_outside(&v->graph->node[c->node], v->hosted);
  if (v->capturing != inside) {
    return ts_format("command %d (%s) is %s the capture", i, name_of(v, i), inside ? "outside" : "inside");
  }
  return v->capturing && v->beside[c->queue]
             ? ts_format("command %d (%s) is captured in a queue that is not joined", i, name_of(v, i))
             : NULL;
}

/* What the host has written comes into the arenas of its space. */
static char *touch_inputs(verifier *v, access a) {
  char *wrong = NULL;
  for (ts_arena arena = TS_ARENA_STATE; arena < TS_N_ARENAS && wrong == NULL; ++arena) {
    const bool of_host = ts_arenas[arena].space == TS_SPACE_HOST && v->plan->slot_bytes[arena] > 0;
    a.bytes = (ts_touch){arena, 0, v->plan->slot_bytes[arena], true};
    wrong = of_host ? touch_bytes(v, a) : NULL;
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

static void forget_transfer(verifier *v, ts_nid node) {
  int n = 0;
  for (int i = 0; i < v->n_transferred; ++i) {
    if (v->commands->command[v->transferred[i].command].node != node) {
      v->transferred[n++] = v->transferred[i];
    }
  }
  v->n_transferred = n;
}

/* What the host does itself: what it computes is done when it goes on. */
static char *check_host(verifier *v, access a, const ts_lowered_command *c) {
  if (v->capturing) {
    return ts_format("command %d (%s) is the host's, inside a capture", a.command, name_of(v, a.command));
  }
  char *wrong = c->kind != TS_LOWERED_ARRIVED ? touch_operands(v, a, c->node) : NULL;
  if (c->kind != TS_LOWERED_TRANSFER) {
    forget_transfer(v, c->node);
  }
  return wrong;
}

/* Whatever the host knows to be done when it queues a command is done before that. */
static char *check_command(verifier *v, int i) {
  const ts_lowered_command *c = &v->commands->command[i];
  access a = {.queue = order_of(c), .command = i};
  v->took_part[a.queue] = true;
  merge(&v->queue[a.queue], &v->queue[HOST]);
  switch (c->kind) {
    case TS_LOWERED_RECORD:
    case TS_LOWERED_WAIT: return check_events(v, i);
    case TS_LOWERED_CAPTURE_BEGIN:
    case TS_LOWERED_CAPTURE_END: return check_capture(v, i);
    case TS_LOWERED_RECEIVED:
    case TS_LOWERED_SEND: return check_message(v, a, c);
    default: break;
  }
  if (a.queue == HOST) {
    return check_host(v, a, c);
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
                .hosted = ts_lowered_is_hosted(graph),
                .range = 1};
  char *wrong = NULL;
  for (int i = 0; i < commands->n && wrong == NULL; ++i) {
    wrong = check_command(&v, i);
  }
  if (wrong == NULL) {
    wrong = v.capturing           ? ts_format("a capture does not end")
            : v.n_transferred > 0 ? ts_format("command %d (%s) is not waited for", v.transferred->command,
                                              name_of(&v, v.transferred->command))
                                  : check_join(&v, "run");
  }
  ts_free(v.transferred);
  ts_free(v.event);
  ts_free(v.recorded);
  for (int q = 0; q < N_ORDERS; ++q) {
    ts_free(v.done[q].access);
  }
  return wrong;
}
