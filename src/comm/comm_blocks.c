/* exchange: a block is a message, or several where it is long; from where it lies and to where it belongs if it is one
 * run of memory there, else packed before it leaves and unpacked when it is there.  So packing one block runs beside
 * the message of the one before.  Sums wait until everything has come.
 * Cost: each rank sends what its list says, and copies once what leaves in pieces of rows, and what arrives so. */
#include "comm/comm_mpi.h"
#include "comm/comm_patch.h"

#include "base/status.h"

enum { BLOCK = 2048 };

/* A place in a list of messages: the blocks to rank + 1, rank + 2, ..., or from rank - 1, rank - 2, ... */
typedef struct place {
  int step, next, end; /* blocks of this step that are left */
  int64_t done;        /* bytes of the next one */
} place;

typedef struct traffic {
  const ts_comm *comm;
  const ts_exchange_lists *lists;
  ts_patch *sent, *received; /* a patch for each of their blocks, in the workspace */
  place sending, receiving;
  struct {
    const ts_patch *patch;
    int64_t begin, end;
  } coming[TS_SLOTS];
} traffic;

/* Bytes [begin, end) of a block, counted as it is packed. */
static void copy_bytes(const ts_patch *p, ts_slab to, ts_slab from, int64_t begin, int64_t end) {
  while (begin < end) {
    int64_t above = begin / p->width, in_row = begin % p->width;
    int64_t batch = above / p->block->rows.length, row = above % p->block->rows.length;
    int64_t bytes = p->width - in_row < end - begin ? p->width - in_row : end - begin;
    memcpy(to.data + batch * to.batch + row * to.row + in_row, from.data + batch * from.batch + row * from.row + in_row,
           (size_t) bytes);
    begin += bytes;
  }
}

/* Go on to the next block that has bytes left. */
static ts_patch *find_block(const traffic *t, place *p, bool sends) {
  const ts_block *block = sends ? t->lists->sent : t->lists->received;
  ts_patch *table = sends ? t->sent : t->received;
  int rank = t->comm->rank, size = t->comm->size, n = sends ? t->lists->n_sent : t->lists->n_received;
  while (p->step < size) {
    if (p->next < p->end && p->done < table[p->next].bytes) {
      return &table[p->next];
    }
    p->done = 0;
    if (p->next < p->end) {
      ++p->next;
    } else if (++p->step < size) {
      int peer = (rank + (sends ? p->step : size - p->step)) % size;
      p->next = ts_first_block(block, n, peer);
      p->end = ts_first_block(block, n, peer + 1);
    }
  }
  return NULL;
}

static void next_part(place *p, const ts_patch *patch, ts_message *out) {
  int64_t left = patch->bytes - p->done, most = ts_comm_switch.message_limit;
  *out = (ts_message){
      .data = ts_patch_message(patch) + p->done, .bytes = left < most ? left : most, .peer = patch->block->rank};
  p->done += out->bytes;
}

static bool next_block_out(void *list, int slot, ts_message *out) {
  (void) slot;
  traffic *t = list;
  ts_patch *patch = find_block(t, &t->sending, true);
  if (patch == NULL) {
    return false;
  }
  int64_t begin = t->sending.done;
  next_part(&t->sending, patch, out);
  if (patch->packed.data != NULL) {
    copy_bytes(patch, patch->packed, patch->place, begin, t->sending.done);
  }
  return true;
}

static bool next_block_in(void *list, int slot, ts_message *out) {
  traffic *t = list;
  ts_patch *patch = find_block(t, &t->receiving, false);
  if (patch == NULL) {
    return false;
  }
  t->coming[slot].patch = patch;
  t->coming[slot].begin = t->receiving.done;
  next_part(&t->receiving, patch, out);
  t->coming[slot].end = t->receiving.done;
  return true;
}

static void unpack_received(void *list, int slot) {
  traffic *t = list;
  const ts_patch *patch = t->coming[slot].patch;
  if (patch->packed.data != NULL && !patch->sum) {
    copy_bytes(patch, patch->place, patch->packed, t->coming[slot].begin, t->coming[slot].end);
  }
}

