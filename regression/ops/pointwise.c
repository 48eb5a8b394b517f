#include "regression/ops/ops.h"

static void build_same(run_case *c, int variant, ts_dtype dtype, int n_in, int n_out) {
  for (int i = 0; i < n_in; ++i) {
    ops_input(c, i, dtype, ops_shape(variant), 2.0);
  }
  for (int i = 0; i < n_out; ++i) {
    ops_output(c, dtype, ops_shape(variant));
  }
}

static void build_2_1(run_case *c, int variant, ts_dtype dtype) {
  build_same(c, variant, dtype, 2, 1);
}

/* Sums of losses, in fp64, behind the usual shapes. */
static void build_numbers(run_case *c, int n_in) {
  for (int i = 0; i < n_in; ++i) {
    ops_input(c, i, TS_F64, TS_SHAPE(1), 1000.0);
  }
  ops_output(c, TS_F64, TS_SHAPE(1));
}

static void build_add(run_case *c, int variant, ts_dtype dtype) {
  if (variant == OPS_SHAPES) {
    build_numbers(c, 2);
  } else {
    build_2_1(c, variant, dtype);
  }
}

static void multiply(run_case *c) {
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    ops_out(c, 0)[i] = ops_in(c, 0)[i] * ops_in(c, 1)[i];
  }
}

static void add(run_case *c) {
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    ops_out(c, 0)[i] = ops_in(c, 0)[i] + ops_in(c, 1)[i];
  }
}

static void build_bias(run_case *c, int variant, ts_dtype dtype) {
  ts_shape shape = ops_shape(variant);
  build_same(c, variant, dtype, 1, 1);
  ops_input(c, 1, dtype, TS_SHAPE(shape.d[2]), 2.0);
}

static void bias(run_case *c) {
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    ops_out(c, 0)[i] = ops_in(c, 0)[i] + ops_in(c, 1)[i % ops_columns(c, 0)];
  }
}

static void copy(run_case *c) {
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    ops_out(c, 0)[i] = ops_in(c, 0)[i];
  }
}

/* Every shape without a softcap and with one that most elements come near to. */
static void build_scale(run_case *c, int variant, ts_dtype dtype) {
  if (variant == 2 * OPS_SHAPES) {
    build_numbers(c, 1);
    c->attr.scale.by = 0.3f;
    return;
  }
  build_same(c, variant / 2, dtype, 1, 1);
  c->attr.scale.by = variant % 2 == 0 ? 0.7f : 3.3f;
  c->attr.scale.softcap = variant % 2 == 0 ? 0.0f : 5.0f;
}

static void scale(run_case *c) {
  double by = c->attr.scale.by, softcap = c->attr.scale.softcap;
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    double y = by * ops_in(c, 0)[i];
    ops_out(c, 0)[i] = softcap > 0 ? softcap * tanh(y / softcap) : y;
  }
}

/* From dtype to each of the other two. */
static void build_cast(run_case *c, int variant, ts_dtype dtype) {
  static const ts_dtype others[][2] = {
      [TS_F32] = {TS_BF16, TS_F16}, [TS_BF16] = {TS_F32, TS_F16}, [TS_F16] = {TS_F32, TS_BF16}};
  ops_input(c, 0, dtype, ops_shape(variant / 2), 2.0);
  c->attr.cast.dtype = others[dtype][variant % 2];
  ops_output(c, c->attr.cast.dtype, ops_shape(variant / 2));
}

/* A sum at every shape, then the fp64 sums of losses. */
static void build_accumulate(run_case *c, int variant, ts_dtype dtype) {
  static const float betas[] = {1.0f, 0.0f, 0.5f};
  bool sums = variant >= OPS_SHAPES;
  ts_shape shape = sums ? TS_SHAPE(1) : ops_shape(variant);
  ops_input(c, 0, sums ? TS_F64 : dtype, shape, 1.0);
  ops_input(c, 1, sums ? TS_F64 : dtype, shape, 1.0);
  ops_input(c, 2, TS_F32, TS_SHAPE(1), 1.0);
  run_set(&c->in[2], 0, betas[variant % 3]);
  for (int64_t i = 0; i < ops_count(c, 0) && variant % 3 == 1; ++i) {
    run_set(&c->in[0], i, NAN); /* beta = 0 never reads it */
  }
  ops_output(c, sums ? TS_F64 : dtype, shape);
}

