/* The deck as text that reads back. */
#include "base/memory.h"
#include "deck/reader.h"

#include <stdlib.h>
#include <string.h>

static void print_string(ts_text *to, const char *text) {
  ts_text_add(to, "\"");
  for (const char *p = text; *p != '\0'; ++p) {
    if (*p == '"' || *p == '\\') {
      ts_text_add(to, "\\%c", *p);
    } else if ((unsigned char) *p < ' ') {
      ts_text_add(to, "\\x%02x", (unsigned) (unsigned char) *p);
    } else {
      ts_text_append(to, p, 1);
    }
  }
  ts_text_add(to, "\"");
}

/* The shortest decimal that reads back to the same double, with a point so that libconfig sees a float. */
static void print_real(ts_text *to, double value) {
  char text[40];
  for (int digits = 15; digits <= 17; ++digits) {
    snprintf(text, sizeof text, "%.*g", digits, value);
    if (strtod(text, NULL) == value) {
      break;
    }
  }
  ts_text_add(to, "%s%s", text, strpbrk(text, ".e") == NULL ? ".0" : "");
}

static void print_strings(ts_text *to, const ts_strings *list) {
  ts_text_add(to, "[");
  for (int i = 0; i < list->n; ++i) {
    ts_text_add(to, i > 0 ? ", " : "");
    print_string(to, list->items[i]);
  }
  ts_text_add(to, "]");
}

static void print_ints(ts_text *to, const ts_ints *list) {
  ts_text_add(to, "[");
  for (int i = 0; i < list->n; ++i) {
    ts_text_add(to, i > 0 ? ", %lld" : "%lld", (long long) list->items[i]);
  }
  ts_text_add(to, "]");
}

static void print_reals(ts_text *to, const ts_reals *list) {
  ts_text_add(to, "[");
  for (int i = 0; i < list->n; ++i) {
    ts_text_add(to, i > 0 ? ", " : "");
    print_real(to, list->items[i]);
  }
  ts_text_add(to, "]");
}

/* "((8, 4, 4), -1)": an array holds no lists. */
static void print_extents(ts_text *to, const ts_deck_view *view) {
  ts_text_add(to, "(");
  for (int d = 0; d < view->n; ++d) {
    const ts_ints *sizes = &view->items[d].sizes;
    ts_text_add(to, "%s%s", d > 0 ? ", " : "", sizes->n > 0 ? "(" : "");
    for (int i = 0; i < sizes->n; ++i) {
      ts_text_add(to, i > 0 ? ", %lld" : "%lld", (long long) sizes->items[i]);
    }
    if (sizes->n == 0) {
      ts_text_add(to, "%lld", (long long) view->items[d].count);
    }
    ts_text_add(to, "%s", sizes->n > 0 ? ")" : "");
  }
  ts_text_add(to, ")");
}

static const char *const switch_words[] = {
    [TS_SWITCH_OFF] = "false", [TS_SWITCH_ON] = "true", [TS_SWITCH_AUTO] = "\"auto\""};

void ts_deck_print_value(ts_text *to, const ts_key *key, const void *field) {
  const int64_t *integer = field;
  const double *real = field;
  switch (key->type) {
    case TS_KEY_BOOL: ts_text_add(to, *(const bool *) field ? "true" : "false"); break;
    case TS_KEY_SWITCH: ts_text_add(to, "%s", switch_words[*(const ts_switch *) field]); break;
    case TS_KEY_BYTES:
    case TS_KEY_INT: ts_text_add(to, "%lld%s", (long long) *integer, *integer > INT32_MAX ? "L" : ""); break;
    case TS_KEY_REAL: print_real(to, *real); break;
    case TS_KEY_STRING: print_string(to, *(char *const *) field); break;
    case TS_KEY_DTYPE: ts_text_add(to, "\"%s\"", ts_dtype_name(*(const ts_dtype *) field)); break;
    case TS_KEY_STRINGS: print_strings(to, field); break;
    case TS_KEY_INTS: print_ints(to, field); break;
    case TS_KEY_REALS: print_reals(to, field); break;
    case TS_KEY_VIEW: print_extents(to, field); break;
    default:
      ts_text_add(to, "[");
      print_real(to, real[0]);
      ts_text_add(to, ", ");
      print_real(to, real[1]);
      ts_text_add(to, "]");
  }
}

/* False for a key that the deck does not have: of another family, or an integer that was never given. */
static bool is_there(const ts_deck *deck, const ts_key *key) {
  const char *selector = ts_key_selector(key);
  if (key->offset < 0) {
    return false;
  }
  if (ts_deck_model_is_own(deck) && strncmp(key->path, "model.", 6) == 0 &&
      strcmp(key->path, "model.model_type") != 0) {
    return false;
  }
  if (key->type == TS_KEY_INT && key->initial == NULL && *(int64_t *) ts_deck_field(deck, key, key->path) < key->min) {
    return false;
  }
  if (selector == NULL) {
    return true;
  }
  char *const *chosen = ts_deck_field(deck, ts_key_at(ts_key_find(selector)), selector);
  return ts_key_belongs(key, *chosen);
}

/* Else it would be set where it is read back. */
static bool is_to_print(const ts_deck *deck, const ts_key *key) {
  return is_there(deck, key) && ((key->flags & TS_KEY_LEAST) == 0 || ts_deck_is_set(deck, key->path));
}

static void indent(ts_text *to, int depth) {
  ts_text_add(to, "%*s", 2 * depth, "");
}

