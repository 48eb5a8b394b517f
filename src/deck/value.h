/** \file
 * A value as the user wrote it, before the schema looked at it: what a libconfig file and a json have in common.
 * Nothing here is collective.
 */
#ifndef TS_DECK_VALUE_H
#define TS_DECK_VALUE_H

#include "base/status.h"
#include "base/text.h"
#include "deck/deck.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum ts_value_kind {
  TS_VALUE_NULL, /**< json's null. */
  TS_VALUE_BOOL,
  TS_VALUE_INT,
  TS_VALUE_REAL,
  TS_VALUE_BIG, /**< An integer beyond 64 bits; `real` is near it. */
  TS_VALUE_STRING,
  TS_VALUE_LIST,
  TS_VALUE_SECTION,
  TS_N_VALUE_KINDS
} ts_value_kind;

typedef struct ts_value {
  ts_value_kind kind;
  bool truth;
  int64_t integer;
  double real;  /**< Of INT too. */
  char *string; /**< Owned; of STRING. */
  int n;        /**< Entries of LIST and SECTION. */
  struct ts_value *items;
  char **names;     /**< Owned; of SECTION. */
  const char *file; /**< Borrowed from the ts_source list; NULL when it came from no file. */
  int line;         /**< From 1; 0 when unknown. */
} ts_value;

/** Files that were read: the names that ts_value.file points to, and the text of each error.  Zero-initialise. */
typedef struct ts_source {
  ts_strings files;
  size_t most; /**< Bytes that the libconfig text of a file and what it includes may have; 0: as a deck. */
} ts_source;

/** Remember a file name; returns the copy, valid until ts_source_clear. Not collective. */
const char *ts_source_name(ts_source *source, const char *file);

/** Forget all names. Not collective. */
void ts_source_clear(ts_source *source);

/** Read libconfig text into a SECTION.  `@include "file"` lines are replaced by the file (relative to \a file's
 * directory, 10 deep at most); numbers are read from the text itself, because libconfig 1.5 wraps integers silently.
 * \param [in]  text   \a length bytes.
 * \param [out] value  To be cleared by the caller also on error.
 * \return TS_BAD_INPUT with "file:line: ...". Not collective. */
ts_status ts_value_from_config(ts_source *source, const char *file, const char *text, size_t length, ts_value *value,
                               ts_error *err);

/** The key that is set twice in one section of libconfig text without comments, the second time on \a line; newly
 * allocated (ts_free), NULL when there is none. Not collective. */
char *ts_config_twice(const char *text, int line);

/** Read one libconfig value, such as the right side of a --set: "2e-3", "[1.0, 2.0]", "{ lr = 1.0; }".  What is not a
 * libconfig value, and does not begin like a list, a section or a string, is a string.
 * \return TS_BAD_INPUT with the reason, without a place. Not collective. */
ts_status ts_value_from_word(ts_source *source, const char *file, const char *word, ts_value *value, ts_error *err);

/** Read a json object from a file of at most 1 MiB.  Duplicate keys are errors. Arguments as above. Not collective.
 * \param [in] relaxed  Take comments and commas as ts_json_relax does. */
ts_status ts_value_from_json(ts_source *source, const char *file, bool relaxed, ts_value *value, ts_error *err);

/** The place after the string that begins at \a text, a quote; its end where the string has none. Not collective. */
const char *ts_json_skip_string(const char *text);

/** Append the json \a text of \a length bytes without its comments (#, //, a pair of slash and star), without a comma
 * before a closing bracket, and with one where only the end of a line parts two entries.  Every line stays where it
 * was. Not collective. */
void ts_json_relax(const char *text, size_t length, ts_text *to);

/** Free what \a value owns and make it NULL. Not collective. */
void ts_value_clear(ts_value *value);

/** True when both mean the same: 5e8 equals 500000000. Not collective. */
bool ts_value_equal(const ts_value *a, const ts_value *b);

/** Append a short form for a message: at most about 60 characters. Not collective. */
void ts_value_describe(const ts_value *value, ts_text *to);

/** Append a copy of \a text to the list. Not collective. */
void ts_strings_add(ts_strings *list, const char *text);

/** Free the list's strings and make it empty. Not collective. */
void ts_strings_clear(ts_strings *list);

/** Append \a value. Not collective. */
void ts_ints_add(ts_ints *list, int64_t value);
void ts_reals_add(ts_reals *list, double value);

/** Append a dimension; \a sizes are moved into it. Not collective. */
void ts_view_add(ts_deck_view *view, int64_t count, ts_ints sizes);

/** Free and empty. Not collective. */
void ts_view_clear(ts_deck_view *view);
void ts_ints_clear(ts_ints *list);
void ts_reals_clear(ts_reals *list);

#endif
