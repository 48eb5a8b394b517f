/** \file
 * Placement: on which processors of its node each rank runs, and which groups of the mesh span nodes.
 */
#ifndef TS_ENGINE_PLACEMENT_H
#define TS_ENGINE_PLACEMENT_H

#include "comm/comm.h"
#include "deck/deck.h"
#include "run/program.h"

/** Give each rank processors of its own, as run.bind says: those near its GPU, divided among the ranks of the node that
 * may run on the same ones.  A rank that the launcher has bound stays where it is.  Says what was chosen.  Before
 * threads are counted and made, so that they stay there.  Collective over the world.
 * \param [in] bus  PCI bus of this rank's GPU, or "". */
void ts_engine_place(ts_world *world, const ts_deck *deck, const char *bus);

/** Warn when groups over tp or sp span nodes: they communicate in every layer.  Not collective.
 * \param [in] training  What says how many bytes a step, or NULL. */
void ts_engine_warn_spanning(const ts_world *world, const ts_mesh *mesh, const ts_program *training);

/** Append the groups over \a axis that have members on several nodes: "0-3, 8-11".  Not collective.
 * \param [in] node  Node of each rank of the mesh.
 * \return how many there are. */
int ts_placement_spanning(const ts_mesh *mesh, ts_axis axis, const int *node, ts_text *to);

#endif
