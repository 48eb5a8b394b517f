/** \file
 * A quantity of each step of a run, thinned by means to a bounded number of points while it grows: of a run of a
 * million steps it has as much as of one of a thousand.  Nothing here is collective.
 */
#ifndef TS_VIEW_SERIES_H
#define TS_VIEW_SERIES_H

#include <stdbool.h>
#include <stdint.h>

enum { TS_SERIES_MOST = 2048 };

typedef struct ts_point {
  double x, y;
} ts_point;

/** Zero is empty. */
typedef struct ts_series {
  int64_t each; /**< Values a bucket; 0: 1. */
  int n;
  struct {
    double x, y; /**< Sums. */
    int64_t n;
  } bucket[TS_SERIES_MOST]; /**< All but the last are full. */
} ts_series;

/** Add a value; one that is not finite is left out.  \return whether it was added. Not collective. */
bool ts_series_add(ts_series *series, double x, double y);

/** The means of at most \a most equal parts, in order.
 * \param [out] points  Room for \a most.  \return their number. Not collective. */
int ts_series_thin(const ts_series *series, int most, ts_point *points);

#endif
