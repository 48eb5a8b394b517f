#include "pass/step.h"

#include "base/memory.h"
#include "pass/stage.h"

#include <string.h>

#define BACKWARD (TS_SEGMENT_BACKWARD_INPUT | TS_SEGMENT_BACKWARD_WEIGHT)

/* ---- gradients are accumulated; what happens once a step happens with the last micro-batch ---- */

enum {
  FIRST_FORWARD,
  UPDATING_FORWARD,
  GATHERING_FORWARD,
  FORWARD,
  BACK,
  LAST_BACK,
  INPUTS,
  WEIGHTS,
  LAST_WEIGHTS,
  UPDATE,
  LATE_UPDATE,
  LATE_GATHER,
  REDUCE
};
static const ts_run_kind training[] = {
    [FIRST_FORWARD] = {"first forward", "the forward pass of a step", TS_RUN_FORWARD,
                       TS_SEGMENT_PREPARE | TS_SEGMENT_FORWARD},
    [UPDATING_FORWARD] = {"late update and first forward", "the forward pass of a step", TS_RUN_FORWARD,
                          TS_SEGMENT_LATE_UPDATE | TS_SEGMENT_LATE_GATHER | TS_SEGMENT_PREPARE | TS_SEGMENT_FORWARD},
    [GATHERING_FORWARD] = {"late gather and first forward", "the forward pass of a step", TS_RUN_FORWARD,
                           TS_SEGMENT_LATE_GATHER | TS_SEGMENT_PREPARE | TS_SEGMENT_FORWARD},
    [FORWARD] = {"forward", "the forward pass of a step", TS_RUN_FORWARD, TS_SEGMENT_FORWARD},
    [BACK] = {"backward", "the backward pass of a step", TS_RUN_BACKWARD, BACKWARD},
    [LAST_BACK] = {"backward and reduce", "the backward pass of a step", TS_RUN_BACKWARD, BACKWARD | TS_SEGMENT_REDUCE},
    [INPUTS] = {"backward of inputs", "the backward pass of a step", TS_RUN_BACKWARD, TS_SEGMENT_BACKWARD_INPUT},
    [WEIGHTS] = {"backward of weights", "the backward pass of a step", TS_RUN_BACKWARD, TS_SEGMENT_BACKWARD_WEIGHT},
    [LAST_WEIGHTS] = {"backward of weights and reduce", "the backward pass of a step", TS_RUN_BACKWARD,
                      TS_SEGMENT_BACKWARD_WEIGHT | TS_SEGMENT_REDUCE},
    [UPDATE] = {"update", "the update of a step", TS_RUN_UPDATE, TS_SEGMENT_UPDATE},
    [LATE_UPDATE] = {"late update", "the update of a step", TS_RUN_UPDATE, TS_SEGMENT_LATE_UPDATE},
    [LATE_GATHER] = {"late gather", "the update of a step", TS_RUN_UPDATE, TS_SEGMENT_LATE_GATHER},
    [REDUCE] = {"reduce", "the reductions of a step", TS_RUN_BACKWARD, TS_SEGMENT_REDUCE}};

static int run_kind_of(ts_pipeline_work work, bool first, bool last) {
  static const int kinds[TS_N_WORKS][2] = {[TS_WORK_FORWARD] = {FORWARD, FORWARD},
                                           [TS_WORK_INPUT] = {INPUTS, INPUTS},
                                           [TS_WORK_WEIGHT] = {WEIGHTS, LAST_WEIGHTS},
                                           [TS_WORK_BACKWARD] = {BACK, LAST_BACK}};
  return work == TS_WORK_FORWARD && first ? FIRST_FORWARD : kinds[work][last];
}

static int chunks_of(const ts_step_order *order) {
  return order != NULL && order->chunks > 1 ? order->chunks : 1;
}

static ts_pipeline pipeline_of(const ts_step_order *order, int64_t micro_batches) {
  bool accumulates = order == NULL || order->stages == 0;
  return (ts_pipeline){.schedule = accumulates ? TS_PIPELINE_1F1B : order->schedule,
                       .stages = accumulates ? 1 : order->stages,
                       .chunks = chunks_of(order),
                       .micro_batches = micro_batches};
}

