#include "engine/stop.h"

#include "base/memory.h"
#include "base/text.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static const int signals[] = {SIGTERM, SIGUSR1};
enum { N_SIGNALS = sizeof signals / sizeof signals[0] };

static volatile sig_atomic_t came;

static void note(int number) {
  (void) number;
  came = 1;
}

void ts_stop_watch(void) {
  struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  came = 0;
  for (int i = 0; i < N_SIGNALS; ++i) {
    sigaction(signals[i], &action, NULL);
  }
}

bool ts_stop_requested(const char *directory) {
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
