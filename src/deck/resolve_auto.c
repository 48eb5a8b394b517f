/* The values of keys that were left "auto". */
#include "base/memory.h"
#include "deck/reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A product, exact while all its factors are integers. */
typedef struct ts_product {
  double real;
  int64_t whole;
  bool exact;
} ts_product;

static void multiply_number(ts_product *p, double real, int64_t whole, bool exact) {
  p->real *= real;
  p->exact = p->exact && exact && !__builtin_mul_overflow(p->whole, whole, &p->whole);
}

/* False for a factor that is neither a number nor a number of the deck. */
static bool multiply_by(ts_product *p, const ts_deck *deck, const char *factor) {
  int row = ts_key_find(factor);
  const ts_key *key = row >= 0 ? ts_key_at(row) : NULL;
  const void *field = key != NULL ? ts_deck_field(deck, key, factor) : NULL;
  char *stop = NULL;
  double number = strtod(factor, &stop);
  if (key != NULL && key->type == TS_KEY_INT && field != NULL) {
    multiply_number(p, (double) *(const int64_t *) field, *(const int64_t *) field, true);
  } else if (key != NULL && key->type == TS_KEY_REAL && field != NULL) {
    multiply_number(p, *(const double *) field, 0, false);
  } else if (key == NULL && stop > factor && *stop == '\0') {
    multiply_number(p, number, (int64_t) number, number == floor(number));
  } else {
    return false;
  }
  return true;
}

/* From left to right, as Python computes it. */
static bool evaluate_formula(const ts_deck *deck, const char *formula, ts_product *p) {
  *p = (ts_product){1, 1, true};
  for (const char *at = formula; *at != '\0';) {
    size_t length = strcspn(at, " ");
    char *factor = ts_format("%.*s", (int) length, at);
    bool known = multiply_by(p, deck, factor);
    ts_free(factor);
    if (!known) {
      return false;
    }
    at += length + strspn(at + length, " *");
  }
  return true;
}

/* The formula's value as deck text, newly allocated; NULL for an integer that is still open. */
static char *formula_text(const ts_deck *deck, const ts_key *key, const char *formula) {
  ts_product p;
  if (!evaluate_formula(deck, formula, &p)) {
    return ts_strdup(formula);
  }
  if (key->type != TS_KEY_INT) {
    return ts_format("%.17g", p.real);
  }
  int64_t whole = p.exact ? p.whole : p.real < 9.2e18 ? (int64_t) p.real : INT64_MAX;
  return whole >= key->min ? ts_format("%lld", (long long) whole) : NULL;
}

static bool is_auto(const ts_reader *reader, const char *path) {
  const ts_setting *setting = ts_reader_find(reader, path);
  return setting != NULL && ts_setting_is_auto(setting);
}

static void fill_auto(ts_reader *reader, const ts_auto *row) {
  const ts_key *key = ts_key_at(ts_key_find(row->path));
  char *text = key->offset >= 0 ? formula_text(reader->deck, key, row->formula) : NULL;
  if (text != NULL) {
    ts_reader_store_text(reader, key, text);
  }
  ts_free(text);
}

/* The batch waits for the ranks, unless nothing is given that it would follow from. */
static void fill_batch(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  const char *micro = "train_micro_batch_size_per_gpu";
  bool left = is_auto(reader, micro) || is_auto(reader, "train_batch_size");
  if (left && !d->elasticity.enabled && d->train_batch_size == 0 && d->train_micro_batch_size_per_gpu == 0) {
    fill_auto(reader, ts_auto_find(micro));
  }
}

void ts_reader_fill_auto(ts_reader *reader) {
  for (int i = 0; i < ts_auto_count(); ++i) {
    const ts_auto *row = ts_auto_at(i);
    if (!row->late && is_auto(reader, row->path)) {
      fill_auto(reader, row);
    }
  }
  fill_batch(reader);
}

/* Nothing is said of what is still open: the batch waits for the number of ranks, a switch for the machine. */
static void note_auto(ts_reader *reader, const ts_setting *setting) {
  const ts_key *key = ts_key_at(setting->key);
  const ts_auto *row = ts_auto_find(key->path);
  const void *field = ts_deck_field(reader->deck, key, setting->path);
  bool open = key->type == TS_KEY_SWITCH ||
              (field != NULL && key->type == TS_KEY_INT && key->initial == NULL && *(const int64_t *) field < key->min);
  ts_text value = {0};
  if (field != NULL && !open) {
    ts_deck_print_value(&value, key, field);
  } else if (field == NULL && key->initial != NULL) {
    ts_text_add(&value, "%s", key->initial);
  }
  if (value.length > 0 && row != NULL) {
    ts_text_add(&value, " (");
    ts_auto_explain(row, &value);
    ts_text_add(&value, ")");
  }
  if (value.length > 0) {
    ts_reader_note(reader, "%s: \"auto\": %s", setting->name, value.text);
  }
  ts_text_free(&value);
}

void ts_reader_note_auto(ts_reader *reader) {
  for (int i = 0; i < reader->n_settings; ++i) {
    if (ts_setting_is_auto(&reader->settings[i])) {
      note_auto(reader, &reader->settings[i]);
    }
  }
}
