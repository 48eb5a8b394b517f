/* Walking a program on the host: kernels return when they are done, collectives run on a stream of calls. */
#include "base/log.h"
#include "run/bound.h"

static void observe(const ts_bound_node *b, bool collective, double start) {
  const ts_executor_options *o = &b->executor->options;
  if (o->observer != NULL) {
    o->observer(o->observer_user, b->call.node, collective, start, ts_seconds() - start);
  }
}

/* Runs on the stream. */
static void run_collective(void *argument) {
  ts_bound_node *b = argument;
  double start = b->executor->options.observer != NULL ? ts_seconds() : 0;
  ts_heartbeat *beat = ts_bound_heartbeat(b->executor);
  ts_heartbeat_enter(beat, b->call.node->name, b->group);
  ts_bound_collective(b);
  ts_heartbeat_leave(beat);
  observe(b, true, start);
}

static void run_kernel(ts_executor *e, ts_bound_node *b) {
  double start = e->options.observer != NULL ? ts_seconds() : 0;
  b->kernel->run(&b->call);
  observe(b, false, start);
  if (e->options.check_finite) {
    ts_bound_check_finite(e, b);
  }
}

static void wait_node(ts_executor *e, ts_bound_node *b) {
  if (b->ticket != 0) {
    e->times.exposed += ts_stream_wait(e->stream, b->ticket);
    b->ticket = 0;
  }
}

/* ---- messages between the pieces of a pipeline ---- */

static ts_bound_node *message_of(ts_bound_program *p, int i, int slot) {
  return &p->view[slot].node[p->message[i]];
}

static void wait_message(ts_executor *e, ts_bound_node *b) {
  if (ts_message_poll(b->line)) {
    return;
  }
  double start = ts_seconds();
  ts_heartbeat_wait_for(ts_bound_heartbeat(e), b->call.node->name, b->group, b->peer);
  ts_message_wait(b->line);
  ts_heartbeat_leave(ts_bound_heartbeat(e));
  e->times.exposed += ts_seconds() - start;
  observe(b, true, start);
}

void ts_walk_host_post(ts_executor *e, ts_bound_program *p, int64_t run) {
  (void) e;
  const ts_step_runs *step = &p->program->step;
  for (int64_t k = step->posted_before[run]; k < step->posted_before[run + 1]; ++k) {
    ts_run of = ts_step_run(step, step->posted[k]);
    for (int i = 0; i < p->n_messages; ++i) {
      ts_bound_node *b = message_of(p, i, ts_run_slot(of));
      if (b->call.node->op == TS_OP_RECEIVE && ts_run_has(step, of, p->program->graph, b->call.node)) {
        ts_message_start(b->line);
      }
    }
  }
}

void ts_walk_host_finish(ts_executor *e, ts_bound_program *p) {
  for (int i = 0; i < p->n_messages; ++i) {
    for (int slot = 0; slot < ts_step_slots(&p->program->step); ++slot) {
      wait_message(e, message_of(p, i, slot));
    }
  }
}

/* What a run will send lies where it lay the last time. */
static void wait_for_sends(ts_executor *e, ts_bound_program *p, ts_run run) {
  for (int i = 0; i < p->n_messages; ++i) {
    ts_bound_node *b = message_of(p, i, ts_run_slot(run));
    if (b->call.node->op == TS_OP_SEND && ts_run_has(&p->program->step, run, p->program->graph, b->call.node)) {
      wait_message(e, b);
    }
  }
}

/* What is under way moves on when MPI is called. */
static void poll_messages(ts_bound_program *p) {
  for (int slot = 0; slot < ts_step_slots(&p->program->step); ++slot) {
    for (int i = 0; i < p->n_messages; ++i) {
      if (ts_message_is_open(message_of(p, i, slot)->line)) {
        ts_message_poll(message_of(p, i, slot)->line);
        return;
      }
    }
  }
}

static void start_node(ts_executor *e, ts_bound_node *b) {
  if (b->line != NULL) {
    ts_message_start(b->line);
  } else {
    b->ticket = ts_stream_issue(e->stream, run_collective, b);
  }
}

static void wait_instruction(ts_executor *e, ts_bound_node *b) {
  (b->line != NULL ? wait_message : wait_node)(e, b);
}

void ts_walk_host(ts_executor *e, ts_bound_program *p, ts_run run) {
  const ts_run_kind *what = &p->program->step.kind[run.kind];
  const ts_schedule *schedule = p->program->schedule;
  ts_bound_node *nodes = ts_bound_view_of(e, p, run)->node, *messages = p->view[ts_run_slot(run)].node;
  double start = ts_seconds(), exposed = e->times.exposed;
  wait_for_sends(e, p, run);
  if (p->memcheck != NULL) {
    ts_memcheck_begin(p->memcheck);
  }
  for (int i = 0; i < schedule->n; ++i) {
    const ts_instruction *instruction = &schedule->instruction[i];
    const ts_node *node = &p->program->graph->node[instruction->node];
    if (!ts_run_has(&p->program->step, run, p->program->graph, node)) {
      continue;
    }
    ts_bound_node *b = &(ts_node_is_message(node) ? messages : nodes)[instruction->node];
    switch (instruction->kind) {
      case TS_RUN: run_kernel(e, b); break;
      case TS_ISSUE: start_node(e, b); break;
      case TS_WAIT: wait_instruction(e, b); break;
    }
    poll_messages(p);
    if (p->memcheck != NULL) {
      char *wrong = ts_memcheck_after(p->memcheck, i);
      TS_CHECK(wrong == NULL, "memory check: %s", wrong);
    }
  }
  double busy = ts_stream_busy_seconds(e->stream);
  e->times.communication += busy - e->busy_seen;
  e->busy_seen = busy;
  e->times.phase[what->phase] += ts_seconds() - start;
  e->times.waited[what->phase] += e->times.exposed - exposed;
}
