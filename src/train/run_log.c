#include "train/run_log.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/rows.h"

#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct ts_run_log {
  ts_rows *rows; /* owned; NULL: not yet */
  ts_text early; /* what was said before there was a file */
};

static const char *print_now(char text[32]) {
  time_t now = time(NULL);
  struct tm local;
  bool known = localtime_r(&now, &local) != NULL && strftime(text, 32, "%Y-%m-%d %H:%M:%S", &local) > 0;
  return known ? text : "?";
}

/* A line break inside of a message is followed by blanks, so that a line with a time begins a message. */
static void add_dated(const char *prefix, const char *text, ts_text *to) {
  text += strspn(text, "\n");
  size_t length = strlen(text);
  while (length > 0 && text[length - 1] == '\n') {
    --length;
  }
  if (length == 0) {
    return;
  }
  char now[32];
  ts_text_add(to, "%s %s", print_now(now), prefix);
  for (size_t i = 0; i < length; ++i) {
    ts_text_append(to, text + i, 1);
    if (text[i] == '\n') {
      ts_text_add(to, "    ");
    }
  }
  ts_text_add(to, "\n");
}

static void keep_message(void *user, ts_log_level level, const char *text) {
  static const char *const prefixes[] = {"error: ", "warning: ", ""};
  ts_run_log *log = user;
  ts_text line = {0};
  add_dated(prefixes[level], text, &line);
  if (log->rows == NULL) {
    ts_text_append(&log->early, line.text != NULL ? line.text : "", line.length);
  } else if (line.length > 0) {
    ts_rows_add(log->rows, line.text, line.length);
  }
  ts_text_free(&line);
}

/* ---- last words ---- */

static struct {
  char path[PATH_MAX];
  atomic_bool named;
} last;

void ts_run_log_name(const char *run) {
  atomic_store(&last.named, false);
  if (run != NULL) {
    int length = snprintf(last.path, sizeof last.path, "%s/" TS_RUN_LOG, run);
    atomic_store(&last.named, length > 0 && length < (int) sizeof last.path);
  }
}

/* As add_dated: a line break inside is followed by blanks, and one ends the text.  \return bytes, at most room. */
static size_t indent_lines(const char *text, char *to, size_t room) {
  size_t n = 0;
  for (const char *c = text; *c != 0 && n + 6 < room; ++c) {
    if (*c != '\n' || c[1] != 0) {
      to[n++] = *c;
    }
    if (*c == '\n' && c[1] != 0) {
      memset(to + n, ' ', 4);
      n += 4;
    }
  }
  to[n++] = '\n';
  return n;
}

void ts_run_log_last(const char *where, const char *message) {
  char now[32], line[8192];
  int file = atomic_load(&last.named) ? open(last.path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY) : -1;
  if (file < 0) {
    return;
  }
  int n = snprintf(line, sizeof line / 2, "%s error: %s", print_now(now), where);
  size_t begun = n < 0 ? 0 : strlen(line);
  ssize_t written = write(file, line, begun + indent_lines(message, line + begun, sizeof line - begun));
  (void) written; /* there is nobody to tell */
  close(file);
}

/* ---- the log ---- */

ts_run_log *ts_run_log_begin(bool keeps) {
  if (!keeps) {
    return NULL;
  }
  ts_run_log *log = ts_calloc(1, sizeof *log);
  ts_log_keep(keep_message, log);
  return log;
}

/* A process that died may have left half of a line. */
static bool ends_in_half_a_line(const char *path) {
  FILE *file = fopen(path, "re");
  bool half = file != NULL && fseek(file, -1, SEEK_END) == 0 && fgetc(file) != '\n';
  if (file != NULL) {
    fclose(file);
  }
  return half;
}

void ts_run_log_open(ts_run_log *log, const char *run, bool over) {
  if (log == NULL) {
    return;
  }
  ts_log_keep(NULL, NULL); /* while the file is changed */
  char *path = ts_format("%s/" TS_RUN_LOG, run);
  ts_error err = {0};
  bool half = !over && ends_in_half_a_line(path);
  if (ts_rows_open(path, over, "", &log->rows, &err) != TS_OK) {
    ts_log(TS_LOG_WARNING, "what the run says is not kept: %s", err.text);
  } else {
    if (half) {
      ts_rows_add(log->rows, "\n", 1);
    }
    if (log->early.length > 0) {
      ts_rows_add(log->rows, log->early.text, log->early.length);
    }
    ts_log_keep(keep_message, log);
    ts_run_log_name(run);
    ts_set_failure_note(ts_run_log_last); /* until the watchdog has its own */
  }
  ts_text_free(&log->early);
  ts_error_clear(&err);
  ts_free(path);
}

void ts_run_log_end(ts_run_log **log, const char *error) {
  if (*log == NULL) {
    return;
  }
  ts_log_keep(NULL, NULL);
  ts_run_log_name(NULL);
  if (error != NULL && (*log)->rows != NULL) {
    keep_message(*log, TS_LOG_ERROR, error);
  }
  ts_rows_close(&(*log)->rows);
  ts_text_free(&(*log)->early);
  ts_free(*log);
  *log = NULL;
}
