#include "tokenizer/bpe.h"

#include "base/memory.h"
#include "base/text.h"
#include "tokenizer/bytes.h"
#include "tokenizer/unicode.h"

#include <string.h>

/* Ids and ranks are held in 32 bits; no tokenizer comes near. */
#define MOST_TOKENS ((int64_t) 1 << 24)
#define NOT_MERGED UINT32_MAX

/* ---- pairs ---- */

typedef struct pair_entry {
  uint64_t key; /* left << 32 | right, + 1; 0 where there is none */
  uint32_t rank;
  int32_t id;
} pair_entry;

typedef struct pair_table {
  pair_entry *entry; /* owned */
  size_t n, slots;
} pair_table;

static uint64_t pair_key(int32_t left, int32_t right) {
  return ((uint64_t) (uint32_t) left << 32 | (uint32_t) right) + 1;
}

static size_t slot_of(const pair_table *t, uint64_t key) {
  return (size_t) (key * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (t->slots - 1);
}

static pair_entry *find_pair(const pair_table *t, int32_t left, int32_t right) {
  uint64_t key = pair_key(left, right);
  size_t slot = slot_of(t, key);
  while (t->entry[slot].key != 0 && t->entry[slot].key != key) {
    slot = (slot + 1) & (t->slots - 1);
  }
  return &t->entry[slot];
}

static void make_pairs(pair_table *t, size_t most) {
  for (t->slots = 64; t->slots < 3 * most; t->slots *= 2) {
  }
  t->entry = ts_calloc(t->slots, sizeof *t->entry);
}

/* The last one of equals counts. */
static void add_pair(pair_table *t, int32_t left, int32_t right, uint32_t rank, int32_t id) {
  *find_pair(t, left, right) = (pair_entry){pair_key(left, right), rank, id};
}

/* ---- the model ---- */

struct ts_bpe {
  ts_string_table tokens; /* as they are written */
  ts_string_table words;  /* byte level: as the bytes they stand for */
  int32_t *entry_of;      /* owned: id -> entry of tokens, -1 */
  int32_t last_id;
  pair_table merges;
  struct merge {
    int32_t left, right, id;
  } * merge; /* owned while the model is read: in the order of the list */
  size_t n_merges;
  pair_table joints; /* (last symbol of the left, first symbol of the right) of each merge */
  bool never_parts;  /* a symbol's ends are not certain: no joint is */
  bool bytes, fuse_unknown, ignore_merges;
  int32_t unknown;          /* -1 */
  int32_t byte_symbol[256]; /* byte level: of each byte; otherwise of each ASCII character; -1 */
  int32_t fallback[256];    /* of each byte, -1 where there is no fallback */
  bool falls_back;          /* all of them are there */
  char *prefix, *suffix;    /* owned; continuing_subword_prefix, end_of_word_suffix; "" */
  size_t prefix_bytes, suffix_bytes;
};

static const ts_string_table *words_of(const ts_bpe *b) {
  return b->bytes ? &b->words : &b->tokens;
}

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
  const char *text = json_string_value(merge), *space = text != NULL ? strchr(text, ' ') : NULL;
  if (space == NULL || strchr(space + 1, ' ') != NULL) {
    return false;
  }
  half[0] = text, n[0] = (size_t) (space - text);
  half[1] = space + 1, n[1] = json_string_length(merge) - n[0] - 1;
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
    b->falls_back &= b->fallback[byte] >= 0;
    b->byte_symbol[byte] = b->bytes || byte < 128 ? ts_string_id(words_of(b), &(char){(char) byte}, 1) : -1;
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
    b->never_parts |= id >= 0 && of[id].first != id;
  }
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
  return ts_strdup(json_is_string(value) ? json_string_value(value) : "");
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

/* ---- a thread's memory ---- */

/* Words that were seen: what they are and what became of them; all are forgotten when there is no more room. */
enum { SEEN_SLOTS = 1 << 17, SEEN_BYTES = 1 << 22, SEEN_IDS = 1 << 20, LONGEST_SEEN = 64 };

typedef struct seen_word {
  uint32_t hash;
  uint32_t bytes, n_bytes; /* n_bytes 0: none */
  uint32_t ids, n_ids;
} seen_word;

