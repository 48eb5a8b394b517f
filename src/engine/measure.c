#include "engine/measure.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "deck/deck_read.h"
#include "engine/engine.h"
#include "engine/peak.h"
#include "graph/op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void ts_measure_begin(ts_world *world) {
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
      ts_measure_begin(of->world);
      double rate = ts_product_flops(of->backend, &square, dtype, of->threads, of->quick ? 0 : 0.3, false);
      m->product[rated] = fmax(m->product[rated], rate);
    }
  }
  ts_measure_begin(of->world);
  double host = host_copy_rate(of->threads);
  ts_measure_begin(of->world);
  m->copy = device ? ts_copy_rate(of->backend, (size_t) 1 << 30) : host;
  m->host = device ? host : 0;
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
  ts_measure_begin(of->world);
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
  int order = ts_work_order(&x->work, &y->work);
  return order != 0 ? order : (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

/* Of each work the mean of the middle half: an instance is in a cache, another is not, a third was interrupted.
 * \return seconds of a step by these. */
static double keep_samples(observations *o, int steps, ts_measured *m) {
  double all = 0;
  qsort(o->seen, (size_t) o->n, sizeof *o->seen, by_work);
  for (int begin = 0, end; begin < o->n; begin = end) {
    for (end = begin + 1; end < o->n && ts_work_order(&o->seen[begin].work, &o->seen[end].work) == 0;) {
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

/* Seconds of a step: the median. */
static double run_steps(ts_world *world, ts_engine *engine, const ts_batch *batch, int steps) {
  enum { MOST = 16 };
  double seconds[MOST];
  TS_CHECK(steps <= MOST, "%d steps are more than %d", steps, MOST);
  for (int s = 0; s < steps; ++s) {
    ts_measure_begin(world);
    double start = ts_seconds();
    (void) ts_engine_train_step(engine, &(ts_step_input){.batch = batch});
    seconds[s] = ts_seconds() - start;
  }
  return ts_median(seconds, steps);
}

/* What is left of a step when its nodes are done: of a small one, as that of a large one is lost in the noise; the
 * least that was seen. */
static void keep_rest(double rest, double nodes, ts_measured *m) {
  double half = fmax(rest, 0) / 2;
  if (half < m->step) {
    m->step = half;
    m->instruction = half / nodes;
  }
}

/* To the samples of rank 0 those that others have, as ranks of a pipeline do. */
static void share_samples(ts_world *world, ts_measured *m) {
  int *n = ts_world_gather(world, &m->n, sizeof m->n), most = 0;
  for (int i = 0; i < ts_world_size(world); ++i) {
    most = n[i] > most ? n[i] : most;
  }
  ts_sample *mine = ts_calloc((size_t) most + 1, sizeof *mine);
  memcpy(mine, m->sample, (size_t) m->n * sizeof *mine);
  ts_sample *all = ts_world_gather(world, mine, ((size_t) most + 1) * sizeof *mine);
  for (int i = 0; i < ts_world_size(world); ++i) {
    for (int k = 0; ts_world_rank(world) == 0 && i > 0 && k < n[i]; ++k) {
      const ts_sample *s = &all[(size_t) i * ((size_t) most + 1) + (size_t) k];
      ts_measured_add(m, &s->work, s->seconds);
    }
  }
  ts_free(all);
  ts_free(mine);
  ts_free(n);
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
      keep_rest(whole - nodes, fmax((double) o.n / OBSERVED, 1), m);
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

/* Without messages beside them, by which nodes take longer: that is measured apart. */
ts_status ts_measure_deck(ts_world *world, ts_deck *deck, ts_measured *m, ts_error *err) {
  deck->zero_optimization.overlap_comm = deck->tensor_parallel.tp_overlap_comm = false;
  ts_status status = measure_steps(world, deck, false, false, m, err);
  if (status == TS_OK) {
    share_samples(world, m);
  }
  return status;
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
  if (status == TS_OK && of->threads == 0) {
    of->threads = ts_engine_threads(deck, ts_world_local_size(of->world));
  }
  ts_deck_destroy(&deck);
  return status;
}

/* A model, in both types, with as many micro-batches as it may have. */
static ts_status measure_model(const ts_measuring *of, int model, ts_measured *m, ts_error *err) {
  ts_status status = TS_OK;
  for (int type = 0; type < 2; ++type) {
    for (int n = 1; n <= models[model].micro_batches && status == TS_OK; ++n) {
      ts_deck *deck = NULL;
      ts_dtype dtype = type == 0 ? TS_F32 : of->low;
      status = read_model(models[model].text, of->device, of->threads, dtype, n, &deck, err);
      bool rest = model == 0 && type == 0 && n == 1;
      status = status == TS_OK ? measure_steps(of->world, deck, true, rest, m, err) : status;
      ts_deck_destroy(&deck);
    }
  }
  return status;
}

/* Twice, as what disturbs a machine comes and goes. */
ts_status ts_measure_models(const ts_measuring *of, ts_measured *m, ts_error *err) {
  m->step = INFINITY;
  const int n_models = of->quick ? 1 : (int) (sizeof models / sizeof *models), turns = of->quick ? 1 : 2;
  ts_status status = TS_OK;
  for (int i = 0; i < turns * n_models && status == TS_OK; ++i) {
    status = measure_model(of, i % n_models, m, err);
  }
  m->step = isinf(m->step) ? 0 : m->step;
  return status;
}
