/** \file
 * The executor: programs bound to memory, walked instruction by instruction.
 *
 * Programs of one engine share the state arena (by the names of their STATE leaves, ts_programs_share_state) and what
 * lives within runs (the largest); inputs each has for itself.  After creation nothing is allocated, but for the
 * addresses of nodes when runs first come with a set of places, and on a device for events and recordings.
 *
 * Updates that a step leaves (pass/step.h) are made by the first forward of the next one, or before anything else that
 * may read what they write: a run of another program, and all that reads or writes state of the model's parts.  What
 * other ranks need of them is gathered by that forward or a run of another program, or by ts_executor_complete: until
 * then the elements of others of what every rank has whole are as they were.
 *
 * On a device a run is queued and returns, with a copy of its inputs and scalars, so that it may outlive the step; the
 * host waits where it reads (ts_executor_read_..., _take_times), when the inputs of some runs still wait to be
 * copied, where it reads the sizes of messages (EXCHANGE_ROWS), and at the end of a step of a pipeline; and, where
 * updates may wait, in front of the first run behind an update for the hosts of all ranks.  A run is
 * queued command by command the first time with its places, its ranges (pass/lower.h) recorded the second time, of a
 * pipeline at the end of the step, and replayed from then on, unless somebody observes it or graphs are off.
 */
#ifndef TS_RUN_EXECUTOR_H
#define TS_RUN_EXECUTOR_H

#include "comm/comm.h"
#include "io/store.h"
#include "run/program.h"

typedef struct ts_executor ts_executor;

/** Told of every instruction that was executed, from the thread that executed it (collectives: the stream's); of a
 * device, once the run is done. */
typedef void ts_executor_observer(void *user, const ts_node *node, bool collective, double start, double seconds);

typedef struct ts_executor_options {
  ts_world *world; /**< Borrowed; may be NULL when no program has collectives. */
  ts_store *store; /**< Borrowed; NULL when no program has state in a file. */
  /** Poison memory before its first write and after its death, check every write; collectives then run
   * where they are issued. */
  bool memcheck;
  bool check_finite; /**< Report the first non-finite output of a run. */
  bool graphs;       /**< Device: record runs and replay them. */
  ts_executor_observer *observer;
  void *observer_user;
  bool messages_only; /**< The observer is told of collectives and messages alone. */
} ts_executor_options;

/** How a deck's files are made, read and written (aio): all but a name, the first engine that works.  Strings are
 * borrowed. Not collective. */
ts_store_options ts_store_options_of(const ts_deck *deck);

/** What a program has in a file, as a store wants it: an extent for each place of each leaf, ascending, in blocks of at
 * most TS_OFFLOAD_BLOCK bytes.
 * \return \a n extents, the caller's (ts_free); NULL: none. Not collective. */
ts_store_extent *ts_program_extents(const ts_program *program, int *n);

/** Bytes of memory that the store of these takes: hashes, and buffers of requests (ts_store_memory). Not collective. */
int64_t ts_program_store_bytes(const ts_program *program);

/** Allocate the arenas, prepare the kernels, resolve every address.
 * \param [in] programs  Borrowed for the executor's life. Collective over the world (communicators are made). */
ts_executor *ts_executor_create(const ts_program *const *programs, int n_programs, const ts_executor_options *options);

/** Free and set to NULL; NULL is allowed. Collective over the world. */
void ts_executor_destroy(ts_executor **executor);

/** Execute run \a run (an index) of the step of program \a index: its instructions in order. Collective over the world
 * when they contain collectives, and on a device the first one behind an update. */
void ts_executor_run(ts_executor *executor, int index, int64_t run);

/** The same of a run that the caller chooses (ts_step_run_by_hand). Collective over the world likewise. */
void ts_executor_run_one(ts_executor *executor, int index, ts_run run);

/** Make all that steps have left: behind it every rank has what the others have updated. Collective over the world. */
void ts_executor_complete(ts_executor *executor);

/** Forget what the last step has left, as it is skipped: that would write what is there. Not collective. */
void ts_executor_drop_updates(ts_executor *executor);