typedef struct symbol {
  int32_t id;
  int32_t before, after; /* places; -1 */
  uint32_t rank;         /* of the merge with the one after; in short words */
} symbol;

typedef struct candidate {
  uint32_t rank;
  int32_t place, id;
} candidate;

struct ts_bpe_encoder {
  const ts_bpe *bpe;
  symbol *symbol; /* owned */
  int64_t n, capacity;
  candidate *heap; /* owned */
  int64_t n_heap, heap_capacity;
  ts_text written; /* a character with its affixes */
  seen_word *seen; /* owned */
  char *seen_bytes;
  int32_t *seen_ids;
  uint32_t n_seen, n_seen_bytes, n_seen_ids;
};

ts_bpe_encoder *ts_bpe_encoder_create(const ts_bpe *bpe) {
  ts_bpe_encoder *e = ts_calloc(1, sizeof *e);
  e->bpe = bpe;
  e->seen = ts_calloc(SEEN_SLOTS, sizeof *e->seen);
  e->seen_bytes = ts_malloc(SEEN_BYTES);
  e->seen_ids = ts_malloc(SEEN_IDS * sizeof *e->seen_ids);
  return e;
}

void ts_bpe_encoder_destroy(ts_bpe_encoder **encoder) {
  ts_bpe_encoder *e = *encoder;
  if (e != NULL) {
    ts_free(e->symbol);
    ts_free(e->heap);
    ts_text_free(&e->written);
    ts_free(e->seen);
    ts_free(e->seen_bytes);
    ts_free(e->seen_ids);
    ts_free(e);
    *encoder = NULL;
  }
}

void ts_ids_add(ts_ids *to, const int32_t *id, int64_t n) {
  if (to->n + n > to->capacity) {
    to->capacity = 2 * (to->n + n) + 64;
    to->id = ts_realloc(to->id, (size_t) to->capacity, sizeof *to->id);
  }
  if (n > 0) {
    memcpy(to->id + to->n, id, (size_t) n * sizeof *id);
    to->n += n;
  }
}

/* ---- symbols ---- */

static void add_symbol(ts_bpe_encoder *e, int32_t id) {
  TS_GROW(e->symbol, e->n, e->capacity);
  e->symbol[e->n++].id = id;
}

/* What is not in the vocabulary: bytes where all of them are, else the unknown token, else nothing. */
static void add_unknown(ts_bpe_encoder *e, const char *text, size_t n, bool *was_unknown) {
  const ts_bpe *b = e->bpe;
  bool falls_back = !b->bytes && n > 0 && b->falls_back;
  for (size_t i = 0; i < n && falls_back; ++i) {
    add_symbol(e, b->fallback[(unsigned char) text[i]]);
  }
  if (!falls_back && b->unknown >= 0) {
    if (!(*was_unknown && b->fuse_unknown)) {
      add_symbol(e, b->unknown);
    }
    *was_unknown = true;
  }
}

/* A character, or byte, with the affixes that its place asks for. */
static int32_t id_of_symbol(ts_bpe_encoder *e, const char *text, size_t n, bool first, bool last) {
  const ts_bpe *b = e->bpe;
  bool affixes = (!first && b->prefix_bytes > 0) || (last && b->suffix_bytes > 0);
  if (n == 1 && !affixes) {
    return b->byte_symbol[(unsigned char) *text];
  }
  if (!affixes) {
    return ts_bpe_id(b, text, n);
  }
  e->written.length = 0;
  ts_text_append(&e->written, b->prefix, first ? 0 : b->prefix_bytes);
  if (b->bytes) {
    ts_utf8_add(&e->written, ts_byte_character((unsigned char) *text));
  } else {
    ts_text_append(&e->written, text, n);
  }
  ts_text_append(&e->written, b->suffix, last ? b->suffix_bytes : 0);
  return ts_bpe_id(b, e->written.text, e->written.length);
}

