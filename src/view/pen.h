/** \file
 * Writing the lines of a frame: text is cleaned, cut at the width, and coloured where that is wanted.  Colours are few,
 * and readable on light and dark.  Nothing here is collective.
 */
#ifndef TS_VIEW_PEN_H
#define TS_VIEW_PEN_H

#include "view/frame.h"

typedef enum ts_style { TS_PLAIN, TS_BOLD, TS_FAINT, TS_GOOD, TS_BAD, TS_N_STYLES } ts_style;

typedef struct ts_pen {
  const ts_look *look;
  ts_frame *frame;
  bool full; /**< A field did not fit into the line: nor do those after it. */
} ts_pen;

/** Begin a line.  \return false: the frame has no room for one more. Not collective. */
bool ts_pen_line(ts_pen *pen);

/** Columns that the line has left. Not collective. */
int ts_pen_room(const ts_pen *pen);

/** Add as much of \a text as fits. Not collective. */
void ts_pen_put(ts_pen *pen, ts_style style, const char *text);

/** Add a field, two blanks after what is there: all of it or nothing, and of a line's first as much as fits.
 * Not collective. */
void ts_pen_field(ts_pen *pen, ts_style style, const char *format, ...) __attribute__((format(printf, 3, 4)));

/** Add text that was drawn to fit, as it is, of so many columns. Not collective. */
void ts_pen_drawn(ts_pen *pen, const ts_text *drawn, int columns);

#endif
