/** \file
 * A world: the processes that work together.
 */
#ifndef TS_COMM_WORLD_H
#define TS_COMM_WORLD_H

#include "base/error.h"

/** Everything a process has to communicate with: the world and a communicator per set of axes asked for. */
typedef struct ts_world ts_world;

/** Free all communicators, finalize MPI where the world has started it, set *world to NULL, which it may be before.
 * Collective over all processes of the world. */
void ts_world_destroy(ts_world **world);

/** Rank and size of the world; ranks on this node, and this rank's place among them. Not collective. */
int ts_world_rank(const ts_world *world);
int ts_world_size(const ts_world *world);
int ts_world_local_size(const ts_world *world);
int ts_world_local_rank(const ts_world *world);

/** Agree on a status: any rank's bad input becomes everybody's, with the messages of the lowest such rank.  Every
 * function that reads user input on some ranks only calls it before the next collective.
 * \param [in,out] err  This rank's messages; replaced on ranks that had none.  May be NULL. Collective over all
 * processes. */
ts_status ts_world_agree(ts_world *world, ts_status status, ts_error *err);

#endif
