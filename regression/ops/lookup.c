#include "regression/ops/ops.h"

static ts_shape with_columns(ts_shape shape, int64_t columns) {
  shape.d[shape.n - 1] = columns;
  return shape;
}

static void build_split(run_case *c, int variant, ts_dtype dtype) {
  static int64_t size[] = {3, 1, 18};
  ops_input(c, 0, dtype, with_columns(ops_shape(variant), 22), 1.0);
  c->attr.split.size = size;
  for (int i = 0; i < 3; ++i) {
    ops_output(c, dtype, with_columns(ops_shape(variant), size[i]));
  }
}

static void split(run_case *c) {
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    int64_t column = 0;
    for (int i = 0; i < c->n_out; ++i) {
      int64_t n = c->out[i].shape.d[c->out[i].shape.n - 1];
      for (int64_t j = 0; j < n; ++j) {
        ops_out(c, i)[row * n + j] = ops_in(c, 0)[row * ops_columns(c, 0) + column++];
      }
    }
  }
}

/* Three pieces, and (the last variant) two fp64 vectors: the records of a step. */
static void build_concat(run_case *c, int variant, ts_dtype dtype) {
  if (variant == OPS_SHAPES) {
    ops_input(c, 0, TS_F64, TS_SHAPE(4), 1.0);
    ops_input(c, 1, TS_F64, TS_SHAPE(1), 1.0);
    ops_output(c, TS_F64, TS_SHAPE(5));
    return;
  }
  ops_input(c, 0, dtype, with_columns(ops_shape(variant), 5), 1.0);
  ops_input(c, 1, dtype, with_columns(ops_shape(variant), 1), 1.0);
  ops_input(c, 2, dtype, with_columns(ops_shape(variant), 64), 1.0);
  ops_output(c, dtype, with_columns(ops_shape(variant), 70));
}

static void concat(run_case *c) {
  int64_t whole = c->out[0].shape.d[c->out[0].shape.n - 1];
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    int64_t column = 0;
    for (int i = 0; i < c->n_in; ++i) {
      for (int64_t j = 0; j < ops_columns(c, i); ++j) {
        ops_out(c, 0)[row * whole + column++] = ops_in(c, i)[row * ops_columns(c, i) + j];
      }
    }
  }
}

/* Few rows, so that ids repeat, and rows that no id names. */
enum { VOCABULARY = 37 };

/* One token in \a often is the last row. */
static void ids(run_case *c, ts_shape shape, int64_t rows, uint32_t often) {
  run_tensor *id = &c->in[c->n_in++];
  *id = run_new(TS_I32, TS_SHAPE(shape.d[0], shape.d[1]));
  for (int64_t i = 0; i < run_count(id); ++i) {
    uint32_t word[4];
    ts_philox(11, 0, (uint64_t) i, word);
    run_set(id, i, (double) (word[0] % often == 0 ? rows - 1 : word[1] % (rows - 5)));
  }
}

static int64_t id_of(const run_case *c, int64_t i) {
  return ((const int32_t *) c->in[1].data)[i];
}

static void build_embedding(run_case *c, int variant, ts_dtype dtype) {
  ts_shape shape = ops_shape(variant);
  ops_input(c, 0, dtype, TS_SHAPE(VOCABULARY, shape.d[2]), 1.0);
  ids(c, shape, VOCABULARY, 3);
  ops_output(c, dtype, shape);
}

static void embedding(run_case *c) {
  int64_t columns = ops_columns(c, 0);
  for (int64_t i = 0; i < ops_count(c, 1); ++i) {
    memcpy(ops_out(c, 0) + i * columns, ops_in(c, 0) + id_of(c, i) * columns, (size_t) columns * sizeof(double));
  }
}

/* The last variant: ids of more than a byte, and tokens enough for a device to sort and add them in many blocks, where
 * one id has more than 500. */
static void build_embedding_dw(run_case *c, int variant, ts_dtype dtype) {
  bool is_long = variant == OPS_SHAPES;
  ts_shape shape = is_long ? TS_SHAPE(2, 8300, 12) : ops_shape(variant);
  int64_t rows = is_long ? 700 : VOCABULARY;
  ops_input(c, 0, dtype, shape, 1.0);
  ids(c, shape, rows, is_long ? 32 : 3);
  c->attr.embedding.rows = rows;
  c->attr.embedding.dtype = variant % 2 == 0 ? TS_F32 : dtype;
  ops_output(c, c->attr.embedding.dtype, TS_SHAPE(rows, shape.d[2]));
}

static void embedding_dw(run_case *c) {
  int64_t columns = ops_columns(c, 0);
  memset(ops_out(c, 0), 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    ops_out(c, 0)[id_of(c, i / columns) * columns + i % columns] += ops_in(c, 0)[i];
  }
}

static void build_pick(run_case *c, int variant, ts_dtype dtype) {
  ts_shape shape = ops_shape(variant);
  ops_input(c, 0, dtype, shape, 1.0);
  c->in[c->n_in++] = run_new(TS_I32, TS_SHAPE(shape.d[0]));
  for (int64_t b = 0; b < shape.d[0]; ++b) {
    run_set(&c->in[1], b, (double) (shape.d[1] - 1 - b % shape.d[1]));
  }
  ops_output(c, dtype, TS_SHAPE(shape.d[0], 1, shape.d[2]));
}

static void pick(run_case *c) {
  int64_t length = c->in[0].shape.d[1], columns = c->in[0].shape.d[2];
  for (int64_t b = 0; b < c->in[0].shape.d[0]; ++b) {
    for (int64_t j = 0; j < columns; ++j) {
      ops_out(c, 0)[b * columns + j] = ops_in(c, 0)[(b * length + id_of(c, b)) * columns + j];
    }
  }
}

/* What is only moved is exact.  A row of the embedding's gradient adds up to 16600 / 32 numbers one by one:
 * rounding errors of random sign grow to about sqrt (519) = 23. */
const op_row ops_lookup[] = {
    {TS_OP_SPLIT, OPS_SHAPES, build_split, split, 0},
    {TS_OP_CONCAT, OPS_SHAPES + 1, build_concat, concat, 0},
    {TS_OP_EMBEDDING, OPS_SHAPES, build_embedding, embedding, 0},
    {TS_OP_EMBEDDING_DW, OPS_SHAPES + 1, build_embedding_dw, embedding_dw, 23},
    {TS_OP_PICK, OPS_SHAPES, build_pick, pick, 0},
    {.reference = NULL},
};
