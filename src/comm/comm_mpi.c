/* The table of collectives over MPI, point to point.  all_gather sends every shard straight to its place, to rank + 1
 * first: each rank sends and receives (P - 1) / P of the whole. */
#include "comm/comm_mpi.h"
#include "comm/comm_nccl.h"
#include "comm/comm_run.h"

#include "base/memory.h"
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

ts_comm_switches ts_comm_switch = {
#ifndef NDEBUG
    .agree = true,
#endif
    .message_limit = 1 << 30};

void ts_comm_set_agreement(bool on) {
  ts_comm_switch.agree = on;
}

void ts_comm_set_test_delay(double seconds) {
  ts_comm_switch.delay = seconds;
}

static void delay_completion(void) {
  if (ts_comm_switch.delay > 0) {
    time_t whole = (time_t) ts_comm_switch.delay;
    struct timespec left = {whole, (long) (1e9 * (ts_comm_switch.delay - (double) whole))};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
  }
}

/* ---- all_gather ---- */

/* The messages to (or from) rank + 1, rank + 2, ... (rank - 1, rank - 2, ...), transfer by transfer. */
typedef struct gather_list {
  const ts_comm *comm;
  const ts_transfer *transfer;
  int n, step, next;
  int64_t done; /* bytes of transfer `next` */
  int64_t size; /* bytes of an element */
  bool sends;
} gather_list;

static bool next_shard(void *list, int slot, ts_message *out) {
  (void) slot;
  gather_list *g = list;
  int rank = g->comm->rank, size = g->comm->size;
  for (; g->step < size; ++g->step, g->next = 0) {
    int peer = (g->sends ? rank + g->step : rank + size - g->step) % size, owner = g->sends ? rank : peer;
    for (; g->next < g->n; ++g->next, g->done = 0) {
      const ts_transfer *t = &g->transfer[g->next];
      int64_t first, bytes = ts_transfer_columns(t, owner, &first) * g->size - g->done;
      if (bytes > 0) {
        int64_t place = (g->sends ? first - t->cuts[rank] : first) * g->size + g->done;
        bytes = bytes < ts_comm_switch.message_limit ? bytes : ts_comm_switch.message_limit;
        g->done += bytes;
        *out = (ts_message){.data = (char *) (g->sends ? t->x : t->y) + place, .bytes = bytes, .peer = peer};
        return true;
      }
    }
  }
  return false;
}

static void copy_own(const ts_transfer *t, int rank, size_t size) {
  int64_t first, columns = ts_transfer_columns(t, rank, &first);
  const char *from = (const char *) t->x + (size_t) (first - t->cuts[rank]) * size;
  char *to = (char *) t->y + (size_t) first * size;
  if (from != to && columns > 0) {
    memcpy(to, from, (size_t) columns * size);
  }
}

static void gather_by_mpi(ts_comm *comm, const ts_transfer *transfer, int n, ts_dtype dtype) {
  gather_list send = {
      .comm = comm, .transfer = transfer, .n = n, .step = 1, .size = (int64_t) ts_dtype_size(dtype), .sends = true};
  gather_list receive = send;
  receive.sends = false;
  ts_exchange *exchange = &((ts_comm_mpi *) comm)->exchange;
  ts_exchange_begin(exchange, next_shard, NULL, &receive, next_shard, &send, TS_SLOTS);
  ts_exchange_poll(exchange);
  for (int i = 0; i < n; ++i) {
    copy_own(&transfer[i], comm->rank, (size_t) send.size);
  }
  ts_exchange_finish(exchange);
}

static void agree_by_mpi(ts_comm *comm, ts_collective op, const ts_transfer *transfer, int n, uint64_t rest) {
  const ts_comm_mpi *c = (const ts_comm_mpi *) comm;
  ts_comm_agree(comm, c->comm, c->member, op, transfer, n, rest);
}

static void all_gather_by_mpi(ts_comm *comm, const ts_transfer *transfer, int n, ts_dtype dtype) {
  agree_by_mpi(comm, TS_ALL_GATHER, transfer, n, (uint64_t) dtype);
  gather_by_mpi(comm, transfer, n, dtype);
  delay_completion();
}

/* ---- reductions ---- */

static void reduce_scatter_by_mpi(ts_comm *comm, const ts_transfer *transfer, int n, ts_dtype x, ts_dtype wire,
                                  ts_dtype y, const float *beta, void *workspace, size_t workspace_bytes) {
  agree_by_mpi(comm, TS_REDUCE_SCATTER, transfer, n, ts_hash_reduction(x, wire, workspace_bytes));
  ts_comm_mpi_reduce_scatter(comm, transfer, n, x, wire, y, beta, workspace, workspace_bytes);
  delay_completion();
}

