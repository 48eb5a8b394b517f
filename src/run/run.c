/* Running what was bound, and what is seen of it. */
#include "base/log.h"
#include "base/memory.h"
#include "run/bound.h"

#include <math.h>
#include <string.h>

static void run_all_gather(ts_bound_node *b) {
  b->comm->ops->all_gather(b->comm, b->transfer, b->call.node->attr.comm.n_pieces, ts_call_in(&b->call, 0)->dtype);
}

static void run_all_reduce(ts_bound_node *b) {
  const ts_node *node = b->call.node;
  b->comm->ops->all_reduce(b->comm, b->in[0], b->out[0], ts_tensor_count(b->call.graph, node->in[0]),
                           ts_call_in(&b->call, 0)->dtype, node->attr.comm.wire, b->call.workspace,
                           b->call.workspace_bytes);
}

static void run_reduce_scatter(ts_bound_node *b) {
  const ts_node *node = b->call.node;
  b->comm->ops->reduce_scatter(b->comm, b->transfer, node->attr.comm.n_pieces, ts_call_in(&b->call, 0)->dtype,
                               node->attr.comm.wire, ts_call_out(&b->call, 0)->dtype, b->call.beta, b->call.workspace,
                               b->call.workspace_bytes);
}

static void run_all_to_all(ts_bound_node *b) {
  b->comm->ops->exchange(b->comm, &b->exchange, b->call.workspace, b->call.workspace_bytes);
}

static void run_exchange_rows(ts_bound_node *b) {
  const ts_tensor *x = ts_call_in(&b->call, 0), *y = ts_call_out(&b->call, 0);
  b->comm->ops->exchange_rows(b->comm,
                              &(ts_row_exchange){.x = b->in[0],
                                                 .y = b->out[0],
                                                 .firsts = b->in[1],
                                                 .experts = b->call.node->attr.comm.piece[0].cuts,
                                                 .row_bytes = x->shape.d[1] * (int64_t) ts_dtype_size(x->dtype),
                                                 .x_rows = x->shape.d[0],
                                                 .y_rows = y->shape.d[0],
                                                 .home = b->call.node->attr.comm.home});
}

void ts_bound_collective(ts_bound_node *b) {
  static void (*const run[TS_N_OPS])(ts_bound_node *) = {[TS_OP_ALL_GATHER] = run_all_gather,
                                                         [TS_OP_ALL_REDUCE] = run_all_reduce,
                                                         [TS_OP_REDUCE_SCATTER] = run_reduce_scatter,
                                                         [TS_OP_ALL_TO_ALL] = run_all_to_all,
                                                         [TS_OP_EXCHANGE_ROWS] = run_exchange_rows};
  TS_ASSERT(run[b->call.node->op] != NULL);
  run[b->call.node->op](b);
}

void ts_bound_transfer(ts_executor *e, ts_bound_node *b) {
  const ts_node *node = b->call.node;
  bool writes = ts_node_takes(node);
  void *memory = writes ? (void *) b->in[1] : b->out[0];
  b->ticket = ts_store_start(e->options.store, writes, b->stored, ts_tensor_bytes(b->call.graph, node->out[0]), memory);
}

void ts_bound_wait_transfer(ts_executor *e, ts_bound_node *b) {
  if (b->ticket != 0) {
    e->times.copied += ts_store_wait(e->options.store, b->ticket);
    b->ticket = 0;
  }
}

/* Of an lse in fp32 -inf says that there was nothing. */
static int64_t first_nonfinite(const void *data, ts_dtype dtype, int64_t count, bool lse) {
  for (int64_t i = 0; i < count; ++i) {
    bool finite = dtype == TS_F32    ? isfinite(((const float *) data)[i])
                  : dtype == TS_F64  ? isfinite(((const double *) data)[i])
                  : dtype == TS_BF16 ? (((const uint16_t *) data)[i] & 0x7f80) != 0x7f80
                  : dtype == TS_F16  ? (((const uint16_t *) data)[i] & 0x7c00) != 0x7c00
                                     : true;
    bool empty = lse && dtype == TS_F32 && ((const float *) data)[i] == -INFINITY;
    if (!finite && !empty) {
      return i;
    }
  }
  return -1;
}

