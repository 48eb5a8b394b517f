#include "run/program.h"

#include "base/memory.h"
#include "comm/comm.h"
#include "deck/value.h"
#include "family/stack.h"
#include "graph/op.h"
#include "pass/blocks.h"
#include "pass/layout.h"
#include "pass/shard_tokens.h"
#include "pass/storage.h"
#include "run/budget.h"
#include "run/executor.h"
#include "run/turns.h"

#include <limits.h>
#include <string.h>

/* What to change where ranks are no multiple of those that share a sample, or its products. */
static void add_way_out(int ranks, int pp, int ep, int sp, int tp, ts_error *err) {
  static const char *const sp_key = "sequence_parallel_size", *const tp_key = "tensor_parallel.autotp_size";
  long long shared = (long long) sp * tp;
  if (ep > 1) {
    ts_error_add(err, "expert_parallel.autoep_size = %d wants a multiple of %lld ranks; --set %s=1 goes with %s", ep,
                 ep * pp * shared, "expert_parallel.autoep_size",
                 pp * shared > 1 ? "a multiple of those that share samples, products or the model"
                                 : "any number of them");
  } else if (pp > 1) {
    ts_error_add(err, "pipeline.stages = %d wants a multiple of %lld ranks; --set pipeline.stages=1 goes with %s", pp,
                 pp * shared, shared > 1 ? "a multiple of those that share samples or products" : "any number of them");
  } else if (sp > 1 && tp > 1 && ranks % shared != 0) {
    ts_error_add(err,
                 "%s = %d x %s = %d wants a multiple of %lld ranks; --set %s=1 --set %s=1 goes with any number of them",
                 sp_key, sp, tp_key, tp, shared, sp_key, tp_key);
  } else if (ranks % shared != 0) {
    const char *key = tp > 1 ? tp_key : sp_key;
    ts_error_add(err, "%s = %lld wants a multiple of as many ranks; --set %s=1 goes with any number of them", key,
                 shared, key);
  }
}

ts_status ts_deck_mesh(const ts_deck *deck, int ranks, int rank, ts_mesh *mesh, ts_error *err) {
  const int size[TS_N_AXES] = {(int) deck->pipeline.stages, 0, (int) deck->expert_parallel.autoep_size,
                               (int) deck->sequence_parallel_size, (int) deck->tensor_parallel.autotp_size};
  ts_status status = ts_mesh_init(mesh, size, ranks, rank, err);
  if (status == TS_OK && deck->data_parallel_size > 0 && deck->data_parallel_size != mesh->size[TS_AXIS_DP]) {
    return ts_deck_error(deck, "data_parallel_size", err,
                         "%lld, but the other axes leave %d of %d ranks; accepted: %d, or to leave it out",
                         (long long) deck->data_parallel_size, mesh->size[TS_AXIS_DP], ranks, mesh->size[TS_AXIS_DP]);
  }
  if (status != TS_OK) {
    add_way_out(ranks, size[TS_AXIS_PP], size[TS_AXIS_EP], size[TS_AXIS_SP], size[TS_AXIS_TP], err);
  }
  int kv_heads = (int) deck->model.num_key_value_heads;
  mesh->tp_units = status == TS_OK && mesh->size[TS_AXIS_TP] > kv_heads ? kv_heads : 0;
  return status;
}

/* Of a node when every query sees every key. */
static double unmasked_flops(const ts_graph *g, const ts_node *node) {
  ts_node whole = *node;
  if (node->op == TS_OP_ATTENTION) {
    whole.attr.attention.causal = false;
    whole.attr.attention.window = 0;
  }
  return ts_node_flops(g, &whole);
}

/* Of the model's forward graph, before any pass. */
static void count_flops(ts_program *program) {
  double passes = program->use == TS_MODEL_TRAIN ? 3 : 1; /* forward, and twice as much backward */
  const ts_graph *g = program->graph;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    if ((ts_op_get(node->op)->flags & TS_OP_PRODUCT) != 0) {
      program->flops += passes * ts_node_flops(g, node);
      program->flops_full_attention += passes * unmasked_flops(g, node);
    }
  }
}

