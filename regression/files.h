/** \file
 * Files of tests.  Nothing here is collective.
 */
#ifndef REGRESSION_FILES_H
#define REGRESSION_FILES_H

#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

/** Write a file below a directory, with the directories on the way; a failure ends the program. Not collective.
 * \param [in] root, path  "ROOT/PATH".
 * \param [in] text        All of it. */
static inline void put_file(const char *root, const char *path, const char *text) {
  char *file = ts_format("%s/%s", root, path), *slash = strrchr(file, '/');
  *slash = 0;
  TS_CHECK(ts_make_directory(file, NULL) == TS_OK, "%s", file);
  *slash = '/';
  FILE *out = fopen(file, "w");
  TS_CHECK(out != NULL && fputs(text, out) >= 0 && fclose(out) == 0, "%s", file);
  ts_free(file);
}

#endif