/* What is in a place: a micro-batch in one of the rank's chunks. */
typedef struct occupant {
  int64_t micro_batch; /* -1: none */
  int chunk;
} occupant;

static const occupant nobody = {-1, 0};

/* The places of a lifetime, as many as were ever taken at a time. */
typedef struct place_list {
  occupant *there;
  int n, capacity;
} place_list;

static int seek_place(const place_list *places, occupant whom) {
  int place = 0;
  while (place < places->n &&
         (places->there[place].micro_batch != whom.micro_batch || places->there[place].chunk != whom.chunk)) {
    ++place;
  }
  return place;
}

/* The lowest that is free. */
static int take_place(place_list *places, occupant whom) {
  int place = seek_place(places, nobody);
  if (place == places->n) {
    TS_GROW(places->there, places->n, places->capacity);
    ++places->n;
  }
  places->there[place] = whom;
  return place;
}

ts_step_order ts_deck_step_order(const ts_deck *deck, const ts_mesh *mesh) {
  ts_pipeline pipeline = ts_deck_pipeline(deck, mesh);
  return pipeline.stages == 1
             ? (ts_step_order){0}
             : (ts_step_order){pipeline.schedule, pipeline.stages, mesh->coord[TS_AXIS_PP], pipeline.chunks};
}

/* ---- when messages may come ---- */

/* A forward's when its chunk's last micro-batch has left the slot, a backward's when the forward begins: messages have
 * places of their own in a slot, those of each chunk. */
static int64_t free_from(const ts_step_runs *step, int64_t i) {
  const ts_run *run = &step->run[i];
  bool forward = step->kind[run->kind].phase == TS_RUN_FORWARD;
  if (step->kind[run->kind].phase == TS_RUN_UPDATE) {
    return i;
  }
  int64_t before = i - 1;
  for (; before >= 0; --before) {
    const ts_run *other = &step->run[before];
    if (ts_run_slot(*other) == ts_run_slot(*run) && other->chunk == run->chunk &&
        (forward || (other->micro_batch == run->micro_batch && step->kind[other->kind].phase == TS_RUN_FORWARD))) {
      break;
    }
  }
  return forward ? before + 1 : before;
}

/* Do two runs receive over the same lines? */
static bool comes_alike(const ts_step_runs *step, const ts_run *a, const ts_run *b) {
  const unsigned what = BACKWARD | TS_SEGMENT_FORWARD;
  return a->chunk == b->chunk && (step->kind[a->kind].segments & what) == (step->kind[b->kind].segments & what);
}

/* As early as that, but no earlier than the message of the micro-batch before: they come in this order. */
static void find_posts(const ts_step_runs *step, int64_t *from) {
  for (int64_t i = 0; i < step->n; ++i) {
    const ts_run *run = &step->run[i];
    int64_t before = i - 1;
    while (before >= 0 && !comes_alike(step, &step->run[before], run)) {
      --before;
    }
    int64_t free = free_from(step, i);
    from[i] = before >= 0 && from[before] > free ? from[before] : free;
  }
}

static void list_posts(ts_step_runs *step) {
  step->posted = ts_malloc((size_t) (step->n + 1) * sizeof *step->posted);
  step->posted_before = ts_calloc((size_t) step->n + 2, sizeof *step->posted_before);
  int64_t *from = ts_malloc((size_t) (step->n + 1) * sizeof *from);
  find_posts(step, from);
  for (int64_t i = 0; i < step->n; ++i) {
    ++step->posted_before[from[i] + 1];
  }
  for (int64_t i = 0; i < step->n; ++i) {
    step->posted_before[i + 1] += step->posted_before[i];
  }
  int64_t *at = ts_malloc((size_t) (step->n + 1) * sizeof *at);
  for (int64_t i = 0; i < step->n; ++i) {
    at[i] = step->posted_before[i];
  }
  for (int64_t i = 0; i < step->n; ++i) {
    step->posted[at[from[i]]++] = i;
  }
  ts_free(at);
  ts_free(from);
}

