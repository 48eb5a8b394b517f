/** \file
 * What reductions and exchanges on a device need beside their messages: chunks, conversions to the wire, packing,
 * sums; and the communicator of a group of 1.  Everything is queued on TS_QUEUE_COMM of the CUDA backend and returns at
 * once.  Private to this room.
 */
#ifndef TS_COMM_DEVICE_H
#define TS_COMM_DEVICE_H

#include "comm/comm_run.h"

/** A reduction and how its columns are cut into chunks.  A slot holds one rank's chunk in the wire dtype. */
typedef struct ts_device_reduction {
  int rank, size;
  const ts_transfer *transfer;
  int n;
  ts_dtype x, wire, y;
  const float *beta; /**< In the device's memory, or NULL. */
  float divisor;     /**< ts_transfer_divisor. */
  int64_t longest;   /**< Columns of the longest shard: chunks of all ranks end there. */
  int64_t columns;   /**< Per chunk. */
  size_t slot_bytes;
  unsigned char *receive; /**< Slots of the other ranks, in rank order. */
  unsigned char *send;    /**< Slots of what leaves; NULL: it leaves from where it is. */
} ts_device_reduction;

/** The stream of TS_QUEUE_COMM, a cudaStream_t. Not collective. */
void *ts_comm_stream(void);

/** Queue a copy there; wait until all that is queued there is done. Not collective. */
void ts_comm_device_copy(void *to, const void *from, size_t bytes);
void ts_comm_device_finish(void);

/** Divide a workspace into \a receive slots for what comes and \a send slots for what leaves, and set the columns of a
 * chunk by their size.  A workspace too small for one cache line a slot ends the job. Not collective. */
void ts_device_divide(ts_device_reduction *reduction, void *workspace, size_t bytes, int receive, int send);

/** Columns of rank \a rank's shard in the chunk that begins at column \a begin. Not collective. */
int64_t ts_device_chunk(const ts_device_reduction *reduction, int64_t begin, int rank);

/** Where the send slots keep the chunk of rank \a rank's shard.
 * \param [in] own  Is there a slot of this rank's own, too? Not collective. */
unsigned char *ts_device_send_slot(const ts_device_reduction *reduction, int rank, bool own);

/** Convert the chunk of every rank's shard to the wire dtype in its send slot. Asynchronous. Not collective. */
void ts_device_pack(const ts_device_reduction *reduction, int64_t begin, bool own);

/** y = the sum of this rank's chunk: of x and the receive slots, or of \a whole alone, which is a sum in the wire
 * dtype. Asynchronous. Not collective. */
void ts_device_sum(const ts_device_reduction *reduction, int64_t begin, const void *whole);

/** End the job where the workspace is too small for an exchange. Not collective. */
void ts_device_check_exchange(const ts_exchange_lists *lists, int rank, size_t workspace_bytes);

/** Pack what leaves this rank in pieces of rows; and, when everything has arrived, unpack it, copy own blocks and add
 * up the sums. Asynchronous. Not collective. */
void ts_device_pack_blocks(const ts_exchange_lists *lists, int rank, void *workspace);
void ts_device_unpack_blocks(const ts_exchange_lists *lists, int rank, void *workspace);

/** The communicator of a group of 1: it copies, rounding through the wire dtype. Owned by the caller.
 * Not collective. */
ts_comm *ts_comm_device_alone(void);

#endif
