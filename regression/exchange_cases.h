/** \file
 * Exchanges of blocks that every rank can compute for every other, and the sequential reference.  Nothing here is
 * collective.
 */
#ifndef REGRESSION_EXCHANGE_CASES_H
#define REGRESSION_EXCHANGE_CASES_H

#include "base/memory.h"
#include "base/status.h"
#include "regression/comm_cases.h"

enum { MOST_RANKS = 8, MOST_BLOCKS = 256 };

/** What all ranks of a group do.  Memory is the test's. */
typedef struct exchange_case {
  int size, n; /* ranks, tensors */
  ts_exchange_tensor x[MOST_RANKS][TS_MOST_EXCHANGED], y[MOST_RANKS][TS_MOST_EXCHANGED];
  ts_block sent[MOST_RANKS][MOST_BLOCKS], received[MOST_RANKS][MOST_BLOCKS];
  int n_sent[MOST_RANKS], n_received[MOST_RANKS];
  bool integers;
  uint64_t seed;
  uint64_t drawn;
} exchange_case;

/** A number in [0, below), the next of the case. Not collective. */
static inline int64_t exchange_draw(exchange_case *c, int64_t below) {
  uint32_t bits[4];
  ts_philox(c->seed, 1, c->drawn++, bits);
  return bits[0] % below;
}

static inline ts_interval exchange_part(exchange_case *c, int64_t length, int64_t extent) {
  return (ts_interval){exchange_draw(c, extent - length + 1), length};
}

/** A block from \a a to \a b, behind those before it; pairs come in the order of a, then b. Not collective. */
static inline void exchange_add(exchange_case *c, int a, int b, int tensor, const ts_interval at[4]) {
  TS_CHECK(c->n_sent[a] < MOST_BLOCKS && c->n_received[b] < MOST_BLOCKS, "more blocks than this test can hold");
  c->sent[a][c->n_sent[a]++] = (ts_block){b, tensor, at[0], at[1]};
  c->received[b][c->n_received[b]++] = (ts_block){a, tensor, at[2], at[3]};
}

enum { MOVED_F32, MOVED_U8, MOVED_BF16, SUM_BF16, SUM_F32, SUM_F16, MOVED_F64, N_EXCHANGED };

static inline bool exchange_is_sum(int tensor) {
  return tensor == SUM_BF16 || tensor == SUM_F32 || tensor == SUM_F16;
}

/* Some of the rows and columns of x, below what y has: of a tensor that is moved to rows of y of their own. */
static inline void exchange_move(exchange_case *c, int a, int b, int tensor) {
  ts_exchange_tensor *x = &c->x[a][tensor], *y = &c->y[b][tensor];
  int64_t widest = x->columns < y->columns ? x->columns : y->columns;
  if (x->rows == 0 || widest == 0) {
    return;
  }
  int64_t rows = 1 + exchange_draw(c, x->rows),
          columns = exchange_draw(c, 2) == 0 ? widest : 1 + exchange_draw(c, widest);
  exchange_add(c, a, b, tensor,
               (ts_interval[]){exchange_part(c, rows, x->rows),
                               exchange_part(c, columns, x->columns),
                               {y->rows, rows},
                               exchange_part(c, columns, y->columns)});
  y->rows += rows;
}

/* All that y has, and a part of it. */
static inline void exchange_sum(exchange_case *c, int a, int b, int tensor) {
  const ts_exchange_tensor *x = &c->x[a][tensor], *y = &c->y[b][tensor];
  for (int part = 0; part <= 1 && y->rows > 0; ++part) {
    int64_t rows = part ? 1 + exchange_draw(c, y->rows) : y->rows;
    int64_t columns = part ? 1 + exchange_draw(c, y->columns) : y->columns;
    exchange_add(c, a, b, tensor,
                 (ts_interval[]){exchange_part(c, rows, x->rows), exchange_part(c, columns, x->columns),
                                 exchange_part(c, rows, y->rows), exchange_part(c, columns, y->columns)});
  }
}

/** Tensors of all kinds, uneven, some of no rows, blocks anywhere in them; `wide`: columns in vectors. Not collective.
 */
