/* tessera tune: the files that DeepSpeed's autotuning leaves. */
#include "main/tune.h"

#include "base/memory.h"
#include "deck/deck_read.h"
#include "deck/value.h"

#include <string.h>

ts_status ts_tune_deck(const ts_tune_job *job, const ts_candidate *c, ts_text *to, ts_error *err) {
  ts_deck *deck = NULL;
  ts_mesh mesh;
  ts_status status = ts_tune_read(job, c, &deck, &mesh, err);
  if (status == TS_OK) {
    ts_text_add(to, "# by tessera tune: ");
    ts_candidate_text(job->space, c, to);
    ts_text_add(to, "\n");
    ts_deck_print(deck, to);
  }
  ts_deck_destroy(&deck);
  return status;
}

/* A deck's value as json has it. */
static void add_value_json(const ts_value *v, int depth, ts_text *to) {
  char number[40];
  bool list = v->kind == TS_VALUE_LIST;
  switch (v->kind) {
    case TS_VALUE_BOOL: ts_text_add(to, v->truth ? "true" : "false"); return;
    case TS_VALUE_INT: ts_text_add(to, "%lld", (long long) v->integer); return;
    case TS_VALUE_REAL:
    case TS_VALUE_BIG: ts_text_add(to, "%s", ts_json_number(v->real, number)); return;
    case TS_VALUE_STRING: ts_text_add_json(to, v->string); return;
    case TS_VALUE_LIST:
    case TS_VALUE_SECTION: break;
    default: ts_text_add(to, "null"); return;
  }
  ts_text_add(to, list ? "[" : "{");
  for (int i = 0; i < v->n; ++i) {
    ts_text_add(to, list ? "%s" : "%s\n%*s", i > 0 ? (list ? ", " : ",") : "", 2 * depth + 2, "");
    if (!list) {
      ts_text_add_json(to, v->names[i]);
      ts_text_add(to, ": ");
    }
    add_value_json(&v->items[i], depth + 1, to);
  }
  ts_text_add(to, list ? "]" : v->n > 0 ? "\n%*s}" : "}", 2 * depth, "");
}

static ts_status add_deck_json(const ts_tune_job *job, const ts_candidate *c, ts_text *to, ts_error *err) {
  ts_text text = {0};
  ts_source source = {0};
  ts_value root = {0};
  ts_status status = ts_tune_deck(job, c, &text, err);
  status = status == TS_OK ? ts_value_from_config(&source, job->path, text.text, text.length, &root, err) : status;
  if (status == TS_OK) {
    add_value_json(&root, 0, to);
    ts_text_add(to, "\n");
  }
  ts_value_clear(&root);
  ts_source_clear(&source);
  ts_text_free(&text);
  return status;
}

static ts_status write_result(const char *directory, const char *name, const char *text, ts_error *err) {
  char *path = directory != NULL ? ts_format("%s/%s", directory, name) : ts_strdup(name);
  ts_status status = ts_write_file(path, text, strlen(text), err);
  ts_free(path);
  return status;
}

ts_status ts_tune_write_results(const ts_tune_job *job, const ts_candidate *best, const char *directory,
                                const char *metric_path, double seconds, double flops, const char *summary,
                                ts_error *err) {
  ts_text json = {0};
  ts_status status = ts_make_directory(directory, err);
  status = status == TS_OK ? add_deck_json(job, best, &json, err) : status;
  status = status == TS_OK ? write_result(directory, "ds_config_optimal.json", json.text, err) : status;
  status = status == TS_OK ? write_result(directory, "summary.txt", summary, err) : status;
  if (status == TS_OK && metric_path[0] != 0) {
    char *text = ts_format("{\"throughput\": %.9g, \"latency\": %.9g, \"FLOPS_per_gpu\": %.9g}\n",
                           (double) job->space->batch / seconds, seconds, flops / seconds / job->space->ranks);
    status = write_result(NULL, metric_path, text, err);
    ts_free(text);
  }
  ts_text_free(&json);
  return status;
}
