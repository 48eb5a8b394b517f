/** \file
 * The memory checker of the executor: finds reads of memory before it was written (as NaN), use after death (as NaN),
 * and writes outside what an instruction owns (at once, by name).  Meant for small decks: every instruction compares
 * the whole work arena with a copy.  What a step of several slots keeps in them is not watched.  Nothing here is
 * collective.
 */
#ifndef TS_RUN_MEMCHECK_H
#define TS_RUN_MEMCHECK_H

#include "run/program.h"

typedef struct ts_memcheck ts_memcheck;

/** Start checking \a program in \a work (its arena of \a bytes bytes): poisons everything but inputs and scalars.
 * \param [in] work  Borrowed. Not collective. */
ts_memcheck *ts_memcheck_create(const ts_program *program, void *work, size_t bytes);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_memcheck_destroy(ts_memcheck **check);

/** Before the first instruction of a run: take what the host wrote, and what other programs left, as it is. Not
 * collective. */
void ts_memcheck_begin(ts_memcheck *check);

/** The outputs of a node may have changed, whichever instruction was executed: a message's. Not collective. */
void ts_memcheck_allow(ts_memcheck *check, ts_nid node);

/** After instruction \a i was executed: a byte of WORK that changed and belongs neither to its outputs nor to its
 * workspace ends the program with the node's name; then storages that died at \a i are poisoned.
 * \return NULL, or the description of the wrong write, owned by the caller (ts_free) - then nothing is poisoned. Not
 *         collective. */
char *ts_memcheck_after(ts_memcheck *check, int i);

#endif
