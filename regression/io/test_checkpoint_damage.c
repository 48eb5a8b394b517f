/* Shards and indices that were damaged, in any byte, are refused by name. */
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "io/checkpoint_format.h"
#include "io/hdf5.h"
#include "regression/io/checkpoint_fixture.h"
#include "regression/tap.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOPS = 300 }; /* random damages of a kind */

static uint64_t random_state;

/* [0, n) */
static int64_t random_below(int64_t n) {
  return (int64_t) (ts_mix(2, ++random_state) % (uint64_t) n);
}

static char *shard_path(const char *directory, int shard) {
  char *name = ts_checkpoint_shard_name(shard), *path = ts_format("%s/%s", directory, name);
  ts_free(name);
  return path;
}

/* Change a byte by a random number; call with the same number again to undo. */
static void flip(const char *path, int64_t at, unsigned char bits) {
  unsigned char byte;
  int file = open(path, O_RDWR);
  TS_CHECK(pread(file, &byte, 1, at) == 1, "%s", path);
  byte ^= bits;
  TS_CHECK(pwrite(file, &byte, 1, at) == 1 && close(file) == 0, "%s", path);
}

/* Read all elements of one state. */
static ts_status read_state(const char *directory, const ts_checkpoint *c, int part, int state, ts_error *err) {
  ts_checkpoint_reader *reader = ts_checkpoint_reader_open(directory, c);
  ts_checkpoint_piece piece = {.part = part, .state = state, .count = c->part[part].count, .dtype = TS_F32};
  piece.to = ts_calloc((size_t) piece.count, sizeof(float));
  ts_status status = ts_checkpoint_read(reader, &piece, 1, err);
  ts_free(piece.to);
  ts_checkpoint_reader_close(&reader);
  return status;
}

/* ---- a byte of a chunk ---- */

/* Where a random byte of a random chunk lies in the file, its padding and checksum included. */
static int64_t byte_of_chunk(const char *path, const char *dataset) {
  hsize_t n = 0, offset, bytes;
  haddr_t address;
  unsigned mask;
  ts_hdf5_lock();
  hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), data = H5Dopen2(file, dataset, H5P_DEFAULT),
        space = H5Dget_space(data);
  TS_CHECK(H5Dget_num_chunks(data, space, &n) >= 0 && n > 0, "%s: %s", path, dataset);
  TS_CHECK(H5Dget_chunk_info(data, space, (hsize_t) random_below((int64_t) n), &offset, &mask, &address, &bytes) >= 0,
           "%s", path);
  H5Sclose(space);
  H5Dclose(data);
  H5Fclose(file);
  ts_hdf5_unlock();
  return (int64_t) address + random_below((int64_t) bytes);
}

static void test_chunks(const char *name, const ts_checkpoint *c) {
  char *directory = fixture_write(name, c);
  int missed = 0;
  for (int i = 0; i < LOOPS; ++i) {
    int part = (int) random_below(c->n_parts), state = (int) random_below(c->part[part].n_states), s;
    do {
      s = (int) random_below(c->n_shards);
    } while (c->part[part].cuts[s] == c->part[part].cuts[s + 1]);
    char *path = shard_path(directory, s), *dataset = ts_checkpoint_dataset(&c->part[part], state);
    char *words = ts_format("%s is damaged", dataset);
    unsigned char bits = (unsigned char) (1 + random_below(255));
    int64_t at = byte_of_chunk(path, dataset);
    ts_error err = {0};
    flip(path, at, bits);
    missed += !fixture_says(read_state(directory, c, part, state, &err), &err, path, words);
    flip(path, at, bits);
    ts_free(words);
    ts_free(dataset);
    ts_free(path);
  }
  tap_ok(missed == 0, "%s: %d changed bytes of chunks are found, with file and dataset", name, LOOPS);
  tap_ok(fixture_differences(directory, c) == 0, "%s: and nothing but them was wrong", name);
  ts_free(directory);
}

/* ---- datasets that are not what the index says ---- */

typedef struct odd {
  const char *what, *words;
  int64_t count, chunk; /* 0: none */
  int rank;
  bool integers, wide;        /* another type */
  bool shuffle, deflate, sum; /* filters */
  int chunks_written;
  uint32_t mask; /* of filters that were not applied */
  int bytes_more;
} odd;

