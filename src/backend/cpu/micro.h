/** \file
 * Small matrix products on tiles in the first- and second-level cache, for kernels that interleave products with other
 * work (attention).  Included by kernels_*.c only, so it is compiled for each instruction set.
 *
 * An operand is an array of 32-bit cells: an fp32 number, or, where that is faster (ts_micro_pairs), two
 * bf16 numbers that are neighbours along the summed dimension.  Sums are fp32 in order of k, whatever the tile.
 * Nothing here is collective.
 */
#ifndef TS_BACKEND_CPU_MICRO_H
#define TS_BACKEND_CPU_MICRO_H

#include "backend/cpu/processor.h"
#include "backend/cpu/vector.h"

#include <stdbool.h>
#include <stddef.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

/* Registers: 6 rows x TS_MICRO_VECTORS accumulators, or 12 of half as many, one row of b, one broadcast. */
#if defined __AVX512F__
enum { TS_MICRO_WIDTH = 16, TS_MICRO_VECTORS = 4 };
#elif defined __AVX__
enum { TS_MICRO_WIDTH = 8, TS_MICRO_VECTORS = 2 };
#else
enum { TS_MICRO_WIDTH = 4, TS_MICRO_VECTORS = 2 };
#endif
enum { TS_MICRO_ROWS = 12, TS_MICRO_LINE = 64 };

/** Columns of b and c are padded to a multiple of this on every instruction set. */
#define TS_MICRO_COLUMNS 16

typedef uint32_t __attribute__((may_alias)) ts_cell;
typedef float ts_micro_vector __attribute__((vector_size(TS_MICRO_WIDTH * sizeof(float))));
typedef float ts_micro_memory __attribute__((vector_size(TS_MICRO_WIDTH * sizeof(float)), aligned(4), may_alias));

/** True where bf16 tiles are kept as pairs, which are multiplied faster; otherwise they are widened to fp32. Not
 * collective. */
TS_INLINE bool ts_micro_pairs(void) {
#ifdef __AVX512BF16__
  return ts_processor_has_fast_bf16();
#else
  return false;
#endif
}

/** Memory that will be needed: \a n pieces, \a stride bytes apart.  A tile asks for one, a line or two at each cell of
 * k that it sums over, \a step bytes apart: so memory and products take their time together. */
typedef struct ts_micro_ahead {
  const char *at;
  int64_t stride, n, step;
  const struct ts_micro_ahead *then; /**< What is needed after these; NULL: nothing. */
} ts_micro_ahead;

/** c [m][n] (+)= a b over \a k cells.  Cell (i, k) of a is a[i * row + k * column]; b is [k][ldb], c [m][ldc]. */
typedef struct ts_micro_product {
  int m, n, k; /**< n: a multiple of TS_MICRO_COLUMNS. */
  const ts_cell *a;
  int64_t row, column;
  const ts_cell *b;
  int64_t ldb;
  float *c;
  int64_t ldc;
  bool halves;        /**< Of 7 to 24 rows tiles have half the width, and twice the rows: b is read twice at most. */
  bool add;           /**< c is added to; otherwise overwritten. */
  bool far;           /**< c is asked for when a tile begins. */
  const float *prior; /**< Laid out as c, or c itself: its \a beta-fold is added at the end; NULL: nothing. */
  float beta;
  ts_micro_ahead *ahead; /**< Of ts_micro_run_ahead, which counts it down. */
} ts_micro_product;

/** May a tile of so many vectors have more than six rows? Not collective. */
TS_INLINE bool ts_micro_narrow(int64_t vectors) {
  return 2 * vectors <= TS_MICRO_VECTORS;
}

/** Vectors of a tile of a product of \a m rows, as far as there are columns. Not collective. */
TS_INLINE int ts_micro_vectors(int64_t m, bool halves) {
  return halves && TS_MICRO_VECTORS > 2 && m > 6 && m <= 2 * TS_MICRO_ROWS ? TS_MICRO_VECTORS / 2 : TS_MICRO_VECTORS;
}

/** Rows of the next tile where \a left are left.  Narrow tiles have equal shares, in pairs: each reads b once, and asks
 * for as much. Not collective. */
