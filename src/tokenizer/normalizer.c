#include "tokenizer/normalizer.h"

#include "base/memory.h"
#include "tokenizer/unicode.h"

#include <string.h>

/* Of a text. */
typedef struct part {
  const char *text;
  size_t n;
  bool begins, ends;
  ts_matcher *matcher;
  bool *kept; /* out: its beginning */
} part;

typedef struct kind {
  ts_status (*read)(const json_t *value, ts_step_runs *s, ts_error *err); /* NULL: it has no options */
  void (*add)(const ts_step_runs *s, const part *p, ts_text *to);
} kind;

/* ---- the kinds ---- */

static void add_nfc(const ts_step_runs *s, const part *p, ts_text *to) {
  (void) s;
  ts_add_normal(to, p->text, p->n, TS_NFC);
}

static void add_nfd(const ts_step_runs *s, const part *p, ts_text *to) {
  (void) s;
  ts_add_normal(to, p->text, p->n, TS_NFD);
}

static void add_nfkc(const ts_step_runs *s, const part *p, ts_text *to) {
  (void) s;
  ts_add_normal(to, p->text, p->n, TS_NFKC);
}

static void add_nfkd(const ts_step_runs *s, const part *p, ts_text *to) {
  (void) s;
  ts_add_normal(to, p->text, p->n, TS_NFKD);
}

static void add_lower(const ts_step_runs *s, const part *p, ts_text *to) {
  (void) s;
  ts_add_lower(to, p->text, p->n);
}

static ts_status read_prepend(const json_t *value, ts_step_runs *s, ts_error *err) {
  return ts_read_text(value, "prepend", &s->content, &s->n, err);
}

static void add_prepended(const ts_step_runs *s, const part *p, ts_text *to) {
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

static ts_status read_replacement(const json_t *value, ts_step_runs *s, ts_error *err) {
  ts_status status = ts_read_text(value, "content", &s->content, &s->n, err);
  return status == TS_OK ? ts_read_pattern(json_object_get(value, "pattern"), &s->pattern, err) : status;
}

static void add_replaced(const ts_step_runs *s, const part *p, ts_text *to) {
  ts_matches_of walk = {.pattern = s->pattern, .matcher = p->matcher, .text = p->text, .n = p->n};
  ts_text_span match;
  bool taken = s->n == 0 && p->n > 0 && ts_next_match(&walk, &match) && match.begin == 0 && match.end > 0;
  *p->kept &= !taken;
  ts_add_replaced(to, s->pattern, p->matcher, p->text, p->n, s->content, s->n);
}

static ts_status read_strip(const json_t *value, ts_step_runs *s, ts_error *err) {
  const json_t *left = json_object_get(value, "strip_left"), *right = json_object_get(value, "strip_right");
  if (!json_is_boolean(left) || !json_is_boolean(right)) {
    return ts_error_add(err, "strip_left, strip_right: not true or false");
  }
  s->start = json_is_true(left);
  s->stop = json_is_true(right);
  return TS_OK;
}

static void add_stripped(const ts_step_runs *s, const part *p, ts_text *to) {
  size_t begin = 0, end = p->n;
  for (size_t next = 0; s->start > 0 && p->begins && begin < end && ts_is_space(ts_utf8_next(p->text, &next));
       begin = next) {
  }
  while (s->stop > 0 && p->ends && end > begin) {
    size_t last = ts_utf8_before(p->text, end), c = last;
    if (!ts_is_space(ts_utf8_next(p->text, &c))) {
      break;
    }
    end = last;
  }
  *p->kept &= begin == 0;
  ts_text_append(to, p->text + begin, end - begin);
}

static const kind kinds[] = {{NULL, add_nfc},
                             {NULL, add_nfd},
                             {NULL, add_nfkc},
                             {NULL, add_nfkd},
                             {NULL, add_lower},
                             {read_prepend, add_prepended},
                             {read_replacement, add_replaced},
                             {read_strip, add_stripped}};
static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Replace", "Strip"};

static ts_status read_normalizer_step(const json_t *value, int k, void *to, ts_error *err) {
  ts_step_runs *step = ts_add_step(to, k);
  return kinds[k].read != NULL ? kinds[k].read(value, step, err) : TS_OK;
}

const ts_step_table ts_normalizer_table = {"normalizer", "normalizers", names, sizeof kinds / sizeof kinds[0],
                                           read_normalizer_step};

bool ts_normalize(const ts_steps *normalizer, ts_matcher *matcher, bool begins, bool ends, ts_text *text,
                  ts_text *work) {
  bool kept = true;
  for (int64_t i = 0; i < normalizer->n; ++i) {
    work->length = 0;
    ts_text_append(work, "", 0);
    part p = {.text = text->text, .n = text->length, .begins = begins, .ends = ends, .matcher = matcher, .kept = &kept};
    kinds[normalizer->step[i].kind].add(&normalizer->step[i], &p, work);
    ts_text made = *work;
    *work = *text;
    *text = made;
  }
  return kept;
}