/* Shard 0 of a layout with 1000 fp32 elements in part 0, which is read. */
static void write_odd(const char *path, const char *dataset, const odd *o) {
  hsize_t dims[2] = {(hsize_t) o->count, 1}, chunk[2] = {(hsize_t) o->chunk, 1}, offset[2] = {0, 0};
  unsigned char *bytes = ts_calloc(1 << 14, 1);
  ts_hdf5_lock();
  hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), links = H5Pcreate(H5P_LINK_CREATE);
  hid_t create = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(o->rank, dims, NULL);
  H5Pset_create_intermediate_group(links, 1);
  if (o->chunk > 0) {
    H5Pset_chunk(create, o->rank, chunk);
  }
  TS_CHECK((!o->shuffle || H5Pset_shuffle(create) >= 0) && (!o->deflate || H5Pset_deflate(create, 1) >= 0) &&
               (!o->sum || H5Pset_fletcher32(create) >= 0),
           "%s", path);
  hid_t type = o->integers ? H5T_STD_I32LE : o->wide ? H5T_IEEE_F64LE : H5T_IEEE_F32LE;
  hid_t data = H5Dcreate2(file, dataset, type, space, links, create, H5P_DEFAULT);
  TS_CHECK(data >= 0, "%s", o->what);
  if (o->chunks_written > 0) {
    size_t size = (size_t) o->chunk * (o->wide ? 8 : 4) + (o->sum ? 4 : 0) + (size_t) o->bytes_more;
    TS_CHECK(H5Dwrite_chunk(data, H5P_DEFAULT, o->mask, offset, size, bytes) >= 0, "%s", path);
  }
  H5Dclose(data);
  H5Sclose(space);
  H5Pclose(create);
  H5Pclose(links);
  H5Fclose(file);
  ts_hdf5_unlock();
  ts_free(bytes);
}

static void test_odd(void) {
  static const char other[] = "another size or type than the index says";
  static const odd cases[] = {
      {"an element less", other, .count = 999, .chunk = 999, .rank = 1, .sum = true, .chunks_written = 1},
      {"an element more", other, .count = 1001, .chunk = 1000, .rank = 1, .sum = true, .chunks_written = 1},
      {"smaller chunks", other, .count = 1000, .chunk = 500, .rank = 1, .sum = true, .chunks_written = 1},
      {"no chunks", other, .count = 1000, .rank = 1},
      {"two dimensions", other, .count = 1000, .chunk = 1000, .rank = 2, .sum = true, .chunks_written = 1},
      {"no dimension", other, .rank = 0},
      {"integers", other, .count = 1000, .chunk = 1000, .rank = 1, .integers = true, .sum = true, .chunks_written = 1},
      {"fp64", other, .count = 1000, .chunk = 1000, .rank = 1, .wide = true, .sum = true, .chunks_written = 1},
      {"no checksums", other, .count = 1000, .chunk = 1000, .rank = 1, .chunks_written = 1},
      {"a filter before", other, .count = 1000, .chunk = 1000, .rank = 1, .shuffle = true, .sum = true,
       .chunks_written = 1},
      {"another filter", other, .count = 1000, .chunk = 1000, .rank = 1, .shuffle = true, .chunks_written = 1},
      {"a chunk that is not there", "cannot be read", .count = 1000, .chunk = 1000, .rank = 1, .sum = true},
      {"a chunk without its checksum", "cannot be read", .count = 1000, .chunk = 1000, .rank = 1, .sum = true,
       .chunks_written = 1, .mask = 1},
      {"a chunk that is longer", "cannot be read", .count = 1000, .chunk = 1000, .rank = 1, .sum = true,
       .chunks_written = 1, .bytes_more = 8000},
      {"a chunk that is shorter", "cannot be read", .count = 1000, .chunk = 1000, .rank = 1, .sum = true,
       .chunks_written = 1, .bytes_more = -1}};
  ts_checkpoint *c = fixture_checkpoint(1, CUTS_EVEN, 1);
  c->part[0].count = c->part[0].cuts[1] = 1000;
  char *directory = fixture_write("odd", c), *path = shard_path(directory, 0),
       *dataset = ts_checkpoint_dataset(&c->part[0], 0);
  ts_error err = {0};
  odd good = {"as it should be", NULL, .count = 1000, .chunk = 1000, .rank = 1, .sum = true, .chunks_written = 1};
  write_odd(path, dataset, &good);
  tap_ok(read_state(directory, c, 0, 0, &err) == TS_OK, "a shard of another writer");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    write_odd(path, dataset, &cases[i]);
    char *words = ts_format("%s %s", dataset, cases[i].words[0] == 'c' ? cases[i].words : "has another");
    tap_ok(fixture_says(read_state(directory, c, 0, 0, &err), &err, path, words), "a shard with %s", cases[i].what);
    ts_free(words);
  }
  write_odd(path, "/other/dataset", &good);
  tap_ok(fixture_says(read_state(directory, c, 0, 0, &err), &err, path, "is missing"), "a shard without the dataset");
  write_odd(path, "/blocks/parameter/group", &good);
  tap_ok(fixture_says(read_state(directory, c, 0, 0, &err), &err, path, "is missing"), "a shard with a group instead");
  TS_CHECK(unlink(path) == 0, "%s", path);
  tap_ok(fixture_says(read_state(directory, c, 0, 0, &err), &err, path, "is missing or cannot be read"), "no shard");
  TS_CHECK(ts_write_file(path, "text", 4, NULL) == TS_OK, "%s", path);
  tap_ok(fixture_says(read_state(directory, c, 0, 0, &err), &err, path, "is not an HDF5 file"), "a text for a shard");
  ts_free(dataset);
  ts_free(path);
  ts_free(directory);
  ts_checkpoint_destroy(&c);
}