static inline void exchange_random(exchange_case *c, int size, uint64_t seed, bool wide) {
  static const ts_dtype dtypes[N_EXCHANGED] = {TS_F32, TS_U8, TS_BF16, TS_BF16, TS_F32, TS_F16, TS_F64};
  memset(c, 0, sizeof *c);
  c->size = size;
  c->n = N_EXCHANGED;
  c->seed = seed;
  for (int i = 0; i < c->n; ++i) {
    int64_t batches = 1 + exchange_draw(c, 3);
    for (int r = 0; r < size; ++r) {
      bool sum = exchange_is_sum(i);
      int64_t rows = exchange_draw(c, 6);
      c->y[r][i] = (ts_exchange_tensor){
          .dtype = dtypes[i], .batches = batches, .rows = sum ? rows : 0, .columns = 1 + exchange_draw(c, 24)};
      c->x[r][i] = (ts_exchange_tensor){.dtype = dtypes[i],
                                        .batches = batches,
                                        .rows = (sum ? 5 : 0) + exchange_draw(c, 6),
                                        .columns = (sum ? 24 : 1) + exchange_draw(c, 24)};
      c->x[r][i].columns *= wide ? 16 : 1;
      c->y[r][i].columns *= wide ? 16 : 1;
    }
  }
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < size; ++b) {
      for (int k = 0; k < c->n; ++k) {
        int i = (int) ((k + a) % c->n); /* in any order */
        bool sum = exchange_is_sum(i);
        for (int64_t times = exchange_draw(c, 3); times > 0 && !sum; --times) {
          exchange_move(c, a, b, i);
        }
        if (sum && (exchange_draw(c, 4) > 0 || a == b || a == (b + 1) % size)) { /* two at least, so that it is a sum */
          exchange_sum(c, a, b, i);
        }
      }
    }
  }
}

/** Attention's: tokens of everyone become heads of everyone, 7 query heads and fewer key heads, which several ranks
 * read; some may have none. Not collective. */
static inline void exchange_heads(exchange_case *c, int size, ts_dtype dtype) {
  enum { B = 2, T = 11, H = 6, K = 2, D = 4 };
  memset(c, 0, sizeof *c);
  c->size = size;
  c->n = 2;
  c->integers = true;
  for (int a = 0; a < size; ++a) {
    ts_interval tokens = ts_deal(T, size, a);
    for (int b = 0; b < size; ++b) {
      ts_interval heads = ts_deal(H, size, b), keys = {heads.begin / (H / K), 0};
      keys.length = heads.length > 0 ? (heads.begin + heads.length - 1) / (H / K) + 1 - keys.begin : 0;
      const ts_interval columns[] = {{heads.begin * D, heads.length * D}, {keys.begin * D, keys.length * D}};
      for (int i = 0; i < 2; ++i) {
        c->x[a][i] = (ts_exchange_tensor){NULL, dtype, B, tokens.length, (i == 0 ? H : K) * D};
        c->y[b][i] = (ts_exchange_tensor){NULL, dtype, B, T, columns[i].length};
        if (columns[i].length > 0 && tokens.length > 0) {
          exchange_add(c, a, b, i, (ts_interval[]){{0, tokens.length}, columns[i], tokens, {0, columns[i].length}});
        }
      }
    }
  }
}

/** As many elements as there are arrive, but the second half of the rows twice and the first half never: keys of which
 * a window sees half, whose gradients two ranks make. Not collective. */
static inline void exchange_twice(exchange_case *c, int size, ts_dtype dtype) {
  enum { B = 2, HALF = 3, COLUMNS = 5 };
  memset(c, 0, sizeof *c);
  c->size = size;
  c->n = 1;
  c->integers = true;
  for (int a = 0; a < size; ++a) {
    c->x[a][0] = (ts_exchange_tensor){NULL, dtype, B, HALF, COLUMNS};
    c->y[a][0] = (ts_exchange_tensor){NULL, dtype, B, 2 * HALF, COLUMNS};
    for (int b = 0; b < size; ++b) {
      int times = (a == b) + (a == (b + 1) % size); /* of one rank both are its own */
      for (; times > 0; --times) {
        exchange_add(c, a, b, 0, (ts_interval[]){{0, HALF}, {0, COLUMNS}, {HALF, HALF}, {0, COLUMNS}});
      }
    }
  }
}

/** What goes back the way that it came: the gradient's case. Not collective. */
static inline void exchange_back(exchange_case *back, const exchange_case *c) {
  *back = *c;
  memcpy(back->x, c->y, sizeof c->y);
  memcpy(back->y, c->x, sizeof c->x);
  memcpy(back->sent, c->received, sizeof c->sent);
  memcpy(back->received, c->sent, sizeof c->sent);
  memcpy(back->n_sent, c->n_received, sizeof c->n_sent);
  memcpy(back->n_received, c->n_sent, sizeof c->n_sent);
  back->seed = c->seed + 1;
}

