/* model.h5 is not believed: a good one with one thing changed is refused for that thing. */
#include "base/memory.h"
#include "base/text.h"
#include "io/hdf5.h"
#include "regression/io/checkpoint_fixture.h"
#include "regression/tap.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* Of most tests: the layout of fixture_checkpoint (3, CUTS_EVEN, 17): parts blocks (fp32, 3 states, 1394 elements),
 * embedding (1 state, 1045), head (2 states, 595); parameters of blocks at 0, 1040, 1251, 1357, of embedding at 7,
 * 1044, of head at 0. */
static ts_checkpoint *good;
static char *directory, *path;

static const char *const whole_tables[] = {
    "/layout/part_trainable", "/layout/part_count",       "/layout/part_cuts",        "/layout/state_part",
    "/layout/parameter_part", "/layout/parameter_n_dims", "/layout/parameter_offset", "/layout/parameter_shape"};
static const char *const piece_tables[] = {"/layout/parameter_dim", "/layout/parameter_pieces", "/layout/piece_part",
                                           "/layout/piece_offset",  "/layout/piece_pitch",      "/layout/piece_length",
                                           "/layout/state_block",   "/layout/state_own"};
static const char *const word_tables[] = {"/layout/part_name",
                                          "/layout/state_name",
                                          "/layout/state_dtype",
                                          "/layout/parameter_name",
                                          "/layout/fact_name",
                                          "/layout/fact_value",
                                          "/deck",
                                          "/source"};

/* Those that are tested: numbers come first. */
static const char *tested[(sizeof whole_tables + sizeof word_tables) / sizeof(char *)];
static int n_tables, n_number_tables;

static void choose_tables(const char *const *numbers, size_t n_numbers, size_t n_words) {
  memcpy(tested, numbers, n_numbers * sizeof *tested);
  memcpy(tested + n_numbers, word_tables, n_words * sizeof *tested);
  n_number_tables = (int) n_numbers;
  n_tables = (int) (n_numbers + n_words);
}

/* ---- changing model.h5 ---- */

/* A good file, open for changes; the lock is taken. */
static hid_t open_good(void) {
  ts_error err = {0};
  TS_CHECK(ts_checkpoint_write_index(directory, good, &err) == TS_OK, "%s", err.text);
  ts_hdf5_lock();
  hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
  TS_CHECK(file >= 0, "%s", path);
  return file;
}

/* Close, and read: it must be refused with these words, with nothing left behind. */
static void refused(hid_t file, const char *words, const char *what) {
  TS_CHECK(H5Fclose(file) >= 0, "%s", path);
  ts_hdf5_unlock();
  ts_checkpoint *read = good;
  ts_error err = {0};
  int descriptors = fixture_descriptors();
  ts_status status = ts_checkpoint_read_index(directory, &read, &err);
  bool clean = read == NULL && fixture_hdf5_objects() == 0 && fixture_descriptors() == descriptors;
  tap_ok(fixture_says(status, &err, path, words) && clean, "%s", what);
  ts_checkpoint_destroy(&read);
}

static void put_number(hid_t file, const char *table, int at, int64_t value) {
  int64_t data[256];
  hid_t dataset = H5Dopen2(file, table, H5P_DEFAULT), space = H5Dget_space(dataset);
  hssize_t n = H5Sget_simple_extent_npoints(space);
  TS_CHECK(n <= 256 && at < n && H5Dread(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0, "%s",
           table);
  data[at] = value;
  TS_CHECK(H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0, "%s", table);
  H5Sclose(space);
  H5Dclose(dataset);
}

static void put_word(hid_t file, const char *table, int at, const char *word) {
  hid_t dataset = H5Dopen2(file, table, H5P_DEFAULT), type = H5Dget_type(dataset), space = H5Dget_space(dataset);
  size_t width = H5Tget_size(type);
  char *rows = ts_calloc((size_t) H5Sget_simple_extent_npoints(space) + 1, width);
  TS_CHECK(strlen(word) <= width && H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows) >= 0, "%s", table);
  memset(rows + (size_t) at * width, 0, width);
  memcpy(rows + (size_t) at * width, word, strlen(word));
  TS_CHECK(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows) >= 0, "%s", table);
  ts_free(rows);
  H5Sclose(space);
  H5Tclose(type);
  H5Dclose(dataset);
}