/* A reader goes on after a shard that it could not read. */
static void test_after(void) {
  ts_checkpoint *c = fixture_checkpoint(3, CUTS_EVEN, 17);
  char *directory = fixture_write("after", c), *path = shard_path(directory, 1), *away = ts_format("%s.away", path);
  ts_checkpoint_reader *reader = ts_checkpoint_reader_open(directory, c);
  ts_error err = {0};
  float read[1037], right[1037];
  ts_checkpoint_piece piece = {.count = 1037, .to = read, .dtype = TS_F32};
  fixture_values(c, 0, 0, 0, 1037, right);
  TS_CHECK(rename(path, away) == 0, "%s", path);
  tap_ok(fixture_says(ts_checkpoint_read(reader, &piece, 1, &err), &err, path, "is missing"), "a shard that is away");
  TS_CHECK(rename(away, path) == 0, "%s", path);
  tap_ok(ts_checkpoint_read(reader, &piece, 1, &err) == TS_OK && memcmp(read, right, sizeof right) == 0,
         "and back again, for the same reader");
  ts_checkpoint_reader_close(&reader);
  ts_free(away);
  ts_free(path);
  ts_free(directory);
  ts_checkpoint_destroy(&c);
}

static void overwrite(const char *path) {
  FILE *file = fopen(path, "r+b");
  TS_CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0, "%s", path);
  long bytes = ftell(file);
  rewind(file);
  for (long i = 0; i < bytes; ++i) {
    fputc('x', file);
  }
  fclose(file);
}

/* What was read lately is not read again: the rows of a matrix may be shared by many shards. */
static void test_kept(void) {
  ts_checkpoint *c = fixture_checkpoint(3, CUTS_EVEN, 17);
  char *directory = fixture_write("kept", c);
  ts_checkpoint_reader *reader = ts_checkpoint_reader_open(directory, c);
  float read[1037], right[1037];
  const ts_checkpoint_piece piece = {.count = 1037, .to = read, .dtype = TS_F32};
  fixture_values(c, 0, 0, 0, 1037, right);
  bool first = ts_checkpoint_read(reader, &piece, 1, NULL) == TS_OK;
  for (int shard = 0; shard < 3; ++shard) {
    char *path = shard_path(directory, shard);
    overwrite(path);
    ts_free(path);
  }
  memset(read, 0, sizeof read);
  tap_ok(first && ts_checkpoint_read(reader, &piece, 1, NULL) == TS_OK && memcmp(read, right, sizeof right) == 0,
         "chunks of several shards are kept for the next call");
  ts_checkpoint_reader_close(&reader);
  reader = ts_checkpoint_reader_open(directory, c);
  tap_ok(ts_checkpoint_read(reader, &piece, 1, NULL) == TS_BAD_INPUT, "but not for another reader");
  ts_checkpoint_reader_close(&reader);
  ts_free(directory);
  ts_checkpoint_destroy(&c);
}

/* ---- any byte of a file, in a process of its own: HDF5 meets garbage ---- */

enum { REFUSED = 40, RIGHT, WRONG, UNNAMED };

/* Every run of every parameter lies in its part: whoever reads by an index that was not refused stays in bounds. */
static bool runs_lie_inside(const ts_checkpoint *c) {
  bool inside = true;
  for (int i = 0; i < c->n_parameters; ++i) {
    ts_checkpoint_run run;
    for (int64_t at = 0; inside && at < c->parameter[i].count; at += run.count) {
      run = ts_checkpoint_run_at(&c->parameter[i], at, c->parameter[i].count - at);
      inside = run.first >= 0 && run.count >= 1 && run.first + run.count <= c->part[run.part].count;
    }
  }
  return inside;
}

