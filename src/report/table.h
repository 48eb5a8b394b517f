/** \file
 * Runs as rows of a table.  Nothing here is collective.
 */
#ifndef TS_REPORT_TABLE_H
#define TS_REPORT_TABLE_H

#include "base/text.h"
#include "report/run.h"

typedef struct ts_report_units {
  ts_flops_convention convention;
  double peak; /**< FLOP/s of a device; 0: the job's. */
} ts_report_units;

/** A column: its name (csv, json), its heading (text, markdown), how it is printed, and the number, in the units of
 * the heading; NAN: unknown. */
typedef struct ts_report_column {
  const char *name, *heading, *format;
  double (*value)(const ts_report_run *run, const ts_report_units *units);
} ts_report_column;

/** Ended by a NULL name.  Times, rates and shares are medians over the run's steady steps (report/run.h). */
extern const ts_report_column ts_report_columns[];

/** The heading of a column, with the convention where FLOPs are counted; owned by the caller (ts_free). Not
 * collective. */
char *ts_report_heading(const ts_report_column *column, const ts_report_units *units);

/** Append the table as "text", "markdown", "csv" or "json".
 * \return TS_BAD_INPUT: another format. Not collective. */
ts_status ts_report_table(const ts_report_run *run, int n, const ts_report_units *units, const char *format,
                          ts_text *to, ts_error *err);

#endif
