/** \file
 * What a tokenizer makes of a text before it splits it: normal forms, replacements, lower case.
 * Nothing here is collective.
 */
#ifndef TS_TOKENIZER_NORMALIZER_H
#define TS_TOKENIZER_NORMALIZER_H

#include "base/text.h"
#include "tokenizer/steps.h"

/** What the member "normalizer" of a tokenizer.json may be; ts_read_steps reads it to a ts_steps. */
extern const ts_step_table ts_normalizer_table;

/** Replace the text by what it becomes.  \return Whether nothing was taken away at its beginning.
 * \param [in]     begins, ends  It is not the rest of a text, or has no rest: what is done to a text's ends is done.
 * \param [in]     matcher  The thread's.
 * \param [in,out] text     Valid UTF-8, before and after.
 * \param [in,out] work     Any text: memory for the steps. Not collective. */
bool ts_normalize(const ts_steps *normalizer, ts_matcher *matcher, bool begins, bool ends, ts_text *text,
                  ts_text *work);

/** Append \a text with each match replaced. Not collective. */
void ts_add_replaced(ts_text *to, const ts_pattern *pattern, ts_matcher *matcher, const char *text, size_t n,
                     const char *by, size_t by_bytes);

#endif
