#include "base/memory.h"

#include "base/status.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static atomic_int_fast64_t live;

void *ts_malloc(size_t bytes) {
  return ts_realloc(NULL, bytes, 1);
}

void *ts_calloc(size_t count, size_t size) {
  void *pointer = ts_realloc(NULL, count, size);
  if (pointer != NULL) {
    memset(pointer, 0, count * size);
  }
  return pointer;
}

void *ts_realloc(void *pointer, size_t count, size_t size) {
  size_t bytes;
  TS_CHECK(!__builtin_mul_overflow(count, size, &bytes), "allocation of %zu x %zu bytes overflows", count, size);
  if (bytes == 0) {
    ts_free(pointer);
    return NULL;
  }
  void *result = realloc(pointer, bytes);
  TS_CHECK(result != NULL, "out of memory: %zu bytes", bytes);
  if (pointer == NULL) {
    atomic_fetch_add(&live, 1);
  }
  return result;
}

void ts_free(void *pointer) {
  if (pointer != NULL) {
    atomic_fetch_sub(&live, 1);
    free(pointer);
  }
}

char *ts_strdup(const char *text) {
  if (text == NULL) {
    return NULL;
  }
  size_t bytes = strlen(text) + 1;
  return memcpy(ts_malloc(bytes), text, bytes);
}

int64_t ts_memory_live(void) {
  return atomic_load(&live);
}

void *ts_map(size_t bytes) {
  if (bytes == 0) {
    return NULL;
  }
  void *pointer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TS_CHECK(pointer != MAP_FAILED, "out of memory: cannot map an arena of %zu bytes", bytes);
  if (bytes >= (size_t) 4 << 20) {
    madvise(pointer, bytes, MADV_HUGEPAGE); /* advice only: kernels without it still work */
  }
  return pointer;
}

void ts_unmap(void *pointer, size_t bytes) {
  if (pointer != NULL) {
    munmap(pointer, bytes);
  }
}

/* A "Key:  123 kB" line of a file under /proc, in bytes. */
static size_t proc_value(const char *path, const char *key) {
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    return 0;
  }
  char line[256];
  size_t kib = 0, length = strlen(key);
  while (fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, key, length) == 0 && line[length] == ':') {
      kib = strtoull(line + length + 1, NULL, 10);
      break;
    }
  }
  fclose(file);
  return kib * 1024;
}

void ts_memory_keep_little(void) {
#ifdef __GLIBC__
  enum { KEPT = 1 << 17 };
  mallopt(M_MMAP_THRESHOLD, KEPT); /* which by itself grows with what is freed */
  mallopt(M_TRIM_THRESHOLD, KEPT);
  malloc_trim(KEPT);
#endif
}

size_t ts_process_memory(void) {
  enum { CODE = 32 << 20 };
  const char *status = "/proc/self/status";
  size_t code = proc_value(status, "RssFile");
  return code == 0 ? 0 : proc_value(status, "RssAnon") + proc_value(status, "RssShmem") + (code > CODE ? code : CODE);
}

size_t ts_process_peak(void) {
  return proc_value("/proc/self/status", "VmHWM");
}

size_t ts_machine_available(void) {
  return proc_value("/proc/meminfo", "MemAvailable");
}
