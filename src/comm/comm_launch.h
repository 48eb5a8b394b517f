/** \file
 * MPI's beginning and end in this process, and who is where.  Private to this room.
 */
#ifndef TS_COMM_COMM_LAUNCH_H
#define TS_COMM_COMM_LAUNCH_H

#include "base/status.h"
#include "slurm/launch.h"

#include <mpi.h>

/** The world's processes in their order, and their nodes. */
typedef struct ts_nodes {
  MPI_Comm comm;              /**< All processes, node by node; owned. */
  int rank, size;             /**< In comm. */
  int local_rank, local_size; /**< On the node. */
  int n;                      /**< Nodes. */
  int *of_rank;               /**< Owned: node of each rank; ascending. */
  char (*name)[TS_NODE_NAME]; /**< Owned: name of each node. */
} ts_nodes;

/** Before MPI is initialised and after it has ended: connect to the process manager, and disconnect. Not collective. */
void ts_mpi_before(void);
void ts_mpi_after(void);

/** Connect to the process manager, start MPI, set the failure context.  A launcher that this MPI does not understand
 * ends this process with exit code 2 and one message a job. Collective over all processes. */
void ts_mpi_begin(int *argc, char ***argv);

/** Likewise where somebody else has started MPI, and look at what is there.
 * \return TS_BAD_INPUT: MPI does not run, or without the threads that are needed, or in as many worlds as there are
 *         processes. Not collective. */
ts_status ts_mpi_join(ts_error *err);

/** Failures are this rank's from now on, and end the job. Not collective. */
void ts_mpi_speak_as(int rank);

/** Number the processes of \a comm node by node, each node by its lowest process.  A node is what the launcher says it
 * is where every rank can believe it, else the processes that can share memory.  Free with ts_nodes_clear. Collective
 * over \a comm. */
void ts_nodes_find(MPI_Comm comm, ts_nodes *nodes);

/** "4 ranks on 2 nodes (node0: 0-1, node1: 2-3), started by srun --mpi=pmix"; owned by the caller.  Of many nodes the
 * first ones. Not collective. */
char *ts_nodes_describe(const ts_nodes *nodes);

/** Free what it owns. Collective over all processes. */
void ts_nodes_clear(ts_nodes *nodes);

/** Finalize MPI and disconnect; failures end this process alone from now on. Collective over all processes. */
void ts_mpi_end(void);

#endif
