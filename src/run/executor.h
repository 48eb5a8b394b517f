/** \file
 * The executor: programs bound to memory, walked instruction by instruction.
 *
 * Programs of one engine share the state arena (by the names of their STATE leaves; the first program has them all) and
 * the work arena (the largest).  After creation nothing is allocated.
 */
#ifndef TS_RUN_EXECUTOR_H
#define TS_RUN_EXECUTOR_H

#include "comm/comm.h"
#include "run/program.h"

typedef struct ts_executor ts_executor;

/** Told of every instruction that was executed, from the thread that executed it (collectives: the stream's). */
typedef void ts_executor_observer(void *user, const ts_node *node, bool collective, double start, double seconds);

typedef struct ts_executor_options {
  ts_world *world;    /**< Borrowed; may be NULL when no program has collectives. */
  bool overlap;       /**< Collectives run on a thread of their own. */
  bool memcheck;      /**< Poison memory before its first write and after its death, check every write; implies no overlap. */
  bool check_finite;  /**< Report the first non-finite output of a run. */
  ts_executor_observer *observer;
  void *observer_user;
} ts_executor_options;

/** Allocate the arenas, prepare the kernels, resolve every address.
 * \param [in] programs  Borrowed for the executor's life. Collective over the world (communicators are made). */
ts_executor *ts_executor_create(const ts_program *const *programs, int n_programs, const ts_executor_options *options);

/** Free and set to NULL; NULL is allowed. Collective over the world. */
void ts_executor_destroy(ts_executor **executor);

/** Execute the instructions of program \a index whose segment is in \a segments (a mask of ts_segment), in order.
 * Collective over the world when they contain collectives. */
void ts_executor_run(ts_executor *executor, int index, unsigned segments);

/** Memory of a leaf or of a marked result, by name; NULL when the program has none or never touches it.
 * Inputs and scalars are to be written before the run that reads them; they keep their values while only one program
 * runs. Not collective. */
void *ts_executor_pointer(const ts_executor *executor, int index, const char *name);

/** What the last runs cost, summed since the last call with \a reset. Not collective. */
typedef struct ts_executor_times {
  double communication; /**< Seconds collectives took. */
  double exposed;       /**< Seconds the computation waited for them. */
} ts_executor_times;
ts_executor_times ts_executor_take_times(ts_executor *executor);

/** The first non-finite value seen since the last call (check_finite): "op NAME output I (TENSOR) element J", or NULL.
 * \return a string owned by the caller (ts_free). Not collective. */
char *ts_executor_take_nonfinite(ts_executor *executor);

/** Bytes of both arenas: what the plan said. Not collective. */
int64_t ts_executor_arena_bytes(const ts_executor *executor);

#endif