/* The labels of the model's loss, or the elements of another: of the first that counts. */
static int64_t count_labels(const ts_graph *g) {
  const ts_node *loss = ts_graph_producer(g, ts_graph_marked(g, "valid"));
  return loss == NULL ? 0 : ts_tensor_count(g, loss->in[loss->op == TS_OP_HEAD_LOSS ? 2 : 0]);
}

static void note_inputs(ts_program *program) {
  const ts_graph *g = program->graph;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    if (g->tensor[t].role == TS_ROLE_INPUT) {
      ts_strings_add(&program->declared, g->tensor[t].name);
    }
  }
}

/* The model's graph; NULL with what is wrong with a program's own. */
static ts_graph *build(const ts_program_options *o, ts_model_use use, ts_error *err) {
  return o->model != NULL ? ts_model_build_own(o->model, o->deck, use, o->batch, err)
                          : ts_model_build(o->deck, use, (ts_model_size){o->batch, o->length, o->context});
}

/* Of samples: dimension 1 of the inputs that have one. */
static int64_t length_of(const ts_graph *own) {
  const ts_shape *tokens = ts_graph_token_shape(own);
  return tokens != NULL && tokens->n > 1 ? tokens->d[1] : 1;
}

/* Is the model the deck's, or a program's own? */
static ts_status check_whose(const ts_program_options *o, ts_error *err) {
  bool own = ts_deck_model_is_own(o->deck);
  if (own != (o->model != NULL)) {
    return ts_deck_error(o->deck, "model.model_type", err,
                         own ? "\"" TS_MODEL_OWN "\": the model is written in a program, and this one has none"
                             : "\"%s\", but the program has a model of its own; accepted: \"" TS_MODEL_OWN "\"",
                         o->deck->model.model_type);
  }
  return TS_OK;
}

/* Of all attentions; without any as many as anybody may want. */
static int fewest_key_heads(const ts_graph *own) {
  int fewest = INT_MAX;
  for (ts_nid n = 0; n < own->n_nodes; ++n) {
    const ts_node *node = &own->node[n];
    if (node->op == TS_OP_ATTENTION && node->attr.attention.kv_heads < fewest) {
      fewest = node->attr.attention.kv_heads;
    }
  }
  return fewest;
}

/* What ranks share of a program's own model. */
static ts_status check_own_shares(const ts_program_options *o, const ts_graph *own, ts_error *err) {
  const ts_deck_tensor_parallel *tp = &o->deck->tensor_parallel;
  int key_heads = fewest_key_heads(own);
  if (o->mesh->size[TS_AXIS_TP] > key_heads) {
    return ts_deck_error(o->deck, "tensor_parallel.autotp_size", err,
                         "%d: an attention of the model has %d key heads, and each rank one at least; accepted: at "
                         "most as many",
                         o->mesh->size[TS_AXIS_TP], key_heads);
  }
  if (o->mesh->size[TS_AXIS_TP] > 1 && strcmp(tp->preset_model, "none") != 0) {
    return ts_deck_error(o->deck, "tensor_parallel.preset_model", err,
                         "\"%s\" knows the weights of a family, and the model is a program's own; accepted: "
                         "tensor_parallel.tp_plan or partition_config.layer_specs",
                         tp->preset_model);
  }
  return o->mesh->size[TS_AXIS_SP] > 1 ? ts_shard_tokens_check(own, o->deck, err) : TS_OK;
}

/* What gradients of the loss come to, and those of outputs that the host may give; ts_free. */
static bool *reached_by_gradients(const ts_program_options *o, const ts_graph *g) {
  bool *reaches = ts_calloc((size_t) g->n_tensors + 1, sizeof *reaches);
  for (int m = 0; m < g->n_marks; ++m) {
    bool is_output = strncmp(g->mark[m].name, TS_OUTPUT_MARK, strlen(TS_OUTPUT_MARK)) == 0;
    reaches[g->mark[m].tensor] |= strcmp(g->mark[m].name, "loss") == 0 || (is_output && o->seeded);
  }
  ts_graph_reach_back(g, true, reaches);
  return reaches;
}

