/** \file
 * Tokens on their way into an HDF5 file of tokens (io/tokens.h): parts are written side by side, by as many processes
 * as there are, and then put together by one of them.
 *
 *     PREFIX.tokens     uint16, or uint32 where the vocabulary is larger
 *     PREFIX.learned    uint8 a token
 *     PREFIX.documents  int64 a document: its first token, counted in the part
 *
 * The numbers are the machine's.  The HDF5 file has datasets tokens (contiguous, little-endian uint16 or uint32),
 * documents (int64) and, unless all tokens are learned, loss_mask (uint8); it appears complete or not at all.
 * Nothing here is collective.
 */
#ifndef IO_TOKEN_PARTS_H
#define IO_TOKEN_PARTS_H

#include "io/records.h"

/** What is in a part. */
typedef struct ts_token_counts {
  int64_t tokens, documents;
  int64_t ignored;  /**< Tokens that are not learned. */
  int64_t replaced; /**< Bytes or parts of characters that were no UTF-8. */
} ts_token_counts;

typedef struct ts_token_part ts_token_part;

/** Begin a part.  Not collective.
 * \param [in]  vocab_size  Tokens are below.
 * \param [out] out         The caller's, end with ts_token_part_close; NULL on error.
 * \return TS_BAD_INPUT with "PATH: reason". */
ts_status ts_token_part_create(const char *prefix, int64_t vocab_size, ts_token_part **out, ts_error *err);

/** Append tokens and the documents that begin with them.  Not collective.  \return TS_BAD_INPUT with "PATH: reason". */
ts_status ts_token_part_add(ts_token_part *part, const ts_record_ids *ids, ts_error *err);

/** So far; borrowed.  Not collective. */
const ts_token_counts *ts_token_part_counts(const ts_token_part *part);

/** Write what is not written yet, close and free; sets the handle to NULL, which is allowed.  Not collective.
 * \return TS_BAD_INPUT with "PATH: reason". */
ts_status ts_token_part_close(ts_token_part **part, ts_error *err);

/** Remove the files of a part, as far as they are there.  Not collective. */
void ts_token_part_remove(const char *prefix);

/** Make \a path of \a n closed parts, in order, which stay.  Not collective.
 * \param [in] prefix      Of each part; \a counts likewise.
 * \param [in] move        Called every few megabytes, so that whoever watches knows that something moves; or NULL.
 * \return TS_BAD_INPUT with "PATH: reason"; an older file of this name is as it was then. */
ts_status ts_token_parts_join(const char *path, int64_t vocab_size, int n, char *const *prefix,
                              const ts_token_counts *counts, void (*move)(void *user), void *user, ts_error *err);

#endif
