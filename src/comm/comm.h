/** \file
 * A communicator: a group of ranks of the mesh and a table of collectives over it.
 *
 * Every operation is collective over the group and blocks until this rank's part is done: its inputs may be reused and
 * its outputs are valid.  Asynchrony is the business of the stream that calls it (run/stream.h): all calls of one rank,
 * over all its communicators, come from one thread at a time and in one order that is the same on all ranks.
 * While waiting, an operation polls and yields the processor; it never blocks inside MPI and uses no memory but its
 * arguments and the workspace.  Those of a device communicator (ts_world_device_comm) return when they are queued.
 *
 * Determinism: reduce_scatter and all_reduce add in fp32 in group-rank order, exchange in the order of its list,
 * whatever the message size, the pieces and the MPI.  What travels has the wire dtype; this rank's own contribution is
 * rounded to the wire dtype too.  With \a beta, y = beta y + sum: the sum first, then the rest in fp32 or wider,
 * rounded to y's dtype at the end.
 *
 * A failure of MPI ends the job (class b).
 */
#ifndef TS_COMM_COMM_H
#define TS_COMM_COMM_H

#include "base/deal.h"
#include "base/dtype.h"
#include "base/heartbeat.h"
#include "comm/mesh.h"
#include "comm/world.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** One contiguous share of a collective: columns [begin, end) of every rank's shard. */
typedef struct ts_transfer {
  const void *x;       /**< reduce_scatter: the whole (cuts[size] elements); all_gather: this rank's shard. */
  void *y;             /**< reduce_scatter: this rank's shard; all_gather: the whole, where x may be in its place. */
  const int64_t *cuts; /**< size + 1 cut points of the whole, in elements; shards may be empty or uneven. */
  int64_t begin, end;  /**< Elements from each shard's first, clipped to each shard's length. */
  /** reduce_scatter: what travels is x / divisor, and the sum is multiplied by it, in fp32; 0 is 1.  The same in all
   * transfers of a call. */
  float divisor;
} ts_transfer;

/** Columns of rank \a rank's shard that \a transfer names, after clipping.
 * \param [out] first  Index in the whole of the first of them. Not collective. */
int64_t ts_transfer_columns(const ts_transfer *transfer, int rank, int64_t *first);

/** Workspace in bytes that a reduce_scatter or all_reduce over \a size ranks makes the best use of: a function of the
 * arguments alone, 0 for a group of 1.  ts_comm_least_workspace(size) suffices too, with less speed and the same bits.
 * \param [in] max_columns  Columns of the longest shard, summed over the transfers of one call. Not collective. */
size_t ts_comm_workspace(int size, int64_t max_columns, ts_dtype wire);

/** The same on a device, where a chunk costs the start of a few kernels: larger ones pay. Not collective. */
size_t ts_comm_device_workspace(int size, int64_t max_columns, ts_dtype wire);

/** Bytes that suffice for any reduce_scatter over \a size ranks, and that neither of the above stays below.
 * Not collective. */
size_t ts_comm_least_workspace(int size);

/** A tensor [batches][rows][columns] of which blocks leave, or that is made of blocks that arrive. */
typedef struct ts_exchange_tensor {
  void *data; /**< Not looked at where only sizes are asked for. */
  ts_dtype dtype;
  int64_t batches, rows, columns; /**< May be 0. */
} ts_exchange_tensor;

/** This rank's part of an exchange.  Of a block its rows and columns of all batches travel.  The blocks that one rank
 * sends another are, in the same order, those that the other receives from it: of tensors of the same number, with as
 * many rows and columns.  dtypes and batches of tensor i are the same in x and y, and on all ranks. */
typedef struct ts_exchange_lists {
  int n; /**< Tensors on either side, at most TS_MOST_EXCHANGED. */
  const ts_exchange_tensor *x, *y;
  const ts_block *sent, *received; /**< By rank, ascending, this rank's own included; a block may go to several. */
  int n_sent, n_received;
} ts_exchange_lists;

/** Workspace in bytes that an exchange needs on rank \a rank of the group: what leaves or arrives in pieces of rows,
 * and all that is added, is packed there.  A function of the arguments alone, on a device too, not of data.
 * Not collective. */
size_t ts_comm_exchange_workspace(const ts_exchange_lists *lists, int rank);

