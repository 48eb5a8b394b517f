/** \file
 * The schema: one row per key that a deck may contain.  Rows live in schema_*.c, one array per section; everything else
 * in this room (reading, defaults, checks, messages, printing, the manual) walks them.  Nothing here is collective.
 *
 * To add a key: a field in deck.h, a row in a schema_*.c.  A key of DeepSpeed without a field has a row too, with the
 * reason why it has no effect or is refused.
 */
#ifndef TS_DECK_SCHEMA_H
#define TS_DECK_SCHEMA_H

#include "deck/deck.h"

#include <stddef.h>

typedef enum ts_key_type {
  TS_KEY_BOOL,    /**< bool */
  TS_KEY_SWITCH,  /**< ts_switch: a bool, or "auto", which is decided on the machine */
  TS_KEY_INT,     /**< int64_t; 5e8 is fine, 5.5 is not */
  TS_KEY_BYTES,   /**< int64_t: a number, or a string with a unit, "24GB" (ts_parse_bytes); 0 only as a number */
  TS_KEY_REAL,    /**< double, finite */
  TS_KEY_STRING,  /**< char *, never NULL */
  TS_KEY_DTYPE,   /**< ts_dtype */
  TS_KEY_PAIR,    /**< double[2] */
  TS_KEY_STRINGS, /**< ts_strings */
  TS_KEY_INTS,    /**< ts_ints, each in the range of the row */
  TS_KEY_REALS,   /**< ts_reals, likewise */
  TS_KEY_VIEW,    /**< ts_deck_view, its numbers in the range of the row */
  TS_KEY_ANY,     /**< Not stored and not looked into: a list or section of a refused feature */
  TS_N_KEY_TYPES
} ts_key_type;

typedef enum ts_key_status {
  TS_KEY_WORKS,
  TS_KEY_NO_EFFECT, /**< Accepted; ts_deck_notes says why it changes nothing. */
  TS_KEY_REFUSED,   /**< Not there yet: only its neutral value `initial`, or anything while its section is off. */
  TS_KEY_REMOVED,   /**< The same for what DeepSpeed itself has no more. */
  TS_KEY_RENAMED    /**< The same for others' names of a key, `instead`. */
} ts_key_status;

typedef enum ts_key_flags {
  TS_KEY_AUTO = 1,     /**< "auto" is accepted: the value of its ts_auto, or else its default. */
  TS_KEY_REQUIRED = 2, /**< A deck without it is an error. */
  TS_KEY_REGEX = 4,    /**< Each string is a PCRE2 expression. */
  TS_KEY_OVERRIDE = 8, /**< The deck may say otherwise than config.json. */
  TS_KEY_SILENT = 16,  /**< No note when it comes from config.json. */
  TS_KEY_OPEN_MIN = 32,
  TS_KEY_OPEN_MAX = 64, /**< The bound itself is excluded. */
  TS_KEY_ENDLESS = 128, /**< "inf" is the largest integer. */
  TS_KEY_FAMILY = 256,  /**< It belongs to the model families that list it (family/family.h). */
  TS_KEY_NULL = 512,    /**< null in a config.json is the row's default, whatever the family's. */
  TS_KEY_ONE = 1024,    /**< A single string or integer stands for a list of one. */
  TS_KEY_LEAST = 2048   /**< A run may need more than the default: printed only where it was set, as that is final. */
} ts_key_flags;

