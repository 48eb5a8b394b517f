/** \file
 * What the tests of run directories share: fresh ones, their files, and what is said of them.
 * Nothing here is collective.
 */
#ifndef REGRESSION_IO_RUN_FIXTURE_H
#define REGRESSION_IO_RUN_FIXTURE_H

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "regression/tap.h"

#include <stdio.h>
#include <string.h>

/** DIRECTORY/NAME (ts_free). */
static inline char *path_of(const char *directory, const char *name) {
  return ts_format("%s/%s", directory, name);
}

/** A fresh run directory of the test's (ts_free). */
static inline char *make_run(const char *name) {
  char *run = path_of(tap_directory(), name);
  TS_CHECK(ts_make_directory(run, NULL) == TS_OK, "%s", run);
  return run;
}

/** Write a file. */
static inline void put(const char *directory, const char *name, const char *text, size_t length) {
  char *path = path_of(directory, name);
  FILE *file = fopen(path, "wb");
  TS_CHECK(file != NULL && fwrite(text, 1, length, file) == length && fclose(file) == 0, "%s", path);
  ts_free(path);
}

/** Read a file: its bytes (ts_free) and their number. */
static inline char *get(const char *directory, const char *name, size_t *length) {
  char *path = path_of(directory, name), *text;
  TS_CHECK(ts_read_file(path, 1 << 20, &text, length, NULL) == TS_OK, "%s", path);
  ts_free(path);
  return text;
}

/** True when the status is bad and a message has these words; clears. */
static inline bool says(ts_status status, ts_error *err, const char *words) {
  bool found = status == TS_BAD_INPUT && err->count > 0 && strstr(err->text, words) != NULL;
  if (!found) {
    tap_note("status %d, wanted \"%s\", got: %s", (int) status, words, err->count > 0 ? err->text : "nothing");
  }
  ts_error_clear(err);
  return found;
}

#endif
