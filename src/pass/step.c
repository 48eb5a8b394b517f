#include "pass/step.h"

#define BACKWARD (TS_SEGMENT_BACKWARD_INPUT | TS_SEGMENT_BACKWARD_WEIGHT)

/* ---- gradients are accumulated; what happens once a step happens with the last micro-batch ---- */

enum { FORWARD, BACK, LAST_BACK, UPDATE, REDUCE };
static const ts_run_kind training[] = {
    [FORWARD] = {"forward", "the forward pass of a step", TS_RUN_FORWARD, TS_SEGMENT_FORWARD},
    [BACK] = {"backward", "the backward pass of a step", TS_RUN_BACKWARD, BACKWARD},
    [LAST_BACK] = {"backward and reduce", "the backward pass of a step", TS_RUN_BACKWARD, BACKWARD | TS_SEGMENT_REDUCE},
    [UPDATE] = {"update", "the update of a step", TS_RUN_UPDATE, TS_SEGMENT_UPDATE},
    [REDUCE] = {"reduce", "the reductions of a step", TS_RUN_BACKWARD, TS_SEGMENT_REDUCE}};

static ts_run in_its_slot(const ts_step_runs *step, int kind, int64_t micro_batch) {
  return (ts_run){.kind = kind, .micro_batch = micro_batch, .slot = (int) (micro_batch % step->n_slots)};
}

static ts_run forward_of(const ts_step_runs *step, int64_t micro_batch) {
  return in_its_slot(step, FORWARD, micro_batch);
}

static ts_run backward_of(const ts_step_runs *step, int64_t micro_batch) {
  return in_its_slot(step, micro_batch < step->micro_batches - 1 ? BACK : LAST_BACK, micro_batch);
}

/* One forward, one backward, with a lead of n_slots - 1 forwards: with one slot micro-batches one after another, with
 * as many slots as micro-batches all forwards before all backwards; in between the order of a pipeline's stage, 1F1B
 * (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021).  Backwards are in the
 * order of micro-batches, so sums have the same bits with any number of slots. */
static ts_run accumulate(const ts_step_runs *step, int64_t i) {
  int64_t n = step->micro_batches, lead = step->n_slots - 1;
  if (i < lead) {
    return forward_of(step, i);
  }
  if (i < 2 * n - lead) {
    int64_t pair = (i - lead) / 2;
    return (i - lead) % 2 == 0 ? forward_of(step, lead + pair) : backward_of(step, pair);
  }
  return i < 2 * n ? backward_of(step, i - n) : in_its_slot(step, UPDATE, n - 1);
}

static bool accumulation_has(const ts_step_runs *step, int kind) {
  return step->by_hand || (kind != REDUCE && (kind != BACK || step->accumulates));
}

/* ---- a pass over one micro-batch ---- */

static const ts_run_kind validation[] = {
    {"forward", "the forward pass of a validation", TS_RUN_FORWARD, TS_SEGMENT_FORWARD | TS_SEGMENT_UPDATE}};
static const ts_run_kind generation[] = {
    {"forward", "the forward pass of a generation", TS_RUN_FORWARD, TS_SEGMENT_FORWARD}};

static ts_run once(const ts_step_runs *step, int64_t i) {
  (void) step;
  (void) i;
  return (ts_run){0};
}

static bool has_it(const ts_step_runs *step, int kind) {
  return kind < step->n_kinds;
}

/* ---- schedules ---- */

#define KINDS(kinds) .kind = kinds, .n_kinds = sizeof kinds / sizeof *kinds

static const ts_step_runs schedules[] = {
    [TS_MODEL_TRAIN] = {KINDS(training), .at = accumulate, .has = accumulation_has},
    [TS_MODEL_LOSS] = {KINDS(validation), .at = once, .has = has_it},
    [TS_MODEL_LOGITS] = {KINDS(generation), .at = once, .has = has_it},
};

ts_run ts_step_run_by_hand(ts_hand hand) {
  static const int kind[] = {
      [TS_HAND_FORWARD] = FORWARD, [TS_HAND_BACKWARD] = BACK, [TS_HAND_LAST_BACKWARD] = LAST_BACK,
      [TS_HAND_REDUCE] = REDUCE,   [TS_HAND_UPDATE] = UPDATE,
  };
  return (ts_run){.kind = kind[hand]};
}

ts_step_runs ts_step_of(ts_model_use use, int64_t micro_batches, int n_slots) {
  TS_ASSERT(micro_batches > 0 && n_slots > 0);
  ts_step_runs step = schedules[use];
  step.micro_batches = micro_batches;
  step.accumulates = micro_batches > 1;
  step.n_slots = n_slots < micro_batches ? n_slots : (int) micro_batches;
  step.n = use == TS_MODEL_TRAIN ? 2 * micro_batches + 1 : 1;
  return step;
}

bool ts_step_accumulates(const ts_step_runs *step) {
  return step->kind == training && step->has(step, BACK);
}

void ts_step_set_micro_batches(ts_step_runs *step, int64_t micro_batches) {
  TS_ASSERT(step->kind == training && micro_batches >= step->n_slots);
  step->micro_batches = micro_batches;
  step->n = 2 * micro_batches + 1;
}

ts_run ts_step_run(const ts_step_runs *step, int64_t i) {
  TS_ASSERT(i >= 0 && i < step->n);
  return step->at(step, i);
}

const ts_run_kind *ts_step_kind(const ts_step_runs *step, int64_t i) {
  return &step->kind[ts_step_run(step, i).kind];
}
