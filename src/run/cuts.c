#include "run/cuts.h"

#include "base/log.h"
#include "base/memory.h"
#include "pass/partition.h"
#include "pass/stage.h"
#include "run/budget.h"
#include "run/plan_largest.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* High powers stand for the largest, and see those behind it too. */
#define POWER 32

/* So often a cut is sought that fits. */
#define AIMS 4

/* Pieces times stages of all clocks of a search: about a second. */
#define CLOCK_WORK (8 << 20)

typedef struct search {
  const ts_program_options *options;
  ts_pipeline pipeline;
  int units, pieces;
  ts_pipeline_seconds *seconds; /* owned; of each unit */
  const ts_plan *whole;         /* of one stage that has all */
  ts_step_runs *step;           /* owned; of each stage */
  double most_seconds;          /* of a piece when the search begins, */
  double most_bytes;            /* of a rank */
  double limit;                 /* bytes; 0: as few as can be */
  int64_t clocks;               /* that may still be looked at */
} search;

static bool goes_by(const ts_deck *deck, const char *name) {
  return strcasecmp(deck->pipeline.partition, name) == 0;
}

bool ts_cuts_are_open(const ts_deck *deck, const ts_mesh *mesh) {
  const ts_pipeline pipeline = ts_deck_pipeline(deck, mesh);
  return mesh->size[TS_AXIS_PP] > 1 && ts_stage_cuts_are_decided(deck) &&
         !ts_stage_cuts_are_listed(deck, pipeline.stages * pipeline.chunks);
}

/* ---- what a cut comes to ---- */

static double piece_seconds(const search *s, const int *cuts, int piece) {
  double sum = 0;
  for (int u = cuts[piece]; u < cuts[piece + 1]; ++u) {
    sum += s->seconds[u].forward + s->seconds[u].input + s->seconds[u].weight;
  }
  return sum;
}

/* What a rank has for its state: itself, and a copy for checkpoints. */
static double copies_of_state(const ts_plan *whole) {
  double state = (double) whole->arena_bytes[TS_ARENA_STATE], saved = (double) whole->bytes[TS_PURPOSE_CHECKPOINT];
  return state > 0 ? 1 + saved / state : 1;
}

/* At work: what is a unit's own, and of all others' the rank's part. */
static double work_bytes(const ts_unit_bytes *unit, double share) {
  return (double) unit->work + share * (double) unit->beside;
}

/* Over all of a rank's units: the elements' state, and what is there once for all micro-batches. */
static void sum_of_rank(const search *s, const int *cuts, int rank, double *state, double *step) {
  *state = 0;
  *step = (double) s->whole->unit[s->units].kept[TS_LIFETIME_STEP];
  for (int chunk = 0; chunk < s->pipeline.chunks; ++chunk) {
    int piece = ts_pipeline_piece(&s->pipeline, rank, chunk);
    for (int u = cuts[piece]; u < cuts[piece + 1]; ++u) {
      *state += (double) s->whole->unit[u].state;
      *step += (double) s->whole->unit[u].kept[TS_LIFETIME_STEP];
    }
  }
}

/* But for what libraries keep, which no cut changes.  One slot is that of any of the rank's pieces, so as large as the
 * largest. */
static double rank_bytes(const search *s, const int *cuts, int rank) {
  const ts_plan *w = s->whole;
  const ts_unit_bytes *none = &w->unit[s->units];
  double state, kept;
  sum_of_rank(s, cuts, rank, &state, &kept);
  double share = state / (double) w->arena_bytes[TS_ARENA_STATE];
  double work = share * (double) (none->work + none->beside);
  for (ts_lifetime l = TS_LIFETIME_STATE; l < TS_N_LIFETIMES; ++l) {
    double most = 0;
    for (int chunk = 0; chunk < s->pipeline.chunks && ts_lifetime_is_kept(l); ++chunk) {
      int piece = ts_pipeline_piece(&s->pipeline, rank, chunk);
      double sum = (double) none->kept[l];
      for (int u = cuts[piece]; u < cuts[piece + 1]; ++u) {
        sum += (double) w->unit[u].kept[l];
        work = fmax(work, work_bytes(&w->unit[u], share));
      }
      most = fmax(most, sum);
    }
    kept += most * s->step[rank].n_places[l];
  }
  double inputs = (double) (w->slot_bytes[TS_ARENA_INPUT] * ts_step_slots(&s->step[rank]) + w->feed_bytes);
  return copies_of_state(w) * (state + (double) none->state) + work + kept + inputs;
}

