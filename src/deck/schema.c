#include "deck/schema.h"

#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "family/family.h"

#include <pthread.h>
#include <string.h>
#include <strings.h>

static const ts_key_table *const tables[] = {&ts_keys_model,   &ts_keys_run,      &ts_keys_train,
                                             &ts_keys_zero,    &ts_keys_parallel, &ts_keys_moe,
                                             &ts_keys_observe, &ts_keys_monitor,  &ts_keys_deepspeed};

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

/* ---- a row by its path ---- */

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

/* Rows at their paths' hashes, or in the next free place; a deck is looked up key by key. */
enum { PLACES = 4096 };
static int16_t row_at[PLACES];
static pthread_once_t rows_are_placed = PTHREAD_ONCE_INIT;

/* Of a path and of the row that it stands for the same. */
static unsigned hash_of_path(const char *path) {
  uint32_t hash = 2166136261u; /* FNV-1a */
  for (; *path != '\0'; ++path) {
    hash = (hash ^ (unsigned char) *path) * 16777619u;
    path += *path == '[' ? strspn(path + 1, "0123456789") : 0;
  }
  return (hash ^ hash >> 16) % PLACES;
}

/* Where the row is, or would be: a place with -1. */
static unsigned place_of_path(const char *path) {
  unsigned at = hash_of_path(path);
  while (row_at[at] >= 0 && !same_path(ts_key_at(row_at[at])->path, path)) {
    at = (at + 1) % PLACES;
  }
  return at;
}

static void place_rows(void) {
  int n = ts_key_count();
  TS_CHECK(2 * n < PLACES, "%d keys are too many for %d places", n, PLACES);
  for (int i = 0; i < PLACES; ++i) {
    row_at[i] = -1;
  }
  for (int i = 0; i < n; ++i) {
    int16_t *row = &row_at[place_of_path(ts_key_at(i)->path)];
    *row = *row < 0 ? (int16_t) i : *row; /* of two rows of one path the first */
  }
}

int ts_key_find(const char *path) {
  pthread_once(&rows_are_placed, place_rows);
  return row_at[place_of_path(path)];
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

/* The key or section in the section of `path` (its first `section` bytes) that is nearest to its last name. */
static char *nearest_below(const char *path, size_t section) {
  int n = ts_key_count(), n_names = 0;
  char **names = ts_calloc((size_t) n, sizeof *names);
  for (int i = 0; i < n; ++i) {
    const char *row = ts_key_at(i)->path;
    if (strncmp(row, path, section) == 0) {
      names[n_names++] = ts_format("%.*s", (int) strcspn(row + section, ".["), row + section);
    }
  }
  const char *name = ts_nearest(path + section, (const char *const *) names, (size_t) n_names);
  char *nearest = name != NULL ? ts_format("%.*s%s", (int) section, path, name) : NULL;
  for (int i = 0; i < n_names; ++i) {
    ts_free(names[i]);
  }
  ts_free(names);
  return nearest;
}

static const char *same_name(const char *name) {
  int n = ts_key_count();
  for (int i = 0; i < n; ++i) {
    const char *row = ts_key_at(i)->path, *dot = strrchr(row, '.');
    if (ts_key_at(i)->alias == NULL && strcmp(dot != NULL ? dot + 1 : row, name) == 0) {
      return row;
    }
  }
  return NULL;
}

static const char *nearest_path(const char *path) {
  int n = ts_key_count();
  const char **paths = ts_calloc((size_t) n, sizeof *paths);
  for (int i = 0; i < n; ++i) {
    paths[i] = ts_key_at(i)->path;
  }
  const char *nearest = ts_nearest(path, paths, (size_t) n);
  ts_free(paths);
  return nearest;
}

/* "optimizer.groups[3].pattern" as its row has it; newly allocated. */
static char *row_path(const char *path) {
  const char *bracket = strchr(path, '[');
  int length = bracket != NULL ? (int) (bracket - path) + 1 : 0;
  const char *rest = path + length;
  return ts_format("%.*s%s", length, path, bracket != NULL ? rest + strspn(rest, "0123456789") : rest);
}

static char *nearest_row(const char *path) {
  const char *dot = strrchr(path, '.');
  size_t section = dot != NULL ? (size_t) (dot - path) + 1 : 0;
  char *parent = ts_format("%.*s", section > 0 ? (int) section - 1 : 0, path);
  bool known = ts_key_is_section(parent);
  ts_free(parent);
  char *nearest = nearest_below(path, section);
  nearest = nearest != NULL ? nearest : ts_strdup(same_name(path + section));
  return nearest != NULL || (known && section > 0) ? nearest : ts_strdup(nearest_path(path));
}

char *ts_key_nearest(const char *path) {
  char *row = row_path(path);
  char *nearest = nearest_row(row);
  ts_free(row);
  return nearest;
}

static const char *const selectors[][2] = {
    {"model.", "model.model_type"}, {"optimizer.params.", "optimizer.type"}, {"scheduler.params.", "scheduler.type"}};

const char *ts_key_selector(const ts_key *key) {
  bool selected = key->only != NULL || (key->flags & TS_KEY_FAMILY) != 0;
  for (size_t i = 0; selected && i < sizeof selectors / sizeof *selectors; ++i) {
    if (strncmp(key->path, selectors[i][0], strlen(selectors[i][0])) == 0) {
      return selectors[i][1];
    }
  }
  return NULL;
}

bool ts_key_belongs(const ts_key *key, const char *value) {
  if ((key->flags & TS_KEY_FAMILY) == 0) {
    return ts_key_listed(key->only, value, NULL, NULL);
  }
  const ts_family *family = ts_family_find(value);
  return family != NULL && ts_family_has(family, key->path + strlen("model."));
}

void ts_key_describe_owners(const ts_key *key, ts_text *to) {
  if ((key->flags & TS_KEY_FAMILY) == 0) {
    ts_text_add(to, "%s", key->only);
    return;
  }
  const char *bar = "";
  for (const ts_family *const *family = ts_families; *family != NULL; ++family) {
    if (ts_family_has(*family, key->path + strlen("model."))) {
      ts_text_add(to, "%s%s", bar, (*family)->model_type);
      bar = "|";
    }
  }
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
                key->flags & TS_KEY_OPEN_MAX ? "below"
                : low                        ? "to"
                                             : "up to",
                key->max);
  }
}

