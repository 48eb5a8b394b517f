/* Agreement: at the entry of a collective each rank tells the next one in the group what it is about to do. */
#include "comm/comm_mpi.h"

#include "base/random.h"
#include "base/status.h"

const char *ts_collective_name(ts_collective op) {
  static const char *const names[] = {"reduce_scatter", "all_gather", "all_reduce", "broadcast",
                                      "all_to_all",     "send",       "receive"};
  return names[op];
}

/* A call as its neighbours see it. */
typedef struct record {
  int64_t operation, columns;
  uint64_t hash; /* of all that must agree */
} record;

static record describe_collective(int size, ts_collective op, const ts_transfer *transfer, int n, uint64_t rest) {
  record r = {.operation = op, .columns = n == 0 ? (int64_t) rest : 0, .hash = ts_mix(rest, (uint64_t) n)};
  for (int i = 0; i < n; ++i) {
    for (int rank = 0; rank < size; ++rank) {
      int64_t first;
      r.columns += ts_transfer_columns(&transfer[i], rank, &first);
      r.hash = ts_mix(r.hash, (uint64_t) ts_transfer_columns(&transfer[i], rank, &first));
    }
  }
  return r;
}

uint64_t ts_hash_reduction(ts_dtype x, ts_dtype wire, size_t workspace_bytes) {
  return ts_mix((uint64_t) x * TS_N_DTYPES + (uint64_t) wire, workspace_bytes);
}

/* Each rank compares with the one before it: around the ring any difference shows somewhere. */
void ts_comm_agree(const ts_comm *comm, MPI_Comm mpi, const int *member, ts_collective op, const ts_transfer *transfer,
                   int n, uint64_t rest) {
  int rank = comm->rank, size = comm->size, before = (rank + size - 1) % size;
  if (!ts_comm_switch.agree || size == 1) {
    return;
  }
  record mine = describe_collective(size, op, transfer, n, rest), theirs;
  MPI_Request request[2];
  TS_MPI(MPI_Irecv(&theirs, (int) sizeof theirs, MPI_BYTE, before, 1, mpi, &request[0]));
  TS_MPI(MPI_Isend(&mine, (int) sizeof mine, MPI_BYTE, (rank + 1) % size, 1, mpi, &request[1]));
  ts_mpi_wait(&request[0]);
  TS_CHECK(memcmp(&mine, &theirs, sizeof mine) == 0,
           "rank %d is in %s of %lld elements while rank %d is in %s of %lld elements%s", member[rank],
           ts_collective_name(op), (long long) mine.columns, member[before],
           ts_collective_name((ts_collective) theirs.operation), (long long) theirs.columns,
           mine.operation == theirs.operation && mine.columns == theirs.columns
               ? ": cut points, dtypes or workspace differ"
               : "");
  ts_mpi_wait(&request[1]);
}
