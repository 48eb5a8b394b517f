/* Communicators of devices: what test_comm.c asks of the ones over MPI, on device memory, queued and captured.
 * `test_comm_device JOB` is one of the jobs of comm_device_jobs.sh. */
#include "backend/backend.h"
#include "base/memory.h"
#include "comm/comm_device.h"
#include "comm/comm_nccl.h"
#include "regression/exchange_cases.h"
#include "regression/row_cases.h"
#include "regression/tap.h"
#include "regression/tap_mpi.h"

#include <stdio.h>
#include <stdlib.h>

static const ts_backend *backend;
static ts_device *device;
static void *event;

/* ---- memory ---- */

static void finish(ts_queue queue) {
  device->ops->record(device, event, queue);
  device->ops->finish(device, event);
}

/* Exactly so many bytes: the stand-in and compute-sanitizer see one too many. */
static void *put(const void *host, size_t bytes) {
  void *memory = backend->allocate(bytes);
  device->ops->copy(device, memory, host, bytes, TS_QUEUE_COMM);
  finish(TS_QUEUE_COMM);
  return memory;
}

static void get(void *host, const void *memory, size_t bytes) {
  device->ops->copy(device, host, memory, bytes, TS_QUEUE_COMM);
  finish(TS_QUEUE_COMM);
}

static void drop(void *memory, size_t bytes) {
  backend->release(memory, bytes);
}

/* ---- reduce_scatter ---- */

typedef struct buffers {
  ts_transfer transfer[MOST_TRANSFERS];
  int64_t *cuts[MOST_TRANSFERS], shard[MOST_TRANSFERS], whole[MOST_TRANSFERS];
  void *x[MOST_TRANSFERS], *y[MOST_TRANSFERS]; /* the host's copies */
  void *device_x[MOST_TRANSFERS], *device_y[MOST_TRANSFERS];
  float *beta;
  void *workspace;
  size_t workspace_bytes;
} buffers;

static void prepare(buffers *b, const test_case *c, const ts_comm *comm) {
  for (int t = 0; t < c->n; ++t) {
    b->cuts[t] = ts_calloc((size_t) comm->size + 1, sizeof **b->cuts);
    cut(b->cuts[t], (c->cuts + t) % N_CUTS, c->count / (t + 1), comm->size);
    b->whole[t] = b->cuts[t][comm->size];
    b->shard[t] = b->cuts[t][comm->rank + 1] - b->cuts[t][comm->rank];
    b->x[t] = ts_calloc((size_t) b->whole[t] + 1, ts_dtype_size(c->x));
    b->y[t] = ts_calloc((size_t) b->shard[t] + 1, ts_dtype_size(c->y));
    for (int64_t i = 0; i < b->whole[t]; ++i) {
      store(b->x[t], c->x, i, value(c, comm->rank, t, i));
    }
    for (int64_t i = 0; i < b->shard[t]; ++i) {
      store(b->y[t], c->y, i, before_value(c, i));
    }
    b->device_x[t] = put(b->x[t], (size_t) b->whole[t] * ts_dtype_size(c->x));
    b->device_y[t] = put(b->y[t], (size_t) b->shard[t] * ts_dtype_size(c->y));
    b->transfer[t] = (ts_transfer){.x = b->device_x[t], .y = b->device_y[t], .cuts = b->cuts[t], .divisor = c->divisor};
  }
  b->beta = c->beta != NULL ? put(c->beta, sizeof *c->beta) : NULL;
  b->workspace_bytes = c->workspace > 0 ? c->workspace : ts_comm_device_workspace(comm->size, c->count * c->n, c->wire);
  b->workspace = backend->allocate(b->workspace_bytes);
}

static void release(buffers *b, const test_case *c) {
  for (int t = 0; t < c->n; ++t) {
    drop(b->device_x[t], (size_t) b->whole[t] * ts_dtype_size(c->x));
    drop(b->device_y[t], (size_t) b->shard[t] * ts_dtype_size(c->y));
    ts_free(b->cuts[t]);
    ts_free(b->x[t]);
    ts_free(b->y[t]);
  }
  drop(b->beta, sizeof *b->beta);
  drop(b->workspace, b->workspace_bytes);
}

/* Column windows: [0, w), [w, 2 w), ..., the last one open-ended; queued one after another. */
static void reduce_windows(ts_comm *comm, buffers *b, const test_case *c) {
  for (int w = 0; w < c->windows; ++w) {
    for (int t = 0; t < c->n; ++t) {
      int64_t width = b->cuts[t][comm->size] / (comm->size * c->windows) + 1;
      b->transfer[t].begin = w * width;
      b->transfer[t].end = w + 1 < c->windows ? (w + 1) * width : INT64_MAX / 2;
    }
    comm->ops->reduce_scatter(comm, b->transfer, c->n, c->x, c->wire, c->y, b->beta, b->workspace, b->workspace_bytes);
  }
}

/* Off by what another order of the sum can give: P roundings of fp32 of partial sums, which are below P times the
 * largest addend (1), times beta, and the rounding to y's dtype. */
static bool is_close(const test_case *c, int size, float a, float b) {
  float rounding = c->y == TS_BF16 ? 0x1p-8f : c->y == TS_F16 ? 0x1p-11f : 0x1p-23f;
  float limit = (float) (size * size) * 0x1p-24f + rounding * (fabsf(b) + (c->y == TS_F32 ? 0 : 1e-6f));
  return fabsf(a - b) <= limit;
}

