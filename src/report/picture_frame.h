/** \file
 * What the pictures of a report share.  Nothing here is collective.
 */
#ifndef TS_REPORT_PICTURE_FRAME_H
#define TS_REPORT_PICTURE_FRAME_H

#include "base/text.h"

/** Units of a picture across, what is left of them on either side, and what is drawn in; colours of the page. */
enum {
  TS_PICTURE_WIDTH = 860,
  TS_PICTURE_LEFT = 76,
  TS_PICTURE_RIGHT = 20,
  TS_PICTURE_DRAWN = TS_PICTURE_WIDTH - TS_PICTURE_LEFT - TS_PICTURE_RIGHT,
  TS_PICTURE_COLORS = 8
};

/** Begin an svg element, to be ended by the caller.
 * \param [in] label  What it shows, for those who hear the page. Not collective. */
void ts_picture_begin(int height, const char *label, ts_text *svg);

/** What colours mean, in a row below a picture. Not collective. */
void ts_picture_key(const char *const *name, int n, const int *color, ts_text *html);

/** Begin a table with its headings, ended by NULL; rows are the caller's, "<tr>" to "</tr>", and its end is
 * TS_TABLE_END. Not collective. */
void ts_table_begin(const char *const *heading, ts_text *html);
#define TS_TABLE_END "</tbody></table>\n"

/** A cell of formatted text, escaped. Not collective. */
void ts_table_cell(ts_text *html, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
