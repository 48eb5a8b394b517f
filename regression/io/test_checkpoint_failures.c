/* Writes that fail are told and leave nothing behind; tokens are read beside a thread that writes. */
#include "base/memory.h"
#include "base/text.h"
#include "io/hdf5.h"
#include "io/tokens.h"
#include "regression/io/checkpoint_fixture.h"
#include "regression/tap.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Shard 0, or the index for a negative one. */
static ts_status write_one(const char *directory, const ts_checkpoint *c, bool index, ts_error *err) {
  return index ? ts_checkpoint_write_index(directory, c, err) : fixture_write_shard(directory, c, 0, err);
}

static char *path_of(const char *directory, bool index) {
  return ts_format("%s/%s", directory, index ? "model.h5" : "shard_00000.h5");
}

static char *make_directory(const char *name) {
  char *directory = ts_format("%s/%s", tap_directory(), name);
  TS_CHECK(ts_make_directory(directory, NULL) == TS_OK, "%s", directory);
  return directory;
}

/* ---- stderr, which must stay empty ---- */

static int begin_stderr(void) {
  char *name = ts_format("%s/stderr", tap_directory());
  int kept = dup(2), file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
  TS_CHECK(kept >= 0 && file >= 0 && dup2(file, 2) == 2 && close(file) == 0, "%s", name);
  ts_free(name);
  return kept;
}

/* Bytes that were written since. */
static int64_t end_stderr(int kept) {
  struct stat info;
  fflush(stderr);
  TS_CHECK(fstat(2, &info) == 0 && dup2(kept, 2) == 2 && close(kept) == 0, "stderr");
  return info.st_size;
}

/* ---- the nth write fails ---- */

static void fail_each(const char *name, const ts_checkpoint *c, bool index, int error_number) {
  char *directory = make_directory("fail"), *path = path_of(directory, index);
  ts_error err = {0};
  int descriptors = fixture_descriptors(), n = 0, kept = begin_stderr();
  bool told = true, clean = true;
  ts_status status;
  do {
    ts_hdf5_set_test_failure(++n, error_number);
    status = write_one(directory, c, index, &err);
    ts_hdf5_set_test_failure(0, 0);
    told = told && (status == TS_OK || fixture_says(status, &err, path, strerror(error_number)));
    clean = clean && fixture_hdf5_objects() == 0 && fixture_descriptors() == descriptors + 1; /* the kept stderr */
  } while (status != TS_OK && n < 10000);
  int64_t said = end_stderr(kept);
  tap_ok(status == TS_OK && n > 2 && told, "%s, %s: each of %d writes that fails is told", name, strerror(error_number),
         n - 1);
  tap_ok(clean, "%s, %s: nothing is left open", name, strerror(error_number));
  tap_ok(said == 0, "%s, %s: nothing is printed", name, strerror(error_number));
  ts_error_clear(&err);
  ts_free(path);
  ts_free(directory);
}

static void test_failures(void) {
  ts_checkpoint *small = fixture_checkpoint(1, CUTS_EVEN, 17), *large = fixture_checkpoint(1, CUTS_EVEN, 20011);
  ts_checkpoint *wide = fixture_checkpoint(200, CUTS_UNEVEN, 17);
  static const int errors[] = {ENOSPC, EIO};
  for (int i = 0; i < 2; ++i) {
    fail_each("a small shard", small, false, errors[i]);
    fail_each("a large shard", large, false, errors[i]);
    fail_each("an index", small, true, errors[i]);
    fail_each("an index of 200 shards", wide, true, errors[i]);
  }
  char *directory = fixture_write("after failures", small);
  tap_ok(fixture_differences(directory, small) == 0, "afterwards all is written");
  ts_free(directory);
  ts_checkpoint_destroy(&small);
  ts_checkpoint_destroy(&large);
  ts_checkpoint_destroy(&wide);
}

/* ---- failures of the kernel's own ---- */

