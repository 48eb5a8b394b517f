/* Products of each expert's rows with its matrix, in pieces that a thread does alone.  A row's sum goes over all of k
 * in order, whatever other rows there are, and whichever way it is made.
 *
 * An expert of many rows has a tile of its matrix brought into place, which all rows then use.  One of few does not
 * repay that: its matrix is read as it lies, once, along its rows, and what is brought into place are the expert's rows
 * (matrices [out][in]) or, tile by tile, a strip of the matrix that is as wide as memory likes (matrices [in][out]).
 * In fp32 very few rows go by such a strip as it lies, and some more are brought into place instead.  While a piece is
 * multiplied, memory is asked for what comes after it. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/micro.h"
#include "backend/cpu/team.h"
#include "backend/cpu/tile.h"

#include "base/memory.h"

#include <omp.h>

enum {
  TILE = 64,     /* columns of a product */
  ROWS = 48,     /* its rows at a time */
  FEW = 128,     /* rows of an expert that are few */
  FEWEST = 24,   /* and very few */
  STRIP = 256,   /* columns of the result that are one piece of work */
  WIDE = 1024,   /* the same of an expert of few rows: memory is fast along rows */
  PART = 256,    /* of k, in numbers or cells, that is brought into place at a time */
  STEP = 64,     /* the same of a strip */
  DEPTH = 512,   /* rows of dy and x that are */
  SHALLOW = 128, /* the same of a wide strip */
  LINE = 64
};

/* Cells of k numbers. */
static int64_t cells_of(int64_t k, bool pairs) {
  return pairs ? (k + 1) / 2 : k;
}

static int64_t up_to(int64_t n, int64_t multiple) {
  return ts_pieces(n, multiple) * multiple;
}

typedef struct grouped {
  const int32_t *first; /* [experts + 1] */
  int64_t experts;
  int64_t inner, columns; /* of the sum; of the result */
  int64_t rows;           /* of dw: columns of dy */
  bool pairs;
  bool turned; /* matrices are [out][in] */
} grouped;

/* A matrix, its elements in rows of `width`. */
typedef struct matrix {
  ts_source data;
  int64_t width;
} matrix;

static const void *address_of(const matrix *x, int64_t at) {
  return (const char *) x->data.data + (size_t) at * ts_dtype_size(x->data.dtype);
}

/* n numbers of a row as fp32 or as bf16, zeros behind them up to `padded`. */
static void read_padded(void *to, const matrix *x, int64_t at, int64_t n, int64_t padded, bool pairs) {
  size_t size = pairs ? sizeof(uint16_t) : sizeof(float);
  if (pairs) {
    memcpy(to, address_of(x, at), (size_t) n * size);
  } else {
    for (int64_t i = 0; i < n; i += TS_TILE) {
      int64_t some = ts_min(TS_TILE, n - i);
      const float *values = ts_source_read(&x->data, at + i, some, (float *) to + i);
      if (values != (const float *) to + i) {
        memcpy((float *) to + i, values, (size_t) some * size);
      }
    }
  }
  memset((char *) to + (size_t) n * size, 0, (size_t) (padded - n) * size);
}

/* Cells [k][width] of n columns of a matrix whose rows go along them: some k numbers from row `row`, column `at` on. */
static void pack_along(ts_cell *b, const matrix *w, int64_t row, int64_t at, int64_t k, int64_t n, int64_t width,
                       bool pairs) {
  static const uint16_t none[TILE] = {0};
  for (int64_t i = 0; i < k; i += pairs ? 2 : 1) {
    if (!pairs) {
      read_padded(b + i * width, w, (row + i) * w->width + at, n, width, false);
      continue;
    }
    const uint16_t *low = address_of(w, (row + i) * w->width + at);
    ts_micro_pair(b + i / 2 * width, low, i + 1 < k ? low + w->width : none, (int) n);
    memset(b + i / 2 * width + n, 0, (size_t) (width - n) * sizeof *b);
  }
}

