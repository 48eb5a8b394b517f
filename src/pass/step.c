#include "pass/step.h"

#define BACKWARD (TS_SEGMENT_BACKWARD_INPUT | TS_SEGMENT_BACKWARD_WEIGHT)

/* ---- gradients are accumulated: micro-batches one after another, what happens once a step with the last ---- */

enum { FORWARD, BACK, LAST_BACK, UPDATE };
static const ts_run_kind training[] = {
    [FORWARD] = {"forward", "the forward pass of a step", TS_RUN_FORWARD, TS_SEGMENT_FORWARD},
    [BACK] = {"backward", "the backward pass of a step", TS_RUN_BACKWARD, BACKWARD},
    [LAST_BACK] = {"backward and reduce", "the backward pass of a step", TS_RUN_BACKWARD, BACKWARD | TS_SEGMENT_REDUCE},
    [UPDATE] = {"update", "the update of a step", TS_RUN_UPDATE, TS_SEGMENT_UPDATE}};

static ts_run accumulate(const ts_step *step, int64_t i) {
  int64_t m = i / 2, last = step->micro_batches - 1;
  if (m > last) {
    return (ts_run){.kind = UPDATE, .micro_batch = last};
  }
  return (ts_run){.kind = i % 2 == 0 ? FORWARD : m < last ? BACK : LAST_BACK, .micro_batch = m};
}

static bool accumulation_has(const ts_step *step, int kind) {
  return kind != BACK || step->micro_batches > 1;
}

/* ---- a pass over one micro-batch ---- */

static const ts_run_kind validation[] = {
    {"forward", "the forward pass of a validation", TS_RUN_FORWARD, TS_SEGMENT_FORWARD | TS_SEGMENT_UPDATE}};
static const ts_run_kind generation[] = {
    {"forward", "the forward pass of a generation", TS_RUN_FORWARD, TS_SEGMENT_FORWARD}};

static ts_run once(const ts_step *step, int64_t i) {
  (void) step;
  (void) i;
  return (ts_run){0};
}

static bool has_it(const ts_step *step, int kind) {
  return kind < step->n_kinds;
}

/* ---- schedules ---- */

#define KINDS(kinds) .kind = kinds, .n_kinds = sizeof kinds / sizeof *kinds

static const ts_step schedules[] = {
    [TS_MODEL_TRAIN] = {KINDS(training), .at = accumulate, .has = accumulation_has},
    [TS_MODEL_LOSS] = {KINDS(validation), .at = once, .has = has_it},
    [TS_MODEL_LOGITS] = {KINDS(generation), .at = once, .has = has_it},
};

ts_step ts_step_of(ts_model_use use, int64_t micro_batches) {
  ts_step step = schedules[use];
  step.micro_batches = micro_batches;
  step.n = use == TS_MODEL_TRAIN ? 2 * micro_batches + 1 : 1;
  return step;
}

ts_run ts_step_run(const ts_step *step, int64_t i) {
  TS_ASSERT(i >= 0 && i < step->n);
  return step->at(step, i);
}

const ts_run_kind *ts_step_kind(const ts_step *step, int64_t i) {
  return &step->kind[ts_step_run(step, i).kind];
}
