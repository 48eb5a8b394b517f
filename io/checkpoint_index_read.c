/* model.h5, reading.  Nothing in it is believed: columns must have the sizes that the others imply, and the layout must
 * be one that could have been saved. */
#include "base/memory.h"
#include "base/text.h"
#include "io/checkpoint_format.h"
#include "io/hdf5.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_ROWS ((int64_t) 1 << 24)     /* of a table */
#define MOST_ELEMENTS ((int64_t) 1 << 52) /* of all parts: times MOST_STATES and their sizes it is no overflow */
#define MOST_STATES 64
#define LONGEST_WORD 4096
#define LONGEST_DECK ((int64_t) 16 << 20) /* more than any deck prints */

typedef struct reading {
  hid_t file;
  hsize_t bytes; /* of the file: no table is larger, which bounds the memory */
  const char *path;
  ts_error *err;
  bool ok; /* after the first failure nothing more is read */
} reading;

static void refuse_index(reading *r, const char *what, const char *why) {
  if (r->ok) {
    ts_error_add(r->err, "%s: %s %s", r->path, what, why);
    r->ok = false;
  }
}

static bool expect(reading *r, bool holds, const char *what, const char *why) {
  if (!holds) {
    refuse_index(r, what, why);
  }
  return r->ok;
}

/* ---- columns ---- */

/* Contiguous as it was written, and in this file. */
static bool lies_here(hid_t dataset) {
  hid_t create = H5Dget_create_plist(dataset);
  bool ok = create >= 0 && H5Pget_layout(create) == H5D_CONTIGUOUS && H5Pget_external_count(create) == 0;
  if (create >= 0) {
    H5Pclose(create);
  }
  return ok;
}

/* Open a dataset of the given class and rank; its dims. */
static hid_t open_column(reading *r, const char *name, H5T_class_t class, int rank, hsize_t dims[2], size_t *width) {
  if (!r->ok) {
    return -1;
  }
  hid_t dataset = H5Dopen2(r->file, name, H5P_DEFAULT);
  hid_t space = dataset >= 0 ? H5Dget_space(dataset) : -1, type = dataset >= 0 ? H5Dget_type(dataset) : -1;
  bool good = space >= 0 && type >= 0 && lies_here(dataset) && H5Sget_simple_extent_ndims(space) == rank &&
              H5Sget_simple_extent_dims(space, dims, NULL) == rank && H5Tget_class(type) == class &&
              H5Tis_variable_str(type) <= 0;
  *width = type >= 0 ? H5Tget_size(type) : 0;
  if (type >= 0) {
    H5Tclose(type);
  }
  if (space >= 0) {
    H5Sclose(space);
  }
  if (dataset >= 0 && !good) {
    H5Dclose(dataset);
    dataset = -1;
  }
  expect(r, dataset >= 0, name, "is missing or is not a table of Tessera");
  return dataset;
}

static void read_column(reading *r, hid_t dataset, hid_t type, void *to, const char *name) {
  bool ok = H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, to) >= 0;
  H5Dclose(dataset);
  expect(r, ok, name, "cannot be read");
}

static bool fits_file(const reading *r, hsize_t rows, hsize_t bytes_of_row) {
  return rows <= (hsize_t) MOST_ROWS && bytes_of_row <= r->bytes && rows * bytes_of_row <= r->bytes;
}

/* [n0] or [n0][n1]; owned by the caller, NULL on failure.  n0 < 0: any, and set. */
static int64_t *read_numbers(reading *r, const char *name, int64_t *n0, int64_t n1) {
  hsize_t dims[2] = {0, 0};
  size_t width;
  hid_t dataset = open_column(r, name, H5T_INTEGER, n1 > 0 ? 2 : 1, dims, &width);
  if (dataset < 0) {
    return NULL;
  }
  dims[1] = n1 > 0 ? dims[1] : 1;
  bool fits = (*n0 < 0 || dims[0] == (hsize_t) *n0) && (n1 <= 0 || dims[1] == (hsize_t) n1) &&
              dims[1] <= (hsize_t) MOST_ROWS && fits_file(r, dims[0], dims[1] * width);
  if (!expect(r, fits, name, "has another size than the tables beside it")) {
    H5Dclose(dataset);
    return NULL;
  }
  *n0 = (int64_t) dims[0];
  int64_t *to = ts_calloc(dims[0] * dims[1] + 1, sizeof *to);
  read_column(r, dataset, H5T_NATIVE_INT64, to, name);
  return to;
}

