#include "pass/step.h"

#include "base/memory.h"

#define BACKWARD (TS_SEGMENT_BACKWARD_INPUT | TS_SEGMENT_BACKWARD_WEIGHT)

/* Kinds of runs. */
static const ts_run forward = {"forward", TS_RUN_FORWARD, TS_SEGMENT_FORWARD, 0, 0};
static const ts_run backward = {"backward", TS_RUN_BACKWARD, BACKWARD, 0, 0};
static const ts_run reducing = {"backward and reduce", TS_RUN_BACKWARD, BACKWARD | TS_SEGMENT_REDUCE, 0, 0};
static const ts_run update = {"update", TS_RUN_UPDATE, TS_SEGMENT_UPDATE, 0, 0};
static const ts_run evaluation = {"forward", TS_RUN_FORWARD, TS_SEGMENT_FORWARD | TS_SEGMENT_UPDATE, 0, 0};

static void list_run(ts_step *step, ts_run run, int slot, int micro_batch) {
  run.slot = slot;
  run.micro_batch = micro_batch;
  step->run[step->n++] = run;
}

/* ---- schedules ---- */

/* Gradients are accumulated: micro-batches one after another in one slot, what happens once a step with the last. */
static void accumulate(ts_step *step) {
  int last = step->micro_batches - 1;
  for (int m = 0; m <= last; ++m) {
    list_run(step, forward, 0, m);
    list_run(step, m == last ? reducing : backward, 0, m);
  }
  list_run(step, update, 0, last);
}

static void evaluate(ts_step *step) {
  list_run(step, evaluation, 0, 0);
}

static void infer(ts_step *step) {
  list_run(step, forward, 0, 0);
}

/* A row: what it is for, and how its runs are listed. */
static void (*const schedules[])(ts_step *step) = {
    [TS_MODEL_TRAIN] = accumulate, [TS_MODEL_LOSS] = evaluate, [TS_MODEL_LOGITS] = infer};

ts_step *ts_step_create(ts_model_use use, int micro_batches) {
  ts_step *step = ts_calloc(1, sizeof *step);
  step->micro_batches = micro_batches;
  step->n_slots = 1;
  step->run = ts_malloc(((size_t) micro_batches * 2 + 1) * sizeof *step->run);
  schedules[use](step);
  return step;
}

void ts_step_destroy(ts_step **step) {
  if (*step != NULL) {
    ts_free((*step)->run);
    ts_free(*step);
    *step = NULL;
  }
}

bool ts_step_is_new(const ts_step *step, int i) {
  for (int k = 0; k < i; ++k) {
    if (step->run[k].segments == step->run[i].segments && step->run[k].slot == step->run[i].slot) {
      return false;
    }
  }
  return true;
}
