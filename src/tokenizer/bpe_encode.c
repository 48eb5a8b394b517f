#include "base/memory.h"
#include "base/text.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/bytes.h"
#include "tokenizer/unicode.h"

#include <string.h>

#define NOT_MERGED UINT32_MAX

/* ---- a thread's memory ---- */

/* Words that were seen: what they are and what became of them; all are forgotten when there is no more room. */
enum { SEEN_SLOTS = 1 << 17, SEEN_BYTES = 1 << 22, SEEN_IDS = 1 << 20, LONGEST_SEEN = 64, MOST_SEEN_IDS = 256 };

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

/* A character, or byte, as the vocabulary writes it, with the affixes that its place asks for. */
static void write_symbol(ts_bpe_encoder *e, const char *text, size_t n, bool first, bool last) {
  const ts_bpe *b = e->bpe;
  e->written.length = 0;
  ts_text_append(&e->written, b->prefix, first ? 0 : b->prefix_bytes);
  if (b->bytes) {
    ts_utf8_add(&e->written, ts_byte_character((unsigned char) *text));
  } else {
    ts_text_append(&e->written, text, n);
  }
  ts_text_append(&e->written, b->suffix, last ? b->suffix_bytes : 0);
}

static int32_t id_of_symbol(ts_bpe_encoder *e, const char *text, size_t n, bool first, bool last) {
  const ts_bpe *b = e->bpe;
  if ((!first && b->prefix_bytes > 0) || (last && b->suffix_bytes > 0)) {
    write_symbol(e, text, n, first, last);
    return ts_bpe_id(b, e->written.text, e->written.length);
  }
  return n == 1 ? b->byte_symbol[(unsigned char) *text] : ts_bpe_id(b, text, n);
}

/* The bytes of what is not in the vocabulary, with its affixes, where each of them has a token. */
static bool add_fallback(ts_bpe_encoder *e, const char *text, size_t n, bool first, bool last) {
  const ts_bpe *b = e->bpe;
  bool all = b->falls_back;
  write_symbol(e, text, n, first, last);
  for (size_t i = 0; i < e->written.length && all; ++i) {
    all = b->fallback[(unsigned char) e->written.text[i]] >= 0;
  }
  for (size_t i = 0; i < e->written.length && all; ++i) {
    add_symbol(e, b->fallback[(unsigned char) e->written.text[i]]);
  }
  return all;
}

/* What is neither known nor falls back is the unknown token, which stands where the next known symbol does: bytes that
 * fell back in between are before it, as in tokenizers. */
static void add_symbols(ts_bpe_encoder *e, const char *word, size_t n) {
  const ts_bpe *b = e->bpe;
  bool waits = false;
  e->n = 0;
  for (size_t at = 0, begin = 0; at < n; begin = at) {
    if (b->bytes) {
      ++at;
    } else {
      ts_utf8_next(word, &at);
    }
    int32_t id = id_of_symbol(e, word + begin, at - begin, begin == 0, at == n);
    if (id < 0 && add_fallback(e, word + begin, at - begin, begin == 0, at == n)) {
      continue;
    }
    if (waits && (id >= 0 || !b->fuse_unknown)) {
      add_symbol(e, b->unknown);
    }
    waits = id < 0 && b->unknown >= 0;
    if (id >= 0) {
      add_symbol(e, id);
    }
  }
  if (waits) {
    add_symbol(e, b->unknown);
  }
}

/* ---- merging ---- */

static uint32_t rank_of(const ts_bpe *b, int32_t left, int32_t right) {
  const ts_pair_entry *pair = ts_find_pair(&b->merges, left, right);
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
    s[best].id = ts_find_pair(&b->merges, s[best].id, s[best + 1].id)->id;
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
  const ts_pair_entry *pair = ts_find_pair(&e->bpe->merges, s[place].id, s[s[place].after].id);
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
    const ts_pair_entry *pair = ts_find_pair(&e->bpe->merges, left->id, right->id);
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
  return b->never_parts || ts_find_pair(&b->joints, left, right)->key != 0;
}

static void encode_new(ts_bpe_encoder *e, const char *word, size_t n, ts_ids *to) {
  enum { FEW = 48 };
  add_symbols(e, word, n);
  TS_CHECK(e->n <= INT32_MAX, "a word of %lld symbols", (long long) e->n);
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
  if (n_ids > 0) {
    memcpy(e->seen_ids + e->n_seen_ids, id, (size_t) n_ids * sizeof *id);
  }
  ++e->n_seen;
  e->n_seen_bytes += (uint32_t) n;
  e->n_seen_ids += (uint32_t) n_ids;
}

static void encode_long(ts_bpe_encoder *e, const char *word, size_t n, ts_ids *to) {
  int32_t whole = e->bpe->ignore_merges ? ts_string_id(ts_bpe_words(e->bpe), word, n) : -1;
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
  if (to->n - before > MOST_SEEN_IDS) {
    return;
  }
  remember_word(e, word, n, hash, to->n > before ? to->id + before : NULL, to->n - before);
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
  int32_t left = ts_string_id(ts_bpe_words(b), word + begin, at - begin),
          right = ts_string_id(ts_bpe_words(b), word + at, end - at);
  return left >= 0 && right >= 0 && ts_find_pair(&b->joints, left, right)->key == 0;
}
