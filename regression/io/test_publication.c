/* Directories that appear complete or not at all: every state of a save, every damage, every failing call. */
#include "io/publication.h"
#include "regression/io/run_fixture.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { N_FILES = 4 };
static const char *const file_names[N_FILES] = {"shard_00001.h5", "model.h5", "shard_00000.h5", "shard_00002.h5"};

/* ---- small tools ---- */

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

/* Files of a step: contents are of this save and name, of the same size each time; one of them is empty. */
static void write_files(const char *run, const char *tag, ts_file_sum sums[N_FILES]) {
  static int saves;
  char *directory = ts_tag_directory(run, tag, ".tmp");
  ++saves;
  for (int i = 0; i < N_FILES; ++i) {
    char *text = ts_format("save %06d of %s", saves, file_names[i]);
    put(directory, file_names[i], text, i == 3 ? 0 : strlen(text));
    TS_CHECK(ts_file_sum_make(directory, file_names[i], &sums[i], NULL) == TS_OK, "%s", directory);
    ts_free(text);
  }
  ts_free(directory);
}

/* The states of a save, in order; a save that died has done only the first few. */
enum { BEGUN = 1, FILES, MANIFEST, PUBLISHED, LATEST };

static ts_status save_as(const char *run, const char *tag, int64_t step, int state, ts_error *err) {
  ts_file_sum sums[N_FILES];
  ts_status status = ts_publication_begin(run, tag, 1000, err);
  if (status == TS_OK && state >= FILES) {
    write_files(run, tag, sums);
  }
  status = status == TS_OK && state >= MANIFEST ? ts_publication_manifest(run, tag, step, sums, N_FILES, err) : status;
  status = status == TS_OK && state >= PUBLISHED ? ts_publication_publish(run, tag, step, err) : status;
  return status == TS_OK && state >= LATEST ? ts_publication_latest(run, tag, err) : status;
}

static ts_status save_until(const char *run, int64_t step, int state, ts_error *err) {
  char *tag = ts_step_tag(step);
  ts_status status = save_as(run, tag, step, state, err);
  ts_free(tag);
  return status;
}

static void save(const char *run, int64_t step) {
  ts_error err = {0};
  TS_CHECK(save_until(run, step, LATEST, &err) == TS_OK, "%s", err.text);
}

static ts_status verify(const char *directory, ts_error *err) {
  ts_manifest manifest;
  ts_status status = ts_manifest_read(directory, &manifest, err);
  status = status == TS_OK ? ts_checkpoint_verify(directory, &manifest, 0, 1, 1, err) : status;
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
  tap_ok(strcmp(manifest.file[0].name, "model.h5") == 0 && manifest.file[0].bytes == 23 && manifest.file[3].bytes == 0,
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
    ts_publication_abandon(run, "step_00001000");
    tap_ok(!there(run, "step_00001000.tmp"), "abandoned after %s", names[state]);
    ts_free(run);
  }
  ts_error_clear(&err);
}

/* ---- failing calls ---- */

enum { LEFT = 500 }; /* a save that died, for begin to remove */

typedef ts_status try_function(const char *run, ts_error *err);

static ts_status try_save(const char *run, ts_error *err) {
  return save_until(run, 600, LATEST, err);
}

static ts_status try_save_again(const char *run, ts_error *err) {
  return save_until(run, 400, LATEST, err);
}

static ts_status try_set_aside(const char *run, ts_error *err) {
  return ts_publication_set_aside(run, 200, err);
}

static ts_status try_prune(const char *run, ts_error *err) {
  (void) err;
  ts_publication_prune(run, 1);
  return TS_OK;
}

/* All that is published is intact, the steps that must stay are, and latest is right. */
static bool is_sound(const char *run, int64_t must) {
  int64_t *steps;
  ts_error err = {0};
  int n = ts_published_steps(run, &steps);
  bool found = false, good = ts_latest_verify(run, &err) == TS_OK;
  for (int i = 0; i < n; ++i) {
    good = verify_step(run, steps[i], &err) == TS_OK && good;
    found = found || steps[i] == must;
  }
  if (!good || !found) {
    tap_note("%d steps; %s", n, err.count > 0 ? err.text : "one is gone");
  }
  ts_error_clear(&err);
  ts_free(steps);
  return good && found;
}

/* Let calls [nth, nth + count) fail; false when the run is not sound afterwards, or does not go on. */
static bool survives(const char *run, try_function *what, int64_t must, int64_t nth, int64_t count, int number,
                     ts_status *status) {
  ts_error err = {0};
  save(run, 200);
  save(run, 300);
  save(run, 400);
  TS_CHECK(save_until(run, LEFT, FILES, NULL) == TS_OK, "%s", run);
  ts_publication_set_test_failure(nth, count, number);
  *status = what(run, &err);
  ts_publication_set_test_failure(0, 0, 0);
  bool good = *status == TS_OK || (err.count == 1 && strstr(err.text, strerror(number)) != NULL);
  good = is_sound(run, must) && good;
  ts_publication_abandon(run, "step_00000600");
  good = what(run, NULL) == TS_OK && is_sound(run, must) && good;
  save(run, 800);
  good = !there(run, "step_00000500.tmp") && is_sound(run, 800) && good;
  ts_error_clear(&err);
  return good;
}

