/* reduce_scatter: each rank sends every other the columns of the other's shard, and adds what it gets in rank order.
 *
 * The columns of all transfers are one sequence per shard, cut into chunks; a chunk from one rank to another is a
 * message.  The workspace holds DEPTH chunks from each peer (the next is on its way while one is summed) and send slots
 * for the messages that are not one run of memory in the wire dtype.  Sends run ahead of receives: where MPI copies
 * straight from the sender's memory, no rank waits for another that has arrived.
 * Cost: each rank sends and receives (P - 1) / P of the whole in the wire dtype, and adds as much. */
#include "comm/comm_mpi.h"
#include "comm/comm_run.h"

#include "base/status.h"

enum { LINE = 64, DEPTH = 2 };

/* A place in a list of messages: chunk by chunk, in each to rank + 1, + 2, ... or from rank - 1, - 2, ... */
typedef struct place {
  int64_t chunk;
  int step;
} place;

typedef struct reduction {
  ts_comm_mpi *comm;
  const ts_transfer *transfer;
  int n;
  ts_dtype x, wire, y;
  const float *beta;
  float divisor;
  int64_t columns; /* per chunk */
  int64_t longest; /* columns of the longest shard */
  size_t slot_bytes;
  unsigned char *receive, *send; /* slots: DEPTH times one per peer; ts_comm_send_slots */
  place sending, receiving;      /* next to post */
  int64_t chunk_of[TS_SLOTS];    /* of each receive in flight */
  int arrived[DEPTH];            /* messages of the chunks summed, ..., summed + DEPTH - 1 */
  int64_t summed;                /* chunks */
} reduction;

static void advance_place(place *p, int size) {
  if (++p->step == size) {
    p->step = 1;
    ++p->chunk;
  }
}

static const void *x_at(const reduction *r, const ts_run *run) {
  return ts_run_in_whole(run, run->transfer->x, r->x);
}

/* Columns of a rank's shard that are in a chunk. */
static int64_t chunk_columns(const reduction *r, int64_t chunk, int rank) {
  int64_t left = ts_shard_columns(r->transfer, r->n, rank) - chunk * r->columns;
  return left < 0 ? 0 : left < r->columns ? left : r->columns;
}

static unsigned char *receive_slot(const reduction *r, int64_t chunk, int step) {
  size_t peers = (size_t) r->comm->base.size - 1;
  return r->receive + ((size_t) (chunk % DEPTH) * peers + (size_t) step - 1) * r->slot_bytes;
}

static bool next_receive(void *list, int slot, ts_message *out) {
  reduction *r = list;
  const ts_comm *base = &r->comm->base;
  int64_t bytes = chunk_columns(r, r->receiving.chunk, base->rank) * (int64_t) ts_dtype_size(r->wire);
  if (bytes == 0 || r->receiving.chunk >= r->summed + DEPTH) {
    return false;
  }
  *out = (ts_message){.data = receive_slot(r, r->receiving.chunk, r->receiving.step),
                      .bytes = bytes,
                      .peer = (base->rank + base->size - r->receiving.step) % base->size};
  r->chunk_of[slot] = r->receiving.chunk;
  advance_place(&r->receiving, base->size);
  return true;
}

static void count_received(void *list, int slot) {
  reduction *r = list;
  ++r->arrived[r->chunk_of[slot] % DEPTH];
}

/* The chunk of a peer's shard as one run of memory in the wire dtype: where it is, or copied to the slot. */
static void *chunk_in_wire(const reduction *r, int64_t chunk, int peer, int64_t columns, unsigned char *slot) {
  int64_t begin = chunk * r->columns;
  ts_walk w = {.transfer = r->transfer, .n = r->n, .rank = peer, .begin = begin, .end = begin + columns};
  ts_run run;
  while (ts_walk_next(&w, &run)) {
    if (run.count == columns && r->x == r->wire && r->divisor == 1) {
      return (void *) x_at(r, &run);
    }
    ts_addend x = {x_at(r, &run), r->x, r->divisor};
    ts_copy_to_wire(slot + (size_t) (run.column - begin) * ts_dtype_size(r->wire), r->wire, &x, run.count);
  }
  return slot;
}

