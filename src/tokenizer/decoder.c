#include "tokenizer/decoder.h"

#include "base/memory.h"
#include "tokenizer/bytes.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/steps.h"
#include "tokenizer/unicode.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct kind kind;

typedef struct step {
  const kind *is;
  ts_pattern *pattern; /* owned: Replace */
  char *content;       /* owned: what Replace writes, what Strip takes, Metaspace's character, BPEDecoder's suffix */
  size_t n;
  int64_t start, stop; /* Strip: characters at most */
  bool prepends;       /* Metaspace: the first one is not shown */
} step;

struct kind {
  ts_status (*read)(const json_t *value, step *s, ts_error *err);
  void (*decode)(const step *s, ts_matcher *matcher, const ts_token_texts *from, ts_token_texts *to);
};

struct ts_decoder {
  step *step; /* owned */
  int64_t n, capacity;
};

/* ---- pieces ---- */

void ts_token_texts_add(ts_token_texts *to, const char *text, size_t n) {
  ts_text_append(&to->text, text, n);
  TS_GROW(to->end, to->n, to->capacity);
  to->end[to->n++] = to->text.length;
}

void ts_token_texts_clear(ts_token_texts *p) {
  ts_text_free(&p->text);
  ts_free(p->end);
  *p = (ts_token_texts){0};
}

static const char *piece(const ts_token_texts *p, int64_t i, size_t *n) {
  size_t begin = i > 0 ? p->end[i - 1] : 0;
  *n = p->end[i] - begin;
  return p->text.text + begin;
}

/* ---- the kinds ---- */

static ts_status read_no_options(const json_t *value, step *s, ts_error *err) {
  (void) value, (void) s, (void) err;
  return TS_OK;
}

/* A token of which a character is not of the alphabet is its own bytes. */
static void decode_bytes(const step *s, ts_matcher *m, const ts_token_texts *from, ts_token_texts *to) {
  (void) s, (void) m;
  ts_text bytes = {0};
  for (int64_t i = 0; i < from->n; ++i) {
    size_t n;
    const char *token = piece(from, i, &n);
    if (!ts_add_bytes_of(&bytes, token, n)) {
      ts_text_append(&bytes, token, n);
    }
  }
  ts_text whole = {0};
  ts_utf8_repair(bytes.text, bytes.length, &whole);
  ts_text_append(&whole, "", 0);
  ts_token_texts_add(to, whole.text, whole.length);
  ts_text_free(&whole);
  ts_text_free(&bytes);
}

static int byte_token(const char *token, size_t n) {
  bool is = n == 6 && memcmp(token, "<0x", 3) == 0 && token[5] == '>' &&
            ((isxdigit((unsigned char) token[3]) || token[3] == '+') && isxdigit((unsigned char) token[4]));
  char digits[3] = {is ? token[3] : '0', is ? token[4] : '0', 0};
  return is ? (int) strtol(digits, NULL, 16) : -1;
}

static void close_bytes(ts_text *bytes, ts_token_texts *to) {
  if (bytes->length > 0 && ts_utf8_valid(bytes->text, bytes->length) == bytes->length) {
    ts_token_texts_add(to, bytes->text, bytes->length);
  } else {
    for (size_t i = 0; i < bytes->length; ++i) {
      ts_token_texts_add(to, "\xef\xbf\xbd", 3);
    }
  }
  bytes->length = 0;
}

/* Neighbours <0x..> are a text together, or each a character that is none. */
static void decode_fallback(const step *s, ts_matcher *m, const ts_token_texts *from, ts_token_texts *to) {
  (void) s, (void) m;
  ts_text bytes = {0};
  for (int64_t i = 0; i < from->n; ++i) {
    size_t n;
    const char *token = piece(from, i, &n);
    int byte = byte_token(token, n);
    if (byte >= 0) {
      ts_text_append(&bytes, &(char){(char) byte}, 1);
    } else {
      close_bytes(&bytes, to);
      ts_token_texts_add(to, token, n);
    }
  }
  close_bytes(&bytes, to);
  ts_text_free(&bytes);
}

static void decode_fused(const step *s, ts_matcher *m, const ts_token_texts *from, ts_token_texts *to) {
  (void) s, (void) m;
  ts_token_texts_add(to, from->n > 0 ? from->text.text : "", from->text.length);
}

static ts_status read_replaced(const json_t *value, step *s, ts_error *err) {
  ts_status status = ts_read_text(value, "content", &s->content, &s->n, err);
  return status == TS_OK ? ts_read_pattern(json_object_get(value, "pattern"), &s->pattern, err) : status;
}

static void decode_replaced(const step *s, ts_matcher *m, const ts_token_texts *from, ts_token_texts *to) {
  ts_text made = {0};
  for (int64_t i = 0; i < from->n; ++i) {
    size_t n;
    const char *token = piece(from, i, &n);
    made.length = 0;
    ts_text_append(&made, "", 0);
    ts_add_replaced(&made, s->pattern, m, token, n, s->content, s->n);
    ts_token_texts_add(to, made.text, made.length);
  }
  ts_text_free(&made);
}

static ts_status read_stripped(const json_t *value, step *s, ts_error *err) {
  const json_t *start = json_object_get(value, "start"), *stop = json_object_get(value, "stop");
  s->start = json_integer_value(start);
  s->stop = json_integer_value(stop);
  if (!json_is_integer(start) || !json_is_integer(stop) || s->start < 0 || s->stop < 0) {
    return ts_error_add(err, "start, stop: not numbers of characters");
  }
  size_t one = 0;
  ts_status status = ts_read_text(value, "content", &s->content, &s->n, err);
  bool single = status == TS_OK && s->n > 0 && (ts_utf8_next(s->content, &one), one == s->n);
  return status != TS_OK || single ? status : ts_error_add(err, "content: not one character");
}

