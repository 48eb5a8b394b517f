#include "base/memory.h"
#include "base/text.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/bytes.h"

#include <string.h>

/* Ids and ranks are held in 32 bits; no tokenizer comes near. */
#define MOST_TOKENS ((int64_t) 1 << 24)

static void make_pairs(ts_pair_table *t, size_t most) {
  for (t->slots = 64; t->slots < 3 * most; t->slots *= 2) {
  }
  t->entry = ts_calloc(t->slots, sizeof *t->entry);
}

/* The last one of equals counts. */
static void add_pair(ts_pair_table *t, int32_t left, int32_t right, uint32_t rank, int32_t id) {
  *ts_find_pair(t, left, right) = (ts_pair_entry){ts_pair_key(left, right), rank, id};
}

/* ---- what it has ---- */

int32_t ts_bpe_id(const ts_bpe *b, const char *token, size_t n) {
  return ts_string_id(&b->tokens, token, n);
}

const char *ts_bpe_token(const ts_bpe *b, int32_t id, size_t *n) {
  if (id < 0 || id > b->last_id || b->entry_of[id] < 0) {
    return NULL;
  }
  const ts_string_entry *e = &b->tokens.entry[b->entry_of[id]];
  *n = e->n;
  return b->tokens.bytes + e->at;
}

int32_t ts_bpe_last_id(const ts_bpe *b) {
  return b->last_id;
}

int64_t ts_bpe_size(const ts_bpe *b) {
  return b->tokens.n;
}

void ts_bpe_destroy(ts_bpe **bpe) {
  ts_bpe *b = *bpe;
  if (b != NULL) {
    ts_string_table_clear(&b->tokens);
    ts_string_table_clear(&b->words);
    ts_free(b->entry_of);
    ts_free(b->merges.entry);
    ts_free(b->merge);
    ts_free(b->joints.entry);
    ts_free(b->prefix);
    ts_free(b->suffix);
    ts_free(b);
    *bpe = NULL;
  }
}

/* ---- reading ---- */

static ts_status read_vocabulary(ts_bpe *b, const json_t *model, ts_error *err) {
  const json_t *vocabulary = json_object_get(model, "vocab");
  if (!json_is_object(vocabulary)) {
    return ts_error_add(err, "model.vocab: not an object of tokens and their ids");
  }
  const char *token;
  size_t n;
  json_t *value;
  b->last_id = -1;
  json_object_keylen_foreach((json_t *) vocabulary, token, n, value) {
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= MOST_TOKENS) {
      return ts_error_add(err, "model.vocab: the id of \"%s\" is no integer from 0 to %lld", token,
                          (long long) MOST_TOKENS - 1);
    }
    ts_string_add(&b->tokens, token, n, (int32_t) id);
    b->last_id = id > b->last_id ? (int32_t) id : b->last_id;
  }
  b->entry_of = ts_malloc(((size_t) b->last_id + 2) * sizeof *b->entry_of);
  for (int32_t id = 0; id <= b->last_id; ++id) {
    b->entry_of[id] = -1;
  }
  for (int64_t i = 0; i < b->tokens.n; ++i) {
    b->entry_of[b->tokens.entry[i].id] = (int32_t) i;
  }
  return TS_OK;
}

/* A merge's two halves: "a b", or ["a", "b"]. */
static bool split_merge(const json_t *merge, const char *half[2], size_t n[2]) {
  if (json_is_array(merge) && json_array_size(merge) == 2) {
    for (size_t i = 0; i < 2; ++i) {
      half[i] = json_string_value(json_array_get(merge, i));
      n[i] = json_string_length(json_array_get(merge, i));
    }
    return half[0] != NULL && half[1] != NULL;
  }
  const char *text = json_string_value(merge);
  size_t length = json_string_length(merge);
  const char *space = text != NULL ? memchr(text, ' ', length) : NULL;
  if (space == NULL || memchr(space + 1, ' ', (size_t) (text + length - space) - 1) != NULL) {
    return false;
  }
  half[0] = text, n[0] = (size_t) (space - text);
  half[1] = space + 1, n[1] = length - n[0] - 1;
  return true;
}

static ts_status read_merge(ts_bpe *b, const json_t *merge, size_t place, uint32_t rank, ts_text *joined,
                            ts_error *err) {
  const char *half[2];
  size_t n[2];
  if (!split_merge(merge, half, n) || n[1] < b->prefix_bytes) {
    return ts_error_add(err, "model.merges: entry %zu is no pair of tokens", place);
  }
  joined->length = 0;
  ts_text_append(joined, half[0], n[0]);
  ts_text_append(joined, half[1] + b->prefix_bytes, n[1] - b->prefix_bytes);
  int32_t left = ts_bpe_id(b, half[0], n[0]), right = ts_bpe_id(b, half[1], n[1]);
  int32_t id = ts_bpe_id(b, joined->text, joined->length);
  if (left < 0 || right < 0 || id < 0) {
    return ts_error_add(err, "model.merges: entry %zu: \"%s\" is not in model.vocab", place,
                        left < 0    ? half[0]
                        : right < 0 ? half[1]
                                    : joined->text);
  }
  add_pair(&b->merges, left, right, rank, id);
  b->merge[b->n_merges++] = (struct merge){left, right, id};
  return TS_OK;
}

