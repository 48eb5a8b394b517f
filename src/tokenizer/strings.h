/** \file
 * Texts with numbers: a table from any bytes to an id, and back.  Nothing here is collective.
 */
#ifndef TS_TOKENIZER_STRINGS_H
#define TS_TOKENIZER_STRINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ts_string_entry {
  size_t at;
  uint32_t n, hash;
  int32_t id;
} ts_string_entry;

/** Zero-initialise, end with ts_string_table_clear. */
typedef struct ts_string_table {
  char *bytes; /**< Owned. */
  size_t n_bytes, capacity_bytes;
  ts_string_entry *entry; /**< Owned, in order of insertion. */
  int64_t n, capacity;
  int32_t *slot; /**< Owned; entry + 1, 0 where there is none. */
  size_t slots;
} ts_string_table;

/** Free and zero. Not collective. */
void ts_string_table_clear(ts_string_table *table);

/** \return The id of a text, -1 when it is not there. Not collective; thread-safe while nobody adds. */
int32_t ts_string_id(const ts_string_table *table, const char *text, size_t n);

/** Add a text with its id, or give it another id. Not collective. */
void ts_string_add(ts_string_table *table, const char *text, size_t n, int32_t id);

/** Hash of bytes. Not collective. */
uint32_t ts_string_hash(const char *text, size_t n);

#endif
