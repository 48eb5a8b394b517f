/* From settings to fields: defaults, types, ranges, accepted words, refused keys. */
#include "base/memory.h"
#include "deck/reader.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Suggestions cost time, and words may come from anywhere. */
#define LONG_WORD 200
#define REMOVED "removed from DeepSpeed, which refuses it too"

/* One setting on its way into the deck. */
typedef struct ts_target {
  ts_reader *reader;
  const ts_key *key;
  const ts_setting *setting; /* NULL for a default. */
  void *field;               /* NULL when nothing is stored. */
} ts_target;

/* Of text that this room wrote itself; NULL is no value. */
static ts_value value_of(const ts_key *key, const char *text) {
  ts_source source = {0};
  ts_value value = {0};
  bool word = key->type == TS_KEY_STRING || key->type == TS_KEY_DTYPE;
  if (text != NULL && word) {
    value = (ts_value){.kind = TS_VALUE_STRING, .string = ts_strdup(text)};
  } else if (text != NULL) {
    ts_error err = {0};
    TS_CHECK(ts_value_from_word(&source, "schema", text, &value, &err) == TS_OK, "%s of %s", text, key->path);
  }
  value.file = NULL;
  ts_source_clear(&source);
  return value;
}

ts_value ts_key_initial(const ts_key *key) {
  return value_of(key, key->initial);
}

/* With the word that may have been meant, NULL for none. */
static bool fail_meaning(const ts_target *t, ts_deck_check check, const ts_value *value, const char *problem,
                         const char *meant) {
  ts_text text = {0};
  ts_value_describe(value, &text);
  ts_text_add(&text, " %s; accepted: ", problem);
  ts_key_describe(t->key, &text);
  if (meant != NULL) {
    ts_text_add(&text, "; did you mean %s?", meant);
  }
  ts_reader_report(t->reader, check, t->setting->path, "%s", text.text);
  ts_text_free(&text);
  return false;
}

static bool fail_value(const ts_target *t, ts_deck_check check, const ts_value *value, const char *problem) {
  return fail_meaning(t, check, value, problem, NULL);
}

static bool in_range(const ts_target *t, const ts_value *value) {
  double x = value->real, min = t->key->min, max = t->key->max;
  bool low = t->key->flags & TS_KEY_OPEN_MIN ? x <= min : x < min;
  bool high = t->key->flags & TS_KEY_OPEN_MAX ? x >= max : x > max;
  if (!low && !high && (t->key->flags & TS_KEY_OPEN_MAX) != 0 && (float) x >= (float) max) {
    return fail_value(t, TS_CHECK_FINITE, value, "is as good as the end of the range in a float");
  }
  return !low && !high ? true : fail_value(t, TS_CHECK_RANGE, value, "is out of range");
}

static bool take_bool(const ts_target *t, const ts_value *value) {
  if (value->kind != TS_VALUE_BOOL) {
    return fail_value(t, TS_CHECK_TYPE, value, "is not a truth value");
  }
  if (t->field != NULL) {
    *(bool *) t->field = value->truth;
  }
  return true;
}

/* "auto" is not stored here: ts_reader_resolve. */
static bool take_switch(const ts_target *t, const ts_value *value) {
  if (value->kind != TS_VALUE_BOOL) {
    return fail_value(t, TS_CHECK_TYPE, value, "is not a truth value");
  }
  *(ts_switch *) t->field = value->truth ? TS_SWITCH_ON : TS_SWITCH_OFF;
  return true;
}

static bool take_integer(const ts_target *t, const ts_value *value, int64_t *field) {
  if (value->kind == TS_VALUE_BIG || (value->kind == TS_VALUE_REAL && fabs(value->real) >= 9223372036854775808.0)) {
    return fail_value(t, TS_CHECK_BIG, value, "does not fit in 64 bits");
  }
  if (value->kind != TS_VALUE_INT && value->kind != TS_VALUE_REAL) {
    return fail_value(t, TS_CHECK_TYPE, value, "is not an integer");
  }
  if (value->kind == TS_VALUE_REAL && value->real != floor(value->real)) {
    return fail_value(t, TS_CHECK_WHOLE, value, "is not a whole number");
  }
  if (!in_range(t, value)) {
    return false;
  }
  if (field != NULL) {
    *field = value->kind == TS_VALUE_INT ? value->integer : (int64_t) value->real;
  }
  return true;
}

