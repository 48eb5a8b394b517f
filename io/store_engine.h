/** \file
 * Private to io/store: the engines, which read and write a file for one thread.  Nothing here is collective.
 */
#ifndef IO_STORE_ENGINE_H
#define IO_STORE_ENGINE_H

#include "base/text.h"
#include "io/store.h"

/** What a transfer that has not ended yet returns. */
#define TS_STORE_UNDER_WAY INT64_MIN

/** One transfer: all multiples of TS_STORE_ALIGN. */
typedef struct ts_store_io {
  bool write;
  bool copied; /**< The memory is of the slot's own buffer. */
  int64_t offset, bytes;
  char *memory;
} ts_store_io;

/** What the queue of a thread is made of. */
typedef struct ts_store_queue {
  int file;
  int depth;    /**< Transfers under way at most. */
  int n_slots;  /**< At least as many. */
  char *buffer; /**< Borrowed; one of \a buffer_bytes per slot. */
  int64_t buffer_bytes;
} ts_store_queue;

typedef struct ts_store_engine {
  const char *name;
  bool is_deep; /**< A thread may have several transfers under way. */

  /** Make a queue, and try whether it works.
   * \param [out] why  A phrase, when it does not.
   * \param [out] note What works less well than it could, a phrase; or nothing.
   * \return NULL when it does not work. */
  void *(*create)(const ts_store_queue *options, ts_text *why, ts_text *note);

  void (*destroy)(void *queue);

  /** Begin a transfer in a slot that has none.
   * \return bytes moved, a negative errno, or TS_STORE_UNDER_WAY. */
  int64_t (*begin)(void *queue, int slot, const ts_store_io *io);

  /** Wait until one that is under way has ended; NULL where none ever is.
   * \return its slot. */
  int (*finish)(void *queue, int64_t *result);
} ts_store_engine;

extern const ts_store_engine ts_store_uring;   /**< liburing; without it, a row that says so. */
extern const ts_store_engine ts_store_threads; /**< pread and pwrite. */

/** What ts_store_set_test_faults was given. Not collective. */
const ts_store_faults *ts_store_test(void);

#endif
