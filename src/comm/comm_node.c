/* Memory shared by the ranks of a node: one MPI-3 window, allocated by the first of them. */
#include "comm/comm_mpi.h"

#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"

#include <string.h>

enum { ALIGN = 128 };

typedef struct node_memory {
  ts_node_memory base; /* what the caller sees: its arrays are the ones below */
  MPI_Comm comm;
  MPI_Win window; /* MPI_WIN_NULL: this rank is alone and the memory is its own */
  char *own, *name;
  int *rank;
  void **memory;
} node_memory;

/* The name of this rank's node, with the lowest rank of its group where a group before it has the same. */
static char *unique_name(const ts_world *world, int lowest) {
  const char *mine = ts_world_node_name(world, lowest);
  for (int r = 0; r < lowest; ++r) {
    if (strcmp(ts_world_node_name(world, r), mine) == 0) {
      return ts_format("%s.r%d", mine, lowest);
    }
  }
  return ts_strdup(mine);
}

/* Ranks of one node that can share memory: several nodes of a test are one machine, and containers divide one. */
static void split(node_memory *m, MPI_Comm all, int node) {
  MPI_Comm shared;
  TS_MPI(MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared));
  TS_MPI(MPI_Comm_set_errhandler(shared, MPI_ERRORS_RETURN));
  TS_MPI(MPI_Comm_split(shared, node, 0, &m->comm));
  TS_MPI(MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN));
  TS_MPI(MPI_Comm_free(&shared));
}

static void allocate_shared(node_memory *m, size_t stride) {
  char *base;
  MPI_Aint bytes = m->base.index == 0 ? (MPI_Aint) (stride * (size_t) m->base.n + ALIGN) : 0;
  TS_MPI(MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, m->comm, &base, &m->window));
  MPI_Aint size;
  int unit;
  TS_MPI(MPI_Win_shared_query(m->window, 0, &size, &unit, &base));
  base += (ALIGN - (uintptr_t) base % ALIGN) % ALIGN; /* pages: the same for all */
  for (int i = 0; i < m->base.n; ++i) {
    m->memory[i] = base + (size_t) i * stride;
  }
  memset(m->memory[m->base.index], 0, stride);
  TS_MPI(MPI_Barrier(m->comm));
}

static void fill_memory(node_memory *m, int world_rank, size_t stride) {
  TS_MPI(MPI_Comm_size(m->comm, &m->base.n));
  TS_MPI(MPI_Comm_rank(m->comm, &m->base.index));
  m->rank = ts_calloc((size_t) m->base.n, sizeof *m->rank);
  m->memory = ts_calloc((size_t) m->base.n, sizeof *m->memory);
  TS_MPI(MPI_Allgather(&world_rank, 1, MPI_INT, m->rank, 1, MPI_INT, m->comm));
  allocate_shared(m, stride);
}

/* A world of one has no communicator. */
static void fill_alone(node_memory *m, size_t stride) {
  m->comm = MPI_COMM_NULL;
  m->base.n = m->base.n_nodes = 1;
  m->rank = ts_calloc(1, sizeof *m->rank);
  m->memory = ts_calloc(1, sizeof *m->memory);
  m->own = ts_calloc(stride + ALIGN, 1);
  m->memory[0] = m->own + (ALIGN - (uintptr_t) m->own % ALIGN) % ALIGN;
}

ts_node_memory *ts_node_memory_create(ts_world *world, size_t bytes) {
  node_memory *m = ts_calloc(1, sizeof *m);
  ts_comm_mpi *all = (ts_comm_mpi *) ts_world_all(world);
  size_t stride = (bytes + ALIGN - 1) / ALIGN * ALIGN;
  int rank = all->base.rank;
  m->window = MPI_WIN_NULL;
  if (all->base.size == 1) {
    fill_alone(m, stride);
  } else {
    split(m, all->comm, ts_world_node(world, rank));
    fill_memory(m, rank, stride);
    int first = m->base.index == 0;
    TS_MPI(MPI_Allreduce(&first, &m->base.n_nodes, 1, MPI_INT, MPI_SUM, all->comm));
  }
  m->name = unique_name(world, m->rank[0]);
  m->base.name = m->name;
  m->base.rank = m->rank;
  m->base.memory = m->memory;
  return &m->base;
}

void ts_node_memory_destroy(ts_node_memory **memory) {
  node_memory *m = (node_memory *) *memory;
  if (m == NULL) {
    return;
  }
  if (m->window != MPI_WIN_NULL) {
    TS_MPI(MPI_Win_free(&m->window));
    TS_MPI(MPI_Comm_free(&m->comm));
  }
  ts_free(m->own);
  ts_free(m->name);
  ts_free(m->rank);
  ts_free(m->memory);
  ts_free(m);
  *memory = NULL;
}