/* Another attribute of this name: \a n values of \a type, or none when n is 0. */
static void put_attribute(hid_t file, const char *name, hid_t type, hsize_t n, const void *value) {
  TS_CHECK(H5Adelete(file, name) >= 0, "%s", name);
  if (n > 0) {
    hid_t space = n == 1 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &n, NULL);
    hid_t attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    TS_CHECK(H5Awrite(attribute, type, value) >= 0, "%s", name);
    H5Aclose(attribute);
    H5Sclose(space);
  }
}

/* Another table of this name, with nothing written to it. */
static void put_table(hid_t file, const char *table, hid_t type, hid_t create, int rank, hsize_t rows,
                      hsize_t columns) {
  hsize_t dims[3] = {rows, columns, 1};
  TS_CHECK(H5Ldelete(file, table, H5P_DEFAULT) >= 0, "%s", table);
  hid_t space = rank > 0 ? H5Screate_simple(rank, dims, NULL) : H5Screate(H5S_SCALAR);
  hid_t dataset = H5Dcreate2(file, table, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
  TS_CHECK(dataset >= 0, "%s", table);
  H5Dclose(dataset);
  H5Sclose(space);
}

/* Rank, type and dims of a table; the type is to be closed. */
static hid_t table_type(hid_t file, const char *table, int *rank, hsize_t dims[2]) {
  hid_t dataset = H5Dopen2(file, table, H5P_DEFAULT), space = H5Dget_space(dataset), type = H5Dget_type(dataset);
  dims[1] = 0;
  *rank = H5Sget_simple_extent_ndims(space);
  H5Sget_simple_extent_dims(space, dims, NULL);
  H5Sclose(space);
  H5Dclose(dataset);
  return type;
}

/* ---- numbers of the run ---- */

static void test_attributes(void) {
  static const struct {
    const char *name;
    int64_t value;
    const char *words;
  } integers[] = {{"tessera_checkpoint", 4, "written by a newer version (format 4, this program reads up to 3)"},
                  {"tessera_checkpoint", 2, "/layout/state_block is missing"},
                  {"tessera_checkpoint", INT64_MAX, "written by a newer version"},
                  {"tessera_checkpoint", 0, "tessera_checkpoint is no version"},
                  {"tessera_checkpoint", -1, "tessera_checkpoint is negative"},
                  {"step", -1, "step is negative"},
                  {"samples", INT64_MIN, "samples is negative"},
                  {"updates", -1, "updates is negative"},
                  {"optimizer_step", -5, "optimizer_step is negative"},
                  {"skipped", -1, "skipped is negative"},
                  {"skipped_in_a_row", -1, "skipped_in_a_row is negative"}};
  static const double scales[] = {0, -1, NAN, INFINITY};
  for (size_t i = 0; i < sizeof integers / sizeof *integers; ++i) {
    hid_t file = open_good();
    put_attribute(file, integers[i].name, H5T_NATIVE_INT64, 1, &integers[i].value);
    char *what = ts_format("%s: %lld", integers[i].name, (long long) integers[i].value);
    refused(file, integers[i].words, what);
    ts_free(what);
  }
  for (size_t i = 0; i < sizeof scales / sizeof *scales; ++i) {
    hid_t file = open_good();
    put_attribute(file, "loss_scale", H5T_NATIVE_DOUBLE, 1, &scales[i]);
    char *what = ts_format("loss_scale: %g", scales[i]);
    refused(file, "loss_scale is not a positive number", what);
    ts_free(what);
  }
}

static void test_attribute_types(void) {
  static const char *const names[] = {"tessera_checkpoint",
#define X(type, name) #name,
                                      TS_CHECKPOINT_NUMBERS(X)
#undef X
  };
  const char text[8] = "1";
  const int64_t two[2] = {1, 1};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char *words = ts_format("%s is missing", names[i]), *what = ts_format("%s: missing, text, two numbers", names[i]);
    for (int kind = 0; kind < 3; ++kind) {
      hid_t file = open_good(), type = H5Tcopy(H5T_C_S1);
      H5Tset_size(type, sizeof text);
      put_attribute(file, names[i], kind == 1 ? type : H5T_NATIVE_INT64, (hsize_t) kind,
                    kind == 1 ? (const void *) text : two);
      H5Tclose(type);
      refused(file, words, what);
    }
    ts_free(what);
    ts_free(words);
  }
}

