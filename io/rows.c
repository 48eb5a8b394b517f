#include "io/rows.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { HELD_MOST = 64 << 10 /* bytes that are held back */ };

struct ts_rows {
  char *path;
  const ts_row_kind *kind;
  int file;
  ts_text waiting;    /* whole rows, behind the rest of one */
  size_t rest;        /* bytes of that: it begins in the file; 0 unless half of it could not be cut off there */
  int64_t waited;     /* rows that wait for room, since the first that did; 0: what waits, if anything, is held back */
  double every, last; /* seconds: how often they are written, and when they were */
  int64_t lost, said; /* rows lost in all, and when that was said last */
};

static size_t line_length(const char *text, size_t length) {
  const char *end = length > 0 ? memchr(text, '\n', length) : NULL;
  return end != NULL ? (size_t) (end + 1 - text) : 0;
}

static const ts_row_kind lines = {"line", line_length};

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

/* The whole rows among the first `length` bytes: their bytes, and how many they are. */
static size_t whole_rows(const ts_rows *r, const char *data, size_t length, int64_t *n) {
  size_t whole = 0, next;
  for (*n = 0; (next = r->kind->length(data + whole, length - whole)) > 0; ++*n) {
    whole += next;
  }
  return whole;
}

static int64_t number_of_rows(const ts_rows *r, const char *data, size_t length) {
  int64_t n;
  whole_rows(r, data, length, &n);
  return n;
}

/* Those that wait, one that has begun in the file included. */
static int64_t number_waiting(const ts_rows *r) {
  return (r->rest > 0) + number_of_rows(r, r->waiting.text + r->rest, r->waiting.length - r->rest);
}

/* Of `done` bytes of what waits, written behind `end`, those that are to stay: up to the end of a row, or all where the
 * file cannot be cut. */
static size_t keep_whole(ts_rows *r, size_t done, off_t end) {
  const ts_text *w = &r->waiting;
  int64_t n;
  if (done < r->rest) {
    r->rest -= done;
    return done;
  }
  size_t whole = r->rest + whole_rows(r, w->text + r->rest, done - r->rest, &n);
  r->rest = 0;
  if (whole < done && (end < 0 || ftruncate(r->file, end + (off_t) whole) != 0)) {
    r->rest = whole + r->kind->length(w->text + whole, w->length - whole) - done;
    return done;
  }
  return whole;
}

/* Whole rows from the front, as many as find room; true when nothing waits any more, else errno is why. */
static bool write_waiting(ts_rows *r) {
  ts_text *w = &r->waiting;
  off_t end = lseek(r->file, 0, SEEK_END);
  size_t done = write_some(r->file, w->text, w->length);
  int reason = errno;
  size_t stay = keep_whole(r, done, end);
  w->length -= stay;
  memmove(w->text, w->text + stay, w->length);
  errno = reason;
  return w->length == 0;
}

static void say_room(ts_rows *r) {
  ts_log(TS_LOG_INFO, "%s: there is room again: the %lld %s%s that waited %s written", r->path, (long long) r->waited,
         r->kind->name, r->waited == 1 ? "" : "s", r->waited == 1 ? "is" : "are");
  ts_text_free(&r->waiting);
  r->waited = 0;
  r->said = r->lost;
}

static void wait_for_room(ts_rows *r) {
  r->waited = number_waiting(r);
  ts_log(TS_LOG_WARNING, "%s cannot be written: %s; its %ss wait in memory until there is room", r->path,
         strerror(errno), r->kind->name);
}

void ts_rows_flush(ts_rows *r) {
  if (r->waiting.length == 0) {
    return;
  }
  bool written = write_waiting(r);
  r->last = ts_seconds();
  if (written && r->waited > 0) {
    say_room(r);
  } else if (!written && r->waited == 0) {
    wait_for_room(r);
  }
}

void ts_rows_hold(ts_rows *r, double seconds) {
  r->every = seconds;
}

static bool is_due(const ts_rows *r) {
  return r->every <= 0 || r->waiting.length >= HELD_MOST || ts_seconds() - r->last >= r->every;
}

static void lose(ts_rows *r, int64_t n) {
  if (r->lost == r->said) {
    ts_log(TS_LOG_WARNING, "%s: %d MiB of %ss wait for room: those that come now are lost", r->path, TS_ROWS_MOST >> 20,
           r->kind->name);
  }
  r->lost += n;
}

void ts_rows_add(ts_rows *r, const char *rows, size_t length) {
  if (r->waited > 0) {
    ts_rows_flush(r);
  }
  if (r->waiting.length + length > TS_ROWS_MOST) {
    lose(r, number_of_rows(r, rows, length));
    return;
  }
  ts_text_append(&r->waiting, rows, length);
  if (r->waited > 0) {
    r->waited += number_of_rows(r, rows, length);
  } else if (is_due(r)) {
    ts_rows_flush(r);
  }
}

ts_status ts_rows_open_kind(const char *path, bool over, const ts_row_kind *kind, const char *first, size_t length,
                            ts_rows **out, ts_error *err) {
  ts_rows *r = ts_calloc(1, sizeof *r);
  r->path = ts_strdup(path);
  r->kind = kind;
  r->last = -INFINITY;
  r->file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (over ? O_TRUNC : 0), 0666);
  bool ok = r->file >= 0 && (lseek(r->file, 0, SEEK_END) > 0 || write_some(r->file, first, length) == length);
  ts_status status = ok ? TS_OK : ts_error_add(err, "%s: cannot be written: %s", path, strerror(errno));
  if (!ok && r->file >= 0 && ftruncate(r->file, 0) != 0) {
    ts_error_add(err, "%s: has half of its first %s: remove it", path, kind->name);
  }
  if (!ok) {
    ts_rows_close(&r);
  }
  *out = r;
  return status;
}

ts_status ts_rows_open(const char *path, bool over, const char *names, ts_rows **out, ts_error *err) {
  return ts_rows_open_kind(path, over, &lines, names, strlen(names), out, err);
}

void ts_rows_close(ts_rows **rows) {
  ts_rows *r = *rows;
  if (r == NULL) {
    return;
  }
  ts_rows_flush(r);
  r->lost += r->waiting.length > 0 ? number_waiting(r) : 0;
  if (r->lost > 0) {
    ts_log(TS_LOG_WARNING, "%s: %lld %s%s could not be written and %s lost", r->path, (long long) r->lost,
           r->kind->name, r->lost == 1 ? "" : "s", r->lost == 1 ? "is" : "are");
  }
  if (r->file >= 0) {
    close(r->file);
  }
  ts_text_free(&r->waiting);
  ts_free(r->path);
  ts_free(r);
  *rows = NULL;
}
