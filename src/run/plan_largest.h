/** \file
 * Which ranks of a grid need most memory: what a plan tells people.
 */
#ifndef TS_RUN_PLAN_LARGEST_H
#define TS_RUN_PLAN_LARGEST_H

#include "run/program.h"

/** Is given the options of the program of one rank, borrowed for the call. */
typedef void ts_plan_visitor(const ts_program_options *options, void *user);

/** Visit ranks, among them the one that needs most memory: of ranks that need the same one, of more than 16 rings some,
 * and of those that differ in nothing but what they own of Muon's matrices the ones that no others
 * exceed. Not collective.
 * \param [in] options  Of the program of mesh rank 0. */
void ts_plan_visit(const ts_program_options *options, ts_plan_visitor *visitor, void *user);

/** The program of the rank that needs most, among those visited; its mesh says which.  The caller's.
 * Not collective.
 * \param [in] options  As above. */
ts_program *ts_plan_largest(const ts_program_options *options);

#endif
