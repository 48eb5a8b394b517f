/** \file
 * What a tokenizer makes of a text before it splits it: normal forms, replacements, lower case.
 * Nothing here is collective.
 */
#ifndef TS_TOKENIZER_NORMALIZER_H
#define TS_TOKENIZER_NORMALIZER_H

#include "base/text.h"
#include "tokenizer/pattern.h"

#include <jansson.h>

/** A list of steps; an empty one changes nothing. */
typedef struct ts_normalizer ts_normalizer;

/** Read the member "normalizer" of a tokenizer.json, which may be null or missing.
 * \param [out] out  The caller's, end with ts_normalizer_destroy; NULL on error.
 * \return TS_BAD_INPUT naming what is not known, and what is. Not collective. */
ts_status ts_normalizer_read(const json_t *value, ts_normalizer **out, ts_error *err);

/** NULL is allowed; sets the handle to NULL. Not collective. */
void ts_normalizer_destroy(ts_normalizer **normalizer);

/** Does it leave every text as it is? Not collective. */
bool ts_normalizer_is_empty(const ts_normalizer *normalizer);

/** Replace the text by what it becomes.
 * \param [in]     begins, ends  It is not the rest of a text, or has no rest: what is done to a text's ends is done.
 * \param [in]     matcher  The thread's.
 * \param [in,out] text     Valid UTF-8, before and after.
 * \param [in,out] work     Any text: memory for the steps. Not collective. */
void ts_normalize(const ts_normalizer *normalizer, ts_matcher *matcher, bool begins, bool ends, ts_text *text,
                  ts_text *work);

/** Append \a text with each match replaced. Not collective. */
void ts_add_replaced(ts_text *to, const ts_pattern *pattern, ts_matcher *matcher, const char *text, size_t n,
                     const char *by, size_t by_bytes);

#endif
