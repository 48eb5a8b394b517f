#include "run/executor.h"

#include "base/log.h"
#include "base/memory.h"
#include "pass/storage.h"
#include "run/memcheck.h"
#include "run/stream.h"

#include <math.h>
#include <string.h>

/* A node with every address resolved. */
typedef struct bound_node {
  ts_kernel_call call;
  const ts_kernel *kernel;
  const void **in, **prior;
  void **out;
  ts_comm *comm;
  ts_transfer *transfer;
  uint64_t ticket; /* of the stream; 0: not issued since the last wait */
  struct ts_executor *executor;
} bound_node;

typedef struct bound_program {
  const ts_program *program;
  bound_node *node; /* per node of the graph */
  int64_t *state;   /* per tensor: offset in the shared state arena (STATE leaves and what lies in them) */
  ts_memcheck *memcheck;
} bound_program;

struct ts_executor {
  ts_executor_options options;
  bound_program *program;
  int n_programs;
  const ts_backend *backend;
  unsigned char *arena[TS_N_ARENAS];
  size_t arena_bytes[TS_N_ARENAS];
  ts_stream *stream;
  ts_executor_times times;
  double busy_seen;
  char *nonfinite;
};

/* ---- binding ---- */

/* Move a program's state leaves to where the first program has them; windows move along with their leaf. */
static void *resolve(const ts_executor *e, const bound_program *b, ts_tid t) {
  if (t == TS_NONE) {
    return NULL;
  }
  ts_address at = b->program->plan->address[t];
  if (at.arena == TS_ARENA_NONE) {
    return NULL;
  }
  return e->arena[at.arena] + at.offset + (at.arena == TS_ARENA_STATE ? b->state[t] : 0);
}

/* How far each tensor in STATE is from where its own plan puts it. */
static void share_state(bound_program *b, const bound_program *first) {
  const ts_graph *g = b->program->graph;
  b->state = ts_calloc((size_t) g->n_tensors + 1, sizeof *b->state);
  if (b == first) {
    return;
  }
  ts_place *place = ts_storage_find(g);
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_tensor *root = &g->tensor[place[t].root];
    if (root->role != TS_ROLE_STATE) {
      continue;
    }
    ts_tid theirs = ts_graph_find(first->program->graph, root->name);
    TS_CHECK(theirs != TS_NONE && ts_tensor_bytes(first->program->graph, theirs) == ts_tensor_bytes(g, place[t].root),
             "state %s is not in the first program, or has another size there", root->name);
    b->state[t] = first->program->plan->address[theirs].offset - b->program->plan->address[place[t].root].offset;
  }
  ts_free(place);
}

static void bind_comm(ts_executor *e, bound_node *b, const ts_mesh *mesh) {
  const ts_node *node = b->call.node;
  b->comm = ts_world_comm(e->options.world, mesh, node->attr.comm.axes);
  b->transfer = ts_calloc((size_t) node->attr.comm.n_pieces, sizeof *b->transfer);
  for (int i = 0; i < node->attr.comm.n_pieces; ++i) {
    const ts_piece *piece = &node->attr.comm.piece[i];
    b->transfer[i] = (ts_transfer){.x = b->in[piece->input], .y = b->out[piece->input], .cuts = piece->cuts,
                                   .begin = piece->begin, .end = piece->end};
  }
}

