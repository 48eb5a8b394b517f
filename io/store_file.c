/* The file of a store: without a name from the beginning (O_TMPFILE), or from soon after.  Where that cannot be, on NFS
 * (which would give it another one) and where unlinking fails, it keeps the name tessera-offload-NAME-XXXXXX and a
 * lock, which ends with the process: who comes next removes what is not locked. */
#include "io/store_file.h"

#include "base/memory.h"
#include "io/lock.h"
#include "io/store_engine.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PREFIX "tessera-offload-"

enum { TRIES = 100, RANDOM = 6 /* letters of mkostemp */ };

/* Files of this process that have names: for it their locks are no locks, and closing any descriptor of one ends it. */
typedef struct named {
  struct named *next;
  dev_t device;
  ino_t number;
} named;

static named *all_named;
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER; /* while files are named, removed and listed */

static bool is_named_here(const struct stat *info) {
  const named *n = all_named;
  while (n != NULL && (n->device != info->st_dev || n->number != info->st_ino)) {
    n = n->next;
  }
  return n != NULL;
}

static void list_file(int descriptor) {
  struct stat info;
  TS_CHECK(fstat(descriptor, &info) == 0, "fstat: %s", strerror(errno));
  named *n = ts_malloc(sizeof *n);
  *n = (named){all_named, info.st_dev, info.st_ino};
  all_named = n;
}

static void unlist_file(int descriptor) {
  struct stat info;
  TS_CHECK(fstat(descriptor, &info) == 0, "fstat: %s", strerror(errno));
  for (named **at = &all_named; *at != NULL; at = &(*at)->next) {
    if ((*at)->device == info.st_dev && (*at)->number == info.st_ino) {
      named *gone = *at;
      *at = gone->next;
      ts_free(gone);
      return;
    }
  }
}

/* ---- what others have left ---- */

static bool is_our_name(const char *name) {
  size_t length = strlen(name), i = 0;
  if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || length <= strlen(PREFIX) + RANDOM) {
    return false;
  }
  while (i < RANDOM && isalnum((unsigned char) name[length - 1 - i])) {
    ++i;
  }
  return i == RANDOM && name[length - 1 - RANDOM] == '-';
}

/* A file as mkostemp makes them, of this user's, that no process has locked. */
static void remove_dead(const char *path) {
  struct stat info;
  if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode) || (info.st_mode & 0777) != 0600 || info.st_uid != geteuid() ||
      is_named_here(&info)) {
    return;
  }
  int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file >= 0) {
    if (ts_lock_take(file) == 0) {
      unlink(path);
    }
    close(file);
  }
}

static void remove_all_dead(const char *directory) {
  DIR *entries = opendir(directory);
  for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
    if (is_our_name(entry->d_name)) {
      char *path = ts_format("%s/%s", directory, entry->d_name);
      remove_dead(path);
      ts_free(path);
    }
  }
  if (entries != NULL) {
    closedir(entries);
  }
}

/* ---- opening ---- */

static bool is_nfs(const char *directory) {
  struct statfs info;
  return statfs(directory, &info) == 0 && info.f_type == NFS_SUPER_MAGIC;
}

