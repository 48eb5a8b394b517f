/* Collectives over MPI against a sequential reference, bit for bit, on any number of ranks.  `test_comm JOB` is
 * one of the jobs of comm_jobs.sh. */
#include "base/log.h"
#include "base/memory.h"
#include "comm/comm_mpi.h"
#include "regression/exchange_cases.h"
#include "regression/row_cases.h"
#include "regression/tap.h"
#include "regression/tap_mpi.h"
#include "run/stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

typedef struct buffers {
  ts_transfer transfer[MOST_TRANSFERS];
  int64_t shard[MOST_TRANSFERS];
  void *x[MOST_TRANSFERS], *y[MOST_TRANSFERS];
  int64_t *cuts[MOST_TRANSFERS];
} buffers;

static void prepare(buffers *b, const test_case *c, const ts_comm *comm) {
  for (int t = 0; t < c->n; ++t) {
    int64_t count = c->count / (t + 1);
    b->cuts[t] = ts_calloc((size_t) comm->size + 1, sizeof **b->cuts);
    cut(b->cuts[t], (c->cuts + t) % N_CUTS, count, comm->size);
    count = b->cuts[t][comm->size];
    b->shard[t] = b->cuts[t][comm->rank + 1] - b->cuts[t][comm->rank];
    b->x[t] = ts_calloc((size_t) count, ts_dtype_size(c->x));
    b->y[t] = ts_calloc((size_t) b->shard[t], ts_dtype_size(c->y)); /* exactly: the sanitizer sees a byte too many */
    for (int64_t i = 0; i < count; ++i) {
      store(b->x[t], c->x, i, value(c, comm->rank, t, i));
    }
    for (int64_t i = 0; i < b->shard[t]; ++i) {
      store(b->y[t], c->y, i, before_value(c, i));
    }
    b->transfer[t] = (ts_transfer){.x = b->x[t], .y = b->y[t], .cuts = b->cuts[t], .divisor = c->divisor};
  }
}

static void release(buffers *b, const test_case *c) {
  for (int t = 0; t < c->n; ++t) {
    ts_free(b->cuts[t]);
    ts_free(b->x[t]);
    ts_free(b->y[t]);
  }
}

/* Column windows: [0, w), [w, 2 w), ..., the last one open-ended; every element must be written exactly once. */
static void reduce_windows(ts_comm *comm, buffers *b, const test_case *c, void *workspace, size_t bytes) {
  for (int w = 0; w < c->windows; ++w) {
    for (int t = 0; t < c->n; ++t) {
      int64_t width = b->cuts[t][comm->size] / (comm->size * c->windows) + 1;
      b->transfer[t].begin = w * width;
      b->transfer[t].end = w + 1 < c->windows ? (w + 1) * width : INT64_MAX / 2;
    }
    comm->ops->reduce_scatter(comm, b->transfer, c->n, c->x, c->wire, c->y, c->beta, workspace, bytes);
  }
}

static bool reduce_scatter_is_right(ts_comm *comm, const test_case *c) {
  buffers b;
  prepare(&b, c, comm);
  size_t bytes = c->workspace > 0 ? c->workspace : ts_comm_workspace(comm->size, c->count * c->n, c->wire);
  void *workspace = ts_malloc(bytes);
  reduce_windows(comm, &b, c, workspace, bytes);
  int64_t wrong = 0;
  for (int t = 0; t < c->n; ++t) {
    for (int64_t i = 0; i < b.shard[t]; ++i) {
      float expected = reference(c, comm->size, t, b.cuts[t][comm->rank] + i, before_value(c, i));
      wrong += !same_bits(load(b.y[t], c->y, i), expected);
    }
  }
  ts_free(workspace);
  release(&b, c);
  return wrong == 0;
}

/* Of what is added, and of what travels. */
enum { N_TYPES = 3 };
static const ts_dtype types[N_TYPES] = {TS_F32, TS_BF16, TS_F16};

static void test_dtypes(ts_comm *comm) {
  for (int d = 0; d < N_TYPES * N_TYPES * N_TYPES; ++d) {
    bool right = true;
    test_case c = {.x = types[d % N_TYPES],
                   .wire = types[d / N_TYPES % N_TYPES],
                   .y = types[d / (N_TYPES * N_TYPES)],
                   .windows = 1};
    for (int cuts = 0; cuts < N_CUTS; ++cuts) {
      for (int beta = -1; beta < 3; ++beta) {
        for (int64_t count = 0; count <= 5000; count = 6 * count + 7) { /* 0, 7, 49, 301, 1813 */
          c.cuts = cuts;
          c.beta = beta < 0 ? NULL : &betas[beta];
          c.count = count;
          c.n = 1 + (int) (count % 3);
          right = reduce_scatter_is_right(comm, &c) && right;
        }
      }
    }
    tap_ok_all(MPI_COMM_WORLD, right, "reduce_scatter of %s over %s into %s: all cuts, betas, small sizes",
               ts_dtype_name(c.x), ts_dtype_name(c.wire), ts_dtype_name(c.y));
  }
}

