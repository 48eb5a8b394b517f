/* What is published in a run: names, listing, finding. */
#include "base/memory.h"
#include "io/manifest.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char *ts_step_directory(const char *run, int64_t step, const char *suffix) {
  return ts_format("%s/step_%08lld%s", run, (long long) step, suffix);
}

const char *ts_step_of_name(const char *name, int64_t *step) {
  char expected[40], *end;
  if (strncmp(name, "step_", 5) != 0 || !isdigit((unsigned char) name[5])) {
    return NULL;
  }
  errno = 0;
  long long value = strtoll(name + 5, &end, 10);
  snprintf(expected, sizeof expected, "step_%08lld", value);
  *step = value;
  bool same = strlen(expected) == (size_t) (end - name) && memcmp(name, expected, strlen(expected)) == 0;
  return errno == 0 && same ? end : NULL;
}

static bool is_directory(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int compare_newest_first(const void *a, const void *b) {
  int64_t x = *(const int64_t *) a, y = *(const int64_t *) b;
  return (y > x) - (y < x);
}

int ts_steps_with_suffix(const char *run, const char *suffix, int64_t **steps) {
  int n = 0, capacity = 0;
  *steps = NULL;
  DIR *entries = opendir(run);
  for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
    int64_t step;
    const char *rest = ts_step_of_name(entry->d_name, &step);
    char *path = ts_format("%s/%s", run, entry->d_name);
    if (rest != NULL && strcmp(rest, suffix) == 0 && is_directory(path)) {
      TS_GROW(*steps, n, capacity);
      (*steps)[n++] = step;
    }
    ts_free(path);
  }
  if (entries != NULL) {
    closedir(entries);
  }
  if (n > 0) {
    qsort(*steps, (size_t) n, sizeof **steps, compare_newest_first);
  }
  return n;
}

int ts_published_steps(const char *run, int64_t **steps) {
  return ts_steps_with_suffix(run, "", steps);
}

bool ts_is_checkpoint(const char *path) {
  return ts_has_file(path, "manifest") || ts_has_file(path, "model.h5");
}

/* ---- locating ---- */

static ts_status no_checkpoint(const char *path, ts_error *err) {
  if (ts_has_file(path, "config.json") &&
      (ts_has_file(path, "model.safetensors") || ts_has_file(path, "model.safetensors.index.json"))) {
    return ts_error_add(err, "%s: is a Hugging Face directory, not a checkpoint: a deck takes it as model.from", path);
  }
  if (ts_deepspeed_refuse(path, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  return is_directory(path)
             ? ts_error_add(err,
                            "%s: no checkpoint is there: neither its files (manifest, model.h5) nor a run's "
                            "directories of steps (step_00000200)",
                            path)
             : ts_error_add(err, "%s: is not a directory: a run or one of its checkpoints is needed", path);
}

static ts_status no_tag(const char *run, const char *tag, const int64_t *steps, int n, ts_error *err) {
  enum { SHOWN = 10 };
  ts_text there = {0};
  for (int i = 0; i < n && i < SHOWN; ++i) {
    ts_text_add(&there, "%sstep_%08lld", i > 0 ? ", " : "", (long long) steps[i]);
  }
  ts_status status = ts_error_add(err, "%s: there is no checkpoint %s; there are %s%s", run, tag, there.text,
                                  n > SHOWN ? ", ..." : "");
  ts_text_free(&there);
  return status;
}

static ts_status locate_step(const char *run, const char *tag, const int64_t *steps, int n, char **directory,
                             ts_error *err) {
  int64_t step = 0;
  const char *rest = tag != NULL ? ts_step_of_name(tag, &step) : NULL;
  for (int i = 0; i < n; ++i) {
    if (tag == NULL || (rest != NULL && *rest == 0 && steps[i] == step)) {
      *directory = ts_step_directory(run, steps[i], "");
      return TS_OK;
    }
  }
  return n > 0 ? no_tag(run, tag, steps, n, err) : no_checkpoint(run, err);
}

ts_status ts_checkpoint_locate(const char *path, const char *tag, char **directory, ts_error *err) {
  *directory = NULL;
  if (ts_is_checkpoint(path)) {
    if (tag != NULL) {
      return ts_error_add(err, "%s: is a checkpoint itself; to choose %s by its name give the run's directory", path,
                          tag);
    }
    *directory = ts_strdup(path);
    return TS_OK;
  }
  int64_t *steps;
  int n = ts_published_steps(path, &steps);
  ts_status status = locate_step(path, tag, steps, n, directory, err);
  ts_free(steps);
  return status;
}
