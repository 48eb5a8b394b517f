/* The directory of the status files, as a reader sees it. */
#include "train/status_file.h"

#include "base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 26, MOST_NODES = 1 << 16, TRIES = 3 };

char *ts_status_directory(const char *run) {
  return ts_format("%s/status", run);
}

char *ts_status_path(const char *run, const char *name) {
  char *path = ts_format("%s/status/%s", run, name), *last = path + strlen(path) - strlen(name);
  for (char *c = last; *c != 0; ++c) {
    *c = (char) (*c == '/' || (c == last && *c == '.') ? '_' : *c);
  }
  return path;
}

char ts_status_process(int64_t pid) {
  char text[512], state = '?';
  char *path = ts_format("/proc/%lld/stat", (long long) pid);
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    state = pid > 0 && errno == ENOENT ? 'X' : '?';
  } else {
    size_t n = fread(text, 1, sizeof text - 1, file);
    text[n] = 0;
    const char *end = strrchr(text, ')'); /* "PID (NAME) STATE ..." */
    state = end != NULL && end[1] == ' ' ? end[2] : '?';
    state = state == 't' ? 'T' : state == 'I' ? 'S' : state; /* traced; idle */
    fclose(file);
  }
  ts_free(path);
  return strchr("RSDTZX", state) != NULL ? state : '?';
}

static double seconds_of(struct timespec t) {
  return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

/* Seconds since 1970 as the file system of this directory sees it: the time of a file that is made there and removed
 * again, or where that is not allowed this machine's clock. */
static double file_system_now(const char *directory) {
  struct timespec clock;
  struct stat info;
  char *path = ts_format("%s/.now.XXXXXX", directory);
  int file = mkstemp(path);
  bool ok = file >= 0 && write(file, "\n", 1) == 1 && fstat(file, &info) == 0;
  if (file >= 0) {
    unlink(path);
    close(file);
  }
  ts_free(path);
  clock_gettime(CLOCK_REALTIME, &clock);
  return seconds_of(ok ? info.st_mtim : clock);
}

static bool read_all(int file, char *text, size_t size, size_t *length) {
  *length = 0;
  while (*length < size) {
    ssize_t n = read(file, text + *length, size - *length);
    if (n < 0) {
      return false;
    }
    if (n == 0) {
      break;
    }
    *length += (size_t) n;
  }
  text[*length] = 0;
  return true;
}

/* A file that must be plain and at most `limit` bytes; links are not followed and nothing is waited for.  The text is
 * the caller's, terminated, NULL when it cannot be read; `modified`, in seconds since 1970, may be NULL. */
static ts_status read_status(const char *path, size_t limit, char **text, size_t *length, double *modified) {
  struct stat info;
  *text = NULL;
  int file = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) {
    return TS_BAD_INPUT;
  }
  bool ok = fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size >= 0 && (size_t) info.st_size <= limit;
  if (ok) {
    *text = ts_malloc((size_t) info.st_size + 1);
    ok = read_all(file, *text, (size_t) info.st_size, length);
  }
  close(file);
  if (!ok) {
    ts_free(*text);
    *text = NULL;
    return TS_BAD_INPUT;
  }
  if (modified != NULL) {
    *modified = seconds_of(info.st_mtim);
  }
  return TS_OK;
}

/* ---- the job ---- */

static ts_status read_job(const char *run, ts_run_status *s, ts_error *err) {
  struct stat info;
  if (stat(run, &info) != 0) {
    return ts_error_add(err, "%s: %s", run, strerror(errno));
  }
  if (!S_ISDIR(info.st_mode)) {
    return ts_error_add(err, "%s: is no directory: the run directory (run.directory) is wanted", run);
  }
  char *path = ts_status_path(run, "@run"), *text = NULL;
  size_t length;
  ts_status status = TS_OK;
  if (access(path, F_OK) != 0) {
    status = ts_error_add(err, "%s: says nothing of itself (there is no status/@run): not the directory of a run", run);
  } else if (read_status(path, MOST_BYTES, &text, &length, NULL) != TS_OK ||
             ts_status_parse_job(text, length, &s->job) != TS_OK) {
    status = ts_error_add(err, "%s: damaged; it is written anew when the run is started again", path);
  }
  ts_free(text);
  ts_free(path);
  return status;
}

