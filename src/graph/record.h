/** \file
 * The record of a step: what every rank contributes to it, and what is made of all of them, the same on every rank.
 *
 * A rank's row holds the columns below and behind them the sums of squares of its shard's gradients, one a part that
 * has a norm; the rows of all ranks are the input of the op STEP_CONTROL, which adds them up in the order of ranks (a
 * flag: the largest) and makes the summary.  Both are fp64.
 */
#ifndef TS_GRAPH_RECORD_H
#define TS_GRAPH_RECORD_H

#include "graph/value.h"

/** Columns of a row. */
typedef enum ts_record {
  TS_RECORD_LOSS,    /**< Sum over valid tokens, nats. */
  TS_RECORD_VALID,   /**< Tokens with a label. */
  TS_RECORD_BALANCE, /**< Likewise of what experts' balance adds to the loss. */
  TS_RECORD_FLAGS,   /**< Of the host: what this rank asks for, TS_N_FLAGS numbers. */
  TS_RECORD_SQUARES = TS_RECORD_FLAGS + TS_N_FLAGS
} ts_record;

/** Numbers of the summary. */
typedef enum ts_summary {
  TS_SUMMARY_LOSS, /**< With the part for balance, */
  TS_SUMMARY_VALID,
  TS_SUMMARY_BALANCE, /**< which this is. */
  TS_SUMMARY_NORM,    /**< Of the gradient, before clipping; rounded to fp32. */
  TS_SUMMARY_FLAGS,
  TS_SUMMARY_SKIP = TS_SUMMARY_FLAGS + TS_N_FLAGS, /**< 1: the step changes nothing. */
  TS_SUMMARY_OVERFLOW,                             /**< 1: tokens were valid, loss or norm not finite. */
  TS_SUMMARY_SCALE,                                /**< Loss scale of this step, 1 without one; */
  TS_SUMMARY_NEXT_SCALE,                           /**< of the next step. */
  TS_SUMMARY_STUCK,                                /**< 1: the loss scale is too large and cannot be made smaller. */
  TS_SUMMARY_SIZE
} ts_summary;

#endif
