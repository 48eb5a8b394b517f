/* Shards and the index: every layout comes back, every damage is refused, every failing write is told. */
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "io/checkpoint_format.h"
#include "io/checksum.h"
#include "io/consolidate.h"
#include "io/hdf5.h"
#include "regression/io/checkpoint_fixture.h"
#include "regression/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static uint64_t random_state;

/* [0, n) */
static int64_t random_below(int64_t n) {
  return (int64_t) (ts_mix(1, ++random_state) % (uint64_t) n);
}

/* ---- the checksum ---- */

/* As the format's document writes it. */
static uint32_t plain_fletcher32(const unsigned char *data, size_t bytes) {
  uint32_t s1 = 0, s2 = 0;
  for (size_t i = 0; i < bytes; i += 2) {
    s1 += (uint32_t) data[i] << 8 | (i + 1 < bytes ? data[i + 1] : 0);
    s1 = (s1 & 0xffff) + (s1 >> 16);
    s2 += s1;
    s2 = (s2 & 0xffff) + (s2 >> 16);
  }
  return s2 << 16 | s1;
}

static void test_checksum(void) {
  enum { LARGEST = 1 << 20 };
  unsigned char *data = ts_malloc(LARGEST);
  static const char *const kinds[] = {"random", "zero", "0xff", "one bit"};
  for (int kind = 0; kind < 4; ++kind) {
    int wrong = 0, n = 0;
    memset(data, kind == 2 ? 0xff : 0, LARGEST);
    for (int i = 0; kind == 0 && i < LARGEST; ++i) {
      data[i] = (unsigned char) random_below(256);
    }
    for (size_t bytes = 0; bytes <= LARGEST; bytes += bytes < 600 ? 1 : (size_t) (1 + random_below(60000)), ++n) {
      if (kind == 3 && bytes > 0) {
        memset(data, 0, LARGEST);
        data[random_below((int64_t) bytes)] = (unsigned char) (1 << random_below(8));
      }
      wrong += ts_fletcher32(data, bytes) != plain_fletcher32(data, bytes);
    }
    wrong += ts_fletcher32(data, LARGEST) != plain_fletcher32(data, LARGEST);
    tap_ok(wrong == 0 && n > 300, "checksum: %d lengths of %s data", n, kinds[kind]);
  }
  ts_free(data);
}

/* ---- round trips ---- */

static bool same_piece(const ts_saved_piece *a, const ts_saved_piece *b) {
  return a->part == b->part && a->offset == b->offset && a->pitch == b->pitch && a->begin == b->begin &&
         a->length == b->length && a->first_row == b->first_row && a->rows == b->rows;
}

static bool same_index(const ts_checkpoint *a, const ts_checkpoint *b) {
  bool same = strcmp(a->deck, b->deck) == 0 && strcmp(a->source, b->source) == 0 && a->n_shards == b->n_shards &&
              a->n_parts == b->n_parts && a->n_parameters == b->n_parameters && a->n_facts == b->n_facts;
#define X(type, name) same = same && a->name == b->name;
  TS_CHECKPOINT_NUMBERS(X)
#undef X
  for (int i = 0; same && i < a->n_parts; ++i) {
    const ts_saved_part *p = &a->part[i], *q = &b->part[i];
    same = strcmp(p->name, q->name) == 0 && p->trainable == q->trainable && p->count == q->count &&
           p->n_states == q->n_states && memcmp(p->cuts, q->cuts, ((size_t) a->n_shards + 1) * sizeof *p->cuts) == 0;
    for (int k = 0; same && k < p->n_states; ++k) {
      same = strcmp(p->state[k].name, q->state[k].name) == 0 && p->state[k].dtype == q->state[k].dtype &&
             (p->state[k].block <= 1 ? q->state[k].block <= 1 : p->state[k].block == q->state[k].block) &&
             p->state[k].own == q->state[k].own;
    }
  }
  for (int i = 0; same && i < a->n_parameters; ++i) {
    const ts_saved_parameter *p = &a->parameter[i], *q = &b->parameter[i];
    same = strcmp(p->name, q->name) == 0 && p->n_dims == q->n_dims && p->count == q->count && p->dim == q->dim &&
           p->n_pieces == q->n_pieces && memcmp(p->shape, q->shape, (size_t) p->n_dims * sizeof *p->shape) == 0;
    for (int k = 0; same && k < p->n_pieces; ++k) {
      same = same_piece(&p->piece[k], &q->piece[k]);
    }
  }
  for (int i = 0; same && i < a->n_facts; ++i) {
    same = strcmp(a->fact[i].name, b->fact[i].name) == 0 && strcmp(a->fact[i].value, b->fact[i].value) == 0;
  }
  return same;
}

