/** \file
 * A group's NCCL communicator: how it comes and goes, and how a failure shows.  Private to the files of comm_nccl.
 */
#ifndef TS_COMM_NCCL_GROUP_H
#define TS_COMM_NCCL_GROUP_H

#include "comm/comm_nccl.h"

#include <nccl.h>

enum { TS_MOST_REGISTERED = 4 };

#ifndef TS_NCCL_WARM_BYTES
#define TS_NCCL_WARM_BYTES ((size_t) 16 << 20) /**< Of a new communicator's first operations: for every protocol. */
#endif

typedef struct ts_comm_nccl {
  ts_comm base;
  ncclComm_t nccl;
  ts_comm_mpi *mpi; /**< Borrowed: the same group; of a pair one that has both. */
  int *member;      /**< Owned: world rank of each. */
  ts_device_options options;
  int64_t *cuts; /**< Owned; size + 1 cut points for all_reduce. */
  struct {
    const void *memory; /**< NULL: free. */
    void *handle;
  } registered[TS_MOST_REGISTERED];
  long number;        /**< Collectives begun. */
  ts_collective last; /**< The last of them, */
  char op[64];        /**< and its name in the graph. */
} ts_comm_nccl;

/** A call of NCCL that must succeed (class b), or may be in progress: TS_NCCL (c, ncclSend (...)). */
#define TS_NCCL(c, call) ts_nccl_check((c), (call), #call)

/** End the job unless \a code is ncclSuccess or ncclInProgress. Not collective. */
void ts_nccl_check(const ts_comm_nccl *c, ncclResult_t code, const char *call);

/** Note what is begun, for messages. Not collective. */
void ts_nccl_begin(ts_comm_nccl *c, ts_collective op);

/** Open a group of calls; close it and wait until all of them are in the stream.  Communicators here do not block, so
 * NCCL starts a thread for each group (tens of us on the host; nothing of it when a graph is replayed).
 * Not collective. */
void ts_nccl_open(ts_comm_nccl *c);
void ts_nccl_close(ts_comm_nccl *c);

/** Make the communicator without its table.  Collective over the group. */
ts_comm_nccl *ts_nccl_group_create(ts_comm_mpi *mpi, const ts_device_options *options);

/** One of two ranks of a group, of which this is one: rank 0 sends, rank 1 receives, and few blocks of the device wait
 * for the other side.
 * \param [in] tag  Of MPI, for the beginning. Collective over the two. */
ts_comm_nccl *ts_nccl_pair_create(ts_comm_mpi *mpi, int sender, int receiver, int tag,
                                  const ts_device_options *options);

/** Free it; what is queued is run first.  Collective over the group. */
void ts_nccl_group_destroy(ts_comm_nccl *c);

#endif
