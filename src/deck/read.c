/* The way of a deck: text, --set, json, config.json; then fields, derived fields, checks. */
#include "base/memory.h"
#include "deck/reader.h"

#include <string.h>
#include <unistd.h>

#define SET_NAME "--set"

char *ts_reader_beside(const char *file, const char *path) {
  const char *slash = *path == '/' ? NULL : strrchr(file, '/');
  return ts_format("%.*s%s", slash != NULL ? (int) (slash - file) + 1 : 0, file, path);
}

static void read_set(ts_reader *reader, const char *set) {
  const char *equals = strchr(set, '=');
  if (equals == NULL || equals == set || equals[-1] == ' ') {
    ts_deck_report(reader->err, TS_CHECK_SET, SET_NAME, set, "not an assignment; accepted: key.path=value");
    return;
  }
  char *key = ts_format("%.*s", (int) (equals - set), set);
  ts_value value = {0};
  ts_error problem = {0};
  if (ts_value_from_word(&reader->source, SET_NAME, equals + 1, &value, &problem) == TS_OK) {
    value.file = ts_source_name(&reader->source, SET_NAME);
    ts_value section = {.kind = TS_VALUE_SECTION, .n = 1, .items = &value, .names = &key};
    ts_reader_take(reader, "", &section, TS_FROM_SET);
  } else {
    ts_error_add(reader->err, SET_NAME ": %s: %s", key, problem.text);
  }
  ts_error_clear(&problem);
  ts_value_clear(&value);
  ts_free(key);
}

const char *ts_setting_string(const ts_setting *setting) {
  return setting != NULL && setting->value.kind == TS_VALUE_STRING ? setting->value.string : "";
}

/* The json that a setting names; where there is none, the setting is what is wrong. */
static bool read_json(ts_reader *reader, const ts_setting *setting, const char *path, ts_value *json) {
  ts_error problem = {0};
  bool readable = ts_value_from_json(&reader->source, path, true, json, &problem) == TS_OK;
  if (!readable && access(path, R_OK) != 0) {
    char *where = ts_reader_where(reader, setting);
    ts_error_add(reader->err, "%s: %s: %s", where, setting->name, problem.text);
    ts_free(where);
  } else if (!readable) {
    ts_error_add(reader->err, "%s", problem.text);
  }
  ts_error_clear(&problem);
  return readable;
}

/* False when there is a file and it cannot be read. */
static bool read_deepspeed(ts_reader *reader) {
  const ts_setting *setting = ts_reader_find(reader, "deepspeed_config");
  const char *name = ts_setting_string(setting);
  if (*name == '\0') {
    return true;
  }
  char *path = setting->from == TS_FROM_SET ? ts_strdup(name) : ts_reader_beside(setting->value.file, name);
  ts_value json = {0};
  bool readable = read_json(reader, setting, path, &json);
  if (readable) {
    ts_reader_take(reader, "", &json, TS_FROM_JSON);
  }
  ts_value_clear(&json);
  ts_free(path);
  return readable;
}

/* No libconfig text begins with a brace; DeepSpeed's files do. */
static bool is_json(const char *text) {
  return text[strspn(text, " \t\r\n")] == '{';
}

static void read_sources(ts_reader *reader, const char *text, size_t length, char *const *sets, int n_sets) {
  ts_value root = {0};
  if (is_json(text)) {
    ts_error_add(reader->err, "%s: this is json: put deepspeed_config = \"%s\"; into a deck", reader->name,
                 reader->name);
  } else if (ts_value_from_config(&reader->source, reader->name, text, length, &root, reader->err) == TS_OK) {
    ts_reader_take(reader, "", &root, TS_FROM_DECK);
    for (int i = 0; i < n_sets; ++i) {
      read_set(reader, sets[i]);
    }
    bool complete = read_deepspeed(reader);
    complete = ts_reader_read_model(reader) && complete;
    ts_reader_store(reader);
    if (complete) { /* else what is missing may be in the file */
      ts_reader_check_presence(reader);
    }
  }
  ts_value_clear(&root);
  if (reader->err->count == 0) {
    reader->checked = true;
    ts_reader_resolve(reader);
    ts_reader_check_deck(reader);
  }
  ts_reader_keep_origins(reader);
}

static void clear_reader(ts_reader *reader) {
  for (int i = 0; i < reader->n_settings; ++i) {
    ts_free(reader->settings[i].path);
    ts_free(reader->settings[i].name);
    ts_value_clear(&reader->settings[i].value);
  }
  ts_free(reader->settings);
  ts_source_clear(&reader->source);
}

/* What is accepted can be read again where it was printed, all keys of all its lists with their values. */
static void check_length(ts_reader *reader) {
  ts_text text = {0};
  if (reader->err->count == 0) {
    ts_deck_print(reader->deck, &text);
  }
  if (text.length > TS_DECK_LIMIT) {
    ts_error_add(reader->err, "%s: with the defaults in its lists it has %zu bytes; accepted: at most %u", reader->name,
                 text.length, TS_DECK_LIMIT);
  }
  ts_text_free(&text);
}

/* What a deck is read from, and the lists that it may have (NULL: none). */
typedef struct deck_text {
  const char *name, *text;
  size_t length;
  char *const *sets;
  int n_sets;
  ts_deck_choices *choices;
} deck_text;

