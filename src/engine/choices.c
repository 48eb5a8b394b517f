/* Measured choices of a device: which algorithm computes each product.  They are made once and kept, because another
 * choice is another order of sums: rank 0 reads them from the run directory or measures, and everybody gets them.  Of a
 * model's shares the ranks of one group along tp measure, one after another, what those before had not. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"

#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 4 << 20 };

static char *path_of(const ts_deck *deck) {
  return ts_format("%s/algorithms.txt", deck->run.directory);
}

static ts_status read_choices(const ts_engine *e, const char *path, ts_error *err) {
  ts_device *device = ts_backend_device(e->backend);
  char *text = NULL;
  size_t length;
  ts_status status = ts_read_file(path, MOST_BYTES, &text, &length, err);
  ts_error why = {0};
  if (status == TS_OK && device->ops->choices_read(device, text, &why) != TS_OK) {
    status = ts_error_add(err, "%s: %s", path, why.text);
  }
  ts_error_clear(&why);
  ts_free(text);
  return status;
}

/* The file that the deck names has to fit; one that an earlier job left need not: it may be of another device, and says
 * so. */
static ts_status read_kept(const ts_engine *e, ts_error *err) {
  if (e->deck->run.algorithms[0] != 0) {
    return read_choices(e, e->deck->run.algorithms, err);
  }
  char *path = path_of(e->deck);
  ts_error why = {0};
  if (e->deck->run.directory[0] != 0 && access(path, F_OK) == 0 && read_choices(e, path, &why) != TS_OK) {
    ts_log(TS_LOG_WARNING, "%s; algorithms are chosen anew", why.text);
  }
  ts_error_clear(&why);
  ts_free(path);
  return TS_OK;
}

/* Lines of the choices as they are now. */
static int count_choices(ts_device *device) {
  char *text = device->ops->choices_write(device);
  int n = 0;
  for (const char *c = text; *c != 0; ++c) {
    n += *c == '\n';
  }
  ts_free(text);
  return n;
}

/* Whoever names a file wants the bits of that run. */
static void warn_incomplete(const ts_engine *e, int more) {
  if (e->deck->run.algorithms[0] != 0 && more > 0) {
    ts_log(TS_LOG_WARNING,
           "%s: %d products or attentions of this run are not in it: measured here, the bits need not be those of that "
           "run",
           e->deck->run.algorithms, more);
  }
}

static void measure(const ts_engine *e, ts_device *device) {
  for (int i = 0; i < TS_N_PROGRAMS && e->deck->run.measure_algorithms; ++i) {
    if (e->program[i] != NULL) {
      device->ops->choices_measure(device, e->program[i]->graph);
    }
  }
}

/* The choices of a rank, with those of the products that it measures, on every rank. */
static void choose_on(const ts_engine *e, ts_device *device, int root) {
  char *mine = NULL;
  if (e->mesh.rank == root) {
    measure(e, device);
    mine = device->ops->choices_write(device);
  }
  char *text = ts_world_share_text(e->world, mine, root);
  ts_free(mine);
  ts_error why = {0};
  ts_status status = e->mesh.rank == root ? TS_OK : device->ops->choices_read(device, text, &why);
  if (ts_world_agree(e->world, status, &why) != TS_OK) {
    ts_log(TS_LOG_WARNING, "a rank does not take the algorithms of rank %d, but its library's own: %s", root, why.text);
  }
  ts_error_clear(&why);
  ts_free(text);
}

ts_status ts_engine_choose(ts_engine *e, ts_error *err) {
  ts_device *device = ts_backend_device(e->backend);
  if (device == NULL) {
    return TS_OK;
  }
  bool first = ts_world_rank(e->world) == 0;
  ts_status status = ts_world_agree(e->world, first ? read_kept(e, err) : TS_OK, err);
  if (status != TS_OK) {
    return status;
  }
  int before = count_choices(device);
  const ts_mesh mesh = ts_mesh_at(&e->mesh, 0);
  const unsigned axes = TS_AXES(TS_AXIS_TP) | TS_AXES(TS_AXIS_PP); /* along which ranks have other products */
  for (int i = 0; i < ts_mesh_group_size(&mesh, axes); ++i) {
    choose_on(e, device, ts_mesh_group_member(&mesh, axes, i));
  }
  if (first) {
    warn_incomplete(e, count_choices(device) - before);
  }
  return TS_OK;
}

void ts_engine_keep_choices(const ts_engine *e) {
  ts_device *device = ts_backend_device(e->backend);
  if (device == NULL || ts_world_rank(e->world) != 0) {
    return;
  }
  char *path = path_of(e->deck), *text = device->ops->choices_write(device);
  ts_error err = {0};
  if (ts_write_file(path, text, strlen(text), &err) != TS_OK) {
    ts_log(TS_LOG_WARNING, "%s; a resumed run may choose other algorithms", err.text);
  }
  ts_error_clear(&err);
  ts_free(text);
  ts_free(path);
}