/* ---- one number, one word ---- */

typedef struct number_case {
  const char *what, *table;
  int at;
  int64_t value;
  const char *words;
} number_case;

static void test_cases(const number_case *cases, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    hid_t file = open_good();
    char *table = ts_format("/layout/%s", cases[i].table);
    put_number(file, table, cases[i].at, cases[i].value);
    refused(file, cases[i].words, cases[i].what);
    ts_free(table);
  }
}

static void test_numbers(void) {
  static const number_case cases[] = {
      {"cuts that begin at 1", "part_cuts", 0, 1, "part_cuts does not cut"},
      {"cuts that begin at -1", "part_cuts", 0, -1, "part_cuts does not cut"},
      {"cuts that end before the part", "part_cuts", 3, 1393, "part_cuts does not cut"},
      {"cuts that end after the part", "part_cuts", 7, 1046, "part_cuts does not cut"},
      {"cuts that descend", "part_cuts", 1, 1000, "part_cuts does not cut"},
      {"a negative cut", "part_cuts", 5, -7, "part_cuts does not cut"},
      {"a large cut", "part_cuts", 10, INT64_MAX, "part_cuts does not cut"},
      {"a part of another count", "part_count", 2, 594, "part_cuts does not cut"},
      {"a state of part 3", "state_part", 5, 3, "state of no part"},
      {"a state of part -1", "state_part", 0, -1, "state of no part"},
      {"a state of part 2^32", "state_part", 0, (int64_t) 1 << 32, "state of no part"},
      {"a part without states", "state_part", 3, 2, "first state is not \"parameter\""},
      {"a parameter of part 3", "parameter_part", 6, 3, "names no part"},
      {"a parameter of part -1", "parameter_part", 0, -1, "names no part"},
      {"a parameter of part 2^32", "parameter_part", 0, (int64_t) 1 << 32, "names no part"},
      {"parameters not part by part", "parameter_part", 6, 0, "part by part"},
      {"0 dimensions", "parameter_n_dims", 1, 0, "shape that no tensor"},
      {"9 dimensions", "parameter_n_dims", 3, 9, "shape that no tensor"},
      {"-1 dimensions", "parameter_n_dims", 3, -1, "shape that no tensor"},
      {"2^32 + 1 dimensions", "parameter_n_dims", 1, ((int64_t) 1 << 32) + 1, "shape that no tensor"},
      {"an empty dimension", "parameter_shape", 1, 0, "shape that no tensor"},
      {"a negative dimension", "parameter_shape", 0, -17, "shape that no tensor"},
      {"a shape of 2^64 + elements", "parameter_shape", 0, INT64_MAX / 2, "shape that no tensor"},
      {"a shape larger than its part", "parameter_shape", 8, INT64_MAX, "leave its part"},
      {"a parameter over the one before", "parameter_offset", 1, 1036, "overlap another"},
      {"a parameter over the one behind", "parameter_shape", 1, 62, "overlap another"},
      {"a parameter beyond its part", "parameter_offset", 6, 1, "leave its part"},
      {"a parameter far beyond its part", "parameter_offset", 6, INT64_MAX, "leave its part"},
      {"a parameter before its part", "parameter_offset", 0, -1, "leave its part"}};
  test_cases(cases, sizeof cases / sizeof *cases);
}

