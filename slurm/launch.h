/** \file
 * What started this process, read from the environment before MPI starts, and where there is a PMIx server, from that.
 *
 * MPI cannot tell "one rank" from "a launcher that this MPI does not understand": then N processes are N worlds of one,
 * each of which would train alone.  What the launcher says is therefore compared with what MPI sees
 * (ts_launch_complaint), and is believed about nodes only where both agree.
 *
 * Launchers are rows of a table, the most trustworthy first, because variables of an outer launcher leak into the
 * processes of an inner one: mpiexec starts its proxies with srun, whose SLURM_PROCID and PMIX_RANK (with
 * SLURM_MPI_TYPE=pmix) reach the ranks and are those of the proxies.
 *
 *     what is there                    launcher          rank, size           node
 *     OMPI_COMM_WORLD_RANK             mpirun            right                PMIx, else unknown
 *     MPI_LOCALRANKID                  mpiexec           right                unknown
 *     PMIX_NAMESPACE of this step      srun --mpi=pmix   right                right
 *     PMI_JOBID of this step           srun --mpi=pmi2   right                right
 *     SLURM_STEP_ID                    srun              right                right
 *     PMI_RANK                         a PMI launcher    right                unknown
 *     PMIX_NAMESPACE                   a PMIx launcher   PMIx                 PMIx
 *
 * Nothing here knows MPI.
 */
#ifndef TS_SLURM_LAUNCH_H
#define TS_SLURM_LAUNCH_H

#include <stdbool.h>

enum { TS_NODE_NAME = 64 }; /**< Bytes of a node's name with its end; longer ones are cut. */

typedef struct ts_launch {
  const char *launcher;         /**< "srun --mpi=pmix", "mpiexec", ...; NULL: none, started by hand. */
  int rank, size;               /**< As the launcher numbers; 0 of 1 when there is none; size 0: it does not say. */
  int local_rank, local_size;   /**< On the node; -1 and 0: it does not say. */
  int node, n_nodes;            /**< Number of this process's node; -1 and 0: it does not say. */
  char node_name[TS_NODE_NAME]; /**< Slurm's name, which may differ from the machine's; else the host name. */
  const char *job;              /**< SLURM_JOB_ID, borrowed from the environment; NULL outside Slurm. */
  int restart;                  /**< How often Slurm has requeued the job; 0 outside Slurm. */
  bool pmix;     /**< PMIX_* in the environment are about this process; after ts_launch_open: it is connected. */
  int het_nodes; /**< Of all components of a heterogeneous job; 0: the job is none. */
} ts_launch;

/** The value of an environment variable, or NULL. */
typedef const char *ts_launch_lookup(const char *variable);

/** Fill \a launch with what the environment that \a lookup reads says. Not collective. */
void ts_launch_read(ts_launch *launch, ts_launch_lookup *lookup);

/** What started this process; read once, and again after ts_launch_open.  No server is asked before that, so that
 * commands that are not parallel can use it. Not collective. */
const ts_launch *ts_launched(void);

/** Before MPI is initialised, by the main thread: connect to the PMIx server where the launcher has one, and start the
 * bridge to it (slurm/pmi1.h) where MPI needs it.  Without a server nothing happens.  Every call needs a
 * ts_launch_close, or Slurm takes the process for dead when it ends.
 * \param [in] speaks_pmi1  MPI's own way to start is PMI-1. Not collective. */
void ts_launch_open(bool speaks_pmi1);

/** After MPI has ended: end the bridge and the connection. Not collective. */
void ts_launch_close(void);

/** What is wrong when \a size is what MPI sees, for the user and with the way out; NULL when it is right: worlds of
 * one, a step of srun that leaves components of a heterogeneous job idle.  Owned by the caller.
 * \param [in] types  The --mpi= that this MPI understands: "--mpi=pmi2 or --mpi=pmix". Not collective. */
char *ts_launch_complaint(const ts_launch *launch, int size, const char *types);

/** True where what the launcher says of nodes can be believed: it knows them, and its rank and size are MPI's. Not
 * collective. */
bool ts_launch_knows_nodes(const ts_launch *launch, int rank, int size);

/** The server is not this world's after all: do not use it (to abort) any more. Not collective. */
void ts_launch_distrust(void);

/** End the whole job through the PMIx server, with \a exit_code and \a reason.  Returns where there is no server, or
 * when it has not ended this process in a few seconds. Any thread. Not collective. */
void ts_launch_abort(int exit_code, const char *reason);

/** The code that this process should exit with so that the job's is \a exit_code, after waiting where that is needed;
 * for codes on which the ranks agree (2 and 75), others come back as they are. srun's code is the highest of its
 * tasks', but with -K the first task that ends with another than 0 has the rest killed, and the job's code is a
 * signal's.  So only rank 0's is not 0, and rank 0 lets the others go first: 0.5 s. After MPI has ended. Not
 * collective. */
int ts_launch_exit_code(int exit_code);

#endif
