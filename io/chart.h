/** \file
 * Curves in a frame with ticks, as SVG.  What is not finite, or as good as infinite, is left out.  Nothing here is
 * collective.
 */
#ifndef IO_CHART_H
#define IO_CHART_H

#include "base/text.h"

#include <stdbool.h>

/** Colours of a picture; what an SVG takes, such as "#24292f" or, in a page that has it, "var(--ink)". */
typedef struct ts_chart_colors {
  const char *ink, *soft, *grid, *background; /**< Of text, of labels, of lines at ticks, and behind all. */
} ts_chart_colors;

/** For a file of its own. */
extern const ts_chart_colors ts_chart_on_white;

typedef struct ts_chart_curve {
  const char *name; /**< For the legend, with the last value; NULL: not there. */
  const char *color;
  double width, opacity;
  bool dots; /**< A dot at each point too. */
  int64_t n;
  const double *x, *y;
} ts_chart_curve;

typedef struct ts_chart {
  const char *title, *subtitle; /**< NULL: none. */
  const char *x, *y;            /**< What the axes are. */
  bool whole;                   /**< x counts something: ticks are whole numbers. */
  bool from_zero;               /**< y begins at 0. */
  double tall;                  /**< Height, as a part of the usual one; 0 stands for 1. */
  int n;
  const ts_chart_curve *curve;
  int64_t n_marks;
  const double *mark; /**< Values of x at which something happened: dashed lines. */
  int64_t n_notches;
  const double *notch; /**< At which something less did: short lines at the bottom. */
  ts_chart_colors colors;
} ts_chart;

/** Append the picture, an svg element. Not collective. */
void ts_chart_draw(const ts_chart *chart, ts_text *svg);

/** Values beyond this, or that are no number, are drawn as little as infinity. */
#define TS_CHART_LARGEST 1e100

/** Running mean over a thirtieth of a curve, centred, so that it does not lag behind a steep start; of numbers alone,
 * NAN where there are none.
 * \param [out] smooth  [n]. Not collective. */
void ts_chart_smooth(const double *y, int64_t n, double *smooth);

/** Append \a text to XML or HTML, as text or within quotes: nothing of it is taken for markup, control characters are
 * blanks, and bytes that are no UTF-8 become U+FFFD. Not collective. */
void ts_markup_add(ts_text *to, const char *text);

#endif