/* Words of a fixed width, as one block of rows; a row may lack its terminator. */
typedef struct words {
  char *rows; /* owned */
  size_t width;
  int64_t n;
} words;

static words read_words(reading *r, const char *name, int64_t n, int64_t longest) {
  hsize_t dims[2] = {0, 0};
  words w = {0};
  hid_t dataset = open_column(r, name, H5T_STRING, 1, dims, &w.width);
  if (dataset < 0) {
    return w;
  }
  bool fits = w.width >= 1 && (int64_t) w.width <= longest && (n < 0 || dims[0] == (hsize_t) n) &&
              fits_file(r, dims[0], w.width);
  if (!expect(r, fits, name, "has another size than the tables beside it")) {
    H5Dclose(dataset);
    return w;
  }
  w.n = (int64_t) dims[0];
  w.rows = ts_calloc((size_t) w.n + 1, w.width);
  hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, w.width);
  H5Tset_cset(type, H5T_CSET_UTF8);
  read_column(r, dataset, type, w.rows, name);
  H5Tclose(type);
  return w;
}

static char *take_word(const words *w, int64_t i) {
  return ts_format("%.*s", (int) strnlen(w->rows + (size_t) i * w->width, w->width), w->rows + (size_t) i * w->width);
}

static bool read_attribute(reading *r, const char *name, hid_t memory, void *value) {
  hid_t attribute = r->ok ? H5Aopen(r->file, name, H5P_DEFAULT) : -1;
  hid_t space = attribute >= 0 ? H5Aget_space(attribute) : -1;
  bool ok = space >= 0 && H5Sget_simple_extent_npoints(space) == 1 && H5Aread(attribute, memory, value) >= 0;
  if (space >= 0) {
    H5Sclose(space);
  }
  if (attribute >= 0) {
    H5Aclose(attribute);
  }
  return expect(r, ok, name, "is missing: not the index of a checkpoint");
}

static void read_int64_t(reading *r, const char *name, int64_t *value) {
  if (read_attribute(r, name, H5T_NATIVE_INT64, value)) {
    expect(r, *value >= 0, name, "is negative");
  }
}

static void read_double(reading *r, const char *name, double *value) {
  if (read_attribute(r, name, H5T_NATIVE_DOUBLE, value)) {
    expect(r, isfinite(*value) && *value > 0, name, "is not a positive number");
  }
}

/* ---- tables ---- */

static void read_parts(reading *r, ts_checkpoint *c) {
  words name = read_words(r, "/layout/part_name", -1, LONGEST_WORD);
  int64_t n = name.n, width = 0;
  int64_t *trainable = read_numbers(r, "/layout/part_trainable", &n, 0);
  int64_t *count = read_numbers(r, "/layout/part_count", &n, 0);
  hsize_t dims[2] = {0, 0};
  size_t size;
  hid_t shape = open_column(r, "/layout/part_cuts", H5T_INTEGER, 2, dims, &size);
  if (shape >= 0) {
    H5Dclose(shape);
    width = (int64_t) dims[1];
  }
  if (expect(r, n >= 1 && width >= 2 && width <= MOST_ROWS, "/layout", "has no parts or no shards")) {
    int64_t *cuts = read_numbers(r, "/layout/part_cuts", &n, width);
    c->n_shards = (int) width - 1;
    c->n_parts = (int) n;
    c->part = ts_calloc((size_t) n, sizeof *c->part);
    for (int64_t i = 0; r->ok && i < n; ++i) {
      c->part[i] = (ts_saved_part){.name = take_word(&name, i),
                                   .trainable = trainable[i] != 0,
                                   .count = count[i],
                                   .cuts = ts_malloc((size_t) width * sizeof *cuts)};
      memcpy(c->part[i].cuts, cuts + i * width, (size_t) width * sizeof *cuts);
    }
    ts_free(cuts);
  }
  ts_free(name.rows);
  ts_free(trainable);
  ts_free(count);
}

