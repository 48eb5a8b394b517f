/** \file
 * A report as one HTML file that needs nothing else: curves by dygraphs where the program was built with it, else as
 * SVG, the rest SVG and tables.  Its content-security policy lets nothing be loaded and no script run but its own;
 * names and texts of users are escaped.  Its size is bounded: curves are thinned to fewer points the more runs there
 * are.  Nothing here is collective.
 */
#ifndef TS_REPORT_PAGE_H
#define TS_REPORT_PAGE_H

#include "report/table.h"

/** What the first thousand bytes of a page have, and of another file hardly. */
#define TS_REPORT_MARK "tessera report"

/** Append the page of \a n runs, at least one. Not collective.
 * \param [in] units  Of MFU and TFLOP/s, named wherever they stand.
 * \param [in] plain  Without a script: curves are SVG, as where the program was built without dygraphs. */
void ts_report_page(const ts_report_run *run, int n, const ts_report_units *units, bool plain, ts_text *html);

#endif
