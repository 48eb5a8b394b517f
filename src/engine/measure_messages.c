/* What messages take, and what is computed beside them. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/measure.h"
#include "engine/peak.h"
#include "run/stream.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

typedef struct messages {
  const ts_measuring *of;
  ts_comm *comm;
  int64_t *cuts;
  void *x, *y, *workspace;
  size_t bytes, workspace_bytes; /* of x and of y, which are of as many */
  int together;                  /* of the group on this rank's node */
  ts_exchange_tensor tensor[2];
  ts_block *sent, *received;
} messages;

/* Of \a bytes in all. */
typedef void collective(messages *m, size_t bytes, ts_dtype dtype);

static ts_transfer cut_evenly(messages *m, size_t bytes, ts_dtype dtype) {
  int64_t count = (int64_t) (bytes / ts_dtype_size(dtype));
  for (int i = 0; i <= m->comm->size; ++i) {
    m->cuts[i] = count * i / m->comm->size;
  }
  return (ts_transfer){.x = m->x, .y = m->y, .cuts = m->cuts, .end = count};
}

static void gather_all(messages *m, size_t bytes, ts_dtype dtype) {
  const ts_transfer t = cut_evenly(m, bytes, dtype);
  m->comm->ops->all_gather(m->comm, &t, 1, dtype);
}

static void reduce_shards(messages *m, size_t bytes, ts_dtype dtype) {
  const ts_transfer t = cut_evenly(m, bytes, dtype);
  m->comm->ops->reduce_scatter(m->comm, &t, 1, dtype, dtype, dtype, NULL, m->workspace, m->workspace_bytes);
}

static void reduce_everywhere(messages *m, size_t bytes, ts_dtype dtype) {
  int64_t count = (int64_t) (bytes / ts_dtype_size(dtype));
  m->comm->ops->all_reduce(m->comm, m->x, m->y, count, dtype, dtype, m->workspace, m->workspace_bytes);
}

/* A block of rows to everybody. */
static void exchange_blocks(messages *m, size_t bytes, ts_dtype dtype) {
  int size = m->comm->size;
  int64_t each = (int64_t) (bytes / ts_dtype_size(dtype)) / size;
  m->tensor[0] = (ts_exchange_tensor){m->x, dtype, 1, size, each};
  m->tensor[1] = (ts_exchange_tensor){m->y, dtype, 1, size, each};
  for (int rank = 0; rank < size; ++rank) {
    m->sent[rank] = m->received[rank] = (ts_block){rank, 0, {rank, 1}, {0, each}};
  }
  const ts_exchange_lists lists = {1, &m->tensor[0], &m->tensor[1], m->sent, m->received, size, size};
  m->comm->ops->exchange(m->comm, &lists, m->workspace, m->workspace_bytes);
}

static const struct {
  ts_op op;
  collective *run;
  double trips; /* of a rank's share of the whole, to each of the others */
} rows[] = {{TS_OP_ALL_GATHER, gather_all, 1},
            {TS_OP_REDUCE_SCATTER, reduce_shards, 1},
            {TS_OP_ALL_REDUCE, reduce_everywhere, 2},
            {TS_OP_ALL_TO_ALL, exchange_blocks, 1}};

static double seconds_of_collective(messages *m, collective *run, size_t bytes, ts_dtype dtype) {
  enum { RUNS = 5, FEW_BYTES = 1 << 20 };
  int times = bytes < FEW_BYTES ? 20 : 2;
  double seconds[RUNS];
  run(m, bytes, dtype);
  for (int i = 0; i < RUNS; ++i) {
    ts_measure_begin(m->of->world);
    double start = ts_seconds();
    for (int k = 0; k < times; ++k) {
      run(m, bytes, dtype);
    }
    m->comm->ops->barrier(m->comm);
    seconds[i] = (ts_seconds() - start) / times;
  }
  return ts_least_quarter(seconds, RUNS);
}

static void measure_group(messages *m, ts_measured *measured) {
  const double size = m->comm->size;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    for (int type = 0; type < 2; ++type) {
      for (size_t bytes = 4096; bytes <= m->bytes; bytes *= 8) { /* 4 kB to 128 MB in six sizes */
        ts_dtype dtype = type == 0 ? TS_F32 : m->of->low;
        double seconds = seconds_of_collective(m, rows[i].run, bytes, dtype);
        ts_work work = ts_message_work(rows[i].op, dtype, m->comm->size, m->together,
                                       rows[i].trips * (size - 1) / size * (double) bytes);
        ts_measured_add(measured, &work, seconds);
      }
    }
  }
}

/* From even ranks to the odd ones behind them and back, half the time of both; a last one without a partner rests. */
static void measure_line(messages *m, ts_measured *measured) {
  enum { RUNS = 9 };
  int rank = m->comm->rank, peer = rank ^ 1;
  bool away = peer < m->comm->size && ts_world_node(m->of->world, peer) != ts_world_node(m->of->world, rank);
  for (size_t bytes = 4096; bytes <= m->bytes; bytes *= 8) {
    double seconds[RUNS];
    const ts_message_part out = {m->x, bytes}, in = {m->y, bytes};
    ts_message_line *to = NULL, *from = NULL;
    if (peer < m->comm->size) {
      to = ts_message_line_create(m->comm, true, peer, 0, &out, 1);
      from = ts_message_line_create(m->comm, false, peer, 0, &in, 1);
    }
    for (int i = 0; i < RUNS; ++i) {
      ts_measure_begin(m->of->world);
      double start = ts_seconds();
      for (int turn = 0; turn < 2 && to != NULL; ++turn) {
        ts_message_line *line = (turn == 0) == (rank % 2 == 0) ? to : from;
        ts_message_start(line);
        ts_message_wait(line);
      }
      seconds[i] = (ts_seconds() - start) / 2;
    }
    if (to != NULL) {
      ts_work work = ts_message_work(TS_OP_SEND, TS_F32, 2, away ? 1 : 2, (double) bytes);
      ts_measured_add(measured, &work, ts_least_quarter(seconds, RUNS));
    }
    ts_message_line_destroy(&to);
    ts_message_line_destroy(&from);
  }
}

