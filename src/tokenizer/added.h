/** \file
 * Added tokens: texts that are tokens wherever they stand, found before anything else is done with a text.  Where
 * several begin, the longest; some in the text as it is, others in what the normalizer makes of it, as it makes of
 * them.  Nothing here is collective.
 */
#ifndef TS_TOKENIZER_ADDED_H
#define TS_TOKENIZER_ADDED_H

#include "base/text.h"
#include "tokenizer/pattern.h"

typedef struct ts_added_token {
  char *content; /**< Owned. */
  size_t n;
  int32_t id;
  bool single_word;    /**< Not within a word. */
  bool lstrip, rstrip; /**< Takes the space before, after it along. */
  bool normalized;     /**< Found in normalized text. */
  bool special;        /**< Not shown by default. */
} ts_added_token;

/** A set of texts to be found. */
typedef struct ts_added_set ts_added_set;

/** Not collective.
 * \param [in] token  \a n tokens, borrowed: as long as the set.
 * \param [in] text   What stands for each in the text, not empty; borrowed while the set is made. */
ts_added_set *ts_added_set_create(const ts_added_token *const *token, const ts_text *text, int64_t n);
void ts_added_set_destroy(ts_added_set **set); /**< NULL is allowed. Not collective. */

/** A walk over those in a text: zero-initialise but for set, text and n. */
typedef struct ts_added_walk {
  const ts_added_set *set; /**< NULL: it has none. */
  const char *text;        /**< Valid UTF-8. */
  size_t n;
  size_t at;   /**< Where the search goes on, */
  size_t done; /**< and what the last one took, with its space. */
} ts_added_walk;

/** \param [out] place  With the space that it takes along, at its beginning not what the one before took; it may still
 * begin in that, where a token is made of space.
 * \return The next token, or NULL. Not collective. */
const ts_added_token *ts_added_next(ts_added_walk *walk, ts_text_span *place);

#endif
