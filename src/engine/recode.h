/** \file
 * States in 8 bits on another grid.  A block of them is 256 elements from the begin of what a rank has of a parameter;
 * where tensor parallelism cuts a parameter otherwise than before, new blocks have elements of several old ones.  Their
 * values are then made from the old codes and coded again, as an update does it.  Nothing here is collective.
 */
#ifndef ENGINE_RECODE_H
#define ENGINE_RECODE_H

#include "backend/code_book.h"
#include "io/checkpoint.h"
#include "pass/saved.h"
#include "run/executor.h"

/** Elements of a parameter that this rank owns, with codes in a checkpoint and here. */
typedef struct ts_recode {
  const ts_parameter *parameter;   /**< Borrowed, as all below. */
  const ts_saved_parameter *saved; /**< The same parameter, or what its matrices are copies of. */
  int64_t from, to;                /**< Elements of the part; \a from is the first of a block. */
  int64_t mine;                    /**< The first element of this rank's shard. */
  ts_saved_leaf code, scale;       /**< Of its part. */
  int saved_code, saved_scale;     /**< States of the parts it was saved in. */
  bool has_sign;                   /**< Of the state (ts_state_has_sign). */
} ts_recode;

/** The elements of the part from \a at on that lie together in the checkpoint, rows of a grid that was the same
 * included. Not collective. */
ts_checkpoint_run ts_recode_run(const ts_recode *r, int64_t at);

/** Do new blocks have the elements of one old block each, so that codes and scales can be taken as they are?
 * Not collective. */
bool ts_recode_fits(const ts_recode *r);

/** Code a block of \a n values, as an update's kernel does it: as parts of their largest magnitude, the scale.  What is
 * NaN makes its block NaN. Not collective. \return the scale. */
float ts_recode_block(const float *value, int64_t n, const ts_code_book *book, uint8_t *code);

/** Read codes and scales, make values of them, code these in blocks of this grid and write them.  Not collective.
 * \return TS_BAD_INPUT as ts_checkpoint_read. */
ts_status ts_recode_read(const ts_recode *r, ts_checkpoint_reader *reader, ts_executor *executor, ts_error *err);

#endif
