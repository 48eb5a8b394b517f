#include "engine/measure.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "deck/deck_read.h"
#include "engine/engine.h"
#include "engine/peak.h"
#include "graph/op.h"
#include "run/stream.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void wait_for_all(ts_world *world) {
  ts_comm *all = ts_world_all(world);
  all->ops->barrier(all);
}

/* ---- floors, products ---- */

/* Bytes/s read and written on the host: of what no cache holds. */
static double host_copy_rate(int threads) {
  enum { BYTES = 128 << 20, RUNS = 5 };
  char *from = ts_map(BYTES), *to = ts_map(BYTES);
  double best = 0;
  memset(from, 1, BYTES);
  for (int run = 0; run <= RUNS; ++run) {
    double start = ts_seconds();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int i = 0; i < BYTES >> 20; ++i) {
      memcpy(to + ((size_t) i << 20), from + ((size_t) i << 20), 1 << 20);
    }
    double rate = 2.0 * BYTES / (ts_seconds() - start);
    best = run > 0 && rate > best ? rate : best;
  }
  ts_unmap(from, BYTES);
  ts_unmap(to, BYTES);
  return best;
}

void ts_measure_floors(const ts_measuring *of, ts_measured *m) {
  static const int64_t sizes[] = {1024, 2048, 3072, 8192};
  bool device = ts_backend_device(of->backend) != NULL;
  for (int rated = 0; rated < TS_N_RATED; ++rated) {
    m->product[rated] = 0;
    for (int i = device ? 3 : 0; i < (device ? 4 : of->quick ? 1 : 3); ++i) {
      ts_product_shape square = {sizes[i], sizes[i], sizes[i], false, false};
      ts_dtype dtype = rated == TS_RATED_FP32 ? TS_F32 : of->low;
      wait_for_all(of->world);
      double rate = ts_product_flops(of->backend, &square, dtype, of->threads, of->quick ? 0 : 0.3, false);
      m->product[rated] = fmax(m->product[rated], rate);
    }
  }
  wait_for_all(of->world);
  m->copy = device ? ts_copy_rate(of->backend, (size_t) 1 << 30) : host_copy_rate(of->threads);
  m->slowdown = fmax(m->slowdown, 1);
}

static void measure_product(const ts_measuring *of, ts_dtype dtype, const ts_product_shape *shape, ts_measured *m) {
  ts_work work = {.flops = 2.0 * (double) shape->m * (double) shape->n * (double) shape->k,
                  .bytes = (double) (shape->m * shape->k + shape->k * shape->n + shape->m * shape->n) *
                           (double) ts_dtype_size(dtype),
                  .extent = {(double) shape->m, (double) shape->n, (double) shape->k}};
  const char *type = ts_dtype_name(dtype);
  snprintf(work.kind, sizeof work.kind, "%s.%c%c %s>%s", ts_op_get(TS_OP_MATMUL)->name, shape->transpose_a ? 't' : 'n',
           shape->transpose_b ? 't' : 'n', type, type);
  wait_for_all(of->world);
  ts_measured_add(m, &work, work.flops / ts_product_flops(of->backend, shape, dtype, of->threads, 0.03, true));
}

void ts_measure_products(const ts_measuring *of, ts_measured *m) {
  static const int64_t extents[] = {64, 512, 2048};
  static const struct { bool a, b; } turned[] = {{false, false}, {true, false}, {false, true}};
  const int n = of->quick ? 2 : 3;
  for (int i = 0; i < n * n * n; ++i) {
    for (int form = 0; form < 3; ++form) {
      ts_product_shape shape = {extents[i / (n * n)], extents[i / n % n], extents[i % n], turned[form].a,
                                turned[form].b};
      measure_product(of, TS_F32, &shape, m);
      measure_product(of, of->low, &shape, m);
    }
  }
}

/* ---- steps ---- */

