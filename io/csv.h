/** \file
 * A table of numbers: the first line names the columns, every other line has one number per column, separated by
 * commas, without quotes or blanks.  What io/metrics.h writes.  Nothing here is collective.
 */
#ifndef IO_CSV_H
#define IO_CSV_H

#include "base/status.h"

#include <stdint.h>

/** Zero is the empty table. */
typedef struct ts_csv {
  int n_columns;
  int64_t n_rows;
  char **names;   /**< Owned. */
  double *values; /**< Owned: [n_rows][n_columns]; integers over 2^53 are rounded. */
} ts_csv;

/** Read a regular file of at most 1 GiB.  A last line without its newline, which a process that died may leave, is
 * ignored.  Not collective.
 * \param [out] csv  The caller's, end with ts_csv_free; empty on error.
 * \return TS_BAD_INPUT: cannot be read, no first line, or "PATH:LINE: reason" for a row that is not as many numbers as
 *         there are columns. */
ts_status ts_csv_read(const char *path, ts_csv *csv, ts_error *err);

/** Make a table that is to go on one of the columns \a names: rows whose first column, an integer, is above \a last go,
 * so does a last line without its newline.  A table that an earlier version wrote, whose columns \a names begins with,
 * gets the others, last, with "nan" in the rows that are there, which every reader takes for a number; that is said.
 * The file is replaced as a whole; one that is not there is fine.  Columns but the first may hold anything.  Not
 * collective.
 * \param [in] names  The first line, with its newline.
 * \return TS_BAD_INPUT with "PATH: reason": it has other columns, and is left as it was then, or it cannot be read or
 *         written. */
ts_status ts_csv_continue(const char *path, const char *names, int64_t last, ts_error *err);

/** Could ts_csv_continue go on with the table?  To be asked before long work: its first line alone is read, nothing is
 * changed.  Not collective.
 * \return TS_BAD_INPUT with "PATH: reason": it has other columns, or cannot be read. */
ts_status ts_csv_try_to_continue(const char *path, const char *names, ts_error *err);

/** Number of the column \a name, or -1.  Not collective. */
int ts_csv_column(const ts_csv *csv, const char *name);

/** The mean of the smallest quarter of a column, at least of one, of the rows from \a first on, or of the last one
 * where there are no more; without those that are no number.  Of times that is what they are where nothing disturbs.
 * NAN: there is no such column, or nothing in it.  Not collective. */
double ts_csv_low(const ts_csv *csv, const char *name, int64_t first);

/** Free and empty.  Not collective. */
void ts_csv_free(ts_csv *csv);

#endif