/* What is trained has a gradient. */
static ts_status check_gradients_of(const ts_program_options *o, const ts_graph *own, ts_error *err) {
  bool *reaches = reached_by_gradients(o, own);
  ts_status status = TS_OK;
  for (ts_tid t = 0; t < own->n_tensors && status == TS_OK; ++t) {
    const ts_tensor *p = &own->tensor[t];
    if (p->role == TS_ROLE_PARAM && !reaches[t] && !ts_parameter_is_frozen(o->deck, p->name)) {
      status = ts_error_add(err, "the model %s: no gradient %s comes to %s; %sname it in `frozen`", o->model->name,
                            o->seeded ? "of the loss or of an output" : "of a loss", p->name,
                            o->seeded ? ""
                                      : "those of outputs do where the engine is made with TS_CAN_STEP | TS_CAN_SEED; "
                                        "or ");
    }
  }
  ts_free(reaches);
  return status;
}

/* The model as it is evaluated can be built, and has no parameter that the one that is trained has not. */
static ts_status check_evaluation(const ts_program_options *o, const ts_graph *trained, ts_error *err) {
  ts_graph *evaluated = build(o, TS_MODEL_LOSS, err);
  ts_status status = evaluated != NULL ? TS_OK : TS_BAD_INPUT;
  for (ts_tid t = 0; status == TS_OK && t < evaluated->n_tensors; ++t) {
    const ts_tensor *p = &evaluated->tensor[t];
    ts_tid same = p->role == TS_ROLE_PARAM ? ts_graph_find(trained, p->name) : t;
    if (p->role == TS_ROLE_PARAM && (same == TS_NONE || !ts_shape_equal(&trained->tensor[same].shape, &p->shape))) {
      status = ts_error_add(err, "the model %s: %s is not, or has another shape, where the model is trained",
                            o->model->name, p->name);
    }
  }
  ts_graph_destroy(&evaluated);
  return status;
}

/* Units that are to be computed again. */
static ts_status check_own_layers(const ts_program_options *o, const ts_graph *own, ts_error *err) {
  const ts_strings *layers = &o->deck->activation_checkpointing.layers;
  for (int i = 0; i < layers->n; ++i) {
    int unit = 0;
    while (unit < own->n_units && strcmp(own->unit[unit], layers->items[i]) != 0) {
      ++unit;
    }
    if (unit == own->n_units) {
      return ts_deck_error(o->deck, "activation_checkpointing.layers", err, "\"%s\": no unit of the model %s",
                           layers->items[i], o->model->name);
    }
  }
  return TS_OK;
}

/* A program's own model, by what it is used for. */
static ts_status check_own(const ts_program_options *o, const ts_graph *own, ts_error *err) {
  ts_status status = check_own_shares(o, own, err);
  status = status == TS_OK ? check_own_layers(o, own, err) : status;
  status = status == TS_OK && o->use == TS_MODEL_TRAIN ? check_gradients_of(o, own, err) : status;
  return status == TS_OK && o->use == TS_MODEL_TRAIN && o->evaluates ? check_evaluation(o, own, err) : status;
}

/* Each piece has messages with two neighbours in two directions, each a queue of the device, which has so many that do
 * not hold each other up. */
enum { DEVICE_QUEUES = 32, PIECE_QUEUES = 4, MOST_DEVICE_PIECES = (DEVICE_QUEUES - TS_N_QUEUES) / PIECE_QUEUES };

/* What pipelines cannot have. */
static ts_status check_pipeline(const ts_program_options *o, ts_error *err) {
  ts_pipeline pipeline = ts_deck_pipeline(o->deck, o->mesh);
  if (o->target.backend != NULL && o->target.backend->device != NULL && pipeline.chunks > MOST_DEVICE_PIECES) {
    return ts_deck_error(o->deck, "pipeline.virtual_stages", err,
                         "%d: a GPU has queues for the messages of %d pieces; "
                         "accepted: 1 to %d",
                         pipeline.chunks, MOST_DEVICE_PIECES, MOST_DEVICE_PIECES);
  }
  return o->mesh->size[TS_AXIS_PP] > 1 && o->by_hand
             ? ts_deck_error(o->deck, "pipeline.stages", err,
                             "%lld: forward, backward and step by hand are of one stage, as micro-batches of "
                             "several are under way at a time; accepted: 1, or whole steps (ts_train_batch)",
                             (long long) o->deck->pipeline.stages)
             : TS_OK;
}

