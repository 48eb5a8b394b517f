/* Reading pieces: each is cut by the shards' cut points, all cuts are sorted by shard, dataset and place, so that every
 * shard file is opened once and every chunk read once for a call.  Some chunks are kept for the next call: of a matrix
 * whose rows several ranks share, calls one after another need a part of the same chunks. */
#include "base/memory.h"
#include "base/text.h"
#include "io/checkpoint_format.h"
#include "io/checksum.h"
#include "io/hdf5.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct open_file {
  hid_t file; /* 0: free */
  int shard;
  uint64_t used;
} open_file;

#define KEPT_CHUNKS 16 /* rows of a matrix that is cut by columns come from as many shards in turn */

typedef struct kept_chunk {
  int shard, part, state;
  int64_t first;        /* its first element */
  uint64_t used;        /* 0: it has none */
  unsigned char *bytes; /* owned: a chunk and its checksum; NULL until it is needed */
} kept_chunk;

struct ts_checkpoint_reader {
  char *directory;
  const ts_checkpoint *checkpoint;
  open_file file[TS_CHECKPOINT_OPEN_FILES];
  uint64_t clock;
  hid_t dataset; /* 0: none */
  int shard, part, state;
  kept_chunk kept[KEPT_CHUNKS];
  void *converted; /* owned: a chunk in any type, for sinks */
};

/* A piece within one shard; `first` counts from the shard's first element. */
typedef struct cut_piece {
  int shard, part, state;
  int64_t first, count;
  int64_t at; /* its place in the piece */
  const ts_checkpoint_piece *piece;
} cut_piece;

ts_checkpoint_reader *ts_checkpoint_reader_open(const char *directory, const ts_checkpoint *checkpoint) {
  ts_checkpoint_reader *r = ts_calloc(1, sizeof *r);
  r->directory = ts_strdup(directory);
  r->checkpoint = checkpoint;
  return r;
}

static void close_shard_dataset(ts_checkpoint_reader *r) {
  if (r->dataset > 0) {
    ts_hdf5_lock();
    H5Dclose(r->dataset);
    ts_hdf5_unlock();
  }
  r->dataset = 0;
}

void ts_checkpoint_reader_close(ts_checkpoint_reader **reader) {
  ts_checkpoint_reader *r = *reader;
  if (r == NULL) {
    return;
  }
  close_shard_dataset(r);
  for (int i = 0; i < TS_CHECKPOINT_OPEN_FILES; ++i) {
    if (r->file[i].file > 0) {
      ts_hdf5_lock();
      H5Fclose(r->file[i].file);
      ts_hdf5_unlock();
    }
  }
  for (int i = 0; i < KEPT_CHUNKS; ++i) {
    ts_free(r->kept[i].bytes);
  }
  ts_free(r->converted);
  ts_free(r->directory);
  ts_free(r);
  *reader = NULL;
}

/* ---- files and datasets ---- */

static ts_status refuse_shard(const ts_checkpoint_reader *r, int shard, const char *dataset, const char *why,
                              ts_error *err) {
  char *name = ts_checkpoint_shard_name(shard);
  ts_error_add(err, "%s/%s: %s%s%s", r->directory, name, dataset != NULL ? dataset : "", dataset != NULL ? " " : "",
               why);
  ts_free(name);
  return TS_BAD_INPUT;
}

/* The file of a shard; the one that was used longest ago makes room. */
static open_file *find_shard_file(ts_checkpoint_reader *r, int shard, ts_error *err) {
  open_file *slot = &r->file[0];
  for (int i = 0; i < TS_CHECKPOINT_OPEN_FILES; ++i) {
    open_file *f = &r->file[i];
    if (f->file > 0 && f->shard == shard) {
      f->used = ++r->clock;
      return f;
    }
    slot = f->used < slot->used ? f : slot;
  }
  char *name = ts_checkpoint_shard_name(shard), *path = ts_format("%s/%s", r->directory, name);
  ts_hdf5_lock();
  if (slot->file > 0) {
    H5Fclose(slot->file);
  }
  *slot = (open_file){.file = ts_hdf5_open(path), .shard = shard, .used = ++r->clock};
  ts_hdf5_unlock();
  if (slot->file < 0) {
    ts_error_add(err, "%s: %s", path, access(path, R_OK) == 0 ? "is not an HDF5 file" : "is missing or cannot be read");
    *slot = (open_file){0};
  }
  ts_free(name);
  ts_free(path);
  return slot->file > 0 ? slot : NULL;
}

