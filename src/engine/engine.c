#include "engine/engine.h"

#include "base/heartbeat.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/identity.h"
#include "engine/placement.h"
#include "graph/record.h"
#include "pass/optimizer.h"
#include "pass/stage.h"
#include "run/cuts.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int ts_engine_threads(const ts_deck *deck, int local_ranks) {
  if (deck->run.threads > 0) {
    return (int) deck->run.threads;
  }
  const char *omp = getenv("OMP_NUM_THREADS");
  if (omp != NULL && atoi(omp) > 0) {
    return atoi(omp);
  }
  /* A rank bound to some of the processors has them for itself; ranks that may run anywhere share all. */
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t set;
  int mine = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int) online;
  int threads = mine < online && local_ranks > 1 ? mine : mine / local_ranks;
  return threads > 0 ? threads : 1;
}

/* ---- what can be wrong with a deck only once its model is known ---- */

/* Against all names: \return as ts_matches; the name on which it was given up. */
static int match_parameters(const ts_layout *layout, const char *pattern, const char **endless) {
  int found = 0;
  for (int i = 0; i < layout->n_parameters && found >= 0; ++i) {
    int match = ts_matches(pattern, layout->parameter[i].name);
    *endless = layout->parameter[i].name;
    found = match != 0 ? match : found;
  }
  return found;
}

/* One that names nothing is a mistake, but of no_decay, where it may be there for another family. */
static ts_status check_parameter_pattern(const ts_deck *deck, const ts_layout *layout, const char *key,
                                         const char *pattern, bool names_some, ts_error *err) {
  const char *endless = NULL;
  int found = match_parameters(layout, pattern, &endless);
  if (found < 0) {
    return ts_deck_error(deck, key, err,
                         "\"%s\" takes too long to match %s; accepted: an expression without nested repetitions",
                         pattern, endless);
  }
  if (found == 0 && names_some) {
    return ts_deck_error(deck, key, err, "\"%s\" matches no parameter; the first is called %s", pattern,
                         layout->parameter[0].name);
  }
  if (found == 0) {
    ts_log(TS_LOG_DEBUG, "%s: \"%s\" matches no parameter", key, pattern);
  }
  return TS_OK;
}

static ts_status check_strings(const ts_deck *deck, const ts_layout *layout, const char *key,
                               const ts_strings *patterns, bool names_some, ts_error *err) {
  ts_status status = TS_OK;
  for (int i = 0; i < patterns->n; ++i) {
    bool ok = check_parameter_pattern(deck, layout, key, patterns->items[i], names_some, err) == TS_OK;
    status = ok ? status : TS_BAD_INPUT;
  }
  return status;
}

static ts_status check_patterns(const ts_deck *deck, const ts_layout *layout, ts_error *err) {
  ts_status status = check_strings(deck, layout, "frozen", &deck->frozen, true, err);
  for (int i = 0; i < deck->optimizer.groups.n; ++i) {
    char *key = ts_format("optimizer.groups[%d].pattern", i);
    bool ok = check_parameter_pattern(deck, layout, key, deck->optimizer.groups.items[i].pattern, true, err) == TS_OK;
    status = ok ? status : TS_BAD_INPUT;
    ts_free(key);
  }
  bool ok = check_strings(deck, layout, "optimizer.no_decay", &deck->optimizer.no_decay, false, err) == TS_OK;
  return ok ? status : TS_BAD_INPUT;
}

static ts_status check_leaf_modules(const ts_deck *deck, const ts_layout *layout, ts_error *err) {
  const char **name = ts_malloc(((size_t) layout->n_parameters + 1) * sizeof *name);
  for (int i = 0; i < layout->n_parameters; ++i) {
    name[i] = layout->parameter[i].name;
  }
  ts_status status = ts_model_check_leaves(deck, name, layout->n_parameters, err);
  ts_free(name);
  return status;
}

/* Biases of routers that could follow the balance, and a pattern keeps where they are. */
static void warn_of_frozen_biases(const ts_deck *deck, const ts_layout *layout) {
  int biases = 0, frozen = 0;
  for (int i = 0; i < layout->n_parameters && deck->expert_parallel.load_balance_coeff > 0; ++i) {
    const ts_parameter *p = &layout->parameter[i];
    bool bias = ts_optimizer_is_router_bias(deck, p->name);
    biases += bias;
    frozen += bias && !layout->part[p->part].trainable;
  }
  if (frozen > 0) {
    ts_log(TS_LOG_WARNING,
           "expert_parallel.load_balance_coeff: no effect on %d of %d routers, whose biases \"frozen\" or "
           "optimizer.groups keep where they are",
           frozen, biases);
  }
}

static ts_status check_trainable(const ts_engine *e, ts_error *err) {
  const ts_program *p = e->program[TS_PROGRAM_TRAIN];
  if (p == NULL) {
    return TS_OK;
  }
  ts_status status = check_patterns(e->deck, p->layout, err);
  status = check_leaf_modules(e->deck, p->layout, err) == TS_OK ? status : TS_BAD_INPUT;
  warn_of_frozen_biases(e->deck, p->layout);
  if (ts_layout_parameter_count(p->layout, true) == 0) {
    status = ts_deck_error(e->deck, "frozen", err, "every parameter is frozen; there is nothing to train");
  }
  return status;
}