typedef struct ts_key {
  const char *path; /**< "optimizer.params.lr"; the entries of a list of sections are "optimizer.groups[].pattern". */
  ts_key_type type;
  ts_key_status status;
  int flags;
  ptrdiff_t offset;     /**< Bytes into ts_deck (for a list of sections: into its entry); negative: not stored. */
  const char *initial;  /**< Default as deck text; NULL: unset (zero), or derived from other keys. */
  double min, max;      /**< Numbers only. */
  const char *accepted; /**< "a|b": the only strings; case does not matter, this spelling is stored.  NULL: any. */
  const char *later;    /**< "c|d": known strings that are refused as not there yet. */
  const char *why;      /**< "c: reason|d: reason" of some of these; NULL for none. */
  const char *gone;     /**< "e|f": words that DeepSpeed has no more. */
  const char *instead;  /**< A way out to name where the key is refused; NULL for none. */
  const char *only;     /**< "x|y": the key belongs to these values of its section's selector (ts_key_selector). */
  const char *alias;    /**< Path of the row that this one is another name of; all else then comes from there. */
  const char *values;   /**< "false=0|true=1": the alias is a flag that stood for these; one not listed says nothing. */
  const char *help;     /**< One line: what it does, why it has no effect, or what is refused. */
} ts_key;

/** What a key that is "auto" becomes where the deck does not say otherwise: Hugging Face's rule for it. */
typedef struct ts_auto {
  const char *path;     /**< Of a row with TS_KEY_AUTO. */
  const char *formula;  /**< A value as in a deck, or a product of numbers and keys: "10 * model.hidden_size". */
  const char *argument; /**< Whose default the formula is ("learning_rate"); NULL where it follows from other keys. */
  bool late;            /**< The batch: open until the ranks are known, where what is given determines it. */
} ts_auto;

typedef struct ts_key_table {
  const ts_key *keys;
  int n;
} ts_key_table;

extern const ts_key_table ts_keys_model, ts_keys_run, ts_keys_train, ts_keys_zero, ts_keys_parallel, ts_keys_moe,
    ts_keys_observe, ts_keys_monitor, ts_keys_deepspeed;

/** Number of rows. Not collective. */
int ts_key_count(void);

/** Row \a index of all tables in order. Not collective. */
const ts_key *ts_key_at(int index);

/** The index of the row of \a path ("optimizer.groups[3].pattern" finds "optimizer.groups[].pattern"), or -1.
 * Aliases are not followed. Not collective. */
int ts_key_find(const char *path);

/** The index of the row that \a index is an alias of, or \a index. Not collective. */
int ts_key_canonical(int index);

/** True when some row lies below \a path. Not collective. */
bool ts_key_is_section(const char *path);

/** The known path that an unknown one was meant to be: the nearest spelling in its section, a key of the same name in
 * another section, or the nearest whole path; newly allocated (ts_free), NULL when none is near. Not collective. */
char *ts_key_nearest(const char *path);

/** The path of the key whose value decides whether \a key belongs to the deck ("scheduler.type" for a parameter of a
 * schedule); NULL when it always does. Not collective. */
const char *ts_key_selector(const ts_key *key);

/** True when a key with a selector belongs to this \a value of it. Not collective. */
bool ts_key_belongs(const ts_key *key, const char *value);

/** Append the values it belongs to: "WarmupLR|OneCycle". Not collective. */
void ts_key_describe_owners(const ts_key *key, ts_text *to);

/** True when \a word is one of the \a list "a|b|c"; case does not matter.
 * \param [out] spelling  May be NULL; the list's own spelling (into \a list) and its length in bytes.
 * Not collective. */
bool ts_key_listed(const char *list, const char *word, const char **spelling, size_t *length);

/** Append what the row accepts: "an integer from 1 to 3", "fp32, bf16". Not collective. */
void ts_key_describe(const ts_key *key, ts_text *to);

/** Number of rules for "auto". Not collective. */
int ts_auto_count(void);

/** Rule \a index; a later one may need the value of an earlier one. Not collective. */
const ts_auto *ts_auto_at(int index);

/** The rule of \a path, or NULL. Not collective. */
const ts_auto *ts_auto_find(const char *path);

/** Append where the value comes from: "run.steps", "Hugging Face's default of learning_rate". Not collective. */
void ts_auto_explain(const ts_auto *row, ts_text *to);

/** "integer", "text", ...: a constant string. Not collective. */
const char *ts_key_type_name(ts_key_type type);

#endif
