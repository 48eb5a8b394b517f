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

void ts_walk_host(ts_executor *e, ts_bound_program *p, ts_run run) {
  const ts_run_kind *what = &p->program->step.kind[run.kind];
  const ts_schedule *schedule = p->program->schedule;
  double start = ts_seconds();
  if (p->memcheck != NULL) {
    ts_memcheck_begin(p->memcheck);
  }
  for (int i = 0; i < schedule->n; ++i) {
    const ts_instruction *instruction = &schedule->instruction[i];
    ts_bound_node *b = &p->node[run.slot][instruction->node];
    if ((b->call.node->segment & what->segments) == 0) {
      continue;
    }
    switch (instruction->kind) {
      case TS_RUN: run_kernel(e, b); break;
      case TS_ISSUE: b->ticket = ts_stream_issue(e->stream, run_collective, b); break;
      case TS_WAIT: wait_node(e, b); break;
    }
    if (p->memcheck != NULL) {
      char *wrong = ts_memcheck_after(p->memcheck, i);
      TS_CHECK(wrong == NULL, "memory check: %s", wrong);
    }
  }
  double busy = ts_stream_busy_seconds(e->stream);
  e->times.communication += busy - e->busy_seen;
  e->busy_seen = busy;
  e->times.phase[what->phase] += ts_seconds() - start;
}
