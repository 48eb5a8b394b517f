/** \file
 * The loss curve of a run as a picture.  Nothing here is collective.
 */
#ifndef IO_PLOT_H
#define IO_PLOT_H

#include "base/status.h"

/** Draw RUN/metrics.csv and RUN/validation.csv (which may be absent) as RUN/loss.svg: the training loss of each step
 * faint, its running mean over it, validation losses as dots.  Losses that are not finite are left out.  More than a
 * thousand steps are drawn as the means of a thousand equal pieces, so the size of the picture is bounded.  Not
 * collective.
 * \param [in] directory  The run directory; its name is the title.
 * \return TS_BAD_INPUT: metrics.csv cannot be read, lacks a column; loss.svg cannot be written. */
ts_status ts_plot_losses(const char *directory, ts_error *err);

#endif