static bool reduce_scatter_is(ts_comm *comm, const test_case *c, bool to_the_bit) {
  buffers b;
  prepare(&b, c, comm);
  reduce_windows(comm, &b, c);
  int64_t wrong = 0;
  for (int t = 0; t < c->n; ++t) {
    get(b.y[t], b.device_y[t], (size_t) b.shard[t] * ts_dtype_size(c->y));
    for (int64_t i = 0; i < b.shard[t]; ++i) {
      float expected = reference(c, comm->size, t, b.cuts[t][comm->rank] + i, before_value(c, i));
      float is = load(b.y[t], c->y, i);
      wrong += to_the_bit ? !same_bits(is, expected) : !is_close(c, comm->size, is, expected);
    }
  }
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
        for (int64_t count = 0; count <= 2000; count = 6 * count + 7) { /* 0, 7, 49, 301, 1813 */
          c.cuts = cuts;
          c.beta = beta < 0 ? NULL : &betas[beta];
          c.count = count;
          c.n = 1 + (int) (count % 3);
          right = reduce_scatter_is(comm, &c, true) && right;
        }
      }
    }
    tap_ok_all(MPI_COMM_WORLD, right, "reduce_scatter of %s over %s into %s: all cuts, betas, small sizes",
               ts_dtype_name(c.x), ts_dtype_name(c.wire), ts_dtype_name(c.y));
  }
}

/* What is beyond 65504 is infinite on an fp16 wire and in an fp16 result; sums of what is not are fp32. */
static void test_range(ts_comm *comm) {
  bool right = true;
  for (int i = 0; i < BEYOND_CASES; ++i) {
    test_case c = beyond_fp16(i);
    right = reduce_scatter_is(comm, &c, true) && right;
  }
  tap_ok_all(MPI_COMM_WORLD, right, "reduce_scatter beyond the range of fp16");
}

/* Chunks of all kinds: the least workspace has 32 columns and fewer in a chunk. */
static void test_sizes(ts_comm *comm) {
  size_t least = comm->size > 1 ? ts_comm_least_workspace(comm->size) : 1;
  const size_t workspaces[] = {0, 2048 + least, 100000};
  for (int cuts = 0; cuts < N_CUTS; ++cuts) {
    bool right = true;
    for (int w = 0; w < 3; ++w) {
      for (int n = 1; n <= MOST_TRANSFERS; n += 3) {
        test_case c = {.x = TS_F32,
                       .wire = n == 1 ? TS_F32 : TS_BF16,
                       .y = TS_F32,
                       .cuts = cuts,
                       .n = n,
                       .count = 24000 / comm->size,
                       .workspace = workspaces[w],
                       .windows = 1 + 2 * w};
        right = reduce_scatter_is(comm, &c, true) && right;
        c.x = w % 2 == 0 ? TS_BF16 : TS_F16;
        c.wire = c.wire == TS_F32 ? TS_F32 : c.x;
        right = reduce_scatter_is(comm, &c, true) && right;
      }
    }
    tap_ok_all(MPI_COMM_WORLD, right, "reduce_scatter, first cut %s: workspaces, transfers, windows", cut_names[cuts]);
  }
  test_case c = {.x = TS_F32, .wire = TS_F32, .y = TS_F32, .n = 3, .count = 3000, .workspace = least, .windows = 5};
  tap_ok_all(MPI_COMM_WORLD, reduce_scatter_is(comm, &c, true), "reduce_scatter with the least workspace, 5 windows");
  c = (test_case){.x = TS_BF16, .wire = TS_BF16, .y = TS_F32, .n = 1, .count = 400000, .windows = 1};
  tap_ok_all(MPI_COMM_WORLD, reduce_scatter_is(comm, &c, true), "reduce_scatter of 400,000 elements");
}

/* 40 transfers: more runs than a launch takes. */
static void test_many_transfers(ts_comm *comm) {
  enum { MANY = 40, EACH = 12 };
  test_case c = {.x = TS_F32, .wire = TS_BF16, .y = TS_F32};
  int64_t *cuts = ts_calloc((size_t) comm->size + 1, sizeof *cuts);
  for (int rank = 0; rank <= comm->size; ++rank) {
    cuts[rank] = rank * EACH;
  }
  size_t whole = (size_t) (EACH * comm->size), bytes = MANY * whole * sizeof(float),
         shard = MANY * EACH * sizeof(float);
  float *x = ts_malloc(bytes), *y = ts_calloc(MANY * EACH, sizeof *y);
  ts_transfer transfer[MANY];
  for (size_t i = 0; i < MANY * whole; ++i) {
    x[i] = value(&c, comm->rank, (int) (i / whole), (int64_t) (i % whole));
  }
  float *device_x = put(x, bytes), *device_y = put(y, shard);
  for (int t = 0; t < MANY; ++t) {
    transfer[t] =
        (ts_transfer){.x = device_x + (size_t) t * whole, .y = device_y + t * EACH, .cuts = cuts, .end = EACH};
  }
  size_t workspace_bytes = ts_comm_device_workspace(comm->size, MANY * EACH, TS_BF16);
  void *workspace = backend->allocate(workspace_bytes);
  comm->ops->reduce_scatter(comm, transfer, MANY, TS_F32, TS_BF16, TS_F32, NULL, workspace, workspace_bytes);
  get(y, device_y, shard);
  int wrong = 0;
  for (int i = 0; i < MANY * EACH; ++i) {
    wrong += !same_bits(y[i], reference_sum(&c, comm->size, i / EACH, cuts[comm->rank] + i % EACH));
  }
  tap_ok_all(MPI_COMM_WORLD, wrong == 0, "reduce_scatter of 40 transfers");
  drop(workspace, workspace_bytes);
  drop(device_x, bytes);
  drop(device_y, shard);
  ts_free(x);
  ts_free(y);
  ts_free(cuts);
}

