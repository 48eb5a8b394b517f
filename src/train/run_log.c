#include "train/run_log.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/rows.h"

#include <string.h>
#include <time.h>

struct ts_run_log {
  ts_rows *rows; /* owned; NULL: not yet */
  ts_text early; /* what was said before there was a file */
};

static void add_now(ts_text *to) {
  char text[32] = "?";
  time_t now = time(NULL);
  struct tm local;
  if (localtime_r(&now, &local) != NULL) {
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  }
  ts_text_add(to, "%s ", text);
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
  add_now(to);
  ts_text_add(to, "%s", prefix);
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
  if (error != NULL && (*log)->rows != NULL) {
    keep_message(*log, TS_LOG_ERROR, error);
  }
  ts_rows_close(&(*log)->rows);
  ts_text_free(&(*log)->early);
  ts_free(*log);
  *log = NULL;
}
