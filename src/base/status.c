#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
  int rank;
  char host[256]; /* "": not told */
  void (*abort)(int exit_code, const char *reason);
} context = {.rank = -1};

ts_status ts_error_add(ts_error *err, const char *format, ...) {
  if (err == NULL) {
    return TS_BAD_INPUT;
  }
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, args);
  va_end(args);
  size_t old = err->text != NULL ? strlen(err->text) + 1 : 0; /* the newline replaces the old end */
  char *text = realloc(err->text, old + (size_t) length + 1);
  TS_CHECK(text != NULL, "out of memory for an error message");
  if (old > 0) {
    text[old - 1] = '\n';
  }
  vsnprintf(text + old, (size_t) length + 1, format, again);
  va_end(again);
  err->text = text;
  ++err->count;
  return TS_BAD_INPUT;
}

void ts_error_clear(ts_error *err) {
  if (err != NULL) {
    free(err->text);
    *err = (ts_error){0};
  }
}

void ts_set_failure_context(int rank, const char *host, void (*abort)(int exit_code, const char *reason)) {
  context.rank = rank;
  snprintf(context.host, sizeof context.host, "%s", host != NULL ? host : "");
  context.abort = abort;
}

static void (*failure_note)(const char *where, const char *message);

void ts_set_failure_note(void (*note)(const char *where, const char *message)) {
  failure_note = note;
}

void ts_die(const char *file, int line, const char *format, ...) {
  char host[256] = "?";
  if (context.host[0] != 0) {
    strcpy(host, context.host);
  } else {
    gethostname(host, sizeof host - 1);
  }
  char message[2048], where[512];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  if (context.rank >= 0) {
    snprintf(where, sizeof where, "rank %d on %s: %s:%d: ", context.rank, host, file, line);
  } else {
    snprintf(where, sizeof where, "%s: %s:%d: ", host, file, line);
  }
  fprintf(stderr, "tessera: %s%s\n", where, message);
  fflush(stderr);
  if (failure_note != NULL) {
    failure_note(where, message);
  }
  if (context.abort != NULL) {
    context.abort(1, message);
  }
  exit(1);
}