/* checked: whether what is wrong is how values go together. */
static ts_status read_way(const deck_text *from, int choice, bool *checked, ts_deck **out, ts_error *err) {
  ts_error errors = {0};
  ts_reader reader = {.deck = ts_calloc(1, sizeof(ts_deck)),
                      .err = &errors,
                      .name = from->name,
                      .choices = from->choices,
                      .choice = choice};
  read_sources(&reader, from->text, from->length, from->sets, from->n_sets);
  check_length(&reader);
  clear_reader(&reader);
  *checked = reader.checked;
  if (errors.count == 0) {
    *out = reader.deck;
    return TS_OK;
  }
  ts_error_add(err, "%s", errors.text);
  ts_error_clear(&errors);
  ts_deck_destroy(&reader.deck);
  return TS_BAD_INPUT;
}

/* Of lists, so many ways to take one value of each are looked at. */
enum { MOST_CHOICES = 256 };

static int count_ways(const ts_deck_choices *choices) {
  int n = 1;
  for (int i = 0; i < choices->n && n < MOST_CHOICES; ++i) {
    n *= choices->items[i].n;
  }
  return n < MOST_CHOICES ? n : MOST_CHOICES;
}

static ts_status read_deck_text(const deck_text *from, ts_deck **out, ts_error *err) {
  ts_error errors = {0};
  bool checked;
  ts_status status = read_way(from, 0, &checked, out, &errors);
  const int ways = checked && from->choices != NULL ? count_ways(from->choices) : 1;
  for (int choice = 1; choice < ways && status != TS_OK; ++choice) {
    ts_error others = {0};
    ts_deck_choices_clear(from->choices);
    status = read_way(from, choice, &checked, out, &others);
    ts_error_clear(&others);
  }
  if (status != TS_OK) {
    ts_error_add(err, "%s", errors.text);
  }
  ts_error_clear(&errors);
  return status;
}

ts_status ts_deck_read_text(const char *name, const char *text, char *const *sets, int n_sets, ts_deck **out,
                            ts_error *err) {
  *out = NULL;
  return read_deck_text(&(deck_text){name, text, strlen(text), sets, n_sets, NULL}, out, err);
}

ts_status ts_deck_read_choices(const char *path, char *const *sets, int n_sets, ts_deck_choices *choices, ts_deck **out,
                               ts_error *err) {
  *out = NULL;
  if (path == NULL) {
    return read_deck_text(&(deck_text){SET_NAME, "", 0, sets, n_sets, choices}, out, err);
  }
  char *text = NULL;
  size_t length = 0;
  if (ts_read_file(path, TS_DECK_LIMIT, &text, &length, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_status status = read_deck_text(&(deck_text){path, text, length, sets, n_sets, choices}, out, err);
  ts_free(text);
  return status;
}

ts_status ts_deck_read(const char *path, char *const *sets, int n_sets, ts_deck **out, ts_error *err) {
  return ts_deck_read_choices(path, sets, n_sets, NULL, out, err);
}

void ts_deck_choices_clear(ts_deck_choices *choices) {
  for (int i = 0; i < choices->n; ++i) {
    ts_free(choices->items[i].path);
    ts_strings_clear(&(ts_strings){choices->items[i].n, choices->items[i].values});
  }
  ts_free(choices->items);
  *choices = (ts_deck_choices){0};
}

static void destroy_field(const ts_deck *deck, const ts_key *key, const char *path) {
  void *field = ts_deck_field(deck, key, path);
  if (key->type == TS_KEY_STRING) {
    ts_free(*(char **) field);
  } else if (key->type == TS_KEY_STRINGS) {
    ts_strings_clear(field);
  } else if (key->type == TS_KEY_INTS) {
    ts_ints_clear(field);
  } else if (key->type == TS_KEY_REALS) {
    ts_reals_clear(field);
  } else if (key->type == TS_KEY_VIEW) {
    ts_view_clear(field);
  }
}

static void destroy_entries(const ts_deck *deck, const ts_key *key) {
  const ts_deck_list *list = ts_deck_list_find(key->path);
  int n = ts_deck_list_items(deck, list) != NULL ? *ts_deck_list_length(deck, list) : 0;
  for (int e = 0; e < n; ++e) {
    char *path = ts_deck_list_path(key, e);
    destroy_field(deck, key, path);
    ts_free(path);
  }
}

void ts_deck_destroy(ts_deck **deck) {
  ts_deck *d = *deck;
  *deck = NULL;
  if (d == NULL) {
    return;
  }
  int n = ts_key_count();
  for (int i = 0; i < n; ++i) {
    const ts_key *key = ts_key_at(i);
    if (strchr(key->path, '[') != NULL) {
      destroy_entries(d, key);
    } else if (key->offset >= 0) {
      destroy_field(d, key, key->path);
    }
  }
  const ts_deck_list *list;
  for (int i = 0; (list = ts_deck_list_at(i)) != NULL; ++i) {
    ts_free(ts_deck_list_items(d, list));
  }
  ts_strings_clear(&d->notes);
  ts_strings_clear(&d->origins);
  ts_free(d);
}