static void test_in_place(ts_comm *comm, bool exact) {
  test_case c = {.x = TS_F32, .wire = TS_F32, .y = TS_F32, .n = 1, .count = 12000, .windows = 1, .integers = !exact};
  buffers b;
  prepare(&b, &c, comm);
  float *x = b.x[0];
  int64_t first = b.cuts[0][comm->rank], wrong = 0;
  b.transfer[0].y = (float *) b.device_x[0] + first;
  reduce_windows(comm, &b, &c);
  get(x, b.device_x[0], (size_t) c.count * sizeof *x);
  for (int64_t i = 0; i < c.count; ++i) {
    bool mine = i >= first && i < first + b.shard[0];
    wrong += !same_bits(x[i], mine ? reference_sum(&c, comm->size, 0, i) : value(&c, comm->rank, 0, i));
  }
  tap_ok_all(MPI_COMM_WORLD, wrong == 0, "reduce_scatter onto this rank's place in x%s; the rest of x is kept",
             exact ? "" : ", summed by NCCL");
  release(&b, &c);
}

/* Where NCCL adds: exact on integers, else equal to rounding; over 16 bits it never does. */
static void test_sums_of_nccl(ts_comm *comm) {
  static const ts_dtype dtypes[] = {TS_F32, TS_BF16};
  for (int integers = 1; integers >= 0; --integers) {
    bool right = true;
    for (int i = 0; i < 4 * N_CUTS * 4; ++i) {
      test_case c = {.x = dtypes[i & 1],
                     .wire = TS_F32,
                     .y = dtypes[(i >> 1) & 1],
                     .windows = 1 + i % 3,
                     .integers = integers,
                     .cuts = (i >> 2) % N_CUTS,
                     .n = 1 + i % MOST_TRANSFERS,
                     .count = 2400 - 300 * (i % 3),
                     .beta = i >> 4 == 0 ? NULL : &betas[(i >> 4) - 1],
                     .workspace = i % 5 == 0 ? 8192 : 0};
      right = reduce_scatter_is(comm, &c, integers != 0) && right;
    }
    tap_ok_all(MPI_COMM_WORLD, right, "reduce_scatter over fp32 as NCCL adds: %s",
               integers ? "exact on integers" : "equal to rounding");
  }
  for (int i = 1; i < N_TYPES; ++i) {
    test_case c = {.x = TS_F32, .wire = types[i], .y = TS_F32, .n = 2, .count = 2400, .windows = 2};
    tap_ok_all(MPI_COMM_WORLD, reduce_scatter_is(comm, &c, true),
               "reduce_scatter over %s: bits of the group's order all the same", ts_dtype_name(types[i]));
  }
}

/* The same call of the host's communicator; the last one divides what travels. */
static void test_same_as_mpi(ts_comm *comm, ts_comm *host) {
  for (int w = 0; w <= N_TYPES; ++w) {
    bool divided = w == N_TYPES;
    test_case c = {.x = divided ? TS_BF16 : TS_F32,
                   .wire = divided ? TS_BF16 : types[w],
                   .divisor = divided ? 3 : 0,
                   .y = TS_F32,
                   .n = 3,
                   .count = 5000,
                   .windows = 1,
                   .beta = &betas[2],
                   .cuts = UNEVEN};
    buffers b;
    ts_transfer transfer[MOST_TRANSFERS];
    prepare(&b, &c, comm);
    reduce_windows(comm, &b, &c);
    size_t bytes = ts_comm_workspace(comm->size, 3 * c.count, c.wire);
    void *workspace = ts_malloc(bytes);
    for (int t = 0; t < c.n; ++t) {
      transfer[t] = b.transfer[t];
      transfer[t].x = b.x[t];
      transfer[t].y = b.y[t];
    }
    host->ops->reduce_scatter(host, transfer, c.n, c.x, c.wire, c.y, c.beta, workspace, bytes);
    bool right = true;
    for (int t = 0; t < c.n; ++t) {
      size_t size = (size_t) b.shard[t] * sizeof(float);
      float *is = ts_malloc(size + 1);
      get(is, b.device_y[t], size);
      right = memcmp(is, b.y[t], size) == 0 && right;
      ts_free(is);
    }
    tap_ok_all(MPI_COMM_WORLD, right, "reduce_scatter over %s: the bits of the communicator over MPI",
               ts_dtype_name(c.wire));
    ts_free(workspace);
    release(&b, &c);
  }
}

/* ---- all_gather ---- */

static bool all_gather_is_right(ts_comm *comm, ts_dtype dtype, int cuts_kind, int n, int64_t count, int64_t begin,
                                int64_t end, bool in_place) {
  int64_t size = (int64_t) ts_dtype_size(dtype), wrong = 0;
  ts_transfer transfer[MOST_TRANSFERS];
  int64_t *cuts[MOST_TRANSFERS];
  unsigned char *host[MOST_TRANSFERS];
  for (int t = 0; t < n; ++t) {
    cuts[t] = ts_calloc((size_t) comm->size + 1, sizeof **cuts);
    cut(cuts[t], (cuts_kind + t) % N_CUTS, count / (t + 1), comm->size);
    int64_t first = cuts[t][comm->rank] * size, shard = (cuts[t][comm->rank + 1] - cuts[t][comm->rank]) * size;
    host[t] = ts_calloc((size_t) (cuts[t][comm->size] * size) + 1, 1);
    unsigned char *mine = ts_calloc((size_t) shard + 1, 1);
    for (int64_t i = 0; i < shard; ++i) {
      mine[i] = gathered_byte(comm->rank, t, i);
    }
    if (in_place) {
      memcpy(host[t] + first, mine, (size_t) shard);
    }
    unsigned char *y = put(host[t], (size_t) (cuts[t][comm->size] * size));
    transfer[t] = (ts_transfer){
        .x = in_place ? y + first : put(mine, (size_t) shard), .y = y, .cuts = cuts[t], .begin = begin, .end = end};
    ts_free(mine);
  }
  comm->ops->all_gather(comm, transfer, n, dtype);
  for (int t = 0; t < n; ++t) {
    size_t bytes = (size_t) (cuts[t][comm->size] * size);
    get(host[t], transfer[t].y, bytes);
    for (int owner = 0; owner < comm->size; ++owner) {
      for (int64_t i = 0; i < (cuts[t][owner + 1] - cuts[t][owner]) * size; ++i) {
        bool written = (i >= begin * size && i < end * size) || (in_place && owner == comm->rank);
        wrong += host[t][cuts[t][owner] * size + i] != (written ? gathered_byte(owner, t, i) : 0);
      }
    }
    if (!in_place) {
      drop((void *) transfer[t].x, 0);
    }
    drop(transfer[t].y, bytes);
    ts_free(host[t]);
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
        ts_dtype dtype = dtypes[(count + cuts) % 6];
        right = all_gather_is_right(comm, dtype, cuts, 1 + (int) count % 4, count, 0, count, in_place) && right;
        right =
            all_gather_is_right(comm, dtype, cuts, 1 + (int) count % 4, count, count / 9, count / 3, in_place) && right;
      }
    }
    for (int d = 0; d < 5; ++d) { /* shards that are one run */
      right = all_gather_is_right(comm, dtypes[d], EQUAL, 1, 1200, 0, 1200, in_place) && right;
    }
    tap_ok_all(MPI_COMM_WORLD, right, "all_gather %s: all cuts, dtypes, windows",
               in_place ? "in place" : "of shards elsewhere");
  }
}

