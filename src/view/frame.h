/** \file
 * A picture of a run in lines of text, for a terminal of any size: what matters least is left out first.  Nothing here
 * is collective.
 */
#ifndef TS_VIEW_FRAME_H
#define TS_VIEW_FRAME_H

#include "base/text.h"
#include "view/feed.h"

enum { TS_FRAME_WIDTH = 400, TS_FRAME_HEIGHT = 200 /**< The largest. */ };

/** How it is to be drawn. */
typedef struct ts_look {
  int width, height; /**< Columns and lines there are; at least 1, at most the largest. */
  bool utf8;         /**< Braille and blocks, else ASCII. */
  bool colour;       /**< Sequences that colour text, and bold and faint ones. */
  bool live;         /**< The last line says how to leave, */
  bool keys;         /**< by a key, else by a signal. */
} ts_look;

/** Lines without newlines; each at most as wide as asked for, colours ended.  Zero-initialise. */
typedef struct ts_frame {
  int n;
  ts_text line[TS_FRAME_HEIGHT];
  int columns[TS_FRAME_HEIGHT]; /**< That each takes. */
} ts_frame;

/** Draw.  The frame's old lines are dropped. Not collective. */
void ts_frame_draw(const ts_run_feed *feed, const ts_look *look, ts_frame *frame);

/** Free and empty. Not collective. */
void ts_frame_clear(ts_frame *frame);

/** Append where the run is, in one line without a newline: "step 120 of 1000  loss 3.2  ...". Not collective. */
void ts_frame_add_line(const ts_run_feed *feed, ts_text *to);

#endif
