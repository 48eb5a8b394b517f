/* The table of collectives over NCCL.
 *
 * all_gather is ncclAllGather where the columns are whole shards of one length, which are then one run of the result;
 * else a group of ncclBroadcast, one per rank: like the ring of an all_gather it sends each byte once over each link
 * between nodes, where messages from each to each would send it to every rank of the other node; from 2.30 on NCCL
 * makes one operation of such a group.
 *
 * reduce_scatter over an fp32 wire is ncclReduceScatter where all shards are equally long: in place of x and y, or
 * through the workspace where columns are not one run, dtypes differ or y is added to.  Over 16 bits, with
 * options.exact and for uneven shards each rank sends every other its part and adds what it gets in rank order, as
 * comm_reduce.c does.
 * Cost: each rank sends and receives (P - 1) / P of the whole in the wire dtype; the exchange sends all that
 * leaves a node for every pair of ranks. */
#include "comm/comm_nccl_group.h"

#include "backend/backend.h"
#include "base/memory.h"
#include "base/status.h"
#include "comm/comm_device.h"
#include "comm/comm_patch.h"
#include "comm/comm_rows.h"

static void agree_by_nccl(ts_comm_nccl *c, ts_collective op, const ts_transfer *transfer, int n, uint64_t rest) {
  ts_nccl_begin(c, op);
  ts_comm_agree(&c->base, c->mpi->comm, c->mpi->member, op, transfer, n, rest);
}

/* Are the columns of all ranks one run of the whole, in equal parts? */
static bool is_one_run(const ts_transfer *t, int size) {
  int64_t start, columns = ts_transfer_columns(t, 0, &start);
  for (int rank = 1; rank < size; ++rank) {
    int64_t first, count = ts_transfer_columns(t, rank, &first);
    if (count != columns || first != start + rank * columns) {
      return false;
    }
  }
  return true;
}

/* ---- all_gather ---- */

static void gather_run(ts_comm_nccl *c, const ts_transfer *t, size_t size) {
  int64_t start, first, columns = ts_transfer_columns(t, 0, &start);
  ts_transfer_columns(t, c->base.rank, &first);
  const char *x = (const char *) t->x + (size_t) (first - t->cuts[c->base.rank]) * size;
  if (columns > 0) {
    char *y = (char *) t->y + (size_t) start * size;
    TS_NCCL(c, ncclAllGather(x, y, (size_t) columns * size, ncclInt8, c->nccl, ts_comm_stream()));
  }
}

static void gather_pieces(ts_comm_nccl *c, const ts_transfer *t, size_t size) {
  for (int rank = 0; rank < c->base.size; ++rank) {
    int64_t first, columns = ts_transfer_columns(t, rank, &first);
    char *y = (char *) t->y + (size_t) first * size;
    const char *x = rank == c->base.rank ? (const char *) t->x + (size_t) (first - t->cuts[rank]) * size : y;
    if (columns > 0) {
      TS_NCCL(c, ncclBroadcast(x, y, (size_t) columns * size, ncclInt8, rank, c->nccl, ts_comm_stream()));
    }
  }
}

static void gather_by_nccl(ts_comm_nccl *c, const ts_transfer *transfer, int n, ts_dtype dtype) {
  ts_nccl_open(c);
  for (int i = 0; i < n; ++i) {
    (is_one_run(&transfer[i], c->base.size) ? gather_run : gather_pieces)(c, &transfer[i], ts_dtype_size(dtype));
  }
  ts_nccl_close(c);
}

static void all_gather_by_nccl(ts_comm *comm, const ts_transfer *transfer, int n, ts_dtype dtype) {
  ts_comm_nccl *c = (ts_comm_nccl *) comm;
  agree_by_nccl(c, TS_ALL_GATHER, transfer, n, (uint64_t) dtype);
  gather_by_nccl(c, transfer, n, dtype);
}

/* ---- reductions: NCCL adds ---- */