static void test_exact(ts_comm *comm) {
  test_case c = {.x = TS_F32, .wire = TS_F32, .y = TS_F32, .windows = 1, .n = 2, .count = 10000, .integers = true};
  tap_ok_all(MPI_COMM_WORLD, reduce_scatter_is_right(comm, &c), "reduce_scatter of small integers is exact");
}

/* What is beyond 65504 is infinite on an fp16 wire and in an fp16 result; sums of what is not are fp32. */
static void test_range(ts_comm *comm) {
  bool right = true;
  for (int i = 0; i < BEYOND_CASES; ++i) {
    test_case c = beyond_fp16(i);
    right = reduce_scatter_is_right(comm, &c) && right;
  }
  tap_ok_all(MPI_COMM_WORLD, right, "reduce_scatter beyond the range of fp16");
}

/* Prescaled: sums that would be infinite are not, whatever the types are. */
static void test_divisor(ts_comm *comm) {
  static const float divisors[] = {3, 4, 0.1f};
  bool right = true;
  for (int i = 0; i < 3 * N_TYPES * N_TYPES; ++i) {
    test_case c = {.x = types[i / 3 % N_TYPES],
                   .wire = TS_F16,
                   .y = types[i / 9],
                   .windows = 1,
                   .n = 3,
                   .cuts = i % N_CUTS,
                   .count = 5003,
                   .beta = i % 2 == 0 ? NULL : &betas[2],
                   .scale = i % 3 == 1 ? 65000 : 1,
                   .divisor = divisors[i % 3]};
    right = reduce_scatter_is_right(comm, &c) && right;
  }
  tap_ok_all(MPI_COMM_WORLD, right, "reduce_scatter of what is divided on the wire, and multiplied behind the sum");
}

/* The same reduction in pieces of all kinds; 800,000 elements are 533 KiB and more per message on 3 ranks and fewer. */
static void test_sizes(ts_comm *comm) {
  static const size_t workspaces[] = {0, 4096, 100000, 1000003, 40000000};
  size_t least = ts_comm_least_workspace(comm->size);
  for (int cuts = 0; cuts < N_CUTS; ++cuts) {
    bool right = true;
    for (int w = 0; w < 5; ++w) {
      for (int n = 1; n <= MOST_TRANSFERS; n += 3) {
        test_case c = {.x = TS_F32,
                       .wire = types[w % N_TYPES],
                       .y = TS_F32,
                       .cuts = cuts,
                       .n = n,
                       .count = 800000 / comm->size,
                       .workspace = workspaces[w],
                       .windows = 1 + 2 * (w % 3)};
        right = reduce_scatter_is_right(comm, &c) && right;
      }
    }
    tap_ok_all(MPI_COMM_WORLD, right, "reduce_scatter, first cut %s: workspaces, transfers, windows", cut_names[cuts]);
  }
  test_case c = {.x = TS_F32,
                 .wire = TS_F32,
                 .y = TS_F32,
                 .n = 3,
                 .count = 20000,
                 .workspace = least > 0 ? least : 1,
                 .windows = 20};
  tap_ok_all(MPI_COMM_WORLD, reduce_scatter_is_right(comm, &c), "reduce_scatter with the least workspace, 20 windows");
}

/* What is planned for a reduction of any size is enough to begin it. */
static void test_planned_workspace(void) {
  int wrong = 0;
  for (int size = 2; size <= 512; ++size) {
    for (int64_t columns = 0; columns <= 200; ++columns) {
      wrong += ts_comm_workspace(size, columns, TS_BF16) < ts_comm_least_workspace(size);
    }
    wrong += ts_comm_workspace(size, INT64_MAX, TS_F32) < ts_comm_least_workspace(size);
  }
  tap_ok_all(MPI_COMM_WORLD, wrong == 0, "workspaces of up to 512 ranks and 200 columns suffice, %d do not", wrong);
}

static void test_in_place(ts_comm *comm) {
  test_case c = {.x = TS_F32, .wire = TS_F32, .y = TS_F32, .n = 1, .count = 400000, .windows = 1};
  buffers b;
  prepare(&b, &c, comm);
  size_t bytes = ts_comm_workspace(comm->size, c.count, c.wire);
  void *workspace = ts_malloc(bytes);
  float *x = b.x[0];
  int64_t first = b.cuts[0][comm->rank], wrong = 0;
  b.transfer[0].y = x + first;
  reduce_windows(comm, &b, &c, workspace, bytes);
  for (int64_t i = 0; i < c.count; ++i) {
    bool mine = i >= first && i < first + b.shard[0];
    wrong += !same_bits(x[i], mine ? reference_sum(&c, comm->size, 0, i) : value(&c, comm->rank, 0, i));
  }
  tap_ok_all(MPI_COMM_WORLD, wrong == 0, "reduce_scatter onto this rank's place in x; the rest of x is kept");
  ts_free(workspace);
  release(&b, &c);
}

/* ---- all_gather ---- */