/* ---- all_reduce and the rest ---- */

static bool all_reduce_is_right(ts_comm *comm, ts_dtype dtype, ts_dtype wire, int64_t count, bool in_place,
                                bool integers) {
  test_case c = {.x = dtype, .wire = wire, .y = dtype, .integers = integers};
  size_t size = ts_dtype_size(dtype), bytes = (size_t) count * size,
         workspace_bytes = ts_comm_device_workspace(comm->size, count, wire);
  void *host = ts_calloc((size_t) count + 1, size), *workspace = backend->allocate(workspace_bytes);
  for (int64_t i = 0; i < count; ++i) {
    store(host, dtype, i, value(&c, comm->rank, 0, i));
  }
  void *x = put(host, bytes), *y = in_place ? x : backend->allocate(bytes);
  comm->ops->all_reduce(comm, x, y, count, dtype, wire, workspace, workspace_bytes);
  get(host, y, bytes);
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    wrong += !same_bits(load(host, dtype, i), reference(&c, comm->size, 0, i, 0));
  }
  drop(x, bytes);
  if (!in_place) {
    drop(y, bytes);
  }
  drop(workspace, workspace_bytes);
  ts_free(host);
  return wrong == 0;
}

static void test_all_reduce(ts_comm *comm, bool integers) {
  for (int d = 0; d < N_TYPES * N_TYPES; ++d) {
    bool right = true;
    ts_dtype dtype = types[d % N_TYPES], wire = types[d / N_TYPES];
    for (int64_t count = 0; count <= 10000; count = 9 * count + 1) { /* 0, 1, 10, 91, 820, 7381 */
      right = all_reduce_is_right(comm, dtype, wire, count, count % 2 == 0, integers) && right;
    }
    right = all_reduce_is_right(comm, dtype, wire, 64 * comm->size, true, integers) && right;
    tap_ok_all(MPI_COMM_WORLD, right, "all_reduce of %s over %s%s: the reference on every rank", ts_dtype_name(dtype),
               ts_dtype_name(wire), integers ? ", as NCCL adds integers" : "");
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
      void *memory = put(data, bytes);
      comm->ops->broadcast(comm, memory, bytes, root);
      get(data, memory, bytes);
      drop(memory, bytes);
      for (size_t i = 0; i < bytes; ++i) {
        right = right && data[i] == gathered_byte(root, 1, (int64_t) i);
      }
    }
    comm->ops->barrier(comm);
  }
  tap_ok_all(MPI_COMM_WORLD, right, "broadcast from every root, barrier");
}

/* The host's copies of all outputs, and the device's memory of both sides. */
typedef struct exchange_memory {
  exchange_case *c;
  int rank;
  void *y[TS_MOST_EXCHANGED], *workspace;
  size_t workspace_bytes;
} exchange_memory;

static void put_exchange(exchange_memory *m) {
  for (int i = 0; i < m->c->n; ++i) {
    ts_exchange_tensor *x = &m->c->x[m->rank][i], *y = &m->c->y[m->rank][i];
    void *host = ts_malloc(exchange_bytes(x) + 1);
    exchange_fill(m->c, m->rank, i, host);
    x->data = put(host, exchange_bytes(x));
    ts_free(host);
    m->y[i] = ts_malloc(exchange_bytes(y) + 1);
    memset(m->y[i], 0x5a, exchange_bytes(y));
    y->data = put(m->y[i], exchange_bytes(y));
  }
  const ts_exchange_lists lists = exchange_lists(m->c, m->rank);
  m->workspace_bytes = ts_comm_exchange_workspace(&lists, m->rank);
  m->workspace = backend->allocate(m->workspace_bytes);
}

static bool take_exchange(exchange_memory *m) {
  bool right = true;
  for (int i = 0; i < m->c->n; ++i) {
    ts_exchange_tensor *x = &m->c->x[m->rank][i], *y = &m->c->y[m->rank][i];
    void *is = ts_malloc(exchange_bytes(y) + 1);
    get(is, y->data, exchange_bytes(y));
    exchange_expect(m->c, m->rank, i, m->y[i]);
    right = memcmp(is, m->y[i], exchange_bytes(y)) == 0 && right;
    drop(x->data, exchange_bytes(x));
    drop(y->data, exchange_bytes(y));
    ts_free(is);
    ts_free(m->y[i]);
  }
  drop(m->workspace, m->workspace_bytes);
  return right;
}

