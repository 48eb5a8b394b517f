/** \file
 * The schedule of one rank's program: the order of its instructions, with the place of issue and of completion of every
 * collective.  Collectives are issued in this order on one communication stream; all ranks have the same order, because
 * it is made from the graph and the deck alone.  Nothing here is collective.
 */
#ifndef TS_PASS_SCHEDULE_H
#define TS_PASS_SCHEDULE_H

#include "graph/graph.h"

typedef enum ts_instruction_kind {
  TS_RUN,   /**< Compute the node here. */
  TS_ISSUE, /**< Hand the collective to the communication stream; or begin a copy; or post a send, which is complete
             * before another run writes what it sends (run/walk_host). */
  TS_WAIT   /**< The collective (and every one issued before it) is complete from here on; or a copy, and that alone; or
             * what is received, which was posted as early as its slot allows (pass/step.h), has come. */
} ts_instruction_kind;

typedef struct ts_instruction {
  ts_instruction_kind kind;
  ts_nid node;
} ts_instruction;

/** An instruction belongs to its node's segment: a run by segment mask takes the instructions whose node is in it. */
typedef struct ts_schedule {
  ts_instruction *instruction; /**< Owned. */
  int n;
  bool overlaps; /**< Some collective may run beside the computation; on the host a thread then runs them all. */
} ts_schedule;

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_schedule_destroy(ts_schedule **schedule);

#endif
