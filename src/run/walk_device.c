/* Walking a program on a device: commands are queued, the second time ranges of them recorded, from then on replayed.
 * What is between ranges is queued every time. */
#include "base/log.h"
#include "base/memory.h"
#include "run/bound.h"

#include <math.h>
#include <string.h>

enum { SPANS = 4096 /* runs and waits that nobody asked about yet, before the device is waited for */ };

/* ---- the commands of a run ---- */

/* Runs of one kind and chunk in the same places are one recording. */
static ts_bound_run *find_run(ts_executor *e, const ts_bound_program *p, const ts_bound_view *view, ts_run run) {
  const ts_step_runs *step = &p->program->step;
  ts_bound_run *r = &view->run[run.chunk * step->n_kinds + run.kind];
  if (r->commands != NULL) {
    return r;
  }
  r->commands =
      ts_lower(p->program->graph, p->program->schedule, p->program->plan, step->kind[run.kind].segments, run.chunk);
  char *wrong = ts_lowered_verify(r->commands, p->program->graph, p->program->plan);
  TS_CHECK(wrong == NULL, "the program of the device is wrong: %s", wrong);
  r->event = ts_calloc((size_t) r->commands->n_events + 1, sizeof *r->event);
  r->graph = ts_calloc((size_t) r->commands->n_ranges + 1, sizeof *r->graph);
  for (int i = 0; i < r->commands->n_events; ++i) {
    r->event[i] = e->device->ops->event_create(e->device, false);
  }
  return r;
}

static void release_run(ts_device *device, ts_bound_run *r) {
  if (r->commands != NULL) {
    for (int k = 0; k < r->commands->n_ranges; ++k) {
      device->ops->graph_destroy(device, r->graph[k]);
    }
    ts_free(r->graph);
    for (int k = 0; k < r->commands->n_events; ++k) {
      device->ops->event_destroy(device, r->event[k]);
    }
    ts_free(r->event);
    ts_lowered_destroy(&r->commands);
  }
}

void ts_walk_device_release(ts_executor *e, ts_bound_program *p) {
  ts_device *device = e->device;
  for (int v = 0; v < p->n_views; ++v) {
    for (int i = 0; i < p->n_chunks * p->program->step.n_kinds; ++i) {
      release_run(device, &p->view[v].run[i]);
    }
    for (ts_nid n = 0; n < p->program->graph->n_nodes; ++n) {
      device->ops->event_destroy(device, p->view[v].node[n].begin);
      device->ops->event_destroy(device, p->view[v].node[n].end);
    }
  }
}

/* ---- queueing ---- */

static void mark(ts_device *device, void **event, ts_queue queue) {
  if (*event == NULL) {
    *event = device->ops->event_create(device, true);
  }
  device->ops->record(device, *event, queue);
}

static void queue_copy_of(ts_device *device, const ts_bound_node *b, ts_queue queue) {
  const ts_node *node = b->call.node;
  const void *from = b->in[node->n_in - 1];
  device->ops->copy(device, b->out[0], from, (size_t) ts_tensor_bytes(b->call.graph, node->out[0]), queue);
}

static void queue_node(ts_executor *e, ts_bound_node *b, ts_queue queue) {
  ts_device *device = e->device;
  bool observed = e->options.observer != NULL;
  device->ops->set_op(device, b->call.node->name);
  if (observed) {
    mark(device, &b->begin, queue);
  }
  switch (queue) {
    case TS_QUEUE_COMM: ts_bound_collective(b); break;
    case TS_QUEUE_IN:
    case TS_QUEUE_OUT: queue_copy_of(device, b, queue); break;
    default: b->kernel->run(&b->call); break;
  }
  if (observed) {
    mark(device, &b->end, queue);
  }
  if (e->options.check_finite && queue == TS_QUEUE_COMPUTE) {
    ts_bound_check_finite(e, b);
  }
}