static void accumulate(run_case *c) {
  double beta = ops_in(c, 2)[0];
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    ops_out(c, 0)[i] = (beta == 0 ? 0 : beta * ops_in(c, 0)[i]) + ops_in(c, 1)[i];
  }
}

/* Every kind at every shape. */
enum { ACTIVATIONS = OPS_SHAPES * TS_N_ACTIVATIONS };

static void build_activation(run_case *c, int variant, ts_dtype dtype) {
  bool glu = c->op == TS_OP_GLU || c->op == TS_OP_GLU_DX, dx = c->op == TS_OP_ACTIVATION_DX || c->op == TS_OP_GLU_DX;
  build_same(c, variant / TS_N_ACTIVATIONS, dtype, 1 + glu + dx, glu && dx ? 2 : 1);
  c->attr.activation.kind = (ts_activation) (variant % TS_N_ACTIVATIONS);
}

/* The same of rows, of which some are there at run time, none, or all. */
enum { ROWED = 5 * TS_N_ACTIVATIONS };

static void build_rows_of(run_case *c, int variant, ts_dtype dtype) {
  static const int64_t rows[][3] = {{7, 5, 3}, {300, 64, 0}, {9, 8, 9}, {33, 130, 20}, {1, 1, 1}}; /* M, C, there */
  bool dx = c->op == TS_OP_GLU_DX || c->op == TS_OP_ACTIVATION_DX, glu = c->op == TS_OP_GLU || c->op == TS_OP_GLU_DX;
  if (variant < ACTIVATIONS) {
    build_activation(c, variant, dtype);
    return;
  }
  const int64_t *size = rows[(variant - ACTIVATIONS) / TS_N_ACTIVATIONS];
  for (int i = 0; i < 1 + glu + dx; ++i) {
    ops_input(c, i, dtype, TS_SHAPE(size[0], size[1]), 2.0);
  }
  for (int i = 0; i < 1 + (glu && dx); ++i) {
    ops_output(c, dtype, TS_SHAPE(size[0], size[1]));
  }
  c->in[c->n_in] = run_new(TS_I32, TS_SHAPE(3));
  run_set(&c->in[c->n_in], 1, floor((double) size[2] / 2));
  run_set(&c->in[c->n_in++], 2, (double) size[2]);
  c->attr.activation.kind = (ts_activation) (variant % TS_N_ACTIVATIONS);
}

static double gelu_tanh(double x, double *slope) {
  const double root = 0.79788456080286535588; /* sqrt (2 / pi) */
  double t = tanh(root * (x + 0.044715 * x * x * x));
  *slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
  return 0.5 * x * (1 + t);
}

static double gelu_erf(double x, double *slope) {
  double below = 0.5 * erfc(-x * 0.70710678118654752440);
  *slope = below + x * exp(-0.5 * x * x) * 0.39894228040143267794;
  return x * below;
}

static double silu(double x, double *slope) {
  double s = 1 / (1 + exp(-x));
  *slope = s + x * s * (1 - s);
  return x * s;
}

static double relu(double x, double *slope) {
  *slope = x > 0;
  return x > 0 ? x : 0;
}

/* act (x) and its slope. */
static double activate(const run_case *c, double x, double *slope) {
  static double (*const kinds[])(double, double *) = {[TS_ACTIVATION_GELU_TANH] = gelu_tanh,
                                                      [TS_ACTIVATION_GELU] = gelu_erf,
                                                      [TS_ACTIVATION_SILU] = silu,
                                                      [TS_ACTIVATION_RELU] = relu};
  return kinds[c->attr.activation.kind](x, slope);
}

