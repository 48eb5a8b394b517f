/* Products of each expert's rows with its matrix, on tiles of TILE columns (micro.h), each by one thread.  A row's sum
 * goes over all of k in order, whatever other rows there are. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/micro.h"
#include "backend/cpu/tile.h"

#include "base/memory.h"

#include <omp.h>

/* Columns of a tile, rows at a time, and how much of k is brought into place at a time. */
enum { TILE = 64, ROWS = 48, PART = 256, DEPTH = 512 };

/* Cells of k numbers. */
static int64_t cells_of(int64_t k, bool pairs) {
  return pairs ? (k + 1) / 2 : k;
}

typedef struct grouped {
  const int32_t *first; /* [experts + 1] */
  int64_t experts, rows;
  int64_t inner, columns; /* of the sum; of the result */
  bool pairs;
} grouped;

/* A matrix, its elements in rows of `width`. */
typedef struct matrix {
  ts_source data;
  int64_t width;
} matrix;

/* n numbers of a row as fp32 or as bf16, zeros behind them up to `padded`. */
static void read_padded(void *to, const matrix *x, int64_t at, int64_t n, int64_t padded, bool pairs) {
  size_t size = pairs ? sizeof(uint16_t) : sizeof(float);
  if (pairs) {
    memcpy(to, (const uint16_t *) x->data.data + at, (size_t) n * size);
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

/* b [k][TILE] of a matrix whose rows go along the result's columns: some k numbers from row `row`, column `at` on. */
static void pack_along(ts_cell *b, const matrix *w, int64_t row, int64_t at, int64_t k, int64_t n, bool pairs) {
  for (int64_t i = 0; i < k; i += pairs ? 2 : 1) {
    if (!pairs) {
      read_padded(b + i * TILE, w, (row + i) * w->width + at, n, TILE, false);
      continue;
    }
    uint16_t low[TILE], high[TILE] = {0};
    read_padded(low, w, (row + i) * w->width + at, n, TILE, true);
    if (i + 1 < k) {
      read_padded(high, w, (row + i + 1) * w->width + at, n, TILE, true);
    }
    ts_micro_pair(b + i / 2 * TILE, low, high, TILE);
  }
}

/* The same of a matrix whose rows go along k: n of them from row `row` on, whole; `scratch` [TILE][PART cells]. */
static void pack_across(ts_cell *b, const matrix *w, int64_t row, int64_t n, bool pairs, ts_cell *scratch) {
  int64_t part = pairs ? 2 * PART : PART;
  for (int64_t at = 0; at < w->width; at += part) {
    int64_t k = ts_min(part, w->width - at), cells = (cells_of(k, pairs) + 7) / 8 * 8;
    for (int64_t i = 0; i < TILE; ++i) {
      int64_t some = i < n ? k : 0;
      read_padded(scratch + i * PART, w, i < n ? (row + i) * w->width + at : 0, some, pairs ? 2 * cells : cells, pairs);
    }
    ts_micro_transpose(b + cells_of(at, pairs) * TILE, scratch, PART, TILE, (int) cells);
  }
}

/* Memory of a thread. */
typedef struct space {
  ts_cell *a, *b, *scratch;
  float *c;
} space;

/* Cells of each part: a, b (whole squares of 8 of a transpose), scratch, c. */
static void count_space(int64_t count[4], const grouped *g) {
  int64_t k = (cells_of(g->inner, g->pairs) + 7) / 8 * 8;
  count[0] = ROWS * k;
  count[1] = k * TILE;
  count[2] = TILE * PART;
  count[3] = ROWS * TILE;
}

static size_t bytes_of_space(const int64_t count[4]) {
  size_t cells = 0;
  for (int i = 0; i < 4; ++i) {
    cells += (size_t) (count[i] + 15) / 16 * 16; /* lines */
  }
  return cells * sizeof(ts_cell);
}

static space space_of(const ts_kernel_call *call, const int64_t count[4], int thread) {
  ts_cell *part[4], *at = (ts_cell *) ((char *) call->workspace + (size_t) thread * bytes_of_space(count));
  for (int i = 0; i < 4; ++i) {
    part[i] = at;
    at += (count[i] + 15) / 16 * 16;
  }
  return (space){part[0], part[1], part[2], (float *) part[3]};
}

/* Cells of some rows of x along k: where they are, if that will do. */
static ts_micro_product cells_of_rows(const grouped *g, const matrix *x, int64_t row, int64_t rows, ts_cell *a) {
  bool direct = x->data.dtype == TS_F32 || (g->pairs && x->width % 2 == 0 && (uintptr_t) x->data.data % 4 == 0);
  int64_t k = cells_of(x->width, g->pairs);
  for (int64_t i = 0; i < rows && !direct; ++i) {
    read_padded(a + i * k, x, (row + i) * x->width, x->width, g->pairs ? 2 * k : k, g->pairs);
  }
  return (ts_micro_product){.m = (int) rows,
                            .n = TILE,
                            .k = (int) k,
                            .a = direct ? (const ts_cell *) x->data.data + row * k : a,
                            .row = k,
                            .column = 1};
}

static void write_tile(const ts_sink *y, const float *c, int64_t row, int64_t rows, int64_t width, int64_t at,
                       int64_t n) {
  for (int64_t i = 0; i < rows; ++i) {
    ts_sink_write(y, (row + i) * width + at, n, c + i * TILE);
  }
}

/* ---- rows times matrices ---- */

static grouped grouped_of(const ts_graph *graph, const ts_node *node) {
  const ts_shape *x = &graph->tensor[node->in[0]].shape, *w = &graph->tensor[node->in[1]].shape;
  return (grouped){.experts = w->d[0],
                   .rows = x->d[0],
                   .inner = x->d[1],
                   .columns = w->d[node->attr.matmul.transpose_b ? 1 : 2],
                   .pairs = graph->tensor[node->in[0]].dtype == TS_BF16 && ts_micro_pairs()};
}

static size_t grouped_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  (void) prepared;
  grouped g = grouped_of(graph, node);
  int64_t count[4];
  count_space(count, &g);
  return (size_t) target->threads * bytes_of_space(count);
}

static void multiply_grouped(const ts_kernel_call *call, const grouped *g, int64_t expert, int64_t at, const space *s) {
  int64_t n = ts_min(TILE, g->columns - at), last = g->first[expert + 1];
  bool turned = call->node->attr.matmul.transpose_b;
  matrix x = {ts_source_of(call, 0), g->inner}, w = {ts_source_of(call, 1), turned ? g->inner : g->columns};
  ts_sink y = ts_sink_of(call, 0);
  if (turned) {
    pack_across(s->b, &w, expert * g->columns + at, n, g->pairs, s->scratch);
  } else {
    pack_along(s->b, &w, expert * g->inner, at, g->inner, n, g->pairs);
  }
  for (int64_t row = g->first[expert]; row < last; row += ROWS) {
    ts_micro_product p = cells_of_rows(g, &x, row, ts_min(ROWS, last - row), s->a);
    p.b = s->b;
    p.ldb = TILE;
    p.c = s->c;
    p.ldc = TILE;
    ts_micro_run(&p, g->pairs);
    write_tile(&y, s->c, row, p.m, g->columns, at, n);
  }
}

static void grouped_run(const ts_kernel_call *call) {
  grouped g = grouped_of(call->graph, call->node);
  g.first = call->in[2];
  int64_t count[4], tiles = ts_pieces(g.columns, TILE);
  count_space(count, &g);
#pragma omp parallel num_threads(ts_call_threads(call, g.experts *tiles))
  {
    space s = space_of(call, count, omp_get_thread_num());
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < g.experts * tiles; ++i) {
      if (g.first[i / tiles] < g.first[i / tiles + 1]) {
        multiply_grouped(call, &g, i / tiles, i % tiles * TILE, &s);
      }
    }
  }
}
TS_CPU_KERNEL(grouped) = {.prepare = grouped_prepare, .run = grouped_run};

