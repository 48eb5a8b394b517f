#include "comm/comm_patch.h"

#include "base/status.h"

enum { LINE = 64 };

static int64_t rounded_to_lines(int64_t bytes) {
  return (bytes + LINE - 1) / LINE * LINE;
}

uint32_t ts_exchange_sums(const ts_exchange_lists *lists) {
  uint32_t sums = 0;
  TS_ASSERT(lists->n <= TS_MOST_EXCHANGED);
  for (int i = 0; i < lists->n; ++i) {
    const ts_exchange_tensor *y = &lists->y[i];
    bool added = ts_dtype_is_working(y->dtype) != 0;
    sums |= added && !ts_blocks_tile(lists->received, lists->n_received, i, y->rows, y->columns) ? 1u << i : 0;
  }
  return sums;
}

static ts_slab slab_of(const ts_exchange_tensor *t, const ts_block *b) {
  int64_t size = (int64_t) ts_dtype_size(t->dtype), first = b->rows.begin * t->columns + b->columns.begin;
  TS_ASSERT(b->rows.begin >= 0 && b->rows.begin <= t->rows - b->rows.length);
  TS_ASSERT(b->columns.begin >= 0 && b->columns.begin <= t->columns - b->columns.length);
  return (ts_slab){.data = t->data == NULL ? NULL : (char *) t->data + first * size,
                   .row = t->columns * size,
                   .batch = t->rows * t->columns * size};
}

static bool lies_in_one_run(const ts_patch *p) {
  int64_t rows = p->block->rows.length;
  return (rows == 1 || p->place.row == p->width) && (p->batches == 1 || p->place.batch == rows * p->width);
}

static ts_patch patch_of(const ts_exchange_tensor *t, const ts_block *b, bool sum) {
  ts_patch p = {.block = b, .dtype = t->dtype, .sum = sum, .batches = t->batches, .place = slab_of(t, b)};
  p.width = b->columns.length * (int64_t) ts_dtype_size(t->dtype);
  p.bytes = p.batches * b->rows.length * p.width;
  return p;
}

/* Of a block on its way to another rank, or from one. */
static int64_t packed_bytes(const ts_patch *p) {
  return p->sum || !lies_in_one_run(p) ? rounded_to_lines(p->bytes) : 0;
}

static int64_t table_bytes(const ts_exchange_lists *lists) {
  return rounded_to_lines(((int64_t) lists->n_sent + lists->n_received) * (int64_t) sizeof(ts_patch));
}

static int64_t staging_bytes(const ts_exchange_lists *lists, int rank, bool arrives) {
  const ts_block *block = arrives ? lists->received : lists->sent;
  const ts_exchange_tensor *tensor = arrives ? lists->y : lists->x;
  uint32_t sums = arrives ? ts_exchange_sums(lists) : 0;
  int64_t bytes = 0;
  for (int i = 0; i < (arrives ? lists->n_received : lists->n_sent); ++i) {
    ts_patch p = patch_of(&tensor[block[i].tensor], &block[i], (sums >> block[i].tensor & 1) != 0);
    bytes += block[i].rank == rank ? 0 : packed_bytes(&p);
  }
  return bytes;
}

size_t ts_comm_exchange_workspace(const ts_exchange_lists *lists, int rank) {
  return (size_t) (table_bytes(lists) + staging_bytes(lists, rank, false) + staging_bytes(lists, rank, true));
}

ts_patch_walk ts_patch_begin(const ts_exchange_lists *lists, int rank, bool arrives, void *workspace) {
  int64_t before = table_bytes(lists) + (arrives ? staging_bytes(lists, rank, false) : 0);
  return (ts_patch_walk){.lists = lists,
                         .rank = rank,
                         .arrives = arrives,
                         .own = ts_first_block(lists->sent, lists->n_sent, rank),
                         .staging = (char *) workspace + before,
                         .sums = arrives ? ts_exchange_sums(lists) : 0};
}

static void pack_patch(ts_patch_walk *w, ts_patch *p) {
  int64_t bytes = packed_bytes(p);
  if (bytes > 0) {
    p->packed = (ts_slab){w->staging, p->width, p->block->rows.length * p->width};
    w->staging += bytes;
  }
}

static ts_slab own_source(ts_patch_walk *w, const ts_block *b) {
  const ts_block *from = &w->lists->sent[w->own++];
  TS_CHECK(w->own <= w->lists->n_sent && from->rank == w->rank && from->tensor == b->tensor &&
               from->rows.length == b->rows.length && from->columns.length == b->columns.length,
           "exchange: a block that stays is not the same in both lists");
  return slab_of(&w->lists->x[from->tensor], from);
}

bool ts_patch_next(ts_patch_walk *w, ts_patch *out) {
  const ts_exchange_lists *l = w->lists;
  if (w->next == (w->arrives ? l->n_received : l->n_sent)) {
    return false;
  }
  const ts_block *b = &(w->arrives ? l->received : l->sent)[w->next++];
  *out = patch_of(&(w->arrives ? l->y : l->x)[b->tensor], b, (w->sums >> b->tensor & 1) != 0);
  if (b->rank != w->rank) {
    pack_patch(w, out);
  } else if (w->arrives) {
    out->packed = own_source(w, b);
  }
  return true;
}