static bool take_bytes(const ts_target *t, const ts_value *value) {
  if (value->kind != TS_VALUE_STRING) {
    return take_integer(t, value, t->field);
  }
  return ts_parse_bytes(value->string, t->field) ? true : fail_value(t, TS_CHECK_TYPE, value, "is not a size");
}

static bool take_int(const ts_target *t, const ts_value *value) {
  if (t->key->flags & TS_KEY_ENDLESS && value->kind == TS_VALUE_STRING && strcasecmp(value->string, "inf") == 0) {
    *(int64_t *) t->field = INT64_MAX;
    return true;
  }
  return take_integer(t, value, t->field);
}

static bool take_integers(const ts_target *t, const ts_value *value, ts_ints *list) {
  bool good = true;
  for (int i = 0; i < value->n; ++i) {
    int64_t item;
    if (take_integer(t, &value->items[i], &item)) {
      ts_ints_add(list, item);
    } else {
      good = false;
    }
  }
  return good;
}

static bool take_ints(const ts_target *t, const ts_value *value) {
  ts_ints list = {0};
  bool one = value->kind != TS_VALUE_LIST && (t->key->flags & TS_KEY_ONE) != 0;
  if (value->kind != TS_VALUE_LIST && !one) {
    return fail_value(t, TS_CHECK_TYPE, value, "is not a list of integers");
  }
  int64_t single;
  bool good = one ? take_integer(t, value, &single) : take_integers(t, value, &list);
  if (one && good) {
    ts_ints_add(&list, single);
  }
  ts_ints_clear(t->field);
  *(ts_ints *) t->field = list;
  return good;
}

static bool take_extent(const ts_target *t, const ts_value *value, ts_deck_view *view) {
  int64_t count = 0;
  ts_ints sizes = {0};
  if (value->kind == TS_VALUE_LIST && value->n == 0) {
    return fail_value(t, TS_CHECK_TYPE, value, "is a dimension without sizes");
  }
  bool good = value->kind == TS_VALUE_LIST ? take_integers(t, value, &sizes) : take_integer(t, value, &count);
  ts_view_add(view, count, sizes);
  return good;
}

static bool take_view(const ts_target *t, const ts_value *value) {
  ts_deck_view view = {0};
  if (value->kind != TS_VALUE_LIST) {
    return fail_value(t, TS_CHECK_TYPE, value, "is not a list of extents");
  }
  bool good = true;
  for (int i = 0; i < value->n; ++i) {
    good = take_extent(t, &value->items[i], &view) && good;
  }
  ts_deck_view unused = view;
  if (good) {
    unused = *(ts_deck_view *) t->field;
    *(ts_deck_view *) t->field = view;
  }
  ts_view_clear(&unused);
  return good;
}

static bool take_number(const ts_target *t, const ts_value *value, double *field) {
  if (value->kind != TS_VALUE_INT && value->kind != TS_VALUE_REAL && value->kind != TS_VALUE_BIG) {
    return fail_value(t, TS_CHECK_TYPE, value, "is not a number");
  }
  if (!isfinite(value->real)) {
    return fail_value(t, TS_CHECK_FINITE, value, "is too large");
  }
  if (value->kind == TS_VALUE_REAL && fabs(value->real) > FLT_MAX) { /* kernels would take it for infinity */
    return fail_value(t, TS_CHECK_FINITE, value, "is too large for a float (above 3.4e38)");
  }
  if (value->real != 0 && fabs(value->real) < FLT_MIN) { /* kernels would take it for zero, "none" */
    return fail_value(t, TS_CHECK_FINITE, value, "is too small for a float (below 1.2e-38)");
  }
  if (!in_range(t, value)) {
    return false;
  }
  if (field != NULL) {
    *field = value->real;
  }
  return true;
}

static bool take_reals(const ts_target *t, const ts_value *value) {
  ts_reals list = {0};
  if (value->kind != TS_VALUE_LIST) {
    return fail_value(t, TS_CHECK_TYPE, value, "is not a list of numbers");
  }
  bool good = true;
  for (int i = 0; i < value->n; ++i) {
    double item;
    if (take_number(t, &value->items[i], &item)) {
      ts_reals_add(&list, item);
    } else {
      good = false;
    }
  }
  ts_reals_clear(t->field);
  *(ts_reals *) t->field = list;
  return good;
}

static bool take_real(const ts_target *t, const ts_value *value) {
  return take_number(t, value, t->field);
}