static void test_words(void) {
  static const struct {
    const char *what, *table;
    int at;
    const char *word, *words;
  } cases[] = {{"a state of dtype fp64", "state_dtype", 1, "fp64", "unknown type"},
               {"a state of dtype \"\"", "state_dtype", 5, "", "unknown type"},
               {"a state of dtype int", "state_dtype", 0, "int", "unknown type"},
               {"a state of a path", "state_name", 1, "a/b", "state of no part"},
               {"a state without a name", "state_name", 1, "", "state of no part"},
               {"a first state that is not parameter", "state_name", 3, "exp_avg", "first state is not \"parameter\""},
               {"a state twice", "state_name", 2, "exp_avg", "state_name has a name twice"},
               {"a part twice", "part_name", 2, "blocks", "part_name has a name twice"},
               {"a part without a name", "part_name", 1, "", "part_name has an empty name"},
               {"a parameter twice", "parameter_name", 6, "blocks.1.norm", "parameter_name has a name twice"},
               {"a parameter without a name", "parameter_name", 0, "", "parameter_name has an empty name"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    hid_t file = open_good();
    char *table = ts_format("/layout/%s", cases[i].table);
    put_word(file, table, cases[i].at, cases[i].word);
    refused(file, cases[i].words, cases[i].what);
    ts_free(table);
  }
}

/* Changes of more than one number. */
static void test_sums(void) {
  hid_t file = open_good();
  put_number(file, "/layout/part_count", 2, 0);
  for (int i = 8; i < 12; ++i) {
    put_number(file, "/layout/part_cuts", i, 0);
  }
  refused(file, "part_cuts does not cut", "a part of 0 elements");
  file = open_good();
  put_number(file, "/layout/part_count", 2, INT64_MAX);
  put_number(file, "/layout/part_cuts", 11, INT64_MAX);
  refused(file, "part_count counts more", "a part of 2^63 - 1 elements");
  file = open_good();
  for (int i = 0; i < 3; ++i) {
    put_number(file, "/layout/part_count", i, (int64_t) 1 << 51);
    put_number(file, "/layout/part_cuts", 4 * i + 3, (int64_t) 1 << 51);
  }
  refused(file, "part_count counts more", "three parts of 2^51 elements");
}

/* ---- whole tables ---- */

static void test_tables(void) {
  for (int i = 0; i < n_tables; ++i) {
    const char *table = tested[i];
    char *what = ts_format("%s: missing", table), *longer = ts_format("%s: a row more", table);
    char *shorter = ts_format("%s: a row less", table), *other = ts_format("%s: another type", table);
    hid_t file = open_good();
    TS_CHECK(H5Ldelete(file, table, H5P_DEFAULT) >= 0, "%s", table);
    refused(file, table, what);
    for (int d = 1; d >= -1; d -= 2) {
      int rank;
      hsize_t dims[2];
      file = open_good();
      hid_t type = table_type(file, table, &rank, dims);
      put_table(file, table, type, H5P_DEFAULT, rank, dims[0] + (hsize_t) d, dims[1]);
      H5Tclose(type);
      refused(file, "/", d > 0 ? longer : shorter);
    }
    file = open_good();
    put_table(file, table, i < n_number_tables ? H5T_NATIVE_FLOAT : H5T_NATIVE_INT64, H5P_DEFAULT, 1, 3, 0);
    refused(file, "not a table of Tessera", other);
    ts_free(what);
    ts_free(longer);
    ts_free(shorter);
    ts_free(other);
  }
}

static void test_ranks(void) {
  for (int i = 0; i < n_tables; ++i) {
    const char *table = tested[i];
    char *what = ts_format("%s: another rank", table);
    for (int rank = 0; rank <= 3; ++rank) {
      int own;
      hsize_t dims[2];
      hid_t file = open_good(), type = table_type(file, table, &own, dims);
      if (rank == own) {
        H5Ldelete(file, table, H5P_DEFAULT);
      } else {
        put_table(file, table, type, H5P_DEFAULT, rank, dims[0], 1);
      }
      H5Tclose(type);
      refused(file, "is not a table of Tessera", what);
    }
    ts_free(what);
  }
}

/* Tables that promise more than the file holds are refused before memory is taken for them. */
static void test_absurd(void) {
  static const hsize_t rows[] = {(hsize_t) 1 << 20, (hsize_t) 1 << 27, (hsize_t) 1 << 40, (hsize_t) 1 << 55};
  size_t before = ts_process_peak();
  for (int i = 0; i < n_tables; ++i) {
    char *what = ts_format("%s: many rows without storage", tested[i]);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; ++k) {
      int rank;
      hsize_t dims[2];
      hid_t file = open_good(), type = table_type(file, tested[i], &rank, dims);
      H5Tset_size(type, i < n_number_tables ? 8 : 1);
      put_table(file, tested[i], type, H5P_DEFAULT, rank, rows[k], dims[1]);
      H5Tclose(type);
      refused(file, "/", what);
    }
    ts_free(what);
  }
  hid_t file = open_good(), type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, (size_t) 1 << 30);
  put_table(file, "/deck", type, H5P_DEFAULT, 1, 1, 0);
  H5Tclose(type);
  refused(file, "/deck has another size", "a deck of 1 GiB without storage");
  file = open_good();
  put_table(file, "/layout/part_cuts", H5T_NATIVE_INT64, H5P_DEFAULT, 2, 3, (hsize_t) 1 << 40);
  refused(file, "no parts or no shards", "2^40 shards");
  file = open_good();
  put_table(file, "/layout/part_cuts", H5T_NATIVE_INT64, H5P_DEFAULT, 2, 3, 1);
  refused(file, "no parts or no shards", "no shards");
  /* The smallest of them would have taken 8 MiB, the next 1 GiB. */
  tap_ok(ts_process_peak() < before + ((size_t) 256 << 20), "and no memory was taken for them");
}

