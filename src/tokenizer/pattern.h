/** \file
 * What a normalizer replaces and a pre-tokenizer splits at: a regular expression, a text, or a kind of character.
 *
 * Regular expressions of a tokenizer.json are Oniguruma's (syntax of Ruby).  They are translated to PCRE2's, where the
 * two differ in what is written or meant; what has no translation is refused by name.  A match is what Oniguruma's
 * search finds: the leftmost, and of those that begin there the first by the order of the alternatives.
 * Nothing here is collective.
 */
#ifndef TS_TOKENIZER_PATTERN_H
#define TS_TOKENIZER_PATTERN_H

#include "base/text.h"

typedef struct ts_text_span {
  size_t begin, end; /**< Bytes. */
} ts_text_span;

typedef struct ts_pattern ts_pattern;

/** Compile a regular expression.
 * \param [out] out  The caller's, end with ts_pattern_destroy; NULL on error.
 * \return TS_BAD_INPUT with the reason alone. Not collective. */
ts_status ts_pattern_regex(const char *regex, ts_pattern **out, ts_error *err);

/** A text as it is; an empty one is found between all characters. Not collective. */
ts_pattern *ts_pattern_literal(const char *text, size_t n);

/** Single characters of a kind. Not collective. */
ts_pattern *ts_pattern_kind(bool (*is)(int32_t character));

/** Runs of word characters, and of those that are neither word nor space: \w+|[^\w\s]+. Not collective. */
ts_pattern *ts_pattern_words(void);

/** Does it look at what is before a match (\b, ^, lookbehind)? Not collective. */
bool ts_pattern_looks_behind(const ts_pattern *pattern);

/** NULL is allowed; sets the handle to NULL. Not collective. */
void ts_pattern_destroy(ts_pattern **pattern);

/** What matching needs besides a pattern: one a thread. */
typedef struct ts_matcher ts_matcher;

/** Make one; end it: NULL is allowed, the handle becomes NULL. Not collective. */
ts_matcher *ts_matcher_create(void);
void ts_matcher_destroy(ts_matcher **matcher);

/** A walk over the matches in a text, each behind the one before. */
typedef struct ts_matches_of {
  const ts_pattern *pattern;
  ts_matcher *matcher;
  const char *text; /**< Valid UTF-8. */
  size_t n, at;
  bool began;
  size_t last_end;
} ts_matches_of;

/** \return Whether there is another one; an empty one right behind the last is none. Not collective. */
bool ts_next_match(ts_matches_of *walk, ts_text_span *match);

/** A search that was given up since the last call: the pattern takes too many steps.  It then found nothing. Not
 * collective. */
bool ts_matcher_gave_up(ts_matcher *matcher);

/** PCRE2's words for a regular expression of Oniguruma's; owned by the caller (ts_free), NULL with an error.
 * \param [out] looks_behind  As ts_pattern_looks_behind. Not collective. */
char *ts_pattern_translate(const char *regex, bool *looks_behind, ts_error *err);

#endif
