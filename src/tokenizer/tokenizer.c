#include "tokenizer/tokenizer.h"

#include "base/memory.h"
#include "tokenizer/added.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/splitter.h"
#include "tokenizer/steps.h"
#include "tokenizer/unicode.h"

#include <string.h>

/* A tokenizer.json of a model with 256k tokens has 30 MB. */
#define LARGEST_FILE ((size_t) 1 << 30)
/* Places in a text are held in 32 bits. */
#define LARGEST_TEXT ((size_t) 1 << 30)

struct ts_tokenizer {
  ts_added_token *added; /* owned, as in the file */
  int64_t n_added, added_capacity;
  ts_text *added_normal;    /* owned: what the normalizer makes of those it is asked for, else empty */
  ts_string_table added_id; /* their contents */
  int32_t *added_of;        /* owned: id -> place in added, -1 */
  int32_t last_id;
  ts_added_set *raw, *normalized;
  ts_steps normalizer, decoder;
  ts_splitter *splitter;
  ts_bpe *bpe;
  bool single_words;    /* an added token is single_word */
  ts_ids before, after; /* of the template */
};

struct ts_encoder {
  const ts_tokenizer *tokenizer;
  ts_matcher *matcher;
  ts_bpe_encoder *bpe;
  ts_words words;
  ts_text text, whole, work; /* a part of the text, normalized */
  ts_token_texts pieces;
};

/* ---- reading: added tokens ---- */

static bool flag_of(const json_t *value, const char *name) {
  return json_is_true(json_object_get(value, name));
}

static ts_status read_added_token(ts_tokenizer *t, const json_t *value, size_t place, ts_error *err) {
  const json_t *content = json_object_get(value, "content");
  if (!json_is_string(content)) {
    return ts_error_add(err, "added_tokens: entry %zu has no content", place);
  }
  size_t n = json_string_length(content);
  if (n == 0) {
    return TS_OK;
  }
  TS_GROW(t->added, t->n_added, t->added_capacity);
  ts_added_token *token = &t->added[t->n_added++];
  *token = (ts_added_token){.content = ts_malloc(n + 1),
                            .n = n,
                            .single_word = flag_of(value, "single_word"),
                            .lstrip = flag_of(value, "lstrip"),
                            .rstrip = flag_of(value, "rstrip"),
                            .normalized = flag_of(value, "normalized"),
                            .special = flag_of(value, "special")};
  memcpy(token->content, json_string_value(content), n + 1);
  return TS_OK;
}

/* As tokenizers does: a token that the model has too has the model's id, others are numbered from the size of the
 * vocabulary on, whatever the file says. */
static void number_added(ts_tokenizer *t) {
  t->last_id = ts_bpe_last_id(t->bpe);
  int32_t next = (int32_t) ts_bpe_size(t->bpe);
  ts_string_table places = {0};
  for (int64_t i = 0; i < t->n_added; ++i) {
    ts_added_token *token = &t->added[i];
    int32_t before = ts_string_id(&places, token->content, token->n);
    int32_t known = before >= 0 ? t->added[before].id : ts_bpe_id(t->bpe, token->content, token->n);
    token->special |= before >= 0 && t->added[before].special; /* the last one of equals counts, but for this */
    token->id = known >= 0 ? known : next++;
    t->last_id = token->id > t->last_id ? token->id : t->last_id;
    ts_string_add(&places, token->content, token->n, (int32_t) i);
    ts_string_add(&t->added_id, token->content, token->n, token->id);
  }
  ts_string_table_clear(&places);
  t->added_of = ts_malloc(((size_t) t->last_id + 2) * sizeof *t->added_of);
  for (int32_t id = 0; id <= t->last_id; ++id) {
    t->added_of[id] = -1;
  }
  for (int64_t i = 0; i < t->n_added; ++i) {
    t->added_of[t->added[i].id] = (int32_t) i;
    t->single_words |= t->added[i].single_word;
  }
}

static ts_added_set *make_set(const ts_tokenizer *t, bool normalized) {
  const ts_added_token **token = ts_calloc((size_t) t->n_added + 1, sizeof *token);
  ts_text *text = ts_calloc((size_t) t->n_added + 1, sizeof *text);
  int64_t n = 0;
  for (int64_t i = 0; i < t->n_added; ++i) {
    const ts_added_token *a = &t->added[i];
    if (a->normalized == normalized && t->added_of[a->id] == i) {
      text[n] = normalized ? t->added_normal[i] : (ts_text){.text = a->content, .length = a->n};
      token[n++] = a;
    }
  }
  ts_added_set *set = n > 0 ? ts_added_set_create(token, text, n) : NULL;
  ts_free(text);
  ts_free(token);
  return set;
}

