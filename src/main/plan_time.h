/** \file
 * `tessera plan --machine`: what a step will take, on a machine that `tessera bench` has measured or on one of a
 * datasheet.  Nothing here is collective.
 */
#ifndef TS_MAIN_PLAN_TIME_H
#define TS_MAIN_PLAN_TIME_H

#include "base/text.h"
#include "run/timing.h"

/** Append what the clock says of a deck's step: its time, tokens, FLOP/s, what is exposed, and by op. Not collective.
 */
void ts_plan_print_time(const ts_program_options *options, const ts_timing *timing, bool json, ts_text *to);

/** Write the planned step of a rank of each stage for a viewer of traces (io/timeline.h): the first to \a path, others
 * to "PATH.rankN".
 * \return TS_BAD_INPUT: one cannot be written. Not collective. */
ts_status ts_plan_write_timeline(const ts_program_options *options, const ts_timing *timing, const char *path,
                                 ts_error *err);

#endif
