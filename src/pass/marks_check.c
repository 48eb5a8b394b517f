/* Patterns that match nothing, and marks that do not fit. */
#include "base/memory.h"
#include "base/text.h"
#include "family/family.h"
#include "pass/marks_rules.h"

#include <string.h>

/* What is looked for: every name that a pattern may mean. */
typedef struct known_names {
  const ts_deck *deck;
  char *head; /* Owned, may be NULL: a tied head is the embedding, and has a name of its own all the same. */
  const char **name;
  int n;
} known_names;

static known_names list_names(const ts_deck *deck, const ts_tp_weight *weights, int n) {
  const ts_family *family = ts_deck_family(deck); /* NULL: a program's own model */
  known_names known = {.deck = deck, .n = n, .name = ts_calloc((size_t) n + 1, sizeof *known.name)};
  for (int i = 0; i < n; ++i) {
    known.name[i] = weights[i].name;
  }
  if (family != NULL) {
    known.head = ts_format("%s.weight", family->head);
    known.name[known.n++] = known.head;
  }
  return known;
}

static void free_names(known_names *known) {
  ts_free(known->name);
  ts_free(known->head);
}

/* ---- the name that was meant ---- */

/* An expression without what stands for many characters: ".*\.q_prj\.weight$" is "q_prj.weight". */
static void add_plain_expression(ts_text *plain, const char *pattern) {
  for (const char *c = pattern; *c != '\0'; ++c) {
    if (strchr("\\^$()?+", *c) == NULL && !(*c == '*' && plain->length > 0 && plain->text[plain->length - 1] == '.')) {
      ts_text_append(plain, c, 1);
    } else if (*c == '*' && plain->length > 0) {
      plain->text[--plain->length] = '\0';
    }
  }
}

/* One of tp_plan: a star is a layer's number. */
static void add_plain_plan(ts_text *plain, const char *pattern) {
  for (const char *c = pattern; *c != '\0'; ++c) {
    ts_text_append(plain, *c == '*' ? "0" : c, 1);
  }
}

/* Two kinds of patterns. */
typedef struct pattern_kind {
  int (*matches)(const char *pattern, const char *name);
  void (*add_plain)(ts_text *plain, const char *pattern);
} pattern_kind;

static const pattern_kind expression = {ts_matches_from, add_plain_expression};
static const pattern_kind plan_pattern = {ts_tp_plan_matches, add_plain_plan};

/* As names are: no dot in front, and .weight at the end. */
static char *plain_pattern(const pattern_kind *kind, const char *pattern) {
  ts_text plain = {0};
  kind->add_plain(&plain, pattern);
  const char *text = plain.text != NULL ? plain.text : "";
  char *copy = ts_format("%s%s", text + strspn(text, "."), ts_ends_in(text, ".weight") ? "" : ".weight");
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

/* The name whose end is nearest to the pattern, else the first. */
static const char *nearest_name(const pattern_kind *kind, const char *pattern, const known_names *known) {
  char *plain = plain_pattern(kind, pattern);
  const char **tails = ts_calloc((size_t) known->n, sizeof *tails);
  int dots = count_dots(plain), found = 0;
  for (int i = 0; i < known->n; ++i) {
    tails[i] = tail(known->name[i], dots);
  }
  const char *nearest = strlen(plain) < 200 ? ts_nearest(plain, tails, (size_t) known->n) : NULL;
  for (int i = known->n - 1; i >= 0; --i) {
    found = tails[i] == nearest ? i : found;
  }
  ts_free(tails);
  ts_free(plain);
  return known->name[found];
}

/* ---- patterns ---- */

/* Against all names: one that is given up on must not leave its weight to the next entry. */
static int match_all(const pattern_kind *kind, const char *pattern, const known_names *known, const char **endless) {
  int found = 0;
  for (int i = 0; i < known->n; ++i) {
    int match = kind->matches(pattern, known->name[i]);
    if (match == TS_MATCH_GIVEN_UP) {
      *endless = known->name[i];
      return match;
    }
    found = found == 1 || match == 1;
  }
  return found;
}

static ts_status check_pattern(const known_names *known, const char *path, const pattern_kind *kind,
                               const char *pattern, ts_error *err) {
  const char *endless = NULL;
  int found = match_all(kind, pattern, known, &endless);
  if (found == 1) {
    return TS_OK;
  }
  ts_text shown = {0};
  ts_text_add_json(&shown, pattern);
  ts_status status =
      found == TS_MATCH_GIVEN_UP
          ? ts_deck_error(known->deck, path, err,
                          "%s takes too long to match %s; accepted: an expression without nested repetitions",
                          shown.text, endless)
          : ts_deck_error(known->deck, path, err, "%s matches no weight; there is %s", shown.text,
                          known->n > 0 ? nearest_name(kind, pattern, known) : "none whose name ends in .weight");
  ts_text_free(&shown);
  return status;
}

static ts_status check_spec_patterns(const known_names *known, ts_error *err) {
  const ts_deck_tp_specs *specs = &known->deck->tensor_parallel.partition_config.layer_specs;
  ts_status status = TS_OK;
  for (int i = 0; i < specs->n; ++i) {
    const ts_deck_tp_spec *spec = &specs->items[i];
    char *path = ts_format(TS_LAYER_SPECS "[%d].patterns", i);
    for (int k = 0; k < spec->patterns.n && ts_deck_spec_applies(known->deck, spec); ++k) {
      if (check_pattern(known, path, &expression, spec->patterns.items[k], err) != TS_OK) {
        status = TS_BAD_INPUT;
      }
    }
    ts_free(path);
  }
  return status;
}

static ts_status check_plan_patterns(const known_names *known, ts_error *err) {
  const ts_deck_tp_plan *plan = &known->deck->tensor_parallel.tp_plan;
  ts_status status = TS_OK;
  for (int i = 0; i < plan->n; ++i) {
    char *path = ts_format("tensor_parallel.tp_plan[%d].pattern", i);
    if (check_pattern(known, path, &plan_pattern, plan->items[i].pattern, err) != TS_OK) {
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
  known_names known = list_names(deck, weights, n);
  ts_status status = check_spec_patterns(&known, err);
  status = check_plan_patterns(&known, err) == TS_OK ? status : TS_BAD_INPUT;
  free_names(&known);
  status = check_preset(deck, weights, n, err) == TS_OK ? status : TS_BAD_INPUT;
  for (int i = 0; i < n && status == TS_OK; ++i) {
    ts_tp_mark mark;
    status = ts_tp_mark_find(deck, weights[i].name, weights[i].rows_out, weights[i].columns_in, &mark, err);
    ts_tp_mark_clear(&mark);
  }
  if (status == TS_OK) {
    ts_tp_marks_tell(deck, weights, n);
  }
  return status;
}
