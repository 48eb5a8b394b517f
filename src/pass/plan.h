/** \file
 * The memory plan of one rank's program: where every tensor lives, to the byte.
 *
 * Each arena is of one space and one lifetime (ts_arenas).  STATE holds what lives from step to step, by name;
 * programs of one engine share it.  PINNED is the same in the host's memory beside a device's, FILE on a disk, where
 * whatever is copied at a time begins at a multiple of TS_PLAN_PAGE; others of PINNED and of FILE are for what is kept
 * there for a while.  INPUT holds what the host writes, inputs and
 * scalars; each program has its own.  SLOT holds what a micro-batch keeps from one of its runs to the next; TO_INPUT
 * and TO_WEIGHT, where gradients of weights have runs of their own, what its forward keeps for the backward of inputs
 * alone, and what that keeps for the backward of weights.  STEP holds what is made of parameters once for all
 * micro-batches.  WORK holds the rest: the collectives' workspace for the whole program, every other storage and the
 * kernels' workspaces from their first to their last instruction.
 *
 * An arena is there as often as its lifetime has places in the step (pass/step.h), slot_bytes apart; addresses are
 * those of place 0.  Where a step has one slot SLOT is empty and what it would hold is placed in WORK, between the
 * scratch: with one micro-batch alive all lifetimes are known to each other.
 * All offsets and sizes are bytes and multiples of TS_PLAN_ALIGN.
 * A plan is a function of graph, schedule and target.  Nothing here is collective.
 */
#ifndef TS_PASS_PLAN_H
#define TS_PASS_PLAN_H

#include "backend/backend.h"
#include "graph/graph.h"
#include "pass/schedule.h"
#include "pass/step.h"

/** Of cudaMalloc; what is 64 bytes off a line of 128 costs GPUs twice the requests. */
#define TS_PLAN_ALIGN 256

/** Of what is in files, and of memory that is read from one or written to one. */
#define TS_PLAN_PAGE 4096

/** \a bytes rounded up to a multiple of TS_PLAN_ALIGN. Not collective. */
static inline int64_t ts_plan_align(int64_t bytes) {
  return (bytes + TS_PLAN_ALIGN - 1) / TS_PLAN_ALIGN * TS_PLAN_ALIGN;
}

/** And to one of TS_PLAN_PAGE. Not collective. */
static inline int64_t ts_plan_pages(int64_t bytes) {
  return (bytes + TS_PLAN_PAGE - 1) / TS_PLAN_PAGE * TS_PLAN_PAGE;
}

typedef enum ts_arena {
  TS_ARENA_NONE,
  TS_ARENA_FILE, /**< Not memory, nor are the next ones; */
  TS_ARENA_FILE_SLOT,
  TS_ARENA_FILE_TO_INPUT,
  TS_ARENA_PINNED, /**< not the backend's, nor are the next ones: those from STATE on are. */
  TS_ARENA_PINNED_SLOT,
  TS_ARENA_PINNED_TO_INPUT,
  TS_ARENA_PINNED_TO_WEIGHT,
  TS_ARENA_PINNED_WORK,
  TS_ARENA_STATE,
  TS_ARENA_INPUT,
  TS_ARENA_SLOT,
  TS_ARENA_TO_INPUT,
  TS_ARENA_TO_WEIGHT,
  TS_ARENA_STEP,
  TS_ARENA_WORK,
  TS_N_ARENAS
} ts_arena;

typedef struct ts_arena_row {
  const char *name;
  ts_space space; /**< HOST: the arena in the backend's memory has a copy in the host's, where these are two. */
  ts_lifetime lifetime;
} ts_arena_row;

/** By arena; NONE has no name. */
extern const ts_arena_row ts_arenas[TS_N_ARENAS];

/** \a bytes rounded up to what begins behind them in an arena. Not collective. */
static inline int64_t ts_arena_align(ts_arena arena, int64_t bytes) {
  return ts_arenas[arena].space == TS_SPACE_FILE ? ts_plan_pages(bytes) : ts_plan_align(bytes);
}

typedef struct ts_address {
  ts_arena arena; /**< NONE: the tensor is never touched. */
  int64_t offset;
} ts_address;

/** What the bytes are for; the rows of `tessera plan`. */
typedef enum ts_purpose {
  TS_PURPOSE_PARAMETER,  /**< Working values, whole or shard. */
  TS_PURPOSE_GRADIENT,   /**< Sums over micro-batches. */
  TS_PURPOSE_OPTIMIZER,  /**< Masters, moments, step. */
  TS_PURPOSE_ACTIVATION, /**< SLOT, TO_INPUT, TO_WEIGHT, STEP and WORK but for what is counted as buffer. */
  /** Inputs, scalars, collectives' workspace, flat gradients and gathered parameters at the peak; without a device the
   * feed. */
  TS_PURPOSE_BUFFER,
  /** The copy of the state that an asynchronous save writes from; outside the arenas, always in the host's memory. */
  TS_PURPOSE_CHECKPOINT,
  TS_PURPOSE_RESERVE, /**< What libraries keep to themselves. */
  TS_N_PURPOSES
} ts_purpose;

