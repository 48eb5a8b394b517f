/* What an engine computes on. */
#include "engine/engine.h"

#include "base/log.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

static int visible_devices(void) {
  return ts_backend_cuda() != NULL ? ts_cuda_devices() : 0;
}

/* Whoever has a GPU and a driver wanted it used. */
static void warn_old_driver(void) {
  int built, driver = ts_cuda_driver(&built);
  if (driver > 0 && driver / 1000 < built / 1000) {
    ts_log(TS_LOG_WARNING,
           "run.device is auto: the driver knows CUDA %d.%d, and this Tessera was built with CUDA %d.%d: its GPUs are "
           "not used",
           driver / 1000, driver % 1000 / 10, built / 1000, built % 1000 / 10);
  }
}

/* How many ranks have it, and the first that has not (-1: none).  Collective. */
static int count_ranks(ts_world *world, bool mine, int *without) {
  int ranks = ts_world_size(world), with = 0;
  unsigned char has = (unsigned char) mine, *everybody = ts_world_gather(world, &has, 1);
  *without = -1;
  for (int r = 0; r < ranks; ++r) {
    with += everybody[r];
    *without = everybody[r] == 0 && *without < 0 ? r : *without;
  }
  ts_free(everybody);
  return with;
}

/* auto: the same answer on every rank, or nothing would fit together. */
static ts_status choose_backend(const char *wanted, ts_world *world, bool *cuda, ts_error *err) {
  *cuda = strcmp(wanted, "cuda") == 0;
  if (strcmp(wanted, "auto") != 0) {
    return TS_OK;
  }
  int without, ranks = ts_world_size(world), with = count_ranks(world, visible_devices() > 0, &without);
  *cuda = with == ranks;
  return with == 0 || with == ranks
             ? TS_OK
             : ts_error_add(
                   err,
                   "run.device is auto, and %d of %d ranks see a GPU; the first that sees none is rank %d: ask for "
                   "GPUs on every node, or set run.device = \"cpu\"",
                   with, ranks, without);
}

static ts_status open_device(const ts_deck *deck, const ts_world *world, ts_error *err) {
  if (ts_backend_cuda() == NULL) {
    return ts_deck_error(deck, "run.device", err,
                         "cuda, but this Tessera was built without CUDA: configure it with --with-cuda=DIR");
  }
  if (deck->debug.memcheck) {
    return ts_deck_error(deck, "debug.memcheck", err,
                         "it compares the host's memory; on a GPU run compute-sanitizer, or set run.device = \"cpu\"");
  }
  const ts_cuda_options options = {.local_rank = ts_world_local_rank(world),
                                   .tf32 = deck->run.tf32,
                                   .any_order = !deck->run.deterministic,
                                   .time_limit = deck->run.peer_timeout};
  ts_error mine = {0};
  ts_status status = ts_cuda_open(&options, &mine);
  if (status != TS_OK) {
    int rank = ts_world_rank(world);
    ts_error_add(err, "rank %d on %s: %s", rank, ts_world_node_name(world, rank), mine.text);
  }
  ts_error_clear(&mine);
  return status;
}

enum { PLACE = 64 };

/* Each rank's place: its node, by the first of its ranks, and its device's bus.  Launchers may show a rank all GPUs of
 * its node or only its own: what counts is which device it got. */
static ts_status check_shared(ts_world *world, ts_error *err) {
  int rank = ts_world_rank(world);
  char mine[PLACE] = "";
  snprintf(mine, sizeof mine, "%d %s", rank - ts_world_local_rank(world), ts_cuda_bus_id());
  char *place = ts_world_gather(world, mine, sizeof mine);
  ts_status status = TS_OK;
  for (int r = 0; r < rank && status == TS_OK; ++r) {
    if (strcmp(place + (size_t) r * PLACE, mine) == 0) {
      status = ts_error_add(
          err,
          "ranks %d and %d on %s are both on GPU %s of their node, which has %d ranks, and a rank sees %d GPU%s: start "
          "one "
          "rank a GPU (--gpus-per-node, --ntasks-per-node), or let them share with run.share_device = true",
          r, rank, ts_world_node_name(world, rank), ts_cuda_bus_id(), ts_world_local_size(world), ts_cuda_devices(),
          ts_cuda_devices() == 1 ? "" : "s");
    }
  }
  ts_free(place);
  return status;
}

