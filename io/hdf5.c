#include "io/hdf5.h"

#include "base/memory.h"
#include "io/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#define EARLY ((size_t) 1 << 18) /* writes of at least this many bytes start their way to the disk at once */

/* ---- one thread at a time ---- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void ts_hdf5_lock(void) {
  static bool quiet;
  pthread_mutex_lock(&mutex);
  if (!quiet) {
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    quiet = true;
  }
}

void ts_hdf5_unlock(void) {
  pthread_mutex_unlock(&mutex);
}

const char *ts_hdf5_library(void) {
  static char text[48];
  unsigned major = 0, minor = 0, release = 0;
  ts_hdf5_lock();
  H5get_libversion(&major, &minor, &release);
  ts_hdf5_unlock();
  snprintf(text, sizeof text, "HDF5 %u.%u.%u", major, minor, release);
  return text;
}

hid_t ts_hdf5_type(ts_dtype dtype) {
  TS_CHECK(ts_dtype_is_working(dtype) || dtype == TS_U8, "checkpoints hold no %s", ts_dtype_name(dtype));
  hid_t type = H5Tcopy(dtype == TS_U8 ? H5T_STD_U8LE : H5T_IEEE_F32LE);
  if (dtype == TS_BF16) {
    H5Tset_fields(type, 15, 7, 8, 0, 7);
    H5Tset_size(type, 2);
  } else if (dtype == TS_F16) {
    H5Tset_fields(type, 15, 10, 5, 0, 10);
    H5Tset_size(type, 2);
    H5Tset_ebias(type, 15);
  }
  return type;
}

/* ---- the driver ---- */

/* What outlives HDF5's own handle: the descriptor and the first failure. */
typedef struct sink {
  int descriptor;
  int error; /* errno of the first failure, 0 for none: nothing is written after it */
} sink;

/* What was not written.  HDF5 evicts metadata from its cache when there is much of it and reads it back: finding
 * something else there it would leave the file open inside of it. */
typedef struct block {
  haddr_t at;
  size_t size;
  char *bytes; /* owned */
} block;

typedef struct driver_file {
  H5FD_t public; /* HDF5's part comes first */
  sink *sink;
  haddr_t allocated, written; /* ends, in bytes */
  block *lost;                /* owned: after a failure, all but large raw data, which is never read back */
  int n_lost, capacity;
} driver_file;

static atomic_llong writes_until_failure; /* 0: never */
static atomic_int test_error;

void ts_hdf5_set_test_failure(int64_t nth, int error_number) {
  atomic_store(&test_error, error_number);
  atomic_store(&writes_until_failure, error_number != 0 ? nth : 0);
}

static bool must_fail(void) {
  long long left = atomic_load(&writes_until_failure);
  if (left > 1) {
    atomic_store(&writes_until_failure, left - 1);
  }
  return left == 1;
}

static H5FD_t *driver_open(const char *name, unsigned flags, hid_t fapl, haddr_t maxaddr) {
  (void) flags, (void) fapl, (void) maxaddr;
  int descriptor = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    return NULL;
  }
  driver_file *file = ts_calloc(1, sizeof *file);
  file->sink = ts_calloc(1, sizeof *file->sink);
  file->sink->descriptor = descriptor;
  return &file->public;
}

static herr_t driver_close(H5FD_t *public) {
  driver_file *file = (driver_file *) public;
  for (int i = 0; i < file->n_lost; ++i) {
    ts_free(file->lost[i].bytes);
  }
  ts_free(file->lost);
  ts_free(file); /* the sink is ts_hdf5_finish's */
  return 0;
}