static bool take_pair(const ts_target *t, const ts_value *value) {
  if (value->kind != TS_VALUE_LIST || value->n != 2) {
    return fail_value(t, TS_CHECK_TYPE, value, "is not a list of two numbers");
  }
  double *pair = t->field;
  return take_number(t, &value->items[0], &pair[0]) && take_number(t, &value->items[1], &pair[1]);
}

/* The accepted word that this one was meant to be, NULL when none is near; newly allocated. */
static char *nearest_word(const char *list, const char *word) {
  ts_strings words = {0};
  for (const char *item = list; *item != '\0'; item += strcspn(item, "|")) {
    item += *item == '|';
    char *copy = ts_format("%.*s", (int) strcspn(item, "|"), item);
    ts_strings_add(&words, copy);
    ts_free(copy);
  }
  const char *nearest = ts_nearest(word, (const char *const *) words.items, (size_t) words.n);
  char *found = ts_strdup(nearest);
  ts_strings_clear(&words);
  return found;
}

/* Why a word is not there yet, with ": " in front; newly allocated, empty where there is no more to say. */
static char *why_later(const char *list, const char *word) {
  size_t n = strlen(word);
  for (const char *item = list; item != NULL && *item != '\0'; item += strcspn(item, "|")) {
    item += *item == '|';
    if (strncasecmp(item, word, n) == 0 && item[n] == ':') {
      return ts_format("%.*s", (int) (strcspn(item, "|") - n), item + n);
    }
  }
  return ts_strdup("");
}

static bool fail_word(const ts_target *t, const ts_value *value) {
  bool later = ts_key_listed(t->key->later, value->string, NULL, NULL);
  bool gone = ts_key_listed(t->key->gone, value->string, NULL, NULL);
  bool suggest = !later && !gone && strlen(value->string) < LONG_WORD;
  char *nearest = suggest ? nearest_word(t->key->accepted, value->string) : NULL;
  char *why = later ? why_later(t->key->why, value->string) : ts_strdup("");
  char *problem = ts_format("is %s%s", later ? "not there yet" : gone ? REMOVED : "not known", why);
  fail_meaning(t, later || gone ? TS_CHECK_WORD_LATER : TS_CHECK_WORD, value, problem, nearest);
  ts_free(problem);
  ts_free(why);
  ts_free(nearest);
  return false;
}