/* Queued, or captured and replayed. */
static bool exchange_is_right(ts_comm *comm, exchange_case *c, bool captured) {
  exchange_memory m = {.c = c, .rank = comm->rank};
  put_exchange(&m);
  const ts_exchange_lists lists = exchange_lists(c, comm->rank);
  if (captured) {
    void *fork = device->ops->event_create(device, false);
    device->ops->capture_begin(device);
    device->ops->record(device, fork, TS_QUEUE_COMPUTE);
    device->ops->wait(device, fork, TS_QUEUE_COMM);
    comm->ops->exchange(comm, &lists, m.workspace, m.workspace_bytes);
    device->ops->record(device, fork, TS_QUEUE_COMM);
    device->ops->wait(device, fork, TS_QUEUE_COMPUTE);
    void *graph = device->ops->capture_end(device);
    device->ops->replay(device, graph);
    finish(TS_QUEUE_COMPUTE);
    device->ops->graph_destroy(device, graph);
    device->ops->event_destroy(device, fork);
  } else {
    comm->ops->exchange(comm, &lists, m.workspace, m.workspace_bytes);
  }
  return take_exchange(&m);
}

/* ---- rows of experts ---- */

static bool rows_are_right(ts_comm *comm, const row_case *c, bool home) {
  size_t from = (size_t) row_count(c, comm->rank, home) * row_bytes(c) + 16,
         to = (size_t) row_count(c, comm->rank, !home) * row_bytes(c) + 16;
  uint32_t *x = ts_calloc(1, from);
  char *is = ts_malloc(to), *expected = ts_malloc(to);
  row_fill(c, comm->rank, home, x);
  memset(expected, 0x5a, to);
  void *device_x = put(x, from), *device_y = put(expected, to), *firsts = put((void *) c->firsts, sizeof c->firsts);
  row_fill(c, comm->rank, !home, (uint32_t *) expected);
  comm->ops->exchange_rows(comm, &(ts_row_exchange){.x = device_x,
                                                    .y = device_y,
                                                    .firsts = firsts,
                                                    .experts = c->cuts,
                                                    .row_bytes = (int64_t) row_bytes(c),
                                                    .x_rows = row_count(c, comm->rank, home),
                                                    .y_rows = row_count(c, comm->rank, !home),
                                                    .home = home});
  finish(TS_QUEUE_COMM);
  get(is, device_y, to);
  bool right = memcmp(is, expected, to) == 0;
  drop(device_x, from);
  drop(device_y, to);
  drop(firsts, sizeof c->firsts);
  ts_free(x);
  ts_free(is);
  ts_free(expected);
  return right;
}

static void test_rows(ts_comm *comm) {
  bool right = true;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    row_case c = row_case_of(comm->size, seed);
    right = rows_are_right(comm, &c, false) && right;
    right = rows_are_right(comm, &c, true) && right;
  }
  tap_ok_all(MPI_COMM_WORLD, right, "rows to their experts and home, as many as are counted");
}

static void test_exchange(ts_comm *comm) {
  exchange_case *c = ts_malloc(sizeof *c);
  bool right = true;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    exchange_random(c, comm->size, seed, seed % 2 == 0);
    right = exchange_is_right(comm, c, seed % 3 == 0) && right;
  }
  tap_ok_all(MPI_COMM_WORLD, right, "exchange of blocks anywhere, queued and captured: moved and added to the bit");
  right = true;
  for (int d = 0; d < 2 * N_TYPES; ++d) {
    exchange_case *back = ts_malloc(sizeof *back);
    exchange_heads(c, comm->size, types[d % N_TYPES]);
    exchange_back(back, c);
    right = exchange_is_right(comm, d < N_TYPES ? c : back, false) && right;
    ts_free(back);
    exchange_twice(c, comm->size, types[d % N_TYPES]);
    right = exchange_is_right(comm, c, d < N_TYPES) && right;
  }
  tap_ok_all(MPI_COMM_WORLD, right, "exchange of heads, and back, and of one half of the rows twice");
  ts_free(c);
}

/* More blocks than a launch takes, all of them added in one place: 40 from everybody. */
static void test_many_blocks(ts_comm *comm) {
  enum { MANY = 40 };
  exchange_case *c = ts_calloc(1, sizeof *c);
  c->size = comm->size;
  c->n = 1;
  for (int a = 0; a < comm->size; ++a) {
    c->x[a][0] = c->y[a][0] = (ts_exchange_tensor){NULL, TS_BF16, 1, MANY, 8};
    for (int b = 0; b < comm->size; ++b) {
      for (int k = 0; k < MANY; ++k) {
        exchange_add(c, a, b, 0, (ts_interval[]){{0, MANY - k / 2}, {0, 8}, {k / 2, MANY - k / 2}, {0, 8}});
      }
    }
  }
  tap_ok_all(MPI_COMM_WORLD, exchange_is_right(comm, c, false), "exchange of 40 blocks from everybody to one place");
  ts_free(c);
}

/* ---- messages ---- */

enum { SLOTS = 3, TIMES = 4, PARTS = 2 };

/* One end of a way for messages: a place for each slot. */
typedef struct end {
  ts_message_line *line[SLOTS];
  unsigned char *memory[SLOTS]; /* of the device */
  size_t bytes;
} end;

static end open_end(ts_world *world, const ts_mesh *mesh, bool sends, int peer, int number, size_t bytes) {
  end e = {.bytes = bytes};
  ts_world_device_connect(world, mesh, TS_AXES(TS_AXIS_PP), sends, peer, number);
  for (int slot = 0; slot < SLOTS; ++slot) {
    e.memory[slot] = backend->allocate(bytes);
    const ts_message_part part[PARTS] = {{e.memory[slot], bytes / 3}, {e.memory[slot] + bytes / 3, bytes - bytes / 3}};
    e.line[slot] = ts_world_device_line_create(world, mesh, TS_AXES(TS_AXIS_PP), sends, peer, number, part, PARTS);
  }
  return e;
}

