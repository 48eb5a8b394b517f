#include "base/cgroup.h"

#include "base/memory.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *root = "";

void ts_cgroups_look_below(const char *directory) {
  root = directory;
}

/* The two versions: where their groups are, what the files of a group are called. */
typedef struct hierarchy {
  const char *mount, *limit, *usage;
  const char *files[2]; /* of memory.stat: the kernel's copies of files, which it gives back when memory is short */
} hierarchy;

static const hierarchy first = {"/sys/fs/cgroup/memory",
                                "memory.limit_in_bytes",
                                "memory.usage_in_bytes",
                                {"total_inactive_file", "total_active_file"}};
static const hierarchy second = {"/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};

/* Without a limit version 1 gives the largest number of whole pages, version 2 the word max. */
#define LEAST_UNLIMITED ((int64_t) 1 << 60)

/* The number in a file, or behind a word at the beginning of one of its lines; -1: there is none. */
static int64_t number_in(const char *directory, const char *file, const char *word) {
  char *path = ts_format("%s/%s", directory, file), line[256], *end;
  FILE *in = fopen(path, "r");
  int64_t number = -1;
  size_t n = word != NULL ? strlen(word) : 0;
  while (in != NULL && number < 0 && fgets(line, sizeof line, in) != NULL) {
    if (word == NULL || (strncmp(line, word, n) == 0 && line[n] == ' ')) {
      unsigned long long value = strtoull(line + n, &end, 10);
      number = end == line + n ? -1 : value < INT64_MAX ? (int64_t) value : INT64_MAX;
    }
  }
  if (in != NULL) {
    fclose(in);
  }
  ts_free(path);
  return number;
}

typedef struct list {
  ts_cgroup *group;
  int n, capacity;
} list;

/* A group, where it is mounted here and has a limit. */
static void add_limited(list *l, const hierarchy *h, const char *path) {
  char *directory = ts_format("%s%s%s", root, h->mount, path);
  int64_t limit = number_in(directory, h->limit, NULL), usage = number_in(directory, h->usage, NULL);
  if (limit >= 0 && limit < LEAST_UNLIMITED && usage >= 0) {
    int64_t left = limit - usage;
    for (int i = 0; i < 2; ++i) {
      int64_t bytes = number_in(directory, "memory.stat", h->files[i]);
      left += bytes > 0 && bytes <= usage ? bytes : 0;
    }
    TS_GROW(l->group, l->n, l->capacity);
    l->group[l->n++] = (ts_cgroup){.path = ts_strdup(*path == 0 ? "/" : path),
                                   .limit = limit,
                                   .available = left < 0       ? 0
                                                : left < limit ? left
                                                               : limit};
  }
  ts_free(directory);
}

/* The group and all that it is in.  In a container the innermost of these are mounted under other names, or not. */
static void add_limited_above(list *l, const hierarchy *h, char *path) {
  for (char *end = path + strlen(path); end != NULL; end = strrchr(path, '/')) {
    *end = 0;
    add_limited(l, h, path);
  }
}

static bool lists_memory(const char *controllers) {
  for (const char *at = controllers; at != NULL; at = strchr(at, ',')) {
    at += *at == ',';
    if (strncmp(at, "memory", 6) == 0 && (at[6] == 0 || at[6] == ',')) {
      return true;
    }
  }
  return false;
}

/* A line of /proc/self/cgroup: "4:memory:/path" or, of version 2, "0::/path". */
static void add_line(list *l, char *line) {
  char *controllers = strchr(line, ':'), *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
  if (path == NULL) {
    return;
  }
  *path++ = 0;
  path[strcspn(path, "\n")] = 0;
  if (strcmp(path, "/") == 0) {
    *path = 0; /* below its mount */
  }
  if (strcmp(controllers, ":") == 0) {
    add_limited_above(l, &second, path);
  } else if (lists_memory(controllers + 1)) {
    add_limited_above(l, &first, path);
  }
}

int ts_cgroups_limited(ts_cgroup **groups) {
  char *name = ts_format("%s/proc/self/cgroup", root), *line = NULL;
  size_t size = 0;
  list l = {0};
  FILE *in = fopen(name, "r");
  while (in != NULL && getline(&line, &size, in) >= 0) {
    add_line(&l, line);
  }
  if (in != NULL) {
    fclose(in);
  }
  free(line);
  ts_free(name);
  *groups = l.group;
  return l.n;
}

void ts_cgroups_free(ts_cgroup **groups, int n) {
  for (int i = 0; *groups != NULL && i < n; ++i) {
    ts_free((*groups)[i].path);
  }
  ts_free(*groups);
  *groups = NULL;
}