static ts_status read_added(ts_tokenizer *t, const json_t *root, ts_error *err) {
  const json_t *list = json_object_get(root, "added_tokens");
  if (list != NULL && !json_is_null(list) && !json_is_array(list)) {
    return ts_error_add(err, "added_tokens: not a list");
  }
  for (size_t i = 0; i < json_array_size(list); ++i) {
    if (read_added_token(t, json_array_get(list, i), i, err) != TS_OK) {
      return TS_BAD_INPUT;
    }
  }
  number_added(t);
  t->added_normal = ts_calloc((size_t) t->n_added + 1, sizeof *t->added_normal);
  ts_matcher *matcher = ts_matcher_create();
  ts_text work = {0};
  int64_t nothing = -1;
  for (int64_t i = 0; i < t->n_added; ++i) {
    if (t->added[i].normalized) {
      ts_text_append(&t->added_normal[i], t->added[i].content, t->added[i].n);
      ts_normalize(&t->normalizer, matcher, true, true, &t->added_normal[i], &work);
      nothing = t->added_normal[i].length == 0 ? i : nothing;
    }
  }
  ts_text_free(&work);
  ts_matcher_destroy(&matcher);
  if (nothing >= 0) { /* tokenizers would then cut everywhere */
    return ts_error_add(err, "added_tokens: the normalizer leaves nothing of \"%s\"", t->added[nothing].content);
  }
  t->raw = make_set(t, false);
  t->normalized = make_set(t, true);
  return TS_OK;
}

/* ---- reading: the template ---- */

static ts_status add_template_token(const ts_tokenizer *t, const json_t *token, const char *name, ts_ids *to,
                                    ts_error *err) {
  const json_t *ids = json_object_get(token, "ids");
  if (!json_is_array(ids)) {
    return ts_error_add(err, "%s is not among special_tokens", name);
  }
  for (size_t i = 0; i < json_array_size(ids); ++i) {
    json_int_t id = json_integer_value(json_array_get(ids, i));
    if (!json_is_integer(json_array_get(ids, i)) || id < 0 || id > t->last_id) {
      return ts_error_add(err, "an id of %s is no integer from 0 to %lld", name, (long long) t->last_id);
    }
    ts_ids_add(to, &(int32_t){(int32_t) id}, 1);
  }
  return TS_OK;
}

/* What is put before the text and after it; a text that is there twice, or not at all, has no such two halves. */
static ts_status read_template(const json_t *value, ts_tokenizer *t, ts_error *err) {
  const json_t *single = json_object_get(value, "single"), *tokens = json_object_get(value, "special_tokens");
  int sequences = 0;
  if (!json_is_array(single) || t->before.n + t->after.n > 0) {
    return ts_error_add(err, "no list single, or a second template");
  }
  for (size_t i = 0; i < json_array_size(single); ++i) {
    const json_t *piece = json_array_get(single, i), *special = json_object_get(piece, "SpecialToken");
    const char *name = json_string_value(json_object_get(special, "id"));
    const char *sequence = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
    bool is_text = sequence != NULL && strcmp(sequence, "A") == 0;
    sequences += is_text;
    if (!is_text && name == NULL) {
      return ts_error_add(err, "single: entry %zu is neither the text nor a special token", i);
    }
    ts_ids *side = sequences > 0 ? &t->after : &t->before;
    if (!is_text && add_template_token(t, json_object_get(tokens, name), name, side, err) != TS_OK) {
      return TS_BAD_INPUT;
    }
  }
  return sequences == 1 ? TS_OK : ts_error_add(err, "single: the text is there %d times, not once", sequences);
}

static const char *const processors[] = {"TemplateProcessing", "ByteLevel"};

/* ByteLevel trims offsets, which are not kept here. */
static ts_status read_processor(const json_t *value, int kind, void *to, ts_error *err) {
  return kind == 0 ? read_template(value, to, err) : TS_OK;
}

static const ts_step_table processor_table = {"post_processor", "processors", processors, 2, read_processor};

/* ---- reading: the file ---- */

