/* Shard files.  A chunk is copied into a buffer, given its checksum there, and handed to HDF5 as it shall lie in the
 * file: the filter that the dataset declares never runs, and the lock is held for the write alone. */
#include "base/memory.h"
#include "base/text.h"
#include "io/checkpoint_format.h"
#include "io/checksum.h"
#include "io/hdf5.h"

#include <string.h>

int64_t ts_chunk_elements(int64_t count, size_t size) {
  int64_t most = TS_CHUNK_BYTES / (int64_t) size, n = (count + most - 1) / most;
  return n > 0 ? (count + n - 1) / n : 1;
}

char *ts_checkpoint_dataset(const ts_saved_part *part, int state) {
  return ts_format("/%s/%s", part->name, part->state[state].name);
}

typedef struct shard_writer {
  const ts_checkpoint *checkpoint;
  ts_checkpoint_source *source;
  void *user;
  unsigned char *buffer; /* a chunk and its checksum */
} shard_writer;

static hid_t create_part_dataset(hid_t file, const ts_saved_part *part, int state, int64_t count) {
  char *name = ts_checkpoint_dataset(part, state);
  hsize_t dims = (hsize_t) count, chunk = (hsize_t) ts_chunk_elements(count, ts_dtype_size(part->state[state].dtype));
  hid_t create = ts_hdf5_dataset_properties();
  H5Pset_chunk(create, 1, &chunk);
  H5Pset_fletcher32(create);
  H5Pset_fill_time(create, H5D_FILL_TIME_NEVER);
  hid_t space = H5Screate_simple(1, &dims, NULL), type = ts_hdf5_type(part->state[state].dtype);
  bool group = ts_hdf5_make_group(file, part->name);
  hid_t dataset = group ? H5Dcreate2(file, name, type, space, H5P_DEFAULT, create, H5P_DEFAULT) : -1;
  H5Tclose(type);
  H5Sclose(space);
  H5Pclose(create);
  ts_free(name);
  return dataset;
}

/* One chunk of which `bytes` are in the buffer, the rest of a last one zero. */
static bool write_chunk(hid_t dataset, size_t bytes, size_t chunk, int64_t first, unsigned char *buffer) {
  memset(buffer + bytes, 0, chunk - bytes);
  uint32_t sum = ts_fletcher32(buffer, chunk);
  for (int i = 0; i < TS_CHECKSUM_BYTES; ++i) {
    buffer[chunk + (size_t) i] = (unsigned char) (sum >> 8 * i);
  }
  hsize_t offset = (hsize_t) first;
  ts_hdf5_lock();
  herr_t status = H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, &offset, chunk + TS_CHECKSUM_BYTES, buffer);
  ts_hdf5_unlock();
  return status >= 0;
}

static bool write_dataset(hid_t file, const shard_writer *w, int index, int state, int64_t count) {
  const ts_saved_part *part = &w->checkpoint->part[index];
  size_t size = ts_dtype_size(part->state[state].dtype);
  int64_t chunk = ts_chunk_elements(count, size);
  ts_hdf5_lock();
  hid_t dataset = create_part_dataset(file, part, state, count);
  ts_hdf5_unlock();
  bool ok = dataset >= 0;
  for (int64_t first = 0; ok && first < count; first += chunk) {
    int64_t n = count - first < chunk ? count - first : chunk;
    w->source(w->user, index, state, first, n, w->buffer);
    ok = write_chunk(dataset, (size_t) n * size, (size_t) chunk * size, first, w->buffer);
  }
  ts_hdf5_lock();
  ok = dataset >= 0 && H5Dclose(dataset) >= 0 && ok;
  ts_hdf5_unlock();
  return ok;
}

ts_status ts_checkpoint_write_shard(const char *directory, const ts_checkpoint *c, int shard,
                                    ts_checkpoint_source *source, void *user, ts_error *err) {
  char *name = ts_checkpoint_shard_name(shard), *path = ts_format("%s/%s", directory, name);
  const shard_writer w = {c, source, user, ts_malloc((size_t) TS_CHUNK_BYTES + TS_CHECKSUM_BYTES)};
  ts_hdf5_lock();
  hid_t file = ts_hdf5_create(path, err);
  ts_hdf5_unlock();
  bool ok = true;
  for (int i = 0; file >= 0 && ok && i < c->n_parts; ++i) {
    const ts_saved_part *part = &c->part[i];
    for (int k = 0; ok && k < part->n_states; ++k) {
      int64_t count = ts_saved_state_cut(part, k, shard + 1) - ts_saved_state_cut(part, k, shard);
      ok = count == 0 || write_dataset(file, &w, i, k, count);
    }
  }
  ts_status status = file >= 0 ? ts_hdf5_finish(file, path, err) : TS_BAD_INPUT;
  if (status == TS_OK && !ok) {
    status = ts_error_add(err, "%s: HDF5 could not write it", path);
  }
  ts_free(w.buffer);
  ts_free(path);
  ts_free(name);
  return status;
}
