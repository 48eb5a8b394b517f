/* The file of a rank's state that is not in memory. */
#include "base/memory.h"
#include "engine/engine.h"
#include "pass/offload.h"

static int64_t in_pages(int64_t bytes) {
  return bytes / TS_STORE_ALIGN * TS_STORE_ALIGN;
}

ts_status ts_engine_open_store(ts_engine *e, ts_error *err) {
  const ts_program *first = ts_engine_program(e); /* which has all that any has */
  if (first->plan->arena_bytes[TS_ARENA_FILE] == 0) {
    return TS_OK;
  }
  const ts_deck_aio *aio = &e->deck->aio;
  int64_t request = in_pages(aio->block_size);
  char *name = ts_format("rank%d", ts_world_rank(e->world));
  const ts_store_options options = {.directory = ts_deck_files(e->deck),
                                    .name = name,
                                    .block_size = request,
                                    .queue_depth = (int) aio->queue_depth,
                                    .threads = (int) aio->intra_op_parallelism};
  int n;
  ts_store_extent *extent = ts_program_extents(first, request < TS_OFFLOAD_BLOCK ? request : TS_OFFLOAD_BLOCK, &n);
  ts_status status = ts_world_agree(e->world, ts_store_create(&e->store, &options, extent, n, err), err);
  ts_free(extent);
  ts_free(name);
  return status;
}

char *ts_engine_describe_store(const ts_engine *e) {
  char size[32];
  return e->store == NULL
             ? NULL
             : ts_format("offload: %s a rank in %s (%s)",
                         ts_human_bytes((double) ts_engine_program(e)->plan->arena_bytes[TS_ARENA_FILE], size),
                         ts_deck_files(e->deck), ts_store_describe(e->store));
}

char *ts_engine_take_moved(ts_engine *e) {
  if (e->store == NULL) {
    return NULL;
  }
  ts_store_counts counts = ts_store_take_counts(e->store);
  char read[32], written[32];
  return ts_format("offload: %s read, %s written, for which the computation waited %.2f s",
                   ts_human_bytes((double) counts.bytes_read, read),
                   ts_human_bytes((double) counts.bytes_written, written), counts.seconds_waited);
}
