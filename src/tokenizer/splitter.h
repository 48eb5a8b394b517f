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
typedef struct ts_word_list {
  ts_text text;
  size_t cut; /**< A place in the text, */
  bool parts; /**< and whether what is behind it, as a text of its own that begins nothing, is split in the same way. */
  ts_text_span *word; /**< Owned; none is empty. */
  int64_t n, capacity;
  ts_text text_work; /* memory of the steps */
  ts_text_span *word_work;
  int64_t n_work, capacity_work;
} ts_word_list;

/** Free. Not collective. */
void ts_word_list_clear(ts_word_list *words);

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

/** Cut words->text, which steps may change, into words.  words->cut is any place in it, and stays at that place.
 * \param [in] begins  The text is not the rest of another one: steps may put a space before it.
 * \param [in] first   It is the beginning of all that is encoded, of which nothing was taken away.
 * Not collective. */
void ts_split_words(const ts_splitter *splitter, ts_matcher *matcher, bool begins, bool first, ts_word_list *words);

#endif
