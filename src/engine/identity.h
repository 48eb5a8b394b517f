/** \file
 * Identity: is every rank the same program, with the same libraries and the same deck?  A cluster whose nodes were not
 * all updated trains with mixed results, or hangs in a collective that only some ranks know.
 */
#ifndef TS_ENGINE_IDENTITY_H
#define TS_ENGINE_IDENTITY_H

#include "backend/backend.h"
#include "comm/comm.h"
#include "deck/deck.h"

/** One trait, which should be the same everywhere. */
typedef struct ts_trait {
  const char *name;  /**< "build" */
  const char *value; /**< Borrowed text. */
} ts_trait;

/** Compare a trait of all ranks.  Collective over the world.
 * \param [out] difference  Nothing is added where all agree; else the same text on all ranks, each value with its nodes
 *                          and ranks: "build: node0 (ranks 0-3) has A; node2 (ranks 8-11) has B".
 * \return true where all agree. */
bool ts_identity_compare(ts_world *world, const ts_trait *trait, ts_text *difference);

/** The hash of this program's file, 16 hexadecimal digits (XXH3), or "unknown"; computed once. Not collective. */
const char *ts_identity_build(void);

/** Every rank must be the same program.  Called before anything else is communicated.  Collective over the world.
 * \return TS_BAD_INPUT on all ranks, naming the nodes that differ. */
ts_status ts_identity_check_build(ts_world *world, ts_error *err);

/** The deck must have been read alike, which is an error otherwise; libraries and processors should be alike, which is
 * warned about: the losses are right, but not bit for bit those of equal nodes.  Collective over the world.
 * \return TS_BAD_INPUT on all ranks. */
ts_status ts_identity_check(ts_world *world, const ts_deck *deck, const ts_backend *backend, ts_error *err);

#endif
