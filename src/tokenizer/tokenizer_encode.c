/* Texts into ids and back, by what was read of a tokenizer.json. */
#include "base/memory.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

#include <string.h>

/* Places in a text are held in 32 bits. */
#define LARGEST_TEXT ((size_t) 1 << 30)

struct ts_encoder {
  const ts_tokenizer *tokenizer;
  ts_matcher *matcher;
  ts_bpe_encoder *bpe;
  ts_word_list words;
  ts_text text, whole, work; /* a part of the text, normalized */
  ts_token_texts pieces;
};

/* ---- encoding ---- */

ts_encoder *ts_encoder_create(const ts_tokenizer *tokenizer) {
  ts_encoder *e = ts_calloc(1, sizeof *e);
  e->tokenizer = tokenizer;
  e->matcher = ts_matcher_create();
  e->bpe = ts_bpe_encoder_create(tokenizer->bpe);
  return e;
}

void ts_encoder_destroy(ts_encoder **encoder) {
  ts_encoder *e = *encoder;
  if (e != NULL) {
    ts_matcher_destroy(&e->matcher);
    ts_bpe_encoder_destroy(&e->bpe);
    ts_word_list_clear(&e->words);
    ts_text_free(&e->text);
    ts_text_free(&e->whole);
    ts_text_free(&e->work);
    ts_token_texts_clear(&e->pieces);
    ts_free(e);
    *encoder = NULL;
  }
}

const ts_tokenizer *ts_encoder_tokenizer(const ts_encoder *encoder) {
  return encoder->tokenizer;
}

/* A long word is encoded in parts, each one that will be seen again, where nothing joins them. */
static void encode_word(ts_encoder *e, const char *word, size_t n, ts_ids *to) {
  const ts_bpe *bpe = e->tokenizer->bpe;
  size_t begin = 0;
  for (size_t at = 1; n > 16 && at < n; ++at) {
    bool boundary = ((unsigned char) word[at] & 0xc0) != 0x80 && at - begin > 2;
    bool starts = (word[at] & 0x80) != (word[at - 1] & 0x80) || word[at] == ' ';
    if (boundary && starts && ts_bpe_parts(bpe, word, n, at)) {
      ts_bpe_encode(e->bpe, word + begin, at - begin, to);
      begin = at;
    }
  }
  ts_bpe_encode(e->bpe, word + begin, n - begin, to);
}

/* A text, or a part of one, and a place in it: what is before the place is encoded, knowing what comes after it. */
typedef struct part {
  const char *text;
  size_t n, cut;
  bool begins; /* it is not the rest of another one */
  bool first;  /* and nothing is before it */
  bool parts;  /* out: what is behind the cut may be encoded as a rest of its own, */
  bool behind; /* one that begins, as an added token ends at the cut */
} part;

/* What is after \a done of a part, up to \a end. */
static part rest_of_part(const part *whole, size_t done, size_t end) {
  return (part){.text = whole->text + done,
                .n = end - done,
                .cut = whole->cut < end ? whole->cut - done : end - done,
                .begins = whole->begins || done > 0,
                .first = whole->first && done == 0,
                .parts = true};
}

static void encode_words(ts_encoder *e, part *p, ts_ids *to) {
  const ts_tokenizer *t = e->tokenizer;
  ts_word_list *w = &e->words;
  w->text.length = 0;
  w->cut = p->cut;
  ts_text_append(&w->text, p->text, p->n);
  ts_split_words(t->splitter, e->matcher, p->begins, p->first, w);
  p->parts &= w->parts;
  bool whole = ts_splitter_keeps_whole(t->splitter);
  for (int64_t i = 0; i < w->n && w->word[i].begin < w->cut; ++i) {
    const char *word = w->text.text + w->word[i].begin;
    size_t n = w->word[i].end - w->word[i].begin, end = w->cut < w->word[i].end ? w->cut - w->word[i].begin : n;
    p->parts &= end == n || (whole && ts_bpe_parts(t->bpe, word, n, end));
    if (whole) {
      encode_word(e, word, end, to);
    } else {
      ts_bpe_encode(e->bpe, word, end, to);
    }
  }
}

