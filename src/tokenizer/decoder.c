#include "tokenizer/decoder.h"

#include "base/memory.h"
#include "tokenizer/bytes.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/unicode.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A token among others. */
typedef struct token {
  const char *text;
  size_t n;
  bool first, last;
  ts_matcher *matcher;
} token;

/* A kind makes something of each token by itself, or of all of them. */
typedef struct kind {
  ts_status (*read)(const json_t *value, ts_step_runs *s, ts_error *err); /* NULL: it has no options */
  void (*each)(const ts_step_runs *s, const token *t, ts_text *to);
  void (*all)(const ts_token_texts *from, ts_token_texts *to);
} kind;

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

/* A token of which a character is not of the alphabet is its own bytes. */
static void decode_bytes(const ts_token_texts *from, ts_token_texts *to) {
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
static void decode_fallback(const ts_token_texts *from, ts_token_texts *to) {
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

static void decode_fused(const ts_token_texts *from, ts_token_texts *to) {
  ts_token_texts_add(to, from->n > 0 ? from->text.text : "", from->text.length);
}

static ts_status read_replaced(const json_t *value, ts_step_runs *s, ts_error *err) {
  ts_status status = ts_read_text(value, "content", &s->content, &s->n, err);
  return status == TS_OK ? ts_read_pattern(json_object_get(value, "pattern"), &s->pattern, err) : status;
}

static void decode_replaced(const ts_step_runs *s, const token *t, ts_text *to) {
  ts_add_replaced(to, s->pattern, t->matcher, t->text, t->n, s->content, s->n);
}

static ts_status read_stripped(const json_t *value, ts_step_runs *s, ts_error *err) {
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

static void decode_stripped(const ts_step_runs *s, const token *t, ts_text *to) {
  size_t begin = 0, end = t->n;
  for (int64_t k = 0; k < s->start && end - begin >= s->n && memcmp(t->text + begin, s->content, s->n) == 0; ++k) {
    begin += s->n;
  }
  for (int64_t k = 0; k < s->stop && end - begin >= s->n && memcmp(t->text + end - s->n, s->content, s->n) == 0; ++k) {
    end -= s->n;
  }
  ts_text_append(to, t->text + begin, end - begin);
}

/* The text of a member, to be looked for. */
static ts_status read_literal(const json_t *value, const char *name, ts_step_runs *s, ts_error *err) {
  ts_status status = ts_read_text(value, name, &s->content, &s->n, err);
  s->pattern = status == TS_OK ? ts_pattern_literal(s->content, s->n) : NULL;
  return status;
}

static ts_status read_metaspace_decoder(const json_t *value, ts_step_runs *s, ts_error *err) {
  const char *scheme = json_string_value(json_object_get(value, "prepend_scheme"));
  bool never =
      (scheme != NULL && strcmp(scheme, "never") == 0) || json_is_false(json_object_get(value, "add_prefix_space"));
  s->start = !never;
  size_t one = 0;
  ts_status status = read_literal(value, "replacement", s, err);
  bool single = status == TS_OK && s->n > 0 && (ts_utf8_next(s->content, &one), one == s->n);
  return status != TS_OK || single ? status : ts_error_add(err, "replacement: not one character");
}

/* Of the first token none is shown, where one was put there. */
static void decode_spaces(const ts_step_runs *s, const token *t, ts_text *to) {
  ts_add_replaced(to, s->pattern, t->matcher, t->text, t->n, " ", !(t->first && s->start > 0));
}

static ts_status read_suffix(const json_t *value, ts_step_runs *s, ts_error *err) {
  return read_literal(value, "suffix", s, err);
}

static void decode_suffixes(const ts_step_runs *s, const token *t, ts_text *to) {
  ts_add_replaced(to, s->pattern, t->matcher, t->text, t->n, " ", !t->last);
}

static const kind kinds[] = {{NULL, NULL, decode_bytes},
                             {NULL, NULL, decode_fallback},
                             {NULL, NULL, decode_fused},
                             {read_replaced, decode_replaced, NULL},
                             {read_stripped, decode_stripped, NULL},
                             {read_metaspace_decoder, decode_spaces, NULL},
                             {read_suffix, decode_suffixes, NULL}};
static const char *const names[] = {"ByteLevel", "ByteFallback", "Fuse", "Replace", "Strip", "Metaspace", "BPEDecoder"};

static ts_status read_decoder_step(const json_t *value, int k, void *to, ts_error *err) {
  ts_step_runs *step = ts_add_step(to, k);
  return kinds[k].read != NULL ? kinds[k].read(value, step, err) : TS_OK;
}

const ts_step_table ts_decoder_table = {"decoder", "decoders", names, sizeof kinds / sizeof kinds[0],
                                        read_decoder_step};

static void decode_each(const ts_step_runs *step, ts_matcher *matcher, const ts_token_texts *from, ts_token_texts *to) {
  for (int64_t i = 0; i < from->n; ++i) {
    token t = {.first = i == 0, .last = i + 1 == from->n, .matcher = matcher};
    t.text = piece(from, i, &t.n);
    kinds[step->kind].each(step, &t, &to->text);
    ts_token_texts_add(to, "", 0);
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

void ts_decode_texts(const ts_steps *decoder, ts_matcher *matcher, ts_token_texts *tokens, ts_text *to) {
  ts_token_texts made = {0};
  for (int64_t i = 0; i < decoder->n && tokens->n > 0; ++i) {
    const ts_step_runs *step = &decoder->step[i];
    made.text.length = 0;
    made.n = 0;
    if (kinds[step->kind].all != NULL) {
      kinds[step->kind].all(tokens, &made);
    } else {
      decode_each(step, matcher, tokens, &made);
    }
    ts_token_texts used = *tokens;
    *tokens = made;
    made = used;
  }
  ts_token_texts_clear(&made);
  join_texts(tokens, decoder->n > 0 ? "" : " ", to);
}
