/* What moves state between memories and files takes. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/measure.h"
#include "engine/peak.h"
#include "io/store.h"

#include <string.h>

enum { RUNS = 5 };

/* ---- a device's memory and the host's ---- */

/* Bytes/s of copies one way or both at once, of either. */
static double rate_of_queues(ts_device *device, char *there, char *here, size_t bytes, bool in, bool out) {
  double seconds[RUNS];
  for (int i = 0; i < RUNS; ++i) {
    void *ended[2] = {device->ops->event_create(device, false), device->ops->event_create(device, false)};
    double start = ts_seconds();
    if (in) {
      device->ops->copy(device, there, here, bytes, TS_QUEUE_IN);
      device->ops->record(device, ended[0], TS_QUEUE_IN);
    }
    if (out) {
      device->ops->copy(device, here + bytes, there + bytes, bytes, TS_QUEUE_OUT);
      device->ops->record(device, ended[1], TS_QUEUE_OUT);
    }
    for (int k = 0; k < 2; ++k) {
      if (k == 0 ? in : out) {
        device->ops->finish(device, ended[k]);
      }
    }
    seconds[i] = ts_seconds() - start;
    device->ops->event_destroy(device, ended[0]);
    device->ops->event_destroy(device, ended[1]);
  }
  return (double) bytes / ts_median(seconds, RUNS);
}

static void measure_device(const ts_measuring *of, ts_device *device, ts_measured *m) {
  const size_t bytes = of->quick ? (size_t) 1 << 20 : (size_t) 256 << 20;
  char *there = of->backend->allocate(2 * bytes), *here = device->ops->allocate_host(device, 2 * bytes);
  ts_measure_begin(of->world);
  m->in = rate_of_queues(device, there, here, bytes, true, false);
  ts_measure_begin(of->world);
  m->out = rate_of_queues(device, there, here, bytes, false, true);
  ts_measure_begin(of->world);
  m->both = rate_of_queues(device, there, here, bytes, true, true);
  device->ops->release_host(device, here);
  of->backend->release(there, 2 * bytes);
}

/* ---- files ---- */

/* Seconds to write or read the whole file, some pieces ahead. */
static double run_store(ts_store *store, bool write, int64_t bytes, char *memory) {
  enum { AHEAD = 4, PIECE = 8 << 20 };
  uint64_t ticket[AHEAD];
  const int64_t n = bytes / PIECE;
  double start = ts_seconds();
  for (int64_t k = 0; k < n + AHEAD; ++k) {
    if (k >= AHEAD) {
      (void) ts_store_wait(store, ticket[k % AHEAD]);
    }
    if (k < n) {
      ticket[k % AHEAD] = ts_store_start(store, write, k * PIECE, PIECE, memory + k % AHEAD * PIECE);
    }
  }
  return ts_seconds() - start;
}

static ts_status measure_files(const ts_measuring *of, const char *directory, ts_measured *m, ts_error *err) {
  enum { BLOCK = 1 << 20, DEPTH = 8, MEMORY = 32 << 20 };
  const int64_t bytes = of->quick ? MEMORY : (int64_t) 256 << 20;
  const ts_store_extent extent = {0, bytes, BLOCK};
  const ts_store_options options = {
      .directory = directory, .name = "bench", .block_size = BLOCK, .queue_depth = DEPTH, .threads = 1};
  ts_store *store = NULL;
  ts_status status = ts_world_agree(of->world, ts_store_create(&store, &options, &extent, 1, err), err);
  if (status == TS_OK) {
    double seconds[2][RUNS];
    char *memory = ts_map(MEMORY);
    for (int64_t i = 0; i < MEMORY / 8; ++i) {
      ((uint64_t *) (void *) memory)[i] = ts_mix(1, (uint64_t) i);
    }
    for (int i = -1; i < RUNS; ++i) { /* the first time makes the file */
      for (int way = 0; way < 2; ++way) {
        ts_measure_begin(of->world);
        seconds[way][i < 0 ? 0 : i] = run_store(store, way == 0, bytes, memory);
      }
    }
    m->write = (double) bytes / ts_median(seconds[0], RUNS);
    m->read = (double) bytes / ts_median(seconds[1], RUNS);
    ts_unmap(memory, MEMORY);
  }
  ts_store_destroy(&store);
  return status;
}

ts_status ts_measure_copies(const ts_measuring *of, const char *directory, ts_measured *m, ts_error *err) {
  ts_device *device = ts_backend_device(of->backend);
  if (device != NULL) {
    measure_device(of, device, m);
  }
  return directory != NULL ? measure_files(of, directory, m, err) : TS_OK;
}