/* One row of a tile, or two. */
static void pack_tile_row(ts_cell *b, const matrix *w, int64_t at, int64_t k, int64_t n, bool pairs) {
  if (n == TILE && !pairs && w->data.dtype == TS_F32) {
    const float *from = address_of(w, at);
    float *to = (float *) b;
#pragma omp simd
    for (int i = 0; i < TILE; ++i) {
      to[i] = from[i];
    }
  } else if (n == TILE && !pairs && w->data.dtype == TS_BF16) {
    ts_widen((float *) b, address_of(w, at), TILE);
  } else if (n == TILE && pairs && k == 2) {
    const uint16_t *low = address_of(w, at);
    ts_micro_pair(b, low, low + w->width, TILE);
  } else {
    pack_along(b, w, at / w->width, at % w->width, k, n, TILE, pairs);
  }
}

/* The same as tiles of TILE columns, one behind another; rows are read whole strips at a time. */
static void pack_strip(ts_cell *b, const matrix *w, int64_t row, int64_t at, int64_t k, int64_t n, bool pairs) {
  int64_t step = pairs ? 2 : 1, tile = cells_of(k, pairs) * TILE;
  for (int64_t i = 0; i < k; i += step) {
    for (int64_t j = 0; j < n; j += TILE) {
      pack_tile_row(b + j / TILE * tile + i / step * TILE, w, (row + i) * w->width + at + j, ts_min(step, k - i),
                    ts_min(TILE, n - j), pairs);
    }
  }
}

/* Cells [k][width] of a matrix whose rows go along k: n of them from row `row` on, whole; `scratch` [width][PART]. */
static void pack_across(ts_cell *b, const matrix *w, int64_t row, int64_t n, int64_t width, bool pairs,
                        ts_cell *scratch) {
  int64_t part = pairs ? 2 * PART : PART;
  for (int64_t at = 0; at < w->width; at += part) {
    int64_t k = ts_min(part, w->width - at), cells = up_to(cells_of(k, pairs), 8);
    for (int64_t i = 0; i < width; ++i) {
      int64_t some = i < n ? k : 0;
      read_padded(scratch + i * PART, w, i < n ? (row + i) * w->width + at : 0, some, pairs ? 2 * cells : cells, pairs);
    }
    ts_micro_transpose(b + cells_of(at, pairs) * width, width, scratch, PART, (int) width, (int) cells);
  }
}

/* ---- memory of a thread ---- */

typedef struct space {
  ts_cell *a, *b, *scratch;
  float *c;
} space;

static size_t bytes_of_space(const int64_t count[4]) {
  int64_t cells = 0;
  for (int i = 0; i < 4; ++i) {
    cells += up_to(count[i], LINE / (int64_t) sizeof(ts_cell));
  }
  return (size_t) cells * sizeof(ts_cell);
}

static space space_of(const ts_kernel_call *call, const int64_t count[4], int thread) {
  ts_cell *part[4], *at = (ts_cell *) ((char *) call->workspace + (size_t) thread * bytes_of_space(count));
  for (int i = 0; i < 4; ++i) {
    part[i] = at;
    at += up_to(count[i], LINE / (int64_t) sizeof(ts_cell));
  }
  return (space){part[0], part[1], part[2], (float *) part[3]};
}

static bool lies_in_cells(const grouped *g, const matrix *x) {
  return x->data.dtype == TS_F32 || (g->pairs && x->width % 2 == 0 && (uintptr_t) x->data.data % 4 == 0);
}

/* Cells of some rows of x along k, from column `at` on: where they are, if that will do.  Of rows up to `padded` those
 * that are not there are zeros. */
