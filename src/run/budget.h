/** \file
 * What of the state leaves the memory where a rank computes, so that its program fits: device = "auto" of
 * offload_optimizer and offload_param; and who updates what has left.  Not collective.
 */
#ifndef TS_RUN_BUDGET_H
#define TS_RUN_BUDGET_H

#include "run/program.h"

/** The lower one of two limits, of which 0 is none. Not collective. */
static inline int64_t ts_budget_lower(int64_t a, int64_t b) {
  return a == 0 || (b != 0 && b < a) ? b : a;
}

/** The bytes that a program may take where it computes: that of the options or of the deck, on processors no more than
 * the host's either; 0: any number. Not collective. */
int64_t ts_budget_memory(const ts_program_options *options);

/** The bytes that it may take of the host's memory beside a device, likewise; on processors 0. Not collective. */
int64_t ts_budget_host_memory(const ts_program_options *options);

/** Does something stay as it fits: device = "auto", or activations that leave, and a limit? Not collective. */
bool ts_budget_is_open(const ts_program_options *options);

/** What stays, so that the program of \a options fits, and as little as can be is copied.
 *
 * All of it, where that fits.  Else what saves most bytes a step for those it takes, as far as it fits, the largest
 * first, then by exchanging some for others: parameters and gradients, which are copied for each micro-batch, before
 * states of the optimizer, which are copied twice a step.  All is tried with plans of the program itself, some tens of
 * them.  Parameters that are kept from their forward to their backward alone take the same bytes while activations take
 * most: stage3_max_live_parameters is the deck's, or 0, whichever copies less.  Updates wait for the next forward where
 * something fits so; else all are made at once, which takes less.  With run.accumulation_order = "auto" as many
 * micro-batches go together as fit where all has left, if that copies less.  As what stays is as much as can be, no
 * choice wants less of the host's memory beside a device; what has no room there goes to files, if the deck has a
 * directory for them, what is copied least for its bytes first: states of the optimizer, then gradients and parameters.
 *
 * Activations that leave (activation_checkpointing.cpu_checkpointing, compile.offload_activation) compete with state
 * within a limit, tensor by tensor: as many stay as fit of those that the backward reads first, beside what else stays,
 * or before it, whichever copies less; where the host's memory is too small, too, those that it reads last go to files,
 * and of processors all that leave.
 *
 * With run.offload_update = "auto" the device updates what has left it, or the host, whichever lets a step take less by
 * plans of both (ts_program_step_seconds); the device where they take as long.  Nothing but that is decided where
 * nothing is open.
 *
 * The same deck, rank, target and memory give the same choice.  Ranks may choose otherwise than others: messages depend
 * on .live, .together and .at_once alone, which they have to agree on.
 * \return decided, of_part the caller's (ts_free); where nothing fits what needs least. Not collective. */
ts_offload_stay ts_budget_decide(const ts_program_options *options);

/** All away that may leave: what takes least but for a file's own memory. Not collective. */
ts_offload_stay ts_budget_all_away(const ts_program_options *options);

/** Bytes that the rank's program takes at least where it computes, by plans with what may leave away and in memory:
 * ts_budget_decide can fit it into that. Not collective. */
int64_t ts_budget_least(const ts_program_options *options);

#endif
