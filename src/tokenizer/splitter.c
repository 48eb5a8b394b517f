#include "tokenizer/splitter.h"

#include "base/memory.h"
#include "tokenizer/steps.h"
#include "tokenizer/unicode.h"

#include <string.h>

/* What becomes of a match, as tokenizers calls it. */
typedef enum behavior { REMOVED, ISOLATED, CONTIGUOUS, WITH_PREVIOUS, WITH_NEXT, N_BEHAVIORS } behavior;

static const char *const behavior_names[] = {"Removed", "Isolated", "Contiguous", "MergedWithPrevious",
                                             "MergedWithNext"};

typedef struct step {
  ts_pattern *pattern; /* owned; NULL: it does not split */
  behavior behavior;
  bool invert;        /* what lies between matches is the match */
  bool writes_spaces; /* Metaspace: as the character in space */
  char space[8];
  enum { NEVER, FIRST, ALWAYS } prepend; /* Metaspace and ByteLevel: the space */
} step;

struct ts_splitter {
  step *step; /* owned */
  int64_t n, capacity;
  bool bytes;
};

/* ---- the kinds ---- */

static ts_status read_behavior(const json_t *value, step *s, ts_error *err) {
  const char *name = json_string_value(json_object_get(value, "behavior"));
  for (int b = 0; name != NULL && b < N_BEHAVIORS; ++b) {
    if (strcmp(name, behavior_names[b]) == 0) {
      s->behavior = (behavior) b;
      return TS_OK;
    }
  }
  return ts_error_add(err, "behavior: \"%s\" is not known", name != NULL ? name : "");
}

#define GPT2_WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static ts_status read_byte_level(const json_t *value, step *s, ts_error *err) {
  s->behavior = ISOLATED;
  s->prepend = json_is_true(json_object_get(value, "add_prefix_space")) ? ALWAYS : NEVER;
  strcpy(s->space, " ");
  bool splits = !json_is_false(json_object_get(value, "use_regex"));
  return splits ? ts_pattern_regex(GPT2_WORDS, &s->pattern, err) : TS_OK;
}

static ts_status read_split(const json_t *value, step *s, ts_error *err) {
  s->invert = json_is_true(json_object_get(value, "invert"));
  ts_status status = read_behavior(value, s, err);
  return status == TS_OK ? ts_read_pattern(json_object_get(value, "pattern"), &s->pattern, err) : status;
}

static ts_status read_digits(const json_t *value, step *s, ts_error *err) {
  (void) err;
  s->behavior = json_is_true(json_object_get(value, "individual_digits")) ? ISOLATED : CONTIGUOUS;
  s->pattern = ts_pattern_kind(ts_is_numeric);
  return TS_OK;
}

static ts_status read_punctuation(const json_t *value, step *s, ts_error *err) {
  s->behavior = ISOLATED;
  s->pattern = ts_pattern_kind(ts_is_punctuation);
  return json_object_get(value, "behavior") != NULL ? read_behavior(value, s, err) : TS_OK;
}

static ts_status read_whitespace(const json_t *value, step *s, ts_error *err) {
  (void) value, (void) err;
  s->behavior = REMOVED;
  s->invert = true;
  s->pattern = ts_pattern_words();
  return TS_OK;
}

static ts_status read_whitespace_split(const json_t *value, step *s, ts_error *err) {
  (void) value, (void) err;
  s->behavior = REMOVED;
  s->pattern = ts_pattern_kind(ts_is_space);
  return TS_OK;
}

static ts_status read_metaspace_split(const json_t *value, step *s, ts_error *err) {
  const json_t *space = json_object_get(value, "replacement"), *scheme = json_object_get(value, "prepend_scheme");
  const char *name = json_is_string(scheme) ? json_string_value(scheme) : "always";
  size_t n = json_string_length(space), one = 0;
  if (!json_is_string(space) || n == 0 || n > 4 || *json_string_value(space) == 0 ||
      (ts_utf8_next(json_string_value(space), &one), one != n)) {
    return ts_error_add(err, "replacement: not one character");
  }
  memcpy(s->space, json_string_value(space), n);
  bool known = strcmp(name, "always") == 0 || strcmp(name, "first") == 0 || strcmp(name, "never") == 0;
  if (!known) {
    return ts_error_add(err, "prepend_scheme: \"%s\" is not known; known are always, first, never", name);
  }
  s->prepend = *name == 'a' ? ALWAYS : *name == 'f' ? FIRST : NEVER;
  if (json_is_false(json_object_get(value, "add_prefix_space"))) {
    if (scheme != NULL && s->prepend != NEVER) {
      return ts_error_add(err, "add_prefix_space is false, but prepend_scheme is %s", name);
    }
    s->prepend = NEVER;
  }
  s->behavior = WITH_NEXT;
  s->pattern = json_is_false(json_object_get(value, "split")) ? NULL : ts_pattern_literal(s->space, n);
  return TS_OK;
}

