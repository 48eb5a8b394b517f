/** \file
 * A pipeline's stages, for people: what `tessera plan` says of them.
 */
#ifndef TS_MAIN_PLAN_STAGES_H
#define TS_MAIN_PLAN_STAGES_H

#include "base/text.h"
#include "run/program.h"

/** Of each stage its units, parameters, slots, memory and the share of the time that it waits; nothing where the model
 * is one piece. Not collective.
 * \param [in] options  Of the program of mesh rank 0.
 * \param [in] lists    What each stage does in a step too, in the notation of torch.distributed.pipelining. */
void ts_plan_print_stages(const ts_program_options *options, bool json, bool lists, ts_text *to);

#endif
