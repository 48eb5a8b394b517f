/** \file
 * What the files of this room share while a deck is read: the settings as the user wrote them, and where.
 * Nothing here is collective.
 */
#ifndef TS_DECK_READER_H
#define TS_DECK_READER_H

#include "deck/check.h"
#include "deck/choices.h"
#include "deck/deck.h"
#include "deck/schema.h"
#include "deck/value.h"

/** Where a setting came from; a later one is weaker than an earlier one. */
typedef enum ts_origin_kind {
  TS_FROM_SET,  /**< --set: replaces whatever the files say. */
  TS_FROM_DECK, /**< The deck. */
  TS_FROM_JSON, /**< deepspeed_config. */
  TS_FROM_MODEL /**< config.json of model.from. */
} ts_origin_kind;

typedef struct ts_setting {
  char *path; /**< Owned; canonical ("model.hidden_size" for n_embd). */
  char *name; /**< Owned; as written. */
  int key;    /**< Row, canonical. */
  ts_origin_kind from;
  ts_value value; /**< Owned. */
} ts_setting;

typedef struct ts_reader {
  ts_deck *deck;
  ts_error *err;
  const char *name;         /**< The deck's file, for messages. */
  const char *config;       /**< The config.json that was read, likewise; NULL for none. */
  ts_deck_choices *choices; /**< Gets the keys with lists of values to be tried; NULL: there may be none. */
  bool checked;             /**< All values were right by themselves. */
  int choice;               /**< Which of all ways to take one value of each list, the first list's turning fastest. */
  ts_source source;
  ts_setting *settings;
  int n_settings, capacity;
} ts_reader;

/** Take in all keys of a SECTION, with \a prefix ("" or "model") before their paths; values are moved out of it.
 * Errors go to reader->err. Not collective. */
void ts_reader_take(ts_reader *reader, const char *prefix, ts_value *section, ts_origin_kind from);

/** The setting of a canonical path, or NULL when the user left it out. Not collective. */
const ts_setting *ts_reader_find(const ts_reader *reader, const char *path);

/** The setting's string, "" for another kind of value and for NULL. Not collective. */
const char *ts_setting_string(const ts_setting *setting);

/** \a path seen from the directory of \a file; newly allocated (ts_free). Not collective. */
char *ts_reader_beside(const char *file, const char *path);

/** Make model.from absolute, and take in the config.json that is there; where the directory is gone, the copy
 * that the run in run.directory keeps (TS_RUN_FROM).  Errors go to reader->err. Not collective.
 * \return false when there is a file and it cannot be read. */
bool ts_reader_read_model(ts_reader *reader);

/** Write defaults and settings into the deck, with the checks that concern one key. Not collective. */
void ts_reader_store(ts_reader *reader);

/** True when the setting leaves its key to us: "auto" where the row allows it. Not collective. */
bool ts_setting_is_auto(const ts_setting *setting);

/** Store deck text that is known to be right, such as a default, in the field of a row without list entries. Not
 * collective. */
void ts_reader_store_text(ts_reader *reader, const ts_key *key, const char *text);

/** Give each key that is "auto" and has a rule (ts_auto) its value; what waits for the ranks stays open. Not
 * collective. */
void ts_reader_fill_auto(ts_reader *reader);

/** Note what each "auto" became, and why. Not collective. */
void ts_reader_note_auto(ts_reader *reader);

/** Append the value of a \a field as deck text. Not collective. */
void ts_deck_print_value(ts_text *to, const ts_key *key, const void *field);

/** Fill derived fields and those that are "auto", with notes; the deck is otherwise complete and without errors so far.
 * Not collective. */
void ts_reader_resolve(ts_reader *reader);

/** The checks that concern one key's presence (required, belongs to its family). Not collective. */
void ts_reader_check_presence(ts_reader *reader);

/** The checks between keys, on the resolved deck. Not collective. */
void ts_reader_check_deck(ts_reader *reader);

/** Those of `elasticity`, when it is enabled. Not collective. */
void ts_reader_check_elasticity(ts_reader *reader);

/** Those of `torch_autocast`. Not collective. */
void ts_reader_check_autocast(ts_reader *reader);
/** Those of `bf16`, `fp16` and the types of gradients. Not collective. */
void ts_reader_check_precision(ts_reader *reader);
void ts_reader_check_optimizer(ts_reader *reader);

/** Those of mixtures of experts, of a model by families. Not collective. */
void ts_reader_check_experts(ts_reader *reader);
void ts_reader_check_offload(ts_reader *reader);

/** Those of `tensor_parallel`. Not collective. */
void ts_reader_check_parallel(ts_reader *reader);

/** "file:line" of a setting, the deck's name without one; newly allocated, ts_free. Not collective. */
char *ts_reader_where(const ts_reader *reader, const ts_setting *setting);

/** Keep the places of all settings in the deck (ts_deck_origin). Not collective. */
void ts_reader_keep_origins(const ts_reader *reader);

/** ts_deck_report at the place where \a path was set. Not collective. */
ts_status ts_reader_report(const ts_reader *reader, ts_deck_check check, const char *path, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/** Add a line for ts_deck_notes. Not collective. */
void ts_reader_note(ts_reader *reader, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Note that a key has no effect, \a why ("KEY is false"): where it was given, under another name or another value than
 * its default, as a deck that was printed has all defaults. Not collective. */
void ts_reader_note_idle(ts_reader *reader, const char *path, const char *why);

/** A list of sections: its rows are "PATH[].x". */
typedef struct ts_deck_list {
  const char *path; /**< "optimizer.groups" */
  size_t items, n;  /**< Bytes into ts_deck: the pointer to the entries, and their number. */
  size_t entry;     /**< Bytes of one. */
} ts_deck_list;

/** The list of that index, from 0; NULL behind the last. Not collective. */
const ts_deck_list *ts_deck_list_at(int index);

/** The list of that path, or that an entry's path ("optimizer.groups[3].pattern", or a row's) is in; NULL for none. Not
 * collective. */
const ts_deck_list *ts_deck_list_find(const char *path);

/** Number of entries, the deck's; the entries, NULL before they are allocated; allocate that number of zeroed ones. Not
 * collective. */
int *ts_deck_list_length(const ts_deck *deck, const ts_deck_list *list);
void *ts_deck_list_items(const ts_deck *deck, const ts_deck_list *list);
void ts_deck_list_allocate(ts_deck *deck, const ts_deck_list *list);

/** "optimizer.groups[3].pattern" of the row "optimizer.groups[].pattern"; newly allocated (ts_free). Not collective. */
char *ts_deck_list_path(const ts_key *key, int entry);

/** Address of the field of a stored row; \a path gives the index of a list entry. Not collective. */
void *ts_deck_field(const ts_deck *deck, const ts_key *key, const char *path);

/** The value of a default, such as "[0.9, 0.999]"; to be cleared by the caller. Not collective. */
ts_value ts_key_initial(const ts_key *key);

#endif
