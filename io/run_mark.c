#include "io/run_mark.h"

#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { DIGITS = 32, MOST_BYTES = 1 << 16 };

typedef struct mark {
  char id[DIGITS + 1];
  char *run; /* owned: its directory */
} mark;

/* False: there is none, or it says nothing. */
static bool read_mark(const char *directory, mark *out) {
  char *path = ts_format("%s/" TS_RUN_MARK, directory), *text = NULL;
  size_t length;
  ts_error err = {0};
  bool good = ts_read_file(path, MOST_BYTES, &text, &length, &err) == TS_OK &&
              strspn(text, "0123456789abcdef") == DIGITS && text[DIGITS] == '\n' && strlen(text) == length &&
              length > DIGITS + 2 && text[length - 1] == '\n';
  if (good) {
    text[length - 1] = 0;
    memcpy(out->id, text, DIGITS);
    out->id[DIGITS] = 0;
    out->run = ts_strdup(text + DIGITS + 1);
  }
  ts_error_clear(&err);
  ts_free(text);
  ts_free(path);
  return good;
}

/* A mark with this run's ID is a copy's, where the run that made it is still there. */
static bool is_of_original(const mark *found, const char *run) {
  mark there = {0};
  bool other = !ts_is_same_file(found->run, run) && read_mark(found->run, &there) && strcmp(there.id, found->id) == 0;
  ts_free(there.run);
  return other;
}

ts_run_mark ts_run_mark_find(const char *directory, const char *run, char **whose) {
  mark found = {0}, mine = {0};
  if (!ts_has_file(directory, TS_RUN_MARK)) {
    if (whose != NULL) {
      *whose = NULL;
    }
    return TS_MARK_NONE;
  }
  bool ours = read_mark(directory, &found) && read_mark(run, &mine) && strcmp(found.id, mine.id) == 0 &&
              !is_of_original(&found, run);
  if (whose != NULL) {
    *whose = ts_strdup(found.run != NULL ? found.run : "?");
  }
  ts_free(found.run);
  ts_free(mine.run);
  return ours ? TS_MARK_OURS : TS_MARK_OTHERS;
}

/* A file that must not be there yet; errno says why not. */
static bool create_file(const char *path, const char *text) {
  int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  size_t length = strlen(text);
  bool ok = file >= 0 && write(file, text, length) == (ssize_t) length;
  int reason = file >= 0 && errno == 0 ? ENOSPC : errno; /* a short write gives none */
  if (file >= 0) {
    close(file);
  }
  if (file >= 0 && !ok) {
    unlink(path);
  }
  errno = reason;
  return ok;
}

/* Owned by the caller. */
static char *mark_text(const char *id, const char *run) {
  char *full = ts_full_path(run), *text = ts_format("%s\n%s\n", id, full);
  ts_free(full);
  return text;
}

static ts_status put_mark(const char *directory, const char *id, const char *run, ts_error *err) {
  char *path = ts_format("%s/" TS_RUN_MARK, directory), *text = mark_text(id, run);
  errno = 0;
  ts_status status = create_file(path, text) || errno == EEXIST
                         ? TS_OK
                         : ts_error_add(err, "%s: cannot be written: %s", path, strerror(errno));
  ts_free(text);
  ts_free(path);
  return status;
}

/* Where the run was moved to: else a copy of it would not be told from it. */
static ts_status follow_move(const char *directory, const char *run, ts_error *err) {
  mark found = {0};
  ts_status status = TS_OK;
  if (read_mark(directory, &found) && !ts_is_same_file(found.run, run)) {
    char *path = ts_format("%s/" TS_RUN_MARK, directory), *text = mark_text(found.id, run);
    status = ts_write_file(path, text, strlen(text), err);
    ts_free(text);
    ts_free(path);
  }
  ts_free(found.run);
  return status;
}

static ts_status make_id(char id[DIGITS + 1], ts_error *err) {
  unsigned char bytes[DIGITS / 2];
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
    return ts_error_add(err, "the system has no random numbers: %s", strerror(errno));
  }
  for (int i = 0; i < DIGITS / 2; ++i) {
    snprintf(id + 2 * (size_t) i, 3, "%02x", bytes[i]);
  }
  return TS_OK;
}

ts_status ts_run_mark_make(const char *directory, const char *run, ts_error *err) {
  mark mine = {0};
  char *whose = NULL;
  ts_status status = TS_OK;
  if (!read_mark(run, &mine)) {
    status = make_id(mine.id, err);
    status = status == TS_OK ? put_mark(run, mine.id, run, err) : status;
  }
  status = status == TS_OK ? put_mark(directory, mine.id, run, err) : status;
  if (status == TS_OK && ts_run_mark_find(directory, run, &whose) != TS_MARK_OURS) {
    status = ts_error_add(err, "%s: is of another run, %s", directory, whose != NULL ? whose : "?");
  }
  if (status == TS_OK) {
    status = follow_move(directory, run, err);
  }
  ts_free(whose);
  ts_free(mine.run);
  return status;
}
