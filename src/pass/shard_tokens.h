/** \file
 * The part of pass/shard that gives each rank along sp its tokens.  Private to this room.
 */
#ifndef TS_PASS_SHARD_TOKENS_H
#define TS_PASS_SHARD_TOKENS_H

#include "pass/pass.h"

/** Write the forward graph for this rank's tokens; attention then knows which it has, and sees no others yet.
 * Not collective. */
void ts_shard_tokens(ts_graph **graph, const ts_pass_context *context);

/** Can the tokens of a program's own model be cut? Not collective.
 * \return TS_BAD_INPUT naming the first node that takes those of a sample together. */
ts_status ts_shard_tokens_check(const ts_graph *model, const ts_deck *deck, ts_error *err);

#endif
