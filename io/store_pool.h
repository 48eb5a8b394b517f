/** \file
 * Private to io/store: transfers, and the threads that make them.  One thread calls.  Nothing here is collective.
 */
#ifndef IO_STORE_POOL_H
#define IO_STORE_POOL_H

#include "io/store_blocks.h"
#include "io/store_engine.h"

typedef struct ts_store_pool ts_store_pool;

/** What the threads work on and with. */
typedef struct ts_store_pool_options {
  const ts_store_engine *engine;
  int file;
  ts_store_blocks *blocks; /**< Borrowed, used by the threads. */
  const char *place;       /**< Of the file, in messages; borrowed. */
  int64_t block_size;
  int queue_depth, threads;
} ts_store_pool_options;

/** Start threads.
 * \param [out] why, note  As ts_store_engine.create has them.
 * \return NULL when the engine does not work. Not collective. */
ts_store_pool *ts_store_pool_create(const ts_store_pool_options *options, ts_text *why, ts_text *note);

/** Make what was started, and end the threads; NULL is allowed. Not collective. */
void ts_store_pool_destroy(ts_store_pool **pool);

/** As ts_store_start and ts_store_wait. Not collective. */
uint64_t ts_store_pool_start(ts_store_pool *pool, bool write, int64_t offset, int64_t bytes, char *memory);
double ts_store_pool_wait(ts_store_pool *pool, uint64_t ticket);

/** So far; without the seconds. Not collective. */
ts_store_counts ts_store_pool_counts(ts_store_pool *pool);

/** Bytes of the buffers of all threads. Not collective. */
int64_t ts_store_pool_memory(const ts_store_engine *engine, int64_t block_size, int queue_depth, int threads);

#endif
