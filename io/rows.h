/** \file
 * Tables that grow while a program runs: rows, which are lines or records (ts_row_kind), are appended, whole or not at
 * all, and are on disk (in the kernel) when the call returns, or with later ones where they may be held (ts_rows_hold).
 *
 *             a write that fails: a warning                   more than TS_ROWS_MOST bytes wait: a warning
 *   WRITTEN ───────────────────────────────▶ WAITING ───────────────────────────────────────▶ LOSING
 *      ▲                                        │ all that waited is written                     │
 *      └────────────────────────────────────────┴────────────────────────────────────────────────┘
 *
 * Where the disk is full, rows wait in memory and are written in their order once there is room, so the table has no
 * gap; beyond the limit new rows are lost until then.  Nothing here is collective: one rank writes.
 */
#ifndef IO_ROWS_H
#define IO_ROWS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TS_ROWS_MOST = 16 << 20 /**< Bytes that wait at most. */ };

typedef struct ts_rows ts_rows;

/** What the rows of a table are. */
typedef struct ts_row_kind {
  const char *name;                                  /**< Of one, for messages: "line". */
  size_t (*length)(const char *data, size_t length); /**< Bytes of the first row of \a data; 0: it is not whole. */
} ts_row_kind;

/** Open a table to append to; one that is empty gets \a names as its first line.  Not collective.
 * \param [in] over   True: what the file has is dropped.
 * \param [in] names  The first line, with its newline.
 * \param [out] out   The caller's, end with ts_rows_close; NULL on error.
 * \return TS_BAD_INPUT with "PATH: reason" when the file or its first line cannot be written. */
ts_status ts_rows_open(const char *path, bool over, const char *names, ts_rows **out, ts_error *err);

/** As ts_rows_open, for rows of another kind.  Not collective.
 * \param [in] kind   Borrowed while the table is open.
 * \param [in] first  The row or rows that an empty table gets, \a length bytes; may hold any bytes. */
ts_status ts_rows_open_kind(const char *path, bool over, const ts_row_kind *kind, const char *first, size_t length,
                            ts_rows **out, ts_error *err);

/** Append one or more whole rows; what finds no room waits, with a warning for the first.  Not collective. */
void ts_rows_add(ts_rows *rows, const char *data, size_t length);

/** From now on rows that come within \a seconds of the last write may be held in memory, up to 64 KiB of them: with
 * short steps and many tables the calls that write one row each take longer than all else.  They are written with the
 * first row that comes later, at a flush and at the end; a process that is killed loses them.  Not collective. */
void ts_rows_hold(ts_rows *rows, double seconds);

/** Write what is held, and try again what waits.  Not collective. */
void ts_rows_flush(ts_rows *rows);

/** Flush, say how many rows are lost for ever, free and set to NULL; NULL is allowed.  Not collective. */
void ts_rows_close(ts_rows **rows);

#endif
