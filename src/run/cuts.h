/** \file
 * Where a pipeline's model is cut by the deck's "time", "memory" and "best": decided once, before there are programs,
 * and written to the deck as pipeline.units.
 */
#ifndef TS_RUN_CUTS_H
#define TS_RUN_CUTS_H

#include "run/program.h"

/** Decide pipeline.units where pipeline.partition is one of the three and the deck lists none for this grid.
 *
 * "time": the slowest piece is as fast as can be.  "memory": the rank that needs most needs as little as can be.
 * "best": as "time" while each rank fits into \a memory, with what may leave away where that takes less
 * (ts_budget_least), else the cut whose slowest piece is the fastest of those found that fit.  What a rank needs is
 * estimated for a cut from the plan of the whole model on the ranks of one stage, unit by unit, with the places that
 * its stage's list of runs has; of a cut that is to fit the ranks' own plans have the last word.  Cuts are sought by
 * giving units from piece to piece as long as that makes anything better; for as little memory as can be, and where
 * nothing else fits, in the end by the ranks' own plans.
 *
 * Not collective.  The same deck, grid and target give the same cut, on a login node too; as ranks may differ in
 * threads, and so in what they plan, one decides for all (ts_cuts_take).
 * \param [in]     options  That ts_program_check takes, of the program of mesh rank 0.
 * \param [in,out] deck     That of the options.
 * \param [in]     memory   Bytes that a rank may take; 0: not known, and everything fits.
 * \return TS_BAD_INPUT, of "best": no cut that was found fits; the way out is told, and the deck has the one of those
 *         tried that needs least: there may be others that need some per cent less. */
ts_status ts_cuts_decide(const ts_program_options *options, ts_deck *deck, int64_t memory, ts_error *err);

/** Take what another rank has decided: pipeline.units, \a n numbers. Not collective. */
void ts_cuts_take(ts_deck *deck, const int64_t *units, int n);

/** Is there anything to decide? Not collective. */
bool ts_cuts_are_open(const ts_deck *deck, const ts_mesh *mesh);

#endif
