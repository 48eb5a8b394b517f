/* From settings to fields: defaults, types, ranges, accepted words, refused keys. */
#include "base/memory.h"
#include "deck/reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* One setting on its way into the deck. */
typedef struct ts_target {
  ts_reader *reader;
  const ts_key *key;
  const ts_setting *setting; /* NULL for a default. */
  void *field;               /* NULL when nothing is stored. */
} ts_target;

void *ts_deck_field(const ts_deck *deck, const ts_key *key, const char *path) {
  const char *bracket = strchr(path, '[');
  char *base = (char *) deck;
  if (key->offset < 0) {
    return NULL;
  }
  if (bracket != NULL) {
    base = (char *) &deck->optimizer.groups.items[strtol(bracket + 1, NULL, 10)];
  }
  return base + key->offset;
}

ts_value ts_key_initial(const ts_key *key) {
  ts_source source = {0};
  ts_value value = {0};
  bool text = key->type == TS_KEY_STRING || key->type == TS_KEY_DTYPE;
  if (key->initial != NULL && text) {
    value = (ts_value) {.kind = TS_VALUE_STRING, .string = ts_strdup(key->initial)};
  } else if (key->initial != NULL) {
    ts_error err = {0};
    TS_CHECK(ts_value_from_word(&source, "schema", key->initial, &value, &err) == TS_OK, "default of %s", key->path);
  }
  value.file = NULL;
  ts_source_clear(&source);
  return value;
}

static bool fail(const ts_target *t, ts_deck_check check, const ts_value *value, const char *problem) {
  ts_text text = {0};
  ts_value_describe(value, &text);
  ts_text_add(&text, " %s; accepted: ", problem);
  ts_key_describe(t->key, &text);
  ts_reader_report(t->reader, check, t->setting->path, "%s", text.text);
  ts_text_free(&text);
  return false;
}

static bool in_range(const ts_target *t, const ts_value *value) {
  double x = value->real, min = t->key->min, max = t->key->max;
  bool low = t->key->flags & TS_KEY_OPEN_MIN ? x <= min : x < min;
  bool high = t->key->flags & TS_KEY_OPEN_MAX ? x >= max : x > max;
  return !low && !high ? true : fail(t, TS_CHECK_RANGE, value, "is out of range");
}

static bool take_bool(const ts_target *t, const ts_value *value) {
  if (value->kind != TS_VALUE_BOOL) {
    return fail(t, TS_CHECK_TYPE, value, "is not a truth value");
  }
  if (t->field != NULL) {
    *(bool *) t->field = value->truth;
  }
  return true;
}

/* "auto" is not stored here: ts_reader_resolve. */
static bool take_switch(const ts_target *t, const ts_value *value) {
  if (value->kind != TS_VALUE_BOOL) {
    return fail(t, TS_CHECK_TYPE, value, "is not a truth value");
  }
  *(ts_switch *) t->field = value->truth ? TS_SWITCH_ON : TS_SWITCH_OFF;
  return true;
}

static bool take_integer(const ts_target *t, const ts_value *value, int64_t *field) {
  if (value->kind == TS_VALUE_BIG || (value->kind == TS_VALUE_REAL && fabs(value->real) >= 9223372036854775808.0)) {
    return fail(t, TS_CHECK_BIG, value, "does not fit in 64 bits");
  }
  if (value->kind != TS_VALUE_INT && value->kind != TS_VALUE_REAL) {
    return fail(t, TS_CHECK_TYPE, value, "is not an integer");
  }
  if (value->kind == TS_VALUE_REAL && value->real != floor(value->real)) {
    return fail(t, TS_CHECK_WHOLE, value, "is not a whole number");
  }
  if (!in_range(t, value)) {
    return false;
  }
  if (field != NULL) {
    *field = value->kind == TS_VALUE_INT ? value->integer : (int64_t) value->real;
  }
  return true;
}

static bool take_int(const ts_target *t, const ts_value *value) {
  return take_integer(t, value, t->field);
}

static bool take_ints(const ts_target *t, const ts_value *value) {
  ts_ints list = {0};
  if (value->kind != TS_VALUE_LIST) {
    return fail(t, TS_CHECK_TYPE, value, "is not a list of integers");
  }
  bool good = true;
  for (int i = 0; i < value->n; ++i) {
    int64_t item;
    if (take_integer(t, &value->items[i], &item)) {
      ts_ints_add(&list, item);
    } else {
      good = false;
    }
  }
  ts_ints_clear(t->field);
  *(ts_ints *) t->field = list;
  return good;
}

static bool take_number(const ts_target *t, const ts_value *value, double *field) {
  if (value->kind != TS_VALUE_INT && value->kind != TS_VALUE_REAL && value->kind != TS_VALUE_BIG) {
    return fail(t, TS_CHECK_TYPE, value, "is not a number");
  }
  if (!isfinite(value->real)) {
    return fail(t, TS_CHECK_FINITE, value, "is too large");
  }
  if (!in_range(t, value)) {
    return false;
  }
  if (field != NULL) {
    *field = value->real;
  }
  return true;
}

