#include "deck/schema.h"

#include "base/memory.h"

#include <string.h>
#include <strings.h>

static const ts_key_table *const tables[] = {&ts_keys_model,    &ts_keys_run,      &ts_keys_train, &ts_keys_zero,
                                             &ts_keys_parallel, &ts_keys_deepspeed};

/* Bounds beyond this are there for the 64 bits, not for the user. */
#define SHOWN 9.2e18

#define N_TABLES ((int) (sizeof tables / sizeof *tables))

int ts_key_count(void) {
  int count = 0;
  for (int t = 0; t < N_TABLES; ++t) {
    count += tables[t]->n;
  }
  return count;
}

const ts_key *ts_key_at(int index) {
  for (int t = 0; t < N_TABLES; ++t) {
    if (index < tables[t]->n) {
      return &tables[t]->keys[index];
    }
    index -= tables[t]->n;
  }
  return NULL;
}

/* Compares while "[12]" in path stands for "[]" in the row. */
static bool same_path(const char *row, const char *path) {
  while (*row != '\0' && *row == *path) {
    ++row;
    ++path;
    if (row[-1] == '[') {
      path += strspn(path, "0123456789");
    }
  }
  return *row == '\0' && *path == '\0';
}

int ts_key_find(const char *path) {
  int n = ts_key_count();
  for (int i = 0; i < n; ++i) {
    if (same_path(ts_key_at(i)->path, path)) {
      return i;
    }
  }
  return -1;
}

int ts_key_canonical(int index) {
  const ts_key *key = ts_key_at(index);
  return key->alias != NULL ? ts_key_find(key->alias) : index;
}

bool ts_key_is_section(const char *path) {
  size_t length = strlen(path);
  int n = ts_key_count();
  for (int i = 0; i < n; ++i) {
    const char *row = ts_key_at(i)->path;
    if (strncmp(row, path, length) == 0 && (row[length] == '.' || strncmp(row + length, "[]", 2) == 0)) {
      return true;
    }
  }
  return length == 0;
}

const char *ts_key_nearest(const char *path) {
  int n = ts_key_count();
  const char **paths = ts_calloc((size_t) n, sizeof *paths);
  for (int i = 0; i < n; ++i) {
    paths[i] = ts_key_at(i)->path;
  }
  const char *nearest = ts_nearest(path, paths, (size_t) n);
  ts_free(paths);
  return nearest;
}

static const char *const selectors[][2] = {{"model.", "model.model_type"},
                                           {"optimizer.params.", "optimizer.type"},
                                           {"scheduler.params.", "scheduler.type"}};

const char *ts_key_selector(const ts_key *key) {
  for (size_t i = 0; key->only != NULL && i < sizeof selectors / sizeof *selectors; ++i) {
    if (strncmp(key->path, selectors[i][0], strlen(selectors[i][0])) == 0) {
      return selectors[i][1];
    }
  }
  return NULL;
}

bool ts_key_listed(const char *list, const char *word, const char **spelling, size_t *length) {
  size_t n = strlen(word);
  for (const char *item = list; item != NULL && *item != '\0'; item += strcspn(item, "|")) {
    item += *item == '|';
    if (n == strcspn(item, "|") && strncasecmp(item, word, n) == 0) {
      if (spelling != NULL) {
        *spelling = item;
        *length = n;
      }
      return true;
    }
  }
  return false;
}

static void describe_list(const char *list, ts_text *to) {
  for (; *list != '\0'; ++list) {
    ts_text_add(to, *list == '|' ? ", " : "%c", *list);
  }
}

static void describe_number(const ts_key *key, const char *what, ts_text *to) {
  bool low = key->min > -SHOWN, high = key->max < SHOWN;
  ts_text_add(to, "%s", what);
  if (low) {
    ts_text_add(to, " %s %.15g", key->flags & TS_KEY_OPEN_MIN ? "above" : high ? "from" : "of at least", key->min);
  }
  if (high) {
    ts_text_add(to, "%s %s %.15g", low && (key->flags & TS_KEY_OPEN_MAX) ? " and" : "",
                key->flags & TS_KEY_OPEN_MAX ? "below" : low ? "to" : "up to", key->max);
  }
}

void ts_key_describe(const ts_key *key, ts_text *to) {
  static const char *const plain[TS_N_KEY_TYPES] = {
      [TS_KEY_BOOL] = "true, false",
      [TS_KEY_STRING] = "a string in double quotes",
      [TS_KEY_STRINGS] = "a list of strings, [\"a\", \"b\"]",
      [TS_KEY_ANY] = "a list or section",
  };
  if (key->accepted != NULL) {
    describe_list(key->accepted, to);
  } else if (key->type == TS_KEY_INT) {
    describe_number(key, "an integer", to);
  } else if (key->type == TS_KEY_REAL) {
    describe_number(key, "a number", to);
  } else if (key->type == TS_KEY_PAIR) {
    describe_number(key, "two numbers, each", to);
  } else {
    ts_text_add(to, "%s", plain[key->type]);
  }
  if (key->flags & TS_KEY_AUTO) {
    ts_text_add(to, ", \"auto\"");
  }
}

const char *ts_key_type_name(ts_key_type type) {
  static const char *const names[TS_N_KEY_TYPES] = {
      [TS_KEY_BOOL] = "true/false", [TS_KEY_INT] = "integer",   [TS_KEY_REAL] = "number",
      [TS_KEY_STRING] = "string",   [TS_KEY_DTYPE] = "type",    [TS_KEY_PAIR] = "two numbers",
      [TS_KEY_STRINGS] = "strings", [TS_KEY_ANY] = "section",
  };
  return names[type];
}