static void test_storage(void) {
  for (int i = 0; i < n_tables; ++i) {
    const char *table = tested[i];
    int rank;
    hsize_t dims[2], chunk[2] = {1, 1};
    hid_t file = open_good(), type = table_type(file, table, &rank, dims), create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(create, rank, chunk);
    put_table(file, table, type, create, rank, dims[0], dims[1]);
    H5Pclose(create);
    H5Tclose(type);
    char *what = ts_format("%s: chunked", table);
    refused(file, "not a table of Tessera", what);
    ts_free(what);
    file = open_good();
    create = H5Pcreate(H5P_DATASET_CREATE);
    type = table_type(file, table, &rank, dims);
    H5Pset_external(create, "/dev/zero", 0, H5F_UNLIMITED);
    put_table(file, table, type, create, rank, dims[0], dims[1]);
    H5Pclose(create);
    H5Tclose(type);
    what = ts_format("%s: in another file", table);
    refused(file, "not a table of Tessera", what);
    ts_free(what);
    if (i >= n_number_tables) {
      file = open_good();
      H5Tclose(table_type(file, table, &rank, dims));
      type = H5Tcopy(H5T_C_S1);
      H5Tset_size(type, H5T_VARIABLE);
      put_table(file, table, type, H5P_DEFAULT, 1, dims[0], 0);
      H5Tclose(type);
      what = ts_format("%s: strings of variable length", table);
      refused(file, "not a table of Tessera", what);
      ts_free(what);
    }
  }
}

/* 64 states are read, 65 are not. */
static void test_states(void) {
  for (int n = 64; n <= 65; ++n) {
    ts_checkpoint *c = fixture_checkpoint(1, CUTS_EVEN, 3), *read = NULL;
    ts_error err = {0};
    ts_saved_part *part = &c->part[0];
    part->state = ts_realloc(part->state, (size_t) n, sizeof *part->state);
    for (; part->n_states < n; ++part->n_states) {
      part->state[part->n_states] = (ts_saved_state){.name = ts_format("state_%d", part->n_states), .dtype = TS_BF16};
    }
    TS_CHECK(ts_checkpoint_write_index(directory, c, &err) == TS_OK, "%s", err.text);
    ts_status status = ts_checkpoint_read_index(directory, &read, &err);
    tap_ok(n == 64 ? status == TS_OK && read->part[0].n_states == 64
                   : fixture_says(status, &err, path, "too many states"),
           "%d states", n);
    ts_error_clear(&err);
    ts_checkpoint_destroy(&read);
    ts_checkpoint_destroy(&c);
  }
}

/* ---- pieces ---- */

/* The layout is fixture_pieces (good, 5, CUTS_EVEN): the first parameter, [17, 61], has the columns [0, 10) and
 * [30, 41) in part 0, at 3 and 13 with a pitch of 23, the others in part 1, at 3 and 23 with a pitch of 42; the last
 * has 2 pieces, rows 15 and 16 of 17. */
