#include "io/store_engine.h"

static void *no_ring(const ts_store_queue *options, ts_text *why, ts_text *note) {
  (void) options;
  (void) note;
  ts_text_add(why, "built without liburing");
  return NULL;
}

const ts_store_engine ts_store_uring = {.name = "io_uring", .is_deep = true, .create = no_ring};
