/* Directories that appear complete or not at all: every state of a save, every damage, every failing call. */
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/publication.h"
#include "regression/tap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_FILES = 4 };
static const char *const file_names[N_FILES] = {"shard_00001.h5", "model.h5", "shard_00000.h5", "shard_00002.h5"};

/* ---- small tools ---- */

static char *path_of(const char *directory, const char *name) {
  return ts_format("%s/%s", directory, name);
}

/* A fresh run directory. */
static char *make_run(const char *name) {
  char *run = path_of(tap_directory(), name);
  TS_CHECK(ts_make_directory(run, NULL) == TS_OK, "%s", run);
  return run;
}

static void put(const char *directory, const char *name, const char *text, size_t length) {
  char *path = path_of(directory, name);
  FILE *file = fopen(path, "wb");
  TS_CHECK(file != NULL && fwrite(text, 1, length, file) == length && fclose(file) == 0, "%s", path);
  ts_free(path);
}

static char *get(const char *directory, const char *name, size_t *length) {
  char *path = path_of(directory, name), *text;
  TS_CHECK(ts_read_file(path, 1 << 20, &text, length, NULL) == TS_OK, "%s", path);
  ts_free(path);
  return text;
}

static bool there(const char *directory, const char *name) {
  char *path = path_of(directory, name);
  bool found = access(path, F_OK) == 0;
  ts_free(path);
  return found;
}

static void rename_in(const char *run, const char *from, const char *to) {
  char *a = path_of(run, from), *b = path_of(run, to);
  TS_CHECK(rename(a, b) == 0, "%s", a);
  ts_free(a);
  ts_free(b);
}

/* True when the status is bad and a message has these words; clears. */
static bool says(ts_status status, ts_error *err, const char *words) {
  bool found = status == TS_BAD_INPUT && err->count > 0 && strstr(err->text, words) != NULL;
  if (!found) {
    tap_note("status %d, wanted \"%s\", got: %s", (int) status, words, err->count > 0 ? err->text : "nothing");
  }
  ts_error_clear(err);
  return found;
}

/* Files of a step: contents depend on step and name; one of them is empty. */
static void write_files(const char *run, int64_t step, ts_file_sum sums[N_FILES]) {
  char *directory = ts_step_directory(run, step, ".tmp");
  for (int i = 0; i < N_FILES; ++i) {
    char *text = ts_format("step %lld of %s", (long long) step, file_names[i]);
    put(directory, file_names[i], text, i == 3 ? 0 : strlen(text));
    TS_CHECK(ts_file_sum_make(directory, file_names[i], &sums[i], NULL) == TS_OK, "%s", directory);
    ts_free(text);
  }
  ts_free(directory);
}

/* The states of a save, in order; a save that died has done only the first few. */
enum { BEGUN = 1, FILES, MANIFEST, PUBLISHED, LATEST };

static ts_status save_until(const char *run, int64_t step, int state, ts_error *err) {
  ts_file_sum sums[N_FILES];
  ts_status status = ts_publication_begin(run, step, 1000, err);
  if (status == TS_OK && state >= FILES) {
    write_files(run, step, sums);
  }
  status = status == TS_OK && state >= MANIFEST ? ts_publication_manifest(run, step, sums, N_FILES, err) : status;
  status = status == TS_OK && state >= PUBLISHED ? ts_publication_publish(run, step, err) : status;
  return status == TS_OK && state >= LATEST ? ts_publication_latest(run, step, err) : status;
}

static void save(const char *run, int64_t step) {
  ts_error err = {0};
  TS_CHECK(save_until(run, step, LATEST, &err) == TS_OK, "%s", err.text);
}

static ts_status verify(const char *directory, ts_error *err) {
  ts_manifest manifest;
  ts_status status = ts_manifest_read(directory, &manifest, err);
  status = status == TS_OK ? ts_checkpoint_verify(directory, &manifest, 0, 1, 2, err) : status;
  ts_manifest_clear(&manifest);
  return status;
}