static void reduce_runs(ts_comm_nccl *c, const ts_device_reduction *r) {
  ts_nccl_open(c);
  for (int i = 0; i < r->n; ++i) {
    const ts_transfer *t = &r->transfer[i];
    int64_t start, first, columns = ts_transfer_columns(t, 0, &start);
    ts_transfer_columns(t, r->rank, &first);
    if (columns > 0) {
      const float *x = (const float *) t->x + start;
      float *y = (float *) t->y + (first - t->cuts[r->rank]);
      TS_NCCL(c, ncclReduceScatter(x, y, (size_t) columns, ncclFloat32, ncclSum, c->nccl, ts_comm_stream()));
    }
  }
  ts_nccl_close(c);
}

/* Chunk by chunk through the workspace, where everybody's columns lie side by side. */
static void reduce_packed(ts_comm_nccl *c, ts_device_reduction *r, void *workspace, size_t bytes) {
  ts_device_divide(r, workspace, bytes, 0, r->size);
  for (int64_t begin = 0; begin < r->longest; begin += r->columns) {
    unsigned char *sum = ts_device_send_slot(r, r->rank, true);
    ts_device_pack(r, begin, true);
    ts_nccl_open(c);
    TS_NCCL(c, ncclReduceScatter(r->send, sum, (size_t) r->columns, ncclFloat32, ncclSum, c->nccl, ts_comm_stream()));
    ts_nccl_close(c);
    ts_device_sum(r, begin, sum);
  }
}

static bool can_reduce_runs(const ts_device_reduction *r) {
  bool can = r->x == TS_F32 && r->y == TS_F32 && r->beta == NULL;
  for (int i = 0; can && i < r->n; ++i) {
    can = is_one_run(&r->transfer[i], r->size);
  }
  return can;
}

static bool shards_are_equal(const ts_device_reduction *r) {
  bool equal = true;
  for (int rank = 0; rank < r->size; ++rank) {
    equal = equal && ts_shard_columns(r->transfer, r->n, rank) == r->longest;
  }
  return equal;
}

/* ---- reductions: exchanged, added here ---- */

static void send_chunk(ts_comm_nccl *c, const ts_device_reduction *r, int64_t begin, int to, ncclDataType_t type) {
  int64_t columns = ts_device_chunk(r, begin, to);
  if (r->send != NULL && columns > 0) {
    TS_NCCL(c, ncclSend(ts_device_send_slot(r, to, false), (size_t) columns, type, to, c->nccl, ts_comm_stream()));
  }
  ts_walk w = {.transfer = r->transfer, .n = r->n, .rank = to, .begin = begin, .end = begin + r->columns};
  ts_run run;
  while (r->send == NULL && ts_walk_next(&w, &run)) {
    TS_NCCL(c, ncclSend(ts_run_in_whole(&run, run.transfer->x, r->x), (size_t) run.count, type, to, c->nccl,
                        ts_comm_stream()));
  }
}

/* In the same messages as it is sent. */
static void receive_chunk(ts_comm_nccl *c, const ts_device_reduction *r, int64_t begin, int from, ncclDataType_t type) {
  unsigned char *slot = r->receive + (size_t) (from - (from > r->rank)) * r->slot_bytes;
  int64_t columns = ts_device_chunk(r, begin, r->rank);
  if (r->send != NULL && columns > 0) {
    TS_NCCL(c, ncclRecv(slot, (size_t) columns, type, from, c->nccl, ts_comm_stream()));
  }
  ts_walk w = {.transfer = r->transfer, .n = r->n, .rank = r->rank, .begin = begin, .end = begin + r->columns};
  ts_run run;
  while (r->send == NULL && ts_walk_next(&w, &run)) {
    unsigned char *to = slot + (size_t) (run.column - begin) * ts_dtype_size(r->wire);
    TS_NCCL(c, ncclRecv(to, (size_t) run.count, type, from, c->nccl, ts_comm_stream()));
  }
}

