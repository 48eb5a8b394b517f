/* reduce_scatter: each rank sends every other the columns of the other's shard, and adds what it gets in rank order.
 *
 * The columns of all transfers are one sequence per shard, cut into chunks that fit the workspace:
 *   2 (P - 1) receive slots (a chunk is summed while the next is on its way), min (P - 1, TS_SLOTS) send slots.
 * A send slot is used only where a chunk is not one run of memory in the wire dtype.
 * Cost: each rank sends and receives (P - 1) / P of the whole in the wire dtype, and adds as much. */
#include "comm/comm_mpi.h"

#include "base/status.h"

enum { LINE = 64 };

typedef struct reduction {
  ts_comm_mpi *comm;
  const ts_transfer *transfer;
  int n;
  ts_dtype x, wire, y;
  const float *beta;
  int64_t columns;            /* per chunk; 0 in a group of 1 */
  size_t slot_bytes;
  unsigned char *receive[2]; /* of even and odd chunks */
  unsigned char *send;
} reduction;

/* The part of a chunk that lies in one transfer. */
typedef struct run {
  int64_t column; /* in the sequence of the shard */
  int64_t first;  /* element of the whole */
  int64_t count;
  const ts_transfer *transfer;
} run;

typedef struct walk {
  const reduction *r;
  int rank; /* whose shard */
  int64_t begin, end;
  int next;
  int64_t passed; /* columns of the transfers before `next` */
} walk;

static bool walk_next(walk *w, run *out) {
  while (w->next < w->r->n && w->passed < w->end) {
    const ts_transfer *t = &w->r->transfer[w->next++];
    int64_t first, count = ts_transfer_columns(t, w->rank, &first);
    int64_t begin = w->begin > w->passed ? w->begin : w->passed;
    int64_t end = w->end < w->passed + count ? w->end : w->passed + count;
    *out = (run){.column = begin, .first = first + begin - w->passed, .count = end - begin, .transfer = t};
    w->passed += count;
    if (out->count > 0) {
      return true;
    }
  }
  return false;
}

static int64_t shard_columns(const reduction *r, int rank) {
  int64_t sum = 0, first;
  for (int i = 0; i < r->n; ++i) {
    sum += ts_transfer_columns(&r->transfer[i], rank, &first);
  }
  return sum;
}

static int64_t longest_shard(const reduction *r) {
  int64_t most = 0;
  for (int rank = 0; rank < r->comm->base.size; ++rank) {
    int64_t columns = shard_columns(r, rank);
    most = columns > most ? columns : most;
  }
  return most;
}

static const unsigned char *x_at(const reduction *r, const run *run) {
  return (const unsigned char *) run->transfer->x + (size_t) run->first * ts_dtype_size(r->x);
}

/* One chunk on its way. */
typedef struct chunk {
  reduction *r;
  int64_t begin, end; /* columns */
  int parity;
  int receive_step, send_step;
} chunk;

static int64_t chunk_columns(const chunk *c, int rank) {
  int64_t columns = shard_columns(c->r, rank), end = c->end < columns ? c->end : columns;
  return end > c->begin ? end - c->begin : 0;
}

static unsigned char *receive_slot(const reduction *r, int parity, int step) {
  return r->receive[parity] + (size_t) (step - 1) * r->slot_bytes;
}

static bool next_receive(void *list, int slot, ts_message *out) {
  (void) slot;
  chunk *c = list;
  const ts_comm *base = &c->r->comm->base;
  int64_t bytes = chunk_columns(c, base->rank) * (int64_t) ts_dtype_size(c->r->wire);
  if (bytes == 0 || ++c->receive_step >= base->size) {
    return false;
  }
  *out = (ts_message){.data = receive_slot(c->r, c->parity, c->receive_step), .bytes = bytes,
                      .peer = (base->rank + base->size - c->receive_step) % base->size};
  return true;
}

