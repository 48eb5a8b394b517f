/** \file
 * The codes of a state in 8 bits, found by a table: those of ts_update_code (backend/update_rules.h), by three looks at
 * memory instead of sixteen, for processors.
 */
#ifndef TS_BACKEND_CODE_BOOK_H
#define TS_BACKEND_CODE_BOOK_H

#include "base/dtype.h"

#include <stdbool.h>

/** Magnitudes are in buckets, 2^6 of each of the 24 exponents below 1, the lowest of which has all that is smaller, and
 * one of 1 itself. */
enum { TS_CODE_SHIFT = 23 - 6, TS_CODE_LEAST = (127 - 24) << 6, TS_CODE_BUCKETS = (24 << 6) + 1 };

typedef struct ts_code_book {
  const float *map; /**< What the codes stand for: 256 ascending values. */
  bool has_sign;    /**< Of numbers of either sign. */
  /** By code: numbers above this have a higher one; behind them two for which there is none. */
  float above[258];
  /** By bucket, those of negative numbers behind the others: the lowest code of its numbers; the highest is at most two
   * more. */
  int32_t first[2 * TS_CODE_BUCKETS];
} ts_code_book;

/** The book of the map of numbers of either sign, or of those that are not negative (backend/dynamic_map.h): the
 * process's, made by the first call.  Any thread may ask. Not collective. */
const ts_code_book *ts_code_book_get(bool has_sign);

/** The code of \a x in [-1, 1], or [0, 1]; 0 of what is no number.  No branch, so that compilers make vectors of it.
 * Not collective. */
static inline uint8_t ts_code_book_find(const ts_code_book *book, float x) {
  int32_t bits = ts_bits_of(x), bucket = ((bits & 0x7fffffff) >> TS_CODE_SHIFT) - TS_CODE_LEAST;
  bucket = bucket > 0 ? bucket : 0;
  bucket = bucket < TS_CODE_BUCKETS ? bucket : TS_CODE_BUCKETS - 1;
  int32_t first = book->first[bits < 0 ? bucket + TS_CODE_BUCKETS : bucket], is_number = x == x;
  int32_t code = first + (x > book->above[first]) + (x > book->above[first + 1]);
  return (uint8_t) (code & -is_number);
}

#endif
