/** \file
 * The curves of a report: which there are, the section that has them, and the data that the page's script draws; where
 * the program was built without dygraphs they are SVG in the section.  Nothing here is collective.
 */
#ifndef TS_REPORT_CURVES_H
#define TS_REPORT_CURVES_H

#include "report/series.h"

typedef struct ts_curves {
  const ts_report_run *run; /**< Borrowed, with the units. */
  int n;
  const ts_report_units *units;
  ts_series *series; /**< Owned; by run. */
  bool plain;        /**< SVG, no script. */
} ts_curves;

/** Thin the steps of \a n runs, so that all curves together take some 1.2 MB at most. End with ts_curves_clear. Not
 * collective. */
ts_curves ts_curves_make(const ts_report_run *run, int n, const ts_report_units *units, bool plain);
void ts_curves_clear(ts_curves *curves);

/** Append the section of the page. Not collective. */
void ts_curves_add_section(const ts_curves *curves, ts_text *html);

/** Append the data, a script element that is no script; nothing where they are plain. Not collective. */
void ts_curves_add_data(const ts_curves *curves, ts_text *html);

#endif