/* Wrong elements of one call with n random pieces, of any part, state, place, length (0 too) and float type. */
static int64_t random_pieces(ts_checkpoint_reader *reader, const ts_checkpoint *c, int n) {
  ts_checkpoint_piece *piece = ts_calloc((size_t) n, sizeof *piece);
  ts_error err = {0};
  for (int i = 0; i < n; ++i) {
    int part = (int) random_below(c->n_parts);
    int64_t first = random_below(c->part[part].count + 1), rest = c->part[part].count - first;
    piece[i] = (ts_checkpoint_piece){.part = part,
                                     .state = (int) random_below(c->part[part].n_states),
                                     .first = first,
                                     .count = random_below((i % 2 == 0 && rest > 50 ? 50 : rest) + 1),
                                     .dtype = random_below(2) == 0 ? TS_F32 : TS_BF16};
    piece[i].to = ts_calloc((size_t) piece[i].count + 1, ts_dtype_size(piece[i].dtype));
  }
  int64_t wrong = ts_checkpoint_read(reader, piece, n, &err) == TS_OK ? 0 : 1;
  for (int i = 0; i < n; ++i) {
    const ts_checkpoint_piece *p = &piece[i];
    size_t size = ts_dtype_size(p->dtype), bytes = (size_t) p->count * size;
    char *right = ts_calloc((size_t) p->count + 1, size), *read = p->to;
    fixture_values_as(c, p->part, p->state, p->first, p->count, p->dtype, right);
    wrong += memcmp(read, right, bytes + size) != 0; /* the element behind the piece is still 0 */
    ts_free(right);
    ts_free(read);
  }
  ts_error_clear(&err);
  ts_free(piece);
  return wrong;
}

static void round_trip(const char *name, int n_shards, fixture_cuts cuts, int64_t rows, int n_reads) {
  ts_checkpoint *c = fixture_checkpoint(n_shards, cuts, rows), *read = NULL;
  char *directory = fixture_write(name, c);
  ts_error err = {0};
  bool ok =
      tap_ok(ts_checkpoint_read_index(directory, &read, &err) == TS_OK && same_index(c, read), "%s: the index", name);
  tap_ok(ok && fixture_differences(directory, read) == 0, "%s: all values", name);
  ts_text packed = {0};
  ts_checkpoint_pack(c, &packed);
  ts_checkpoint *unpacked = ts_checkpoint_unpack(packed.text);
  ts_text_free(&packed);
  tap_ok(same_index(c, unpacked), "%s: what another rank gets of it", name);
  ts_checkpoint_destroy(&unpacked);
  ts_checkpoint_reader *reader = ts_checkpoint_reader_open(directory, c);
  int64_t wrong = 0;
  for (int i = 0; i < n_reads; ++i) {
    wrong += random_pieces(reader, c, 1 + (int) random_below(12));
  }
  tap_ok(wrong == 0, "%s: %d reads of random pieces", name, n_reads);
  ts_checkpoint_reader_close(&reader);
  ts_error_clear(&err);
  ts_checkpoint_destroy(&read);
  ts_checkpoint_destroy(&c);
  ts_free(directory);
}

static void test_round_trips(void) {
  round_trip("one shard", 1, CUTS_EVEN, 17, 200);
  round_trip("three shards", 3, CUTS_EVEN, 17, 200);
  round_trip("five uneven shards", 5, CUTS_UNEVEN, 17, 200);
  round_trip("empty first and last", 5, CUTS_EMPTY_ENDS, 17, 200);
  round_trip("all in one of three", 3, CUTS_ONE_OF_ALL, 17, 200);
  round_trip("more shards than open files", 30, CUTS_UNEVEN, 17, 100);
  round_trip("more shards than elements of a part", 90, CUTS_EVEN, 1, 50);
  round_trip("several chunks", 1, CUTS_EVEN, 20011, 10);
  round_trip("several chunks of uneven shards", 3, CUTS_UNEVEN, 20011, 10);
}

