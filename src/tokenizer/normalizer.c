#include "tokenizer/normalizer.h"

#include "base/memory.h"
#include "tokenizer/steps.h"
#include "tokenizer/unicode.h"

#include <string.h>

typedef struct kind kind;

typedef struct step {
  const kind *is;
  ts_pattern *pattern; /* owned: Replace */
  char *content;       /* owned: Replace, Prepend */
  size_t n;
  bool left, right; /* Strip */
} step;

/* Of a text. */
typedef struct part {
  const char *text;
  size_t n;
  bool begins, ends;
  ts_matcher *matcher;
} part;

struct kind {
  ts_status (*read)(const json_t *value, step *s, ts_error *err);
  void (*add)(const step *s, const part *p, ts_text *to);
};

struct ts_normalizer {
  step *step; /* owned */
  int64_t n, capacity;
};

/* ---- the kinds ---- */

static ts_status has_no_options(const json_t *value, step *s, ts_error *err) {
  (void) value, (void) s, (void) err;
  return TS_OK;
}

static void add_nfc(const step *s, const part *p, ts_text *to) {
  (void) s;
  ts_add_normal(to, p->text, p->n, TS_NFC);
}

static void add_nfd(const step *s, const part *p, ts_text *to) {
  (void) s;
  ts_add_normal(to, p->text, p->n, TS_NFD);
}

static void add_nfkc(const step *s, const part *p, ts_text *to) {
  (void) s;
  ts_add_normal(to, p->text, p->n, TS_NFKC);
}

static void add_nfkd(const step *s, const part *p, ts_text *to) {
  (void) s;
  ts_add_normal(to, p->text, p->n, TS_NFKD);
}

static void add_lower(const step *s, const part *p, ts_text *to) {
  (void) s;
  ts_add_lower(to, p->text, p->n);
}

static ts_status read_prepend(const json_t *value, step *s, ts_error *err) {
  return ts_read_text(value, "prepend", &s->content, &s->n, err);
}

static void add_prepended(const step *s, const part *p, ts_text *to) {
  ts_text_append(to, s->content, p->begins && p->n > 0 ? s->n : 0);
  ts_text_append(to, p->text, p->n);
}

void ts_add_replaced(ts_text *to, const ts_pattern *pattern, ts_matcher *matcher, const char *text, size_t n,
                     const char *by, size_t by_bytes) {
  ts_matches_of walk = {.pattern = pattern, .matcher = matcher, .text = text, .n = n};
  size_t done = 0;
  for (ts_text_span match; n > 0 && ts_next_match(&walk, &match); done = match.end) {
    ts_text_append(to, text + done, match.begin - done);
    ts_text_append(to, by, by_bytes);
  }
  ts_text_append(to, text + done, n - done);
}

static ts_status read_replacement(const json_t *value, step *s, ts_error *err) {
  ts_status status = ts_read_text(value, "content", &s->content, &s->n, err);
  return status == TS_OK ? ts_read_pattern(json_object_get(value, "pattern"), &s->pattern, err) : status;
}

static void add_replaced(const step *s, const part *p, ts_text *to) {
  ts_add_replaced(to, s->pattern, p->matcher, p->text, p->n, s->content, s->n);
}

static ts_status read_strip(const json_t *value, step *s, ts_error *err) {
  const json_t *left = json_object_get(value, "strip_left"), *right = json_object_get(value, "strip_right");
  if (!json_is_boolean(left) || !json_is_boolean(right)) {
    return ts_error_add(err, "strip_left, strip_right: not true or false");
  }
  s->left = json_is_true(left);
  s->right = json_is_true(right);
  return TS_OK;
}

static void add_stripped(const step *s, const part *p, ts_text *to) {
  size_t begin = 0, end = p->n;
  for (size_t next = 0; s->left && p->begins && begin < end && ts_is_space(ts_utf8_next(p->text, &next));
       begin = next) {
  }
  while (s->right && p->ends && end > begin) {
    size_t last = ts_utf8_before(p->text, end), c = last;
    if (!ts_is_space(ts_utf8_next(p->text, &c))) {
      break;
    }
    end = last;
  }
  ts_text_append(to, p->text + begin, end - begin);
}

static const kind kinds[] = {{has_no_options, add_nfc},        {has_no_options, add_nfd},
                             {has_no_options, add_nfkc},       {has_no_options, add_nfkd},
                             {has_no_options, add_lower},      {read_prepend, add_prepended},
                             {read_replacement, add_replaced}, {read_strip, add_stripped}};
static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Replace", "Strip"};

static ts_status read_normalizer_step(const json_t *value, int k, void *to, ts_error *err) {
  ts_normalizer *list = to;
  TS_GROW(list->step, list->n, list->capacity);
  list->step[list->n++] = (step){.is = &kinds[k]};
  return kinds[k].read(value, &list->step[list->n - 1], err);
}

static const ts_step_table table = {"normalizer", "normalizers", names, sizeof kinds / sizeof kinds[0],
                                    read_normalizer_step};

ts_status ts_normalizer_read(const json_t *value, ts_normalizer **out, ts_error *err) {
  *out = ts_calloc(1, sizeof **out);
  ts_status status = ts_read_steps(&table, value, *out, err);
  if (status != TS_OK) {
    ts_normalizer_destroy(out);
  }
  return status;
}

void ts_normalizer_destroy(ts_normalizer **normalizer) {
  ts_normalizer *a = *normalizer;
  if (a != NULL) {
    for (int64_t i = 0; i < a->n; ++i) {
      ts_pattern_destroy(&a->step[i].pattern);
      ts_free(a->step[i].content);
    }
    ts_free(a->step);
    ts_free(a);
    *normalizer = NULL;
  }
}

bool ts_normalizer_is_empty(const ts_normalizer *normalizer) {
  return normalizer->n == 0;
}

void ts_normalize(const ts_normalizer *normalizer, ts_matcher *matcher, bool begins, bool ends, ts_text *text,
                  ts_text *work) {
  for (int64_t i = 0; i < normalizer->n; ++i) {
    work->length = 0;
    ts_text_append(work, "", 0);
    part p = {.text = text->text, .n = text->length, .begins = begins, .ends = ends, .matcher = matcher};
    normalizer->step[i].is->add(&normalizer->step[i], &p, work);
    ts_text made = *work;
    *work = *text;
    *text = made;
  }
}