static herr_t driver_query(const H5FD_t *public, unsigned long *flags) {
  (void) public;
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

static haddr_t driver_get_eoa(const H5FD_t *public, H5FD_mem_t type) {
  (void) type;
  return ((const driver_file *) public)->allocated;
}

static herr_t driver_set_eoa(H5FD_t *public, H5FD_mem_t type, haddr_t end) {
  (void) type;
  ((driver_file *) public)->allocated = end;
  return 0;
}

static haddr_t driver_get_eof(const H5FD_t *public, H5FD_mem_t type) {
  (void) type;
  return ((const driver_file *) public)->written;
}

static herr_t driver_get_handle(H5FD_t *public, hid_t fapl, void **handle) {
  (void) fapl;
  *handle = ((driver_file *) public)->sink;
  return 0;
}

/* What was never written reads as zeros. */
static int read_fully(int descriptor, char *to, size_t size, off_t at) {
  memset(to, 0, size);
  while (size > 0) {
    ssize_t n = pread(descriptor, to, size, at);
    if (n == 0) {
      return 0;
    } else if (n > 0) {
      to += n, at += n, size -= (size_t) n;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

static void read_lost(const block *from, haddr_t at, size_t size, char *to) {
  haddr_t begin = from->at > at ? from->at : at;
  haddr_t end = from->at + from->size < at + size ? from->at + from->size : at + size;
  if (begin < end) {
    memcpy(to + (begin - at), from->bytes + (begin - from->at), (size_t) (end - begin));
  }
}

static herr_t driver_read(H5FD_t *public, H5FD_mem_t type, hid_t dxpl, haddr_t at, size_t size, void *buffer) {
  (void) type, (void) dxpl;
  driver_file *file = (driver_file *) public;
  int error = read_fully(file->sink->descriptor, buffer, size, (off_t) at);
  file->sink->error = file->sink->error == 0 ? error : file->sink->error;
  for (int i = 0; i < file->n_lost; ++i) {
    read_lost(&file->lost[i], at, size, buffer);
  }
  return error == 0 ? 0 : -1;
}

static void write_all(sink *s, const char *from, size_t size, off_t at) {
  size_t whole = size;
  off_t begin = at;
  while (size > 0 && s->error == 0) {
    ssize_t n = must_fail() ? (errno = atomic_load(&test_error), -1) : pwrite(s->descriptor, from, size, at);
    if (n == 0 || (n < 0 && errno != EINTR)) {
      s->error = n == 0 ? EIO : errno;
    } else if (n > 0) {
      from += n, at += n, size -= (size_t) n;
    }
  }
#ifdef SYNC_FILE_RANGE_WRITE
  if (s->error == 0 && whole >= EARLY) {
    sync_file_range(s->descriptor, begin, (off_t) whole, SYNC_FILE_RANGE_WRITE); /* only to be early: fsync decides */
  }
#endif
}

static herr_t driver_write(H5FD_t *public, H5FD_mem_t type, hid_t dxpl, haddr_t at, size_t size, const void *buffer) {
  (void) dxpl;
  driver_file *file = (driver_file *) public;
  write_all(file->sink, buffer, size, (off_t) at);
  if (file->sink->error != 0 && (type != H5FD_MEM_DRAW || size < EARLY)) {
    TS_GROW(file->lost, file->n_lost, file->capacity);
    file->lost[file->n_lost++] = (block){.at = at, .size = size, .bytes = memcpy(ts_malloc(size), buffer, size)};
  }
  haddr_t end = at + size;
  file->written = end > file->written ? end : file->written;
  return 0;
}

/* The last allocated block may not have been written to its end. */
static herr_t driver_truncate(H5FD_t *public, hid_t dxpl, hbool_t closing) {
  (void) dxpl, (void) closing;
  driver_file *file = (driver_file *) public;
  if (file->sink->error == 0 && ftruncate(file->sink->descriptor, (off_t) file->allocated) != 0) {
    file->sink->error = errno;
  }
  file->written = file->allocated;
  return 0;
}

static const H5FD_class_t driver = {
#if H5_VERSION_GE(1, 13, 0)
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t) 511, /* of the range for private use */
#endif
    .name = "tessera_write",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_WEAK,
    .open = driver_open,
    .close = driver_close,
    .query = driver_query,
    .get_eoa = driver_get_eoa,
    .set_eoa = driver_set_eoa,
    .get_eof = driver_get_eof,
    .get_handle = driver_get_handle,
    .read = driver_read,
    .write = driver_write,
    .truncate = driver_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

/* ---- files ---- */

hid_t ts_hdf5_dataset_properties(void) {
  hid_t create = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_obj_track_times(create, false);
  return create;
}

bool ts_hdf5_make_group(hid_t file, const char *name) {
  if (H5Lexists(file, name, H5P_DEFAULT) > 0) {
    return true;
  }
  hid_t create = H5Pcreate(H5P_GROUP_CREATE);
  H5Pset_obj_track_times(create, false);
  hid_t group = H5Gcreate2(file, name, H5P_DEFAULT, create, H5P_DEFAULT);
  H5Pclose(create);
  return group >= 0 && H5Gclose(group) >= 0;
}

static int64_t opens;

int64_t ts_hdf5_test_opens(void) {
  ts_hdf5_lock();
  int64_t n = opens;
  ts_hdf5_unlock();
  return n;
}

hid_t ts_hdf5_open(const char *path) {
  ++opens;
  hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_file_locking(access, false, true);
  hid_t file = H5Fopen(path, H5F_ACC_RDONLY, access);
  H5Pclose(access);
  return file;
}

hid_t ts_hdf5_create(const char *path, ts_error *err) {
  static hid_t driver_id = -1;
  if (driver_id < 0) {
    driver_id = H5FDregister(&driver);
    TS_CHECK(driver_id >= 0, "HDF5 takes no driver");
  }
  hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_driver(access, driver_id, NULL);
  H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
  errno = 0;
  hid_t create = H5Pcreate(H5P_FILE_CREATE);
  H5Pset_obj_track_times(create, false); /* of the root */
  hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, create, access);
  if (file < 0) {
    ts_error_add(err, "%s: cannot be created: %s", path, strerror(errno));
  }
  H5Pclose(create);
  H5Pclose(access);
  return file;
}

ts_status ts_hdf5_finish(hid_t file, const char *path, ts_error *err) {
  void *handle = NULL;
  ts_hdf5_lock();
  bool ok = H5Fget_vfd_handle(file, H5P_DEFAULT, &handle) >= 0;
  TS_CHECK(ok && handle != NULL, "%s is not a file of ts_hdf5_create", path);
  bool closed = H5Fclose(file) >= 0;
  ts_hdf5_unlock();
  sink *s = handle;
  if (s->error == 0 && fsync(s->descriptor) != 0) {
    s->error = errno;
  }
  close(s->descriptor); /* nothing is left to fail after fsync */
  const char *reason = s->error != 0 ? strerror(s->error) : closed ? NULL : "HDF5 could not close it";
  ts_status status = reason == NULL ? TS_OK : ts_error_add(err, "%s: cannot be written: %s", path, reason);
  ts_free(s);
  return status;
}
