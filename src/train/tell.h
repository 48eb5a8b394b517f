/** \file
 * What a run says of itself when a deck asks: memory_breakdown, dump_state.  Through base/log, so only the rank that
 * speaks prints, of itself.  Nothing here is collective.
 */
#ifndef TS_TRAIN_TELL_H
#define TS_TRAIN_TELL_H

#include "engine/workings.h"

/** Print a text line by line. Not collective.
 * \param [in,out] text  Cut into lines. */
void ts_tell_lines(char *text);

/** memory_breakdown, before the first step: the bytes that the plan has for each purpose. Not collective. */
void ts_tell_memory_plan(const ts_engine *engine);

/** memory_breakdown, behind a step: what is used, of the device where there is one, and of the host. Not collective. */
void ts_tell_memory(ts_engine *engine, int64_t step);

/** dump_state: the whole deck as it is understood, in a form that reads back to it, the grid, and the size of the
 * training program; not for RUN/log.txt, which would be full of it. Not collective. */
void ts_tell_state(const ts_deck *deck, const ts_engine *engine);

#endif