static void test_failures(void) {
  static const struct {
    const char *name;
    try_function *what;
    int64_t must; /* step that is there whatever fails */
    bool tells;   /* a failure of a call is a status, not only a warning */
    int calls;    /* at least */
  } rows[] = {{"a save", try_save, 400, true, 12},
              {"a save of a step that is there", try_save_again, 400, true, 20},
              {"setting aside", try_set_aside, 200, true, 10},
              {"pruning", try_prune, 400, false, 12}};
  static const int numbers[] = {EIO, EINVAL};
  ts_log_configure(TS_LOG_ERROR, false); /* warnings of what cannot be removed */
  for (size_t r = 0; r < sizeof rows / sizeof rows[0]; ++r) {
    int64_t calls = rows[r].tells ? 0 : 30;
    for (int e = 0; e < 2; ++e) {
      bool good = true;
      ts_status status = TS_BAD_INPUT;
      int64_t nth = 1;
      for (; rows[r].tells ? status != TS_OK : nth <= calls; ++nth) {
        char *name = ts_format("all%zu.%d.%lld", r, e, (long long) nth), *run = make_run(name);
        good = survives(run, rows[r].what, rows[r].must, nth, INT64_MAX, numbers[e], &status) && good;
        ts_free(run);
        ts_free(name);
      }
      calls = nth - 1;
      tap_ok(good && calls >= rows[r].calls, "%s: from each of %lld calls on nothing works (%s)", rows[r].name,
             (long long) calls, strerror(numbers[e]));
      good = true;
      int aside = 0;
      for (nth = 1; nth <= calls; ++nth) {
        char *name = ts_format("one%zu.%d.%lld", r, e, (long long) nth), *run = make_run(name);
        good = survives(run, rows[r].what, rows[r].must, nth, 1, numbers[e], &status) && good;
        aside += status == TS_OK && there(run, "step_00000400.aside");
        ts_free(run);
        ts_free(name);
      }
      tap_ok(good, "%s: each of them fails once (%s)", rows[r].name, strerror(numbers[e]));
      if (rows[r].what == try_save_again) {
        tap_ok(aside == (numbers[e] == EINVAL), "where names cannot be exchanged the older one goes aside (%s)",
               strerror(numbers[e]));
      }
    }
  }
  ts_log_configure(TS_LOG_INFO, true);
}

/* All that is published in a run, whatever it is called, is intact, latest is right, and there is no more of it than
 * these. */
static bool is_sound_list(const char *run, const char *tags) {
  ts_published *list;
  ts_text found = {0};
  ts_error err = {0};
  int n = ts_published_list(run, &list);
  bool good = ts_latest_verify(run, &err) == TS_OK;
  for (int i = 0; i < n; ++i) {
    char *directory = ts_tag_directory(run, list[i].tag, "");
    good = verify(directory, &err) == TS_OK && good;
    ts_text_add(&found, "%s %lld, ", list[i].tag, (long long) list[i].step);
    ts_free(directory);
  }
  good = good && (tags == NULL || strcmp(found.text, tags) == 0);
  if (!good) {
    tap_note("%s; %s", found.text, err.count > 0 ? err.text : "intact");
  }
  ts_text_free(&found);
  ts_error_clear(&err);
  ts_free(list);
  return good;
}

/* Names that a program chooses, beside those of steps. */
static void test_tags(void) {
  char *run = make_run("tags"), *latest;
  ts_error err = {0};
  TS_CHECK(save_as(run, "best", 200, LATEST, &err) == TS_OK && save_as(run, "a", 200, LATEST, &err) == TS_OK, "%s",
           err.text);
  save(run, 200);
  save(run, 100);
  tap_ok(is_sound_list(run, "step_00000200 200, a 200, best 200, step_00000100 100, "),
         "tags: of most steps first, and of one step its own name");
  latest = ts_latest_tag(run);
  tap_ok(strcmp(latest, "step_00000100") == 0, "tags: latest names what was saved last, not the most steps");
  ts_free(latest);
  ts_publication_prune(run, 1);
  tap_ok(there(run, "a") && there(run, "best") && !there(run, "step_00000100"), "tags: pruning is for steps alone");
  ts_log_configure(TS_LOG_ERROR, false);
  ts_status status = TS_BAD_INPUT;
  bool good = true;
  int64_t nth = 1;
  save(run, 300);
  for (; status != TS_OK; ++nth) {
    ts_publication_set_test_failure(nth, INT64_MAX, EIO);
    status = save_as(run, "best", 400, LATEST, NULL);
    ts_publication_set_test_failure(0, 0, 0);
    good = there(run, "best") && is_sound_list(run, NULL) && good;
  }
  ts_log_configure(TS_LOG_INFO, true);
  latest = ts_latest_tag(run);
  tap_ok(good && nth > 12 && strcmp(latest, "best") == 0 &&
             is_sound_list(run, "best 400, step_00000300 300, step_00000200 200, a 200, "),
         "tags: one that is there is replaced or stays, whichever of %lld calls is the last", (long long) nth - 1);
  ts_free(latest);
  ts_free(run);
}