/* Of accumulation, which may have more micro-batches than a list has room for. */
static ts_run run_in_turns(const ts_step_runs *step, int64_t i) {
  bool update = i == step->n - 1, last = i == step->n - 2;
  return (ts_run){.kind = update       ? UPDATE
                          : i == 0     ? (step->unprepared ? FORWARD : FIRST_FORWARD)
                          : i % 2 == 0 ? FORWARD
                          : last       ? LAST_BACK
                                       : BACK,
                  .micro_batch = update ? step->micro_batches - 1 : i / 2};
}

/* From which work to which a micro-batch keeps what has such a lifetime. */
static const struct {
  ts_pipeline_work from, to;
} keeps[TS_N_LIFETIMES] = {[TS_LIFETIME_SLOT] = {TS_WORK_FORWARD, TS_WORK_WEIGHT},
                           [TS_LIFETIME_TO_INPUT] = {TS_WORK_FORWARD, TS_WORK_INPUT},
                           [TS_LIFETIME_TO_WEIGHT] = {TS_WORK_INPUT, TS_WORK_WEIGHT}};

static void list_run(ts_step_runs *step, ts_pipeline_work work, const ts_pipeline_instance *at, place_list *places) {
  const occupant whom = {at->micro_batch, at->chunk};
  ts_run *run = &step->run[step->n++];
  *run = (ts_run){.kind = run_kind_of(work, at->micro_batch == 0, at->micro_batch == step->micro_batches - 1),
                  .chunk = at->chunk,
                  .micro_batch = at->micro_batch};
  for (ts_lifetime l = TS_LIFETIME_SLOT; l <= (step->apart ? TS_LIFETIME_TO_WEIGHT : TS_LIFETIME_SLOT); ++l) {
    int place = work == keeps[l].from ? take_place(&places[l], whom) : seek_place(&places[l], whom);
    if (place < places[l].n) { /* else it keeps nothing there now */
      run->place[l] = place;
      places[l].there[place] = work == keeps[l].to || work == TS_WORK_BACKWARD ? nobody : whom;
    }
  }
}

/* An instance of the schedule; where some have gradients of weights apart all have, and memory is planned so. */
static void add_instance(ts_step_runs *step, const ts_pipeline_instance *at, place_list *places) {
  if (at->work == TS_WORK_BACKWARD && step->apart) {
    list_run(step, TS_WORK_INPUT, at, places);
    list_run(step, TS_WORK_WEIGHT, at, places);
  } else {
    list_run(step, at->work, at, places);
  }
}

void ts_step_prepares_nothing(ts_step_runs *step) {
  step->unprepared = step->kind == training;
  for (int64_t i = 0; i < step->n && step->run != NULL && step->unprepared; ++i) {
    step->run[i].kind = step->run[i].kind == FIRST_FORWARD ? FORWARD : step->run[i].kind;
  }
}

/* The list of the schedule, and the update. */
static void list_runs(ts_step_runs *step) {
  if (step->order.stages == 0) {
    step->n = 2 * step->micro_batches + 1;
    return;
  }
  const ts_pipeline pipeline = pipeline_of(&step->order, step->micro_batches);
  ts_pipeline_list list = ts_pipeline_list_of(&pipeline, step->order.stage);
  place_list places[TS_N_LIFETIMES] = {0};
  step->n = 0;
  step->run = ts_malloc((size_t) (2 * list.n + 1) * sizeof *step->run);
  for (int64_t i = 0; i < list.n; ++i) {
    step->apart = step->apart || list.instance[i].work == TS_WORK_INPUT;
  }
  for (int64_t i = 0; i < list.n; ++i) {
    add_instance(step, &list.instance[i], places);
  }
  step->run[step->n] = step->run[step->n - 1];
  step->run[step->n].kind = UPDATE;
  step->run[step->n++].micro_batch = step->micro_batches - 1;
  for (ts_lifetime l = TS_LIFETIME_STATE; l < TS_N_LIFETIMES; ++l) {
    step->n_places[l] = places[l].n > 1 ? places[l].n : 1;
    ts_free(places[l].there);
  }
  ts_free(list.instance);
  if (step->unprepared) {
    ts_step_prepares_nothing(step);
  }
  list_posts(step);
}

