/** \file
 * Private to io/store: the file, which has a name only where the file system insists.  Nothing here is collective.
 */
#ifndef IO_STORE_FILE_H
#define IO_STORE_FILE_H

#include "base/text.h"

#include <stdint.h>
#include <sys/types.h>

/** Zero-initialise, and close in any case. */
typedef struct ts_store_file {
  int descriptor;  /**< -1: not open. */
  char *directory; /**< Owned, like the others. */
  char *path;      /**< While it has a name; NULL: none. */
  char *how;       /**< "O_DIRECT", and what else there is to say of it, a phrase. */
} ts_store_file;

/** Make a file in a directory, which is made too, with all of \a bytes reserved.  Files that dead processes have left
 * there go.
 * \param [in] name  Of whose file it is.
 * \return TS_BAD_INPUT with the reason and the way out. Not collective. */
ts_status ts_store_file_open(ts_store_file *file, const char *directory, const char *name, int64_t bytes,
                             ts_error *err);

/** Close and forget it, with its name. Not collective. */
void ts_store_file_close(ts_store_file *file);

#endif