static void test_space(void) {
  char *run = make_run("space");
  ts_error err = {0};
  save(run, 200);
  ts_publication_set_test_space(1009);
  tap_ok(says(ts_publication_begin(run, "step_00000400", 1000, &err), &err,
              "space: a checkpoint needs 1.01 kB and 1.01 kB are free there; make room or let fewer be kept"),
         "no space: both numbers, and the ways out");
  tap_ok(!there(run, "step_00000400.tmp") && holds(run, STEPS(200)), "no space: nothing was made");
  ts_publication_set_test_space(1010);
  tap_ok(ts_publication_begin(run, "step_00000400", 1000, &err) == TS_OK, "just enough space");
  ts_publication_set_test_space(-1);
  tap_ok(says(ts_publication_begin(run, "step_00000600", INT64_MAX, &err), &err, "are free there"),
         "more than any disk");
  tap_ok(!there(run, "step_00000400.tmp"), "what is left of a save goes before space is counted");
  char *nowhere = path_of(run, "nowhere");
  tap_ok(says(ts_publication_begin(nowhere, "step_00000001", 1, &err), &err,
              "nowhere/step_00000001.tmp: cannot be made: No such"),
         "a run that is not there");
  tap_ok(says(ts_publication_publish(run, "step_00000007", 7, &err), &err, "step_00000007.tmp: cannot be"),
         "nothing to publish");
  tap_ok(says(ts_publication_latest(run, "step_00000007", &err), &err, "step_00000007/manifest: No such") &&
             holds(run, STEPS(200)),
         "latest of a step that is not there");
  ts_free(nowhere);
  ts_free(run);
}

/* ---- what goes ---- */

static void test_prune(void) {
  char *run = make_run("prune");
  static const char *const bystanders[] = {"step_600", "step_00000300.aside", "step_00000100x", "mine",
                                           "step_000000100"};
  for (int64_t step = 200; step <= 1000; step += 200) {
    save(run, step);
  }
  for (int i = 0; i < 5; ++i) {
    char *directory = path_of(run, bystanders[i]);
    TS_CHECK(ts_make_directory(directory, NULL) == TS_OK, "%s", directory);
    ts_free(directory);
  }
  put(run, "step_00000050", "a file", 6);
  char *deep = path_of(run, "step_00000400/mine/deeper");
  TS_CHECK(ts_make_directory(deep, NULL) == TS_OK, "%s", deep);
  ts_free(deep);
  ts_publication_prune(run, 0);
  tap_ok(holds(run, STEPS(1000, 800, 600, 400, 200)), "prune: 0 keeps all");
  ts_publication_prune(run, 4);
  tap_ok(holds(run, STEPS(1000, 800, 600, 400)), "prune: 4 of 5");
  ts_publication_prune(run, 2);
  tap_ok(holds(run, STEPS(1000, 800)) && !there(run, "step_00000400.tmp"), "prune: 2 of 4, what lay in them too");
  ts_publication_prune(run, 2);
  tap_ok(holds(run, STEPS(1000, 800)), "prune: nothing to do");
  ts_publication_prune(run, 1);
  tap_ok(holds(run, STEPS(1000)), "prune: the newest stays");
  ts_publication_prune(run, 1);
  tap_ok(holds(run, STEPS(1000)), "prune: and stays");
  bool all = there(run, "step_00000050");
  for (int i = 0; i < 5; ++i) {
    all = all && there(run, bystanders[i]);
  }
  tap_ok(all, "prune: other names are nobody's business");
  ts_free(run);
}