void ts_key_describe(const ts_key *key, ts_text *to) {
  static const char *const plain[TS_N_KEY_TYPES] = {
      [TS_KEY_BOOL] = "true, false",
      [TS_KEY_SWITCH] = "true, false",
      [TS_KEY_BYTES] = "a number of bytes, or a string such as \"24GB\" or \"22.5GiB\"",
      [TS_KEY_STRING] = "a string in double quotes",
      [TS_KEY_STRINGS] = "a list of strings, [\"a\", \"b\"]",
      [TS_KEY_VIEW] =
          "a list of extents, each -1 (what is left), a count, or at partition_dim a list of sizes: (3, -1), "
          "((5120, 1280, 1280), -1)",
      [TS_KEY_ANY] = "a list or section",
  };
  if (key->flags & TS_KEY_REGEX) {
    ts_text_add(to, "%s",
                key->type == TS_KEY_STRINGS ? "a list of regular expressions, [\"a\", \"b.*c\"]"
                                            : "a regular expression in double quotes");
  } else if (key->accepted != NULL) {
    describe_list(key->accepted, to);
  } else if (key->type == TS_KEY_INT) {
    describe_number(key, "an integer", to);
  } else if (key->type == TS_KEY_REAL) {
    describe_number(key, "a number", to);
  } else if (key->type == TS_KEY_PAIR) {
    describe_number(key, "two numbers, each", to);
  } else if (key->type == TS_KEY_INTS) {
    describe_number(key, "a list of integers, each", to);
  } else if (key->type == TS_KEY_REALS) {
    describe_number(key, "a list of numbers, each", to);
  } else {
    ts_text_add(to, "%s", plain[key->type]);
  }
  ts_text_add(to, "%s%s", key->flags & TS_KEY_ENDLESS ? ", \"inf\"" : "", key->flags & TS_KEY_ONE ? ", or one" : "");
  const ts_auto *row = key->flags & TS_KEY_AUTO ? ts_auto_find(key->path) : NULL;
  if (key->flags & TS_KEY_AUTO) {
    ts_text_add(to, ", \"auto\"%s%s", row != NULL ? ": " : "", row != NULL ? row->formula : "");
  }
  if (row != NULL && row->argument != NULL) {
    ts_text_add(to, " (");
    ts_auto_explain(row, to);
    ts_text_add(to, ")");
  }
}

const char *ts_key_type_name(ts_key_type type) {
  static const char *const names[TS_N_KEY_TYPES] = {
      [TS_KEY_BOOL] = "true/false",  [TS_KEY_SWITCH] = "true/false", [TS_KEY_INT] = "integer",
      [TS_KEY_REAL] = "number",      [TS_KEY_STRING] = "string",     [TS_KEY_DTYPE] = "type",
      [TS_KEY_PAIR] = "two numbers", [TS_KEY_STRINGS] = "strings",   [TS_KEY_INTS] = "integers",
      [TS_KEY_ANY] = "section",      [TS_KEY_REALS] = "numbers",     [TS_KEY_VIEW] = "extents",
      [TS_KEY_BYTES] = "bytes",
  };
  return names[type];
}
