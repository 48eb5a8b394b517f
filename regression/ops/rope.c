#include "regression/ops/ops.h"

/* {heads, head dimension, elements of it that turn, largest position, factor}.  The sixth fills a block's table of
 * angles on a GPU: several rows of the longest head.  Then heads of which a part turns: in whole vectors, of odd size,
 * in vectors of fp32 alone, beside a rest that is no whole vector, and all but a pair.  Behind the last: no tokens. */
static const struct {
  int64_t heads;
  int head_dim, rotated;
  int32_t span;
  double factor;
  bool inverse;
} variants[] = {{1, 2, 2, 1, 1, false},         {3, 6, 6, 5000, 1, true},       {5, 64, 64, 131072, 1, false},
                {9, 128, 128, 131072, 1, true}, {2, 10, 10, 1 << 23, 1, false}, {1, 256, 256, 131072, 1.25, true},
                {3, 64, 16, 131072, 1, false},  {5, 7, 4, 5000, 1.125, true},   {7, 20, 8, 5000, 0.75, false},
                {7, 18, 16, 5000, 1, false},    {2, 256, 254, 131072, 1, true}};
enum { N_VARIANTS = sizeof variants / sizeof *variants, MOST_PAIRS = 128 };

/* Frequencies of a kind that no formula of the program has. */
static const double *frequencies(int variant) {
  static double of[N_VARIANTS][MOST_PAIRS];
  for (int i = 0; i < variants[variant].rotated / 2; ++i) {
    of[variant][i] = pow(500000, -2.0 * i / variants[variant].rotated) * (i % 3 == 1 ? 0.125 : 1);
  }
  return of[variant];
}

static void build_rope(run_case *c, int variant, ts_dtype dtype) {
  int64_t batch = 2, length = variant < N_VARIANTS ? 1 + 7 * variant : 0;
  variant %= N_VARIANTS;
  int head = variants[variant].head_dim;
  ts_shape shape = TS_SHAPE(batch, length, variants[variant].heads * head);
  ops_input(c, 0, dtype, shape, 1.0);
  c->in[c->n_in++] = run_new(TS_I32, TS_SHAPE(batch, length));
  for (int64_t i = 0; i < batch * length; ++i) {
    run_set(&c->in[1], i, (double) (variants[variant].span / (1 + i)));
  }
  c->attr.rope.head_dim = head;
  c->attr.rope.rotated = variants[variant].rotated;
  c->attr.rope.inverse = variants[variant].inverse;
  c->attr.rope.frequency = frequencies(variant);
  c->attr.rope.factor = variants[variant].factor;
  ops_output(c, dtype, shape);
}

static void rope(run_case *c) {
  int head = c->attr.rope.head_dim, half = c->attr.rope.rotated / 2;
  double factor = c->attr.rope.factor;
  for (int64_t i = 0; i < ops_count(c, 0); i += head) {
    int32_t position = ((const int32_t *) c->in[1].data)[i / ops_columns(c, 0)];
    const double *x = ops_in(c, 0) + i;
    double *y = ops_out(c, 0) + i;
    memcpy(y, x, (size_t) head * sizeof *y);
    for (int j = 0; j < half; ++j) {
      double angle = position * c->attr.rope.frequency[j] * (c->attr.rope.inverse ? -1 : 1);
      y[j] = factor * (x[j] * cos(angle) - x[half + j] * sin(angle));
      y[half + j] = factor * (x[half + j] * cos(angle) + x[j] * sin(angle));
    }
  }
}

/* Sine and cosine are exact to 2^-25, the sum rounds twice more. */
const op_row ops_rope[] = {
    {TS_OP_ROPE, N_VARIANTS + 1, build_rope, rope, 4},
    {.reference = NULL},
};