static void test_piece_numbers(void) {
  static const number_case cases[] = {
      {"pieces along dimension -1", "parameter_dim", 0, -1, "names a dimension that is not there"},
      {"pieces along dimension 2 of 2", "parameter_dim", 0, 2, "names a dimension that is not there"},
      {"pieces along dimension 2^32", "parameter_dim", 0, (int64_t) 1 << 32, "names a dimension that is not there"},
      {"pieces along another dimension", "parameter_dim", 0, 0, "or one beyond its parameter"},
      {"a parameter of no pieces", "parameter_pieces", 0, 0, "does not share out the pieces"},
      {"a parameter of -1 pieces", "parameter_pieces", 3, -1, "does not share out the pieces"},
      {"a parameter of 2^63 - 1 pieces", "parameter_pieces", 3, INT64_MAX, "does not share out the pieces"},
      {"a parameter of 3 pieces, where 2 are left", "parameter_pieces", 6, 3, "does not share out the pieces"},
      {"a parameter with a piece less", "parameter_pieces", 0, 3, "piece_length does not cover a parameter"},
      {"a parameter with the next one's piece", "parameter_pieces", 0, 5, "or one beyond its parameter"},
      {"a piece of part -1", "piece_part", 0, -1, "piece_part names no part"},
      {"a piece of part 6", "piece_part", 16, 6, "piece_part names no part"},
      {"a piece of part 2^32", "piece_part", 0, (int64_t) 1 << 32, "piece_part names no part"},
      {"a piece of a part with other states", "piece_part", 1, 4, "over parts of other states"},
      {"a piece of a part that is frozen", "piece_part", 0, 2, "over parts of other states"},
      {"a piece at another's place", "piece_part", 1, 0, "piece_offset lets a parameter overlap another"},
      {"a piece of length 0", "piece_length", 0, 0, "has an empty piece"},
      {"a piece of length -1", "piece_length", 3, -1, "has an empty piece"},
      {"a piece of length 2^63 - 1", "piece_length", 3, INT64_MAX, "or one beyond its parameter"},
      {"pieces that cover an index twice", "piece_length", 0, 11, "or one beyond its parameter"},
      {"pieces that leave an index out", "piece_length", 0, 9, "piece_length does not cover a parameter"},
      {"a piece before its part", "piece_offset", 0, -1, "leave its part"},
      {"a piece far beyond its part", "piece_offset", 0, INT64_MAX, "leave its part"},
      {"a piece that ends behind its part", "piece_offset", 16, 100, "leave its part"},
      {"rows over the rows behind them", "piece_offset", 0, 4, "overlap another"},
      {"rows over the next ones of others", "piece_offset", 2, 16, "overlap another"},
      {"rows at the same place", "piece_offset", 2, 3, "overlap another"},
      {"a piece into the last row of others", "piece_offset", 5, 380, "overlap another"},
      {"a piece between the rows of others", "piece_offset", 5, 24, "overlap another"},
      {"a pitch of -1", "piece_pitch", 0, -1, "leave its part"},
      {"a pitch of 0", "piece_pitch", 0, 0, "leave its part"},
      {"a pitch less than a row", "piece_pitch", 0, 9, "leave its part"},
      {"a pitch of 2^63 - 1", "piece_pitch", 0, INT64_MAX, "leave its part"},
      {"a pitch beyond its part", "piece_pitch", 1, 200, "leave its part"},
      {"blocks of no element", "state_block", 1, 0, "has blocks that no shard begins with"},
      {"blocks of -1 elements", "state_block", 1, -1, "has blocks that no shard begins with"},
      {"blocks across a cut", "state_block", 1, 32, "has blocks that no shard begins with"},
      {"blocks of 2^63 - 1 elements", "state_block", 1, INT64_MAX, "has blocks that no shard begins with"},
      {"parameters in blocks of one another", "state_block", 0, 1393, "has blocks that no shard begins with"},
      {"a state of -1 elements", "state_own", 1, -1, "has a state larger than its part"},
      {"a state of 2^63 - 1 elements", "state_own", 1, INT64_MAX, "has a state larger than its part"},
      {"parameters of another shape", "state_own", 0, 5, "has a state larger than its part"},
      {"two pitches of rows that interleave", "piece_pitch", 2, 22, "overlap another"}};
  test_cases(cases, sizeof cases / sizeof *cases);
  hid_t file = open_good();
  put_number(file, "/layout/parameter_pieces", 6, 1);
  put_number(file, "/layout/piece_length", 15, 5);
  refused(file, "does not share out the pieces", "a piece that is no parameter's");
}

