#include "run/executor.h"

#include "base/heartbeat.h"
#include "base/log.h"
#include "base/memory.h"
#include "pass/storage.h"
#include "run/bound.h"

#include <math.h>
#include <string.h>

enum { STAGING = 4 << 20 };

/* ---- binding: communicators and kernels first, then memory, then addresses ---- */

static bool is_collective(const ts_node *node) {
  return (ts_op_get(node->op)->flags & TS_OP_COMM) != 0;
}

ts_comm *ts_executor_comm(ts_executor *e, const ts_mesh *mesh, unsigned axes) {
  return e->backend->device != NULL ? ts_world_device_comm(e->options.world, mesh, axes)
                                    : ts_world_comm(e->options.world, mesh, axes);
}

static void prepare_program(ts_executor *e, ts_bound_program *p) {
  const ts_graph *g = p->program->graph;
  p->node = ts_calloc((size_t) g->n_nodes + 1, sizeof *p->node);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    ts_bound_node *b = &p->node[n];
    b->executor = e;
    if (ts_node_is_window(node)) {
      continue;
    }
    if (is_collective(node)) {
      b->comm = ts_executor_comm(e, &p->program->mesh, node->attr.comm.axes);
      continue;
    }
    b->kernel = e->backend->kernel(node->op);
    TS_CHECK(b->kernel->run != NULL, "backend %s has no kernel for %s", e->backend->name, ts_op_get(node->op)->name);
    if (b->kernel->prepare != NULL) {
      b->kernel->prepare(&p->program->target, g, node, &b->call.prepared);
    }
  }
}

static void allocate(ts_executor *e) {
  const ts_device_ops *device = e->backend->device;
  e->arena_bytes[TS_ARENA_STATE] = (size_t) e->program[0].program->plan->arena_bytes[TS_ARENA_STATE];
  for (int i = 0; i < e->n_programs; ++i) {
    for (int a = TS_ARENA_INPUT; a < TS_N_ARENAS; ++a) {
      size_t bytes = (size_t) e->program[i].program->plan->arena_bytes[a];
      e->arena_bytes[a] = bytes > e->arena_bytes[a] ? bytes : e->arena_bytes[a];
    }
  }
  if (device != NULL) {
    e->input = device->allocate_host(e->arena_bytes[TS_ARENA_INPUT]);
    e->staging = device->allocate_host(STAGING);
    e->staged = device->event_create(false);
    e->copied_in = device->event_create(false);
  }
  size_t bytes = 0; /* one arena that holds all: what does not fit is known at once */
  for (int a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    bytes += e->arena_bytes[a];
  }
  e->arena[TS_ARENA_STATE] = e->backend->allocate(bytes);
  for (int a = TS_ARENA_INPUT; a < TS_N_ARENAS; ++a) {
    e->arena[a] = e->arena[a - 1] + e->arena_bytes[a - 1];
  }
  if (device != NULL && e->options.world != NULL) {
    ts_world_device_register(e->options.world, e->arena[TS_ARENA_STATE], bytes);
  }
  e->input = device != NULL ? e->input : e->arena[TS_ARENA_INPUT];
}

