/** \file
 * The step as a list of runs: which segments run for which micro-batch, in which order.  The row of a schedule computes
 * run i of it; the executor and the simulator walk it, `tessera graph` prints the commands of its kinds of runs, and
 * times and messages take phase and title from them.
 *
 * A micro-batch is alive from its first run to its last one, and all its runs have the same slot: a copy of the memory
 * that keeps a micro-batch's values between its runs (pass/plan.h).  As many micro-batches are alive at a time as there
 * are slots.  Where gradients of weights have runs of their own, what only those of inputs want, and what only these
 * make, is kept for shorter, in fewer places.  Training goes by the row of a pipeline schedule (pass/pipeline.h).
 * Nothing here is collective.
 */
#ifndef TS_PASS_STEP_H
#define TS_PASS_STEP_H

#include "comm/mesh.h"
#include "deck/deck.h"
#include "graph/graph.h"
#include "model/model.h"
#include "pass/pipeline.h"

/** How long memory keeps what is written. */
typedef enum ts_lifetime {
  TS_LIFETIME_STATE,     /**< From step to step; all programs find it where the first that has it does. */
  TS_LIFETIME_SLOT,      /**< For the runs of a micro-batch, until the slot's next one. */
  TS_LIFETIME_TO_INPUT,  /**< Of these the forward and the backward of inputs, */
  TS_LIFETIME_TO_WEIGHT, /**< or both backwards. */
  TS_LIFETIME_STEP,      /**< From the first forward of a step on, for all its micro-batches. */
  TS_LIFETIME_SCRATCH,   /**< From its first to its last instruction: of one run, where a step has several slots. */
  TS_N_LIFETIMES
} ts_lifetime;

/** Is it that of a micro-batch? Not collective. */
static inline bool ts_lifetime_is_kept(ts_lifetime lifetime) {
  return lifetime >= TS_LIFETIME_SLOT && lifetime <= TS_LIFETIME_TO_WEIGHT;
}

/** What a run is timed as. */
typedef enum ts_run_phase { TS_RUN_FORWARD, TS_RUN_BACKWARD, TS_RUN_UPDATE, TS_N_RUN_PHASES } ts_run_phase;

/** A kind of runs: the instructions of some segments. */
typedef struct ts_run_kind {
  const char
      *name; /**< "first forward", "forward", "backward", "backward of inputs", "backward and reduce", "update", ... */
  const char *title; /**< "the forward pass of a step", ... */
  ts_run_phase phase;
  unsigned segments; /**< Mask of ts_segment. */
} ts_run_kind;

/** One run of a step. */
typedef struct ts_run {
  int kind;            /**< Of the step's. */
  int chunk;           /**< Which of this rank's pieces of a pipeline; of an update the last. */
  int64_t micro_batch; /**< From 0; of an update the last one. */
  /** Which place for each lifetime is the micro-batch's, from 0: its slot, where its inputs are, too; 0 of lifetimes
   * that are no micro-batch's. */
  int place[TS_N_LIFETIMES];
} ts_run;

/** The slot of a run. Not collective. */
static inline int ts_run_slot(ts_run run) {
  return run.place[TS_LIFETIME_SLOT];
}

/** A run in a slot, of no other places. Not collective. */
static inline ts_run ts_run_in_slot(int slot) {
  return (ts_run){.place = {[TS_LIFETIME_SLOT] = slot}};
}

/** The order of a training step's runs: as on a stage of such a pipeline.  Zero is gradient accumulation, a forward and
 * its backward in turns: 1F1B of one stage. */
typedef struct ts_step_order {
  ts_pipeline_schedule schedule; /**< Not read where stages is 0. */
  int stages, stage;
  int chunks; /**< Pieces that each stage has; 0 as 1. */
} ts_step_order;

/** The order that a deck asks for on this rank. Not collective. */
ts_step_order ts_deck_step_order(const ts_deck *deck, const ts_mesh *mesh);

/** What a step may leave to the next one's first forward.  A rank makes updates by itself, whenever their values are
 * wanted; what others need of these is gathered by all ranks at one place, be it there or before. */
enum { TS_LEFT_UPDATES = 1, TS_LEFT_GATHERS = 2 };