/* Of the slowest piece, where each rank fits; without a limit of the rank that needs most, then of that piece. */
static double cost(void *user, const int *cuts) {
  const search *s = user;
  double time = 0, bytes = 0;
  for (int k = 0; k < s->pieces; ++k) {
    time += pow(piece_seconds(s, cuts, k) / s->most_seconds, POWER);
  }
  for (int rank = 0; rank < s->pipeline.stages; ++rank) {
    double here = rank_bytes(s, cuts, rank);
    bytes += s->limit > 0 ? fmax(0, here / s->limit - 1) : pow(here / s->most_bytes, POWER);
  }
  return s->limit > 0 ? time + 1e9 * bytes : bytes + 1e-9 * time;
}

/* ---- the whole model on the ranks of one stage ---- */

/* As if the stage that keeps most had all units; where what may leave does, a limit is for each rank's own plan. */
static ts_program *plan_whole(const search *s, ts_deck *deck, ts_mesh *mesh) {
  const ts_program_options *o = s->options;
  int size[TS_N_AXES];
  for (int axis = 0; axis < TS_N_AXES; ++axis) {
    size[axis] = axis == TS_AXIS_PP ? 1 : o->mesh->size[axis];
  }
  ts_error err = {0};
  TS_CHECK(ts_mesh_init(mesh, size, o->mesh->ranks / s->pipeline.stages, 0, &err) == TS_OK, "%s", err.text);
  mesh->tp_units = o->mesh->tp_units;
  *deck = *o->deck;
  ts_program_options whole = *o;
  whole.deck = deck;
  whole.mesh = mesh;
  whole.order = (ts_step_order){s->pipeline.schedule, s->pipeline.stages, 0, s->pipeline.chunks};
  whole.layout = NULL;
  whole.stages = NULL;
  whole.stay = ts_budget_is_open(o) ? ts_budget_all_away(o) : o->stay;
  return ts_program_create(&whole);
}

/* ---- the deck ---- */

void ts_cuts_take(ts_deck *deck, const int64_t *units, int n) {
  ts_ints *list = &deck->pipeline.units;
  ts_free(list->items);
  list->n = n;
  list->items = ts_malloc((size_t) (n + 1) * sizeof *list->items);
  for (int k = 0; k < n; ++k) {
    list->items[k] = units[k];
  }
  deck->pipeline.decided = true;
}

static void write_units(ts_deck *deck, const int *cuts, int pieces) {
  int64_t *units = ts_malloc((size_t) pieces * sizeof *units);
  for (int k = 0; k < pieces; ++k) {
    units[k] = cuts[k + 1] - cuts[k];
  }
  ts_cuts_take(deck, units, pieces);
  ts_free(units);
}

static void note_rank(const ts_program_options *options, void *user) {
  double *most = user;
  *most = fmax(*most, (double) ts_budget_least(options));
}

/* What is planned, at least, of the rank that needs most when the model is cut so. */
static double planned_bytes(const search *s, ts_deck *deck, const int *cuts) {
  write_units(deck, cuts, s->pieces);
  ts_program_options options = *s->options;
  options.deck = deck;
  double most = 0;
  ts_plan_visit(&options, note_rank, &most);
  return most;
}

/* Of the slowest piece. */
static double slowest(const search *s, const int *cuts) {
  double most = 0;
  for (int k = 0; k < s->pieces; ++k) {
    most = fmax(most, piece_seconds(s, cuts, k));
  }
  return most;
}

static void improve(search *s, int *cuts, double limit) {
  s->limit = limit;
  s->most_seconds = slowest(s, cuts);
  s->most_bytes = 0;
  for (int rank = 0; rank < s->pipeline.stages; ++rank) {
    s->most_bytes = fmax(s->most_bytes, rank_bytes(s, cuts, rank));
  }
  ts_partition_improve(s->pieces, cuts, cost, s);
}

