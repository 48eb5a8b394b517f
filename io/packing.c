#include "io/packing.h"

#include "base/memory.h"

#include <string.h>

struct ts_packing {
  const ts_documents *documents; /* borrowed */
  int64_t first, n, length;
  int32_t *before; /* [n + 1]: pieces of the documents before each; owned, as are */
  int32_t *begin;  /* [samples + 2] and */
  int32_t *piece;  /* [pieces]: those of sample s are piece[begin[s]] to piece[begin[s + 1] - 1]; NULL: sample s is s */
  int64_t samples;
};

ts_packing_kind ts_packing_find(const char *name) {
  static const char *const names[TS_N_PACKINGS] = {"stream", "documents", "best_fit", "none"};
  int kind = 0;
  while (strcmp(names[kind], name) != 0) {
    ++kind;
    TS_ASSERT(kind < TS_N_PACKINGS);
  }
  return (ts_packing_kind) kind;
}

/* ---- pieces, in the order of the file ---- */

static ts_status count_cuts(ts_packing *p, ts_error *err) {
  int64_t pieces = 0;
  p->before = ts_malloc(((size_t) p->n + 1) * sizeof *p->before);
  for (int64_t i = 0; i <= p->n; ++i) {
    if (pieces > INT32_MAX) {
      return ts_error_add(err, "documents are more than %d pieces of sequence_length = %lld tokens", INT32_MAX,
                          (long long) p->length);
    }
    p->before[i] = (int32_t) pieces;
    const int64_t *first = &p->documents->first[p->first + i];
    pieces += i < p->n ? (first[1] - first[0] - 1) / p->length + 1 : 0;
  }
  return TS_OK;
}

static ts_packed nth_piece(const ts_packing *p, int32_t number) {
  int64_t low = 0, high = p->n;
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    *(p->before[middle] <= number ? &low : &high) = middle;
  }
  const int64_t *document = &p->documents->first[p->first + low];
  int64_t first = document[0] + (number - p->before[low]) * p->length, rest = document[1] - first;
  return (ts_packed){.first = first, .count = rest < p->length ? rest : p->length, .goes_on = rest > p->length};
}

/* ---- best fit ---- */

/* Samples that are being filled, by the room they have left. */
typedef struct rooms {
  int64_t leaves; /* a power of two above the length */
  bool *any;      /* a tree: any[leaves + r] says that samples have room r, any[i] that one below it does */
  int32_t *last;  /* [length + 1]: the sample of that room that was touched last */
  int32_t *next;  /* [samples]: the one before it, -1 at the end */
} rooms;

static void mark_room(rooms *r, int64_t room, bool any) {
  int64_t node = r->leaves + room;
  r->any[node] = any;
  for (node /= 2; node > 0; node /= 2) {
    r->any[node] = r->any[2 * node] || r->any[2 * node + 1];
  }
}

/* The least room of at least `count` that a sample has; -1: none. */
static int64_t least_room(const rooms *r, int64_t count) {
  int64_t node = r->leaves + count;
  while (node > 0 && !r->any[node]) {
    while (node % 2 == 1) { /* nothing to the right below this parent */
      node /= 2;
    }
    node += node > 0;
  }
  while (node > 0 && node < r->leaves) {
    node = r->any[2 * node] ? 2 * node : 2 * node + 1;
  }
  return node > 0 ? node - r->leaves : -1;
}

static void push_sample(rooms *r, int64_t room, int32_t sample) {
  r->next[sample] = r->any[r->leaves + room] ? r->last[room] : -1;
  r->last[room] = sample;
  mark_room(r, room, true);
}

static int32_t pop_sample(rooms *r, int64_t room) {
  int32_t sample = r->last[room];
  r->last[room] = r->next[sample];
  if (r->next[sample] < 0) {
    mark_room(r, room, false);
  }
  return sample;
}

static int64_t rest_of(const ts_packing *p, int64_t document) {
  const int64_t *first = &p->documents->first[p->first + document];
  return (first[1] - first[0] - 1) % p->length + 1;
}

/* Documents by the length of their last piece, the longest first, then in the order of the file. */
static int32_t *sort_rests(const ts_packing *p) {
  int32_t *at = ts_calloc((size_t) p->length + 1, sizeof *at), *order = ts_malloc((size_t) p->n * sizeof *order);
  for (int64_t i = 0; i < p->n; ++i) {
    ++at[rest_of(p, i) - 1];
  }
  for (int64_t rest = p->length - 1; rest >= 0; --rest) { /* at[rest] will be how many are longer */
    at[rest] += at[rest + 1];
  }
  for (int64_t i = 0; i < p->n; ++i) {
    order[at[rest_of(p, i)]++] = (int32_t) i;
  }
  ts_free(at);
  return order;
}

