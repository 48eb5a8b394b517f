/** \file
 * Byte pair encoding: a word becomes symbols, one a character or byte, and of all pairs of neighbours the one whose
 * merge comes first in the list, the leftmost of equals, becomes one symbol, until none is in the list (Sennrich et
 * al., 2016; arXiv:1508.07909).
 *
 * Two neighbours that are the ends of no merge's two halves are never merged, whatever is around them: words are cut
 * there first, so that a text that is one word (a tokenizer without pre-tokenizer) costs as many short ones.
 * Nothing here is collective.
 */
#ifndef TS_TOKENIZER_BPE_H
#define TS_TOKENIZER_BPE_H

#include "base/status.h"
#include "tokenizer/strings.h"

#include <jansson.h>

typedef struct ts_ids {
  int32_t *id; /**< Owned. */
  int64_t n, capacity;
} ts_ids;

/** Append. Not collective. */
void ts_ids_add(ts_ids *to, const int32_t *id, int64_t n);

typedef struct ts_bpe ts_bpe;

/** Read the member "model" of a tokenizer.json.
 * \param [in]  bytes  Words are bytes, not characters: each byte is looked up as the character that GPT-2 wrote for it.
 * \param [out] out    The caller's, end with ts_bpe_destroy; NULL on error.
 * \return TS_BAD_INPUT with the member that is wrong. Not collective. */
ts_status ts_bpe_read(const json_t *model, bool bytes, ts_bpe **out, ts_error *err);

/** NULL is allowed; sets the handle to NULL. Not collective. */
void ts_bpe_destroy(ts_bpe **bpe);

/** The id of a token as tokenizer.json writes it, -1: there is none; and the token of an id, NULL: there is none.
 * Not collective. */
int32_t ts_bpe_id(const ts_bpe *bpe, const char *token, size_t n);
const char *ts_bpe_token(const ts_bpe *bpe, int32_t id, size_t *n);

/** The largest id, -1 where there is no token; and the number of tokens. Not collective. */
int32_t ts_bpe_last_id(const ts_bpe *bpe);
int64_t ts_bpe_size(const ts_bpe *bpe);

/** A thread's memory for ts_bpe_encode: work, and words it has seen.  \a bpe is borrowed. Not collective. */
typedef struct ts_bpe_encoder ts_bpe_encoder;
ts_bpe_encoder *ts_bpe_encoder_create(const ts_bpe *bpe);
void ts_bpe_encoder_destroy(ts_bpe_encoder **encoder); /**< NULL is allowed. Not collective. */

/** Append the ids of a word of \a n bytes. Not collective. */
void ts_bpe_encode(ts_bpe_encoder *encoder, const char *word, size_t n, ts_ids *to);

/** Is it certain that no merge joins what is before and from byte \a at of a word, 0 < at < n? Not collective. */
bool ts_bpe_parts(const ts_bpe *bpe, const char *word, size_t n, size_t at);

#endif