static ts_status check_model_type(const json_t *model, ts_error *err) {
  const json_t *type = json_object_get(model, "type");
  if (!json_is_object(model)) {
    return ts_error_add(err, "no object model");
  }
  const char *name = json_is_string(type) ? json_string_value(type) : json_object_get(model, "merges") ? "BPE" : "none";
  return strcmp(name, "BPE") == 0 ? TS_OK : ts_error_add(err, "model: %s is not known here; known is BPE", name);
}

static ts_status read_members(ts_tokenizer *t, const json_t *root, ts_error *err) {
  const json_t *model = json_object_get(root, "model");
  if (check_model_type(model, err) != TS_OK ||
      ts_read_steps(&ts_normalizer_table, json_object_get(root, "normalizer"), &t->normalizer, err) != TS_OK ||
      ts_splitter_read(json_object_get(root, "pre_tokenizer"), &t->splitter, err) != TS_OK ||
      ts_bpe_read(model, ts_splitter_makes_bytes(t->splitter), &t->bpe, err) != TS_OK ||
      ts_read_steps(&ts_decoder_table, json_object_get(root, "decoder"), &t->decoder, err) != TS_OK ||
      read_added(t, root, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  return ts_read_steps(&processor_table, json_object_get(root, "post_processor"), t, err);
}

static ts_status read_tokenizer(ts_tokenizer *t, const char *path, ts_error *err) {
  char *text = NULL;
  size_t n = 0;
  if (ts_read_file(path, LARGEST_FILE, &text, &n, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  json_error_t at;
  json_t *root = json_loadb(text, n, JSON_ALLOW_NUL, &at);
  ts_free(text);
  ts_error why = {0};
  ts_status status = root != NULL ? read_members(t, root, &why) : ts_error_add(&why, "line %d: %s", at.line, at.text);
  if (status != TS_OK) {
    ts_error_add(err, "%s: %s", path, why.text);
  }
  ts_error_clear(&why);
  json_decref(root);
  return status;
}

ts_status ts_tokenizer_open(const char *directory, ts_tokenizer **out, ts_error *err) {
  ts_tokenizer *t = ts_calloc(1, sizeof *t);
  char *path = ts_format("%s/tokenizer.json", directory);
  ts_status status = read_tokenizer(t, path, err);
  ts_free(path);
  if (status != TS_OK) {
    ts_tokenizer_close(&t);
  }
  *out = t;
  return status;
}

void ts_tokenizer_close(ts_tokenizer **tokenizer) {
  ts_tokenizer *t = *tokenizer;
  if (t == NULL) {
    return;
  }
  for (int64_t i = 0; i < t->n_added; ++i) {
    ts_free(t->added[i].content);
    if (t->added_normal != NULL) {
      ts_text_free(&t->added_normal[i]);
    }
  }
  ts_free(t->added);
  ts_free(t->added_normal);
  ts_free(t->added_of);
  ts_string_table_clear(&t->added_id);
  ts_added_set_destroy(&t->raw);
  ts_added_set_destroy(&t->normalized);
  ts_steps_clear(&t->normalizer);
  ts_splitter_destroy(&t->splitter);
  ts_bpe_destroy(&t->bpe);
  ts_steps_clear(&t->decoder);
  ts_free(t->before.id);
  ts_free(t->after.id);
  ts_free(t);
  *tokenizer = NULL;
}

/* ---- what it has ---- */

int64_t ts_tokenizer_size(const ts_tokenizer *t) {
  return (int64_t) t->last_id + 1;
}

int32_t ts_tokenizer_id(const ts_tokenizer *t, const char *token) {
  int32_t id = ts_string_id(&t->added_id, token, strlen(token));
  return id >= 0 ? id : ts_bpe_id(t->bpe, token, strlen(token));
}

const ts_ids *ts_tokenizer_before(const ts_tokenizer *t) {
  return &t->before;
}

const ts_ids *ts_tokenizer_after(const ts_tokenizer *t) {
  return &t->after;
}

static const ts_added_token *added_with(const ts_tokenizer *t, int32_t id) {
  return id >= 0 && id <= t->last_id && t->added_of[id] >= 0 ? &t->added[t->added_of[id]] : NULL;
}

bool ts_tokenizer_is_special(const ts_tokenizer *t, int32_t id) {
  const ts_added_token *added = added_with(t, id);
  return added != NULL && added->special;
}

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
    ts_words_clear(&e->words);
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
  ts_words *w = &e->words;
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
  const ts_added_token *added = added_with(t, id);
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
