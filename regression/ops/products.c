/* References of the ops whose kernels have tests of their own: products, the head, windows. */
#include "regression/ops/ops.h"

static void view(run_case *c) {
  memcpy(ops_out(c, 0), ops_in(c, 0) + c->attr.view.offset, (size_t) run_count(&c->out[0]) * sizeof(double));
}

static void matmul(run_case *c) {
  bool across = c->attr.matmul.transpose_a, turned = c->attr.matmul.transpose_b;
  int64_t m = across ? ops_columns(c, 0) : ops_rows(c, 0), k = across ? ops_rows(c, 0) : ops_columns(c, 0);
  int64_t n = turned ? ops_rows(c, 1) : ops_columns(c, 1);
  const double *a = ops_in(c, 0), *b = ops_in(c, 1);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = c->n_in > 2 && c->in[2].data != NULL ? ops_in(c, 2)[j] : 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += a[across ? l * m + i : i * k + l] * b[turned ? j * k + l : l * n + j];
      }
      ops_out(c, 0)[i * n + j] = sum;
    }
  }
}

/* The fused products are of 16 bits, bf16 where the activations are not; rows, inner and outer extents. */
static const int64_t fused[][3] = {{1, 1, 8}, {6, 17, 24}, {70, 33, 72}};

static ts_dtype narrow_of(ts_dtype dtype) {
  return dtype == TS_F32 ? TS_BF16 : dtype;
}

static void build_fused(run_case *c, int variant, ts_dtype dtype, bool turned) {
  const int64_t *e = fused[variant];
  ops_input(c, 0, dtype, TS_SHAPE(2, e[0], e[1]), 1.0);
  ops_input(c, 1, dtype, turned ? TS_SHAPE(e[2], e[1]) : TS_SHAPE(e[1], e[2]), 1.0);
  c->attr.matmul.transpose_b = turned;
  c->attr.matmul.dtype = dtype;
}

static void build_matmul_gelu(run_case *c, int variant, ts_dtype dtype) {
  dtype = narrow_of(dtype);
  build_fused(c, variant, dtype, variant % 2 == 1);
  ops_input(c, 2, dtype, TS_SHAPE(fused[variant][2]), 1.0);
  for (int i = 0; i < 2; ++i) {
    ops_output(c, dtype, TS_SHAPE(2, fused[variant][0], fused[variant][2]));
  }
}

static void build_matmul_dgelu(run_case *c, int variant, ts_dtype dtype) {
  dtype = narrow_of(dtype);
  build_fused(c, variant, dtype, variant % 2 == 0);
  ops_input(c, 2, dtype, TS_SHAPE(2, fused[variant][0], fused[variant][2]), 1.0);
  ops_output(c, dtype, TS_SHAPE(2, fused[variant][0], fused[variant][2]));
}

static double gelu_tanh(double x) {
  return tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
}

static void matmul_gelu(run_case *c) {
  matmul(c);
  for (int64_t i = 0; i < run_count(&c->out[0]); ++i) {
    double x = ops_out(c, 0)[i];
    ops_out(c, 1)[i] = x;
    ops_out(c, 0)[i] = 0.5 * x * (1 + gelu_tanh(x));
  }
}

static void matmul_dgelu(run_case *c) {
  run_case product = *c;
  product.n_in = 2;
  matmul(&product);
  for (int64_t i = 0; i < run_count(&c->out[0]); ++i) {
    double x = ops_in(c, 2)[i], t = gelu_tanh(x);
    ops_out(c, 0)[i] *= 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
  }
}

