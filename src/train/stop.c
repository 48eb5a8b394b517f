#include "train/stop.h"

#include "base/memory.h"
#include "base/text.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

enum { TERM, USR1, N_SIGNALS };
static const int signals[N_SIGNALS] = {[TERM] = SIGTERM, [USR1] = SIGUSR1};

static volatile sig_atomic_t came[N_SIGNALS];

/* In threads of libraries, which do not block the signals; in ours they stay pending. */
static void note(int number) {
  for (int i = 0; i < N_SIGNALS; ++i) {
    came[i] = came[i] || signals[i] == number;
  }
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
  sigset_t set;
  set_of_signals(&set);
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < N_SIGNALS; ++i) {
    sigaction(signals[i], &action, NULL);
  }
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  signal(SIGXFSZ, SIG_IGN); /* a file that may grow no more (ulimit -f) is a write that fails, as on a full disk */
  ts_stop_forget();
}

void ts_stop_forget(void) {
  const struct timespec at_once = {0};
  sigset_t set;
  set_of_signals(&set);
  while (sigtimedwait(&set, NULL, &at_once) > 0) {
  }
  for (int i = 0; i < N_SIGNALS; ++i) {
    came[i] = 0;
  }
}

static bool has_come(int i) {
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  return came[i] || sigismember(&pending, signals[i]) == 1;
}

bool ts_stop_terminated(void) {
  return has_come(TERM);
}

bool ts_stop_requested(const char *directory) {
  return has_come(TERM) || has_come(USR1) || (directory != NULL && ts_has_file(directory, "STOP"));
}

void ts_stop_acknowledge(const char *directory) {
  char *path = ts_format("%s/STOP", directory);
  unlink(path);
  ts_free(path);
}
