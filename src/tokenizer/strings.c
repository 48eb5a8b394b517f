#include "tokenizer/strings.h"

#include "base/memory.h"

#include <string.h>

static uint64_t mix(uint64_t h, uint64_t word) {
  h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
  return h ^ h >> 32;
}

uint32_t ts_string_hash(const char *text, size_t n) {
  uint64_t h = n * UINT64_C(0xff51afd7ed558ccd);
  for (; n >= 8; text += 8, n -= 8) {
    uint64_t word;
    memcpy(&word, text, 8);
    h = mix(h, word);
  }
  uint64_t rest = 0;
  memcpy(&rest, text, n);
  return (uint32_t) mix(h, rest);
}

void ts_string_table_clear(ts_string_table *t) {
  ts_free(t->bytes);
  ts_free(t->entry);
  ts_free(t->slot);
  *t = (ts_string_table){0};
}

static ts_string_entry *find_string(const ts_string_table *t, const char *text, size_t n, uint32_t hash, size_t *slot) {
  for (*slot = hash & (t->slots - 1); t->slot[*slot] != 0; *slot = (*slot + 1) & (t->slots - 1)) {
    ts_string_entry *e = &t->entry[t->slot[*slot] - 1];
    if (e->hash == hash && e->n == n && memcmp(t->bytes + e->at, text, n) == 0) {
      return e;
    }
  }
  return NULL;
}

int32_t ts_string_id(const ts_string_table *t, const char *text, size_t n) {
  size_t slot;
  const ts_string_entry *e = t->n > 0 ? find_string(t, text, n, ts_string_hash(text, n), &slot) : NULL;
  return e != NULL ? e->id : -1;
}

static void make_string_slots(ts_string_table *t) {
  t->slots = t->slots > 0 ? 4 * t->slots : 64;
  ts_free(t->slot);
  t->slot = ts_calloc(t->slots, sizeof *t->slot);
  for (int64_t i = 0; i < t->n; ++i) {
    size_t slot = t->entry[i].hash & (t->slots - 1);
    while (t->slot[slot] != 0) {
      slot = (slot + 1) & (t->slots - 1);
    }
    t->slot[slot] = (int32_t) (i + 1);
  }
}

void ts_string_add(ts_string_table *t, const char *text, size_t n, int32_t id) {
  if ((size_t) t->n * 2 >= t->slots) {
    make_string_slots(t);
  }
  uint32_t hash = ts_string_hash(text, n);
  size_t slot;
  ts_string_entry *e = find_string(t, text, n, hash, &slot);
  if (e != NULL) {
    e->id = id;
    return;
  }
  if (t->n_bytes + n >= t->capacity_bytes) {
    t->capacity_bytes = 2 * (t->n_bytes + n) + 64;
    t->bytes = ts_realloc(t->bytes, t->capacity_bytes, 1);
  }
  memcpy(t->bytes + t->n_bytes, text, n);
  TS_GROW(t->entry, t->n, t->capacity);
  t->entry[t->n++] = (ts_string_entry){.at = t->n_bytes, .n = (uint32_t) n, .hash = hash, .id = id};
  t->n_bytes += n;
  t->slot[slot] = (int32_t) t->n;
}