/* Move a program's state leaves to where the first program has them; windows move along with their leaf. */
static void *resolve(const ts_executor *e, const ts_bound_program *b, ts_tid t) {
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
static void share_state(ts_bound_program *b, const ts_bound_program *first) {
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

static void bind_transfers(ts_bound_node *b) {
  const ts_node *node = b->call.node;
  b->transfer = ts_calloc((size_t) node->attr.comm.n_pieces, sizeof *b->transfer);
  for (int i = 0; i < node->attr.comm.n_pieces; ++i) {
    const ts_piece *piece = &node->attr.comm.piece[i];
    b->transfer[i] = (ts_transfer){.x = b->in[piece->input],
                                   .y = b->out[piece->input],
                                   .cuts = piece->cuts,
                                   .begin = piece->begin,
                                   .end = piece->end};
  }
}

static void bind_node(ts_executor *e, ts_bound_program *p, ts_nid n) {
  const ts_program *program = p->program;
  const ts_graph *g = program->graph;
  const ts_node *node = &g->node[n];
  ts_bound_node *b = &p->node[n];
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
  b->call =
      (ts_kernel_call){.graph = g,
                       .node = node,
                       .in = b->in,
                       .out = b->out,
                       .prior = b->prior,
                       .beta = resolve(e, p, node->beta),
                       .prepared = b->call.prepared,
                       .threads = program->target.threads,
                       .workspace_bytes = (size_t) program->plan->workspace_bytes[n],
                       .stream = e->backend->device != NULL ? e->backend->device->stream(TS_QUEUE_COMPUTE) : NULL};
  if (b->call.workspace_bytes > 0) {
    b->call.workspace = e->arena[TS_ARENA_WORK] + program->plan->workspace[n].offset;
  }
  if (is_collective(node)) {
    bind_transfers(b);
  }
}

static void bind_program(ts_executor *e, ts_bound_program *p) {
  const ts_graph *g = p->program->graph;
  share_state(p, &e->program[0]);
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
  TS_CHECK(!options->memcheck || e->backend->device == NULL,
           "memcheck compares host memory; on a device use compute-sanitizer");
  e->program = ts_calloc((size_t) n_programs, sizeof *e->program);
  for (int i = 0; i < n_programs; ++i) {
    e->program[i].program = programs[i];
    prepare_program(e, &e->program[i]);
  }
  allocate(e);
  for (int i = 0; i < n_programs; ++i) {
    bind_program(e, &e->program[i]);
  }
  if (e->backend->device == NULL) {
    e->stream = ts_stream_create(options->overlap && !options->memcheck);
  }
  return e;
}

static void release_node(ts_bound_node *b) {
  if (b->kernel != NULL && b->kernel->release != NULL && b->call.prepared != NULL) {
    b->kernel->release(b->call.prepared);
  }
  ts_free(b->in);
  ts_free(b->out);
  ts_free(b->prior);
  ts_free(b->transfer);
}

static void release_device(ts_executor *e) {
  const ts_device_ops *device = e->backend->device;
  ts_executor_finish(e);
  for (int i = 0; i < e->n_programs; ++i) {
    ts_walk_device_release(e, &e->program[i]);
  }
  for (int i = 0; i < e->n_spans; ++i) {
    device->event_destroy(e->span[i].begin);
    device->event_destroy(e->span[i].end);
  }
  ts_free(e->span);
  device->event_destroy(e->staged);
  device->event_destroy(e->copied_in);
  device->release_host(e->staging);
  device->release_host(e->input);
}

void ts_executor_destroy(ts_executor **executor) {
  ts_executor *e = *executor;
  if (e == NULL) {
    return;
  }
  ts_stream_destroy(&e->stream);
  if (e->backend->device != NULL) {
    release_device(e);
  }
  size_t bytes = (size_t) ts_executor_arena_bytes(e);
  for (int i = 0; i < e->n_programs; ++i) {
    ts_bound_program *p = &e->program[i];
    for (ts_nid n = 0; n < p->program->graph->n_nodes; ++n) {
      release_node(&p->node[n]);
    }
    ts_memcheck_destroy(&p->memcheck);
    ts_free(p->node);
    ts_free(p->state);
  }
  if (e->backend->device != NULL && e->options.world != NULL) {
    ts_world_device_deregister(e->options.world, e->arena[TS_ARENA_STATE]);
  }
  e->backend->release(e->arena[TS_ARENA_STATE], bytes);
  ts_free(e->program);
  ts_free(e->nonfinite);
  ts_free(e);
  *executor = NULL;
}

/* ---- running ---- */

void ts_bound_collective(ts_bound_node *b) {
  const ts_node *node = b->call.node;
  const ts_graph *g = b->call.graph;
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

/* The same where the memory may be a device's. */
static int64_t find_nonfinite(ts_executor *e, const void *memory, ts_dtype dtype, int64_t count) {
  if (ts_executor_is_host(e)) {
    return first_nonfinite(memory, dtype, count);
  }
  size_t bytes = (size_t) count * ts_dtype_size(dtype);
  void *copy = ts_malloc(bytes + 1);
  ts_executor_get(e, copy, memory, bytes);
  int64_t at = first_nonfinite(copy, dtype, count);
  ts_free(copy);
  return at;
}

/* Packed gradients, and what is updated, have gaps that nobody writes: only what kernels compute is looked at. */
void ts_bound_check_finite(ts_executor *e, const ts_bound_node *b) {
  const ts_graph *g = b->call.graph;
  const ts_node *node = b->call.node;
  for (int i = 0; e->nonfinite == NULL && i < node->n_out; ++i) {
    const ts_tensor *t = &g->tensor[node->out[i]];
    bool gaps = (ts_op_get(node->op)->flags & TS_OP_IS_UPDATE) != 0;
    int64_t at = gaps ? -1 : find_nonfinite(e, b->out[i], t->dtype, ts_tensor_count(g, node->out[i]));
    if (at >= 0) {
      e->nonfinite = ts_format("op %s (%s), tensor %s, element %lld", node->name, ts_op_get(node->op)->name, t->name,
                               (long long) at);
    }
  }
}

double *ts_executor_phase(ts_executor *e, unsigned segments) {
  return (segments & TS_SEGMENT_FORWARD) != 0  ? &e->times.forward
         : (segments & TS_SEGMENT_UPDATE) != 0 ? &e->times.update
                                               : &e->times.backward;
}

void ts_executor_run(ts_executor *e, int index, unsigned segments) {
  if (e->backend->device != NULL) {
    ts_walk_device(e, &e->program[index], segments);
  } else {
    ts_walk_host(e, &e->program[index], segments);
  }
}

/* ---- memory ---- */

static ts_tid find_tensor(const ts_program *program, const char *name) {
  ts_tid t = ts_graph_find(program->graph, name);
  return t != TS_NONE ? t : ts_graph_marked(program->graph, name);
}

void *ts_executor_input(ts_executor *e, int index, const char *name) {
  const ts_program *program = e->program[index].program;
  ts_tid t = find_tensor(program, name);
  if (t == TS_NONE || program->plan->address[t].arena != TS_ARENA_INPUT) {
    return NULL;
  }
  if (e->copying_in) {
    e->backend->device->finish(e->copied_in);
    e->copying_in = false;
  }
  return e->input + program->plan->address[t].offset;
}

void *ts_executor_memory(const ts_executor *e, int index, const char *name) {
  return resolve(e, &e->program[index], find_tensor(e->program[index].program, name));
}

bool ts_executor_is_host(const ts_executor *e) {
  return e->backend->device == NULL;
}

void ts_executor_finish(ts_executor *e) {
  if (e->backend->device != NULL) {
    for (int q = 0; q < TS_N_QUEUES; ++q) {
      e->backend->device->record(e->staged, (ts_queue) q);
      e->backend->device->finish(e->staged);
    }
  }
}

/* Block by block through the staging memory: pageable memory would be copied so by the driver anyway. */
static void stage(ts_executor *e, unsigned char *device_memory, unsigned char *host, size_t bytes, bool out) {
  const ts_device_ops *device = e->backend->device;
  for (size_t at = 0; at < bytes; at += STAGING) {
    size_t n = bytes - at < STAGING ? bytes - at : STAGING;
    if (!out) {
      memcpy(e->staging, host + at, n);
    }
    device->copy(out ? e->staging : device_memory + at, out ? device_memory + at : e->staging, n, TS_QUEUE_COMPUTE);
    device->record(e->staged, TS_QUEUE_COMPUTE);
    device->finish(e->staged);
    if (out) {
      memcpy(host + at, e->staging, n);
    }
  }
}

void ts_executor_get(ts_executor *e, void *to, const void *memory, size_t bytes) {
  if (ts_executor_is_host(e)) {
    memcpy(to, memory, bytes);
  } else {
    ts_heartbeat_enter("wait.for.device");
    stage(e, (unsigned char *) memory, to, bytes, true);
    ts_heartbeat_leave();
  }
}

void ts_executor_fetch(ts_executor *e, void *to, const void *memory, size_t bytes) {
  if (ts_executor_is_host(e)) {
    memcpy(to, memory, bytes);
  } else {
    e->backend->device->copy(to, memory, bytes, TS_QUEUE_COMPUTE);
  }
}

void ts_executor_put(ts_executor *e, void *memory, const void *from, size_t bytes) {
  if (ts_executor_is_host(e)) {
    memcpy(memory, from, bytes);
  } else {
    stage(e, memory, (unsigned char *) from, bytes, false);
  }
}

void *ts_executor_allocate_host(const ts_executor *e, size_t bytes) {
  return ts_executor_is_host(e) ? ts_map(bytes) : e->backend->device->allocate_host(bytes);
}

void ts_executor_release_host(const ts_executor *e, void *memory, size_t bytes) {
  if (memory != NULL && ts_executor_is_host(e)) {
    ts_unmap(memory, bytes);
  } else if (memory != NULL) {
    e->backend->device->release_host(memory);
  }
}

/* ---- what was seen ---- */

ts_executor_times ts_executor_take_times(ts_executor *e) {
  if (e->backend->device != NULL) {
    ts_walk_device_take_spans(e);
  }
  ts_executor_times times = e->times;
  e->times = (ts_executor_times){0};
  return times;
}

void ts_executor_set_observer(ts_executor *e, ts_executor_observer *observer, void *user) {
  e->options.observer = observer;
  e->options.observer_user = user;
}

char *ts_executor_take_nonfinite(ts_executor *e) {
  char *text = e->nonfinite;
  e->nonfinite = NULL;
  return text;
}

int64_t ts_executor_peak_bytes(const ts_executor *e) {
  return (int64_t) (e->backend->device != NULL ? e->backend->device->used() : ts_process_peak());
}

int64_t ts_executor_host_bytes(const ts_program *const *programs, int n_programs) {
  int64_t inputs = 0;
  for (int i = 0; i < n_programs; ++i) {
    int64_t bytes = programs[i] != NULL ? programs[i]->plan->arena_bytes[TS_ARENA_INPUT] : 0;
    inputs = bytes > inputs ? bytes : inputs;
  }
  return inputs + STAGING;
}

int64_t ts_executor_arena_bytes(const ts_executor *e) {
  size_t bytes = 0;
  for (int a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    bytes += e->arena_bytes[a];
  }
  return (int64_t) bytes;
}
