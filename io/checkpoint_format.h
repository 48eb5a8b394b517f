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

/** Rows of a parameter, and elements of a row of a piece.  Not collective. */
int64_t ts_saved_rows(const ts_saved_parameter *parameter);
int64_t ts_saved_row(const ts_saved_parameter *parameter, const ts_saved_piece *piece);

/** The first version of the index that can say it.  1: parameters are whole, and lie part by part in their order;
 * states have an element for each of the part's.  2: pieces have all rows.  Not collective. */
int ts_checkpoint_version(const ts_checkpoint *checkpoint);

/** False when a piece leaves its part's flat range or overlaps another; the rest of the layout must be right.  Not
 * collective. */
bool ts_checkpoint_has_room(const ts_checkpoint *checkpoint);

/** The shard that holds element \a at of a state of a part.  Not collective. */
int ts_checkpoint_shard_of(const ts_checkpoint *checkpoint, const ts_saved_part *part, int state, int64_t at);

/** True when the state has an element for each of its part's.  Not collective. */
bool ts_saved_state_is_plain(const ts_saved_state *state);

/** "/PART/STATE"; owned by the caller (ts_free).  Not collective. */
char *ts_checkpoint_dataset(const ts_saved_part *part, int state);

#endif
