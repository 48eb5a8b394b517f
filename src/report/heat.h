/** \file
 * A table of shades: rows below one another, steps to the right; neighbouring steps, and rows where there are many,
 * share a tile, which shows their mean.  Nothing here is collective.
 */
#ifndef TS_REPORT_HEAT_H
#define TS_REPORT_HEAT_H

#include "base/text.h"

typedef struct ts_heat {
  const char *row;    /**< What a row is called, before its number: "layer". */
  int64_t n_rows;     /**< Of what is shown; */
  int rows, bins;     /**< of tiles. */
  double first, last; /**< Steps. */
  double *sum;        /**< Owned: [rows][bins], */
  int64_t *n;         /**< and of how many values. */
} ts_heat;

/** An empty one.
 * \param [in] row      Borrowed, plain text.
 * \param [in] first, last  Steps, finite.
 * \param [in] runs     That are on the page: the more, the fewer tiles.
 * \return end with ts_heat_clear. Not collective. */
ts_heat ts_heat_make(const char *row, int64_t n_rows, double first, double last, int runs);

/** Add a value of a row at a step; what is no number, or outside, is left out. Not collective. */
void ts_heat_add(ts_heat *heat, int64_t row, double step, double value);

/** Append the picture: \a low is lightest, \a high darkest; tiles without a value are empty.
 * \param [in] label  What it shows. Not collective. */
void ts_heat_draw(const ts_heat *heat, const char *label, double low, double high, ts_text *svg);

/** Free. Not collective. */
void ts_heat_clear(ts_heat *heat);

#endif
