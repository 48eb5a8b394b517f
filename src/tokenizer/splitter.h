/** \file
 * Pre-tokenizers: how a normalized text is cut into words, which are encoded one by one.
 * Nothing here is collective.
 */
#ifndef TS_TOKENIZER_SPLITTER_H
#define TS_TOKENIZER_SPLITTER_H

#include "base/text.h"
#include "tokenizer/pattern.h"

#include <jansson.h>

/** A list of steps; an empty one leaves a text one word. */
typedef struct ts_splitter ts_splitter;

/** A text and its words, which follow each other but may leave parts out. */
typedef struct ts_words {
  ts_text text;
  ts_text_span *word; /**< Owned; none is empty. */
  int64_t n, capacity;
  ts_text text_work; /* memory of the steps */
  ts_text_span *word_work;
  int64_t n_work, capacity_work;
} ts_words;

/** Free. Not collective. */
void ts_words_clear(ts_words *words);

/** Read the member "pre_tokenizer" of a tokenizer.json, which may be null or missing.
 * \param [out] out  The caller's, end with ts_splitter_destroy; NULL on error.
 * \return TS_BAD_INPUT naming what is not known, and what is. Not collective. */
ts_status ts_splitter_read(const json_t *value, ts_splitter **out, ts_error *err);

/** NULL is allowed; sets the handle to NULL. Not collective. */
void ts_splitter_destroy(ts_splitter **splitter);

/** Are words bytes, not characters (a step is ByteLevel)? Not collective. */
bool ts_splitter_makes_bytes(const ts_splitter *splitter);

/** Does it leave a text one word? Not collective. */
bool ts_splitter_keeps_whole(const ts_splitter *splitter);

/** Cut words->text, which steps may change, into words.
 * \param [in] first  The text is the beginning of what is encoded: Metaspace may put a space before it.
 * Not collective. */
void ts_split_words(const ts_splitter *splitter, ts_matcher *matcher, bool first, ts_words *words);

#endif