ts_status ts_program_check(const ts_program_options *o, ts_error *err) {
  if (check_whose(o, err) != TS_OK || check_pipeline(o, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_model_use use = o->model != NULL ? o->use : TS_MODEL_TRAIN;
  ts_graph *model = build(o, use, err), *own = o->model != NULL ? model : NULL;
  if (model == NULL) {
    return TS_BAD_INPUT;
  }
  ts_attention_heads heads = ts_attention_heads_of(o->deck, own, o->mesh);
  ts_status status = own != NULL ? check_own(o, own, err) : TS_OK;
  status = status == TS_OK ? ts_sequence_check(o->deck, &heads, o->mesh, err) : status;
  status = status == TS_OK ? ts_shard_check(model, o->deck, o->mesh, err) : status;
  status = status == TS_OK ? ts_stages_check(model, o->deck, o->mesh, o->target.backend, o->use == TS_MODEL_TRAIN, err)
                           : status;
  ts_graph_destroy(&model);
  return status;
}

ts_graph *ts_program_model(const ts_program_options *o) {
  ts_graph *model = build(o, o->use, NULL);
  TS_CHECK(model != NULL, "the model %s is another one than was checked", o->model->name);
  return model;
}

static bool computes_on_host(const ts_graph *g) {
  bool any = false;
  for (ts_nid n = 0; n < g->n_nodes && !any; ++n) {
    any = g->node[n].on_host;
  }
  return any;
}

/* Of a micro-batch.  From a device all go by way of the host's memory. */
static void count_kept_away(ts_program *program) {
  const ts_graph *g = program->graph;
  bool *away = ts_calloc((size_t) g->n_units + 1, sizeof *away);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    bool leaves = program->target.backend->device != NULL
                      ? node->op == TS_OP_COPY_OUT && node->in[0] == TS_NONE
                      : node->op == TS_OP_STORE && g->tensor[node->in[0]].held.state == TS_STATE_KEPT;
    if (leaves && node->segment == TS_SEGMENT_FORWARD && node->unit >= 0) {
      ++program->kept_away;
      program->units_away += !away[node->unit];
      away[node->unit] = true;
    }
  }
  program->kept_away /= (int) program->step.together;
  ts_free(away);
}

static bool has_segment(const ts_graph *g, ts_segment segment) {
  bool has = false;
  for (ts_nid n = 0; n < g->n_nodes && !has; ++n) {
    has = g->node[n].segment == segment;
  }
  return has;
}

/* What the deck leaves to what fits is decided by programs of their own. */
static ts_offload_stay stay_of(const ts_program_options *o) {
  bool decided = o->stay.decided || o->stay.kept > 0 || o->stay.updater != TS_UPDATES_OPEN;
  return decided || o->layout != NULL || o->last_pass != NULL ? o->stay : ts_budget_decide(o);
}

/* A step's graph has so many nodes at most, so that its passes take seconds. */
enum { MOST_NODES = 40000, NODES_OF_ONE = 4 /* in all, for each of a forward */ };

bool ts_program_may_go_by_unit(const ts_program_options *o) {
  bool turns = o->order.stages == 0 && o->mesh->size[TS_AXIS_PP] == 1 && !o->by_hand;
  return o->use == TS_MODEL_TRAIN && turns && strcmp(o->deck->run.accumulation_order, "micro_batch") != 0;
}

/* Micro-batches that are one, which goes through the model unit by unit: a part of a step's, the same on all ranks. */
static int64_t together_of(const ts_program_options *o, const ts_offload_stay *stay, const ts_graph *model,
                           int64_t micro_batches) {
  int64_t n = 1;
  if (ts_program_may_go_by_unit(o)) {
    bool all = strcmp(o->deck->run.accumulation_order, "unit") == 0;
    n = stay->decided ? stay->together : all ? micro_batches : 1;
  }
  while (n > 1 && (micro_batches % n != 0 || n * NODES_OF_ONE * model->n_nodes > MOST_NODES)) {
    --n;
  }
  return n > 1 ? n : 1;
}

ts_program *ts_program_create(const ts_program_options *o) {
  ts_program *program = ts_calloc(1, sizeof *program);
  program->use = o->use;
  program->batch = o->batch;
  program->deck = o->deck;
  program->mesh = *o->mesh;
  program->target = o->target;
  program->owns_layout = o->layout == NULL;
  int64_t steps = o->use == TS_MODEL_TRAIN  ? o->deck->gradient_accumulation_steps
                  : o->use == TS_MODEL_LOSS ? ts_deck_evaluates(o->deck)
                                            : 1;
  const ts_step_order order = o->order.stages > 0 ? o->order : ts_deck_step_order(o->deck, o->mesh);
  const ts_offload_stay stay = stay_of(o);
  program->graph = ts_program_model(o);
  int64_t together = together_of(o, &stay, program->graph, steps > 0 ? steps : 1);
  program->step = ts_step_of(o->use, steps > 0 ? steps / together : 1, &order);
  program->step.together = together;
  program->step.by_hand = o->by_hand && o->use == TS_MODEL_TRAIN;
  program->graph->apart = program->step.apart;
  program->stages =
      program->owns_layout ? ts_stages_create(program->graph, o->deck, o->mesh, o->target.backend) : o->stages;
  note_inputs(program);
  count_flops(program);
  program->counted = count_labels(program->graph);
  program->length = o->model == NULL ? o->length : length_of(program->graph);
  program->heads = ts_attention_heads_of(o->deck, o->model != NULL ? program->graph : NULL, o->mesh);
  program->sequence = ts_sequence_of(o->deck, &program->heads, o->mesh, program->length, o->target.backend);
  if (o->mesh->size[TS_AXIS_SP] > 1 && o->use != TS_MODEL_LOGITS) {
    program->tokens = ts_sequence_tokens(&program->sequence, program->sequence.rank);
  }
  ts_pass_context context = {.deck = o->deck,
                             .mesh = &program->mesh,
                             .target = o->target,
                             .use = o->use,
                             .by_hand = o->by_hand,
                             .seeded = o->seeded,
                             .defers = o->defers,
                             .stay = stay,
                             .step = &program->step,
                             .sequence = &program->sequence,
                             .stages = program->stages,
                             .layout = (ts_layout *) o->layout};
  ts_passes_run(&program->graph, &context, o->last_pass, o->observer, o->observer_user);
  if (stay.of_part != o->stay.of_part) {
    ts_free(stay.of_part);
  }
  if (!has_segment(program->graph, TS_SEGMENT_PREPARE)) {
    ts_step_prepares_nothing(&program->step);
  }
  program->step.leaves = (has_segment(program->graph, TS_SEGMENT_LATE_UPDATE) ? TS_LEFT_UPDATES : 0) |
                         (has_segment(program->graph, TS_SEGMENT_LATE_GATHER) ? TS_LEFT_GATHERS : 0);
  program->updates_on_host = computes_on_host(program->graph);
  count_kept_away(program);
  program->shards = context.shards;
  program->layout = context.layout;
  program->offload = program->layout != NULL ? ts_offload_count_of(&context) : (ts_offload_count){0};
  program->schedule = context.schedule;
  program->plan = context.plan;
  if (program->plan != NULL && ts_plan_file_bytes(program->plan) > 0 && o->target.backend->device == NULL) {
    int64_t bytes = ts_program_store_bytes(program);
    program->plan->bytes[TS_PURPOSE_RESERVE] += bytes;
    program->plan->peak_bytes += bytes;
  }
  return program;
}

void ts_program_destroy(ts_program **program) {
  ts_program *p = *program;
  if (p == NULL) {
    return;
  }
  ts_graph_destroy(&p->graph);
  if (p->owns_layout) {
    ts_layout_destroy(&p->layout);
  }
  ts_strings_clear(&p->declared);
  ts_step_clear(&p->step);
  ts_shards_destroy(&p->shards);
  if (p->owns_layout) {
    ts_stages_destroy((ts_stages **) &p->stages);
  }
  ts_schedule_destroy(&p->schedule);
  ts_plan_destroy(&p->plan);
  ts_free(p);
  *program = NULL;
}

/* ---- state that programs share ---- */

/* Where one of the programs before has the leaf, -1 for nowhere. */
static int64_t find_shared(const ts_program *const *programs, int before, const ts_tensor *leaf, int64_t bytes,
                           int64_t *const *moved) {
  for (int i = 0; i < before; ++i) {
    const ts_graph *g = programs[i] != NULL ? programs[i]->graph : NULL;
    ts_tid t = g != NULL ? ts_graph_find(g, leaf->name) : TS_NONE;
    if (t != TS_NONE) {
      TS_CHECK(ts_tensor_bytes(g, t) == bytes, "state %s has another size in another program", leaf->name);
      return programs[i]->plan->address[t].offset + moved[i][t];
    }
  }
  return -1;
}

/* The leaves of program i. \param [in,out] end  Of each arena, before and with them. */
static void share_leaves(const ts_program *const *programs, int i, int64_t end[TS_N_ARENAS], int64_t *const *moved) {
  const ts_graph *g = programs[i]->graph;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    if (g->tensor[t].role == TS_ROLE_STATE) {
      ts_address own = programs[i]->plan->address[t];
      int64_t bytes = ts_tensor_bytes(g, t), at = find_shared(programs, i, &g->tensor[t], bytes, moved);
      moved[i][t] = (at >= 0 ? at : end[own.arena]) - own.offset;
      end[own.arena] += at >= 0 ? 0 : ts_arena_align(own.arena, bytes);
    }
  }
}