static ts_dtype dtype_named(const char *name) {
  for (int d = 0; d < TS_N_DTYPES; ++d) {
    if (strcmp(ts_dtype_name((ts_dtype) d), name) == 0 && (ts_dtype_is_working((ts_dtype) d) || d == TS_U8)) {
      return (ts_dtype) d;
    }
  }
  return TS_N_DTYPES;
}

static void add_state(reading *r, ts_checkpoint *c, int64_t part, char *name, char *dtype, int64_t block, int64_t own) {
  ts_saved_state state = {.name = name, .dtype = dtype_named(dtype), .block = block, .own = own};
  bool good = part >= 0 && part < c->n_parts && state.dtype != TS_N_DTYPES && name[0] != 0 && strchr(name, '/') == NULL;
  if (!expect(r, good, "/layout/state_part", "has a state of no part, or of an unknown type") ||
      !expect(r, c->part[part].n_states < MOST_STATES, "/layout/state_part", "has too many states")) {
    ts_free(name);
  } else {
    ts_saved_part *p = &c->part[part];
    p->state = ts_realloc(p->state, (size_t) p->n_states + 1, sizeof *p->state);
    p->state[p->n_states++] = state;
  }
  ts_free(dtype);
}

static void read_states(reading *r, ts_checkpoint *c, int64_t version) {
  words name = read_words(r, "/layout/state_name", -1, LONGEST_WORD);
  words dtype = read_words(r, "/layout/state_dtype", name.n, LONGEST_WORD);
  int64_t n = name.n, *part = read_numbers(r, "/layout/state_part", &n, 0);
  int64_t *block = version > 1 ? read_numbers(r, "/layout/state_block", &n, 0) : NULL;
  int64_t *own = version > 1 ? read_numbers(r, "/layout/state_own", &n, 0) : NULL;
  for (int64_t i = 0; r->ok && i < n; ++i) {
    add_state(r, c, part[i], take_word(&name, i), take_word(&dtype, i), block != NULL ? block[i] : 1,
              own != NULL ? own[i] : 0);
  }
  ts_free(block);
  ts_free(own);
  ts_free(name.rows);
  ts_free(dtype.rows);
  ts_free(part);
}

/* False when the shape overflows, has an empty dimension or is no shape. */
static bool take_shape(ts_saved_parameter *p, int64_t n_dims, const int64_t *shape) {
  if (n_dims < 1 || n_dims > TS_CHECKPOINT_LARGEST_RANK) {
    return false;
  }
  p->n_dims = (int) n_dims;
  p->count = 1;
  for (int d = 0; d < p->n_dims; ++d) {
    p->shape[d] = shape[d];
    if (shape[d] < 1 || __builtin_mul_overflow(p->count, shape[d], &p->count)) {
      return false;
    }
  }
  return true;
}

/* Version 1: every parameter is one whole piece. */
static void read_places(reading *r, ts_checkpoint *c) {
  int64_t n = c->n_parameters;
  int64_t *part = read_numbers(r, "/layout/parameter_part", &n, 0);
  int64_t *offset = read_numbers(r, "/layout/parameter_offset", &n, 0);
  for (int64_t i = 0; r->ok && i < n; ++i) {
    if (expect(r, part[i] >= 0 && part[i] < c->n_parts, "/layout/parameter_part", "names no part")) {
      ts_saved_parameter_set_whole(&c->parameter[i], (int) part[i], offset[i]);
    }
  }
  ts_free(part);
  ts_free(offset);
}

/* The columns of pieces. */
typedef struct pieces {
  int64_t n, taken;
  int64_t *part, *offset, *pitch, *length, *rows; /* rows: NULL before version 3 */
} pieces;

/* Rows are those of some indices of the first dimension. */
static bool are_whole_indices(const ts_saved_parameter *p, int64_t rows) {
  int64_t all = ts_saved_rows(p);
  return rows >= 1 && rows <= all && (rows == all || (p->dim > 0 && rows % (all / p->shape[0]) == 0));
}

