/** \file
 * Rows of the tables that a run writes (io/metrics.h), line by line as they come.  Unlike io/csv.h a row that is none
 * is passed over, and so is a column that nobody asked for.  Nothing here is collective.
 */
#ifndef TS_VIEW_TABLE_H
#define TS_VIEW_TABLE_H

#include "io/metrics.h"

#include <stddef.h>

enum { TS_TABLE_MOST = 64 /**< Columns that are looked at. */ };

typedef struct ts_field {
  const char *name;
  size_t offset; /**< In the struct of a row. */
  bool is_integer;
} ts_field;

/** The fields of the rows of metrics.csv, validation.csv and moe.csv; each ended by a NULL name. */
extern const ts_field ts_metrics_fields[], ts_validation_fields[], ts_experts_fields[];

/** Those of the rows of metrics.csv that are looked at in each of a million rows. */
extern const ts_field ts_curve_fields[];

/** Where the columns of a file go.  Zero: its first line has not been read. */
typedef struct ts_table {
  int n_columns;
  const ts_field *field[TS_TABLE_MOST]; /**< NULL: to nowhere. */
} ts_table;

/** Read the first line. Not collective. */
void ts_table_names(ts_table *table, const ts_field *fields, const char *line);

/** Set what a file may have no column for: numbers to NAN, integers to -1. Not collective. */
void ts_table_blank(const ts_field *fields, void *row);

/** Has the file that column, among those of the fields? Not collective. */
bool ts_table_has(const ts_table *table, const char *name);

/** Read a row into the struct of the fields; what the file has no column for stays as it is.
 * \return false, the struct as it was or half filled: it has fewer columns than the table, or one that goes
 * somewhere is no number.
 * Not collective. */
bool ts_table_row(const ts_table *table, const char *line, void *row);

#endif
