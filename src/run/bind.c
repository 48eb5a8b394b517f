/* Binding programs: communicators, ways of messages and kernels first, then memory, then addresses. */
#include "base/memory.h"
#include "pass/offload.h"
#include "pass/storage.h"
#include "run/bound.h"

#include <string.h>

ts_comm *ts_bound_comm(ts_executor *e, const ts_mesh *mesh, unsigned axes) {
  return e->device != NULL ? ts_world_device_comm(e->options.world, mesh, axes)
                           : ts_world_comm(e->options.world, mesh, axes);
}

static ts_bound_view *add_view(ts_bound_program *p, ts_run at) {
  TS_GROW(p->view, p->n_views, p->view_capacity);
  ts_bound_view *view = &p->view[p->n_views++];
  *view = (ts_bound_view){
      .at = at,
      .node = ts_calloc((size_t) p->program->graph->n_nodes + 1, sizeof *view->node),
      .run = ts_calloc((size_t) (p->n_chunks * p->program->step.n_kinds), sizeof *view->run),
  };
  return view;
}

static unsigned axes_of(const ts_node *node) {
  return ts_node_is_collective(node) ? node->attr.comm.axes : ts_node_is_message(node) ? TS_AXES(TS_AXIS_PP) : 0;
}

/* Messages over a boundary are numbered by it and by their direction. */
static int message_number(const ts_node *message) {
  return 2 * message->attr.message.boundary + message->attr.message.back;
}

/* All ranks connect in the order of the numbers. */
static void connect_messages(ts_executor *e, const ts_program *program) {
  const ts_graph *g = program->graph;
  int left = 0;
  for (ts_nid n = 0; n < g->n_nodes && e->device != NULL; ++n) {
    left += ts_node_is_message(&g->node[n]);
  }
  for (int number = 0; left > 0; ++number) {
    for (ts_nid n = 0; n < g->n_nodes; ++n) {
      const ts_node *node = &g->node[n];
      if (ts_node_is_message(node) && message_number(node) == number) {
        ts_world_device_connect(e->options.world, &program->mesh, TS_AXES(TS_AXIS_PP), node->op == TS_OP_SEND,
                                node->attr.message.peer, number);
        --left;
      }
    }
  }
}

/* Ranks come to what they share by different nodes: communicators are made in the order of their axes. */
static void connect_program(ts_executor *e, const ts_program *program) {
  const ts_graph *g = program->graph;
  for (unsigned axes = 1; axes <= TS_AXES_ALL; ++axes) {
    for (ts_nid n = 0; n < g->n_nodes; ++n) {
      if (axes_of(&g->node[n]) == axes && ts_node_is_message(&g->node[n])) {
        ts_world_comm(e->options.world, &program->mesh, axes);
      } else if (axes_of(&g->node[n]) == axes) {
        ts_bound_comm(e, &program->mesh, axes);
      }
    }
  }
  connect_messages(e, program);
}

