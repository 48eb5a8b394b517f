/* NCCL's stand-in.  A communicator is a table of world ranks and a tag; a group of calls is one piece of work in a
 * stream, whose messages all make progress together. */
#include "nccl.h"

#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POLLS = 3 /* until a call is done */, MOST_COMMS = 256, TAG_MEET = 1, TAG_FIRST = 16 };

typedef enum kind { SEND, RECEIVE, ALL_GATHER, BROADCAST, REDUCE_SCATTER, N_KINDS } kind;

typedef struct operation {
  kind kind;
  const void *x;
  void *y;
  size_t bytes; /* of one rank's share */
  int peer;
  cudaStream_t stream;
} operation;

/* One group's work of one communicator. */
typedef struct job {
  struct ncclComm *comm;
  struct traffic *traffic; /* NULL: it is not running */
  int n;
  operation op[];
} job;

struct ncclComm {
  int rank, size, tag;
  int *member; /* rank in MPI_COMM_WORLD */
  ncclResult_t state;
  int polls, groups, ran, registered; /* a replayed group runs again and is not queued again */
  operation *op;                      /* of the open group */
  int n, capacity;
  job *ready; /* to be put in its stream */
  bool finalized;
};

static int depth;
static ncclComm_t grouped[MOST_COMMS];
static int n_grouped;
static const char *last_error = "";

static ncclResult_t refuse(ncclResult_t result, const char *why) {
  last_error = why;
  return result;
}

