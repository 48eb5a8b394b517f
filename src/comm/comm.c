/* What of a communicator is arithmetic. */
#include "comm/comm_mpi.h"
#include "comm/comm_run.h"

#include "base/status.h"

/* Bytes of a chunk: a message.  2 ranks of one node, 100 MB of fp32: 3.6 GB/s received with chunks of 128 KiB, 4.2 with
 * 256, 4.4 with 512, 3.9 with 1024 and more.  The total is held near 32 MiB, in large groups by smaller chunks. */
enum { CHUNK_MOST = 512 << 10, CHUNK_LEAST = 64 << 10, TOTAL = 32 << 20, DEVICE_TOTAL = 64 << 20, LINE = 64 };

static int64_t clipped(int64_t value, int64_t most) {
  return value < most ? value : most;
}

int64_t ts_transfer_columns(const ts_transfer *transfer, int rank, int64_t *first) {
  int64_t length = transfer->cuts[rank + 1] - transfer->cuts[rank];
  TS_ASSERT(0 <= transfer->begin && transfer->begin <= transfer->end && length >= 0);
  int64_t begin = clipped(transfer->begin, length);
  *first = transfer->cuts[rank] + begin;
  return clipped(transfer->end, length) - begin;
}

int ts_comm_send_slots(int size) {
  return 4 * (size - 1) < TS_SLOTS ? 4 * (size - 1) : TS_SLOTS;
}

/* A chunk comes from each other rank while the one before is summed; and those on their way out. */
static int64_t slots_of(int size) {
  return 2 * (int64_t) (size - 1) + ts_comm_send_slots(size);
}

size_t ts_comm_least_workspace(int size) {
  return (size_t) slots_of(size) * LINE;
}

size_t ts_comm_workspace(int size, int64_t max_columns, ts_dtype wire) {
  if (size == 1) {
    return 0;
  }
  int64_t slots = slots_of(size), chunk = TOTAL / slots / LINE * LINE;
  chunk = chunk < CHUNK_LEAST ? CHUNK_LEAST : clipped(chunk, CHUNK_MOST);
  int64_t columns = clipped(max_columns, chunk); /* a column is at least a byte; no overflow below */
  int64_t needed = (columns * (int64_t) ts_dtype_size(wire) + LINE - 1) / LINE * LINE;
  chunk = clipped(needed > LINE ? needed : LINE, chunk);
  return (size_t) (chunk * slots);
}

/* All of it is on its way at once: 64 MiB take some 200 us over the fastest links, the start of a chunk some 20. */
size_t ts_comm_device_workspace(int size, int64_t max_columns, ts_dtype wire) {
  if (size == 1) {
    return 0;
  }
  int64_t slots = 2 * ((int64_t) size - 1), most = DEVICE_TOTAL / slots / LINE * LINE;
  int64_t columns = clipped(max_columns, DEVICE_TOTAL); /* no overflow below */
  int64_t needed = (columns * (int64_t) ts_dtype_size(wire) + LINE - 1) / LINE * LINE;
  size_t bytes = (size_t) (clipped(needed, most) * slots), least = ts_comm_least_workspace(size);
  return bytes > least ? bytes : least;
}

bool ts_walk_next(ts_walk *w, ts_run *out) {
  while (w->next < w->n && w->passed < w->end) {
    const ts_transfer *t = &w->transfer[w->next++];
    int64_t first, count = ts_transfer_columns(t, w->rank, &first);
    int64_t begin = w->begin > w->passed ? w->begin : w->passed;
    int64_t end = clipped(w->end, w->passed + count);
    *out = (ts_run){.column = begin, .first = first + begin - w->passed, .count = end - begin, .transfer = t};
    w->passed += count;
    if (out->count > 0) {
      return true;
    }
  }
  return false;
}

int64_t ts_shard_columns(const ts_transfer *transfer, int n, int rank) {
  int64_t sum = 0, first;
  for (int i = 0; i < n; ++i) {
    sum += ts_transfer_columns(&transfer[i], rank, &first);
  }
  return sum;
}

int64_t ts_longest_shard(const ts_transfer *transfer, int n, int size) {
  int64_t most = 0;
  for (int rank = 0; rank < size; ++rank) {
    int64_t columns = ts_shard_columns(transfer, n, rank);
    most = columns > most ? columns : most;
  }
  return most;
}

void ts_cut_equally(int64_t *cuts, int size, int64_t count) {
  int64_t width = (count + size - 1) / size;
  width = (width + LINE - 1) / LINE * LINE;
  for (int rank = 0; rank <= size; ++rank) {
    cuts[rank] = clipped(width * rank, count);
  }
}
