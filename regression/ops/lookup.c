#include "regression/ops/ops.h"

static ts_shape with_columns(ts_shape shape, int64_t columns) {
  shape.d[shape.n - 1] = columns;
  return shape;
}

/* The variants after the usual shapes: groups of parts of odd sizes, and of heads that are whole vectors on a GPU; and
 * one row, so long that several threads move it. */
enum { GROUPS = 5, PARTS = 3, LONG = OPS_SHAPES + 2 };
static int64_t part_size[][PARTS] = {{3, 1, 18}, {3, 1, 18}, {8, 16, 64}, {70001, 3, 80007}};

static int64_t groups_of(int variant) {
  return variant < OPS_SHAPES || variant == LONG ? 1 : GROUPS;
}

static int64_t *parts_of(int variant) {
  return part_size[variant < OPS_SHAPES ? 0 : variant - OPS_SHAPES + 1];
}

/* The usual shape of a variant with so many columns in each group. */
static ts_shape grouped(int variant, int64_t columns) {
  ts_shape usual = ops_shape(variant < OPS_SHAPES ? variant : 1);
  return with_columns(variant == LONG ? TS_SHAPE(1, 1) : usual, groups_of(variant) * columns);
}

static void build_split(run_case *c, int variant, ts_dtype dtype) {
  int64_t *size = parts_of(variant);
  ops_input(c, 0, dtype, grouped(variant, size[0] + size[1] + size[2]), 1.0);
  c->attr.split.groups = groups_of(variant);
  c->attr.split.size = size;
  for (int i = 0; i < PARTS; ++i) {
    ops_output(c, dtype, grouped(variant, size[i]));
  }
}

/* Element j of group g of part i of a row lies in the whole row behind the groups before and the parts before. */
static void split(run_case *c) {
  int64_t groups = c->attr.split.groups, sum = ops_columns(c, 0) / groups, before = 0;
  for (int i = 0; i < c->n_out; ++i) {
    int64_t size = c->attr.split.size[i];
    for (int64_t k = 0; k < run_count(&c->out[i]); ++k) {
      int64_t row = k / (groups * size), g = k / size % groups;
      ops_out(c, i)[k] = ops_in(c, 0)[(row * groups + g) * sum + before + k % size];
    }
    before += size;
  }
}

/* Three pieces, and (the last variant) two fp64 vectors: the records of a step. */
enum { CONCAT_VARIANTS = LONG + 2 };

static void build_concat(run_case *c, int variant, ts_dtype dtype) {
  if (variant == CONCAT_VARIANTS - 1) {
    ops_input(c, 0, TS_F64, TS_SHAPE(4), 1.0);
    ops_input(c, 1, TS_F64, TS_SHAPE(1), 1.0);
    c->attr.concat.groups = 1;
    ops_output(c, TS_F64, TS_SHAPE(5));
    return;
  }
  int64_t *size = parts_of(variant);
  for (int i = 0; i < PARTS; ++i) {
    ops_input(c, i, dtype, grouped(variant, size[i]), 1.0);
  }
  c->attr.concat.groups = groups_of(variant);
  ops_output(c, dtype, grouped(variant, size[0] + size[1] + size[2]));
}

static void concat(run_case *c) {
  int64_t groups = c->attr.concat.groups, before = 0;
  int64_t sum = c->out[0].shape.d[c->out[0].shape.n - 1] / groups;
  for (int i = 0; i < c->n_in; ++i) {
    int64_t size = ops_columns(c, i) / groups;
    for (int64_t k = 0; k < ops_count(c, i); ++k) {
      int64_t row = k / (groups * size), g = k / size % groups;
      ops_out(c, 0)[(row * groups + g) * sum + before + k % size] = ops_in(c, i)[k];
    }
    before += size;
  }
}

/* All; some in an order of their own, of odd sizes and of whole vectors; along each dimension; an empty interval, and
 * none at all. */
static const struct taken {
  ts_shape whole;
  int dim, n;
  ts_interval interval[3];
} take_variants[] = {
    {{3, {3, 5, 7}}, 1, 1, {{0, 5}}},
    {{3, {3, 50, 7}}, 1, 3, {{40, 9}, {0, 1}, {7, 20}}},
    {{3, {2, 3, 96}}, 2, 2, {{64, 16}, {0, 32}}},
    {{3, {2, 3, 97}}, 2, 3, {{80, 17}, {1, 1}, {3, 2}}},
    {{2, {700, 24}}, 0, 2, {{300, 400}, {0, 11}}},
    {{1, {1900}}, 0, 2, {{1000, 900}, {1, 501}}},
    {{4, {2, 3, 4, 5}}, 2, 1, {{2, 1}}},
    {{2, {6, 4}}, 0, 2, {{2, 0}, {5, 1}}},
    {{2, {6, 4}}, 1, 0, {{0, 0}}},
};
enum { TAKES = sizeof take_variants / sizeof *take_variants, TAKE_TYPES = 2 };

/* One side and the other.  Labels and samples are taken, too. */
static ts_shape take_shape(const struct taken *v) {
  ts_shape some = v->whole;
  some.d[v->dim] = 0;
  for (int i = 0; i < v->n; ++i) {
    some.d[v->dim] += v->interval[i].length;
  }
  return some;
}

