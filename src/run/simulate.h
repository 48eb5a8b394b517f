/** \file
 * The simulator: steps the programs of all ranks of a grid in one process, without kernels, memory or MPI, and names
 * the first thing that would go wrong.  With the null backend's programs it is the cheapest strong test of a pass: a
 * grid of hundreds of ranks takes a second.
 *
 * Each rank walks its instructions as the executor does; its collectives go through a queue, as the stream's do.  A
 * collective completes when it is at the head of the queue of every member of its group.
 */
#ifndef TS_RUN_SIMULATE_H
#define TS_RUN_SIMULATE_H

#include "run/program.h"

/** Simulate one step: for TRAIN the micro-batches of the deck (forward, backward, with the reductions in the last) and
 * the update; for LOSS and LOGITS one pass.  What is found:
 *
 * - members of a group at the heads of their queues with different collectives: op, micro-batch, name, dtypes, wire,
 *   pieces, cuts;
 * - deadlock: a collective that a member never comes to, or a circle of members that wait for each other;
 * - an instruction that touches memory (by the plan's addresses) that a collective in flight writes, or writes what it
 *   reads; a collective that is not waited for when its run of segments ends, or waited for without having been issued;
 * - a value that is read before it was made, or after something else was written over any of its bytes: two storages
 *   that live at the same time and share memory; an address outside its arena;
 * - runs that are not in the order of micro-batches, or find another one than their own in their slot;
 * - state, inputs or results that are not intact at the end of the step.
 *
 * \param [in] programs  One per mesh rank, all of the same use; borrowed.
 * \return NULL when nothing is wrong, else one line that names ranks, nodes and tensors, owned by the caller (ts_free).
 * Not collective. */
char *ts_simulate_step(const ts_program *const *programs, int n_ranks);

#endif
