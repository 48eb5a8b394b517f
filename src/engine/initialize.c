/* From a deck to an engine, for programs that start with nothing else. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "run/cuts.h"
#include "run/plan_largest.h"

/* ---- the deck ---- */

ts_status ts_engine_share_deck(ts_world *world, const char *name, ts_deck **deck, ts_error *err) {
  bool reads = ts_world_rank(world) == 0;
  ts_text text = {0}, origins = {0};
  if (reads) {
    ts_deck_print(*deck, &text);
    ts_deck_print_origins(*deck, &origins);
  }
  char *shared = ts_world_share_text(world, text.text, 0), *places = ts_world_share_text(world, origins.text, 0);
  ts_status status = reads ? TS_OK : ts_deck_read_text(name, shared, NULL, 0, deck, err);
  if (status == TS_OK && !reads) {
    ts_deck_take_origins(*deck, places != NULL ? places : ""); /* NULL: the deck sets no key */
  }
  ts_free(shared);
  ts_free(places);
  ts_text_free(&text);
  ts_text_free(&origins);
  return ts_world_agree(world, status, err);
}

/* Rank 0: what has no effect. */
static void say_idle_keys(const ts_deck *deck) {
  ts_text notes = {0};
  ts_deck_notes(deck, &notes);
  if (notes.length > 0) {
    ts_log(TS_LOG_WARNING, "%s", notes.text);
  }
  ts_text_free(&notes);
}

ts_status ts_deck_read_shared(ts_world *world, const char *path, char *const *sets, int n_sets, ts_deck **out,
                              ts_error *err) {
  *out = NULL;
  bool reads = ts_world_rank(world) == 0;
  ts_status status = ts_world_agree(world, reads ? ts_deck_read(path, sets, n_sets, out, err) : TS_OK, err);
  status = status == TS_OK ? ts_engine_share_deck(world, path != NULL ? path : "", out, err) : status;
  if (status != TS_OK) {
    ts_deck_destroy(out);
  } else if (reads) {
    say_idle_keys(*out);
  }
  return status;
}

/* ---- the engine ---- */

/* What the deck leaves to the machine and to the number of ranks. */
static ts_status decide_deck(ts_world *world, ts_deck *deck, ts_error *err) {
  ts_mesh mesh;
  ts_text said = {0};
  ts_status status = ts_engine_decide_precision(world, deck, &said, err);
  if (said.length > 0) {
    ts_log(TS_LOG_INFO, "%s", said.text);
  }
  ts_text_free(&said);
  status = status == TS_OK ? ts_deck_mesh(deck, ts_world_size(world), ts_world_rank(world), &mesh, err) : status;
  return status == TS_OK ? ts_deck_resolve_batch(deck, ts_mesh_group_size(&mesh, TS_AXES_BATCH), err) : status;
}

static ts_status check_abilities(const ts_own_model *model, const ts_deck *deck, unsigned abilities, ts_error *err) {
  const unsigned all = TS_CAN_TRAIN | TS_CAN_EVALUATE | TS_CAN_GENERATE | TS_CAN_STEP | TS_CAN_SEED | TS_CAN_DEFER;
  if (abilities == 0 || (abilities & ~all) != 0) {
    return ts_error_add(err, "ts_initialize: abilities 0x%x: accepted is a mask of TS_CAN_...", abilities);
  }
  if ((abilities & (TS_CAN_SEED | TS_CAN_DEFER)) != 0 && (abilities & TS_CAN_STEP) == 0) {
    return ts_error_add(err, "ts_initialize: TS_CAN_SEED and TS_CAN_DEFER are of steps by hand: add TS_CAN_STEP");
  }
  if (ts_deck_model_is_own(deck) != (model != NULL)) {
    return model != NULL
               ? ts_deck_error(deck, "model.model_type", err, "the program has a model of its own: accepted: \"own\"")
               : ts_deck_error(deck, "model.model_type", err,
                               "\"own\" is for programs that give ts_initialize a model");
  }
  return model == NULL || (model->name != NULL && model->write != NULL)
             ? TS_OK
             : ts_error_add(err, "ts_initialize: the model has no name, or nothing that writes it");
}

ts_status ts_initialize(const ts_own_model *model, ts_deck *deck, ts_world *world, unsigned abilities,
                        ts_engine **engine, ts_error *err) {
  const ts_engine_options options = {.world = world, .deck = deck, .model = model, .abilities = abilities};
  *engine = NULL;
  ts_status status = ts_world_agree(world, check_abilities(model, deck, abilities, err), err);
  status = status == TS_OK ? ts_world_agree(world, decide_deck(world, deck, err), err) : status;
  return status == TS_OK ? ts_engine_create(&options, engine, err) : status;
}

/* ---- what it would need ---- */

static void take_plan(const ts_plan *p, ts_planned_memory *memory) {
  *memory = (ts_planned_memory){.parameters = p->bytes[TS_PURPOSE_PARAMETER],
                                .gradients = p->bytes[TS_PURPOSE_GRADIENT],
                                .optimizer = p->bytes[TS_PURPOSE_OPTIMIZER],
                                .activations = p->bytes[TS_PURPOSE_ACTIVATION],
                                .buffers = p->bytes[TS_PURPOSE_BUFFER],
                                .checkpoint = p->bytes[TS_PURPOSE_CHECKPOINT],
                                .reserve = p->bytes[TS_PURPOSE_RESERVE],
                                .peak = p->peak_bytes};
}

