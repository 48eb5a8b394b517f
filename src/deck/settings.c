/* From trees of values to a flat list of settings, one per key, with conflicts between sources found. */
#include "base/memory.h"
#include "deck/reader.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRIES_LIMIT 1000
/* Suggestions cost time: hostile decks get them for the first errors and for keys of a sane length. */
#define MANY_ERRORS 50
#define LONG_PATH 200

const ts_setting *ts_reader_find(const ts_reader *reader, const char *path) {
  for (int i = 0; i < reader->n_settings; ++i) {
    if (strcmp(reader->settings[i].path, path) == 0) {
      return &reader->settings[i];
    }
  }
  return NULL;
}

static char *where_value(const ts_value *value, const char *otherwise) {
  const char *file = value != NULL && value->file != NULL ? value->file : otherwise;
  int line = value != NULL ? value->line : 0;
  return line > 0 ? ts_format("%s:%d", file, line) : ts_format("%s", file);
}

char *ts_reader_where(const ts_reader *reader, const ts_setting *setting) {
  return where_value(setting != NULL ? &setting->value : NULL, reader->name);
}

static char *format_list(const char *format, va_list arguments) {
  char *text = NULL;
  TS_CHECK(vasprintf(&text, format, arguments) >= 0, "out of memory for a message");
  return text;
}

ts_status ts_reader_report(const ts_reader *reader, ts_deck_check check, const char *path, const char *format, ...) {
  const ts_setting *setting = ts_reader_find(reader, path);
  bool of_config = setting == NULL && reader->config != NULL && strncmp(path, "model.", strlen("model.")) == 0;
  char *where = of_config ? ts_strdup(reader->config) : ts_reader_where(reader, setting);
  va_list arguments;
  va_start(arguments, format);
  char *text = format_list(format, arguments);
  va_end(arguments);
  ts_status status = ts_deck_report(reader->err, check, where, setting != NULL ? setting->name : path, "%s", text);
  free(text);
  ts_free(where);
  return status;
}

void ts_reader_note(ts_reader *reader, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char *text = format_list(format, arguments);
  va_end(arguments);
  ts_strings_add(&reader->deck->notes, text);
  free(text);
}

void ts_reader_note_idle(ts_reader *reader, const char *path, const char *why) {
  const ts_setting *setting = ts_reader_find(reader, path);
  ts_value initial = ts_key_initial(ts_key_at(ts_key_find(path)));
  if (setting != NULL && !ts_setting_is_auto(setting) &&
      (strcmp(setting->name, path) != 0 || !ts_value_equal(&setting->value, &initial))) {
    ts_reader_note(reader, "%s: no effect: %s", setting->name, why);
  }
  ts_value_clear(&initial);
}

static void report_value(ts_reader *reader, ts_deck_check check, const ts_value *value, const char *path,
                         const char *text) {
  char *where = where_value(value, reader->name);
  ts_deck_report(reader->err, check, where, path, "%s", text);
  ts_free(where);
}

/* True when rows "path[].x" exist. */
static bool is_list_of_sections(const char *path) {
  char *entry = ts_format("%s[]", path);
  bool found = ts_key_is_section(entry);
  ts_free(entry);
  return found;
}

/* "optimizer.groups[3].pattern" needs four groups. */
static bool entry_exists(const ts_reader *reader, const char *path) {
  const char *bracket = strchr(path, '[');
  const ts_deck_list *list = bracket != NULL ? ts_deck_list_find(path) : NULL;
  return bracket == NULL || (list != NULL && strspn(bracket + 1, "0123456789") > 0 &&
                             strtoll(bracket + 1, NULL, 10) < *ts_deck_list_length(reader->deck, list));
}

/* The list that a --set like "frozen[0]" is about; newly allocated, NULL when there is none. */
static char *list_of_entry(const ts_reader *reader, const char *path) {
  size_t length = strcspn(path, "[");
  char *list = ts_format("%.*s", (int) length, path);
  bool known = ts_key_find(list) >= 0 || (is_list_of_sections(list) && !entry_exists(reader, path));
  if (path[length] == '[' && known) {
    return list;
  }
  ts_free(list);
  return NULL;
}

