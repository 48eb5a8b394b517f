/* Measured choices of a device: which algorithm computes each product.  They are made once and kept, because another choice is
 * another order of sums: rank 0 reads them from the run directory or measures, and everybody gets them. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"

#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 4 << 20 };

static char *path_of(const ts_deck *deck) {
  return ts_format("%s/algorithms.txt", deck->run.directory);
}

/* A file that does not fit is no error: it is of another device, and says so. */
static void read_kept(const ts_engine *e) {
  char *path = path_of(e->deck), *text = NULL;
  ts_error err = {0};
  if (e->deck->run.directory[0] != 0 && access(path, F_OK) == 0) {
    ts_status status = ts_read_file(path, MOST_BYTES, &text, NULL, &err);
    status = status == TS_OK ? e->backend->device->choices_read(text, &err) : status;
    if (status != TS_OK) {
      ts_log(TS_LOG_WARNING, "%s: %s; algorithms are chosen anew", path, err.text);
    }
  }
  ts_error_clear(&err);
  ts_free(text);
  ts_free(path);
}

static char *share(ts_world *world, char *text) {
  ts_comm *all = ts_world_all(world);
  int64_t length = text != NULL ? (int64_t) strlen(text) : 0;
  all->ops->broadcast(all, &length, sizeof length, 0);
  if (text == NULL) {
    text = ts_calloc((size_t) length + 1, 1);
  }
  all->ops->broadcast(all, text, (size_t) length, 0);
  return text;
}

void ts_engine_choose(ts_engine *e) {
  const ts_device_ops *device = e->backend->device;
  if (device == NULL) {
    return;
  }
  char *text = NULL;
  if (ts_world_rank(e->world) == 0) {
    read_kept(e);
    for (int i = 0; i < TS_N_PROGRAMS && e->deck->run.measure_algorithms; ++i) {
      if (e->program[i] != NULL) {
        device->choices_measure(e->program[i]->graph);
      }
    }
    text = device->choices_write();
  }
  text = share(e->world, text);
  ts_error err = {0};
  ts_status status = ts_world_rank(e->world) != 0 ? device->choices_read(text, &err) : TS_OK;
  if (ts_world_agree(e->world, status, &err) != TS_OK) {
    ts_log(TS_LOG_WARNING, "a rank does not take the algorithms of rank 0, but its library's own: %s", err.text);
  }
  ts_error_clear(&err);
  ts_free(text);
}

void ts_engine_keep_choices(const ts_engine *e) {
  if (e->backend->device == NULL || ts_world_rank(e->world) != 0) {
    return;
  }
  char *path = path_of(e->deck), *text = e->backend->device->choices_write();
  ts_error err = {0};
  if (ts_write_file(path, text, strlen(text), &err) != TS_OK) {
    ts_log(TS_LOG_WARNING, "%s; a resumed run may choose other algorithms", err.text);
  }
  ts_error_clear(&err);
  ts_free(text);
  ts_free(path);
}
