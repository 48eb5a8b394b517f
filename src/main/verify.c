/* tessera verify: is what a run has published still what was written. */
#include "base/memory.h"
#include "io/checkpoint.h"
#include "io/publication.h"
#include "main/command.h"

#include <omp.h>
#include <string.h>

/* One line of the report. */
typedef struct finding {
  const char *name;
  int files;    /* the manifest and what it lists; 0 for `latest` and where there is no manifest to read */
  double bytes; /* of the files that the manifest lists */
  int64_t step;
  ts_error err; /* empty: intact */
} finding;

typedef struct report {
  bool json;
  int n;
  bool intact;
  ts_text list; /* json: the objects so far */
} report;

/* ---- the report ---- */

static void add_messages(ts_text *to, const ts_error *err) {
  char *copy = ts_strdup(err->count > 0 ? err->text : ""), *rest = copy;
  ts_text_add(to, "[");
  for (const char *line, *comma = ""; (line = strsep(&rest, "\n")) != NULL && *line != 0; comma = ", ") {
    ts_text_add(to, "%s", comma);
    ts_text_add_json(to, line);
  }
  ts_text_add(to, "]");
  ts_free(copy);
}

static void add_json(report *to, const finding *found) {
  ts_text_add(&to->list, "%s\n  {\"name\": ", to->n > 0 ? "," : "");
  ts_text_add_json(&to->list, found->name);
  if (found->files > 0) {
    ts_text_add(&to->list, ", \"step\": %lld, \"files\": %d, \"bytes\": %.0f", (long long) found->step, found->files,
                found->bytes);
  }
  ts_text_add(&to->list, ", \"intact\": %s, \"errors\": ", found->err.count == 0 ? "true" : "false");
  add_messages(&to->list, &found->err);
  ts_text_add(&to->list, "}");
}

/* At once: a large checkpoint takes its time. */
static void print_line(const finding *found) {
  char bytes[32];
  if (found->files > 0) {
    printf("%s  %d files  %s  ", found->name, found->files, ts_human_bytes(found->bytes, bytes));
  } else {
    printf("%s  ", found->name);
  }
  printf("%s\n", found->err.count == 0 ? "intact" : "damaged");
  fflush(stdout);
}

/* Ends the finding. */
static void tell(report *to, finding *found, ts_error *err) {
  if (to->json) {
    add_json(to, found);
  } else {
    print_line(found);
  }
  if (found->err.count > 0) {
    ts_error_add(err, "%s", found->err.text);
    to->intact = false;
  }
  ++to->n;
  ts_error_clear(&found->err);
}

/* ---- what is checked ---- */

static void check_checkpoint(const char *directory, const char *name, report *to, ts_error *err) {
  finding found = {.name = name};
  ts_checkpoint *index = NULL;
  ts_manifest manifest;
  if (ts_manifest_read(directory, &manifest, &found.err) == TS_OK) {
    found.files = manifest.n + 1;
    found.step = manifest.step;
    for (int i = 0; i < manifest.n; ++i) {
      found.bytes += (double) manifest.file[i].bytes;
    }
    if (ts_checkpoint_verify(directory, &manifest, 0, 1, omp_get_num_procs(), &found.err) == TS_OK &&
        ts_checkpoint_read_index(directory, &index, &found.err) == TS_OK) {
      ts_manifest_match(directory, &manifest, index->step, index->n_shards, &found.err);
    }
  }
  ts_checkpoint_destroy(&index);
  ts_manifest_clear(&manifest);
  tell(to, &found, err);
}

static void check_run(const char *run, const ts_published *list, int n, report *to, ts_error *err) {
  finding latest = {.name = "latest"};
  ts_latest_verify(run, &latest.err);
  tell(to, &latest, err);
  for (int i = 0; i < n; ++i) {
    char *directory = ts_tag_directory(run, list[i].tag, "");
    check_checkpoint(directory, list[i].tag, to, err);
    ts_free(directory);
  }
}

int ts_main_verify(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  const char *path = arguments->positional[0], *format = ts_argument(arguments, "--format");
  report to = {.json = strcmp(format, "json") == 0, .intact = true};
  char *newest;
  ts_published *list;
  if (!to.json && strcmp(format, "text") != 0) {
    return ts_error_add(err, "--format %s: text or json is accepted", format);
  }
  if (ts_checkpoint_locate(path, NULL, &newest, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  int n = ts_is_checkpoint(path) ? 0 : ts_published_list(path, &list);
  if (n > 0) {
    check_run(path, list, n, &to, err);
    ts_free(list);
  } else {
    check_checkpoint(newest, path, &to, err);
  }
  if (to.json) {
    printf("{\"intact\": %s, \"checked\": [%s\n]}\n", to.intact ? "true" : "false", to.list.text);
  }
  ts_text_free(&to.list);
  ts_free(newest);
  return to.intact ? 0 : TS_BAD_INPUT;
}