/* Columns [begin, end) of each shard of up to four transfers of `size`-byte elements. */
static bool all_gather_is_right(ts_comm *comm, ts_dtype dtype, int cuts_kind, int n, int64_t count, int64_t begin,
                                int64_t end, bool in_place) {
  int64_t size = (int64_t) ts_dtype_size(dtype), wrong = 0;
  ts_transfer transfer[MOST_TRANSFERS];
  int64_t *cuts[MOST_TRANSFERS];
  for (int t = 0; t < n; ++t) {
    cuts[t] = ts_calloc((size_t) comm->size + 1, sizeof **cuts);
    cut(cuts[t], (cuts_kind + t) % N_CUTS, count / (t + 1), comm->size);
    int64_t first = cuts[t][comm->rank], shard = cuts[t][comm->rank + 1] - first;
    unsigned char *y = ts_calloc((size_t) cuts[t][comm->size], (size_t) size);
    unsigned char *x = in_place ? y + first * size : ts_calloc((size_t) shard, (size_t) size);
    for (int64_t i = 0; i < shard * size; ++i) {
      x[i] = gathered_byte(comm->rank, t, i);
    }
    transfer[t] = (ts_transfer){.x = x, .y = y, .cuts = cuts[t], .begin = begin, .end = end};
  }
  comm->ops->all_gather(comm, transfer, n, dtype);
  for (int t = 0; t < n; ++t) {
    const unsigned char *y = transfer[t].y;
    for (int owner = 0; owner < comm->size; ++owner) {
      for (int64_t i = 0; i < (cuts[t][owner + 1] - cuts[t][owner]) * size; ++i) {
        bool written = (i >= begin * size && i < end * size) || (in_place && owner == comm->rank);
        wrong += y[cuts[t][owner] * size + i] != (written ? gathered_byte(owner, t, i) : 0);
      }
    }
    if (!in_place) {
      ts_free((void *) transfer[t].x);
    }
    ts_free(transfer[t].y);
    ts_free(cuts[t]);
  }
  return wrong == 0;
}

static void test_all_gather(ts_comm *comm) {
  static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F64, TS_I64, TS_U8, TS_F16};
  for (int in_place = 0; in_place <= 1; ++in_place) {
    bool right = true;
    for (int cuts = 0; cuts < N_CUTS; ++cuts) {
      for (int64_t count = 0; count <= 2000; count = 6 * count + 7) {
        for (int d = 0; d < 6; ++d) {
          right = all_gather_is_right(comm, dtypes[d], cuts, 1 + d % 4, count, 0, count, in_place) && right;
          right = all_gather_is_right(comm, dtypes[d], cuts, 1 + d % 4, count, count / 9, count / 3, in_place) && right;
        }
      }
      right = all_gather_is_right(comm, TS_F32, cuts, 3, 400000, 0, 400000, in_place) && right;
    }
    tap_ok_all(MPI_COMM_WORLD, right, "all_gather %s: all cuts, dtypes, windows, sizes to 1.6 MB",
               in_place ? "in place" : "of shards elsewhere");
  }
  int64_t limit = ts_comm_switch.message_limit;
  ts_comm_switch.message_limit = 1000;
  tap_ok_all(MPI_COMM_WORLD, all_gather_is_right(comm, TS_I64, UNEVEN, 3, 30000, 5, 20000, true),
             "all_gather longer than a message may be, in many more messages than are in flight");
  ts_comm_switch.message_limit = limit;
}

/* ---- all_reduce and the rest ---- */

static bool all_reduce_is_right(ts_comm *comm, ts_dtype dtype, ts_dtype wire, int64_t count, bool in_place) {
  test_case c = {.x = dtype, .wire = wire, .y = dtype};
  size_t bytes = ts_comm_workspace(comm->size, count, wire), size = ts_dtype_size(dtype);
  void *workspace = ts_malloc(bytes), *x = ts_calloc((size_t) count, size);
  void *y = in_place ? x : ts_calloc((size_t) count, size);
  for (int64_t i = 0; i < count; ++i) {
    store(x, dtype, i, value(&c, comm->rank, 0, i));
  }
  comm->ops->all_reduce(comm, x, y, count, dtype, wire, workspace, bytes);
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    wrong += !same_bits(load(y, dtype, i), reference(&c, comm->size, 0, i, 0));
  }
  ts_free(workspace);
  ts_free(x);
  if (!in_place) {
    ts_free(y);
  }
  return wrong == 0;
}

static void test_all_reduce(ts_comm *comm) {
  for (int d = 0; d < N_TYPES * N_TYPES; ++d) {
    bool right = true;
    ts_dtype dtype = types[d % N_TYPES], wire = types[d / N_TYPES];
    for (int64_t count = 0; count <= 500000; count = 9 * count + 1) { /* 0, 1, 10, 91, 820, ..., 597871 is past */
      right = all_reduce_is_right(comm, dtype, wire, count, false) && right;
      right = all_reduce_is_right(comm, dtype, wire, count, true) && right;
    }
    tap_ok_all(MPI_COMM_WORLD, right, "all_reduce of %s over %s, in place and not: the reference on every rank",
               ts_dtype_name(dtype), ts_dtype_name(wire));
  }
}