static void end_job(const char *why) {
  fprintf(stderr, "shim: nccl: %s\n", why);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static int world_rank(void) {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/* ---- waiting ---- */

static void pause_after(int idle) {
  if (idle > 200) {
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  } else {
    sched_yield();
  }
}

static void wait_for(MPI_Request *request) {
  int done = 0, code;
  for (int idle = 0; (code = MPI_Test(request, &done, MPI_STATUS_IGNORE)) == MPI_SUCCESS && !done; ++idle) {
    pause_after(idle);
  }
  if (code != MPI_SUCCESS) {
    end_job("two ranks do not find each other");
  }
}

static void send_wait(const void *data, size_t bytes, int to, int tag) {
  MPI_Request request;
  MPI_Isend(data, (int) bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD, &request);
  wait_for(&request);
}

static void receive_wait(void *data, size_t bytes, int from, int tag) {
  MPI_Request request;
  MPI_Irecv(data, (int) bytes, MPI_BYTE, from, tag, MPI_COMM_WORLD, &request);
  wait_for(&request);
}

/* ---- communicators ---- */

ncclResult_t ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

/* An id is where to meet and which communicator of that process it is. */
typedef struct meeting {
  int root, number;
} meeting;

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  static int number;
  if (number >= MOST_COMMS) {
    end_job("too many communicators");
  }
  meeting m = {world_rank(), number++};
  memset(id, 0, sizeof *id);
  memcpy(id->internal, &m, sizeof m);
  return ncclSuccess;
}

/* Everybody tells the root who it is, and gets the table. */
static void meet(ncclComm_t comm, meeting m) {
  int mine[2] = {comm->rank, world_rank()}, tag = TAG_FIRST + (m.root * MOST_COMMS + m.number) * (N_KINDS + 1);
  if (mine[1] == m.root) {
    comm->member[comm->rank] = m.root;
    for (int i = 1; i < comm->size; ++i) {
      int theirs[2];
      receive_wait(theirs, sizeof theirs, MPI_ANY_SOURCE, tag + N_KINDS);
      comm->member[theirs[0]] = theirs[1];
    }
    for (int i = 0; i < comm->size; ++i) {
      if (comm->member[i] != m.root) {
        send_wait(comm->member, (size_t) comm->size * sizeof(int), comm->member[i], TAG_MEET);
      }
    }
  } else {
    send_wait(mine, sizeof mine, m.root, tag + N_KINDS);
    receive_wait(comm->member, (size_t) comm->size * sizeof(int), m.root, TAG_MEET);
  }
  comm->tag = tag;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
  if (config == NULL || config->size != sizeof *config || config->blocking != 0 || rank < 0 || rank >= size) {
    return refuse(ncclInvalidArgument, "a non-blocking configuration and a rank below the size are wanted");
  }
  ncclComm_t comm = calloc(1, sizeof *comm);
  comm->rank = rank;
  comm->size = size;
  comm->member = calloc((size_t) size, sizeof *comm->member);
  comm->state = ncclInProgress;
  *out = comm;
  if (getenv("SHIM_NCCL_STALL") == NULL) {
    meeting m;
    memcpy(&m, id.internal, sizeof m);
    meet(comm, m);
  }
  return ncclInProgress;
}

static bool peer_is_dead(const struct ncclComm *comm) {
  const char *text = getenv("SHIM_NCCL_ERROR");
  int rank, groups;
  return text != NULL && sscanf(text, "%d:%d", &rank, &groups) == 2 && rank == world_rank() &&
         (comm->groups >= groups || comm->ran >= groups);
}

static bool go_on(void *argument);

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  if (comm->state == ncclSuccess && peer_is_dead(comm)) {
    comm->state = refuse(ncclRemoteError, "the stand-in was told that a peer is dead");
  } else if (comm->state == ncclInProgress && getenv("SHIM_NCCL_STALL") == NULL && ++comm->polls >= POLLS) {
    comm->polls = 0;
    comm->state = ncclSuccess;
    if (comm->ready != NULL) {
      cudaError_t code = shim_enqueue(comm->ready->op[0].stream, go_on, comm->ready);
      comm->ready = NULL;
      comm->state = code == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
    }
  }
  *error = comm->state;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm->state != ncclSuccess) {
    return refuse(ncclInvalidArgument, "finalized before the previous call was done");
  }
  if (comm->registered != 0) {
    end_job("a communicator is finalized with buffers still registered");
  }
  cudaDeviceSynchronize();
  comm->finalized = true;
  comm->state = ncclInProgress;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm->finalized || comm->state != ncclSuccess) {
    return refuse(ncclInvalidUsage, "destroyed before it was finalized");
  }
  free(comm->member);
  free(comm->op);
  free(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *count) {
  *count = comm->size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void *buffer, size_t bytes, void **handle) {
  if (comm->state != ncclSuccess || buffer == NULL || bytes == 0) {
    return refuse(ncclInvalidArgument, "nothing to register, or too early");
  }
  ++comm->registered;
  *handle = buffer;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle) {
  if (comm->registered == 0 || handle == NULL) {
    return refuse(ncclInvalidArgument, "was not registered");
  }
  --comm->registered;
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return (unsigned) result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm) {
  (void) comm;
  return last_error;
}

/* ---- groups ---- */

static ncclResult_t close_group(ncclComm_t comm) {
  job *j = malloc(sizeof *j + (size_t) comm->n * sizeof *j->op);
  j->comm = comm;
  j->traffic = NULL;
  j->n = comm->n;
  memcpy(j->op, comm->op, (size_t) comm->n * sizeof *j->op);
  comm->n = 0;
  comm->ready = j;
  comm->state = ncclInProgress;
  ++comm->groups;
  return ncclInProgress;
}

ncclResult_t ncclGroupStart(void) {
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
  if (depth == 0) {
    return refuse(ncclInvalidUsage, "no group is open");
  }
  if (--depth > 0 || n_grouped == 0) {
    return ncclSuccess;
  }
  for (int i = 0; i < n_grouped; ++i) {
    close_group(grouped[i]);
  }
  n_grouped = 0;
  return ncclInProgress;
}