static ts_micro_product cells_of_rows(const grouped *g, const matrix *x, int64_t row, int64_t rows, int64_t padded,
                                      int64_t at, int64_t n, ts_cell *a) {
  bool direct = lies_in_cells(g, x) && padded <= rows;
  int64_t k = cells_of(n, g->pairs);
  if (padded > rows) {
    memset(a + rows * k, 0, (size_t) ((padded - rows) * k) * sizeof *a);
  }
  for (int64_t i = 0; i < rows && !direct; ++i) {
    read_padded(a + i * k, x, (row + i) * x->width + at, n, g->pairs ? 2 * k : k, g->pairs);
  }
  return (ts_micro_product){.m = (int) ts_max(rows, padded),
                            .n = TILE,
                            .k = (int) k,
                            .a = direct ? (const ts_cell *) address_of(x, row * x->width + at) : a,
                            .row = direct ? cells_of(x->width, g->pairs) : k,
                            .column = 1};
}

/* Rows [row, row + rows) of x, n columns from `at` on, to be asked for by `tiles` tiles that sum over k cells: whole
 * rows in as many pieces, parts of rows one by one. */
static ts_micro_ahead lines_of(const matrix *x, int64_t row, int64_t rows, int64_t at, int64_t n, int64_t tiles,
                               int64_t k) {
  int64_t size = (int64_t) ts_dtype_size(x->data.dtype);
  ts_micro_ahead ahead = {address_of(x, row * x->width + at), x->width * size, rows, ts_pieces(n * size, k), NULL};
  if (n == x->width && rows > 0) {
    ahead.stride = ts_pieces(rows * n * size, tiles);
    ahead.n = tiles;
    ahead.step = ts_pieces(ahead.stride, k);
  }
  ahead.step = ts_min(ahead.step, 2 * LINE);
  return ahead;
}

static void run_product(ts_micro_product p, const ts_cell *b, int64_t ldb, float *c, int64_t ldc, ts_micro_ahead *ahead,
                        bool pairs) {
  p.b = b;
  p.ldb = ldb;
  p.c = c;
  p.ldc = ldc;
  p.ahead = ahead;
  (ahead != NULL ? ts_micro_run_ahead : ts_micro_run)(&p, pairs);
}

/* May tiles of n columns be written where they belong? */
static bool is_written_at_once(const ts_sink *y, int64_t n) {
  return y->dtype == TS_F32 && n % TILE == 0;
}

/* Make a product's result that of elements from `at` on. \return where they are. */
static float *place_result(ts_micro_product *p, const ts_sink *y, int64_t at) {
  const ts_sink there = ts_sink_from(*y, at);
  p->far = true;
  p->prior = there.prior;
  p->beta = there.beta;
  return there.data;
}

static void write_rows(const ts_sink *y, const float *c, int64_t ldc, int64_t row, int64_t rows, int64_t width,
                       int64_t at, int64_t n) {
  for (int64_t i = 0; i < rows; ++i) {
    ts_sink_write(y, (row + i) * width + at, n, c + i * ldc);
  }
}

/* ---- rows times matrices ---- */

/* What one piece of work needs: an expert, its rows, some columns of the result. */
typedef struct piece {
  const grouped *g;
  matrix x, w;
  ts_sink y;
  int64_t expert, row, rows, at, n;
  const struct piece *next; /* that the thread most likely does after it, of few rows too; NULL: none */
} piece;

static grouped grouped_of(const ts_graph *graph, const ts_node *node) {
  const ts_shape *x = &graph->tensor[node->in[0]].shape, *w = &graph->tensor[node->in[1]].shape;
  return (grouped){.experts = w->d[0],
                   .inner = x->d[1],
                   .columns = w->d[node->attr.matmul.transpose_b ? 1 : 2],
                   .turned = node->attr.matmul.transpose_b,
                   .pairs = graph->tensor[node->in[0]].dtype == TS_BF16 && ts_micro_pairs()};
}

static void count_space(int64_t count[4], const grouped *g) {
  int64_t k = up_to(cells_of(g->inner, g->pairs), 8);
  count[0] = ts_max(ROWS * k, FEW * STEP);
  count[1] = k * FEW;
  count[2] = FEW * PART;
  count[3] = FEW * (WIDE / 2 + 8);
}

static size_t grouped_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  (void) prepared;
  grouped g = grouped_of(graph, node);
  int64_t count[4];
  count_space(count, &g);
  return (size_t) target->threads * bytes_of_space(count);
}