void ts_engine_set_communication(const ts_engine *e) {
  ts_device *device = ts_backend_device(e->backend);
  if (device != NULL) {
    device->ops->set_time_limit(device, e->timeouts.peer);
    ts_world_set_device_options(e->world,
                                &(ts_device_options){.exact = e->deck->run.exact_sums, .time_limit = e->timeouts.peer});
  }
}

ts_cudnn_use ts_engine_cudnn_use(const ts_deck *deck, const ts_backend *backend) {
  bool may = backend->device != NULL && strcmp(deck->run.attention, "auto") == 0 && deck->run.measure_algorithms;
  return !may ? TS_CUDNN_NEVER : deck->run.deterministic ? TS_CUDNN_ORDERED : TS_CUDNN_ANY_ORDER;
}

ts_status ts_engine_decide_precision(ts_world *world, ts_deck *deck, ts_text *said, ts_error *err) {
  bool cuda;
  int without;
  if (deck->bf16.enabled != TS_SWITCH_AUTO) {
    return TS_OK;
  }
  ts_status status = ts_world_agree(world, choose_backend(deck->run.device, world, &cuda, err), err);
  const ts_backend *backend = cuda ? ts_backend_cuda() : ts_backend_cpu();
  if (status != TS_OK || backend == NULL) {
    return status; /* without CUDA: ts_engine_backend refuses it */
  }
  int with = count_ranks(world, backend->has_bf16(), &without);
  char *why =
      without < 0
          ? ts_strdup("all ranks have fast bf16 products")
          : ts_format("%d of %d ranks have bf16 products faster than fp32's; the first without is rank %d on %s", with,
                      ts_world_size(world), without, ts_world_node_name(world, without));
  ts_deck_decide_precision(deck, without < 0, why, said);
  ts_free(why);
  return TS_OK;
}

ts_status ts_engine_backend(const ts_deck *deck, ts_world *world, const ts_backend **out, ts_error *err) {
  bool cuda;
  ts_status status = choose_backend(deck->run.device, world, &cuda, err);
  *out = cuda ? ts_backend_cuda() : ts_backend_cpu();
  if (status == TS_OK && !cuda && strcmp(deck->run.device, "auto") == 0) {
    warn_old_driver();
  }
  if (status == TS_OK && cuda) {
    status = ts_world_agree(world, open_device(deck, world, err), err);
    if (status == TS_OK && !deck->run.share_device) {
      status = check_shared(world, err);
    }
  }
  return ts_world_agree(world, status, err);
}

ts_status ts_engine_choose_target(const char *target, ts_deck *deck, const ts_backend **backend, ts_error *err) {
  const char *wanted = strcmp(target, "auto") == 0 ? deck->run.device : target;
  bool visible = ts_backend_cuda() != NULL && ts_cuda_devices() > 0;
  bool cuda = strcmp(wanted, "cuda") == 0 || (strcmp(wanted, "auto") == 0 && visible);
  if (strcmp(target, "auto") != 0 && strcmp(target, "cpu") != 0 && strcmp(target, "cuda") != 0) {
    return ts_error_add(err, "--target %s: auto, cpu and cuda are accepted", target);
  }
  *backend = cuda ? ts_backend_cuda() : ts_backend_cpu();
  if (*backend == NULL) {
    return ts_error_add(err, "for a GPU: this Tessera was built without CUDA: configure it with --with-cuda=DIR");
  }
  ts_text said = {0}; /* what is printed names the type */
  ts_deck_decide_precision(deck, (*backend)->has_bf16(), "", &said);
  ts_text_free(&said);
  return TS_OK;
}