/* Rank, size, type, chunks and filter are those the index implies.  The lock is held. */
static bool is_as_expected(hid_t dataset, ts_dtype dtype, int64_t count, int64_t chunk) {
  hid_t space = H5Dget_space(dataset), type = H5Dget_type(dataset), create = H5Dget_create_plist(dataset);
  hid_t wanted = ts_hdf5_type(dtype);
  hsize_t dims = 0, chunks = 0;
  unsigned flags, config;
  size_t n_values = 0;
  bool ok = space >= 0 && type >= 0 && create >= 0 && H5Sget_simple_extent_ndims(space) == 1 &&
            H5Sget_simple_extent_dims(space, &dims, NULL) == 1 && dims == (hsize_t) count &&
            H5Tequal(type, wanted) > 0 && H5Pget_layout(create) == H5D_CHUNKED &&
            H5Pget_chunk(create, 1, &chunks) == 1 && chunks == (hsize_t) chunk && H5Pget_nfilters(create) == 1 &&
            H5Pget_filter2(create, 0, &flags, &n_values, NULL, 0, NULL, &config) == H5Z_FILTER_FLETCHER32;
  H5Tclose(wanted);
  if (create >= 0) {
    H5Pclose(create);
  }
  if (type >= 0) {
    H5Tclose(type);
  }
  if (space >= 0) {
    H5Sclose(space);
  }
  return ok;
}

/* Of the state, in the shard. */
static int64_t shard_elements(const ts_saved_part *part, const cut_piece *p) {
  return ts_saved_state_cut(part, p->state, p->shard + 1) - ts_saved_state_cut(part, p->state, p->shard);
}

static ts_status open_shard_dataset(ts_checkpoint_reader *r, const cut_piece *p, ts_error *err) {
  const ts_saved_part *part = &r->checkpoint->part[p->part];
  int64_t count = shard_elements(part, p);
  if (r->dataset > 0 && r->shard == p->shard && r->part == p->part && r->state == p->state) {
    return TS_OK;
  }
  close_shard_dataset(r);
  open_file *f = find_shard_file(r, p->shard, err);
  if (f == NULL) {
    return TS_BAD_INPUT;
  }
  char *name = ts_checkpoint_dataset(part, p->state);
  ts_dtype dtype = part->state[p->state].dtype;
  ts_hdf5_lock();
  hid_t dataset = H5Dopen2(f->file, name, H5P_DEFAULT);
  bool good = dataset >= 0 && is_as_expected(dataset, dtype, count, ts_chunk_elements(count, ts_dtype_size(dtype)));
  if (dataset >= 0 && !good) {
    H5Dclose(dataset);
  }
  ts_hdf5_unlock();
  ts_status status =
      good ? TS_OK
           : refuse_shard(r, p->shard, name,
                          dataset < 0 ? "is missing" : "has another size or type than the index says", err);
  if (good) {
    r->dataset = dataset;
    r->shard = p->shard;
    r->part = p->part;
    r->state = p->state;
  }
  ts_free(name);
  return status;
}

/* ---- chunks ---- */

static bool checksum_holds(const unsigned char *buffer, size_t bytes) {
  uint32_t stored = 0;
  for (int i = 0; i < TS_CHECKSUM_BYTES; ++i) {
    stored |= (uint32_t) buffer[bytes + (size_t) i] << 8 * i;
  }
  return ts_fletcher32(buffer, bytes) == stored;
}

/* The chunk of \a bytes that begins with element `first` of the open dataset. */
static ts_status load_chunk(ts_checkpoint_reader *r, int64_t first, size_t bytes, unsigned char *to, ts_error *err) {
  hsize_t offset = (hsize_t) first, stored = 0;
  uint32_t mask = 0;
  ts_hdf5_lock();
  bool ok = H5Dget_chunk_storage_size(r->dataset, &offset, &stored) >= 0 && stored == bytes + TS_CHECKSUM_BYTES &&
            H5Dread_chunk(r->dataset, H5P_DEFAULT, &offset, &mask, to) >= 0 && mask == 0;
  ts_hdf5_unlock();
  if (ok && checksum_holds(to, bytes)) {
    return TS_OK;
  }
  char *name = ts_checkpoint_dataset(&r->checkpoint->part[r->part], r->state);
  ts_status status =
      refuse_shard(r, r->shard, name, ok ? "is damaged: a checksum does not hold" : "cannot be read", err);
  ts_free(name);
  return status;
}