/* ---- forwards alone ---- */

enum { PASS, LAST_PASS /* of the last micro-batch, of the rank's last chunk */ };
static const ts_run_kind validation[] = {
    [PASS] = {"forward of a part", "the forward pass of a validation", TS_RUN_FORWARD, TS_SEGMENT_FORWARD},
    [LAST_PASS] = {"forward", "the forward pass of a validation", TS_RUN_FORWARD,
                   TS_SEGMENT_FORWARD | TS_SEGMENT_UPDATE}};
static const ts_run_kind generation[] = {
    [PASS] = {"forward of a part", "the forward pass of a generation", TS_RUN_FORWARD, TS_SEGMENT_FORWARD},
    [LAST_PASS] = {"forward", "the forward pass of a generation", TS_RUN_FORWARD, TS_SEGMENT_FORWARD}};

/* The forwards of a pipeline, of which nothing is kept but what is sent: a slot for the one under way, and where there
 * are messages one more, so that the next one's may come. */
static void list_passes(ts_step_runs *step) {
  const ts_pipeline pipeline = pipeline_of(&step->order, step->micro_batches);
  ts_pipeline_list list = ts_pipeline_forwards_of(&pipeline, step->order.stage);
  int64_t *times = ts_calloc((size_t) pipeline.chunks, sizeof *times);
  step->n = list.n;
  step->n_places[TS_LIFETIME_SLOT] = pipeline.stages > 1 && step->accumulates ? 2 : 1;
  step->run = ts_calloc((size_t) step->n, sizeof *step->run);
  for (int64_t i = 0; i < step->n; ++i) {
    const ts_pipeline_instance *at = &list.instance[i];
    step->run[i] =
        (ts_run){.kind = i == step->n - 1 ? LAST_PASS : PASS, .chunk = at->chunk, .micro_batch = at->micro_batch};
    step->run[i].place[TS_LIFETIME_SLOT] = (int) (times[at->chunk]++ % ts_step_slots(step));
  }
  ts_free(times);
  ts_free(list.instance);
  list_posts(step);
}

/* ---- all uses ---- */

#define KINDS(kinds) .kind = kinds, .n_kinds = sizeof kinds / sizeof *kinds

static const ts_step_runs uses[] = {
    [TS_MODEL_TRAIN] = {KINDS(training)},
    [TS_MODEL_LOSS] = {KINDS(validation)},
    [TS_MODEL_LOGITS] = {KINDS(generation)},
};

bool ts_step_has(const ts_step_runs *step, int kind) {
  if (step->kind != training) {
    return kind == LAST_PASS || step->accumulates || chunks_of(&step->order) > 1;
  }
  switch (kind) {
    case UPDATE: return true;
    case FIRST_FORWARD: return step->by_hand || !step->unprepared;
    case UPDATING_FORWARD:
    case LATE_UPDATE: return (step->leaves & TS_LEFT_UPDATES) != 0;
    case GATHERING_FORWARD:
    case LATE_GATHER: return (step->leaves & TS_LEFT_GATHERS) != 0;
    case FORWARD: return step->accumulates || step->unprepared;
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
      [TS_HAND_FORWARD] = FIRST_FORWARD, [TS_HAND_BACKWARD] = BACK, [TS_HAND_LAST_BACKWARD] = LAST_BACK,
      [TS_HAND_REDUCE] = REDUCE,         [TS_HAND_UPDATE] = UPDATE,
  };
  return (ts_run){.kind = kind[hand]};
}

ts_run ts_step_run_of_left(unsigned left, int chunk) {
  return (ts_run){.kind = left == TS_LEFT_UPDATES ? LATE_UPDATE : LATE_GATHER, .chunk = chunk};
}

unsigned ts_step_leaves(const ts_step_runs *step, ts_run run) {
  return run.kind == UPDATE ? step->leaves : 0;
}