static bool take_real(const ts_target *t, const ts_value *value) {
  return take_number(t, value, t->field);
}

static bool take_pair(const ts_target *t, const ts_value *value) {
  if (value->kind != TS_VALUE_LIST || value->n != 2) {
    return fail(t, TS_CHECK_TYPE, value, "is not a list of two numbers");
  }
  double *pair = t->field;
  return take_number(t, &value->items[0], &pair[0]) && take_number(t, &value->items[1], &pair[1]);
}

static bool word_accepted(const ts_target *t, const ts_value *value, char **spelling) {
  const char *word = value->string;
  size_t length = 0;
  if (value->kind != TS_VALUE_STRING) {
    return fail(t, TS_CHECK_TYPE, value, "is not a string");
  }
  if (t->key->flags & TS_KEY_REGEX && ts_matches(value->string, "") < 0) {
    return fail(t, TS_CHECK_REGEX, value, "is not a valid regular expression");
  }
  if (t->key->accepted != NULL && !ts_key_listed(t->key->accepted, value->string, &word, &length)) {
    return ts_key_listed(t->key->later, value->string, NULL, NULL)
               ? fail(t, TS_CHECK_WORD_LATER, value, "is not there yet")
               : fail(t, TS_CHECK_WORD, value, "is not known");
  }
  *spelling = ts_format("%.*s", (int) (length > 0 ? length : strlen(word)), word);
  return true;
}

static bool take_string(const ts_target *t, const ts_value *value) {
  char *word = NULL;
  if (!word_accepted(t, value, &word)) {
    return false;
  }
  if (t->field == NULL) {
    ts_free(word);
    return true;
  }
  ts_free(*(char **) t->field);
  *(char **) t->field = word;
  return true;
}

/* torch's names of the types are DeepSpeed's other spellings. */
static const char *dtype_name(const char *word) {
  static const char *const names[][2] = {{"float32", "fp32"}, {"float", "fp32"}, {"bfloat16", "bf16"},
                                         {"float16", "fp16"}, {"half", "fp16"}};
  word = strncasecmp(word, "torch.", 6) == 0 ? word + 6 : word;
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    if (strcasecmp(word, names[i][0]) == 0) {
      return names[i][1];
    }
  }
  return word;
}

static bool take_dtype(const ts_target *t, const ts_value *value) {
  char *word = NULL;
  ts_value short_name = *value;
  if (value->kind == TS_VALUE_STRING) {
    short_name.string = (char *) dtype_name(value->string);
  }
  if (!word_accepted(t, &short_name, &word)) {
    return false;
  }
  for (int d = 0; d < TS_N_DTYPES; ++d) {
    if (strcmp(ts_dtype_name((ts_dtype) d), word) == 0) {
      *(ts_dtype *) t->field = (ts_dtype) d;
    }
  }
  ts_free(word);
  return true;
}

static bool take_strings(const ts_target *t, const ts_value *value) {
  ts_strings list = {0};
  if (value->kind != TS_VALUE_LIST) {
    return fail(t, TS_CHECK_TYPE, value, "is not a list of strings");
  }
  bool good = true;
  for (int i = 0; i < value->n; ++i) {
    char *word = NULL;
    if (word_accepted(t, &value->items[i], &word)) {
      ts_strings_add(&list, word);
    } else {
      good = false;
    }
    ts_free(word);
  }
  if (t->field != NULL) {
    ts_strings_clear(t->field);
    *(ts_strings *) t->field = list;
  } else {
    ts_strings_clear(&list);
  }
  return good;
}

static bool take_any(const ts_target *t, const ts_value *value) {
  (void) t;
  (void) value;
  return true;
}

static bool (*const take_value[TS_N_KEY_TYPES])(const ts_target *, const ts_value *) = {
    [TS_KEY_BOOL] = take_bool,     [TS_KEY_INT] = take_int,     [TS_KEY_REAL] = take_real,
    [TS_KEY_STRING] = take_string, [TS_KEY_DTYPE] = take_dtype, [TS_KEY_PAIR] = take_pair,
    [TS_KEY_ANY] = take_any,       [TS_KEY_SWITCH] = take_switch,       [TS_KEY_STRINGS] = take_strings, [TS_KEY_INTS] = take_ints,
};

static bool is_neutral(const ts_key *key, const ts_value *value) {
  ts_value initial = ts_key_initial(key);
  bool neutral = ts_value_equal(value, &initial);
  if (value->kind == TS_VALUE_LIST || value->kind == TS_VALUE_SECTION) {
    neutral = neutral || value->n == 0;
  } else if (value->kind == TS_VALUE_STRING && initial.kind == TS_VALUE_STRING) {
    neutral = strcasecmp(value->string, initial.string) == 0;
  } else if (key->type == TS_KEY_INT && key->offset >= 0) {
    neutral = neutral || (value->real == 0 && initial.real == 1); /* a grid axis of 0 is one of 1 */
  }
  ts_value_clear(&initial);
  return neutral;
}