static void exchange_chunks(ts_comm_nccl *c, ts_device_reduction *r, void *workspace, size_t bytes) {
  int peers = r->size - 1;
  ncclDataType_t type = r->wire == TS_BF16 ? ncclBfloat16 : r->wire == TS_F16 ? ncclFloat16 : ncclFloat32;
  ts_device_divide(r, workspace, bytes, peers, r->x == r->wire && r->divisor == 1 ? 0 : peers);
  for (int64_t begin = 0; begin < r->longest; begin += r->columns) {
    if (r->send != NULL) {
      ts_device_pack(r, begin, false);
    }
    ts_nccl_open(c);
    for (int step = 1; step < r->size; ++step) {
      send_chunk(c, r, begin, (r->rank + step) % r->size, type);
      receive_chunk(c, r, begin, (r->rank + r->size - step) % r->size, type);
    }
    ts_nccl_close(c);
    ts_device_sum(r, begin, NULL);
  }
}

/* ---- reductions ---- */

static void reduce_by_nccl(ts_comm_nccl *c, ts_device_reduction *r, void *workspace, size_t bytes) {
  r->rank = c->base.rank;
  r->size = c->base.size;
  r->longest = ts_longest_shard(r->transfer, r->n, r->size);
  r->divisor = ts_transfer_divisor(r->transfer, r->n);
  bool ordered = ts_dtype_is_half(r->wire) || c->options.exact || r->divisor != 1;
  if (!ordered && can_reduce_runs(r)) {
    reduce_runs(c, r);
  } else if (!ordered && shards_are_equal(r)) {
    reduce_packed(c, r, workspace, bytes);
  } else {
    exchange_chunks(c, r, workspace, bytes);
  }
}

static void reduce_scatter_by_nccl(ts_comm *comm, const ts_transfer *transfer, int n, ts_dtype x, ts_dtype wire,
                                   ts_dtype y, const float *beta, void *workspace, size_t workspace_bytes) {
  ts_comm_nccl *c = (ts_comm_nccl *) comm;
  ts_device_reduction r = {.transfer = transfer, .n = n, .x = x, .wire = wire, .y = y, .beta = beta};
  agree_by_nccl(c, TS_REDUCE_SCATTER, transfer, n, ts_hash_reduction(x, wire, workspace_bytes));
  reduce_by_nccl(c, &r, workspace, workspace_bytes);
}

static void all_reduce_by_nccl(ts_comm *comm, const void *x, void *y, int64_t count, ts_dtype dtype, ts_dtype wire,
                               void *workspace, size_t workspace_bytes) {
  ts_comm_nccl *c = (ts_comm_nccl *) comm;
  ts_cut_equally(c->cuts, comm->size, count);
  char *shard = (char *) y + (size_t) c->cuts[comm->rank] * ts_dtype_size(dtype);
  ts_transfer in = {.x = x, .y = shard, .cuts = c->cuts, .end = count};
  ts_transfer out = {.x = shard, .y = y, .cuts = c->cuts, .end = count};
  ts_device_reduction r = {.transfer = &in, .n = 1, .x = dtype, .wire = wire, .y = dtype};
  agree_by_nccl(c, TS_ALL_REDUCE, &in, 1, ts_hash_reduction(dtype, wire, workspace_bytes));
  reduce_by_nccl(c, &r, workspace, workspace_bytes);
  gather_by_nccl(c, &out, 1, dtype);
}

/* ---- the rest ---- */

static void broadcast_by_nccl(ts_comm *comm, void *data, size_t bytes, int root) {
  ts_comm_nccl *c = (ts_comm_nccl *) comm;
  ts_nccl_begin(c, TS_BROADCAST);
  if (bytes > 0) {
    ts_nccl_open(c);
    TS_NCCL(c, ncclBroadcast(data, data, bytes, ncclInt8, root, c->nccl, ts_comm_stream()));
    ts_nccl_close(c);
  }
}