/* Quotes, newlines and bytes above 127 of a large deck come back as they were. */
static void test_texts(void) {
  ts_checkpoint *c = fixture_checkpoint(1, CUTS_EVEN, 3), *read = NULL;
  static const char bytes[] = "\"\n\\' \t{};=abc\xc3\xa9";
  static const size_t sizes[] = {0, 1, 4095, 4096, 65535, 65536, 131072, 2 << 20};
  ts_error err = {0};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    ts_text deck = {0};
    ts_text_add(&deck, "%s", "");
    for (size_t at = 0; at < sizes[i]; ++at) {
      ts_text_append(&deck, &bytes[at % (sizeof bytes - 1)], 1);
    }
    ts_free(c->deck);
    c->deck = ts_strdup(deck.text);
    ts_text_free(&deck);
    char *directory = fixture_write("texts", c);
    tap_ok(ts_checkpoint_read_index(directory, &read, &err) == TS_OK && same_index(c, read), "a deck of %zu bytes",
           sizes[i]);
    ts_error_clear(&err);
    ts_checkpoint_destroy(&read);
    ts_free(directory);
  }
  ts_checkpoint_destroy(&c);
}

/* ---- virtual datasets: what other programs see ---- */

/* A dataset of model.h5, read whole by HDF5 as fp32, which checks every checksum; false unless its shape is p's. */
static bool read_virtual(hid_t file, const char *state, const ts_saved_parameter *p, float *to) {
  char *name = ts_format("/%s/%s", state, p->name);
  hsize_t dims[TS_CHECKPOINT_LARGEST_RANK] = {0};
  hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT), space = dataset >= 0 ? H5Dget_space(dataset) : -1;
  bool same = space >= 0 && H5Sget_simple_extent_ndims(space) == p->n_dims;
  if (same) {
    H5Sget_simple_extent_dims(space, dims, NULL);
  }
  for (int d = 0; d < p->n_dims; ++d) {
    same = same && dims[d] == (hsize_t) p->shape[d];
  }
  same = same && H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, to) >= 0;
  H5Sclose(space);
  H5Dclose(dataset);
  ts_free(name);
  return same;
}

/* Whether a shard holds an element. */
static bool is_held(const ts_checkpoint *c, const ts_saved_parameter *p, int64_t element, int shard) {
  int part;
  int64_t place = fixture_place(p, element, &part);
  return place >= c->part[part].cuts[shard] && place < c->part[part].cuts[shard + 1];
}

/* Wrong elements over all datasets, -1 when one cannot be read; those of \a missing (-1: none) must be NaN.  \a whole
 * is the layout whose values they have. */
static int64_t virtual_differences(const char *directory, const ts_checkpoint *c, const ts_checkpoint *whole,
                                   int missing) {
  char *path = ts_format("%s/model.h5", directory);
  int64_t wrong = 0;
  ts_hdf5_lock();
  hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
  for (int i = 0; i < c->n_parameters; ++i) {
    const ts_saved_parameter *p = &c->parameter[i];
    const ts_saved_piece *from = &whole->parameter[i].piece[0];
    const ts_saved_part *part = &whole->part[from->part];
    float *read = ts_calloc((size_t) p->count, sizeof *read), *right = ts_calloc((size_t) p->count, sizeof *right);
    for (int k = 0; wrong >= 0 && k < part->n_states; ++k) {
      fixture_values_as(whole, from->part, k, from->offset, p->count, TS_F32, right);
      for (int64_t at = 0; missing >= 0 && at < p->count; ++at) {
        right[at] = is_held(c, p, at, missing) ? NAN : right[at];
      }
      wrong = read_virtual(file, part->state[k].name, p, read) ? wrong : -1;
      for (int64_t at = 0; wrong >= 0 && at < p->count; ++at) {
        wrong += read[at] != right[at] && !(isnan(read[at]) && isnan(right[at]));
      }
    }
    ts_free(read);
    ts_free(right);
  }
  H5Fclose(file);
  ts_hdf5_unlock();
  ts_free(path);
  return wrong;
}

/* Whole, and without a shard, which is lost. */
static void virtual_with(const char *name, const char *directory, const ts_checkpoint *c, const ts_checkpoint *whole) {
  tap_ok(virtual_differences(directory, c, whole, -1) == 0, "%s: HDF5 reads all tensors whole", name);
  int missing = c->n_shards / 2;
  char *shard = ts_checkpoint_shard_name(missing), *path = ts_format("%s/%s", directory, shard);
  TS_CHECK(unlink(path) == 0, "%s", path);
  tap_ok(virtual_differences(directory, c, whole, missing) == 0, "%s: without %s its elements alone are NaN", name,
         shard);
  ts_free(path);
  ts_free(shard);
}

