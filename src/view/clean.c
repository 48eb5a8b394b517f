#include "view/clean.h"

#include <limits.h>
#include <string.h>
#include <utf8proc.h>

/* A character as it is shown. */
typedef struct glyph {
  char bytes[8];
  int width;
} glyph;

static const glyph blank = {" ", 1}, unknown = {"?", 1}, nothing = {"", 0};

static glyph show_character(int32_t c, const char *bytes, int n, bool utf8) {
  if (c == '\n' || c == '\t') {
    return blank;
  }
  if (c < 0x20 || (c >= 0x7f && c < 0xa0) || (c > 0x7f && !utf8)) {
    return unknown;
  }
  utf8proc_category_t category = utf8proc_category(c);
  if (category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP ||
      category == UTF8PROC_CATEGORY_CO || category == UTF8PROC_CATEGORY_CN) {
    return unknown;
  }
  glyph g = {"", utf8proc_charwidth(c)};
  if (g.width < 1) {
    return nothing;
  }
  memcpy(g.bytes, bytes, (size_t) n);
  return g;
}

static glyph take_glyph(const char **text, bool utf8) {
  utf8proc_int32_t c;
  const char *from = *text;
  utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *) from, (utf8proc_ssize_t) strnlen(from, 4), &c);
  *text += n > 0 ? n : 1;
  return n > 0 ? show_character(c, from, (int) n, utf8) : unknown;
}

int ts_view_clean(const char *text, int columns, bool utf8, ts_text *to) {
  const char *ellipsis = utf8 ? "\u2026" : "~";
  int used = 0, fits = 0;
  size_t whole = to->length; /* where the text ends if an ellipsis has to follow */
  while (*text != 0) {
    glyph g = take_glyph(&text, utf8);
    if (used + g.width > columns) {
      to->length = whole;
      if (columns > 0) {
        ts_text_add(to, "%s", ellipsis);
      }
      return columns > 0 ? fits + 1 : 0;
    }
    ts_text_add(to, "%s", g.bytes);
    used += g.width;
    if (used < columns) {
      whole = to->length;
      fits = used;
    }
  }
  return used;
}

int ts_view_columns(const char *text, bool utf8) {
  int used = 0;
  while (*text != 0 && used < INT_MAX / 2) {
    used += take_glyph(&text, utf8).width;
  }
  return used;
}

size_t ts_view_fit(const char *text, int columns, bool utf8) {
  const char *end = text, *next = text;
  for (int used = 0; *end != 0; end = next) {
    used += take_glyph(&next, utf8).width;
    if (used > columns) {
      break;
    }
  }
  return (size_t) (end - text);
}
