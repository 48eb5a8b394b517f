/* Messages between the pieces of a pipeline, simulated: a line over a boundary in one direction is a queue on either
 * side, and the heads meet.  So a send completes in its receive, whatever an MPI would have put aside. */
#include "base/memory.h"
#include "base/text.h"
#include "graph/op.h"
#include "run/simulation.h"

static ts_sim_message *find_message(ts_sim_rank *r, ts_nid n, int slot) {
  for (int i = 0; i < r->n_messages; ++i) {
    if (r->message[i].node == n && r->message[i].slot == slot) {
      return &r->message[i];
    }
  }
  return NULL;
}

static void forget_message(ts_sim_rank *r, const ts_sim_message *m) {
  int i = (int) (m - r->message);
  for (--r->n_messages; i < r->n_messages; ++i) {
    r->message[i] = r->message[i + 1];
  }
}

char *ts_sim_post(ts_sim_rank *r, ts_nid n, int slot, int64_t micro_batch) {
  const ts_node *node = ts_sim_node(r, n);
  if (find_message(r, n, slot) != NULL) {
    return ts_format("rank %d: %s of micro-batch %lld is posted in slot %d, where that of %lld is under way",
                     r->program->mesh.rank, node->name, (long long) micro_batch, slot,
                     (long long) find_message(r, n, slot)->micro_batch);
  }
  bool sends = node->op == TS_OP_SEND;
  for (int i = 0; i < node->n_out; ++i) {
    ts_nid other = ts_sim_message_uses(r, ts_sim_extent_of(r, node->out[i], ts_run_in_slot(slot)), true);
    if (other != TS_NONE) {
      return ts_format("rank %d: %s is received where %s is under way", r->program->mesh.rank, node->name,
                       ts_sim_node(r, other)->name);
    }
  }
  TS_GROW(r->message, r->n_messages, r->message_capacity);
  r->message[r->n_messages++] = (ts_sim_message){n, slot, micro_batch, sends, false};
  return NULL;
}

char *ts_sim_post_receives(ts_sim_rank *r) {
  const ts_step_runs *step = &r->program->step;
  const ts_graph *g = r->program->graph;
  char *fault = NULL;
  for (int64_t k = step->run != NULL ? step->posted_before[r->run] : 0;
       step->run != NULL && k < step->posted_before[r->run + 1] && fault == NULL; ++k) {
    ts_run of = ts_step_run(step, step->posted[k]);
    for (ts_nid n = 0; n < g->n_nodes && fault == NULL; ++n) {
      if (g->node[n].op == TS_OP_RECEIVE && ts_run_has(step, of, g, &g->node[n])) {
        fault = ts_sim_post(r, n, ts_run_slot(of), of.micro_batch);
      }
    }
  }
  return fault;
}

static bool is_complete(ts_sim_rank *r, ts_sim_message *m) {
  r->waits = *m;
  if (m->done) {
    forget_message(r, m);
    r->waits.node = TS_NONE;
  }
  return r->waits.node == TS_NONE;
}

char *ts_sim_wait_message(ts_sim_rank *r, ts_nid n, int slot, bool *blocked) {
  ts_sim_message *m = find_message(r, n, slot);
  if (m == NULL) {
    return ts_format("rank %d: waits for %s, which was not posted", r->program->mesh.rank, ts_sim_node(r, n)->name);
  }
  if (m->micro_batch != r->now.micro_batch) {
    return ts_format("rank %d: %s brings micro-batch %lld where %lld is due", r->program->mesh.rank,
                     ts_sim_node(r, n)->name, (long long) m->micro_batch, (long long) r->now.micro_batch);
  }
  *blocked = !is_complete(r, m);
  return NULL;
}

bool ts_sim_wait_sends(ts_sim_rank *r, bool all) {
  for (int i = 0; i < r->n_messages;) {
    ts_sim_message *m = &r->message[i];
    const ts_node *node = ts_sim_node(r, m->node);
    bool mine =
        m->sends &&
        (all || (m->slot == ts_run_slot(r->now) && ts_run_has(&r->program->step, r->now, r->program->graph, node)));
    if (mine && !is_complete(r, m)) {
      return false;
    }
    i += !mine;
  }
  return true;
}

ts_nid ts_sim_message_uses(const ts_sim_rank *r, ts_sim_extent at, bool also_reads) {
  for (int k = 0; k < r->n_messages; ++k) {
    const ts_sim_message *m = &r->message[k];
    const ts_node *node = ts_sim_node(r, m->node);
    for (int i = 0; i < (m->sends ? node->n_in : node->n_out); ++i) {
      ts_tid t = m->sends ? node->in[i] : node->out[i];
      if ((!m->sends || also_reads) && ts_sim_overlap(ts_sim_extent_of(r, t, ts_run_in_slot(m->slot)), at)) {
        return m->node;
      }
    }
  }
  return TS_NONE;
}

/* ---- both sides ---- */

static const ts_attr *attr_of(const ts_sim_rank *r, const ts_sim_message *m) {
  return &ts_sim_node(r, m->node)->attr;
}

/* The first of a side's that goes the same way and is not complete. */
static ts_sim_message *head_of(ts_sim_rank *r, bool sends, const ts_attr *line) {
  for (int i = 0; i < r->n_messages; ++i) {
    const ts_attr *a = attr_of(r, &r->message[i]);
    if (!r->message[i].done && r->message[i].sends == sends && a->message.boundary == line->message.boundary &&
        a->message.back == line->message.back) {
      return &r->message[i];
    }
  }
  return NULL;
}

static const char *line_difference(const ts_attr *a, int64_t sent, const ts_attr *b, int64_t received) {
  if (a->message.n != b->message.n) {
    return "the number of tensors differs";
  }
  for (int i = 0; i < a->message.n; ++i) {
    const ts_crossing *x = &a->message.crossing[i], *y = &b->message.crossing[i];
    const ts_shape left = ts_crossing_shape(x), right = ts_crossing_shape(y);
    if (x->dtype != y->dtype || !ts_shape_equal(&left, &right)) {
      return "a tensor differs";
    }
  }
  return sent != received ? "micro-batch differs" : NULL;
}

static char *match_line(ts_simulation *s, ts_sim_rank *to, ts_sim_message *received, bool *moved) {
  const ts_attr *line = attr_of(to, received);
  int peer = ts_mesh_group_member(&to->program->mesh, TS_AXES(TS_AXIS_PP), line->message.peer);
  ts_sim_rank *from = &s->rank[peer];
  ts_sim_message *sent = head_of(from, true, line);
  if (sent == NULL || head_of(to, false, line) != received) {
    return NULL;
  }
  const char *what = line_difference(attr_of(from, sent), sent->micro_batch, line, received->micro_batch);
  if (what != NULL) {
    return ts_format("rank %d: %s of micro-batch %lld, while rank %d: %s of micro-batch %lld: %s",
                     from->program->mesh.rank, ts_sim_node(from, sent->node)->name, (long long) sent->micro_batch,
                     to->program->mesh.rank, ts_sim_node(to, received->node)->name, (long long) received->micro_batch,
                     what);
  }
  sent->done = received->done = *moved = true;
  return NULL;
}

char *ts_sim_match_messages(ts_simulation *s, bool *moved) {
  char *fault = NULL;
  for (int r = 0; r < s->n_ranks && fault == NULL; ++r) {
    for (int i = 0; i < s->rank[r].n_messages && fault == NULL; ++i) {
      ts_sim_message *m = &s->rank[r].message[i];
      if (!m->sends && !m->done) {
        fault = match_line(s, &s->rank[r], m, moved);
      }
    }
  }
  return fault;
}
