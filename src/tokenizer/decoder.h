/** \file
 * From tokens to a text.  Nothing here is collective.
 */
#ifndef TS_TOKENIZER_DECODER_H
#define TS_TOKENIZER_DECODER_H

#include "base/text.h"
#include "tokenizer/steps.h"

/** What the member "decoder" of a tokenizer.json may be; ts_read_steps reads it to a ts_steps. */
extern const ts_step_table ts_decoder_table;

/** Texts, one after the other. */
typedef struct ts_token_texts {
  ts_text text;
  size_t *end; /**< Owned: where each ends. */
  int64_t n, capacity;
} ts_token_texts;

/** Add one; free all. Not collective. */
void ts_token_texts_add(ts_token_texts *to, const char *text, size_t n);
void ts_token_texts_clear(ts_token_texts *texts);

/** Append the text of the tokens, which are used up: \a tokens is work afterwards.  Without steps they are joined by
 * spaces. Not collective. */
void ts_decode_texts(const ts_steps *decoder, ts_matcher *matcher, ts_token_texts *tokens, ts_text *to);

#endif
