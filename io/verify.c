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

void ts_latest_print(const char *tag, const uint64_t hash[2], ts_text *to) {
  ts_text_add(to, "%s\n" TS_HASH_FORMAT "\n", tag, TS_HASH_WORDS(hash));
}

static ts_status parse_latest(const char *path, const char *text, size_t length, char tag[TS_LONGEST_TAG + 1],
                              uint64_t hash[2], ts_error *err) {
  unsigned long long high, low;
  bool good = sscanf(text, "%128s %16llx%16llx", tag, &high, &low) == 3 && ts_tag_check(tag, NULL) == TS_OK;
  if (good) {
    hash[0] = high;
    hash[1] = low;
    ts_text expected = {0};
    ts_latest_print(tag, hash, &expected);
    good = expected.length == length && memcmp(expected.text, text, length) == 0;
    ts_text_free(&expected);
  }
  return good ? TS_OK : ts_error_add(err, "%s: damaged: not the name of a checkpoint and a hash, a line each", path);
}

/* One step more may be published: a crash came between that and the replacement of `latest`.  A program may go back and
 * save an earlier step last; a run of `tessera train` that goes back sets later steps aside. */
static ts_status check_named(const char *path, const char *run, const char *tag, const ts_published *list, int n,
                             ts_error *err) {
  int i = 0, newer = 0, newest = 0;
  int64_t step;
  for (; i < n && strcmp(list[i].tag, tag) != 0; ++i) {
    bool is_step = ts_step_of_name(list[i].tag, &step) != NULL;
    newest = is_step && newer == 0 ? i : newest;
    newer += is_step;
  }
  if (i == n) {
    return ts_error_add(err, "%s: names %s, which is not in %s", path, tag, run);
  }
  return newer <= 1 || !ts_has_file(run, "deck.cfg")
             ? TS_OK
             : ts_error_add(err, "%s: names %s, but %s is the newest", path, tag, list[newest].tag);
}

static ts_status check_hash(const char *path, const char *run, const char *tag, const uint64_t hash[2], ts_error *err) {
  char *directory = ts_tag_directory(run, tag, "");
  ts_file_sum sum;
  ts_status status = ts_file_sum_make(directory, "manifest", &sum, err);
  if (status == TS_OK && memcmp(sum.hash, hash, sizeof sum.hash) != 0) {
    status = ts_error_add(err, "%s: its hash is not that of %s/manifest: one of the two is damaged", path, directory);
  }
  ts_free(directory);
  return status;
}

static ts_status read_latest(const char *path, char tag[TS_LONGEST_TAG + 1], uint64_t hash[2], ts_error *err) {
  char *text;
  size_t length;
  ts_status status = ts_read_file(path, TS_LONGEST_TAG + 64, &text, &length, err);
  status = status == TS_OK ? parse_latest(path, text, length, tag, hash, err) : status;
  ts_free(text);
  return status;
}

char *ts_latest_tag(const char *run) {
  char *path = ts_format("%s/latest", run), tag[TS_LONGEST_TAG + 1];
  uint64_t hash[2];
  bool good = read_latest(path, tag, hash, NULL) == TS_OK;
  ts_free(path);
  return good ? ts_strdup(tag) : NULL;
}

static ts_status check_latest(const char *path, const char *run, const ts_published *list, int n, ts_error *err) {
  char tag[TS_LONGEST_TAG + 1];
  uint64_t hash[2];
  ts_status status = read_latest(path, tag, hash, err);
  status = status == TS_OK ? check_named(path, run, tag, list, n, err) : status;
  return status == TS_OK ? check_hash(path, run, tag, hash, err) : status;
}

ts_status ts_latest_verify(const char *run, ts_error *err) {
  ts_published *list;
  int n = ts_published_list(run, &list);
  char *path = ts_format("%s/latest", run);
  struct stat info;
  ts_status status = TS_OK;
  if (lstat(path, &info) == 0) {
    status = check_latest(path, run, list, n, err);
  } else if (n > 1) {
    status = ts_error_add(err, "%s: missing, though %d steps are published; the next save writes it again", path, n);
  }
  ts_free(path);
  ts_free(list);
  return status;
}