/* Does the next added token begin where this one ends, or later: in no space that this one took along? */
static bool begins_behind(ts_added_walk walk, size_t end) {
  ts_text_span next;
  return ts_added_next(&walk, &next) == NULL || next.begin >= end;
}

/* Parts, and the added tokens of \a set between them. */
typedef void encode_between(ts_encoder *e, part *p, ts_ids *to);

static void encode_around(ts_encoder *e, part *p, const ts_added_set *set, encode_between *encode, ts_ids *to) {
  ts_added_walk walk = {.set = set, .text = p->text, .n = p->n};
  size_t done = 0, last = p->cut;
  if (p->cut > 0 && p->cut < p->n && e->tokenizer->single_words) {
    last = ts_utf8_before(p->text, last);
    p->parts &= !ts_is_word(ts_utf8_next(p->text, &last));
  }
  for (bool more = true; more;) {
    ts_text_span place = {p->n, p->n};
    const ts_added_token *token = ts_added_next(&walk, &place);
    if (place.begin >= done) { /* another one may begin in the space that one took along */
      part between = rest_of_part(p, done, place.begin);
      encode(e, &between, to);
      p->parts &= between.parts;
    }
    more = token != NULL && place.begin < p->cut;
    if (more) {
      ts_ids_add(to, &token->id, 1);
      done = place.end;
      p->behind = done == p->cut && p->cut < p->n && begins_behind(walk, done);
      p->parts &= done < p->cut || p->cut == p->n || p->behind;
    }
    more &= done < p->cut || p->cut == p->n;
  }
}

/* Both sides of the cut are normalized by themselves, which is the same as together or no cut. */
static void encode_normalized(ts_encoder *e, part *p, ts_ids *to) {
  const ts_tokenizer *t = e->tokenizer;
  part made = *p;
  if (p->n > 0 && t->normalizer.n > 0) {
    bool cuts = p->cut < p->n;
    e->whole.length = e->text.length = 0;
    ts_text_append(&e->whole, p->text, p->n);
    bool kept = ts_normalize(&t->normalizer, e->matcher, p->begins, true, &e->whole, &e->work);
    made = (part){.text = e->whole.text,
                  .n = e->whole.length,
                  .cut = e->whole.length,
                  .begins = p->begins,
                  .first = p->first && kept,
                  .parts = true};
    if (cuts) {
      ts_text_append(&e->text, p->text, p->cut);
      ts_normalize(&t->normalizer, e->matcher, p->begins, false, &e->text, &e->work);
      made.cut = e->text.length < made.n ? e->text.length : made.n;
      made.parts = memcmp(e->text.text, made.text, made.cut) == 0;
      e->text.length = 0;
      ts_text_append(&e->text, p->text + p->cut, p->n - p->cut);
      ts_normalize(&t->normalizer, e->matcher, false, true, &e->text, &e->work);
      size_t rest = made.n - made.cut;
      made.parts &= e->text.length == rest && memcmp(e->text.text, made.text + made.cut, rest) == 0;
    }
  }
  encode_around(e, &made, t->normalized, encode_words, to);
  p->parts &= made.parts && !made.behind; /* the normalizer may not know that something begins */
}

static ts_status check_text(const char *text, size_t n, ts_error *err) {
  if (n > LARGEST_TEXT) {
    return ts_error_add(err, "a text of %zu bytes is encoded in parts only, each of at most %zu", n, LARGEST_TEXT);
  }
  size_t valid = ts_utf8_valid(text, n);
  return valid == n ? TS_OK : ts_error_add(err, "the text is no UTF-8 at byte %zu", valid);
}

static ts_status say_gave_up(ts_encoder *e, ts_error *err) {
  return ts_matcher_gave_up(e->matcher)
             ? ts_error_add(err, "a pattern of tokenizer.json takes too many steps for this text")
             : TS_OK;
}

