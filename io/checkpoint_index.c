/* model.h5, writing: tables as columns that any HDF5 tool shows, and a virtual dataset per tensor and state. */
#include "base/memory.h"
#include "base/text.h"
#include "io/checkpoint_format.h"
#include "io/hdf5.h"

#include <math.h>
#include <string.h>

/* ---- columns ---- */

static bool close_written(hid_t dataset, herr_t status) {
  return dataset >= 0 && status >= 0 && H5Dclose(dataset) >= 0;
}

/* [n0][n1], or [n0] when n1 is 0 */
static bool write_numbers(hid_t file, const char *name, const int64_t *data, int64_t n0, int64_t n1) {
  hsize_t dims[2] = {(hsize_t) n0, (hsize_t) n1};
  hid_t space = H5Screate_simple(n1 > 0 ? 2 : 1, dims, NULL);
  hid_t create = ts_hdf5_dataset_properties();
  hid_t dataset = H5Dcreate2(file, name, H5T_STD_I64LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
  H5Pclose(create);
  H5Sclose(space);
  return close_written(dataset, H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, data));
}

static bool write_words(hid_t file, const char *name, const char *const *word, int n) {
  size_t width = 1;
  for (int i = 0; i < n; ++i) {
    width = strlen(word[i]) + 1 > width ? strlen(word[i]) + 1 : width;
  }
  char *rows = ts_calloc((size_t) n + 1, width);
  for (int i = 0; i < n; ++i) {
    memcpy(rows + (size_t) i * width, word[i], strlen(word[i]));
  }
  hsize_t dims = (hsize_t) n;
  hid_t space = H5Screate_simple(1, &dims, NULL), type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, width);
  H5Tset_cset(type, H5T_CSET_UTF8);
  hid_t create = ts_hdf5_dataset_properties();
  hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
  bool ok = close_written(dataset, H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows));
  H5Pclose(create);
  H5Tclose(type);
  H5Sclose(space);
  ts_free(rows);
  return ok;
}

static bool write_attribute(hid_t file, const char *name, hid_t type, hid_t memory, const void *value) {
  hid_t space = H5Screate(H5S_SCALAR), attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  bool ok = attribute >= 0 && H5Awrite(attribute, memory, value) >= 0 && H5Aclose(attribute) >= 0;
  H5Sclose(space);
  return ok;
}