/* Windows and new versions go along with their leaf. */
static void move_along(const ts_program *program, int64_t *moved) {
  const ts_graph *g = program->graph;
  ts_place *place = ts_storage_find(g);
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    moved[t] = g->tensor[place[t].root].role == TS_ROLE_STATE ? moved[place[t].root] : 0;
  }
  ts_free(place);
}

void ts_programs_share_state(const ts_program *const *programs, int n, int64_t end[TS_N_ARENAS], int64_t **moved) {
  int64_t **of = ts_calloc((size_t) n + 1, sizeof *of);
  memset(end, 0, TS_N_ARENAS * sizeof *end);
  for (int i = 0; i < n; ++i) {
    if (programs[i] != NULL) {
      of[i] = ts_calloc((size_t) programs[i]->graph->n_tensors + 1, sizeof **of);
      share_leaves(programs, i, end, of);
    }
  }
  for (int i = 0; i < n; ++i) {
    if (moved != NULL && programs[i] != NULL) {
      move_along(programs[i], of[i]);
      moved[i] = of[i];
    } else {
      ts_free(of[i]);
    }
  }
  ts_free(of);
}

static bool have_file(const ts_program *const *programs, int n) {
  bool any = false;
  for (int i = 0; i < n; ++i) {
    any = any || (programs[i] != NULL && ts_plan_file_bytes(programs[i]->plan) > 0);
  }
  return any;
}