static void test_set_aside(void) {
  char *run = make_run("aside");
  ts_error err = {0};
  for (int64_t step = 0; step <= 800; step += 200) {
    save(run, step);
  }
  size_t length;
  TS_CHECK(save_until(run, 900, PUBLISHED, NULL) == TS_OK, "%s", run);
  tap_ok(ts_publication_set_aside(run, 900, &err) == TS_OK && holds(run, STEPS(900, 800, 600, 400, 200, 0)),
         "set aside: nothing is newer than the newest");
  char *latest = get(run, "latest", &length);
  tap_ok(strncmp(latest, "step_00000900\n", 14) == 0, "set aside: latest, which was one behind, is no more");
  tap_ok(ts_publication_set_aside(run, 400, &err) == TS_OK && holds(run, STEPS(400, 200, 0)), "set aside: two");
  char *aside = ts_step_directory(run, 600, ".aside");
  tap_ok(there(run, "step_00000800.aside") && verify(aside, &err) == TS_OK, "set aside: they are whole");
  save(run, 600);
  tap_ok(ts_publication_set_aside(run, 500, &err) == TS_OK && holds(run, STEPS(400, 200, 0)),
         "set aside: an older one of this name goes; a step between two");
  char *shard = path_of(run, "step_00000200/manifest");
  TS_CHECK(unlink(shard) == 0, "%s", shard);
  tap_ok(ts_publication_set_aside(run, 0, &err) == TS_OK && holds(run, STEPS(0)),
         "set aside: past one without a manifest, to step 0");
  tap_ok(ts_publication_set_aside(run, -1, &err) == TS_OK && holds(run, STEPS(-1)) && !there(run, "latest"),
         "set aside: all, and latest is gone");
  tap_ok(ts_publication_set_aside(run, 10, &err) == TS_OK, "set aside: nothing there");
  ts_free(latest);
  ts_free(shard);
  ts_free(aside);
  ts_free(run);
}

static void test_again(void) {
  char *run = make_run("again"), *model = path_of(run, "step_00000400/model.h5"), *directory;
  ts_error err = {0};
  save(run, 200);
  save(run, 400);
  TS_CHECK(unlink(model) == 0, "%s", model);
  TS_CHECK(save_until(run, 400, PUBLISHED, &err) == TS_OK, "%s", err.text);
  tap_ok(holds(run, STEPS(400, 200)), "a step saved again, died before latest: latest is one behind");
  save(run, 400);
  tap_ok(holds(run, STEPS(400, 200)) && !there(run, "step_00000400.tmp") && !there(run, "step_00000400.aside"),
         "a step saved again takes the place of the damaged one");
  directory = make_run("again-alone");
  save(directory, 200);
  save(directory, 200);
  tap_ok(holds(directory, STEPS(200)), "the only step saved again");
  ts_free(directory);
  ts_free(model);
  ts_free(run);
}

/* ---- damage ---- */

typedef ts_status check_function(const char *directory, ts_error *err);

static ts_status check_latest(const char *directory, ts_error *err) {
  char *run = path_of(directory, "..");
  ts_status status = ts_latest_verify(run, err);
  ts_free(run);
  return status;
}

/* Flip every bit, cut at every length, add a byte: all detected.  Writes the right bytes again at the end. */
static void test_bytes(const char *directory, const char *name, check_function *check, const char *label) {
  size_t length;
  char *text = get(directory, name, &length), *longer = ts_malloc(length + 1);
  int missed = 0;
  for (size_t i = 0; i < 8 * length; ++i) {
    text[i / 8] ^= (char) (1 << i % 8);
    put(directory, name, text, length);
    missed += check(directory, NULL) == TS_OK;
    text[i / 8] ^= (char) (1 << i % 8);
  }
  tap_ok(missed == 0 && length > 0, "%s: each of %zu bits flipped is seen", label, 8 * length);
  for (size_t n = 0; n < length; ++n) {
    put(directory, name, text, n);
    missed += check(directory, NULL) == TS_OK;
  }
  tap_ok(missed == 0, "%s: cut at every length is seen", label);
  memcpy(longer, text, length);
  for (int c = 0; c < 256; ++c) {
    longer[length] = (char) c;
    put(directory, name, longer, length + 1);
    missed += check(directory, NULL) == TS_OK;
  }
  tap_ok(missed == 0, "%s: any byte added is seen", label);
  put(directory, name, text, length);
  tap_ok(check(directory, NULL) == TS_OK, "%s: and the right bytes are accepted", label);
  ts_free(longer);
  ts_free(text);
}

static void test_bits(void) {
  char *run = make_run("bits"), *directory = ts_step_directory(run, 400, "");
  save(run, 200);
  save(run, 400);
  test_bytes(directory, "manifest", verify, "manifest");
  test_bytes(directory, "../latest", check_latest, "latest");
  test_bytes(directory, "model.h5", verify, "model.h5");
  test_bytes(directory, "shard_00001.h5", verify, "a shard");
  ts_free(directory);
  ts_free(run);
}

static void swap(const char *run, const char *a, const char *b) {
  rename_in(run, a, "swap");
  rename_in(run, b, a);
  rename_in(run, "swap", b);
}

