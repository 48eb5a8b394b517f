/** \file
 * `tessera plan --against`: a planned step beside what a run measured.  Nothing here is collective.
 */
#ifndef TS_MAIN_PLAN_AGAINST_H
#define TS_MAIN_PLAN_AGAINST_H

#include "run/timing.h"

/** Append the step of a run beside the planned one: seconds, messages, what is exposed (of the fastest quarter of
 * metrics.csv, of each, without the first steps), and where the run has a timeline (profile.timeline) op by op, the
 * largest difference first.
 * \param [in] run  Directory of a run.
 * \return TS_BAD_INPUT: it has no metrics, or a file of it cannot be read. Not collective. */
ts_status ts_plan_print_against(const ts_program_options *options, const ts_timing *timing, const char *run,
                                ts_text *to, ts_error *err);

#endif