static void activation(run_case *c) {
  double slope;
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    ops_out(c, 0)[i] = activate(c, ops_in(c, 0)[i], &slope);
  }
}

static void activation_dx(run_case *c) {
  double slope;
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    activate(c, ops_in(c, 1)[i], &slope);
    ops_out(c, 0)[i] = ops_in(c, 0)[i] * slope;
  }
}

static void glu(run_case *c) {
  double slope;
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    ops_out(c, 0)[i] = activate(c, ops_in(c, 0)[i], &slope) * ops_in(c, 1)[i];
  }
}

static void glu_dx(run_case *c) {
  double slope;
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    double value = activate(c, ops_in(c, 1)[i], &slope);
    ops_out(c, 0)[i] = ops_in(c, 0)[i] * ops_in(c, 2)[i] * slope;
    ops_out(c, 1)[i] = ops_in(c, 0)[i] * value;
  }
}

/* Rows of samples: {rows, columns, samples, length, first}: all; some that begin and end inside samples, of vectors and
 * not; inside one sample; none. */
static const int64_t row_variants[][5] = {
    {12, 17, 3, 4, 0}, {70, 24, 4, 30, 41}, {31, 1100, 3, 17, 9}, {5, 160, 2, 30, 33}, {0, 8, 2, 3, 6}};
enum { DROPOUT_ROWS = OPS_SHAPES + 1, DROPOUT_VARIANTS = DROPOUT_ROWS + sizeof row_variants / sizeof *row_variants };

/* Variants again, with other tokens of a sample. */
static const struct {
  int variant;
  ts_tokens tokens;
} token_variants[] = {{2, {.n = 2, .stretch = {{7, 20}, {100, 30}}}},
                      {OPS_SHAPES, {.n = 1, .stretch = {{5000000, 30}}}},
                      {DROPOUT_ROWS + 1, {.n = 2, .stretch = {{3, 10}, {61, 20}}}},
                      {DROPOUT_ROWS + 2, {.n = 2, .stretch = {{0, 1}, {16, 16}}}}};
enum { DROPOUT_TOKENS = sizeof token_variants / sizeof *token_variants };

/* Variants again, with other noise: of whole samples and of rows, of other tokens. */
static const struct {
  int variant;
  ts_noise kind;
} noise_variants[] = {{1, TS_NOISE_JITTER},
                      {OPS_SHAPES, TS_NOISE_GUMBEL},
                      {DROPOUT_ROWS + 1, TS_NOISE_UNIFORM},
                      {DROPOUT_ROWS + 2, TS_NOISE_JITTER},
                      {DROPOUT_VARIANTS + 2, TS_NOISE_GUMBEL},
                      {DROPOUT_VARIANTS, TS_NOISE_UNIFORM}};
enum { DROPOUT_NOISES = sizeof noise_variants / sizeof *noise_variants };