/* What a child makes of the checkpoint; of its index alone when \a path is model.h5. */
static int judge(const char *directory, const ts_checkpoint *c, const char *path, bool index) {
  ts_checkpoint *read = NULL;
  ts_error err = {0};
  if (index) {
    ts_status status = ts_checkpoint_read_index(directory, &read, &err);
    return status == TS_OK                              ? (runs_lie_inside(read) ? RIGHT : WRONG)
           : strncmp(err.text, path, strlen(path)) == 0 ? REFUSED
                                                        : UNNAMED;
  }
  for (int i = 0; i < c->n_parts; ++i) {
    for (int k = 0; k < c->part[i].n_states; ++k) {
      if (read_state(directory, c, i, k, &err) != TS_OK) {
        return strncmp(err.text, path, strlen(path)) == 0 ? REFUSED : UNNAMED;
      }
    }
  }
  return fixture_differences(directory, c) == 0 ? RIGHT : WRONG;
}

static int in_child(const char *directory, const ts_checkpoint *c, const char *path, bool index) {
  int status;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    struct rlimit no_core = {0};
    setrlimit(RLIMIT_CORE, &no_core);
    TS_CHECK(freopen("/dev/null", "w", stderr) != NULL, "/dev/null"); /* a crash of HDF5's is counted, not shown */
    alarm(20);
    _exit(judge(directory, c, path, index));
  }
  TS_CHECK(child > 0 && waitpid(child, &status, 0) == child, "fork");
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Over truncated and changed copies of a file of the checkpoint, and back. */
static void damage(const char *what, const char *directory, const ts_checkpoint *c, const char *path, bool index,
                   bool cut) {
  int refused = 0, right = 0, wrong = 0, crashed = 0;
  size_t length;
  char *whole;
  TS_CHECK(ts_read_file(path, 1 << 26, &whole, &length, NULL) == TS_OK, "%s", path);
  for (int i = 0; i < LOOPS; ++i) {
    int64_t at = cut && i < 20 ? i * 8 : random_below((int64_t) length);
    unsigned char bits = (unsigned char) (1 + random_below(255));
    if (cut) {
      TS_CHECK(truncate(path, at) == 0, "%s", path);
    } else {
      flip(path, at, bits);
    }
    int verdict = in_child(directory, c, path, index);
    refused += verdict == REFUSED;
    right += verdict == RIGHT;
    wrong += verdict == WRONG || verdict == UNNAMED;
    if (verdict < REFUSED || verdict > UNNAMED) {
      tap_note("%s: HDF5 ended with %d at byte %lld", what, verdict, (long long) at);
      ++crashed;
    }
    TS_CHECK(ts_write_file(path, whole, length, NULL) == TS_OK, "%s", path);
  }
  tap_note("%s: %d refused, %d right, %d wrong, %d crashes of HDF5", what, refused, right, wrong, crashed);
  tap_ok(cut ? refused == LOOPS : wrong == 0 && refused > 0 && refused + right + crashed == LOOPS, "%s: %d times", what,
         LOOPS);
  ts_free(whole);
}

static void test_garbage(void) {
  ts_checkpoint *c = fixture_checkpoint(2, CUTS_EVEN, 3);
  char *directory = fixture_write("garbage", c), *shard = shard_path(directory, 1),
       *index = ts_format("%s/model.h5", directory);
  damage("a shard that was cut", directory, c, shard, false, true);
  damage("a shard with a changed byte", directory, c, shard, false, false);
  damage("an index that was cut", directory, c, index, true, true);
  damage("an index with a changed byte", directory, c, index, true, false);
  tap_ok(fixture_differences(directory, c) == 0, "and as it was it is right");
  ts_checkpoint *whole = fixture_checkpoint(1, CUTS_EVEN, 17), *pieces = fixture_pieces(whole, 3, CUTS_EVEN);
  TS_CHECK(ts_checkpoint_write_index(directory, pieces, NULL) == TS_OK, "%s", index);
  damage("an index of pieces with a changed byte", directory, pieces, index, true, false);
  ts_checkpoint_destroy(&pieces);
  ts_checkpoint_destroy(&whole);
  ts_free(index);
  ts_free(shard);
  ts_free(directory);
  ts_checkpoint_destroy(&c);
}

int main(void) {
  ts_checkpoint *c = fixture_checkpoint(3, CUTS_UNEVEN, 17), *large = fixture_checkpoint(2, CUTS_EVEN, 20011);
  test_chunks("small", c);
  test_chunks("large", large);
  ts_checkpoint_destroy(&c);
  ts_checkpoint_destroy(&large);
  test_odd();
  test_after();
  test_kept();
  test_garbage();
  tap_ok(fixture_hdf5_objects() == 0, "HDF5 has nothing open");
  tap_ok(ts_memory_live() == 0, "no memory is left");
  return tap_done();
}
