#include "comm/comm_nccl_group.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIR_BLOCKS = 4 /* a receive that was posted early keeps them from computing */ };

#define CREATE_SECONDS 600.0 /* of a large job's first connections, when no other limit is given */

const char *ts_comm_nccl_describe(void) {
  static char text[32];
  int version = NCCL_VERSION_CODE;
  ncclGetVersion(&version);
  snprintf(text, sizeof text, "NCCL %d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
  return text;
}

bool ts_comm_nccl_available(void) {
  return true;
}

/* ---- failures ---- */

/* "4 ranks (0, 1, 2, 3)", of a large group the first ones. */
static void name_group(const ts_comm_nccl *c, char *text, size_t bytes) {
  enum { MOST = 8 };
  int used = snprintf(text, bytes, "%d ranks (", c->base.size);
  for (int i = 0; i < c->base.size && i < MOST; ++i) {
    used += snprintf(text + used, bytes - (size_t) used, "%s%d", i > 0 ? ", " : "", c->member[i]);
  }
  snprintf(text + used, bytes - (size_t) used, "%s)", c->base.size > MOST ? ", ..." : "");
}

/* What this rank queued there last.  What is recorded goes through here once and is replayed as a whole. */
static void name_last(const ts_comm_nccl *c, bool waits, char *text, size_t bytes) {
  if (c->number == 0) {
    snprintf(text, bytes, "it was being made");
  } else if (waits && c->last != TS_MESSAGE && ts_cuda_run_is_recorded()) {
    snprintf(text, bytes,
             "its collectives are recorded and replayed with the step, queued last: %s; which of them it is in is not "
             "known, "
             "--set run.cuda_graphs=false names it",
             ts_cuda_run());
  } else {
    snprintf(text, bytes, "the last collective this rank queued there is number %ld, %s, op %s", c->number,
             ts_collective_name(c->last), c->op);
  }
}

static const char waiting[] = "waiting for the device";

static _Noreturn void fail_group(const ts_comm_nccl *c, const char *what, const char *why) {
  char group[160], last[256];
  name_group(c, group, sizeof group);
  name_last(c, what == waiting, last, sizeof last);
  const char *more = c->nccl != NULL ? ncclGetLastError(c->nccl) : "";
  ts_die(__FILE__, __LINE__,
         "NCCL, the communicator of %s: %s: %s%s%s; %s.  If another rank died, its message says more", group, what, why,
         more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "", last);
}

void ts_nccl_check(const ts_comm_nccl *c, ncclResult_t code, const char *call) {
  if (code != ncclSuccess && code != ncclInProgress) {
    fail_group(c, call, ncclGetErrorString(code));
  }
}

/* What the communicator says of itself. */
static ncclResult_t state_of(const ts_comm_nccl *c) {
  ncclResult_t state = ncclSuccess;
  TS_NCCL(c, ncclCommGetAsyncError(c->nccl, &state));
  return state;
}

/* Until the last call is done; NCCL takes no other before. */
static void settle(const ts_comm_nccl *c, const char *what, double limit) {
  double since = ts_seconds();
  ts_patience patience = {0};
  for (;;) {
    ncclResult_t state = state_of(c);
    if (state == ncclSuccess) {
      return;
    }
    if (state != ncclInProgress) {
      fail_group(c, what, ncclGetErrorString(state));
    }
    if (limit > 0 && ts_seconds() - since > limit) {
      char why[64];
      snprintf(why, sizeof why, "not done after %.0f s", limit);
      fail_group(c, what, why);
    }
    ts_patience_pause(&patience);
  }
}

/* While the host waits for the device. */
static void watch_group(void *user) {
  const ts_comm_nccl *c = user;
  ncclResult_t state = state_of(c);
  if (state != ncclSuccess && state != ncclInProgress) {
    fail_group(c, waiting, ncclGetErrorString(state));
  }
}

static void describe_group(const void *user, ts_text *to) {
  const ts_comm_nccl *c = user;
  char group[160], last[256];
  name_group(c, group, sizeof group);
  name_last(c, true, last, sizeof last);
  ts_text_add(to, "; NCCL, %s: %s", group, last);
}

/* ---- calls ---- */

void ts_nccl_begin(ts_comm_nccl *c, ts_collective op) {
  ++c->number;
  c->last = op;
  snprintf(c->op, sizeof c->op, "%s", ts_cuda_op());
}

void ts_nccl_open(ts_comm_nccl *c) {
  TS_NCCL(c, ncclGroupStart());
}

void ts_nccl_close(ts_comm_nccl *c) {
  TS_NCCL(c, ncclGroupEnd());
  settle(c, "queueing", c->options.time_limit);
}

/* ---- registration ---- */

/* What NCCL does not take it reads like any other memory. */
void ts_comm_nccl_register(ts_comm *comm, void *memory, size_t bytes) {
  ts_comm_nccl *c = (ts_comm_nccl *) comm;
  for (int i = 0; i < TS_MOST_REGISTERED; ++i) {
    if (c->registered[i].memory == NULL) {
      void *handle = NULL;
      if (ncclCommRegister(c->nccl, memory, bytes, &handle) == ncclSuccess && handle != NULL) {
        c->registered[i].memory = memory;
        c->registered[i].handle = handle;
      }
      return;
    }
  }
}

void ts_comm_nccl_deregister(ts_comm *comm, const void *memory) {
  ts_comm_nccl *c = (ts_comm_nccl *) comm;
  for (int i = 0; memory != NULL && i < TS_MOST_REGISTERED; ++i) {
    if (c->registered[i].memory == memory) {
      TS_NCCL(c, ncclCommDeregister(c->nccl, c->registered[i].handle));
      c->registered[i].memory = NULL;
    }
  }
}

/* ---- who shares a device ---- */

/* Nodes by their number in the world: host names need not differ where containers run. */
typedef struct place {
  int node;
  char bus[32];
} place;

static int compare_places(const void *a, const void *b) {
  return memcmp(a, b, sizeof(place));
}

/* NCCL refuses two ranks on one device of one host, by the host's name and the device's bus; with another name for each
 * rank it connects them by sockets.  Their kernels must all be on the device at once, or in turns: few blocks. */
static void let_ranks_share(int rank, bool one_host) {
  char name[32];
  snprintf(name, sizeof name, "tessera-rank-%d", rank);
  setenv("NCCL_HOSTID", name, 0);
  setenv("NCCL_IB_DISABLE", "1", 0);
  setenv("NCCL_MAX_CTAS", "2", 0);
  if (one_host) {
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  }
}

void ts_comm_nccl_place(MPI_Comm all, int node) {
  int rank, size, device;
  TS_MPI(MPI_Comm_rank(all, &rank));
  TS_MPI(MPI_Comm_size(all, &size));
  place mine = {.node = node}, *of_rank = ts_calloc((size_t) size, sizeof *of_rank);
  TS_CUDA(cudaGetDevice(&device));
  TS_CUDA(cudaDeviceGetPCIBusId(mine.bus, sizeof mine.bus, device));
  memset(mine.bus + strlen(mine.bus), 0, sizeof mine.bus - strlen(mine.bus));
  MPI_Request request;
  TS_MPI(MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, of_rank, sizeof mine, MPI_BYTE, all, &request));
  ts_mpi_wait(&request);
  qsort(of_rank, (size_t) size, sizeof *of_rank, compare_places);
  bool shared = false, one_host = true;
  for (int i = 1; i < size; ++i) {
    shared = shared || compare_places(&of_rank[i - 1], &of_rank[i]) == 0;
    one_host = one_host && of_rank[i - 1].node == of_rank[i].node;
  }
  ts_free(of_rank);
  if (shared) {
    ts_log(TS_LOG_INFO, "ranks share a GPU: NCCL connects them by sockets and keeps to few blocks, which is slow");
    let_ranks_share(rank, one_host);
  }
}