TS_INLINE int ts_micro_rows(int left, const bool narrow) {
  if (narrow && left > 1) {
    int tiles = (left + TS_MICRO_ROWS - 1) / TS_MICRO_ROWS, share = (left + 2 * tiles - 1) / (2 * tiles) * 2;
    return share <= left ? share : left - 1;
  }
  return left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/** How many tiles ts_micro_run makes of m x n. Not collective. */
TS_INLINE int64_t ts_micro_tiles(int64_t m, int64_t n, bool halves) {
  int64_t most = ts_micro_vectors(m, halves), wide = most * TS_MICRO_WIDTH, vectors = n % wide / TS_MICRO_WIDTH,
          tiles = 0;
  for (int left = (int) m; left > 0 && n >= wide; left -= ts_micro_rows(left, ts_micro_narrow(most))) {
    tiles += n / wide;
  }
  for (int left = (int) m; left > 0 && vectors > 0; left -= ts_micro_rows(left, ts_micro_narrow(vectors))) {
    ++tiles;
  }
  return tiles;
}

/** sum + a b in fp32; with \a pairs, of two bf16 in each cell.  Not collective. */
TS_INLINE ts_micro_vector ts_micro_multiply_add(ts_micro_vector sum, uint32_t a, ts_micro_vector b, const bool pairs) {
#ifdef __AVX512BF16__
  if (pairs) {
    return (ts_micro_vector) _mm512_dpbf16_ps((__m512) sum, (__m512bh) _mm512_set1_epi32((int) a), (__m512bh) b);
  }
#else
  (void) pairs;
#endif
  return sum + ts_float_of((int32_t) a) * b;
}

/** \a rows x (\a vectors vectors) of c at row \a i, column \a j, held in registers over the whole of k; \a asks: for so
 * many lines at each cell.  Not collective. */
TS_INLINE void ts_micro_tile(const ts_micro_product *p, int i, int j, const int rows, const int vectors,
                             const bool pairs, const int asks) {
  ts_micro_vector sum[TS_MICRO_ROWS][TS_MICRO_VECTORS];
  bool any = asks > 0 && p->ahead->n > 0;
  const char *line = any ? p->ahead->at : (const char *) p->b; /* which is near */
  int64_t apart = any ? p->ahead->step : 0;
  if (any) {
    p->ahead->at += p->ahead->stride;
    if (--p->ahead->n == 0 && p->ahead->then != NULL) {
      *p->ahead = *p->ahead->then;
    }
  }
  const ts_cell *a = p->a + i * p->row, *b = p->b + j;
  const ts_cell *beyond = rows > 6 ? a + 6 * p->row : a; /* of twelve rows the others: six addresses fit in registers */
  float *c = p->c + i * p->ldc + j;
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
      sum[r][v] = (ts_micro_vector){0};
      if (p->add) {
        sum[r][v] = *(ts_micro_memory *) (c + r * p->ldc + v * TS_MICRO_WIDTH);
      }
    }
  }
  if (p->far) { /* there by the end */
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        __builtin_prefetch(p->c + (i + r) * p->ldc + j + v * TS_MICRO_WIDTH, 1, 3);
      }
    }
  }
  for (int left = p->k; left > 0; --left, a += p->column, beyond += p->column, b += p->ldb) {
    ts_micro_vector row[TS_MICRO_VECTORS];
    for (int l = 0; l < asks; ++l) {
      __builtin_prefetch(line + l * TS_MICRO_LINE, 0, 2);
    }
    line += apart;
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
      row[v] = *(const ts_micro_memory *) (b + v * TS_MICRO_WIDTH);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      uint32_t cell = r < 6 ? a[r * p->row] : beyond[(r - 6) * p->row];
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        sum[r][v] = ts_micro_multiply_add(sum[r][v], cell, row[v], pairs);
      }
    }
  }
  const float *prior = p->prior != NULL ? p->prior + i * p->ldc + j : NULL;
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
      int64_t at = r * p->ldc + v * TS_MICRO_WIDTH;
      if (prior != NULL) {
        sum[r][v] += p->beta * *(const ts_micro_memory *) (prior + at);
      }
      *(ts_micro_memory *) (c + at) = sum[r][v];
    }
  }
}

/** All rows of the columns from \a j on.  Not collective. */
TS_INLINE void ts_micro_columns(const ts_micro_product *p, int j, const int vectors, const bool pairs, const int asks) {
  const bool narrow = ts_micro_narrow(vectors);
  for (int i = 0, rows; i < p->m; i += rows) {
    rows = ts_micro_rows(p->m - i, narrow);
    if (narrow && rows == 12) {
      ts_micro_tile(p, i, j, 12, vectors, pairs, asks);
    } else if (narrow && rows == 10) {
      ts_micro_tile(p, i, j, 10, vectors, pairs, asks);
    } else if (narrow && rows == 8) {
      ts_micro_tile(p, i, j, 8, vectors, pairs, asks);
    } else if (rows == 6) {
      ts_micro_tile(p, i, j, 6, vectors, pairs, asks);
    } else if (rows == 4) {
      ts_micro_tile(p, i, j, 4, vectors, pairs, asks);
    } else if (rows == 2) {
      ts_micro_tile(p, i, j, 2, vectors, pairs, asks);
    } else {
      ts_micro_tile(p, i, j, 1, vectors, pairs, asks);
    }
  }
}