/* The layout is fixture_bands (good, 5, CUTS_EVEN): the first parameter has 5 rows in 4 pieces, then 12; the third,
 * [3][5][7] along the second dimension, 1 in two pieces, then 2. */
static void test_band_numbers(void) {
  static const number_case cases[] = {
      {"pieces of no row", "piece_rows", 0, 0, "piece_rows has rows that are none of its parameter"},
      {"pieces of -1 rows", "piece_rows", 0, -1, "piece_rows has rows that are none of its parameter"},
      {"pieces of 2^63 - 1 rows", "piece_rows", 4, INT64_MAX, "piece_rows has rows that are none of its parameter"},
      {"more rows than are left", "piece_rows", 4, 13, "piece_rows has rows that are none of its parameter"},
      {"fewer rows than are left", "piece_rows", 4, 11, "does not cover a parameter"},
      {"pieces of the same rows with others", "piece_rows", 1, 4, "does not cover a parameter"},
      {"rows of a parameter that is cut along the first dimension", "piece_rows", 8, 2, "none of its parameter"},
      {"a parameter without its last rows", "parameter_pieces", 0, 4, "does not cover a parameter"},
      {"a parameter with a piece less", "parameter_pieces", 0, 7, "does not cover a parameter"},
      {"a piece over the next rows", "piece_offset", 0, 60, "overlap another"}};
  test_cases(cases, sizeof cases / sizeof *cases);
  hid_t file = open_good();
  TS_CHECK(H5Ldelete(file, "/layout/piece_rows", H5P_DEFAULT) >= 0, "%s", path);
  refused(file, "/layout/piece_rows is missing", "pieces of rows that nobody counts");
}

static void test_bands(void) {
  ts_checkpoint *whole = good;
  good = fixture_bands(whole, 5, CUTS_EVEN);
  test_band_numbers();
  ts_checkpoint_destroy(&good);
  good = whole;
}

static void test_pieces(void) {
  ts_checkpoint *whole = good;
  good = fixture_pieces(whole, 5, CUTS_EVEN);
  choose_tables(piece_tables, sizeof piece_tables / sizeof *piece_tables, 0);
  test_piece_numbers();
  test_tables();
  test_ranks();
  test_absurd();
  test_storage();
  ts_checkpoint_destroy(&good);
  good = whole;
}

/* ---- no such file ---- */

static void test_files(void) {
  ts_checkpoint *read = good;
  ts_error err = {0};
  unlink(path);
  tap_ok(fixture_says(ts_checkpoint_read_index(directory, &read, &err), &err, path, "cannot be read"), "no model.h5");
  TS_CHECK(ts_make_directory(path, NULL) == TS_OK, "%s", path);
  tap_ok(fixture_says(ts_checkpoint_read_index(directory, &read, &err), &err, path, "cannot be read"), "a directory");
  rmdir(path);
  for (int i = 0; i < 2; ++i) {
    TS_CHECK(ts_write_file(path, "not HDF5", i == 0 ? 0 : 8, NULL) == TS_OK, "%s", path);
    tap_ok(fixture_says(ts_checkpoint_read_index(directory, &read, &err), &err, path, "not an HDF5 file"),
           i == 0 ? "an empty file" : "a text");
  }
}

int main(void) {
  good = fixture_checkpoint(3, CUTS_EVEN, 17);
  directory = fixture_write("index", good);
  path = ts_format("%s/model.h5", directory);
  choose_tables(whole_tables, sizeof whole_tables / sizeof *whole_tables, sizeof word_tables / sizeof *word_tables);
  test_attributes();
  test_attribute_types();
  test_numbers();
  test_words();
  test_sums();
  test_tables();
  test_ranks();
  test_absurd();
  test_storage();
  test_states();
  test_pieces();
  test_bands();
  test_files();
  ts_checkpoint_destroy(&good);
  ts_free(directory);
  ts_free(path);
  tap_ok(ts_memory_live() == 0, "no memory is left");
  return tap_done();
}