static void test_broadcast(ts_comm *comm) {
  unsigned char data[5000];
  bool right = true;
  for (int root = 0; root < comm->size; ++root) {
    for (size_t bytes = 0; bytes <= sizeof data; bytes = 8 * bytes + 5) {
      for (size_t i = 0; i < bytes; ++i) {
        data[i] = comm->rank == root ? gathered_byte(root, 1, (int64_t) i) : 0;
      }
      comm->ops->broadcast(comm, data, bytes, root);
      for (size_t i = 0; i < bytes; ++i) {
        right = right && data[i] == gathered_byte(root, 1, (int64_t) i);
      }
    }
    comm->ops->barrier(comm);
  }
  tap_ok_all(MPI_COMM_WORLD, right, "broadcast from every root");
}

/* From every root: a text, one of no characters, none; what the others hold is not read. */
static void test_share_text(ts_world *world) {
  char many[5000] = {0};
  memset(many, 'x', sizeof many - 1);
  const char *const texts[] = {"rank by rank", many, "", NULL};
  bool right = true;
  for (int root = 0; root < ts_world_size(world); ++root) {
    for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) {
      const char *want = texts[i];
      char *got = ts_world_share_text(world, ts_world_rank(world) == root ? want : "other", root);
      right = right && (want == NULL ? got == NULL : got != NULL && got != want && strcmp(got, want) == 0);
      ts_free(got);
    }
  }
  tap_ok_all(MPI_COMM_WORLD, right, "a text of every root, empty and none too, is everybody's own");
}

/* ---- exchange ---- */

/* Memory of exactly as many bytes as this rank needs; what is not written shows. */
static void *exchange_memory(exchange_case *c, int rank, size_t *bytes) {
  for (int i = 0; i < c->n; ++i) {
    c->x[rank][i].data = ts_malloc(exchange_bytes(&c->x[rank][i]));
    exchange_fill(c, rank, i, c->x[rank][i].data);
    c->y[rank][i].data = ts_malloc(exchange_bytes(&c->y[rank][i]));
    memset(c->y[rank][i].data, 0x5a, exchange_bytes(&c->y[rank][i]));
  }
  const ts_exchange_lists lists = exchange_lists(c, rank);
  *bytes = ts_comm_exchange_workspace(&lists, rank);
  return ts_malloc(*bytes);
}

static void exchange_free(exchange_case *c, int rank, void *workspace) {
  for (int i = 0; i < c->n; ++i) {
    ts_free(c->x[rank][i].data);
    ts_free(c->y[rank][i].data);
  }
  ts_free(workspace);
}

/* Twice, so that nothing is left of the first. */
static bool exchange_is_right(ts_comm *comm, exchange_case *c) {
  size_t bytes;
  int rank = comm->rank;
  void *workspace = exchange_memory(c, rank, &bytes);
  const ts_exchange_lists lists = exchange_lists(c, rank);
  bool right = true;
  for (int times = 0; times < 2; ++times) {
    comm->ops->exchange(comm, &lists, workspace, bytes);
  }
  for (int i = 0; i < c->n; ++i) {
    void *expected = ts_malloc(exchange_bytes(&c->y[rank][i]));
    memset(expected, 0x5a, exchange_bytes(&c->y[rank][i]));
    exchange_expect(c, rank, i, expected);
    right = right && memcmp(expected, c->y[rank][i].data, exchange_bytes(&c->y[rank][i])) == 0;
    ts_free(expected);
  }
  exchange_free(c, rank, workspace);
  return right;
}

/* ---- rows of experts ---- */

/* There, or home; with room for \a spare rows more, which stay what they are. */
static bool rows_are_right(ts_comm *comm, const row_case *c, bool home, int64_t spare) {
  int rank = comm->rank;
  int64_t from = row_count(c, rank, home), to = row_count(c, rank, !home);
  uint32_t *x = ts_malloc((size_t) (from + spare) * row_bytes(c) + 1);
  size_t bytes = (size_t) (to + spare) * row_bytes(c);
  char *y = ts_malloc(bytes + 1), *expected = ts_malloc(bytes + 1);
  row_fill(c, rank, home, x);
  memset(y, 0x5a, bytes);
  memset(expected, 0x5a, bytes);
  row_fill(c, rank, !home, (uint32_t *) expected);
  comm->ops->exchange_rows(comm, &(ts_row_exchange){.x = x,
                                                    .y = y,
                                                    .firsts = c->firsts,
                                                    .experts = c->cuts,
                                                    .row_bytes = (int64_t) row_bytes(c),
                                                    .x_rows = from + spare,
                                                    .y_rows = to + spare,
                                                    .home = home});
  bool right = memcmp(y, expected, bytes) == 0;
  ts_free(x);
  ts_free(y);
  ts_free(expected);
  return right;
}

static void test_rows(ts_comm *comm) {
  int64_t limit = ts_comm_switch.message_limit;
  for (int cut = 0; cut <= 1; ++cut) {
    bool right = true;
    ts_comm_switch.message_limit = cut ? 100 : limit;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      row_case c = row_case_of(comm->size, seed);
      right = rows_are_right(comm, &c, false, (int64_t) seed % 3) && right;
      right = rows_are_right(comm, &c, true, (int64_t) seed % 2) && right;
    }
    tap_ok_all(MPI_COMM_WORLD, right, "rows to their experts and home, as many as are counted%s",
               cut ? ", in messages of 100 bytes" : "");
  }
  ts_comm_switch.message_limit = limit;
}

