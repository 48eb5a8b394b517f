/* The harness itself: its verdict is the exit status of a child that reports into the void. */
#include "regression/tap.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void all_ok(void) {
  tap_ok(true, "fine");
}

static void one_bad(void) {
  tap_ok(true, "fine");
  tap_ok(false, "bad");
  tap_ok(true, "fine");
}

static void nothing(void) {
}

static void skipped(void) {
  tap_skip("not here");
}

static void crash(void) {
  tap_ok(true, "fine");
  abort();
}

static int status_of(void (*body)(void)) {
  pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    body();
    _exit(tap_done());
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

int main(void) {
  /* Children first: a child inherits the results of its parent. */
  int empty = status_of(nothing), good = status_of(all_ok), bad = status_of(one_bad), skip = status_of(skipped);
  int crashed = status_of(crash);
  tap_ok(good == 0, "all results ok: success");
  tap_ok(bad == 1, "one result not ok: failure");
  tap_ok(empty == 1, "no result at all: failure");
  tap_ok(skip == 0, "a visible skip: success");
  tap_ok(crashed == 1000, "a crash is seen");
  struct stat info;
  tap_ok(stat(tap_path("regression/tap.h"), &info) == 0 && S_ISREG(info.st_mode), "the source tree is found");
  tap_ok(stat(tap_directory(), &info) == 0 && S_ISDIR(info.st_mode) && tap_directory() == tap_directory(),
         "one directory for files");
  return tap_done();
}