/** Rows of experts between the ranks that have the tokens and those that have the experts. */
typedef struct ts_row_exchange {
  const void *x; /**< [x_rows] rows of row_bytes bytes, borrowed until the call returns, on a device until it is run. */
  void *y;       /**< [y_rows] such rows. */
  /** [size][experts + 1], in memory as x is: where the rows of each expert begin among each rank's own, which lie by
   * expert; the same on all ranks. */
  const int32_t *firsts;
  const int64_t *experts; /**< size + 1 cut points: whose they are. */
  int64_t row_bytes;      /**< The same on all ranks. */
  int64_t x_rows, y_rows; /**< Room, in rows. */
  bool home;              /**< From the experts' rank, where rows lie by expert and then by rank, to the tokens'. */
} ts_row_exchange;

typedef struct ts_comm ts_comm;

typedef struct ts_comm_ops {
  const char *name;
  /** Sum the shards over the group; each rank keeps its own.  x, wire and y are F32, BF16 or F16.  y may be this rank's
   * own place in x.  A group of 1 copies, rounding through the wire dtype like any other.
   * \param [in] n     Transfers of the call, treated as one: their columns are concatenated per shard.
   * \param [in] beta  NULL: y is overwritten (in the columns named); else y = *beta y + sum, *beta == 0 never reads y.
   * \param [in] workspace_bytes  The same on all ranks, as everything but the pointers; see ts_comm_workspace.
   * Collective over the group. */
  void (*reduce_scatter)(ts_comm *comm, const ts_transfer *transfer, int n, ts_dtype x_dtype, ts_dtype wire,
                         ts_dtype y_dtype, const float *beta, void *workspace, size_t workspace_bytes);
  /** Every rank gets every shard, of any dtype; only the columns named are written. Collective over the group. */
  void (*all_gather)(ts_comm *comm, const ts_transfer *transfer, int n, ts_dtype dtype);
  /** y = sum over the group of x, \a count elements, the same bits on all ranks: a reduce_scatter over equal cuts and
   * an all_gather.  x and y may be the same.  dtype and wire are as there. Collective over the group. */
  void (*all_reduce)(ts_comm *comm, const void *x, void *y, int64_t count, ts_dtype dtype, ts_dtype wire,
                     void *workspace, size_t workspace_bytes);
  /** Copy \a bytes bytes from group rank \a root. Collective over the group. */
  void (*broadcast)(ts_comm *comm, void *data, size_t bytes, int root);
  /** Blocks from everyone to everyone.  x and y do not overlap.  An output of F32, BF16 or F16 of which not every
   * element arrives once is a sum: what arrives is added in fp32 in the order of the list, own blocks too, and rounded
   * once; where nothing arrives it is 0.  Of other types nothing may arrive twice, and what no block covers is not
   * written.
   * \param [in] workspace_bytes  At least ts_comm_exchange_workspace. Collective over the group. */
  void (*exchange)(ts_comm *comm, const ts_exchange_lists *lists, void *workspace, size_t workspace_bytes);
  /** Rows to where their experts are, or home, as many as \a firsts counts: those behind are not written.  Counts that
   * do not fit the room end the job.  x and y do not overlap.  On a device, where the group has several ranks, the host
   * reads the counts when it comes to this: it waits for what was queued before, and this cannot be recorded.
   * Collective over the group. */
  void (*exchange_rows)(ts_comm *comm, const ts_row_exchange *rows);
  /** Wait for everybody. Collective over the group. */
  void (*barrier)(ts_comm *comm);
  /** Free one communicator. Collective over the group. */
  void (*destroy)(ts_comm *comm);
} ts_comm_ops;

/** Memory that a message is taken from, or put into. */
typedef struct ts_message_part {
  void *data;
  size_t bytes;
} ts_message_part;

/** A message from this rank to another one, or from there, that is sent again and again: posted early, complete late.
 * What one posts, in order, under a number is what the other does under it.  On a device all is queued: "under way" is
 * what the computation that is queued has not waited for, and waiting is for it to go on when the message is complete.
 */
typedef struct ts_message_line ts_message_line;

/** Of a communicator of the host's memory.  Its memory is the parts', in order: as many bytes on either side, in parts
 * of any lengths; of a device's memory (ts_world_device_line_create) of the same.
 * \param [in] peer    Group rank, also this rank's own.
 * \param [in] number  From 0: which of the lines between the two, in this direction.
 * \param [in] part    Borrowed; their memory until it is destroyed. Not collective, but the peer does the same. */
ts_message_line *ts_message_line_create(ts_comm *comm, bool sends, int peer, int number, const ts_message_part *part,
                                        int n);

