#include "pass/step.h"

#include "base/memory.h"

#define BACKWARD (TS_SEGMENT_BACKWARD_INPUT | TS_SEGMENT_BACKWARD_WEIGHT)

/* ---- gradients are accumulated; what happens once a step happens with the last micro-batch ---- */

enum { FORWARD, BACK, LAST_BACK, INPUTS, WEIGHTS, LAST_WEIGHTS, UPDATE, REDUCE };
static const ts_run_kind training[] = {
    [FORWARD] = {"forward", "the forward pass of a step", TS_RUN_FORWARD, TS_SEGMENT_FORWARD},
    [BACK] = {"backward", "the backward pass of a step", TS_RUN_BACKWARD, BACKWARD},
    [LAST_BACK] = {"backward and reduce", "the backward pass of a step", TS_RUN_BACKWARD, BACKWARD | TS_SEGMENT_REDUCE},
    [INPUTS] = {"backward of inputs", "the backward pass of a step", TS_RUN_BACKWARD, TS_SEGMENT_BACKWARD_INPUT},
    [WEIGHTS] = {"backward of weights", "the backward pass of a step", TS_RUN_BACKWARD, TS_SEGMENT_BACKWARD_WEIGHT},
    [LAST_WEIGHTS] = {"backward of weights and reduce", "the backward pass of a step", TS_RUN_BACKWARD,
                      TS_SEGMENT_BACKWARD_WEIGHT | TS_SEGMENT_REDUCE},
    [UPDATE] = {"update", "the update of a step", TS_RUN_UPDATE, TS_SEGMENT_UPDATE},
    [REDUCE] = {"reduce", "the reductions of a step", TS_RUN_BACKWARD, TS_SEGMENT_REDUCE}};

static int run_kind_of(ts_pipeline_work work, bool last) {
  static const int kinds[TS_N_WORKS][2] = {[TS_WORK_FORWARD] = {FORWARD, FORWARD},
                                           [TS_WORK_INPUT] = {INPUTS, INPUTS},
                                           [TS_WORK_WEIGHT] = {WEIGHTS, LAST_WEIGHTS},
                                           [TS_WORK_BACKWARD] = {BACK, LAST_BACK}};
  return kinds[work][last];
}

static ts_pipeline pipeline_of(const ts_step_order *order, int64_t micro_batches) {
  bool accumulates = order == NULL || order->stages == 0;
  return (ts_pipeline){.schedule = accumulates ? TS_PIPELINE_1F1B : order->schedule,
                       .stages = accumulates ? 1 : order->stages,
                       .chunks = 1,
                       .micro_batches = micro_batches};
}

/* The lowest slot that has no micro-batch. */
static int find_free(const int64_t *there, int n) {
  int slot = 0;
  while (slot < n && there[slot] >= 0) {
    ++slot;
  }
  return slot;
}

static int find_slot(const int64_t *there, int n, int64_t micro_batch) {
  int slot = 0;
  while (slot < n && there[slot] != micro_batch) {
    ++slot;
  }
  return slot;
}

/* The list of the schedule, and the update. */
static void list_runs(ts_step_runs *step) {
  const ts_pipeline pipeline = pipeline_of(&step->order, step->micro_batches);
  ts_pipeline_list list = ts_pipeline_list_of(&pipeline, step->order.stage);
  int n_slots = (int) ts_pipeline_kept(&pipeline, step->order.stage);
  int64_t *there = ts_malloc((size_t) n_slots * sizeof *there);
  for (int slot = 0; slot < n_slots; ++slot) {
    there[slot] = -1;
  }
  ts_free(step->run);
  step->n = list.n + 1;
  step->run = ts_malloc((size_t) step->n * sizeof *step->run);
  for (int64_t i = 0; i < list.n; ++i) {
    const ts_pipeline_instance *at = &list.instance[i];
    bool begins = at->work == TS_WORK_FORWARD, ends = at->work == TS_WORK_WEIGHT || at->work == TS_WORK_BACKWARD;
    int slot = begins ? find_free(there, n_slots) : find_slot(there, n_slots, at->micro_batch);
    TS_ASSERT(slot < n_slots);
    there[slot] = ends ? -1 : at->micro_batch;
    step->apart = step->apart || at->work == TS_WORK_INPUT;
    step->run[i] = (ts_run){.kind = run_kind_of(at->work, at->micro_batch == step->micro_batches - 1),
                            .micro_batch = at->micro_batch,
                            .slot = slot};
  }
  step->run[list.n] =
      (ts_run){.kind = UPDATE, .micro_batch = step->micro_batches - 1, .slot = step->run[list.n - 1].slot};
  ts_free(there);
  ts_free(list.instance);
}