static char *explain_unknown(const ts_reader *reader, const char *path, ts_origin_kind from) {
  char *list = from == TS_FROM_SET ? list_of_entry(reader, path) : NULL;
  bool suggest = list == NULL && reader->err->count < MANY_ERRORS && strlen(path) < LONG_PATH;
  char *nearest = suggest ? ts_key_nearest(path) : NULL;
  char *text = list != NULL ? ts_format("list elements cannot be added one by one; give the whole list: %s=...", list)
               : nearest != NULL ? ts_format("unknown key; did you mean %s?", nearest)
                                 : ts_strdup("unknown key");
  ts_free(list);
  ts_free(nearest);
  return text;
}

/* As part of a line: json's names may hold ends of lines and what terminals obey. */
static char *printable(const char *name) {
  char *shown = ts_strdup(name);
  for (char *c = shown; *c != '\0'; ++c) {
    *c = iscntrl((unsigned char) *c) ? '?' : *c;
  }
  return shown;
}

static void unknown_key(ts_reader *reader, const char *path, const ts_value *value, ts_origin_kind from) {
  char *shown = printable(path);
  if (from == TS_FROM_MODEL) {
    ts_reader_note(reader, "%s: %s: unknown key of a config.json, ignored", value->file, shown + strlen("model."));
  } else {
    char *text = explain_unknown(reader, path, from);
    report_value(reader, TS_CHECK_UNKNOWN_KEY, value, shown, text);
    ts_free(text);
  }
  ts_free(shown);
}

/* A list of one, said as that one. */
static bool is_the_one(const ts_setting *setting, const ts_value *list, const ts_value *one) {
  bool may = (ts_key_at(setting->key)->flags & TS_KEY_ONE) != 0;
  return may && list->kind == TS_VALUE_LIST && list->n == 1 && ts_value_equal(&list->items[0], one);
}

/* Says which of two settings of one key stays; true when it is the new one. */
static bool new_wins(ts_reader *reader, const ts_setting *old, const ts_setting *new) {
  bool was_auto = ts_setting_is_auto(old), is_auto = ts_setting_is_auto(new);
  if (old->from == TS_FROM_SET || new->from == TS_FROM_SET) {
    return new->from == TS_FROM_SET;
  }
  if (was_auto != is_auto) { /* "auto" is what the other one says */
    return was_auto;
  }
  if (ts_value_equal(&old->value, &new->value) || is_the_one(new, &old->value, &new->value) ||
      is_the_one(new, &new->value, &old->value)) {
    return false;
  }
  ts_text text = {0};
  char *where = ts_reader_where(reader, old);
  ts_value_describe(&new->value, &text);
  ts_text_add(&text, ", but %s is ", old->name);
  ts_value_describe(&old->value, &text);
  ts_text_add(&text, " at %s", where);
  if (old->from == new->from) {
    report_value(reader, TS_CHECK_TWICE, &new->value, new->name, text.text);
  } else if (ts_key_at(new->key)->flags & TS_KEY_OVERRIDE) {
    ts_reader_note(reader, "%s: %s: %s; the deck's value is used", new->value.file, new->name, text.text);
  } else {
    ts_text_add(&text, "; the two must agree (--set may differ)");
    report_value(reader, TS_CHECK_CONFLICT, &new->value, new->name, text.text);
  }
  ts_free(where);
  ts_text_free(&text);
  return false;
}

static void clear_setting(ts_setting *setting) {
  ts_free(setting->path);
  ts_free(setting->name);
  ts_value_clear(&setting->value);
}

/* An old flag becomes what it stood for; false where it stood for nothing, or is no flag. */
static bool translate(ts_reader *reader, const ts_key *row, const char *name, ts_value *value) {
  if (value->kind != TS_VALUE_BOOL) {
    report_value(reader, TS_CHECK_TYPE, value, name,
                 ts_key_is_section(name) ? "must be a section, { ... }, or true, false" : "must be true or false");
    return false;
  }
  const char *wanted = value->truth ? "true=" : "false=", *item = strstr(row->values, wanted);
  if (item == NULL) {
    return false;
  }
  ts_value meant = {0};
  char *word = ts_format("%.*s", (int) strcspn(item + strlen(wanted), "|"), item + strlen(wanted));
  TS_CHECK(ts_value_from_word(&reader->source, "schema", word, &meant, NULL) == TS_OK, "%s of %s", word, name);
  meant.file = value->file;
  meant.line = value->line;
  *value = meant;
  ts_free(word);
  return true;
}