/* The same where the memory may be a device's. */
static int64_t find_nonfinite(ts_executor *e, const void *memory, ts_dtype dtype, int64_t count, bool lse) {
  if (e->device == NULL) {
    return first_nonfinite(memory, dtype, count, lse);
  }
  size_t bytes = (size_t) count * ts_dtype_size(dtype);
  void *copy = ts_malloc(bytes + 1);
  ts_bound_read(e, copy, memory, bytes);
  int64_t at = first_nonfinite(copy, dtype, count, lse);
  ts_free(copy);
  return at;
}

/* Elements of an output that are there: all, or those of rows that there are at run time. */
static int64_t written_count(ts_executor *e, const ts_bound_node *b, int i) {
  const ts_graph *g = b->call.graph;
  const ts_node *node = b->call.node;
  const ts_shape *shape = &g->tensor[node->out[i]].shape;
  int at = ts_node_extent(node);
  if (at < 0) {
    return ts_shape_count(shape);
  }
  int32_t rows;
  const int32_t *last = (const int32_t *) b->call.in[at] + g->tensor[node->in[at]].shape.d[0] - 1;
  if (e->device == NULL) {
    rows = *last;
  } else {
    ts_bound_read(e, &rows, last, sizeof rows);
  }
  return rows * shape->d[shape->n - 1];
}

/* Packed gradients, and what is updated, have gaps that nobody writes: only what kernels compute is looked at. */
void ts_bound_check_finite(ts_executor *e, const ts_bound_node *b) {
  const ts_graph *g = b->call.graph;
  const ts_node *node = b->call.node;
  unsigned flags = ts_op_get(node->op)->flags;
  for (int i = 0; e->nonfinite == NULL && i < node->n_out; ++i) {
    const ts_tensor *t = &g->tensor[node->out[i]];
    bool gaps = (flags & TS_OP_IS_UPDATE) != 0, lse = i == 1 && (flags & TS_OP_LSE) != 0;
    int64_t at = gaps ? -1 : find_nonfinite(e, b->out[i], t->dtype, written_count(e, b, i), lse);
    if (at >= 0) {
      e->nonfinite = ts_format("op %s (%s), tensor %s, element %lld", node->name, ts_op_get(node->op)->name, t->name,
                               (long long) at);
    }
  }
}

void ts_bound_observe(const ts_bound_node *b, bool collective, double start) {
  const ts_executor_options *o = &b->executor->options;
  if (o->observer != NULL && (collective || !o->messages_only)) {
    o->observer(o->observer_user, b->call.node, collective, start, ts_seconds() - start);
  }
}

/* ---- runs ---- */

/* What the host touches in a run it waits for by that program's commands; another's copies may be in recordings. */
static void walk_run(ts_executor *e, ts_bound_program *p, ts_run run) {
  if (p->hosted && e->last != NULL && e->last != p) {
    ts_executor_finish(e);
  }
  e->last = p;
  (e->device != NULL ? ts_walk_device : ts_walk_host)(e, p, run);
}

static void make_left(ts_executor *e, ts_bound_program *p, unsigned which) {
  for (int chunk = 0; chunk < p->n_chunks; ++chunk) {
    if ((p->left[chunk] & which) != 0) {
      p->left[chunk] &= ~which;
      walk_run(e, p, ts_step_run_of_left(which, chunk));
    }
  }
}

void ts_bound_update_late(ts_executor *e) {
  for (int i = 0; i < e->n_programs; ++i) {
    for (int chunk = 0; chunk < e->program[i].n_chunks; ++chunk) {
      e->program[i].ahead = e->program[i].ahead || (e->program[i].left[chunk] & TS_LEFT_UPDATES) != 0;
    }
    make_left(e, &e->program[i], TS_LEFT_UPDATES);
  }
}

/* Whatever else is run needs their values now. */
static void complete_others(ts_executor *e, const ts_bound_program *p) {
  for (int i = 0; i < e->n_programs; ++i) {
    if (&e->program[i] != p) {
      make_left(e, &e->program[i], TS_LEFT_UPDATES);
      make_left(e, &e->program[i], TS_LEFT_GATHERS);
    }
  }
}