/** Wait for what is under way, free, set to NULL; NULL is allowed. Not collective. */
void ts_message_line_destroy(ts_message_line **line);

/** On a device: what a send is made of is there once what the computation has queued so far is done, though it is
 * started only later; in a recording, in each replay.  On the host it is there. Not collective. */
void ts_message_announce(ts_message_line *line);

/** Post it, when what was posted before is complete; on a device after what the computation has queued so far, but for
 * what is behind the announcement of a send.  Until it is complete again the memory of a send may be read, that
 * of a receive not be touched. Not collective. */
void ts_message_start(ts_message_line *line);

/** Is it under way? Not collective. */
bool ts_message_is_open(const ts_message_line *line);

/** Of the host: see whether it is complete, which moves whatever is under way on; a receive of another size ends the
 * job.
 * \return true when nothing is under way. Not collective. */
bool ts_message_poll(ts_message_line *line);

/** Poll politely until it is complete; of a device queued. Not collective, but waits for the peer. */
void ts_message_wait(ts_message_line *line);

/** What every implementation's object begins with. */
struct ts_comm {
  const ts_comm_ops *ops;
  int rank, size; /**< In the group. */
};

/** Start MPI (MPI_THREAD_MULTIPLE wanted, SERIALIZED accepted) and set the failure context.  Ranks are numbered node
 * by node, so the fastest mesh axes stay inside a node however the launcher placed the processes.  A node is what the
 * launcher says it is where it knows (srun), else the processes that can share memory.  One world per process.  A
 * launcher that this MPI does not understand, with which each process would be a world of its own, ends the program
 * with exit code 2 and one message.  Collective over all processes.  A failure ends the job. */
ts_world *ts_world_create(int *argc, char ***argv);

/** A world of this process alone, beside \a world and to be destroyed before it: what one rank would compute, for
 * comparison. Not collective. */
ts_world *ts_world_alone(const ts_world *world);

/** Where this process says what it does in this world (base/heartbeat.h): the world's own record, which nobody reads,
 * until another one is given, which must live until NULL is.  No other thread speaks meanwhile. Not collective. */
ts_heartbeat *ts_world_heartbeat(const ts_world *world);
void ts_world_use_heartbeat(ts_world *world, ts_heartbeat *record);

/** Nodes are numbered 0, 1, ... in the order of their ranks: the number of \a rank's node, how many there are, and the
 * name of \a rank's node, borrowed: Slurm's where it has started us, else the host name.  Names need not differ.
 * Not collective. */
int ts_world_node(const ts_world *world, int rank);
int ts_world_n_nodes(const ts_world *world);
const char *ts_world_node_name(const ts_world *world, int rank);

/** "4 ranks on 2 nodes (node0: 0-1, node1: 2-3), started by srun --mpi=pmix"; owned by the caller. Not collective. */
char *ts_world_describe(const ts_world *world);

/** The communicator over \a axes of \a mesh, created at the first call and owned by the world.  Mesh ranks are world
 * ranks.  Axes with the same members share one communicator.
 * Collective over the group at the first call for these axes, then not collective. */
ts_comm *ts_world_comm(ts_world *world, const ts_mesh *mesh, unsigned axes);

/** How the communicators of devices work; the same on all ranks. */
typedef struct ts_device_options {
  /** Reductions over an fp32 wire exchange and add in rank order too, as they always do over bf16 and fp16: bits that
   * depend on the group alone.  Otherwise NCCL adds, with fewer messages between nodes: the same build, topology and
   * list of reductions give the same bits. */
  bool exact;
  /** Seconds that NCCL may take to connect or to queue before a peer is taken for dead; 0: for ever. */
  double time_limit;
} ts_device_options;

/** Options of the device communicators made from now on (default: all zero). Not collective. */
void ts_world_set_device_options(ts_world *world, const ts_device_options *options);

/** Find out who shares a device, which NCCL is to know before the first communicator; nothing once it is known.
 * Collective over all processes. */
void ts_world_device_place(ts_world *world);

/** The communicator over \a axes for memory of this process's GPU, made at the first call and owned by the world;
 * ts_cuda_open has succeeded.  Its operations return when they are queued on TS_QUEUE_COMM, in the order of the calls:
 * inputs may be reused and outputs are valid to what the queue does later, or after the queue.  \a beta, workspaces and
 * all data are in the device's memory; transfers and cut points are the host's and read before the call returns.
 * Operations can be captured.  Only the barrier makes the host wait: for the queue, then for everybody's.  The test
 * delay has no effect.
 * Collective over the group at the first call for these axes, over all processes where it finds them not placed, then
 * not collective. */