static bool is_off(const ts_value *value) {
  return value->kind == TS_VALUE_STRING ? strcmp(value->string, "none") == 0
                                        : value->kind == TS_VALUE_BOOL && !value->truth;
}

/* The switch of a section ("fp16.enabled") whose value leaves it off; NULL when it is on or has none. */
static const char *off_switch(const ts_reader *reader, const char *section, int length) {
  static const char *const names[] = {"enabled", "device", "shared_parameters.enabled"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char *path = ts_format("%.*s.%s", length, section, names[i]);
    int key = ts_key_find(path);
    const ts_setting *setting = key >= 0 ? ts_reader_find(reader, path) : NULL;
    ts_free(path);
    if (key < 0) {
      continue;
    }
    ts_value initial = ts_key_initial(ts_key_at(key));
    bool off = is_off(setting != NULL ? &setting->value : &initial);
    ts_value_clear(&initial);
    if (off) {
      return ts_key_at(key)->path;
    }
  }
  return NULL;
}

static const char *nearest_off_switch(const ts_reader *reader, const char *path) {
  for (int length = (int) strlen(path) - 1; length > 0; --length) {
    const char *off = path[length] == '.' ? off_switch(reader, path, length) : NULL;
    if (off != NULL && strcmp(off, path) != 0) {
      return off;
    }
  }
  return NULL;
}

/* What the row's status says about a setting that the user made. */
static void judge(ts_reader *reader, const ts_key *key, const ts_setting *setting) {
  bool silent = setting->from == TS_FROM_MODEL && key->flags & TS_KEY_SILENT;
  if (key->status == TS_KEY_NO_EFFECT && !silent) {
    ts_reader_note(reader, "%s: no effect: %s", setting->name, key->help);
  } else if (key->status == TS_KEY_REFUSED && !is_neutral(key, &setting->value)) {
    const char *off = nearest_off_switch(reader, setting->path);
    if (off != NULL) {
      ts_reader_note(reader, "%s: no effect: %s leaves its section off", setting->name, off);
      return;
    }
    ts_reader_report(reader, TS_CHECK_REFUSED, setting->path, "refused, not there yet: %s; accepted: %s", key->help,
                     key->initial == NULL ? "to leave it out" : *key->initial == '\0' ? "\"\"" : key->initial);
  }
}

bool ts_setting_is_auto(const ts_setting *setting) {
  const ts_value *value = &setting->value;
  bool word = value->kind == TS_VALUE_STRING && strcasecmp(value->string, "auto") == 0;
  return word && ts_key_at(setting->key)->flags & TS_KEY_AUTO;
}

static void store_setting(ts_reader *reader, const ts_setting *setting) {
  const ts_key *key = ts_key_at(setting->key);
  ts_target target = {reader, key, setting, ts_deck_field(reader->deck, key, setting->path)};
  if (ts_setting_is_auto(setting)) {
    return; /* ts_reader_resolve knows what it became */
  }
  if (key->status == TS_KEY_REFUSED) {
    target.field = NULL;
  }
  if (take_value[key->type](&target, &setting->value)) {
    judge(reader, key, setting);
  }
}

static void store_default(ts_reader *reader, const ts_key *key, const char *path) {
  ts_target target = {reader, key, NULL, ts_deck_field(reader->deck, key, path)};
  ts_value initial = ts_key_initial(key);
  if (key->type == TS_KEY_STRING) {
    *(char **) target.field = ts_strdup(key->initial != NULL ? key->initial : "");
  } else if (key->initial != NULL) {
    TS_CHECK(take_value[key->type](&target, &initial), "default of %s", key->path);
  }
  ts_value_clear(&initial);
}

static void store_defaults(ts_reader *reader) {
  int n = ts_key_count();
  for (int i = 0; i < n; ++i) {
    const ts_key *key = ts_key_at(i);
    const char *entries = strstr(key->path, "[]");
    for (int e = 0; entries != NULL && e < reader->deck->optimizer.groups.n; ++e) {
      char *path = ts_format("%.*s[%d]%s", (int) (entries - key->path), key->path, e, entries + 2);
      store_default(reader, key, path);
      ts_free(path);
    }
    if (entries == NULL && key->offset >= 0) {
      store_default(reader, key, key->path);
    }
  }
}

void ts_reader_store(ts_reader *reader) {
  ts_deck_groups *groups = &reader->deck->optimizer.groups;
  groups->items = ts_calloc((size_t) groups->n, sizeof *groups->items);
  store_defaults(reader);
  for (int i = 0; i < reader->n_settings; ++i) {
    store_setting(reader, &reader->settings[i]);
  }
}
