#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
  ts_log_level level;
  bool speaks;
  bool status_shown;
  enum { NOBODY, WORLDS, PROGRAM } chosen_by;
} state = {TS_LOG_INFO, true, false, NOBODY};

void ts_log_configure(ts_log_level level, bool speaks) {
  state.level = level;
  state.speaks = speaks;
  state.chosen_by = PROGRAM;
}

void ts_log_join(bool speaks) {
  if (state.chosen_by != PROGRAM) {
    state.level = TS_LOG_WARNING;
    state.speaks = speaks || (state.chosen_by == WORLDS && state.speaks);
    state.chosen_by = WORLDS;
  }
}

/* Open MPI's launcher gives its ranks a terminal of their own, wherever its output goes. */
static bool stdout_is_terminal(void) {
  return isatty(STDOUT_FILENO) && getenv("OMPI_COMM_WORLD_SIZE") == NULL;
}

bool ts_log_is_terminal(void) {
  const char *wanted = getenv("TESSERA_PROGRESS");
  return state.speaks && (stdout_is_terminal() || (wanted != NULL && strcmp(wanted, "bar") == 0));
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The mutex is held. */
static void show_status(const char *line) {
  if (!ts_log_is_terminal()) {
    return;
  }
  if (line != NULL) {
    printf("\r%s\033[K", line);
  } else if (state.status_shown) {
    printf("\r\033[K");
  }
  state.status_shown = line != NULL;
  fflush(stdout);
}

void ts_log_status_line(const char *line) {
  pthread_mutex_lock(&mutex);
  show_status(line);
  pthread_mutex_unlock(&mutex);
}

static struct {
  pthread_mutex_t mutex;
  ts_log_keeper *keeper;
  void *user;
} kept = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local bool is_keeping; /* the keeper speaks */

void ts_log_keep(ts_log_keeper *keeper, void *user) {
  pthread_mutex_lock(&kept.mutex);
  kept.keeper = keeper;
  kept.user = user;
  pthread_mutex_unlock(&kept.mutex);
}

static void keep_line(ts_log_level level, const char *text) {
  if (level > TS_LOG_INFO || is_keeping) {
    return;
  }
  pthread_mutex_lock(&kept.mutex);
  if (kept.keeper != NULL) {
    is_keeping = true;
    kept.keeper(kept.user, level, text);
    is_keeping = false;
  }
  pthread_mutex_unlock(&kept.mutex);
}

static bool is_said(ts_log_level level) {
  return state.speaks && level <= state.level;
}

/* A line is one write: a launcher merges what its ranks print, and threads of a rank print too. */
static void print_prefixed(ts_log_level level, const char *text) {
  static const char *const prefixes[] = {"tessera: error: ", "tessera: warning: ", "", ""};
  char *line = NULL;
  if (asprintf(&line, "%s%s\n", prefixes[level], text) < 0) {
    line = NULL; /* out of memory: what comes next says so */
  }
  pthread_mutex_lock(&mutex);
  show_status(NULL);
  FILE *to = level <= TS_LOG_WARNING ? stderr : stdout;
  fputs(line != NULL ? line : text, to);
  fflush(to);
  pthread_mutex_unlock(&mutex);
  free(line);
}

void ts_log(ts_log_level level, const char *format, ...) {
  if (!is_said(level)) {
    return;
  }
  char *text = NULL;
  va_list args;
  va_start(args, format);
  int length = vasprintf(&text, format, args);
  va_end(args);
  if (length < 0) {
    print_prefixed(level, format);
    return;
  }
  print_prefixed(level, text);
  keep_line(level, text);
  free(text);
}

void ts_log_unkept(ts_log_level level, const char *text) {
  if (is_said(level)) {
    size_t length = strlen(text);
    char *copy = strndup(text, length - (length > 0 && text[length - 1] == '\n'));
    print_prefixed(level, copy != NULL ? copy : text);
    free(copy);
  }
}

double ts_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double) now.tv_sec + 1e-9 * (double) now.tv_nsec;
}