static void close_end(end *e) {
  for (int slot = 0; slot < SLOTS; ++slot) {
    ts_message_line_destroy(&e->line[slot]);
    finish(TS_QUEUE_COMPUTE);
    backend->release(e->memory[slot], e->bytes);
  }
}

/* What COMPUTE does for the message of a slot, and behind it what must not be sent. */
static void make_message(const end *e, int slot, const void *host, const void *spoiled) {
  device->ops->copy(device, e->memory[slot], host, e->bytes, TS_QUEUE_COMPUTE);
  ts_message_announce(e->line[slot]);
  device->ops->copy(device, (void *) spoiled, host, e->bytes, TS_QUEUE_COMPUTE);
}

static unsigned char content_of(int from, int time, int slot, size_t i) {
  return (unsigned char) (31 * from + 7 * time + 3 * slot + (int) (i % 251));
}

/* Receives are all posted first; what is sent is made queued or replayed; waits are in another order. */
static bool exchange_messages(const end *out, const end *in, int own, int from, bool records) {
  size_t bytes = out->bytes;
  unsigned char *host = device->ops->allocate_host(device, SLOTS * bytes), *back = ts_calloc(bytes + 1, 1);
  void *scratch = backend->allocate(bytes), *graph[SLOTS] = {NULL};
  bool right = true;
  for (int time = 0; time < TIMES; ++time) {
    for (int slot = 0; slot < SLOTS; ++slot) {
      ts_message_start(in->line[slot]);
    }
    for (int slot = 0; slot < SLOTS; ++slot) {
      for (size_t i = 0; i < bytes; ++i) {
        host[(size_t) slot * bytes + i] = content_of(own, time, slot, i);
      }
      if (records && graph[slot] == NULL) {
        device->ops->capture_begin(device);
        make_message(out, slot, host + (size_t) slot * bytes, scratch);
        graph[slot] = device->ops->capture_end(device);
      }
      if (records) {
        device->ops->replay(device, graph[slot]);
      } else {
        make_message(out, slot, host + (size_t) slot * bytes, scratch);
      }
      ts_message_start(out->line[slot]);
    }
    for (int slot = SLOTS - 1; slot >= 0; --slot) {
      right = right && ts_message_is_open(in->line[slot]);
      ts_message_wait(in->line[slot]);
      device->ops->copy(device, back, in->memory[slot], bytes, TS_QUEUE_COMPUTE);
      finish(TS_QUEUE_COMPUTE);
      for (size_t i = 0; i < bytes; ++i) {
        right = right && back[i] == content_of(from, time, slot, i);
      }
    }
    for (int slot = 0; slot < SLOTS; ++slot) {
      ts_message_wait(out->line[slot]);
    }
    finish(TS_QUEUE_COMPUTE);
  }
  for (int slot = 0; slot < SLOTS; ++slot) {
    device->ops->graph_destroy(device, graph[slot]);
  }
  device->ops->release_host(device, host);
  backend->release(scratch, bytes);
  ts_free(back);
  return right;
}

/* Around a ring, and from each to itself; the numbers of the ways are those of who sends. */
static void test_messages(ts_world *world, size_t bytes) {
  ts_mesh mesh;
  int size = ts_world_size(world), own = ts_world_rank(world), previous = (own + size - 1) % size;
  ts_mesh_init(&mesh, (int[]){size, 0, 1, 1, 1}, size, own, NULL);
  end out, in;
  if (own < previous) {
    out = open_end(world, &mesh, true, (own + 1) % size, own, bytes);
  }
  in = open_end(world, &mesh, false, previous, previous, bytes);
  if (own >= previous) {
    out = open_end(world, &mesh, true, (own + 1) % size, own, bytes);
  }
  for (int records = 0; records < 2; ++records) {
    bool right = exchange_messages(&out, &in, own, previous, records);
    tap_ok_all(MPI_COMM_WORLD, right, "messages of %zu bytes around a ring%s", bytes, records ? ", recorded" : "");
  }
  close_end(&out);
  close_end(&in);
  if (size > 1) {
    out = open_end(world, &mesh, true, own, size + own, bytes);
    in = open_end(world, &mesh, false, own, size + own, bytes);
    tap_ok_all(MPI_COMM_WORLD, exchange_messages(&out, &in, own, own, true), "messages of %zu bytes to oneself", bytes);
    close_end(&out);
    close_end(&in);
  }
}

/* ---- queues ---- */

/* One step of a made-up program over two communicators: x is copied in by COMPUTE; COMM reduces it over `a`, gathers
 * the sums over `a` and then over `b`; COMPUTE copies the result. */
typedef struct program {
  ts_comm *a, *b;
  int64_t cuts_a[65], cuts_b[65], count;
  float *input, *x, *sum, *whole, *all, *result; /* input: host, the others: device */
  void *workspace, *copied, *done;
  size_t workspace_bytes;
} program;

enum { EACH = 48 /* elements of a shard */ };

