/* From peer to peer over MPI: all_to_all, send, receive. */
#include "comm/comm_mpi.h"

#include "base/status.h"

/* Blocks to rank + 1, rank + 2, ... or from rank - 1, rank - 2, ..., in messages no longer than may be. */
typedef struct block_list {
  const ts_comm *comm;
  char *data;
  int64_t bytes, done; /* of a block */
  int step;
  bool sends;
} block_list;

static bool next_peer_block(void *list, int slot, ts_message *out) {
  (void) slot;
  block_list *b = list;
  int rank = b->comm->rank, size = b->comm->size;
  if (b->done == b->bytes) {
    b->done = 0;
    ++b->step;
  }
  if (b->step >= size || b->bytes == 0) {
    return false;
  }
  int peer = (b->sends ? rank + b->step : rank + size - b->step) % size;
  int64_t left = b->bytes - b->done, some = left < ts_comm_switch.message_limit ? left : ts_comm_switch.message_limit;
  *out = (ts_message){.data = b->data + peer * b->bytes + b->done, .bytes = some, .peer = peer};
  b->done += some;
  return true;
}

void ts_comm_mpi_all_to_all(ts_comm *comm, const void *x, void *y, size_t bytes) {
  ts_comm_mpi *c = (ts_comm_mpi *) comm;
  ts_comm_agree(comm, c->comm, c->member, TS_ALL_TO_ALL, NULL, 0, bytes);
  block_list send = {.comm = comm, .data = (char *) x, .bytes = (int64_t) bytes, .step = 1, .sends = true};
  block_list receive = {.comm = comm, .data = y, .bytes = (int64_t) bytes, .step = 1};
  ts_exchange_begin(&c->exchange, next_peer_block, NULL, &receive, next_peer_block, &send, TS_SLOTS);
  if (bytes > 0) {
    memcpy((char *) y + (size_t) comm->rank * bytes, (const char *) x + (size_t) comm->rank * bytes, bytes);
  }
  ts_exchange_finish(&c->exchange);
}

/* Tags of their own: a send is not part of the exchanges around it. */
enum { TAG_SEND = 2 };

void ts_comm_mpi_send(ts_comm *comm, const void *data, size_t bytes, int to) {
  TS_ASSERT(to != comm->rank && to >= 0 && to < comm->size);
  MPI_Comm mpi = ((ts_comm_mpi *) comm)->comm;
  size_t limit = (size_t) ts_comm_switch.message_limit;
  for (size_t done = 0; done < bytes; done += limit) {
    size_t some = bytes - done < limit ? bytes - done : limit;
    MPI_Request request;
    TS_MPI(MPI_Isend((const char *) data + done, (int) some, MPI_BYTE, to, TAG_SEND, mpi, &request));
    ts_mpi_wait(&request);
  }
}

void ts_comm_mpi_receive(ts_comm *comm, void *data, size_t bytes, int from) {
  TS_ASSERT(from != comm->rank && from >= 0 && from < comm->size);
  MPI_Comm mpi = ((ts_comm_mpi *) comm)->comm;
  size_t limit = (size_t) ts_comm_switch.message_limit;
  for (size_t done = 0; done < bytes; done += limit) {
    size_t some = bytes - done < limit ? bytes - done : limit;
    MPI_Request request;
    TS_MPI(MPI_Irecv((char *) data + done, (int) some, MPI_BYTE, from, TAG_SEND, mpi, &request));
    ts_mpi_wait(&request);
  }
}
