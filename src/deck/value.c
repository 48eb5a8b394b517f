#include "deck/value.h"

#include "base/memory.h"

#include <string.h>

void ts_strings_add(ts_strings *list, const char *text) {
  list->items = ts_realloc(list->items, (size_t) list->n + 1, sizeof *list->items);
  list->items[list->n++] = ts_strdup(text);
}

void ts_strings_clear(ts_strings *list) {
  for (int i = 0; i < list->n; ++i) {
    ts_free(list->items[i]);
  }
  ts_free(list->items);
  *list = (ts_strings){0};
}

void ts_ints_add(ts_ints *list, int64_t value) {
  list->items = ts_realloc(list->items, (size_t) list->n + 1, sizeof *list->items);
  list->items[list->n++] = value;
}

void ts_ints_clear(ts_ints *list) {
  ts_free(list->items);
  *list = (ts_ints){0};
}

void ts_reals_add(ts_reals *list, double value) {
  list->items = ts_realloc(list->items, (size_t) list->n + 1, sizeof *list->items);
  list->items[list->n++] = value;
}

void ts_reals_clear(ts_reals *list) {
  ts_free(list->items);
  *list = (ts_reals){0};
}

void ts_view_add(ts_deck_view *view, int64_t count, ts_ints sizes) {
  view->items = ts_realloc(view->items, (size_t) view->n + 1, sizeof *view->items);
  view->items[view->n++] = (ts_deck_extent){count, sizes};
}

void ts_view_clear(ts_deck_view *view) {
  for (int d = 0; d < view->n; ++d) {
    ts_ints_clear(&view->items[d].sizes);
  }
  ts_free(view->items);
  *view = (ts_deck_view){0};
}

const char *ts_source_name(ts_source *source, const char *file) {
  ts_strings_add(&source->files, file);
  return source->files.items[source->files.n - 1];
}

void ts_source_clear(ts_source *source) {
  ts_strings_clear(&source->files);
}

void ts_value_clear(ts_value *value) {
  for (int i = 0; i < value->n; ++i) {
    ts_value_clear(&value->items[i]);
    if (value->names != NULL) {
      ts_free(value->names[i]);
    }
  }
  ts_free(value->items);
  ts_free(value->names);
  ts_free(value->string);
  *value = (ts_value){0};
}

static bool is_number(const ts_value *value) {
  return value->kind == TS_VALUE_INT || value->kind == TS_VALUE_REAL;
}

static bool same_entries(const ts_value *a, const ts_value *b) {
  for (int i = 0; i < a->n; ++i) {
    if (!ts_value_equal(&a->items[i], &b->items[i]) ||
        (a->kind == TS_VALUE_SECTION && strcmp(a->names[i], b->names[i]) != 0)) {
      return false;
    }
  }
  return true;
}

bool ts_value_equal(const ts_value *a, const ts_value *b) {
  if (a->kind == TS_VALUE_INT && b->kind == TS_VALUE_INT) {
    return a->integer == b->integer;
  }
  if (is_number(a) && is_number(b)) {
    return a->real == b->real;
  }
  if (a->kind != b->kind || a->n != b->n || a->truth != b->truth || a->real != b->real) {
    return false;
  }
  return (a->kind != TS_VALUE_STRING || strcmp(a->string, b->string) == 0) && same_entries(a, b);
}

static void describe_string(const char *string, ts_text *to) {
  char *shown = ts_format("%.40s%s", string, strlen(string) > 40 ? "..." : "");
  ts_text_add_json(to, shown);
  ts_free(shown);
}

void ts_value_describe(const ts_value *value, ts_text *to) {
  switch (value->kind) {
    case TS_VALUE_NULL: ts_text_add(to, "null"); break;
    case TS_VALUE_BOOL: ts_text_add(to, value->truth ? "true" : "false"); break;
    case TS_VALUE_INT: ts_text_add(to, "%lld", (long long) value->integer); break;
    case TS_VALUE_REAL: ts_text_add(to, "%.15g", value->real); break;
    case TS_VALUE_BIG: ts_text_add(to, "%s", value->string); break;
    case TS_VALUE_STRING: describe_string(value->string, to); break;
    case TS_VALUE_LIST: ts_text_add(to, "a list of %d", value->n); break;
    default: ts_text_add(to, "a section");
  }
}
