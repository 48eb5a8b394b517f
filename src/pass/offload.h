/** \file
 * What leaves the backend's memory, and in which pieces it comes back: the one place that decides it.  Bits do not
 * depend on any of it.  Nothing here is collective.
 */
#ifndef TS_PASS_OFFLOAD_H
#define TS_PASS_OFFLOAD_H

#include "pass/pass.h"

/** Elements of a part that are updated at a time, at most, where its states are somewhere else: some 50 MB of AdamW's,
 * which keep a disk busy and are hidden behind one another. */
#define TS_OFFLOAD_PIECE ((int64_t) 1 << 22)

/** Bytes of a file with one hash, at most. */
#define TS_OFFLOAD_BLOCK ((int64_t) 1 << 20)

/** Bits of ts_offload_stay.of_part: what stays; and, a TS_STORED times it, what of the rest goes to files where it
 * could be in the host's memory beside a device (device = "auto"). */
enum { TS_STATES_STAY = 1, TS_VALUES_STAY = 2, TS_GRADIENTS_STAY = 4, TS_STORED = 8 };

/** Choose which parts' states, values and gradients stay of those that may leave: those of context->stay, or as many
 * elements as the deck says: of values those of parts whose sizes fill that best, of equal ones the first; of states
 * those of the first units, whose updates the next forward awaits first; gradients then as their optimizer's states.
 * In a step, which goes through all of them, what stays saves as many bytes whichever they are.
 * \param [out] layout  That of the context: ts_part.states_stay, values_stay, gradients_stay. Not collective. */
void ts_offload_choose(const ts_pass_context *context, ts_layout *layout);

/** Elements of a layout's parts whose states, values or gradients could leave, and of those that stay.
 * Not collective. */
typedef struct ts_offload_count {
  int64_t states, values, gradients, states_stay, values_stay, gradients_stay;
} ts_offload_count;
ts_offload_count ts_offload_count_of(const ts_pass_context *context);

/** May the values of a part leave, whether they stay or not? Not collective. */
bool ts_offload_values_may_leave(const ts_pass_context *context, const ts_part *part);

/** Elements that are gathered at a time, at most: stage3_max_live_parameters, or less. Not collective. */
int64_t ts_offload_live(const ts_pass_context *context);

/** Where a state of a part lives: of offload_optimizer what the optimizer keeps, masters among it, and sums of
 * gradients that are this rank's alone once they are reduced, as at stages 2 and 3 and of one rank, and that an
 * optimizer takes element by element; of offload_param, at stage 3, working values, in every use of the model.  Parts
 * that stay gathered (ts_part.persistent) are small, and so are their states: they stay, and so do values and gradients
 * that two stages of a pipeline have, and what ts_offload_choose has chosen.  Not collective. */
ts_space ts_offload_space(const ts_pass_context *context, const ts_part *part, ts_state state);

/** May the update of a part wait until the next forward wants its values (offload_optimizer.super_offload)?  Where some
 * of it has left, or, of what is gathered then (stages 1 and 2), may leave; and its optimizer takes elements one by
 * one.  So the same on all ranks of such a part, as .at_once is. Not collective. */
bool ts_offload_waits(const ts_pass_context *context, const ts_part *part);

/** Is a part updated by the host's processors, where its states are, and not on the device (run.offload_update)?
 * Element by element, as the others need products; with "auto" where context->stay says so. Not collective. */
bool ts_offload_updates_on_host(const ts_pass_context *context, const ts_part *part);

/** Threads that such updates have (cpuadam_cores_perc). Not collective. */
int ts_offload_threads(const ts_deck *deck, const ts_target *target);

/** Elements of a part that are updated at a time: a multiple of what makes pieces of all its states begin where a file
 * can be read; INT64_MAX where all its states are in the backend's memory. Not collective. */
int64_t ts_offload_piece(const ts_pass_context *context, const ts_part *part);

/** May what is kept from the forward for the backward leave (activation_checkpointing.cpu_checkpointing, or
 * compile.offload_activation)?  Beside a device; of processors to a file, as far as a limit wants it (run/budget.h).
 * Not collective. */
bool ts_offload_activations(const ts_deck *deck, const ts_backend *backend);

/** How many pieces are read ahead of the one that is updated, units of parameters ahead of the one that is used, and
 * pieces written behind the one that is updated. Not collective. */
int ts_offload_ahead(const ts_deck *deck);
int ts_offload_units_ahead(const ts_deck *deck);
int ts_offload_behind(const ts_deck *deck);

#endif