static void add_symbols(ts_bpe_encoder *e, const char *word, size_t n) {
  e->n = 0;
  bool was_unknown = false;
  for (size_t at = 0, begin = 0; at < n; begin = at) {
    if (e->bpe->bytes) {
      ++at;
    } else {
      ts_utf8_next(word, &at);
    }
    int32_t id = id_of_symbol(e, word + begin, at - begin, begin == 0, at == n);
    if (id >= 0) {
      was_unknown = false;
      add_symbol(e, id);
    } else {
      add_unknown(e, word + begin, at - begin, &was_unknown);
    }
  }
}

/* ---- merging ---- */

static uint32_t rank_of(const ts_bpe *b, int32_t left, int32_t right) {
  const pair_entry *pair = find_pair(&b->merges, left, right);
  return pair->key != 0 ? pair->rank : NOT_MERGED;
}

/* A few symbols: each time all pairs are looked at. */
static int64_t merge_few(const ts_bpe *b, symbol *s, int64_t n) {
  for (int64_t i = 0; i + 1 < n; ++i) {
    s[i].rank = rank_of(b, s[i].id, s[i + 1].id);
  }
  while (n > 1) {
    int64_t best = 0;
    for (int64_t i = 1; i + 1 < n; ++i) {
      best = s[i].rank < s[best].rank ? i : best;
    }
    if (s[best].rank == NOT_MERGED) {
      break;
    }
    s[best].id = find_pair(&b->merges, s[best].id, s[best + 1].id)->id;
    --n;
    memmove(s + best + 1, s + best + 2, (size_t) (n - best - 1) * sizeof *s);
    if (best + 1 < n) {
      s[best].rank = rank_of(b, s[best].id, s[best + 1].id);
    }
    if (best > 0) {
      s[best - 1].rank = rank_of(b, s[best - 1].id, s[best].id);
    }
  }
  return n;
}

static bool comes_before(candidate a, candidate b) {
  return a.rank != b.rank ? a.rank < b.rank : a.place < b.place;
}

static void push_candidate(ts_bpe_encoder *e, const symbol *s, int32_t place) {
  const pair_entry *pair = find_pair(&e->bpe->merges, s[place].id, s[s[place].after].id);
  if (pair->key == 0) {
    return;
  }
  candidate c = {pair->rank, place, pair->id};
  TS_GROW(e->heap, e->n_heap, e->heap_capacity);
  int64_t i = e->n_heap++;
  for (; i > 0 && comes_before(c, e->heap[(i - 1) / 2]); i = (i - 1) / 2) {
    e->heap[i] = e->heap[(i - 1) / 2];
  }
  e->heap[i] = c;
}

static candidate pop_candidate(ts_bpe_encoder *e) {
  candidate top = e->heap[0], last = e->heap[--e->n_heap];
  int64_t i = 0;
  for (int64_t child = 1; child < e->n_heap; child = 2 * i + 1) {
    child += child + 1 < e->n_heap && comes_before(e->heap[child + 1], e->heap[child]);
    if (!comes_before(e->heap[child], last)) {
      break;
    }
    e->heap[i] = e->heap[child];
    i = child;
  }
  e->heap[i] = last;
  return top;
}

/* Many symbols: a heap of the pairs that can be merged, among them some that are no more.  A token says what it is made
 * of, so a pair that still makes the same token is the same pair. */
static int64_t merge_many(ts_bpe_encoder *e, symbol *s, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    s[i].before = (int32_t) i - 1;
    s[i].after = i + 1 < n ? (int32_t) i + 1 : -1;
  }
  e->n_heap = 0;
  for (int64_t i = 0; i + 1 < n; ++i) {
    push_candidate(e, s, (int32_t) i);
  }
  while (e->n_heap > 0) {
    candidate c = pop_candidate(e);
    symbol *left = &s[c.place];
    if (left->id < 0 || left->after < 0) {
      continue;
    }
    symbol *right = &s[left->after];
    const pair_entry *pair = find_pair(&e->bpe->merges, left->id, right->id);
    if (pair->key == 0 || pair->id != c.id) {
      continue;
    }
    left->id = c.id;
    right->id = -1;
    left->after = right->after;
    if (left->after >= 0) {
      s[left->after].before = c.place;
      push_candidate(e, s, c.place);
    }
    if (left->before >= 0) {
      push_candidate(e, s, left->before);
    }
  }
  int64_t kept = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (s[i].id >= 0) {
      s[kept++].id = s[i].id;
    }
  }
  return kept;
}

