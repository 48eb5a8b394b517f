/* A checkpoint against its manifest, and `latest` against what is published. */
#include "base/memory.h"
#include "io/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* Sizes first: they cost nothing. */
static ts_status verify_file(const char *directory, const ts_file_sum *expected, ts_error *err) {
  char *path = ts_format("%s/%s", directory, expected->name);
  long long bytes = (long long) expected->bytes;
  struct stat info;
  ts_file_sum found = {0};
  ts_status status = TS_OK;
  if (stat(path, &info) != 0) {
    status = errno == ENOENT ? ts_error_add(err, "%s: missing; the manifest lists it with %lld bytes", path, bytes)
                             : ts_error_add(err, "%s: cannot be read: %s", path, strerror(errno));
  } else if (S_ISREG(info.st_mode) && info.st_size != bytes) {
    status = ts_error_add(err, "%s: %s: %lld bytes, the manifest says %lld", path,
                          info.st_size < bytes ? "cut short" : "too long", (long long) info.st_size, bytes);
  } else if (ts_file_sum_make(directory, expected->name, &found, err) != TS_OK) {
    status = TS_BAD_INPUT;
  } else if (found.bytes != bytes || memcmp(found.hash, expected->hash, sizeof found.hash) != 0) {
    status = ts_error_add(err, "%s: damaged: its contents are not those that the manifest has the hash of", path);
  }
  ts_free(path);
  return status;
}

/* Files of other names harm nobody: nothing reads them. */
static ts_status verify_unlisted(const char *directory, const ts_manifest *manifest, ts_error *err) {
  DIR *entries = opendir(directory);
  ts_status status = entries != NULL ? TS_OK : ts_error_add(err, "%s: cannot be read: %s", directory, strerror(errno));
  for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
    const char *name = entry->d_name;
    if ((strncmp(name, "shard_", 6) == 0 || strcmp(name, "model.h5") == 0) && ts_manifest_find(manifest, name) < 0) {
      status = ts_error_add(err, "%s/%s: the manifest does not list it: it is another checkpoint's; move it away",
                            directory, name);
    }
  }
  if (entries != NULL) {
    closedir(entries);
  }
  return status;
}

ts_status ts_checkpoint_verify(const char *directory, const ts_manifest *manifest, int share, int share_count,
                               int threads, ts_error *err) {
  int n = manifest->n > share ? (manifest->n - share - 1) / share_count + 1 : 0;
  ts_error *errors = ts_calloc((size_t) n, sizeof *errors); /* one each: a ts_error is one thread's */
  ts_status status = TS_OK;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads < 1 ? 1 : threads)
  for (int i = 0; i < n; ++i) {
    verify_file(directory, &manifest->file[share + i * share_count], &errors[i]);
  }
  for (int i = 0; i < n; ++i) {
    if (errors[i].count > 0) {
      status = ts_error_add(err, "%s", errors[i].text);
    }
    ts_error_clear(&errors[i]);
  }
  ts_free(errors);
  return share == 0 && verify_unlisted(directory, manifest, err) != TS_OK ? TS_BAD_INPUT : status;
}

ts_status ts_checkpoint_verify_file(const char *directory, const ts_manifest *manifest, const char *name,
                                    ts_error *err) {
  int i = ts_manifest_find(manifest, name);
  return i >= 0 ? verify_file(directory, &manifest->file[i], err)
                : ts_error_add(err, "%s: the manifest lists no %s", directory, name);
}

static int count_shards(const ts_manifest *manifest) {
  int n = 0;
  for (int i = 0; i < manifest->n; ++i) {
    n += strncmp(manifest->file[i].name, "shard_", 6) == 0;
  }
  return n;
}