static void test_exchange(ts_comm *comm) {
  int64_t limit = ts_comm_switch.message_limit;
  exchange_case *c = ts_malloc(sizeof *c);
  for (int cut = 0; cut <= 1; ++cut) {
    bool right = true;
    ts_comm_switch.message_limit = cut ? 100 : limit;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      exchange_random(c, comm->size, seed, seed % 4 == 0);
      right = exchange_is_right(comm, c) && right;
    }
    for (int d = 0; d < N_TYPES; ++d) {
      exchange_heads(c, comm->size, types[d]);
      right = exchange_is_right(comm, c) && right;
      exchange_twice(c, comm->size, types[d]);
      right = exchange_is_right(comm, c) && right;
    }
    tap_ok_all(MPI_COMM_WORLD, right,
               "exchange of blocks anywhere, heads, halves that come twice%s: moved and added to the bit",
               cut ? ", in messages of 100 bytes" : "");
  }
  ts_comm_switch.message_limit = limit;
  ts_free(c);
}

/* Blocks of megabytes, in columns longer than a sum's: two ways of travelling, and a sum. */
static void test_long_exchange(ts_comm *comm) {
  exchange_case *c = ts_calloc(1, sizeof *c);
  int64_t rows = 60, columns = 5000;
  c->size = comm->size;
  c->n = 2;
  for (int i = 0; i < 2; ++i) {
    for (int a = 0; a < comm->size; ++a) {
      c->x[a][i] = (ts_exchange_tensor){NULL, i == 0 ? TS_F32 : TS_BF16, 1, rows, columns * comm->size};
      c->y[a][i] = (ts_exchange_tensor){NULL, i == 0 ? TS_F32 : TS_BF16, 1, i == 0 ? rows * comm->size : rows, columns};
    }
  }
  for (int a = 0; a < comm->size; ++a) {
    for (int b = 0; b < comm->size; ++b) {
      for (int i = 0; i < 2; ++i) {
        exchange_add(c, a, b, i,
                     (ts_interval[]){{0, rows}, {b * columns, columns}, {i == 0 ? a * rows : 0, rows}, {0, columns}});
      }
    }
  }
  tap_ok_all(MPI_COMM_WORLD, exchange_is_right(comm, c), "exchange of %.1f MB a rank, of which a third is added",
             1e-6 * (double) exchange_bytes(&c->y[0][0]) * 1.5);
  ts_free(c);
}

/* Columns of rows that lie 2 GB apart, there and back, of memory of which hardly a page is touched: offsets beyond 32
 * bits.  Byte e of what rank a has for rank b. */
static unsigned char far_byte(int a, int b, int64_t e) {
  return (unsigned char) (31 * a + 7 * b + 3 * e + 1);
}

enum { FAR_ROWS = 3, FAR_WIDTH = 4, FAR_BYTES = 2 * (FAR_ROWS - 1) * FAR_WIDTH };

/* Where it lies: in the last columns of all rows but the first. */
static int64_t far_at(const ts_exchange_tensor *far, int b, int64_t e) {
  int64_t row = e / FAR_WIDTH % (FAR_ROWS - 1), batch = e / FAR_WIDTH / (FAR_ROWS - 1);
  return (batch * FAR_ROWS + 1 + row) * far->columns + far->columns - (b + 1) * FAR_WIDTH + e % FAR_WIDTH;
}

static bool exchange_far(ts_comm *comm, unsigned char *memory, const ts_exchange_tensor *shape) {
  int size = comm->size, rank = comm->rank;
  ts_block out[MOST_RANKS], in[MOST_RANKS];
  unsigned char near[FAR_BYTES * MOST_RANKS] = {0}, workspace[65536];
  ts_exchange_tensor far = *shape, packed = {near, TS_U8, far.batches, FAR_ROWS - 1, FAR_WIDTH * size};
  far.data = memory;
  for (int r = 0; r < size; ++r) {
    out[r] = (ts_block){r, 0, {1, FAR_ROWS - 1}, {far.columns - (r + 1) * FAR_WIDTH, FAR_WIDTH}};
    in[r] = (ts_block){r, 0, {0, FAR_ROWS - 1}, {r * FAR_WIDTH, FAR_WIDTH}};
    for (int64_t e = 0; e < FAR_BYTES; ++e) {
      memory[far_at(&far, r, e)] = far_byte(rank, r, e);
    }
  }
  const ts_exchange_lists there = {1, &far, &packed, out, in, size, size},
                          back = {1, &packed, &far, in, out, size, size};
  TS_CHECK(ts_comm_exchange_workspace(&there, rank) <= sizeof workspace, "a workspace of a few kilobytes");
  comm->ops->exchange(comm, &there, workspace, sizeof workspace);
  bool right = true;
  for (int64_t i = 0; i < FAR_BYTES * size; ++i) {
    int64_t from = i / FAR_WIDTH % size, e = i / FAR_WIDTH / size * FAR_WIDTH + i % FAR_WIDTH;
    right = right && near[i] == far_byte((int) from, rank, e);
    near[i] ^= 0xff;
  }
  comm->ops->exchange(comm, &back, workspace, sizeof workspace);
  for (int r = 0; r < size; ++r) {
    for (int64_t e = 0; e < FAR_BYTES; ++e) {
      right = right && memory[far_at(&far, r, e)] == (far_byte(rank, r, e) ^ 0xff);
    }
  }
  return right;
}