/* In the last variant before those of rows samples are whole vectors of either type. */
static void build_dropout(run_case *c, int variant, ts_dtype dtype) {
  static const float p[DROPOUT_ROWS] = {0.0f, 0.1f, 0.5f, 0.9f, 1.0f, 0.2f, 0.3f};
  if (variant >= DROPOUT_VARIANTS + DROPOUT_TOKENS) {
    c->attr.dropout.kind = noise_variants[variant - DROPOUT_VARIANTS - DROPOUT_TOKENS].kind;
    variant = noise_variants[variant - DROPOUT_VARIANTS - DROPOUT_TOKENS].variant;
  }
  if (variant >= DROPOUT_VARIANTS) {
    c->attr.dropout.tokens = token_variants[variant - DROPOUT_VARIANTS].tokens;
    variant = token_variants[variant - DROPOUT_VARIANTS].variant;
  }
  const int64_t *rows = variant < DROPOUT_ROWS ? NULL : row_variants[variant - DROPOUT_ROWS];
  ts_shape shape = rows != NULL            ? TS_SHAPE(rows[0], rows[1])
                   : variant == OPS_SHAPES ? TS_SHAPE(3, 30, 160)
                                           : ops_shape(variant);
  ops_input(c, 0, dtype, shape, 1.0);
  c->in[c->n_in++] = run_new(TS_I64, TS_SHAPE(1));
  c->in[c->n_in++] = run_new(TS_I64, TS_SHAPE(rows != NULL ? rows[2] : shape.d[0]));
  run_set(&c->in[1], 0, 77 + variant);
  for (int64_t b = 0; b < c->in[2].shape.d[0]; ++b) {
    run_set(&c->in[2], b, (double) (5000000000 + 3 * b));
  }
  c->attr.dropout.p = rows != NULL ? 0.4f : p[variant];
  c->attr.dropout.name = ts_hash_name("h.3.attn.dropout");
  c->attr.dropout.length = rows != NULL ? rows[3] : 0;
  c->attr.dropout.first = rows != NULL ? rows[4] : 0;
  ops_output(c, dtype, shape);
}

static double add_noise(const ts_attr *attr, double x, double u) {
  switch (attr->dropout.kind) {
    case TS_NOISE_JITTER: return x * (1 - attr->dropout.p + 2 * attr->dropout.p * u);
    case TS_NOISE_GUMBEL: return x - log(-log(u));
    default: return u;
  }
}

static void dropout(run_case *c) {
  int64_t length = c->attr.dropout.length > 0 ? c->attr.dropout.length : c->in[0].shape.d[1];
  int64_t columns = ops_columns(c, 0), first = c->attr.dropout.first;
  const int64_t *seed = c->in[1].data, *sample = c->in[2].data;
  double p = c->attr.dropout.p;
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    int64_t row = first + i / columns, token = ts_tokens_at(&c->attr.dropout.tokens, row % length);
    int64_t element = token * columns + i % columns;
    if (c->attr.dropout.kind != TS_NOISE_DROP) {
      uint32_t word = ops_word(*seed, c->attr.dropout.name, sample[row / length], element);
      ops_out(c, 0)[i] = add_noise(&c->attr, ops_in(c, 0)[i], ((word >> 9) + 0.5) * 0x1p-23);
      continue;
    }
    bool keep = ops_keep(*seed, c->attr.dropout.name, sample[row / length], element, p);
    ops_out(c, 0)[i] = keep ? ops_in(c, 0)[i] / (1 - p) : 0;
  }
}

/* A few roundings each.  GELU's argument is large, and with it its rounding, only where the sigmoid is already 0 or
 * 1. */
const op_row ops_pointwise[] = {
    {TS_OP_ADD, OPS_SHAPES + 1, build_add, add, 2},
    {TS_OP_MULTIPLY, OPS_SHAPES, build_2_1, multiply, 2},
    {TS_OP_BIAS, OPS_SHAPES, build_bias, bias, 2},
    {TS_OP_SCALE, 2 * OPS_SHAPES + 1, build_scale, scale, 4},
    {TS_OP_CAST, 2 * OPS_SHAPES, build_cast, copy, 0},
    {TS_OP_ACCUMULATE, OPS_SHAPES + 3, build_accumulate, accumulate, 2},
    {TS_OP_ACTIVATION, ACTIVATIONS + ROWED, build_rows_of, activation, 4},
    {TS_OP_ACTIVATION_DX, ACTIVATIONS + ROWED, build_rows_of, activation_dx, 6},
    {TS_OP_GLU, ACTIVATIONS + ROWED, build_rows_of, glu, 4},
    {TS_OP_GLU_DX, ACTIVATIONS + ROWED, build_rows_of, glu_dx, 6},
    {TS_OP_DROPOUT, DROPOUT_VARIANTS + DROPOUT_TOKENS + DROPOUT_NOISES, build_dropout, dropout, 4},
    {.reference = NULL},
};