typedef ts_status read_step(const json_t *value, step *s, ts_error *err);

enum { BYTE_LEVEL, METASPACE = 6 };
static read_step *const kinds[] = {read_byte_level,     read_split,      read_digits,
                                   read_punctuation,    read_whitespace, read_whitespace_split,
                                   read_metaspace_split};
static const char *const names[] = {"ByteLevel",  "Split",           "Digits",   "Punctuation",
                                    "Whitespace", "WhitespaceSplit", "Metaspace"};

static ts_status read_splitter_step(const json_t *value, int k, void *to, ts_error *err) {
  ts_splitter *list = to;
  if (list->bytes) {
    return ts_error_add(err, "not known here after ByteLevel");
  }
  TS_GROW(list->step, list->n, list->capacity);
  step *s = &list->step[list->n++];
  *s = (step){.writes_spaces = k == METASPACE};
  list->bytes = k == BYTE_LEVEL;
  return kinds[k](value, s, err);
}

static const ts_step_table table = {"pre_tokenizer", "pretokenizers", names, sizeof kinds / sizeof kinds[0],
                                    read_splitter_step};

ts_status ts_splitter_read(const json_t *value, ts_splitter **out, ts_error *err) {
  *out = ts_calloc(1, sizeof **out);
  ts_status status = ts_read_steps(&table, value, *out, err);
  if (status != TS_OK) {
    ts_splitter_destroy(out);
  }
  return status;
}

void ts_splitter_destroy(ts_splitter **splitter) {
  ts_splitter *a = *splitter;
  if (a != NULL) {
    for (int64_t i = 0; i < a->n; ++i) {
      ts_pattern_destroy(&a->step[i].pattern);
    }
    ts_free(a->step);
    ts_free(a);
    *splitter = NULL;
  }
}

bool ts_splitter_makes_bytes(const ts_splitter *splitter) {
  return splitter->bytes;
}

bool ts_splitter_keeps_whole(const ts_splitter *splitter) {
  bool whole = true;
  for (int64_t i = 0; i < splitter->n; ++i) {
    whole &= splitter->step[i].pattern == NULL;
  }
  return whole;
}

/* ---- splitting ---- */

void ts_word_list_clear(ts_word_list *w) {
  ts_text_free(&w->text);
  ts_text_free(&w->text_work);
  ts_free(w->word);
  ts_free(w->word_work);
  *w = (ts_word_list){0};
}

static void add_word(ts_word_list *w, size_t begin, size_t end) {
  if (end > begin) {
    TS_GROW(w->word_work, w->n_work, w->capacity_work);
    w->word_work[w->n_work++] = (ts_text_span){begin, end};
  }
}

/* Pieces of a word, matches or not, one after the other: each behavior is when a piece joins the one before it. */
typedef struct cutter {
  ts_word_list *to;
  behavior behavior;
  bool invert;
  size_t begin, end; /* the word that is open */
  bool open, open_is_match, before_was_match;
} cutter;

static bool joins(const cutter *c, bool is_match) {
  switch (c->behavior) {
    case CONTIGUOUS: return is_match == c->before_was_match;
    case WITH_PREVIOUS: return is_match && !c->before_was_match;
    case WITH_NEXT: return !is_match && c->before_was_match;
    default: return false;
  }
}

static void close_word(cutter *c) {
  if (c->open && !(c->behavior == REMOVED && c->open_is_match)) {
    add_word(c->to, c->begin, c->end);
  }
  c->open = false;
}

