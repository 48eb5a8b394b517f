#include "tokenizer/steps.h"

#include "base/memory.h"

#include <string.h>

enum { DEEPEST = 8 };

void ts_steps_clear(ts_steps *steps) {
  for (int64_t i = 0; i < steps->n; ++i) {
    ts_pattern_destroy(&steps->step[i].pattern);
    ts_free(steps->step[i].content);
  }
  ts_free(steps->step);
  *steps = (ts_steps){0};
}

ts_step_runs *ts_add_step(ts_steps *steps, int kind) {
  TS_GROW(steps->step, steps->n, steps->capacity);
  ts_step_runs *step = &steps->step[steps->n++];
  *step = (ts_step_runs){.kind = kind};
  return step;
}

static ts_status refuse_type(const ts_step_table *table, const char *type, ts_error *err) {
  ts_text known = {0};
  for (int k = 0; k < table->n; ++k) {
    ts_text_add(&known, ", %s", table->names[k]);
  }
  ts_error_add(err, "%s: %s is not known here; known are Sequence%s", table->member, type, known.text);
  ts_text_free(&known);
  return TS_BAD_INPUT;
}

static ts_status read_one_step(const ts_step_table *table, const json_t *value, const char *type, void *to,
                               ts_error *err) {
  for (int k = 0; k < table->n; ++k) {
    if (strcmp(type, table->names[k]) == 0) {
      ts_error why = {0};
      ts_status status = table->read(value, k, to, &why);
      if (status != TS_OK) {
        ts_error_add(err, "%s: %s: %s", table->member, type, why.text);
      }
      ts_error_clear(&why);
      return status;
    }
  }
  return refuse_type(table, type, err);
}

static ts_status read_sequence(const ts_step_table *table, const json_t *value, int depth, void *to, ts_error *err) {
  const char *type = json_string_value(json_object_get(value, "type"));
  if (type == NULL || depth > DEEPEST) {
    return ts_error_add(err, "%s: not an object with a type", table->member);
  }
  if (strcmp(type, "Sequence") != 0) {
    return read_one_step(table, value, type, to, err);
  }
  const json_t *steps = json_object_get(value, table->list);
  if (!json_is_array(steps)) {
    return ts_error_add(err, "%s: Sequence has no list %s", table->member, table->list);
  }
  ts_status status = TS_OK;
  for (size_t i = 0; i < json_array_size(steps) && status == TS_OK; ++i) {
    status = read_sequence(table, json_array_get(steps, i), depth + 1, to, err);
  }
  return status;
}

ts_status ts_read_steps(const ts_step_table *table, const json_t *value, void *to, ts_error *err) {
  return value == NULL || json_is_null(value) ? TS_OK : read_sequence(table, value, 0, to, err);
}

ts_status ts_read_text(const json_t *value, const char *name, char **text, size_t *n, ts_error *err) {
  const json_t *found = json_object_get(value, name);
  if (!json_is_string(found)) {
    return ts_error_add(err, "%s: not a text", name);
  }
  *n = json_string_length(found);
  *text = ts_malloc(*n + 1);
  memcpy(*text, json_string_value(found), *n + 1);
  return TS_OK;
}

ts_status ts_read_pattern(const json_t *value, ts_pattern **out, ts_error *err) {
  const json_t *literal = json_object_get(value, "String"), *regex = json_object_get(value, "Regex");
  *out = NULL;
  if (json_is_string(literal)) {
    *out = ts_pattern_literal(json_string_value(literal), json_string_length(literal));
    return TS_OK;
  }
  if (!json_is_string(regex) || strlen(json_string_value(regex)) != json_string_length(regex)) {
    return ts_error_add(err, "pattern: neither {\"String\": ...} nor {\"Regex\": ...}");
  }
  ts_error why = {0};
  ts_status status = ts_pattern_regex(json_string_value(regex), out, &why);
  if (status != TS_OK) {
    ts_error_add(err, "pattern: %s: %s", json_string_value(regex), why.text);
  }
  ts_error_clear(&why);
  return status;
}