/* Moves the value out. */
static void add_setting(ts_reader *reader, int key, const char *name, ts_value *value, ts_origin_kind from) {
  const ts_key *row = ts_key_at(key);
  if (row->values != NULL && !translate(reader, row, name, value)) {
    return;
  }
  ts_setting setting = {.path = ts_strdup(row->alias != NULL ? row->alias : name),
                        .name = ts_strdup(name),
                        .key = ts_key_canonical(key),
                        .from = from,
                        .value = *value};
  *value = (ts_value){0};
  ts_setting *old = (ts_setting *) ts_reader_find(reader, setting.path);
  if (old == NULL) {
    TS_GROW(reader->settings, reader->n_settings, reader->capacity);
    reader->settings[reader->n_settings++] = setting;
  } else if (new_wins(reader, old, &setting)) {
    clear_setting(old);
    *old = setting;
  } else {
    clear_setting(&setting);
  }
}

static void take_value(ts_reader *reader, const char *path, ts_value *value, ts_origin_kind from);

static void forget_settings(ts_reader *reader, const char *prefix) {
  int kept = 0;
  for (int i = 0; i < reader->n_settings; ++i) {
    if (strncmp(reader->settings[i].path, prefix, strlen(prefix)) == 0) {
      clear_setting(&reader->settings[i]);
    } else {
      reader->settings[kept++] = reader->settings[i];
    }
  }
  reader->n_settings = kept;
}

/* A --set replaces the whole list; a json is compared with the deck's entry by entry. */
static void take_entries(ts_reader *reader, const char *path, ts_value *list, ts_origin_kind from) {
  int *n = ts_deck_list_length(reader->deck, ts_deck_list_find(path));
  if (list->n > ENTRIES_LIMIT) {
    report_value(reader, TS_CHECK_GROUPS, list, path, "more than 1000 entries");
    return;
  }
  if (from == TS_FROM_SET) {
    char *prefix = ts_format("%s[", path);
    forget_settings(reader, prefix);
    ts_free(prefix);
    *n = 0;
  }
  *n = list->n > *n ? list->n : *n;
  for (int i = 0; i < list->n; ++i) {
    char *name = ts_format("%s[%d]", path, i);
    if (list->items[i].kind == TS_VALUE_SECTION) {
      ts_reader_take(reader, name, &list->items[i], from);
    } else {
      report_value(reader, TS_CHECK_TYPE, &list->items[i], name, "must be a section, { ... }");
    }
    ts_free(name);
  }
}

/* null stands for the default of the key's row where that says so; else for nothing. */
static bool read_null(int key, ts_value *value) {
  const ts_key *row = key >= 0 ? ts_key_at(ts_key_canonical(key)) : NULL;
  if (row == NULL || (row->flags & TS_KEY_NULL) == 0) {
    return false;
  }
  ts_value initial = ts_key_initial(row);
  initial.file = value->file;
  initial.line = value->line;
  *value = initial;
  return true;
}

static void take_value(ts_reader *reader, const char *path, ts_value *value, ts_origin_kind from) {
  int key = entry_exists(reader, path) ? ts_key_find(path) : -1;
  if (value->kind == TS_VALUE_NULL && !read_null(key, value)) {
    return;
  }
  if (key >= 0 && !(value->kind == TS_VALUE_SECTION && ts_key_is_section(path))) {
    add_setting(reader, key, path, value, from);
  } else if (!ts_key_is_section(path)) {
    unknown_key(reader, path, value, from);
  } else if (is_list_of_sections(path)) {
    value->kind == TS_VALUE_LIST ? take_entries(reader, path, value, from)
                                 : report_value(reader, TS_CHECK_TYPE, value, path, "must be a list, ( { ... } )");
  } else if (value->kind == TS_VALUE_SECTION) {
    ts_reader_take(reader, path, value, from);
  } else {
    report_value(reader, TS_CHECK_TYPE, value, path, "must be a section, { ... }");
  }
}

void ts_reader_take(ts_reader *reader, const char *prefix, ts_value *section, ts_origin_kind from) {
  for (int i = 0; i < section->n; ++i) {
    if (from == TS_FROM_JSON && *section->names[i] == '_') {
      continue; /* a comment, as in "_comment" */
    }
    const char *dot = *prefix != '\0' ? "." : "";
    char *path = ts_format("%s%s%s", prefix, dot, section->names[i]);
    if (from != TS_FROM_SET && strpbrk(section->names[i], ".[") != NULL) {
      unknown_key(reader, path, &section->items[i], from); /* json allows such names; paths do not */
    } else {
      take_value(reader, path, &section->items[i], from);
    }
    ts_free(path);
  }
}