static void queue_command(ts_executor *e, const ts_bound_view *view, const ts_bound_node *message,
                          const ts_bound_run *r, const ts_lowered_command *c) {
  ts_device *device = e->device;
  switch (c->kind) {
    case TS_LOWERED_LAUNCH:
    case TS_LOWERED_COPY:
    case TS_LOWERED_COLLECTIVE: queue_node(e, &view->node[c->node], c->queue); break;
    case TS_LOWERED_RECORD: device->ops->record(device, r->event[c->event], c->queue); break;
    case TS_LOWERED_WAIT: device->ops->wait(device, r->event[c->event], c->queue); break;
    case TS_LOWERED_SEND: ts_message_announce(message[c->node].line); break;
    default: break;
  }
}

static void queue_commands(ts_executor *e, const ts_bound_view *view, const ts_bound_node *message,
                           const ts_bound_run *r, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    queue_command(e, view, message, r, &r->commands->command[i]);
  }
  e->device->ops->set_op(e->device, NULL);
}

static bool wants_recordings(const ts_executor *e) {
  return e->options.graphs && e->options.observer == NULL && !e->options.check_finite;
}

/* The first time libraries may still make things.  With messages recordings are made at the end of a step. */
static bool records(const ts_executor *e, const ts_bound_program *p, const ts_bound_run *r) {
  return wants_recordings(e) && r->times > 0 && (p->n_messages == 0 || r->graph[0] != NULL);
}

/* Where the range that begins at a command ends. */
static int end_of_range(const ts_bound_run *r, int begin) {
  int end = begin;
  while (r->commands->command[end].kind != TS_LOWERED_CAPTURE_END) {
    ++end;
  }
  return end;
}

static void record_range(ts_executor *e, const ts_bound_view *view, const ts_bound_node *message, const ts_bound_run *r,
                         int range, int begin) {
  if (r->graph[range] == NULL) {
    e->device->ops->capture_begin(e->device);
    queue_commands(e, view, message, r, begin, end_of_range(r, begin));
    r->graph[range] = e->device->ops->capture_end(e->device);
  }
}

/* Range number \a range, whose commands begin at \a begin.  \return where they end. */
static int queue_range(ts_executor *e, const ts_bound_program *p, const ts_bound_view *view,
                       const ts_bound_node *message, const ts_bound_run *r, int range, int begin) {
  ts_device *device = e->device;
  int end = end_of_range(r, begin);
  if (records(e, p, r)) {
    record_range(e, view, message, r, range, begin);
    device->ops->replay(device, r->graph[range]);
  } else {
    queue_commands(e, view, message, r, begin, end);
  }
  for (int i = begin; i < end; ++i) {
    const ts_lowered_command *c = &r->commands->command[i];
    if (c->kind == TS_LOWERED_SEND) {
      device->ops->set_op(device, message[c->node].call.node->name);
      ts_message_start(message[c->node].line);
    }
  }
  device->ops->set_op(device, NULL);
  return end;
}

/* ---- time ---- */

static ts_span *next_span(ts_executor *e, ts_run_phase phase, const ts_bound_node *message) {
  if (e->used_spans == e->n_spans) {
    TS_GROW(e->span, e->n_spans, e->capacity_spans);
    e->span[e->n_spans++] = (ts_span){.begin = e->device->ops->event_create(e->device, true),
                                      .end = e->device->ops->event_create(e->device, true)};
  }
  ts_span *span = &e->span[e->used_spans++];
  span->phase = phase;
  span->message = message;
  return span;
}

void ts_walk_device_take_spans(ts_executor *e) {
  ts_device *device = e->device;
  for (int i = 0; i < e->used_spans; ++i) {
    const ts_span *span = &e->span[i];
    device->ops->finish(device, span->end);
    (span->message != NULL ? e->times.waited : e->times.phase)[span->phase] +=
        device->ops->seconds(device, span->begin, span->end);
    if (span->message == NULL && span->phase != TS_RUN_UPDATE) {
      e->times.span = device->ops->seconds(device, e->first, span->end);
    }
  }
  e->used_spans = e->followed_spans = 0;
  for (int i = 0; i < TS_BOUND_IMAGES; ++i) {
    e->image[i].spans = 0;
  }
  e->times.communication = e->times.exposed = NAN;
}