static void virtual_of(const char *name, int n_shards, fixture_cuts cuts, int64_t rows) {
  ts_checkpoint *c = fixture_checkpoint(n_shards, cuts, rows);
  char *directory = fixture_write(name, c);
  virtual_with(name, directory, c, c);
  ts_checkpoint_destroy(&c);
  ts_free(directory);
}

/* Read from a directory that has no shards. */
static void test_virtual(void) {
  char *elsewhere = ts_format("%s/elsewhere", tap_directory()), *here = getcwd(NULL, 0);
  TS_CHECK(ts_make_directory(elsewhere, NULL) == TS_OK && chdir(elsewhere) == 0, "%s", elsewhere);
  virtual_of("virtual over one", 1, CUTS_EVEN, 17);
  virtual_of("virtual over three", 3, CUTS_EVEN, 17);
  virtual_of("virtual over seven uneven", 7, CUTS_UNEVEN, 17);
  virtual_of("virtual over empty ends", 5, CUTS_EMPTY_ENDS, 17);
  virtual_of("virtual over one of three", 3, CUTS_ONE_OF_ALL, 5);
  virtual_of("virtual over forty", 40, CUTS_UNEVEN, 3);
  virtual_of("virtual over chunks", 2, CUTS_EVEN, 20011);
  TS_CHECK(chdir(here) == 0, "%s", here);
  free(here);
  ts_free(elsewhere);
}

/* ---- parameters in pieces: version 2 ---- */

/* The version that a model.h5 says it has. */
static int64_t version_of(const char *directory) {
  char *path = ts_format("%s/model.h5", directory);
  int64_t version = -1;
  ts_hdf5_lock();
  hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
  hid_t attribute = H5Aopen(file, "tessera_checkpoint", H5P_DEFAULT);
  H5Aread(attribute, H5T_NATIVE_INT64, &version);
  H5Aclose(attribute);
  H5Fclose(file);
  ts_hdf5_unlock();
  ts_free(path);
  return version;
}

/* Elements [first, first + count) of a parameter's state, run by run; false when they are not those of \a whole. */
static bool read_runs(ts_checkpoint_reader *reader, const ts_checkpoint *c, const ts_checkpoint *whole, int parameter,
                      int state, int64_t first, int64_t count) {
  const ts_saved_piece *from = &whole->parameter[parameter].piece[0];
  float *read = ts_calloc((size_t) count, sizeof *read), *right = ts_calloc((size_t) count, sizeof *right);
  ts_checkpoint_piece *piece = ts_calloc((size_t) count, sizeof *piece);
  ts_checkpoint_run run;
  ts_error err = {0};
  int n = 0;
  for (int64_t at = 0; at < count; at += run.count) {
    run = ts_checkpoint_run_at(&c->parameter[parameter], first + at, count - at);
    piece[n++] = (ts_checkpoint_piece){
        .part = run.part, .state = state, .first = run.first, .count = run.count, .to = read + at, .dtype = TS_F32};
  }
  fixture_values_as(whole, from->part, state, from->offset + first, count, TS_F32, right);
  bool same = ts_checkpoint_read(reader, piece, n, &err) == TS_OK && memcmp(read, right, (size_t) count * 4) == 0;
  ts_error_clear(&err);
  ts_free(piece);
  ts_free(right);
  ts_free(read);
  return same;
}

static void runs_of(const char *name, const char *directory, const ts_checkpoint *c, const ts_checkpoint *whole) {
  ts_checkpoint_reader *reader = ts_checkpoint_reader_open(directory, c);
  int wrong = 0, n = 0;
  for (int i = 0; i < c->n_parameters; ++i) {
    int64_t count = c->parameter[i].count;
    for (int k = 0; k < ts_checkpoint_part(c, &c->parameter[i])->n_states; ++k) {
      wrong += !read_runs(reader, c, whole, i, k, 0, count);
      for (int j = 0; j < 30; ++j, ++n) {
        int64_t first = random_below(count);
        wrong += !read_runs(reader, c, whole, i, k, first, 1 + random_below(count - first));
      }
    }
  }
  tap_ok(wrong == 0, "%s: all tensors whole, and %d ranges of them", name, n);
  ts_checkpoint_reader_close(&reader);
}

