/** \file
 * What travels when attention sees the tokens of all ranks along sp, as lists of blocks.  Private to pass/exchange.
 *
 * Outside attention a tensor has this rank's tokens and all heads; inside it has tokens of its ring, or keys of any,
 * and this rank's share of the heads.  A route says for each tensor which tokens each ring wants and which columns each
 * rank of a ring; the same route backwards takes results home, where what several ranks made for one place is added.
 * Nothing here is collective; all ranks make lists that fit.
 */
#ifndef TS_PASS_EXCHANGE_BLOCKS_H
#define TS_PASS_EXCHANGE_BLOCKS_H

#include "pass/sequence.h"

#define TS_MOST_ROUTED 5

typedef struct ts_routed {
  const ts_tokens *at;        /**< Per ring: the tokens that are wanted there; borrowed. */
  const ts_interval *columns; /**< Per rank of a ring: the columns; borrowed. */
  int64_t width;              /**< Columns of all. */
  bool transposed;            /**< Tokens are the last dimension, columns the one before. */
} ts_routed;

typedef struct ts_route {
  const ts_sequence *sequence;
  int n;
  ts_routed tensor[TS_MOST_ROUTED];
} ts_route;

typedef struct ts_block_list {
  ts_block *block; /**< Owned: as attr.comm.block. */
  int n_sent, n_received;
} ts_block_list;

/** The lists of this rank: from tokens to heads, or home again.  Free block with ts_free. Not collective. */
ts_block_list ts_route_blocks(const ts_route *route, bool home);

#endif
