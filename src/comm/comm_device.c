/* The reductions of a device: kernels of cuda/comm_sum.h over runs of columns; its exchanges: those of
 * cuda/comm_blocks.h; and the table of a group of 1. */
#include "comm/comm_device.h"

#include "backend/backend.h"
#include "base/memory.h"
#include "base/status.h"
#include "comm/comm_patch.h"
#include "cuda/comm_blocks.h"
#include "cuda/comm_sum.h"

enum { LINE = 64 };

void *ts_comm_stream(void) {
  ts_device *device = ts_backend_device(ts_backend_cuda());
  return device->ops->stream(device, TS_QUEUE_COMM);
}

void ts_comm_device_copy(void *to, const void *from, size_t bytes) {
  ts_device *device = ts_backend_device(ts_backend_cuda());
  device->ops->copy(device, to, from, bytes, TS_QUEUE_COMM);
}

void ts_comm_device_finish(void) {
  ts_device *device = ts_backend_device(ts_backend_cuda());
  void *event = device->ops->event_create(device, false);
  device->ops->record(device, event, TS_QUEUE_COMM);
  device->ops->finish(device, event);
  device->ops->event_destroy(device, event);
}

/* ---- chunks ---- */

void ts_device_divide(ts_device_reduction *r, void *workspace, size_t bytes, int receive, int send) {
  r->slot_bytes = bytes / (size_t) (receive + send) / LINE * LINE;
  TS_CHECK(r->slot_bytes > 0, "reduce_scatter has %zu bytes of workspace, at least %zu needed", bytes,
           ts_comm_least_workspace(r->size));
  int64_t most = (int64_t) (r->slot_bytes / ts_dtype_size(r->wire)), line = LINE / (int64_t) ts_dtype_size(r->wire);
  int64_t chunks = (r->longest + most - 1) / most, columns = chunks > 0 ? (r->longest + chunks - 1) / chunks : line;
  r->columns = (columns + line - 1) / line * line; /* chunks of equal length, slots of whole cache lines */
  r->slot_bytes = (size_t) r->columns * ts_dtype_size(r->wire);
  r->receive = workspace;
  r->send = send > 0 ? r->receive + (size_t) receive * r->slot_bytes : NULL;
}

int64_t ts_device_chunk(const ts_device_reduction *r, int64_t begin, int rank) {
  int64_t left = ts_shard_columns(r->transfer, r->n, rank) - begin;
  return left < 0 ? 0 : left < r->columns ? left : r->columns;
}

unsigned char *ts_device_send_slot(const ts_device_reduction *r, int rank, bool own) {
  return r->send + (size_t) (rank - (!own && rank > r->rank)) * r->slot_bytes;
}

static ts_walk walk_chunk(const ts_device_reduction *r, int64_t begin, int rank) {
  return (ts_walk){.transfer = r->transfer, .n = r->n, .rank = rank, .begin = begin, .end = begin + r->columns};
}

void ts_device_pack(const ts_device_reduction *r, int64_t begin, bool own) {
  ts_cuda_copy_run list[TS_CUDA_RUNS];
  int n = 0;
  for (int rank = 0; rank < r->size; ++rank) {
    ts_walk w = walk_chunk(r, begin, rank);
    ts_run run;
    while ((own || rank != r->rank) && ts_walk_next(&w, &run)) {
      size_t offset = (size_t) (run.column - begin) * ts_dtype_size(r->wire);
      list[n++] = (ts_cuda_copy_run){.to = ts_device_send_slot(r, rank, own) + offset,
                                     .from = ts_run_in_whole(&run, run.transfer->x, r->x),
                                     .count = run.count};
      if (n == TS_CUDA_RUNS) {
        ts_cuda_copy_runs(list, n, r->wire, r->x, r->divisor, ts_comm_stream());
        n = 0;
      }
    }
  }
  ts_cuda_copy_runs(list, n, r->wire, r->x, r->divisor, ts_comm_stream());
}