/* Why a rank ended the job: for people, so anything goes but what a terminal would act on. */
static void read_failed(const char *run, ts_run_status *s) {
  char *path = ts_status_path(run, "@failed");
  size_t length;
  if (read_status(path, 1 << 16, &s->failed, &length, NULL) == TS_OK) {
    for (size_t i = 0; i < length; ++i) {
      char c = s->failed[i];
      s->failed[i] = (char) (c == '\n' || (c >= ' ' && c <= '~') ? c : '?');
    }
    while (length > 0 && s->failed[length - 1] == '\n') {
      s->failed[--length] = 0;
    }
  }
  ts_free(path);
}

/* ---- the nodes ---- */

/* A reading that met a writing is repeated. */
static ts_status read_node(const char *run, const char *name, double now, ts_node_status *node) {
  char *path = ts_status_path(run, name), *text;
  ts_status status = TS_BAD_INPUT;
  for (int i = 0; i < TRIES && status != TS_OK; ++i) {
    size_t length;
    double modified = 0;
    ts_node_status_clear(node);
    if (read_status(path, MOST_BYTES, &text, &length, &modified) == TS_OK) {
      status = ts_status_parse_node(text, length, node);
      node->age = now > modified ? now - modified : 0;
      ts_free(text);
    }
    if (status != TS_OK && i + 1 < TRIES) {
      nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
  }
  ts_free(path);
  return status;
}

static int by_rank(const void *a, const void *b) {
  int64_t x = ((const ts_node_status *) a)->beat[0].rank, y = ((const ts_node_status *) b)->beat[0].rank;
  return (x > y) - (x < y);
}

static void add_node_lines(ts_run_status *s, const char *name, ts_status status, ts_node_status *node, int *capacity) {
  bool mine = status == TS_OK && strcmp(node->id, s->job.id) == 0;
  if (mine) {
    TS_GROW(s->node, s->n_nodes, *capacity);
    s->node[s->n_nodes++] = *node;
    return;
  }
  if (status == TS_OK) {
    ++s->n_older;
  } else if (s->n_damaged++ == 0) {
    for (size_t i = 0; i + 1 < sizeof s->damaged && name[i] != 0; ++i) {
      s->damaged[i] = (char) (name[i] >= ' ' && name[i] <= '~' ? name[i] : '?');
    }
  }
  ts_node_status_clear(node);
}

ts_status ts_status_read(const char *run, ts_run_status *s, ts_error *err) {
  *s = (ts_run_status){0};
  ts_status status = read_job(run, s, err);
  if (status != TS_OK) {
    return status;
  }
  read_failed(run, s);
  char *path = ts_status_directory(run);
  double now = file_system_now(path);
  DIR *directory = opendir(path);
  struct dirent *entry;
  int capacity = 0;
  while (directory != NULL && s->n_nodes < MOST_NODES && (entry = readdir(directory)) != NULL) {
    if (entry->d_name[0] != '.' && entry->d_name[0] != '@') {
      ts_node_status node = {0};
      ts_status found = read_node(run, entry->d_name, now, &node);
      add_node_lines(s, entry->d_name, found, &node, &capacity);
    }
  }
  if (directory != NULL) {
    closedir(directory);
  }
  if (s->n_nodes > 0) {
    qsort(s->node, (size_t) s->n_nodes, sizeof *s->node, by_rank);
  }
  ts_free(path);
  return TS_OK;
}

void ts_run_status_clear(ts_run_status *s) {
  for (int i = 0; i < s->n_nodes; ++i) {
    ts_node_status_clear(&s->node[i]);
  }
  ts_free(s->node);
  ts_free(s->failed);
  *s = (ts_run_status){0};
}
