#include "engine/stop.h"

#include "base/memory.h"
#include "base/text.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

static const int signals[] = {SIGTERM, SIGUSR1};
enum { N_SIGNALS = sizeof signals / sizeof signals[0] };

static volatile sig_atomic_t came;

/* In threads of libraries, which do not block the signals; in ours they stay pending. */
static void note(int number) {
  (void) number;
  came = 1;
}

static void set_of_signals(sigset_t *set) {
  sigemptyset(set);
  for (int i = 0; i < N_SIGNALS; ++i) {
    sigaddset(set, signals[i]);
  }
}

/* oneDNN's matrix products point the stack pointer at memory of the heap: a handler that runs meanwhile, with some kB
 * of registers to save, writes over whatever lies before it.  So no handler ever runs in a thread that computes. */
void ts_stop_watch(void) {
  struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
  const struct timespec at_once = {0};
  sigset_t set;
  set_of_signals(&set);
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < N_SIGNALS; ++i) {
    sigaction(signals[i], &action, NULL);
  }
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  while (sigtimedwait(&set, NULL, &at_once) > 0) {
  }
  came = 0;
}

static bool is_pending(void) {
  sigset_t pending;
  bool found = false;
  sigemptyset(&pending);
  sigpending(&pending);
  for (int i = 0; i < N_SIGNALS; ++i) {
    found = found || sigismember(&pending, signals[i]) == 1;
  }
  return found;
}

bool ts_stop_requested(const char *directory) {
  came = came || is_pending();
  if (!came && directory != NULL) {
    char *path = ts_format("%s/STOP", directory);
    came = access(path, F_OK) == 0;
    ts_free(path);
  }
  return came != 0;
}

void ts_stop_acknowledge(const char *directory) {
  char *path = ts_format("%s/STOP", directory);
  unlink(path);
  ts_free(path);
}
