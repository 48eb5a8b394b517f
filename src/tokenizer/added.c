#include "tokenizer/added.h"

#include "base/memory.h"
#include "tokenizer/unicode.h"

#include <string.h>

/* A tree of bytes; node 0 is the root, whose children are a table. */
typedef struct node {
  int32_t child, sibling; /* -1 */
  int32_t token;          /* -1 */
  unsigned char byte;
} node;

struct ts_added_set {
  const ts_added_token **token; /* owned; what they point to is borrowed */
  int64_t n_tokens, token_capacity;
  node *node; /* owned */
  int64_t n, capacity;
  int32_t first[256]; /* the root's children */
};

static int32_t add_trie_node(ts_added_set *s, unsigned char byte, int32_t sibling) {
  TS_GROW(s->node, s->n, s->capacity);
  s->node[s->n] = (node){.child = -1, .sibling = sibling, .token = -1, .byte = byte};
  return (int32_t) s->n++;
}

static int32_t find_child(const ts_added_set *s, int32_t parent, unsigned char byte) {
  int32_t child = s->node[parent].child;
  while (child >= 0 && s->node[child].byte != byte) {
    child = s->node[child].sibling;
  }
  return child;
}

static void add_text(ts_added_set *s, const ts_added_token *token, const char *text, size_t n) {
  const unsigned char *c = (const unsigned char *) text;
  if (s->first[c[0]] < 0) {
    s->first[c[0]] = add_trie_node(s, c[0], -1);
  }
  int32_t at = s->first[c[0]];
  for (size_t i = 1; i < n; ++i) {
    int32_t child = find_child(s, at, c[i]);
    if (child < 0) {
      child = add_trie_node(s, c[i], s->node[at].child);
      s->node[at].child = child;
    }
    at = child;
  }
  if (s->node[at].token < 0) {
    TS_GROW(s->token, s->n_tokens, s->token_capacity);
    s->token[s->n_tokens] = token;
    s->node[at].token = (int32_t) s->n_tokens++;
  }
}

ts_added_set *ts_added_set_create(const ts_added_token *const *token, const ts_text *text, int64_t n) {
  ts_added_set *s = ts_calloc(1, sizeof *s);
  memset(s->first, -1, sizeof s->first);
  for (int64_t i = 0; i < n; ++i) {
    add_text(s, token[i], text[i].text, text[i].length);
  }
  return s;
}

void ts_added_set_destroy(ts_added_set **set) {
  if (*set != NULL) {
    ts_free((*set)->token);
    ts_free((*set)->node);
    ts_free(*set);
    *set = NULL;
  }
}

/* The longest that begins at \a at. */
static const ts_added_token *longest_token(const ts_added_set *s, const char *text, size_t n, size_t at, size_t *end) {
  const ts_added_token *found = NULL;
  int32_t here = s->first[(unsigned char) text[at]];
  for (size_t i = at + 1; here >= 0; ++i) {
    if (s->node[here].token >= 0) {
      found = s->token[s->node[here].token];
      *end = i;
    }
    here = i < n ? find_child(s, here, (unsigned char) text[i]) : -1;
  }
  return found;
}

static bool is_within_word(const char *text, size_t n, size_t begin, size_t end) {
  size_t before = begin > 0 ? ts_utf8_before(text, begin) : 0, after = end;
  return (begin > 0 && ts_is_word(ts_utf8_next(text, &before))) || (end < n && ts_is_word(ts_utf8_next(text, &after)));
}

static size_t space_before(const char *text, size_t at, size_t least) {
  while (at > least) {
    size_t begin = ts_utf8_before(text, at), c = begin;
    if (!ts_is_space(ts_utf8_next(text, &c))) {
      break;
    }
    at = begin;
  }
  return at > least ? at : least;
}

static size_t space_after(const char *text, size_t at, size_t n) {
  for (size_t next = at; at < n && ts_is_space(ts_utf8_next(text, &next)); at = next) {
  }
  return at;
}

const ts_added_token *ts_added_next(ts_added_walk *w, ts_text_span *place) {
  while (w->set != NULL && w->at < w->n) {
    size_t begin = w->at, end = 0;
    const ts_added_token *token = longest_token(w->set, w->text, w->n, begin, &end);
    w->at = token != NULL ? end : begin + 1;
    if (token == NULL || (token->single_word && is_within_word(w->text, w->n, begin, end))) {
      continue;
    }
    begin = token->lstrip ? space_before(w->text, begin, w->done) : begin;
    w->done = token->rstrip ? space_after(w->text, end, w->n) : end;
    if (begin < w->done) {
      *place = (ts_text_span){begin, w->done};
      return token;
    }
  }
  return NULL;
}