static void test_mixed(void) {
  char *run = make_run("mixed"), *directory = ts_step_directory(run, 400, ""), *path;
  ts_error err = {0};
  save(run, 200);
  save(run, 400);
  swap(run, "step_00000200/model.h5", "step_00000400/model.h5");
  tap_ok(says(verify(directory, &err), &err, "step_00000400/model.h5: damaged: its contents are not those"),
         "a file of another checkpoint, of the same size");
  swap(run, "step_00000200/model.h5", "step_00000400/model.h5");
  swap(run, "step_00000200/manifest", "step_00000400/manifest");
  tap_ok(says(verify(directory, &err), &err, "step_00000400/manifest: is of step 200"), "another one's manifest");
  swap(run, "step_00000200/manifest", "step_00000400/manifest");
  swap(run, "step_00000200", "step_00000400");
  tap_ok(says(verify(directory, &err), &err, "step_00000400/manifest: is of step 200"), "a directory renamed");
  tap_ok(says(ts_latest_verify(run, &err), &err, "latest: its hash is not that of"), "and latest does not hold");
  swap(run, "step_00000200", "step_00000400");
  swap(run, "step_00000400/shard_00000.h5", "step_00000400/shard_00001.h5");
  tap_ok(verify(directory, &err) == TS_BAD_INPUT && err.count == 2, "two files swapped: two messages");
  ts_error_clear(&err);
  swap(run, "step_00000400/shard_00000.h5", "step_00000400/shard_00001.h5");
  rename_in(run, "step_00000400/shard_00002.h5", "shard");
  tap_ok(says(verify(directory, &err), &err, "step_00000400/shard_00002.h5: missing; the manifest lists it with 0 b"),
         "a file is missing, though an empty one");
  path = path_of(directory, "shard_00002.h5");
  TS_CHECK(mkfifo(path, 0600) == 0, "%s", path);
  tap_ok(says(verify(directory, &err), &err, "shard_00002.h5: is not a regular file"), "a pipe in its place");
  TS_CHECK(unlink(path) == 0 && ts_make_directory(path, NULL) == TS_OK, "%s", path);
  tap_ok(says(verify(directory, &err), &err, "shard_00002.h5: is not a regular file"), "a directory in its place");
  TS_CHECK(rmdir(path) == 0, "%s", path);
  rename_in(run, "shard", "step_00000400/shard_00002.h5");
  put(directory, "shard_00004.h5", "x", 1);
  tap_ok(says(verify(directory, &err), &err, "shard_00004.h5: the manifest does not list it"), "a shard too many");
  rename_in(run, "step_00000400/shard_00004.h5", "step_00000400/notes.txt");
  tap_ok(verify(directory, &err) == TS_OK, "a file of the user harms nobody");
  put(directory, "shard_00000.h5", "short", 5);
  tap_ok(says(verify(directory, &err), &err, "shard_00000.h5: cut short: 5 bytes, the manifest says 29"), "both sizes");
  ts_free(path);
  ts_free(directory);
  ts_free(run);
}

static void test_shares(void) {
  char *run = make_run("shares"), *directory = ts_step_directory(run, 200, "");
  ts_manifest manifest;
  ts_error err = {0};
  save(run, 200);
  TS_CHECK(ts_manifest_read(directory, &manifest, NULL) == TS_OK, "%s", directory);
  tap_ok(ts_manifest_find(&manifest, "shard_00001.h5") == 2 && ts_manifest_find(&manifest, "shard_1") == -1,
         "the files of a manifest are found by name");
  tap_ok(says(ts_checkpoint_verify("/nonexistent", &(ts_manifest){0}, 0, 1, 1, &err), &err, "/nonexistent: cannot be"),
         "a directory that cannot be listed");
  put(directory, "shard_00001.h5", "?", 1);
  put(directory, "shard_00009.h5", "?", 1);
  int wrong = 0;
  for (int count = 1; count <= 7; ++count) {
    for (int share = 0; share < count; ++share) {
      for (int threads = 0; threads <= 5; threads += 5) {
        int expected = (2 % count == share) + (share == 0);
        ts_status status = ts_checkpoint_verify(directory, &manifest, share, count, threads, &err);
        wrong += err.count != expected || status != (expected > 0 ? TS_BAD_INPUT : TS_OK);
        ts_error_clear(&err);
      }
    }
  }
  tap_ok(wrong == 0, "each file is one share's, whatever the shares and threads; the rest is share 0's");
  ts_manifest_clear(&manifest);
  ts_free(directory);
  ts_free(run);
}

static void test_match(void) {
  char *run = make_run("match"), *directory = ts_step_directory(run, 200, "");
  ts_manifest manifest;
  ts_error err = {0};
  save(run, 200);
  TS_CHECK(ts_manifest_read(directory, &manifest, NULL) == TS_OK, "%s", directory);
  tap_ok(ts_manifest_match(directory, &manifest, 200, 3, &err) == TS_OK, "step and shards of the index match");
  tap_ok(says(ts_manifest_match(directory, &manifest, 201, 3, &err), &err,
              "step_00000200/model.h5: is of step 201, the manifest of step 200"),
         "an index of another step");
  tap_ok(says(ts_manifest_match(directory, &manifest, 200, 2, &err), &err, "has 2 shards, the manifest lists 3") &&
             says(ts_manifest_match(directory, &manifest, 200, 1 << 30, &err), &err, "shards, the manifest lists 3"),
         "an index of fewer and of more shards");
  strcpy(manifest.file[3].name, "shard_00003.h5");
  tap_ok(says(ts_manifest_match(directory, &manifest, 200, 3, &err), &err, "lists 3 shards, but no shard_00002.h5"),
         "as many shards, but another one");
  ts_manifest_clear(&manifest);
  ts_free(directory);
  ts_free(run);
}