static void queue_program(const program *p) {
  size_t all = (size_t) p->count * (size_t) p->b->size;
  device->ops->copy(device, p->x, p->input, (size_t) p->count * sizeof(float), TS_QUEUE_COMPUTE);
  device->ops->record(device, p->copied, TS_QUEUE_COMPUTE);
  device->ops->wait(device, p->copied, TS_QUEUE_COMM);
  ts_transfer reduce = {.x = p->x, .y = p->sum, .cuts = p->cuts_a, .end = EACH};
  p->a->ops->reduce_scatter(p->a, &reduce, 1, TS_F32, TS_BF16, TS_F32, NULL, p->workspace, p->workspace_bytes);
  ts_transfer gather = {.x = p->sum, .y = p->whole, .cuts = p->cuts_a, .end = EACH};
  p->a->ops->all_gather(p->a, &gather, 1, TS_F32);
  ts_transfer spread = {.x = p->whole, .y = p->all, .cuts = p->cuts_b, .end = p->count};
  p->b->ops->all_gather(p->b, &spread, 1, TS_F32);
  device->ops->record(device, p->done, TS_QUEUE_COMM);
  device->ops->wait(device, p->done, TS_QUEUE_COMPUTE);
  device->ops->copy(device, p->result, p->all, all * sizeof(float), TS_QUEUE_COMPUTE);
}

static void program_create(program *p, ts_comm *a, ts_comm *b) {
  *p = (program){.a = a, .b = b, .count = EACH * a->size};
  for (int i = 0; i <= a->size; ++i) {
    p->cuts_a[i] = EACH * i;
  }
  for (int i = 0; i <= b->size; ++i) {
    p->cuts_b[i] = p->count * i;
  }
  size_t bytes = (size_t) p->count * sizeof(float);
  p->input = device->ops->allocate_host(device, bytes);
  p->x = backend->allocate(bytes);
  p->sum = backend->allocate(EACH * sizeof(float));
  p->whole = backend->allocate(bytes);
  p->all = backend->allocate(bytes * (size_t) b->size);
  p->result = backend->allocate(bytes * (size_t) b->size);
  p->workspace_bytes = ts_comm_device_workspace(a->size, EACH, TS_BF16);
  p->workspace = backend->allocate(p->workspace_bytes);
  p->copied = device->ops->event_create(device, false);
  p->done = device->ops->event_create(device, false);
}

static void program_destroy(program *p) {
  size_t bytes = (size_t) p->count * sizeof(float);
  device->ops->release_host(device, p->input);
  drop(p->x, bytes);
  drop(p->sum, EACH * sizeof(float));
  drop(p->whole, bytes);
  drop(p->all, bytes * (size_t) p->b->size);
  drop(p->result, bytes * (size_t) p->b->size);
  drop(p->workspace, p->workspace_bytes);
  device->ops->event_destroy(device, p->copied);
  device->ops->event_destroy(device, p->done);
}

static void fill(program *p, int world_rank, int step) {
  for (int64_t i = 0; i < p->count; ++i) {
    p->input[i] = (float) ((world_rank + 1) * (1 + (i + step) % 13)); /* exact in bf16 */
  }
}

/* Member i of b's group sums over its own group of a: known from the mesh. */
static bool result_is_right(const program *p, const ts_mesh *mesh, unsigned axes_a, unsigned axes_b, int step) {
  size_t all = (size_t) p->count * (size_t) p->b->size;
  float *result = ts_malloc(all * sizeof *result);
  device->ops->copy(device, result, p->result, all * sizeof *result, TS_QUEUE_COMPUTE);
  finish(TS_QUEUE_COMPUTE);
  bool right = true;
  for (int member = 0; member < p->b->size; ++member) {
    int offset = ts_mesh_group_member(mesh, axes_b, member) - mesh->rank;
    for (int64_t i = 0; i < p->count; ++i) {
      float sum = 0;
      for (int k = 0; k < p->a->size; ++k) {
        sum += (float) ((ts_mesh_group_member(mesh, axes_a, k) + offset + 1) * (1 + (i + step) % 13));
      }
      right = right && result[(size_t) member * (size_t) p->count + (size_t) i] == sum;
    }
  }
  ts_free(result);
  return right;
}

/* Two communicators on one queue, the host never waiting between; then the same captured and replayed. */
static void test_queues(ts_world *world) {
  int ranks = ts_world_size(world), me = ts_world_rank(world);
  for (int dp = 1; dp <= ranks; ++dp) {
    ts_mesh mesh;
    if (ranks % dp != 0 || ts_mesh_init(&mesh, (int[]){1, dp, 1, 1, 0 + ranks / dp}, ranks, me, NULL) != TS_OK) {
      continue;
    }
    unsigned axes_a = TS_AXES(TS_AXIS_DP), axes_b = TS_AXES(TS_AXIS_TP);
    ts_comm *a = ts_world_device_comm(world, &mesh, axes_a), *b = ts_world_device_comm(world, &mesh, axes_b);
    bool right = a->size == dp && b->size == ranks / dp && a == ts_world_device_comm(world, &mesh, axes_a);
    program p;
    program_create(&p, a, b);
    for (int step = 0; step < 3; ++step) {
      fill(&p, me, step);
      queue_program(&p);
      right = result_is_right(&p, &mesh, axes_a, axes_b, step) && right;
    }
    tap_ok_all(MPI_COMM_WORLD, right, "two communicators on one queue, dp %d x tp %d", dp, ranks / dp);
    right = true;
    device->ops->capture_begin(device);
    queue_program(&p);
    void *graph = device->ops->capture_end(device);
    for (int step = 3; step < 6; ++step) {
      fill(&p, me, step);
      device->ops->replay(device, graph);
      right = result_is_right(&p, &mesh, axes_a, axes_b, step) && right;
    }
    tap_ok_all(MPI_COMM_WORLD, right, "the same, captured and replayed, dp %d x tp %d", dp, ranks / dp);
    device->ops->graph_destroy(device, graph);
    program_destroy(&p);
  }
}