/* A limit on the size of files: the first write beyond it fails, or is short. */
static void test_limits(void) {
  ts_checkpoint *c = fixture_checkpoint(1, CUTS_EVEN, 3001);
  char *directory = make_directory("limit");
  struct rlimit before;
  signal(SIGXFSZ, SIG_IGN);
  TS_CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0, "getrlimit");
  for (int index = 0; index < 2; ++index) {
    char *path = path_of(directory, index);
    ts_error err = {0};
    int told = 0, n = 0, kept = begin_stderr();
    struct stat info;
    TS_CHECK(write_one(directory, c, index, &err) == TS_OK && stat(path, &info) == 0, "%s", path);
    for (int64_t limit = 0; limit < info.st_size; limit += info.st_size / 50 + 1, ++n) {
      struct rlimit small = {.rlim_cur = (rlim_t) limit, .rlim_max = before.rlim_max};
      setrlimit(RLIMIT_FSIZE, &small);
      ts_status status = write_one(directory, c, index, &err);
      setrlimit(RLIMIT_FSIZE, &before);
      told += fixture_says(status, &err, path, strerror(EFBIG));
    }
    int64_t said = end_stderr(kept);
    tap_ok(told == n && n > 40 && said == 0, "%s: a file that may not grow, %d sizes", index ? "index" : "shard", n);
    ts_free(path);
  }
  tap_ok(fixture_hdf5_objects() == 0, "and nothing is left open");
  ts_free(directory);
  ts_checkpoint_destroy(&c);
}

static void test_places(void) {
  ts_checkpoint *c = fixture_checkpoint(1, CUTS_EVEN, 17);
  char *directory = make_directory("places"), *absent = ts_format("%s/absent", directory);
  for (int index = 0; index < 2; ++index) {
    char *path = path_of(directory, index), *nowhere = path_of(absent, index);
    const char *what = index ? "index" : "shard";
    ts_error err = {0};
    int descriptors = fixture_descriptors();
    tap_ok(fixture_says(write_one(absent, c, index, &err), &err, nowhere, strerror(ENOENT)), "%s: no directory", what);
    TS_CHECK(ts_make_directory(path, NULL) == TS_OK, "%s", path);
    tap_ok(fixture_says(write_one(directory, c, index, &err), &err, path, strerror(EISDIR)), "%s: a directory there",
           what);
    TS_CHECK(rmdir(path) == 0 && symlink("/dev/full", path) == 0, "%s", path);
    tap_ok(fixture_says(write_one(directory, c, index, &err), &err, path, strerror(ENOSPC)), "%s: a full device", what);
    TS_CHECK(unlink(path) == 0 && ts_write_file(path, "old", 3, NULL) == TS_OK, "%s", path);
    tap_ok(write_one(directory, c, index, &err) == TS_OK, "%s: an older file is replaced", what);
    struct rlimit before, none;
    TS_CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0, "getrlimit");
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    ts_status status = write_one(directory, c, index, &err);
    setrlimit(RLIMIT_NOFILE, &before);
    tap_ok(fixture_says(status, &err, path, strerror(EMFILE)), "%s: no descriptor left", what);
    tap_ok(fixture_descriptors() == descriptors && fixture_hdf5_objects() == 0, "%s: nothing is left open", what);
    ts_free(nowhere);
    ts_free(path);
  }
  ts_free(absent);
  ts_free(directory);
  ts_checkpoint_destroy(&c);
}

/* ---- two threads ---- */

enum { TOKENS = 300000, WRITES = 12 };

static atomic_bool writing;

static int64_t token(int64_t i) {
  return i * 7919 % 50000;
}