/* The chunk is kept, or takes the place of the one that was used longest ago.  \return NULL on error. */
static const unsigned char *find_chunk(ts_checkpoint_reader *r, const cut_piece *p, int64_t first, size_t bytes,
                                       ts_error *err) {
  kept_chunk *slot = &r->kept[0];
  for (kept_chunk *k = r->kept; k < r->kept + KEPT_CHUNKS; ++k) {
    if (k->used > 0 && k->shard == p->shard && k->part == p->part && k->state == p->state && k->first == first) {
      k->used = ++r->clock;
      return k->bytes;
    }
    slot = k->used < slot->used ? k : slot;
  }
  unsigned char *to = slot->bytes != NULL ? slot->bytes : ts_malloc((size_t) TS_CHUNK_BYTES + TS_CHECKSUM_BYTES);
  *slot = (kept_chunk){.bytes = to};
  if (open_shard_dataset(r, p, err) != TS_OK || load_chunk(r, first, bytes, to, err) != TS_OK) {
    return NULL;
  }
  *slot = (kept_chunk){p->shard, p->part, p->state, first, ++r->clock, to};
  return to;
}

/* `n` elements of a piece from its element `at` on. */
static void hand_over(ts_checkpoint_reader *r, const ts_checkpoint_piece *piece, int64_t at, const void *values,
                      ts_dtype dtype, int64_t n) {
  size_t size = ts_dtype_size(piece->dtype);
  if (piece->to != NULL) {
    ts_convert((char *) piece->to + (size_t) at * size, piece->dtype, values, dtype, (size_t) n);
    return;
  }
  if (r->converted == NULL) {
    r->converted = ts_malloc((size_t) TS_CHUNK_BYTES * sizeof(double));
  }
  ts_convert(r->converted, piece->dtype, values, dtype, (size_t) n);
  piece->sink(piece->user, at, n, r->converted);
}

static ts_status read_cut(ts_checkpoint_reader *r, const cut_piece *p, ts_error *err) {
  const ts_saved_part *part = &r->checkpoint->part[p->part];
  ts_dtype dtype = part->state[p->state].dtype;
  size_t size = ts_dtype_size(dtype);
  int64_t chunk = ts_chunk_elements(shard_elements(part, p), size);
  for (int64_t at = p->first; at < p->first + p->count;) {
    int64_t first = at / chunk * chunk, end = first + chunk < p->first + p->count ? first + chunk : p->first + p->count;
    const unsigned char *values = find_chunk(r, p, first, (size_t) chunk * size, err);
    if (values == NULL) {
      return TS_BAD_INPUT;
    }
    hand_over(r, p->piece, p->at + at - p->first, values + (size_t) (at - first) * size, dtype, end - at);
    at = end;
  }
  return TS_OK;
}

/* ---- pieces ---- */

static int compare_cuts(const void *x, const void *y) {
  const cut_piece *a = x, *b = y;
  if (a->shard != b->shard) {
    return a->shard < b->shard ? -1 : 1;
  }
  if (a->part != b->part) {
    return a->part < b->part ? -1 : 1;
  }
  return a->state != b->state ? (a->state < b->state ? -1 : 1) : (a->first > b->first) - (a->first < b->first);
}

ts_status ts_checkpoint_read(ts_checkpoint_reader *r, const ts_checkpoint_piece *piece, int n, ts_error *err) {
  const ts_checkpoint *c = r->checkpoint;
  cut_piece *cut = NULL;
  int n_cuts = 0, capacity = 0;
  for (int i = 0; i < n; ++i) {
    const ts_checkpoint_piece *p = &piece[i];
    const ts_saved_part *part = &c->part[p->part];
    TS_ASSERT(p->state < part->n_states && p->first >= 0 && p->count >= 0);
    TS_ASSERT(p->first + p->count <= ts_saved_state_cut(part, p->state, c->n_shards));
    for (int64_t at = p->first; at < p->first + p->count;) {
      int shard = ts_checkpoint_shard_of(c, part, p->state, at);
      int64_t begin = ts_saved_state_cut(part, p->state, shard), end = ts_saved_state_cut(part, p->state, shard + 1);
      end = end < p->first + p->count ? end : p->first + p->count;
      TS_GROW(cut, n_cuts, capacity);
      cut[n_cuts++] = (cut_piece){.shard = shard,
                                  .part = p->part,
                                  .state = p->state,
                                  .first = at - begin,
                                  .count = end - at,
                                  .at = at - p->first,
                                  .piece = p};
      at = end;
    }
  }
  if (n_cuts > 1) {
    qsort(cut, (size_t) n_cuts, sizeof *cut, compare_cuts);
  }
  ts_status status = TS_OK;
  for (int i = 0; i < n_cuts && status == TS_OK; ++i) {
    status = read_cut(r, &cut[i], err);
  }
  ts_free(cut);
  return status;
}