int64_t ts_programs_arena_bytes(const ts_program *const *programs, int n, ts_arena arena) {
  if (ts_arenas[arena].lifetime == TS_LIFETIME_STATE) {
    int64_t end[TS_N_ARENAS];
    ts_programs_share_state(programs, n, end, NULL);
    return end[arena] + (arena == TS_ARENA_STATE && have_file(programs, n) ? TS_PLAN_PAGE : 0);
  }
  int64_t most = 0, sum = 0;
  for (int i = 0; i < n; ++i) {
    int64_t here = programs[i] != NULL ? programs[i]->plan->arena_bytes[arena] : 0;
    most = here > most ? here : most;
    sum += here;
  }
  return arena == TS_ARENA_INPUT ? sum : most;
}

double ts_program_model_flops(const ts_program *program, double *full_attention) {
  if (full_attention != NULL) {
    *full_attention = program->flops_full_attention;
  }
  return program->flops;
}

int64_t ts_program_active_parameters(const ts_program *program) {
  int64_t count = 0, of_token = ts_deck_experts_of_token(program->deck);
  for (int i = 0; i < program->layout->n_parameters; ++i) {
    const ts_parameter *p = &program->layout->parameter[i];
    int64_t each = ts_shape_count(&p->shape) / p->shape.d[0];
    count += each * (of_token > 0 && ts_stack_is(p->name, p->shape.n) ? of_token : p->shape.d[0]);
  }
  return count;
}

double ts_program_step_flops(const ts_program *program) {
  const ts_step_runs *step = &program->step;
  double micro_batches = program->use == TS_MODEL_TRAIN ? (double) (step->micro_batches * step->together) : 1;
  return program->flops * micro_batches * ts_mesh_group_size(&program->mesh, TS_AXES_BATCH);
}

/* ---- messages ---- */

