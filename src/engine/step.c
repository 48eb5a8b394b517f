/* A step of an engine: what the host writes before each run, and what it reads after the last. */
#include "engine/engine.h"

#include "base/log.h"
#include "base/memory.h"
#include "graph/record.h"
#include "pass/stage.h"

#include <math.h>
#include <string.h>

void ts_engine_set_scalar(ts_engine *e, int which, int slot, const char *name, double value) {
  float *to = ts_executor_input(e->executor, e->index[which], slot, name);
  if (to != NULL) {
    *to = (float) value;
  }
}

void ts_engine_forget_seeds(ts_engine *e, int slot) {
  const ts_graph *g = e->program[TS_PROGRAM_TRAIN]->graph;
  for (ts_tid t = 0; t < g->n_tensors && (e->abilities & TS_CAN_SEED) != 0; ++t) {
    const ts_tensor *leaf = &g->tensor[t];
    if (leaf->role == TS_ROLE_INPUT && strncmp(leaf->name, TS_SEED_LEAF, strlen(TS_SEED_LEAF)) == 0) {
      void *to = ts_executor_input(e->executor, e->index[TS_PROGRAM_TRAIN], slot, leaf->name);
      if (to != NULL) {
        memset(to, 0, (size_t) ts_tensor_bytes(g, t));
      }
    }
  }
}

/* What the loss is divided by before the backward.  With a loss scale not by the ranks that read different samples,
 * which would cost gradients in fp16 a bit for each doubling: that is left to the record, whose factor is fp64.  Ranks
 * that share samples count those whole, so a gradient is as large on any grid.  Where the program has no loss gradients
 * are taken as they are: each rank that would have a loss counts 1, of as many. */
double ts_engine_static_tokens(const ts_engine *e, int which) {
  const ts_program *p = e->program[which];
  if (p->counted == 0) {
    return e->mesh.ranks / (e->mesh.size[TS_AXIS_TP] * e->mesh.size[TS_AXIS_PP]);
  }
  double ranks = e->scaler.rule == TS_LOSS_SCALE_NONE ? ts_mesh_group_size(&e->mesh, TS_AXES_BATCH) : 1;
  return (double) p->counted * (double) (p->step.micro_batches * p->step.together) * ranks;
}

/* ---- the host's part of a run ---- */

void ts_engine_write_input(ts_engine *e, int which, int slot, ts_tid input, const void *samples) {
  const ts_program *p = e->program[which];
  const ts_tensor *leaf = &p->graph->tensor[input];
  char *to = ts_executor_input(e->executor, e->index[which], slot, leaf->name);
  const char *from = samples;
  int d = leaf->sequence;
  if (to == NULL) { /* nothing reads it */
    return;
  }
  if (d == 0 || leaf->shape.d[d] == p->length) {
    memcpy(to, from, (size_t) ts_tensor_bytes(p->graph, input));
    return;
  }
  size_t token = ts_dtype_size(leaf->dtype);
  int64_t rows = 1;
  for (int i = 0; i < leaf->shape.n; ++i) {
    rows *= i < d ? leaf->shape.d[i] : 1;
    token *= i > d ? (size_t) leaf->shape.d[i] : 1;
  }
  for (int64_t row = 0; row < rows; ++row, from += (size_t) p->length * token) {
    for (int i = 0; i < p->tokens.n; ++i) {
      const ts_interval *s = &p->tokens.stretch[i];
      memcpy(to, from + (size_t) s->begin * token, (size_t) s->length * token);
      to += (size_t) s->length * token;
    }
  }
}

/* ---- where samples come from ---- */

static ts_status take_samples(ts_engine *e, const ts_feed *feed, int which, ts_run run, ts_error *err) {
  const int64_t together = e->program[which]->step.together;
  e->feeding = (ts_feeding){.which = which, .slot = ts_run_slot(run), .err = err, .is_on = true};
  for (int64_t m = 0; m < together && !e->feeding.failed; ++m) {
    e->feeding.member = m;
    feed->feed(e, run.micro_batch * together + m, feed->user);
  }
  e->feeding.is_on = false;
  bool pipeline = e->mesh.size[TS_AXIS_PP] > 1;
  TS_CHECK(!e->feeding.failed || !pipeline || run.micro_batch == 0,
           "amid a step of a pipeline, with messages under way: %s", err->text);
  return e->feeding.failed ? TS_BAD_INPUT : TS_OK;
}

