#include "tokenizer/pattern.h"

#include "base/memory.h"
#include "tokenizer/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

/* Steps of one search: a second or so. */
#define MOST_STEPS 100000000u

struct ts_pattern {
  bool (*next)(const ts_pattern *pattern, ts_matcher *matcher, const char *text, size_t n, size_t from,
               ts_text_span *match);
  pcre2_code *regex;
  bool jit, looks_behind;
  char *literal; /* owned */
  size_t literal_bytes;
  bool (*is)(int32_t character);
};

struct ts_matcher {
  pcre2_match_data *data;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;
  bool gave_up;
};

/* ---- regular expressions ---- */

static bool next_regex(const ts_pattern *p, ts_matcher *m, const char *text, size_t n, size_t from,
                       ts_text_span *match) {
  PCRE2_SPTR subject = (PCRE2_SPTR) text;
  int found = p->jit ? pcre2_jit_match(p->regex, subject, n, from, 0, m->data, m->context) : PCRE2_ERROR_JIT_STACKLIMIT;
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(p->regex, subject, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data, m->context);
  }
  m->gave_up |= found < 0 && found != PCRE2_ERROR_NOMATCH;
  if (found < 0) {
    return false;
  }
  const PCRE2_SIZE *place = pcre2_get_ovector_pointer(m->data);
  *match = (ts_text_span){place[0], place[1]};
  return place[1] >= place[0];
}

ts_status ts_pattern_regex(const char *regex, ts_pattern **out, ts_error *err) {
  *out = NULL;
  bool looks_behind = false;
  char *translated = ts_pattern_translate(regex, &looks_behind, err);
  if (translated == NULL) {
    return TS_BAD_INPUT;
  }
  int code;
  PCRE2_SIZE where;
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  pcre2_compile_context *context = pcre2_compile_context_create(NULL);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_code *compiled = pcre2_compile((PCRE2_SPTR) translated, PCRE2_ZERO_TERMINATED, options, &code, &where, context);
  pcre2_compile_context_free(context);
  ts_free(translated);
  if (compiled == NULL) {
    PCRE2_UCHAR why[200];
    pcre2_get_error_message(code, why, sizeof why);
    return ts_error_add(err, "%s", (const char *) why);
  }
  ts_pattern *p = ts_calloc(1, sizeof *p);
  p->next = next_regex;
  p->regex = compiled;
  p->looks_behind = looks_behind;
  p->jit = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
  *out = p;
  return TS_OK;
}

/* ---- texts and kinds of characters ---- */

static bool next_literal(const ts_pattern *p, ts_matcher *m, const char *text, size_t n, size_t from,
                         ts_text_span *match) {
  (void) m;
  const char *found = memmem(text + from, n - from, p->literal, p->literal_bytes);
  if (found != NULL) {
    match->begin = (size_t) (found - text);
    match->end = match->begin + p->literal_bytes;
  }
  return found != NULL;
}

ts_pattern *ts_pattern_literal(const char *text, size_t n) {
  ts_pattern *p = ts_calloc(1, sizeof *p);
  p->next = next_literal;
  p->literal = ts_malloc(n + 1);
  memcpy(p->literal, text, n);
  p->literal_bytes = n;
  return p;
}

static bool next_of_kind(const ts_pattern *p, ts_matcher *m, const char *text, size_t n, size_t from,
                         ts_text_span *match) {
  (void) m;
  for (size_t at = from; at < n;) {
    match->begin = at;
    if (p->is(ts_utf8_next(text, &at))) {
      match->end = at;
      return true;
    }
  }
  return false;
}

ts_pattern *ts_pattern_kind(bool (*is)(int32_t character)) {
  ts_pattern *p = ts_calloc(1, sizeof *p);
  p->next = next_of_kind;
  p->is = is;
  return p;
}

static int word_kind(int32_t c) {
  return ts_is_word(c) ? 1 : ts_is_space(c) ? 0 : 2;
}

static bool next_word(const ts_pattern *p, ts_matcher *m, const char *text, size_t n, size_t from,
                      ts_text_span *match) {
  (void) p, (void) m;
  int kind = 0;
  for (size_t at = from, begin = from; at < n; begin = at) {
    int here = word_kind(ts_utf8_next(text, &at));
    if (kind == 0 && here != 0) {
      match->begin = begin;
      kind = here;
    }
    if (kind != 0 && here != kind) {
      match->end = begin;
      return true;
    }
  }
  match->end = n;
  return kind != 0;
}

ts_pattern *ts_pattern_words(void) {
  ts_pattern *p = ts_calloc(1, sizeof *p);
  p->next = next_word;
  return p;
}

bool ts_pattern_looks_behind(const ts_pattern *pattern) {
  return pattern->looks_behind;
}

void ts_pattern_destroy(ts_pattern **pattern) {
  if (*pattern != NULL) {
    pcre2_code_free((*pattern)->regex);
    ts_free((*pattern)->literal);
    ts_free(*pattern);
    *pattern = NULL;
  }
}

/* ---- matching ---- */

ts_matcher *ts_matcher_create(void) {
  ts_matcher *m = ts_calloc(1, sizeof *m);
  m->data = pcre2_match_data_create(1, NULL);
  m->context = pcre2_match_context_create(NULL);
  m->stack = pcre2_jit_stack_create(1 << 15, 1 << 24, NULL);
  TS_CHECK(m->data != NULL && m->context != NULL && m->stack != NULL, "no memory for matching");
  pcre2_set_match_limit(m->context, MOST_STEPS);
  pcre2_jit_stack_assign(m->context, NULL, m->stack);
  return m;
}

void ts_matcher_destroy(ts_matcher **matcher) {
  if (*matcher != NULL) {
    pcre2_match_data_free((*matcher)->data);
    pcre2_match_context_free((*matcher)->context);
    pcre2_jit_stack_free((*matcher)->stack);
    ts_free(*matcher);
    *matcher = NULL;
  }
}

bool ts_matcher_gave_up(ts_matcher *matcher) {
  bool gave_up = matcher->gave_up;
  matcher->gave_up = false;
  return gave_up;
}

bool ts_next_match(ts_matches_of *w, ts_text_span *match) {
  while (w->at <= w->n && w->pattern->next(w->pattern, w->matcher, w->text, w->n, w->at, match)) {
    bool again = match->begin == match->end && w->began && match->end == w->last_end;
    if (!again) {
      w->at = w->last_end = match->end;
      w->began = true;
      return true;
    }
    if (w->at >= w->n) {
      return false;
    }
    ts_utf8_next(w->text, &w->at);
  }
  return false;
}