/* Move a unit between neighbours as long as plans say that the rank that needs most needs less so, until it is enough:
 * what estimates of memory leave, where workspaces are a good part of it.
 * \return what it needs then. */
static double refine_by_plans(search *s, ts_deck *deck, int *cuts, double enough) {
  double need = planned_bytes(s, deck, cuts);
  for (bool moved = true; moved && need > enough;) {
    moved = false;
    for (int k = 1; k < s->pieces; ++k) {
      for (int way = -1; way <= 1; way += 2) {
        bool may = cuts[k] + way > cuts[k - 1] && cuts[k] + way < cuts[k + 1];
        cuts[k] += may ? way : 0;
        double now = may ? planned_bytes(s, deck, cuts) : need;
        moved = moved || now < need;
        cuts[k] -= may && now >= need ? way : 0;
        need = fmin(now, need);
      }
    }
  }
  return need;
}

/* From the fastest cut on, aiming lower by what the plan was above the limit; at last, from there again, for as little
 * as can be.  Where nothing fits the cut is the one of these that needs least, and its neighbours that need less. */
static ts_status fit(search *s, ts_deck *deck, int *cuts, double memory, ts_error *err) {
  const size_t bytes = ((size_t) s->pieces + 1) * sizeof *cuts;
  int *fastest = ts_malloc(2 * bytes), *least = fastest + s->pieces + 1;
  memcpy(fastest, cuts, bytes);
  memcpy(least, cuts, bytes);
  double need = planned_bytes(s, deck, cuts), aim = memory - (double) s->whole->bytes[TS_PURPOSE_RESERVE], now = need;
  const double reserve = (double) s->whole->bytes[TS_PURPOSE_RESERVE];
  for (int times = 0; times <= AIMS && need > memory; ++times) {
    if (times < AIMS && memory > reserve) {
      aim *= times > 0 ? 0.999 * (memory - reserve) / (now - reserve) : 1;
      improve(s, cuts, aim);
    } else {
      times = AIMS;
      memcpy(cuts, fastest, bytes);
      improve(s, cuts, 0);
    }
    now = planned_bytes(s, deck, cuts);
    if (now < need) {
      need = now;
      memcpy(least, cuts, bytes);
    }
  }
  memcpy(cuts, least, bytes);
  ts_free(fastest);
  need = need > memory ? refine_by_plans(s, deck, cuts, memory) : need;
  char needs[32], has[32];
  return need <= memory
             ? TS_OK
             : ts_deck_error(deck, "pipeline.partition", err,
                             "\"%s\": no cut fits: with the one that needs least a rank needs %s and has %s; ways out: "
                             "more pipeline.stages, a higher zero_optimization.stage, a smaller "
                             "train_micro_batch_size_per_gpu, activation_checkpointing.enabled",
                             deck->pipeline.partition, ts_human_bytes(need, needs), ts_human_bytes(memory, has));
}

/* Of all of a rank's pieces, of the rank that works longest. */
static double busiest(const search *s, const int *cuts) {
  double most = 0;
  for (int rank = 0; rank < s->pipeline.stages; ++rank) {
    double sum = 0;
    for (int chunk = 0; chunk < s->pipeline.chunks; ++chunk) {
      sum += piece_seconds(s, cuts, ts_pipeline_piece(&s->pipeline, rank, chunk));
    }
    most = fmax(most, sum);
  }
  return most;
}

/* What the schedule's step takes, of cuts whose slowest piece is no slower: two micro-batches a stage go by the clock,
 * all others keep the busiest rank busy. */
static double clock_seconds(void *user, const int *cuts) {
  search *s = user;
  if (slowest(s, cuts) > s->most_seconds * (1 + 1e-9) || s->clocks == 0) {
    return INFINITY;
  }
  s->clocks -= 1;
  ts_pipeline_seconds *piece = ts_calloc((size_t) s->pieces, sizeof *piece);
  ts_pipeline_times times = {0};
  ts_error err = {0};
  for (int k = 0; k < s->pieces; ++k) {
    for (int u = cuts[k]; u < cuts[k + 1]; ++u) {
      piece[k].forward += s->seconds[u].forward;
      piece[k].input += s->seconds[u].input;
      piece[k].weight += s->seconds[u].weight;
    }
  }
  ts_pipeline few = s->pipeline;
  few.micro_batches = few.micro_batches < 2 * few.stages ? few.micro_batches : 2 * few.stages;
  TS_CHECK(ts_pipeline_clock(&few, piece, 0, NULL, NULL, &times, &err) == TS_OK, "%s", err.text);
  double seconds = times.seconds + (double) (s->pipeline.micro_batches - few.micro_batches) * busiest(s, cuts);
  ts_pipeline_times_clear(&times);
  ts_free(piece);
  return seconds;
}