/* A feed of samples that are there: every input that the program has. */
static void take_from_batch(ts_engine *e, int64_t micro_batch, void *user) {
  const ts_step_input *input = user;
  const ts_batch *batch = input->batch;
  const ts_program *p = e->program[e->feeding.which];
  TS_CHECK(batch->length == p->length && (micro_batch + 1) * p->batch <= batch->samples,
           "a batch of %lld samples of %lld tokens is not what the program takes", (long long) batch->samples,
           (long long) batch->length);
  for (int i = 0; i < TS_N_INPUTS; ++i) {
    const char *name = ts_input_get((ts_input_kind) i)->name;
    ts_tid leaf = ts_engine_find_input(p, name, e->feeding.member);
    if (leaf != TS_NONE) {
      TS_CHECK(batch->input[i] != NULL, "the batch has no %s", name);
      size_t sample = ts_batch_bytes(batch, (ts_input_kind) i);
      ts_engine_write_input(e, e->feeding.which, e->feeding.slot, leaf,
                            (const char *) batch->input[i] + (size_t) (micro_batch * p->batch) * sample);
    }
  }
}

static void ask_for_flags(void *user, double flags[TS_N_FLAGS]) {
  const ts_step_input *input = user;
  if (input->flags != NULL) {
    input->flags(input->user, flags);
  }
}

/* ---- what the host writes before a run ---- */

static void set_micro_batch(ts_engine *e, ts_run run) {
  const int which = TS_PROGRAM_TRAIN;
  int64_t *seed = ts_executor_input(e->executor, e->index[which], ts_run_slot(run), "seed");
  if (seed != NULL) {
    *seed = e->deck->run.seed;
  }
  ts_engine_set_scalar(e, which, ts_run_slot(run), "gradient_seed", 1 / ts_engine_static_tokens(e, which));
  ts_engine_set_scalar(e, which, ts_run_slot(run), "accumulate", run.micro_batch > 0);
  ts_engine_set_scalar(e, which, ts_run_slot(run), "accumulate_local", run.micro_batch > 0);
  ts_engine_set_scalar(e, which, ts_run_slot(run), "accumulate_reduced", 0);
  ts_engine_set_scalar(e, which, ts_run_slot(run), "one", 1);
  ts_engine_set_scalar(e, which, ts_run_slot(run), "nought", 0);
  ts_engine_forget_seeds(e, ts_run_slot(run));
}

void ts_engine_set_control(ts_engine *e, int which, int slot, const double flags[TS_N_FLAGS]) {
  int index = e->index[which];
  double *flag = ts_executor_input(e->executor, index, slot, "flags");
  if (flag == NULL) { /* no loss is evaluated: there is no record */
    return;
  }
  memcpy(flag, flags, TS_N_FLAGS * sizeof *flag);
  *(double *) ts_executor_input(e->executor, index, slot, "static_tokens") = ts_engine_static_tokens(e, which);
  ts_engine_set_scalar(e, which, slot, "max_norm", e->deck->gradient_clipping);
  static const struct {
    const char *name;
    double value;
  } constants[] = {{"zero", 0}, {"no_loss", 0}, {"counted", 1}}; /* of replicas; of programs without a loss */
  for (size_t i = 0; i < sizeof constants / sizeof *constants; ++i) {
    double *to = ts_executor_input(e->executor, index, slot, constants[i].name);
    if (to != NULL) {
      *to = constants[i].value;
    }
  }
  ts_engine_set_scalar(e, which, slot, "one", 1); /* of directions, which are scaled already */
  ts_engine_set_scalar(e, which, slot, "nought", 0);
}

