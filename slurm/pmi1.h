/** \file
 * PMI-1 for an MPI that knows nothing else, from whatever can exchange data between the ranks.
 *
 * Debian's MPICH starts by the PMI-1 wire protocol: lines of text over the descriptor in PMI_FD, answered by a process
 * manager. srun --mpi=pmix has none of that, and this MPICH then silently starts N worlds of one rank.  Here a thread
 * of the process itself is the process manager: it answers over a socket pair, and what a rank puts reaches the others
 * at the next barrier through a store (slurm/pmix.h has one).
 *
 *     MPI --PMI_FD-- socket pair -- thread --exchange-- store -- PMIx server
 *
 * Cost: per barrier one exchange of the text that each rank has put since the last, and a table of all of it:
 * O(ranks).  MPICH needs a few barriers at its start and one at its end; between them the thread sleeps.  The lines
 * come from this process's own MPI, but are checked all the same: none is longer than the announced maxima allow, and
 * what is wrong is answered with an error or ends the service, never more. Spawning processes and publishing names are
 * refused.
 */
#ifndef TS_SLURM_PMI1_H
#define TS_SLURM_PMI1_H

#include <stdbool.h>
#include <stddef.h>

/** Longest key and value in bytes, with their ends; as announced to MPI. */
enum { TS_PMI1_KEY = 64, TS_PMI1_VALUE = 1024 };

/** Gets what rank \a rank has put; \a bytes bytes of text that need no end.
 * \return false: it is not well formed. */
typedef bool ts_pmi1_take(void *taker, int rank, const char *bytes, size_t length);

/** What reaches the other ranks.  Called by the bridge's thread. */
typedef struct ts_pmi1_store {
  /** Give \a mine to all ranks and each rank's to \a take, in rank order. Collective over all ranks.
   * \return false when it cannot. */
  bool (*exchange)(void *context, int round, const char *mine, size_t length, ts_pmi1_take *take, void *taker);
  /** End the job; may return. */
  void (*abort)(void *context, int exit_code, const char *reason);
  void *context;
} ts_pmi1_store;

typedef struct ts_pmi1 ts_pmi1;

/** Start the thread and set PMI_FD, PMI_RANK and PMI_SIZE for the MPI of this process, before it is initialised and
 * while no other thread reads the environment.
 * \param [in] mapping  PMI_process_mapping, which says who shares a node: "(vector,(0,4,1))"; copied; NULL when not
 * known.
 * \return NULL when the system has no socket or thread, or MPI has a process manager (PMI_FD or PMI_PORT are set).
 * Not collective. */
ts_pmi1 *ts_pmi1_start(int rank, int size, const char *mapping, const ts_pmi1_store *store);

/** End the thread, also where MPI has never spoken to it, and take back the variables.  After MPI has ended; sets the
 * pointer to NULL; NULL is allowed. Not collective. */
void ts_pmi1_stop(ts_pmi1 **pmi1);

#endif
