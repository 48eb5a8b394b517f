/** \file
 * What the tests of checkpoints share: layouts built by hand, whose values are a function of their place.
 * Nothing here is collective.
 */
#ifndef REGRESSION_CHECKPOINT_FIXTURE_H
#define REGRESSION_CHECKPOINT_FIXTURE_H

#include "io/checkpoint.h"

#include <stdbool.h>
#include <stddef.h>

/** How flat ranges are cut into shards. */
typedef enum fixture_cuts {
  CUTS_EVEN,
  CUTS_UNEVEN,     /**< anywhere */
  CUTS_EMPTY_ENDS, /**< the first and the last shard have nothing */
  CUTS_ONE_OF_ALL  /**< one shard in the middle has all */
} fixture_cuts;

/** Three parts: fp32 with three states, bf16 and frozen with one, bf16 with an fp32 second one; parameters of 1, 2, 3
 * and 8 dimensions with gaps between them.  \a rows makes the first tensor of each [rows][61].  The caller's. Not
 * collective. */
ts_checkpoint *fixture_checkpoint(int n_shards, fixture_cuts cuts, int64_t rows);

/** The parameters of fixture_checkpoint (.., .., 17) in pieces at two homes: columns with gaps between them, two
 * intervals side by side, rows, one element, a whole parameter.  Each part twice ("blocks at 0", "blocks at 1"): home 0
 * is ranks [1, 1 + (n - 1) / 2), home 1 the ranks behind them; rank 0 has nothing.  At least 3 shards.  The caller's.
 * Not collective. */
ts_checkpoint *fixture_pieces(const ts_checkpoint *whole, int n_shards, fixture_cuts cuts);

/** The same where some parameters are cut along the first dimension, too: the first rows' pieces, then the others'. */
ts_checkpoint *fixture_bands(const ts_checkpoint *whole, int n_shards, fixture_cuts cuts);

/** Where an element of a parameter lies in the flat range of a part, looked up the slow way.  Not collective. */
int64_t fixture_place(const ts_saved_parameter *p, int64_t element, int *part);

/** Value of elements [first, first + count) of a state, in its dtype. Not collective. */
void fixture_values(const ts_checkpoint *c, int part, int state, int64_t first, int64_t count, void *to);

/** The same, converted to \a dtype by ts_convert. Not collective. */
void fixture_values_as(const ts_checkpoint *c, int part, int state, int64_t first, int64_t count, ts_dtype dtype,
                       void *to);

/** Write one shard. Not collective. */
ts_status fixture_write_shard(const char *directory, const ts_checkpoint *c, int shard, ts_error *err);

/** A directory of the test with all shards and the index; owned by the caller (ts_free).  Fatal when it cannot be
 * written. Not collective. */
char *fixture_write(const char *name, const ts_checkpoint *c);

/** The same for pieces of \a whole, whose values they have.  Not collective. */
char *fixture_write_pieces(const char *name, const ts_checkpoint *c, const ts_checkpoint *whole);

/** Number of wrong elements when all states of all parts are read whole in one call; -1 with a note when they cannot
 * be. Not collective. */
int64_t fixture_differences(const char *directory, const ts_checkpoint *c);

/** True when the status is bad and the one message starts with \a path and has \a words; clears \a err. Not
 * collective. */
bool fixture_says(ts_status status, ts_error *err, const char *path, const char *words);

/** Open descriptors of this process. Not collective. */
int fixture_descriptors(void);

/** Open objects of HDF5, files included. Not collective. */
int64_t fixture_hdf5_objects(void);

#endif
