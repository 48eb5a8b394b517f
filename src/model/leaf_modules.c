#include "model/leaf_modules.h"

#include "base/memory.h"
#include "base/text.h"
#include "deck/value.h"
#include "family/family.h"
#include "model/model.h"

#include <string.h>

/* One entry of a list of the deck. */
typedef struct entry {
  const char *text;
  bool used;
} entry;

enum { CLASSES, NAMES, SUFFIXES, N_LISTS };
static const char *const list_name[] = {"classes", "names", "name_suffixes"};

struct ts_leaves {
  const ts_deck *deck;
  entry *entry[N_LISTS]; /* owned */
  int n[N_LISTS];
  ts_strings path, class_name; /* of modules whose class was said */
};

ts_leaves *ts_leaves_begin(const ts_deck *deck) {
  const ts_deck_leaf_modules *m = &deck->zero_optimization.leaf_module;
  const ts_strings *list[] = {&m->classes, &m->names, &m->name_suffixes};
  ts_leaves *leaves = ts_calloc(1, sizeof *leaves);
  leaves->deck = deck;
  for (int i = 0; i < N_LISTS; ++i) {
    leaves->n[i] = list[i]->n;
    leaves->entry[i] = ts_calloc((size_t) list[i]->n + 1, sizeof *leaves->entry[i]);
    for (int k = 0; k < list[i]->n; ++k) {
      leaves->entry[i][k].text = list[i]->items[k];
    }
  }
  return leaves;
}

void ts_leaves_note_class(ts_leaves *leaves, const char *path, const char *class_name) {
  ts_strings_add(&leaves->path, path);
  ts_strings_add(&leaves->class_name, class_name);
}

static bool is_of_class(const ts_leaves *leaves, const char *path, size_t length, const char *class_name) {
  bool is = false;
  for (int i = 0; i < leaves->path.n; ++i) {
    is = is || (strlen(leaves->path.items[i]) == length && strncmp(leaves->path.items[i], path, length) == 0 &&
                strcmp(leaves->class_name.items[i], class_name) == 0);
  }
  return is;
}

static bool names_module(const ts_leaves *leaves, int list, const char *text, const char *path, size_t length) {
  size_t n = strlen(text);
  if (list == CLASSES) {
    return is_of_class(leaves, path, length, text);
  }
  bool fits = list == NAMES ? n == length : n > 0 && n <= length;
  return fits && strncmp(path + length - n, text, n) == 0;
}

static bool is_leaf(ts_leaves *leaves, const char *path, size_t length) {
  bool is = false;
  for (int i = 0; i < N_LISTS; ++i) {
    for (int k = 0; k < leaves->n[i]; ++k) {
      if (names_module(leaves, i, leaves->entry[i][k].text, path, length)) {
        leaves->entry[i][k].used = is = true;
      }
    }
  }
  return is;
}

size_t ts_leaves_unit(ts_leaves *leaves, const char *name) {
  size_t all = strlen(name), found = all;
  for (size_t i = all; leaves != NULL && i > 0; --i) { /* to the outermost; all entries that name any are used */
    if ((name[i] == 0 || name[i] == '.') && is_leaf(leaves, name, i)) {
      found = i;
    }
  }
  return found;
}

static const char *last_word(const char *class_name) {
  const char *dot = strrchr(class_name, '.');
  return dot != NULL ? dot + 1 : class_name;
}

/* DeepSpeed's defaults (deepspeed/runtime/zero/leaf_module_config.py), which a model need not have. */
static bool is_default_class(const char *class_name) {
  static const char *const defaults[] = {"MixtralSparseMoeBlock", "Qwen2MoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock"};
  bool is = false;
  for (size_t i = 0; i < sizeof defaults / sizeof *defaults; ++i) {
    is = is || strcmp(last_word(class_name), defaults[i]) == 0;
  }
  return is;
}

/* Of a family's modules, all of which lie in a unit. */
static void note_family_classes(ts_leaves *leaves, const ts_family *family) {
  for (int k = 0; k < leaves->n[CLASSES]; ++k) {
    entry *e = &leaves->entry[CLASSES][k];
    e->used = e->used || ts_family_has_class(family, last_word(e->text)) || is_default_class(e->text);
  }
}

ts_status ts_model_check_leaves(const ts_deck *deck, const char *const *parameter, int n, ts_error *err) {
  const ts_family *family = ts_deck_family(deck);
  if (family == NULL) {
    return TS_OK; /* told when it was written */
  }
  ts_leaves *leaves = ts_leaves_begin(deck);
  for (int i = 0; i < n; ++i) {
    ts_leaves_unit(leaves, parameter[i]); /* which notes the modules that it lies in */
  }
  note_family_classes(leaves, family);
  return ts_leaves_end(&leaves, err);
}

static ts_status report_unused(const ts_leaves *leaves, ts_error *err) {
  ts_status status = TS_OK;
  for (int i = 0; i < N_LISTS; ++i) {
    for (int k = 0; k < leaves->n[i]; ++k) {
      if (!leaves->entry[i][k].used) {
        char *key = ts_format("zero_optimization.leaf_module.%s", list_name[i]);
        status = ts_deck_error(
            leaves->deck, key, err, "\"%s\" names no module of the model: %s", leaves->entry[i][k].text,
            i != CLASSES                         ? "accepted: a unit, or what its name begins with up to a dot"
            : ts_deck_model_is_own(leaves->deck) ? "no unit lies in a module of this class (ts_builder_module)"
                                                 : "accepted: a class of transformers that the model has");
        ts_free(key);
      }
    }
  }
  return status;
}

void ts_leaves_drop(ts_leaves **leaves) {
  ts_leaves *l = *leaves;
  for (int i = 0; i < N_LISTS; ++i) {
    ts_free(l->entry[i]);
  }
  ts_strings_clear(&l->path);
  ts_strings_clear(&l->class_name);
  ts_free(l);
  *leaves = NULL;
}

ts_status ts_leaves_end(ts_leaves **leaves, ts_error *err) {
  ts_status status = report_unused(*leaves, err);
  ts_leaves_drop(leaves);
  return status;
}
