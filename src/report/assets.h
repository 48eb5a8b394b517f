/** \file
 * Files that are put into the program when it is built (src/report/embed.sh).  No functions; nothing here is
 * collective.
 */
#ifndef TS_REPORT_ASSETS_H
#define TS_REPORT_ASSETS_H

/** Ended by a 0; of dygraphs (MIT licence) "" where it was not there when this was built. */
extern const char ts_asset_page_css[], ts_asset_page_js[], ts_asset_dygraphs_css[], ts_asset_dygraphs_js[];

#endif
