/* The json that DeepSpeed takes: it reads its configuration with hjson.  Comments, trailing commas and ends of lines in
 * the place of commas become plain json here, each line where it was; strings and keys without quotes stay errors. */
#include "deck/value.h"

#include <ctype.h>
#include <string.h>

typedef struct ts_relaxed {
  const char *end;
  ts_text *to;
  bool ended;   /* A value or key is complete: what begins next needs a comma before it. */
  bool comma;   /* There was one; it is written before what it belongs to, so not before a bracket. */
  bool newline; /* There was one since the value: it stands for a comma. */
} ts_relaxed;

static bool begins(const char *p, const char *end, const char *mark) {
  size_t n = strlen(mark);
  return (size_t) (end - p) >= n && memcmp(p, mark, n) == 0;
}

/* Past the comment at p; p itself where there is none. */
static const char *after_comment(const char *p, const char *end) {
  if (begins(p, end, "/*")) {
    const char *stop = memmem(p + 2, (size_t) (end - p) - 2, "*/", 2);
    return stop != NULL ? stop + 2 : end;
  }
  if (*p == '#' || begins(p, end, "//")) {
    const char *stop = memchr(p, '\n', (size_t) (end - p));
    return stop != NULL ? stop : end;
  }
  return p;
}

static const char *after_string(const char *p, const char *end) {
  for (++p; p < end && *p != '"' && *p != '\n'; ++p) {
    p += *p == '\\' && p + 1 < end;
  }
  return p < end ? p + 1 : end;
}

static bool ends_token(const char *p, const char *end) {
  return isspace((unsigned char) *p) || strchr(",:{}[]\"", *p) != NULL || after_comment(p, end) > p;
}

static const char *after_token(const char *p, const char *end) {
  if (*p == '"') {
    return after_string(p, end);
  }
  if (*p == '{' || *p == '[') {
    return p + 1;
  }
  for (++p; p < end && !ends_token(p, end);) {
    ++p;
  }
  return p;
}

static void add_lines(ts_relaxed *r, const char *p, const char *stop) {
  for (; p < stop; ++p) {
    if (*p == '\n') {
      ts_text_append(r->to, p, 1);
      r->newline = true;
    }
  }
}

static const char *add_token(ts_relaxed *r, const char *p) {
  const char *stop = after_token(p, r->end);
  if (r->comma || (r->ended && r->newline)) {
    ts_text_append(r->to, ",", 1);
  }
  ts_text_append(r->to, p, (size_t) (stop - p));
  r->ended = *p != '{' && *p != '[';
  r->comma = r->newline = false;
  return stop;
}

static void add_mark(ts_relaxed *r, char mark) {
  bool closes = mark == '}' || mark == ']';
  if (r->comma && !closes) {
    ts_text_append(r->to, ",", 1); /* a second one, or one before a colon: the parser complains */
  }
  r->comma = mark == ',' && r->ended;
  if (!r->comma) {
    ts_text_append(r->to, &mark, 1);
  }
  r->ended = closes || mark == ',';
  r->newline = false;
}

void ts_json_relax(const char *text, size_t length, ts_text *to) {
  ts_relaxed r = {.end = text + length, .to = to};
  for (const char *p = text; p < r.end;) {
    const char *stop = after_comment(p, r.end);
    if (stop > p) {
      add_lines(&r, p, stop);
      p = stop;
    } else if (isspace((unsigned char) *p)) {
      r.newline = r.newline || *p == '\n';
      ts_text_append(to, p++, 1);
    } else if (strchr(",:}]", *p) != NULL && *p != '\0') {
      add_mark(&r, *p++);
    } else {
      p = add_token(&r, p);
    }
  }
}
