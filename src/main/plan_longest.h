/** \file
 * The longest samples that fit into a given memory, for people: `tessera plan --memory`.
 */
#ifndef TS_MAIN_PLAN_LONGEST_H
#define TS_MAIN_PLAN_LONGEST_H

#include "run/program.h"

/** Lengths are tried in multiples of so many tokens. */
#define TS_PLAN_LENGTH_STEP 128

/** Tokens of the longest sample with which the rank that needs most needs at most \a bytes where it computes, and no
 * more of the host's memory beside a device than the options say (ts_budget_host_memory); a multiple of
 * TS_PLAN_LENGTH_STEP, at most 2^27 and for learned positions as many as the model has; 0: none fits.  Not collective.
 * \param [in]  options  Of the program of mesh rank 0; its length is not looked at.
 * \param [out] host     Bytes of the host's memory that a rank wants then beside a device; on processors 0. */
int64_t ts_plan_longest(const ts_program_options *options, int64_t bytes, int64_t *host);

#endif
