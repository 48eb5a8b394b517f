/* Oniguruma's regular expressions (syntax of Ruby) in PCRE2's words.
 *
 * Most of both is the same.  Different are: \s, \w and \d, which PCRE2 has slightly otherwise; \v and \h; names of
 * scripts; (?m), which is PCRE2's (?s), as ^ and $ are of lines without it; {,n}; and that a class holds no other one
 * here.  What would be taken but mean something else is refused. */
#include "base/memory.h"
#include "tokenizer/pattern.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define SPACES "\\t-\\r\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
/* Of numbers those of Latin 1 alone, as Oniguruma's table has them, and not in a class; letters in circles and
 * squares. */
#define WORDS_IN_CLASS                                   \
  "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}" \
  "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#define WORDS "\\xb2\\xb3\\xb9\\xbc-\\xbe" WORDS_IN_CLASS

typedef struct translation {
  const char *begin, *at;
  ts_text to;
  ts_error *err;
  bool in_class, looks_behind;
  int depth;      /* of groups */
  int any_case;   /* the group (?i: that is open, counted from 1; 0: none */
  bool all_cases; /* (?i) */
  char letter;    /* the literal before, 0 where there is none */
} translation;

static bool refuse(translation *t, const char *what, const char *why) {
  ts_error_add(t->err, "%s at byte %lld of the pattern %s", what, (long long) (t->at - t->begin), why);
  return false;
}

static void put_text(translation *t, const char *text) {
  ts_text_append(&t->to, text, strlen(text));
}

/* Where case does not matter Oniguruma takes some letters for two (\u00df for ss), PCRE2 none. */
static bool check_case(translation *t, uint32_t c) {
  static const char *const ligatures[] = {"ss", "st", "ff", "fi", "fl"};
  char pair[3] = {t->letter, c < 0x80 ? (char) tolower((int) c) : 0, 0};
  bool folds = c >= 0x80;
  for (size_t i = 0; i < sizeof ligatures / sizeof ligatures[0]; ++i) {
    folds |= strcmp(pair, ligatures[i]) == 0;
  }
  t->letter = t->in_class ? 0 : pair[1];
  return !folds || (t->any_case == 0 && !t->all_cases) || refuse(t, "a letter that may be two others", "is in (?i)");
}

/* Hexadecimal digits from \a at on, at most \a most. */
static size_t hex_digits(const char *at, size_t most) {
  size_t n = 0;
  while (n < most && isxdigit((unsigned char) at[n])) {
    ++n;
  }
  return n;
}

/* \p{Name}, \p{^Name}, \P{Name}: short names are general categories, others scripts. */
static bool put_property(translation *t) {
  const char *end = t->at[1] == '{' ? strchr(t->at, '}') : NULL;
  if (end == NULL) {
    return refuse(t, "\\p", "has no name in braces");
  }
  if (t->any_case > 0 || t->all_cases) { /* Oniguruma takes the other cases of what has the property */
    return refuse(t, "\\p", "is in (?i)");
  }
  bool inverse = t->at[2] == '^';
  const char *name = t->at + 2 + inverse;
  int n = (int) (end - name);
  bool negative = (t->at[0] == 'P') != inverse;
  ts_text_add(&t->to, "\\%c{%s%.*s}", negative ? 'P' : 'p', n <= 2 ? "" : "sc:", n, name);
  t->at = end + 1;
  return true;
}

static bool put_code(translation *t) {
  bool braces = t->at[0] == 'x' && t->at[1] == '{';
  size_t most = t->at[0] == 'u' ? 4 : braces ? 8 : 2, n = hex_digits(t->at + 1 + braces, most);
  bool whole = n > 0 && (!braces || t->at[2 + n] == '}') && (t->at[0] != 'u' || n == 4);
  if (!whole) {
    return refuse(t, "a number", "is not whole");
  }
  if (t->at[0] == 'x' && !braces && n == 2 && t->at[1] >= '8') {
    return refuse(t, "\\x", "is a byte, not a character");
  }
  if (!check_case(t, (uint32_t) strtoul(t->at + 1 + braces, NULL, 16))) {
    return false;
  }
  ts_text_add(&t->to, "\\x{%.*s}", (int) n, t->at + 1 + braces);
  t->at += 1 + n + 2 * braces;
  return true;
}

/* Kinds of characters: what stands for them alone, and inside a class. */
static const struct {
  char letter;
  const char *alone, *inside;
} kinds[] = {
    {'s', "[" SPACES "]", SPACES},
    {'S', "[^" SPACES "]", NULL},
    {'w', "[" WORDS "]", WORDS_IN_CLASS},
    {'W', "[^" WORDS "]", NULL},
    {'d', "\\p{Nd}", "\\p{Nd}"},
    {'D', "\\P{Nd}", "\\P{Nd}"},
    {'h', "[0-9a-fA-F]", "0-9a-fA-F"},
    {'H', "[^0-9a-fA-F]", NULL},
    {'v', "\\x0b", "\\x0b"},
    {'b', "(?:(?<=[" WORDS "])(?![" WORDS "])|(?<![" WORDS "])(?=[" WORDS "]))", "\\x08"},
    {'B', "(?:(?<=[" WORDS "])(?=[" WORDS "])|(?<![" WORDS "])(?![" WORDS "]))", NULL},
};