static double dot(const double *a, const double *b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

static const int32_t ignored = -100;

/* Logit v of a row of x, and its slope by the product. */
static double logit_of(const run_case *c, const double *x, int64_t v, double *slope) {
  double scale = c->attr.head.scale, softcap = c->attr.head.softcap;
  double z = scale * dot(x, ops_in(c, 1) + v * ops_columns(c, 1), ops_columns(c, 1));
  double t = softcap > 0 ? tanh(z / softcap) : 0;
  *slope = scale * (1 - t * t);
  return softcap > 0 ? softcap * t : z;
}

/* log (sum (exp (logits))) of a row of x. */
static double row_lse(const run_case *c, const double *x) {
  double sum = 0, slope;
  for (int64_t v = 0; v < ops_rows(c, 1); ++v) {
    sum += exp(logit_of(c, x, v, &slope));
  }
  return log(sum);
}

/* The label of a row among w's rows, -1: none of them. */
static int64_t own_label(const run_case *c, int64_t row) {
  int64_t label = ((const int32_t *) c->in[2].data)[row], at = label - c->attr.head.first;
  return label == ignored || at < 0 || at >= ops_rows(c, 1) ? -1 : at;
}

/* What the ranks that share the vocabulary measured, input `at`: of all of them, and the logit of the label. */
static double shared_lse(const run_case *c, int at, int64_t row, double *logit) {
  double sum = 0;
  *logit = 0;
  for (int64_t r = 0; r < c->in[at].shape.d[0]; ++r) {
    const double *stats = ops_in(c, at) + 2 * (r * ops_rows(c, 0) + row);
    sum += exp(stats[0]);
    *logit += stats[1];
  }
  return log(sum);
}

static void head_stats(run_case *c) {
  double slope;
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *x = ops_in(c, 0) + row * ops_columns(c, 0);
    int64_t label = own_label(c, row);
    ops_out(c, 0)[2 * row] = row_lse(c, x);
    ops_out(c, 0)[2 * row + 1] = label < 0 ? 0 : logit_of(c, x, label, &slope);
  }
}

static void head_loss(run_case *c) {
  double loss = 0, valid = 0, slope, logit;
  int64_t n = ops_columns(c, 0);
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *x = ops_in(c, 0) + row * n;
    int32_t label = ((const int32_t *) c->in[2].data)[row];
    if (label != ignored && c->n_in > 3) {
      double lse = shared_lse(c, 3, row, &logit);
      loss += lse - logit;
    } else if (label != ignored) {
      loss += row_lse(c, x) - logit_of(c, x, label, &slope);
    }
    valid += label != ignored;
  }
  ops_out(c, 0)[0] = loss;
  ops_out(c, 1)[0] = valid;
}

static void head_loss_dx(run_case *c) {
  int64_t n = ops_columns(c, 0);
  const double *w = ops_in(c, 1);
  memset(ops_out(c, 0), 0, (size_t) ops_count(c, 0) * sizeof(double));
  memset(ops_out(c, 1), 0, (size_t) ops_count(c, 1) * sizeof(double));
  for (int64_t row = 0; row < ops_rows(c, 0); ++row) {
    const double *x = ops_in(c, 0) + row * n;
    int32_t label = ((const int32_t *) c->in[2].data)[row];
    double logit_at_label, seed = label == ignored ? 0 : ops_in(c, 3)[0];
    double lse = c->n_in > 4 ? shared_lse(c, 4, row, &logit_at_label) : row_lse(c, x);
    for (int64_t v = 0; v < ops_rows(c, 1); ++v) {
      double slope, logit = logit_of(c, x, v, &slope);
      slope *= seed * (exp(logit - lse) - (v == own_label(c, row)));
      for (int64_t i = 0; i < n; ++i) {
        ops_out(c, 0)[row * n + i] += slope * w[v * n + i];
        ops_out(c, 1)[v * n + i] += slope * x[i];
      }
    }
  }
}

const op_row ops_products[] = {
    {.op = TS_OP_VIEW, .reference = view},
    {.op = TS_OP_MATMUL, .reference = matmul},
    {TS_OP_MATMUL_GELU, 3, build_matmul_gelu, matmul_gelu, 64},
    {TS_OP_MATMUL_DGELU, 3, build_matmul_dgelu, matmul_dgelu, 64},
    {.op = TS_OP_HEAD_STATS, .reference = head_stats},
    {.op = TS_OP_HEAD_LOSS, .reference = head_loss},
    {.op = TS_OP_HEAD_LOSS_DX, .reference = head_loss_dx},
    {.reference = NULL},
};
