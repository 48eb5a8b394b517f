/** \file
 * Which of several sources the sample at a position comes from, and which of that source's it is: functions of the
 * position alone, each a look into a table.
 *
 * A period is TS_MIXTURE_PERIOD positions.  In each of them a source has as many as its weight says, rounded by largest
 * remainder, and at least one.  They are dealt out one after another to the source that is furthest behind its part (of
 * equals the first), so any stretch of positions has about the parts of the whole.
 *
 * 6 bytes a position of a period.  No function here is collective.
 */
#ifndef IO_MIXTURE_H
#define IO_MIXTURE_H

#include <stdint.h>

enum { TS_MIXTURE_PERIOD = 65536 };

typedef struct ts_mixture ts_mixture;

/** Deal out a period; end with ts_mixture_destroy.  O(n TS_MIXTURE_PERIOD).  Not collective.
 * \param [in] weights  Positive and finite, \a n of them, 1..TS_MIXTURE_PERIOD; only their ratios count. */
ts_mixture *ts_mixture_create(const double *weights, int n);

/** Positions of a period that the source has.  Not collective. */
int64_t ts_mixture_count(const ts_mixture *mixture, int source);

/** The source of a position, at least 0.  Not collective.
 * \param [out] sample  Which of the source's it is: how many earlier positions are of the same source. */
int ts_mixture_at(const ts_mixture *mixture, int64_t position, int64_t *sample);

/** Free and set to NULL; NULL is allowed.  Not collective. */
void ts_mixture_destroy(ts_mixture **mixture);

#endif
