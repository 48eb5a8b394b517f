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

static const char *const switch_words[] = {
    [TS_SWITCH_OFF] = "false", [TS_SWITCH_ON] = "true", [TS_SWITCH_AUTO] = "\"auto\""};

void ts_deck_print_value(ts_text *to, const ts_key *key, const void *field) {
  const int64_t *integer = field;
  const double *real = field;
  switch (key->type) {
    case TS_KEY_BOOL: ts_text_add(to, *(const bool *) field ? "true" : "false"); break;
    case TS_KEY_SWITCH: ts_text_add(to, "%s", switch_words[*(const ts_switch *) field]); break;
    case TS_KEY_INT: ts_text_add(to, "%lld%s", (long long) *integer, *integer > INT32_MAX ? "L" : ""); break;
    case TS_KEY_REAL: print_real(to, *real); break;
    case TS_KEY_STRING: print_string(to, *(char *const *) field); break;
    case TS_KEY_DTYPE: ts_text_add(to, "\"%s\"", ts_dtype_name(*(const ts_dtype *) field)); break;
    case TS_KEY_STRINGS: print_strings(to, field); break;
    case TS_KEY_INTS: print_ints(to, field); break;
    case TS_KEY_REALS: print_reals(to, field); break;
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
  if (key->type == TS_KEY_INT && key->initial == NULL && *(int64_t *) ts_deck_field(deck, key, key->path) < key->min) {
    return false;
  }
  if (selector == NULL) {
    return true;
  }
  char *const *chosen = ts_deck_field(deck, ts_key_at(ts_key_find(selector)), selector);
  return ts_key_belongs(key, *chosen);
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

static void print_groups(const ts_deck *deck, ts_text *to, int depth) {
  const char *prefix = "optimizer.groups[].";
  indent(to, depth);
  ts_text_add(to, "groups = (");
  for (int e = 0; e < deck->optimizer.groups.n; ++e) {
    ts_text_add(to, "%s{ ", e > 0 ? ", " : "");
    for (int i = 0; i < ts_key_count(); ++i) {
      const ts_key *key = ts_key_at(i);
      if (strncmp(key->path, prefix, strlen(prefix)) == 0) {
        char *path = ts_format("optimizer.groups[%d].%s", e, key->path + strlen(prefix));
        ts_text_add(to, "%s = ", key->path + strlen(prefix));
        ts_deck_print_value(to, key, ts_deck_field(deck, key, path));
        ts_text_add(to, "; ");
        ts_free(path);
      }
    }
    ts_text_add(to, "}");
  }
  ts_text_add(to, ");\n");
}

/* The value of a key as text, owned by the caller; NULL where the deck does not have it. */
static char *value_text(const ts_deck *deck, const ts_key *key) {
  ts_text text = {0};
  if (is_there(deck, key)) {
    ts_deck_print_value(&text, key, ts_deck_field(deck, key, key->path));
  }
  return text.text;
}

char *ts_deck_value(const ts_deck *deck, const char *path) {
  int index = ts_key_find(path);
  return index >= 0 ? value_text(deck, ts_key_at(index)) : NULL;
}

int ts_deck_differences(const ts_deck *before, const ts_deck *now, const char *const *ignored, ts_text *to) {
  int n = 0;
  for (int i = 0; i < ts_key_count(); ++i) {
    const ts_key *key = ts_key_at(i);
    bool skip = strchr(key->path, '[') != NULL;
    for (const char *const *prefix = ignored; *prefix != NULL && !skip; ++prefix) {
      skip = strncmp(key->path, *prefix, strlen(*prefix)) == 0;
    }
    char *a = skip ? NULL : value_text(before, key), *b = skip ? NULL : value_text(now, key);
    if ((a != NULL || b != NULL) && (a == NULL || b == NULL || strcmp(a, b) != 0)) {
      ts_text_add(to, "%s  %s: %s, now %s", n++ > 0 ? "\n" : "", key->path, a != NULL ? a : "not set",
                  b != NULL ? b : "not set");
    }
    ts_free(a);
    ts_free(b);
  }
  return n;
}

void ts_deck_print(const ts_deck *deck, ts_text *to) {
  const char *open = "";
  bool groups = false;
  int depth = 0, n = ts_key_count();
  for (int i = 0; i < n; ++i) {
    const ts_key *key = ts_key_at(i);
    bool entry = strchr(key->path, '[') != NULL;
    if (entry && !groups) {
      groups = true;
      depth = print_sections(to, open, "optimizer.", depth);
      open = "optimizer.groups";
      print_groups(deck, to, depth);
    } else if (!entry && is_there(deck, key)) {
      depth = print_sections(to, open, key->path, depth);
      open = key->path;
      indent(to, depth);
      ts_text_add(to, "%s = ", strrchr(open, '.') != NULL ? strrchr(open, '.') + 1 : open);
      ts_deck_print_value(to, key, ts_deck_field(deck, key, key->path));
      ts_text_add(to, ";\n");
    }
  }
  print_sections(to, open, "", depth);
}

void ts_deck_notes(const ts_deck *deck, ts_text *to) {
  for (int i = 0; i < deck->notes.n; ++i) {
    ts_text_add(to, "%s\n", deck->notes.items[i]);
  }
}