static inline ts_exchange_lists exchange_lists(const exchange_case *c, int rank) {
  return (ts_exchange_lists){
      c->n, c->x[rank], c->y[rank], c->sent[rank], c->received[rank], c->n_sent[rank], c->n_received[rank]};
}

static inline int64_t exchange_count(const ts_exchange_tensor *t) {
  return t->batches * t->rows * t->columns;
}

static inline size_t exchange_bytes(const ts_exchange_tensor *t) {
  return (size_t) exchange_count(t) * ts_dtype_size(t->dtype);
}

static inline bool exchange_is_float(const ts_exchange_tensor *t) {
  return ts_dtype_is_working(t->dtype) != 0;
}

/** Element \a i of tensor \a t of rank \a rank: of floats the value, else a byte of each. Not collective. */
static inline float exchange_value(const exchange_case *c, int rank, int t, int64_t i) {
  const test_case as = {.integers = c->integers};
  return value(&as, rank + 10 * (int) (c->seed % 7), t, i);
}

static inline void exchange_fill(const exchange_case *c, int rank, int t, void *data) {
  const ts_exchange_tensor *x = &c->x[rank][t];
  size_t size = ts_dtype_size(x->dtype);
  for (int64_t i = 0; i < exchange_count(x); ++i) {
    if (exchange_is_float(x)) {
      store(data, x->dtype, i, exchange_value(c, rank, t, i));
    } else {
      memset((char *) data + (size_t) i * size, gathered_byte(rank, t, i), size);
    }
  }
}

/* The block of rank \a a's list that is number \a k of those to \a b. */
static inline const ts_block *exchange_source(const exchange_case *c, int a, int b, int k) {
  int i = 0;
  while (c->sent[a][i].rank != b || k-- > 0) {
    ++i;
  }
  return &c->sent[a][i];
}

/* Every element of a batch of output t, counted. */
static inline bool exchange_arrives_once(const ts_exchange_lists *lists, int t) {
  const ts_exchange_tensor *y = &lists->y[t];
  int64_t wrong = 0;
  for (int64_t e = 0; e < y->rows * y->columns; ++e) {
    int64_t row = e / y->columns, column = e % y->columns;
    int times = 0;
    for (int i = 0; i < lists->n_received; ++i) {
      const ts_block *b = &lists->received[i];
      times += b->tensor == t && row >= b->rows.begin && row < b->rows.begin + b->rows.length &&
               column >= b->columns.begin && column < b->columns.begin + b->columns.length;
    }
    wrong += times != 1;
  }
  return wrong == 0;
}

/** What output \a t of rank \a rank becomes; `data` holds what it was. Not collective. */
static inline void exchange_expect(const exchange_case *c, int rank, int t, void *data) {
  const ts_exchange_tensor *y = &c->y[rank][t];
  const ts_exchange_lists lists = exchange_lists(c, rank);
  int64_t count = exchange_count(y);
  size_t size = ts_dtype_size(y->dtype);
  bool sums = exchange_is_float(y) && !exchange_arrives_once(&lists, t);
  float *sum = ts_malloc((size_t) (count + 1) * sizeof *sum);
  for (int64_t i = 0; i < count; ++i) {
    sum[i] = -0.0f;
  }
  for (int i = 0, k = 0; i < lists.n_received; ++i) {
    const ts_block *to = &lists.received[i];
    k = i > 0 && to[-1].rank == to->rank ? k + 1 : 0;
    const ts_block *from = exchange_source(c, to->rank, rank, k);
    const ts_exchange_tensor *x = &c->x[to->rank][t];
    for (int64_t e = 0; to->tensor == t && e < y->batches * to->rows.length * to->columns.length; ++e) {
      int64_t column = e % to->columns.length, row = e / to->columns.length % to->rows.length;
      int64_t batch = e / to->columns.length / to->rows.length;
      int64_t at = (batch * y->rows + to->rows.begin + row) * y->columns + to->columns.begin + column;
      int64_t of = (batch * x->rows + from->rows.begin + row) * x->columns + from->columns.begin + column;
      if (!exchange_is_float(y)) {
        memset((char *) data + (size_t) at * size, gathered_byte(to->rank, t, of), size);
        continue;
      }
      float v = rounded(y->dtype, exchange_value(c, to->rank, t, of));
      sum[at] += v;
      store(data, y->dtype, at, sums ? sum[at] : v);
    }
  }
  for (int64_t i = 0; sums && i < count; ++i) {
    store(data, y->dtype, i, sum[i]);
  }
  ts_free(sum);
}

#endif