bool ts_step_takes_left(unsigned left, ts_run *run) {
  bool takes = left != 0 && run->micro_batch == 0 && (run->kind == FIRST_FORWARD || run->kind == FORWARD);
  run->kind = !takes ? run->kind : (left & TS_LEFT_UPDATES) != 0 ? UPDATING_FORWARD : GATHERING_FORWARD;
  return takes;
}

/* On one stage as many as on several, as sums are taken so. */
int64_t ts_deck_evaluates(const ts_deck *deck) {
  const int64_t most = 64, most_tokens = (int64_t) 1 << 22;
  int64_t samples = deck->train_micro_batch_size_per_gpu, length = deck->data.sequence_length;
  int64_t fit = most_tokens / (samples > 0 ? samples : 1) / (length > 0 ? length : 1); /* a program's own has none */
  return fit < 1 ? 1 : fit < most ? fit : most;
}

ts_step_runs ts_step_of(ts_model_use use, int64_t micro_batches, const ts_step_order *order) {
  TS_ASSERT(micro_batches > 0);
  ts_step_runs step = uses[use];
  step.micro_batches = micro_batches;
  step.accumulates = micro_batches > 1;
  step.made_for = micro_batches;
  step.together = 1;
  step.order = order != NULL ? *order : (ts_step_order){0};
  for (ts_lifetime l = TS_LIFETIME_STATE; l < TS_N_LIFETIMES; ++l) {
    step.n_places[l] = 1;
  }
  if (use == TS_MODEL_TRAIN) {
    list_runs(&step);
  } else {
    list_passes(&step);
  }
  return step;
}

char *ts_together_name(const char *name, int64_t m) {
  return m == 0 ? ts_strdup(name) : ts_format("%s/%lld", name, (long long) m);
}

void ts_step_clear(ts_step_runs *step) {
  ts_free(step->run);
  ts_free(step->posted);
  ts_free(step->posted_before);
  step->run = NULL;
  step->posted = step->posted_before = NULL;
}

bool ts_step_accumulates(const ts_step_runs *step) {
  return step->kind == training && (step->accumulates || step->by_hand);
}

/* As the step of a stage, of as many micro-batches. */
static ts_step_runs list_stage(const ts_step_runs *step, int stage, int64_t micro_batches) {
  ts_step_runs of = *step;
  of.order.stage = stage;
  of.micro_batches = micro_batches;
  of.run = NULL;
  (step->kind == training ? list_runs : list_passes)(&of);
  return of;
}

/* Has every stage the places that it would want?  All ranks say the same. */
static bool has_places(const ts_step_runs *step, int64_t micro_batches) {
  bool fits = true;
  for (int stage = 0; stage < step->order.stages && fits; ++stage) {
    ts_step_runs made = list_stage(step, stage, step->made_for), wanted = list_stage(step, stage, micro_batches);
    for (ts_lifetime l = TS_LIFETIME_STATE; l < TS_N_LIFETIMES; ++l) {
      fits = fits && wanted.n_places[l] <= made.n_places[l];
    }
    ts_step_clear(&made);
    ts_step_clear(&wanted);
  }
  return fits;
}

bool ts_step_set_micro_batches(ts_step_runs *step, int64_t micro_batches) {
  TS_ASSERT(micro_batches > 0);
  const ts_pipeline pipeline = pipeline_of(&step->order, micro_batches);
  if (micro_batches == step->micro_batches) {
    return true;
  }
  if (step->kind == training && (ts_pipeline_check(&pipeline, NULL) != TS_OK || !has_places(step, micro_batches))) {
    return false;
  }
  ts_step_runs other = list_stage(step, step->order.stage, micro_batches);
  memcpy(other.n_places, step->n_places, sizeof other.n_places);
  ts_step_clear(step);
  *step = other;
  return true;
}

ts_run ts_step_run(const ts_step_runs *step, int64_t i) {
  TS_ASSERT(i >= 0 && i < step->n);
  return step->run != NULL ? step->run[i] : run_in_turns(step, i);
}

const ts_run_kind *ts_step_kind(const ts_step_runs *step, int64_t i) {
  return &step->kind[ts_step_run(step, i).kind];
}