/* Closes and opens sections on the way from `open` (its length is updated) to the section of `path`. */
static int print_sections(ts_text *to, const char *open, const char *path, int depth) {
  size_t common = 0;
  for (size_t i = 0; open[i] == path[i] && path[i] != '\0'; ++i) {
    common = path[i] == '.' ? i + 1 : common;
  }
  for (const char *p = open + common; (p = strchr(p, '.')) != NULL; ++p) {
    indent(to, --depth);
    ts_text_add(to, "};\n");
  }
  const char *name = path + common;
  for (const char *dot; (dot = strchr(name, '.')) != NULL; name = dot + 1) {
    indent(to, depth++);
    ts_text_add(to, "%.*s = {\n", (int) (dot - name), name);
  }
  return depth;
}

/* "({ pattern = "a"; }, { pattern = "b"; })" */
static void print_entries(const ts_deck *deck, const ts_deck_list *list, ts_text *to) {
  size_t length = strlen(list->path) + strlen("[].");
  ts_text_add(to, "(");
  for (int e = 0; e < *ts_deck_list_length(deck, list); ++e) {
    ts_text_add(to, "%s{ ", e > 0 ? ", " : "");
    for (int i = 0; i < ts_key_count(); ++i) {
      const ts_key *key = ts_key_at(i);
      if (key->offset >= 0 && strchr(key->path, '[') != NULL && ts_deck_list_find(key->path) == list) {
        char *path = ts_deck_list_path(key, e);
        ts_text_add(to, "%s = ", key->path + length);
        ts_deck_print_value(to, key, ts_deck_field(deck, key, path));
        ts_text_add(to, "; ");
        ts_free(path);
      }
    }
    ts_text_add(to, "}");
  }
  ts_text_add(to, ")");
}

/* The value of a key as text, owned by the caller; NULL where the deck does not have it. */
static char *value_text(const ts_deck *deck, const ts_key *key) {
  ts_text text = {0};
  if (is_there(deck, key)) {
    ts_deck_print_value(&text, key, ts_deck_field(deck, key, key->path));
  }
  return text.text;
}

/* Of the list whose first row this is; NULL for another row of it. */
static char *entries_text(const ts_deck *deck, int row) {
  const ts_deck_list *list = ts_deck_list_find(ts_key_at(row)->path);
  ts_text text = {0};
  if (row == 0 || ts_deck_list_find(ts_key_at(row - 1)->path) != list) {
    print_entries(deck, list, &text);
  }
  return text.text;
}

/* An entry's value, or the whole list. */
static char *list_text(const ts_deck *deck, const ts_deck_list *list, const char *path) {
  int index = ts_key_find(path);
  const char *bracket = strchr(path, '[');
  ts_text text = {0};
  if (bracket == NULL) {
    print_entries(deck, list, &text);
  } else if (index >= 0 && ts_key_at(index)->offset >= 0 &&
             strtoll(bracket + 1, NULL, 10) < *ts_deck_list_length(deck, list)) {
    ts_deck_print_value(&text, ts_key_at(index), ts_deck_field(deck, ts_key_at(index), path));
  }
  return text.text;
}

char *ts_deck_value(const ts_deck *deck, const char *path) {
  const ts_deck_list *list = ts_deck_list_find(path);
  int index = ts_key_find(path);
  return list != NULL ? list_text(deck, list, path) : index >= 0 ? value_text(deck, ts_key_at(index)) : NULL;
}

int ts_deck_differences(const ts_deck *before, const ts_deck *now, const char *within, const char *const *ignored,
                        ts_text *to) {
  int n = 0;
  for (int i = 0; i < ts_key_count(); ++i) {
    const ts_key *key = ts_key_at(i);
    bool entry = strchr(key->path, '[') != NULL, skip = strncmp(key->path, within, strlen(within)) != 0;
    for (const char *const *prefix = ignored; *prefix != NULL && !skip; ++prefix) {
      skip = strncmp(key->path, *prefix, strlen(*prefix)) == 0;
    }
    char *a = skip ? NULL : entry ? entries_text(before, i) : value_text(before, key);
    char *b = skip ? NULL : entry ? entries_text(now, i) : value_text(now, key);
    if ((a != NULL || b != NULL) && (a == NULL || b == NULL || strcmp(a, b) != 0)) {
      ts_text_add(to, "%s  %.*s: %s, now %s", n++ > 0 ? "\n" : "", (int) strcspn(key->path, "["), key->path,
                  a != NULL ? a : "not set", b != NULL ? b : "not set");
    }
    ts_free(a);
    ts_free(b);
  }
  return n;
}

void ts_deck_print(const ts_deck *deck, ts_text *to) {
  const char *open = "";
  int depth = 0, n = ts_key_count();
  for (int i = 0; i < n; ++i) {
    const ts_key *key = ts_key_at(i);
    bool entry = strchr(key->path, '[') != NULL;
    char *entries = entry ? entries_text(deck, i) : NULL;
    if (entries != NULL) {
      const ts_deck_list *list = ts_deck_list_find(key->path);
      depth = print_sections(to, open, list->path, depth);
      open = list->path;
      indent(to, depth);
      ts_text_add(to, "%s = %s;\n", strrchr(open, '.') + 1, entries);
    } else if (!entry && is_to_print(deck, key)) {
      depth = print_sections(to, open, key->path, depth);
      open = key->path;
      indent(to, depth);
      ts_text_add(to, "%s = ", strrchr(open, '.') != NULL ? strrchr(open, '.') + 1 : open);
      ts_deck_print_value(to, key, ts_deck_field(deck, key, key->path));
      ts_text_add(to, ";\n");
    }
    ts_free(entries);
  }
  print_sections(to, open, "", depth);
}

void ts_deck_notes(const ts_deck *deck, ts_text *to) {
  for (int i = 0; i < deck->notes.n; ++i) {
    ts_text_add(to, "%s%s", i > 0 ? "\n" : "", deck->notes.items[i]);
  }
}
