#include "comm/comm_device.h"
#include "comm/comm_join.h"
#include "comm/comm_launch.h"
#include "comm/comm_mpi.h"
#include "comm/comm_nccl.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"

#include <string.h>

struct ts_world {
  ts_nodes nodes;  /* all processes, node by node */
  ts_comm **group; /* made so far; the first is all processes */
  int n_groups, capacity;
  ts_comm **device; /* per group, NULL: none so far */
  int n_device, device_capacity;
  ts_nccl_lane **lane;
  int n_lanes, lane_capacity;
  ts_device_options device_options;
  bool placed;                   /* it is known who shares a device */
  bool began;                    /* MPI: it is ended with this world */
  ts_heartbeat *own, *heartbeat; /* own: owned */
};

/* Without processes yet. */
static ts_world *new_world(void) {
  ts_world *w = ts_calloc(1, sizeof *w);
  w->own = w->heartbeat = ts_map(ts_heartbeat_bytes());
  return w;
}

static ts_comm *make_group(ts_world *w, int rank, int size, int *member) {
  MPI_Comm comm = MPI_COMM_NULL;
  if (size > 1) {
    MPI_Group all, some;
    TS_MPI(MPI_Comm_group(w->nodes.comm, &all));
    TS_MPI(MPI_Group_incl(all, size, member, &some));
    TS_MPI(MPI_Comm_create_group(w->nodes.comm, some, 0, &comm));
    TS_MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    TS_MPI(MPI_Group_free(&some));
    TS_MPI(MPI_Group_free(&all));
  }
  TS_GROW(w->group, w->n_groups, w->capacity);
  return w->group[w->n_groups++] = ts_comm_mpi_create(comm, rank, size, member);
}

/* The first group: everybody. */
static void add_all(ts_world *w) {
  int *member = ts_calloc((size_t) w->nodes.size, sizeof *member);
  for (int i = 0; i < w->nodes.size; ++i) {
    member[i] = i;
  }
  make_group(w, w->nodes.rank, w->nodes.size, member);
}

ts_world *ts_world_create(int *argc, char ***argv) {
  ts_world *w = new_world();
  ts_mpi_begin(argc, argv);
  w->began = true;
  ts_nodes_find(MPI_COMM_WORLD, &w->nodes);
  ts_mpi_speak_as(w->nodes.rank);
  add_all(w);
  return w;
}

void ts_mpi_prepare(void) {
  ts_mpi_before();
}

void ts_mpi_conclude(void) {
  ts_mpi_after();
}

ts_status ts_world_join(MPI_Comm comm, ts_world **world, ts_error *err) {
  *world = NULL;
  ts_status status = ts_mpi_join(err);
  if (status == TS_OK && comm == MPI_COMM_NULL) {
    status = ts_error_add(err, "the communicator is MPI_COMM_NULL");
  }
  int inter = 0;
  if (status == TS_OK && (MPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter)) {
    status = ts_error_add(err, "the communicator joins two groups: it has to be one of a single group");
  }
  if (status == TS_OK) {
    *world = new_world();
    ts_nodes_find(comm, &(*world)->nodes);
    add_all(*world);
    ts_log_join(ts_world_rank(*world) == 0);
  }
  return status;
}

ts_status ts_world_join_fortran(MPI_Fint comm, ts_world **world, ts_error *err) {
  int runs = 0;
  MPI_Initialized(&runs); /* or a handle means nothing yet */
  return ts_world_join(runs ? MPI_Comm_f2c(comm) : MPI_COMM_NULL, world, err);
}

ts_world *ts_world_alone(const ts_world *world) {
  TS_ASSERT(world != NULL);
  ts_world *w = new_world();
  w->nodes = (ts_nodes){.size = 1, .local_size = 1, .n = 1, .of_rank = ts_calloc(1, sizeof(int))};
  w->nodes.name = ts_calloc(1, sizeof *w->nodes.name);
  memcpy(w->nodes.name[0], ts_world_node_name(world, ts_world_rank(world)), TS_NODE_NAME);
  TS_MPI(MPI_Comm_dup(MPI_COMM_SELF, &w->nodes.comm));
  TS_MPI(MPI_Comm_set_errhandler(w->nodes.comm, MPI_ERRORS_RETURN));
  add_all(w);
  return w;
}

