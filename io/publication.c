/* Writing: the states of a save, and what keeps a run's directory small.  Each system call that changes something asks
 * fails () first, which is how the tests run every error path. */
#include "base/log.h"
#include "base/memory.h"
#include "io/manifest.h"
#include "io/replace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static struct {
  int64_t calls, first, last;
  int error_number;
  int64_t space;
} test = {.space = -1};

void ts_publication_set_test_failure(int64_t nth, int64_t count, int error_number) {
  test.calls = 0;
  test.first = nth;
  test.last = count > INT64_MAX - nth ? INT64_MAX : nth + count - 1;
  test.error_number = error_number;
}

void ts_publication_set_test_space(int64_t bytes) {
  test.space = bytes;
}

static bool fails(void) {
  bool now = test.first > 0 && ++test.calls >= test.first && test.calls <= test.last;
  errno = now ? test.error_number : errno;
  return now;
}

/* ---- steps of a publication ---- */

static ts_status path_failed(ts_error *err, const char *path, const char *what) {
  return ts_error_add(err, "%s: cannot be %s: %s", path, what, strerror(errno));
}

static bool move(const char *from, const char *to) {
  return !fails() && rename(from, to) == 0;
}

/* Some file systems cannot sync a directory and say so by EINVAL: nothing more can be done there. */
static ts_status sync_directory(const char *path, ts_error *err) {
  int file = fails() ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool ok = file >= 0 && !fails() && (fsync(file) == 0 || errno == EINVAL);
  ts_status status = ok ? TS_OK : path_failed(err, path, "synced to the disk");
  if (file >= 0) {
    close(file);
  }
  return status;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place) {
  (void) info;
  (void) type;
  (void) place;
  return fails() || remove(path) != 0 ? -1 : 0;
}

/* A directory and all in it; one that is not there is no failure. */
static bool remove_tree(const char *path) {
  return nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT;
}

static void remove_or_warn(const char *path) {
  if (!remove_tree(path)) {
    ts_log(TS_LOG_WARNING, "%s: cannot be removed: %s", path, strerror(errno));
  }
}

static bool write_text(FILE *file, const void *from) {
  const ts_text *text = from;
  return !fails() && fwrite(text->text, 1, text->length, file) == text->length;
}

/* ---- begin ---- */

static void remove_leftovers(const char *run) {
  int64_t *steps;
  int n = ts_steps_with_suffix(run, ".tmp", &steps);
  for (int i = 0; i < n; ++i) {
    char *path = ts_step_directory(run, steps[i], ".tmp");
    remove_or_warn(path);
    ts_free(path);
  }
  ts_free(steps);
}

/* Infinity where the file system does not tell. */
static double free_bytes(const char *run) {
  struct statvfs info;
  if (test.space >= 0) {
    return (double) test.space;
  }
  return statvfs(run, &info) == 0 && info.f_blocks > 0 ? (double) info.f_bavail * (double) info.f_frsize : INFINITY;
}

static ts_status check_space(const char *run, int64_t bytes, ts_error *err) {
  char need[32], there[32];
  double needed = 1.01 * (double) bytes, available = free_bytes(run);
  return needed <= available ? TS_OK
                             : ts_error_add(err,
                                            "%s: a checkpoint needs %s and %s are free there; make room or let "
                                            "fewer be kept",
                                            run, ts_human_bytes(needed, need), ts_human_bytes(available, there));
}

/* What a save has in its directory; anything else is somebody's. */
static bool is_of_save(const char *name) {
  return strncmp(name, "shard_", 6) == 0 || strncmp(name, "model.h5", 8) == 0 || strncmp(name, "manifest", 8) == 0 ||
         strncmp(name, TS_CLIENT_FILE, strlen(TS_CLIENT_FILE)) == 0;
}

static ts_status check_leftover(const char *path, ts_error *err) {
  DIR *entries = opendir(path);
  ts_status status = TS_OK;
  for (struct dirent *entry; entries != NULL && status == TS_OK && (entry = readdir(entries)) != NULL;) {
    const char *name = entry->d_name;
    if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !is_of_save(name)) {
      status = ts_error_add(err, "%s is in the way, and is not what an interrupted save left: it has %s; move it", path,
                            name);
    }
  }
  if (entries != NULL) {
    closedir(entries);
  }
  return status;
}