void ts_engine_set_update(ts_engine *e, const ts_feed *feed, int slot) {
  const int which = TS_PROGRAM_TRAIN;
  double flags[TS_N_FLAGS] = {0};
  if (feed != NULL && feed->flags != NULL) {
    feed->flags(feed->user, flags);
  }
  ts_heartbeat_phase(ts_world_heartbeat(e->world), TS_PHASE_UPDATING);
  ts_engine_set_control(e, which, slot, flags);
  ts_engine_set_scalar(e, which, slot, "lr", ts_engine_learning_rate(e));
  float *betas = ts_executor_input(e->executor, e->index[which], slot, "betas");
  betas[0] = (float) ts_momentum_at(&e->schedule, e->updates);
  betas[1] = (float) e->deck->optimizer.params.betas[1];
}

/* ---- the step ---- */

/* Stages begin a step together, as the one before ended with the record of all: the longest has all of it. */
static double find_bubble(const ts_engine *e, const ts_executor_times *times) {
  const int stages = e->mesh.size[TS_AXIS_PP];
  double mine[] = {times->span, ts_executor_busy(times)}, longest = 0, sum = 0;
  double *all = ts_calloc(2 * (size_t) stages, sizeof *all);
  int64_t *cuts = ts_calloc((size_t) stages + 1, sizeof *cuts);
  for (int i = 1; i <= stages; ++i) {
    cuts[i] = 2 * i;
  }
  ts_comm *comm = ts_world_comm(e->world, &e->mesh, TS_AXES(TS_AXIS_PP));
  const uint64_t group = ts_mesh_group_id(&e->mesh, TS_AXES(TS_AXIS_PP));
  const ts_transfer transfer = {.x = mine, .y = all, .cuts = cuts, .end = 2};
  ts_heartbeat_enter(ts_world_heartbeat(e->world), "bubble.gather", group);
  comm->ops->all_gather(comm, &transfer, 1, TS_F64);
  ts_heartbeat_leave(ts_world_heartbeat(e->world));
  for (int i = 0; i < stages; ++i) {
    longest = fmax(longest, all[2 * i]);
    sum += all[2 * i + 1];
  }
  ts_free(all);
  ts_free(cuts);
  return longest > 0 ? fmax(0, 1 - sum / (stages * longest)) : 0;
}

const float *ts_engine_loads(const ts_engine *e) {
  return e->loads;
}

static void read_loads(ts_engine *e) {
  const ts_layout *layout = ts_engine_layout(e);
  if (layout->n_loads > 0) {
    e->loads = e->loads != NULL ? e->loads : ts_calloc((size_t) layout->loads_count, sizeof *e->loads);
    ts_executor_read_result(e->executor, e->index[TS_PROGRAM_TRAIN], "loads", e->loads);
  }
}

static double busy_seconds(const ts_executor_times *times) {
  double busy = 0;
  for (int phase = 0; phase < TS_N_RUN_PHASES; ++phase) {
    busy += times->phase[phase] - times->waited[phase];
  }
  return busy;
}

ts_step_result ts_engine_end_step(ts_engine *e) {
  double summary[TS_SUMMARY_SIZE];
  ts_executor_read_result(e->executor, e->index[TS_PROGRAM_TRAIN], "summary", summary);
  read_loads(e);
  ts_executor_times times = ts_executor_take_times(e->executor);
  ts_step_result result = {.loss = ts_shown(summary[TS_SUMMARY_LOSS] / summary[TS_SUMMARY_VALID]),
                           .balance = ts_shown(summary[TS_SUMMARY_BALANCE] / summary[TS_SUMMARY_VALID]),
                           .valid_tokens = summary[TS_SUMMARY_VALID],
                           .grad_norm = ts_shown(summary[TS_SUMMARY_NORM]),
                           .skipped = summary[TS_SUMMARY_SKIP] != 0,
                           .overflow = summary[TS_SUMMARY_OVERFLOW] != 0,
                           .stuck = summary[TS_SUMMARY_STUCK] != 0,
                           .loss_scale = summary[TS_SUMMARY_SCALE],
                           .next_loss_scale = summary[TS_SUMMARY_NEXT_SCALE],
                           .searching = summary[TS_SUMMARY_OVERFLOW] != 0 && isfinite(summary[TS_SUMMARY_LOSS]) &&
                                        ts_loss_scale_is_searching(&e->scaler, summary[TS_SUMMARY_SCALE]),
                           .lr = ts_engine_learning_rate(e),
                           .communication_seconds = times.communication,
                           .exposed_seconds = times.exposed,
                           .forward_seconds = times.phase[TS_RUN_FORWARD],
                           .backward_seconds = times.phase[TS_RUN_BACKWARD],
                           .update_seconds = times.phase[TS_RUN_UPDATE],
                           .busy_seconds = busy_seconds(&times),
                           .bubble = e->mesh.size[TS_AXIS_PP] > 1 ? find_bubble(e, &times) : 0};
  memcpy(result.flag, summary + TS_SUMMARY_FLAGS, sizeof result.flag);
  if (result.skipped) {
    ts_executor_drop_updates(e->executor);
  }
  e->updates += !result.skipped;
  e->skipped += result.skipped;
  ++e->steps;
  e->hand.result = result;
  e->hand.applied = !result.skipped;
  return result;
}