static void test_far_exchange(ts_world *world) {
  const ts_exchange_tensor far = {NULL, TS_U8, 2, FAR_ROWS, INT64_C(1) << 31};
  size_t bytes = exchange_bytes(&far);
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool mapped = ts_world_agree(world, memory != MAP_FAILED ? TS_OK : TS_BAD_INPUT, NULL) == TS_OK;
  if (mapped) {
    tap_ok_all(MPI_COMM_WORLD, exchange_far(ts_world_all(world), memory, &far), "exchange of rows 2 GB apart");
  } else {
    tap_skip_all(MPI_COMM_WORLD, "exchange of rows 2 GB apart: no room for addresses");
  }
  if (memory != MAP_FAILED) {
    munmap(memory, bytes);
  }
}

static double dot(const ts_exchange_tensor *a, const ts_exchange_tensor *b) {
  double sum = 0;
  for (int64_t i = 0; i < exchange_count(a); ++i) {
    sum += (double) load(a->data, a->dtype, i) * (double) load(b->data, b->dtype, i);
  }
  return sum;
}

/* Over all ranks <exchange x, w> = <x, exchange back w>, for what the gradient rule does with the lists. */
static void test_adjoint(ts_comm *comm) {
  exchange_case *c = ts_malloc(2 * sizeof *c), *back = c + 1;
  int rank = comm->rank;
  size_t bytes, back_bytes;
  exchange_heads(c, comm->size, TS_F32);
  exchange_back(back, c);
  void *workspace = exchange_memory(c, rank, &bytes), *back_workspace = exchange_memory(back, rank, &back_bytes);
  const ts_exchange_lists lists = exchange_lists(c, rank), back_lists = exchange_lists(back, rank);
  comm->ops->exchange(comm, &lists, workspace, bytes);
  comm->ops->exchange(comm, &back_lists, back_workspace, back_bytes);
  double mine[2] = {0}, all[2];
  for (int i = 0; i < c->n; ++i) {
    mine[0] += dot(&c->y[rank][i], &back->x[rank][i]);
    mine[1] += dot(&c->x[rank][i], &back->y[rank][i]);
  }
  MPI_Allreduce(mine, all, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  tap_ok_all(MPI_COMM_WORLD, all[0] == all[1] && all[0] != 0, "exchange back is the transposed one: %g and %g", all[0],
             all[1]);
  exchange_free(back, rank, back_workspace);
  exchange_free(c, rank, workspace);
  ts_free(c);
}

/* Every grid of the world: the communicators over each set of axes have the mesh's groups, one per group. */
static void test_groups(ts_world *world) {
  int ranks = ts_world_size(world), me = ts_world_rank(world);
  bool right = true;
  for (int dp = 1; dp <= ranks; ++dp) {
    ts_mesh mesh;
    if (ranks % dp != 0 || ts_mesh_init(&mesh, (int[]){1, dp, 1, 1, 0 + ranks / dp}, ranks, me, NULL) != TS_OK) {
      continue;
    }
    for (unsigned axes = 0; axes < TS_AXES(TS_N_AXES); ++axes) {
      ts_comm *comm = ts_world_comm(world, &mesh, axes);
      right = right && comm->rank == ts_mesh_group_rank(&mesh, axes) && comm->size == ts_mesh_group_size(&mesh, axes) &&
              comm == ts_world_comm(world, &mesh, axes);
      int64_t sum = 0, cuts[65], seen[64];
      for (int i = 0; i <= comm->size; ++i) {
        cuts[i] = i;
      }
      int64_t mine = me;
      comm->ops->all_gather(comm, &(ts_transfer){.x = &mine, .y = seen, .cuts = cuts, .end = 1}, 1, TS_I64);
      for (int i = 0; i < comm->size; ++i) {
        sum += seen[i] != ts_mesh_group_member(&mesh, axes, i);
      }
      right = right && sum == 0;
      test_case c = {.x = TS_F32, .wire = TS_BF16, .y = TS_F32, .n = 2, .count = 3000, .windows = 2};
      right = reduce_scatter_is_right(comm, &c) && right;
    }
    right = right && ts_world_comm(world, &mesh, TS_AXES_DENSE) == ts_world_comm(world, &mesh, TS_AXES(TS_AXIS_DP));
    right = right && ts_world_comm(world, &mesh, TS_AXES(TS_N_AXES) - 1) == ts_world_all(world);
  }
  tap_ok_all(MPI_COMM_WORLD, right, "communicators over all axes of all grids of dp x tp");
  tap_ok_all(MPI_COMM_WORLD, ts_world_local_size(world) == ranks && ts_world_local_rank(world) == me,
             "all ranks are on this node");
}

static void test_agree(ts_world *world) {
  int size = ts_world_size(world), me = ts_world_rank(world);
  ts_error err = {0};
  bool right = ts_world_agree(world, TS_OK, &err) == TS_OK && err.count == 0;
  right = ts_world_agree(world, TS_OK, NULL) == TS_OK && right;
  for (int bad = 0; bad < size; ++bad) { /* ranks bad, bad + 2, ... complain */
    bool mine = me >= bad && (me - bad) % 2 == 0;
    char expected[64];
    snprintf(expected, sizeof expected, "rank %d: 100%%\nand more", mine ? me : bad);
    if (mine) {
      ts_error_add(&err, "rank %d: 100%%", me);
      ts_error_add(&err, "and more");
    }
    right = ts_world_agree(world, mine ? TS_BAD_INPUT : TS_OK, &err) == TS_BAD_INPUT && right;
    right = err.count == 2 && strcmp(err.text, expected) == 0 && right;
    ts_error_clear(&err);
  }
  right = ts_world_agree(world, me == 0 ? TS_BAD_INPUT : TS_OK, NULL) == TS_BAD_INPUT && right;
  tap_ok_all(MPI_COMM_WORLD, right, "agreement on a status, with the messages of the lowest rank");
}

static double processor_seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (double) time.tv_sec + 1e-9 * (double) time.tv_nsec;
}