void ts_device_sum(const ts_device_reduction *r, int64_t begin, const void *whole) {
  const ts_cuda_reduction sum = {.own = whole != NULL ? r->wire : r->x,
                                 .wire = r->wire,
                                 .y = r->y,
                                 .beta = r->beta,
                                 .divisor = r->divisor,
                                 .rank = whole != NULL ? 0 : r->rank,
                                 .size = whole != NULL ? 1 : r->size,
                                 .stride = (int64_t) r->slot_bytes};
  ts_cuda_sum_run list[TS_CUDA_RUNS];
  ts_walk w = walk_chunk(r, begin, r->rank);
  ts_run run;
  int n = 0;
  while (ts_walk_next(&w, &run)) {
    size_t offset = (size_t) (run.column - begin) * ts_dtype_size(r->wire);
    list[n++] = (ts_cuda_sum_run){.y = ts_run_in_shard(&run, run.transfer->y, r->rank, r->y),
                                  .count = run.count,
                                  .own = whole != NULL ? (const char *) whole + offset
                                                       : ts_run_in_whole(&run, run.transfer->x, r->x),
                                  .slots = sum.size > 1 ? r->receive + offset : NULL};
    if (n == TS_CUDA_RUNS) {
      ts_cuda_sum_runs(&sum, list, n, ts_comm_stream());
      n = 0;
    }
  }
  ts_cuda_sum_runs(&sum, list, n, ts_comm_stream());
}

/* ---- blocks ---- */

void ts_device_check_exchange(const ts_exchange_lists *lists, int rank, size_t workspace_bytes) {
  size_t needed = ts_comm_exchange_workspace(lists, rank);
  TS_CHECK(workspace_bytes >= needed, "exchange has %zu bytes of workspace, at least %zu needed", workspace_bytes,
           needed);
}

/* Copies on their way to a launch. */
typedef struct copy_list {
  ts_cuda_block_copy copy[TS_CUDA_BLOCKS];
  int n;
} copy_list;

static void launch_copies(copy_list *l) {
  ts_cuda_copy_blocks(l->copy, l->n, ts_comm_stream());
  l->n = 0;
}

static void add_copy(copy_list *l, const ts_patch *p, ts_slab to, ts_slab from) {
  l->copy[l->n++] = (ts_cuda_block_copy){.to = {to.data, to.row, to.batch},
                                         .from = {from.data, from.row, from.batch},
                                         .batches = p->batches,
                                         .rows = p->block->rows.length,
                                         .width = p->width};
  if (l->n == TS_CUDA_BLOCKS) {
    launch_copies(l);
  }
}

void ts_device_pack_blocks(const ts_exchange_lists *lists, int rank, void *workspace) {
  copy_list list = {.n = 0};
  ts_patch_walk w = ts_patch_begin(lists, rank, false, workspace);
  ts_patch p;
  while (ts_patch_next(&w, &p)) {
    if (p.packed.data != NULL) {
      add_copy(&list, &p, p.packed, p.place);
    }
  }
  launch_copies(&list);
}

/* The parts of an output that is a sum come into the table at the workspace's head, some with each launch. */
static void sum_blocks(const ts_exchange_lists *lists, int rank, void *workspace, int tensor) {
  TS_ASSERT(sizeof(ts_cuda_part) <= sizeof(ts_patch));
  const ts_exchange_tensor *y = &lists->y[tensor];
  ts_cuda_part *table = workspace, part[TS_CUDA_BLOCKS];
  ts_cuda_total total = {.y = y->data,
                         .dtype = y->dtype,
                         .batches = y->batches,
                         .rows = y->rows,
                         .columns = y->columns,
                         .part = table,
                         .wide = true};
  ts_patch_walk w = ts_patch_begin(lists, rank, true, workspace);
  ts_patch p;
  int n = 0;
  while (ts_patch_next(&w, &p)) {
    if (p.block->tensor == tensor) {
      part[n++] = (ts_cuda_part){{p.packed.data, p.packed.row, p.packed.batch}, p.block->rows, p.block->columns};
    }
    if (n == TS_CUDA_BLOCKS) {
      ts_cuda_put_parts(&total, part, n, ts_comm_stream());
      n = 0;
    }
  }
  ts_cuda_put_parts(&total, part, n, ts_comm_stream());
  ts_cuda_sum_parts(&total, ts_comm_stream());
}

