/* The memory of an executor: arenas, and how others reach what lies in them. */
#include "base/memory.h"
#include "run/bound.h"

#include <string.h>

enum { STAGING = 4 << 20 };
#define COPY_BLOCK ((size_t) 1 << 20)

/* ---- arenas ---- */

/* The largest of each kind; what programs share is known, and what the host writes each has for itself. */
static void measure_arenas(ts_executor *e) {
  const ts_program **programs = ts_malloc((size_t) e->n_programs * sizeof *programs);
  for (int i = 0; i < e->n_programs; ++i) {
    programs[i] = e->program[i].program;
    e->program[i].inputs = ts_programs_arena_bytes(programs, i, TS_ARENA_INPUT);
  }
  for (ts_arena a = TS_ARENA_PINNED; a < TS_N_ARENAS; ++a) {
    e->arena_bytes[a] = (size_t) ts_programs_arena_bytes(programs, e->n_programs, a);
  }
  ts_free(programs);
}

/* What the host writes for one slot. */
static int64_t image_bytes(const ts_program *program) {
  int64_t bytes = 0;
  for (int a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    bytes += ts_arenas[a].space == TS_SPACE_HOST ? program->plan->slot_bytes[a] : 0;
  }
  return bytes;
}

static void allocate_beside_device(ts_executor *e) {
  ts_device *device = e->device;
  for (int a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    e->host[a] = ts_arenas[a].space == TS_SPACE_HOST ? ts_calloc(e->arena_bytes[a] + 1, 1) : NULL;
  }
  int64_t bytes = 0;
  for (int i = 0; i < e->n_programs; ++i) {
    int64_t here = image_bytes(e->program[i].program);
    bytes = here > bytes ? here : bytes;
  }
  for (int i = 0; i < TS_BOUND_IMAGES; ++i) {
    e->image[i] = (ts_image){.memory = device->ops->allocate_host(device, (size_t) bytes),
                             .copied = device->ops->event_create(device, false)};
  }
  size_t pinned = 0, at[TS_ARENA_STATE];
  for (int a = TS_ARENA_PINNED; a < TS_ARENA_STATE; ++a) {
    at[a] = pinned;
    pinned += (size_t) ts_plan_pages((int64_t) e->arena_bytes[a]);
  }
  unsigned char *memory = pinned > 0 ? device->ops->allocate_host(device, pinned) : NULL;
  for (int a = TS_ARENA_PINNED; pinned > 0 && a < TS_ARENA_STATE; ++a) {
    e->arena[a] = memory + at[a];
  }
  e->staging = device->ops->allocate_host(device, STAGING);
  e->staged = device->ops->event_create(device, false);
}

static void release_beside_device(ts_executor *e) {
  ts_device *device = e->device;
  for (int a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    ts_free(e->host[a]);
  }
  for (int i = 0; i < TS_BOUND_IMAGES; ++i) {
    device->ops->event_destroy(device, e->image[i].copied);
    device->ops->release_host(device, e->image[i].memory);
  }
  device->ops->event_destroy(device, e->staged);
  device->ops->release_host(device, e->staging);
  device->ops->release_host(device, e->arena[TS_ARENA_PINNED]);
}

/* One behind the other; where STATE has a page more for it, such that the last begins at one. */
static void place_arenas(ts_executor *e, size_t bytes) {
  size_t at = bytes - e->arena_bytes[TS_ARENA_WORK];
  at -= e->options.store != NULL ? at % TS_PLAN_PAGE : 0;
  for (int a = TS_ARENA_WORK; a > TS_ARENA_STATE; --a) {
    e->arena[a] = e->arena[TS_ARENA_STATE] + at;
    at -= e->arena_bytes[a - 1];
  }
}

void ts_bound_allocate(ts_executor *e) {
  ts_device *device = e->device;
  measure_arenas(e);
  if (device != NULL) {
    allocate_beside_device(e);
  }
  size_t bytes = 0; /* one arena that holds all: what does not fit is known at once */
  for (int a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    bytes += e->arena_bytes[a];
  }
  e->arena[TS_ARENA_STATE] = e->backend->allocate(bytes);
  place_arenas(e, bytes);
  if (device != NULL && e->options.world != NULL) {
    ts_world_device_register(e->options.world, e->arena[TS_ARENA_STATE], bytes);
  }
  for (int a = TS_ARENA_STATE; device == NULL && a < TS_N_ARENAS; ++a) {
    e->host[a] = ts_arenas[a].space == TS_SPACE_HOST ? e->arena[a] : NULL;
  }
}

