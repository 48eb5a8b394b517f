/** \file
 * What the files of comm that call MPI share: checked calls, polite waiting, sets of messages, the communicator.
 * Private to this room and its tests.
 */
#ifndef TS_COMM_MPI_H
#define TS_COMM_MPI_H

#include "comm/comm.h"
#include "comm/comm_sum.h"

#include <mpi.h>
#include <stdbool.h>

/** An MPI call that must succeed (class b): TS_MPI (MPI_Comm_rank (comm, &rank)); */
#define TS_MPI(call) ts_mpi_check((call), __FILE__, __LINE__, #call)

/** End the job with MPI's text unless \a code is MPI_SUCCESS. Not collective. */
void ts_mpi_check(int code, const char *file, int line, const char *call);

/** How long a polling loop has found nothing.  Zero-initialise, and again whenever there was something. */
typedef struct ts_patience {
  int idle;
  double since; /**< Clock when spinning ended. */
} ts_patience;

/** Called after each poll that found nothing: spins first, then yields, then sleeps a little, so that neither the
 * ranks that share a core nor the threads that compute are kept from it. Not collective. */
void ts_patience_pause(ts_patience *patience);

/** Wait for one request, politely. Not collective. */
void ts_mpi_wait(MPI_Request *request);

/** One message between this rank and a peer. */
typedef struct ts_message {
  void *data;    /**< Borrowed until the exchange is finished. */
  int64_t bytes; /**< 1 .. ts_message_limit. */
  int peer;      /**< Group rank. */
} ts_message;

enum { TS_SLOTS = 16 }; /**< Messages in flight each way, at most. */

/** A list of messages, given one by one: false when there is none, or none yet.  The message keeps \a slot, in
 * [0, TS_SLOTS), until it is complete. */
typedef bool ts_message_next(void *list, int slot, ts_message *out);

/** Told of each message received. */
typedef void ts_message_received(void *list, int slot);

/** Two lists of messages on their way.  What one rank sends another, in order, is what the other receives from it.
 * No deadlock if all ranks order their lists alike, by the step k at which they send to rank + k and receive from
 * rank - k: the oldest open step is always posted on both sides. */
typedef struct ts_exchange {
  MPI_Comm comm;
  MPI_Request request[2 * TS_SLOTS]; /**< Receives, then sends. */
  int64_t expected[TS_SLOTS];        /**< Bytes of each receive. */
  int slots[2];                      /**< Used of each kind. */
  int in_flight;
  ts_message_next *next[2];
  ts_message_received *received; /**< May be NULL. */
  void *list[2];
} ts_exchange;

/** Begin with two lists, borrowed until the exchange is finished, each with up to TS_SLOTS slots. Not collective. */
void ts_exchange_begin(ts_exchange *exchange, ts_message_next *receive, ts_message_received *received,
                       void *receive_list, ts_message_next *send, void *send_list, int send_slots);

/** Post what there is, see what has arrived.  A message of another size than expected ends the job.
 * \return True when a message was completed. Not collective. */
bool ts_exchange_poll(ts_exchange *exchange);

/** Poll politely until nothing is in flight and neither list has more. Not collective. */
void ts_exchange_finish(ts_exchange *exchange);

/** A communicator over MPI. */
typedef struct ts_comm_mpi {
  ts_comm base;
  MPI_Comm comm;     /**< Owned; MPI_COMM_NULL for a group of 1. */
  int *member;       /**< Owned; world rank of each group rank. */
  int64_t *cuts;     /**< Owned; size + 1 cut points for all_reduce. */
  ts_addend *addend; /**< Owned; one per rank. */
  ts_exchange exchange;
} ts_comm_mpi;

/** A communicator of \a size ranks.
 * \param [in] comm    Becomes the communicator's; MPI_COMM_NULL for a group of 1.
 * \param [in] member  World rank of each group rank; becomes the communicator's (ts_free). Not collective. */
ts_comm *ts_comm_mpi_create(MPI_Comm comm, int rank, int size, int *member);

/** Slots of the workspace that hold messages being sent; at most TS_SLOTS. Not collective. */
int ts_comm_send_slots(int size);

/** Entries of the table, without agreement and test delay. Collective over the group. */
void ts_comm_mpi_reduce_scatter(ts_comm *comm, const ts_transfer *transfer, int n, ts_dtype x_dtype, ts_dtype wire,
                                ts_dtype y_dtype, const float *beta, void *workspace, size_t workspace_bytes);
void ts_comm_mpi_exchange(ts_comm *comm, const ts_exchange_lists *lists, void *workspace, size_t workspace_bytes);
void ts_comm_mpi_exchange_rows(ts_comm *comm, const ts_row_exchange *rows);

typedef enum ts_collective {
  TS_REDUCE_SCATTER,
  TS_ALL_GATHER,
  TS_ALL_REDUCE,
  TS_EXCHANGE,
  TS_EXCHANGE_ROWS,
  TS_BROADCAST,
  TS_MESSAGE /**< Of a line. */
} ts_collective;

/** "reduce_scatter", ... Not collective. */
const char *ts_collective_name(ts_collective op);

/** When agreement is on, compare a call with the neighbours' over \a mpi; a difference ends the job.
 * \param [in] member  World rank of each group rank, for the message.
 * \param [in] rest    Hash of all else that must agree. Collective over the group. */
void ts_comm_agree(const ts_comm *comm, MPI_Comm mpi, const int *member, ts_collective op, const ts_transfer *transfer,
                   int n, uint64_t rest);

/** The same for an exchange, of which every rank knows its own blocks alone: tensors, their dtypes and batches.
 * Collective over the group. */
void ts_comm_agree_exchange(const ts_comm *comm, MPI_Comm mpi, const int *member, const ts_exchange_lists *lists);

/** The same for an exchange of rows: a hash of all that must agree beside their size. Collective over the group. */
void ts_comm_agree_rows(const ts_comm *comm, MPI_Comm mpi, const int *member, int64_t row_bytes, uint64_t counts);

/** What must agree of a reduction beside its transfers, as a hash. Not collective. */
uint64_t ts_hash_reduction(ts_dtype x, ts_dtype wire, size_t workspace_bytes);

/** Run-time switches of the tests. */
typedef struct ts_comm_switches {
  double delay;          /**< See ts_comm_set_test_delay. */
  bool agree;            /**< See ts_comm_set_agreement. */
  int64_t message_limit; /**< Longest message of a gather or an exchange in bytes: counts of MPI are ints. */
} ts_comm_switches;
extern ts_comm_switches ts_comm_switch;

#endif
