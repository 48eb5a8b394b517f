/** \file
 * The blocks of an exchange as memory: where each lies in its tensor, and where it lies on its way.  Pure arithmetic;
 * private to this room.  None of these functions is collective.
 *
 * The workspace begins with a table that has room for a patch a block; then come, one after another, the blocks that
 * leave packed and those that arrive packed.
 */
#ifndef TS_COMM_PATCH_H
#define TS_COMM_PATCH_H

#include "comm/comm.h"

/** Rows that lie apart: bytes from one to the next, and from a batch's first to the next batch's. */
typedef struct ts_slab {
  char *data;
  int64_t row, batch;
} ts_slab;

typedef struct ts_patch {
  const ts_block *block; /**< Borrowed. */
  ts_dtype dtype;
  bool sum;               /**< It is added to others in `place`. */
  int64_t batches, width; /**< Bytes of a row. */
  int64_t bytes;          /**< Of it all. */
  ts_slab place;          /**< In its tensor. */
  /** Where it travels from or to: one run of memory in the workspace; or NULL: its place is one run.  An own block that
   * arrives: its place in x. */
  ts_slab packed;
} ts_patch;

/** Walks the blocks of one list, in its order. */
typedef struct ts_patch_walk {
  const ts_exchange_lists *lists;
  int rank;
  bool arrives;
  int next;
  int own;       /**< The next of the own blocks that leave. */
  char *staging; /**< Where the next packed block goes. */
  uint32_t sums; /**< Bit i: output i is a sum. */
} ts_patch_walk;

/** Begin with the blocks that arrive at rank \a rank of the group, or with those that leave it. Not collective. */
ts_patch_walk ts_patch_begin(const ts_exchange_lists *lists, int rank, bool arrives, void *workspace);

/** The next block.
 * \return False when there is none. Not collective. */
bool ts_patch_next(ts_patch_walk *walk, ts_patch *out);

/** Bit i: output i is a sum. Not collective. */
uint32_t ts_exchange_sums(const ts_exchange_lists *lists);

/** The one run of memory that a block of another rank leaves from, or arrives in. Not collective. */
static inline char *ts_patch_message(const ts_patch *patch) {
  return patch->packed.data != NULL ? patch->packed.data : patch->place.data;
}

#endif