static ts_status plan_memory(const ts_program_options *options, const ts_deck *deck, ts_planned_memory *memory,
                             ts_error *err) {
  ts_status status = ts_program_check(options, err);
  if (status == TS_OK) { /* of a copy: an engine decides for the memory that there is */
    ts_deck other = *deck;
    other.pipeline.units = (ts_ints){0, NULL};
    ts_cuts_take(&other, deck->pipeline.units.items, deck->pipeline.units.n);
    other.pipeline.decided = deck->pipeline.decided;
    ts_program_options of = *options;
    of.deck = &other;
    status = ts_cuts_decide(&of, &other, 0, err);
    ts_program *largest = ts_plan_largest(&of);
    take_plan(largest->plan, memory);
    ts_program_destroy(&largest);
    ts_free(other.pipeline.units.items);
  }
  return status;
}

ts_status ts_plan_memory(const ts_own_model *model, ts_deck *deck, int ranks, unsigned abilities,
                         ts_planned_memory *memory, ts_error *err) {
  ts_mesh mesh;
  const ts_backend *backend = NULL;
  *memory = (ts_planned_memory){0};
  if (ranks < 1) {
    return ts_error_add(err, "ts_plan_memory: %d ranks; accepted: 1 or more", ranks);
  }
  ts_status status = check_abilities(model, deck, abilities, err);
  status = status == TS_OK ? ts_engine_choose_target("auto", deck, &backend, err) : status;
  status = status == TS_OK ? ts_deck_mesh(deck, ranks, 0, &mesh, err) : status;
  status = status == TS_OK ? ts_deck_resolve_batch(deck, ts_mesh_group_size(&mesh, TS_AXES_BATCH), err) : status;
  if (status != TS_OK) {
    return status;
  }
  bool trains = (abilities & (TS_CAN_TRAIN | TS_CAN_STEP)) != 0;
  const ts_program_options options = {
      .deck = deck,
      .mesh = &mesh,
      .model = model,
      .target = {backend, ts_engine_threads(deck, 1), ts_engine_cudnn_use(deck, backend)},
      .use = trains ? TS_MODEL_TRAIN : TS_MODEL_LOSS,
      .batch = deck->train_micro_batch_size_per_gpu,
      .length = deck->data.sequence_length,
      .by_hand = (abilities & TS_CAN_STEP) != 0,
      .seeded = (abilities & TS_CAN_SEED) != 0,
      .defers = (abilities & TS_CAN_DEFER) != 0,
      .evaluates = (abilities & TS_CAN_EVALUATE) != 0};
  return plan_memory(&options, deck, memory, err);
}

/* ---- whose samples, and how many ---- */

int ts_data_parallel_rank(const ts_engine *e) {
  return ts_mesh_group_rank(&e->mesh, TS_AXES_BATCH);
}

int ts_data_parallel_size(const ts_engine *e) {
  return ts_mesh_group_size(&e->mesh, TS_AXES_BATCH);
}

int ts_output_tokens(const ts_engine *e, int64_t begin[2], int64_t length[2]) {
  const ts_program *p = ts_engine_program(e);
  bool shares = e->mesh.size[TS_AXIS_SP] > 1;
  const ts_tokens tokens = shares ? p->tokens : (ts_tokens){1, {{0, p->length}}};
  for (int i = 0; i < tokens.n; ++i) {
    begin[i] = tokens.stretch[i].begin;
    length[i] = tokens.stretch[i].length;
  }
  return tokens.n;
}

int64_t ts_train_batch_size(const ts_engine *e) {
  return ts_train_micro_batch_size(e) * ts_gradient_accumulation_steps(e) * ts_data_parallel_size(e);
}

int64_t ts_train_micro_batch_size(const ts_engine *e) {
  return e->deck->train_micro_batch_size_per_gpu;
}

int64_t ts_gradient_accumulation_steps(const ts_engine *e) {
  return e->hand.accumulation;
}

ts_status ts_set_train_batch_size(ts_engine *e, int64_t size, ts_error *err) {
  int64_t each = ts_train_micro_batch_size(e) * ts_data_parallel_size(e);
  ts_program *p = e->program[TS_PROGRAM_TRAIN];
  if (size <= 0 || size % each != 0) {
    return ts_error_add(err,
                        "ts_set_train_batch_size: %lld; accepted: a multiple of train_micro_batch_size_per_gpu %lld x "
                        "data-parallel size %d = %lld",
                        (long long) size, (long long) ts_train_micro_batch_size(e), ts_data_parallel_size(e),
                        (long long) each);
  }
  if (ts_engine_check_idle(e, "ts_set_train_batch_size", err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  int64_t steps = size / each;
  const int64_t together = p != NULL ? p->step.together : 1;
  bool more = p != NULL && ts_step_accumulates(&p->step);
  if (p != NULL && !more && together == 1) {
    return ts_error_add(err, "ts_set_train_batch_size: the engine was made for one micro-batch a step: make it with "
                             "TS_CAN_STEP, or for more");
  }
  if (steps % together != 0 || (!more && together > 1 && steps != together)) {
    return ts_error_add(err,
                        "ts_set_train_batch_size: %lld micro-batches; the engine puts %lld together "
                        "(run.accumulation_order); accepted: %s",
                        (long long) steps, (long long) together, more ? "a multiple of these" : "as many");
  }
  if (p != NULL && !ts_step_set_micro_batches(&p->step, steps / p->step.together)) {
    return ts_error_add(err, "ts_set_train_batch_size: the engine's schedule does not take %lld micro-batches",
                        (long long) steps);
  }
  e->hand.accumulation = steps;
  e->hand.micro_steps = 0; /* those of a step that ts_zero_grad gave up */
  e->deck->gradient_accumulation_steps = steps;
  e->deck->train_batch_size = size;
  return TS_OK;
}
