/** \file
 * Private to byte pair encoding: what a model is, between reading it (bpe.c) and encoding words (bpe_encode.c).
 * Nothing here is collective.
 */
#ifndef TS_TOKENIZER_BPE_MODEL_H
#define TS_TOKENIZER_BPE_MODEL_H

#include "tokenizer/bpe.h"

/** Of a pair of tokens. */
typedef struct ts_pair_entry {
  uint64_t key; /**< ts_pair_key; 0 where there is none. */
  uint32_t rank;
  int32_t id;
} ts_pair_entry;

/** A table by pairs, at most a third full. */
typedef struct ts_pair_table {
  ts_pair_entry *entry; /**< Owned. */
  size_t slots;         /**< A power of two. */
} ts_pair_table;

/** Not collective. */
static inline uint64_t ts_pair_key(int32_t left, int32_t right) {
  return ((uint64_t) (uint32_t) left << 32 | (uint32_t) right) + 1;
}

/** The entry of a pair, or the one that it would have, with the key 0.  Not collective; thread-safe while nobody
 * adds. */
static inline ts_pair_entry *ts_find_pair(const ts_pair_table *t, int32_t left, int32_t right) {
  uint64_t key = ts_pair_key(left, right);
  size_t slot = (size_t) (key * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (t->slots - 1);
  while (t->entry[slot].key != 0 && t->entry[slot].key != key) {
    slot = (slot + 1) & (t->slots - 1);
  }
  return &t->entry[slot];
}

struct ts_bpe {
  ts_string_table tokens; /**< As they are written. */
  ts_string_table words;  /**< Byte level: as the bytes they stand for. */
  int32_t *entry_of;      /**< Owned: id -> entry of tokens, -1. */
  int32_t last_id;
  ts_pair_table merges;
  struct merge {
    int32_t left, right, id;
  } * merge; /**< Owned while the model is read: in the order of the list. */
  size_t n_merges;
  ts_pair_table joints; /**< (last symbol of the left, first symbol of the right) of each merge. */
  bool never_parts;     /**< A symbol's ends are not certain: no joint is. */
  bool bytes, fuse_unknown, ignore_merges;
  int32_t unknown;          /**< -1 */
  int32_t byte_symbol[256]; /**< Byte level: of each byte; otherwise of each ASCII character; -1. */
  int32_t fallback[256];    /**< The token <0x..> of each byte, -1. */
  bool falls_back;          /**< They are used. */
  char *prefix, *suffix;    /**< Owned; continuing_subword_prefix, end_of_word_suffix; "". */
  size_t prefix_bytes, suffix_bytes;
};

/** The tokens as texts hold them. Not collective. */
static inline const ts_string_table *ts_bpe_words(const ts_bpe *b) {
  return b->bytes ? &b->words : &b->tokens;
}

#endif