static ncclResult_t call(ncclComm_t comm, operation op) {
  if (comm->state != ncclSuccess || comm->finalized) {
    return refuse(ncclInvalidArgument, "called before the previous operation returned ncclSuccess");
  }
  if (peer_is_dead(comm)) {
    return refuse(ncclRemoteError, "the stand-in was told that a peer is dead");
  }
  if (op.peer < 0 || op.peer >= comm->size ||
      ((op.kind == SEND || op.kind == RECEIVE) && op.peer == comm->rank && depth == 0)) {
    return refuse(ncclInvalidArgument, "no such peer");
  }
  if (comm->n > 0 && comm->op[0].stream != op.stream) {
    return refuse(ncclInvalidUsage, "one group, two streams");
  }
  if (comm->n == comm->capacity) {
    comm->capacity = 2 * comm->capacity + 8;
    comm->op = realloc(comm->op, (size_t) comm->capacity * sizeof *comm->op);
  }
  if (comm->n == 0 && depth > 0) {
    grouped[n_grouped++] = comm;
  }
  comm->op[comm->n++] = op;
  return depth == 0 ? close_group(comm) : ncclSuccess;
}

static size_t bytes_of(size_t count, ncclDataType_t type) {
  return count * (type == ncclFloat32 ? 4 : type == ncclBfloat16 || type == ncclFloat16 ? 2 : 1);
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm,
              (operation){.kind = SEND, .x = data, .bytes = bytes_of(count, type), .peer = peer, .stream = stream});
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call(comm,
              (operation){.kind = RECEIVE, .y = data, .bytes = bytes_of(count, type), .peer = peer, .stream = stream});
}

ncclResult_t ncclAllGather(const void *x, void *y, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(comm, (operation){.kind = ALL_GATHER, .x = x, .y = y, .bytes = bytes_of(count, type), .stream = stream});
}

ncclResult_t ncclBroadcast(const void *x, void *y, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(
      comm,
      (operation){.kind = BROADCAST, .x = x, .y = y, .bytes = bytes_of(count, type), .peer = root, .stream = stream});
}

ncclResult_t ncclReduceScatter(const void *x, void *y, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32 || op != ncclSum) {
    return refuse(ncclInvalidArgument, "the stand-in adds floats only");
  }
  return call(comm,
              (operation){.kind = REDUCE_SCATTER, .x = x, .y = y, .bytes = bytes_of(count, type), .stream = stream});
}

/* ---- running ---- */

/* A message on its way, through memory of its own: the device's can be touched only while something runs on it. */
typedef struct parcel {
  void *copy, *to; /* to: NULL of a send */
  size_t bytes;
} parcel;

/* The messages of a job on their way. */
typedef struct traffic {
  const struct ncclComm *comm;
  MPI_Request *request;
  MPI_Status *status;
  parcel *parcel;
  float **partial; /* of each operation */
  int n;
} traffic;

static void *add_parcel(traffic *t, void *to, size_t bytes) {
  parcel *p = &t->parcel[t->n];
  *p = (parcel){malloc(bytes + 1), to, bytes};
  return p->copy;
}

static void send(traffic *t, kind kind, const void *data, size_t bytes, int peer) {
  void *copy = memcpy(add_parcel(t, NULL, bytes), data, bytes);
  MPI_Isend(copy, (int) bytes, MPI_BYTE, t->comm->member[peer], t->comm->tag + kind, MPI_COMM_WORLD,
            &t->request[t->n++]);
}

static void receive(traffic *t, kind kind, void *data, size_t bytes, int peer) {
  void *copy = add_parcel(t, data, bytes);
  MPI_Irecv(copy, (int) bytes, MPI_BYTE, t->comm->member[peer], t->comm->tag + kind, MPI_COMM_WORLD,
            &t->request[t->n++]);
}

