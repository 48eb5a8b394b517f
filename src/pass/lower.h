/** \file
 * A run of segments as commands for the queues of a device.
 *
 * Kernels go to the COMPUTE queue, collectives to COMM, copies of state to IN and OUT.  What crosses from one queue to
 * the other is ordered by an event: a collective begins after all computation before it, a copy after what has used its
 * bytes last, and the computation waits where the schedule says that it must.  A command is queued without waiting for
 * anything; between CAPTURE_BEGIN and CAPTURE_END nothing else happens on the host, so the range can be recorded once
 * and replayed.  The same commands are queued either way, hence the same results.
 *
 * Messages of pipelines have queues of their own, outside of recordings.  A run's range ends where it waits for one and
 * another begins behind; what is sent is there at its command, and leaves when the range is queued, which ends before a
 * collective of several stages.  A collective whose counts the host reads (EXCHANGE_ROWS) is between two ranges, on
 * COMM; computation goes on beside it in the next ones, none of which uses COMM before it was waited for.
 *
 * A file is read and written by the host (TRANSFER), which first waits for what the device has to do with that
 * memory, and for the transfer where the schedule says so (ARRIVED); what is queued later comes behind.  So does what
 * the host computes (LAUNCH on its queue), at once.  In such a program all copies are between ranges, where computation
 * goes on beside them.
 *
 * A pure function of graph, schedule and plan: it is made, dumped and verified where there is no device.  The commands
 * of a run are the same in every slot of the step, whose memory lies apart.  Nothing here is collective.
 */
#ifndef TS_PASS_LOWER_H
#define TS_PASS_LOWER_H

#include "backend/backend.h"
#include "base/text.h"
#include "pass/plan.h"
#include "pass/schedule.h"

/** X (NAME, text) */
#define TS_LOWERED_COMMANDS(X)                                                    \
  X(COPY_IN, "copy_in") /* the slot's inputs from the host's memory */            \
  X(CAPTURE_BEGIN, "capture")                                                     \
  X(LAUNCH, "launch") /* the node's kernel */                                     \
  X(COLLECTIVE, "collective")                                                     \
  X(COPY, "copy")         /* of state, from the host's memory or back */          \
  X(TRANSFER, "transfer") /* the host begins it: between a file and its memory */ \
  X(ARRIVED, "arrived")   /* and waits for it */                                  \
  X(RECEIVED, "received") /* the queue goes on after the message */               \
  X(SEND, "send")         /* what it is made of is there */                       \
  X(RECORD, "record")     /* the event happens when the queue is here */          \
  X(WAIT, "wait")         /* the queue goes on after the event */                 \
  X(CAPTURE_END, "end")

typedef enum ts_lowered_kind {
#define X(name, text) TS_LOWERED_##name,
  TS_LOWERED_COMMANDS(X)
#undef X
      TS_N_LOWERED
} ts_lowered_kind;

/** What the host does itself, before it queues what is behind; RECORD there is none. */
#define TS_QUEUE_HOST ((ts_queue) TS_MOST_QUEUES)

typedef struct ts_lowered_command {
  ts_lowered_kind kind;
  ts_queue queue; /**< Or TS_QUEUE_HOST. */
  ts_nid node;    /**< Of what has one, else TS_NONE. */
  int event;      /**< Of RECORD and WAIT, else -1. */
} ts_lowered_command;

typedef struct ts_lowered {
  unsigned segments;
  ts_lowered_command *command; /**< Owned. */
  int n, n_events, n_ranges;
} ts_lowered;

/** Lower the instructions of \a schedule whose node is in \a segments, of a chunk.  A copy waits for what has used its
 * bytes last, by the plan's addresses.
 * \return the commands, end with ts_lowered_destroy. Not collective. */
ts_lowered *ts_lower(const ts_graph *graph, const ts_schedule *schedule, const ts_plan *plan, unsigned segments,
                     int chunk);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_lowered_destroy(ts_lowered **commands);

/** Check that two commands that touch the same bytes of an arena, one of them writing, are ordered by queues and
 * events; that nothing is touched outside the slot, nothing that this run sends or waits for while it does; that every
 * event is recorded before it is waited for, in the same range or outside of all; that a capture range holds only what
 * can be captured, begins on COMPUTE, uses no queue that is busy with something else, and joins every queue that took
 * part before its end; that nothing touches what the host reads from a file or writes to one meanwhile; and that
 * nothing is left unjoined at the end of the run.
 * \return NULL, or the first thing that is wrong, owned by the caller (ts_free). Not collective. */
char *ts_lowered_verify(const ts_lowered *commands, const ts_graph *graph, const ts_plan *plan);

/** Does the host do some of a program itself: read and write files, compute? Not collective. */
bool ts_lowered_is_hosted(const ts_graph *graph);

/** Is a node queued between ranges: a collective whose counts the host reads, and in such a program a copy?
 * Not collective. */
bool ts_lowered_is_outside(const ts_node *node, bool hosted);

/** "compute", "comm", ... "host". Not collective. */
const char *ts_lowered_queue(ts_queue queue);

/** A line a command: "queue kind node" or "queue kind eN". Not collective. */
void ts_lowered_dump(const ts_lowered *commands, const ts_graph *graph, ts_text *to);

#endif
