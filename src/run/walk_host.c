/* Walking a program on the host: kernels return when they are done, collectives run on a stream of calls. */
#include "base/log.h"
#include "graph/op.h"
#include "run/bound.h"

/* Runs on the stream. */
static void run_collective(void *argument) {
  ts_bound_node *b = argument;
  double start = b->executor->options.observer != NULL ? ts_seconds() : 0;
  ts_heartbeat *beat = ts_bound_heartbeat(b->executor);
  ts_heartbeat_enter(beat, b->call.node->name, b->group);
  ts_bound_collective(b);
  ts_heartbeat_leave(beat);
  ts_bound_observe(b, true, start);
}

/* What is only known now is looked at before a kernel trusts it. */
static void trust_rows(const ts_bound_node *b) {
  int at = ts_node_extent(b->call.node);
  if (at >= 0) {
    const ts_tensor *tensor = b->call.graph->tensor;
    int64_t n = tensor[b->call.node->in[at]].shape.d[0] - 1, rows = tensor[b->call.node->out[0]].shape.d[0];
    const char *wrong = ts_extent_wrong(b->call.in[at], n, rows);
    TS_CHECK(wrong == NULL, "%s: %s", b->call.node->name, wrong);
  }
}

static void run_kernel(ts_executor *e, ts_bound_node *b) {
  double start = e->options.observer != NULL && !e->options.messages_only ? ts_seconds() : 0;
  trust_rows(b);
  b->kernel->run(&b->call);
  ts_bound_observe(b, false, start);
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

/* Under memcheck nothing changes behind an instruction's back. */
static void start_copy(ts_executor *e, ts_bound_node *b) {
  ts_bound_transfer(e, b);
  if (e->options.memcheck) {
    ts_bound_wait_transfer(e, b);
  }
}

static void start_node(ts_executor *e, ts_bound_node *b) {
  if (ts_node_is_copy(b->call.node)) {
    start_copy(e, b);
  } else if (b->line != NULL) {
    ts_messages_start(b);
  } else {
    b->ticket = ts_stream_issue(e->stream, run_collective, b);
  }
}

static void wait_instruction(ts_executor *e, ts_bound_node *b) {
  (ts_node_is_copy(b->call.node) ? ts_bound_wait_transfer : b->line != NULL ? ts_messages_wait : wait_node)(e, b);
}

void ts_walk_host(ts_executor *e, ts_bound_program *p, ts_run run) {
  const ts_run_kind *what = &p->program->step.kind[run.kind];
  const ts_schedule *schedule = p->program->schedule;
  ts_bound_node *nodes = ts_bound_view_of(e, p, run)->node, *messages = p->view[ts_run_slot(run)].node;
  double start = ts_seconds(), waited = e->times.exposed + e->times.copied;
  ts_messages_wait_for_sends(e, p, run);
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
    if (p->memcheck != NULL) {
      ts_messages_note_coming(p);
    }
    switch (instruction->kind) {
      case TS_RUN: run_kernel(e, b); break;
      case TS_ISSUE: start_node(e, b); break;
      case TS_WAIT: wait_instruction(e, b); break;
    }
    ts_messages_poll(p);
    if (p->memcheck != NULL) {
      ts_messages_allow_coming(p);
      char *wrong = ts_memcheck_after(p->memcheck, i);
      TS_CHECK(wrong == NULL, "memory check: %s", wrong);
    }
  }
  double busy = ts_stream_busy_seconds(e->stream);
  e->times.communication += busy - e->busy_seen;
  e->busy_seen = busy;
  e->times.phase[what->phase] += ts_seconds() - start;
  e->times.waited[what->phase] += e->times.exposed + e->times.copied - waited;
  e->began = e->began == 0 ? start : e->began;
  e->times.span = what->phase != TS_RUN_UPDATE ? ts_seconds() - e->began : e->times.span;
}
