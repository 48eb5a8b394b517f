/** \file
 * An all_to_all node as a communicator is told of it.  Nothing here is collective.
 */
#ifndef TS_PASS_BLOCKS_H
#define TS_PASS_BLOCKS_H

#include "comm/comm.h"
#include "graph/graph.h"

/** The tensors of an exchange. */
typedef struct ts_exchange_tensors {
  ts_exchange_tensor x[TS_MOST_EXCHANGED], y[TS_MOST_EXCHANGED];
} ts_exchange_tensors;

/** The lists of an all_to_all node, which are the node's own, of tensors that have no memory yet.
 * \param [out] tensors  The result points to them. Not collective. */
ts_exchange_lists ts_node_exchange(const ts_graph *graph, const ts_node *node, ts_exchange_tensors *tensors);

/** Bytes that it sends to others than rank \a rank of the group. Not collective. */
int64_t ts_exchange_sent(const ts_exchange_lists *lists, int rank);

#endif