static void build_take(run_case *c, int variant, ts_dtype dtype) {
  const struct taken *v = &take_variants[variant % TAKES];
  bool back = c->op == TS_OP_PLACE;
  ts_dtype type = variant < TAKES ? dtype : dtype == TS_F32 ? TS_I32 : TS_I64;
  ops_input(c, 0, type, back ? take_shape(v) : v->whole, 100.0);
  c->attr.take.dim = v->dim;
  c->attr.take.extent = v->whole.d[v->dim];
  c->attr.take.n = v->n;
  c->attr.take.interval = v->interval;
  ops_output(c, type, back ? v->whole : take_shape(v));
}

/* Element `index` of what is taken, in the whole. */
static int64_t taken_from(const run_case *c, int64_t index) {
  const ts_interval *interval = c->attr.take.interval;
  for (; index >= interval->length; ++interval) {
    index -= interval->length;
  }
  return interval->begin + index;
}

/* Both directions: element i of `some` is one of `whole`. */
static void take_elements(run_case *c, const run_tensor *some, bool back) {
  int64_t inner = 1, taken = some->shape.d[c->attr.take.dim];
  for (int i = c->attr.take.dim + 1; i < some->shape.n; ++i) {
    inner *= some->shape.d[i];
  }
  for (int64_t i = 0; i < run_count(some); ++i) {
    int64_t outer = i / inner / taken, index = taken_from(c, i / inner % taken);
    int64_t at = (outer * c->attr.take.extent + index) * inner + i % inner;
    run_set(&c->out[0], back ? at : i, run_get(&c->in[0], back ? i : at));
  }
}

static void take(run_case *c) {
  take_elements(c, &c->out[0], false);
}