/* ---- a pass over one micro-batch ---- */

static const ts_run_kind validation[] = {
    {"forward", "the forward pass of a validation", TS_RUN_FORWARD, TS_SEGMENT_FORWARD | TS_SEGMENT_UPDATE}};
static const ts_run_kind generation[] = {
    {"forward", "the forward pass of a generation", TS_RUN_FORWARD, TS_SEGMENT_FORWARD}};

/* ---- all uses ---- */

#define KINDS(kinds) .kind = kinds, .n_kinds = sizeof kinds / sizeof *kinds

static const ts_step_runs uses[] = {
    [TS_MODEL_TRAIN] = {KINDS(training)},
    [TS_MODEL_LOSS] = {KINDS(validation)},
    [TS_MODEL_LOGITS] = {KINDS(generation)},
};

bool ts_step_has(const ts_step_runs *step, int kind) {
  if (step->kind != training) {
    return kind < step->n_kinds;
  }
  switch (kind) {
    case FORWARD:
    case UPDATE: return true;
    case BACK: return step->by_hand || (!step->apart && step->accumulates);
    case LAST_BACK: return step->by_hand || !step->apart;
    case WEIGHTS: return step->apart && step->accumulates;
    case INPUTS:
    case LAST_WEIGHTS: return step->apart;
    default: return step->by_hand;
  }
}

ts_run ts_step_run_by_hand(ts_hand hand) {
  static const int kind[] = {
      [TS_HAND_FORWARD] = FORWARD, [TS_HAND_BACKWARD] = BACK, [TS_HAND_LAST_BACKWARD] = LAST_BACK,
      [TS_HAND_REDUCE] = REDUCE,   [TS_HAND_UPDATE] = UPDATE,
  };
  return (ts_run){.kind = kind[hand]};
}

ts_step_runs ts_step_of(ts_model_use use, int64_t micro_batches, const ts_step_order *order) {
  TS_ASSERT(micro_batches > 0);
  ts_step_runs step = uses[use];
  step.micro_batches = micro_batches;
  step.accumulates = micro_batches > 1;
  step.order = order != NULL ? *order : (ts_step_order){0};
  if (use == TS_MODEL_TRAIN) {
    const ts_pipeline pipeline = pipeline_of(&step.order, micro_batches);
    step.n_slots = (int) ts_pipeline_kept(&pipeline, step.order.stage);
    list_runs(&step);
  } else {
    step.n_slots = 1;
    step.n = 1;
    step.run = ts_calloc(1, sizeof *step.run);
  }
  return step;
}

void ts_step_clear(ts_step_runs *step) {
  ts_free(step->run);
  step->run = NULL;
}

bool ts_step_accumulates(const ts_step_runs *step) {
  return step->kind == training && (step->accumulates || step->by_hand);
}

bool ts_step_set_micro_batches(ts_step_runs *step, int64_t micro_batches) {
  TS_ASSERT(step->kind == training && micro_batches > 0);
  const ts_pipeline pipeline = pipeline_of(&step->order, micro_batches);
  if (ts_pipeline_check(&pipeline, NULL) != TS_OK || ts_pipeline_kept(&pipeline, step->order.stage) > step->n_slots) {
    return false;
  }
  step->micro_batches = micro_batches;
  list_runs(step);
  return true;
}

ts_run ts_step_run(const ts_step_runs *step, int64_t i) {
  TS_ASSERT(i >= 0 && i < step->n);
  return step->run[i];
}

const ts_run_kind *ts_step_kind(const ts_step_runs *step, int64_t i) {
  return &step->kind[ts_step_run(step, i).kind];
}
