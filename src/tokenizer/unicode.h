/** \file
 * Characters of UTF-8 texts: walking, repairing, what kind of character one is, and the normal forms of Unicode
 * (utf8proc).  Kinds are those of Rust's char and regex, which Hugging Face's tokenizers asks; the version of Unicode
 * is the library's, so characters that are newer than it may differ.  Nothing here is collective.
 */
#ifndef TS_TOKENIZER_UNICODE_H
#define TS_TOKENIZER_UNICODE_H

#include "base/text.h"

/** The character at \a *at of a valid text, below its length; it is stepped over. Not collective. */
static inline int32_t ts_utf8_next(const char *text, size_t *at) {
  const unsigned char *c = (const unsigned char *) text + *at;
  if (c[0] < 0x80) {
    *at += 1;
    return c[0];
  }
  if (c[0] < 0xe0) {
    *at += 2;
    return (c[0] & 0x1f) << 6 | (c[1] & 0x3f);
  }
  if (c[0] < 0xf0) {
    *at += 3;
    return (c[0] & 0x0f) << 12 | (c[1] & 0x3f) << 6 | (c[2] & 0x3f);
  }
  *at += 4;
  return (c[0] & 0x07) << 18 | (c[1] & 0x3f) << 12 | (c[2] & 0x3f) << 6 | (c[3] & 0x3f);
}

/** Where the character that ends before \a at, which is above 0, of a valid text begins. Not collective. */
static inline size_t ts_utf8_before(const char *text, size_t at) {
  do {
    --at;
  } while (((unsigned char) text[at] & 0xc0) == 0x80);
  return at;
}

/** Append a character. Not collective. */
void ts_utf8_add(ts_text *to, int32_t character);

/** How many of the \a n bytes are valid UTF-8, from the beginning on: \a n when all are. Not collective. */
size_t ts_utf8_valid(const char *text, size_t n);

/** Append \a text with each maximal part of a character that is none replaced by U+FFFD, as Python's
 * errors="replace" and Rust's from_utf8_lossy do.  \return How many were. Not collective. */
int64_t ts_utf8_repair(const char *text, size_t n, ts_text *to);

/** White_Space; N*; P* and all of ASCII's punctuation; letters, marks, digits and connectors (\w). Not collective. */
bool ts_is_space(int32_t character);
bool ts_is_numeric(int32_t character);
bool ts_is_punctuation(int32_t character);
bool ts_is_word(int32_t character);

typedef enum ts_normal_form { TS_NFC, TS_NFD, TS_NFKC, TS_NFKD } ts_normal_form;

/** Append a valid text in a normal form. Not collective. */
void ts_add_normal(ts_text *to, const char *text, size_t n, ts_normal_form form);

/** Append a valid text in lower case, each character by itself (a final sigma is as any other). Not collective. */
void ts_add_lower(ts_text *to, const char *text, size_t n);

#endif