/* ---- coming and going ---- */

static ts_comm_nccl *new_group(ts_comm_mpi *mpi, int rank, int size, const ts_device_options *options) {
  ts_comm_nccl *c = ts_calloc(1, sizeof *c);
  c->base = (ts_comm){.rank = rank, .size = size};
  c->mpi = mpi;
  c->options = *options;
  c->member = ts_calloc((size_t) size, sizeof *c->member);
  c->cuts = ts_calloc((size_t) size + 1, sizeof *c->cuts);
  return c;
}

static void connect_group(ts_comm_nccl *c, ncclUniqueId id, ncclConfig_t config) {
  config.blocking = 0;
  TS_NCCL(c, ncclCommInitRankConfig(&c->nccl, c->base.size, id, c->base.rank, &config));
  settle(c, "connecting", c->options.time_limit > 0 ? c->options.time_limit : CREATE_SECONDS);
  ts_cuda_watch_add(&(ts_cuda_watcher){.watch = watch_group, .describe = describe_group, .user = c});
}

ts_comm_nccl *ts_nccl_group_create(ts_comm_mpi *mpi, const ts_device_options *options) {
  ts_comm_nccl *c = new_group(mpi, mpi->base.rank, mpi->base.size, options);
  memcpy(c->member, mpi->member, (size_t) c->base.size * sizeof *c->member);
  ncclUniqueId id = {{0}};
  if (c->base.rank == 0) {
    TS_NCCL(c, ncclGetUniqueId(&id));
  }
  mpi->base.ops->broadcast(&mpi->base, &id, sizeof id, 0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  connect_group(c, id, config);
  return c;
}

ts_comm_nccl *ts_nccl_pair_create(ts_comm_mpi *mpi, int sender, int receiver, int tag,
                                  const ts_device_options *options) {
  bool sends = mpi->base.rank == sender;
  ts_comm_nccl *c = new_group(mpi, !sends, 2, options);
  c->member[0] = mpi->member[sender];
  c->member[1] = mpi->member[receiver];
  ncclUniqueId id = {{0}};
  MPI_Request request;
  if (sends) {
    TS_NCCL(c, ncclGetUniqueId(&id));
    TS_MPI(MPI_Isend(&id, sizeof id, MPI_BYTE, receiver, tag, mpi->comm, &request));
  } else {
    TS_MPI(MPI_Irecv(&id, sizeof id, MPI_BYTE, sender, tag, mpi->comm, &request));
  }
  ts_mpi_wait(&request);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.maxCTAs = PAIR_BLOCKS;
  connect_group(c, id, config);
  return c;
}

void ts_nccl_group_destroy(ts_comm_nccl *c) {
  ts_cuda_watch_remove(c);
  for (int i = 0; i < TS_MOST_REGISTERED; ++i) {
    ts_comm_nccl_deregister(&c->base, c->registered[i].memory);
  }
  TS_NCCL(c, ncclCommFinalize(c->nccl));
  settle(c, "finishing", c->options.time_limit);
  TS_NCCL(c, ncclCommDestroy(c->nccl));
  ts_free(c->member);
  ts_free(c->cuts);
  ts_free(c);
}
