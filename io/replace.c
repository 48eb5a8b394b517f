#include "io/replace.h"

#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

ts_status ts_replace_file(const char *path, bool (*write)(FILE *file, const void *from), const void *from,
                          ts_error *err) {
  char *temporary = ts_format("%s.tmp", path);
  FILE *file = fopen(temporary, "wb");
  bool ok = file != NULL && write(file, from) && fflush(file) == 0 && fsync(fileno(file)) == 0;
  int reason = errno;
  if (file != NULL) {
    fclose(file); /* nothing is left to fail after fsync */
  }
  if (ok && rename(temporary, path) != 0) {
    ok = false;
    reason = errno;
  }
  if (!ok) {
    unlink(temporary);
  }
  ts_free(temporary);
  return ok ? TS_OK : ts_error_add(err, "%s: cannot be written: %s", path, strerror(reason));
}
