/* io_uring: a ring per thread, with the file registered, and the slots' buffers where they may be pinned. */
#include "base/memory.h"
#include "io/store_engine.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <unistd.h>

enum { PAUSE = 1000, /* microseconds */ PAUSES = 10000 };

#define MOST ((int64_t) 1 << 30) /* bytes of one transfer, which has 32 bits for them; the rest is asked for again */

typedef struct ring {
  struct io_uring ring;
  bool pinned;
} ring;

/* What comes of a lack of memory, or of a debugger, is tried again; an answer that stays the same is told. */
static int submit(ring *r) {
  int n = io_uring_submit(&r->ring);
  for (int i = 0; (n == -EINTR || n == -EAGAIN || n == -EBUSY) && i < PAUSES; ++i) {
    usleep(PAUSE);
    n = io_uring_submit(&r->ring);
  }
  return n;
}

/* Of the file that is number 0 of the ring, and of a buffer by its number, or -1: none. */
static void fill_entry(struct io_uring_sqe *sqe, const ts_store_io *io, int buffer) {
  unsigned bytes = (unsigned) (io->bytes < MOST ? io->bytes : MOST);
  __u64 offset = (__u64) io->offset;
  if (buffer >= 0 && io->write) {
    io_uring_prep_write_fixed(sqe, 0, io->memory, bytes, offset, buffer);
  } else if (buffer >= 0) {
    io_uring_prep_read_fixed(sqe, 0, io->memory, bytes, offset, buffer);
  } else if (io->write) {
    io_uring_prep_write(sqe, 0, io->memory, bytes, offset);
  } else {
    io_uring_prep_read(sqe, 0, io->memory, bytes, offset);
  }
  sqe->flags |= IOSQE_FIXED_FILE;
}

static int64_t begin_on_ring(void *queue, int slot, const ts_store_io *io) {
  ring *r = queue;
  struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);
  TS_CHECK(sqe != NULL, "a ring of io_uring has no room for what is in slot %d", slot);
  fill_entry(sqe, io, io->copied && r->pinned ? slot : -1);
  sqe->user_data = (__u64) slot;
  int submitted = submit(r);
  return submitted < 0 ? submitted : TS_STORE_UNDER_WAY;
}

static int finish_on_ring(void *queue, int64_t *result) {
  ring *r = queue;
  struct io_uring_cqe *cqe;
  int error;
  do {
    error = io_uring_wait_cqe(&r->ring, &cqe);
  } while (error == -EINTR || error == -EAGAIN);
  TS_CHECK(error == 0, "io_uring_wait_cqe: %s", strerror(-error));
  int slot = (int) cqe->user_data;
  *result = cqe->res;
  io_uring_cqe_seen(&r->ring, cqe);
  return slot;
}

static void pin_buffers(ring *r, const ts_store_queue *o, ts_text *note) {
  struct iovec *buffer = ts_calloc((size_t) o->n_slots, sizeof *buffer);
  for (int i = 0; i < o->n_slots; ++i) {
    buffer[i] = (struct iovec){o->buffer + i * o->buffer_bytes, (size_t) o->buffer_bytes};
  }
  int error = ts_store_test()->pin;
  error = error != 0 ? error : -io_uring_register_buffers(&r->ring, buffer, (unsigned) o->n_slots);
  r->pinned = error == 0;
  if (error != 0) {
    ts_text_add(note, "its buffers not pinned (%s: ulimit -l)", strerror(error));
  }
  ts_free(buffer);
}

/* A kernel may make rings and not know how to read by them, and a filter of system calls may let only some pass. */
static int try_ring(ring *r, const ts_store_queue *o) {
  const ts_store_io io = {.bytes = TS_STORE_ALIGN, .memory = o->buffer};
  int64_t result = begin_on_ring(r, 0, &io);
  if (result == TS_STORE_UNDER_WAY) {
    finish_on_ring(r, &result);
  }
  return result < 0 ? (int) -result : 0;
}

static int open_ring(ring *r, const ts_store_queue *o) {
  int error = ts_store_test()->uring;
  return error != 0 ? error : -io_uring_queue_init((unsigned) o->depth, &r->ring, 0);
}

/* A ring ends some time after it is closed, and keeps the file, and its space, as long as it has it. */
static void close_ring(ring *r) {
  io_uring_unregister_files(&r->ring);
  io_uring_queue_exit(&r->ring);
}

static void *create_ring(const ts_store_queue *o, ts_text *why, ts_text *note) {
  ring *r = ts_calloc(1, sizeof *r);
  int error = open_ring(r, o);
  if (error == 0) {
    error = -io_uring_register_files(&r->ring, &o->file, 1);
    error = error == 0 ? try_ring(r, o) : error;
    if (error == 0) {
      pin_buffers(r, o, note);
      return r;
    }
    close_ring(r);
  }
  ts_text_add(why, "%s", strerror(error));
  ts_free(r);
  return NULL;
}

static void destroy_ring(void *queue) {
  ring *r = queue;
  close_ring(r);
  ts_free(r);
}

const ts_store_engine ts_store_uring = {.name = "io_uring",
                                        .is_deep = true,
                                        .create = create_ring,
                                        .destroy = destroy_ring,
                                        .begin = begin_on_ring,
                                        .finish = finish_on_ring};