static bool may_join(const ts_bpe *b, int32_t left, int32_t right) {
  return b->never_parts || find_pair(&b->joints, left, right)->key != 0;
}

static void encode_new(ts_bpe_encoder *e, const char *word, size_t n, ts_ids *to) {
  enum { FEW = 48 };
  add_symbols(e, word, n);
  for (int64_t first = 0, end; first < e->n; first = end) {
    for (end = first + 1; end < e->n && may_join(e->bpe, e->symbol[end - 1].id, e->symbol[end].id); ++end) {
    }
    symbol *s = e->symbol + first;
    int64_t left = end - first <= FEW ? merge_few(e->bpe, s, end - first) : merge_many(e, s, end - first);
    for (int64_t i = 0; i < left; ++i) {
      ts_ids_add(to, &s[i].id, 1);
    }
  }
}

/* ---- words that were seen ---- */

static void forget_words(ts_bpe_encoder *e) {
  memset(e->seen, 0, SEEN_SLOTS * sizeof *e->seen);
  e->n_seen = e->n_seen_bytes = e->n_seen_ids = 0;
}

static seen_word *find_seen(ts_bpe_encoder *e, const char *word, size_t n, uint32_t hash) {
  uint32_t slot = hash & (SEEN_SLOTS - 1);
  for (;; slot = (slot + 1) & (SEEN_SLOTS - 1)) {
    seen_word *w = &e->seen[slot];
    if (w->n_bytes == 0 || (w->hash == hash && w->n_bytes == n && memcmp(e->seen_bytes + w->bytes, word, n) == 0)) {
      return w;
    }
  }
}

static void remember_word(ts_bpe_encoder *e, const char *word, size_t n, uint32_t hash, const int32_t *id,
                          int64_t n_ids) {
  bool full = e->n_seen >= SEEN_SLOTS / 2 || e->n_seen_bytes + n > SEEN_BYTES || e->n_seen_ids + n_ids > SEEN_IDS;
  if (full) {
    forget_words(e);
  }
  *find_seen(e, word, n, hash) = (seen_word){hash, e->n_seen_bytes, (uint32_t) n, e->n_seen_ids, (uint32_t) n_ids};
  memcpy(e->seen_bytes + e->n_seen_bytes, word, n);
  memcpy(e->seen_ids + e->n_seen_ids, id, (size_t) n_ids * sizeof *id);
  ++e->n_seen;
  e->n_seen_bytes += (uint32_t) n;
  e->n_seen_ids += (uint32_t) n_ids;
}

static void encode_long(ts_bpe_encoder *e, const char *word, size_t n, ts_ids *to) {
  int32_t whole = e->bpe->ignore_merges ? ts_string_id(words_of(e->bpe), word, n) : -1;
  if (whole >= 0) {
    ts_ids_add(to, &whole, 1);
  } else {
    encode_new(e, word, n, to);
  }
}

void ts_bpe_encode(ts_bpe_encoder *e, const char *word, size_t n, ts_ids *to) {
  if (n == 0 || n > LONGEST_SEEN) {
    encode_long(e, word, n, to);
    return;
  }
  uint32_t hash = ts_string_hash(word, n);
  const seen_word *w = find_seen(e, word, n, hash);
  if (w->n_bytes != 0) {
    ts_ids_add(to, e->seen_ids + w->ids, w->n_ids);
    return;
  }
  int64_t before = to->n;
  encode_long(e, word, n, to);
  remember_word(e, word, n, hash, to->id + before, to->n - before);
}

bool ts_bpe_parts(const ts_bpe *b, const char *word, size_t n, size_t at) {
  if (b->never_parts || b->ignore_merges) {
    return false;
  }
  size_t begin = b->bytes ? at - 1 : ts_utf8_before(word, at), end = at;
  if (b->bytes) {
    ++end;
  } else {
    ts_utf8_next(word, &end);
  }
  TS_ASSERT(end <= n);
  int32_t left = ts_string_id(words_of(b), word + begin, at - begin),
          right = ts_string_id(words_of(b), word + at, end - at);
  return left >= 0 && right >= 0 && find_pair(&b->joints, left, right)->key == 0;
}