/* A tile of the matrix is brought into place, and all rows go by. */
static void multiply_many(const piece *p, const space *s) {
  const grouped *g = p->g;
  for (int64_t at = p->at; at < p->at + p->n; at += TILE) {
    int64_t n = ts_min(TILE, p->at + p->n - at);
    const bool direct = is_written_at_once(&p->y, n);
    if (g->turned) {
      pack_across(s->b, &p->w, p->expert * g->columns + at, n, TILE, g->pairs, s->scratch);
    } else {
      pack_strip(s->b, &p->w, p->expert * g->inner, at, g->inner, n, g->pairs);
    }
    for (int64_t row = p->row; row < p->row + p->rows; row += ROWS) {
      int64_t rows = ts_min(ROWS, p->row + p->rows - row);
      ts_micro_product product = cells_of_rows(g, &p->x, row, rows, 0, 0, g->inner, s->a);
      float *c = direct ? place_result(&product, &p->y, row * g->columns + at) : s->c;
      run_product(product, s->b, TILE, c, direct ? g->columns : TILE, NULL, g->pairs);
      if (!direct) {
        write_rows(&p->y, s->c, TILE, row, rows, g->columns, at, n);
      }
    }
  }
}

/* Columns [at, at + n) of an expert's result, of which c [n][width] is the transpose; it has rows up to eight more. */
static void write_turned(const piece *p, const space *s, float *c, int64_t width, int64_t at, int64_t n) {
  int64_t columns = up_to(n, 8);
  memset(c + n * width, 0, (size_t) ((columns - n) * width) * sizeof *c);
  ts_micro_transpose(s->scratch, columns, (const ts_cell *) c, width, (int) columns, (int) width);
  write_rows(&p->y, (const float *) s->scratch, columns, p->row, p->rows, p->g->columns, at, n);
}

/* c [n][width] = rows [row, row + n) of the matrix times (the expert's rows)^T, `part` of k at a time. */
static void multiply_matrix_rows(const piece *p, const space *s, int64_t row, int64_t n, int64_t part, int64_t width,
                                 ts_micro_ahead *ahead) {
  const grouped *g = p->g;
  const int64_t step = part < g->inner ? TS_MICRO_ROWS : ROWS;
  for (int64_t i = 0; i < n; i += step) {
    for (int64_t k = 0; k < g->inner; k += part) {
      ts_micro_product product =
          cells_of_rows(g, &p->w, row + i, ts_min(step, n - i), 0, k, ts_min(part, g->inner - k), s->a);
      product.n = (int) width;
      product.add = k > 0;
      run_product(product, s->b + cells_of(k, g->pairs) * width, width, s->c + i * width, width, ahead, g->pairs);
    }
  }
}

/* Matrices [out][in]: (columns of the result)^T = rows of the matrix times (the expert's rows)^T.  What has to be
 * brought into place for very few rows is so by a few rows and columns, which stay in the first-level cache. */
static void multiply_few_turned(const piece *p, const space *s) {
  const grouped *g = p->g;
  int64_t width = up_to(p->rows, TS_MICRO_COLUMNS);
  const int64_t part = lies_in_cells(g, &p->w) || p->rows > FEWEST ? g->inner : PART;
  pack_across(s->b, &p->x, p->row, p->rows, width, g->pairs, s->scratch);
  for (int64_t at = p->at; at < p->at + p->n; at += ROWS) {
    int64_t n = ts_min(ROWS, p->at + p->n - at);
    const bool last = at + n == p->at + p->n && p->next != NULL;
    const piece *of = last ? p->next : p;
    int64_t then = last ? of->at : at + n;
    ts_micro_ahead ahead =
        lines_of(&p->w, of->expert * g->columns + then, ts_min(ROWS, of->at + of->n - then), 0, g->inner,
                 ts_micro_tiles(n, width, false) * ts_pieces(g->inner, part), cells_of(part, g->pairs));
    multiply_matrix_rows(p, s, p->expert * g->columns + at, n, part, width, &ahead);
    write_turned(p, s, s->c, width, at, n);
  }
}

