/** \file
 * `tessera plan --machine`: what a step will take on a machine that `tessera bench` has measured.
 */
#ifndef TS_MAIN_PLAN_TIME_H
#define TS_MAIN_PLAN_TIME_H

#include "base/text.h"
#include "run/machine.h"

/** Of the machine's times those that a job has: of \a node ranks a node, 0 for as many as were measured and are there
 * at most, and of \a threads threads, 0 for as many as they had.
 * \return borrowed. Not collective. */
const ts_measured *ts_plan_find_measured(const ts_machine *machine, int ranks, int node, int threads);

/** Append what the clock says (run/clock.h) of a deck's step: its time, tokens, FLOP/s, what is exposed, and by op.
 * Not collective. */
void ts_plan_print_time(const ts_program_options *options, const ts_machine *machine, const ts_measured *measured,
                        bool json, ts_text *to);

#endif
