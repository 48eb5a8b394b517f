#include "io/cache.h"

#include "base/memory.h"
#include "io/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { BLOCKS = 16, BLOCK = 1 << 16 };

/* ---- names ---- */

static ts_status hash_blocks(const char *file, XXH3_state_t *state, ts_error *err) {
  int in = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat info;
  bool opened = in >= 0 && fstat(in, &info) == 0;
  if (!opened || !S_ISREG(info.st_mode)) {
    ts_status status =
        ts_error_add(err, "%s: cannot be read: %s", file, opened ? "it is not a regular file" : strerror(errno));
    if (in >= 0) {
      close(in);
    }
    return status;
  }
  const int64_t about[] = {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
  XXH3_64bits_update(state, about, sizeof about);
  char *block = ts_malloc(BLOCK);
  for (int i = 0; i < BLOCKS; ++i) {
    ssize_t n = pread(in, block, BLOCK, (off_t) (info.st_size / BLOCKS * i));
    XXH3_64bits_update(state, block, n > 0 ? (size_t) n : 0);
  }
  ts_free(block);
  close(in);
  return TS_OK;
}

static char *name_of_key(const char *file, const char *directory, uint64_t key) {
  const char *slash = strrchr(file, '/'), *name = slash != NULL ? slash + 1 : file;
  bool beside = directory == NULL || directory[0] == 0;
  return beside ? ts_format("%s.%016llx.h5", file, (unsigned long long) key)
                : ts_format("%s/%s.%016llx.h5", directory, name, (unsigned long long) key);
}

ts_status ts_cache_path(const char *file, const char *directory, const ts_text *how, char **path, ts_error *err) {
  XXH3_state_t *state = XXH3_createState();
  TS_CHECK(state != NULL, "out of memory");
  XXH3_64bits_reset(state);
  XXH3_64bits_update(state, how->text, how->length);
  *path = NULL;
  ts_status status = hash_blocks(file, state, err);
  if (status == TS_OK && directory != NULL && directory[0] != 0) {
    status = ts_make_directory(directory, err);
  }
  if (status == TS_OK) {
    *path = name_of_key(file, directory, XXH3_64bits_digest(state));
  }
  XXH3_freeState(state);
  return status;
}

/* ---- one job at a time ---- */

static char *lock_of(const char *path) {
  return ts_format("%s.lock", path);
}

/* A file that was removed while this process waited for it locks nothing. */
static bool is_still_there(const char *name, int file) {
  struct stat here, there;
  return fstat(file, &here) == 0 && stat(name, &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

/* \param [out] got  It is locked.
 * \return the file, locked or where there are no locks; -1 with errno, of which ts_lock_is_held says: wait. */
static int try_lock(const char *name, bool *got) {
  int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  *got = file >= 0 && ts_lock_take(file) == 0;
  if (file >= 0 && ((!*got && ts_lock_is_held(errno)) || (*got && !is_still_there(name, file)))) {
    close(file);
    file = -1;
    errno = EAGAIN;
  }
  return file;
}

/* In a name that is a pattern every character stands for itself. */
static void add_literally(ts_text *to, const char *name) {
  for (const char *c = name; *c != 0; ++c) {
    ts_text_add(to, strchr("*?[\\", *c) != NULL ? "\\%c" : "%c", *c);
  }
}

static void remove_of_dead_jobs(const char *path, const char *lock) {
  ts_text pattern = {0};
  add_literally(&pattern, path);
  ts_text_append(&pattern, ".*", 2);
  glob_t found;
  if (glob(pattern.text, 0, NULL, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      if (strcmp(found.gl_pathv[i], lock) != 0) {
        unlink(found.gl_pathv[i]);
      }
    }
    globfree(&found);
  }
  ts_text_free(&pattern);
}

ts_status ts_cache_lock(const char *path, void (*wait)(void *user, bool first), void *user, int *lock, ts_error *err) {
  char *name = lock_of(path);
  bool first = true, got;
  ts_status status = TS_OK;
  while ((*lock = try_lock(name, &got)) < 0 && ts_lock_is_held(errno)) {
    wait(user, first);
    first = false;
    sleep(1);
  }
  if (*lock < 0) {
    status = ts_error_add(err, "%s: cannot be written: %s", name, strerror(errno));
  } else if (got) { /* else they may be of a job that lives */
    remove_of_dead_jobs(path, name);
  }
  ts_free(name);
  return status;
}

void ts_cache_unlock(const char *path, int lock) {
  if (lock >= 0) {
    char *name = lock_of(path);
    unlink(name);
    close(lock);
    ts_free(name);
  }
}
