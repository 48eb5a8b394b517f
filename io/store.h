/** \file
 * A rank's file of state that memory does not hold: bytes by offset, checked, moved by threads beside the computation.
 *
 * The file is this process's alone and is not kept: it has no name while it is open, where the file system allows that,
 * so whatever ends the process leaves nothing.  Its bytes are zero until they are written.  They lie in extents, each
 * cut in blocks of its own size from its beginning; of each block written the memory of the process has a hash (XXH3 of
 * 64 bits), seeded by its place and by how often it was written, so what comes back is what was written last, or the
 * job ends (class b): a block that differs is read once more, then its rank, file and offset are told.  Other failures
 * of the device end it in the same way, in the call that waits next.
 *
 * Transfers are cut in requests of at most ts_store_options.block_size bytes, which threads make by one of the engines:
 * io_uring, or pread and pwrite.  Transfers of the same bytes are not ordered: whoever starts one waits for the other.
 * One thread starts, waits, reads and writes.  Nothing here is collective.
 */
#ifndef IO_STORE_H
#define IO_STORE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Of offsets, blocks and lengths in the file, and of memory that is read and written without a copy. */
#define TS_STORE_ALIGN 4096

typedef struct ts_store ts_store;

/** Bytes [offset, offset + bytes) of the file; blocks of \a block bytes, the last one shorter. */
typedef struct ts_store_extent {
  int64_t offset; /**< A multiple of TS_STORE_ALIGN; extents ascend and do not overlap, rounded up to it. */
  int64_t bytes;
  int64_t block; /**< A multiple of TS_STORE_ALIGN, at most the store's block_size. */
} ts_store_extent;

typedef struct ts_store_options {
  const char *directory; /**< Of a file system with room; made when it is not there. */
  const char *name;      /**< Of whose file it is, in messages and in its name while it has one. */
  int64_t block_size;    /**< Bytes of a request, at most; a multiple of TS_STORE_ALIGN. (aio.block_size) */
  int queue_depth;       /**< Requests in flight per thread. (aio.queue_depth) */
  int threads;           /**< That share the requests of a transfer. (aio.intra_op_parallelism) */
  const char *engine;    /**< "io_uring", "threads", or NULL: the first of these that works here. */
} ts_store_options;

/** Make the file and reserve its space.
 * \return TS_BAD_INPUT with the reason and the way out: no such directory, no permission, no room (bytes wanted and
 *         free), an engine that was asked for and does not work. Not collective. */
ts_status ts_store_create(ts_store **store, const ts_store_options *options, const ts_store_extent *extent, int n,
                          ts_error *err);

/** Wait for what is under way, free, set to NULL; NULL is allowed. Not collective. */
void ts_store_destroy(ts_store **store);

/** How it works, a phrase for the log: "io_uring, O_DIRECT", "threads (io_uring: Operation not permitted), through the
 * page cache (O_DIRECT: Invalid argument)". Borrowed. Not collective. */
const char *ts_store_describe(const ts_store *store);

/** Begin to write memory to the file, or to read it.  The range lies in one extent, begins at the begin of a block and
 * ends at the end of one or of the extent.  Memory at multiples of TS_STORE_ALIGN is used as it is, other is copied.
 * Nothing else touches it until the wait; the caller's.
 * \return a ticket for ts_store_wait: 1, 2, 3, ... Blocks while 1024 transfers are under way. Not collective. */
uint64_t ts_store_start(ts_store *store, bool write, int64_t offset, int64_t bytes, void *memory);

/** Wait until a transfer is done: its bytes are in memory, or in the file.
 * \return seconds the caller was held up. Not collective. */
double ts_store_wait(ts_store *store, uint64_t ticket);

/** Read and write any range of an extent, and be done when they return. Not collective. */
void ts_store_read(ts_store *store, int64_t offset, int64_t bytes, void *to);
void ts_store_write(ts_store *store, int64_t offset, int64_t bytes, const void *from);

/** What it did since it was made. Not collective. */
typedef struct ts_store_counts {
  int64_t bytes_read, bytes_written;
  double seconds_waited; /**< By callers of ts_store_wait, _read and _write. */
  int64_t read_again;    /**< Blocks whose first reading had another hash. */
} ts_store_counts;
ts_store_counts ts_store_count(ts_store *store);

/** Bytes of memory that a store takes beside what it moves: hashes, and copies of requests that are not aligned. Not
 * collective. */
int64_t ts_store_memory(const ts_store_options *options, const ts_store_extent *extent, int n);

/** For tests and benchmarks: what machines do now and then, for all stores from now on; zero: nothing. */
typedef struct ts_store_faults {
  /** Asked before each read and write, by the thread that makes it: how many of these bytes are to be moved (a multiple
   * of TS_STORE_ALIGN), or a negative errno to fail with instead. */
  int64_t (*move)(bool write, int64_t offset, int64_t bytes);
  int unnamed, unlink, direct, reserve, uring, pin; /**< errno that fails: O_TMPFILE, unlink, O_DIRECT, fallocate,
                                                         io_uring, the registration of its buffers. */
  bool unchecked;                                   /**< No hashes: what they cost. */
} ts_store_faults;

/** NULL switches all off.  While nothing is under way. Not collective. */
void ts_store_set_test_faults(const ts_store_faults *faults);

/** For tests: the open file. Borrowed. Not collective. */
int ts_store_test_file(const ts_store *store);

#endif