/* Of cuts as fast by their slowest piece, where short pieces are and long ones decides how long others wait: units move
 * as long as a step becomes shorter. */
static void hasten(search *s, int *cuts) {
  s->most_seconds = slowest(s, cuts);
  s->clocks = 1 + CLOCK_WORK / ((int64_t) s->pieces * s->pipeline.stages);
  ts_partition_improve(s->pieces, cuts, clock_seconds, s);
}

static ts_status search_cuts(search *s, ts_deck *deck, int *cuts, int64_t memory, ts_error *err) {
  ts_deck other;
  ts_mesh mesh;
  ts_program *whole = plan_whole(s, &other, &mesh);
  s->whole = whole->plan;
  s->step = ts_calloc((size_t) s->pipeline.stages, sizeof *s->step);
  for (int rank = 0; rank < s->pipeline.stages; ++rank) {
    const ts_step_order order = {s->pipeline.schedule, s->pipeline.stages, rank, s->pipeline.chunks};
    s->step[rank] = ts_step_of(TS_MODEL_TRAIN, s->pipeline.micro_batches, &order);
  }
  ts_status status = TS_OK;
  if (goes_by(deck, "memory")) {
    improve(s, cuts, 0);
    refine_by_plans(s, deck, cuts, 0);
  } else {
    status = fit(s, deck, cuts, (double) memory, err);
  }
  for (int rank = 0; rank < s->pipeline.stages; ++rank) {
    ts_step_clear(&s->step[rank]);
  }
  ts_free(s->step);
  ts_program_destroy(&whole);
  return status;
}

/* The cut by time: hastened, or as it is, whichever fits; "time" does not ask.
 * \return false: neither fits, and the cut is as it was. */
static bool take_fast(search *s, ts_deck *deck, int *cuts, int64_t memory) {
  bool asks = goes_by(deck, "best") && memory > 0, fits = true;
  size_t bytes = ((size_t) s->pieces + 1) * sizeof *cuts;
  int *even = ts_malloc(bytes);
  memcpy(even, cuts, bytes);
  hasten(s, cuts);
  if (asks && planned_bytes(s, deck, cuts) > (double) memory) {
    memcpy(cuts, even, bytes);
    fits = planned_bytes(s, deck, cuts) <= (double) memory;
  }
  ts_free(even);
  return fits;
}

ts_status ts_cuts_decide(const ts_program_options *options, ts_deck *deck, int64_t memory, ts_error *err) {
  if (!ts_cuts_are_open(deck, options->mesh) || options->use != TS_MODEL_TRAIN) {
    return TS_OK;
  }
  if (deck->pipeline.units.n > 0) {
    ts_log(TS_LOG_INFO, "pipeline.units is what another grid or partition came to: the model is cut anew");
  }
  search s = {.options = options, .pipeline = ts_deck_pipeline(deck, options->mesh)};
  s.pieces = s.pipeline.stages * s.pipeline.chunks;
  int *cuts = ts_calloc((size_t) s.pieces + 1, sizeof *cuts);
  ts_graph *model = ts_program_model(options);
  s.units = model->n_units;
  s.seconds = ts_calloc((size_t) s.units + 1, sizeof *s.seconds);
  ts_stage_seconds(model, deck, options->target.backend, s.seconds);
  ts_stage_cuts(model, deck, options->target.backend, s.pieces, cuts);
  ts_graph_destroy(&model);
  ts_status status =
      goes_by(deck, "memory") || !take_fast(&s, deck, cuts, memory) ? search_cuts(&s, deck, cuts, memory, err) : TS_OK;
  write_units(deck, cuts, s.pieces);
  ts_free(s.seconds);
  ts_free(cuts);
  return status;
}