/* The sample of the last piece of each document, in the order in which samples are begun. */
static int32_t *fit_rests(const ts_packing *p, int32_t *samples) {
  rooms r = {.leaves = 1};
  while (r.leaves <= p->length) {
    r.leaves *= 2;
  }
  r.any = ts_calloc(2 * (size_t) r.leaves, sizeof *r.any);
  r.last = ts_malloc(((size_t) p->length + 1) * sizeof *r.last);
  r.next = ts_malloc((size_t) p->n * sizeof *r.next);
  int32_t *order = sort_rests(p), *sample = ts_malloc((size_t) p->n * sizeof *sample);
  *samples = 0;
  for (int64_t i = 0; i < p->n; ++i) {
    int64_t count = rest_of(p, order[i]), room = least_room(&r, count);
    int32_t to = room < 0 ? (*samples)++ : pop_sample(&r, room);
    sample[order[i]] = to;
    push_sample(&r, (room < 0 ? p->length : room) - count, to);
  }
  ts_free(order);
  ts_free(r.any);
  ts_free(r.last);
  ts_free(r.next);
  return sample;
}

/* The sample of each piece, numbered by their first pieces; those of T tokens in front of a rest have their own. */
static int32_t *number_samples(ts_packing *p) {
  int32_t begun, *fit = fit_rests(p, &begun), *number = ts_malloc((size_t) begun * sizeof *number);
  int32_t *sample = ts_malloc((size_t) p->before[p->n] * sizeof *sample);
  memset(number, -1, (size_t) begun * sizeof *number);
  for (int64_t i = 0; i < p->n; ++i) {
    int32_t rest = p->before[i + 1] - 1, *of_rest = &number[fit[i]];
    for (int32_t k = p->before[i]; k < rest; ++k) {
      sample[k] = (int32_t) p->samples++;
    }
    *of_rest = *of_rest >= 0 ? *of_rest : (int32_t) p->samples++;
    sample[rest] = *of_rest;
  }
  ts_free(fit);
  ts_free(number);
  return sample;
}

/* begin[s + 2] counts the pieces of s, then begin[s + 1] is where the next one of s goes. */
static void list_pieces(ts_packing *p) {
  int32_t *sample = number_samples(p), pieces = p->before[p->n];
  p->begin = ts_calloc((size_t) p->samples + 2, sizeof *p->begin);
  p->piece = ts_malloc((size_t) pieces * sizeof *p->piece);
  for (int32_t k = 0; k < pieces; ++k) {
    ++p->begin[sample[k] + 2];
  }
  for (int64_t s = 2; s < p->samples + 2; ++s) {
    p->begin[s] += p->begin[s - 1];
  }
  for (int32_t k = 0; k < pieces; ++k) {
    p->piece[p->begin[sample[k] + 1]++] = k;
  }
  ts_free(sample);
}

/* ---- packings ---- */

ts_status ts_packing_create(const ts_documents *documents, int64_t first, int64_t n, int64_t length, bool together,
                            ts_packing **out, ts_error *err) {
  *out = NULL;
  TS_ASSERT(first >= 0 && n >= 0 && n <= documents->n - first && length > 0 && length <= INT32_MAX);
  ts_packing *p = ts_calloc(1, sizeof *p);
  *p = (ts_packing){.documents = documents, .first = first, .n = n, .length = length};
  if (count_cuts(p, err) != TS_OK) {
    ts_packing_destroy(&p);
    return TS_BAD_INPUT;
  }
  if (together && n > 0) {
    list_pieces(p);
  } else {
    p->samples = p->before[n];
  }
  *out = p;
  return TS_OK;
}

int64_t ts_packing_samples(const ts_packing *p) {
  return p->samples;
}

int64_t ts_packing_documents(const ts_packing *p) {
  return p->n;
}

int64_t ts_packing_tokens(const ts_packing *p) {
  return p->documents->first[p->first + p->n] - p->documents->first[p->first];
}

int64_t ts_packing_pieces(const ts_packing *p, int64_t sample) {
  return p->piece != NULL ? p->begin[sample + 1] - p->begin[sample] : 1;
}

ts_packed ts_packing_piece(const ts_packing *p, int64_t sample, int64_t k) {
  TS_ASSERT(sample >= 0 && sample < p->samples && k >= 0 && k < ts_packing_pieces(p, sample));
  return nth_piece(p, p->piece != NULL ? p->piece[p->begin[sample] + k] : (int32_t) sample);
}

void ts_packing_destroy(ts_packing **packing) {
  if (*packing != NULL) {
    ts_free((*packing)->before);
    ts_free((*packing)->begin);
    ts_free((*packing)->piece);
    ts_free(*packing);
    *packing = NULL;
  }
}