ts_batch *ts_measure_batch(const ts_engine *engine, const ts_deck *deck) {
  int64_t n = deck->data.sequence_length + 1;
  uint64_t group = (uint64_t) ts_mesh_group_rank(ts_engine_mesh(engine), TS_AXES_BATCH);
  ts_batch *batch =
      ts_batch_create(deck->train_micro_batch_size_per_gpu * deck->gradient_accumulation_steps, n - 1, TS_INPUTS_ALL);
  int32_t *tokens = ts_malloc((size_t) n * sizeof *tokens);
  for (int64_t i = 0; i < batch->samples; ++i) {
    for (int64_t t = 0; t < n; ++t) {
      uint64_t number = ts_mix(group, (uint64_t) (i * n + t));
      tokens[t] = (int32_t) (number % (uint64_t) deck->model.vocab_size);
    }
    ts_batch_set(batch, i, i, tokens, -1);
  }
  ts_free(tokens);
  return batch;
}

/* What was seen of all nodes, in the order in which they ended. */
typedef struct observations {
  const ts_program *program;
  ts_sample *seen; /* owned */
  int n, capacity;
} observations;

static void observe(void *user, const ts_node *node, bool collective, double start, double seconds) {
  (void) start;
  observations *o = user;
  if (!collective && !ts_node_is_copy(node)) {
    TS_GROW(o->seen, o->n, o->capacity);
    o->seen[o->n++] = (ts_sample){ts_node_work(o->program, node, 1), seconds};
  }
}

