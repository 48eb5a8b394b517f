/** \file
 * Text of others for a terminal: names, messages and what status files say may hold anything, and a terminal obeys what
 * it is sent.  Nothing here is collective.
 */
#ifndef TS_VIEW_CLEAN_H
#define TS_VIEW_CLEAN_H

#include "base/text.h"

/** Append as much of \a text as fits into \a columns columns.  What steers a terminal, turns the direction of writing
 * or is no UTF-8 becomes a blank or '?', what has no width is left out; text that is cut ends in an ellipsis.
 * \param [in] utf8  False: what is no ASCII becomes '?', too.
 * \return the columns taken. Not collective. */
int ts_view_clean(const char *text, int columns, bool utf8, ts_text *to);

/** Bytes of the longest beginning of \a text that takes at most \a columns columns. Not collective. */
size_t ts_view_fit(const char *text, int columns, bool utf8);

/** Columns that all of \a text would take. Not collective. */
int ts_view_columns(const char *text, bool utf8);

#endif