static ts_status verify_step(const char *run, int64_t step, ts_error *err) {
  char *directory = ts_step_directory(run, step, "");
  ts_status status = verify(directory, err);
  ts_free(directory);
  return status;
}

/* These steps are published (newest first, ended by -1), all are intact, and latest is right. */
static bool holds(const char *run, const int64_t *expected) {
  int64_t *steps;
  ts_error err = {0};
  int n = ts_published_steps(run, &steps), i = 0;
  bool good = true;
  for (; expected[i] >= 0; ++i) {
    good = good && i < n && steps[i] == expected[i] && verify_step(run, steps[i], &err) == TS_OK;
  }
  good = good && i == n && ts_latest_verify(run, &err) == TS_OK;
  if (!good) {
    tap_note("%d steps published; %s", n, err.count > 0 ? err.text : "no message");
  }
  ts_error_clear(&err);
  ts_free(steps);
  return good;
}
#define STEPS(...) ((const int64_t[]){__VA_ARGS__, -1})

/* ---- a save, and one that died ---- */

static void test_save(void) {
  char *run = make_run("save"), *directory = ts_step_directory(run, 200, "");
  ts_manifest manifest;
  ts_error err = {0};
  tap_ok(holds(run, STEPS(-1)), "an empty run: nothing published, no latest, nothing wrong");
  tap_ok(save_until(run, 200, LATEST, &err) == TS_OK, "a save");
  tap_ok(holds(run, STEPS(200)), "is intact");
  tap_ok(!there(run, "step_00000200.tmp") && !there(run, "latest.tmp"), "and leaves nothing else");
  tap_ok(ts_manifest_read(directory, &manifest, &err) == TS_OK && manifest.step == 200 && manifest.n == N_FILES,
         "the manifest: step and files");
  tap_ok(strcmp(manifest.file[0].name, "model.h5") == 0 && manifest.file[0].bytes == 20 && manifest.file[3].bytes == 0,
         "the manifest: names ascend, with their sizes");
  size_t length;
  char *latest = get(run, "latest", &length), line[64];
  snprintf(line, sizeof line, "step_00000200\n%016llx%016llx\n", (unsigned long long) manifest.hash[0],
           (unsigned long long) manifest.hash[1]);
  tap_ok(strcmp(latest, line) == 0, "latest: the name and the manifest's hash");
  ts_free(latest);
  ts_manifest_clear(&manifest);
  save(run, 400);
  save(run, 123456789012);
  tap_ok(holds(run, STEPS(123456789012, 400, 200)), "three saves, one of a number with more digits");
  ts_free(directory);
  ts_free(run);
}

static void test_died(void) {
  static const char *const names[] = {"", "begin", "files", "manifest", "publish"};
  ts_error err = {0};
  for (int state = BEGUN; state < LATEST; ++state) {
    char *run = make_run(names[state]);
    TS_CHECK(save_until(run, 200, state, NULL) == TS_OK, "%s", run);
    tap_ok(state < PUBLISHED ? holds(run, STEPS(-1)) : holds(run, STEPS(200)), "the first save died after %s",
           names[state]);
    save(run, 400);
    TS_CHECK(save_until(run, 600, state, NULL) == TS_OK, "%s", run);
    tap_ok(state < PUBLISHED ? there(run, "step_00000600.tmp") && !there(run, "step_00000600")
                             : !there(run, "step_00000600.tmp"),
           "the third died after %s: what is left of it", names[state]);
    save(run, 800);
    tap_ok(!there(run, "step_00000600.tmp"), "the next save removes what is left of it");
    tap_ok(state < PUBLISHED ? holds(run, STEPS(800, 400)) : holds(run, STEPS(800, 600, 400, 200)),
           "and what was published is intact");
    TS_CHECK(save_until(run, 1000, state, NULL) == TS_OK, "%s", run);
    ts_publication_abandon(run, 1000);
    tap_ok(!there(run, "step_00001000.tmp"), "abandoned after %s", names[state]);
    ts_free(run);
  }
  ts_error_clear(&err);
}

int main(void) {
  test_save();
  test_died();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