static void test_latest(void) {
  char *run = make_run("latest"), *path = path_of(run, "latest");
  size_t length;
  ts_error err = {0};
  save(run, 200);
  char *text = get(run, "latest", &length);
  TS_CHECK(unlink(path) == 0, "%s", path);
  tap_ok(ts_latest_verify(run, &err) == TS_OK, "latest: none, one step published");
  save(run, 400);
  put(run, "latest", text, length);
  tap_ok(ts_latest_verify(run, &err) == TS_OK, "latest: one behind");
  TS_CHECK(unlink(path) == 0, "%s", path);
  tap_ok(says(ts_latest_verify(run, &err), &err, "latest: missing, though 2 steps are published"), "latest: none, two");
  save(run, 600);
  put(run, "latest", text, length);
  tap_ok(ts_latest_verify(run, &err) == TS_OK, "latest: two behind, of a program that has gone back");
  put(run, "deck.cfg", "", 0);
  tap_ok(says(ts_latest_verify(run, &err), &err, "latest: names step_00000200, but step_00000600 is the newest"),
         "latest: two behind, in a run of tessera train");
  text[12] = '1';
  put(run, "latest", text, length);
  tap_ok(says(ts_latest_verify(run, &err), &err, "latest: names step_00000201, which is not in"), "latest: not there");
  TS_CHECK(unlink(path) == 0 && symlink("nowhere", path) == 0, "%s", path);
  tap_ok(says(ts_latest_verify(run, &err), &err, "latest: No such file"), "latest: a link to nowhere");
  ts_free(text);
  ts_free(path);
  ts_free(run);
}

/* ---- manifests of somebody's making: the hash is right, the rest is not ---- */

static void put_sealed(const char *directory, const char *body, size_t length, int n) {
  ts_file_sum sum;
  put(directory, "body", body, length);
  TS_CHECK(ts_file_sum_make(directory, "body", &sum, NULL) == TS_OK, "%s", directory);
  ts_text text = {0};
  ts_text_append(&text, body, length);
  ts_text_add(&text, "end %d %016llx%016llx\n", n, (unsigned long long) sum.hash[0], (unsigned long long) sum.hash[1]);
  put(directory, "manifest", text.text, text.length);
  ts_text_free(&text);
}

#define HEAD "tessera checkpoint 1\nstep 5\n"
#define HASH "0123456789abcdef0123456789abcdef"
#define LINE(name) "file " name " 1 " HASH "\n"