/* All messages are one group; NCCL pairs those of two ranks in their order. */
static void exchange_by_nccl(ts_comm *comm, const ts_exchange_lists *lists, void *workspace, size_t workspace_bytes) {
  ts_comm_nccl *c = (ts_comm_nccl *) comm;
  ts_nccl_begin(c, TS_EXCHANGE);
  ts_comm_agree_exchange(comm, c->mpi->comm, c->mpi->member, lists);
  ts_device_check_exchange(lists, comm->rank, workspace_bytes);
  ts_device_pack_blocks(lists, comm->rank, workspace);
  ts_nccl_open(c);
  for (int arrives = 0; arrives <= 1; ++arrives) {
    ts_patch_walk w = ts_patch_begin(lists, comm->rank, arrives, workspace);
    ts_patch p;
    while (ts_patch_next(&w, &p)) {
      int peer = p.block->rank;
      if (peer == comm->rank || p.bytes == 0) {
        continue;
      }
      if (arrives) {
        TS_NCCL(c, ncclRecv(ts_patch_message(&p), (size_t) p.bytes, ncclInt8, peer, c->nccl, ts_comm_stream()));
      } else {
        TS_NCCL(c, ncclSend(ts_patch_message(&p), (size_t) p.bytes, ncclInt8, peer, c->nccl, ts_comm_stream()));
      }
    }
  }
  ts_nccl_close(c);
  ts_device_unpack_blocks(lists, comm->rank, workspace);
}

/* The counts, once they are there. */
static int32_t *read_counts(const ts_row_exchange *rows, int size) {
  ts_device *device = ts_backend_device(ts_backend_cuda());
  size_t bytes = (size_t) size * (size_t) (rows->experts[size] + 1) * sizeof(int32_t);
  int32_t *firsts = ts_malloc(bytes);
  void *event = device->ops->event_create(device, false);
  device->ops->copy(device, firsts, rows->firsts, bytes, TS_QUEUE_COMM);
  device->ops->record(device, event, TS_QUEUE_COMM);
  device->ops->finish(device, event);
  device->ops->event_destroy(device, event);
  return firsts;
}

/* All stretches are one group, those of this rank's own rows too. */
static void exchange_rows_by_nccl(ts_comm *comm, const ts_row_exchange *rows) {
  ts_comm_nccl *c = (ts_comm_nccl *) comm;
  ts_nccl_begin(c, TS_EXCHANGE_ROWS);
  int32_t *firsts = read_counts(rows, comm->size);
  ts_row_plan plan = ts_row_plan_make(rows, firsts, comm->rank, comm->size);
  ts_comm_agree_rows(comm, c->mpi->comm, c->mpi->member, rows->row_bytes, ts_hash_rows(&plan));
  ts_nccl_open(c);
  for (int peer = 0; peer < comm->size; ++peer) {
    for (int sends = 0; sends <= 1; ++sends) {
      ts_interval experts = ts_row_plan_experts(&plan, sends, peer);
      for (int64_t e = experts.begin; e < experts.begin + experts.length; ++e) {
        int64_t at, bytes = ts_row_plan_stretch(&plan, sends, peer, e, &at);
        if (bytes > 0 && sends) {
          TS_NCCL(c, ncclSend((const char *) rows->x + at, (size_t) bytes, ncclInt8, peer, c->nccl, ts_comm_stream()));
        } else if (bytes > 0) {
          TS_NCCL(c, ncclRecv((char *) rows->y + at, (size_t) bytes, ncclInt8, peer, c->nccl, ts_comm_stream()));
        }
      }
    }
  }
  ts_nccl_close(c);
  ts_row_plan_free(&plan);
  ts_free(firsts);
}

static void barrier_by_nccl(ts_comm *comm) {
  ts_comm_device_finish();
  ts_comm *host = &((ts_comm_nccl *) comm)->mpi->base;
  host->ops->barrier(host);
}

static void destroy_by_nccl(ts_comm *comm) {
  ts_nccl_group_destroy((ts_comm_nccl *) comm);
}

