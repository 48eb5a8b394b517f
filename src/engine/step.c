/* A step of an engine: what the host writes before each run, and what it reads after the last. */
#include "engine/engine.h"

#include "graph/record.h"

#include <math.h>
#include <string.h>

void ts_engine_set_scalar(ts_engine *e, int which, int slot, const char *name, double value) {
  float *to = ts_executor_input(e->executor, e->index[which], slot, name);
  if (to != NULL) {
    *to = (float) value;
  }
}

/* What the loss is divided by before the backward.  With a loss scale not by the ranks that read different samples,
 * which would cost gradients in fp16 a bit for each doubling: that is left to the record, whose factor is fp64.  Ranks
 * that share samples count those whole, so a gradient is as large on any grid.  Where the program has no loss gradients
 * are taken as they are: each rank that would have a loss counts 1, of as many. */
double ts_engine_static_tokens(const ts_engine *e, int which) {
  const ts_program *p = e->program[which];
  if (ts_graph_find(p->graph, "counted") != TS_NONE) {
    return e->mesh.ranks / (e->mesh.size[TS_AXIS_TP] * e->mesh.size[TS_AXIS_PP]);
  }
  double ranks = e->scaler.rule == TS_LOSS_SCALE_NONE ? ts_mesh_group_size(&e->mesh, TS_AXES_BATCH) : 1;
  return (double) (p->batch * p->length) * (double) p->step.micro_batches * ranks;
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

/* The samples of the run's micro-batch: every input that the program has. */
static void set_inputs(ts_engine *e, int which, const ts_batch *batch, ts_run run) {
  const ts_program *p = e->program[which];
  int64_t m = run.micro_batch;
  TS_CHECK(batch->length == p->length && (m + 1) * p->batch <= batch->samples,
           "a batch of %lld samples of %lld tokens is not what the program takes", (long long) batch->samples,
           (long long) batch->length);
  for (int i = 0; i < TS_N_INPUTS; ++i) {
    const char *name = ts_input_get((ts_input_kind) i)->name;
    ts_tid leaf = ts_graph_find(p->graph, name);
    if (leaf != TS_NONE) {
      TS_CHECK(batch->input[i] != NULL, "the batch has no %s", name);
      size_t sample = ts_batch_bytes(batch, (ts_input_kind) i);
      ts_engine_write_input(e, which, run.slot, leaf,
                            (const char *) batch->input[i] + (size_t) (m * p->batch) * sample);
    }
  }
}

static void set_micro_batch(ts_engine *e, const ts_batch *batch, ts_run run) {
  const int which = TS_PROGRAM_TRAIN;
  set_inputs(e, which, batch, run);
  int64_t *seed = ts_executor_input(e->executor, e->index[which], run.slot, "seed");
  if (seed != NULL) {
    *seed = e->deck->run.seed;
  }
  ts_engine_set_scalar(e, which, run.slot, "gradient_seed", 1 / ts_engine_static_tokens(e, which));
  ts_engine_set_scalar(e, which, run.slot, "accumulate", run.micro_batch > 0);
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
  float *one = ts_executor_input(e->executor, index, slot, "one"); /* of directions, which are scaled already */
  if (one != NULL) {
    *one = 1;
  }
}

void ts_engine_set_update(ts_engine *e, const ts_step_input *input, int slot) {
  const int which = TS_PROGRAM_TRAIN;
  double flags[TS_N_FLAGS] = {0};
  if (input->flags != NULL) {
    input->flags(input->user, flags);
  }
  ts_heartbeat_phase(ts_world_heartbeat(e->world), TS_PHASE_UPDATING);
  ts_engine_set_control(e, which, slot, flags);
  ts_engine_set_scalar(e, which, slot, "lr", ts_engine_learning_rate(e));
  float *betas = ts_executor_input(e->executor, e->index[which], slot, "betas");
  betas[0] = (float) ts_momentum_at(&e->schedule, e->updates);
  betas[1] = (float) e->deck->optimizer.params.betas[1];
}

/* ---- the step ---- */

ts_step_result ts_engine_end_step(ts_engine *e) {
  double summary[TS_SUMMARY_SIZE];
  ts_executor_read_result(e->executor, e->index[TS_PROGRAM_TRAIN], "summary", summary);
  ts_executor_times times = ts_executor_take_times(e->executor);
  ts_step_result result = {.loss = ts_shown(summary[TS_SUMMARY_LOSS] / summary[TS_SUMMARY_VALID]),
                           .valid_tokens = summary[TS_SUMMARY_VALID],
                           .grad_norm = ts_shown(summary[TS_SUMMARY_NORM]),
                           .flag = {summary[TS_SUMMARY_FLAGS], summary[TS_SUMMARY_FLAGS + 1]},
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
                           .update_seconds = times.phase[TS_RUN_UPDATE]};
  e->updates += !result.skipped;
  return result;
}

ts_step_result ts_engine_train_step(ts_engine *e, const ts_step_input *input) {
  const int which = TS_PROGRAM_TRAIN, index = e->index[which];
  const ts_step_runs *step = &e->program[which]->step;
  ts_engine_forget(e);
  e->hand.forwarded = e->hand.local = e->hand.reduced = false; /* steps by hand begin anew */
  e->hand.backwards = 0;
  for (int64_t i = 0; i < step->n; ++i) {
    ts_run run = ts_step_run(step, i);
    ts_run_phase phase = step->kind[run.kind].phase;
    if (phase != TS_RUN_UPDATE) {
      ts_heartbeat_micro_batch(ts_world_heartbeat(e->world), run.micro_batch);
    }
    if (phase == TS_RUN_FORWARD) {
      set_micro_batch(e, input->batch, run);
    } else if (phase == TS_RUN_UPDATE) {
      ts_engine_set_update(e, input, run.slot);
    }
    ts_executor_run(e->executor, index, i);
  }
  return ts_engine_end_step(e);
}

void ts_engine_evaluate(ts_engine *e, const ts_batch *batch, double *loss_sum, double *valid_tokens) {
  const int which = TS_PROGRAM_EVALUATE;
  e->hand.forwarded = false;
  set_inputs(e, which, batch, (ts_run){0});
  ts_engine_set_scalar(e, which, 0, "accumulate", 0);
  ts_engine_set_control(e, which, 0, (const double[TS_N_FLAGS]){0});
  ts_executor_run(e->executor, e->index[which], 0);
  double summary[TS_SUMMARY_SIZE];
  ts_executor_read_result(e->executor, e->index[which], "summary", summary);
  *loss_sum = summary[TS_SUMMARY_LOSS];
  *valid_tokens = summary[TS_SUMMARY_VALID];
}