static void place(run_case *c) {
  memset(c->out[0].data, 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  take_elements(c, &c->in[0], true);
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

/* The row of a share of a table that token i names, -1: none of it. */
static int64_t row_of(const run_case *c, int64_t i, int64_t rows) {
  int64_t row = id_of(c, i) - c->attr.embedding.first;
  return row >= 0 && row < rows ? row : -1;
}

/* Rows [first, first + rows) of a table, for the variants behind the others: its begin, its middle, its end, where
 * some id occurs often, and one that nothing names. */
static const int64_t table_shares[][2] = {{0, 9}, {9, 11}, {20, VOCABULARY - 20}, {VOCABULARY, 3}};
enum { TABLE_SHARES = sizeof table_shares / sizeof *table_shares, TABLES = OPS_SHAPES + TABLE_SHARES };

static void build_embedding(run_case *c, int variant, ts_dtype dtype) {
  const int64_t *share = variant < OPS_SHAPES ? NULL : table_shares[variant - OPS_SHAPES];
  ts_shape shape = ops_shape(share != NULL ? 2 : variant);
  ops_input(c, 0, dtype, TS_SHAPE(share != NULL ? share[1] : VOCABULARY, shape.d[2]), 1.0);
  ids(c, shape, VOCABULARY, 3);
  c->attr.embedding.first = share != NULL ? share[0] : 0;
  ops_output(c, dtype, shape);
}

static void embedding(run_case *c) {
  int64_t columns = ops_columns(c, 0);
  for (int64_t i = 0; i < run_count(&c->out[0]); ++i) {
    int64_t row = row_of(c, i / columns, ops_rows(c, 0));
    ops_out(c, 0)[i] = row >= 0 ? ops_in(c, 0)[row * columns + i % columns] : 0;
  }
}

/* The last variants: ids of more than a byte, and tokens enough for a device to sort and add them in many blocks, where
 * one id has more than 500; all rows, and the first and the last of a table. */
enum { LONG_TABLE = TABLES, LONG_ROWS = 700, LONG_BEGIN = 300 };

static void build_embedding_dw(run_case *c, int variant, ts_dtype dtype) {
  bool is_long = variant >= LONG_TABLE, is_share = variant >= OPS_SHAPES && !is_long;
  ts_shape shape = is_long ? TS_SHAPE(2, 8300, 12) : ops_shape(is_share ? 2 : variant);
  int64_t rows = is_long ? LONG_ROWS : VOCABULARY;
  ops_input(c, 0, dtype, shape, 1.0);
  ids(c, shape, rows, is_long ? 32 : 3);
  if (is_share) {
    c->attr.embedding.first = table_shares[variant - OPS_SHAPES][0];
    rows = table_shares[variant - OPS_SHAPES][1];
  } else if (variant > LONG_TABLE) {
    c->attr.embedding.first = variant == LONG_TABLE + 1 ? 0 : LONG_BEGIN;
    rows = variant == LONG_TABLE + 1 ? LONG_BEGIN : LONG_ROWS - LONG_BEGIN;
  }
  c->attr.embedding.rows = rows;
  c->attr.embedding.dtype = variant % 2 == 0 ? TS_F32 : dtype;
  ops_output(c, c->attr.embedding.dtype, TS_SHAPE(rows, shape.d[2]));
}

static void embedding_dw(run_case *c) {
  int64_t columns = ops_columns(c, 0);
  memset(ops_out(c, 0), 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    int64_t row = row_of(c, i / columns, c->attr.embedding.rows);
    if (row >= 0) {
      ops_out(c, 0)[row * columns + i % columns] += ops_in(c, 0)[i];
    }
  }
}

/* The usual shapes, and one of whole vectors, each with a token of every sample and with masks, one of which has none;
 * then some tokens of longer samples. */
static const ts_tokens pick_tokens[] = {{0}, {1, {{20, 67}}}, {2, {{5, 30}, {90, 37}}}};
enum { PICK_SHAPES = OPS_SHAPES + 1, PICK_LONG = 2 * PICK_SHAPES, PICKS = PICK_LONG + 4 };

static ts_shape pick_shape(int variant) {
  int shape = variant >= PICK_LONG ? 3 : variant / 2;
  return shape < OPS_SHAPES ? ops_shape(shape) : TS_SHAPE(5, 40, 96);
}

static void input_picks(run_case *c, int variant) {
  ts_shape shape = pick_shape(variant);
  const ts_tokens *tokens = &pick_tokens[variant < PICK_LONG ? 0 : 1 + (variant - PICK_LONG) / 2];
  int64_t length = tokens->n == 0 ? shape.d[1] : 130;
  bool mask = variant % 2 != 0;
  run_tensor *which = &c->in[c->n_in++];
  *which = run_new(TS_I32, mask ? TS_SHAPE(shape.d[0], length) : TS_SHAPE(shape.d[0]));
  for (int64_t i = 0; i < run_count(which); ++i) {
    int64_t token = length > 0 ? i % length : 0;
    bool some = i / (length > 0 ? length : 1) != 1 && token * 7 % 10 < 6;
    run_set(which, i, mask ? (double) (some * (1 + token % 2)) : (double) (length - 1 - (41 * i) % (length + 1)));
  }
  c->attr.pick.tokens = *tokens;
  c->attr.pick.rows = shape.d[1];
}

static void build_pick(run_case *c, int variant, ts_dtype dtype) {
  ts_shape shape = pick_shape(variant);
  ops_input(c, 0, dtype, shape, 1.0);
  input_picks(c, variant);
  ops_output(c, dtype, TS_SHAPE(shape.d[0], 1, shape.d[2]));
}

static void build_pick_dx(run_case *c, int variant, ts_dtype dtype) {
  ts_shape shape = pick_shape(variant);
  ops_input(c, 0, dtype, TS_SHAPE(shape.d[0], 1, shape.d[2]), 1.0);
  input_picks(c, variant);
  ops_output(c, dtype, shape);
}

/* What row `row` of sample b, of those that x has, is of the result. */
static double weight_of(const run_case *c, int64_t b, int64_t row) {
  int64_t token = ts_tokens_at(&c->attr.pick.tokens, row), length = c->in[1].shape.d[1], count = 0;
  if (c->in[1].shape.n == 1) {
    return id_of(c, b) == token;
  }
  for (int64_t t = 0; t < length; ++t) {
    count += id_of(c, b * length + t) != 0;
  }
  return id_of(c, b * length + token) != 0 ? 1 / (double) count : 0;
}

static void pick(run_case *c) {
  int64_t rows = c->in[0].shape.d[1], columns = ops_columns(c, 0);
  memset(ops_out(c, 0), 0, (size_t) run_count(&c->out[0]) * sizeof(double));
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    int64_t row = i / columns;
    ops_out(c, 0)[row / rows * columns + i % columns] += weight_of(c, row / rows, row % rows) * ops_in(c, 0)[i];
  }
}

static void pick_dx(run_case *c) {
  int64_t rows = c->out[0].shape.d[1], columns = ops_columns(c, 0);
  for (int64_t i = 0; i < run_count(&c->out[0]); ++i) {
    int64_t row = i / columns;
    double dy = ops_in(c, 0)[row / rows * columns + i % columns];
    ops_out(c, 0)[i] = weight_of(c, row / rows, row % rows) * dy;
  }
}

/* What is only moved is exact; a mean adds 80 rows in a chain.  A row of the embedding's gradient adds up to
 * 16600 / 32 numbers one by one: rounding errors of random sign grow to about sqrt (519) = 23. */
const op_row ops_lookup[] = {
    {TS_OP_SPLIT, LONG + 1, build_split, split, 0},
    {TS_OP_CONCAT, CONCAT_VARIANTS, build_concat, concat, 0},
    {TS_OP_TAKE, TAKE_TYPES *TAKES, build_take, take, 0},
    {TS_OP_PLACE, TAKES, build_take, place, 0},
    {TS_OP_EMBEDDING, TABLES, build_embedding, embedding, 0},
    {TS_OP_EMBEDDING_DW, LONG_TABLE + 3, build_embedding_dw, embedding_dw, 23},
    {TS_OP_PICK, PICKS, build_pick, pick, 4},
    {TS_OP_PICK_DX, PICKS, build_pick_dx, pick_dx, 2},
    {.reference = NULL},
};