void ts_engine_observe_instances(ts_engine *e, ts_instance_observer *observer, void *user) {
  e->instance_observer = observer;
  e->instance_user = user;
}

/* "stage1:2F3": which piece, what, of which micro-batch; "" where that says nothing. */
static void spell_instance(const ts_engine *e, ts_run run, char text[TS_HEARTBEAT_INSTANCE]) {
  const ts_program *p = e->program[TS_PROGRAM_TRAIN];
  const ts_run_kind *kind = &p->step.kind[run.kind];
  text[0] = 0;
  if (p->stages != NULL && kind->phase != TS_RUN_UPDATE) {
    bool inputs = (kind->segments & TS_SEGMENT_BACKWARD_INPUT) != 0;
    bool weights = (kind->segments & TS_SEGMENT_BACKWARD_WEIGHT) != 0;
    int stage = e->mesh.coord[TS_AXIS_PP];
    snprintf(text, TS_HEARTBEAT_INSTANCE, "stage%d:%d%c%lld", stage,
             ts_pipeline_piece(&p->stages->pipeline, stage, run.chunk),
             kind->phase == TS_RUN_FORWARD ? 'F'
             : inputs && weights           ? 'B'
             : inputs                      ? 'I'
                                           : 'W',
             (long long) run.micro_batch);
  }
}

/* Runs of a step in the order of its schedule. */
static ts_status run_schedule(ts_engine *e, const ts_feed *feed, ts_error *err) {
  const int which = TS_PROGRAM_TRAIN;
  const ts_step_runs *step = &e->program[which]->step;
  ts_executor_take_times(e->executor); /* of an evaluation */
  for (int64_t i = 0; i < step->n; ++i) {
    ts_run run = ts_step_run(step, i);
    ts_run_phase phase = step->kind[run.kind].phase;
    char instance[TS_HEARTBEAT_INSTANCE];
    spell_instance(e, run, instance);
    ts_heartbeat_instance(ts_world_heartbeat(e->world), instance);
    if (phase != TS_RUN_UPDATE) {
      ts_heartbeat_micro_batch(ts_world_heartbeat(e->world), run.micro_batch * step->together);
    }
    if (phase == TS_RUN_FORWARD) {
      if (take_samples(e, feed, which, run, err) != TS_OK) {
        return TS_BAD_INPUT;
      }
      set_micro_batch(e, run);
    } else if (phase == TS_RUN_UPDATE) {
      ts_engine_set_update(e, feed, ts_run_slot(run));
    }
    double begin = ts_seconds();
    ts_executor_run(e->executor, e->index[which], i);
    if (e->instance_observer != NULL && instance[0] != 0) {
      e->instance_observer(e->instance_user, instance, begin, ts_seconds() - begin);
    }
  }
  return TS_OK;
}

static ts_status check_loss(const ts_engine *e, int which, const char *call, ts_error *err) {
  return e->program[which]->counted > 0
             ? TS_OK
             : ts_error_add(err, "%s: the model has no loss: go through steps by hand (ts_forward, ts_backward_from)",
                            call);
}

