#include "io/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static ts_status map_descriptor(int file, const char *path, ts_mapping *out, ts_error *err) {
  struct stat info;
  if (fstat(file, &info) != 0) {
    return ts_error_add(err, "%s: %s", path, strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return ts_error_add(err, "%s: is not a regular file", path);
  }
  if (info.st_size == 0) {
    return TS_OK;
  }
  void *bytes = mmap(NULL, (size_t) info.st_size, PROT_READ, MAP_SHARED, file, 0);
  if (bytes == MAP_FAILED) {
    return ts_error_add(err, "%s: cannot be mapped into memory: %s", path, strerror(errno));
  }
  *out = (ts_mapping){bytes, (size_t) info.st_size};
  return TS_OK;
}

ts_status ts_mapping_open(const char *path, ts_mapping *out, ts_error *err) {
  *out = (ts_mapping){0};
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block here: it is refused below */
  if (file < 0) {
    return ts_error_add(err, "%s: %s", path, strerror(errno));
  }
  ts_status status = map_descriptor(file, path, out, err);
  close(file);
  return status;
}

void ts_mapping_close(ts_mapping *mapping) {
  if (mapping->bytes != NULL) {
    munmap((void *) mapping->bytes, mapping->size);
  }
  *mapping = (ts_mapping){0};
}

void ts_mapping_drop(const void *from, size_t bytes) {
  const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE), at = (uintptr_t) from;
  const uintptr_t begin = (at + page - 1) / page * page, end = (at + bytes) / page * page;
  if (begin < end) {
    madvise((void *) begin, end - begin, MADV_DONTNEED); /* an error only means that they stay */
  }
}