static int by_work(const void *a, const void *b) {
  const ts_sample *x = a, *y = b;
  int order = strcmp(x->work.kind, y->work.kind);
  for (int i = 0; i < TS_WORK_EXTENTS && order == 0; ++i) {
    order = (x->work.extent[i] > y->work.extent[i]) - (x->work.extent[i] < y->work.extent[i]);
  }
  return order != 0 ? order : (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

static bool is_same(const ts_sample *a, const ts_sample *b) {
  ts_sample x = *a, y = *b;
  x.seconds = y.seconds = 0;
  return by_work(&x, &y) == 0;
}

/* Of each work the mean of the middle half: an instance is in a cache, another is not, a third was interrupted.
 * \return seconds of a step by these. */
static double keep_samples(observations *o, int steps, ts_measured *m) {
  double all = 0;
  qsort(o->seen, (size_t) o->n, sizeof *o->seen, by_work);
  for (int begin = 0, end; begin < o->n; begin = end) {
    for (end = begin + 1; end < o->n && is_same(&o->seen[begin], &o->seen[end]);) {
      ++end;
    }
    int n = end - begin, first = begin + n / 4, last = end - n / 4;
    double sum = 0;
    for (int i = first; i < last; ++i) {
      sum += o->seen[i].seconds;
    }
    double seconds = fmax(sum / (last - first), 1e-9);
    all += seconds * n / steps;
    ts_measured_add(m, &o->seen[begin].work, seconds);
  }
  return all;
}

static int by_seconds(const void *a, const void *b) {
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

/* Seconds of a step: the median. */
static double run_steps(ts_world *world, ts_engine *engine, const ts_batch *batch, int steps) {
  enum { MOST = 16 };
  double seconds[MOST];
  TS_CHECK(steps <= MOST, "%d steps are more than %d", steps, MOST);
  for (int s = 0; s < steps; ++s) {
    wait_for_all(world);
    double start = ts_seconds();
    (void) ts_engine_train_step(engine, &(ts_step_input){.batch = batch});
    seconds[s] = ts_seconds() - start;
  }
  qsort(seconds, (size_t) steps, sizeof *seconds, by_seconds);
  return seconds[steps / 2];
}

/* What is left of a step when its nodes are done: of a small one, as of a large one it is less than what steps differ by. */
static void keep_rest(const ts_program *program, double rest, ts_measured *m) {
  m->step = fmax(rest, 0) / 2;
  m->instruction = fmax(rest, 0) / (2 * (double) program->graph->n_nodes);
}

static ts_status open_engine(ts_world *world, ts_deck *deck, ts_engine **engine, ts_error *err) {
  ts_text said = {0};
  ts_mesh mesh;
  ts_status status = ts_deck_mesh(deck, ts_world_size(world), ts_world_rank(world), &mesh, err);
  status = status == TS_OK ? ts_engine_decide_precision(world, deck, &said, err) : status;
  status = status == TS_OK ? ts_deck_resolve_batch(deck, ts_mesh_group_size(&mesh, TS_AXES_BATCH), err) : status;
  status =
      status == TS_OK
          ? ts_engine_create(&(ts_engine_options){.world = world, .deck = deck, .abilities = TS_CAN_TRAIN}, engine, err)
          : status;
  ts_text_free(&said);
  return status;
}

/* By one rank alone, each for itself; with \a rest what a step takes beside its nodes, too. */
static ts_status measure_steps(ts_world *world, ts_deck *deck, bool alone, bool rest, ts_measured *m, ts_error *err) {
  enum { WARM = 1, TIMED = 15, OBSERVED = 3 };
  ts_world *of = alone ? ts_world_alone(world) : world;
  ts_engine *engine = NULL;
  ts_status status = open_engine(of, deck, &engine, err);
  status = alone ? ts_world_agree(world, status, err) : status;
  if (status == TS_OK) {
    ts_batch *batch = ts_measure_batch(engine, deck);
    observations o = {.program = ts_engine_program(engine)};
    (void) run_steps(world, engine, batch, WARM);
    double whole = rest ? run_steps(world, engine, batch, TIMED) : 0;
    ts_executor_set_observer(ts_engine_executor(engine), observe, &o);
    (void) run_steps(world, engine, batch, OBSERVED);
    ts_executor_set_observer(ts_engine_executor(engine), NULL, NULL);
    double nodes = keep_samples(&o, OBSERVED, m);
    if (rest) {
      keep_rest(o.program, whole - nodes, m);
    }
    ts_free(o.seen);
    ts_batch_destroy(&batch);
  }
  ts_engine_destroy(&engine);
  if (alone) {
    ts_world_destroy(&of);
  }
  return status;
}

ts_status ts_measure_deck(ts_world *world, ts_deck *deck, ts_measured *m, ts_error *err) {
  return measure_steps(world, deck, false, false, m, err);
}

/* The first is the smallest. */
static const struct {
  const char *text;
  int micro_batches; /* 1, or as many as that */
} models[] = {
    {"model = { model_type = \"gpt2\"; vocab_size = 512; n_embd = 128; n_layer = 2; n_head = 4; n_positions = 1024; };"
     "data = { path = \"made up\"; sequence_length = 64; }; train_micro_batch_size_per_gpu = 4;",
     2},
    {"model = { model_type = \"llama\"; vocab_size = 4096; hidden_size = 256; intermediate_size = 704; "
     "num_hidden_layers = 2; num_attention_heads = 4; num_key_value_heads = 2; max_position_embeddings = 1024; };"
     "data = { path = \"made up\"; sequence_length = 256; }; train_micro_batch_size_per_gpu = 2;",
     2},
    {"model = { model_type = \"gpt2\"; vocab_size = 8192; n_embd = 384; n_layer = 2; n_head = 6; n_positions = 1024; };"
     "data = { path = \"made up\"; sequence_length = 128; }; train_micro_batch_size_per_gpu = 4;",
     2},
    {"model = { model_type = \"gpt2\"; vocab_size = 16384; n_embd = 768; n_layer = 1; n_head = 12; n_positions = 1024; "
     "};"
     "data = { path = \"made up\"; sequence_length = 256; }; train_micro_batch_size_per_gpu = 4;",
     1},
    {"model = { model_type = \"llama\"; vocab_size = 8192; hidden_size = 1024; intermediate_size = 2816; "
     "num_hidden_layers = 1; num_attention_heads = 16; num_key_value_heads = 8; max_position_embeddings = 1024; };"
     "data = { path = \"made up\"; sequence_length = 512; }; train_micro_batch_size_per_gpu = 1;",
     1}};

static ts_status read_model(const char *text, const char *device, int threads, ts_dtype dtype, int micro_batches,
                            ts_deck **deck, ts_error *err) {
  char *sets[] = {ts_format("run.device=%s", device),
                  ts_format("run.threads=%d", threads),
                  ts_format("bf16.enabled=%s", dtype == TS_BF16 ? "true" : "false"),
                  ts_format("fp16.enabled=%s", dtype == TS_F16 ? "true" : "false"),
                  ts_format("gradient_accumulation_steps=%d", micro_batches),
                  ts_format("run.directory=none"),
                  ts_format("gradient_clipping=1.0")};
  enum { SETS = sizeof sets / sizeof *sets };
  ts_status status = ts_deck_read_text("tessera bench", text, sets, SETS, deck, err);
  for (int i = 0; i < SETS; ++i) {
    ts_free(sets[i]);
  }
  return status;
}

ts_status ts_measure_open(ts_measuring *of, ts_error *err) {
  ts_deck *deck = NULL;
  ts_status status = read_model(models[0].text, of->device, 0, TS_F32, 1, &deck, err);
  status = status == TS_OK ? ts_engine_backend(deck, of->world, &of->backend, err) : status;
  of->threads = status == TS_OK ? ts_engine_threads(deck, ts_world_local_size(of->world)) : 0;
  ts_deck_destroy(&deck);
  return status;
}

/* A model, in both types, with as many micro-batches as it may have. */
static ts_status measure_model(const ts_measuring *of, int model, bool first, ts_measured *m, ts_error *err) {
  ts_status status = TS_OK;
  for (int type = 0; type < 2; ++type) {
    for (int n = 1; n <= models[model].micro_batches && status == TS_OK; ++n) {
      ts_deck *deck = NULL;
      ts_dtype dtype = type == 0 ? TS_F32 : of->low;
      status = read_model(models[model].text, of->device, of->threads, dtype, n, &deck, err);
      bool rest = first && model == 0 && type == 0 && n == 1;
      status = status == TS_OK ? measure_steps(of->world, deck, true, rest, m, err) : status;
      ts_deck_destroy(&deck);
    }
  }
  return status;
}

/* Twice, as what disturbs a machine comes and goes. */
ts_status ts_measure_models(const ts_measuring *of, ts_measured *m, ts_error *err) {
  const int n_models = of->quick ? 1 : (int) (sizeof models / sizeof *models), turns = of->quick ? 1 : 2;
  ts_status status = TS_OK;
  for (int i = 0; i < turns * n_models && status == TS_OK; ++i) {
    status = measure_model(of, i % n_models, i < n_models, m, err);
  }
  return status;
}

/* ---- messages ---- */

typedef struct messages {
  const ts_measuring *of;
  ts_comm *comm;
  int64_t *cuts;
  void *x, *y, *workspace;
  size_t bytes, workspace_bytes; /* of x and of y, which are of as many */
  bool across;                   /* the group is on several nodes */
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

static void gather(messages *m, size_t bytes, ts_dtype dtype) {
  const ts_transfer t = cut_evenly(m, bytes, dtype);
  m->comm->ops->all_gather(m->comm, &t, 1, dtype);
}

static void reduce(messages *m, size_t bytes, ts_dtype dtype) {
  const ts_transfer t = cut_evenly(m, bytes, dtype);
  m->comm->ops->reduce_scatter(m->comm, &t, 1, dtype, dtype, dtype, NULL, m->workspace, m->workspace_bytes);
}

static void reduce_all(messages *m, size_t bytes, ts_dtype dtype) {
  int64_t count = (int64_t) (bytes / ts_dtype_size(dtype));
  m->comm->ops->all_reduce(m->comm, m->x, m->y, count, dtype, dtype, m->workspace, m->workspace_bytes);
}

/* A block of rows to everybody. */
static void exchange(messages *m, size_t bytes, ts_dtype dtype) {
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
} rows[] = {{TS_OP_ALL_GATHER, gather, 1},
            {TS_OP_REDUCE_SCATTER, reduce, 1},
            {TS_OP_ALL_REDUCE, reduce_all, 2},
            {TS_OP_ALL_TO_ALL, exchange, 1}};

static double seconds_of(messages *m, collective *run, size_t bytes, ts_dtype dtype) {
  enum { RUNS = 5, FEW_BYTES = 1 << 20 };
  int times = bytes < FEW_BYTES ? 20 : 2;
  double seconds[RUNS];
  run(m, bytes, dtype);
  for (int i = 0; i < RUNS; ++i) {
    wait_for_all(m->of->world);
    double start = ts_seconds();
    for (int k = 0; k < times; ++k) {
      run(m, bytes, dtype);
    }
    m->comm->ops->barrier(m->comm);
    seconds[i] = (ts_seconds() - start) / times;
  }
  qsort(seconds, RUNS, sizeof *seconds, by_seconds);
  return seconds[RUNS / 2];
}

static void measure_group(messages *m, ts_measured *measured) {
  const double size = m->comm->size;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    for (int type = 0; type < 2; ++type) {
      for (size_t bytes = 4096; bytes <= m->bytes; bytes *= 8) { /* 4 kB to 64 MB in six sizes */
        ts_dtype dtype = type == 0 ? TS_F32 : m->of->low;
        double seconds = seconds_of(m, rows[i].run, bytes, dtype);
        ts_work work = ts_message_work(rows[i].op, dtype, m->comm->size, m->across,
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
      wait_for_all(m->of->world);
      double start = ts_seconds();
      for (int turn = 0; turn < 2 && to != NULL; ++turn) {
        ts_message_line *line = (turn == 0) == (rank % 2 == 0) ? to : from;
        ts_message_start(line);
        ts_message_wait(line);
      }
      seconds[i] = (ts_seconds() - start) / 2;
    }
    qsort(seconds, RUNS, sizeof *seconds, by_seconds);
    if (to != NULL) {
      ts_work work = ts_message_work(TS_OP_SEND, TS_F32, 2, away, (double) bytes);
      ts_measured_add(measured, &work, seconds[RUNS / 2]);
    }
    ts_message_line_destroy(&to);
    ts_message_line_destroy(&from);
  }
}

/* ---- products beside messages ---- */

typedef struct beside {
  messages *messages;
  atomic_bool ended;
} beside;

static void gather_beside(void *argument) {
  messages *m = ((beside *) argument)->messages;
  gather(m, m->bytes, TS_F32);
}

static void note_end(void *argument) {
  atomic_store(&((beside *) argument)->ended, true);
}

/* How many times as long a product takes while gathers go on; as many gathers as take a second and a half. */
static double slowdown_beside(messages *m, const ts_measured *measured) {
  const ts_work work = ts_message_work(TS_OP_ALL_GATHER, TS_F32, m->comm->size, m->across,
                                       (m->comm->size - 1.0) / m->comm->size * (double) m->bytes);
  const double seconds = m->of->quick ? 0.2 : 1.5, each = ts_measured_seconds(measured, &work, NULL);
  const ts_product_shape shape = {512, 512, 512, false, false};
  double mine = fmin(fmax(seconds / each, 2), 200), *all = ts_world_gather(m->of->world, &mine, sizeof mine);
  int n = (int) all[0];
  ts_free(all);
  wait_for_all(m->of->world);
  double alone = ts_product_flops(m->of->backend, &shape, TS_F32, m->of->threads, 0.3, true), sum = 0;
  int products = 0;
  beside b = {.messages = m};
  ts_stream *stream = ts_stream_create(true);
  uint64_t ticket = 0;
  wait_for_all(m->of->world);
  for (int i = 0; i < n; ++i) {
    ticket = ts_stream_issue(stream, i < n - 1 ? gather_beside : note_end, &b);
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
    m->across = false;
    for (int i = 0; i < group; ++i) {
      int member = ts_mesh_group_member(&mesh, TS_AXES(TS_AXIS_TP), i);
      m->across = m->across || ts_world_node(m->of->world, member) != ts_world_node(m->of->world, mesh.rank);
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
  measure_groups(&m, measured);
  of->backend->release(m.x, m.bytes);
  of->backend->release(m.y, m.bytes);
  of->backend->release(m.workspace, m.workspace_bytes);
  ts_free(m.cuts);
  ts_free(m.sent);
  ts_free(m.received);
}