static ts_status read_merges(ts_bpe *b, const json_t *model, ts_error *err) {
  const json_t *merges = json_object_get(model, "merges");
  size_t n = json_array_size(merges);
  if (!json_is_array(merges) || n >= (size_t) MOST_TOKENS) {
    return ts_error_add(err, "model.merges: not a list of pairs of tokens");
  }
  make_pairs(&b->merges, n + 1);
  b->merge = ts_calloc(n + 1, sizeof *b->merge);
  ts_text joined = {0};
  ts_status status = TS_OK;
  uint32_t rank = 0;
  for (size_t i = 0; i < n && status == TS_OK; ++i) {
    const json_t *merge = json_array_get(merges, i);
    const char *text = json_string_value(merge);
    if (text == NULL || strncmp(text, "#version", 8) != 0) {
      status = read_merge(b, merge, i, rank++, &joined, err);
    }
  }
  ts_text_free(&joined);
  return status;
}

/* ---- what follows from it ---- */

static void find_words(ts_bpe *b) {
  ts_text word = {0};
  for (int64_t i = 0; i < b->tokens.n && b->bytes; ++i) {
    const ts_string_entry *e = &b->tokens.entry[i];
    word.length = 0;
    if (ts_add_bytes_of(&word, b->tokens.bytes + e->at, e->n)) {
      ts_string_add(&b->words, word.text, word.length, e->id);
    }
  }
  ts_text_free(&word);
}

static void find_symbols(ts_bpe *b, bool falls_back) {
  b->falls_back = falls_back;
  for (int byte = 0; byte < 256; ++byte) {
    char written[8];
    snprintf(written, sizeof written, "<0x%02X>", (unsigned) byte);
    b->fallback[byte] = ts_bpe_id(b, written, 6);
    b->byte_symbol[byte] = b->bytes || byte < 128 ? ts_string_id(ts_bpe_words(b), &(char){(char) byte}, 1) : -1;
  }
}

typedef struct ends {
  int32_t first, last; /* symbols; -1: not known yet */
} ends;

/* The symbols that each token begins and ends with.  Tokens that no merge makes are symbols themselves; a merge's token
 * begins and ends with what its halves do, which other merges may make that come later in the list.
 * \return Whether all is known, and each token's ends are the same whichever merge makes it. */
static bool find_ends(const ts_bpe *b, ends *of) {
  for (int32_t id = 0; id <= b->last_id; ++id) {
    of[id] = (ends){id, id};
  }
  for (size_t i = 0; i < b->n_merges; ++i) {
    of[b->merge[i].id] = (ends){-1, -1};
  }
  enum { MOST_ROUNDS = 64 };
  bool known = false, same = true;
  for (int round = 0; round < MOST_ROUNDS && !known; ++round) {
    known = true;
    for (size_t i = 0; i < b->n_merges; ++i) {
      ends left = of[b->merge[i].left], right = of[b->merge[i].right], *to = &of[b->merge[i].id];
      bool sure = left.first >= 0 && right.first >= 0;
      known &= sure;
      if (sure) {
        same &= to->first < 0 || (to->first == left.first && to->last == right.last);
        *to = (ends){left.first, right.last};
      }
    }
  }
  return known && same;
}

static void find_joints(ts_bpe *b) {
  ends *of = ts_malloc(((size_t) b->last_id + 2) * sizeof *of);
  b->never_parts = !find_ends(b, of) || b->prefix_bytes + b->suffix_bytes > 0;
  for (int byte = 0; byte < 256; ++byte) {
    int32_t id = b->fallback[byte];
    b->never_parts |= b->falls_back && id >= 0 && of[id].first != id;
  }
  b->never_parts |= b->unknown >= 0 && of[b->unknown].first != b->unknown;
  make_pairs(&b->joints, b->n_merges + 1);
  for (size_t i = 0; i < b->n_merges && !b->never_parts; ++i) {
    add_pair(&b->joints, of[b->merge[i].left].last, of[b->merge[i].right].first, 0, 0);
  }
  ts_free(of);
  ts_free(b->merge);
  b->merge = NULL;
}

static char *read_affix(const json_t *model, const char *name, size_t *n) {
  const json_t *value = json_object_get(model, name);
  *n = json_string_length(value);
  char *affix = ts_calloc(*n + 1, 1);
  memcpy(affix, *n > 0 ? json_string_value(value) : "", *n);
  return affix;
}

static ts_status read_unknown(ts_bpe *b, const json_t *model, ts_error *err) {
  const json_t *unknown = json_object_get(model, "unk_token");
  b->unknown = json_is_string(unknown) ? ts_bpe_id(b, json_string_value(unknown), json_string_length(unknown)) : -1;
  return !json_is_string(unknown) || b->unknown >= 0
             ? TS_OK
             : ts_error_add(err, "model.unk_token: \"%s\" is not in model.vocab", json_string_value(unknown));
}

ts_status ts_bpe_read(const json_t *model, bool bytes, ts_bpe **out, ts_error *err) {
  *out = NULL;
  if (json_number_value(json_object_get(model, "dropout")) != 0) {
    return ts_error_add(err, "model.dropout: words would be encoded at random; accepted: null");
  }
  ts_bpe *b = ts_calloc(1, sizeof *b);
  b->bytes = bytes;
  b->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
  b->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
  b->prefix = read_affix(model, "continuing_subword_prefix", &b->prefix_bytes);
  b->suffix = read_affix(model, "end_of_word_suffix", &b->suffix_bytes);
  if (read_vocabulary(b, model, err) != TS_OK || read_unknown(b, model, err) != TS_OK ||
      read_merges(b, model, err) != TS_OK) {
    ts_bpe_destroy(&b);
    return TS_BAD_INPUT;
  }
  find_words(b);
  find_symbols(b, json_is_true(json_object_get(model, "byte_fallback")));
  find_joints(b);
  *out = b;
  return TS_OK;
}