ts_status ts_train_batch(ts_engine *e, const ts_feed *feed, ts_step_result *result, ts_error *err) {
  const char *call = "ts_train_batch";
  if (ts_engine_check_ability(e, TS_CAN_TRAIN, call, "TS_CAN_TRAIN", err) != TS_OK ||
      check_loss(e, TS_PROGRAM_TRAIN, call, err) != TS_OK || ts_engine_check_idle(e, call, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_engine_forget(e);
  e->hand.forwarded = false;
  if (run_schedule(e, feed, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_step_result r = ts_engine_end_step(e);
  e->hand.micro_steps = 0;
  if (result != NULL) {
    *result = r;
  }
  return TS_OK;
}

/* Micro-batches from `first` on, as many as the program's step has. */
static ts_status evaluate_step(ts_engine *e, const ts_feed *feed, int64_t first, double *loss_sum, double *labels,
                               ts_error *err) {
  const int which = TS_PROGRAM_EVALUATE;
  const ts_step_runs *step = &e->program[which]->step;
  for (int64_t i = 0; i < step->n; ++i) {
    ts_run run = ts_step_run(step, i), asked = run;
    asked.micro_batch += first;
    ts_heartbeat_micro_batch(ts_world_heartbeat(e->world), asked.micro_batch);
    if (take_samples(e, feed, which, asked, err) != TS_OK) {
      return TS_BAD_INPUT;
    }
    ts_engine_set_scalar(e, which, ts_run_slot(run), "accumulate", run.micro_batch > 0);
    ts_engine_set_control(e, which, ts_run_slot(run), (const double[TS_N_FLAGS]){0});
    ts_executor_run(e->executor, e->index[which], i);
  }
  double summary[TS_SUMMARY_SIZE];
  ts_executor_read_result(e->executor, e->index[which], "summary", summary);
  *loss_sum += summary[TS_SUMMARY_LOSS];
  *labels += summary[TS_SUMMARY_VALID];
  return TS_OK;
}

ts_status ts_eval_batch(ts_engine *e, const ts_feed *feed, int64_t micro_batches, double *loss_sum, double *labels,
                        ts_error *err) {
  const char *call = "ts_eval_batch";
  *loss_sum = *labels = 0;
  if (ts_engine_check_ability(e, TS_CAN_EVALUATE, call, "TS_CAN_EVALUATE", err) != TS_OK ||
      check_loss(e, TS_PROGRAM_EVALUATE, call, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  e->hand.forwarded = false;
  int64_t n = micro_batches > 0 ? micro_batches : ts_gradient_accumulation_steps(e);
  ts_status status = TS_OK;
  const int64_t most = ts_deck_evaluates(e->deck);
  for (int64_t i = 0; i < n && status == TS_OK; i += most) {
    bool goes = ts_step_set_micro_batches(&e->program[TS_PROGRAM_EVALUATE]->step, n - i < most ? n - i : most);
    TS_CHECK(goes, "an evaluation takes any number of micro-batches");
    status = evaluate_step(e, feed, i, loss_sum, labels, err);
  }
  return status;
}

/* ---- the same of samples that are there ---- */

ts_step_result ts_engine_train_step(ts_engine *e, const ts_step_input *input) {
  const ts_feed feed = {take_from_batch, ask_for_flags, (void *) input};
  ts_step_result result = {0};
  ts_error err = {0};
  TS_CHECK(ts_train_batch(e, &feed, &result, &err) == TS_OK, "%s", err.text);
  return result;
}

void ts_engine_evaluate(ts_engine *e, const ts_batch *batch, double *loss_sum, double *valid_tokens) {
  const ts_step_input input = {.batch = batch};
  const ts_feed feed = {.feed = take_from_batch, .user = (void *) &input};
  ts_error err = {0};
  int64_t n = batch->samples / e->program[TS_PROGRAM_EVALUATE]->batch;
  TS_CHECK(ts_eval_batch(e, &feed, n, loss_sum, valid_tokens, &err) == TS_OK, "%s", err.text);
}