static int open_unnamed(const char *directory) {
  if (ts_store_test()->unnamed != 0) {
    errno = ts_store_test()->unnamed;
    return -1;
  }
  return is_nfs(directory) ? -1 : open(directory, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
}

static char *make_name(const char *directory, const char *name) {
  char *path = ts_format("%s/" PREFIX "%s-XXXXXX", directory, name);
  for (char *at = path + strlen(directory) + 1; *at != 0; ++at) {
    *at = *at == '/' ? '-' : *at;
  }
  return path;
}

static bool take_name_away(const ts_store_file *f) {
  errno = ts_store_test()->unlink;
  if (errno == 0 && is_nfs(f->directory)) {
    errno = EBUSY;
  }
  /* one that is gone already was taken for a dead process's */
  return errno == 0 && (unlink(f->path) == 0 || errno == ENOENT);
}

/* Lock a file that keeps its name.  Whoever removes dead files may have come between: then it has none now. */
static bool keep_name(int descriptor) {
  struct stat info;
  bool has = ts_lock_take(descriptor) == 0 || !ts_lock_is_held(errno);
  return has && fstat(descriptor, &info) == 0 && info.st_nlink > 0;
}

static void set_path(ts_store_file *f, char *path) {
  ts_free(f->path);
  f->path = path;
}

static bool open_named(ts_store_file *f, const char *name) {
  for (int i = 0; i < TRIES; ++i) {
    set_path(f, make_name(f->directory, name));
    f->descriptor = mkostemp(f->path, O_CLOEXEC);
    if (f->descriptor < 0) {
      set_path(f, NULL);
      return false;
    }
    if (take_name_away(f)) {
      set_path(f, NULL);
      return true;
    }
    if (keep_name(f->descriptor)) {
      list_file(f->descriptor);
      return true;
    }
    close(f->descriptor);
    unlink(f->path);
  }
  f->descriptor = -1;
  set_path(f, NULL);
  errno = EAGAIN;
  return false;
}

static bool open_some(ts_store_file *f, const char *name) {
  pthread_mutex_lock(&naming);
  remove_all_dead(f->directory);
  f->descriptor = open_unnamed(f->directory);
  bool opened = f->descriptor >= 0 || open_named(f, name);
  pthread_mutex_unlock(&naming);
  return opened;
}

/* ---- space ---- */

/* Infinity where the file system does not tell. */
static double room_in(const char *directory) {
  struct statvfs info;
  return statvfs(directory, &info) == 0 && info.f_blocks > 0 ? (double) info.f_bavail * (double) info.f_frsize
                                                             : INFINITY;
}

static int fallocate_all(int descriptor, int64_t bytes) {
  int error = ts_store_test()->reserve;
  while (error == 0 && fallocate(descriptor, 0, 0, (off_t) bytes) != 0) {
    if (errno != EINTR) {
      error = errno;
    }
  }
  return error;
}

/* posix_fallocate writes to every block where it must; the file goes through the page cache until then. */
static int reserve_space(int descriptor, int64_t bytes) {
  int error = fallocate_all(descriptor, bytes);
  if (error == EOPNOTSUPP || error == ENOSYS) {
    do {
      error = posix_fallocate(descriptor, 0, (off_t) bytes);
    } while (error == EINTR);
  }
  return error;
}

/* A disk that is too small is not filled first to find out. */
static ts_status reserve_all(const ts_store_file *f, const char *name, int64_t bytes, ts_error *err) {
  char wanted[32], there[32];
  double room = room_in(f->directory);
  int error = bytes == 0 ? 0 : room < (double) bytes ? ENOSPC : reserve_space(f->descriptor, bytes);
  if (error == 0) {
    return TS_OK;
  }
  return ts_error_add(
      err,
      "%s: the offloaded state of %s needs %s (%lld bytes) and %s are free there: %s; make room, name a "
      "directory of another file system (nvme_path), or offload less",
      f->directory, name, ts_human_bytes((double) bytes, wanted), (long long) bytes,
      isinf(room) ? "an unknown number of bytes" : ts_human_bytes(room, there), strerror(error));
}

/* ---- the page cache ---- */

/* Some file systems take the flag and then no transfer. */
static int try_direct(int descriptor) {
  int flags = fcntl(descriptor, F_GETFL), error = ts_store_test()->direct;
  if (error == 0 && (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0)) {
    error = errno;
  }
  if (error == 0) {
    void *block = ts_map(TS_STORE_ALIGN);
    error = pread(descriptor, block, TS_STORE_ALIGN, 0) >= 0 ? 0 : errno;
    ts_unmap(block, TS_STORE_ALIGN);
    if (error != 0) {
      fcntl(descriptor, F_SETFL, flags);
    }
  }
  return error;
}

static void describe_file(ts_store_file *f, int direct_error) {
  ts_text how = {0};
  ts_text_add(&how, "%s", direct_error == 0 ? "O_DIRECT" : "through the page cache");
  if (direct_error != 0) {
    ts_text_add(&how, " (O_DIRECT: %s)", strerror(direct_error));
  }
  if (f->path != NULL) {
    ts_text_add(&how, ", a file with a name");
  }
  f->how = how.text;
}

/* ---- all of it ---- */

ts_status ts_store_file_open(ts_store_file *f, const char *directory, const char *name, int64_t bytes, ts_error *err) {
  *f = (ts_store_file){.descriptor = -1, .directory = ts_strdup(directory)};
  ts_error why = {0};
  ts_status status = ts_make_directory(directory, &why);
  if (status != TS_OK) {
    ts_error_add(err, "%s; nvme_path names a directory for offloaded state, that of %s among it", why.text, name);
    ts_error_clear(&why);
    return status;
  }
  if (!open_some(f, name)) {
    status = ts_error_add(err,
                          "%s: no file for the offloaded state of %s can be made there: %s; name a directory that you "
                          "may write to (nvme_path)",
                          directory, name, strerror(errno));
  }
  status = status == TS_OK ? reserve_all(f, name, bytes, err) : status;
  if (status == TS_OK) {
    describe_file(f, try_direct(f->descriptor));
  }
  return status;
}

void ts_store_file_close(ts_store_file *f) {
  pthread_mutex_lock(&naming);
  if (f->path != NULL) {
    unlist_file(f->descriptor);
    unlink(f->path);
  }
  if (f->descriptor >= 0) {
    close(f->descriptor);
  }
  pthread_mutex_unlock(&naming);
  ts_free(f->path);
  ts_free(f->directory);
  ts_free(f->how);
  *f = (ts_store_file){.descriptor = -1};
}