/* A column of everybody's rows, which is packed and unpacked, and a row of everybody, which is added. */
static void warm_exchange(ts_comm_nccl *c, char *memory) {
  int size = c->base.size;
  ts_block *block = ts_calloc(4 * (size_t) size, sizeof *block), *received = block + 2 * size;
  ts_exchange_tensor x[] = {{memory, TS_F32, 1, 2, size}, {memory, TS_BF16, 1, 1, 8}}, y[] = {x[0], x[1]};
  for (int rank = 0; rank < size; ++rank) {
    block[2 * rank] = (ts_block){rank, 0, {0, 2}, {rank, 1}};
    block[2 * rank + 1] = (ts_block){rank, 1, {0, 1}, {0, 8}};
  }
  memcpy(received, block, 2 * (size_t) size * sizeof *block);
  const ts_exchange_lists lists = {2, x, y, block, received, 2 * size, 2 * size};
  y[0].data = memory += 2 * (size_t) size * sizeof(float);
  y[1].data = memory += 2 * (size_t) size * sizeof(float);
  memory += 8 * sizeof(float);
  exchange_by_nccl(&c->base, &lists, memory, ts_comm_exchange_workspace(&lists, c->base.rank));
  ts_free(block);
}

/* Every kind of operation once: NCCL connects and allocates at the first use, kernels are loaded then. */
static void warm_up(ts_comm_nccl *c) {
  const ts_backend *backend = ts_backend_cuda();
  ts_device *device = ts_backend_device(backend);
  device->ops->set_op(device, "first connections");
  size_t half = TS_NCCL_WARM_BYTES;
  size_t bytes = half > ts_comm_least_workspace(c->base.size) ? half : ts_comm_least_workspace(c->base.size);
  int64_t columns = (int64_t) (half / sizeof(float)) / c->base.size;
  int64_t *cuts = ts_calloc((size_t) c->base.size + 1, sizeof *cuts);
  for (int rank = 0; rank <= c->base.size; ++rank) {
    cuts[rank] = rank * columns;
  }
  char *whole = backend->allocate(half + bytes), *workspace = whole + half;
  float *shard = (float *) whole + cuts[c->base.rank];
  const ts_transfer in = {.x = whole, .y = shard, .cuts = cuts, .end = columns};
  const ts_transfer out = {.x = shard, .y = whole, .cuts = cuts, .end = columns};
  const ts_transfer pieces = {.x = shard, .y = whole, .cuts = cuts, .end = columns / 2};
  reduce_scatter_by_nccl(&c->base, &in, 1, TS_F32, TS_F32, TS_F32, NULL, workspace, bytes);
  reduce_scatter_by_nccl(&c->base, &in, 1, TS_F32, TS_BF16, TS_F32, NULL, workspace, bytes);
  all_gather_by_nccl(&c->base, &out, 1, TS_F32);
  all_gather_by_nccl(&c->base, &pieces, 1, TS_F32);
  warm_exchange(c, whole);
  barrier_by_nccl(&c->base);
  backend->release(whole, half + bytes);
  device->ops->set_op(device, NULL);
  ts_free(cuts);
}

ts_comm *ts_comm_nccl_create(ts_comm_mpi *mpi, const ts_device_options *options) {
  static const ts_comm_ops operations = {.name = "nccl",
                                         .reduce_scatter = reduce_scatter_by_nccl,
                                         .all_gather = all_gather_by_nccl,
                                         .all_reduce = all_reduce_by_nccl,
                                         .broadcast = broadcast_by_nccl,
                                         .exchange = exchange_by_nccl,
                                         .exchange_rows = exchange_rows_by_nccl,
                                         .barrier = barrier_by_nccl,
                                         .destroy = destroy_by_nccl};
  ts_comm_nccl *c = ts_nccl_group_create(mpi, options);
  c->base.ops = &operations;
  warm_up(c);
  return &c->base;
}
