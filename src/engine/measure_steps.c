/* What the steps of models take, node by node. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "deck/deck_read.h"
#include "engine/engine.h"
#include "engine/measure.h"
#include "engine/peak.h"
#include "graph/op.h"
#include "run/timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

typedef struct observation {
  const ts_node *node; /* of the engine's program */
  double seconds;
} observation;

/* What was seen of all nodes, in the order in which they ended. */
typedef struct observations {
  const ts_program *program;
  int node;          /* ranks of one: whose messages leave it */
  observation *seen; /* owned */
  int n, capacity;
} observations;

/* Who waits for another stage, where there are any, does so for its work, not for a message. */
static bool waits_for_stages(const ts_program *program, const ts_node *node) {
  bool among = ts_node_is_collective(node) && (node->attr.comm.axes & TS_AXES(TS_AXIS_PP)) != 0;
  return ts_node_is_message(node) || (among && program->mesh.size[TS_AXIS_PP] > 1);
}

static void observe(void *user, const ts_node *node, bool collective, double start, double seconds) {
  (void) collective;
  (void) start;
  observations *o = user;
  if (!waits_for_stages(o->program, node) && !ts_node_is_copy(node)) {
    TS_GROW(o->seen, o->n, o->capacity);
    o->seen[o->n++] = (observation){node, seconds};
  }
}