static void all_reduce_by_mpi(ts_comm *comm, const void *x, void *y, int64_t count, ts_dtype dtype, ts_dtype wire,
                              void *workspace, size_t workspace_bytes) {
  ts_comm_mpi *c = (ts_comm_mpi *) comm;
  ts_cut_equally(c->cuts, comm->size, count);
  char *shard = (char *) y + (size_t) c->cuts[comm->rank] * ts_dtype_size(dtype);
  ts_transfer reduce = {.x = x, .y = shard, .cuts = c->cuts, .end = count};
  ts_transfer spread = {.x = shard, .y = y, .cuts = c->cuts, .end = count};
  agree_by_mpi(comm, TS_ALL_REDUCE, &reduce, 1, ts_hash_reduction(dtype, wire, workspace_bytes));
  ts_comm_mpi_reduce_scatter(comm, &reduce, 1, dtype, wire, dtype, NULL, workspace, workspace_bytes);
  gather_by_mpi(comm, &spread, 1, dtype);
  delay_completion();
}

/* ---- the rest ---- */

static void exchange_by_mpi(ts_comm *comm, const ts_exchange_lists *lists, void *workspace, size_t workspace_bytes) {
  const ts_comm_mpi *c = (const ts_comm_mpi *) comm;
  ts_comm_agree_exchange(comm, c->comm, c->member, lists);
  ts_comm_mpi_exchange(comm, lists, workspace, workspace_bytes);
  delay_completion();
}

static void exchange_rows_by_mpi(ts_comm *comm, const ts_row_exchange *rows) {
  ts_comm_mpi_exchange_rows(comm, rows);
  delay_completion();
}

static void broadcast_by_mpi(ts_comm *comm, void *data, size_t bytes, int root) {
  for (size_t done = 0; comm->size > 1 && done < bytes;) {
    size_t some = bytes - done < (size_t) 1 << 30 ? bytes - done : (size_t) 1 << 30;
    MPI_Request request;
    TS_MPI(MPI_Ibcast((char *) data + done, (int) some, MPI_BYTE, root, ((ts_comm_mpi *) comm)->comm, &request));
    ts_mpi_wait(&request);
    done += some;
  }
}

static void barrier_by_mpi(ts_comm *comm) {
  if (comm->size > 1) {
    MPI_Request request;
    TS_MPI(MPI_Ibarrier(((ts_comm_mpi *) comm)->comm, &request));
    ts_mpi_wait(&request);
  }
}

static void destroy_by_mpi(ts_comm *comm) {
  ts_comm_mpi *c = (ts_comm_mpi *) comm;
  if (c->comm != MPI_COMM_NULL) {
    TS_MPI(MPI_Comm_free(&c->comm));
  }
  ts_free(c->member);
  ts_free(c->cuts);
  ts_free(c->addend);
  ts_free(c);
}

static const ts_comm_ops operations = {.name = "mpi",
                                       .reduce_scatter = reduce_scatter_by_mpi,
                                       .all_gather = all_gather_by_mpi,
                                       .all_reduce = all_reduce_by_mpi,
                                       .broadcast = broadcast_by_mpi,
                                       .exchange = exchange_by_mpi,
                                       .exchange_rows = exchange_rows_by_mpi,
                                       .barrier = barrier_by_mpi,
                                       .destroy = destroy_by_mpi};

ts_comm *ts_comm_mpi_create(MPI_Comm comm, int rank, int size, int *member) {
  ts_comm_mpi *c = ts_calloc(1, sizeof *c);
  c->base = (ts_comm){.ops = &operations, .rank = rank, .size = size};
  c->comm = comm;
  c->exchange.comm = comm;
  c->member = member;
  c->cuts = ts_calloc((size_t) size + 1, sizeof *c->cuts);
  c->addend = ts_calloc((size_t) size, sizeof *c->addend);
  return &c->base;
}

bool ts_world_takes_threads(void) {
  int provided;
  TS_MPI(MPI_Query_thread(&provided));
  return provided == MPI_THREAD_MULTIPLE;
}

const char *ts_world_libraries(void) {
  static char text[256];
  char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "MPI";
  int length;
  TS_MPI(MPI_Get_library_version(mpi, &length));
  int n = snprintf(text, sizeof text, "%.*s, %s", (int) strcspn(mpi, "\n"), mpi, ts_comm_nccl_describe());
  for (int i = 0; i < n && i < (int) sizeof text; ++i) {
    text[i] = (char) (text[i] == '\t' ? ' ' : text[i]);
  }
  return text;
}
