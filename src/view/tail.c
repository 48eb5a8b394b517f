#include "view/tail.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 1 << 20, BLOCKS = 16 };

void ts_tail_open(ts_tail *t, const char *path, int64_t from_end) {
  *t = (ts_tail){.path = ts_strdup(path), .from_end = from_end, .file = -1};
}

static void forget_file(ts_tail *t) {
  if (t->file >= 0) {
    close(t->file);
  }
  t->file = -1;
  t->offset = 0;
  t->n_last = 0;
  t->skips = false;
  t->half.length = 0;
}

void ts_tail_close(ts_tail *t) {
  forget_file(t);
  ts_text_free(&t->half);
  ts_free(t->path);
  t->path = NULL;
}

/* Network file systems show what others wrote to a file that is opened. */
static int open_plain(const char *path, struct stat *what) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file >= 0 && (fstat(file, what) != 0 || !S_ISREG(what->st_mode))) {
    close(file);
    file = -1;
  }
  return file;
}

static ssize_t read_at(int file, char *to, size_t length, int64_t offset) {
  ssize_t n;
  do {
    n = pread(file, to, length, (off_t) offset);
  } while (n < 0 && errno == EINTR);
  return n;
}

/* Is this the file that was read so far, with more or nothing behind it? */
static bool is_same_file(const ts_tail *t, int file, const struct stat *now) {
  struct stat before;
  char last[sizeof t->last];
  if (t->file < 0 || fstat(t->file, &before) != 0 || before.st_dev != now->st_dev || before.st_ino != now->st_ino ||
      now->st_size < t->offset) {
    return false;
  }
  return read_at(file, last, t->n_last, t->offset - (int64_t) t->n_last) == (ssize_t) t->n_last &&
         memcmp(last, t->last, t->n_last) == 0;
}

/* What is open is the file as it is now, read on or from its beginning. */
static bool look_again(ts_tail *t, const ts_tail_reader *reader) {
  struct stat now;
  int file = open_plain(t->path, &now);
  if (file >= 0 && is_same_file(t, file, &now)) {
    close(t->file);
    t->file = file;
    return true;
  }
  bool was_there = t->file >= 0;
  forget_file(t);
  if (file >= 0 || was_there) {
    reader->begin(reader->user);
  }
  t->file = file;
  if (file >= 0 && t->from_end > 0 && now.st_size > t->from_end) {
    t->offset = now.st_size - t->from_end;
    t->skips = true;
  }
  return file >= 0;
}

/* The part of a line that stands in a block, and its end if that does, too. */
static void add_to_line(ts_tail *t, const char *part, size_t length, bool ends, const ts_tail_reader *reader) {
  if (t->half.length + length > TS_TAIL_LINE) {
    t->skips = true;
  }
  if (!t->skips) {
    ts_text_append(&t->half, part, length);
    if (ends) {
      reader->line(reader->user, t->half.text);
    }
  }
  if (ends || t->skips) {
    t->half.length = 0;
  }
  t->skips = t->skips && !ends;
}

static void take_block(ts_tail *t, const char *block, size_t length, const ts_tail_reader *reader) {
  for (size_t done = 0; done < length;) {
    const char *end = memchr(block + done, '\n', length - done);
    size_t part = end != NULL ? (size_t) (end - block) - done : length - done;
    add_to_line(t, block + done, part, end != NULL, reader);
    done += part + (end != NULL);
  }
}

static void remember_last(ts_tail *t, const char *block, size_t length) {
  t->n_last = length < sizeof t->last ? length : sizeof t->last;
  memcpy(t->last, block + length - t->n_last, t->n_last);
}

int64_t ts_tail_read(ts_tail *t, const ts_tail_reader *reader) {
  if (!look_again(t, reader)) {
    return 0;
  }
  int64_t begin = t->offset;
  char *block = ts_malloc(BLOCK);
  ssize_t n = 1;
  for (int i = 0; i < BLOCKS && n > 0; ++i) {
    n = read_at(t->file, block, BLOCK, t->offset);
    if (n > 0) {
      take_block(t, block, (size_t) n, reader);
      remember_last(t, block, (size_t) n);
      t->offset += n;
    }
  }
  ts_free(block);
  return t->offset - begin;
}