/* The limit on processor time is a quarter of the delay: far above a sleep, far below a poll. */
static void test_delay(ts_comm *comm) {
  comm->ops->barrier(comm);
  ts_comm_set_test_delay(0.2);
  double start = ts_seconds(), used = processor_seconds();
  bool right = all_reduce_is_right(comm, TS_F32, TS_F32, 100, true);
  double seconds = ts_seconds() - start;
  used = processor_seconds() - used;
  ts_comm_set_test_delay(0);
  tap_ok_all(MPI_COMM_WORLD, right && seconds >= 0.2 && used < seconds / 4,
             "the test delay takes time but no processor");
}

/* Rank 0 comes late by 0.3 s; the others wait without using their core for more than a quarter of the time.  On a
 * machine that does much else a wake costs more: the best of ten. */
static void test_patience(ts_comm *comm) {
  double least = 1;
  for (int i = 0; i < 10; ++i) {
    comm->ops->barrier(comm);
    double start = ts_seconds(), used = processor_seconds();
    if (comm->rank == 0) {
      nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    }
    comm->ops->barrier(comm);
    used = processor_seconds() - used;
    least = fmin(least, used / (ts_seconds() - start));
  }
  tap_ok_all(MPI_COMM_WORLD, least < 0.25, "waiting sleeps");
}

static void gather_on_stream(void *argument) {
  ts_comm *comm = argument;
  int64_t cuts[65], data[64] = {0};
  for (int i = 0; i <= comm->size; ++i) {
    cuts[i] = i;
  }
  comm->ops->all_gather(comm, &(ts_transfer){.x = &data[comm->rank], .y = data, .cuts = cuts, .end = 1}, 1, TS_I64);
}

/* Five collectives held back by 0.1 s each, each issued before 0.15 s of computation (that sleeps, so a busy machine
 * does not disturb it) and needed after it: of the 0.5 s less than a fifth may show. */
static void test_overlap(ts_comm *comm) {
  ts_stream *stream = ts_stream_create(true);
  comm->ops->barrier(comm);
  ts_comm_set_test_delay(0.1);
  double exposed = 0;
  for (int i = 0; i < 5; ++i) {
    uint64_t ticket = ts_stream_issue(stream, gather_on_stream, comm);
    nanosleep(&(struct timespec){.tv_nsec = 150000000}, NULL);
    exposed += ts_stream_wait(stream, ticket);
  }
  ts_comm_set_test_delay(0);
  double busy = ts_stream_busy_seconds(stream);
  tap_ok_all(MPI_COMM_WORLD, exposed < 0.1 && busy >= 0.5, "collectives on a stream are hidden");
  ts_stream_destroy(&stream);
}

/* Neighbours in rank are neighbours on a node: local ranks count through within every node. */
static int check_nodes(ts_world *world) {
  int local = ts_world_local_rank(world), nodes = ts_world_size(world) / ts_world_local_size(world);
  bool right = ts_world_rank(world) % ts_world_local_size(world) == local;
  if (ts_world_rank(world) == 0) {
    printf("%d ranks, nodes: %d\n", ts_world_size(world), nodes);
  }
  right = ts_world_agree(world, right ? TS_OK : TS_BAD_INPUT, NULL) == TS_OK;
  right = all_reduce_is_right(ts_world_all(world), TS_F32, TS_F32, 1000, true) && right;
  ts_world_destroy(&world);
  return right ? 0 : 1;
}

