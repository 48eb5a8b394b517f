/** \file
 * Dealing n things to ranks: in order, everybody gets some in a row, and where they do not divide, earlier ranks get
 * one more; and the blocks that ranks exchange.  Nothing here is collective.
 */
#ifndef TS_BASE_DEAL_H
#define TS_BASE_DEAL_H

#include <stdbool.h>
#include <stdint.h>

/** Indices [begin, begin + length) of a dimension. */
typedef struct ts_interval {
  int64_t begin, length;
} ts_interval;

/** Rows and columns of a tensor, as its last two dimensions, that go to a rank of a group, or come from one. */
typedef struct ts_block {
  int rank, tensor; /**< In the group; among the inputs or the outputs. */
  ts_interval rows, columns;
} ts_block;

/** Tensors whose blocks travel together, at most. */
enum { TS_MOST_EXCHANGED = 16 };

/** Of \a n blocks in the order of their ranks the first of rank \a rank or a later one; \a n: there is none.
 * Not collective. */
static inline int ts_first_block(const ts_block *block, int n, int rank) {
  int low = 0, high = n;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (block[middle].rank < rank) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/** What rank \a rank of \a ranks gets of \a n things. Not collective. */
static inline ts_interval ts_deal(int64_t n, int64_t ranks, int64_t rank) {
  int64_t each = n / ranks, more = n % ranks;
  return (ts_interval){rank * each + (rank < more ? rank : more), each + (rank < more)};
}

/** What is in both. Not collective. */
static inline ts_interval ts_interval_both(ts_interval a, ts_interval b) {
  int64_t begin = a.begin > b.begin ? a.begin : b.begin;
  int64_t end = a.begin + a.length < b.begin + b.length ? a.begin + a.length : b.begin + b.length;
  return (ts_interval){begin, end > begin ? end - begin : 0};
}

/** Whether the blocks of tensor \a tensor, of \a n blocks, are all of its \a rows x \a columns, in which they lie, each
 * element once.
 * As many elements as there are may still be some twice and others never.  Not collective. */
static inline bool ts_blocks_tile(const ts_block *block, int n, int tensor, int64_t rows, int64_t columns) {
  int64_t left = rows * columns;
  for (int i = 0; i < n; ++i) {
    left -= block[i].tensor == tensor ? block[i].rows.length * block[i].columns.length : 0;
  }
  for (int i = 0; i < n && left == 0; ++i) {
    for (int k = block[i].tensor == tensor ? 0 : i; k < i; ++k) {
      if (block[k].tensor == tensor && ts_interval_both(block[i].rows, block[k].rows).length > 0 &&
          ts_interval_both(block[i].columns, block[k].columns).length > 0) {
        return false;
      }
    }
  }
  return left == 0;
}

/** Which of \a ranks ranks gets thing \a thing of \a n, at least one each. Not collective. */
static inline int64_t ts_dealt_to(int64_t n, int64_t ranks, int64_t thing) {
  int64_t each = n / ranks, more = n % ranks, first = more * (each + 1);
  return thing < first ? thing / (each + 1) : more + (thing - first) / each;
}

/** The greatest common divisor of two numbers that are not negative; of one and 0 the one. Not collective. */
static inline int64_t ts_common_divisor(int64_t a, int64_t b) {
  while (b != 0) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

#endif