static void begin(traffic *t, const operation *op, float *partial) {
  const struct ncclComm *c = t->comm;
  kind k = op->kind == RECEIVE ? SEND : op->kind;
  const char *x = op->x;
  char *y = op->y;
  if (k == SEND) {
    if (op->kind == SEND) {
      send(t, k, x, op->bytes, op->peer);
    } else {
      receive(t, k, y, op->bytes, op->peer);
    }
    return;
  }
  for (int peer = 0; peer < c->size; ++peer) {
    if (peer == c->rank) {
      continue;
    }
    if (k == ALL_GATHER) {
      send(t, k, x, op->bytes, peer);
      receive(t, k, y + (size_t) peer * op->bytes, op->bytes, peer);
    } else if (k == REDUCE_SCATTER) {
      send(t, k, x + (size_t) peer * op->bytes, op->bytes, peer);
      receive(t, k, (char *) partial + (size_t) peer * op->bytes, op->bytes, peer);
    } else if (op->peer == c->rank) {
      send(t, k, x, op->bytes, peer);
    } else if (op->peer == peer) {
      receive(t, k, y, op->bytes, peer);
    }
  }
}

/* Around the ring from the owner's next to the owner. */
static void add_up(const struct ncclComm *c, const operation *op, const float *partial) {
  size_t count = op->bytes / sizeof(float);
  float *y = op->y;
  const float *own = (const float *) op->x + (size_t) c->rank * count;
  for (size_t i = 0; i < count; ++i) {
    float sum = 0, mine = own[i];
    for (int k = 1; k < c->size; ++k) {
      sum += partial[(size_t) ((c->rank + k) % c->size) * count + i];
    }
    y[i] = sum + mine;
  }
}

static void end(const struct ncclComm *c, const operation *op, const float *partial) {
  char *own = (char *) op->y + (op->kind == ALL_GATHER ? (size_t) c->rank * op->bytes : 0);
  if (op->kind == REDUCE_SCATTER) {
    add_up(c, op, partial);
  } else if ((op->kind == ALL_GATHER || (op->kind == BROADCAST && op->peer == c->rank)) && own != op->x) {
    memcpy(own, op->x, op->bytes);
  }
}

static void start_job(job *j) {
  size_t most = (size_t) j->n * 2 * (size_t) j->comm->size;
  traffic *t = j->traffic = calloc(1, sizeof *t);
  ++j->comm->ran;
  *t = (traffic){.comm = j->comm,
                 .request = calloc(most, sizeof *t->request),
                 .status = calloc(most, sizeof *t->status),
                 .parcel = calloc(most, sizeof *t->parcel),
                 .partial = calloc((size_t) j->n, sizeof *t->partial)};
  for (int i = 0; i < j->n; ++i) {
    if (j->op[i].kind == REDUCE_SCATTER) {
      t->partial[i] = malloc(j->op[i].bytes * (size_t) j->comm->size + 1);
    }
    begin(t, &j->op[i], t->partial[i]);
  }
}

static void deliver(const traffic *t) {
  for (int i = 0; i < t->n; ++i) {
    const parcel *p = &t->parcel[i];
    int bytes = 0;
    if (p->to != NULL) {
      if (MPI_Get_count(&t->status[i], MPI_BYTE, &bytes) != MPI_SUCCESS || (size_t) bytes != p->bytes) {
        end_job("two ranks disagree about the size of a message");
      }
      memcpy(p->to, p->copy, p->bytes);
    }
    free(p->copy);
  }
}

static void end_traffic(job *j) {
  traffic *t = j->traffic;
  deliver(t);
  for (int i = 0; i < j->n; ++i) {
    end(j->comm, &j->op[i], t->partial[i]);
    free(t->partial[i]);
  }
  free(t->partial);
  free(t->parcel);
  free(t->status);
  free(t->request);
  free(t);
  j->traffic = NULL;
}

/* Started at the first call, done when it returns true; a replayed job runs again. */
static bool go_on(void *argument) {
  job *j = argument;
  if (j->traffic == NULL) {
    start_job(j);
  }
  int done = 0;
  if (MPI_Testall(j->traffic->n, j->traffic->request, &done, j->traffic->status) != MPI_SUCCESS) {
    end_job("a message did not fit: two ranks disagree about its size");
  }
  if (done) {
    end_traffic(j);
  }
  return done;
}
