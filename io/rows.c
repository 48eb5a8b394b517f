#include "io/rows.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

struct ts_rows {
  char *path;
  int file;
  ts_text waiting;    /* whole lines */
  int64_t waited;     /* lines, since the first that did */
  int64_t lost, said; /* lines lost in all, and when that was said last */
};

/* Bytes written: all, or errno is why not.  A short write does not say why: the next one does. */
static size_t write_some(int file, const char *text, size_t length) {
  size_t done = 0;
  while (done < length) {
    ssize_t n = write(file, text + done, length - done);
    if (n < 0 && errno != EINTR) {
      break;
    }
    done += n > 0 ? (size_t) n : 0;
  }
  return done;
}

/* Bytes of the whole lines among the first `length`. */
static size_t whole_lines(const char *text, size_t length) {
  const char *end = length > 0 ? memrchr(text, '\n', length) : NULL;
  return end != NULL ? (size_t) (end + 1 - text) : 0;
}

static int64_t count_lines(const char *text, size_t length) {
  int64_t n = 0;
  for (size_t i = 0; i < length; ++i) {
    n += text[i] == '\n';
  }
  return n;
}

/* Whole lines from the front, as many as find room; true when nothing waits any more, else errno is why. */
static bool write_waiting(ts_rows *r) {
  ts_text *w = &r->waiting;
  off_t end = lseek(r->file, 0, SEEK_END);
  size_t done = write_some(r->file, w->text, w->length), whole = whole_lines(w->text, done);
  int reason = errno;
  if (whole < done && end >= 0 && ftruncate(r->file, end + (off_t) whole) != 0) {
    whole = done; /* half a line stays, and its rest follows it */
  }
  w->length -= whole;
  memmove(w->text, w->text + whole, w->length);
  errno = reason;
  return w->length == 0;
}

void ts_rows_flush(ts_rows *r) {
  if (r->waiting.length > 0 && write_waiting(r)) {
    ts_log(TS_LOG_INFO, "%s: there is room again: the %lld line%s that waited %s written", r->path,
           (long long) r->waited, r->waited == 1 ? "" : "s", r->waited == 1 ? "is" : "are");
    ts_text_free(&r->waiting);
    r->waited = 0;
    r->said = r->lost;
  }
}

static void lose(ts_rows *r, int64_t lines) {
  if (r->lost == r->said) {
    ts_log(TS_LOG_WARNING, "%s: %d MiB of lines wait for room: those that come now are lost", r->path,
           TS_ROWS_MOST >> 20);
  }
  r->lost += lines;
}

static void wait_for_room(ts_rows *r) {
  r->waited = count_lines(r->waiting.text, r->waiting.length);
  ts_log(TS_LOG_WARNING, "%s cannot be written: %s; its lines wait in memory until there is room", r->path,
         strerror(errno));
}

void ts_rows_add(ts_rows *r, const char *lines, size_t length) {
  ts_rows_flush(r);
  bool waits = r->waiting.length > 0;
  if (r->waiting.length + length > TS_ROWS_MOST) {
    lose(r, count_lines(lines, length));
    return;
  }
  ts_text_append(&r->waiting, lines, length);
  if (waits) {
    r->waited += count_lines(lines, length);
  } else if (!write_waiting(r)) {
    wait_for_room(r);
  }
}

ts_status ts_rows_open(const char *path, bool over, const char *names, ts_rows **out, ts_error *err) {
  ts_rows *r = ts_calloc(1, sizeof *r);
  size_t length = strlen(names);
  r->path = ts_strdup(path);
  r->file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (over ? O_TRUNC : 0), 0666);
  bool ok = r->file >= 0 && (lseek(r->file, 0, SEEK_END) > 0 || write_some(r->file, names, length) == length);
  ts_status status = ok ? TS_OK : ts_error_add(err, "%s: cannot be written: %s", path, strerror(errno));
  if (!ok && r->file >= 0 && ftruncate(r->file, 0) != 0) {
    ts_error_add(err, "%s: has half of its first line: remove it", path);
  }
  if (!ok) {
    ts_rows_close(&r);
  }
  *out = r;
  return status;
}

void ts_rows_close(ts_rows **rows) {
  ts_rows *r = *rows;
  if (r == NULL) {
    return;
  }
  ts_rows_flush(r);
  r->lost += count_lines(r->waiting.text, r->waiting.length);
  if (r->lost > 0) {
    ts_log(TS_LOG_WARNING, "%s: %lld line%s could not be written and %s lost", r->path, (long long) r->lost,
           r->lost == 1 ? "" : "s", r->lost == 1 ? "is" : "are");
  }
  if (r->file >= 0) {
    close(r->file);
  }
  ts_text_free(&r->waiting);
  ts_free(r->path);
  ts_free(r);
  *rows = NULL;
}