typedef struct beside {
  messages *messages;
  atomic_bool ended;
} beside;

static void gather_beside(void *argument) {
  messages *m = ((beside *) argument)->messages;
  gather_all(m, m->bytes, TS_F32);
}

static void note_last_gather(void *argument) {
  atomic_store(&((beside *) argument)->ended, true);
}

/* How many times as long a product takes while gathers go on; as many gathers as take a second and a half. */
static double slowdown_beside(messages *m, const ts_measured *measured) {
  const ts_work work = ts_message_work(TS_OP_ALL_GATHER, TS_F32, m->comm->size, m->together,
                                       (m->comm->size - 1.0) / m->comm->size * (double) m->bytes);
  const double seconds = m->of->quick ? 0.2 : 1.5, each = ts_measured_seconds(measured, &work, NULL);
  const ts_product_shape shape = {512, 512, 512, false, false};
  double mine = fmin(fmax(seconds / each, 2), 200), *all = ts_world_gather(m->of->world, &mine, sizeof mine);
  int n = (int) all[0];
  ts_free(all);
  ts_measure_begin(m->of->world);
  double alone = ts_product_flops(m->of->backend, &shape, TS_F32, m->of->threads, 0.3, true), sum = 0;
  int products = 0;
  beside b = {.messages = m};
  ts_stream *stream = ts_stream_create(true);
  uint64_t ticket = 0;
  ts_measure_begin(m->of->world);
  for (int i = 0; i < n; ++i) {
    ticket = ts_stream_issue(stream, i < n - 1 ? gather_beside : note_last_gather, &b);
  }
  while (!atomic_load(&b.ended)) {
    sum += ts_product_flops(m->of->backend, &shape, TS_F32, m->of->threads, 0.05, true);
    ++products;
  }
  (void) ts_stream_wait(stream, ticket);
  ts_stream_destroy(&stream);
  return products > 0 ? fmax(alone * products / sum, 1) : 1;
}

/* Among all ranks, and among those neighbours that divide them. */
static void measure_groups(messages *m, ts_measured *measured) {
  int ranks = ts_world_size(m->of->world);
  bool device = ts_backend_device(m->of->backend) != NULL;
  for (int group = ranks; group > 1; --group) {
    const int size[TS_N_AXES] = {1, ranks / group, 1, 1, group};
    if (ranks % group != 0) {
      continue;
    }
    ts_mesh mesh;
    TS_CHECK(ts_mesh_init(&mesh, size, ranks, ts_world_rank(m->of->world), NULL) == TS_OK, "a group divides the ranks");
    m->comm = (device ? ts_world_device_comm : ts_world_comm)(m->of->world, &mesh, TS_AXES(TS_AXIS_TP));
    m->together = 0;
    for (int i = 0; i < group; ++i) {
      int member = ts_mesh_group_member(&mesh, TS_AXES(TS_AXIS_TP), i);
      m->together += ts_world_node(m->of->world, member) == ts_world_node(m->of->world, mesh.rank);
    }
    measure_group(m, measured);
    if (group == ranks && !device) {
      measure_line(m, measured);
      measured->slowdown = slowdown_beside(m, measured);
    }
  }
}

void ts_measure_messages(const ts_measuring *of, ts_measured *measured) {
  const size_t bytes = of->quick ? (size_t) 1 << 20 : (size_t) 128 << 20; /* 128 MiB hold six sizes */
  int ranks = ts_world_size(of->world);
  if (ranks == 1) {
    return;
  }
  bool device = ts_backend_device(of->backend) != NULL;
  int64_t columns = (int64_t) (bytes / sizeof(float));
  messages m = {.of = of, .bytes = bytes};
  m.workspace_bytes = (device ? ts_comm_device_workspace : ts_comm_workspace)(ranks, columns, TS_F32) +
                      2 * bytes; /* an exchange packs what leaves and what comes */
  m.cuts = ts_calloc((size_t) ranks + 1, sizeof *m.cuts);
  m.sent = ts_calloc((size_t) ranks, sizeof *m.sent);
  m.received = ts_calloc((size_t) ranks, sizeof *m.received);
  m.x = of->backend->allocate(m.bytes);
  m.y = of->backend->allocate(m.bytes);
  m.workspace = of->backend->allocate(m.workspace_bytes);
  if (!device) { /* what was never written is the kernel's one page of zeros, read from a cache */
    memset(m.x, 0, m.bytes);
  }
  measure_groups(&m, measured);
  of->backend->release(m.x, m.bytes);
  of->backend->release(m.y, m.bytes);
  of->backend->release(m.workspace, m.workspace_bytes);
  ts_free(m.cuts);
  ts_free(m.sent);
  ts_free(m.received);
}