static void pieces_of(const char *name, int n_shards, fixture_cuts cuts, int version) {
  ts_checkpoint *whole = fixture_checkpoint(1, CUTS_EVEN, 17), *read = NULL;
  ts_checkpoint *c = (version == 3 ? fixture_bands : fixture_pieces)(whole, n_shards, cuts);
  char *directory = fixture_write_pieces(name, c, whole);
  ts_error err = {0};
  ts_status status = ts_checkpoint_read_index(directory, &read, &err);
  if (!tap_ok(status == TS_OK && same_index(c, read) && version_of(directory) == version, "%s: the index, version %d",
              name, version)) {
    tap_note("%s", err.count > 0 ? err.text : "another index");
  }
  ts_text packed = {0};
  ts_checkpoint_pack(c, &packed);
  ts_checkpoint *unpacked = ts_checkpoint_unpack(packed.text);
  ts_text_free(&packed);
  tap_ok(same_index(c, unpacked), "%s: what another rank gets of it", name);
  runs_of(name, directory, unpacked, whole);
  virtual_with(name, directory, c, whole);
  ts_error_clear(&err);
  ts_checkpoint_destroy(&unpacked);
  ts_checkpoint_destroy(&read);
  ts_checkpoint_destroy(&c);
  ts_checkpoint_destroy(&whole);
  ts_free(directory);
}

/* A whole parameter of 61 columns in two pieces, where it is. */
static void cut_in_two(ts_saved_parameter *p) {
  p->n_pieces = 2;
  p->piece = ts_realloc(p->piece, 2, sizeof *p->piece);
  p->piece[1] = p->piece[0];
  p->piece[0].length = p->piece[1].begin = 20;
  p->piece[1].length = 41;
  p->piece[1].offset += 20;
}

/* What decides about the version: one parameter that is not whole, or lies out of its order. */
static void test_versions(void) {
  ts_checkpoint *c = fixture_checkpoint(3, CUTS_UNEVEN, 17), *read = NULL;
  char *directory = fixture_write("versions", c);
  ts_error err = {0};
  tap_ok(version_of(directory) == 1, "whole parameters: version 1");
  c->parameter[0].dim = 1;
  c->parameter[0].piece[0].length = c->parameter[0].piece[0].pitch = 61;
  c->parameter[0].piece[0].rows = c->parameter[0].shape[0];
  TS_CHECK(ts_checkpoint_write_index(directory, c, &err) == TS_OK, "%s", err.text);
  tap_ok(version_of(directory) == 1, "a whole parameter that would be cut along its second dimension: version 1");
  cut_in_two(&c->parameter[0]);
  TS_CHECK(ts_checkpoint_write_index(directory, c, &err) == TS_OK, "%s", err.text);
  tap_ok(version_of(directory) == 2 && virtual_differences(directory, c, c, -1) == 0, "one in two pieces: version 2");
  c->parameter[0].n_pieces = 1;
  c->parameter[0].piece[0].length = 61;
  ts_saved_parameter last = c->parameter[6];
  memmove(c->parameter + 1, c->parameter, 6 * sizeof *c->parameter);
  c->parameter[0] = last;
  TS_CHECK(ts_checkpoint_write_index(directory, c, &err) == TS_OK, "%s", err.text);
  tap_ok(version_of(directory) == 2, "whole parameters in another order than that of their places: version 2");
  tap_ok(ts_checkpoint_read_index(directory, &read, &err) == TS_OK && same_index(c, read), "which is read as it was");
  tap_ok(virtual_differences(directory, c, c, -1) == 0, "and shows all tensors");
  ts_error_clear(&err);
  ts_checkpoint_destroy(&read);
  ts_checkpoint_destroy(&c);
  ts_free(directory);
}

