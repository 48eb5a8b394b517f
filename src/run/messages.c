/* Messages between the pieces of a pipeline: posted when their place is free, complete where what they bring is
 * read. */
#include "base/log.h"
#include "run/bound.h"

static ts_bound_node *message_of(ts_bound_program *p, int i, int slot) {
  return &p->view[slot].node[p->message[i]];
}

void ts_messages_start(ts_bound_node *b) {
  ts_message_start(b->line);
  b->untold = true;
}

/* Once a message: a line that was complete before is asked again where its place is needed, and behind a step. */
static void tell_arrived(ts_executor *e, ts_bound_node *b) {
  const ts_executor_options *o = &e->options;
  if (b->untold && o->observer != NULL) {
    o->observer(o->observer_user, b->call.node, true, ts_seconds(), 0);
  }
  b->untold = false;
}

void ts_messages_wait(ts_executor *e, ts_bound_node *b) {
  if (e->device != NULL) { /* which waits, not the host */
    ts_message_wait(b->line);
    return;
  }
  if (ts_message_poll(b->line)) {
    tell_arrived(e, b);
    return;
  }
  double start = ts_seconds();
  ts_heartbeat_wait_for(ts_bound_heartbeat(e), b->call.node->name, b->group, b->peer);
  ts_message_wait(b->line);
  ts_heartbeat_leave(ts_bound_heartbeat(e));
  e->times.exposed += ts_seconds() - start;
  ts_bound_observe(b, true, start);
  b->untold = false;
}

static void post_receive(ts_executor *e, ts_bound_node *b) {
  if (e->device == NULL) {
    ts_messages_start(b);
    return;
  }
  e->device->ops->set_op(e->device, b->call.node->name);
  ts_message_start(b->line);
  e->device->ops->set_op(e->device, NULL);
}

void ts_messages_post(ts_executor *e, ts_bound_program *p, int64_t run) {
  const ts_step_runs *step = &p->program->step;
  for (int64_t k = step->posted_before[run]; k < step->posted_before[run + 1]; ++k) {
    ts_run of = ts_step_run(step, step->posted[k]);
    for (int i = 0; i < p->n_messages; ++i) {
      ts_bound_node *b = message_of(p, i, ts_run_slot(of));
      if (b->call.node->op == TS_OP_RECEIVE && ts_run_has(step, of, p->program->graph, b->call.node)) {
        post_receive(e, b);
      }
    }
  }
}

void ts_messages_finish(ts_executor *e, ts_bound_program *p) {
  for (int i = 0; i < p->n_messages; ++i) {
    for (int slot = 0; slot < ts_step_slots(&p->program->step); ++slot) {
      ts_messages_wait(e, message_of(p, i, slot));
    }
  }
}

void ts_messages_wait_for_sends(ts_executor *e, ts_bound_program *p, ts_run run) {
  for (int i = 0; i < p->n_messages; ++i) {
    ts_bound_node *b = message_of(p, i, ts_run_slot(run));
    if (b->call.node->op == TS_OP_SEND && ts_run_has(&p->program->step, run, p->program->graph, b->call.node)) {
      ts_messages_wait(e, b);
    }
  }
}

void ts_messages_note_coming(ts_bound_program *p) {
  for (int slot = 0; slot < ts_step_slots(&p->program->step); ++slot) {
    for (int i = 0; i < p->n_messages; ++i) {
      ts_bound_node *b = message_of(p, i, slot);
      b->comes = b->call.node->op == TS_OP_RECEIVE && ts_message_is_open(b->line);
    }
  }
}

void ts_messages_allow_coming(ts_bound_program *p) {
  for (int slot = 0; slot < ts_step_slots(&p->program->step); ++slot) {
    for (int i = 0; i < p->n_messages; ++i) {
      if (message_of(p, i, slot)->comes) {
        ts_memcheck_allow(p->memcheck, p->message[i]);
      }
    }
  }
}

void ts_messages_poll(ts_bound_program *p) {
  for (int slot = 0; slot < ts_step_slots(&p->program->step); ++slot) {
    for (int i = 0; i < p->n_messages; ++i) {
      if (ts_message_is_open(message_of(p, i, slot)->line)) {
        ts_message_poll(message_of(p, i, slot)->line);
        return;
      }
    }
  }
}
