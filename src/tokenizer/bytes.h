/** \file
 * GPT-2's alphabet of bytes: each byte as a visible character of its own, in which byte-level tokenizers write their
 * tokens.  Nothing here is collective.
 */
#ifndef TS_TOKENIZER_BYTES_H
#define TS_TOKENIZER_BYTES_H

#include "base/text.h"

/** The character of a byte: visible ones of Latin 1 are themselves, the others follow from 256 on. Not collective. */
int32_t ts_byte_character(int byte);

/** Append the bytes that the characters of a token stand for.
 * \return Whether all of them are of the alphabet; otherwise nothing is appended. Not collective. */
bool ts_add_bytes_of(ts_text *to, const char *token, size_t n);

#endif