static bool put_escape(translation *t) {
  char c = *++t->at;
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
    const char *words = t->in_class ? kinds[i].inside : kinds[i].alone;
    if (kinds[i].letter == c && words != NULL) {
      put_text(t, words);
      t->looks_behind |= !t->in_class && (c == 'b' || c == 'B');
      ++t->at;
      return true;
    }
  }
  if (c == 'p' || c == 'P') {
    return put_property(t);
  }
  if (c == 'x' || c == 'u') {
    return put_code(t);
  }
  bool anchor = !t->in_class && c != 0 && strchr("AzZ", c) != NULL;
  bool known =
      c != 0 && (strchr("rntfae0", c) != NULL || ispunct((unsigned char) c) || c == ' ' || (unsigned char) c >= 0x80);
  if (!known && !anchor) {
    return refuse(t, "an escape", "is not known here");
  }
  if (c == '0' && isdigit((unsigned char) t->at[1])) {
    return refuse(t, "an octal number", "is not known here");
  }
  t->looks_behind |= c == 'A' && anchor;
  ts_text_add(&t->to, "\\");
  ts_text_append(&t->to, t->at++, 1);
  return true;
}

/* A character as it is. */
static bool put_literal(translation *t) {
  bool good = check_case(t, (unsigned char) *t->at);
  ts_text_append(&t->to, t->at++, 1);
  return good;
}

static bool put_class(translation *t) {
  t->in_class = true;
  put_text(t, "[");
  ++t->at;
  if (*t->at == '^') {
    put_text(t, "^");
    ++t->at;
  }
  if (*t->at == ']') {
    return refuse(t, "an empty class", "is not known here");
  }
  while (*t->at != ']') {
    if (*t->at == 0) {
      return refuse(t, "a class", "has no end");
    }
    if (*t->at == '[' || (t->at[0] == '&' && t->at[1] == '&')) {
      return refuse(t, "a class in a class", "is not known here");
    }
    if (!(*t->at == '\\' ? put_escape(t) : put_literal(t))) {
      return false;
    }
  }
  put_text(t, "]");
  ++t->at;
  t->in_class = false;
  return true;
}

/* (?i) alone would reach over the alternatives that follow, here it does not: it is taken where none come before. */
static bool put_flags(translation *t) {
  const char *end = t->at + strspn(t->at, "im-");
  bool whole = *end == ':' || (*end == ')' && t->to.length <= 2);
  if (end == t->at || !whole) {
    return refuse(t, "a group", "is of a kind that is not known here");
  }
  bool minus = false;
  for (const char *c = t->at; c < end; ++c) {
    minus |= *c == '-';
    if (*c == 'i' && !minus) {
      t->all_cases |= *end == ')';
      t->any_case = *end == ':' && t->any_case == 0 ? t->depth : t->any_case;
    }
  }
  t->depth -= *end == ')';
  for (; t->at <= end; ++t->at) {
    ts_text_add(&t->to, "%c", *t->at == 'm' ? 's' : *t->at);
  }
  return true;
}

static bool put_group(translation *t) {
  ++t->depth;
  static const char *const same[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
  for (size_t i = 0; i < sizeof same / sizeof same[0]; ++i) {
    if (strncmp(t->at, same[i], strlen(same[i])) == 0) {
      put_text(t, same[i]);
      t->looks_behind |= same[i][2] == '<';
      t->at += strlen(same[i]);
      return true;
    }
  }
  if (t->at[1] == '*') {
    return refuse(t, "(*", "is not known here");
  }
  if (t->at[1] != '?') {
    put_text(t, "(");
    ++t->at;
    return true;
  }
  put_text(t, "(?");
  t->at += 2;
  return put_flags(t);
}

/* {n}, {n,}, {n,m}, {,m}; any other brace stands for itself. */
static bool put_brace(translation *t) {
  const char *end = t->at + 1 + strspn(t->at + 1, "0123456789");
  bool from = end > t->at + 1, comma = *end == ',';
  const char *last = comma ? end + 1 + strspn(end + 1, "0123456789") : end;
  if (*last != '}' || !(from || last > end + 1)) {
    put_text(t, "\\{");
    ++t->at;
    return true;
  }
  if (last[1] == '+' || (last[1] == '?' && !comma)) {
    return refuse(t, "a repetition of a repetition", "is not known here");
  }
  ts_text_add(&t->to, "{%s%.*s", from ? "" : "0", (int) (last - t->at), t->at + 1);
  t->at = last + 1;
  return true;
}

char *ts_pattern_translate(const char *regex, bool *looks_behind, ts_error *err) {
  translation t = {.begin = regex, .at = regex, .err = err};
  bool good = true;
  ts_text_append(&t.to, "", 0);
  while (good && *t.at != 0) {
    switch (*t.at) {
      case '\\': good = put_escape(&t); break;
      case '[':
        good = put_class(&t);
        t.letter = 0;
        break;
      case '(': good = put_group(&t); break;
      case '{': good = put_brace(&t); break;
      case ')':
        t.any_case = t.any_case == t.depth-- ? 0 : t.any_case;
        ts_text_append(&t.to, t.at++, 1);
        break;
      default: t.looks_behind |= *t.at == '^'; good = put_literal(&t);
    }
  }
  if (!good) {
    ts_text_free(&t.to);
  }
  *looks_behind = t.looks_behind;
  return t.to.text;
}