static void prepare_program(ts_executor *e, ts_bound_program *p) {
  const ts_graph *g = p->program->graph;
  connect_program(e, p->program);
  p->n_chunks = ts_graph_chunks(g);
  p->hosted = e->device != NULL && ts_lowered_is_hosted(g);
  p->left = ts_calloc((size_t) p->n_chunks, sizeof *p->left);
  for (int slot = 0; slot < ts_step_slots(&p->program->step); ++slot) {
    add_view(p, ts_run_in_slot(slot));
  }
  p->message = ts_ids_none(g->n_nodes);
  p->group = ts_mesh_group_id(&p->program->mesh, TS_AXES_ALL & ~TS_AXES(TS_AXIS_PP));
  ts_heartbeat_join(ts_bound_heartbeat(e), p->group);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    ts_bound_node *b = &p->view[0].node[n];
    b->executor = e;
    if (ts_node_is_window(node)) {
      continue;
    }
    if (ts_node_is_message(node)) {
      b->comm = ts_world_comm(e->options.world, &p->program->mesh, TS_AXES(TS_AXIS_PP));
      b->group = ts_mesh_group_id(&p->program->mesh, TS_AXES(TS_AXIS_PP));
      b->peer = ts_mesh_group_member(&p->program->mesh, TS_AXES(TS_AXIS_PP), node->attr.message.peer);
      ts_heartbeat_join(ts_bound_heartbeat(e), b->group);
      p->message[p->n_messages++] = n;
      continue;
    }
    if (ts_node_is_collective(node)) {
      b->comm = ts_bound_comm(e, &p->program->mesh, node->attr.comm.axes);
      b->group = ts_mesh_group_id(&p->program->mesh, node->attr.comm.axes);
      ts_heartbeat_join(ts_bound_heartbeat(e), b->group);
      continue;
    }
    if (ts_node_is_copy(node)) {
      continue;
    }
    const ts_target target = ts_node_target(&p->program->target, node);
    b->kernel = target.backend->kernel(node->op);
    TS_CHECK(b->kernel->run != NULL, "backend %s has no kernel for %s", target.backend->name,
             ts_op_get(node->op)->name);
    if (b->kernel->prepare != NULL) {
      b->kernel->prepare(&target, g, node, &b->call.prepared);
    }
  }
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
                                   .end = piece->end,
                                   .divisor = node->attr.comm.divisor};
  }
}

static void bind_exchange(ts_bound_node *b) {
  b->exchanged = ts_calloc(1, sizeof *b->exchanged);
  b->exchange = ts_node_exchange(b->call.graph, b->call.node, b->exchanged);
  for (int i = 0; i < b->exchange.n; ++i) {
    b->exchanged->x[i].data = (void *) b->in[i];
    b->exchanged->y[i].data = b->out[i];
  }
}

static void bind_message(ts_executor *e, const ts_mesh *mesh, ts_bound_node *b) {
  const ts_graph *g = b->call.graph;
  const ts_node *node = b->call.node;
  bool sends = node->op == TS_OP_SEND;
  ts_message_part *part = ts_calloc((size_t) node->attr.message.n, sizeof *part);
  for (int i = 0; i < node->attr.message.n; ++i) {
    part[i] = (ts_message_part){.data = sends ? (void *) b->in[i] : b->out[i],
                                .bytes = (size_t) ts_tensor_bytes(g, (sends ? node->in : node->out)[i])};
  }
  b->line = e->device != NULL
                ? ts_world_device_line_create(e->options.world, mesh, TS_AXES(TS_AXIS_PP), sends,
                                              node->attr.message.peer, message_number(node), part, node->attr.message.n)
                : ts_message_line_create(b->comm, sends, node->attr.message.peer, message_number(node), part,
                                         node->attr.message.n);
  ts_free(part);
}

