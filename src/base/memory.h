/** \file
 * The host allocator of everything that is not in a planned arena.  Counts what is live, so that a program can assert
 * at its end that nothing leaked.  Running out of memory is a class (b) failure: no function here returns NULL for a
 * positive size.  All functions are thread-safe and not collective.
 */
#ifndef TS_BASE_MEMORY_H
#define TS_BASE_MEMORY_H

#include "base/free.h"

#include <stddef.h>
#include <stdint.h>

/** \a bytes of uninitialised memory; NULL for 0 bytes.  Free with ts_free. Not collective. */
void *ts_malloc(size_t bytes);

/** \a count zeroed elements of \a size bytes; overflow of the product is fatal.  Free with ts_free. Not collective. */
void *ts_calloc(size_t count, size_t size);

/** Resize to \a count elements of \a size bytes; a NULL \a pointer allocates.  New memory is not initialised. Not
 * collective. */
void *ts_realloc(void *pointer, size_t count, size_t size);

/** Copy of a string, owned by the caller (ts_free); NULL gives NULL. Not collective. */
char *ts_strdup(const char *text);

/** Live allocations made by this header's functions.  Zero at a clean end. Not collective. */
int64_t ts_memory_live(void);

/** Page-aligned zeroed memory straight from the kernel (huge pages asked for), for arenas.  Unmap with ts_unmap.
 * Not counted in ts_memory_live; 0 bytes gives NULL. Not collective. */
void *ts_map(size_t bytes);

/** Return memory of ts_map; \a bytes as given there; NULL is allowed. Not collective. */
void ts_unmap(void *pointer, size_t bytes);

/** From now on what is freed goes back to the system at once, for a process that has to stay within a limit: without it
 * the C library keeps what it once had, tens of megabytes.  Large allocations take longer then.  Not collective. */
void ts_memory_keep_little(void);

/** What this process has now, as a plan has to count it, bytes: its data and shared memory (RssAnon, RssShmem) and the
 * pages of its program and libraries (RssFile), of those at least 32 MiB.  22 to 25 MB of them are there before a step
 * and 27 to 31 MB once it has saved; how many the kernel reads ahead differs by 2 MB from run to run, and a limit found
 * in one run has to work in the next.  0 where /proc is absent.  Not collective. */
size_t ts_process_memory(void);

/** The most that was resident of this process at any time (VmHWM), bytes; 0 where /proc is absent.  Not collective. */
size_t ts_process_peak(void);

/** Bytes this machine could still give to processes (MemAvailable); 0 where /proc is absent. Not collective. */
size_t ts_machine_available(void);

/** \a bytes rounded up to a multiple of \a align. Not collective. */
static inline size_t ts_align_up(size_t bytes, size_t align) {
  return (bytes + align - 1) / align * align;
}

/** Grow an array so that it holds one more element: `TS_GROW (items, n_items, capacity);` then
 * `items[n_items++] = ...`. */
#define TS_GROW(array, count, capacity)                                    \
  do {                                                                     \
    if ((count) >= (capacity)) {                                           \
      (capacity) = (capacity) > 0 ? 2 * (capacity) : 8;                    \
      (array) = ts_realloc((array), (size_t) (capacity), sizeof *(array)); \
    }                                                                      \
  } while (0)

#endif