/* A run is as long as it can be, and no longer. */
static void test_runs(void) {
  ts_checkpoint *whole = fixture_checkpoint(1, CUTS_EVEN, 17), *c = fixture_pieces(whole, 5, CUTS_EVEN);
  ts_checkpoint_run run = ts_checkpoint_run_at(&whole->parameter[0], 60, 900);
  tap_ok(run.part == 0 && run.first == 60 && run.count == 900, "a whole parameter is one run");
  const ts_saved_piece *piece = c->parameter[0].piece;
  run = ts_checkpoint_run_at(&c->parameter[0], 61 + 35, 900);
  tap_ok(run.part == 0 && run.first == piece[2].offset + piece[2].pitch + 5 && run.count == 6,
         "a run of a cut one ends with the row of its piece");
  run = ts_checkpoint_run_at(&c->parameter[0], 61 + 35, 2);
  tap_ok(run.count == 2, "or where the reader wants it");
  ts_checkpoint_destroy(&c);
  ts_checkpoint_destroy(&whole);
}

static void test_pieces(void) {
  pieces_of("pieces over three", 3, CUTS_EVEN, 2);
  pieces_of("pieces over five", 5, CUTS_EVEN, 2);
  pieces_of("pieces over nine uneven", 9, CUTS_UNEVEN, 2);
  pieces_of("pieces over empty ends", 11, CUTS_EMPTY_ENDS, 2);
  pieces_of("pieces over one of all", 7, CUTS_ONE_OF_ALL, 2);
  pieces_of("pieces over sixty", 60, CUTS_UNEVEN, 2);
  pieces_of("pieces of some rows over three", 3, CUTS_EVEN, 3);
  pieces_of("pieces of some rows over nine uneven", 9, CUTS_UNEVEN, 3);
  pieces_of("pieces of some rows over empty ends", 11, CUTS_EMPTY_ENDS, 3);
  pieces_of("pieces of some rows over sixty", 60, CUTS_UNEVEN, 3);
}

/* ---- consolidating pieces ---- */

/* What ts_consolidate makes of a checkpoint, as one block of bytes. */
static char *consolidated(const char *directory, const ts_checkpoint *c, ts_consolidate_format format, ts_dtype dtype,
                          size_t *length) {
  ts_manifest manifest = {.step = c->step};
  ts_consolidated result;
  bool broken;
  ts_error err = {0};
  char *output = ts_format("%s/out", directory), *file = NULL, *bytes;
  ts_consolidate_options o = {.directory = directory,
                              .checkpoint = c,
                              .manifest = &manifest,
                              .threads = 1,
                              .output = output,
                              .format = format,
                              .dtype = dtype,
                              .most_bytes = INT64_MAX};
  if (format == TS_CONSOLIDATE_SAFETENSORS) {
    TS_CHECK(ts_make_directory(output, &err) == TS_OK, "%s", err.text);
    file = ts_format("%s/model.safetensors", output);
  }
  for (int s = -1; s < c->n_shards; ++s) { /* all files as they are: hashes have tests of their own */
    char *name = s < 0 ? ts_strdup("model.h5") : ts_checkpoint_shard_name(s);
    manifest.file = ts_realloc(manifest.file, (size_t) manifest.n + 1, sizeof *manifest.file);
    TS_CHECK(ts_file_sum_make(directory, name, &manifest.file[manifest.n++], &err) == TS_OK, "%s", err.text);
    ts_free(name);
  }
  TS_CHECK(ts_consolidate(&o, &result, &broken, &err) == TS_OK, "%s", err.text);
  TS_CHECK(ts_read_file(file != NULL ? file : output, (size_t) 1 << 30, &bytes, length, &err) == TS_OK, "%s", err.text);
  TS_CHECK(unlink(file != NULL ? file : output) == 0 && (file == NULL || rmdir(output) == 0), "%s", output);
  ts_manifest_clear(&manifest);
  ts_free(output);
  ts_free(file);
  return bytes;
}

static void test_consolidated(void) {
  static const struct {
    const char *what;
    ts_consolidate_format format;
    ts_dtype dtype;
  } cases[] = {{"HDF5, fp32", TS_CONSOLIDATE_HDF5, TS_F32},
               {"safetensors, fp32", TS_CONSOLIDATE_SAFETENSORS, TS_F32},
               {"safetensors, bf16", TS_CONSOLIDATE_SAFETENSORS, TS_BF16},
               {"HDF5, fp16", TS_CONSOLIDATE_HDF5, TS_F16}};
  ts_checkpoint *whole = fixture_checkpoint(2, CUTS_UNEVEN, 17), *c = fixture_pieces(whole, 6, CUTS_UNEVEN);
  char *one = fixture_write("whole", whole), *many = fixture_write_pieces("in pieces", c, whole);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    size_t length, other;
    char *a = consolidated(one, whole, cases[i].format, cases[i].dtype, &length);
    char *b = consolidated(many, c, cases[i].format, cases[i].dtype, &other);
    tap_ok(length == other && memcmp(a, b, length) == 0, "%s: pieces give the file that whole parameters give",
           cases[i].what);
    ts_free(a);
    ts_free(b);
  }
  ts_checkpoint_destroy(&c);
  ts_checkpoint_destroy(&whole);
  ts_free(one);
  ts_free(many);
}

