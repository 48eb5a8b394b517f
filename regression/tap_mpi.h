/** \file
 * TAP on several ranks: rank 0 of the communicator prints, a result is ok when it is on every rank, and each rank that
 * fails says so on stderr.
 *
 *     int main (int argc, char **argv) {
 *       MPI_Init (&argc, &argv);
 *       tap_ok_all (MPI_COMM_WORLD, sum == expected, "sum");
 *       int status = tap_done_all (MPI_COMM_WORLD);
 *       MPI_Finalize ();
 *       return status;
 *     }
 *
 * Waiting yields the processor, so a test may have more ranks than there are cores.
 */
#ifndef REGRESSION_TAP_MPI_H
#define REGRESSION_TAP_MPI_H

#include <mpi.h>
#include <stdbool.h>

/** One result for all ranks: ok when \a condition holds on each.  The name is rank 0's.
 * \return The agreed result, the same on all ranks.  Collective over \a comm. */
bool tap_ok_all(MPI_Comm comm, bool condition, const char *format, ...) __attribute__((format(printf, 3, 4)));

/** Rank 0 counts one result as skipped.  Collective over \a comm in the sense that all ranks call it; no message. */
void tap_skip_all(MPI_Comm comm, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Rank 0 prints the plan; directories of tap_directory are removed.
 * \return The exit status, the same on all ranks.  Collective over \a comm. */
int tap_done_all(MPI_Comm comm);

/** Wait for everybody, yielding.  Collective over \a comm. */
void tap_barrier(MPI_Comm comm);

/** Add up \a count elements of all ranks in place, yielding: who is early leaves the others its processor.  Collective
 * over \a comm. */
void tap_sum_all(MPI_Comm comm, void *value, int count, MPI_Datatype type);

/** Path of a directory that all ranks share, made by rank 0 and removed by its tap_done_all; valid until the next call.
 * Collective over \a comm. */
const char *tap_directory_all(MPI_Comm comm);

#endif