static void bind_node(ts_executor *e, bound_program *p, ts_nid n) {
  const ts_program *program = p->program;
  const ts_graph *g = program->graph;
  const ts_node *node = &g->node[n];
  bound_node *b = &p->node[n];
  b->executor = e;
  b->in = ts_calloc((size_t) node->n_in, sizeof *b->in);
  b->out = ts_calloc((size_t) node->n_out, sizeof *b->out);
  for (int i = 0; i < node->n_in; ++i) {
    b->in[i] = resolve(e, p, node->in[i]);
  }
  for (int i = 0; i < node->n_out; ++i) {
    b->out[i] = resolve(e, p, node->out[i]);
  }
  if (node->prior != NULL) {
    b->prior = ts_calloc((size_t) node->n_out, sizeof *b->prior);
    for (int i = 0; i < node->n_out; ++i) {
      b->prior[i] = resolve(e, p, node->prior[i]);
    }
  }
  b->call = (ts_kernel_call){.graph = g, .node = node, .in = b->in, .out = b->out, .prior = b->prior,
                             .beta = resolve(e, p, node->beta), .threads = program->target.threads,
                             .workspace_bytes = (size_t) program->plan->workspace_bytes[n]};
  if (b->call.workspace_bytes > 0) {
    b->call.workspace = e->arena[TS_ARENA_WORK] + program->plan->workspace[n].offset;
  }
  if ((ts_op_get(node->op)->flags & TS_OP_COMM) != 0) {
    bind_comm(e, b, &program->mesh);
    return;
  }
  b->kernel = e->backend->kernel(node->op);
  TS_CHECK(b->kernel->run != NULL, "backend %s has no kernel for %s", e->backend->name, ts_op_get(node->op)->name);
  if (b->kernel->prepare != NULL) {
    b->kernel->prepare(&program->target, g, node, &b->call.prepared);
  }
}

static void bind_program(ts_executor *e, bound_program *p) {
  const ts_graph *g = p->program->graph;
  share_state(p, &e->program[0]);
  p->node = ts_calloc((size_t) g->n_nodes + 1, sizeof *p->node);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    if (!ts_node_is_window(&g->node[n])) {
      bind_node(e, p, n);
    }
  }
  if (e->options.memcheck) {
    p->memcheck = ts_memcheck_create(p->program, e->arena[TS_ARENA_WORK], e->arena_bytes[TS_ARENA_WORK]);
  }
}

ts_executor *ts_executor_create(const ts_program *const *programs, int n_programs, const ts_executor_options *options) {
  ts_executor *e = ts_calloc(1, sizeof *e);
  e->options = *options;
  e->n_programs = n_programs;
  e->backend = programs[0]->target.backend;
  e->program = ts_calloc((size_t) n_programs, sizeof *e->program);
  e->arena_bytes[TS_ARENA_STATE] = (size_t) programs[0]->plan->arena_bytes[TS_ARENA_STATE];
  for (int i = 0; i < n_programs; ++i) {
    e->program[i].program = programs[i];
    size_t work = (size_t) programs[i]->plan->arena_bytes[TS_ARENA_WORK];
    e->arena_bytes[TS_ARENA_WORK] = work > e->arena_bytes[TS_ARENA_WORK] ? work : e->arena_bytes[TS_ARENA_WORK];
  }
  for (int a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    e->arena[a] = e->backend->allocate(e->arena_bytes[a]);
  }
  for (int i = 0; i < n_programs; ++i) {
    bind_program(e, &e->program[i]);
  }
  e->stream = ts_stream_create(options->overlap && !options->memcheck);
  return e;
}

static void release_node(bound_node *b) {
  if (b->kernel != NULL && b->kernel->release != NULL && b->call.prepared != NULL) {
    b->kernel->release(b->call.prepared);
  }
  ts_free(b->in);
  ts_free(b->out);
  ts_free(b->prior);
  ts_free(b->transfer);
}

void ts_executor_destroy(ts_executor **executor) {
  ts_executor *e = *executor;
  if (e == NULL) {
    return;
  }
  ts_stream_destroy(&e->stream);
  for (int i = 0; i < e->n_programs; ++i) {
    bound_program *p = &e->program[i];
    for (ts_nid n = 0; n < p->program->graph->n_nodes; ++n) {
      release_node(&p->node[n]);
    }
    ts_memcheck_destroy(&p->memcheck);
    ts_free(p->node);
    ts_free(p->state);
  }
  for (int a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    e->backend->release(e->arena[a], e->arena_bytes[a]);
  }
  ts_free(e->program);
  ts_free(e->nonfinite);
  ts_free(e);
  *executor = NULL;
}

/* ---- running ---- */

static void observe(const bound_node *b, bool collective, double start) {
  const ts_executor_options *o = &b->executor->options;
  if (o->observer != NULL) {
    o->observer(o->observer_user, b->call.node, collective, start, ts_seconds() - start);
  }
}

