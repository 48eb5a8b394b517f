/** \file
 * A curve in characters: 2 x 4 dots of braille a column and line where the terminal has them, else 1 x 2 of ASCII.
 * Nothing here is collective.
 */
#ifndef TS_VIEW_CURVE_H
#define TS_VIEW_CURVE_H

#include "base/text.h"
#include "view/series.h"

/** Writes a number of the axis into \a out, of 32 bytes; returns \a out. */
typedef char *ts_curve_label(double value, char *out);

typedef struct ts_curve {
  int n;
  const ts_point *point; /**< In order, joined by lines. */
  int n_marks;
  const ts_point *mark; /**< Each an 'o'. */
  bool utf8;
  ts_curve_label *label; /**< Of the axis up. */
} ts_curve;

/** Points that \a width columns can show. Not collective. */
int ts_curve_points(const ts_curve *curve, int width);

/** Draw \a height lines of at most \a width columns, the axis at their left, its numbers those of the highest and the
 * lowest line.  Where the first tenth of the curve is much higher than the rest, it is cut at the rest's highest, and
 * the number begins with '>'.
 * \param [out] line  Appended to: \a height of them. Not collective. */
void ts_curve_draw(const ts_curve *curve, int width, int height, ts_text *line);

#endif