void ts_bound_release(ts_executor *e) {
  ts_device *device = e->device;
  if (device != NULL) {
    release_beside_device(e);
  }
  if (device != NULL && e->options.world != NULL) {
    ts_world_device_deregister(e->options.world, e->arena[TS_ARENA_STATE]);
  }
  e->backend->release(e->arena[TS_ARENA_STATE], (size_t) ts_executor_arena_bytes(e));
}

/* From the place in the program's own plan to that here: state lies where the programs share it. */
static int64_t move_of(const ts_bound_program *b, ts_arena arena, ts_tid t, ts_run run) {
  int64_t part = arena == TS_ARENA_INPUT ? b->inputs : 0;
  return ts_arenas[arena].lifetime == TS_LIFETIME_STATE ? b->state[t]
                                                        : part + ts_plan_offset(b->program->plan, arena, run);
}

void *ts_bound_address(const ts_executor *e, const ts_bound_program *b, ts_tid t, ts_run run) {
  if (t == TS_NONE) {
    return NULL;
  }
  ts_address at = b->program->plan->address[t];
  return at.arena >= TS_ARENA_PINNED ? e->arena[at.arena] + at.offset + move_of(b, at.arena, t, run) : NULL;
}

/* The first program has all that is in the file. */
int64_t ts_bound_stored(const ts_executor *e, const ts_bound_program *b, ts_tid t, ts_run run) {
  ts_address at = b->program->plan->address[t];
  return ts_plan_file_begin(e->program[0].program->plan, at.arena) + at.offset + move_of(b, at.arena, t, run);
}

/* ---- inputs ---- */

void *ts_executor_input(ts_executor *e, int index, int slot, const char *name) {
  const ts_bound_program *b = &e->program[index];
  const ts_program *program = b->program;
  TS_ASSERT(slot >= 0 && slot < ts_step_slots(&program->step));
  ts_tid t = ts_graph_find(program->graph, name);
  ts_address at = t != TS_NONE ? program->plan->address[t] : (ts_address){TS_ARENA_NONE, 0};
  unsigned char *host = e->host[at.arena];
  return host != NULL ? host + at.offset + move_of(b, at.arena, t, ts_run_in_slot(slot)) : NULL;
}

void ts_bound_wait_for_image(ts_executor *e, const ts_bound_program *p) {
  ts_image *image = &e->image[e->next_image];
  if (image->queued) {
    ts_walk_device_follow(e, image->spans);
    ts_heartbeat_wait(ts_bound_heartbeat(e), "wait.for.device", p->group);
    e->device->ops->finish(e->device, image->copied);
    ts_heartbeat_leave(ts_bound_heartbeat(e));
    image->queued = false;
  }
}

void ts_bound_copy_in(ts_executor *e, const ts_bound_program *p, ts_run run) {
  ts_device *device = e->device;
  ts_image *image = &e->image[e->next_image];
  TS_ASSERT(!image->queued);
  unsigned char *memory = image->memory;
  for (int a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    if (ts_arenas[a].space == TS_SPACE_HOST) {
      size_t bytes = (size_t) p->program->plan->slot_bytes[a], at = (size_t) move_of(p, (ts_arena) a, TS_NONE, run);
      memcpy(memory, e->host[a] + at, bytes);
      device->ops->copy(device, e->arena[a] + at, memory, bytes, TS_QUEUE_COMPUTE);
      memory += bytes;
    }
  }
  device->ops->record(device, image->copied, TS_QUEUE_COMPUTE);
  image->queued = true;
  image->spans = e->used_spans;
  e->next_image = (e->next_image + 1) % TS_BOUND_IMAGES;
}

void ts_executor_finish(ts_executor *e) {
  if (e->device != NULL) {
    for (int q = 0; q < TS_N_QUEUES; ++q) {
      e->device->ops->record(e->device, e->staged, (ts_queue) q);
      e->device->ops->finish(e->device, e->staged);
    }
  }
}