/* What an observer is told: the host's clock at the begin of the run, and the events' distances from there. */
static void report_run(ts_executor *e, const ts_bound_view *view, const ts_bound_node *message, const ts_bound_run *r,
                       const ts_span *span, double start) {
  ts_device *device = e->device;
  device->ops->finish(device, span->end);
  for (int i = 0; i < r->commands->n; ++i) {
    const ts_lowered_command *c = &r->commands->command[i];
    if (c->node != TS_NONE && c->kind != TS_LOWERED_SEND && c->queue != TS_QUEUE_HOST) {
      bool received = c->kind == TS_LOWERED_RECEIVED, collective = received || c->queue == TS_QUEUE_COMM;
      const ts_bound_node *b = &(received ? message : view->node)[c->node];
      if (collective || !e->options.messages_only) {
        e->options.observer(e->options.observer_user, b->call.node, collective,
                            start + device->ops->seconds(device, span->begin, b->begin),
                            device->ops->seconds(device, b->begin, b->end));
      }
    }
  }
}

static void queue_wait(ts_executor *e, ts_bound_node *message, ts_run_phase phase) {
  ts_device *device = e->device;
  ts_span *span = next_span(e, phase, message);
  ts_beat now;
  ts_heartbeat_read(ts_bound_heartbeat(e), &now);
  memcpy(span->instance, now.instance, sizeof span->instance);
  device->ops->record(device, span->begin, TS_QUEUE_COMPUTE);
  if (e->options.observer != NULL) {
    mark(device, &message->begin, TS_QUEUE_COMPUTE);
  }
  ts_messages_wait(e, message);
  device->ops->record(device, span->end, TS_QUEUE_COMPUTE);
  if (e->options.observer != NULL) {
    mark(device, &message->end, TS_QUEUE_COMPUTE);
  }
}

/* Before a file is read to memory or written from there, what the device still does with that. */
static void wait_for_bytes(ts_executor *e, const ts_bound_program *p, void *event) {
  ts_heartbeat_wait(ts_bound_heartbeat(e), "wait.for.device", p->group);
  e->device->ops->finish(e->device, event);
  ts_heartbeat_leave(ts_bound_heartbeat(e));
}

static void compute_here(ts_bound_node *b) {
  double start = ts_seconds();
  b->kernel->run(&b->call);
  ts_bound_observe(b, false, start);
}

/* \return whether it is the host's. */
static bool do_on_host(ts_executor *e, const ts_bound_program *p, const ts_bound_view *view, const ts_bound_run *r,
                       const ts_lowered_command *c) {
  switch (c->queue == TS_QUEUE_HOST ? c->kind : TS_N_LOWERED) {
    case TS_LOWERED_WAIT: wait_for_bytes(e, p, r->event[c->event]); return true;
    case TS_LOWERED_LAUNCH: compute_here(&view->node[c->node]); return true;
    case TS_LOWERED_TRANSFER: ts_bound_transfer(e, &view->node[c->node]); return true;
    case TS_LOWERED_ARRIVED: ts_bound_wait_transfer(e, &view->node[c->node]); return true;
    default: return false;
  }
}

static void queue_run_commands(ts_executor *e, const ts_bound_program *p, const ts_bound_view *view,
                               ts_bound_node *message, const ts_bound_run *r, ts_run_phase phase) {
  for (int i = 0, range = 0; i < r->commands->n; ++i) {
    const ts_lowered_command *c = &r->commands->command[i];
    if (do_on_host(e, p, view, r, c)) {
      continue;
    }
    switch (c->kind) {
      case TS_LOWERED_COPY_IN: ts_bound_copy_in(e, p, view->at); break;
      case TS_LOWERED_RECEIVED: queue_wait(e, &message[c->node], phase); break;
      case TS_LOWERED_CAPTURE_BEGIN: i = queue_range(e, p, view, message, r, range++, i + 1); break;
      default: queue_command(e, view, message, r, c); break;
    }
  }
  e->device->ops->set_op(e->device, NULL);
}

static void record_run(ts_executor *e, const ts_bound_program *p, const ts_bound_view *view, const ts_bound_run *r) {
  const ts_bound_node *message = p->view[ts_run_slot(view->at)].node;
  for (int i = 0, range = 0; i < r->commands->n; ++i) {
    if (r->commands->command[i].kind == TS_LOWERED_CAPTURE_BEGIN) {
      record_range(e, view, message, r, range++, i + 1);
    }
  }
}

