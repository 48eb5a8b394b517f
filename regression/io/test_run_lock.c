/* One job at a time writes a run: who holds it, and file systems without locks. */
#include "io/lock.h"
#include "io/publication.h"
#include "regression/io/run_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Another process is refused with these words. */
static bool refused(const char *run, const char *words) {
  fflush(stdout);
  pid_t child = fork();
  TS_CHECK(child >= 0, "fork");
  if (child == 0) {
    ts_error err = {0};
    int lock;
    _exit(!says(ts_run_lock(run, &lock, &err), &err, words) || lock != -1);
  }
  int status;
  return waitpid(child, &status, 0) == child && status == 0;
}

static void test_lock(void) {
  static const char before[] = "job 123456789 restart 123456789 host another pid 123456789\n";
  char *run = make_run("lock"), *line = ts_format("job 77 restart 2 host n5 pid %ld", (long) getpid());
  char *words = ts_format("lock is being written by another job (%s): wait for its end, or stop it (scancel 77)", line);
  int lock;
  size_t length;
  put(run, ".lock", before, strlen(before));
  tap_ok(ts_run_lock(run, &lock, NULL) == TS_OK, "a run that nobody holds is taken");
  tap_ok(refused(run, words), "another process is refused, with Slurm's job and host");
  char *text = get(run, ".lock", &length);
  bool whole = length == strlen(line) + 1 && strncmp(text, line, length - 1) == 0;
  tap_ok(whole, "of an older, longer line nothing is left");
  ts_run_unlock(lock);
  ts_free(text);
  ts_free(words);
  ts_free(line);
  ts_free(run);
}

/* What a lock says that fails with this, and whether the run is taken; owned by the caller. */
static char *lock_fails(const char *run, int error_number, bool *taken) {
  char *said = path_of(tap_directory(), "said");
  int kept = dup(2), file = open(said, O_RDWR | O_CREAT | O_TRUNC, 0600), lock = -1;
  size_t length;
  TS_CHECK(kept >= 0 && file >= 0 && dup2(file, 2) == 2 && close(file) == 0, "%s", said);
  ts_lock_set_test_failure(error_number);
  *taken = ts_run_lock(run, &lock, NULL) == TS_OK && lock >= 0;
  ts_lock_set_test_failure(0);
  ts_run_unlock(lock);
  fflush(stderr);
  TS_CHECK(dup2(kept, 2) == 2 && close(kept) == 0, "stderr");
  ts_free(said);
  return get(tap_directory(), "said", &length);
}

static void test_no_locks(void) {
  static const int without[] = {ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL}, held[] = {EACCES, EAGAIN};
  char *run = make_run("no-locks");
  bool taken;
  for (size_t i = 0; i < sizeof without / sizeof *without; ++i) {
    char *said = lock_fails(run, without[i], &taken), *line = strchr(said, '\n');
    bool once = line != NULL && line[1] == 0 && strstr(said, "no-locks/.lock: cannot be locked (") != NULL &&
                strstr(said, strerror(without[i])) != NULL && strstr(said, "nothing keeps a second job from") != NULL;
    tap_ok(taken && once, "a file system without locks: the run is taken, which is said once: %s",
           strerror(without[i]));
    ts_free(said);
  }
  for (size_t i = 0; i < sizeof held / sizeof *held; ++i) {
    char *said = lock_fails(run, held[i], &taken);
    tap_ok(!taken && said[0] == 0, "a lock of another job is no lack of locks: %s", strerror(held[i]));
    ts_free(said);
  }
  char *said = lock_fails(run, 0, &taken);
  tap_ok(taken && said[0] == 0, "a lock that is got is not spoken of");
  ts_free(said);
  ts_free(run);
}

int main(void) {
  setenv("SLURM_JOB_ID", "77", 1); /* before anything asks who started this process */
  setenv("SLURM_RESTART_COUNT", "2", 1);
  setenv("SLURMD_NODENAME", "n5", 1);
  unsetenv("SLURM_STEP_ID");
  test_lock();
  test_no_locks();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