/* The next pieces are a parameter's, and must cover it: each begins where the one before ends, of the same rows, or of
 * the next ones. */
static void take_pieces(reading *r, const ts_checkpoint *c, ts_saved_parameter *p, int64_t n, pieces *from) {
  if (!expect(r, n >= 1 && n <= from->n - from->taken, "/layout/parameter_pieces",
              "does not share out the pieces there are")) {
    return;
  }
  int64_t end = 0, row = 0, extent = p->shape[p->dim];
  p->piece = ts_calloc((size_t) n, sizeof *p->piece);
  for (int64_t at = from->taken; r->ok && p->n_pieces < n; ++at) {
    int64_t rows = from->rows != NULL ? from->rows[at] : ts_saved_rows(p);
    expect(r, from->rows != NULL || end < extent, "/layout/piece_length",
           "has an empty piece or one beyond its parameter");
    if (r->ok && end == extent) {
      row += p->piece[p->n_pieces - 1].rows;
      end = 0;
    }
    expect(r, from->part[at] >= 0 && from->part[at] < c->n_parts, "/layout/piece_part", "names no part");
    expect(r, from->length[at] >= 1 && from->length[at] <= extent - end, "/layout/piece_length",
           "has an empty piece or one beyond its parameter");
    expect(r, are_whole_indices(p, rows) && rows <= ts_saved_rows(p) - row, "/layout/piece_rows",
           "has rows that are none of its parameter");
    p->piece[p->n_pieces++] = (ts_saved_piece){.part = (int) from->part[at],
                                               .offset = from->offset[at],
                                               .pitch = from->pitch[at],
                                               .first_row = row,
                                               .rows = rows,
                                               .begin = end,
                                               .length = from->length[at]};
    end += r->ok ? from->length[at] : 0;
  }
  from->taken += n;
  expect(r, r->ok && ts_saved_parameter_is_covered(p), "/layout/piece_length", "does not cover a parameter");
}

static void read_piece_tables(reading *r, ts_checkpoint *c, int64_t version) {
  int64_t n = c->n_parameters;
  int64_t *dim = read_numbers(r, "/layout/parameter_dim", &n, 0);
  int64_t *count = read_numbers(r, "/layout/parameter_pieces", &n, 0);
  pieces from = {.n = -1};
  from.part = read_numbers(r, "/layout/piece_part", &from.n, 0);
  from.offset = read_numbers(r, "/layout/piece_offset", &from.n, 0);
  from.pitch = read_numbers(r, "/layout/piece_pitch", &from.n, 0);
  from.length = read_numbers(r, "/layout/piece_length", &from.n, 0);
  from.rows = version > 2 ? read_numbers(r, "/layout/piece_rows", &from.n, 0) : NULL;
  for (int64_t i = 0; r->ok && i < n; ++i) {
    ts_saved_parameter *p = &c->parameter[i];
    if (expect(r, dim[i] >= 0 && dim[i] < p->n_dims, "/layout/parameter_dim", "names a dimension that is not there")) {
      p->dim = (int) dim[i];
      take_pieces(r, c, p, count[i], &from);
    }
  }
  expect(r, from.taken == from.n, "/layout/parameter_pieces", "does not share out the pieces there are");
  ts_free(dim);
  ts_free(count);
  ts_free(from.part);
  ts_free(from.offset);
  ts_free(from.pitch);
  ts_free(from.length);
  ts_free(from.rows);
}

static void read_parameters(reading *r, ts_checkpoint *c, int64_t version) {
  words name = read_words(r, "/layout/parameter_name", -1, LONGEST_WORD);
  int64_t n = name.n;
  int64_t *n_dims = read_numbers(r, "/layout/parameter_n_dims", &n, 0);
  int64_t *shape = read_numbers(r, "/layout/parameter_shape", &n, TS_CHECKPOINT_LARGEST_RANK);
  if (expect(r, n >= 1, "/layout/parameter_name", "is empty")) {
    c->n_parameters = (int) n;
    c->parameter = ts_calloc((size_t) n, sizeof *c->parameter);
  }
  for (int64_t i = 0; r->ok && i < n; ++i) {
    c->parameter[i].name = take_word(&name, i);
    expect(r, take_shape(&c->parameter[i], n_dims[i], shape + i * TS_CHECKPOINT_LARGEST_RANK),
           "/layout/parameter_shape", "has a shape that no tensor can have");
  }
  if (version == 1) {
    read_places(r, c);
  } else {
    read_piece_tables(r, c, version);
  }
  ts_free(name.rows);
  ts_free(n_dims);
  ts_free(shape);
}