/* ---- gradients of the matrices ---- */

/* Of c [columns of dy][TILE], and DEPTH rows of both at a time; here `rows` are dy's columns. */
static grouped grouped_dw_of(const ts_graph *graph, const ts_node *node) {
  const ts_shape *dy = &graph->tensor[node->in[0]].shape, *x = &graph->tensor[node->in[1]].shape;
  return (grouped){.experts = graph->tensor[node->in[2]].shape.d[0] - 1,
                   .rows = dy->d[1],
                   .inner = DEPTH,
                   .columns = x->d[1],
                   .pairs = graph->tensor[node->in[0]].dtype == TS_BF16 && ts_micro_pairs()};
}

static void count_dw_space(int64_t count[4], const grouped *g) {
  count[0] = cells_of(DEPTH, g->pairs) * g->rows;
  count[1] = cells_of(DEPTH, g->pairs) * TILE;
  count[2] = g->rows; /* two rows of bf16, or none */
  count[3] = g->rows * TILE;
}

static size_t grouped_dw_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  (void) prepared;
  grouped g = grouped_dw_of(graph, node);
  int64_t count[4];
  count_dw_space(count, &g);
  return (size_t) target->threads * bytes_of_space(count);
}

/* Cells (column of dy, row) of some rows of dy. */
static ts_micro_product columns_of(const grouped *g, const matrix *dy, int64_t row, int64_t rows, const space *s) {
  bool direct = dy->data.dtype == TS_F32;
  uint16_t *low = (uint16_t *) s->scratch, *high = low + dy->width;
  for (int64_t i = 0; i < rows && !direct; i += g->pairs ? 2 : 1) {
    if (!g->pairs) {
      read_padded(s->a + i * dy->width, dy, (row + i) * dy->width, dy->width, dy->width, false);
      continue;
    }
    read_padded(low, dy, (row + i) * dy->width, dy->width, dy->width, true);
    read_padded(high, dy, i + 1 < rows ? (row + i + 1) * dy->width : 0, i + 1 < rows ? dy->width : 0, dy->width, true);
    ts_micro_pair(s->a + i / 2 * dy->width, low, high, (int) dy->width);
  }
  return (ts_micro_product){.m = (int) dy->width,
                            .n = TILE,
                            .k = (int) cells_of(rows, g->pairs),
                            .a = direct ? (const ts_cell *) dy->data.data + row * dy->width : s->a,
                            .row = 1,
                            .column = dy->width};
}