/* Everybody sends its row of floats to everybody; rank 1 does otherwise. */
static void fail_exchange(ts_comm *all, const char *how) {
  bool odd = all->rank == 1;
  float x[64] = {0}, y[64];
  ts_block sent[16], received[16];
  ts_exchange_tensor from[2] = {{x, TS_F32, 1, 1, 4}, {x, TS_F32, 0, 1, 1}};
  ts_exchange_tensor to[2] = {{y, TS_F32, 1, all->size, 4}, {y, TS_F32, 0, 1, 1}};
  for (int i = 0; i < all->size; ++i) {
    sent[i] = (ts_block){i, 0, {0, 1}, {0, odd && strcmp(how, "blocks") == 0 && i != all->rank ? 3 : 4}};
    received[i] = (ts_block){i, 0, {i, 1}, {0, 4}};
  }
  ts_exchange_lists lists = {
      odd && strcmp(how, "tensors") == 0 ? 2 : 1, from, to, sent, received, all->size, all->size};
  char workspace[65536];
  ts_comm_set_agreement(true);
  all->ops->exchange(all, &lists, workspace, sizeof workspace);
}

/* Two experts of rank 0: more rows come than it has room for; or rank 1 counts others than the rest. */
static void fail_rows(ts_comm *all, const char *how) {
  int32_t x[8] = {0}, y[64], firsts[3 * 16];
  int64_t cuts[17];
  for (int r = 0; r <= all->size; ++r) {
    cuts[r] = r == 0 ? 0 : 2;
  }
  for (int r = 0; r < all->size; ++r) {
    firsts[3 * r] = 0;
    firsts[3 * r + 1] = all->rank == 1 && strcmp(how, "counts") == 0 ? 2 : 1;
    firsts[3 * r + 2] = 4;
  }
  bool few = strcmp(how, "room") == 0 && all->rank == 0;
  ts_comm_set_agreement(true);
  all->ops->exchange_rows(
      all, &(ts_row_exchange){x, y, firsts, cuts, sizeof *x, 4, few ? 4 * all->size - 1 : 4 * all->size, false});
}

static void fail(ts_world *world, const char *how) {
  ts_comm *all = ts_world_all(world);
  int64_t cuts[65], data[64] = {0};
  bool odd = all->rank == 1;
  for (int i = 0; i <= all->size; ++i) {
    cuts[i] = i;
  }
  ts_transfer t = {.x = data, .y = data, .cuts = cuts, .end = 1};
  ts_comm_set_agreement(strcmp(how, "mismatch") == 0);
  if (strcmp(how, "die") == 0) {
    TS_CHECK(!odd, "rank 1 must die");
  } else if (strcmp(how, "mismatch") == 0 && odd) {
    all->ops->reduce_scatter(all, &t, 1, TS_F32, TS_F32, TS_F32, NULL, data, sizeof data);
  } else if (strcmp(how, "size") == 0) {
    all->ops->all_gather(all, &t, 1, odd ? TS_F64 : TS_F32);
  }
  if (strcmp(how, "tensors") == 0 || strcmp(how, "blocks") == 0) {
    fail_exchange(all, how);
  }
  if (strcmp(how, "room") == 0 || strcmp(how, "counts") == 0) {
    fail_rows(all, how);
  }
  all->ops->all_gather(all, &t, 1, TS_F32);
  all->ops->barrier(all);
}

/* Clocks that are hours apart on one machine: what is known of the difference is within the bound that is given. */
static double ahead;

static double wrong_clock(void) {
  return ts_seconds() + ahead;
}

static void test_clocks(ts_world *world) {
  int rank = ts_world_rank(world);
  ts_clock_offset same = ts_world_clock_offset(world, ts_seconds);
  tap_ok_all(MPI_COMM_WORLD, fabs(same.offset) <= same.bound && same.bound < 1 && (rank > 0 || same.bound == 0),
             "clocks: one clock differs from itself by no more than the bound");
  ahead = rank == 0 ? 77777 : 3600.25 * (rank % 2 == 0 ? rank : -rank);
  ts_clock_offset far = ts_world_clock_offset(world, wrong_clock);
  double truth = rank == 0 ? 0 : ahead - 77777;
  tap_ok_all(MPI_COMM_WORLD, fabs(far.offset - truth) <= far.bound + 1e-9 && far.bound < 1,
             "clocks: hours ahead and behind are found, to half a round trip");
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  if (argc > 1 && strcmp(argv[1], "nodes") == 0) {
    return check_nodes(world);
  }
  if (argc > 1) {
    fail(world, argv[1]);
    return 0; /* comm_jobs.sh takes this for a failure that went unnoticed */
  }
  ts_comm *all = ts_world_all(world);
  test_dtypes(all);
  test_exact(all);
  test_divisor(all);
  test_range(all);
  test_sizes(all);
  test_planned_workspace();
  test_in_place(all);
  test_all_gather(all);
  test_all_reduce(all);
  test_broadcast(all);
  test_share_text(world);
  test_clocks(world);
  test_exchange(all);
  test_rows(all);
  test_long_exchange(all);
  test_far_exchange(world);
  test_adjoint(all);
  test_groups(world);
  test_agree(world);
  test_delay(all);
  test_patience(all);
  test_overlap(all);
  int status = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return ts_memory_live() == 0 ? status : 1;
}
