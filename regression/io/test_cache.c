/* Files made of others: names that follow from all they depend on, and one job at a time. */
#include "base/memory.h"
#include "io/cache.h"
#include "io/lock.h"
#include "regression/io/token_files.h"
#include "regression/tap.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Its name, once its times are those of the epoch. */
static char *name_of(const char *file, const char *directory, const char *how, time_t seconds) {
  const struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
  ts_text making = {0};
  ts_error err = {0};
  char *path;
  ts_text_add(&making, "%s", how);
  TS_CHECK(utimensat(AT_FDCWD, file, times, 0) == 0, "%s", strerror(errno));
  TS_CHECK(ts_cache_path(file, directory, &making, &path, &err) == TS_OK, "%s", err.text);
  ts_text_free(&making);
  return path;
}

static void test_names(void) {
  enum { SIZE = 3000000 };
  char *bytes = ts_calloc(SIZE, 1);
  char *file = token_file_bytes("a.txt", bytes, SIZE), *directory = ts_format("%s/x/y", tap_directory());
  char *first = name_of(file, NULL, "so", 100), *again = name_of(file, "", "so", 100);
  tap_ok(strncmp(first, file, strlen(file)) == 0 && strlen(first) == strlen(file) + strlen(".0123456789abcdef.h5"),
         "beside the file: %s", first + strlen(tap_directory()));
  tap_ok(strcmp(first, again) == 0, "the same again");
  char *other[4] = {name_of(file, NULL, "otherwise", 100), name_of(file, NULL, "so", 101), NULL, NULL};
  bytes[SIZE / 16 * 7 + 5] = 1;
  ts_free(token_file_bytes("a.txt", bytes, SIZE));
  other[2] = name_of(file, NULL, "so", 100);
  ts_free(token_file_bytes("a.txt", bytes, SIZE - 1));
  other[3] = name_of(file, NULL, "so", 100);
  static const char *const what[] = {"how it is made", "another time", "another byte of a block", "a byte less"};
  for (int i = 0; i < 4; ++i) {
    tap_ok(strcmp(first, other[i]) != 0, "another name: %s", what[i]);
    ts_free(other[i]);
  }
  char *elsewhere = name_of(file, directory, "so", 100);
  struct stat info;
  tap_ok(strncmp(elsewhere, directory, strlen(directory)) == 0 && stat(directory, &info) == 0,
         "in a directory made for it");
  ts_error err = {0};
  char *none, *missing = ts_format("%s/none", tap_directory());
  tap_ok(ts_cache_path(missing, NULL, &(ts_text){0}, &none, &err) == TS_BAD_INPUT && none == NULL &&
             strstr(err.text, "none: cannot be read: No such file") != NULL,
         "no such file");
  ts_error_clear(&err);
  ts_free(missing);
  ts_free(elsewhere);
  ts_free(again);
  ts_free(first);
  ts_free(directory);
  ts_free(file);
  ts_free(bytes);
}

typedef struct waits {
  int n, first;
} waits;

static void count_wait(void *user, bool first) {
  waits *w = user;
  ++w->n;
  w->first += first;
}

/* A process that holds the lock for a while, and then unlocks it or dies. */
static pid_t hold(const char *path, bool dies) {
  int ready[2];
  TS_CHECK(pipe(ready) == 0, "pipe");
  fflush(stdout);
  pid_t child = fork();
  TS_CHECK(child >= 0, "fork");
  if (child == 0) {
    int lock;
    waits w = {0};
    char go = ts_cache_lock(path, count_wait, &w, &lock, NULL) == TS_OK ? 'y' : 'n';
    TS_CHECK(write(ready[1], &go, 1) == 1, "write");
    usleep(1500000);
    if (dies) {
      raise(SIGKILL);
    }
    ts_cache_unlock(path, lock);
    _exit(0);
  }
  char go = 0;
  TS_CHECK(read(ready[0], &go, 1) == 1 && go == 'y', "the child has no lock");
  close(ready[0]);
  close(ready[1]);
  return child;
}

static void test_lock(void) {
  char *path = ts_format("%s/[b]*.h5", tap_directory()), *lock_file = ts_format("%s.lock", path);
  char *left = ts_format("%s.part-3.tokens", path), *others = ts_format("%s/b.h5.part-3.tokens", tap_directory());
  for (int dies = 0; dies < 2; ++dies) {
    pid_t child = hold(path, dies);
    waits w = {0};
    int lock;
    ts_free(token_file_bytes(strrchr(left, '/') + 1, "x", 1));
    ts_free(token_file_bytes(strrchr(others, '/') + 1, "x", 1));
    ts_status status = ts_cache_lock(path, count_wait, &w, &lock, NULL);
    tap_ok(status == TS_OK && lock >= 0 && w.n >= 1 && w.first == 1, "waits for a job that %s: %d times",
           dies ? "dies" : "ends", w.n);
    tap_ok(access(left, F_OK) != 0 && access(others, F_OK) == 0, "what it left is removed, what is another's is not");
    waitpid(child, NULL, 0);
    ts_cache_unlock(path, lock);
    tap_ok(access(lock_file, F_OK) != 0, "the lock's file is gone with the lock");
  }
  waits w = {0};
  int lock;
  ts_lock_set_test_failure(ENOLCK);
  tap_ok(ts_cache_lock(path, count_wait, &w, &lock, NULL) == TS_OK && lock >= 0 && w.n == 0,
         "a file system without locks: nobody waits");
  ts_lock_set_test_failure(0);
  ts_cache_unlock(path, lock);
  ts_error err = {0};
  char *nowhere = ts_format("%s/none/x.h5", tap_directory());
  ts_status status = ts_cache_lock(nowhere, count_wait, &w, &lock, &err);
  tap_ok(status == TS_BAD_INPUT && lock < 0 &&
             strstr(err.text, "none/x.h5.lock: cannot be written: No such file") != NULL,
         "no such directory: %s", err.text + strlen(tap_directory()));
  ts_error_clear(&err);
  ts_free(nowhere);
  ts_free(others);
  ts_free(left);
  ts_free(lock_file);
  ts_free(path);
}

int main(void) {
  test_names();
  test_lock();
  tap_ok(ts_memory_live() == 0, "no memory is left");
  return tap_done();
}
