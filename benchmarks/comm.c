/* Speed of the collectives on this machine's ranks, against a copy of the same bytes by all ranks at once.
 *
 *     mpiexec -n 2 benchmarks/comm [MEGABYTES]
 *
 * `bytes` is the whole in its own dtype; GB/s counts what each rank receives in the wire dtype, (P - 1) / P of the
 * whole, per second; `copies` is the time in units of a memcpy of the whole.  Best of five. */
#include "comm/comm.h"
#include "base/log.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>

enum { REPEATS = 5 };

enum { COLUMNS = 4096 /* of a row of the tensors that are exchanged */ };

typedef struct bench {
  ts_comm *comm;
  int64_t count, *cuts;
  ts_transfer transfer;
  ts_dtype dtype, wire;
  float *x, *y;
  ts_exchange_tensor tensor[2];
  ts_block *sent, *received;
  void *workspace;
  size_t workspace_bytes;
} bench;

static void copy(bench *b) {
  memcpy(b->y, b->x, (size_t) b->count * sizeof *b->x);
}

static void gather(bench *b) {
  b->transfer = (ts_transfer){.x = (char *) b->y + (size_t) b->cuts[b->comm->rank] * ts_dtype_size(b->dtype),
                              .y = b->y,
                              .cuts = b->cuts,
                              .end = b->count};
  b->comm->ops->all_gather(b->comm, &b->transfer, 1, b->dtype);
}

static void reduce(bench *b) {
  b->transfer = (ts_transfer){.x = b->x, .y = b->y, .cuts = b->cuts, .end = b->count};
  b->comm->ops->reduce_scatter(b->comm, &b->transfer, 1, b->dtype, b->wire, TS_F32, NULL, b->workspace,
                               b->workspace_bytes);
}

static void reduce_all(bench *b) {
  b->comm->ops->all_reduce(b->comm, b->x, b->y, b->count, b->dtype, b->wire, b->workspace, b->workspace_bytes);
}

/* Everybody's rows become everybody's columns: packed where they leave, not where they arrive. */
static void make_blocks(bench *b) {
  int64_t size = b->comm->size, rows = b->count / COLUMNS;
  b->tensor[0] = (ts_exchange_tensor){b->x, b->dtype, 1, rows, COLUMNS};
  b->tensor[1] = (ts_exchange_tensor){b->y, b->dtype, 1, rows * size, ts_deal(COLUMNS, size, b->comm->rank).length};
  for (int rank = 0; rank < size; ++rank) {
    ts_interval all = {0, rows}, mine = {0, b->tensor[1].columns};
    b->sent[rank] = (ts_block){rank, 0, all, ts_deal(COLUMNS, size, rank)};
    b->received[rank] = (ts_block){rank, 0, {rank * rows, rows}, mine};
  }
}

static void exchange(bench *b) {
  int size = b->comm->size;
  make_blocks(b);
  const ts_exchange_lists lists = {1, &b->tensor[0], &b->tensor[1], b->sent, b->received, size, size};
  b->comm->ops->exchange(b->comm, &lists, b->workspace, b->workspace_bytes);
}

/* And back: packed where they arrive. */
static void exchange_back(bench *b) {
  int size = b->comm->size;
  make_blocks(b);
  const ts_exchange_lists lists = {1, &b->tensor[1], &b->tensor[0], b->received, b->sent, size, size};
  b->comm->ops->exchange(b->comm, &lists, b->workspace, b->workspace_bytes);
}

/* For all rows of the table: an exchange packs less than the whole in bf16. */
static size_t most_workspace(bench *b, int64_t most) {
  size_t reduction = ts_comm_workspace(b->comm->size, most, TS_F32);
  size_t blocks = (size_t) most * ts_dtype_size(TS_BF16) + ((size_t) b->comm->size << 10);
  return reduction > blocks ? reduction : blocks;
}

static double best_seconds(bench *b, void (*run)(bench *)) {
  double best = 1e30;
  for (int i = 0; i < REPEATS; ++i) {
    b->comm->ops->barrier(b->comm);
    double start = ts_seconds();
    run(b);
    b->comm->ops->barrier(b->comm);
    double seconds = ts_seconds() - start;
    best = seconds < best ? seconds : best;
  }
  return best;
}

static const struct {
  const char *name;
  void (*run)(bench *);
  ts_dtype dtype, wire;
  int trips; /* of the whole through the wire */
} rows[] = {{"memcpy fp32", copy, TS_F32, TS_F32, 0},
            {"all_gather fp32", gather, TS_F32, TS_F32, 1},
            {"all_gather bf16", gather, TS_BF16, TS_BF16, 1},
            {"reduce_scatter fp32", reduce, TS_F32, TS_F32, 1},
            {"reduce_scatter fp32 over bf16", reduce, TS_F32, TS_BF16, 1},
            {"reduce_scatter bf16", reduce, TS_BF16, TS_BF16, 1},
            {"reduce_scatter fp16", reduce, TS_F16, TS_F16, 1},
            {"all_reduce fp32", reduce_all, TS_F32, TS_F32, 2},
            {"exchange bf16, rows to columns", exchange, TS_BF16, TS_BF16, 1},
            {"exchange bf16, and back", exchange_back, TS_BF16, TS_BF16, 1}};

static void run_size(bench *b) {
  double memcpy_seconds = 0;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    b->dtype = rows[i].dtype;
    b->wire = rows[i].wire;
    double seconds = best_seconds(b, rows[i].run), size = b->comm->size;
    double whole = (double) b->count * (double) ts_dtype_size(b->dtype);
    double moved = (double) b->count * (double) ts_dtype_size(b->wire) * rows[i].trips * (size - 1) / size;
    memcpy_seconds = i == 0 ? seconds : memcpy_seconds;
    double copies = seconds / (memcpy_seconds * whole / ((double) b->count * sizeof *b->x));
    if (b->comm->rank == 0) {
      printf("%-30s %12.0f bytes %10.3f ms %7.2f GB/s %7.2f copies\n", rows[i].name, whole, 1e3 * seconds,
             1e-9 * (i == 0 ? whole : moved) / seconds, copies);
      fflush(stdout);
    }
  }
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  bench b = {.comm = ts_world_all(world)};
  int64_t most = (argc > 1 ? atoll(argv[1]) : 256) * 250000;
  b.cuts = ts_calloc((size_t) b.comm->size + 1, sizeof *b.cuts);
  b.x = ts_map((size_t) most * sizeof *b.x);
  b.y = ts_map((size_t) most * sizeof *b.y);
  memset(b.x, 0, (size_t) most * sizeof *b.x);
  memset(b.y, 0, (size_t) most * sizeof *b.y);
  b.sent = ts_calloc(2 * (size_t) b.comm->size, sizeof *b.sent);
  b.received = b.sent + b.comm->size;
  b.workspace_bytes = most_workspace(&b, most);
  b.workspace = ts_map(b.workspace_bytes);
  memset(b.workspace, 0, b.workspace_bytes);
  for (b.count = most / 10000; b.count <= most && b.count > 0; b.count *= 10) {
    for (int i = 0; i <= b.comm->size; ++i) {
      b.cuts[i] = b.count * i / b.comm->size;
    }
    run_size(&b);
  }
  ts_unmap(b.workspace, b.workspace_bytes);
  ts_free(b.sent);
  ts_unmap(b.y, (size_t) most * sizeof *b.y);
  ts_unmap(b.x, (size_t) most * sizeof *b.x);
  ts_free(b.cuts);
  ts_world_destroy(&world);
  return 0;
}