ts_status ts_encode(ts_encoder *e, const char *text, size_t n, bool special, ts_ids *to, ts_error *err) {
  const ts_tokenizer *t = e->tokenizer;
  part whole = {.text = text, .n = n, .cut = n, .begins = true, .first = true, .parts = true};
  if (check_text(text, n, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_ids_add(to, t->before.id, special ? t->before.n : 0);
  encode_around(e, &whole, t->raw, encode_normalized, to);
  ts_ids_add(to, t->after.id, special ? t->after.n : 0);
  return say_gave_up(e, err);
}

ts_status ts_encode_part(ts_encoder *e, const char *text, size_t n, size_t ahead, ts_joint begins, ts_joint *ends,
                         ts_ids *to, ts_error *err) {
  bool first = begins == TS_JOINT_BEGIN;
  part p = {.text = text, .n = n + ahead, .cut = n, .begins = begins >= TS_JOINT_BEHIND, .first = first, .parts = true};
  *ends = TS_JOINT_NONE;
  if (check_text(text, n + ahead, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  encode_around(e, &p, e->tokenizer->raw, encode_normalized, to);
  bool parts = p.parts && (n > 0 || ahead == 0 || !first);
  *ends = !parts ? TS_JOINT_NONE : p.behind ? TS_JOINT_BEHIND : TS_JOINT_INSIDE;
  return say_gave_up(e, err);
}

/* ---- decoding ---- */

/* Whether a token is shown is asked of what would be: of one that the normalizer changes, as tokenizers does. */
static bool is_special_text(const ts_tokenizer *t, const char *text, size_t n) {
  return ts_tokenizer_is_special(t, ts_string_id(&t->added_id, text, n));
}

static void add_token_text(ts_encoder *e, int32_t id, bool show_special) {
  const ts_tokenizer *t = e->tokenizer;
  const ts_added_token *added = ts_tokenizer_added(t, id);
  const ts_text *normal = added != NULL ? &t->added_normal[t->added_of[id]] : NULL;
  size_t n = 0;
  const char *text = added == NULL ? ts_bpe_token(t->bpe, id, &n) : normal->length > 0 ? normal->text : added->content;
  n = added == NULL ? n : normal->length > 0 ? normal->length : added->n;
  if (text != NULL && (show_special || !is_special_text(t, text, n))) {
    ts_token_texts_add(&e->pieces, text, n);
  }
}

void ts_decode(ts_encoder *e, const int32_t *id, int64_t n, bool show_special, ts_text *to) {
  e->pieces.n = 0;
  e->pieces.text.length = 0;
  for (int64_t i = 0; i < n; ++i) {
    add_token_text(e, id[i], show_special);
  }
  ts_decode_texts(&e->tokenizer->decoder, e->matcher, &e->pieces, to);
}

/* The text of what was shown last is looked at together with what follows: a decoder may treat a first token otherwise,
 * and a character's last bytes may be missing. */
void ts_decode_next(ts_decode_stream *s, ts_encoder *e, int32_t id, bool show_special, ts_text *to) {
  ts_ids_add(&s->ids, &id, 1);
  ts_text text = {0};
  ts_decode(e, s->ids.id, s->ids.n, show_special, &text);
  bool whole = text.length < 3 || memcmp(text.text + text.length - 3, "\xef\xbf\xbd", 3) != 0;
  if (whole && text.length > s->shown) {
    size_t from = s->shown;
    while ((text.text[from] & 0xc0) == 0x80) { /* what was shown looks otherwise now */
      ++from;
    }
    ts_text_append(to, text.text + from, text.length - from);
    memmove(s->ids.id, s->ids.id + s->before, (size_t) (s->ids.n - s->before) * sizeof *s->ids.id);
    s->ids.n -= s->before;
    s->before = s->ids.n;
    text.length = 0;
    ts_decode(e, s->ids.id, s->ids.n, show_special, &text);
    s->shown = text.length;
  }
  ts_text_free(&text);
}

void ts_decode_stream_clear(ts_decode_stream *s) {
  ts_free(s->ids.id);
  *s = (ts_decode_stream){0};
}
