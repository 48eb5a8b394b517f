/** \file
 * A connection to the PMIx server that started this process: who is where, exchange of data before MPI is there, the
 * end of the job, news of dead peers.  Built without PMIx (configure --without-pmix) there is never a server.
 *
 * One connection per process, as in the library.  The library has a thread of its own.
 *
 * Seen with Slurm 22.05 and PMIx 4.2, and in Slurm's source unchanged in 2026:
 *  - of a task that dies without PMIx_Finalize the peers are told nothing.  Where the node has other tasks, Slurm's
 * server itself ends the step at once (also without srun -K); where the dead task was alone on its node nothing happens
 * at all: the others wait for it in MPI.  So `srun -K1` is what ends a step whose rank was killed, and it is srun that
 * names task and node.
 *  - PMIx_Abort ends the step and its code is srun's; the reason is not shown, so it is printed before.
 *  - asking the server for a key that it does not have can hang the step (its "direct modex" refuses the wildcard rank
 * and may forget to answer): keys of the job are looked up among those that the server sent at the start only. The
 * handler for dead peers is for servers that do tell (PRRTE, and what Slurm may become), and for the loss of the server
 * itself.
 */
#ifndef TS_SLURM_PMIX_H
#define TS_SLURM_PMIX_H

#include "slurm/launch.h"
#include "slurm/pmi1.h"

/** Connect, and replace in \a launch what the server knows better: rank, size, node, node's ranks and name.  Only where
 * the environment names a server: PMIx_Init must not search for one.  Where it cannot connect nothing happens.
 * \return True when there is a connection. Not collective. */
bool ts_pmix_open(ts_launch *launch);

/** Is this program built with PMIx? Not collective. */
bool ts_pmix_built(void);

/** Who shares a node, as PMI-1 says it: "(vector,(0,4,1))"; owned by the caller, NULL when the server does not say.
 * Not collective. */
char *ts_pmix_mapping(void);

/** Exchange by PMIx_Put, PMIx_Fence and PMIx_Get: one blob and one call per rank and round; and PMIx_Abort. */
extern const ts_pmi1_store ts_pmix_store;

/** PMIx_Abort of all processes of the job.  May return.  Any thread but the library's. Not collective. */
void ts_pmix_abort(int exit_code, const char *reason);

/** Disconnect; without a connection nothing happens. Not collective. */
void ts_pmix_close(void);

#endif