typedef struct ts_step_runs {
  const ts_run_kind *kind; /**< Those that occur are among them. */
  int n_kinds;
  /** Micro-batches that keep something so long at a time, at most: as many are alive as there are slots; else 1. */
  int n_places[TS_N_LIFETIMES];
  int64_t micro_batches, n; /**< Of one step; runs. */
  int64_t made_for;         /**< Micro-batches that it was made for. */
  /** So many of a deck's micro-batches are one here, which goes through the model unit by unit (pass/unroll). */
  int64_t together;
  bool unprepared;     /**< Nothing is made of parameters once a step: its first forward is as the others. */
  bool accumulates;    /**< It was made for several micro-batches. */
  bool apart;          /**< Gradients of weights have runs of their own. */
  bool by_hand;        /**< TRAIN: a program may run the kinds of ts_hand in an order of its own. */
  unsigned leaves;     /**< TRAIN: what is left to the next step's first forward (TS_LEFT_...). */
  ts_step_order order; /**< Of TRAIN. */
  /** Owned: n of them; NULL where a forward and its backward come in turns.  Forwards, backwards of inputs and of
   * weights each come in the order of micro-batches: the first one's overwrite what the others add to. */
  ts_run *run;
  /** Owned, where run is: n runs, in the order in which what a pipeline's neighbours send them may come: when run i is
   * to begin, those from posted_before[i] on, until posted_before[i + 1].  Its place is free from then on. */
  int64_t *posted, *posted_before;
} ts_step_runs;

/** Micro-batches that an evaluation goes through in one step, at most: as many as a pipeline wants to be filled, and no
 * more than their samples have room for. Not collective. */
int64_t ts_deck_evaluates(const ts_deck *deck);

/** The step of a program; end with ts_step_clear.
 * \param [in] micro_batches  Of TRAIN: gradient_accumulation_steps, as many as the schedule takes; of LOSS any number
 *                            (ts_deck_evaluates); of LOGITS 1.
 * \param [in] order          Of TRAIN; NULL for zero. Not collective. */
ts_step_runs ts_step_of(ts_model_use use, int64_t micro_batches, const ts_step_order *order);

/** What a leaf, node or mark NAME is called for micro-batch \a m of those that are together: NAME for the first one,
 * then NAME/m, as no name of a model has a "/".
 * \return the caller's (ts_free). Not collective. */
char *ts_together_name(const char *name, int64_t m);

/** No node is of TS_SEGMENT_PREPARE. Not collective. */
void ts_step_prepares_nothing(ts_step_runs *step);

/** Free what it owns. Not collective. */
void ts_step_clear(ts_step_runs *step);

/** Slots of a step: micro-batches alive at a time. Not collective. */
static inline int ts_step_slots(const ts_step_runs *step) {
  return step->n_places[TS_LIFETIME_SLOT];
}

/** Do several micro-batches, or chunks, keep something at a time?  Else all that one keeps may lie among the scratch.
 * Not collective. */
static inline bool ts_step_overlaps(const ts_step_runs *step, const ts_graph *graph) {
  return ts_step_slots(step) > 1 || step->apart || ts_graph_chunks(graph) > 1;
}

/** Can there be runs of this kind? Not collective. */
bool ts_step_has(const ts_step_runs *step, int kind);

/** Can its number of micro-batches change?  One that was made for a single one lacks what adds gradients up. Not
 * collective. */
bool ts_step_accumulates(const ts_step_runs *step);

/** So many micro-batches from now on, of a step that accumulates, or an evaluation's. Not collective.
 * \return false, on all stages, and nothing has changed: the schedule does not take as many, or one of the stages wants
 * more places than it was made with. */
bool ts_step_set_micro_batches(ts_step_runs *step, int64_t micro_batches);

/** What can be run by hand, in slot 0: FORWARD, then any number of BACKWARD, of which the last may be LAST_BACKWARD,
 * with the reductions of the step; or REDUCE, these alone; then UPDATE. */
typedef enum ts_hand {
  TS_HAND_FORWARD,
  TS_HAND_BACKWARD,
  TS_HAND_LAST_BACKWARD,
  TS_HAND_REDUCE,
  TS_HAND_UPDATE
} ts_hand;

/** The run of a TRAIN step that is by_hand. Not collective. */
ts_run ts_step_run_by_hand(ts_hand hand);

/** What a step leaves (TS_LEFT_...): the run that makes one of these, of a chunk, alone; what waits behind \a run, of
 * all chunks; and does \a run make what is \a left of its chunk on the way, as the first forward of a step does?  Then
 * it becomes that kind of run. Not collective. */
ts_run ts_step_run_of_left(unsigned left, int chunk);
unsigned ts_step_leaves(const ts_step_runs *step, ts_run run);
bool ts_step_takes_left(unsigned left, ts_run *run);

/** Run \a i of a step, 0 <= i < n. Not collective. */
ts_run ts_step_run(const ts_step_runs *step, int64_t i);

/** Is \a node of \a run: of its segments and chunk, or once for all of them? Not collective. */
static inline bool ts_run_has(const ts_step_runs *step, ts_run run, const ts_graph *graph, const ts_node *node) {
  return ts_node_is_of(graph, node, step->kind[run.kind].segments, run.chunk);
}

/** The kind of run \a i. Not collective. */
const ts_run_kind *ts_step_kind(const ts_step_runs *step, int64_t i);

#endif