/* What the kernels of a device cannot do, known before anything is allocated; the first node is enough. */
static ts_status check_device(const ts_engine *e, ts_error *err) {
  ts_device *device = ts_backend_device(e->backend);
  for (int i = 0; i < TS_N_PROGRAMS && device != NULL; ++i) {
    const ts_graph *g = e->program[i] != NULL ? e->program[i]->graph : NULL;
    for (ts_nid n = 0; g != NULL && n < g->n_nodes; ++n) {
      const char *why = device->ops->refuses(device, g, &g->node[n]);
      if (why != NULL) {
        return ts_error_add(err, "%s: %s; run.device = \"cpu\" takes it", g->node[n].name, why);
      }
    }
  }
  return TS_OK;
}

static ts_status check_programs(const ts_engine *e, ts_error *err) {
  ts_status status = check_trainable(e, err);
  status = ts_world_agree(e->world, status == TS_OK ? check_device(e, err) : status, err);
  status = status == TS_OK ? ts_engine_check_limits(e, err) : status;
  return status == TS_OK ? ts_world_agree(e->world, ts_engine_check_memory(e, err), err) : status;
}

/* The grid, the backend, and that all ranks are one job. */
static ts_status find_place(ts_engine *e, const ts_engine_options *o, ts_error *err) {
  if (o->mesh != NULL) {
    e->mesh = *o->mesh;
  } else if (ts_deck_mesh(o->deck, ts_world_size(o->world), ts_world_rank(o->world), &e->mesh, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_status status = ts_engine_backend(o->deck, o->world, &e->backend, err);
  if (status != TS_OK) {
    return status;
  }
  status = ts_identity_check(o->world, o->deck, e->backend, err);
  if (status == TS_OK) {
    ts_engine_place(o->world, o->deck, e->backend->device != NULL ? ts_cuda_bus_id() : "");
  }
  return status;
}

static void make_executor(ts_engine *e, const ts_engine_options *o) {
  const ts_program *programs[TS_N_PROGRAMS];
  for (int i = 0; i < TS_N_PROGRAMS; ++i) {
    if (e->program[i] != NULL) {
      programs[e->index[i]] = e->program[i];
    }
  }
  const ts_executor_options options = {.world = o->world,
                                       .store = e->store,
                                       .memcheck = o->deck->debug.memcheck,
                                       .check_finite = o->deck->debug.check_finite,
                                       .graphs = o->deck->run.cuda_graphs,
                                       .observer = o->observer,
                                       .observer_user = o->observer_user};
  e->executor = ts_executor_create(programs, e->n_programs, &options);
}

static ts_status check_model_of(const ts_engine *e, const ts_engine_options *o, ts_error *err) {
  bool trains = (o->abilities & (TS_CAN_TRAIN | TS_CAN_STEP)) != 0;
  const ts_program_options options = {.deck = o->deck,
                                      .mesh = &e->mesh,
                                      .model = o->model,
                                      .use = trains ? TS_MODEL_TRAIN : TS_MODEL_LOSS,
                                      .target = {.backend = e->backend},
                                      .by_hand = (o->abilities & TS_CAN_STEP) != 0,
                                      .seeded = (o->abilities & TS_CAN_SEED) != 0,
                                      .evaluates = (o->abilities & TS_CAN_EVALUATE) != 0,
                                      .batch = o->deck->train_micro_batch_size_per_gpu,
                                      .length = o->deck->data.sequence_length};
  return ts_program_check(&options, err);
}

/* Within a limit that nothing fits is said of the whole engine, with the smallest that does. */
static ts_status choose_cuts_here(const ts_engine *e, const ts_engine_options *o, int64_t memory, int64_t budget,
                                  ts_error *err) {
  const ts_mesh first = ts_mesh_at(&e->mesh, 0);
  const ts_program_options options = {.deck = o->deck,
                                      .mesh = &first,
                                      .model = o->model,
                                      .use = TS_MODEL_TRAIN,
                                      .target = ts_engine_target(e),
                                      .batch = o->deck->train_micro_batch_size_per_gpu,
                                      .length = o->deck->data.sequence_length,
                                      .memory = budget};
  ts_error none = {0};
  ts_status status = ts_cuts_decide(&options, o->deck, memory, &none);
  status = status != TS_OK && ts_engine_limit(e) == 0 ? ts_error_add(err, "%s", none.text) : TS_OK;
  ts_error_clear(&none);
  return status;
}

/* Where a pipeline's model is cut: rank 0 plans it, for the rank that has least memory, and everybody takes that. */
static ts_status decide_cuts(const ts_engine *e, const ts_engine_options *o, ts_error *err) {
  if ((o->abilities & TS_CAN_TRAIN) == 0 || !ts_cuts_are_open(o->deck, &e->mesh)) {
    return TS_OK;
  }
  const int64_t limit = ts_engine_limit(e), memory = limit > 0 ? limit : ts_engine_memory_of_rank(e),
                budget = ts_deck_fits_offload(o->deck) ? ts_engine_budget(e) : limit;
  bool decides = ts_world_rank(e->world) == 0;
  ts_status status = ts_world_agree(e->world, decides ? choose_cuts_here(e, o, memory, budget, err) : TS_OK, err);
  const ts_pipeline pipeline = ts_deck_pipeline(o->deck, &e->mesh);
  int n = pipeline.stages * pipeline.chunks;
  ts_comm *all = ts_world_all(e->world);
  int64_t *units = ts_calloc((size_t) n, sizeof *units);
  if (decides) {
    memcpy(units, o->deck->pipeline.units.items, (size_t) n * sizeof *units);
  }
  all->ops->broadcast(all, units, (size_t) n * sizeof *units, 0);
  ts_cuts_take(o->deck, units, n);
  ts_free(units);
  return status;
}

static ts_status set_up_engine(ts_engine *e, const ts_engine_options *o, ts_error *err) {
  if (o->model != NULL && (o->abilities & TS_CAN_GENERATE) != 0) {
    return ts_error_add(err, "the model %s is a program's own, and only those of families generate", o->model->name);
  }
  ts_status status = find_place(e, o, err);
  if (status != TS_OK) {
    return status;
  }
  ts_engine_find_memory(e);
  ts_engine_schedule_from_deck(&e->schedule, o->deck);
  e->schedule.total_num_steps = e->schedule.total_num_steps > 0 ? e->schedule.total_num_steps : o->steps;
  status = ts_world_agree(e->world, check_model_of(e, o, err), err);
  if (status != TS_OK) {
    return status;
  }
  status = decide_cuts(e, o, err);
  if (status != TS_OK) {
    return status;
  }
  ts_engine_add_programs(e, o);
  ts_engine_warn_spanning(o->world, &e->mesh, e->program[TS_PROGRAM_TRAIN]);
  status = check_programs(e, err);
  if (status != TS_OK) {
    return status;
  }
  status = ts_engine_choose(e, err);
  if (status != TS_OK) {
    return status;
  }
  e->timeouts = ts_engine_find_timeouts(e);
  ts_engine_set_communication(e);
  status = ts_engine_open_store(e, err);
  if (status != TS_OK) {
    return status;
  }
  make_executor(e, o);
  ts_engine_begin_scale(e);
  return o->loads ? TS_OK : ts_engine_initialise(e, err);
}

ts_status ts_engine_create(const ts_engine_options *o, ts_engine **out, ts_error *err) {
  ts_engine *e = ts_calloc(1, sizeof *e);
  e->world = o->world;
  e->deck = o->deck;
  e->own = o->model != NULL ? *o->model : (ts_own_model){0};
  e->abilities = o->abilities;
  e->hand = (ts_hand_steps){.boundary = -1, .accumulation = o->deck->gradient_accumulation_steps};
  e->scaler = ts_deck_loss_scaler(o->deck);
  memset(e->index, -1, sizeof e->index);
  ts_status status = set_up_engine(e, o, err);
  if (status != TS_OK) {
    ts_engine_destroy(&e);
  }
  *out = e;
  return status;
}

void ts_engine_destroy(ts_engine **engine) {
  ts_engine *e = *engine;
  if (e == NULL) {
    return;
  }
  ts_executor_destroy(&e->executor);
  ts_store_destroy(&e->store);
  ts_free(e->loads);
  ts_free(e->memory.why);
  ts_free(e->stay.of_part);
  ts_engine_drop_programs(e);
  ts_free(e);
  *engine = NULL;
}

/* ---- what others may look at ---- */

const ts_program *ts_engine_program(const ts_engine *e) {
  for (int i = 0; i < TS_N_PROGRAMS; ++i) {
    if (e->index[i] == 0) {
      return e->program[i];
    }
  }
  return NULL;
}

const ts_layout *ts_engine_layout(const ts_engine *e) {
  return ts_engine_program(e)->layout;
}

ts_layout *ts_engine_layout_at(const ts_engine *e, const ts_mesh *mesh) {
  const ts_program *p = ts_engine_program(e);
  return ts_layout_at(p->layout, p->graph, p->shards, p->stages, e->deck, mesh);
}

unsigned ts_engine_inputs(const ts_engine *e) {
  unsigned inputs = 0;
  for (int i = 0; i < TS_N_INPUTS; ++i) {
    for (int which = 0; which < TS_N_PROGRAMS; ++which) {
      const ts_program *p = e->program[which];
      bool has = p != NULL && ts_graph_find(p->graph, ts_input_get((ts_input_kind) i)->name) != TS_NONE;
      inputs |= has ? 1u << i : 0;
    }
  }
  return inputs;
}

const ts_mesh *ts_engine_mesh(const ts_engine *e) {
  return &e->mesh;
}

const ts_timeouts *ts_engine_timeouts(const ts_engine *e) {
  return &e->timeouts;
}

ts_executor *ts_engine_executor(ts_engine *e) {
  return e->executor;
}
