/** \file
 * Worlds of a program that has started MPI itself: the library's way to a communicator.
 *
 *   ts_mpi_prepare ();                                                      // only where PMIx alone starts this MPI
 *   MPI_Init_thread (&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
 *   ts_world_join (MPI_COMM_WORLD, &world, &err); ... ts_world_destroy (&world);
 *   MPI_Finalize ();
 *   ts_mpi_conclude ();
 */
#ifndef TS_COMM_COMM_JOIN_H
#define TS_COMM_COMM_JOIN_H

#include "base/error.h"
#include "comm/world.h"

#include <mpi.h>

/** Before MPI is initialised, by the main thread: where `srun --mpi=pmix` starts an MPI that speaks PMI-1, such as
 * Debian's MPICH, start the bridge between them (slurm/pmi1.h); without it each process is a world of one.  Elsewhere
 * nothing happens, but for a connection to the PMIx server where there is one. Not collective. */
void ts_mpi_prepare(void);

/** After MPI_Finalize, once for each ts_mpi_prepare: Slurm takes a process for dead that ends without. Not
 * collective. */
void ts_mpi_conclude(void);

/** A world of the processes of \a comm, which is duplicated and can be freed at once.  Ranks are numbered node by node,
 * so a process's rank in the world may differ from that in \a comm.  MPI stays the caller's: nothing is finalized that
 * was not made here, and no error handler but that of own communicators is set.  Messages of failures have the rank in
 * MPI_COMM_WORLD, and end the job by MPI_Abort.  Several worlds, also of the same processes, are independent; one
 * thread of a process at a time calls functions of any of them.  Collective over \a comm.
 * \param [out] world  End with ts_world_destroy before MPI_Finalize; NULL where the status is not TS_OK.
 * \return TS_BAD_INPUT, the same on all ranks as all call alike: MPI does not run or has fewer threads than
 *         MPI_THREAD_SERIALIZED, each process is a world of its own though a launcher started several, or the
 *         communicator is none of one group. */
ts_status ts_world_join(MPI_Comm comm, ts_world **world, ts_error *err);

/** The same of a communicator as Fortran's mpi module and mpi4py's py2f have it. Collective over \a comm. */
ts_status ts_world_join_fortran(MPI_Fint comm, ts_world **world, ts_error *err);

#endif