void ts_world_destroy(ts_world **world) {
  ts_world *w = *world;
  if (w == NULL) {
    return;
  }
  for (int i = 0; i < w->n_lanes; ++i) {
    ts_nccl_lane_destroy(w->lane[i]);
  }
  ts_free(w->lane);
  for (int i = 0; i < w->n_device; ++i) {
    if (w->device[i] != NULL) {
      w->device[i]->ops->destroy(w->device[i]);
    }
  }
  ts_free(w->device);
  for (int i = 0; i < w->n_groups; ++i) {
    w->group[i]->ops->destroy(w->group[i]);
  }
  ts_free(w->group);
  ts_nodes_clear(&w->nodes);
  bool began = w->began;
  ts_unmap(w->own, ts_heartbeat_bytes());
  ts_free(w);
  *world = NULL;
  if (began) {
    ts_mpi_end();
  }
}

ts_heartbeat *ts_world_heartbeat(const ts_world *world) {
  return world->heartbeat;
}

void ts_world_use_heartbeat(ts_world *world, ts_heartbeat *record) {
  world->heartbeat = record != NULL ? record : world->own;
}

int ts_world_rank(const ts_world *world) {
  return world->nodes.rank;
}

int ts_world_size(const ts_world *world) {
  return world->nodes.size;
}

int ts_world_local_size(const ts_world *world) {
  return world->nodes.local_size;
}

int ts_world_local_rank(const ts_world *world) {
  return world->nodes.local_rank;
}

int ts_world_node(const ts_world *world, int rank) {
  return world->nodes.of_rank[rank];
}

int ts_world_n_nodes(const ts_world *world) {
  return world->nodes.n;
}

const char *ts_world_node_name(const ts_world *world, int rank) {
  return world->nodes.name[world->nodes.of_rank[rank]];
}

char *ts_world_describe(const ts_world *world) {
  return ts_nodes_describe(&world->nodes);
}

ts_comm *ts_world_all(ts_world *world) {
  return world->group[0];
}

static ts_comm *find_group(const ts_world *w, const int *member, int size) {
  for (int i = 0; i < w->n_groups; ++i) {
    const ts_comm_mpi *c = (const ts_comm_mpi *) w->group[i];
    if (c->base.size == size && memcmp(c->member, member, (size_t) size * sizeof *member) == 0) {
      return w->group[i];
    }
  }
  return NULL;
}

ts_comm *ts_world_comm(ts_world *world, const ts_mesh *mesh, unsigned axes) {
  TS_ASSERT(mesh->ranks == world->nodes.size && mesh->rank == world->nodes.rank);
  int size = ts_mesh_group_size(mesh, axes), *member = ts_calloc((size_t) size, sizeof *member);
  for (int i = 0; i < size; ++i) {
    member[i] = ts_mesh_group_member(mesh, axes, i);
  }
  ts_comm *found = find_group(world, member, size);
  if (found != NULL) {
    ts_free(member);
    return found;
  }
  return make_group(world, ts_mesh_group_rank(mesh, axes), size, member);
}

/* ---- communicators of devices ---- */

void ts_world_set_device_options(ts_world *world, const ts_device_options *options) {
  world->device_options = *options;
}

void ts_world_device_place(ts_world *w) {
  if (!w->placed && w->nodes.size > 1) {
    ts_comm_nccl_place(w->nodes.comm, ts_world_node(w, w->nodes.rank));
  }
  w->placed = true;
}

static ts_comm *make_device_comm(ts_world *w, ts_comm *host) {
  if (host->size == 1) {
    return ts_comm_device_alone();
  }
  ts_world_device_place(w);
  return ts_comm_nccl_create((ts_comm_mpi *) host, &w->device_options);
}

ts_comm *ts_world_device_comm(ts_world *world, const ts_mesh *mesh, unsigned axes) {
  ts_comm *host = ts_world_comm(world, mesh, axes);
  int at = 0;
  while (world->group[at] != host) {
    ++at;
  }
  while (world->n_device <= at) {
    TS_GROW(world->device, world->n_device, world->device_capacity);
    world->device[world->n_device++] = NULL;
  }
  if (world->device[at] == NULL) {
    world->device[at] = make_device_comm(world, host);
  }
  return world->device[at];
}

static ts_nccl_lane *find_lane(const ts_world *w, const ts_comm_mpi *mpi, bool sends, int peer, int number) {
  for (int i = 0; i < w->n_lanes; ++i) {
    if (ts_nccl_lane_is(w->lane[i], mpi, sends, peer, number)) {
      return w->lane[i];
    }
  }
  return NULL;
}

