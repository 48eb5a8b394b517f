/** \file
 * Files that appear complete or not at all.  Nothing here is collective.
 */
#ifndef IO_REPLACE_H
#define IO_REPLACE_H

#include "base/status.h"

#include <stdio.h>

/** Write \a path by way of PATH.tmp, which is synced to the disk and then takes its name.  Not collective.
 * \param [in] write  Called once with the open file and \a from; returns false, with errno set, on failure.
 * \return TS_BAD_INPUT with "PATH: reason"; an older file of this name is as it was and PATH.tmp is gone then. */
ts_status ts_replace_file(const char *path, bool (*write)(FILE *file, const void *from), const void *from,
                          ts_error *err);

#endif