/* The chunk of a peer's shard as one run of memory in the wire dtype: where it is, or copied to the slot. */
static void *chunk_in_wire(const chunk *c, int peer, int64_t columns, unsigned char *slot) {
  const reduction *r = c->r;
  walk w = {.r = r, .rank = peer, .begin = c->begin, .end = c->end};
  run run;
  size_t size = ts_dtype_size(r->wire);
  while (walk_next(&w, &run)) {
    if (run.count == columns && r->x == r->wire) {
      return (void *) x_at(r, &run);
    }
    ts_addend x = {x_at(r, &run), r->x};
    ts_sum_ordered(slot + (size_t) (run.column - c->begin) * size, r->wire, NULL, &x, 1, r->wire, run.count);
  }
  return slot;
}

static bool next_send(void *list, int slot, ts_message *out) {
  chunk *c = list;
  const ts_comm *base = &c->r->comm->base;
  while (++c->send_step < base->size) {
    int peer = (base->rank + c->send_step) % base->size;
    int64_t columns = chunk_columns(c, peer);
    if (columns > 0) {
      *out = (ts_message){.data = chunk_in_wire(c, peer, columns, c->r->send + (size_t) slot * c->r->slot_bytes),
                          .bytes = columns * (int64_t) ts_dtype_size(c->r->wire), .peer = peer};
      return true;
    }
  }
  return false;
}

static void sum_chunk(const chunk *c) {
  const reduction *r = c->r;
  int rank = r->comm->base.rank, size = r->comm->base.size;
  walk w = {.r = r, .rank = rank, .begin = c->begin, .end = c->end};
  run run;
  while (walk_next(&w, &run)) {
    size_t offset = (size_t) (run.column - c->begin) * ts_dtype_size(r->wire);
    for (int from = 0; from < size; ++from) {
      int step = (rank - from + size) % size;
      r->comm->addend[from] = step == 0 ? (ts_addend){x_at(r, &run), r->x}
                                        : (ts_addend){receive_slot(r, c->parity, step) + offset, r->wire};
    }
    int64_t place = run.first - run.transfer->cuts[rank];
    ts_sum_ordered((unsigned char *) run.transfer->y + (size_t) place * ts_dtype_size(r->y), r->y, r->beta,
                   r->comm->addend, size, r->wire, run.count);
  }
}

static void start_chunk(chunk *c, reduction *r, int64_t begin, int parity) {
  *c = (chunk){.r = r, .begin = begin, .end = begin + r->columns, .parity = parity};
  ts_exchange_start(&r->comm->exchange, next_receive, c, next_send, c);
}

static void divide_workspace(reduction *r, void *workspace, size_t bytes) {
  size_t peers = (size_t) r->comm->base.size - 1, senders = peers < TS_SLOTS ? peers : TS_SLOTS;
  TS_CHECK(bytes >= TS_COMM_WORKSPACE_MIN(peers + 1), "reduce_scatter has %zu bytes of workspace, at least %zu needed",
           bytes, TS_COMM_WORKSPACE_MIN(peers + 1));
  r->slot_bytes = bytes / (2 * peers + senders) / LINE * LINE;
  if (r->slot_bytes > (size_t) 1 << 30) {
    r->slot_bytes = (size_t) 1 << 30;
  }
  r->columns = (int64_t) (r->slot_bytes / ts_dtype_size(r->wire));
  r->receive[0] = workspace;
  r->receive[1] = r->receive[0] + peers * r->slot_bytes;
  r->send = r->receive[1] + peers * r->slot_bytes;
}

void ts_comm_mpi_reduce_scatter(ts_comm *comm, const ts_transfer *transfer, int n, ts_dtype x, ts_dtype wire,
                                ts_dtype y, const float *beta, void *workspace, size_t workspace_bytes) {
  reduction r = {.comm = (ts_comm_mpi *) comm, .transfer = transfer, .n = n, .x = x, .wire = wire, .y = y,
                 .beta = beta};
  int64_t columns = longest_shard(&r);
  if (comm->size == 1) {
    sum_chunk(&(chunk){.r = &r, .end = columns});
    return;
  }
  if (columns == 0) {
    return;
  }
  divide_workspace(&r, workspace, workspace_bytes);
  chunk c[2];
  start_chunk(&c[0], &r, 0, 0);
  for (int now = 0, more = 1; more; now = !now) {
    ts_exchange_finish(&r.comm->exchange);
    more = c[now].end < columns;
    if (more) {
      start_chunk(&c[!now], &r, c[now].end, !now);
    }
    sum_chunk(&c[now]);
  }
}