static void add_split(cutter *c, size_t begin, size_t end, bool is_match) {
  is_match ^= c->invert;
  if (c->open && joins(c, is_match)) {
    c->end = end;
  } else {
    close_word(c);
    c->begin = begin;
    c->end = end;
    c->open = true;
    c->open_is_match = is_match;
  }
  c->before_was_match = is_match;
}

static void cut_word(const step *s, ts_matcher *matcher, ts_word_list *w, ts_text_span word) {
  cutter c = {.to = w, .behavior = s->behavior, .invert = s->invert};
  ts_matches_of walk = {
      .pattern = s->pattern, .matcher = matcher, .text = w->text.text + word.begin, .n = word.end - word.begin};
  size_t done = 0;
  for (ts_text_span match; ts_next_match(&walk, &match); done = match.end) {
    w->parts &= !(word.begin + match.begin < w->cut && w->cut < word.begin + match.end);
    if (match.begin > done) {
      add_split(&c, word.begin + done, word.begin + match.begin, false);
    }
    add_split(&c, word.begin + match.begin, word.begin + match.end, true);
  }
  if (walk.n > done) {
    add_split(&c, word.begin + done, word.end, false);
  }
  close_word(&c);
}

static void take_work(ts_word_list *w) {
  ts_text_span *word = w->word;
  int64_t capacity = w->capacity;
  w->word = w->word_work, w->n = w->n_work, w->capacity = w->capacity_work;
  w->word_work = word, w->n_work = 0, w->capacity_work = capacity;
}

/* Bytes \a from .. \a to of a word, spaces written as that character. */
static void add_with_spaces(const step *s, size_t n, const char *word, size_t from, size_t to, ts_text *text) {
  while (from < to) {
    const char *space = memchr(word + from, ' ', to - from);
    size_t end = space != NULL ? (size_t) (space - word) : to;
    ts_text_append(text, word + from, end - from);
    ts_text_append(text, s->space, end < to ? n : 0);
    from = end + 1;
  }
}

/* Metaspace writes spaces as another character, and like ByteLevel puts one before words that begin with none; not
 * before what is the rest of a word, so a place where a word begins anyway would not do for a cut. */
static void write_spaces(const step *s, bool begins, bool first, ts_word_list *w) {
  size_t n = strlen(s->space), cut = 0;
  w->text_work.length = 0;
  ts_text_append(&w->text_work, "", 0);
  for (int64_t i = 0; i < w->n; ++i) {
    const char *word = w->text.text + w->word[i].begin;
    size_t length = w->word[i].end - w->word[i].begin, begin = w->text_work.length;
    size_t before = w->cut <= w->word[i].begin           ? 0
                    : w->cut - w->word[i].begin < length ? w->cut - w->word[i].begin
                                                         : length;
    bool has = *word == ' ' || (length >= n && memcmp(word, s->space, n) == 0), rest = i == 0 && !begins;
    w->parts &= i == 0 || s->prepend != ALWAYS || w->cut != w->word[i].begin;
    if (!has && !rest && (s->prepend == ALWAYS || (s->prepend == FIRST && first && i == 0))) {
      ts_text_append(&w->text_work, s->space, n);
    }
    add_with_spaces(s, n, word, 0, before, &w->text_work);
    cut = before > 0 ? w->text_work.length : cut;
    add_with_spaces(s, n, word, before, length, &w->text_work);
    add_word(w, begin, w->text_work.length);
  }
  w->cut = cut;
  ts_text text = w->text;
  w->text = w->text_work;
  w->text_work = text;
  take_work(w);
}

void ts_split_words(const ts_splitter *splitter, ts_matcher *matcher, bool begins, bool first, ts_word_list *w) {
  w->parts = true;
  w->n_work = 0;
  add_word(w, 0, w->text.length);
  take_work(w);
  for (int64_t i = 0; i < splitter->n; ++i) {
    const step *s = &splitter->step[i];
    if (s->writes_spaces || s->prepend != NEVER) {
      first &= w->n == 0 || w->word[0].begin == 0;
      write_spaces(s, begins, first, w);
    }
    if (s->pattern != NULL) {
      w->parts &= !ts_pattern_looks_behind(s->pattern);
      for (int64_t k = 0; k < w->n; ++k) {
        cut_word(s, matcher, w, w->word[k]);
      }
      take_work(w);
    }
  }
}
