/** \file
 * DeepSpeed's names of what ranks do together (comms_logger.prof_ops), in one list: the deck accepts them,
 * train/comms_log.c says which op of a graph each one is.  No functions; nothing here is collective.
 */
#ifndef TS_DECK_COMMS_WORDS_H
#define TS_DECK_COMMS_WORDS_H

/** X(word, member of ts_op without its TS_): the first word of an op is the one that it is called by.  N_OPS: nothing
 * that a graph has. */
#define TS_COMMS_WORDS(X)                     \
  X(all_reduce, OP_ALL_REDUCE)                \
  X(all_reduce_coalesced, OP_ALL_REDUCE)      \
  X(inference_all_reduce, OP_ALL_REDUCE)      \
  X(all_gather_into_tensor, OP_ALL_GATHER)    \
  X(all_gather, OP_ALL_GATHER)                \
  X(all_gather_coalesced, OP_ALL_GATHER)      \
  X(reduce_scatter_tensor, OP_REDUCE_SCATTER) \
  X(reduce_scatter, OP_REDUCE_SCATTER)        \
  X(all_to_all_single, OP_ALL_TO_ALL)         \
  X(all_to_all, OP_EXCHANGE_ROWS)             \
  X(send, OP_SEND)                            \
  X(isend, OP_SEND)                           \
  X(recv, OP_RECEIVE)                         \
  X(irecv, OP_RECEIVE)                        \
  X(batch_isend_irecv, OP_SEND)               \
  X(batch_isend_irecv, OP_RECEIVE)            \
  X(broadcast, N_OPS)                         \
  X(broadcast_object_list, N_OPS)             \
  X(all_gather_object, N_OPS)                 \
  X(gather, N_OPS)                            \
  X(scatter, N_OPS)                           \
  X(reduce, N_OPS)                            \
  X(barrier, N_OPS)                           \
  X(monitored_barrier, N_OPS)

#endif
