/** \file
 * What tensor parallelism makes of a model, for people: `tessera plan --layout`.
 */
#ifndef TS_MAIN_PLAN_LAYOUT_H
#define TS_MAIN_PLAN_LAYOUT_H

#include "base/text.h"
#include "run/program.h"

/** Each parameter's pieces and the rule that decided, heads of each rank, bytes that a rank sends per token and step.
 * Not collective.
 * \param [in] options  Of the program of mesh rank 0; a grid with one rank along tp has one piece of everything. */
void ts_plan_print_layout(const ts_program_options *options, bool json, ts_text *to);

#endif
