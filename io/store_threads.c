/* pread and pwrite: one transfer at a time and thread. */
#include "base/memory.h"
#include "io/store_engine.h"

#include <errno.h>
#include <unistd.h>

static void *copy_descriptor(const ts_store_queue *options, ts_text *why, ts_text *note) {
  int *file = ts_malloc(sizeof *file);
  (void) why;
  (void) note;
  *file = options->file;
  return file;
}

static int64_t move_now(void *queue, int slot, const ts_store_io *io) {
  const int *file = queue;
  (void) slot;
  ssize_t n = io->write ? pwrite(*file, io->memory, (size_t) io->bytes, (off_t) io->offset)
                        : pread(*file, io->memory, (size_t) io->bytes, (off_t) io->offset);
  return n >= 0 ? n : -errno;
}

const ts_store_engine ts_store_threads = {
    .name = "threads", .create = copy_descriptor, .destroy = ts_free, .begin = move_now};