/** The whole product.  Not collective. */
TS_INLINE void ts_micro_all(const ts_micro_product *p, const bool pairs, const int asks) {
  int j = 0;
  for (; ts_micro_vectors(p->m, p->halves) == 2 && TS_MICRO_VECTORS > 2 && j + 2 * TS_MICRO_WIDTH <= p->n;
       j += 2 * TS_MICRO_WIDTH) {
    ts_micro_columns(p, j, 2, pairs, asks);
  }
  for (; j + TS_MICRO_VECTORS * TS_MICRO_WIDTH <= p->n; j += TS_MICRO_VECTORS * TS_MICRO_WIDTH) {
    ts_micro_columns(p, j, TS_MICRO_VECTORS, pairs, asks);
  }
  int rest = (p->n - j) / TS_MICRO_WIDTH;
  if (TS_MICRO_VECTORS > 3 && rest == 3) {
    ts_micro_columns(p, j, 3, pairs, asks);
  } else if (TS_MICRO_VECTORS > 2 && rest == 2) {
    ts_micro_columns(p, j, 2, pairs, asks);
  } else if (rest == 1) {
    ts_micro_columns(p, j, 1, pairs, asks);
  }
}

/** Neighbours of two rows of \a n bf16 as pairs.  Sequential. Not collective. */
TS_INLINE void ts_micro_pair(ts_cell *restrict to, const uint16_t *restrict low, const uint16_t *restrict high, int n) {
#pragma omp simd
  for (int i = 0; i < n; ++i) {
    to[i] = (uint32_t) low[i] | (uint32_t) high[i] << 16;
  }
}

/* Elements of two vectors after one another, by constant numbers: two compilers, two names. */
#ifdef __clang__
#define TS_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define TS_PICK(a, b, ...) __builtin_shuffle(a, b, (vector){__VA_ARGS__})
#endif

/** to [columns][width] = the transpose of \a width rows of \a columns cells, both multiples of 8, through the registers
 * in squares of 8, so that rows are read whole.  \a apart, \a stride: cells between rows of \a to and of \a from.
 * Sequential. Not collective. */
static inline void ts_micro_transpose(ts_cell *to, int64_t apart, const ts_cell *from, int64_t stride, int width,
                                      int columns) {
  typedef uint32_t vector __attribute__((vector_size(32)));
  typedef uint32_t memory __attribute__((vector_size(32), aligned(4), may_alias));
  for (int i = 0; i < width; i += 8) {
    for (int j = 0; j < columns; j += 8) {
      vector row[8], half[8];
      for (int k = 0; k < 8; ++k) {
        row[k] = *(const memory *) (from + (i + k) * stride + j);
      }
      for (int k = 0; k < 4; ++k) { /* interleaved by rows inside register halves, then by pairs, then by halves */
        half[2 * k] = TS_PICK(row[2 * k], row[2 * k + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        half[2 * k + 1] = TS_PICK(row[2 * k], row[2 * k + 1], 2, 10, 3, 11, 6, 14, 7, 15);
      }
      for (int k = 0; k < 2; ++k) {
        row[4 * k] = TS_PICK(half[4 * k], half[4 * k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        row[4 * k + 1] = TS_PICK(half[4 * k], half[4 * k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        row[4 * k + 2] = TS_PICK(half[4 * k + 1], half[4 * k + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        row[4 * k + 3] = TS_PICK(half[4 * k + 1], half[4 * k + 3], 2, 3, 10, 11, 6, 7, 14, 15);
      }
      for (int k = 0; k < 4; ++k) {
        ts_cell *column = to + (j + k) * apart + i;
        *(memory *) column = TS_PICK(row[k], row[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        column += 4 * apart;
        *(memory *) column = TS_PICK(row[k], row[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
      }
    }
  }
}

/** Compute, with cells that are pairs or fp32 numbers.  Sequential. Not collective. */
static inline void ts_micro_run(const ts_micro_product *p, bool pairs) {
  if (pairs) {
    ts_micro_all(p, true, 0);
  } else {
    ts_micro_all(p, false, 0);
  }
}

/** The same, asking for p->ahead: what a tile can load is what bounds narrow ones, so for no more lines than need be.
 * Sequential. Not collective. */
static inline void ts_micro_run_ahead(const ts_micro_product *p, bool pairs) {
  int64_t step = p->ahead->step, then = p->ahead->then != NULL ? p->ahead->then->step : 0;
  bool one = step <= TS_MICRO_LINE && then <= TS_MICRO_LINE;
  if (pairs && one) {
    ts_micro_all(p, true, 1);
  } else if (pairs) {
    ts_micro_all(p, true, 2);
  } else if (one) {
    ts_micro_all(p, false, 1);
  } else {
    ts_micro_all(p, false, 2);
  }
}

#endif
