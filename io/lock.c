#include "io/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

static int test_error;

void ts_lock_set_test_failure(int error_number) {
  test_error = error_number;
}

int ts_lock_take(int file) {
  struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  errno = test_error;
  return test_error != 0 ? -1 : fcntl(file, F_SETLK, &range);
}

int ts_lock_is_held(int error_number) {
  return error_number == EACCES || error_number == EAGAIN;
}
