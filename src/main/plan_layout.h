/** \file
 * What tensor parallelism makes of a model, for people: `tessera plan --layout`.
 */
#ifndef TS_MAIN_PLAN_LAYOUT_H
#define TS_MAIN_PLAN_LAYOUT_H

#include "base/text.h"
#include "run/program.h"

/** The grid's rank along tp and sp that needs most memory, as a mesh rank: of ranks that need the same one program is
 * made.
 * Not collective.
 * \param [in] options  Of the program of mesh rank 0.
 * \param [in,out] program  That program; the one with the largest peak afterwards. */
void ts_plan_largest(const ts_program_options *options, ts_program **program);

/** Each parameter's pieces and the rule that decided, heads of each rank, bytes that a rank sends per token and step.
 * Not collective.
 * \param [in] options  As above; a grid with one rank along tp has one piece of everything. */
void ts_plan_print_layout(const ts_program_options *options, bool json, ts_text *to);

#endif
