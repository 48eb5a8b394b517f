/* The file of a rank's state that is not in memory. */
#include "base/memory.h"
#include "engine/engine.h"
#include "run/executor.h"

#include <string.h>

ts_status ts_engine_open_store(ts_engine *e, ts_error *err) {
  const ts_program *first = ts_engine_program(e); /* which has all that any has */
  if (first->plan->arena_bytes[TS_ARENA_FILE] == 0) {
    return TS_OK;
  }
  char *name = ts_format("rank%d", ts_world_rank(e->world));
  ts_store_options options = ts_store_options_of(e->deck);
  options.name = name;
  int n;
  ts_store_extent *extent = ts_program_extents(first, &n);
  ts_status status = ts_world_agree(e->world, ts_store_create(&e->store, &options, extent, n, err), err);
  ts_free(extent);
  ts_free(name);
  return status;
}

/* Does the deck want something in a file? */
static bool wants_files(const ts_deck *deck) {
  return strcmp(deck->zero_optimization.offload_optimizer.device, "nvme") == 0 ||
         strcmp(deck->zero_optimization.offload_param.device, "nvme") == 0;
}

char *ts_engine_describe_store(const ts_engine *e) {
  char size[32];
  if (e->store == NULL && wants_files(e->deck)) {
    return ts_format("offload: nothing leaves memory, as no parameter has more elements than "
                     "zero_optimization.stage3_param_persistence_threshold, %lld",
                     (long long) e->deck->zero_optimization.stage3_param_persistence_threshold);
  }
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
  ts_store_counts all = ts_store_count(e->store), before = e->moved;
  char read[32], written[32];
  e->moved = all;
  return ts_format("offload: %s read, %s written, for which the computation waited %.2f s",
                   ts_human_bytes((double) (all.bytes_read - before.bytes_read), read),
                   ts_human_bytes((double) (all.bytes_written - before.bytes_written), written),
                   all.seconds_waited - before.seconds_waited);
}
