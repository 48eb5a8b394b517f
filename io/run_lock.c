#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/lock.h"
#include "io/publication.h"
#include "slurm/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The line of whoever wrote it last. */
static void read_holder(int file, char *holder, size_t size) {
  ssize_t n = pread(file, holder, size - 1, 0);
  holder[n > 0 ? n : 0] = 0;
  holder[strcspn(holder, "\n")] = 0;
}

/* slurm/train.sbatch reads it too, from other nodes: there is always a whole line. */
static void write_lock_holder(int file) {
  const ts_launch *launch = ts_launched();
  ts_text holder = {0};
  if (launch->job != NULL) {
    ts_text_add(&holder, "job %s restart %d ", launch->job, launch->restart);
  }
  ts_text_add(&holder, "host %s pid %ld\n", launch->node_name, (long) getpid());
  ssize_t length = (ssize_t) holder.length;
  /* only for messages: a full disk does not matter */
  if (pwrite(file, holder.text, holder.length, 0) != length || ftruncate(file, length) != 0) {
    errno = 0;
  }
  ts_text_free(&holder);
}

static ts_status refuse_run(const char *run, const char *holder, ts_error *err) {
  long long job;
  char stop[64] = "stop it";
  if (sscanf(holder, "job %lld", &job) == 1) {
    snprintf(stop, sizeof stop, "stop it (scancel %lld)", job);
  }
  return ts_error_add(err, "%s is being written by another job (%s): wait for its end, or %s", run, holder, stop);
}

/* A job that is alone needs none. */
static void warn_no_lock(const char *path, const char *run) {
  ts_log(TS_LOG_WARNING,
         "%s: cannot be locked (%s): nothing keeps a second job from writing %s too; submit none before this one has "
         "ended, or have the file system mounted with locks (NFS: its lock daemon, Lustre: -o flock)",
         path, strerror(errno), run);
}

ts_status ts_run_lock(const char *run, int *lock, ts_error *err) {
  char *path = ts_format("%s/" TS_RUN_LOCK, run);
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  bool opened = file >= 0, got = opened && ts_lock_take(file) == 0;
  ts_status status = TS_OK;
  *lock = -1;
  if (!opened) {
    status = ts_error_add(err, "%s: cannot be written: %s", path, strerror(errno));
  } else if (!got && ts_lock_is_held(errno)) {
    char holder[300];
    read_holder(file, holder, sizeof holder);
    status = refuse_run(run, holder, err);
    close(file);
  } else {
    if (!got) {
      warn_no_lock(path, run);
    }
    write_lock_holder(file);
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