/* In another view than the first a node has its kernel, communicator and what was prepared from there. */
static void bind_node(ts_executor *e, ts_bound_program *p, ts_nid n, ts_bound_view *view) {
  const ts_program *program = p->program;
  const ts_graph *g = program->graph;
  const ts_node *node = &g->node[n];
  ts_bound_node *b = &view->node[n];
  const ts_bound_node *first = &p->view[0].node[n];
  b->executor = e;
  b->kernel = first->kernel;
  b->comm = first->comm;
  b->group = first->group;
  b->peer = first->peer;
  b->in = ts_calloc((size_t) node->n_in, sizeof *b->in);
  b->out = ts_calloc((size_t) node->n_out, sizeof *b->out);
  for (int i = 0; i < node->n_in; ++i) {
    b->in[i] = ts_bound_address(e, p, node->in[i], view->at);
  }
  for (int i = 0; i < node->n_out; ++i) {
    b->out[i] = ts_bound_address(e, p, node->out[i], view->at);
  }
  if (node->prior != NULL) {
    b->prior = ts_calloc((size_t) node->n_out, sizeof *b->prior);
    for (int i = 0; i < node->n_out; ++i) {
      b->prior[i] = ts_bound_address(e, p, node->prior[i], view->at);
    }
  }
  b->call = (ts_kernel_call){.graph = g,
                             .node = node,
                             .in = b->in,
                             .out = b->out,
                             .prior = b->prior,
                             .beta = ts_bound_address(e, p, node->beta, view->at),
                             .prepared = first->call.prepared,
                             .threads = node->on_host ? ts_offload_threads(program->deck, &program->target)
                                                      : program->target.threads,
                             .workspace_bytes = (size_t) program->plan->workspace_bytes[n],
                             .stream = e->device != NULL ? e->device->ops->stream(e->device, TS_QUEUE_COMPUTE) : NULL};
  if (b->call.workspace_bytes > 0) {
    b->call.workspace = e->arena[TS_ARENA_WORK] + program->plan->workspace[n].offset;
  }
  if (ts_node_copies(node) == TS_SPACE_FILE) {
    b->stored = ts_bound_stored(e, p, node->in[0], view->at);
  } else if (ts_node_is_collective(node)) {
    if (node->op != TS_OP_EXCHANGE_ROWS) { /* which needs nothing */
      (node->op == TS_OP_ALL_TO_ALL ? bind_exchange : bind_transfers)(b);
    }
  } else if (ts_node_is_message(node)) {
    bind_message(e, &program->mesh, b);
  }
}

/* Messages are in slots alone, one of the first views for each. */
static void bind_messages(ts_executor *e, ts_bound_program *p) {
  for (int i = 0; i < p->n_messages; ++i) {
    for (int slot = 0; slot < ts_step_slots(&p->program->step); ++slot) {
      bind_node(e, p, p->message[i], &p->view[slot]);
    }
  }
}

static ts_bound_view *find_view(ts_bound_program *p, ts_run run) {
  for (int i = 0; i < p->n_views; ++i) {
    if (memcmp(p->view[i].at.place, run.place, sizeof run.place) == 0) {
      return &p->view[i];
    }
  }
  return add_view(p, run);
}

/* Bound are the nodes that runs of this kind have: most sets of places see but one of the three. */
ts_bound_view *ts_bound_view_of(ts_executor *e, ts_bound_program *p, ts_run run) {
  const ts_program *program = p->program;
  const ts_graph *g = program->graph;
  ts_bound_view *view = find_view(p, run);
  ts_bound_run *of = &view->run[run.chunk * program->step.n_kinds + run.kind];
  for (ts_nid n = 0; n < g->n_nodes && !of->bound; ++n) {
    bool bound = view->node[n].call.node != NULL;
    if (!bound && !ts_node_is_window(&g->node[n]) && !ts_node_is_message(&g->node[n]) &&
        ts_run_has(&program->step, run, g, &g->node[n])) {
      bind_node(e, p, n, view);
    }
  }
  of->bound = true;
  return view;
}

static void share_state(ts_executor *e, const ts_program *const *programs) {
  int64_t **moved = ts_calloc((size_t) e->n_programs, sizeof *moved);
  int64_t end[TS_N_ARENAS];
  ts_programs_share_state(programs, e->n_programs, end, moved);
  for (int i = 0; i < e->n_programs; ++i) {
    e->program[i].state = moved[i];
  }
  ts_free(moved);
}

static void bind_program(ts_executor *e, ts_bound_program *p) {
  bind_messages(e, p);
  if (e->options.memcheck) {
    p->memcheck = ts_memcheck_create(p->program, e->arena[TS_ARENA_WORK], e->arena_bytes[TS_ARENA_WORK]);
  }
}

static bool overlaps(const ts_program *const *programs, int n_programs) {
  bool any = false;
  for (int i = 0; i < n_programs; ++i) {
    any = any || programs[i]->schedule->overlaps;
  }
  return any;
}