/** Where the host writes an input or scalar of the micro-batch in slot \a slot, by name; NULL when the program has none
 * or never touches it.  Slots keep their values while other programs run. Not collective. */
void *ts_executor_input(ts_executor *executor, int index, int slot, const char *name);

/** Elements [first, first + count) of a STATE leaf of the first program's graph, in the leaf's dtype: to or from memory
 * of the host; on a device after all that is queued, and done when it returns.  Elements that others update are new
 * behind ts_executor_complete. Not collective. */
void ts_executor_read_state(ts_executor *executor, ts_tid leaf, int64_t first, int64_t count, void *to);
void ts_executor_write_state(ts_executor *executor, ts_tid leaf, int64_t first, int64_t count, const void *from);

/** Read into memory of ts_executor_allocate_host, fast: on the host with the program's threads, on a device queued and
 * done after ts_executor_finish; of what is elsewhere (ts_space_is_away) done when it returns. Not collective. */
void ts_executor_copy_state(ts_executor *executor, ts_tid leaf, int64_t first, int64_t count, void *to);

/** Complete a STATE leaf, wherever it is, of which each rank of the group over \a axes has written its own elements
 * [cuts[r], cuts[r + 1]): everybody gets all. Collective over the group. */
void ts_executor_gather_state(ts_executor *executor, ts_tid leaf, unsigned axes, const int64_t *cuts);

/** Read a marked result of a program, whole, once the last run of its step is done. Not collective. */
void ts_executor_read_result(ts_executor *executor, int index, const char *name, void *to);

/** Bytes of the host's memory that programs take beside a device: inputs of all slots, images of one, those of a whole
 * step, staging, state that is kept there, what is on the way between files and the device, the store's hashes.
 * Not collective. */
int64_t ts_executor_host_bytes(const ts_program *const *programs, int n_programs);

/** Wait for all that is queued on a device. Not collective. */
void ts_executor_finish(ts_executor *executor);

/** Host memory that a device copies to fast (zeroed); to be freed by ts_executor_release_host. Not collective. */
void *ts_executor_allocate_host(const ts_executor *executor, size_t bytes);
void ts_executor_release_host(const ts_executor *executor, void *memory, size_t bytes);

/** What the last runs cost, summed since the last call. Not collective. */
typedef struct ts_executor_times {
  double communication; /**< Seconds collectives took; NaN on a device, where only an observer's events would tell. */
  double exposed;       /**< Seconds the computation waited for them; NaN likewise. */
  double copied;        /**< Seconds it waited for files. */
  double phase[TS_N_RUN_PHASES];  /**< Seconds of the runs of each phase, */
  double waited[TS_N_RUN_PHASES]; /**< and what they waited, on a device for messages of pipelines alone. */
  double span;                    /**< From the begin of the first run to the end of the last forward or backward. */
} ts_executor_times;
ts_executor_times ts_executor_take_times(ts_executor *executor);

/** Of these what forwards and backwards were busy with, without what they waited for. Not collective. */
double ts_executor_busy(const ts_executor_times *times);

/** Tell another observer from now on, NULL for none; no run is under way. Not collective. */
void ts_executor_set_observer(ts_executor *executor, ts_executor_observer *observer, void *user);

/** The same, but of collectives and messages alone: on the host nothing else is timed then, so that a step takes no
 * longer. Not collective. */
void ts_executor_observe_messages(ts_executor *executor, ts_executor_observer *observer, void *user);

/** The first non-finite value seen since the last call (check_finite): "op NAME (OP), tensor TENSOR, element J", or
 * NULL.  Where an op's row says LSE (graph/ops.def), -inf of its second output is none.
 * \return a string owned by the caller (ts_free). Not collective. */
char *ts_executor_take_nonfinite(ts_executor *executor);

/** The most memory this process has used: of the device (its arenas, libraries and communicators), else of the host.
 * Not collective. */
int64_t ts_executor_peak_bytes(const ts_executor *executor);

/** Bytes of all arenas: what the plan said. Not collective. */
int64_t ts_executor_arena_bytes(const ts_executor *executor);

#endif
