/* Patterns that match nothing, and marks that do not fit. */
#include "base/memory.h"
#include "base/text.h"
#include "family/family.h"
#include "pass/marks_rules.h"

#include <string.h>

/* A pattern without what stands for many characters: ".*\.q_prj\.weight$" is "q_prj.weight". */
static char *plain_pattern(const char *pattern) {
  ts_text plain = {0};
  for (const char *c = pattern; *c != '\0'; ++c) {
    if (strchr("\\^$()?+", *c) == NULL && !(*c == '*' && plain.length > 0 && plain.text[plain.length - 1] == '.')) {
      ts_text_append(&plain, c, 1);
    } else if (*c == '*' && plain.length > 0) {
      plain.text[--plain.length] = '\0';
    }
  }
  const char *text = plain.text != NULL ? plain.text : "";
  char *copy = ts_strdup(text + strspn(text, "."));
  ts_text_free(&plain);
  return copy;
}

static int count_dots(const char *text) {
  int n = 0;
  for (; *text != '\0'; ++text) {
    n += *text == '.';
  }
  return n;
}

/* The end of a name with at most that many dots in it. */
static const char *tail(const char *name, int dots) {
  const char *at = name + strlen(name);
  while (at > name && (at[-1] != '.' || dots-- > 0)) {
    --at;
  }
  return at;
}

/* The weight whose end is nearest to the pattern, else the first. */
static const ts_tp_weight *nearest_weight(const char *pattern, const ts_tp_weight *weights, int n) {
  char *plain = plain_pattern(pattern);
  const char **tails = ts_calloc((size_t) n, sizeof *tails);
  int dots = count_dots(plain), found = 0;
  for (int i = 0; i < n; ++i) {
    tails[i] = tail(weights[i].name, dots);
  }
  const char *nearest = strlen(plain) < 200 ? ts_nearest(plain, tails, (size_t) n) : NULL;
  for (int i = n - 1; i >= 0; --i) {
    found = tails[i] == nearest ? i : found;
  }
  ts_free(tails);
  ts_free(plain);
  return &weights[found];
}

typedef bool ts_matcher(const char *pattern, const char *name);

static bool matches_name(const char *pattern, const char *name) {
  return ts_matches_from(pattern, name) == 1;
}

/* A tied head is the embedding, and has a name of its own all the same. */
static bool matches_head(const ts_deck *deck, ts_matcher *matches, const char *pattern) {
  char *head = ts_format("%s.weight", ts_family_find(deck->model.model_type)->head);
  bool found = matches(pattern, head);
  ts_free(head);
  return found;
}

static ts_status check_pattern(const ts_deck *deck, const char *path, const char *pattern, ts_matcher *matches,
                               const ts_tp_weight *weights, int n, ts_error *err) {
  for (int i = 0; i < n; ++i) {
    if (matches(pattern, weights[i].name)) {
      return TS_OK;
    }
  }
  if (matches_head(deck, matches, pattern)) {
    return TS_OK;
  }
  ts_text shown = {0};
  ts_text_add_json(&shown, pattern);
  ts_status status = ts_deck_error(deck, path, err, "%s matches no weight; there is %s", shown.text,
                                   nearest_weight(pattern, weights, n)->name);
  ts_text_free(&shown);
  return status;
}

static ts_status check_spec_patterns(const ts_deck *deck, const ts_tp_weight *weights, int n, ts_error *err) {
  const ts_deck_tp_specs *specs = &deck->tensor_parallel.partition_config.layer_specs;
  ts_status status = TS_OK;
  for (int i = 0; i < specs->n; ++i) {
    const ts_deck_tp_spec *spec = &specs->items[i];
    char *path = ts_format(TS_LAYER_SPECS "[%d].patterns", i);
    for (int k = 0; k < spec->patterns.n && ts_deck_spec_applies(deck, spec); ++k) {
      if (check_pattern(deck, path, spec->patterns.items[k], matches_name, weights, n, err) != TS_OK) {
        status = TS_BAD_INPUT;
      }
    }
    ts_free(path);
  }
  return status;
}

static ts_status check_plan_patterns(const ts_deck *deck, const ts_tp_weight *weights, int n, ts_error *err) {
  const ts_deck_tp_plan *plan = &deck->tensor_parallel.tp_plan;
  ts_status status = TS_OK;
  for (int i = 0; i < plan->n; ++i) {
    char *path = ts_format("tensor_parallel.tp_plan[%d].pattern", i);
    if (check_pattern(deck, path, plan->items[i].pattern, ts_tp_plan_matches, weights, n, err) != TS_OK) {
      status = TS_BAD_INPUT;
    }
    ts_free(path);
  }
  return status;
}

/* A preset of another family's names would do nothing. */
static ts_status check_preset(const ts_deck *deck, const ts_tp_weight *weights, int n, ts_error *err) {
  const char *name = deck->tensor_parallel.preset_model;
  bool found = strcmp(name, "none") == 0;
  for (int i = 0; i < n && !found; ++i) {
    ts_error ignored = {0};
    ts_tp_mark mark = {.unit = 1};
    const ts_tp_query q = {deck, weights[i].name, weights[i].rows_out, weights[i].columns_in, &ignored};
    found = weights[i].columns_in > 0 && (ts_tp_preset_find(&q, &mark) != TS_OK || mark.style != TS_TP_UNSPOKEN);
    ts_tp_mark_clear(&mark);
    ts_error_clear(&ignored);
  }
  return found ? TS_OK
               : ts_deck_error(deck, "tensor_parallel.preset_model", err,
                               "\"%s\" knows none of this model's weights, the first of which is %s; without a preset "
                               "all follows from the model",
                               name, weights[0].name);
}

ts_status ts_tp_marks_check(const ts_deck *deck, const ts_tp_weight *weights, int n, ts_error *err) {
  ts_status status = check_spec_patterns(deck, weights, n, err);
  status = check_plan_patterns(deck, weights, n, err) == TS_OK ? status : TS_BAD_INPUT;
  status = check_preset(deck, weights, n, err) == TS_OK ? status : TS_BAD_INPUT;
  for (int i = 0; i < n && status == TS_OK; ++i) {
    ts_tp_mark mark;
    status = ts_tp_mark_find(deck, weights[i].name, weights[i].rows_out, weights[i].columns_in, &mark, err);
    ts_tp_mark_clear(&mark);
  }
  return status;
}
