/** \file
 * How rows are written in schema_*.c.  A key that is stored names its field once: the path in the deck is the path in
 * the struct, so the two cannot differ.  No functions; nothing here is collective.
 */
#ifndef TS_DECK_SCHEMA_ROWS_H
#define TS_DECK_SCHEMA_ROWS_H

#include "deck/schema.h"

#define AUTO TS_KEY_AUTO
#define REQUIRED TS_KEY_REQUIRED
#define OVERRIDE TS_KEY_OVERRIDE
#define REGEX TS_KEY_REGEX
#define OPEN_MIN TS_KEY_OPEN_MIN
#define OPEN_MAX TS_KEY_OPEN_MAX
#define ENDLESS TS_KEY_ENDLESS
#define LEAST TS_KEY_LEAST

#define LARGE 9223372036854775807.0 /* any 64-bit integer */
#define SIZE 2147483647.0           /* a dimension: products of four are checked, one alone fits an int */
#define HUGE_REAL 1.7976931348623157e308

#define STORED(type_, field) \
  .path = #field, .type = TS_KEY_##type_, .status = TS_KEY_WORKS, .offset = (ptrdiff_t) offsetof(ts_deck, field)

/* Keys that work. */
#define FLAG(field, initial_, flags_, help_) \
  { STORED(BOOL, field), .initial = initial_, .flags = flags_, .help = help_ }
#define SWITCH(field, initial_, help_) \
  { STORED(SWITCH, field), .initial = initial_, .flags = AUTO, .help = help_ }
#define INTEGER(field, initial_, min_, max_, flags_, help_) \
  { STORED(INT, field), .initial = initial_, .min = min_, .max = max_, .flags = flags_, .help = help_ }
#define BYTES(field, initial_, help_) \
  { STORED(BYTES, field), .initial = initial_, .min = 0, .max = LARGE, .help = help_ }
#define NUMBER(field, initial_, min_, max_, flags_, help_) \
  { STORED(REAL, field), .initial = initial_, .min = min_, .max = max_, .flags = flags_, .help = help_ }
#define WORD(field, initial_, accepted_, later_, flags_, help_) \
  { STORED(STRING, field), .initial = initial_, .accepted = accepted_, .later = later_, .flags = flags_, .help = help_ }
#define DTYPE(field, initial_, accepted_, later_, help_) \
  { STORED(DTYPE, field), .initial = initial_, .accepted = accepted_, .later = later_, .help = help_ }
#define INTEGERS(field, min_, max_, help_) \
  { STORED(INTS, field), .initial = "[]", .min = min_, .max = max_, .help = help_ }
#define STRINGS(field, initial_, flags_, help_) \
  { STORED(STRINGS, field), .initial = initial_, .flags = flags_, .help = help_ }

/* Another name of a key; an old flag for some of its values; one without an effect; one that is refused unless it has
 * its neutral value: not there yet, the same with another way to what it asks for, and what DeepSpeed has no more. */
#define ALIAS(path_, target) \
  { .path = path_, .alias = target, .offset = -1, .help = "Another name of " target "." }
#define SPELLING(path_, target, values_, help_) \
  { .path = path_, .alias = target, .values = values_, .offset = -1, .help = help_ }
#define NONE(path_, type_, initial_, reason)                                                              \
  {                                                                                                       \
    .path = path_, .type = TS_KEY_##type_, .status = TS_KEY_NO_EFFECT, .offset = -1, .initial = initial_, \
    .min = -HUGE_REAL, .max = HUGE_REAL, .flags = AUTO, .help = reason                                    \
  }
#define LATER(path_, type_, initial_, reason)                                                           \
  {                                                                                                     \
    .path = path_, .type = TS_KEY_##type_, .status = TS_KEY_REFUSED, .offset = -1, .initial = initial_, \
    .min = -HUGE_REAL, .max = HUGE_REAL, .flags = AUTO, .help = reason                                  \
  }

#define LATER_BUT(path_, type_, initial_, reason, instead_)                                             \
  {                                                                                                     \
    .path = path_, .type = TS_KEY_##type_, .status = TS_KEY_REFUSED, .offset = -1, .initial = initial_, \
    .min = -HUGE_REAL, .max = HUGE_REAL, .flags = AUTO, .instead = instead_, .help = reason             \
  }
#define REMOVED(path_, type_, initial_, reason)                                                         \
  {                                                                                                     \
    .path = path_, .type = TS_KEY_##type_, .status = TS_KEY_REMOVED, .offset = -1, .initial = initial_, \
    .min = -HUGE_REAL, .max = HUGE_REAL, .flags = AUTO, .help = reason                                  \
  }

#define TABLE(name, rows) const ts_key_table name = {rows, (int) (sizeof(rows) / sizeof *(rows))}

#endif
