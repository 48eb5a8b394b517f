#include "base/memory.h"
#include "base/text.h"
#include "io/publication.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* "HOST, process PID" of whoever wrote it last. */
static void read_holder(int file, char *holder, size_t size) {
  ssize_t n = pread(file, holder, size - 1, 0);
  holder[n > 0 ? n : 0] = 0;
  holder[strcspn(holder, "\n")] = 0;
}

static void write_holder(int file) {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  char *holder = ts_format("%s, process %ld\n", host, (long) getpid());
  size_t length = strlen(holder);
  /* only for the message: a full disk does not matter */
  if (ftruncate(file, 0) != 0 || pwrite(file, holder, length, 0) != (ssize_t) length) {
    errno = 0;
  }
  ts_free(holder);
}

ts_status ts_run_lock(const char *run, int *lock, ts_error *err) {
  char *path = ts_format("%s/.lock", run);
  struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  ts_status status = TS_OK;
  *lock = -1;
  if (file < 0) {
    status = ts_error_add(err, "%s: cannot be written: %s", path, strerror(errno));
  } else if (fcntl(file, F_SETLK, &range) != 0 && (errno == EACCES || errno == EAGAIN)) {
    char holder[300];
    read_holder(file, holder, sizeof holder);
    status = ts_error_add(err, "%s is being written by another job (%s): wait for its end, or stop it", run, holder);
    close(file);
  } else {
    write_holder(file);
    *lock = file;
  }
  ts_free(path);
  return status;
}

void ts_run_unlock(int lock) {
  if (lock >= 0) {
    close(lock);
  }
}