/* A name that is taken by something else, or a half of an earlier save that has it.  Those of steps are all ours. */
static ts_status clear_way(const char *run, const char *tag, const char *temporary, ts_error *err) {
  int64_t step;
  if (ts_step_of_name(tag, &step) != NULL) {
    return TS_OK;
  }
  char *directory = ts_tag_directory(run, tag, "");
  bool taken = access(directory, F_OK) == 0 && !ts_is_checkpoint(directory);
  ts_status status =
      taken ? ts_error_add(err, "%s is there already and no checkpoint: choose another tag", directory) : TS_OK;
  if (status == TS_OK && access(temporary, F_OK) == 0) {
    status = check_leftover(temporary, err);
    if (status == TS_OK) {
      remove_or_warn(temporary);
    }
  }
  ts_free(directory);
  return status;
}

ts_status ts_publication_begin(const char *run, const char *tag, int64_t bytes, ts_error *err) {
  char *directory = ts_tag_directory(run, tag, ".tmp");
  remove_leftovers(run);
  ts_status status = clear_way(run, tag, directory, err);
  status = status == TS_OK ? check_space(run, bytes, err) : status;
  if (status == TS_OK && (fails() || mkdir(directory, 0777) != 0)) {
    status = path_failed(err, directory, "made");
  }
  ts_free(directory);
  return status;
}

/* ---- manifest ---- */

static int compare_file_names(const void *a, const void *b) {
  return strcmp(((const ts_file_sum *) a)->name, ((const ts_file_sum *) b)->name);
}

ts_status ts_publication_manifest(const char *run, const char *tag, int64_t step, const ts_file_sum *file, int n,
                                  ts_error *err) {
  ts_manifest manifest = {.step = step, .n = n, .file = ts_calloc((size_t) n, sizeof *file)};
  for (int i = 0; i < n; ++i) {
    TS_ASSERT(ts_is_listed_name(file[i].name));
    manifest.file[i] = file[i];
  }
  if (n > 0) {
    qsort(manifest.file, (size_t) n, sizeof *manifest.file, compare_file_names);
  }
  char *directory = ts_tag_directory(run, tag, ".tmp"), *path = ts_format("%s/manifest", directory);
  ts_text text = {0};
  ts_manifest_print(&manifest, &text);
  ts_status status = ts_replace_file(path, write_text, &text, err);
  ts_text_free(&text);
  ts_free(path);
  ts_free(directory);
  ts_manifest_clear(&manifest);
  return status;
}

/* ---- latest ---- */

static ts_status write_latest(const char *run, const char *tag, const uint64_t hash[2], ts_error *err) {
  char *path = ts_format("%s/latest", run);
  ts_text text = {0};
  ts_latest_print(tag, hash, &text);
  ts_status status = ts_replace_file(path, write_text, &text, err);
  status = status == TS_OK ? sync_directory(run, err) : status;
  ts_text_free(&text);
  ts_free(path);
  return status;
}

static ts_status sum_manifest(const char *run, const char *tag, ts_file_sum *sum, ts_error *err) {
  char *directory = ts_tag_directory(run, tag, "");
  ts_status status = ts_file_sum_make(directory, "manifest", sum, err);
  ts_free(directory);
  return status;
}

ts_status ts_publication_latest(const char *run, const char *tag, ts_error *err) {
  ts_file_sum sum;
  ts_status status = sum_manifest(run, tag, &sum, err);
  return status == TS_OK ? write_latest(run, tag, sum.hash, err) : status;
}

static ts_status remove_latest(const char *run, ts_error *err) {
  char *path = ts_format("%s/latest", run);
  bool ok = !fails() && (unlink(path) == 0 || errno == ENOENT);
  ts_status status = ok ? TS_OK : path_failed(err, path, "removed");
  ts_free(path);
  return status;
}

/* Let `latest` name the newest of what is published up to \a step, but \a besides, that has a manifest; without one it
 * is removed. */