/* What a gather or a reduction is of, over all its ranks. */
static int64_t message_elements(const ts_graph *g, const ts_node *node) {
  int64_t elements = node->op == TS_OP_ALL_REDUCE ? ts_tensor_count(g, node->in[0]) : 0;
  for (int i = 0; i < node->attr.comm.n_pieces; ++i) {
    const ts_piece *piece = &node->attr.comm.piece[i];
    const ts_transfer columns = {.cuts = piece->cuts, .begin = piece->begin, .end = piece->end};
    for (int rank = 0; rank < node->attr.comm.group; ++rank) {
      int64_t first;
      elements += ts_transfer_columns(&columns, rank, &first);
    }
  }
  return elements;
}

double ts_program_message_bytes(const ts_program *program, const ts_node *node) {
  const ts_graph *g = program->graph;
  if (node->op == TS_OP_ALL_TO_ALL) {
    ts_exchange_tensors tensors;
    ts_exchange_lists lists = ts_node_exchange(g, node, &tensors);
    return (double) ts_exchange_sent(&lists, ts_mesh_group_rank(&program->mesh, node->attr.comm.axes));
  }
  if (node->op == TS_OP_EXCHANGE_ROWS) { /* with experts that are chosen alike: all but a rank's own share */
    const ts_shape *own = &g->tensor[node->attr.comm.home ? node->out[0] : node->in[0]].shape;
    double group = node->attr.comm.group;
    return (group - 1) / group * (double) ts_shape_count(own) * (double) ts_dtype_size(g->tensor[node->in[0]].dtype);
  }
  return ts_bus_factor(node->op, node->attr.comm.group) * (double) message_elements(g, node) *
         (double) ts_dtype_size(node->attr.comm.wire);
}

double ts_bus_factor(ts_op op, int ranks) {
  double times = op == TS_OP_ALL_REDUCE ? 2 : 1, n = ranks;
  return op == TS_OP_SEND || op == TS_OP_RECEIVE ? 1 : times * (n - 1) / n;
}

int ts_node_ranks(const ts_node *node) {
  return ts_node_is_message(node) ? 2 : node->attr.comm.group;
}

static double bytes_of_tensors(const ts_graph *g, const ts_tid *tensor, int n) {
  double bytes = 0;
  for (int i = 0; i < n; ++i) {
    bytes += (double) ts_tensor_bytes(g, tensor[i]);
  }
  return bytes;
}

double ts_program_whole_bytes(const ts_program *program, const ts_node *node) {
  const ts_graph *g = program->graph;
  if (ts_node_is_message(node)) {
    return node->op == TS_OP_SEND ? bytes_of_tensors(g, node->in, node->n_in)
                                  : bytes_of_tensors(g, node->out, node->n_out);
  }
  if (node->op == TS_OP_ALL_TO_ALL || node->op == TS_OP_EXCHANGE_ROWS) {
    double share = ts_bus_factor(node->op, node->attr.comm.group);
    return share > 0 ? ts_program_message_bytes(program, node) / share : 0;
  }
  return (double) message_elements(g, node) * (double) ts_dtype_size(node->attr.comm.wire);
}

/* Do the groups over \a axes hold several ranks along \a axis? */
static bool reaches_along(const ts_mesh *mesh, unsigned axes, ts_axis axis) {
  return ts_mesh_group_size(mesh, axes & (TS_AXES(axis) | (axis == TS_AXIS_TP ? TS_AXES_SHARERS : 0))) > 1;
}

ts_sent ts_program_sent(const ts_program *program, ts_axis axis) {
  const ts_graph *g = program->graph;
  ts_sent sent = {0};
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    const ts_node *node = &g->node[i];
    if (ts_node_is_collective(node) && node->attr.comm.axes == TS_AXES(axis)) {
      sent.micro_batch += ts_program_message_bytes(program, node);
      ++sent.messages;
    } else if (ts_node_is_collective(node) && reaches_along(&program->mesh, node->attr.comm.axes, axis)) {
      sent.with_others += ts_program_message_bytes(program, node) *
                          (ts_node_happens_once(node) ? 1 : (double) program->step.micro_batches);
    }
  }
  sent.step = sent.micro_batch * (double) program->step.micro_batches + sent.with_others;
  return sent;
}
