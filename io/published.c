/* What is published in a run: names, listing, finding. */
#include "base/memory.h"
#include "io/manifest.h"
#include "io/safetensors.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- names ---- */

char *ts_step_tag(int64_t step) {
  return ts_format("step_%08lld", (long long) step);
}

char *ts_tag_directory(const char *run, const char *tag, const char *suffix) {
  return ts_format("%s/%s%s", run, tag, suffix);
}

char *ts_step_directory(const char *run, int64_t step, const char *suffix) {
  return ts_format("%s/step_%08lld%s", run, (long long) step, suffix);
}

ts_status ts_tag_check(const char *tag, ts_error *err) {
  size_t length = strlen(tag);
  bool good = length > 0 && length <= TS_LONGEST_TAG && tag[0] != '.' && tag[0] != '-' && !ts_ends_in(tag, ".tmp") &&
              !ts_ends_in(tag, ".aside") && strcmp(tag, "latest") != 0;
  for (size_t i = 0; i < length && good; ++i) {
    good = isalnum((unsigned char) tag[i]) || strchr("._-", tag[i]) != NULL;
  }
  char shown[TS_LONGEST_TAG + 1] = "";
  for (size_t i = 0; i < length && i < TS_LONGEST_TAG; ++i) {
    shown[i] = isprint((unsigned char) tag[i]) ? tag[i] : '?';
  }
  return good ? TS_OK
              : ts_error_add(err,
                             "the tag \"%s\" is no name of a checkpoint: 1 to %d letters, digits, \".\", \"_\" or "
                             "\"-\" are accepted, that begin with none of \".\" and \"-\", are not \"latest\", and "
                             "do not end in \".tmp\" or \".aside\"",
                             shown, TS_LONGEST_TAG);
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

/* ---- listing ---- */

static int compare_published(const void *a, const void *b) {
  const ts_published *x = a, *y = b;
  int64_t ignored;
  int by_step = (y->step > x->step) - (y->step < x->step);
  int by_kind = (ts_step_of_name(y->tag, &ignored) != NULL) - (ts_step_of_name(x->tag, &ignored) != NULL);
  return by_step != 0 ? by_step : by_kind != 0 ? by_kind : strcmp(x->tag, y->tag);
}

/* Is the entry of a run's directory a checkpoint, and of which step? */
static bool is_published(const char *run, const char *name, int64_t *step) {
  if (ts_tag_check(name, NULL) != TS_OK) {
    return false;
  }
  const char *rest = ts_step_of_name(name, step);
  char *path = ts_tag_directory(run, name, "");
  bool is_step = rest != NULL && *rest == 0, found = is_directory(path) && (is_step || ts_has_file(path, "manifest"));
  if (found && !is_step) {
    ts_manifest manifest = {0};
    *step = ts_manifest_read(path, &manifest, NULL) == TS_OK ? manifest.step : -1;
    ts_manifest_clear(&manifest);
  }
  ts_free(path);
  return found;
}

int ts_published_list(const char *run, ts_published **list) {
  int n = 0, capacity = 0;
  *list = NULL;
  DIR *entries = opendir(run);
  for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
    ts_published one = {.step = -1};
    if (is_published(run, entry->d_name, &one.step)) {
      strcpy(one.tag, entry->d_name);
      TS_GROW(*list, n, capacity);
      (*list)[n++] = one;
    }
  }
  if (entries != NULL) {
    closedir(entries);
  }
  if (n > 0) {
    qsort(*list, (size_t) n, sizeof **list, compare_published);
  }
  return n;
}

bool ts_is_checkpoint(const char *path) {
  return ts_has_file(path, "manifest") || ts_has_file(path, "model.h5");
}

/* ---- locating ---- */

static ts_status no_checkpoint(const char *path, ts_error *err) {
  if (ts_has_file(path, "config.json") && ts_safetensors_are_in(path)) {
    return ts_error_add(
        err,
        "%s: is a Hugging Face directory, not a checkpoint: a deck takes it as model.from, or a run its "
        "weights by --weights",
        path);
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

static ts_status no_tag(const char *run, const char *tag, const ts_published *list, int n, ts_error *err) {
  enum { SHOWN = 10 };
  ts_text there = {0};
  for (int i = 0; i < n && i < SHOWN; ++i) {
    ts_text_add(&there, "%s%s", i > 0 ? ", " : "", list[i].tag);
  }
  ts_status status = ts_error_add(err, "%s: there is no checkpoint %s; there are %s%s", run, tag, there.text,
                                  n > SHOWN ? ", ..." : "");
  ts_text_free(&there);
  return status;
}

static ts_status locate_in_run(const char *run, const char *tag, const ts_published *list, int n, char **directory,
                               ts_error *err) {
  for (int i = 0; i < n; ++i) {
    if (tag == NULL || strcmp(list[i].tag, tag) == 0) {
      *directory = ts_tag_directory(run, list[i].tag, "");
      return TS_OK;
    }
  }
  return n > 0 ? no_tag(run, tag, list, n, err) : no_checkpoint(run, err);
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
  ts_published *list;
  int n = ts_published_list(path, &list);
  ts_status status = locate_in_run(path, tag, list, n, directory, err);
  ts_free(list);
  return status;
}