static bool write_int64_t(hid_t file, const char *name, int64_t value) {
  return write_attribute(file, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

static bool write_double(hid_t file, const char *name, double value) {
  return write_attribute(file, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

/* A column is gathered into one array of words or numbers at a time. */
typedef struct columns {
  hid_t file;
  const char **word;
  int64_t *number;
  bool ok;
} columns;

#define WORDS(to, n, name, expression)                                   \
  do {                                                                   \
    for (int i = 0; i < (n); ++i) {                                      \
      (to)->word[i] = (expression);                                      \
    }                                                                    \
    (to)->ok = (to)->ok && write_words((to)->file, name, (to)->word, n); \
  } while (0)
#define NUMBERS(to, n, name, expression)                                        \
  do {                                                                          \
    for (int i = 0; i < (n); ++i) {                                             \
      (to)->number[i] = (expression);                                           \
    }                                                                           \
    (to)->ok = (to)->ok && write_numbers((to)->file, name, (to)->number, n, 0); \
  } while (0)

static void write_states(columns *to, const ts_checkpoint *c) {
  int n = 0;
  int64_t *part = to->number;
  for (int i = 0; i < c->n_parts; ++i) {
    for (int k = 0; k < c->part[i].n_states; ++k) {
      part[n++] = i;
    }
  }
  to->ok = to->ok && write_numbers(to->file, "/layout/state_part", part, n, 0);
  int at = 0;
  for (int i = 0; i < c->n_parts; ++i) {
    for (int k = 0; k < c->part[i].n_states; ++k) {
      to->word[at++] = c->part[i].state[k].name;
    }
  }
  to->ok = to->ok && write_words(to->file, "/layout/state_name", to->word, n);
  at = 0;
  for (int i = 0; i < c->n_parts; ++i) {
    for (int k = 0; k < c->part[i].n_states; ++k) {
      to->word[at++] = ts_dtype_name(c->part[i].state[k].dtype);
    }
  }
  to->ok = to->ok && write_words(to->file, "/layout/state_dtype", to->word, n);
}

/* Version 2: states that do not have an element for each of their part's. */
static void write_extents(columns *to, const ts_checkpoint *c) {
  const ts_saved_state **state = NULL;
  int n = 0, capacity = 0;
  for (int i = 0; i < c->n_parts; ++i) {
    for (int k = 0; k < c->part[i].n_states; ++k) {
      TS_GROW(state, n, capacity);
      state[n++] = &c->part[i].state[k];
    }
  }
  NUMBERS(to, n, "/layout/state_block", state[i]->block > 1 ? state[i]->block : 1);
  NUMBERS(to, n, "/layout/state_own", state[i]->own);
  ts_free(state);
}

static void write_cuts(columns *to, const ts_checkpoint *c) {
  int64_t width = c->n_shards + 1, *cuts = ts_malloc((size_t) c->n_parts * (size_t) width * sizeof *cuts);
  for (int i = 0; i < c->n_parts; ++i) {
    memcpy(cuts + i * width, c->part[i].cuts, (size_t) width * sizeof *cuts);
  }
  to->ok = to->ok && write_numbers(to->file, "/layout/part_cuts", cuts, c->n_parts, width);
  ts_free(cuts);
}

static void write_shapes(columns *to, const ts_checkpoint *c) {
  const int64_t width = TS_CHECKPOINT_LARGEST_RANK;
  int64_t *shape = ts_calloc((size_t) (c->n_parameters * width), sizeof *shape);
  for (int i = 0; i < c->n_parameters; ++i) {
    memcpy(shape + i * width, c->parameter[i].shape, (size_t) c->parameter[i].n_dims * sizeof *shape);
  }
  to->ok = to->ok && write_numbers(to->file, "/layout/parameter_shape", shape, c->n_parameters, width);
  ts_free(shape);
}

/* From version 2 on: any number of pieces a parameter. */
static void write_pieces(columns *to, const ts_checkpoint *c) {
  const ts_saved_piece **piece = NULL;
  int n = 0, capacity = 0;
  for (int i = 0; i < c->n_parameters; ++i) {
    for (int k = 0; k < c->parameter[i].n_pieces; ++k) {
      TS_GROW(piece, n, capacity);
      piece[n++] = &c->parameter[i].piece[k];
    }
  }
  NUMBERS(to, c->n_parameters, "/layout/parameter_dim", c->parameter[i].dim);
  NUMBERS(to, c->n_parameters, "/layout/parameter_pieces", c->parameter[i].n_pieces);
  NUMBERS(to, n, "/layout/piece_part", piece[i]->part);
  NUMBERS(to, n, "/layout/piece_offset", piece[i]->offset);
  NUMBERS(to, n, "/layout/piece_pitch", piece[i]->pitch);
  NUMBERS(to, n, "/layout/piece_length", piece[i]->length);
  if (ts_checkpoint_version(c) > 2) {
    NUMBERS(to, n, "/layout/piece_rows", piece[i]->rows);
  }
  ts_free(piece);
}

static size_t most_rows(const ts_checkpoint *c) {
  size_t most = (size_t) c->n_facts + 1;
  for (int i = 0; i < c->n_parts; ++i) {
    most += (size_t) c->part[i].n_states;
  }
  for (int i = 0; i < c->n_parameters; ++i) {
    most += (size_t) c->parameter[i].n_pieces;
  }
  return most;
}

static bool write_tables(hid_t file, const ts_checkpoint *c) {
  size_t most = most_rows(c);
  bool plain = ts_checkpoint_version(c) == 1;
  columns to = {.file = file, .word = ts_malloc(most * sizeof *to.word), .number = ts_malloc(most * sizeof *to.number)};
  to.ok = ts_hdf5_make_group(file, "layout");
  WORDS(&to, c->n_parts, "/layout/part_name", c->part[i].name);
  NUMBERS(&to, c->n_parts, "/layout/part_trainable", c->part[i].trainable);
  NUMBERS(&to, c->n_parts, "/layout/part_count", c->part[i].count);
  write_cuts(&to, c);
  write_states(&to, c);
  if (!plain) {
    write_extents(&to, c);
  }
  WORDS(&to, c->n_parameters, "/layout/parameter_name", c->parameter[i].name);
  if (plain) {
    NUMBERS(&to, c->n_parameters, "/layout/parameter_part", c->parameter[i].piece[0].part);
  }
  NUMBERS(&to, c->n_parameters, "/layout/parameter_n_dims", c->parameter[i].n_dims);
  if (plain) {
    NUMBERS(&to, c->n_parameters, "/layout/parameter_offset", c->parameter[i].piece[0].offset);
  } else {
    write_pieces(&to, c);
  }
  write_shapes(&to, c);
  WORDS(&to, c->n_facts, "/layout/fact_name", c->fact[i].name);
  WORDS(&to, c->n_facts, "/layout/fact_value", c->fact[i].value);
  ts_free(to.word);
  ts_free(to.number);
  return to.ok;
}

static bool write_numbers_of_run(hid_t file, const ts_checkpoint *c) {
  const char *deck = c->deck, *source = c->source;
  bool ok = write_int64_t(file, "tessera_checkpoint", ts_checkpoint_version(c));
#define X(type, name) ok = ok && write_##type(file, #name, c->name);
  TS_CHECKPOINT_NUMBERS(X)
  TS_CHECKPOINT_LATER_NUMBERS(X)
#undef X
  return ok && write_words(file, "/deck", &deck, 1) && write_words(file, "/source", &source, 1);
}

/* ---- virtual datasets ---- */

/* One tensor of one state, piece by piece.  Dimensions are the piece's: elements are counted in its own row-major
 * order, which is that of the shards too. */
typedef struct mapping {
  hid_t create, space;
  int n_dims, dim; /* dim: the one along which the piece begins at `begin` of the tensor */
  hsize_t dims[TS_CHECKPOINT_LARGEST_RANK], begin, first; /* first: along the first dimension */
  int64_t row, pitch, offset;                             /* where the piece lies in its part */
  hsize_t start[TS_CHECKPOINT_LARGEST_RANK], count[TS_CHECKPOINT_LARGEST_RANK];
  const char *file, *dataset;
  int64_t from, source_count; /* of the part's elements, those in the shard's dataset */
  int64_t next;               /* element of the piece */
  bool ok;
} mapping;

/* `n` elements of the piece from `next` on, in the shard's dataset: they lie together, or are whole rows. */
static bool select_source(const mapping *m, hid_t source, int64_t n) {
  hsize_t start = (hsize_t) (m->offset + m->next / m->row * m->pitch + m->next % m->row - m->from);
  hsize_t count = (hsize_t) n, pitch = (hsize_t) m->pitch, row = (hsize_t) m->row;
  if (n <= m->row || m->pitch == m->row) {
    return H5Sselect_hyperslab(source, H5S_SELECT_SET, &start, NULL, &count, NULL) >= 0;
  }
  count /= row;
  return H5Sselect_hyperslab(source, H5S_SELECT_SET, &start, &pitch, &count, &row) >= 0;
}

/* The box start, count of the piece, which is a contiguous range of its elements. */
static void map_box(mapping *m) {
  hsize_t whole = (hsize_t) m->source_count, start[TS_CHECKPOINT_LARGEST_RANK];
  int64_t n = 1;
  for (int d = 0; d < m->n_dims; ++d) {
    start[d] = m->start[d] + (d == m->dim ? m->begin : 0) + (d == 0 ? m->first : 0);
    n *= (int64_t) m->count[d];
  }
  hid_t source = H5Screate_simple(1, &whole, NULL);
  m->ok = m->ok && select_source(m, source, n) &&
          H5Sselect_hyperslab(m->space, H5S_SELECT_SET, start, NULL, m->count, NULL) >= 0 &&
          H5Pset_virtual(m->create, m->space, m->file, m->dataset, source) >= 0;
  H5Sclose(source);
  m->next += n;
}

static int64_t row_elements(const mapping *m, int d) {
  int64_t n = 1;
  for (int i = d + 1; i < m->n_dims; ++i) {
    n *= (int64_t) m->dims[i];
  }
  return n;
}

/* Elements [a, b) of the block that dimensions before d have chosen: a tail of a row, whole rows, a head of a row. */
static void map_range(mapping *m, int d, int64_t a, int64_t b) {
  int64_t row = row_elements(m, d);
  if (a % row != 0) {
    int64_t r = a / row, end = b < (r + 1) * row ? b : (r + 1) * row;
    m->start[d] = (hsize_t) r;
    m->count[d] = 1;
    map_range(m, d + 1, a - r * row, end - r * row);
    a = end;
  }
  if (a < b && b / row > a / row) {
    m->start[d] = (hsize_t) (a / row);
    m->count[d] = (hsize_t) (b / row - a / row);
    for (int i = d + 1; i < m->n_dims; ++i) {
      m->start[i] = 0;
      m->count[i] = m->dims[i];
    }
    map_box(m);
    a = b / row * row;
  }
  if (a < b) {
    m->start[d] = (hsize_t) (a / row);
    m->count[d] = 1;
    map_range(m, d + 1, 0, b - a);
  }
}

/* Elements of the piece before element `at` of its part. */
static int64_t elements_before(const mapping *m, int64_t rows, int64_t at) {
  int64_t row = at > m->offset ? (at - m->offset) / m->pitch : 0,
          rest = at > m->offset ? (at - m->offset) % m->pitch : 0;
  return row < rows ? row * m->row + (rest < m->row ? rest : m->row) : rows * m->row;
}

static void map_shard(mapping *m, const ts_saved_part *part, int64_t rows, int shard) {
  int64_t from = elements_before(m, rows, part->cuts[shard]), to = elements_before(m, rows, part->cuts[shard + 1]);
  if (from < to) {
    char *file = ts_checkpoint_shard_name(shard);
    m->file = file;
    m->from = part->cuts[shard];
    m->source_count = part->cuts[shard + 1] - m->from;
    m->next = from;
    map_range(m, 0, from, to);
    ts_free(file);
  }
}

static void map_piece(mapping *m, const ts_checkpoint *c, const ts_saved_parameter *p, const ts_saved_piece *piece,
                      int state) {
  const ts_saved_part *part = &c->part[piece->part];
  int64_t rows = piece->rows, end = piece->offset + (rows - 1) * piece->pitch + ts_saved_row(p, piece);
  char *dataset = ts_checkpoint_dataset(part, state);
  m->dataset = dataset;
  m->dim = p->dim;
  int64_t all = ts_saved_rows(p);
  m->dims[0] = (hsize_t) (p->shape[0] * rows / all);
  m->first = (hsize_t) (p->shape[0] * piece->first_row / all);
  m->dims[p->dim] = (hsize_t) piece->length;
  m->begin = (hsize_t) piece->begin;
  m->row = ts_saved_row(p, piece);
  m->pitch = piece->pitch;
  m->offset = piece->offset;
  for (int s = ts_checkpoint_shard_of(c, part, state, piece->offset); s < c->n_shards && part->cuts[s] < end; ++s) {
    map_shard(m, part, rows, s);
  }
  ts_free(dataset);
}

static bool write_virtual(hid_t file, const ts_checkpoint *c, const ts_saved_parameter *p, int state) {
  static const float nothing = NAN;
  const ts_saved_state *what = &ts_checkpoint_part(c, p)->state[state];
  mapping m = {.create = ts_hdf5_dataset_properties(), .n_dims = p->n_dims};
  for (int d = 0; d < p->n_dims; ++d) {
    m.dims[d] = (hsize_t) p->shape[d];
  }
  m.space = H5Screate_simple(p->n_dims, m.dims, NULL);
  m.ok = what->dtype == TS_U8 || H5Pset_fill_value(m.create, H5T_NATIVE_FLOAT, &nothing) >= 0;
  for (int i = 0; i < p->n_pieces; ++i) {
    map_piece(&m, c, p, &p->piece[i], state);
  }
  hid_t type = ts_hdf5_type(what->dtype);
  H5Sselect_all(m.space);
  char *name = ts_format("/%s/%s", what->name, p->name);
  bool group = ts_hdf5_make_group(file, what->name);
  hid_t made = group ? H5Dcreate2(file, name, type, m.space, H5P_DEFAULT, m.create, H5P_DEFAULT) : -1;
  bool ok = m.ok && made >= 0 && H5Dclose(made) >= 0;
  H5Tclose(type);
  H5Sclose(m.space);
  H5Pclose(m.create);
  ts_free(name);
  return ok;
}

static bool write_parameter(hid_t file, const ts_checkpoint *c, const ts_saved_parameter *p) {
  bool ok = true;
  const ts_saved_part *part = ts_checkpoint_part(c, p);
  for (int k = 0; ok && k < part->n_states; ++k) {
    ts_hdf5_lock();
    ok = !ts_saved_state_is_plain(&part->state[k]) || write_virtual(file, c, p, k);
    ts_hdf5_unlock();
  }
  return ok;
}

ts_status ts_checkpoint_write_index(const char *directory, const ts_checkpoint *c, ts_error *err) {
  char *path = ts_format("%s/model.h5", directory);
  ts_hdf5_lock();
  hid_t file = ts_hdf5_create(path, err);
  bool ok = file >= 0 && write_numbers_of_run(file, c) && write_tables(file, c);
  ts_hdf5_unlock();
  for (int i = 0; ok && i < c->n_parameters; ++i) {
    ok = write_parameter(file, c, &c->parameter[i]);
  }
  ts_status status = file >= 0 ? ts_hdf5_finish(file, path, err) : TS_BAD_INPUT;
  if (status == TS_OK && !ok) {
    status = ts_error_add(err, "%s: HDF5 could not write it", path);
  }
  ts_free(path);
  return status;
}