void ts_walk_device_follow(ts_executor *e, int until) {
  ts_heartbeat *beat = ts_bound_heartbeat(e);
  for (; e->followed_spans < until; ++e->followed_spans) {
    const ts_span *span = &e->span[e->followed_spans];
    if (span->message != NULL) {
      ts_beat now;
      ts_heartbeat_read(beat, &now);
      ts_heartbeat_instance(beat, span->instance);
      ts_heartbeat_wait_for(beat, span->message->call.node->name, span->message->group, span->message->peer);
      e->device->ops->finish(e->device, span->end);
      ts_heartbeat_leave(beat);
      ts_heartbeat_instance(beat, now.instance);
    }
  }
}

void ts_walk_device_end_step(ts_executor *e, ts_bound_program *p) {
  ts_walk_device_follow(e, e->used_spans);
  ts_heartbeat_wait(ts_bound_heartbeat(e), "wait.for.device", p->group);
  ts_executor_finish(e);
  ts_heartbeat_leave(ts_bound_heartbeat(e));
  for (int v = 0; v < p->n_views && wants_recordings(e); ++v) {
    for (int i = 0; i < p->n_chunks * p->program->step.n_kinds; ++i) {
      if (p->view[v].run[i].times > 0) {
        record_run(e, p, &p->view[v], &p->view[v].run[i]);
      }
    }
  }
}

static void warm_run(ts_executor *e, ts_bound_program *p, ts_run run) {
  const ts_graph *g = p->program->graph;
  const ts_bound_view *view = ts_bound_view_of(e, p, run);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    if ((ts_op_get(g->node[n].op)->flags & TS_OP_PRODUCT) != 0 && ts_run_has(&p->program->step, run, g, &g->node[n])) {
      e->device->ops->set_op(e->device, g->node[n].name);
      view->node[n].kernel->run(&view->node[n].call);
    }
  }
  e->device->ops->set_op(e->device, NULL);
}

void ts_walk_device_warm(ts_executor *e, ts_bound_program *p) {
  const ts_step_runs *step = &p->program->step;
  bool *warm = ts_calloc((size_t) (p->n_chunks * step->n_kinds) + 1, sizeof *warm);
  for (int64_t i = 0; i < step->n && p->n_messages > 0; ++i) {
    ts_run run = ts_step_run(step, i);
    bool *is_warm = &warm[run.chunk * step->n_kinds + run.kind];
    if (!*is_warm) {
      warm_run(e, p, run);
      *is_warm = true;
    }
  }
  ts_free(warm);
  ts_executor_finish(e);
}

void ts_walk_device(ts_executor *e, ts_bound_program *p, ts_run run) {
  static const char *const queueing[TS_N_RUN_PHASES] = {"queue.forward", "queue.backward", "queue.update"};
  ts_device *device = e->device;
  const ts_run_kind *kind = &p->program->step.kind[run.kind];
  const ts_bound_view *view = ts_bound_view_of(e, p, run);
  ts_bound_node *message = p->view[ts_run_slot(run)].node;
  ts_bound_run *r = find_run(e, p, view, run);
  if (e->used_spans + 1 + p->n_messages > SPANS) {
    ts_walk_device_take_spans(e);
  }
  next_span(e, kind->phase, NULL);
  const int at = e->used_spans - 1;
  if (e->options.observer != NULL) {
    ts_executor_finish(e); /* or the host's clock would say nothing about the device's begin */
  }
  ts_bound_wait_for_image(e, p);
  double start = ts_seconds();
  ts_heartbeat_enter(ts_bound_heartbeat(e), queueing[kind->phase], p->group);
  device->ops->set_run(device, kind->title, r->commands->n_ranges > 0 && records(e, p, r));
  ts_messages_wait_for_sends(e, p, run);
  if (!e->counts) {
    mark(device, &e->first, TS_QUEUE_COMPUTE);
    e->counts = true;
  }
  device->ops->record(device, e->span[at].begin, TS_QUEUE_COMPUTE);
  queue_run_commands(e, p, view, message, r, kind->phase);
  device->ops->record(device, e->span[at].end, TS_QUEUE_COMPUTE);
  ts_heartbeat_leave(ts_bound_heartbeat(e));
  ++r->times;
  if (e->options.observer != NULL) {
    report_run(e, view, message, r, &e->span[at], start);
  }
}