static void decode_stripped(const step *s, ts_matcher *m, const ts_token_texts *from, ts_token_texts *to) {
  (void) m;
  for (int64_t i = 0; i < from->n; ++i) {
    size_t n, begin = 0;
    const char *token = piece(from, i, &n);
    for (int64_t k = 0; k < s->start && n - begin >= s->n && memcmp(token + begin, s->content, s->n) == 0; ++k) {
      begin += s->n;
    }
    for (int64_t k = 0; k < s->stop && n - begin >= s->n && memcmp(token + n - s->n, s->content, s->n) == 0; ++k) {
      n -= s->n;
    }
    ts_token_texts_add(to, token + begin, n - begin);
  }
}

static ts_status read_metaspace_decoder(const json_t *value, step *s, ts_error *err) {
  const char *scheme = json_string_value(json_object_get(value, "prepend_scheme"));
  s->prepends =
      (scheme == NULL || strcmp(scheme, "never") != 0) && !json_is_false(json_object_get(value, "add_prefix_space"));
  ts_status status = ts_read_text(value, "replacement", &s->content, &s->n, err);
  return status != TS_OK || s->n > 0 ? status : ts_error_add(err, "replacement: not one character");
}

/* Of the first token none is shown. */
static void decode_spaces(const step *s, ts_matcher *m, const ts_token_texts *from, ts_token_texts *to) {
  (void) m;
  ts_text made = {0};
  for (int64_t i = 0; i < from->n; ++i) {
    size_t n;
    const char *token = piece(from, i, &n);
    made.length = 0;
    ts_text_append(&made, "", 0);
    for (size_t at = 0; at < n;) {
      const char *found = memmem(token + at, n - at, s->content, s->n);
      size_t end = found != NULL ? (size_t) (found - token) : n;
      ts_text_append(&made, token + at, end - at);
      ts_text_append(&made, " ", found != NULL && !(i == 0 && s->prepends));
      at = found != NULL ? end + s->n : n;
    }
    ts_token_texts_add(to, made.text, made.length);
  }
  ts_text_free(&made);
}

static ts_status read_suffix(const json_t *value, step *s, ts_error *err) {
  return ts_read_text(value, "suffix", &s->content, &s->n, err);
}

static void decode_suffixes(const step *s, ts_matcher *m, const ts_token_texts *from, ts_token_texts *to) {
  ts_pattern *suffix = ts_pattern_literal(s->content, s->n);
  ts_text made = {0};
  for (int64_t i = 0; i < from->n; ++i) {
    size_t n;
    const char *token = piece(from, i, &n);
    made.length = 0;
    ts_text_append(&made, "", 0);
    ts_add_replaced(&made, suffix, m, token, n, " ", i + 1 < from->n);
    ts_token_texts_add(to, made.text, made.length);
  }
  ts_text_free(&made);
  ts_pattern_destroy(&suffix);
}

static const kind kinds[] = {{read_no_options, decode_bytes},  {read_no_options, decode_fallback},
                             {read_no_options, decode_fused},  {read_replaced, decode_replaced},
                             {read_stripped, decode_stripped}, {read_metaspace_decoder, decode_spaces},
                             {read_suffix, decode_suffixes}};
static const char *const names[] = {"ByteLevel", "ByteFallback", "Fuse", "Replace", "Strip", "Metaspace", "BPEDecoder"};

static ts_status read_decoder_step(const json_t *value, int k, void *to, ts_error *err) {
  ts_decoder *list = to;
  TS_GROW(list->step, list->n, list->capacity);
  list->step[list->n++] = (step){.is = &kinds[k]};
  return kinds[k].read(value, &list->step[list->n - 1], err);
}

static const ts_step_table table = {"decoder", "decoders", names, sizeof kinds / sizeof kinds[0], read_decoder_step};

ts_status ts_decoder_read(const json_t *value, ts_decoder **out, ts_error *err) {
  *out = ts_calloc(1, sizeof **out);
  ts_status status = ts_read_steps(&table, value, *out, err);
  if (status != TS_OK) {
    ts_decoder_destroy(out);
  }
  return status;
}

void ts_decoder_destroy(ts_decoder **decoder) {
  ts_decoder *a = *decoder;
  if (a != NULL) {
    for (int64_t i = 0; i < a->n; ++i) {
      ts_pattern_destroy(&a->step[i].pattern);
      ts_free(a->step[i].content);
    }
    ts_free(a->step);
    ts_free(a);
    *decoder = NULL;
  }
}

static void join_texts(const ts_token_texts *from, const char *between, ts_text *to) {
  for (int64_t i = 0; i < from->n; ++i) {
    size_t n;
    const char *text = piece(from, i, &n);
    ts_text_append(to, between, i > 0 ? strlen(between) : 0);
    ts_text_append(to, text, n);
  }
}

void ts_decode_texts(const ts_decoder *decoder, ts_matcher *matcher, ts_token_texts *tokens, ts_text *to) {
  ts_token_texts made = {0};
  for (int64_t i = 0; i < decoder->n && tokens->n > 0; ++i) {
    made.text.length = 0;
    made.n = 0;
    decoder->step[i].is->decode(&decoder->step[i], matcher, tokens, &made);
    ts_token_texts used = *tokens;
    *tokens = made;
    made = used;
  }
  ts_token_texts_clear(&made);
  join_texts(tokens, decoder->n > 0 ? "" : " ", to);
}
