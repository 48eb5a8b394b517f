/** \file
 * From tokens to a text.  Nothing here is collective.
 */
#ifndef TS_TOKENIZER_DECODER_H
#define TS_TOKENIZER_DECODER_H

#include "base/text.h"
#include "tokenizer/pattern.h"

#include <jansson.h>

/** A list of steps.  Without any, tokens are joined by spaces. */
typedef struct ts_decoder ts_decoder;

/** Texts, one after the other. */
typedef struct ts_token_texts {
  ts_text text;
  size_t *end; /**< Owned: where each ends. */
  int64_t n, capacity;
} ts_token_texts;

/** Add one; free all. Not collective. */
void ts_token_texts_add(ts_token_texts *to, const char *text, size_t n);
void ts_token_texts_clear(ts_token_texts *texts);

/** Read the member "decoder" of a tokenizer.json, which may be null or missing.
 * \param [out] out  The caller's, end with ts_decoder_destroy; NULL on error.
 * \return TS_BAD_INPUT naming what is not known, and what is. Not collective. */
ts_status ts_decoder_read(const json_t *value, ts_decoder **out, ts_error *err);

/** NULL is allowed; sets the handle to NULL. Not collective. */
void ts_decoder_destroy(ts_decoder **decoder);

/** Append the text of the tokens, which are used up: \a tokens is work afterwards. Not collective. */
void ts_decode_texts(const ts_decoder *decoder, ts_matcher *matcher, ts_token_texts *tokens, ts_text *to);

#endif
