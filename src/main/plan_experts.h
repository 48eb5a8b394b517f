/** \file
 * What a plan tells of mixtures of experts: how many rows there is room for, by how tokens are dispatched.
 */
#ifndef TS_MAIN_PLAN_EXPERTS_H
#define TS_MAIN_PLAN_EXPERTS_H

#include "base/text.h"
#include "run/program.h"

/** A table for 1, 2, 4 and 8 moe.token_chunks and both moe.save: rows of experts in a layer that a rank has room for,
 * those that come when all experts are chosen as often and none is dropped, and the bytes of activations; each of the
 * rank that has most.  Nothing for a model without experts. Not collective.
 * \param [in] options  Of the program of mesh rank 0. */
void ts_plan_print_experts(const ts_program_options *options, bool json, ts_text *to);

#endif