static void copy_own_blocks(const traffic *t) {
  int n = t->lists->n_received, end = ts_first_block(t->lists->received, n, t->comm->rank + 1);
  for (int i = ts_first_block(t->lists->received, n, t->comm->rank); i < end; ++i) {
    if (!t->received[i].sum) {
      copy_bytes(&t->received[i], t->received[i].place, t->received[i].packed, 0, t->received[i].bytes);
    }
  }
}

/* ---- sums ---- */

/* Columns [first, first + count) of a row of output `tensor`. */
static void sum_columns(const traffic *t, int tensor, int64_t batch, int64_t row, int64_t first, int64_t count,
                        float *sum) {
  for (int64_t i = 0; i < count; ++i) {
    sum[i] = -0.0f; /* which changes nothing it is added to, +0 and -0 included */
  }
  for (int i = 0; i < t->lists->n_received; ++i) {
    const ts_patch *p = &t->received[i];
    const ts_block *b = p->block;
    int64_t begin = b->columns.begin > first ? b->columns.begin : first;
    int64_t end = b->columns.begin + b->columns.length;
    end = end < first + count ? end : first + count;
    if (b->tensor == tensor && row >= b->rows.begin && row < b->rows.begin + b->rows.length && begin < end) {
      const char *from = p->packed.data + batch * p->packed.batch + (row - b->rows.begin) * p->packed.row +
                         (begin - b->columns.begin) * (int64_t) ts_dtype_size(p->dtype);
      ts_add_to_sum(sum + (begin - first), &(ts_addend){from, p->dtype, 0}, end - begin);
    }
  }
}

static void sum_tensor(const traffic *t, const ts_exchange_tensor *y, int tensor) {
  float sum[BLOCK];
  for (int64_t r = 0; r < y->batches * y->rows; ++r) {
    for (int64_t first = 0; first < y->columns; first += BLOCK) {
      int64_t count = y->columns - first < BLOCK ? y->columns - first : BLOCK;
      sum_columns(t, tensor, r / y->rows, r % y->rows, first, count, sum);
      ts_copy_to_wire((char *) y->data + (size_t) (r * y->columns + first) * ts_dtype_size(y->dtype), y->dtype,
                      &(ts_addend){sum, TS_F32, 0}, count);
    }
  }
}

/* ---- the call ---- */

static ts_patch *fill_table(const ts_exchange_lists *lists, int rank, bool arrives, ts_patch *table, void *workspace) {
  ts_patch_walk w = ts_patch_begin(lists, rank, arrives, workspace);
  for (int i = 0; ts_patch_next(&w, &table[i]); ++i) {
  }
  return table;
}

void ts_comm_mpi_exchange(ts_comm *comm, const ts_exchange_lists *lists, void *workspace, size_t workspace_bytes) {
  TS_CHECK(workspace_bytes >= ts_comm_exchange_workspace(lists, comm->rank),
           "exchange has %zu bytes of workspace, at least %zu needed", workspace_bytes,
           ts_comm_exchange_workspace(lists, comm->rank));
  ts_patch *table = workspace;
  traffic t = {.comm = comm,
               .lists = lists,
               .sent = fill_table(lists, comm->rank, false, table, workspace),
               .received = fill_table(lists, comm->rank, true, table + lists->n_sent, workspace)};
  ts_exchange *exchange = &((ts_comm_mpi *) comm)->exchange;
  ts_exchange_begin(exchange, next_block_in, unpack_received, &t, next_block_out, &t, TS_SLOTS);
  ts_exchange_poll(exchange);
  copy_own_blocks(&t);
  ts_exchange_finish(exchange);
  uint32_t sums = ts_exchange_sums(lists);
  for (int i = 0; i < lists->n; ++i) {
    if ((sums >> i & 1) != 0) {
      sum_tensor(&t, &lists->y[i], i);
    }
  }
}
