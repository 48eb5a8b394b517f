#include "backend/code_book.h"

#include "backend/dynamic_map.h"

#include <float.h>
#include <math.h>
#include <pthread.h>

static const float signed_map[256] = TS_DYNAMIC_MAP_SIGNED, unsigned_map[256] = TS_DYNAMIC_MAP_UNSIGNED;
static ts_code_book books[2];

/* Between two values the nearer one, in the middle of both the even code.  What is not 0 has no 0's code: it lies
 * beside it. */
static float find_above(const ts_code_book *book, int code) {
  float middle = (book->map[code] + book->map[code + 1]) * 0.5f;
  float above = code % 2 == 0 ? middle : nextafterf(middle, -INFINITY);
  above = book->map[code] == 0 && !book->has_sign ? 0 : above;
  return book->map[code + 1] == 0 ? -FLT_TRUE_MIN : above;
}

static int find_code(const ts_code_book *book, float x) {
  int code = 0;
  while (x > book->above[code]) {
    ++code;
  }
  return code;
}

static void make_book(ts_code_book *book) {
  for (int code = 0; code < 255; ++code) {
    book->above[code] = find_above(book, code);
  }
  book->above[255] = book->above[256] = book->above[257] = INFINITY;
  for (int i = 0; i < TS_CODE_BUCKETS; ++i) {
    float least = i == 0 ? 0 : ts_float_of((TS_CODE_LEAST + i) << TS_CODE_SHIFT);
    float most = i == TS_CODE_BUCKETS - 1 ? 1 : ts_float_of(((TS_CODE_LEAST + i + 1) << TS_CODE_SHIFT) - 1);
    book->first[i] = find_code(book, least);
    book->first[TS_CODE_BUCKETS + i] = find_code(book, -most);
  }
}

static void make_books(void) {
  books[0] = (ts_code_book){.map = unsigned_map, .has_sign = false};
  books[1] = (ts_code_book){.map = signed_map, .has_sign = true};
  make_book(&books[0]);
  make_book(&books[1]);
}

const ts_code_book *ts_code_book_get(bool has_sign) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_books);
  return &books[has_sign];
}