/* May a strip be read where it lies? */
static bool lies_in_place(const piece *p) {
  return !p->g->pairs && p->w.data.dtype == TS_F32;
}

/* Lines of a matrix per expert, of `each` rows, that are wanted after those up to row `next` of this one: `step` rows
 * more, or the first ones of the next piece. */
static ts_micro_ahead next_lines(const piece *p, const matrix *of, int64_t each, int64_t next, int64_t step,
                                 int64_t tiles, int64_t cells) {
  if (next == each && p->next != NULL) {
    p = p->next;
    next = 0;
  }
  return lines_of(of, p->expert * each + next, ts_min(step, each - next), p->at, p->n, tiles, cells);
}

/* Matrices [in][out]: (columns of the result)^T = columns of the matrix times (the expert's rows)^T, by parts of k. */
static void multiply_few_across(const piece *p, const space *s) {
  const grouped *g = p->g;
  int64_t width = up_to(p->rows, TS_MICRO_COLUMNS);
  pack_across(s->b, &p->x, p->row, p->rows, width, false, s->scratch);
  for (int64_t k = 0, some; k < g->inner; k += some) {
    some = ts_min(STEP, g->inner - k);
    const ts_micro_product product = {.m = (int) p->n,
                                      .n = (int) width,
                                      .k = (int) some,
                                      .a = address_of(&p->w, (p->expert * g->inner + k) * p->w.width + p->at),
                                      .row = 1,
                                      .column = p->w.width,
                                      .add = k > 0};
    ts_micro_ahead ahead = next_lines(p, &p->w, g->inner, k + some, STEP, ts_micro_tiles(p->n, width, false), some);
    run_product(product, s->b + k * width, width, s->c, width, &ahead, false);
  }
  for (int64_t at = 0; at < p->n; at += ROWS) {
    write_turned(p, s, s->c + at * width, width, p->at + at, ts_min(ROWS, p->n - at));
  }
}

/* Matrices [in][out]: strips of them, whose tiles are brought into place one by one, or are as one where they lie. */
static void multiply_few(const piece *p, const space *s) {
  const grouped *g = p->g;
  const bool there = lies_in_place(p) && p->rows <= FEWEST && p->n % TILE == 0;
  const int64_t ldb = there ? p->w.width : TILE, width = there ? p->n : TILE, padded = up_to(p->rows, 2);
  const int64_t step = g->pairs ? 2 * STEP : STEP, ldc = up_to(p->n, TILE);
  for (int64_t k = 0, some; k < g->inner; k += some) {
    some = ts_min(step, g->inner - k);
    ts_micro_product product = cells_of_rows(g, &p->x, p->row, p->rows, padded, k, some, s->a);
    product.add = k > 0;
    product.n = (int) width;
    product.halves = true;
    int64_t tiles = ts_micro_tiles(product.m, width, true) * (ldc / width), row = p->expert * g->inner + k;
    ts_micro_ahead ahead = next_lines(p, &p->w, g->inner, k + some, step, tiles, product.k);
    for (int64_t j = 0; j < p->n; j += width) {
      const ts_cell *b = there ? address_of(&p->w, row * p->w.width + p->at) : s->b;
      if (!there) {
        pack_strip(s->b, &p->w, row, p->at + j, some, ts_min(TILE, p->n - j), g->pairs);
      }
      run_product(product, b, ldb, s->c + j, ldc, &ahead, g->pairs);
    }
  }
  write_rows(&p->y, s->c, ldc, p->row, p->rows, g->columns, p->at, p->n);
}

/* Piece `i` of the work: an expert and a strip.  Of few rows a strip is wider, and in the pieces that it reaches into
 * there is nothing to do. */