static ts_status turn_back_latest(const char *run, int64_t step, const char *besides, ts_error *err) {
  ts_published *list;
  ts_file_sum sum;
  int n = ts_published_list(run, &list), i = 0;
  while (i < n && (list[i].step > step || strcmp(list[i].tag, besides) == 0 ||
                   sum_manifest(run, list[i].tag, &sum, NULL) != TS_OK)) {
    ++i;
  }
  ts_status status = i < n ? write_latest(run, list[i].tag, sum.hash, err) : remove_latest(run, err);
  ts_free(list);
  return status;
}

/* ---- publish ---- */

/* Make room for a directory at RUN/TAG.aside and move the published one there. */
static ts_status move_aside(const char *run, const char *tag, ts_error *err) {
  char *from = ts_tag_directory(run, tag, ""), *to = ts_tag_directory(run, tag, ".aside");
  ts_status status = remove_tree(to) ? TS_OK : path_failed(err, to, "removed");
  if (status == TS_OK && !move(from, to)) {
    status = path_failed(err, from, "renamed");
  }
  ts_free(to);
  ts_free(from);
  return status;
}

/* Two directories exchange their names, so that at no moment there is none; where the file system cannot do that, the
 * older one goes aside first. */
static ts_status exchange_names(const char *run, const char *tag, const char *from, const char *to, ts_error *err) {
  if (!fails() && renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
    return TS_OK;
  }
  if (errno != EINVAL && errno != ENOSYS) {
    return path_failed(err, from, "renamed");
  }
  ts_status status = move_aside(run, tag, err);
  return status != TS_OK || move(from, to) ? status : path_failed(err, from, "renamed");
}

ts_status ts_publication_publish(const char *run, const char *tag, int64_t step, ts_error *err) {
  char *from = ts_tag_directory(run, tag, ".tmp"), *to = ts_tag_directory(run, tag, "");
  bool again = access(to, F_OK) == 0;
  ts_status status = sync_directory(from, err);
  if (status == TS_OK && again) {
    status = turn_back_latest(run, step, tag, err); /* it has the hash of the older one */
    status = status == TS_OK ? exchange_names(run, tag, from, to, err) : status;
  } else if (status == TS_OK && !move(from, to)) {
    status = path_failed(err, from, "renamed");
  }
  status = status == TS_OK ? sync_directory(run, err) : status;
  if (status == TS_OK && again) {
    remove_or_warn(from);
  }
  ts_free(to);
  ts_free(from);
  return status;
}

/* ---- what goes ---- */

/* The new name must be on the disk before the first file goes, or a crash could leave a published half. */
static void unpublish(const char *run, int64_t step) {
  char *from = ts_step_directory(run, step, ""), *to = ts_step_directory(run, step, ".tmp");
  ts_error err = {0};
  if (!remove_tree(to) || !move(from, to)) {
    path_failed(&err, from, "removed");
  } else if (sync_directory(run, &err) == TS_OK && !remove_tree(to)) {
    path_failed(&err, to, "removed");
  }
  if (err.count > 0) {
    ts_log(TS_LOG_WARNING, "%s", err.text);
  }
  ts_error_clear(&err);
  ts_free(to);
  ts_free(from);
}

void ts_publication_prune(const char *run, int64_t keep) {
  int64_t *steps;
  int n = ts_published_steps(run, &steps);
  for (int64_t i = n - 1; keep > 0 && i >= keep; --i) {
    unpublish(run, steps[i]);
  }
  ts_free(steps);
}

void ts_publication_abandon(const char *run, const char *tag) {
  char *directory = ts_tag_directory(run, tag, ".tmp");
  remove_or_warn(directory);
  ts_free(directory);
}

/* `latest` goes back one step at a time, so that it is never more than one behind. */
ts_status ts_publication_set_aside(const char *run, int64_t step, ts_error *err) {
  int64_t *steps;
  int n = ts_published_steps(run, &steps), i = 0;
  ts_status status = TS_OK;
  for (; i < n && steps[i] > step && status == TS_OK; ++i) {
    char *tag = ts_step_tag(steps[i]);
    status = turn_back_latest(run, steps[i] - 1, "", err);
    status = status == TS_OK ? move_aside(run, tag, err) : status;
    ts_free(tag);
  }
  status = status == TS_OK && i > 0 ? sync_directory(run, err) : status;
  status = status == TS_OK ? turn_back_latest(run, step, "", err) : status;
  ts_free(steps);
  return status;
}
