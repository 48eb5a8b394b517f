#include "tokenizer/unicode.h"

#include "base/memory.h"

#include <string.h>
#include <utf8proc.h>

void ts_utf8_add(ts_text *to, int32_t character) {
  utf8proc_uint8_t bytes[4];
  utf8proc_ssize_t n = utf8proc_encode_char(character, bytes);
  ts_text_append(to, (const char *) bytes, (size_t) n);
}

/* Bytes of the character that begins here; 0 where there is none, and *bad of them make no sense. */
static size_t character_length(const unsigned char *c, size_t n, size_t *bad) {
  static const struct {
    unsigned char first, last, low, high; /* of the first byte, of the second */
    size_t length;
  } rows[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
              {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
              {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
  *bad = 1;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    if (c[0] < rows[i].first || c[0] > rows[i].last) {
      continue;
    }
    for (size_t k = 1; k < rows[i].length; ++k) {
      unsigned char low = k == 1 ? rows[i].low : 0x80, high = k == 1 ? rows[i].high : 0xbf;
      if (k >= n || c[k] < low || c[k] > high) {
        *bad = k;
        return 0;
      }
    }
    return rows[i].length;
  }
  return 0;
}

size_t ts_utf8_valid(const char *text, size_t n) {
  const unsigned char *c = (const unsigned char *) text;
  size_t at = 0, bad;
  while (at < n) {
    size_t length = c[at] < 0x80 ? 1 : character_length(c + at, n - at, &bad);
    if (length == 0) {
      return at;
    }
    at += length;
  }
  return n;
}

int64_t ts_utf8_repair(const char *text, size_t n, ts_text *to) {
  int64_t replaced = 0;
  for (size_t at = 0; at < n;) {
    size_t good = ts_utf8_valid(text + at, n - at), bad;
    ts_text_append(to, text + at, good);
    at += good;
    if (at < n) {
      character_length((const unsigned char *) text + at, n - at, &bad);
      ts_text_append(to, "\xef\xbf\xbd", 3);
      at += bad;
      ++replaced;
    }
  }
  return replaced;
}

bool ts_is_space(int32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool ts_is_numeric(int32_t c) {
  utf8proc_category_t category = utf8proc_category(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool ts_is_punctuation(int32_t c) {
  utf8proc_category_t category = utf8proc_category(c);
  bool ascii = c < 0x80 && category >= UTF8PROC_CATEGORY_SM && category <= UTF8PROC_CATEGORY_SO;
  return ascii || (category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO);
}

/* Alphabetic is more than letters by marks, which are words too, and by letters in circles and squares. */
bool ts_is_word(int32_t c) {
  utf8proc_category_t category = utf8proc_category(c);
  bool letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL;
  bool enclosed = (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
                  (c >= 0x1f170 && c <= 0x1f189);
  return letter || enclosed || category == UTF8PROC_CATEGORY_PC || c == 0x200c || c == 0x200d;
}

/* ---- normal forms ---- */

/* Marks in the order of their classes, those of a class as they were. */
static void order_marks(int32_t *mark, int64_t n) {
  int64_t first[257] = {0}; /* of each class */
  int32_t *ordered = ts_malloc((size_t) n * sizeof *ordered);
  for (int64_t i = 0; i < n; ++i) {
    ++first[utf8proc_get_property(mark[i])->combining_class + 1];
  }
  for (int k = 0; k < 256; ++k) {
    first[k + 1] += first[k];
  }
  for (int64_t i = 0; i < n; ++i) {
    ordered[first[utf8proc_get_property(mark[i])->combining_class]++] = mark[i];
  }
  memcpy(mark, ordered, (size_t) n * sizeof *mark);
  ts_free(ordered);
}

/* utf8proc_map takes the square of the number of marks that follow each other: they are ordered here. */
static void add_form(ts_text *to, const char *text, size_t n, ts_normal_form form) {
  static const utf8proc_option_t options[] = {
      [TS_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
      [TS_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
      [TS_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
      [TS_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
  };
  enum { MOST_OF_ONE = 32 }; /* the longest decomposition has 18 */
  int32_t *made = NULL;
  int64_t length = 0, capacity = 0, starter = -1;
  for (size_t at = 0; at < n;) {
    int32_t c = ts_utf8_next(text, &at);
    if (length + MOST_OF_ONE >= capacity) { /* and one for utf8proc_reencode */
      capacity = 2 * capacity + 4 * MOST_OF_ONE;
      made = ts_realloc(made, (size_t) capacity, sizeof *made);
    }
    utf8proc_ssize_t more = utf8proc_decompose_char(c, made + length, MOST_OF_ONE, options[form], NULL);
    TS_CHECK(more >= 0 && more <= MOST_OF_ONE, "utf8proc: a character of %lld", (long long) more);
    length += more;
  }
  for (int64_t i = 0; i <= length; ++i) {
    bool marks = i < length && utf8proc_get_property(made[i])->combining_class > 0;
    if (!marks && i - starter > 2) {
      order_marks(made + starter + 1, i - starter - 1);
    }
    starter = marks ? starter : i;
  }
  utf8proc_ssize_t bytes = utf8proc_reencode(made, length, options[form]);
  TS_CHECK(bytes >= 0, "utf8proc: %s", utf8proc_errmsg(bytes));
  ts_text_append(to, (const char *) made, (size_t) bytes);
  ts_free(made);
}

/* ASCII is in each form as it is, and nothing before an ASCII character changes it; what comes after one may. */
void ts_add_normal(ts_text *to, const char *text, size_t n, ts_normal_form form) {
  for (size_t at = 0; at < n;) {
    size_t end = at;
    while (end < n && (unsigned char) text[end] < 0x80) {
      ++end;
    }
    size_t plain = end < n && end > at ? end - 1 : end;
    ts_text_append(to, text + at, plain - at);
    at = plain;
    while (end < n && (unsigned char) text[end] >= 0x80) {
      ++end;
    }
    if (at < n) {
      add_form(to, text + at, end - at, form);
    }
    at = end;
  }
}

void ts_add_lower(ts_text *to, const char *text, size_t n) {
  for (size_t at = 0; at < n;) {
    int32_t c = ts_utf8_next(text, &at);
    ts_utf8_add(to, utf8proc_tolower(c));
    if (c == 0x130) {
      ts_utf8_add(to, 0x307);
    }
  }
}
