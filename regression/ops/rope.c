#include "regression/ops/ops.h"

/* {heads, head dimension, largest position} and the scaling.  The last one fills a block's table of angles on a GPU:
 * several rows of the longest head. */
static const struct {
  int64_t heads;
  int head_dim;
  int32_t span;
  int scaling;
  bool inverse;
} variants[] = {{1, 2, 1, TS_ROPE_DEFAULT, false},       {3, 6, 5000, TS_ROPE_DEFAULT, true},
                {5, 64, 131072, TS_ROPE_LLAMA3, false},  {9, 128, 131072, TS_ROPE_LLAMA3, true},
                {2, 10, 1 << 23, TS_ROPE_LINEAR, false}, {1, 256, 131072, TS_ROPE_LLAMA3, true}};

static void build_rope(run_case *c, int variant, ts_dtype dtype) {
  int64_t batch = 2, length = 1 + 7 * variant;
  int head = variants[variant].head_dim;
  ts_shape shape = TS_SHAPE(batch, length, variants[variant].heads * head);
  ops_input(c, 0, dtype, shape, 1.0);
  c->in[c->n_in++] = run_new(TS_I32, TS_SHAPE(batch, length));
  for (int64_t i = 0; i < batch * length; ++i) {
    run_set(&c->in[1], i, (double) (variants[variant].span / (1 + i)));
  }
  c->attr.rope.head_dim = head;
  c->attr.rope.inverse = variants[variant].inverse;
  c->attr.rope.scaling = variants[variant].scaling;
  c->attr.rope.theta = 500000;
  c->attr.rope.factor = 8;
  c->attr.rope.low_freq_factor = 1;
  c->attr.rope.high_freq_factor = 4;
  c->attr.rope.original_max_position = 8192;
  ops_output(c, dtype, shape);
}

/* Hugging Face's modeling_rope_utils, in terms of wavelengths. */
static double frequency(const ts_attr *attr, int i) {
  double f = 1 / pow(attr->rope.theta, 2.0 * i / attr->rope.head_dim), wavelength = 2 * M_PI / f;
  double original = attr->rope.original_max_position, low = attr->rope.low_freq_factor;
  double high = attr->rope.high_freq_factor, smooth = (original / wavelength - low) / (high - low);
  if (attr->rope.scaling == TS_ROPE_LINEAR) {
    return f / attr->rope.factor;
  }
  if (attr->rope.scaling == TS_ROPE_DEFAULT || wavelength < original / high) {
    return f;
  }
  return wavelength > original / low ? f / attr->rope.factor : (1 - smooth) * f / attr->rope.factor + smooth * f;
}

static void rope(run_case *c) {
  int head = c->attr.rope.head_dim, half = head / 2;
  for (int64_t i = 0; i < ops_count(c, 0); i += head) {
    int32_t position = ((const int32_t *) c->in[1].data)[i / ops_columns(c, 0)];
    const double *x = ops_in(c, 0) + i;
    double *y = ops_out(c, 0) + i;
    for (int j = 0; j < half; ++j) {
      double angle = position * frequency(&c->attr, j) * (c->attr.rope.inverse ? -1 : 1);
      y[j] = x[j] * cos(angle) - x[half + j] * sin(angle);
      y[half + j] = x[half + j] * cos(angle) + x[j] * sin(angle);
    }
  }
}

/* Sine and cosine are exact to 2^-25, the sum rounds twice more. */
const op_row ops_rope[] = {
    {TS_OP_ROPE, sizeof variants / sizeof *variants, build_rope, rope, 4},
    {.reference = NULL},
};