static void read_facts(reading *r, ts_checkpoint *c) {
  words name = read_words(r, "/layout/fact_name", -1, LONGEST_WORD);
  words value = read_words(r, "/layout/fact_value", name.n, LONGEST_WORD);
  if (r->ok) {
    c->fact = ts_calloc((size_t) name.n + 1, sizeof *c->fact);
    for (int64_t i = 0; i < name.n; ++i) {
      c->fact[c->n_facts++] = (ts_saved_fact){.name = take_word(&name, i), .value = take_word(&value, i)};
    }
  }
  ts_free(name.rows);
  ts_free(value.rows);
}

static char *read_deck_copy(reading *r, const char *name) {
  words w = read_words(r, name, 1, LONGEST_DECK);
  char *text = r->ok ? take_word(&w, 0) : NULL;
  ts_free(w.rows);
  return text;
}

/* ---- the layout as a whole ---- */

static void check_state(reading *r, const ts_checkpoint *c, const ts_saved_part *part, const ts_saved_state *state) {
  bool blocks = state->block >= 1 && state->block <= MOST_ELEMENTS;
  for (int s = 0; s < c->n_shards && blocks; ++s) {
    blocks = part->cuts[s] % state->block == 0 || part->cuts[s] == part->count;
  }
  expect(r, blocks && (state != part->state || state->block == 1), "/layout/state_block",
         "has blocks that no shard begins with");
  expect(r, state->own >= 0 && state->own <= part->count && (state != part->state || state->own == 0),
         "/layout/state_own", "has a state larger than its part");
}

static void check_part(reading *r, const ts_checkpoint *c, const ts_saved_part *part) {
  bool cuts = part->count >= 1 && part->cuts[0] == 0 && part->cuts[c->n_shards] == part->count;
  for (int s = 0; s < c->n_shards; ++s) {
    cuts = cuts && part->cuts[s] <= part->cuts[s + 1];
  }
  expect(r, cuts, "/layout/part_cuts", "does not cut its parts from 0 to their ends in ascending order");
  expect(r, part->n_states >= 1 && strcmp(part->state[0].name, "parameter") == 0, "/layout/state_name",
         "has a part whose first state is not \"parameter\"");
  for (int k = 0; cuts && k < part->n_states; ++k) {
    check_state(r, c, part, &part->state[k]);
  }
}

static int compare_strings(const void *a, const void *b) {
  return strcmp(*(char *const *) a, *(char *const *) b);
}

/* Sorts the names. */
static void check_names(reading *r, char **name, int n, const char *what) {
  qsort(name, (size_t) n, sizeof *name, compare_strings);
  expect(r, name[0][0] != 0, what, "has an empty name");
  for (int i = 0; r->ok && i + 1 < n; ++i) {
    expect(r, strcmp(name[i], name[i + 1]) != 0, what, "has a name twice");
  }
}

static void check_all_names(reading *r, const ts_checkpoint *c) {
  int most = c->n_parts > c->n_parameters ? c->n_parts : c->n_parameters;
  char **name = ts_malloc((size_t) (most > MOST_STATES ? most : MOST_STATES) * sizeof *name);
  for (int i = 0; i < c->n_parts; ++i) {
    name[i] = c->part[i].name;
  }
  check_names(r, name, c->n_parts, "/layout/part_name");
  for (int i = 0; i < c->n_parameters; ++i) {
    name[i] = c->parameter[i].name;
  }
  check_names(r, name, c->n_parameters, "/layout/parameter_name");
  for (int i = 0; i < c->n_parts; ++i) {
    for (int k = 0; k < c->part[i].n_states; ++k) {
      name[k] = c->part[i].state[k].name;
    }
    check_names(r, name, c->part[i].n_states, "/layout/state_name");
  }
  ts_free(name);
}

