/* Patterns of a tokenizer.json: what is found, and what is refused; and texts that are no UTF-8. */
#include "tokenizer/pattern.h"

#include "base/memory.h"
#include "regression/tap.h"
#include "tokenizer/unicode.h"

#include <string.h>

/* Matches in brackets, as Oniguruma finds them. */
static const struct {
  const char *regex, *text, *found;
} finds[] = {
    {"a+", "baab a", "b[aa]b [a]"},
    {"x*", "axb", "[]a[x]b[]"},
    {"^a$", "a\na\nba", "[a]\n[a]\nba"},
    {".", "a\n\r", "[a]\n[\r]"},
    {"(?m:.)", "a\n", "[a][\n]"},
    {"(?i)the|X", "The x", "[The] [x]"},
    {"(?i:'s)", "'S's", "['S]['s]"},
    {"\\s+(?!\\S)", "a   b  ", "a[  ] b[  ]"},
    {"\\s", "\xe1\xa0\x8e\xc2\x85", "\xe1\xa0\x8e[\xc2\x85]"}, /* U+180E is no space, U+0085 is */
    {"[\\s]", "\xe1\xa0\x8e\xe3\x80\x80", "\xe1\xa0\x8e[\xe3\x80\x80]"},
    {"\\S", " \xe1\xa0\x8e", " [\xe1\xa0\x8e]"},
    /* a mark, connectors, a superscript of Latin 1, none of others */
    {"\\w+", "e\xcc\x81_\xe2\x80\xbf\xc2\xb2\xe2\x81\xb4", "[e\xcc\x81_\xe2\x80\xbf\xc2\xb2]\xe2\x81\xb4"},
    {"[\\w]+", "a\xc2\xb2", "[a]\xc2\xb2"},                                /* not in a class */
    {"(?i:'s|k)", "'\xc5\xbf \xe2\x84\xaa", "['\xc5\xbf] [\xe2\x84\xaa]"}, /* U+017F, U+212A */
    {"\\W", "a\xe2\x81\xb4", "a[\xe2\x81\xb4]"},
    {"\\d+", "1\xd9\xa3\xc2\xb2", "[1\xd9\xa3]\xc2\xb2"},
    {"\\bab",
     "ab cab e\xcc\x81"
     "ab",
     "[ab] cab e\xcc\x81"
     "ab"},
    {"a{,2}b", "aaab", "a[aab]"},
    {"a{2}", "aaa{2}", "[aa]a{2}"},
    {"x{,}|{", "x{,}", "[x{,}]"},
    {"\\h+", "xfF0g", "x[fF0]g"},
    {"\\v", "\x0b\n", "[\x0b]\n"},
    {"\\x41\\x{e9}\\u00e9", "A\xc3\xa9\xc3\xa9", "[A\xc3\xa9\xc3\xa9]"},
    {"\\p{Han}", "\xe6\x97\xa5\xe3\x80\x81", "[\xe6\x97\xa5]\xe3\x80\x81"}, /* the script, without what others share */
    {"\\p{^L}", "a1", "a[1]"},
    {"\\P{L}", "a1", "a[1]"},
    {"[^\\s\\p{L}]", " a1", " a[1]"},
    {"a++b|aa", "aac", "[aa]c"},
    {"\\p{N}{1,3}", "12345", "[123][45]"},
    {"(?<=a)b", "ab b", "a[b] b"},
};

static void test_finds(void) {
  ts_matcher *matcher = ts_matcher_create();
  for (size_t i = 0; i < sizeof finds / sizeof finds[0]; ++i) {
    ts_pattern *pattern = NULL;
    ts_error err = {0};
    ts_status status = ts_pattern_regex(finds[i].regex, &pattern, &err);
    ts_text found = {0};
    const char *text = finds[i].text;
    ts_matches_of walk = {.pattern = pattern, .matcher = matcher, .text = text, .n = strlen(text)};
    size_t done = 0;
    for (ts_text_span match; status == TS_OK && ts_next_match(&walk, &match); done = match.end) {
      ts_text_add(&found, "%.*s[%.*s]", (int) (match.begin - done), text + done, (int) (match.end - match.begin),
                  text + match.begin);
    }
    ts_text_add(&found, "%s", text + done);
    tap_ok(status == TS_OK && strcmp(found.text, finds[i].found) == 0, "%s finds what it should%s%s", finds[i].regex,
           err.count > 0 ? ": " : "", err.count > 0 ? err.text : "");
    ts_text_free(&found);
    ts_pattern_destroy(&pattern);
    ts_error_clear(&err);
  }
  tap_ok(!ts_matcher_gave_up(matcher), "no search was given up");
  ts_matcher_destroy(&matcher);
}

