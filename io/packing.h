/** \file
 * Whole documents as samples of at most T tokens.  A document of more than T is cut into pieces of T and a rest; each
 * piece is in one sample, so every token is once an input.  With "none" a sample is a piece; with "best_fit" samples
 * are filled with pieces by best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"):
 * the longest first, each into the sample with the least room that holds it, of those with equal room the one touched
 * last.  Samples are in the order of their first pieces, and pieces in a sample in that of the file, so all of it is a
 * function of the documents and T alone.
 *
 * No token is kept: 4 bytes a document, with "best_fit" 4 more a piece and 4 a sample; while that is made, 12 bytes a
 * piece and 12 a token of T beside them.  Making it takes O(pieces x log T).  Counts are in tokens.  No function here
 * is collective.
 */
#ifndef IO_PACKING_H
#define IO_PACKING_H

#include "io/documents.h"

typedef enum ts_packing_kind {
  TS_PACKING_STREAM,    /**< Samples are cut from the tokens as they lie, and are one document each, */
  TS_PACKING_DOCUMENTS, /**< or several, where documents end inside. */
  TS_PACKING_BEST_FIT,
  TS_PACKING_NONE,
  TS_N_PACKINGS
} ts_packing_kind;

/** The kind of that name ("best_fit"), which must be one.  Not collective. */
ts_packing_kind ts_packing_find(const char *name);

typedef struct ts_packed {
  int64_t first, count; /**< Tokens of the file. */
  bool goes_on;         /**< The token behind it is of the same document, and the label of its last one. */
} ts_packed;

typedef struct ts_packing ts_packing;

/** Make samples of the documents [first, first + n).  Not collective.
 * \param [in]  documents  Borrowed as long as the packing lives.
 * \param [in]  length     T, 1..INT32_MAX.
 * \param [in]  together   "best_fit"; else "none".
 * \param [out] out        The caller's, end with ts_packing_destroy; NULL on error.
 * \return TS_BAD_INPUT: more than 2^31 - 1 pieces; the message says how many. */
ts_status ts_packing_create(const ts_documents *documents, int64_t first, int64_t n, int64_t length, bool together,
                            ts_packing **out, ts_error *err);

/** Number of samples; of documents, and of tokens in them, without padding.  Not collective. */
int64_t ts_packing_samples(const ts_packing *packing);
int64_t ts_packing_documents(const ts_packing *packing);
int64_t ts_packing_tokens(const ts_packing *packing);

/** Pieces of a sample, at least 1.  Not collective. */
int64_t ts_packing_pieces(const ts_packing *packing, int64_t sample);

/** Piece \a k of a sample.  O(log documents).  Not collective. */
ts_packed ts_packing_piece(const ts_packing *packing, int64_t sample, int64_t k);

/** Free and set to NULL; NULL is allowed.  Not collective. */
void ts_packing_destroy(ts_packing **packing);

#endif