/* Block by block through the staging memory: pageable memory would be copied so by the driver anyway. */
static void stage(ts_executor *e, unsigned char *device_memory, unsigned char *host, size_t bytes, bool out) {
  ts_device *device = e->device;
  for (size_t at = 0; at < bytes; at += STAGING) {
    size_t n = bytes - at < STAGING ? bytes - at : STAGING;
    if (!out) {
      memcpy(e->staging, host + at, n);
    }
    device->ops->copy(device, out ? e->staging : device_memory + at, out ? device_memory + at : e->staging, n,
                      TS_QUEUE_COMPUTE);
    device->ops->record(device, e->staged, TS_QUEUE_COMPUTE);
    device->ops->finish(device, e->staged);
    if (out) {
      memcpy(host + at, e->staging, n);
    }
  }
}

void ts_bound_read(ts_executor *e, void *to, const void *memory, size_t bytes) {
  if (e->device == NULL) {
    memcpy(to, memory, bytes);
  } else {
    ts_heartbeat_wait(ts_bound_heartbeat(e), "wait.for.device", e->program[0].group);
    stage(e, (unsigned char *) memory, to, bytes, true);
    ts_heartbeat_leave(ts_bound_heartbeat(e));
  }
}

/* ---- state and results ---- */

/* Elements of a leaf: in memory, or, where that is NULL, in the file. */
typedef struct stretch {
  unsigned char *memory;
  bool on_host; /* that is the host's, which may touch it while nothing is queued */
  int64_t stored;
  size_t bytes;
} stretch;

/* Of what a part holds nothing is read or written before updates that wait are made. */
static void complete_updates(ts_executor *e, ts_tid leaf) {
  if (e->program[0].program->graph->tensor[leaf].held.part >= 0) {
    ts_bound_update_late(e);
  }
}

static stretch find_state(ts_executor *e, ts_tid leaf, int64_t first, int64_t count) {
  const ts_bound_program *p = &e->program[0];
  const ts_graph *g = p->program->graph;
  complete_updates(e, leaf);
  TS_ASSERT(g->tensor[leaf].role == TS_ROLE_STATE && first >= 0 && first + count <= ts_tensor_count(g, leaf));
  int64_t size = (int64_t) ts_dtype_size(g->tensor[leaf].dtype);
  unsigned char *memory = ts_bound_address(e, p, leaf, ts_run_in_slot(0));
  ts_space space = g->tensor[leaf].space;
  bool stored = space == TS_SPACE_FILE;
  return (stretch){.memory = memory != NULL ? memory + first * size : NULL,
                   .on_host = e->device == NULL || space == TS_SPACE_PINNED,
                   .stored = stored ? ts_bound_stored(e, p, leaf, ts_run_in_slot(0)) + first * size : -1,
                   .bytes = (size_t) (count * size)};
}

void ts_executor_read_state(ts_executor *e, ts_tid leaf, int64_t first, int64_t count, void *to) {
  stretch at = find_state(e, leaf, first, count);
  if (at.stored >= 0) {
    ts_store_read(e->options.store, at.stored, (int64_t) at.bytes, to);
  } else if (at.on_host) {
    ts_executor_finish(e);
    memcpy(to, at.memory, at.bytes);
  } else {
    ts_bound_read(e, to, at.memory, at.bytes);
  }
}

void ts_executor_write_state(ts_executor *e, ts_tid leaf, int64_t first, int64_t count, const void *from) {
  stretch at = find_state(e, leaf, first, count);
  if (at.stored >= 0) {
    ts_store_write(e->options.store, at.stored, (int64_t) at.bytes, from);
  } else if (at.on_host) {
    ts_executor_finish(e);
    memcpy(at.memory, from, at.bytes);
  } else {
    stage(e, at.memory, (unsigned char *) from, at.bytes, false);
  }
}

static void copy_on_host(const void *from, void *to, size_t bytes, int threads) {
  int64_t n = (int64_t) ((bytes + COPY_BLOCK - 1) / COPY_BLOCK);
#pragma omp parallel for num_threads(threads)
  for (int64_t block = 0; block < n; ++block) {
    size_t at = (size_t) block * COPY_BLOCK, length = bytes - at < COPY_BLOCK ? bytes - at : COPY_BLOCK;
    memcpy((char *) to + at, (const char *) from + at, length);
  }
}

void ts_executor_copy_state(ts_executor *e, ts_tid leaf, int64_t first, int64_t count, void *to) {
  stretch at = find_state(e, leaf, first, count);
  if (at.stored >= 0) {
    ts_store_read(e->options.store, at.stored, (int64_t) at.bytes, to);
  } else if (at.on_host) {
    ts_executor_finish(e);
    copy_on_host(at.memory, to, at.bytes, e->program[0].program->target.threads);
  } else {
    e->device->ops->copy(e->device, to, at.memory, at.bytes, TS_QUEUE_COMPUTE);
  }
}