void ts_device_unpack_blocks(const ts_exchange_lists *lists, int rank, void *workspace) {
  copy_list list = {.n = 0};
  ts_patch_walk w = ts_patch_begin(lists, rank, true, workspace);
  ts_patch p;
  while (ts_patch_next(&w, &p)) {
    if (p.packed.data != NULL && !p.sum) {
      add_copy(&list, &p, p.place, p.packed);
    }
  }
  launch_copies(&list);
  for (int i = 0; i < lists->n; ++i) {
    if ((w.sums >> i & 1) != 0) {
      sum_blocks(lists, rank, workspace, i);
    }
  }
}

/* Copy this rank's own columns to their place in the whole, unless they are there. */
static void copy_own_alone(const ts_transfer *transfer, int n, int rank, ts_dtype dtype) {
  size_t size = ts_dtype_size(dtype);
  for (int i = 0; i < n; ++i) {
    const ts_transfer *t = &transfer[i];
    int64_t first, columns = ts_transfer_columns(t, rank, &first);
    const char *from = (const char *) t->x + (size_t) (first - t->cuts[rank]) * size;
    char *to = (char *) t->y + (size_t) first * size;
    if (from != to && columns > 0) {
      ts_comm_device_copy(to, from, (size_t) columns * size);
    }
  }
}

/* ---- a group of 1 ---- */

static void reduce_scatter_alone(ts_comm *comm, const ts_transfer *transfer, int n, ts_dtype x, ts_dtype wire,
                                 ts_dtype y, const float *beta, void *workspace, size_t workspace_bytes) {
  (void) workspace, (void) workspace_bytes;
  ts_device_reduction r = {
      .rank = comm->rank, .size = 1, .transfer = transfer, .n = n, .x = x, .wire = wire, .y = y, .beta = beta};
  r.divisor = ts_transfer_divisor(transfer, n);
  r.columns = ts_longest_shard(transfer, n, 1);
  ts_device_sum(&r, 0, NULL);
}

static void all_gather_alone(ts_comm *comm, const ts_transfer *transfer, int n, ts_dtype dtype) {
  copy_own_alone(transfer, n, comm->rank, dtype);
}

static void all_reduce_alone(ts_comm *comm, const void *x, void *y, int64_t count, ts_dtype dtype, ts_dtype wire,
                             void *workspace, size_t workspace_bytes) {
  const int64_t cuts[] = {0, count};
  ts_transfer t = {.x = x, .y = y, .cuts = cuts, .end = count};
  reduce_scatter_alone(comm, &t, 1, dtype, wire, dtype, NULL, workspace, workspace_bytes);
}

static void broadcast_alone(ts_comm *comm, void *data, size_t bytes, int root) {
  (void) comm, (void) data, (void) bytes, (void) root;
}

static void exchange_alone(ts_comm *comm, const ts_exchange_lists *lists, void *workspace, size_t workspace_bytes) {
  ts_device_check_exchange(lists, comm->rank, workspace_bytes);
  ts_device_unpack_blocks(lists, comm->rank, workspace);
}

static void barrier_alone(ts_comm *comm) {
  (void) comm;
  ts_comm_device_finish();
}

static void destroy_alone(ts_comm *comm) {
  ts_free(comm);
}

ts_comm *ts_comm_device_alone(void) {
  static const ts_comm_ops operations = {.name = "device",
                                         .reduce_scatter = reduce_scatter_alone,
                                         .all_gather = all_gather_alone,
                                         .all_reduce = all_reduce_alone,
                                         .broadcast = broadcast_alone,
                                         .exchange = exchange_alone,
                                         .barrier = barrier_alone,
                                         .destroy = destroy_alone};
  ts_comm *comm = ts_calloc(1, sizeof *comm);
  *comm = (ts_comm){.ops = &operations, .size = 1};
  return comm;
}