void ts_world_device_connect(ts_world *world, const ts_mesh *mesh, unsigned axes, bool sends, int peer, int number) {
  ts_comm_mpi *mpi = (ts_comm_mpi *) ts_world_comm(world, mesh, axes);
  if (find_lane(world, mpi, sends, peer, number) == NULL) {
    TS_GROW(world->lane, world->n_lanes, world->lane_capacity);
    world->lane[world->n_lanes++] = ts_nccl_lane_create(mpi, sends, peer, number, &world->device_options);
  }
}

ts_message_line *ts_world_device_line_create(ts_world *world, const ts_mesh *mesh, unsigned axes, bool sends, int peer,
                                             int number, const ts_message_part *part, int n) {
  const ts_comm_mpi *mpi = (const ts_comm_mpi *) ts_world_comm(world, mesh, axes);
  ts_nccl_lane *lane = find_lane(world, mpi, sends, peer, number);
  TS_CHECK(lane != NULL, "the way for message %d is not there", number);
  return ts_nccl_line_create(lane, sends, part, n);
}

void ts_world_device_register(ts_world *world, void *memory, size_t bytes) {
  for (int i = 0; i < world->n_device; ++i) {
    if (world->device[i] != NULL && world->device[i]->size > 1) {
      ts_comm_nccl_register(world->device[i], memory, bytes);
    }
  }
}

void ts_world_device_deregister(ts_world *world, const void *memory) {
  for (int i = 0; i < world->n_device; ++i) {
    if (world->device[i] != NULL && world->device[i]->size > 1) {
      ts_comm_nccl_deregister(world->device[i], memory);
    }
  }
}

/* ---- what ranks have and say ---- */

void *ts_world_gather(ts_world *world, const void *mine, size_t bytes) {
  ts_comm *all = ts_world_all(world);
  int64_t *cuts = ts_calloc((size_t) all->size + 1, sizeof *cuts);
  for (int r = 0; r <= all->size; ++r) {
    cuts[r] = (int64_t) r * (int64_t) bytes;
  }
  void *everybody = ts_calloc((size_t) all->size, bytes);
  all->ops->all_gather(all, &(ts_transfer){.x = mine, .y = everybody, .cuts = cuts, .end = (int64_t) bytes}, 1, TS_U8);
  ts_free(cuts);
  return everybody;
}

char *ts_world_share_text(ts_world *world, const char *mine, int root) {
  ts_comm *all = ts_world_all(world);
  bool has = all->rank == root && mine != NULL;
  int64_t bytes = has ? (int64_t) strlen(mine) + 1 : 0; /* 0: no text */
  all->ops->broadcast(all, &bytes, sizeof bytes, root);
  if (bytes == 0) {
    return NULL;
  }
  char *text = has ? ts_strdup(mine) : ts_malloc((size_t) bytes);
  all->ops->broadcast(all, text, (size_t) bytes, root);
  return text;
}

/* ---- agreement on a status ---- */

static void all_minimum(ts_world *w, int *value) {
  MPI_Request request;
  TS_MPI(MPI_Iallreduce(MPI_IN_PLACE, value, 1, MPI_INT, MPI_MIN, w->nodes.comm, &request));
  ts_mpi_wait(&request);
}

/* The messages of rank \a root come to the ranks that have none. */
static void share_messages(ts_world *w, int root, ts_error *err) {
  ts_comm *all = ts_world_all(w);
  int count = err != NULL ? err->count : 0;
  char *text = ts_world_share_text(w, count > 0 ? err->text : NULL, root);
  all->ops->broadcast(all, &count, sizeof count, root);
  if (err != NULL && err->count == 0 && count > 0) {
    ts_error_add(err, "%s", text);
    err->count = count;
  }
  ts_free(text);
}

ts_status ts_world_agree(ts_world *world, ts_status status, ts_error *err) {
  int first = status == TS_OK ? world->nodes.size : world->nodes.rank;
  ts_heartbeat_enter(world->heartbeat, "agreement", TS_HEARTBEAT_ALL);
  all_minimum(world, &first);
  ts_heartbeat_leave(world->heartbeat);
  if (first == world->nodes.size) {
    return TS_OK;
  }
  share_messages(world, first, err);
  return TS_BAD_INPUT;
}