static int by_work(const void *a, const void *b) {
  const ts_sample *x = a, *y = b;
  int order = ts_work_order(&x->work, &y->work);
  return order != 0 ? order : (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

/* Seconds of a step. */
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
  return ts_least_quarter(seconds, steps);
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

enum { FEWEST_TURNS = 3, FEW_TURNS = 5, MOST_TURNS = 64 };

/* Steps that are observed, and between them others that are timed, as the speed of a machine that others share changes
 * within seconds.  Of both the fastest quarter counts. */
typedef struct turns {
  observations o;
  int n, end[MOST_TURNS];                         /* of o.seen, where each step ends */
  double observed[MOST_TURNS], timed[MOST_TURNS]; /* seconds */
} turns;

static void observe_step(ts_world *world, ts_engine *engine, const ts_batch *batch, turns *t) {
  ts_executor_set_observer(ts_engine_executor(engine), observe, &t->o);
  t->observed[t->n] = run_steps(world, engine, batch, 1);
  ts_executor_set_observer(ts_engine_executor(engine), NULL, NULL);
  t->end[t->n++] = t->o.n;
}

/* Samples, one of each work. */
typedef struct samples {
  ts_sample *sample; /* owned */
  int n, capacity;
} samples;

static void append_sample(samples *to, const ts_work *work, double seconds) {
  TS_GROW(to->sample, to->n, to->capacity);
  to->sample[to->n++] = (ts_sample){*work, seconds};
}

/* The mean of each work in place of all its samples. */
static void average(samples *of) {
  int kept = 0;
  if (of->n > 0) {
    qsort(of->sample, (size_t) of->n, sizeof *of->sample, by_work);
  }
  for (int begin = 0, end; begin < of->n; begin = end) {
    double sum = 0;
    for (end = begin; end < of->n && ts_work_order(&of->sample[begin].work, &of->sample[end].work) == 0; ++end) {
      sum += of->sample[end].seconds;
    }
    of->sample[kept++] = (ts_sample){of->sample[begin].work, fmax(sum / (end - begin), 1e-9)};
  }
  of->n = kept;
}

static void replace_all(const samples *from, ts_measured *m) {
  for (int i = 0; i < from->n; ++i) {
    ts_measured_replace(m, &from->sample[i].work, from->sample[i].seconds);
  }
}

/* Of the steps that were observed the fastest quarter, whole: all that happened in these belongs to a step, and no sum
 * of what each node took in steps of its own would be one. \return seconds of such a step. */
static double keep_fastest_quarter(const turns *t, samples *to) {
  double sorted[MOST_TURNS];
  samples kept = {0};
  memcpy(sorted, t->observed, sizeof sorted);
  const double seconds = ts_least_quarter(sorted, t->n), most = sorted[t->n / 4 > 0 ? t->n / 4 - 1 : 0];
  for (int i = 0, begin = 0; i < t->n; begin = t->end[i++]) {
    for (int k = begin; k < t->end[i] && t->observed[i] <= most; ++k) {
      const ts_work work = ts_node_work(t->o.program, t->o.seen[k].node, t->o.node);
      append_sample(&kept, &work, t->o.seen[k].seconds);
    }
  }
  average(&kept);
  for (int i = 0; i < kept.n; ++i) {
    append_sample(to, &kept.sample[i].work, kept.sample[i].seconds);
  }
  ts_free(kept.sample);
  return seconds;
}

/* ---- steps of a deck ---- */

/* Of what any rank has seen the mean of those that have: a stage of a pipeline has some for itself, and who comes to a
 * message first waits for the others.  Rank 0 has it then. */
static void share_samples(ts_world *world, const samples *own, ts_measured *m) {
  int *n = ts_world_gather(world, &own->n, sizeof own->n), most = 1;
  for (int i = 0; i < ts_world_size(world); ++i) {
    most = n[i] > most ? n[i] : most;
  }
  ts_sample *mine = ts_calloc((size_t) most, sizeof *mine);
  for (int i = 0; i < own->n; ++i) {
    mine[i] = own->sample[i];
  }
  samples all = {.sample = ts_world_gather(world, mine, (size_t) most * sizeof *mine)};
  for (int i = 0; i < ts_world_size(world) && ts_world_rank(world) == 0; ++i) {
    memmove(&all.sample[all.n], &all.sample[(size_t) i * (size_t) most], (size_t) n[i] * sizeof *mine);
    all.n += n[i];
  }
  average(&all);
  replace_all(&all, m);
  ts_free(all.sample);
  ts_free(mine);
  ts_free(n);
}

/* By the walk of a rank of each stage. */
static double planned_seconds(const ts_engine *e, int node, const ts_measured *m) {
  const ts_mesh first = ts_mesh_at(&e->mesh, 0);
  const ts_offload_stay none = {0}; /* each stage decides for itself, as its ranks did */
  const ts_program_options options = {.deck = e->deck,
                                      .mesh = &first,
                                      .use = TS_MODEL_TRAIN,
                                      .batch = e->deck->train_micro_batch_size_per_gpu,
                                      .length = e->deck->data.sequence_length,
                                      .target = ts_engine_target(e),
                                      .stay = first.size[TS_AXIS_PP] > 1 ? none : e->stay,
                                      .memory = e->budget,
                                      .host_memory = e->host_budget};
  ts_stage_programs s = ts_stage_programs_create(&options);
  ts_clock clock;
  TS_CHECK(ts_clock_step((const ts_program *const *) s.program, s.n, m, node, NULL, NULL, &clock),
           "the programs of a step do not come to its end");
  double seconds = clock.step;
  ts_clock_clear(&clock);
  ts_stage_programs_clear(&s);
  return seconds;
}

/* As many as take, with those between them, some twenty seconds, as what disturbs a machine may last as long; but a few
 * in any case, and no more than have room. */
static int turns_of(double seconds) {
  const double slow = 10;
  return (int) fmin(fmax(10 / seconds, seconds > slow ? FEWEST_TURNS : FEW_TURNS), MOST_TURNS);
}

/* What rank 0 has stands for all. */
static void take_first(ts_world *world, double *value, int n) {
  double *all = ts_world_gather(world, value, (size_t) n * sizeof *value);
  memcpy(value, all, (size_t) n * sizeof *value);
  ts_free(all);
}

/* \param [in] observed, timed  Two engines, or one, or one that is NULL: the other is its turns' alone. */
static void take_turns(ts_world *world, ts_engine *observed, ts_engine *timed, const ts_batch *batch, int n, turns *t) {
  if (observed != NULL) {
    (void) run_steps(world, observed, batch, 1);
  }
  for (int i = 0; i < n; ++i) {
    t->timed[i] = timed != NULL ? run_steps(world, timed, batch, 1) : t->timed[i];
    if (observed != NULL) {
      observe_step(world, observed, batch, t);
    }
  }
  take_first(world, t->observed, n);
}

/* Do messages overlap what is computed on any rank? */
static bool any_overlaps(ts_world *world, const ts_engine *engine) {
  const int mine = ts_engine_program(engine)->schedule->overlaps;
  int *all = ts_world_gather(world, &mine, sizeof mine), any = 0;
  for (int i = 0; i < ts_world_size(world); ++i) {
    any = any || all[i];
  }
  ts_free(all);
  return any;
}

/* Whose messages overlap nothing. */
static ts_status open_quiet(ts_world *world, ts_deck *deck, ts_engine **engine, ts_error *err) {
  const bool overlap = deck->zero_optimization.overlap_comm, tp_overlap = deck->tensor_parallel.tp_overlap_comm;
  deck->zero_optimization.overlap_comm = deck->tensor_parallel.tp_overlap_comm = false;
  ts_status status = open_engine(world, deck, engine, err);
  deck->zero_optimization.overlap_comm = overlap;
  deck->tensor_parallel.tp_overlap_comm = tp_overlap;
  return status;
}

/* What a deck's limits and "auto" leave of its state where it is depends on what else there is: alone then. */
static bool may_be_two(const ts_deck *deck) {
  return !ts_deck_fits_offload(deck) && deck->run.memory_limit == 0 && deck->run.host_memory_limit == 0;
}

/* Messages beside what is computed make it slower, and that is measured apart: so where there are any the steps that
 * are observed are those of a second engine without, beside the first where there is room for both. */
ts_status ts_measure_deck(ts_world *world, ts_deck *deck, ts_measured *m, ts_measured_step *step, ts_error *err) {
  ts_engine *timed = NULL, *second = NULL, *open;
  ts_status status = open_engine(world, deck, &timed, err);
  if (status != TS_OK) {
    ts_engine_destroy(&timed);
    return status;
  }
  enum { WARM = 2 }; /* all memory is taken then, and on a device a step is recorded */
  ts_batch *batch = ts_measure_batch(timed, deck);
  (void) run_steps(world, timed, batch, WARM);
  double warm = run_steps(world, timed, batch, 1);
  take_first(world, &warm, 1);
  const int n = turns_of(warm);
  const bool two = any_overlaps(world, timed);
  turns t = {.o.node = ts_world_local_size(world)};
  ts_log(TS_LOG_INFO, "%d steps, and as many observed, of %.3g s", n, warm);
  ts_error no_room = {0};
  *step = (ts_measured_step){.turns = n, .in_turns = true};
  if (two && (!may_be_two(deck) || open_quiet(world, deck, &second, &no_room) != TS_OK)) {
    ts_engine_destroy(&second);
    take_turns(world, NULL, timed, batch, n, &t);
    ts_engine_destroy(&timed);
    step->in_turns = false;
    status = open_quiet(world, deck, &second, err);
  }
  ts_error_clear(&no_room);
  open = second != NULL ? second : timed;
  if (status == TS_OK) {
    t.o.program = ts_engine_program(open);
    take_turns(world, open, timed, batch, n, &t);
    samples own = {0};
    (void) keep_fastest_quarter(&t, &own);
    share_samples(world, &own, m);
    step->measured = ts_least_quarter(t.timed, n);
    step->planned = ts_world_rank(world) == 0 ? planned_seconds(open, t.o.node, m) : 0;
    ts_free(own.sample);
    ts_free(t.o.seen);
  }
  ts_batch_destroy(&batch);
  ts_engine_destroy(&second);
  ts_engine_destroy(&timed);
  return status;
}

/* ---- steps of small models ---- */

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

/* What a step takes beside its nodes: the median, as a rest has errors of both kinds. */
static double rest_beside_nodes(const turns *t) {
  double rest[MOST_TURNS];
  for (int i = 0, k = 0; i < t->n; ++i) {
    for (rest[i] = t->observed[i]; k < t->end[i]; ++k) {
      rest[i] -= t->o.seen[k].seconds;
    }
  }
  return ts_median(rest, t->n);
}

/* Of recorded steps, which an observer turns off, what is observed does not tell the rest: of both the fastest quarter.
 */
static double rest_of_recorded(double whole, const turns *t) {
  double nodes[MOST_TURNS] = {0};
  for (int i = 0, k = 0; i < t->n; ++i) {
    for (; k < t->end[i]; ++k) {
      nodes[i] += t->o.seen[k].seconds;
    }
  }
  return whole - ts_least_quarter(nodes, t->n);
}

/* What was seen of the nodes of a step that took so long. */
typedef struct seen_step {
  samples own;
  double seconds;
} seen_step;

/* By each rank alone. \param [in,out] best  Seconds of a step, and what was seen of its nodes, if it is faster.
 * \param [out] rest  What a step takes beside its nodes; may be NULL. */
static ts_status measure_steps(ts_world *world, ts_deck *deck, seen_step *best, double *rest, int *nodes,
                               ts_error *err) {
  enum { FEW = 5, MANY = 15 };
  ts_world *alone = ts_world_alone(world);
  ts_engine *engine = NULL;
  ts_status status = ts_world_agree(world, open_engine(alone, deck, &engine, err), err);
  if (status == TS_OK) {
    ts_batch *batch = ts_measure_batch(engine, deck);
    turns t = {.o = {.program = ts_engine_program(engine), .node = 1}};
    (void) run_steps(world, engine, batch, 1);
    while (t.n < (rest != NULL ? MANY : FEW)) {
      observe_step(world, engine, batch, &t);
    }
    if (rest != NULL) {
      bool recorded = ts_backend_device(engine->backend) != NULL;
      *rest = recorded ? rest_of_recorded(run_steps(world, engine, batch, MANY), &t) : rest_beside_nodes(&t);
      *nodes = t.o.n / t.n;
    }
    samples own = {0};
    const double seconds = keep_fastest_quarter(&t, &own);
    if (best->own.n == 0 || seconds < best->seconds) {
      ts_free(best->own.sample);
      *best = (seen_step){own, seconds};
    } else {
      ts_free(own.sample);
    }
    ts_free(t.o.seen);
    ts_batch_destroy(&batch);
  }
  ts_engine_destroy(&engine);
  ts_world_destroy(&alone);
  return status;
}

enum { TYPES = 2, MOST_MICRO_BATCHES = 2, N_MODELS = sizeof models / sizeof *models };

/* A model, in both types, with as many micro-batches as it may have; of the first what a step takes beside its nodes,
 * as that of a large one is lost in the noise. */
static ts_status measure_model(const ts_measuring *of, int model, seen_step best[TYPES][MOST_MICRO_BATCHES],
                               ts_measured *m, ts_error *err) {
  ts_status status = TS_OK;
  for (int type = 0; type < TYPES; ++type) {
    for (int n = 1; n <= models[model].micro_batches && status == TS_OK; ++n) {
      ts_deck *deck = NULL;
      ts_dtype dtype = type == 0 ? TS_F32 : of->low;
      double rest = 0;
      int nodes = 1;
      status = read_model(models[model].text, of->device, of->threads, dtype, n, &deck, err);
      bool first = model == 0 && type == 0 && n == 1;
      status = status == TS_OK ? measure_steps(of->world, deck, &best[type][n - 1], first ? &rest : NULL, &nodes, err)
                               : status;
      if (first && rest / 2 < m->step) {
        m->step = fmax(rest, 0) / 2;
        m->instruction = m->step / (nodes > 0 ? nodes : 1);
      }
      ts_deck_destroy(&deck);
    }
  }
  return status;
}

/* Twice, the faster time of each, as what disturbs a machine comes and goes. */
ts_status ts_measure_models(const ts_measuring *of, ts_measured *m, ts_error *err) {
  m->step = INFINITY;
  const int n_models = of->quick ? 1 : N_MODELS, turns = of->quick ? 1 : 2;
  ts_status status = TS_OK;
  seen_step best[N_MODELS][TYPES][MOST_MICRO_BATCHES] = {0};
  samples all = {0};
  for (int i = 0; i < turns * n_models && status == TS_OK; ++i) {
    status = measure_model(of, i % n_models, best[i % n_models], m, err);
  }
  for (int i = 0; i < N_MODELS * TYPES * MOST_MICRO_BATCHES; ++i) {
    samples *own = &best[i / (TYPES * MOST_MICRO_BATCHES)][i / MOST_MICRO_BATCHES % TYPES][i % MOST_MICRO_BATCHES].own;
    for (int k = 0; k < own->n; ++k) {
      append_sample(&all, &own->sample[k].work, own->sample[k].seconds);
    }
    ts_free(own->sample);
  }
  average(&all);
  replace_all(&all, m);
  ts_free(all.sample);
  m->step = isinf(m->step) ? 0 : m->step;
  return status;
}