static bool next_send(void *list, int slot, ts_message *out) {
  reduction *r = list;
  const ts_comm *base = &r->comm->base;
  for (; r->sending.chunk * r->columns < r->longest; advance_place(&r->sending, base->size)) {
    int peer = (base->rank + r->sending.step) % base->size;
    int64_t columns = chunk_columns(r, r->sending.chunk, peer);
    if (columns > 0) {
      unsigned char *staging = r->send + (size_t) slot * r->slot_bytes;
      *out = (ts_message){.data = chunk_in_wire(r, r->sending.chunk, peer, columns, staging),
                          .bytes = columns * (int64_t) ts_dtype_size(r->wire),
                          .peer = peer};
      advance_place(&r->sending, base->size);
      return true;
    }
  }
  return false;
}

static void sum_chunk(const reduction *r, int64_t chunk) {
  int rank = r->comm->base.rank, size = r->comm->base.size;
  int64_t begin = chunk * r->columns;
  ts_walk w = {.transfer = r->transfer, .n = r->n, .rank = rank, .begin = begin, .end = begin + r->columns};
  ts_run run;
  while (ts_walk_next(&w, &run)) {
    size_t offset = (size_t) (run.column - begin) * ts_dtype_size(r->wire);
    for (int from = 0; from < size; ++from) {
      int step = (rank - from + size) % size;
      r->comm->addend[from] = step == 0 ? (ts_addend){x_at(r, &run), r->x, r->divisor}
                                        : (ts_addend){receive_slot(r, chunk, step) + offset, r->wire, 0};
    }
    ts_sum_ordered(ts_run_in_shard(&run, run.transfer->y, rank, r->y), r->y, r->beta, r->comm->addend, size, r->wire,
                   r->divisor, run.count);
  }
}

/* Once a chunk is there from everybody, let the next ones come and sum it. */
static void sum_as_they_come(reduction *r) {
  ts_patience patience = {0};
  int peers = r->comm->base.size - 1;
  while (chunk_columns(r, r->summed, r->comm->base.rank) > 0) {
    if (r->arrived[r->summed % DEPTH] == peers) {
      r->arrived[r->summed % DEPTH] = 0;
      sum_chunk(r, r->summed++);
      patience = (ts_patience){0};
    }
    if (ts_exchange_poll(&r->comm->exchange)) {
      patience = (ts_patience){0};
    } else if (r->arrived[r->summed % DEPTH] < peers) {
      ts_patience_pause(&patience);
    }
  }
}

static void divide_workspace(reduction *r, void *workspace, size_t bytes) {
  int size = r->comm->base.size;
  size_t receives = DEPTH * (size_t) (size - 1), sends = (size_t) ts_comm_send_slots(size);
  TS_CHECK(bytes >= ts_comm_least_workspace(size), "reduce_scatter has %zu bytes of workspace, at least %zu needed",
           bytes, ts_comm_least_workspace(size));
  r->slot_bytes = bytes / (receives + sends) / LINE * LINE;
  if (r->slot_bytes > (size_t) 1 << 30) {
    r->slot_bytes = (size_t) 1 << 30;
  }
  r->columns = (int64_t) (r->slot_bytes / ts_dtype_size(r->wire));
  r->receive = workspace;
  r->send = r->receive + receives * r->slot_bytes;
}

void ts_comm_mpi_reduce_scatter(ts_comm *comm, const ts_transfer *transfer, int n, ts_dtype x, ts_dtype wire,
                                ts_dtype y, const float *beta, void *workspace, size_t workspace_bytes) {
  reduction r = {.comm = (ts_comm_mpi *) comm,
                 .transfer = transfer,
                 .n = n,
                 .x = x,
                 .wire = wire,
                 .y = y,
                 .beta = beta,
                 .divisor = ts_transfer_divisor(transfer, n),
                 .sending.step = 1,
                 .receiving.step = 1};
  r.longest = r.columns = ts_longest_shard(transfer, n, comm->size);
  if (comm->size == 1) {
    sum_chunk(&r, 0);
  } else if (r.longest > 0) {
    divide_workspace(&r, workspace, workspace_bytes);
    bool in_place = n == 1 && x == wire && r.divisor == 1; /* no send needs a slot of the workspace */
    ts_exchange_begin(&r.comm->exchange, next_receive, count_received, &r, next_send, &r,
                      in_place ? TS_SLOTS : ts_comm_send_slots(comm->size));
    sum_as_they_come(&r);
    ts_exchange_finish(&r.comm->exchange);
  }
}