static void test_registration(ts_world *world, ts_comm *comm) {
  size_t bytes = 1 << 16;
  unsigned char *memory = backend->allocate(bytes), *host = ts_malloc(bytes);
  ts_world_device_register(world, memory, bytes);
  memset(host, comm->rank == comm->size - 1 ? 7 : 1, bytes);
  device->ops->copy(device, memory, host, bytes, TS_QUEUE_COMM);
  comm->ops->broadcast(comm, memory, bytes, comm->size - 1);
  get(host, memory, bytes);
  ts_world_device_deregister(world, memory);
  ts_world_device_deregister(world, memory); /* nobody knows it any more */
  drop(memory, bytes);
  tap_ok_all(MPI_COMM_WORLD, host[0] == 7 && host[bytes - 1] == 7, "registered memory");
  ts_free(host);
}

static void test_workspace(void) {
  bool right = ts_comm_device_workspace(1, 1000, TS_F32) == 0;
  for (int size = 2; size < 5000; size = 3 * size - 1) {
    for (int64_t columns = 0; columns < INT64_MAX / 100; columns = 5 * columns + 3) {
      size_t bytes = ts_comm_device_workspace(size, columns, TS_F32);
      right = right && bytes >= ts_comm_least_workspace(size) &&
              bytes <= ((size_t) 64 << 20) + ts_comm_least_workspace(size);
    }
  }
  tap_ok_all(MPI_COMM_WORLD, right, "workspaces between the least and 64 MiB");
}

/* ---- jobs ---- */

static void die(ts_comm *comm, const char *how) {
  int64_t cuts[65];
  for (int i = 0; i <= comm->size; ++i) {
    cuts[i] = 100 * i;
  }
  float *data = backend->allocate((size_t) cuts[comm->size] * sizeof *data);
  ts_transfer t = {.x = data + cuts[comm->rank], .y = data, .cuts = cuts, .end = 100};
  ts_comm_set_agreement(strcmp(how, "mismatch") == 0);
  device->ops->set_op(device, "a.node");
  if (strcmp(how, "mismatch") == 0 && comm->rank == 1) {
    t.end = 99;
  }
  comm->ops->all_gather(comm, &t, 1, TS_F32);
  comm->ops->barrier(comm);
}

/* NCCL is told of ranks that share a device, and only then; what the user set stays. */
static void test_place(ts_world *world, const char *hostid) {
  bool shared = ts_world_local_size(world) > ts_cuda_devices();
  const char *is = getenv("NCCL_HOSTID"), *ctas = getenv("NCCL_MAX_CTAS");
  bool right =
      hostid != NULL ? is != NULL && strcmp(is, hostid) == 0 : (is != NULL) == (shared && ts_world_size(world) > 1);
  right = right && (!shared || ts_world_size(world) == 1 || ctas != NULL);
  tap_ok_all(MPI_COMM_WORLD, right, "NCCL's environment of ranks that %s",
             shared ? "share devices" : "share no device");
}

static ts_comm *make(ts_world *world, const ts_device_options *options) {
  ts_comm *all = ts_world_all(world);
  return all->size == 1 ? ts_comm_device_alone() : ts_comm_nccl_create((ts_comm_mpi *) all, options);
}

static void test_all(ts_world *world) {
  ts_mesh mesh;
  ts_mesh_init(&mesh, (int[]){1, 0, 1, 1, 1}, ts_world_size(world), ts_world_rank(world), NULL);
  const char *hostid = getenv("NCCL_HOSTID");
  ts_comm *fast = ts_world_device_comm(world, &mesh, TS_AXES_DENSE),
          *exact = make(world, &(ts_device_options){.exact = true});
  test_place(world, hostid);
  test_dtypes(exact);
  test_range(exact);
  test_sizes(exact);
  test_many_transfers(exact);
  test_in_place(exact, true);
  test_same_as_mpi(exact, ts_world_all(world));
  test_all_gather(exact);
  test_all_reduce(exact, false);
  test_broadcast(exact);
  test_exchange(exact);
  if (exact->size > 1) {
    test_rows(exact);
  }
  test_many_blocks(exact);
  if (ts_world_size(world) > 1) {
    test_sums_of_nccl(fast);
    test_in_place(fast, false);
    test_all_reduce(fast, true);
  }
  for (size_t bytes = 5; bytes < 100000 && ts_comm_nccl_available(); bytes += 69996) {
    test_messages(world, bytes);
  }
  test_queues(world);
  test_registration(world, fast);
  test_workspace();
  exact->ops->destroy(exact);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  int status = 0;
  if (ts_backend_cuda() == NULL || ts_cuda_devices() == 0 || (ts_world_size(world) > 1 && !ts_comm_nccl_available())) {
    tap_skip_all(MPI_COMM_WORLD, "cuda: %s",
                 ts_backend_cuda() == NULL ? "built without it"
                 : ts_cuda_devices() == 0  ? "no device here"
                                           : ts_comm_nccl_describe());
    status = tap_done_all(MPI_COMM_WORLD);
    ts_world_destroy(&world);
    return status;
  }
  ts_error err = {0};
  const char *limit = getenv("TEST_TIME_LIMIT");
  ts_cuda_options options = {.local_rank = ts_world_local_rank(world), .time_limit = limit != NULL ? atof(limit) : 0};
  TS_CHECK(ts_cuda_open(&options, &err) == TS_OK, "%s", err.text);
  backend = ts_backend_cuda();
  device = ts_backend_device(backend);
  event = device->ops->event_create(device, false);
  if (argc > 1) {
    if (strcmp(argv[1], "limited") == 0) {
      device->ops->set_time_limit(device, 1);
    }
    die(make(world, &(ts_device_options){.time_limit = options.time_limit}), argv[1]);
    return 0; /* comm_device_jobs.sh takes this for a failure that went unnoticed */
  }
  if (ts_world_rank(world) == 0) {
    tap_note("%s, %s", backend->describe(), ts_comm_nccl_describe());
  }
  test_all(world);
  status = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  device->ops->event_destroy(device, event);
  ts_cuda_close();
  return ts_memory_live() == 0 ? status : 1;
}