/* ---- many shards ---- */

static void test_many(void) {
  enum { SHARDS = 1500, LIMIT = 64 };
  ts_checkpoint *c = fixture_checkpoint(SHARDS, CUTS_UNEVEN, 100), *read = NULL;
  struct rlimit before, small;
  ts_error err = {0};
  TS_CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0, "getrlimit");
  small = (struct rlimit){.rlim_cur = LIMIT, .rlim_max = before.rlim_max};
  TS_CHECK(setrlimit(RLIMIT_NOFILE, &small) == 0, "setrlimit");
  char *directory = fixture_write("many", c);
  int open = fixture_descriptors();
  tap_ok(ts_checkpoint_read_index(directory, &read, &err) == TS_OK && same_index(c, read), "%d shards: the index",
         SHARDS);
  tap_ok(fixture_differences(directory, c) == 0, "%d shards, %d descriptors: all values", SHARDS, LIMIT);
  ts_checkpoint_reader *reader = ts_checkpoint_reader_open(directory, c);
  int64_t wrong = 0;
  int most = 0;
  for (int i = 0; i < 5; ++i) {
    wrong += random_pieces(reader, c, 4);
    most = fixture_descriptors() > most ? fixture_descriptors() : most;
  }
  tap_ok(wrong == 0 && most > open && most <= open + TS_CHECKPOINT_OPEN_FILES, "%d shards: at most %d of them open",
         SHARDS, TS_CHECKPOINT_OPEN_FILES);
  ts_checkpoint_reader_close(&reader);
  tap_ok(fixture_descriptors() == open, "%d shards: none open at the end", SHARDS);
  setrlimit(RLIMIT_NOFILE, &before);
  ts_error_clear(&err);
  ts_checkpoint_destroy(&read);
  ts_checkpoint_destroy(&c);
  ts_free(directory);
}

/* A scale a block of 32 elements, and a state with a shape of its own. */
static void test_extents(void) {
  static const int64_t cuts[] = {0, 0, 64, 1088, 1394}; /* the first shard has nothing */
  ts_checkpoint *c = fixture_checkpoint(4, CUTS_EVEN, 17), *read = NULL;
  ts_saved_part *part = &c->part[0];
  memcpy(part->cuts, cuts, sizeof cuts);
  part->state = ts_realloc(part->state, (size_t) part->n_states + 2, sizeof *part->state);
  part->state[part->n_states++] = (ts_saved_state){.name = ts_strdup("scale"), .dtype = TS_F32, .block = 32};
  part->state[part->n_states++] = (ts_saved_state){.name = ts_strdup("bias"), .dtype = TS_BF16, .own = 5};
  bool places = true;
  for (int s = 0; s <= 4; ++s) {
    static const int64_t scale[] = {0, 0, 2, 34, 44}, bias[] = {0, 0, 5, 5, 5};
    places = places && ts_saved_state_cut(part, 3, s) == scale[s] && ts_saved_state_cut(part, 4, s) == bias[s];
  }
  tap_ok(places, "states of other extents: what each shard has of them");
  char *directory = fixture_write("extents", c);
  ts_error err = {0};
  tap_ok(version_of(directory) == 2, "states of other extents: version 2");
  bool ok = ts_checkpoint_read_index(directory, &read, &err) == TS_OK && same_index(c, read);
  tap_ok(ok && fixture_differences(directory, read) == 0, "states of other extents: the index and all values");
  ts_error_clear(&err);
  ts_checkpoint_destroy(&read);
  ts_checkpoint_destroy(&c);
  ts_free(directory);
}

int main(void) {
  test_checksum();
  test_round_trips();
  test_texts();
  test_virtual();
  test_versions();
  test_extents();
  test_runs();
  test_pieces();
  test_consolidated();
  test_many();
  tap_ok(fixture_hdf5_objects() == 0, "HDF5 has nothing open");
  tap_ok(ts_memory_live() == 0, "no memory is left");
  return tap_done();
}