static bool word_accepted(const ts_target *t, const ts_value *value, char **spelling) {
  const char *word = value->string;
  size_t length = 0;
  if (value->kind != TS_VALUE_STRING) {
    return fail_value(t, TS_CHECK_TYPE, value, "is not a string");
  }
  if (t->key->flags & TS_KEY_REGEX && ts_matches(value->string, "") < 0) {
    return fail_value(t, TS_CHECK_REGEX, value, "is not a valid regular expression");
  }
  if (t->key->accepted != NULL && !ts_key_listed(t->key->accepted, value->string, &word, &length)) {
    return fail_word(t, value);
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
  static const char *const names[][2] = {
      {"float32", "fp32"}, {"float", "fp32"}, {"bfloat16", "bf16"}, {"float16", "fp16"}, {"half", "fp16"}};
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
  bool one = value->kind == TS_VALUE_STRING && (t->key->flags & TS_KEY_ONE) != 0;
  if (value->kind != TS_VALUE_LIST && !one) {
    return fail_value(t, TS_CHECK_TYPE, value, "is not a list of strings");
  }
  bool good = true;
  for (int i = 0; i < (one ? 1 : value->n); ++i) {
    char *word = NULL;
    if (word_accepted(t, one ? value : &value->items[i], &word)) {
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
    [TS_KEY_BOOL] = take_bool,     [TS_KEY_INT] = take_int,       [TS_KEY_REAL] = take_real,
    [TS_KEY_STRING] = take_string, [TS_KEY_DTYPE] = take_dtype,   [TS_KEY_PAIR] = take_pair,
    [TS_KEY_ANY] = take_any,       [TS_KEY_SWITCH] = take_switch, [TS_KEY_STRINGS] = take_strings,
    [TS_KEY_INTS] = take_ints,     [TS_KEY_REALS] = take_reals,   [TS_KEY_VIEW] = take_view,
    [TS_KEY_BYTES] = take_bytes,
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

/* What the switch of a section says: its setting, or its default. */
static bool is_off(const ts_reader *reader, const ts_key *key) {
  const ts_setting *setting = ts_reader_find(reader, key->path);
  bool left = setting != NULL && ts_setting_is_auto(setting);
  ts_value initial = ts_key_initial(key);
  const ts_value *value = setting != NULL && !left ? &setting->value : &initial;
  bool open = left && key->type == TS_KEY_SWITCH; /* the machine may turn it on */
  bool off = value->kind == TS_VALUE_BOOL && !value->truth && !open;
  ts_value_clear(&initial);
  return off;
}

/* The switch of a section ("fp16.enabled"), or NULL. */
static const ts_key *section_switch(const char *section, int length) {
  static const char *const names[] = {"enabled", "shared_parameters.enabled"};
  int key = -1;
  for (size_t i = 0; i < sizeof names / sizeof *names && key < 0; ++i) {
    char *path = ts_format("%.*s.%s", length, section, names[i]);
    key = ts_key_find(path);
    ts_free(path);
  }
  return key >= 0 ? ts_key_at(key) : NULL;
}

/* Of the switches above a key the nearest that is off; else the nearest, or NULL. */
static const ts_key *nearest_switch(const ts_reader *reader, const char *path, bool *off) {
  const ts_key *nearest = NULL;
  *off = false;
  for (int length = (int) strlen(path) - 1; length > 0 && !*off; --length) {
    const ts_key *key = path[length] == '.' ? section_switch(path, length) : NULL;
    if (key != NULL && strcmp(key->path, path) != 0) {
      *off = is_off(reader, key);
      nearest = *off || nearest == NULL ? key : nearest;
    }
  }
  return nearest;
}

static bool is_refused(const ts_key *key) {
  return key->status >= TS_KEY_REFUSED;
}

static const char *const reasons[] = {
    [TS_KEY_REFUSED] = "not there yet", [TS_KEY_REMOVED] = REMOVED, [TS_KEY_RENAMED] = "called otherwise here"};

static void refuse_key(ts_reader *reader, const ts_key *key, const ts_setting *setting) {
  bool off;
  const ts_key *above = nearest_switch(reader, setting->path, &off);
  if (off) {
    ts_reader_note(reader, "%s: no effect: %s leaves its section off", setting->name, above->path);
  } else if (above == NULL || !is_refused(above)) { /* else the section is refused already */
    ts_reader_report(reader, TS_CHECK_REFUSED, setting->path, "refused, %s: %s; accepted: %s%s%s", reasons[key->status],
                     key->help,
                     key->initial == NULL    ? "to leave it out"
                     : *key->initial == '\0' ? "\"\""
                                             : key->initial,
                     key->instead != NULL ? ", or " : "", key->instead != NULL ? key->instead : "");
  }
}

/* What the row's status says about a setting that the user made. */
static void judge(ts_reader *reader, const ts_key *key, const ts_setting *setting) {
  bool silent = setting->from == TS_FROM_MODEL && key->flags & TS_KEY_SILENT;
  if (key->status == TS_KEY_NO_EFFECT && !silent) {
    ts_reader_note(reader, "%s: no effect: %s", setting->name, key->help);
  } else if (is_refused(key) && !is_neutral(key, &setting->value)) {
    refuse_key(reader, key, setting);
  }
}

bool ts_setting_is_auto(const ts_setting *setting) {
  const ts_value *value = &setting->value;
  bool word = value->kind == TS_VALUE_STRING && strcasecmp(value->string, "auto") == 0;
  return word && ts_key_at(setting->key)->flags & TS_KEY_AUTO;
}

/* A number or a word; names and paths are none to choose among. */
static bool has_one_value(const ts_key *key) {
  static const bool one[TS_N_KEY_TYPES] = {
      [TS_KEY_BOOL] = true, [TS_KEY_SWITCH] = true, [TS_KEY_INT] = true,  [TS_KEY_BYTES] = true,
      [TS_KEY_REAL] = true, [TS_KEY_STRING] = true, [TS_KEY_DTYPE] = true};
  return one[key->type] && (key->type != TS_KEY_STRING || key->accepted != NULL);
}

/* Values to be tried, each right by itself.  One stays in the field and is the first that the reader tells of. */
static void store_choice(const ts_target *t, const ts_value *list) {
  ts_strings values = {0};
  bool good = true;
  for (int i = 0; i < list->n; ++i) {
    ts_text text = {0};
    good = take_value[t->key->type](t, &list->items[i]) && good;
    if (good && t->field != NULL) {
      ts_deck_print_value(&text, t->key, t->field);
      ts_strings_add(&values, text.text);
    }
    ts_text_free(&text);
  }
  const bool works = t->key->status == TS_KEY_WORKS;
  int taken = works ? t->reader->choice % list->n : 0;
  t->reader->choice /= works ? list->n : 1;
  if (good) {
    (void) take_value[t->key->type](t, &list->items[taken]);
    judge(t->reader, t->key, t->setting);
  }
  for (; taken > 0 && taken < values.n; --taken) {
    char *value = values.items[taken];
    values.items[taken] = values.items[taken - 1];
    values.items[taken - 1] = value;
  }
  if (good && works && values.n > 0) {
    ts_deck_choices *all = t->reader->choices;
    TS_GROW(all->items, all->n, all->capacity);
    all->items[all->n++] = (ts_deck_choice){ts_strdup(t->setting->path), values.n, values.items};
  } else {
    ts_strings_clear(&values);
  }
}

/* DeepSpeed's word for all stages. */
static bool is_all_stages(const ts_target *t, const ts_value *value) {
  return value->kind == TS_VALUE_STRING && strcasecmp(value->string, "all") == 0 &&
         strcmp(t->key->path, "zero_optimization.stage") == 0;
}

static bool is_list(const ts_target *t, const ts_value *value) {
  const bool ours = t->setting->from != TS_FROM_MODEL && strchr(t->setting->path, '[') == NULL;
  return ours && has_one_value(t->key) && !is_refused(t->key) && value->kind == TS_VALUE_LIST && value->n > 0;
}

/* False where the value is none to choose among. */
static bool store_list(const ts_target *t, const ts_value *value) {
  const bool all_stages = is_all_stages(t, value);
  if (!all_stages && !is_list(t, value)) {
    return false;
  }
  if (t->reader->choices == NULL && t->key->status != TS_KEY_NO_EFFECT) {
    fail_value(t, TS_CHECK_TYPE, value, "is for `tessera tune`, which tries each");
    return true;
  }
  ts_value all = {0};
  if (all_stages) {
    TS_CHECK(ts_value_from_word(&t->reader->source, "schema", "[0, 1, 2, 3]", &all, NULL) == TS_OK, "stages");
  }
  store_choice(t, all_stages ? &all : value);
  ts_value_clear(&all);
  return true;
}

static void store_setting(ts_reader *reader, const ts_setting *setting) {
  const ts_key *key = ts_key_at(setting->key);
  ts_target target = {reader, key, setting, ts_deck_field(reader->deck, key, setting->path)};
  if (ts_setting_is_auto(setting)) {
    return; /* ts_reader_resolve knows what it became */
  }
  if (is_refused(key)) {
    target.field = NULL;
  }
  if (store_list(&target, &setting->value)) {
    return;
  }
  if (take_value[key->type](&target, &setting->value)) {
    judge(reader, key, setting);
  }
}

static void store_text(ts_reader *reader, const ts_key *key, const char *path, const char *text) {
  ts_target target = {reader, key, NULL, ts_deck_field(reader->deck, key, path)};
  ts_value value = value_of(key, text);
  TS_CHECK(take_value[key->type](&target, &value), "%s of %s", text, key->path);
  ts_value_clear(&value);
}

void ts_reader_store_text(ts_reader *reader, const ts_key *key, const char *text) {
  store_text(reader, key, key->path, text);
}

static void store_default(ts_reader *reader, const ts_key *key, const char *path) {
  if (key->type == TS_KEY_STRING) {
    *(char **) ts_deck_field(reader->deck, key, path) = ts_strdup(key->initial != NULL ? key->initial : "");
  } else if (key->initial != NULL) {
    store_text(reader, key, path, key->initial);
  }
}

static void store_defaults(ts_reader *reader) {
  int n = ts_key_count();
  for (int i = 0; i < n; ++i) {
    const ts_key *key = ts_key_at(i);
    const ts_deck_list *list = strchr(key->path, '[') != NULL ? ts_deck_list_find(key->path) : NULL;
    for (int e = 0; list != NULL && key->offset >= 0 && e < *ts_deck_list_length(reader->deck, list); ++e) {
      char *path = ts_deck_list_path(key, e);
      store_default(reader, key, path);
      ts_free(path);
    }
    if (list == NULL && key->offset >= 0) {
      store_default(reader, key, key->path);
    }
  }
}

void ts_reader_store(ts_reader *reader) {
  const ts_deck_list *list;
  for (int i = 0; (list = ts_deck_list_at(i)) != NULL; ++i) {
    ts_deck_list_allocate(reader->deck, list);
  }
  store_defaults(reader);
  for (int i = 0; i < reader->n_settings; ++i) {
    store_setting(reader, &reader->settings[i]);
  }
}