/* Of a leaf that is elsewhere: each rank's elements in blocks, by way of the host. */
static void spread_state(ts_executor *e, ts_tid leaf, ts_comm *comm, const int64_t *cuts) {
  size_t size = ts_dtype_size(e->program[0].program->graph->tensor[leaf].dtype);
  int64_t most = (int64_t) (STAGING / size);
  void *block = ts_malloc(STAGING);
  for (int rank = 0; rank < comm->size && comm->size > 1; ++rank) {
    for (int64_t at = cuts[rank]; at < cuts[rank + 1]; at += most) {
      int64_t count = cuts[rank + 1] - at < most ? cuts[rank + 1] - at : most;
      if (rank == comm->rank) {
        ts_executor_read_state(e, leaf, at, count, block);
      }
      comm->ops->broadcast(comm, block, (size_t) count * size, rank);
      if (rank != comm->rank) {
        ts_executor_write_state(e, leaf, at, count, block);
      }
    }
  }
  ts_free(block);
}

void ts_executor_gather_state(ts_executor *e, ts_tid leaf, unsigned axes, const int64_t *cuts) {
  const ts_program *first = e->program[0].program;
  complete_updates(e, leaf);
  if (ts_space_is_away(first->graph->tensor[leaf].space)) {
    spread_state(e, leaf, ts_world_comm(e->options.world, &first->mesh, axes), cuts);
    return;
  }
  ts_comm *comm = ts_bound_comm(e, &first->mesh, axes);
  if (comm->size > 1) {
    ts_dtype dtype = first->graph->tensor[leaf].dtype;
    char *memory = ts_bound_address(e, &e->program[0], leaf, ts_run_in_slot(0));
    ts_transfer transfer = {.x = memory + (size_t) cuts[comm->rank] * ts_dtype_size(dtype),
                            .y = memory,
                            .cuts = cuts,
                            .begin = 0,
                            .end = cuts[comm->size]};
    comm->ops->all_gather(comm, &transfer, 1, dtype);
    ts_executor_finish(e);
  }
}

void ts_executor_read_result(ts_executor *e, int index, const char *name, void *to) {
  const ts_graph *g = e->program[index].program->graph;
  ts_tid t = ts_graph_marked(g, name);
  TS_CHECK(t != TS_NONE, "program %d has no result %s", index, name);
  const ts_step_runs *step = &e->program[index].program->step;
  const void *memory = ts_bound_address(e, &e->program[index], t, ts_step_run(step, step->n - 1));
  ts_bound_read(e, to, memory, (size_t) ts_tensor_bytes(g, t));
}

/* ---- memory of the host ---- */

void *ts_executor_allocate_host(const ts_executor *e, size_t bytes) {
  return e->device == NULL ? ts_map(bytes) : e->device->ops->allocate_host(e->device, bytes);
}

void ts_executor_release_host(const ts_executor *e, void *memory, size_t bytes) {
  if (memory != NULL && e->device == NULL) {
    ts_unmap(memory, bytes);
  } else if (memory != NULL) {
    e->device->ops->release_host(e->device, memory);
  }
}

int64_t ts_executor_host_bytes(const ts_program *const *programs, int n_programs) {
  int64_t all = STAGING, feed = 0, image = 0, store = 0;
  for (int i = 0; i < n_programs; ++i) {
    int64_t here = programs[i] != NULL ? image_bytes(programs[i]) : 0;
    int64_t stored = programs[i] != NULL ? ts_program_store_bytes(programs[i]) : 0;
    store = stored > store ? stored : store;
    feed = programs[i] != NULL && programs[i]->plan->feed_bytes > feed ? programs[i]->plan->feed_bytes : feed;
    image = here > image ? here : image;
  }
  for (ts_arena a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    all += ts_arenas[a].space == TS_SPACE_HOST ? ts_programs_arena_bytes(programs, n_programs, a) : 0;
  }
  for (ts_arena a = TS_ARENA_PINNED; a < TS_ARENA_STATE; ++a) {
    all += ts_plan_pages(ts_programs_arena_bytes(programs, n_programs, a));
  }
  return all + feed + store + TS_BOUND_IMAGES * image;
}

int64_t ts_executor_arena_bytes(const ts_executor *e) {
  size_t bytes = 0;
  for (int a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    bytes += e->arena_bytes[a];
  }
  return (int64_t) bytes;
}