static bool are_alike(const ts_saved_part *a, const ts_saved_part *b) {
  bool alike = a->trainable == b->trainable && a->n_states == b->n_states;
  for (int k = 0; alike && a != b && k < a->n_states; ++k) {
    alike = a->state[k].dtype == b->state[k].dtype && a->state[k].block == b->state[k].block &&
            a->state[k].own == b->state[k].own && strcmp(a->state[k].name, b->state[k].name) == 0;
  }
  return alike;
}

static void check_saved_pieces(reading *r, const ts_checkpoint *c, int64_t version) {
  for (int i = 0; r->ok && i < c->n_parameters; ++i) {
    const ts_saved_parameter *p = &c->parameter[i];
    for (int k = 1; k < p->n_pieces; ++k) {
      expect(r, are_alike(&c->part[p->piece[k - 1].part], &c->part[p->piece[k].part]), "/layout/piece_part",
             "spreads a parameter over parts of other states");
    }
  }
  expect(r, version > 1 || !r->ok || ts_checkpoint_version(c) == 1, "/layout/parameter_part",
         "does not list the parameters part by part in their order");
  expect(r, r->ok && ts_checkpoint_has_room(c), version > 1 ? "/layout/piece_offset" : "/layout/parameter_offset",
         "lets a parameter overlap another or leave its part");
}

static void check_layout(reading *r, const ts_checkpoint *c, int64_t version) {
  int64_t elements = 0;
  for (int i = 0; r->ok && i < c->n_parts; ++i) {
    check_part(r, c, &c->part[i]);
    expect(r, c->part[i].count <= MOST_ELEMENTS - elements, "/layout/part_count",
           "counts more elements than any disk holds");
    elements += r->ok ? c->part[i].count : 0;
  }
  if (r->ok) {
    check_all_names(r, c);
  }
  if (r->ok) {
    check_saved_pieces(r, c, version);
  }
}

static void read_datasets(reading *r, ts_checkpoint *c) {
  int64_t version = 0;
  read_int64_t(r, "tessera_checkpoint", &version);
  expect(r, version >= 1, "tessera_checkpoint", "is no version");
  if (r->ok && version > TS_CHECKPOINT_VERSION) {
    ts_error_add(r->err, "%s: was written by a newer version (format %lld, this program reads up to %d)", r->path,
                 (long long) version, TS_CHECKPOINT_VERSION);
    r->ok = false;
  }
#define X(type, name) read_##type(r, #name, &c->name);
  TS_CHECKPOINT_NUMBERS(X)
#undef X
#define X(type, name)                           \
  if (r->ok && H5Aexists(r->file, #name) > 0) { \
    read_##type(r, #name, &c->name);            \
  }
  TS_CHECKPOINT_LATER_NUMBERS(X)
#undef X
  c->deck = read_deck_copy(r, "/deck");
  c->source = read_deck_copy(r, "/source");
  read_parts(r, c);
  read_states(r, c, version);
  read_parameters(r, c, version);
  read_facts(r, c);
  check_layout(r, c, version);
}

ts_status ts_checkpoint_read_index(const char *directory, ts_checkpoint **out, ts_error *err) {
  char *path = ts_format("%s/model.h5", directory);
  *out = NULL;
  reading r = {.path = path, .err = err, .ok = true};
  struct stat info = {0};
  bool there = stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, R_OK) == 0;
  r.bytes = (hsize_t) info.st_size;
  ts_hdf5_lock();
  r.file = there ? ts_hdf5_open(path) : -1;
  if (r.file < 0) {
    refuse_index(&r, there ? "is" : "cannot be", there ? "not an HDF5 file" : "read: no file that this user may read");
  } else {
    *out = ts_calloc(1, sizeof **out);
    read_datasets(&r, *out);
    H5Fclose(r.file);
  }
  ts_hdf5_unlock();
  if (!r.ok) {
    ts_checkpoint_destroy(out);
  }
  ts_free(path);
  return r.ok ? TS_OK : TS_BAD_INPUT;
}
