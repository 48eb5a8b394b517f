/* Marks that do nothing. */
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "family/family.h"
#include "pass/marks_rules.h"

#include <string.h>

static bool has_vectors_alone(const ts_deck_tp_spec *spec, const ts_tp_weight *weights, int n) {
  bool vector = false;
  for (int i = 0; i < n; ++i) {
    bool matches = ts_tp_spec_matches(spec, weights[i].name);
    if (matches && weights[i].columns_in > 0) {
      return false;
    }
    vector = vector || matches;
  }
  return vector;
}

static void tell_idle(const ts_deck *deck, const char *key, const char *why) {
  ts_log(TS_LOG_WARNING, "%s: %s: no effect: %s", ts_deck_origin(deck, key), key, why);
}

static void tell_vectors(const ts_deck *deck, const ts_tp_weight *weights, int n) {
  const ts_deck_tp_specs *specs = &deck->tensor_parallel.partition_config.layer_specs;
  for (int i = 0; i < specs->n; ++i) {
    const ts_deck_tp_spec *spec = &specs->items[i];
    bool skip = strcmp(spec->partition_type, "skip") == 0;
    if (!skip && ts_deck_spec_applies(deck, spec) && has_vectors_alone(spec, weights, n)) {
      char *key = ts_format(TS_LAYER_SPECS "[%d].partition_type", i);
      tell_idle(deck, key, "its patterns match vectors or stacks of experts alone, which no mark cuts");
      ts_free(key);
    }
  }
}

/* \param embedding, head  Their names; the head is the embedding's table. */
static void tell_tied(const ts_deck *deck, const char *embedding, const char *head) {
  const ts_deck_tp_specs *specs = &deck->tensor_parallel.partition_config.layer_specs;
  const ts_deck_tp_plan *plan = &deck->tensor_parallel.tp_plan;
  char *why = ts_format("%s is tied: it is the table of %s, and cut as that is", head, embedding);
  for (int i = 0; i < specs->n; ++i) {
    const ts_deck_tp_spec *spec = &specs->items[i];
    bool column = strcmp(spec->partition_type, "column") == 0;
    if (!column && ts_deck_spec_applies(deck, spec) && ts_tp_spec_matches(spec, head) &&
        !ts_tp_spec_matches(spec, embedding)) {
      char *key = ts_format(TS_LAYER_SPECS "[%d].partition_type", i);
      tell_idle(deck, key, why);
      ts_free(key);
    }
  }
  for (int i = 0; i < plan->n; ++i) {
    bool column = strncmp(plan->items[i].style, "colwise", strlen("colwise")) == 0;
    if (!column && ts_tp_plan_matches(plan->items[i].pattern, head) == 1) {
      char *key = ts_format("tensor_parallel.tp_plan[%d].style", i);
      tell_idle(deck, key, why);
      ts_free(key);
    }
  }
  ts_free(why);
}

void ts_tp_marks_tell(const ts_deck *deck, const ts_tp_weight *weights, int n) {
  const ts_family *family = ts_deck_family(deck);
  tell_vectors(deck, weights, n);
  if (family == NULL) { /* a program's own model: its builder makes no ties of its own */
    return;
  }
  char *embedding = ts_format("%s.weight", family->embedding), *head = ts_format("%s.weight", family->head);
  bool tied = true;
  for (int i = 0; i < n; ++i) {
    tied = tied && strcmp(weights[i].name, head) != 0;
  }
  if (tied) {
    tell_tied(deck, embedding, head);
  }
  ts_free(embedding);
  ts_free(head);
}
