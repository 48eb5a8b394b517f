/** \file
 * Private to tokenizers: what one is, between reading it (tokenizer.c) and encoding with it (tokenizer_encode.c).
 * Nothing here is collective.
 */
#ifndef TS_TOKENIZER_TOKENIZER_PARTS_H
#define TS_TOKENIZER_TOKENIZER_PARTS_H

#include "tokenizer/added.h"
#include "tokenizer/splitter.h"
#include "tokenizer/steps.h"
#include "tokenizer/tokenizer.h"

struct ts_tokenizer {
  ts_added_token *added; /**< Owned, as in the file. */
  int64_t n_added, added_capacity;
  ts_text *added_normal;    /**< Owned: what the normalizer makes of those it is asked for, else empty. */
  ts_string_table added_id; /**< Of their contents. */
  int32_t *added_of;        /**< Owned: id -> place in added, -1. */
  int32_t last_id;
  ts_added_set *raw, *normalized;
  ts_steps normalizer, decoder;
  ts_splitter *splitter;
  ts_bpe *bpe;
  bool single_words;    /**< An added token is single_word. */
  ts_ids before, after; /**< Of the template. */
};

/** The added token of an id, NULL: it is none. Not collective. */
static inline const ts_added_token *ts_tokenizer_added(const ts_tokenizer *t, int32_t id) {
  return id >= 0 && id <= t->last_id && t->added_of[id] >= 0 ? &t->added[t->added_of[id]] : NULL;
}

#endif
