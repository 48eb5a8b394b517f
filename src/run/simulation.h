/** \file
 * What the files of the simulator share.  Private to this room.  None of these functions is collective.
 */
#ifndef TS_RUN_SIMULATION_H
#define TS_RUN_SIMULATION_H

#include "pass/storage.h"
#include "run/simulate.h"

/** What is known of a storage. */
typedef enum ts_sim_life { TS_SIM_UNBORN, TS_SIM_INTACT, TS_SIM_CLOBBERED } ts_sim_life;

/** Bytes [begin, end) of an arena; empty when arena is NONE. */
typedef struct ts_sim_extent {
  ts_arena arena;
  int64_t begin, end;
} ts_sim_extent;

typedef struct ts_sim_storage {
  ts_tid root;
  int place; /**< Of its arena's lifetime: whose micro-batch it keeps; -1: of no micro-batch. */
  ts_lifetime lifetime;
  ts_sim_extent at;
  ts_sim_life life;
  ts_nid culprit; /**< Who wrote over it. */
} ts_sim_storage;

/** What comes in the order of micro-batches. */
typedef enum ts_sim_turn { TS_SIM_FORWARDS, TS_SIM_INPUTS, TS_SIM_WEIGHTS, TS_SIM_UPDATES, TS_SIM_TURNS } ts_sim_turn;

/** What is in a place. */
typedef struct ts_sim_occupant {
  int64_t micro_batch; /**< -1 for none. */
  int chunk;
} ts_sim_occupant;

/** A message that was posted: under way until this rank has waited for it. */
typedef struct ts_sim_message {
  ts_nid node;
  int slot;
  int64_t micro_batch;
  bool sends, done; /**< done: both sides have come to it. */
} ts_sim_message;

typedef struct ts_sim_rank {
  const ts_program *program;
  ts_place *place;
  ts_sim_storage *storage; /**< Those that have memory. */
  int n_storages;
  int *first_of_place; /**< Per place, and one more: index in storage. */
  int *of_root;        /**< Per place and tensor: index in storage, -1 for none. */
  bool *made;          /**< Per slot and tensor: its node was executed, or issued, for its micro-batch. */
  ts_sim_occupant *occupant[TS_N_LIFETIMES]; /**< Per place of it. */
  int64_t run;                               /**< Under way. */
  ts_run now;
  const ts_run_kind *kind;        /**< Its kind. */
  int64_t *n_of;                  /**< Per chunk and turn: runs so far. */
  int at;                         /**< Its next instruction. */
  bool begun;                     /**< What it will send is not under way any more. */
  ts_nid *queue;                  /**< Collectives issued in this run. */
  int n_issued, n_done, n_waited; /**< Of the queue: complete, known to be complete. */
  ts_nid *copy;                   /**< Copies issued and not waited for. */
  int n_copies;
  ts_sim_message *message; /**< Under way, in the order of posting. */
  int n_messages, message_capacity;
  ts_sim_message waits; /**< Of a message that the rank waits for: node; else TS_NONE. */
} ts_sim_rank;

typedef struct ts_simulation {
  ts_sim_rank *rank;
  int n_ranks;
} ts_simulation;

/** A node of a rank's program. Not collective. */
static inline const ts_node *ts_sim_node(const ts_sim_rank *rank, ts_nid n) {
  return &rank->program->graph->node[n];
}

/** Where a tensor lies in the places of a run. Not collective. */
ts_sim_extent ts_sim_extent_of(const ts_sim_rank *rank, ts_tid t, ts_run run);

/** Do they have bytes in common? Not collective. */
bool ts_sim_overlap(ts_sim_extent a, ts_sim_extent b);

/** Post a message; what a receive brings is written from now on. \return a fault, or NULL. Not collective. */
char *ts_sim_post(ts_sim_rank *rank, ts_nid n, int slot, int64_t micro_batch);

/** Post what neighbours will send for runs whose place is free from the run under way on. Not collective.
 * \return a fault, or NULL. */
char *ts_sim_post_receives(ts_sim_rank *rank);

/** Wait for the messages of a node in a slot, and forget them.
 * \param [out] blocked  One is not complete. \return a fault, or NULL: a receive was never posted. Not collective. */
char *ts_sim_wait_message(ts_sim_rank *rank, ts_nid n, int slot, bool *blocked);

/** Wait for what the sends of the run under way sent last from this slot; with \a all for whatever was sent.
 * \return false where one is not complete. Not collective. */
bool ts_sim_wait_sends(ts_sim_rank *rank, bool all);

/** Does a message under way write, or when \a also_reads read, these bytes? Not collective.
 * \return its node, or TS_NONE. */
ts_nid ts_sim_message_uses(const ts_sim_rank *rank, ts_sim_extent at, bool also_reads);

/** Complete whatever both sides have posted: a send completes in its receive, and not before.
 * \return a fault, or NULL: the two differ. Not collective. */
char *ts_sim_match_messages(ts_simulation *simulation, bool *moved);

/** Complete the collective at the head of a rank's queue, if the rank is the first of the group and everybody has come
 * to it. \return a fault, or NULL: two members differ. Not collective. */
char *ts_sim_match_collective(ts_simulation *simulation, ts_sim_rank *first, bool *moved);

/** Nobody can move: who waits for whom, from the first that is not done; the caller's (ts_free). Not collective. */
char *ts_sim_explain_deadlock(const ts_simulation *simulation);

#endif
