/* Agreement: at the entry of a collective each rank tells the next one in the group what it is about to do. */
#include "comm/comm_mpi.h"

#include "base/random.h"
#include "base/status.h"

static const struct {
  const char *name;
  const char *of;   /* what its columns are */
  const char *rest; /* what else must agree */
} rows[] = {
    [TS_REDUCE_SCATTER] = {"reduce_scatter", "elements", "cut points, dtypes or workspace"},
    [TS_ALL_GATHER] = {"all_gather", "elements", "cut points or dtypes"},
    [TS_ALL_REDUCE] = {"all_reduce", "elements", "dtypes or workspace"},
    [TS_EXCHANGE] = {"exchange", "tensors", "dtypes or batches"},
    [TS_EXCHANGE_ROWS] = {"exchange_rows", "bytes a row", "counts or directions"},
    [TS_BROADCAST] = {"broadcast", "bytes", "roots"},
    [TS_MESSAGE] = {"message", "bytes", "ends"},
};

const char *ts_collective_name(ts_collective op) {
  return rows[op].name;
}

/* A call as its neighbours see it. */
typedef struct record {
  int64_t operation, columns;
  uint64_t hash; /* of all that must agree */
} record;

static record describe_collective(int size, ts_collective op, const ts_transfer *transfer, int n, uint64_t rest) {
  record r = {.operation = op, .hash = ts_mix(rest, (uint64_t) n)};
  for (int i = 0; i < n; ++i) {
    for (int rank = 0; rank < size; ++rank) {
      int64_t first;
      r.columns += ts_transfer_columns(&transfer[i], rank, &first);
      r.hash = ts_mix(r.hash, (uint64_t) ts_transfer_columns(&transfer[i], rank, &first));
    }
    uint32_t divisor;
    memcpy(&divisor, &transfer[i].divisor, sizeof divisor);
    r.hash = ts_mix(r.hash, divisor);
  }
  return r;
}

uint64_t ts_hash_reduction(ts_dtype x, ts_dtype wire, size_t workspace_bytes) {
  return ts_mix((uint64_t) x * TS_N_DTYPES + (uint64_t) wire, workspace_bytes);
}

/* Each rank compares with the one before it: around the ring any difference shows somewhere. */
static void compare(const ts_comm *comm, MPI_Comm mpi, const int *member, record mine) {
  int rank = comm->rank, size = comm->size, before = (rank + size - 1) % size;
  record theirs;
  MPI_Request request[2];
  TS_MPI(MPI_Irecv(&theirs, (int) sizeof theirs, MPI_BYTE, before, 1, mpi, &request[0]));
  TS_MPI(MPI_Isend(&mine, (int) sizeof mine, MPI_BYTE, (rank + 1) % size, 1, mpi, &request[1]));
  ts_mpi_wait(&request[0]);
  bool similar = mine.operation == theirs.operation && mine.columns == theirs.columns;
  TS_CHECK(memcmp(&mine, &theirs, sizeof mine) == 0,
           "rank %d is in %s of %lld %s while rank %d is in %s of %lld %s%s%s", member[rank], rows[mine.operation].name,
           (long long) mine.columns, rows[mine.operation].of, member[before], rows[theirs.operation].name,
           (long long) theirs.columns, rows[theirs.operation].of, similar ? ": they differ in " : "",
           similar ? rows[mine.operation].rest : "");
  ts_mpi_wait(&request[1]);
}

void ts_comm_agree(const ts_comm *comm, MPI_Comm mpi, const int *member, ts_collective op, const ts_transfer *transfer,
                   int n, uint64_t rest) {
  if (ts_comm_switch.agree && comm->size > 1) {
    compare(comm, mpi, member, describe_collective(comm->size, op, transfer, n, rest));
  }
}

void ts_comm_agree_rows(const ts_comm *comm, MPI_Comm mpi, const int *member, int64_t row_bytes, uint64_t counts) {
  if (ts_comm_switch.agree && comm->size > 1) {
    compare(comm, mpi, member, (record){.operation = TS_EXCHANGE_ROWS, .columns = row_bytes, .hash = counts});
  }
}

void ts_comm_agree_exchange(const ts_comm *comm, MPI_Comm mpi, const int *member, const ts_exchange_lists *lists) {
  record mine = {.operation = TS_EXCHANGE, .columns = lists->n};
  for (int i = 0; i < lists->n; ++i) {
    mine.hash = ts_mix(ts_mix(mine.hash, (uint64_t) lists->x[i].dtype), (uint64_t) lists->x[i].batches);
  }
  if (ts_comm_switch.agree && comm->size > 1) {
    compare(comm, mpi, member, mine);
  }
}