static void differentiate_tile(const ts_kernel_call *call, const grouped *g, int64_t expert, int64_t at,
                               const space *s) {
  int64_t n = ts_min(TILE, g->columns - at), first = g->first[expert], last = g->first[expert + 1];
  matrix dy = {ts_source_of(call, 0), g->rows}, x = {ts_source_of(call, 1), g->columns};
  ts_sink dw = ts_sink_of(call, 0);
  if (first == last) {
    memset(s->c, 0, (size_t) (g->rows * TILE) * sizeof *s->c);
  }
  for (int64_t row = first; row < last; row += DEPTH) {
    int64_t rows = ts_min(DEPTH, last - row);
    pack_along(s->b, &x, row, at, rows, n, g->pairs);
    ts_micro_product p = columns_of(g, &dy, row, rows, s);
    p.b = s->b;
    p.ldb = TILE;
    p.c = s->c;
    p.ldc = TILE;
    p.add = row > first;
    ts_micro_run(&p, g->pairs);
  }
  write_tile(&dw, s->c, expert * g->rows, g->rows, g->columns, at, n);
}

static void grouped_dw_run(const ts_kernel_call *call) {
  grouped g = grouped_dw_of(call->graph, call->node);
  g.first = call->in[2];
  int64_t count[4], tiles = ts_pieces(g.columns, TILE);
  count_dw_space(count, &g);
#pragma omp parallel num_threads(ts_call_threads(call, g.experts *tiles))
  {
    space s = space_of(call, count, omp_get_thread_num());
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < g.experts * tiles; ++i) {
      differentiate_tile(call, &g, i / tiles, i % tiles * TILE, &s);
    }
  }
}
TS_CPU_KERNEL(grouped_dw) = {.prepare = grouped_dw_prepare, .run = grouped_dw_run};