static const struct {
  const char *regex, *message;
} refused[] = {
    {"[a[b]]", "a class in a class at byte 2"},
    {"[a&&b]", "a class in a class"},
    {"[]", "an empty class"},
    {"[a", "a class at byte 2 of the pattern has no end"},
    {"\\Ga", "an escape at byte 1"},
    {"\\Ra", "an escape"},
    {"[\\W]", "an escape"},
    {"\\pL", "has no name in braces"},
    {"\\p{L", "has no name in braces"},
    {"\\p{Klingon}", "unknown property"},
    {"\\xc3", "is a byte, not a character"},
    {"\\u12", "a number"},
    {"\\017", "an octal number"},
    {"a{2}+", "a repetition of a repetition"},
    {"a{2}?", "a repetition of a repetition"},
    {"(?x: a)", "a group at byte 2"},
    {"(?<name>a)", "a group"},
    {"a(?i)b|c", "a group"},
    {"(*FAIL)", "(*"},
    {"(?i:mass)", "a letter that may be two others"}, /* Oniguruma finds U+00DF */
    {"(?i)[\\x{df}]", "a letter that may be two others"},
    {"(?:a(?i:\\p{Lu}))", "is in (?i)"}, /* Oniguruma finds small ones too */
    {"(a", "missing"},
    {"a**", "quantifier"},
};

static void test_refused(void) {
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
    ts_pattern *pattern = NULL;
    ts_error err = {0};
    ts_status status = ts_pattern_regex(refused[i].regex, &pattern, &err);
    tap_ok(status == TS_BAD_INPUT && pattern == NULL && strstr(err.text, refused[i].message) != NULL, "%s: %s",
           refused[i].regex, err.count > 0 ? err.text : "was taken");
    ts_pattern_destroy(&pattern);
    ts_error_clear(&err);
  }
}

static void test_endless(void) {
  ts_matcher *matcher = ts_matcher_create();
  ts_pattern *pattern = NULL;
  ts_status status = ts_pattern_regex("(a|aa)+[xy]", &pattern, NULL);
  char text[64];
  memset(text, 'a', sizeof text);
  ts_matches_of walk = {.pattern = pattern, .matcher = matcher, .text = text, .n = sizeof text};
  ts_text_span match;
  bool found = status != TS_OK || ts_next_match(&walk, &match);
  bool gave_up = ts_matcher_gave_up(matcher);
  tap_ok(!found && gave_up && !ts_matcher_gave_up(matcher),
         "a pattern that would take for ever is given up, and it is said");
  ts_pattern_destroy(&pattern);
  ts_matcher_destroy(&matcher);
}

/* As Python's bytes.decode (errors = "replace"), R for U+FFFD. */
static const struct {
  const char *bytes, *text;
  int replaced;
} repairs[] = {
    {"abc", "abc", 0},
    {"\xc3\xa9\xe6\x97\xa5\xf0\x9f\x99\x82", "\xc3\xa9\xe6\x97\xa5\xf0\x9f\x99\x82", 0},
    {"\xff"
     "a\xfe",
     "RaR", 2},
    {"\xc3(", "R(", 1},
    {"\xe6\x97", "R", 1},
    {"\xe6\x97x\xa5", "RxR", 2},
    {"\xf0\x9f\x99", "R", 1},
    {"\xc0\x80", "RR", 2},
    {"\xed\xa0\x80", "RRR", 3},
    {"\xf4\x90\x80\x80", "RRRR", 4},
    {"\xe0\x80\x80", "RRR", 3},
    {"\x80\x80", "RR", 2},
};

static void test_repairs(void) {
  for (size_t i = 0; i < sizeof repairs / sizeof repairs[0]; ++i) {
    ts_text text = {0}, shown = {0};
    int64_t replaced = ts_utf8_repair(repairs[i].bytes, strlen(repairs[i].bytes), &text);
    for (size_t at = 0; at < text.length;) {
      bool is = text.length - at >= 3 && memcmp(text.text + at, "\xef\xbf\xbd", 3) == 0;
      ts_text_append(&shown, is ? "R" : text.text + at, 1);
      at += is ? 3 : 1;
    }
    tap_ok(strcmp(shown.text, repairs[i].text) == 0 && replaced == repairs[i].replaced, "bytes %zu: %d replaced", i,
           repairs[i].replaced);
    ts_text_free(&text);
    ts_text_free(&shown);
  }
}

/* Marks of two classes in turn, as many as no text has: ordered, in less than the square of their number. */
static void test_marks(void) {
  enum { PAIRS = 200000 };
  ts_text marks = {0}, made = {0};
  for (int i = 0; i < PAIRS; ++i) {
    ts_text_append(&marks, "\xcc\x81\xcc\xa3", 4); /* U+0301 of class 230, U+0323 of 220 */
  }
  ts_add_normal(&made, marks.text, marks.length, TS_NFD);
  bool ordered = made.length == marks.length;
  for (size_t i = 0; ordered && i < made.length; i += 2) {
    ordered = memcmp(made.text + i, i < made.length / 2 ? "\xcc\xa3" : "\xcc\x81", 2) == 0;
  }
  tap_ok(ordered, "%d marks without a letter are ordered", 2 * PAIRS);
  ts_text_free(&marks);
  ts_text_free(&made);
}

int main(void) {
  test_finds();
  test_refused();
  test_endless();
  test_repairs();
  test_marks();
  tap_ok(ts_memory_live() == 0, "all memory freed");
  return tap_done();
}