ts_status ts_manifest_match(const char *directory, const ts_manifest *manifest, int64_t step, int n_shards,
                            ts_error *err) {
  int listed = count_shards(manifest);
  if (step != manifest->step) {
    return ts_error_add(err, "%s/model.h5: is of step %lld, the manifest of step %lld", directory, (long long) step,
                        (long long) manifest->step);
  }
  if (n_shards != listed) {
    return ts_error_add(err, "%s/model.h5: has %d shards, the manifest lists %d", directory, n_shards, listed);
  }
  for (int i = 0; i < n_shards; ++i) {
    char name[32];
    snprintf(name, sizeof name, "shard_%05d.h5", i);
    if (ts_manifest_find(manifest, name) < 0) {
      return ts_error_add(err, "%s/manifest: lists %d shards, but no %s", directory, listed, name);
    }
  }
  return TS_OK;
}

/* ---- latest ---- */

void ts_latest_print(int64_t step, const uint64_t hash[2], ts_text *to) {
  ts_text_add(to, "step_%08lld\n" TS_HASH_FORMAT "\n", (long long) step, TS_HASH_WORDS(hash));
}

static ts_status parse_latest(const char *path, const char *text, size_t length, int64_t *step, uint64_t hash[2],
                              ts_error *err) {
  char name[32];
  unsigned long long high, low;
  bool good = sscanf(text, "%31s %16llx%16llx", name, &high, &low) == 3 && ts_step_of_name(name, step) != NULL;
  if (good) {
    hash[0] = high;
    hash[1] = low;
    ts_text expected = {0};
    ts_latest_print(*step, hash, &expected);
    good = expected.length == length && memcmp(expected.text, text, length) == 0;
    ts_text_free(&expected);
  }
  return good ? TS_OK : ts_error_add(err, "%s: damaged: not the name of a step and a hash, a line each", path);
}

/* Index 0 is the newest; 1 is named when a crash came between a publication and the replacement of `latest`. */
static ts_status check_named(const char *path, const char *run, int64_t step, const int64_t *steps, int n,
                             ts_error *err) {
  int index = 0;
  while (index < n && steps[index] != step) {
    ++index;
  }
  if (index == n) {
    return ts_error_add(err, "%s: names step_%08lld, which is not in %s", path, (long long) step, run);
  }
  return index <= 1 ? TS_OK
                    : ts_error_add(err, "%s: names step_%08lld, but step_%08lld is the newest", path, (long long) step,
                                   (long long) steps[0]);
}

static ts_status check_hash(const char *path, const char *run, int64_t step, const uint64_t hash[2], ts_error *err) {
  char *directory = ts_step_directory(run, step, "");
  ts_file_sum sum;
  ts_status status = ts_file_sum_make(directory, "manifest", &sum, err);
  if (status == TS_OK && memcmp(sum.hash, hash, sizeof sum.hash) != 0) {
    status = ts_error_add(err, "%s: its hash is not that of %s/manifest: one of the two is damaged", path, directory);
  }
  ts_free(directory);
  return status;
}

static ts_status read_latest(const char *path, const char *run, const int64_t *steps, int n, ts_error *err) {
  char *text;
  size_t length;
  int64_t step;
  uint64_t hash[2];
  ts_status status = ts_read_file(path, 128, &text, &length, err);
  status = status == TS_OK ? parse_latest(path, text, length, &step, hash, err) : status;
  status = status == TS_OK ? check_named(path, run, step, steps, n, err) : status;
  status = status == TS_OK ? check_hash(path, run, step, hash, err) : status;
  ts_free(text);
  return status;
}

ts_status ts_latest_verify(const char *run, ts_error *err) {
  int64_t *steps;
  int n = ts_published_steps(run, &steps);
  char *path = ts_format("%s/latest", run);
  struct stat info;
  ts_status status = TS_OK;
  if (lstat(path, &info) == 0) {
    status = read_latest(path, run, steps, n, err);
  } else if (n > 1) {
    status = ts_error_add(err, "%s: missing, though %d steps are published; the next save writes it again", path, n);
  }
  ts_free(path);
  ts_free(steps);
  return status;
}