/** What a unit of the model has in memory, bytes: of other cuts of a pipeline than the program's an estimate, as what
 * is placed together may share memory. */
typedef struct ts_unit_bytes {
  int64_t state;                /**< Of the optimizer, too. */
  int64_t kept[TS_N_LIFETIMES]; /**< In a place of each lifetime that is a micro-batch's. */
  /** When most lives in WORK while one of its instructions runs: what is its own of that, and what is of others. */
  int64_t work, beside;
} ts_unit_bytes;

/** What lives in WORK while an instruction runs. */
typedef struct ts_moment {
  ts_nid node;            /**< TS_NONE: the end of the step. */
  int64_t bytes, buffers; /**< And how many of them are what TS_PURPOSE_BUFFER says. */
} ts_moment;

typedef struct ts_plan {
  ts_address *address;              /**< Owned; per tensor. */
  ts_address *workspace;            /**< Owned; per node. */
  int64_t *workspace_bytes;         /**< Owned; per node. */
  int64_t arena_bytes[TS_N_ARENAS]; /**< All places of it. */
  int64_t slot_bytes[TS_N_ARENAS];  /**< From one place to the next; 0 where its lifetime is no micro-batch's. */
  /** Largest sum of simultaneously live bytes of WORK, and of all places of those of micro-batches: what no placement
   * can undercut. */
  int64_t live_bytes;
  /** Of these what a micro-batch keeps from its forward for its backward; and the most that lives beside it at a time:
   * the working set. */
  int64_t kept_bytes, working_bytes;
  ts_unit_bytes *unit;                      /**< Owned; per unit of the graph, and one more for what is of none. */
  int64_t bytes[TS_N_PURPOSES];             /**< Of the backend's memory, */
  int64_t away[TS_N_SPACES][TS_N_PURPOSES]; /**< and of the spaces where only copies come. */
  /** Of the host's memory, outside the arenas: leaves of role INPUT of all micro-batches of a step; 2^60 at most. */
  int64_t feed_bytes;
  int64_t peak_bytes; /**< Of the backend's memory: all arenas + reserve, on the host + checkpoint + feed. */
  int n_moments;
  ts_moment *moment; /**< Owned; of a micro-batch, in order; the last one is the end of the step. */
} ts_plan;

/** What of peak_bytes is in use at a moment, by purpose, bytes; activations of other micro-batches that are alive, as
 * many as there can be, count.  Gaps that no placement fills are left: the largest sum over moments and \a gaps are
 * peak_bytes.
 * \param [in]  moment  Of ts_plan.moment.
 * \param [out] gaps    The same at all of them. Not collective. */
void ts_plan_in_use(const ts_plan *plan, int moment, int64_t bytes[TS_N_PURPOSES], int64_t *gaps);

/** Where an arena begins in a rank's file, in which they lie one behind the other, bytes; of PINNED what all of them
 * have. Not collective. */
static inline int64_t ts_plan_file_begin(const ts_plan *plan, ts_arena arena) {
  int64_t bytes = 0;
  for (ts_arena a = TS_ARENA_FILE; a < arena; ++a) {
    bytes += plan->arena_bytes[a];
  }
  return bytes;
}

/** Of a rank's file in all. Not collective. */
static inline int64_t ts_plan_file_bytes(const ts_plan *plan) {
  return ts_plan_file_begin(plan, TS_ARENA_PINNED);
}

/** Is some state that lasts where only copies come? Not collective. */
static inline bool ts_plan_offloads(const ts_plan *plan) {
  int64_t bytes = 0;
  for (ts_space space = 0; space < TS_N_SPACES; ++space) {
    bytes += plan->away[space][TS_PURPOSE_PARAMETER] + plan->away[space][TS_PURPOSE_GRADIENT] +
             plan->away[space][TS_PURPOSE_OPTIMIZER];
  }
  return bytes > 0;
}

/** From place 0 of an arena to that of \a run, bytes. Not collective. */
static inline int64_t ts_plan_offset(const ts_plan *plan, ts_arena arena, ts_run run) {
  return run.place[ts_arenas[arena].lifetime] * plan->slot_bytes[arena];
}

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_plan_destroy(ts_plan **plan);

#endif