ts_comm *ts_world_device_comm(ts_world *world, const ts_mesh *mesh, unsigned axes);

/** Make the way for lines of a number, unless it is there: a communicator and a queue of their own, so that what they
 * wait for holds nothing else up.  All ranks of the group do so in ascending order of the numbers.  It is the world's,
 * which goes before the device is closed. Collective over the two ranks, which NCCL connects. */
void ts_world_device_connect(ts_world *world, const ts_mesh *mesh, unsigned axes, bool sends, int peer, int number);

/** A line for memory of this process's GPU over a way that is there. Not collective. */
ts_message_line *ts_world_device_line_create(ts_world *world, const ts_mesh *mesh, unsigned axes, bool sends, int peer,
                                             int number, const ts_message_part *part, int n);

/** Memory of the device that the communicators made so far will be called with, so that the network may reach it
 * without a copy; deregister it before it is freed, when nothing is queued. Not collective. */
void ts_world_device_register(ts_world *world, void *memory, size_t bytes);
void ts_world_device_deregister(ts_world *world, const void *memory);

/** May several threads of this process communicate at a time?  Else one after another. Not collective. */
bool ts_world_takes_threads(void);

/** The libraries that communicate: "MPICH Version: 4.0.2, NCCL 2.28.9". Not collective. */
const char *ts_world_libraries(void);

/** The communicator of all processes. Not collective. */
ts_comm *ts_world_all(ts_world *world);

/** Memory that the ranks of a node share.  Where some ranks of a node cannot share memory with others (containers),
 * each group that can counts as a node of its own. */
typedef struct ts_node_memory {
  /** Of the node, or where several have that name NAME.rRANK with their lowest rank: unique in the world. */
  const char *name;
  int n, index;        /**< Ranks of the node; this rank's place among them. */
  int n_nodes;         /**< Of the world. */
  const int *rank;     /**< Their world ranks, ascending. */
  void *const *memory; /**< Of each rank: a piece of memory that all of them may read and write. */
} ts_node_memory;

/** Share \a bytes zeroed bytes of each rank with the other ranks of its node, aligned to 128. Collective over all
 * processes. */
ts_node_memory *ts_node_memory_create(ts_world *world, size_t bytes);

/** Free and set to NULL; NULL is allowed.  Before the world is destroyed. Collective over all processes. */
void ts_node_memory_destroy(ts_node_memory **memory);

/** What every rank has: \a bytes bytes of each, in the order of the ranks; owned by the caller (ts_free).
 * Collective over all processes, with the same \a bytes. */
void *ts_world_gather(ts_world *world, const void *mine, size_t bytes);

/** The text of rank \a root on every rank; owned by the caller (ts_free); NULL where \a mine is NULL there.  It cannot
 * fail for what the text is; a failure of MPI ends the job.  Collective over all processes, with the same \a root.
 * \param [in] mine  Read on \a root alone. */
char *ts_world_share_text(ts_world *world, const char *mine, int root);

/** By how much this rank's clock is ahead of rank 0's. */
typedef struct ts_clock_offset {
  double offset; /**< Seconds: clock () here less this is clock () there; 0 on rank 0. */
  double bound;  /**< The truth is at most so far away: half of the shortest round trip. */
} ts_clock_offset;

/** Measure it, by a dozen round trips of each rank, one rank after another (microseconds a rank on a node, tens of them
 * between nodes).  Clocks that drift are so far apart at this moment; nothing is known of later.
 * \param [in] clock  Reads a clock in seconds, such as ts_seconds. Collective over all processes. */
ts_clock_offset ts_world_clock_offset(ts_world *world, double (*clock)(void));

/** At the entry of each reduce_scatter, all_gather, all_reduce and exchange compare the call with the neighbours'; a
 * difference ends the job with both ranks and calls named.  Blocks are told by the sizes of messages.  On by default
 * where assertions are.  The same on all ranks; set it while no collective runs. Not collective. */
void ts_comm_set_agreement(bool on);

/** Hold back each completion of reduce_scatter, all_gather, all_reduce and exchange by \a seconds without using the
 * processor: a test of overlap.  Set it while no collective runs. Not collective. */
void ts_comm_set_test_delay(double seconds);

#endif
