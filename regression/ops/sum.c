#include "regression/ops/ops.h"

#include "graph/op.h"

/* The last: more rows than the least that a block of a GPU sums, and not whole blocks of them. */
static void build_sum_rows(run_case *c, int variant, ts_dtype dtype) {
  ts_shape shape = variant < OPS_SHAPES ? ops_shape(variant) : TS_SHAPE(2, 40001, 8);
  ops_input(c, 0, dtype, shape, 1.0);
  c->attr.sum_rows.dtype = variant % 2 == 0 ? TS_F32 : dtype;
  ops_output(c, c->attr.sum_rows.dtype, TS_SHAPE(shape.d[2]));
}

static void sum_rows(run_case *c) {
  int64_t n = ops_columns(c, 0);
  memset(ops_out(c, 0), 0, (size_t) n * sizeof(double));
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    ops_out(c, 0)[i % n] += ops_in(c, 0)[i];
  }
}

enum { MANY = 5000 };

/* One element; ranges with gaps, of which one is longer than two blocks and one begins at an odd place; none; so many
 * that their sums are more than one block of threads adds on a device. */
static void build_sum_squares(run_case *c, int variant, ts_dtype dtype) {
  static ts_range one[] = {{0, 1, 0, 1, 0}};
  static ts_range several[] = {
      {0, 3, 0, 1, 0}, {64, 2 * TS_SQUARE_BLOCK + 77, 0, 1, 0}, {9001, TS_SQUARE_BLOCK, 0, 1, 0}};
  static ts_range many[MANY], empty[MANY];
  static const struct {
    ts_range *range;
    int n;
    int64_t count;
    bool each;
  } variants[] = {{one, 1, 1, 0},         {several, 3, 14000, 0},    {NULL, 0, 5, 0}, {many, MANY, 3 * MANY, 0},
                  {several, 3, 14000, 1}, {empty, MANY, 3 * MANY, 1}};
  for (int i = 0; i < MANY; ++i) {
    many[i] = (ts_range){3 * i, 1 + i % 3, 0, 1, 0};
    empty[i] = (ts_range){3 * i, i % 3, 0, 1, 0};
  }
  ops_input(c, 0, dtype, TS_SHAPE(variants[variant].count), 1.0);
  c->attr.segments.range = variants[variant].range;
  c->attr.segments.n = variants[variant].n;
  c->attr.segments.each = variants[variant].each;
  ops_output(c, c->attr.segments.each ? TS_F32 : TS_F64, TS_SHAPE(c->attr.segments.each ? variants[variant].n : 1));
}

static void sum_squares(run_case *c) {
  double sum = 0;
  ops_out(c, 0)[0] = 0;
  for (int r = 0; r < c->attr.segments.n; ++r) {
    const ts_range *range = &c->attr.segments.range[r];
    sum = c->attr.segments.each ? 0 : sum;
    for (int64_t i = range->offset; i < range->offset + range->count; ++i) {
      sum += ops_in(c, 0)[i] * ops_in(c, 0)[i];
    }
    ops_out(c, 0)[c->attr.segments.each ? r : 0] = sum;
  }
}

/* A column adds 64 rows in a chain, whose rounding errors, of random sign, grow to about sqrt (64) = 8.  Squares add in
 * fp64: 2^-24 * 1e-6 is 500 roundings of it. */
const op_row ops_sum[] = {
    {TS_OP_SUM_ROWS, OPS_SHAPES + 1, build_sum_rows, sum_rows, 8},
    {TS_OP_SUM_SQUARES, 6, build_sum_squares, sum_squares, 1e-6},
    {.reference = NULL},
};
