/** \file
 * What is seen of a node in an observed step.  No functions; nothing here is collective.
 */
#ifndef TS_TRAIN_OBSERVED_EVENT_H
#define TS_TRAIN_OBSERVED_EVENT_H

#include "graph/graph.h"

typedef struct ts_observed_event {
  const ts_node *node;   /**< Of the training program, borrowed. */
  bool collective;       /**< Of the row of communication. */
  double start, seconds; /**< On this rank's clock. */
} ts_observed_event;

#endif