static char *write_tokens(void) {
  char *path = ts_format("%s/tokens.h5", tap_directory());
  int64_t *values = ts_malloc(TOKENS * sizeof *values);
  for (int64_t i = 0; i < TOKENS; ++i) {
    values[i] = token(i);
  }
  hsize_t dims = TOKENS, chunk = 5000;
  ts_hdf5_lock();
  hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), create = H5Pcreate(H5P_DATASET_CREATE);
  hid_t space = H5Screate_simple(1, &dims, NULL);
  H5Pset_chunk(create, 1, &chunk);
  H5Pset_fletcher32(create);
  hid_t data = H5Dcreate2(file, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
  TS_CHECK(H5Dwrite(data, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0, "%s", path);
  H5Dclose(data);
  H5Sclose(space);
  H5Pclose(create);
  H5Fclose(file);
  ts_hdf5_unlock();
  ts_free(values);
  return path;
}

typedef struct writer {
  const char *directory;
  const ts_checkpoint *checkpoint;
  int failures;
} writer;

/* Some writes in between fail. */
static void *write_many(void *argument) {
  writer *w = argument;
  for (int i = 0; i < WRITES; ++i) {
    ts_error err = {0};
    ts_hdf5_set_test_failure(i % 4 == 3 ? 5 : 0, i % 4 == 3 ? ENOSPC : 0);
    w->failures += write_one(w->directory, w->checkpoint, i % 3 == 2, &err) != TS_OK;
    ts_error_clear(&err);
  }
  ts_hdf5_set_test_failure(0, 0);
  atomic_store(&writing, false);
  return NULL;
}

static void test_threads(void) {
  ts_checkpoint *c = fixture_checkpoint(1, CUTS_EVEN, 9001);
  char *directory = fixture_write("threads", c), *path = write_tokens();
  writer w = {.directory = directory, .checkpoint = c};
  pthread_t thread;
  int64_t reads = 0, wrong = 0;
  int32_t read[4097];
  atomic_store(&writing, true);
  TS_CHECK(pthread_create(&thread, NULL, write_many, &w) == 0, "pthread_create");
  while (atomic_load(&writing)) {
    ts_tokens *tokens = NULL;
    ts_error err = {0};
    wrong += ts_tokens_open(path, "hdf5", "tokens", 50000, &tokens, &err) != TS_OK;
    for (int k = 0; tokens != NULL && k < 20; ++k, ++reads) {
      int64_t first = reads * 7907 % (TOKENS - 4097);
      wrong += ts_tokens_read(tokens, first, 4097, read, &err) != TS_OK;
      for (int64_t i = 0; i < 4097; ++i) {
        wrong += read[i] != token(first + i);
      }
    }
    ts_tokens_close(&tokens);
    ts_error_clear(&err);
  }
  pthread_join(thread, NULL);
  tap_note("%lld reads of 4097 tokens beside %d writes", (long long) reads, WRITES);
  tap_ok(reads > 0 && wrong == 0, "tokens are read beside a write");
  tap_ok(w.failures == WRITES / 4, "and the writes end as they should: every fourth on a full disk");
  TS_CHECK(write_one(directory, c, false, NULL) == TS_OK, "%s", directory);
  tap_ok(fixture_differences(directory, c) == 0, "and what they write is right");
  ts_free(path);
  ts_free(directory);
  ts_checkpoint_destroy(&c);
}

/* An index whose metadata is more than HDF5's cache holds: it is evicted and read back, after a failure as well.  What
 * HDF5 then cannot read it leaves open, which shows as memory at the end. */
static void test_large_index(void) {
  enum { N = 10000 };
  static const char *const names[] = {"parameter", "exp_avg", "exp_avg_sq"};
  ts_checkpoint *c = ts_calloc(1, sizeof *c);
  *c = (ts_checkpoint){.deck = ts_strdup("deck"),
                       .source = ts_strdup(""),
                       .loss_scale = 1,
                       .n_shards = 1,
                       .n_parts = 1,
                       .n_parameters = N,
                       .part = ts_calloc(1, sizeof *c->part),
                       .parameter = ts_calloc(N, sizeof *c->parameter)};
  ts_saved_part *part = c->part;
  *part = (ts_saved_part){.name = ts_strdup("all"),
                          .trainable = true,
                          .count = 2 * N,
                          .n_states = 3,
                          .cuts = ts_calloc(2, sizeof *part->cuts),
                          .state = ts_calloc(3, sizeof *part->state)};
  part->cuts[1] = part->count;
  for (int i = 0; i < 3; ++i) {
    part->state[i] = (ts_saved_state){.name = ts_strdup(names[i]), .dtype = TS_F32};
  }
  for (int i = 0; i < N; ++i) {
    c->parameter[i] = (ts_saved_parameter){.name = ts_format("p%d", i), .n_dims = 1, .shape = {2}, .count = 2};
    ts_saved_parameter_set_whole(&c->parameter[i], 0, 2 * i);
  }
  char *directory = make_directory("large_index");
  ts_error err = {0};
  ts_hdf5_set_test_failure(1, ENOSPC);
  ts_status status = ts_checkpoint_write_index(directory, c, &err);
  ts_hdf5_set_test_failure(0, 0);
  tap_ok(fixture_says(status, &err, directory, "No space left"), "a large index that cannot be written is given up");
  ts_free(directory);
  ts_checkpoint_destroy(&c);
}

int main(void) {
  test_failures();
  test_large_index();
  test_limits();
  test_places();
  test_threads();
  tap_ok(fixture_hdf5_objects() == 0, "HDF5 has nothing open");
  tap_ok(ts_memory_live() == 0, "no memory is left");
  return tap_done();
}
