/** \file
 * What `tessera plan` says of a pipeline: its stages, its schedule as a list and as a picture, the other schedules.
 * Nothing here is collective.
 */
#ifndef TS_MAIN_PLAN_STAGES_H
#define TS_MAIN_PLAN_STAGES_H

#include "base/text.h"
#include "run/program.h"

/** Of each stage its units, parameters, planned times, places, memory and the share of the time that it waits; then
 * what the other schedules would come to, and the fastest; nothing where the model is one piece.  Not collective.
 * \param [in]  options  As ts_plan_visit, of a deck whose cuts are decided.
 * \param [in]  memory   Bytes of a rank; 0: not known.
 * \param [in]  lists    Each stage's list, too.
 * \param [out] to       Text, or JSON members that begin with a comma. */
void ts_plan_print_stages(const ts_program_options *options, int64_t memory, bool json, bool lists, ts_text *to);

/** Draw the schedule: stages down, time across.  Not collective.
 * \param [in] options  As above.
 * \return TS_BAD_INPUT: one stage has no schedule; the file cannot be written. */
ts_status ts_plan_draw_stages(const ts_program_options *options, const char *path, ts_error *err);

#endif