void ts_executor_complete(ts_executor *e) {
  complete_others(e, NULL);
}

/* Could updates wait on one rank that another one has made?  By the deck: all ranks say the same. */
static bool may_differ(const ts_executor *e, const ts_program *program) {
  const ts_deck *deck = program->deck;
  bool leaves = program->use == TS_MODEL_TRAIN && deck->zero_optimization.offload_optimizer.super_offload &&
                ts_deck_offloads(deck);
  return leaves && e->device != NULL && e->options.graphs && e->options.world != NULL;
}

/* Recordings have messages in them, which all ranks replay or none: where one has made its updates before the first
 * forward, all do. */
static void agree_on_left(ts_executor *e, ts_bound_program *p) {
  bool *ahead = ts_world_gather(e->options.world, &p->ahead, sizeof p->ahead);
  for (int rank = 0; rank < ts_world_size(e->options.world); ++rank) {
    p->ahead = p->ahead || ahead[rank];
  }
  ts_free(ahead);
  if (p->ahead) {
    make_left(e, p, TS_LEFT_UPDATES);
  }
  p->ahead = false;
}

void ts_executor_run_one(ts_executor *e, int index, ts_run run) {
  ts_bound_program *p = &e->program[index];
  const ts_step_runs *step = &p->program->step;
  unsigned leaves = ts_step_leaves(step, run), *left = &p->left[run.chunk];
  if (p->asks) {
    agree_on_left(e, p);
  }
  complete_others(e, leaves != 0 ? NULL : p);
  if (ts_step_takes_left(*left, &run)) {
    *left = 0;
  }
  walk_run(e, p, run);
  for (int chunk = 0; chunk < p->n_chunks && leaves != 0; ++chunk) {
    p->left[chunk] = leaves;
  }
  p->asks = step->kind[run.kind].phase == TS_RUN_UPDATE && may_differ(e, p->program);
}

void ts_executor_drop_updates(ts_executor *e) {
  for (int i = 0; i < e->n_programs; ++i) {
    memset(e->program[i].left, 0, (size_t) e->program[i].n_chunks * sizeof *e->program[i].left);
  }
}

void ts_executor_run(ts_executor *e, int index, int64_t run) {
  ts_bound_program *p = &e->program[index];
  const ts_step_runs *step = &p->program->step;
  if (p->n_messages > 0) {
    ts_messages_post(e, p, run);
  }
  ts_executor_run_one(e, index, ts_step_run(step, run));
  if (p->n_messages > 0 && run == step->n - 1) {
    ts_messages_finish(e, p);
  }
  if (p->n_messages > 0 && run == step->n - 1 && e->device != NULL) {
    ts_walk_device_end_step(e, p);
  }
}

/* ---- what was seen ---- */

ts_executor_times ts_executor_take_times(ts_executor *e) {
  if (e->device != NULL) {
    ts_walk_device_take_spans(e);
  }
  ts_executor_times times = e->times;
  e->times = (ts_executor_times){0};
  e->began = 0;
  e->counts = false;
  return times;
}

double ts_executor_busy(const ts_executor_times *t) {
  return t->phase[TS_RUN_FORWARD] + t->phase[TS_RUN_BACKWARD] - t->waited[TS_RUN_FORWARD] - t->waited[TS_RUN_BACKWARD];
}

void ts_executor_set_observer(ts_executor *e, ts_executor_observer *observer, void *user) {
  e->options.observer = observer;
  e->options.observer_user = user;
  e->options.messages_only = false;
}

void ts_executor_observe_messages(ts_executor *e, ts_executor_observer *observer, void *user) {
  ts_executor_set_observer(e, observer, user);
  e->options.messages_only = true;
}

char *ts_executor_take_nonfinite(ts_executor *e) {
  char *text = e->nonfinite;
  e->nonfinite = NULL;
  return text;
}

int64_t ts_executor_peak_bytes(const ts_executor *e) {
  return (int64_t) (e->device != NULL ? e->device->ops->used(e->device) : ts_process_peak());
}
