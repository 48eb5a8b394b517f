/** \file
 * Exchanges of rows by experts that every rank can compute for every other, and the sequential reference.  Nothing here
 * is collective.
 */
#ifndef REGRESSION_ROW_CASES_H
#define REGRESSION_ROW_CASES_H

#include "base/memory.h"
#include "base/random.h"
#include "comm/comm.h"

#include <string.h>

enum { ROW_RANKS = 8, ROW_EXPERTS = 20, ROW_MOST = 9 /* of an expert */ };

/** What all ranks of a group do: rank r has rows [firsts[r][e], firsts[r][e + 1]) of expert e. */
typedef struct row_case {
  int size;
  int64_t experts, columns; /**< Columns: 32-bit numbers of a row. */
  int64_t cuts[ROW_RANKS + 1];
  int32_t firsts[ROW_RANKS * (ROW_EXPERTS + 1)];
} row_case;

/** Whose row it is, and its number. Not collective. */
static inline uint32_t row_number(int rank, int32_t row, int64_t column) {
  return (uint32_t) ts_mix(ts_mix(77, (uint64_t) rank), ts_mix((uint64_t) row, (uint64_t) column));
}

static inline const int32_t *row_firsts(const row_case *c, int rank) {
  return c->firsts + rank * (c->experts + 1);
}

/** A case: some experts have no rows, in every fifth case but one has none; some ranks may have no expert. Not
 * collective. */
static inline row_case row_case_of(int size, uint64_t seed) {
  row_case c = {.size = size, .experts = 1 + (int64_t) (ts_mix(seed, 1) % ROW_EXPERTS)};
  c.columns = 1 + (int64_t) (ts_mix(seed, 2) % 40);
  for (int r = 0; r <= size; ++r) {
    c.cuts[r] = seed % 3 == 0 && r < size ? (c.experts * r / size + 1) / 2 : c.experts * r / size;
  }
  for (int r = 0; r < size; ++r) {
    int32_t *first = c.firsts + r * (c.experts + 1);
    for (int64_t e = 0; e < c.experts; ++e) {
      uint64_t draw = ts_mix(seed, ts_mix((uint64_t) r, (uint64_t) e + 3));
      bool none = seed % 5 == 0 ? e != (int64_t) (seed % (uint64_t) c.experts) : draw % 4 == 0;
      first[e + 1] = first[e] + (none ? 0 : 1 + (int32_t) (draw / 4 % ROW_MOST));
    }
  }
  return c;
}

/** Rows of a rank's own tokens, or of its experts. Not collective. */
static inline int64_t row_count(const row_case *c, int rank, bool of_experts) {
  int64_t rows = row_firsts(c, rank)[c->experts];
  if (of_experts) {
    rows = 0;
    for (int r = 0; r < c->size; ++r) {
      rows += row_firsts(c, r)[c->cuts[rank + 1]] - row_firsts(c, r)[c->cuts[rank]];
    }
  }
  return rows;
}

static inline size_t row_bytes(const row_case *c) {
  return (size_t) c->columns * sizeof(uint32_t);
}

static inline uint32_t *row_put(const row_case *c, uint32_t *to, int rank, int32_t row) {
  for (int64_t k = 0; k < c->columns; ++k) {
    *to++ = row_number(rank, row, k);
  }
  return to;
}

/** The rows of a rank's tokens by expert, or those of its experts by expert and then by rank. Not collective. */
static inline void row_fill(const row_case *c, int rank, bool of_experts, uint32_t *to) {
  for (int64_t e = of_experts ? c->cuts[rank] : 0; e < (of_experts ? c->cuts[rank + 1] : c->experts); ++e) {
    for (int r = of_experts ? 0 : rank; r < (of_experts ? c->size : rank + 1); ++r) {
      for (int32_t row = row_firsts(c, r)[e]; row < row_firsts(c, r)[e + 1]; ++row) {
        to = row_put(c, to, r, row);
      }
    }
  }
}

#endif