static void set_piece(piece *p, int64_t i, int64_t wide) {
  int64_t strips = ts_pieces(p->g->columns, STRIP);
  p->expert = i / strips;
  p->row = p->g->first[p->expert];
  p->rows = p->g->first[p->expert + 1] - p->row;
  p->at = i % strips * STRIP;
  p->n = p->at % wide == 0 ? ts_min(wide, p->g->columns - p->at) : 0;
}

/* How wide: so that there is work for all threads. */
static int64_t width_of_few(const ts_kernel_call *call, const grouped *g) {
  int64_t wide = WIDE;
  while (wide > STRIP && g->experts * ts_pieces(g->columns, wide) < 4 * (int64_t) call->threads) {
    wide /= 2;
  }
  return wide;
}

/* A piece of rows times matrices. */
static void set_product_piece(piece *p, int64_t i, int64_t wide) {
  set_piece(p, i, STRIP);
  if (p->rows <= FEW) {
    set_piece(p, i, p->g->turned || p->rows <= FEW / 2 ? wide : ts_min(wide, WIDE / 2));
  }
}

static void multiply_piece(const piece *p, const space *s) {
  bool across = lies_in_place(p) && p->rows > FEWEST && p->rows <= FEW / 2;
  (p->rows > FEW  ? multiply_many
   : p->g->turned ? multiply_few_turned
   : across       ? multiply_few_across
                  : multiply_few)(p, s);
}

/* What is done with pieces: piece `i` is found, then made. */
typedef struct work {
  void (*set)(piece *p, int64_t i, int64_t wide);
  void (*make)(const piece *p, const space *s);
  bool empty; /* of no rows, too */
} work;

/* The first piece behind piece i in which there is something to do, of few rows. */
static const piece *find_next_piece(const work *work, piece *next, int64_t i, int64_t pieces, int64_t wide) {
  do {
    if (++i == pieces) {
      return NULL;
    }
    work->set(next, i, wide);
  } while (next->n == 0 || next->rows == 0);
  return next->rows <= FEW ? next : NULL;
}

/* All pieces of a call; `like`: what they have in common.  A thread has neighbours, so that it can ask for what the
 * next one reads. */
static void do_pieces(const ts_kernel_call *call, const piece *like, const int64_t count[4], const work *work) {
  int64_t pieces = like->g->experts * ts_pieces(like->g->columns, STRIP), wide = width_of_few(call, like->g);
  int threads = ts_call_threads(call, pieces);
  ts_team team;
  ts_team_begin(&team, pieces, threads);
#pragma omp parallel num_threads(threads)
  {
    space s = space_of(call, count, omp_get_thread_num());
    piece p = *like, next = *like;
    for (int64_t i; (i = ts_team_next(&team, omp_get_thread_num())) >= 0;) {
      work->set(&p, i, wide);
      if (p.n > 0 && (p.rows > 0 || work->empty)) {
        p.next = p.rows == 0 ? NULL : find_next_piece(work, &next, i, pieces, wide);
        work->make(&p, &s);
      }
    }
  }
}

static void grouped_run(const ts_kernel_call *call) {
  grouped g = grouped_of(call->graph, call->node);
  g.first = call->in[2];
  int64_t count[4];
  count_space(count, &g);
  const piece like = {.g = &g,
                      .x = {ts_source_of(call, 0), g.inner},
                      .w = {ts_source_of(call, 1), g.turned ? g.inner : g.columns},
                      .y = ts_sink_of(call, 0)};
  static const work product = {set_product_piece, multiply_piece, false};
  do_pieces(call, &like, count, &product);
}
TS_CPU_KERNEL(grouped) = {.prepare = grouped_prepare, .run = grouped_run};

/* ---- gradients of the matrices ---- */

static grouped grouped_dw_of(const ts_graph *graph, const ts_node *node) {
  const ts_shape *dy = &graph->tensor[node->in[0]].shape, *x = &graph->tensor[node->in[1]].shape;
  return (grouped){.experts = graph->tensor[node->in[2]].shape.d[0] - 1,
                   .rows = dy->d[1],
                   .inner = DEPTH,
                   .columns = x->d[1],
                   .pairs = graph->tensor[node->in[0]].dtype == TS_BF16 && ts_micro_pairs()};
}