static void test_hostile(void) {
  static const struct {
    const char *label, *body;
    int n;
    const char *words; /* NULL: accepted */
  } rows[] = {{"no files", HEAD, 0, NULL},
              {"two files", HEAD LINE("a") LINE("b"), 2, NULL},
              {"the longest name", HEAD LINE("abcdefghijklmnopqrstuvwxyz12345"), 1, NULL},
              {"the largest file", HEAD "file a 9223372036854775807 " HASH "\n", 1, NULL},
              {"a newer version", "tessera checkpoint 2\nsomething else\n", 0, "newer version of tessera: format 2"},
              {"a much newer version", "tessera checkpoint 999999999\n", 0, "newer version"},
              {"version 0", "tessera checkpoint 0\nstep 5\n", 0, "is not a manifest"},
              {"version 01", "tessera checkpoint 01\nstep 5\n", 0, "is not a manifest"},
              {"something else", "hello\nstep 5\n", 0, "is not a manifest"},
              {"no step", "tessera checkpoint 1\n", 0, "is not a manifest"},
              {"a negative step", "tessera checkpoint 1\nstep -5\n", 0, "is not a manifest"},
              {"a step with zeros", "tessera checkpoint 1\nstep 05\n", 0, "is not a manifest"},
              {"a huge step", "tessera checkpoint 1\nstep 9223372036854775808\n", 0, "is not a manifest"},
              {"too few files", HEAD LINE("a"), 2, "is not a manifest"},
              {"too many files", HEAD LINE("a") LINE("b"), 1, "is not a manifest"},
              {"a file twice", HEAD LINE("a") LINE("a"), 2, "is not a manifest"},
              {"another order", HEAD LINE("b") LINE("a"), 2, "is not a manifest"},
              {"a path", HEAD LINE("../a"), 1, "is not a manifest"},
              {"a directory", HEAD LINE("a/b"), 1, "is not a manifest"},
              {"a dot", HEAD LINE("."), 1, "is not a manifest"},
              {"two dots", HEAD LINE(".."), 1, "is not a manifest"},
              {"a hidden name", HEAD LINE(".a"), 1, "is not a manifest"},
              {"an empty name", HEAD LINE(""), 1, "is not a manifest"},
              {"itself", HEAD LINE("manifest"), 1, "is not a manifest"},
              {"a name too long", HEAD LINE("abcdefghijklmnopqrstuvwxyz123456"), 1, "is not a manifest"},
              {"a name of another alphabet", HEAD LINE("\xc3\xa4"), 1, "is not a manifest"},
              {"a negative size", HEAD "file a -1 " HASH "\n", 1, "is not a manifest"},
              {"a size too large", HEAD "file a 9223372036854775808 " HASH "\n", 1, "is not a manifest"},
              {"a size with zeros", HEAD "file a 01 " HASH "\n", 1, "is not a manifest"},
              {"a size with a sign", HEAD "file a +1 " HASH "\n", 1, "is not a manifest"},
              {"no size", HEAD "file a " HASH "\n", 1, "is not a manifest"},
              {"capital digits", HEAD "file a 1 0123456789ABCDEF0123456789abcdef\n", 1, "is not a manifest"},
              {"a hash too short", HEAD "file a 1 0123456789abcdef0123456789abcde\n", 1, "is not a manifest"},
              {"a hash too long", HEAD "file a 1 " HASH "0\n", 1, "is not a manifest"},
              {"two spaces", HEAD "file a  1 " HASH "\n", 1, "is not a manifest"},
              {"a space at the end", HEAD "file a 1 " HASH " \n", 1, "is not a manifest"},
              {"lines that end in CR LF", "tessera checkpoint 1\r\nstep 5\r\n", 0, "is not a manifest"},
              {"an empty line", HEAD "\n" LINE("a"), 1, "is not a manifest"},
              {"an end before the end", HEAD "end 0 " HASH "\n", 0, "is not a manifest"},
              {"a comment", HEAD "# a\n", 0, "is not a manifest"},
              {"no newline before the end", HEAD "file", 0, "damaged"},
              {"nothing else", "", 0, "is not a manifest"}};
  char *directory = make_run("hostile");
  ts_error err = {0};
  ts_manifest manifest;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    put_sealed(directory, rows[i].body, strlen(rows[i].body), rows[i].n);
    ts_status status = ts_manifest_read(directory, &manifest, &err);
    tap_ok(rows[i].words != NULL ? says(status, &err, rows[i].words)
                                 : status == TS_OK && manifest.n == rows[i].n && manifest.step == 5,
           "a manifest with %s", rows[i].label);
    ts_manifest_clear(&manifest);
  }
  put_sealed(directory, HEAD "\0" LINE("a"), sizeof(HEAD "\0" LINE("a")) - 1, 1);
  tap_ok(says(ts_manifest_read(directory, &manifest, &err), &err, "is not a manifest"), "a manifest with a 0 byte");
  ts_manifest_clear(&manifest);
  char line[300] = HEAD;
  memset(line + strlen(HEAD), 'a', sizeof line - strlen(HEAD));
  line[sizeof line - 1] = '\n';
  put_sealed(directory, line, sizeof line, 0);
  tap_ok(says(ts_manifest_read(directory, &manifest, &err), &err, "is not a manifest"), "a manifest with a long line");
  ts_manifest_clear(&manifest);
  ts_free(directory);
}

static void test_many_files(void) {
  enum { MANY = 20000 };
  char *run = make_run("many"), *directory = ts_step_directory(run, 5, ".tmp");
  ts_file_sum *sums = ts_calloc(MANY, sizeof *sums);
  ts_manifest manifest;
  for (int i = 0; i < MANY; ++i) {
    snprintf(sums[i].name, sizeof sums[i].name, "shard_%05d.h5", (int) ((int64_t) i * 7919 % MANY));
    sums[i].bytes = i;
    sums[i].hash[1] = (uint64_t) i;
  }
  double start = ts_seconds();
  TS_CHECK(ts_publication_begin(run, "step_00000005", 0, NULL) == TS_OK, "%s", run);
  bool good = ts_publication_manifest(run, "step_00000005", 5, sums, MANY, NULL) == TS_OK &&
              ts_manifest_read(directory, &manifest, NULL) == TS_OK && manifest.n == MANY &&
              strcmp(manifest.file[MANY - 1].name, "shard_19999.h5") == 0;
  double seconds = ts_seconds() - start;
  tap_note("%.3f s", seconds);
  tap_ok(good && seconds < 5, "20000 files, and not in quadratic time"); /* 0.05 s here; quadratic: minutes */
  ts_manifest_clear(&manifest);
  ts_free(sums);
  ts_free(directory);
  ts_free(run);
}

