/** \file
 * Pictures of a run as SVG within a page, whose colours are variables of its style: --ink, --soft, --grid, --paper and
 * --c0 to --c7.  Each has a bounded size, however much it is of, the smaller the more
 * runs are on the page.  Nothing here is collective.
 */
#ifndef TS_REPORT_PICTURES_H
#define TS_REPORT_PICTURES_H

#include "base/text.h"
#include "io/timeline_read.h"
#include "report/run.h"

/** Memory by kind over the instructions of a step, stacked, from memory.csv; the line on top is the plan's peak.
 * \return false, and nothing is added, where there is no such table. Not collective. */
bool ts_picture_memory(const ts_csv *memory, int runs, ts_text *svg);

/** Ranks below one another, of each what it computed and, below, its messages, by kind. Not collective.
 * \return false: the trace is empty. */
bool ts_picture_timeline(const ts_trace *trace, int runs, ts_text *svg);

/** Messages by kind, size and group: a table, the longest first. Not collective.
 * \return false: there are none. */
bool ts_picture_messages(const ts_trace *trace, ts_text *html);

/** Which rank was the slowest at which step, how often each was, and how long it was busy then. Not collective.
 * \return false: the run does not say. */
bool ts_picture_slowest(const ts_report_run *run, int runs, ts_text *html);

/** Choices of the busiest expert over the mean, layers below one another, over the steps. Not collective.
 * \return false: the run has no experts. */
bool ts_picture_experts(const ts_csv *experts, int runs, ts_text *svg);

#endif