static void count_dw_space(int64_t count[4], const grouped *g) {
  int64_t k = cells_of(DEPTH, g->pairs);
  count[0] = k * ROWS;
  count[1] = ts_max(k * STRIP, cells_of(SHALLOW, g->pairs) * WIDE);
  count[2] = 0;
  count[3] = ts_max(ROWS * WIDE, g->rows * TILE);
}

static size_t grouped_dw_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  (void) prepared;
  grouped g = grouped_dw_of(graph, node);
  int64_t count[4];
  count_dw_space(count, &g);
  return (size_t) target->threads * bytes_of_space(count);
}

/* Columns [at, at + n) of an expert's dw: p->x is dy, p->w is x.  Of more than DEPTH rows n is a tile, and c has all
 * rows of dw. */
static void make_gradient(const piece *p, const space *s) {
  const grouped *g = p->g;
  const matrix dw = {{p->y.data, p->y.dtype}, g->columns};
  const int64_t last = p->row + p->rows, width = up_to(p->n, TILE);
  const bool deep = p->rows > DEPTH, direct = !deep && is_written_at_once(&p->y, p->n);
  const int64_t ldc = direct ? g->columns : width;
  for (int64_t row = p->row; row == p->row || row < last; row += DEPTH) {
    int64_t rows = ts_min(DEPTH, last - row), cells = cells_of(rows, g->pairs);
    bool writes = row + DEPTH >= last;
    pack_strip(s->b, &p->w, row, p->at, rows, p->n, g->pairs);
    for (int64_t f = 0, some; f < g->rows; f += some) {
      some = ts_min(ROWS, g->rows - f);
      ts_micro_ahead ahead = {0};
      if (writes && cells > 0) {
        ahead = next_lines(p, &dw, g->rows, f + some, ROWS, ts_micro_tiles(some, width, false), cells);
      }
      const int64_t first = p->expert * g->rows + f;
      float *c = deep ? s->c + f * ldc : s->c;
      pack_along(s->a, &p->x, row, f, rows, some, ROWS, g->pairs);
      ts_micro_product product = {
          .m = (int) some, .n = TILE, .k = (int) cells, .a = s->a, .row = 1, .column = ROWS, .add = row > p->row};
      for (int64_t j = 0; j < p->n; j += TILE) {
        float *to = direct ? place_result(&product, &p->y, first * g->columns + p->at + j) : c + j;
        run_product(product, s->b + j * cells, TILE, to, ldc, &ahead, g->pairs);
      }
      if (writes && !direct) {
        write_rows(&p->y, c, ldc, first, some, g->columns, p->at, p->n);
      }
    }
  }
}

static void set_gradient_piece(piece *p, int64_t i, int64_t wide) {
  set_piece(p, i, STRIP);
  if (p->rows <= SHALLOW) {
    set_piece(p, i, wide);
  }
}

static void sum_piece(const piece *p, const space *s) {
  piece tile = *p;
  if (p->rows <= DEPTH) {
    make_gradient(p, s);
    return;
  }
  for (; tile.at < p->at + p->n; tile.at += TILE) {
    tile.n = ts_min(TILE, p->at + p->n - tile.at);
    make_gradient(&tile, s);
  }
}

static void grouped_dw_run(const ts_kernel_call *call) {
  grouped g = grouped_dw_of(call->graph, call->node);
  g.first = call->in[2];
  int64_t count[4];
  count_dw_space(count, &g);
  const piece like = {
      .g = &g, .x = {ts_source_of(call, 0), g.rows}, .w = {ts_source_of(call, 1), g.columns}, .y = ts_sink_of(call, 0)};
  static const work gradient = {set_gradient_piece, sum_piece, true};
  do_pieces(call, &like, count, &gradient);
}
TS_CPU_KERNEL(grouped_dw) = {.prepare = grouped_dw_prepare, .run = grouped_dw_run};