static void test_sums(void) {
  enum { LONG = 2500000 }; /* more than two blocks of reading, and no multiple of one */
  char *run = make_run("sums"), *bytes = ts_malloc(LONG);
  ts_file_sum sum;
  ts_error err = {0};
  put(run, "empty", "", 0);
  /* the published value for no input */
  tap_ok(ts_file_sum_make(run, "empty", &sum, &err) == TS_OK && sum.bytes == 0 && sum.hash[0] == 0x99aa06d3014798d8u &&
             sum.hash[1] == 0x6001c324468d497fu,
         "the sum of an empty file");
  for (int i = 0; i < LONG; ++i) {
    bytes[i] = (char) (i * 31 + i / 251);
  }
  put(run, "long", bytes, LONG);
  XXH128_hash_t expected = XXH3_128bits(bytes, LONG);
  tap_ok(ts_file_sum_make(run, "long", &sum, &err) == TS_OK && sum.bytes == LONG && strcmp(sum.name, "long") == 0 &&
             sum.hash[0] == expected.high64 && sum.hash[1] == expected.low64,
         "the sum of a file in several blocks");
  tap_ok(says(ts_file_sum_make(run, "none", &sum, &err), &err, "sums/none: No such file"), "the sum of no file");
  tap_ok(says(ts_file_sum_make(run, ".", &sum, &err), &err, "is not a regular file"), "the sum of a directory");
  tap_ok(says(ts_file_sum_make(run, "abcdefghijklmnopqrstuvwxyz123456", &sum, &err), &err, "up to 31 letters"),
         "the sum of a file whose name is too long");
  ts_free(bytes);
  ts_free(run);
}

/* ---- names and places ---- */

static bool locates(const char *path, const char *tag, const char *expected) {
  char *directory;
  ts_error err = {0};
  bool good = ts_checkpoint_locate(path, tag, &directory, &err) == TS_OK && strcmp(directory, expected) == 0;
  if (!good) {
    tap_note("%s", err.count > 0 ? err.text : directory);
  }
  ts_error_clear(&err);
  ts_free(directory);
  return good;
}

static bool no_locates(const char *path, const char *tag, const char *words) {
  char *directory = NULL;
  ts_error err = {0};
  ts_status status = ts_checkpoint_locate(path, tag, &directory, &err);
  return directory == NULL && says(status, &err, words);
}

static void test_locate(void) {
  char *run = make_run("locate"), *old = ts_step_directory(run, 200, ""), *new = ts_step_directory(run, 400, "");
  char *none = path_of(run, "none"), *link = path_of(run, "best"), *copy = path_of(run, "copy");
  ts_error err = {0};
  tap_ok(no_locates(run, NULL, "locate: no checkpoint is there: neither"), "locate: an empty directory");
  tap_ok(no_locates(run, "step_00000200", "locate: no checkpoint is there"), "locate: a tag in an empty directory");
  tap_ok(no_locates(none, NULL, "none: is not a directory"), "locate: nothing");
  save(run, 200);
  save(run, 400);
  TS_CHECK(save_until(run, 600, MANIFEST, NULL) == TS_OK, "%s", run);
  tap_ok(locates(run, NULL, new), "locate: the newest of a run");
  tap_ok(locates(run, "step_00000200", old) && locates(run, "step_00000400", new), "locate: by tag");
  tap_ok(locates(old, NULL, old), "locate: a checkpoint itself");
  static const char *const bad[] = {
      "step_200", "step_00000600", "step_00000600.tmp", "../locate/step_00000200", "step_00000200/", "",
      "200",      "latest",        "step_000000200"};
  int wrong = 0;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    char *words = ts_format("there is no checkpoint %s; there are step_00000400, step_00000200", bad[i]);
    wrong += !no_locates(run, bad[i], words);
    ts_free(words);
  }
  tap_ok(wrong == 0, "locate: wrong tags, the right ones are named");
  tap_ok(no_locates(old, "step_00000400", "is a checkpoint itself"), "locate: a tag in a checkpoint");
  tap_ok(ts_is_checkpoint(old) && !ts_is_checkpoint(run) && !ts_is_checkpoint(none), "what is a checkpoint");
  TS_CHECK(symlink("step_00000200", link) == 0, "%s", link);
  tap_ok(locates(link, NULL, link) && verify(link, &err) == TS_OK, "a link to a checkpoint");
  TS_CHECK(unlink(link) == 0 && rename(old, copy) == 0, "%s", copy);
  tap_ok(locates(copy, NULL, copy) && verify(copy, &err) == TS_OK, "a checkpoint under a name of the user's");
  for (int64_t step = 1000; step < 1020; ++step) {
    save(run, step);
  }
  tap_ok(no_locates(run, "x", "there are step_00001019, step_00001018, ") && no_locates(run, "x", "_00001010, ..."),
         "locate: not too many tags are named");
  ts_free(copy);
  ts_free(link);
  ts_free(none);
  ts_free(new);
  ts_free(old);
  ts_free(run);
}

int main(void) {
  test_save();
  test_died();
  test_failures();
  test_tags();
  test_space();
  test_prune();
  test_set_aside();
  test_again();
  test_bits();
  test_mixed();
  test_shares();
  test_match();
  test_latest();
  test_hostile();
  test_many_files();
  test_sums();
  test_locate();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