/* Runs on the stream. */
static void run_collective(void *argument) {
  bound_node *b = argument;
  const ts_node *node = b->call.node;
  const ts_graph *g = b->call.graph;
  double start = b->executor->options.observer != NULL ? ts_seconds() : 0;
  ts_dtype x = g->tensor[node->in[0]].dtype, y = g->tensor[node->out[0]].dtype;
  const ts_comm_ops *ops = b->comm->ops;
  if (node->op == TS_OP_ALL_GATHER) {
    ops->all_gather(b->comm, b->transfer, node->attr.comm.n_pieces, x);
  } else if (node->op == TS_OP_REDUCE_SCATTER) {
    ops->reduce_scatter(b->comm, b->transfer, node->attr.comm.n_pieces, x, node->attr.comm.wire, y, b->call.beta,
                        b->call.workspace, b->call.workspace_bytes);
  } else {
    TS_ASSERT(node->op == TS_OP_ALL_REDUCE);
    ops->all_reduce(b->comm, b->in[0], b->out[0], ts_tensor_count(g, node->in[0]), x, node->attr.comm.wire,
                    b->call.workspace, b->call.workspace_bytes);
  }
  observe(b, true, start);
}

static int64_t first_nonfinite(const void *data, ts_dtype dtype, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    bool finite = dtype == TS_F32    ? isfinite(((const float *) data)[i])
                  : dtype == TS_F64  ? isfinite(((const double *) data)[i])
                  : dtype == TS_BF16 ? (((const uint16_t *) data)[i] & 0x7f80) != 0x7f80
                                     : true;
    if (!finite) {
      return i;
    }
  }
  return -1;
}

/* Packed gradients have gaps that nobody writes: only what kernels compute is looked at. */
static void check_finite(ts_executor *e, const bound_node *b) {
  const ts_graph *g = b->call.graph;
  const ts_node *node = b->call.node;
  for (int i = 0; e->nonfinite == NULL && i < node->n_out; ++i) {
    const ts_tensor *t = &g->tensor[node->out[i]];
    int64_t at = node->op == TS_OP_ADAMW ? -1 : first_nonfinite(b->out[i], t->dtype, ts_tensor_count(g, node->out[i]));
    if (at >= 0) {
      e->nonfinite = ts_format("op %s (%s), tensor %s, element %lld", node->name, ts_op_get(node->op)->name, t->name,
                               (long long) at);
    }
  }
}

static void run_kernel(ts_executor *e, bound_node *b) {
  double start = e->options.observer != NULL ? ts_seconds() : 0;
  b->kernel->run(&b->call);
  observe(b, false, start);
  if (e->options.check_finite) {
    check_finite(e, b);
  }
}

static void wait_node(ts_executor *e, bound_node *b) {
  if (b->ticket != 0) {
    e->times.exposed += ts_stream_wait(e->stream, b->ticket);
    b->ticket = 0;
  }
}

void ts_executor_run(ts_executor *e, int index, unsigned segments) {
  bound_program *p = &e->program[index];
  const ts_schedule *schedule = p->program->schedule;
  if (p->memcheck != NULL) {
    ts_memcheck_begin(p->memcheck);
  }
  for (int i = 0; i < schedule->n; ++i) {
    const ts_instruction *instruction = &schedule->instruction[i];
    bound_node *b = &p->node[instruction->node];
    if ((b->call.node->segment & segments) == 0) {
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
}

void *ts_executor_pointer(const ts_executor *e, int index, const char *name) {
  const bound_program *p = &e->program[index];
  ts_tid t = ts_graph_find(p->program->graph, name);
  if (t == TS_NONE) {
    t = ts_graph_marked(p->program->graph, name);
  }
  return resolve(e, p, t);
}

ts_executor_times ts_executor_take_times(ts_executor *e) {
  ts_executor_times times = e->times;
  e->times = (ts_executor_times){0};
  return times;
}

char *ts_executor_take_nonfinite(ts_executor *e) {
  char *text = e->nonfinite;
  e->nonfinite = NULL;
  return text;
}

int64_t ts_executor_arena_bytes(const ts_executor *e) {
  return (int64_t) (e->arena_bytes[TS_ARENA_STATE] + e->arena_bytes[TS_ARENA_WORK]);
}
