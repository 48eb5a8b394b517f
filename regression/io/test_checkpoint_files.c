/* Shards and the index: every layout comes back, every damage is refused, every failing write is told. */
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "io/checkpoint_format.h"
#include "io/checksum.h"
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
  for (size_t i = 0; i + 1 < bytes; i += 2) {
    s1 += (uint32_t) data[i] << 8 | data[i + 1];
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
    for (size_t bytes = 0; bytes <= LARGEST; bytes += bytes < 600 ? 2 : 2 * (size_t) (1 + random_below(30000)), ++n) {
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
      same = strcmp(p->state[k].name, q->state[k].name) == 0 && p->state[k].dtype == q->state[k].dtype;
    }
  }
  for (int i = 0; same && i < a->n_parameters; ++i) {
    const ts_saved_parameter *p = &a->parameter[i], *q = &b->parameter[i];
    same = strcmp(p->name, q->name) == 0 && p->part == q->part && p->n_dims == q->n_dims && p->offset == q->offset &&
           p->count == q->count && memcmp(p->shape, q->shape, (size_t) p->n_dims * sizeof *p->shape) == 0;
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

/* Wrong elements over all datasets, -1 when one cannot be read; those of \a missing (-1: none) must be NaN. */
static int64_t virtual_differences(const char *directory, const ts_checkpoint *c, int missing) {
  char *path = ts_format("%s/model.h5", directory);
  int64_t wrong = 0;
  ts_hdf5_lock();
  hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
  for (int i = 0; i < c->n_parameters; ++i) {
    const ts_saved_parameter *p = &c->parameter[i];
    const ts_saved_part *part = &c->part[p->part];
    float *read = ts_calloc((size_t) p->count, sizeof *read), *right = ts_calloc((size_t) p->count, sizeof *right);
    for (int k = 0; wrong >= 0 && k < part->n_states; ++k) {
      fixture_values_as(c, p->part, k, p->offset, p->count, TS_F32, right);
      for (int64_t at = 0; missing >= 0 && at < p->count; ++at) {
        bool gone = p->offset + at >= part->cuts[missing] && p->offset + at < part->cuts[missing + 1];
        right[at] = gone ? NAN : right[at];
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

static void virtual_of(const char *name, int n_shards, fixture_cuts cuts, int64_t rows) {
  ts_checkpoint *c = fixture_checkpoint(n_shards, cuts, rows);
  char *directory = fixture_write(name, c);
  tap_ok(virtual_differences(directory, c, -1) == 0, "%s: HDF5 reads all tensors whole", name);
  int missing = n_shards / 2;
  char *shard = ts_checkpoint_shard_name(missing), *path = ts_format("%s/%s", directory, shard);
  TS_CHECK(unlink(path) == 0, "%s", path);
  tap_ok(virtual_differences(directory, c, missing) == 0, "%s: without %s its elements alone are NaN", name, shard);
  ts_free(path);
  ts_free(shard);
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

int main(void) {
  test_checksum();
  test_round_trips();
  test_texts();
  test_virtual();
  test_many();
  tap_ok(fixture_hdf5_objects() == 0, "HDF5 has nothing open");
  tap_ok(ts_memory_live() == 0, "no memory is left");
  return tap_done();
}