/* Messages are looked after by the thread that computes. */
static bool may_have_thread(const ts_executor *e) {
  bool messages = false;
  for (int i = 0; i < e->n_programs; ++i) {
    messages = messages || e->program[i].n_messages > 0;
  }
  return !messages || ts_world_takes_threads();
}

ts_executor *ts_executor_create(const ts_program *const *programs, int n_programs, const ts_executor_options *options) {
  ts_executor *e = ts_calloc(1, sizeof *e);
  e->options = *options;
  e->n_programs = n_programs;
  e->backend = programs[0]->target.backend;
  e->device = ts_backend_device(e->backend);
  TS_CHECK(e->backend->device == NULL || e->device != NULL, "the device of %s is not open", e->backend->name);
  TS_CHECK(!options->memcheck || e->device == NULL, "memcheck compares host memory; on a device use compute-sanitizer");
  if (e->device != NULL && options->world != NULL) {
    ts_world_device_place(options->world);
  }
  e->program = ts_calloc((size_t) n_programs, sizeof *e->program);
  for (int i = 0; i < n_programs; ++i) {
    e->program[i].program = programs[i];
    prepare_program(e, &e->program[i]);
  }
  share_state(e, programs);
  TS_CHECK(e->options.store != NULL || ts_plan_file_bytes(programs[0]->plan) == 0,
           "a program has state in a file, and there is none");
  ts_bound_allocate(e);
  for (int i = 0; i < n_programs; ++i) {
    bind_program(e, &e->program[i]);
  }
  for (int i = 0; i < n_programs && e->device != NULL; ++i) {
    ts_walk_device_warm(e, &e->program[i]);
  }
  if (e->device == NULL) {
    e->stream = ts_stream_create(overlaps(programs, n_programs) && !options->memcheck && may_have_thread(e));
  }
  return e;
}

static void release_node(ts_bound_node *b) {
  ts_message_line_destroy(&b->line);
  ts_free(b->in);
  ts_free(b->out);
  ts_free(b->prior);
  ts_free(b->transfer);
  ts_free(b->exchanged);
}

static void release_nodes(ts_bound_program *p) {
  ts_nid n_nodes = p->program->graph->n_nodes;
  for (ts_nid n = 0; n < n_nodes; ++n) {
    ts_bound_node *b = &p->view[0].node[n];
    if (b->kernel != NULL && b->kernel->release != NULL && b->call.prepared != NULL) {
      b->kernel->release(b->call.prepared);
    }
  }
  for (int i = 0; i < p->n_views; ++i) {
    for (ts_nid n = 0; n < n_nodes; ++n) {
      release_node(&p->view[i].node[n]);
    }
    ts_free(p->view[i].node);
    ts_free(p->view[i].run);
  }
}

static void release_device(ts_executor *e) {
  ts_device *device = e->device;
  ts_executor_finish(e);
  for (int i = 0; i < e->n_programs; ++i) {
    ts_walk_device_release(e, &e->program[i]);
  }
  for (int i = 0; i < e->n_spans; ++i) {
    device->ops->event_destroy(device, e->span[i].begin);
    device->ops->event_destroy(device, e->span[i].end);
  }
  device->ops->event_destroy(device, e->first);
  ts_free(e->span);
}

void ts_executor_destroy(ts_executor **executor) {
  ts_executor *e = *executor;
  if (e == NULL) {
    return;
  }
  ts_stream_destroy(&e->stream);
  if (e->device != NULL) {
    release_device(e);
  }
  for (int i = 0; i < e->n_programs; ++i) {
    ts_bound_program *p = &e->program[i];
    release_nodes(p);
    ts_memcheck_destroy(&p->memcheck);
    ts_free(p->view);
    ts_free(p->state);
    ts_free(p->message);
    ts_free(p->left);
  }
  ts_bound_release(e);
  ts_free(e->program);
  ts_free(e->nonfinite);
  ts_free(e);
  *executor = NULL;
}
