/** \file
 * A communicator over NCCL: the table of comm.h on memory of this process's GPU, on top of an MPI communicator of the
 * same group, whose operations are queued on TS_QUEUE_COMM of the CUDA backend; and messages, on queues of their own.
 * Private to this room and its tests.
 *
 * A failure ends the job (class b), whenever it shows: at a call, or while the host waits for the device
 * (cuda/device.h's watchers), with rank, host, the collective that this rank queued last and NCCL's own text.
 */
#ifndef TS_COMM_NCCL_H
#define TS_COMM_NCCL_H

#include "comm/comm_mpi.h"

/** "NCCL 2.28.9", or "no NCCL" where Tessera was built without. Not collective. */
const char *ts_comm_nccl_describe(void);

/** False in a build without NCCL: then all functions below end the job. Not collective. */
bool ts_comm_nccl_available(void);

/** Find out which processes of \a all share a device, and where some do set the environment that lets NCCL run so (host
 * names of their own, sockets, few blocks), except what the user set, and say so.  \a node is the number of this
 * process's node.  Before the first communicator, once per process.
 * Collective over \a all. */
void ts_comm_nccl_place(MPI_Comm all, int node);

/** The communicator of the group of \a mpi, which has more than one rank; returns when NCCL has connected all of them
 * and has run every kind of operation once, so that nothing is allocated on the device later.
 * \param [in] mpi  Borrowed: to be freed after this one.  Not used by another thread meanwhile. Collective over the
 * group. */
ts_comm *ts_comm_nccl_create(ts_comm_mpi *mpi, const ts_device_options *options);

/** A way for messages from one rank of a group to another, or to itself: a queue of the device, and NCCL's communicator
 * of the two, so that what waits there holds nothing else up. */
typedef struct ts_nccl_lane ts_nccl_lane;

/** Make one, connected, with its first message behind it.  A failure ends the job.
 * \param [in] mpi  Of the group, borrowed for the lane's life.
 * \param [in] number  From 0: another one for each lane of the group.
 * \param [in] sends  Else \a peer does; of a lane to oneself not read.
 * Collective over the two, which make their lanes in one order. */
ts_nccl_lane *ts_nccl_lane_create(ts_comm_mpi *mpi, bool sends, int peer, int number, const ts_device_options *options);

/** Is it the one that these make? Not collective. */
bool ts_nccl_lane_is(const ts_nccl_lane *lane, const ts_comm_mpi *mpi, bool sends, int peer, int number);

/** A line of it (comm.h), borrowing it.  Of a lane to oneself sends and receives meet in the order in which they are
 * started. Not collective. */
ts_message_line *ts_nccl_line_create(ts_nccl_lane *lane, bool sends, const ts_message_part *part, int n);

/** Free it, when its lines are gone. Collective over the two, in one order. */
void ts_nccl_lane_destroy(ts_nccl_lane *lane);

/** Tell NCCL of memory that the operations will be called with; NCCL may then let the network reach it without a copy.
 * What it cannot register it uses like any other.  Up to 4 at a time. Not collective. */
void ts_comm_nccl_register(ts_comm *comm, void *memory, size_t bytes);

/** The memory is about to be freed; nothing that uses it is queued.  Unknown memory is ignored. Not collective. */
void ts_comm_nccl_deregister(ts_comm *comm, const void *memory);

#endif
