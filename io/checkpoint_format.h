/** \file
 * Private to checkpoints: what writing and reading have to agree on.  Nothing here is collective.
 */
#ifndef IO_CHECKPOINT_FORMAT_H
#define IO_CHECKPOINT_FORMAT_H

#include "io/checkpoint.h"

#define TS_CHUNK_BYTES ((int64_t) 1 << 20)
#define TS_CHECKSUM_BYTES 4

/** Elements of a chunk of a dataset of \a count elements of \a size bytes: TS_CHUNK_BYTES at most, balanced, so that
 * the last chunk is nearly full.  Not collective. */
int64_t ts_chunk_elements(int64_t count, size_t size);

/** "/PART/STATE"; owned by the caller (ts_free).  Not collective. */
char *ts_checkpoint_dataset(const ts_saved_part *part, int state);

#endif
